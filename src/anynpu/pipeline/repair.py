"""A build that misses its gate is repaired: the rungs of the ladder are tried singly, until the gate holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from anynpu.artifact import Artifact
from anynpu.errors import AccuracyError, AnyNpuError, Unsupported
from anynpu.measure.verify import Gate
from anynpu.pipeline.ladder import FEWEST, LADDER, Fewest, Links, Rung, changed
from anynpu.pipeline.request import Request
from anynpu.quantize.plan import QuantPlan
from anynpu.records.build import Verification
from anynpu.records.calibration import Adequacy
from anynpu.records.diagnosis import Diagnosis, TensorLoss
from anynpu.records.repair import Repair
from anynpu.targets.flatbuffer import operators

TIME_LIMIT_S = 480.0
"""No repair is begun that would end after this, if it took as long as the build that it starts from."""
UNASKED_LIMIT_S = 300.0
"""The same where nobody asked for repairs."""
SLOW_BUILDS = 2
"""How many builds as long a slow repair takes: ranges by least squares read the samples twice."""
LEAST_GAIN_DB = 0.1
"""A repair that gains less, and with which the gate does not hold, is dropped."""
_SHOWN = 3
"""How many tensors are named where a gate is not met."""

CARRIED = ("QUANTIZE", "RESHAPE", "TRANSPOSE", "CONCATENATION", "SLICE", "STRIDED_SLICE", "SPLIT")
"""Operators that hand on the numbers of another tensor."""


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
    seconds: float = 0.0

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
    def blamed(self) -> set[str]:
        """The tensors that it is refused for, as far as they are named."""
        if isinstance(self.error, Unsupported):
            return {each.where for each in self.error.findings}
        placement = self.artifacts[-1].manifest.placement if self.verdict else None
        return {each.name for each in placement.elsewhere()} if placement is not None else set()

    @property
    def operands(self) -> set[str]:
        """What the operators read that it is refused for, also behind moves and changes of scale."""
        file = next((each.main for each in self.artifacts if each.manifest.format == "tflite"), None)
        makers = {} if file is None else {t.name: op for op in operators(file) for t in op.outputs}
        names, reached = [*self.blamed], set[str]()
        while names:
            op = makers.get(names.pop())
            fed = {t.name for t in op.inputs if t is not None and not t.constant} - reached if op is not None else set()
            reached |= fed
            names += [name for name in fed if name in makers and makers[name].kind in CARRIED]
        return reached

    @property
    def file_bytes(self) -> int:
        return int(self.artifacts[-1].main.stat().st_size) if self.artifacts else 0


@dataclass(frozen=True)
class Bounds:
    """How far repairs go: how long, which settings stay as they are, and whether somebody asked for them."""

    time_s: float = TIME_LIMIT_S
    chosen: Mapping[str, str] = field(default_factory=dict)
    """Settings that stay, each with the option of the user that says so."""
    asked: bool = True


def bounds(request: Request) -> Bounds | None:
    """Returns how far a build that misses its gate is repaired; None where it is to stay as it is.

    Without a word of the user, only what misses the default gate is repaired, and nothing that the user chose changes.
    """
    if request.repair is not None:
        return Bounds() if request.repair else None
    chosen = {(name := option.rpartition(".")[2]): name for option in request.options}
    strict = request.gate != Gate() or {"min_sqnr", "max_drop"} & {*request.origins}
    if strict or request.qat or "quantisation" in chosen:
        return None
    if "activations" in chosen:
        chosen |= dict.fromkeys(FEWEST, "activations")
    return Bounds(UNASKED_LIMIT_S, chosen, asked=False)


@dataclass(frozen=True)
class Remedy:
    """Settings with which the gate held on a chip."""

    chip: str
    settings: Mapping[str, str | bool | tuple[str, ...]]
    repair: Repair
    """The last of the repairs, with what it costs."""


@dataclass
class Experience:
    """What repairs came to on the chips of a build, by the compiler that quantises for them."""

    remedies: dict[str, Remedy] = field(default_factory=dict)
    failed: dict[str, dict[str, str]] = field(default_factory=dict)
    """For each compiler the repairs that did not reach the gate, and on which chip."""

    def learn(self, chip: str, first: Attempt, best: Attempt, repairs: Sequence[Repair]) -> None:
        """Adds what became of one chip."""
        compiler, old = quantiser(first.links)
        _, new = quantiser(best.links)
        if not repairs or old is None or new is None:
            return
        if repairs[-1].holds:
            settings = {each.name: getattr(new, each.name) for each in fields(QuantPlan)}
            changes = {name: value for name, value in settings.items() if value != getattr(old, name)}
            self.remedies[compiler] = Remedy(chip, changes, repairs[-1])
        else:
            tried = {each.repair: chip for each in repairs if each.after_db is not None}
            self.failed[compiler] = {**tried, **self.failed.get(compiler, {})}


def quantiser(links: Links) -> tuple[str, QuantPlan | None]:
    """Returns the compiler of a chain that follows a plan of ours, and the plan."""
    plans = [(link.target.name, link.options) for link in links if isinstance(link.options, QuantPlan)]
    return plans[0] if plans else ("", None)


Make = Callable[[Links], Attempt]
Diagnose = Callable[[Attempt], Diagnosis | None]


def repaired(
    first: Attempt,
    make: Make,
    diagnose: Diagnose,
    bounds: Bounds,
    known: Experience | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Attempt, tuple[Repair, ...]]:
    """Returns the best attempt and what each repair came to; it stops at the first with which the gate holds.

    What held on a chip before is tried first. A repair is kept where it gains anything, and the next one is tried on
    top of it.
    """
    work = _Repairs(first, make, diagnose, clock, bounds)
    compiler, _ = quantiser(first.links)
    known = known or Experience()
    remedy = known.remedies.get(compiler)
    if remedy is None or not work.repeat(remedy):
        failed = {} if bounds.asked else known.failed.get(compiler, {})
        for rung in LADDER:
            if rung.repair in failed:
                work.note(Repair(repair=rung.repair), f"it did not reach the gate on {failed[rung.repair]}")
            elif work.fewest(rung) if isinstance(rung, Fewest) else work.change(rung):
                break
    return work.best, tuple(work.repairs)


class _Repairs:
    """The best build so far, and what was tried."""

    def __init__(
        self, first: Attempt, make: Make, diagnose: Diagnose, clock: Callable[[], float], bounds: Bounds
    ) -> None:
        self.best, self.make, self.diagnose, self.clock, self.bounds = first, make, diagnose, clock, bounds
        self.repairs: list[Repair] = []
        self.started, self.longest_s = clock(), first.seconds

    def late(self, slow: bool = False) -> bool:
        return self.clock() - self.started + self.expected_s(slow) > self.bounds.time_s

    def expected_s(self, slow: bool) -> float:
        """Returns how long a repair may take: the longest build so far, since the first may have been known."""
        return self.longest_s * (SLOW_BUILDS if slow else 1)

    def note(self, repair: Repair, why: str) -> None:
        """Notes why a repair is not tried."""
        self.repairs.append(replace(repair, skipped=True, note=why))

    def repeat(self, remedy: Remedy) -> bool:
        """Tries what another chip took; tells whether the gate holds with it, and leaves the build as it is if not."""
        rung = Rung(f"as for {remedy.chip}", remedy.settings)
        links = changed(self.best.links, rung)
        attempt = None if links is None else self._tried(links)
        if attempt is None or not _holds(attempt):
            return False
        costs = remedy.repair
        repair = Repair(
            repair=rung.repair,
            options=rung.options,
            tensors=costs.tensors,
            activation_bytes=costs.activation_bytes,
            file_bytes=attempt.file_bytes - self.best.file_bytes,
        )
        return self._judge(attempt, repair)

    def change(self, rung: Rung) -> bool:
        """Tries settings of the plan; tells whether the gate holds with them."""
        links = changed(self.best.links, rung)
        _, plan = quantiser(links or self.best.links)
        settings = {name: getattr(plan, name, value) for name, value in rung.settings.items()}  # as this chip has them
        repair = Repair(repair=rung.repair, options=replace(rung, settings=settings).options)
        unasked = rung.slow and not self.bounds.asked
        if links is None or unasked or self._skipped(repair, rung.settings, rung.slow):
            return False
        return self._judge(self._tried(links), repair)

    def _skipped(self, repair: Repair, settings: Collection[str], slow: bool = False) -> bool:
        """Notes a repair that there is no time for, or that the user has chosen otherwise."""
        late, chosen = self.late(slow), [self.bounds.chosen[name] for name in settings if name in self.bounds.chosen]
        if chosen:
            self.note(repair, f"-O {chosen[0]} was chosen for this build; --repair may change it")
        elif late:
            spent = f"{(self.clock() - self.started) / 60:.1f} of {self.bounds.time_s / 60:g} minutes are over"
            self.note(repair, f"{spent}, and {'this' if slow else 'a build'} takes {self.expected_s(slow) / 60:.1f}")
        return late or bool(chosen)

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
        kept = holds or before is None or after > before + LEAST_GAIN_DB
        self.repairs.append(replace(repair, kept=kept, holds=holds))
        if kept:
            self.best = attempt
        return holds

    def fewest(self, rung: Fewest) -> bool:
        """Searches the smallest number of tensors, in the order of the repair, with which the gate holds; where they
        may be anywhere, half of all are the budget."""
        if changed(self.best.links, Rung(rung.repair, {rung.option: ("?",)})) is None:
            return False
        if self._skipped(Repair(repair=rung.repair, options=f"-O {rung.option}=..."), [rung.option]):
            return False
        diagnosis = self.diagnose(self.best)
        order = rung.order(diagnosis) if diagnosis is not None else []
        if not order or changed(self.best.links, rung.rung(order)) is None:
            return False
        attempt, order = self._largest(rung, order if rung.before else order[: (len(order) + 1) // 2])
        below, count = 0, len(order)
        while _holds(attempt) and count - below > 1 and not self.late():
            middle = (below + count) // 2
            smaller = self._with(rung, order[:middle])
            if _holds(smaller):
                attempt, count = smaller, middle
            else:
                below = middle
        chosen = rung.rung(order[:count], self._held(rung))
        repair = Repair(
            repair=rung.repair,
            options=chosen.options,
            tensors=rung.tensors(order[:count]),
            activation_bytes=sum(map(rung.grown_bytes, order[:count])),
            file_bytes=attempt.file_bytes - self.best.file_bytes,
        )
        return self._judge(attempt, repair)

    def _largest(self, rung: Fewest, order: list[TensorLoss]) -> tuple[Attempt, list[TensorLoss]]:
        """Returns the attempt with all of these tensors, without those that the chip has no kernel for; where nothing
        says which these are, with the first half of them, and so on."""
        while True:
            attempt = self._with(rung, order)
            blamed = attempt.blamed
            possible = [loss for loss in order if not blamed & {*rung.names(loss)}]
            if attempt.refusal and len(possible) == len(order):  # what it makes may be as before, and what it reads not
                blamed = attempt.operands
                possible = [loss for loss in order if not blamed & {*rung.names(loss)}]
            if attempt.refusal and len(possible) == len(order):
                possible = order[: len(order) // 2]
            if not possible or len(possible) == len(order) or self.late():
                return attempt, order
            order = possible

    def _held(self, rung: Fewest) -> tuple[str, ...]:
        """Returns the tensors that have the repair already."""
        _, plan = quantiser(self.best.links)
        return getattr(plan, rung.option, ())

    def _with(self, rung: Fewest, order: Sequence[TensorLoss]) -> Attempt:
        links = changed(self.best.links, rung.rung(order, self._held(rung)))
        assert links is not None  # `fewest` asked
        return self._tried(links)


def _holds(attempt: Attempt) -> bool:
    return attempt.error is None and not attempt.verdict


def lines(repairs: tuple[Repair, ...], diagnosis: Diagnosis | None) -> Iterator[str]:
    """Yields what is to be said of repairs, and of a gate that none of them met."""
    for repair in repairs:
        yield repair.sentence
    if repairs and repairs[-1].holds:
        yield "repaired: as it was asked for, it misses the gate; --no-repair builds no more than that"
    elif repairs:
        reached = max((each.after_db for each in repairs if each.kept and each.after_db is not None), default=None)
        best = f"the best reached is {reached:.1f} dB; " if reached is not None else "no repair gained anything; "
        losses = sorted(diagnosis.tensors if diagnosis else (), key=lambda loss: loss.made_db)[:_SHOWN]
        where = ", ".join(f"{loss.tensor} ({loss.operator}, {loss.made_db:.1f} dB)" for loss in losses)
        yield f"{best}most is lost at {where}" if where else f"{best}nothing says where the rest is lost"
        yield "what may help: samples like those that the model will see, training (--qat), or a chip with more bits"
