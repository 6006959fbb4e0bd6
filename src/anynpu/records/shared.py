"""What several kinds of records hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anynpu.schema import about


@dataclass(frozen=True, kw_only=True)
class FindingForm:
    """Something that is in the way."""

    message: str
    where: str | None = None


@dataclass(frozen=True, kw_only=True)
class ErrorForm:
    """What stopped a chip."""

    kind: str
    exit_status: int = 0
    message: str
    hint: str | None = None
    findings: tuple[FindingForm, ...] | None = None
    last_lines: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class FidelityForm:
    """How far one output is off."""

    sqnr_db: float | None = None
    sqnr_var_db: float | None = None
    cosine: float | None = None
    max_abs_error: float | None = None
    argmax_agreement: float | None = None
    count: float | None = None
    sqnr_centred_db: float | None = about(
        "of what varies over the samples: an element's mean over them is no signal", None
    )
    unresolved: str = about("why the artifact cannot follow what varies, if it cannot", "")
    lost: tuple[str, ...] = about("the parts that vary in the float model and not in the artifact", ())
    uneven: str = about("the parts that are too different in range for one scale, if any", "")
    strays: str = about("the samples that are wrong where the others are right, if any", "")


@dataclass(frozen=True, kw_only=True)
class ThresholdForm:
    """A threshold in force."""

    name: str
    value: float
    default: float
    unit: str | None = None
    origin: str | None = about("the flag, the file or the environment variable; empty for a default", None)


@dataclass(frozen=True, kw_only=True)
class Percentile:
    """A percentile with its interval."""

    value: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Trend:
    """Whether samples rise or fall over a run (Kendall's tau)."""

    tau: float | None = None
    p_value: float | None = None


@dataclass(frozen=True, kw_only=True)
class Modes:
    """Two groups of samples."""

    low: float | None = None
    high: float | None = None
    split: float | None = None
    share_high: float | None = None
    valley: float | None = None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What samples support saying."""

    count: int | None = None
    min: float | None = None
    median: float | None = None
    median_interval: tuple[float | None, ...] | None = None
    mad: float | None = None
    mean: float | None = None
    max: float | None = None
    percentiles: Mapping[str, Percentile] | None = None
    effective_size: float | None = None
    trend: Trend | None = None
    modes: Modes | None = None
    outliers: tuple[int, ...] | None = None
