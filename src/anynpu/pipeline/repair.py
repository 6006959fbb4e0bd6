"""Repairs of a build that misses its gate: changes of the quantisation plan, tried singly in order of their cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from anynpu.artifact import Artifact
from anynpu.errors import AccuracyError, AnyNpuError, Unsupported
from anynpu.pipeline.planner import Link
from anynpu.quantize.plan import QuantPlan
from anynpu.records.build import Verification
from anynpu.records.calibration import Adequacy
from anynpu.records.diagnosis import Diagnosis, TensorLoss
from anynpu.records.repair import Repair

Links = tuple[Link, ...]
TIME_LIMIT_S = 480.0
"""No repair is begun that would end after this, if it took as long as the longest before it."""
_BYTES = ("int8", "uint8")
_SHOWN = 3
"""How many tensors are named where a gate is not met."""
_INTEGERS = (*_BYTES, "int16", "uint16")


@dataclass(frozen=True)
class Rung:
    """One repair, as settings of the plan."""

    repair: str
    settings: Mapping[str, str | bool | tuple[str, ...]]

    @property
    def options(self) -> str:
        """The repair as the user would ask for it."""
        shown = {name: value for name, value in self.settings.items() if value != ()}
        return " ".join(f"-O {name}={_text(value)}" for name, value in shown.items())


@dataclass(frozen=True)
class Fewest:
    """A repair of single tensors: the fewest of those that make the largest errors with which the gate holds."""

    repair: str
    option: str
    stored: tuple[str, ...]
    """The types of tensors that it is for."""
    value_bytes: int
    """What each value takes afterwards."""
    inputs: bool
    """Whether inputs of the model are taken too."""

    def rung(self, losses: Sequence[TensorLoss]) -> Rung:
        return Rung(self.repair, {self.option: self.tensors(losses)})

    def tensors(self, losses: Sequence[TensorLoss]) -> tuple[str, ...]:
        """Returns the tensors that these losses are repaired by."""
        return tuple(name for loss in losses for name in self.names(loss))

    def names(self, loss: TensorLoss) -> tuple[str, ...]:
        """Returns a tensor and those before an activation whose error is judged there."""
        return (*([loss.tensor] if loss.stored in self.stored else []), *loss.before)

    def order(self, diagnosis: Diagnosis) -> list[TensorLoss]:
        """Returns the tensors that it is for, those that make the largest errors first."""
        taken = [loss for loss in diagnosis.tensors if self.names(loss)]
        return sorted((t for t in taken if self.inputs or t.operator != "input"), key=lambda loss: loss.made_db)

    def grown_bytes(self, loss: TensorLoss) -> int:
        """Returns by how much a tensor and those before it grow."""
        now = 2 if loss.stored in ("int16", "uint16") else 1
        return loss.elements * (self.value_bytes - now) * len(self.names(loss))


LADDER: tuple[Rung | Fewest, ...] = (
    Rung("bias correction", {"bias_correction": True}),
    Rung("equalisation", {"equalize": True}),
    Rung("one weight scale per channel", {"weights": "per-channel"}),
    Rung("ranges by the error behind functions", {"method": "auto"}),
    Rung("no equalisation", {"equalize": False}),
    Rung("range search by least squares", {"method": "mse"}),
    Rung("weights fitted to their inputs", {"rounding": "fitted"}),
    Fewest("16 bits for the fewest tensors", "wide_tensors", _BYTES, 2, inputs=True),
    Rung("16-bit activations", {"activations": "int16", "wide_tensors": ()}),
    Fewest("floating point for the fewest tensors", "float_tensors", _INTEGERS, 4, inputs=False),
)
"""Cheapest first: the earlier ones cost the chip nothing, the last ones memory and time."""
FEWEST = {each.option: each for each in LADDER if isinstance(each, Fewest)}
"""Repairs of single tensors, by the option that takes the names."""


def _text(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value).lower()


@dataclass(frozen=True)
class Proved:
    """The proof of what a chain made and where it is kept, or why there is none."""

    verification: Verification | None = None
    evidence: Artifact | None = None
    not_verified: str = ""


@dataclass
class Attempt:
    """A chain of compilers, what it has made and proved, and the shortfall if there is one."""

    links: Links
    artifacts: list[Artifact] = field(default_factory=list)
    proved: Proved = field(default_factory=Proved)
    calibration: Adequacy | None = None
    verdict: str = ""
    """What is wrong although the gate holds: too little runs on the NPU."""
    error: AnyNpuError | None = None

    @property
    def sqnr_db(self) -> float | None:
        """Of the worst output, where it was executed."""
        return self.proved.verification.sqnr_db if self.proved.verification is not None else None

    @property
    def refusal(self) -> str:
        """Why there is nothing to judge, or what is wrong other than its accuracy; an empty string otherwise."""
        if self.error is not None and not isinstance(self.error, AccuracyError):
            return self.error.message
        return self.verdict or ("" if self.sqnr_db is not None else "it was not executed")

    @property
    def file_bytes(self) -> int:
        return int(self.artifacts[-1].main.stat().st_size) if self.artifacts else 0


Make = Callable[[Links], Attempt]
Diagnose = Callable[[Attempt], Diagnosis | None]


def repaired(
    first: Attempt, make: Make, diagnose: Diagnose, clock: Callable[[], float] = time.monotonic
) -> tuple[Attempt, tuple[Repair, ...]]:
    """Returns the best attempt and what each repair came to; it stops at the first with which the gate holds.

    A repair is kept where it gains anything, and the next one is tried on top of it.
    """
    work = _Repairs(first, make, diagnose, clock)
    for rung in LADDER:
        if work.fewest(rung) if isinstance(rung, Fewest) else work.change(rung):
            break
    return work.best, tuple(work.repairs)


class _Repairs:
    """The best build so far, and what was tried."""

    def __init__(self, first: Attempt, make: Make, diagnose: Diagnose, clock: Callable[[], float]) -> None:
        self.best, self.make, self.diagnose, self.clock = first, make, diagnose, clock
        self.repairs: list[Repair] = []
        self.started, self.longest_s = clock(), 0.0

    def late(self) -> bool:
        return self.clock() - self.started + self.longest_s > TIME_LIMIT_S

    def change(self, rung: Rung) -> bool:
        """Tries settings of the plan; tells whether the gate holds with them."""
        links = changed(self.best.links, rung)
        repair = Repair(repair=rung.repair, options=rung.options)
        if links is None or self._skipped(repair):
            return False
        return self._judge(self._tried(links), repair)

    def _skipped(self, repair: Repair) -> bool:
        """Notes a repair that there is no time for."""
        late = self.late()
        if late:
            spent = f"{(self.clock() - self.started) / 60:.1f} of {TIME_LIMIT_S / 60:g} minutes are over"
            why = f"{spent}, and the longest repair took {self.longest_s / 60:.1f}"
            self.repairs.append(replace(repair, skipped=True, note=why))
        return late

    def _tried(self, links: Links) -> Attempt:
        begun = self.clock()
        attempt = self.make(links)
        self.longest_s = max(self.longest_s, self.clock() - begun)
        return attempt

    def _judge(self, attempt: Attempt, repair: Repair) -> bool:
        before, after = self.best.sqnr_db, attempt.sqnr_db
        repair = replace(repair, before_db=before, after_db=after)
        if attempt.refusal or after is None:
            self.repairs.append(replace(repair, after_db=None, note=attempt.refusal))
            return False
        holds = attempt.error is None
        kept = holds or before is None or after > before
        self.repairs.append(replace(repair, kept=kept, holds=holds))
        if kept:
            self.best = attempt
        return holds

    def fewest(self, rung: Fewest) -> bool:
        """Searches the smallest number of tensors, in the order of the errors that they make, with which the gate
        holds; half of all tensors are the budget."""
        if changed(self.best.links, Rung(rung.repair, {rung.option: ("?",)})) is None:
            return False
        if self._skipped(Repair(repair=rung.repair, options=f"-O {rung.option}=...")):
            return False
        diagnosis = self.diagnose(self.best)
        order = rung.order(diagnosis) if diagnosis is not None else []
        if not order or changed(self.best.links, rung.rung(order)) is None:
            return False
        attempt, order = self._largest(rung, order[: (len(order) + 1) // 2])
        below, count = 0, len(order)
        while _holds(attempt) and count - below > 1 and not self.late():
            middle = (below + count) // 2
            smaller = self._with(rung, order[:middle])
            if _holds(smaller):
                attempt, count = smaller, middle
            else:
                below = middle
        chosen = rung.rung(order[:count])
        repair = Repair(
            repair=rung.repair,
            options=chosen.options,
            tensors=rung.tensors(order[:count]),
            activation_bytes=sum(map(rung.grown_bytes, order[:count])),
            file_bytes=attempt.file_bytes - self.best.file_bytes,
        )
        return self._judge(attempt, repair)

    def _largest(self, rung: Fewest, order: list[TensorLoss]) -> tuple[Attempt, list[TensorLoss]]:
        """Returns the attempt with all of these tensors, without those that the chip has no kernel for."""
        while True:
            attempt = self._with(rung, order)
            refused = {each.where for each in attempt.error.findings} if isinstance(attempt.error, Unsupported) else ()
            possible = [loss for loss in order if not {*rung.names(loss)} & {*refused}]
            if not possible or len(possible) == len(order):
                return attempt, order
            order = possible

    def _with(self, rung: Fewest, order: Sequence[TensorLoss]) -> Attempt:
        links = changed(self.best.links, rung.rung(order))
        assert links is not None  # `fewest` asked
        return self._tried(links)


def _holds(attempt: Attempt) -> bool:
    return attempt.error is None and not attempt.verdict


def changed(links: Links, rung: Rung) -> Links | None:
    """Returns the chain with the settings of a repair; None where they change nothing."""
    new = tuple(_changed(link, rung) for link in links)
    return None if all(one is other for one, other in zip(new, links, strict=True)) else new


def _changed(link: Link, rung: Rung) -> Link:
    plan = link.options
    if not isinstance(plan, QuantPlan) or plan.activations == "float32":
        return link
    known = {each.name for each in fields(plan)}
    settings = {n: value for n, value in rung.settings.items() if n in known and getattr(plan, n) != value}
    if not settings:
        return link
    return replace(link, options=replace(plan, **settings))  # type: ignore[arg-type]  # by their names


def lines(repairs: tuple[Repair, ...], diagnosis: Diagnosis | None) -> Iterator[str]:
    """Yields what is to be said of repairs, and of a gate that none of them met."""
    for repair in repairs:
        yield repair.sentence
    if repairs and not repairs[-1].holds:
        reached = max((each.after_db for each in repairs if each.kept and each.after_db is not None), default=None)
        best = f"the best reached is {reached:.1f} dB; " if reached is not None else "no repair gained anything; "
        losses = sorted(diagnosis.tensors if diagnosis else (), key=lambda loss: loss.made_db)[:_SHOWN]
        where = ", ".join(f"{loss.tensor} ({loss.operator}, {loss.made_db:.1f} dB)" for loss in losses)
        yield f"{best}most is lost at {where}" if where else f"{best}nothing says where the rest is lost"
        yield "what may help: samples like those that the model will see, training (--qat), or a chip with more bits"
