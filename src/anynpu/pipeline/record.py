"""A build as plain data: what report.json holds and every other report is rendered from."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from anynpu import schema
from anynpu.artifact import Artifact
from anynpu.measure.verify import Verification
from anynpu.pipeline.build import BuildResult, ChipResult
from anynpu.records.parts import error_record, own_version, receipt

SCHEMA_VERSION = 1
CLAIM = "the compiler's claim: its file was not executed here"


def record(result: BuildResult) -> dict[str, Any]:
    """Returns everything a report says of a build."""
    data = {
        "schema_version": SCHEMA_VERSION,
        "kind": "build",
        "anynpu": own_version(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "request": schema.to_dict(result.request, whole=True),
        "gate": schema.to_dict(result.request.thresholds, whole=True),
        "model": None if result.model is None else _artifact(result.model),
        "data": {
            "calibration": _data(result.calibration),
            "test": _data(result.test),
        },
        "chips": [_chip(chip) for chip in result.chips],
        "timings": list(result.timings),
        "notes": result.notes,
        "exit_status": result.exit_status,
    }
    return schema.sealed(data)


def _artifact(artifact: Artifact) -> dict[str, Any]:
    manifest = artifact.manifest
    data: dict[str, Any] = schema.to_dict(manifest)
    data.pop("placement", None)
    return {"digest": artifact.digest, **data}


def _data(data: Artifact | None) -> dict[str, Any] | None:
    if data is None:
        return None
    details = dict(data.manifest.details)
    # Of what the samples are, not of how they were made: the same samples have it whoever made them.
    content = schema.digest(details.pop("sample_digests"))
    return {"digest": data.digest, "content": content, **details}


def _chip(chip: ChipResult) -> dict[str, Any]:
    artifact = chip.artifact
    return {
        "chip": chip.chip,
        "title": chip.platform.title,
        "npu": chip.platform.npu,
        "status": chip.status,
        "exit_status": chip.exit_status,
        "verdict": chip.verdict,
        "by_gate_only": chip.by_gate_only,
        "error": None if chip.error is None else error_record(chip.error),
        "chain": [_artifact(a) for a in chip.artifacts],
        "verification": None if chip.verification is None else verification_record(chip.verification),
        "not_verified": chip.not_verified,
        "graph": chip.graph,
        "receipt": None if artifact is None else _claimed(chip, receipt(artifact.manifest.placement)),
        "estimates": None if artifact is None else schema.to_dict(artifact.manifest.estimates),
        "memory": schema.to_dict(chip.platform.memory),
        "seconds": chip.seconds,
        "timings": list(chip.timings),
    }


def _claimed(chip: ChipResult, placed: dict[str, Any] | None) -> dict[str, Any] | None:
    """Returns a receipt that says whose word it is, where the NPU's own file was not executed."""
    executed = chip.verification is not None and not chip.verification.stands_for
    if placed is None or placed["source"] or executed:
        return placed
    return {**placed, "source": CLAIM}


def verification_record(verification: Verification) -> dict[str, Any]:
    """Returns the proof as plain data, with the figures of the worst output beside those of each."""
    data: dict[str, Any] = schema.to_dict(verification)
    return {"sqnr_db": verification.sqnr_db, "cosine": verification.cosine, **data}
