"""What a diagnosis holds: where a build loses the float model, and by what cause."""

from __future__ import annotations

from dataclasses import dataclass

from anynpu.schema import about

BAD_DB = 20.0
"""Below this a tensor has lost what 8 bits usually keep."""


@dataclass(frozen=True, kw_only=True)
class TensorLoss:
    """The error of one tensor: in all, what its operator made, and what came with the operator's inputs."""

    tensor: str
    operator: str
    sqnr_db: float = about("of the float model's values over the whole error")
    made_db: float = about("the same over the error that the operator makes of exactly these inputs")
    inherited_db: float = about("the same over the error that the float operator passes on")
    low: float = about("the smallest value in the float model, at the factor of its channel where equalised")
    high: float = about("the largest value, likewise")
    step: float | None = about("what one step of the stored integers stands for", None)
    stored: str = about("the type in which the build stores it", "")
    elements: int = about("how many values it has", 0)
    before: tuple[str, ...] = about("tensors before an activation whose rounding is judged here", ())


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A named cause, where it is worst, what shows it, and what helps."""

    cause: str
    tensor: str
    evidence: str
    repair: str
    places: int = about("how many tensors it is found at", 1)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What was found in one build."""

    worst_output: str
    sqnr_db: float
    samples: int
    healthy: bool = about("nothing is wrong: the outputs are near the float model's and no cause is found")
    first_bad: str = about("the first tensor, in the order of execution, that is below 20 dB", "")
    causes: tuple[Cause, ...] = ()
    tensors: tuple[TensorLoss, ...] = about("in the order of execution", ())
    notes: tuple[str, ...] = ()
