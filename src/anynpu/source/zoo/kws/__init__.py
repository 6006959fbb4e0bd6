"""A keyword spotter on synthesised words: formant glides with noise, at varying pitch and tempo."""

from __future__ import annotations

import numpy as np

from anynpu.source.zoo.cards import Array, Card, Recipe
from anynpu.source.zoo.sound import band_energies

RATE_HZ = 8000
FRAMES, BANDS = 49, 10
# Phones: first and second formant in Hz, loudness of the voice, loudness of the hiss.
PHONES = {
    "i": (300, 2300, 1.0, 0.0),
    "e": (500, 1900, 1.0, 0.0),
    "a": (750, 1200, 1.0, 0.0),
    "o": (500, 900, 1.0, 0.0),
    "u": (320, 700, 0.9, 0.0),
    "m": (250, 1100, 0.4, 0.0),
    "r": (400, 1400, 0.7, 0.05),
    "s": (300, 2800, 0.0, 0.6),
    "f": (300, 1500, 0.0, 0.25),
    "-": (400, 1500, 0.0, 0.0),
}
WORDS = ("mia", "so", "uri", "eas", "-ifo", "amu", "sei", "orima", "fuse", "ai-u")
OTHERS = ("mai", "os", "iru", "sae", "ofi", "uma", "ies", "amiro", "sefu", "ua-i", "rem", "fio", "semo", "ura")
CLASSES = ("silence", "unknown", *(word.strip("-") for word in WORDS))
CARD = Card(
    name="kws",
    title="Keyword spotter (DS-CNN)",
    task="audio classification",
    metric="top1",
    input_name="spectrogram",
    input_shape=(1, 1, FRAMES, BANDS),
    output_names=("logits",),
    value_range="-1..1",
    classes=CLASSES,
    description="Depthwise-separable network on 49 frames of 10 log bands; ten words, unknown words and silence.",
)
RECIPE = Recipe(samples=7200, epochs=8, quantised_epochs=1)


def _voice(rng: np.random.Generator, word: str, length: int) -> Array:
    """Returns a word of `length` samples: two gliding formants pulsed by the pitch, and hiss."""
    phones = np.array([PHONES[phone] for phone in word])
    lengths = rng.uniform(0.7, 1.3, len(word))
    middles = (np.cumsum(lengths) - lengths / 2) / lengths.sum() * length
    time = np.arange(length)
    first, second, loud, hiss = (np.interp(time, middles, column) for column in phones.T)
    tract = rng.normal(1, 0.11)
    pitch = rng.uniform(90, 230) * np.linspace(1, rng.uniform(0.8, 1.2), length)
    pulse = (0.5 + 0.5 * np.cos(2 * np.pi * np.cumsum(pitch) / RATE_HZ)) ** 2
    formants = np.sin(2 * np.pi * np.cumsum(first * tract) / RATE_HZ)
    formants += 0.6 * np.sin(2 * np.pi * np.cumsum(second * tract) / RATE_HZ)
    breath = np.diff(rng.standard_normal(length + 1)) * hiss
    return np.asarray((loud * pulse * formants + breath) * np.sin(np.pi * (time + 0.5) / length) ** 0.3, np.float32)


def sample(rng: np.random.Generator, index: int, split: str) -> tuple[Array, int]:
    """Returns one spectrogram (1, 49, 10) of a second of sound, and its class."""
    label = index % len(CLASSES)
    wave = np.cumsum(rng.standard_normal(RATE_HZ)) * 0.004 * rng.random() + rng.standard_normal(RATE_HZ) * 0.05
    wave *= rng.uniform(0.5, 4)
    hum = rng.uniform(100, 3000) * np.arange(RATE_HZ) / RATE_HZ
    wave += rng.uniform(0, 0.12) * np.sin(2 * np.pi * hum)
    if label:
        word = WORDS[label - 2] if label > 1 else OTHERS[int(rng.integers(len(OTHERS)))]
        length = int(rng.uniform(0.13, 0.2) * len(word) ** 0.8 * RATE_HZ)
        start = int(rng.integers(0, RATE_HZ - length))
        wave[start : start + length] += rng.uniform(0.06, 0.7) * _voice(rng, word, length)
    levels = np.log10(band_energies(wave, window=320, hop=160, bands=BANDS, mel=True) + 1e-3)
    # Centred: rounding errors of the first weights would multiply with the mean of the input.
    return np.clip((levels - 1.3) / 2, -1, 1, dtype=np.float32)[None], label
