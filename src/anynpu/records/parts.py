"""What records share: the version that made them, errors, the placement receipt, and their JSON."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anynpu
from anynpu import schema
from anynpu.artifact import Placement
from anynpu.errors import AnyNpuError
from anynpu.records.build import OperatorElsewhere, Receipt
from anynpu.records.shared import ErrorForm
from anynpu.schema import JsonObject

REPORT = "report.json"
"""The record of a build, next to its chips' folders."""


@functools.cache
def own_version() -> str:
    """Returns anynpu's version with a digest of its code, so that a changed program never reuses old results."""
    digest, root, paths = hashlib.sha256(), str(Path(anynpu.__file__).parent), []
    for folder, inner, files in os.walk(root):
        if folder == root:
            inner[:] = sorted(set(inner) - {"api", "cli", "report", "testing"})
        paths += [f"{folder}{os.sep}{name}" for name in files if name.endswith((".py", ".ini", ".c", ".h"))]
    for path in sorted(paths):
        with open(path, "rb") as file:  # noqa: PTH123 - in a third of the time, and there are hundreds
            digest.update(file.read())
    return f"{anynpu.__version__}+{digest.hexdigest()[:12]}"


def as_json(data: Any) -> str:
    """Returns readable JSON."""
    return json.dumps(data, indent=1, sort_keys=False, allow_nan=False) + "\n"


def now() -> str:
    """Returns the time as records hold it: UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def receipt(placement: Placement | None) -> Receipt | None:
    """Returns the placement receipt: shares, and each operator that is not on the NPU with the reason."""
    if placement is None:
        return None
    return Receipt(
        npu=placement.npu,
        operators=len(placement.operators),
        on_npu=placement.on_npu,
        operator_share=placement.operator_share,
        mac_share=placement.mac_share,
        share=placement.share,
        source=placement.source,
        elsewhere=tuple(OperatorElsewhere(**vars(op)) for op in placement.elsewhere()),
    )


def error_form(error: AnyNpuError) -> ErrorForm:
    """Returns an error as a record holds it: all that is known of it."""
    data = {
        name: schema.to_dict(None if isinstance(value, float) and not math.isfinite(value) else value)
        for name, value in vars(error).items()
    }
    return schema.from_json(ErrorForm, {"kind": type(error).__name__, "exit_status": error.exit_status, **data})


def error_record(error: AnyNpuError) -> JsonObject:
    """Returns an error as JSON."""
    form: JsonObject = schema.to_dict(error_form(error))
    return form
