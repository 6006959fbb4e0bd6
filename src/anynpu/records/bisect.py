"""What a bisection holds: whether two executions agree, and the smallest sub-model on which they do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from anynpu.schema import Throughout, about


@dataclass(frozen=True, kw_only=True)
class BisectSide:
    """One of the two executions."""

    name: str = about("as it was named")
    executed: str = about("what executed it")
    digest: str = about("of the artifact, or the sha256 of the file")
    fingerprint: str = about("of the float network, where it is known", "")
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class OutputDifference:
    """How far B is from A in one tensor, on the sample where they are furthest apart."""

    tensor: str
    sqnr_db: float
    max_abs_error: float
    at: tuple[int, ...] = about("where the largest error is")
    a: float = about("the value of A there")
    b: float = about("the value of B there")


@dataclass(frozen=True, kw_only=True)
class GuiltyOperator:
    """An operator of the sub-model, as A names it."""

    name: str
    kind: str
    tensor: str = about("what it makes")


@dataclass(frozen=True, kw_only=True)
class BisectRun:
    """One sub-model that both sides ran."""

    units: int = about("how many places it could still be cut at")
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    worst: str = about("the output that is furthest apart, empty where it could not be run", "")
    sqnr_db: float | None = None
    disagrees: bool | None = about("null where a side cannot be cut or run there", None)


@dataclass(frozen=True, kw_only=True)
class BisectRecord(Throughout):
    """Two executions of one model, and where they part."""

    schema_version: int
    kind: str
    anynpu: str
    at: str
    a: BisectSide
    b: BisectSide
    samples: int
    tolerance_db: float | None = about("SQNR below which they disagree; null means that every value must be equal")
    agree: bool
    whole: OutputDifference = about("the worst output of the whole model")
    sample: int = about("the sample on which they are furthest apart, counted from 0")
    cuts: int = about("how many places the model could be cut at")
    runs: tuple[BisectRun, ...] = about("every run, in order; the first is the whole model", ())
    guilty: GuiltyOperator | None = about("the first operator of the sub-model, which the disagreement needs", None)
    operators: tuple[GuiltyOperator, ...] = about("all operators of the sub-model", ())
    difference: OutputDifference | None = about("of the sub-model, both sides given the same values", None)
    alone: bool = about("one operator disagrees by itself; otherwise errors add up over all of them", False)
    bundle: str = about("the folder with everything to repeat it", "")
    notes: tuple[str, ...] = ()
    seal: str = ""

    @property
    def executed_runs(self) -> int:
        """How many models and sub-models both sides ran."""
        return sum(run.sqnr_db is not None for run in self.runs)
