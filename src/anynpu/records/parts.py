"""What records share: the version that made them, errors, the placement receipt, and their JSON."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import anynpu
from anynpu import schema
from anynpu.artifact import Placement
from anynpu.errors import AnyNpuError

REPORT = "report.json"
"""The record of a build, beside its chips' folders."""


@functools.cache
def own_version() -> str:
    """Returns anynpu's version with a digest of its code, so that a changed program never reuses old results."""
    digest = hashlib.sha256()
    root = Path(anynpu.__file__).parent
    for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".ini", ".c", ".h")):
        if path.relative_to(root).parts[0] not in ("api", "cli", "report", "testing"):
            digest.update(path.read_bytes())
    return f"{anynpu.__version__}+{digest.hexdigest()[:12]}"


def as_json(data: Any) -> str:
    """Returns readable JSON."""
    return json.dumps(data, indent=1, sort_keys=False, allow_nan=False) + "\n"


def receipt(placement: Placement | None) -> dict[str, Any] | None:
    """Returns the placement receipt: shares, and each operator that is not on the NPU with the reason."""
    if placement is None:
        return None
    return {
        "npu": placement.npu,
        "operators": len(placement.operators),
        "on_npu": placement.on_npu,
        "operator_share": placement.operator_share,
        "mac_share": placement.mac_share,
        "share": placement.share,
        "source": placement.source,
        "elsewhere": [schema.to_dict(op) for op in placement.elsewhere()],
    }


def error_record(error: AnyNpuError) -> dict[str, Any]:
    """Returns an error as plain data."""
    data = {k: schema.to_dict(_finite(v)) for k, v in vars(error).items()}
    return {"kind": type(error).__name__, "exit_status": error.exit_status, **data}


def _finite(value: Any) -> Any:
    """Returns None for a figure that JSON cannot hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
