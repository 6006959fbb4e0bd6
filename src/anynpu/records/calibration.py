"""What the samples of a calibration say of themselves: whether there are enough of them, and what still moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from anynpu.schema import about

FILE = "calibrated_ranges.json"
"""The record next to a file that was quantised with samples."""


@dataclass(frozen=True, kw_only=True)
class MovingRange:
    """A tensor whose range grows when samples are added."""

    tensor: str
    growth: float = about("by what share twice as many samples are expected to widen the range")


@dataclass(frozen=True, kw_only=True)
class OutsideSample:
    """A verification sample that lies outside of a calibrated range: where it does so most, and by how much."""

    sample: int
    tensor: str
    excess: float = about("how far beyond the range, as a share of its width")
    tensors: int = about("how many ranges it lies outside of", 1)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The ranges that samples gave, and which of them more samples would widen."""

    samples: int
    distinct: int
    constant: bool = about("every sample holds one value only", False)
    moving: tuple[MovingRange, ...] = about("widest growth first", ())
    limits: Mapping[str, tuple[float, float]] = field(
        default_factory=dict, metadata={"help": "all values of each tensor whose channels were not equalised"}
    )


@dataclass(frozen=True, kw_only=True)
class Adequacy:
    """Whether the samples of a calibration were enough."""

    adequate: bool
    samples: int
    distinct: int
    ranges: int = about("how many ranges the samples gave")
    moving: tuple[MovingRange, ...] = ()
    verified: int = about("how many verification samples were held against the ranges", 0)
    outside: tuple[OutsideSample, ...] = ()
    reasons: tuple[str, ...] = about("why the samples are not enough", ())
    sentence: str = ""
