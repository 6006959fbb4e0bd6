"""The CPU twin of a model: the artifact that answers while the device cannot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from anynpu.apps.serve.base import ModelSettings
from anynpu.apps.serve.version import Source, card_of, read_source
from anynpu.errors import ConfigError
from anynpu.tasks.space import joint

TWINS = ("cpu", "float")


def twin_source(settings: ModelSettings, source: Source) -> Source | None:
    """Returns the artifact that answers on the CPU while the device cannot, if one was asked for."""
    if not settings.fallback:
        return None
    path = settings.fallback
    if not isinstance(path, Path):
        first = settings.paths[0]
        folders = [first.parent / name for name in TWINS]
        near = [each for each in folders if each.is_dir() and each.resolve() != first.resolve()]
        if not near:
            looked = " or ".join(map(str, folders))
            hint = "build it with -t cpu too, or name its folder"
            raise ConfigError(f"there is no CPU twin of {first} at {looked}", hint)
        path = near[0]
    twin = read_source(replace(settings, paths=(path,), device=None, fallback=""))
    if twin.kind != source.kind:
        raise ConfigError(f"{path}: is of kind {twin.kind}, the model that it stands in for is {source.kind}")
    card, twin_card = card_of(source), card_of(twin)
    if card is not None and twin_card is not None:
        if card.space is not None and twin_card.space is not None:
            joint(card.space, card.space.width or 0, twin_card.space, twin_card.space.width or 0)
        if card.labels != twin_card.labels:
            raise ConfigError(f"{path}: its labels are others than those of {settings.paths[0]}")
    return twin
