"""What several kinds of records hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anynpu.schema import Whole, about, rest


@dataclass(frozen=True, kw_only=True)
class FindingForm:
    """Something that is in the way."""

    message: str
    where: str = ""
    rest: Mapping[str, object] = rest()

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


@dataclass(frozen=True, kw_only=True)
class ErrorForm(Whole):
    """What stopped a chip or a measurement; what else is known of it depends on its kind."""

    kind: str
    exit_status: int = 0
    message: str
    hint: str | None = about(default=None, optional=True)
    findings: tuple[FindingForm, ...] | None = about(default=None, optional=True)
    last_lines: tuple[str, ...] | None = about(default=None, optional=True)
    rest: Mapping[str, object] = rest()

    @property
    def sentence(self) -> str:
        """The message with its hint in parentheses."""
        return f"{self.message} ({self.hint})" if self.hint else self.message


@dataclass(frozen=True)
class Fidelity:
    """How one output follows its reference over all samples.

    `sqnr_db` is 10 log10(sum ref^2 / sum err^2); `sqnr_var_db` puts the variance of the reference above the mean square
    of the error, so that a large constant offset earns nothing; `sqnr_centred_db` does so with what varies over the
    samples, and `unresolved`, `lost`, `uneven` and `strays` go with it (`measure.variation.Variation`). All end at
    +-200 dB, which an exact match reaches. `argmax_agreement` is None where the axis holds one value or nothing is
    highest; of equal highest values none agrees.
    """

    cosine: float
    sqnr_db: float
    sqnr_var_db: float
    max_abs_error: float
    argmax_agreement: float | None
    count: int
    sqnr_centred_db: float | None = about(
        "of what varies over the samples: an element's mean over them is not signal", None
    )
    unresolved: str = about("why the artifact cannot follow what varies, if it cannot", "")
    lost: tuple[str, ...] = about("the parts that vary in the float model and not in the artifact", ())
    uneven: str = about("the parts that are too different in range for one scale, if any", "")
    strays: str = about("the samples that are wrong where the others are right, if any", "")
    quiet: bool = about("a probability that both hold at 0 or 1 for all samples: no signal to judge by", False)


def with_signal(outputs: Mapping[str, Fidelity]) -> Mapping[str, Fidelity]:
    """Returns the outputs that are judged: those that are not quiet, or all where all are."""
    return {name: each for name, each in outputs.items() if not each.quiet} or outputs


@dataclass(frozen=True)
class Threshold(Whole):
    """A threshold in force, and its default."""

    name: str
    value: float
    default: float
    unit: str = ""
    origin: str = about("the flag, the file or the environment variable; empty for a default", "")

    @property
    def changed(self) -> bool:
        return self.value != self.default

    def __str__(self) -> str:
        name, unit = self.name.replace("_", "-"), f" {self.unit}" if self.unit else ""
        by = f", set by {self.origin}" if self.origin else ""
        return f"gate in force: {name} {self.value:g}{unit} instead of {self.default:g}{unit}{by}"


@dataclass(frozen=True)
class Estimate:
    """A percentile and its confidence interval; a bound that the sample cannot give is None."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Trend:
    """Mann-Kendall: tau is -1 (always falling) to 1 (always rising); a small p-value says it is not chance."""

    tau: float
    p_value: float


@dataclass(frozen=True)
class Modes:
    """Two heaps: where they peak, the value that parts them, the share above it, and the valley's relative depth."""

    low: float
    high: float
    split: float
    share_high: float
    valley: float


@dataclass(frozen=True)
class Summary:
    """All that a list of samples supports; the raw samples stay with whoever measured them."""

    count: int
    min: float
    median: float
    median_interval: tuple[float | None, ...] | None
    mad: float
    mean: float
    max: float
    percentiles: Mapping[str, Estimate]
    effective_size: float
    trend: Trend
    modes: Modes | None
    outliers: tuple[int, ...]


@dataclass(frozen=True)
class Figure:
    """A score and its 95 % interval; None where nothing counts towards it."""

    value: float | None
    low: float | None
    high: float | None
