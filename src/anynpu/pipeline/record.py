"""The record of a build: what report.json holds and every other report is rendered from."""

from __future__ import annotations

from dataclasses import replace

from anynpu import schema
from anynpu.artifact import Artifact
from anynpu.pipeline.result import BuildResult, ChipResult
from anynpu.records.build import (
    ArtifactForm,
    BuildRecord,
    ChipForm,
    EstimatesForm,
    MemoryForm,
    RequestForm,
    SampleSetForm,
)
from anynpu.records.parts import error_form, now, own_version, receipt
from anynpu.seals import with_seal

SCHEMA_VERSION = 1
CLAIM = "the compiler's claim: its file was not executed here"


def record(result: BuildResult) -> BuildRecord:
    """Returns everything a report says of a build."""
    return with_seal(
        BuildRecord(
            schema_version=SCHEMA_VERSION,
            kind="build",
            anynpu=own_version(),
            at=now(),
            request=schema.from_json(RequestForm, schema.to_dict(result.request, whole=True)),
            gate=result.request.thresholds,
            model=None if result.model is None else _artifact(result.model),
            data={"calibration": _data(result.calibration), "test": _data(result.test)},
            chips=tuple(_chip(chip) for chip in result.chips),
            timings=result.timings,
            notes=tuple(result.notes),
            exit_status=result.exit_status,
        )
    )


def _artifact(artifact: Artifact) -> ArtifactForm:
    data = schema.to_dict(replace(artifact.manifest, placement=None))
    return schema.from_json(ArtifactForm, {"digest": artifact.digest, **data})


def _data(data: Artifact | None) -> SampleSetForm | None:
    if data is None:
        return None
    details = dict(data.manifest.details)
    # Of what the samples are, not of how they were made: the same samples have it whoever made them.
    content = schema.digest(details.pop("sample_digests"))
    return SampleSetForm(digest=data.digest, content=content, rest=details)


def _chip(chip: ChipResult) -> ChipForm:
    manifest, memory = chip.artifact.manifest if chip.artifact else None, chip.platform.memory
    estimates = manifest.estimates if manifest else None
    placed = receipt(manifest.placement if manifest else None)
    executed = chip.verification is not None and not chip.verification.stands_for
    if placed is not None and not placed.source and not executed:
        placed = replace(placed, source=CLAIM)
    return ChipForm(
        chip=chip.chip,
        title=chip.platform.title,
        npu=chip.platform.npu,
        status=chip.status,
        exit_status=chip.exit_status,
        verdict=chip.verdict,
        by_gate_only=chip.by_gate_only,
        error=None if chip.error is None else error_form(chip.error),
        chain=tuple(_artifact(artifact) for artifact in chip.artifacts),
        verification=chip.verification,
        not_verified=chip.not_verified,
        graph=chip.graph,
        calibration=chip.calibration,
        repairs=chip.repairs,
        diagnosis=chip.diagnosis,
        receipt=placed,
        estimates=None if estimates is None else EstimatesForm(**vars(estimates)),
        memory=MemoryForm(sram_kib=memory.sram_kib, flash_kib=memory.flash_kib),
        seconds=chip.seconds,
        timings=chip.timings,
    )
