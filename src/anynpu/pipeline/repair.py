"""Repairs of a build that misses its gate: changes of the quantisation plan, tried singly in order of their cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from anynpu.errors import AccuracyError, AnyNpuError
from anynpu.pipeline.planner import Link
from anynpu.quantize.plan import QuantPlan
from anynpu.records.build import Verification
from anynpu.records.repair import Repair

Links = tuple[Link, ...]


@dataclass(frozen=True)
class Rung:
    """One repair, as settings of the plan."""

    repair: str
    settings: Mapping[str, Any]

    @property
    def options(self) -> str:
        """The repair as the user would ask for it."""
        return " ".join(f"-O {name}={str(value).lower()}" for name, value in self.settings.items())


LADDER = (
    Rung("bias correction", {"bias_correction": True}),
    Rung("equalisation", {"equalize": True}),
    Rung("one weight scale per channel", {"weights": "per-channel"}),
    Rung("ranges by the error behind functions", {"method": "auto"}),
    Rung("range search by least squares", {"method": "mse"}),
    Rung("16-bit activations", {"activations": "int16"}),
)
"""Cheapest first: the earlier ones cost the chip nothing, the last one twice the memory."""


@dataclass(frozen=True)
class Attempt:
    """A chain of compilers, what it made and proved, and the shortfall if there is one."""

    links: Links
    artifacts: tuple[Any, ...]
    found: Mapping[str, Any]

    @property
    def error(self) -> AnyNpuError | None:
        failure: AnyNpuError | None = self.found.get("error")
        return failure

    @property
    def sqnr_db(self) -> float | None:
        """Of the worst output, where it was executed."""
        proof: Verification | None = self.found.get("verification")
        return proof.sqnr_db if proof is not None else None


def repaired(first: Attempt, make: Callable[[Links], Attempt]) -> tuple[Attempt, tuple[Repair, ...]]:
    """Returns the best attempt and what each repair came to; it stops at the first with which the gate holds.

    A repair is kept where it gains anything, and the next one is tried on top of it.
    """
    best, repairs = first, list[Repair]()
    for rung in LADDER:
        links = changed(best.links, rung)
        if links is None:
            continue
        attempt = make(links)
        before, after = best.sqnr_db, attempt.sqnr_db
        said = Repair(repair=rung.repair, options=rung.options, before_db=before, after_db=after)
        if after is None or (attempt.error is not None and not isinstance(attempt.error, AccuracyError)):
            reason = attempt.error.message if attempt.error is not None else "it was not executed"
            repairs.append(replace(said, after_db=None, note=reason))
            continue
        holds = attempt.error is None
        kept = holds or before is None or after > before
        repairs.append(replace(said, kept=kept, holds=holds))
        if kept:
            best = attempt
        if holds:
            break
    return best, tuple(repairs)


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
    return replace(link, options=replace(plan, **settings)) if settings else link


def lines(repairs: tuple[Repair, ...]) -> Iterator[str]:
    """Yields what is to be said of repairs, and of a gate that none of them met."""
    for repair in repairs:
        yield repair.sentence
    if repairs and not repairs[-1].holds:
        reached = max((each.after_db for each in repairs if each.kept and each.after_db is not None), default=None)
        best = f"the best reached is {reached:.1f} dB; " if reached is not None else "no repair gained anything; "
        yield f"{best}`anynpu diagnose` says where the rest is lost"
