"""The record of kind build."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from anynpu.records.shared import ErrorForm, FidelityForm, ThresholdForm
from anynpu.schema import about


@dataclass(frozen=True, kw_only=True)
class SourceForm:
    """The model as it was named."""

    model: str


@dataclass(frozen=True, kw_only=True)
class GateForm:
    """The gate as it was asked for."""

    min_sqnr_db: float | None = None
    max_drop_points: float | None = None


@dataclass(frozen=True, kw_only=True)
class RequestForm:
    """What was asked for."""

    source: SourceForm
    gate: GateForm | None = None


@dataclass(frozen=True, kw_only=True)
class TensorForm:
    """An input or output."""

    name: str
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    layout: str | None = None
    quantization: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class EstimatesForm:
    """Figures that nobody measured."""

    source: str
    macs: int | None = None
    parameters: int | None = None
    sram_bytes: int | None = None
    flash_bytes: int | None = None
    cycles: float | None = None
    latency_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class StepForm:
    """What made an artifact."""

    name: str | None = None
    inputs: Mapping[str, str] | None = about("digests by role", None)
    options: Mapping[str, Any] | None = None
    tools: Mapping[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class MadeForm:
    """When an artifact was made, and how long it took."""

    at: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class CandidateForm:
    """One of the ways in which a model was compiled."""

    latency_ms: float | None = None
    sram_bytes: float | None = None
    flash_bytes: float | None = None
    dram_bytes: float | None = None


@dataclass(frozen=True, kw_only=True)
class DetailsForm:
    """What one kind of artifact says besides."""

    candidates: Mapping[str, CandidateForm] | None = None
    chosen: str | None = None
    sections: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class ArtifactForm:
    """An artifact: what its manifest says."""

    digest: str
    format: str | None = None
    fingerprint: str | None = None
    inputs: tuple[TensorForm, ...] | None = None
    outputs: tuple[TensorForm, ...] | None = None
    estimates: EstimatesForm | None = about("counted or estimated, never measured", None)
    step: StepForm | None = about("what made the artifact", None)
    made: MadeForm | None = None
    notes: tuple[str, ...] | None = None
    details: DetailsForm | None = None


@dataclass(frozen=True, kw_only=True)
class SampleSetForm:
    """A set of samples."""

    digest: str | None = None


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What executed a result, and how far it is from the float model."""

    sqnr_db: float | None = None
    cosine: float | None = None
    executed: str
    reference: str = about("what it was compared with, where that is not the float model", "")
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str | None = None
    host: str = about("instructions of the CPU that executed it, and whether int8 products were added exactly", "")
    stands_for: str | None = None
    samples: int
    held_out: bool | None = None
    outputs: Mapping[str, FidelityForm]
    metric: str | None = None
    score: float | None = None
    score_float: float | None = None
    arena_bytes: int | None = None
    notes: tuple[str, ...] | None = None
    unfit: tuple[str, ...] = about("why nothing can be proven with the float model itself", ())
    warnings: tuple[str, ...] = about("what a user should look into although it passes", ())


@dataclass(frozen=True, kw_only=True)
class OperatorElsewhere:
    """An operator that is not on the NPU."""

    name: str
    kind: str
    device: str | None = None
    reason: str | None = None
    macs: int | None = None


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The placement receipt."""

    npu: str | None = None
    operators: int
    on_npu: int
    source: str | None = None
    operator_share: float | None = None
    mac_share: float | None = None
    share: float
    elsewhere: tuple[OperatorElsewhere, ...]


@dataclass(frozen=True, kw_only=True)
class MemoryForm:
    """What a chip has."""

    sram_kib: float | None = None
    flash_kib: float | None = None


@dataclass(frozen=True, kw_only=True)
class StageTiming:
    """How long a stage of the build took."""

    chip: str | None = None
    stage: str
    seconds: float | None = None
    cached: bool | None = None


@dataclass(frozen=True, kw_only=True)
class GraphNode:
    """One operator: where it runs, what it costs, how far its outputs are off."""

    name: str
    kind: str
    device: Literal["npu", "cpu"]
    reason: str | None = None
    macs: float | None = None
    inputs: tuple[str, ...] | None = None
    outputs: tuple[str, ...] | None = None
    sqnr_db: float | None = None
    time: float | None = None


@dataclass(frozen=True, kw_only=True)
class GraphTensor:
    """One tensor, and how far it is off."""

    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    scale: float | tuple[float, ...] | None = None
    zero_point: float | tuple[float, ...] | None = None
    channels: int | None = None
    constant: bool | None = None
    sqnr_db: float | None = None
    max_error: float | None = None


@dataclass(frozen=True, kw_only=True)
class GraphForm:
    """The operators of what was compiled, in order."""

    nodes: tuple[GraphNode, ...]
    time_unit: str | None = about("of every node's time; says where it is an estimate", None)
    tensors: Mapping[str, GraphTensor | None] | None = None
    notes: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class ChipForm:
    """What a build came to on one chip."""

    chip: str
    title: str | None = None
    npu: str
    status: str = about("ok, not executed, fallback, or the kind of the error")
    exit_status: int = 0
    verdict: str
    by_gate_only: str | None = about("what the default gate says of a result that passes only the one in force", None)
    error: ErrorForm | None
    chain: tuple[ArtifactForm, ...]
    verification: Proof | None = about("the proof: what executed the result, and how far it is from the float model")
    not_verified: str | None = None
    receipt: Receipt | None = about("the placement receipt")
    estimates: EstimatesForm | None = about("counted or estimated, never measured")
    memory: MemoryForm | None = None
    seconds: float
    timings: tuple[StageTiming, ...] | None = None
    graph: GraphForm | None = about("the operators in order: where each runs, its cost, its outputs' error", None)


@dataclass(frozen=True, kw_only=True)
class BuildRecord:
    """A build of one model for one or more chips."""

    schema_version: int = about("the form of this kind of record", minimum=1)
    anynpu: str | None = about("the version that wrote the record", None)
    at: str | None = about("when, UTC, ISO 8601", None)
    kind: Literal["build"]
    request: RequestForm
    model: ArtifactForm | None = None
    data: Mapping[str, SampleSetForm | None] | None = None
    chips: tuple[ChipForm, ...]
    timings: tuple[StageTiming, ...] | None = None
    gate: tuple[ThresholdForm, ...] | None = about("every threshold in force, its default, and what set it", None)
    notes: tuple[str, ...] | None = about("sentences that belong to the figures", None)
    exit_status: int | None = None
    seal: str = about("the sha256 of all else in the record; a change of it shows", "")
