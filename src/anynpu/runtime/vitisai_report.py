"""The report of the VitisAI provider itself: which operator it compiled for which device.

A profile of ONNX Runtime knows a part that the provider took as one node. The report says what is inside, and that some
of it (VITIS_EP_CPU) is computed by the provider on the CPU all the same.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from anynpu.artifact import OperatorPlacement, Placement
from anynpu.errors import IntegrityError
from anynpu.runtime import ort_profile

PROVIDER = "VitisAIExecutionProvider"
FILE = "vitisai_ep_report.json"
ON_NPU = frozenset({"NPU", "DPU", "IPU", "VAIML"})
"""The names that releases give to what runs on the NPU; every other name is the CPU's."""
RUNNING = "actually running on npu"
BOTH = f"{ort_profile.SOURCE} and the provider's own report"
FUSED = f"{ort_profile.SOURCE}, where a part that the provider took counts once: it wrote no report"


@dataclass(frozen=True)
class Report:
    """The operators, and how many parts of the model run on the NPU (None where the report does not say)."""

    operators: tuple[OperatorPlacement, ...]
    running: int | None


def read_report(text: str) -> Report:
    """Returns what the provider reports, from every operator where they are listed, else from the counts."""
    try:
        data = json.loads(text)
        placed, running = [], None
        for node in data.get("nodeStat") or ():
            outputs = node.get("output") or node.get("name") or "?"
            name = outputs if isinstance(outputs, str) else str(outputs[0])
            placed.append(_placed(name, str(node.get("opType") or "?").removeprefix("::"), str(node["device"])))
        for device in () if placed else data["deviceStat"]:
            name = str(device["name"])
            count = 0 if name.lower() == "all" else int(device["nodeNum"])
            placed += [_placed(f"{name} {index}", "?", name) for index in range(count)]
        for part in data.get("subgraphStat") or ():
            if RUNNING in (str(value).lower() for value in part.values()):
                running = next((value for value in part.values() if isinstance(value, int)), None)
                break
        return Report(tuple(placed), running)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(f"{FILE}: not a report of the VitisAI provider: {error}") from None


def _placed(name: str, kind: str, device: str) -> OperatorPlacement:
    if device.upper() in ON_NPU:
        return OperatorPlacement(name, kind, "npu")
    return OperatorPlacement(name, kind, "cpu", f"the provider left it to {device}")


def receipt(profile: str, report: str, npu: str) -> Placement:
    """Returns what ran where: the operators of the report, believed only as far as the profile of a run bears it out.

    Without a report the profile alone speaks.
    """
    ran = ort_profile.placement(profile, PROVIDER, npu, lambda kind: "the provider did not take it")
    if not report:
        return replace(ran, source=FUSED)
    reported = read_report(report)
    if not ran.on_npu:
        return _denied(reported, npu, f"the report claims it, but no node of {PROVIDER} was executed")
    if reported.running == 0:
        return _denied(reported, npu, "compiled for the NPU, but the report says that nothing runs there")
    return Placement(npu, reported.operators, BOTH)


def _denied(reported: Report, npu: str, why: str) -> Placement:
    moved = (replace(op, device="cpu", reason=op.reason or why) for op in reported.operators)
    return Placement(npu, tuple(moved), BOTH)
