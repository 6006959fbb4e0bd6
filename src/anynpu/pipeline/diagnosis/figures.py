"""The error of each tensor of a build: in all, made by its operator, and inherited from before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from anynpu.graph.outline import TensorOutline
from anynpu.measure.decibels import ratio_db
from anynpu.measure.layers import Match
from anynpu.quantize.followers import Followed, Follower
from anynpu.tensors import Array

Floats = NDArray[np.float64]


@dataclass
class Figures:
    """What the samples say of one tensor; `operator` is the kind of what makes it. Limits and peaks are in the units of
    what is stored, errors in those of the float model."""

    name: str
    operator: str
    stored: TensorOutline
    channel_axis: int
    followed: Followed | None = None
    factors: Array | None = None
    """By how much the stored values of each channel are larger than the float model's, where they were equalised."""
    signal: float = 0.0
    noise: float = 0.0
    made: float = 0.0
    inherited: float = 0.0
    clipped: float = 0.0
    count: int = 0
    low: float = np.inf
    high: float = -np.inf
    peaks: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def step(self) -> float | None:
        """What one step of the integers stands for, None for what is not stored as integers with one scale."""
        return self.stored.scale[0] if len(self.stored.scale) == 1 else None

    @property
    def bits(self) -> int:
        """How many bits the stored integers have; 32 for floating point."""
        return {"int8": 8, "uint8": 8, "int16": 16, "uint16": 16}.get(self.stored.dtype, 32)

    @property
    def limits(self) -> tuple[float, float]:
        """The smallest and the largest number that the stored integers can stand for."""
        if self.step is None or self.bits > 16:
            return -np.inf, np.inf
        limits, point = np.iinfo(self.stored.dtype), (*self.stored.zero_point, 0)[0]
        return (limits.min - point) * self.step, (limits.max - point) * self.step

    @property
    def rms(self) -> float:
        return float(np.sqrt(self.signal / max(self.count, 1)))

    @property
    def sqnr_db(self) -> float:
        return ratio_db(self.signal, self.noise)

    @property
    def made_db(self) -> float:
        return ratio_db(self.signal, self.made)

    @property
    def inherited_db(self) -> float:
        return ratio_db(self.signal, self.inherited)

    def add(self, reference: Array, got: Array, computed: Array | None) -> None:
        """Adds one sample: the float value, the build's, and what the float operator makes of the build's inputs."""
        wanted, ours = np.asarray(reference, np.float64), _finite(got)
        between = wanted if computed is None else _finite(computed)
        own_error = ours - between
        stored = wanted if self.factors is None else wanted * self.factors
        beyond = stored - np.clip(stored, *self.limits)
        self.signal += float(np.sum(wanted**2))
        self.noise += float(np.sum((ours - wanted) ** 2))
        self.made += float(np.sum(own_error**2))
        self.inherited += float(np.sum((between - wanted) ** 2))
        self.clipped += float(np.sum((beyond if self.factors is None else beyond / self.factors) ** 2))
        self.count += wanted.size
        self.low, self.high = min(self.low, float(stored.min())), max(self.high, float(stored.max()))
        moved = np.abs(np.moveaxis(stored, self.channel_axis, -1)) if stored.ndim else np.abs(stored.reshape(1))
        peaks = moved.reshape(-1, moved.shape[-1]).max(axis=0)
        self.peaks = np.maximum(self.peaks, peaks) if self.peaks.shape == peaks.shape else peaks
        if self.followed is not None:
            self.followed.observe(np.asarray(reference, np.float32))


def _finite(values: Array) -> Floats:
    """Returns values with 0 for what is not a number: all of it is lost."""
    return np.nan_to_num(np.asarray(values, np.float64), nan=0.0, posinf=0.0, neginf=0.0)


def empty_figures(
    matches: Sequence[Match],
    tensors: Mapping[str, TensorOutline],
    kinds: Mapping[str, str],
    followers: Mapping[str, Follower],
) -> dict[str, Figures]:
    """Returns figures without samples, by the tensor of the float model."""
    figures: dict[str, Figures] = {}
    for match in matches:
        stored = tensors[match.name]
        rank = len(stored.shape or ())
        axis = 1 if stored.layout.startswith("NC") or (not stored.layout and rank == 4) else -1
        follower = followers.get(match.reference)
        followed = Followed(follower) if follower is not None else None
        kind = kinds.get(match.name, "input")
        figures[match.reference] = Figures(match.reference, kind, stored, axis, followed, match.factors)
    return figures
