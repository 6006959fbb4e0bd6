"""What a profile of ONNX Runtime says: which provider executed which operator."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from anynpu.artifact import OperatorPlacement, Placement
from anynpu.errors import IntegrityError

SOURCE = "read from the profile of a run"
_KERNEL = "_kernel_time"


def executed(profile: str) -> dict[str, Mapping[str, object]]:
    """Returns what a profile (JSON) says of each executed node, by the node's name; each counts once."""
    try:
        events = json.loads(profile)
        nodes = {
            event["name"].removesuffix(_KERNEL): event["args"]
            for event in events
            if event.get("cat") == "Node" and str(event["name"]).endswith(_KERNEL)
        }
        for args in nodes.values():
            str(args["provider"]), str(args["op_name"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(f"not a profile of ONNX Runtime: {error}") from None
    if not nodes:
        raise IntegrityError("the profile has no executed operator in it", "run the model at least once")
    return nodes


def placement(profile: str, provider: str, npu: str, why: Callable[[str], str]) -> Placement:
    """Returns the receipt of a profile; `why` gives the reason for a kind of operator that the provider did not run."""

    def placed(name: str, where: str, kind: str) -> OperatorPlacement:
        reason = "" if where == provider else f"{where} ran it: {why(kind)}"
        return OperatorPlacement(name, kind, "cpu" if reason else "npu", reason)

    nodes = executed(profile).items()
    return Placement(npu, tuple(placed(n, str(a["provider"]), str(a["op_name"])) for n, a in nodes), SOURCE)
