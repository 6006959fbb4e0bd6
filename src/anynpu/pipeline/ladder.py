"""Repairs in the order of what they cost: changes of the quantisation plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from anynpu.pipeline.planner import Link
from anynpu.quantize.plan import QuantPlan
from anynpu.records.diagnosis import BAD_DB, Diagnosis, TensorLoss

Links = tuple[Link, ...]
_BYTES = ("int8", "uint8")
_INTEGERS = (*_BYTES, "int16", "uint16")


@dataclass(frozen=True)
class Rung:
    """One repair, as settings of the plan."""

    repair: str
    settings: Mapping[str, str | bool | tuple[str, ...]]
    slow: bool = False
    """Whether it takes several times as long as a build: it is tried only where somebody asked for repairs."""

    @property
    def options(self) -> str:
        """The repair as the user would ask for it."""
        shown = {
            name: ",".join(value) if isinstance(value, tuple) else str(value).lower()
            for name, value in self.settings.items()
            if value != ()
        }
        return " ".join(f"-O {name}={text}" for name, text in shown.items())


@dataclass(frozen=True)
class Fewest:
    """A repair of single tensors: the fewest of those that make the largest errors with which the gate holds, or of
    those before an operator, nearest first."""

    repair: str
    option: str
    stored: tuple[str, ...]
    """The types of tensors that it is for."""
    value_bytes: int
    """What each value takes afterwards."""
    inputs: bool
    """Whether inputs of the model are taken too."""
    before: tuple[str, ...] = ()
    """The kinds of operators that make small errors large, where it is for what these read."""

    def rung(self, losses: Sequence[TensorLoss], held: Sequence[str] = ()) -> Rung:
        """Returns the repair of some tensors, next to those that have it already."""
        return Rung(self.repair, {self.option: tuple(dict.fromkeys((*held, *self.tensors(losses))))})

    def tensors(self, losses: Sequence[TensorLoss]) -> tuple[str, ...]:
        """Returns the tensors that these losses are repaired by."""
        return tuple(name for loss in losses for name in self.names(loss))

    def names(self, loss: TensorLoss) -> tuple[str, ...]:
        """Returns a tensor and those before an activation whose error is judged there."""
        return (*([loss.tensor] if loss.stored in self.stored else []), *loss.before)

    def order(self, diagnosis: Diagnosis) -> list[TensorLoss]:
        """Returns the tensors that it may be for, those that matter most first."""
        tensors = diagnosis.tensors
        if self.before:
            guilty = [at for at, t in enumerate(tensors) if t.operator in self.before and t.inherited_db < BAD_DB]
            tensors = tensors[: guilty[-1]][::-1] if guilty else ()
        taken = [t for t in tensors if self.names(t) and (self.inputs or t.operator != "input")]
        return taken if self.before else sorted(taken, key=lambda loss: loss.made_db)

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
    Rung("range search by least squares", {"method": "mse"}, slow=True),
    Rung("weights fitted to their inputs", {"rounding": "fitted"}),
    Fewest("floating point before a logarithm", "float_tensors", _INTEGERS, 4, inputs=False, before=("Log", "LOG")),
    Fewest("16 bits for the fewest tensors", "wide_tensors", _BYTES, 2, inputs=True),
    Rung("16-bit activations", {"activations": "int16", "wide_tensors": ()}),
    Fewest("floating point for the fewest tensors", "float_tensors", _INTEGERS, 4, inputs=False),
)
"""Cheapest first: the earlier ones cost the chip nothing, the last ones memory and time."""
FEWEST = {each.option: each for each in LADDER if isinstance(each, Fewest) and not each.before}
"""Repairs of single tensors anywhere, by the option that takes the names."""


def changed(links: Links, rung: Rung) -> Links | None:
    """Returns the chain with the settings of a repair; None where they change nothing."""
    plans = [link.options.changed(rung.settings) if isinstance(link.options, QuantPlan) else None for link in links]
    if not any(plans):
        return None
    return tuple(link if plan is None else replace(link, options=plan) for link, plan in zip(links, plans, strict=True))
