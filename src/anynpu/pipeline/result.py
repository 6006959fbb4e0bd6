"""What a build comes to: on each chip, and on all of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from anynpu.artifact import Artifact
from anynpu.errors import AccuracyError, AnyNpuError
from anynpu.measure.verify import Gate, judge
from anynpu.pipeline.request import Request
from anynpu.platform import Platform
from anynpu.records.build import GraphForm, StageTiming, Verification
from anynpu.records.calibration import Adequacy
from anynpu.records.diagnosis import Diagnosis
from anynpu.records.repair import Repair

NOT_EXECUTED = "not executed"
"""The result of a chip whose file was made and proves nothing yet."""


@dataclass(frozen=True)
class ChipResult:
    """What a build came to on one chip: artifacts and proof, or the error that stopped it."""

    chip: str
    platform: Platform
    artifacts: tuple[Artifact, ...] = ()
    verification: Verification | None = None
    evidence: Artifact | None = None
    graph: GraphForm | None = None
    calibration: Adequacy | None = None
    repairs: tuple[Repair, ...] = ()
    diagnosis: Diagnosis | None = None
    not_verified: str = ""
    error: AnyNpuError | None = None
    verdict: str = ""
    seconds: float = 0.0
    timings: tuple[StageTiming, ...] = ()

    @property
    def artifact(self) -> Artifact | None:
        """The last artifact of the chain, if the build reached it."""
        return self.artifacts[-1] if self.artifacts else None

    @property
    def status(self) -> str:
        if self.error is not None:
            return type(self.error).__name__
        if self.verdict:
            return "fallback"
        return NOT_EXECUTED if self.verification is None else "ok"

    @property
    def by_gate_only(self) -> str:
        """What the default gate says of a result that passes the one in force, if it would not pass that."""
        if self.status != "ok" or self.artifact is None:
            return ""
        try:
            if self.verification is not None:
                judge(self.verification, Gate())
        except AccuracyError as error:
            return error.message
        return fallback(self.artifact, self.platform, Request.require_npu)

    @property
    def exit_status(self) -> int:
        if self.error is not None:
            return self.error.exit_status
        return 1 if self.verdict else 0


@dataclass
class BuildResult:
    """The float model and what each chip came to."""

    request: Request
    model: Artifact | None = None
    calibration: Artifact | None = None
    test: Artifact | None = None
    chips: list[ChipResult] = field(default_factory=list)
    timings: tuple[StageTiming, ...] = ()
    notes: list[str] = field(default_factory=list)

    @property
    def exit_status(self) -> int:
        """Zero when all went well; one chip's own status; the first failure's where several differ."""
        return next((chip.exit_status for chip in self.chips if chip.exit_status), 0)


def fallback(artifact: Artifact, platform: Platform, required: float) -> str:
    """Returns the sentence that says too little runs on the NPU, or an empty string."""
    placement = artifact.manifest.placement
    if not platform.npu:
        return ""
    if placement is None:
        return f"no receipt says what runs on the {platform.npu}"
    if placement.share >= required:
        return ""
    elsewhere = placement.elsewhere()
    return (
        f"{placement.share:.1%} on the {platform.npu}, {required:.0%} required: "
        f"{len(elsewhere)} of {len(placement.operators)} operators run on the CPU"
    )
