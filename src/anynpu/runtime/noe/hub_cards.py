"""The cards of CIX's model hub: what the files there hold, and which of them a file is like."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import PurePosixPath

from anynpu import schema
from anynpu.artifact import Manifest
from anynpu.errors import ConfigError
from anynpu.files import cards_in
from anynpu.tasks import card as cards
from anynpu.tasks.yolo import Head

PACKAGE = "anynpu.data.hub"
CLOSE = 0.02
"""How far a scale may lie from the card's: the reports round, and a new calibration moves it a little."""


@dataclass(frozen=True)
class HubTensor:
    """What a card says of an input or output; scale and zero point as the vendor counts, (stored + zero) / scale."""

    shape: tuple[int, ...]
    dtypes: tuple[str, ...] = ()
    layout: str = ""
    channels: str = ""
    scale: float | None = None
    zero_point: int | None = None


@dataclass(frozen=True)
class HubModel:
    """A model of the hub. `task` names a card of anynpu's, `card` is one of its own; `megabytes` bounds the file."""

    title: str
    path: str
    megabytes: tuple[int, int]
    licence: str
    meaning: str
    source: str
    inputs: tuple[HubTensor, ...]
    outputs: tuple[HubTensor, ...]
    task: str = ""
    card: cards.Card | None = None
    yolo: Head | None = None
    tokenizer: str = ""
    sha256: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        parts = PurePosixPath(self.path)
        if parts.is_absolute() or ".." in parts.parts or "\\" in self.path or "://" in self.path:
            raise ConfigError(f"path {self.path} leads out of the hub")
        if not 0 <= self.megabytes[0] < self.megabytes[1]:
            raise ConfigError(f"megabytes {list(self.megabytes)}: a minimum and a maximum were expected")


def names() -> tuple[str, ...]:
    """Returns the names of the models that have a card."""
    return cards_in(PACKAGE)


def model(name: str) -> HubModel:
    """Returns the card of a model."""
    if name not in names():
        raise ConfigError(f"the hub has no model {name}{schema.near(name, names())}", "`anynpu hub list` lists them")
    with resources.as_file(resources.files(PACKAGE) / f"{name}.toml") as file:
        return replace(schema.from_dict(HubModel, schema.read_toml(file), f"{name}.toml"), name=name)


def like(manifest: Manifest) -> HubModel | None:
    """Returns the model of the hub that has the tensors of this .cix file, if exactly one is known to."""
    fitting = []
    for name in names():
        card = model(name)
        stated, specs = (*card.inputs, *card.outputs), (*manifest.inputs, *manifest.outputs)
        if len(card.inputs) != len(manifest.inputs) or len(stated) != len(specs):
            continue
        for tensor, spec in zip(stated, specs, strict=True):
            if tensor.shape != spec.shape or (tensor.dtypes and spec.dtype not in tensor.dtypes):
                break
            scale = None if spec.quantization is None else 1 / spec.quantization.scale[0]
            if tensor.scale is not None and scale is not None and not math.isclose(scale, tensor.scale, rel_tol=CLOSE):
                break
        else:
            fitting.append(card)
    return fitting[0] if len(fitting) == 1 else None
