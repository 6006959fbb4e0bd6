"""What the float model gives for the samples, and what that says of it: found out once for all chips of a build."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anynpu.arrays import read_npz
from anynpu.measure.reference import Reference
from anynpu.schema import canonical_json, from_dict
from anynpu.tensors import Array

FILE = "expected.npz"
MOST_BYTES = 128 << 20
"""Larger outputs are not kept: the model runs again."""
OUTPUT, ABOUT = "output:", "about"


@dataclass(frozen=True)
class Expected:
    """Every output of the float model for every sample, and whether they are a reference."""

    outputs: Mapping[str, Array]
    about: Reference


def expected_of(folder: str, find_out: Callable[[], Expected]) -> Expected:
    """Returns what is kept in a folder; where there is nothing, what is found out now, which is then kept."""
    place = Path(folder, FILE) if folder else None
    if place is not None and place.is_file():
        arrays = read_npz(place)
        about: Reference = from_dict(Reference, json.loads(str(arrays.pop(ABOUT)[0])), str(place))
        return Expected({name.removeprefix(OUTPUT): array for name, array in arrays.items()}, about)
    fresh = find_out()
    if place is not None and sum(array.nbytes for array in fresh.outputs.values()) <= MOST_BYTES:
        arrays = {f"{OUTPUT}{name}": array for name, array in fresh.outputs.items()}
        np.savez(place, **arrays, **{ABOUT: np.array([canonical_json(fresh.about)])})  # type: ignore[arg-type]
    return fresh
