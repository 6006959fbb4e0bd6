"""Small models that the project trains itself, on data that it generates.

Every model is a folder: its card and its sample generator (numpy), its network (torch), the recipe, the
weights, and the figures that training measured. Nothing is downloaded.
"""

from __future__ import annotations

import zlib
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

import numpy as np

from anynpu import schema
from anynpu.errors import ConfigError, IntegrityError
from anynpu.source.torch_arrays import to_tensor
from anynpu.source.zoo.cards import Card, Recipe, Samples

if TYPE_CHECKING:
    import torch

__all__ = ["Card", "Recipe", "Samples", "Split", "card", "files", "folder", "model", "names", "recipe", "samples"]

Split = Literal["train", "calibration", "test"]
_NAMES = ("hello", "resnet8", "kws", "vww", "autoencoder", "detector")
_STREAMS: dict[str, int] = {"train": 0, "calibration": 1, "test": 2}
_HERE = Path(__file__).parent


def names() -> tuple[str, ...]:
    """Returns the names of all zoo models."""
    return _NAMES


def _check_name(name: str) -> str:
    if name not in _NAMES:
        raise ConfigError(f"the zoo has no model '{name}'{schema.near(name, _NAMES)}", f"it has {', '.join(_NAMES)}")
    return name


def _part(name: str, module: str = "") -> ModuleType:
    return import_module(f"{__name__}.{_check_name(name)}{module}")


def folder(name: str) -> Path:
    """Returns the folder of a model."""
    return _HERE / _check_name(name)


def card(name: str) -> Card:
    """Returns the facts of a model."""
    card: Card = _part(name).CARD
    return card


def recipe(name: str) -> Recipe:
    """Returns how a model is trained."""
    recipe: Recipe = _part(name).RECIPE
    return recipe


def samples(name: str, split: Split, count: int) -> Samples:
    """Returns the first `count` samples of a split; the three splits are disjoint random streams."""
    if split not in _STREAMS:
        raise ConfigError(f"no such split: {split}", hint=f"choose one of {', '.join(_STREAMS)}")
    if count < 1:
        raise ConfigError(f"the number of samples must be at least 1, not {count}")
    part = _part(name)
    # Each sample has its own seed, so that a longer request begins with the samples of a shorter one.
    seeds = ([zlib.crc32(name.encode()), _STREAMS[split], index] for index in range(count))
    pairs = [part.sample(np.random.default_rng(seed), index, split) for index, seed in enumerate(seeds)]
    inputs = np.stack([pair[0] for pair in pairs]).astype(np.float32, copy=False)
    return Samples({part.CARD.input_name: inputs}, np.stack([np.asarray(pair[1]) for pair in pairs]))


def model(name: str) -> torch.nn.Module:
    """Returns the trained network in evaluation mode."""
    path = folder(name) / "weights.npz"
    network: torch.nn.Module = _part(name, ".net").build()
    try:
        with np.load(path, allow_pickle=False) as stored:
            state = {
                key: to_tensor(values.astype(np.float32) if values.dtype == np.float16 else values)
                for key, values in stored.items()
            }
        network.load_state_dict(state)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise IntegrityError(
            f"the weights of zoo model '{name}' do not load: {error}",
            hint=f"reinstall, or train them again: python -m anynpu.source.zoo.train {name}",
        ) from error
    return network.eval()


def files(name: str) -> tuple[Path, ...]:
    """Returns every source and weight file that the model and its samples depend on."""
    own = sorted(path for path in folder(name).iterdir() if path.suffix in {".py", ".npz"})
    shared = ("__init__", "blocks", "cards", "draw", "sound")
    return (*own, *(_HERE / f"{stem}.py" for stem in shared))
