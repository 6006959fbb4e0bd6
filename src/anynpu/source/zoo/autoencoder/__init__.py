"""A dense auto-encoder that learns the sound of a healthy machine and rebuilds a faulty one badly."""

from __future__ import annotations

import numpy as np

from anynpu.source.zoo.cards import Array, Card, Recipe
from anynpu.source.zoo.sound import band_energies

RATE_HZ = 16000
FRAMES, BANDS, WINDOW, HOP = 5, 128, 1024, 512
LENGTH = WINDOW + (FRAMES - 1) * HOP
FAULTS = ("bearing tone", "weak blade", "rubbing", "clicks")
CARD = Card(
    name="autoencoder",
    title="Machine-sound auto-encoder",
    task="anomaly detection",
    metric="auc_reconstruction",
    input_name="frames",
    input_shape=(1, FRAMES * BANDS),
    layout="NF",
    output_names=("reconstruction",),
    value_range="0..1",
    classes=("normal", "anomaly"),
    description="Dense encoder and decoder on five frames of 128 log bands, trained on normal sounds only; "
    "the anomaly score is the mean squared reconstruction error.",
)
RECIPE = Recipe(samples=10000, epochs=40, quantised_epochs=4, learning_rate=2e-3, weight_decay=1e-4)


def _fault(rng: np.random.Generator, time: Array, kind: str) -> Array:
    strength = rng.uniform(0.3, 1.0)
    if kind == "bearing tone":
        tone = np.sin(2 * np.pi * rng.uniform(1500, 7000) * time)
        return np.asarray(0.25 * strength * tone * (1 + np.sin(2 * np.pi * rng.uniform(20, 90) * time)), np.float32)
    if kind == "rubbing":
        noise = np.diff(rng.standard_normal(len(time) + 1))
        return np.asarray(0.12 * strength * noise, np.float32)
    wave: Array = np.zeros_like(time)
    if kind == "clicks":
        for start in rng.integers(0, len(time) - 64, 3):
            wave[start : start + 64] += strength * rng.standard_normal(64) * np.exp(-np.arange(64) / 12)
    return wave


def sample(rng: np.random.Generator, index: int, split: str) -> tuple[Array, int]:
    """Returns one slice (640,) and whether it is anomalous; only the test split holds anomalies."""
    label = index % 2 if split == "test" else 0
    kind = FAULTS[index // 2 % len(FAULTS)] if label else ""
    time = (np.arange(LENGTH) / RATE_HZ).astype(np.float32)
    weak = int(rng.integers(2, 8)) if kind == "weak blade" else 0
    # The hum of a motor: harmonics of its speed, gear tones, and load.
    speed, load = rng.uniform(180, 320), rng.uniform(0.3, 1)
    wave: Array = np.zeros_like(time)
    for order in range(1, 13):
        strength = 0.03 if order == weak else 1.0
        loudness = strength * load / (1 + 0.15 * (order - 4) ** 2) * rng.uniform(0.8, 1.2)
        wave += loudness * np.sin(2 * np.pi * speed * order * time + rng.uniform(0, 6.28))
    for ratio in (15.3, 21.7):
        wave += 0.3 * load * np.sin(2 * np.pi * speed * ratio * time + rng.uniform(0, 6.28))
    colour = np.cumsum(rng.standard_normal(LENGTH)) * 0.004 + rng.standard_normal(LENGTH) * 0.06
    wave = wave + rng.uniform(0.7, 1.4) * colour + _fault(rng, time, kind)
    levels = np.log10(band_energies(wave, WINDOW, HOP, BANDS, mel=False) + 1e-2)
    return np.clip((levels + 1) / 7, 0, 1, dtype=np.float32).reshape(-1), label
