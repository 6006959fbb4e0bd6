"""A small model with two inputs and two outputs of different types, as an artifact and as a board that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from anynpu.artifact import Artifact, Made, Manifest, Step, seal
from anynpu.tensors import Array, Quantization, TensorSpec
from anynpu.testing.board import Board, Faults

FINGERPRINT = "ab" * 32
INPUTS = (
    TensorSpec("image", (1, 5, 7, 3), "int8", "NHWC", quantization=Quantization((0.0078125,), (-1,))),
    TensorSpec("gain", (1, 4), "int16", "NF", quantization=Quantization((0.5,), (0,))),
)
OUTPUTS = (
    TensorSpec("scores", (1, 4), "int8", "NF", quantization=Quantization((0.25,), (3,))),
    TensorSpec("sum", (1, 1), "int32", "NF"),
)


def model(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Returns something that depends on every element and its place."""
    image = inputs["image"].astype(np.int64).ravel()
    weighted = (image * np.arange(1, image.size + 1)).sum()
    scores = (weighted + inputs["gain"].astype(np.int64) * 3) % 200 - 100
    return {"scores": scores.astype(np.int8), "sum": np.array([[weighted]], np.int32)}


def sample(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        spec.name: rng.integers(np.iinfo(spec.dtype).min, np.iinfo(spec.dtype).max, spec.shape, spec.dtype, True)
        for spec in INPUTS
    }


def vectors(count: int = 3) -> list[dict[str, Array]]:
    found = []
    for seed in range(count):
        inputs = sample(seed)
        found.append(
            {f"input:{k}": v for k, v in inputs.items()} | {f"output:{k}": v for k, v in model(inputs).items()}
        )
    return found


def artifact(folder: Path, fingerprint: str = FINGERPRINT, inputs: tuple[TensorSpec, ...] = INPUTS) -> Artifact:
    """Returns a sealed artifact in folder/chip with its known answers as evidence beside it."""
    chip = folder / "chip"
    chip.mkdir(parents=True)
    (chip / "anynpu_model.h").write_text("/* nothing that these tests compile */\n")
    evidence = folder / "evidence" / "chip"
    evidence.mkdir(parents=True)
    known = vectors()
    np.savez(evidence / "vectors.npz", **{name: np.concatenate([v[name] for v in known]) for name in known[0]})
    manifest = Manifest("c", "anynpu_model.h", inputs, OUTPUTS, fingerprint)
    return seal(chip, manifest, Step("mcu_c"), Made("2025-01-01", 0.0))


def board(fingerprint: str = FINGERPRINT, tick_hz: int = 1_000_000, **faults: object) -> Board:
    return Board(
        INPUTS,
        OUTPUTS,
        model,
        fingerprint,
        tick_hz=tick_hz,
        vectors=vectors(),
        faults=Faults(**faults),  # type: ignore[arg-type]
    )
