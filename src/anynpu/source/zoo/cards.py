"""What the zoo says about a model, and the data it generates for it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Card:
    """The facts of one zoo model."""

    name: str
    title: str
    task: str
    metric: str
    input_name: str
    input_shape: tuple[int, ...]
    output_names: tuple[str, ...]
    value_range: str
    classes: tuple[str, ...]
    description: str
    layout: str = "NCHW"

    @property
    def accuracy(self) -> float:
        """The float model's metric on the test set, 0..1, which training wrote next to the weights; NaN before."""
        path = Path(__file__).parent / self.name / "figures.json"
        return float(json.loads(path.read_text(encoding="utf-8"))["accuracy"]) if path.exists() else math.nan


@dataclass(frozen=True)
class Samples:
    """Inputs by name, each (count, ...) float32, with one label a sample."""

    inputs: dict[str, npt.NDArray[np.float32]]
    labels: npt.NDArray[np.generic]


@dataclass(frozen=True)
class Recipe:
    """How one model is trained; the last `quantised_epochs` see int8 weights and activations."""

    samples: int
    epochs: int
    quantised_epochs: int = 2
    batch: int = 64
    learning_rate: float = 3e-3
    weight_decay: float = 1e-3
    seed: int = 1
