"""Whether a card fits a model, before anything is compiled from it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from anynpu.artifact import Manifest
from anynpu.errors import ConfigError, ToolMissing
from anynpu.tasks.card import Chosen
from anynpu.tasks.classify import Classifier
from anynpu.tasks.detect import Detector
from anynpu.tasks.embed import TextTower, tower
from anynpu.tasks.model import Model
from anynpu.tasks.pictures import PictureInput
from anynpu.tensors import Array


def require_fit(chosen: Chosen, manifest: Manifest) -> None:
    """Raises if the inputs and outputs of a model are not those that its card speaks of."""
    model = Model(chosen.card, chosen.files, manifest.inputs, manifest.outputs, _run)
    try:  # everything that a task looks up before its first run
        if model.card.kind == "detect":
            Detector(model).layout  # noqa: B018
        elif model.card.kind == "classify":
            Classifier(model).labels  # noqa: B018
            PictureInput.of(model)
        elif isinstance(reader := tower(model), TextTower):
            with suppress(ToolMissing):  # tokens that are given as arrays need no tokenizer here
                reader.tokens  # noqa: B018
        else:
            PictureInput.of(model)
    except ConfigError as error:
        title = chosen.card.title or chosen.card.kind
        raise ConfigError(f"the task card ({title}) does not fit the model: {error.message}", error.hint) from error


def _run(inputs: Mapping[str, Array]) -> dict[str, Array]:
    raise NotImplementedError("only the shapes of this model are looked at")
