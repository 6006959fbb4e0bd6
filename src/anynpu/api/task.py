"""anynpu.detect and anynpu.embed: models whose card says what they are for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from anynpu.api.session import ANSWER_S, open_on
from anynpu.errors import ConfigError
from anynpu.runtime import task as tasks
from anynpu.store import Store
from anynpu.tasks.detect import Detector, Threshold, class_numbers
from anynpu.tasks.embed import TextTower, tower
from anynpu.tasks.model import Model
from anynpu.tasks.picture import Picture, read_image
from anynpu.tensors import Array

Image = str | PathLike[str] | Array
"""A file, or 8-bit RGB pixels [height, width, 3]."""


@dataclass(frozen=True)
class Detection:
    """One object in a picture. `box` is left, top, right, bottom in pixels of the picture."""

    name: str
    number: int
    score: float
    box: tuple[float, ...]


def detect(
    artifact: str | PathLike[str],
    images: Image | Sequence[Image],
    *,
    conf: float = Threshold.confidence,
    iou: float = Threshold.iou,
    classes: Sequence[str] = (),
    on: str | None = None,
    task: str = "",
    timeout: float = ANSWER_S,
) -> list[list[Detection]]:
    """Finds objects in images; returns a list for every image, best first. The names are those of `anynpu detect`."""
    with opened(artifact, ("detect",), on, task, "", timeout) as model:
        wanted = class_numbers(",".join(classes), model.card.labels) if classes else ()
        detector = Detector(model, Threshold(conf, iou, classes=wanted))
        detections = [detector.detect(picture.pixels)[0] for _, picture in _pictures(images)]
    return [
        [
            Detection(detector.name(int(number)), int(number), float(score), tuple(map(float, box)))
            for box, score, number in zip(each.boxes, each.scores, each.classes, strict=True)
        ]
        for each in detections
    ]


def embed(
    artifact: str | PathLike[str],
    inputs: str | Image | Sequence[str] | Sequence[Image],
    *,
    on: str | None = None,
    task: str = "",
    tokenizer: str | PathLike[str] = "",
    timeout: float = ANSWER_S,
) -> Array:
    """Turns texts or images into vectors, one row for each; the model's card says which it reads."""
    with opened(artifact, ("embed-text", "embed-image"), on, task, str(tokenizer), timeout) as model:
        by = tower(model)
        if not isinstance(by, TextTower):
            return by.embed(_pictures(inputs))
        values = [inputs] if isinstance(inputs, str | PathLike) else list(inputs)
        texts = [text for text in values if isinstance(text, str)]
        if not texts or len(texts) != len(values):
            raise ConfigError("this model reads text, not images", "give a text, or a list of texts")
        return by.embed(texts)


@contextmanager
def opened(
    artifact: str | PathLike[str], kinds: tuple[str, ...], on: str | None, task: str, tokenizer: str, timeout: float
) -> Iterator[Model]:
    """Gives the model in an artifact if its card is of one of the kinds."""
    subject = tasks.read_subject(Path(artifact), kinds, task=task, tokenizer=tokenizer)
    with open_on(subject.artifact, on, Store(), timeout) as session:
        yield tasks.model_of(subject, session.runtime)


def _pictures(images: Image | Sequence[Image]) -> Iterator[tuple[str, Picture]]:
    """Yields every image with a name."""
    alone = isinstance(images, str | PathLike) or getattr(images, "ndim", 0) == 3
    listed: Sequence[Image] = [images] if alone else images  # type: ignore[assignment,list-item]  # one, or several
    for at, image in enumerate(listed):
        if isinstance(image, str | PathLike):
            yield str(image), read_image(Path(image))
            continue
        pixels = np.asarray(image)
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
            raise ConfigError(
                f"image {at} is {pixels.dtype} {list(pixels.shape)}",
                "give 8-bit RGB pixels [height, width, 3], or a file",
            )
        yield f"image {at}", Picture(pixels)
