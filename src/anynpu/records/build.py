"""The record of kind build."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from anynpu.records.calibration import Adequacy, OutsideSample
from anynpu.records.diagnosis import Diagnosis
from anynpu.records.repair import Repair
from anynpu.records.shared import ErrorForm, Fidelity, Threshold, with_signal
from anynpu.schema import Whole, about, rest

FLOAT_MODEL = "the float model"


@dataclass(frozen=True, kw_only=True)
class SourceForm(Whole):
    """The model as it was named."""

    model: str
    rest: Mapping[str, object] = rest()


@dataclass(frozen=True, kw_only=True)
class GateForm(Whole):
    """The gate as it was asked for."""

    min_sqnr_db: float | None = None
    max_drop_points: float | None = None
    rest: Mapping[str, object] = rest()


@dataclass(frozen=True, kw_only=True)
class RequestForm(Whole):
    """What was asked for: the model, the gate, and every other setting by its name."""

    source: SourceForm
    gate: GateForm | None = None
    rest: Mapping[str, object] = rest()


@dataclass(frozen=True, kw_only=True)
class TensorForm:
    """An input or output."""

    name: str
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    layout: str = ""
    rest: Mapping[str, object] = rest()


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

    name: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict, metadata={"help": "digests by role"})
    options: Mapping[str, object] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)
    rest: Mapping[str, object] = rest()


@dataclass(frozen=True, kw_only=True)
class MadeForm:
    """When an artifact was made, and how long it took."""

    at: str = ""
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class CandidateForm:
    """One of the ways in which a model was compiled."""

    latency_ms: float | None = None
    sram_bytes: float | None = None
    flash_bytes: float | None = None
    dram_bytes: float | None = None
    rest: Mapping[str, object] = rest()


@dataclass(frozen=True, kw_only=True)
class DetailsForm:
    """What one kind of artifact says besides; each compiler has its own."""

    candidates: Mapping[str, CandidateForm] | None = None
    chosen: str | None = None
    rest: Mapping[str, object] = rest()


@dataclass(frozen=True, kw_only=True)
class PassForm:
    """What a pass did to the graph of an artifact."""

    name: str
    changed: int = about("in how many places", 0)
    operators: int = about("how many operators it added, or took away", 0)
    dropped: str = about("why it was left out, where it was", "")


@dataclass(frozen=True, kw_only=True)
class ArtifactForm:
    """An artifact: what its manifest says."""

    digest: str
    format: str = ""
    fingerprint: str = ""
    inputs: tuple[TensorForm, ...] = ()
    outputs: tuple[TensorForm, ...] = ()
    estimates: EstimatesForm | None = about("counted or estimated, never measured", None)
    step: StepForm | None = about("what made the artifact", None)
    made: MadeForm | None = None
    passes: tuple[PassForm, ...] = about("what was done to its graph, in order", ())
    notes: tuple[str, ...] = ()
    details: DetailsForm = field(default_factory=DetailsForm)
    rest: Mapping[str, object] = rest()


@dataclass(frozen=True, kw_only=True)
class SampleSetForm(Whole):
    """A set of samples: what they are, and by whose word."""

    digest: str = ""
    content: str = about("of the samples themselves, whoever made them", "", optional=True)
    rest: Mapping[str, object] = rest()


@dataclass(frozen=True)
class Verification:
    """The proof: what came of executing an artifact and the float model on the same samples."""

    executed: str
    device: str
    stands_for: str
    samples: int
    held_out: bool
    outputs: Mapping[str, Fidelity]
    host: str = about("instructions of the CPU that executed it, and whether int8 products were added exactly", "")
    metric: str = ""
    score_float: float | None = None
    score: float | None = None
    arena_bytes: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of the driver, firmware and runtime that executed it, as far as they can be asked."""
    notes: tuple[str, ...] = ()
    unfit: tuple[str, ...] = about("why nothing can be proven with the float model itself", ())
    warnings: tuple[str, ...] = about("what a user should look into although it passes", ())
    reference: str = about("what it was compared with, where that is not the float model", FLOAT_MODEL)
    sqnr_db: float | None = about("of the worst output that is judged", None)
    cosine: float | None = about("of the worst output that is judged", None)
    expected_sqnr_db: tuple[float, float] | None = about("in which 90 % of the time the SQNR of new samples lies", None)
    held_against_ranges: int = about("how many samples were held against the calibrated ranges", 0)
    outside: tuple[OutsideSample, ...] = about("samples that lie outside of calibrated ranges", ())

    def __post_init__(self) -> None:
        for name in ("sqnr_db", "cosine"):
            if self.outputs and getattr(self, name) is None:
                object.__setattr__(self, name, min(getattr(each, name) for each in with_signal(self.outputs).values()))


@dataclass(frozen=True, kw_only=True)
class OperatorElsewhere:
    """An operator that is not on the NPU."""

    name: str
    kind: str
    device: str = ""
    reason: str = ""
    macs: int | None = None


@dataclass(frozen=True, kw_only=True)
class Receipt(Whole):
    """The placement receipt: shares, and each operator that is not on the NPU with the reason."""

    npu: str = ""
    operators: int
    on_npu: int
    source: str = ""
    operator_share: float | None = None
    mac_share: float | None = None
    share: float
    elsewhere: tuple[OperatorElsewhere, ...]

    @property
    def said_by(self) -> str:
        """ " (predicted: ...)", where something other than the compiler says what runs on the NPU."""
        return f" ({self.source})" if self.source else ""


@dataclass(frozen=True, kw_only=True)
class MemoryForm:
    """What a chip has."""

    sram_kib: float | None = None
    flash_kib: float | None = None


@dataclass(frozen=True, kw_only=True)
class StageTiming(Whole):
    """How long a stage of the build took."""

    chip: str = ""
    stage: str
    seconds: float = 0.0
    cached: bool = False


@dataclass(frozen=True, kw_only=True)
class GraphNode(Whole):
    """One operator: where it runs, what it costs, how far its outputs are off."""

    name: str
    kind: str
    device: Literal["npu", "cpu"]
    reason: str = ""
    macs: float | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    sqnr_db: float | None = None
    time: float | None = None
    stream_sqnr_db: float | None = about("of what the compiled stream computes", None, optional=True)
    variant: str = about("which kernels generated C has for it: plain, dsp or mve", "", optional=True)
    rest: Mapping[str, object] = rest()


@dataclass(frozen=True, kw_only=True)
class GraphTensor(Whole):
    """One tensor, and how far it is off."""

    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    layout: str = ""
    constant: bool = False
    scale: float | tuple[float, ...] | None = None
    zero_point: float | tuple[float, ...] | None = None
    channels: int | None = None
    sqnr_db: float | None = None
    max_error: float | None = None
    rest: Mapping[str, object] = rest()


@dataclass(frozen=True, kw_only=True)
class GraphForm(Whole):
    """The operators of what was compiled, in order."""

    nodes: tuple[GraphNode, ...]
    time_unit: str | None = about("of every node's time; says where it is an estimate", None)
    tensors: Mapping[str, GraphTensor | None] = field(default_factory=dict)
    of: str = about("the format of what is drawn", "")
    samples: int = about("on how many samples the errors were measured", 0)
    notes: tuple[str, ...] = ()
    rest: Mapping[str, object] = rest()


@dataclass(frozen=True, kw_only=True)
class ChipForm(Whole):
    """What a build came to on one chip."""

    chip: str
    title: str = ""
    npu: str
    status: str = about("ok, not executed, fallback, or the kind of the error")
    exit_status: int = 0
    verdict: str
    by_gate_only: str = about("what the default gate says of a result that passes only the one in force", "")
    error: ErrorForm | None
    chain: tuple[ArtifactForm, ...]
    verification: Verification | None = about(
        "the proof: what executed the result, and how far it is from the float model"
    )
    not_verified: str = ""
    receipt: Receipt | None = about("the placement receipt")
    estimates: EstimatesForm | None = about("counted or estimated, never measured")
    memory: MemoryForm | None = None
    seconds: float
    timings: tuple[StageTiming, ...] = ()
    graph: GraphForm | None = about("the operators in order: where each runs, its cost, its outputs' error", None)
    calibration: Adequacy | None = about("whether the calibration samples were enough", None)
    repairs: tuple[Repair, ...] = about("what was tried where the gate did not hold, in order", ())
    diagnosis: Diagnosis | None = about("where the accuracy is lost, of a chip that failed the gate", None)

    @property
    def result(self) -> str:
        """The status, for people: whether it took repairs."""
        return f"{self.status}, repaired" if self.repairs and self.repairs[-1].holds else self.status

    @property
    def details(self) -> DetailsForm:
        """What the last artifact of the chain says of itself."""
        return self.chain[-1].details if self.chain else DetailsForm()

    @property
    def sram_bytes(self) -> int | None:
        """The working memory: as the compiler estimates it, or what an interpreter's arena took."""
        estimated = self.estimates.sram_bytes if self.estimates else None
        return estimated or (self.verification.arena_bytes if self.verification else None)


@dataclass(frozen=True, kw_only=True)
class BuildRecord(Whole):
    """A build of one model for one or more chips."""

    schema_version: int = about("the form of this kind of record", minimum=1)
    kind: Literal["build"]
    anynpu: str = about("the version that wrote the record", "")
    at: str = about("when, UTC, ISO 8601", "")
    request: RequestForm
    gate: tuple[Threshold, ...] = about("every threshold in force, its default, and what set it", ())
    model: ArtifactForm | None = None
    data: Mapping[str, SampleSetForm | None] = field(default_factory=dict)
    chips: tuple[ChipForm, ...]
    timings: tuple[StageTiming, ...] = ()
    notes: tuple[str, ...] = about("sentences that belong to the figures", ())
    exit_status: int = 0
    seal: str = about("the sha256 of all else in the record; a change of it shows", "", optional=True)
    rest: Mapping[str, object] = rest()
