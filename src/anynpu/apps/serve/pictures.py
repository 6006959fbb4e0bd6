"""Pictures to vectors, classes or detections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from anynpu.apps.serve.base import ClassScore, Info, Item, Limits, Options, TooLarge
from anynpu.apps.serve.program import Row, Rows, free_rows, item_error
from anynpu.runtime.base import Session
from anynpu.tasks.classify import Classifier
from anynpu.tasks.detect import Detector
from anynpu.tasks.embed import ImageTower
from anynpu.tasks.model import Model
from anynpu.tasks.picture import TooManyPixels, read_image
from anynpu.tasks.pictures import PictureInput
from anynpu.tasks.space import unit
from anynpu.tensors import Array


class Pictures:
    """Pictures to vectors, classes or detections."""

    def __init__(self, model: Model, session: Session, most_batch: int) -> None:
        self.model, self.session = model, session
        self.sessions, self.run_s = [session], [0.0]
        self.input = PictureInput.of(model)
        self._free = free_rows(session)
        self._most = most_batch if self._free else self.input.batch
        kind = model.card.kind
        self.tower = ImageTower(model) if kind == "embed-image" else None
        self.classifier = Classifier(model) if kind == "classify" else None
        self.detector = Detector(model) if kind == "detect" else None
        if self.classifier is not None:
            _ = self.classifier.labels  # what does not fit is reported before anything runs
        if self.detector is not None:
            _ = self.detector.layout
            self._most = self._most if self._free else 1

    def is_quick(self, items: Sequence[Item]) -> bool:
        return False

    def prepare(self, item: Item, options: Options, limits: Limits, name: str) -> Row:
        if not isinstance(item, bytes):
            raise item_error(item, "pictures")
        if len(item) > limits.image_bytes:
            raise TooLarge(f"{name} has {len(item)} bytes, at most {limits.image_bytes} are taken")
        try:
            pixels = read_image(item, name, limits.pixels).pixels
        except TooManyPixels as error:
            raise TooLarge(error.message, error.hint) from None
        size = (int(pixels.shape[1]), int(pixels.shape[0]))
        if self.detector is not None:
            arrays, place = self.detector.prepare(pixels)
            return Row(0, arrays=arrays, place=place, size=size)
        return Row(0, arrays={self.input.spec.name: self.input.row(pixels, name)}, size=size)

    def most(self, group: int | str) -> int:
        return self._most

    def begin(self, row: Row) -> None:
        return None  # to copy a picture takes longer than to wake the owner

    def compute(self, group: int | str, rows: Sequence[Row]) -> list[Any]:
        batch = len(rows) if self._free else self.input.batch
        outputs = self.session.run(self.input.stack([row.arrays[self.input.spec.name] for row in rows], batch))
        if batch == 1:
            return [outputs]
        return [{name: array[i : i + 1] for name, array in outputs.items()} for i in range(len(rows))]

    def finish(self, rows: Sequence[Row], results: Sequence[Any], options: Options) -> Rows:
        names = [f"picture {number}" for number in range(len(rows))]
        if self.detector is not None:
            detector = replace(self.detector, threshold=options.threshold)
            places = [row.place for row in rows if row.place is not None]
            return Rows(detections=tuple(detector.read(o, p) for o, p in zip(results, places, strict=True)))
        if self.tower is not None:
            real = [self.tower.output.to_real(outputs[self.tower.output.name]) for outputs in results]
            normalize = self.tower.space.normalized if options.normalize is None else options.normalize
            return Rows(vectors=unit(np.concatenate(real), names, normalize))
        assert self.classifier is not None
        labels = self.classifier.labels
        scores = np.concatenate(
            [self.classifier.read(outputs, [name]) for outputs, name in zip(results, names, strict=True)]
        )
        orders = np.argsort(-scores, axis=1, kind="stable")[:, : options.top or None].tolist()
        return Rows(
            classes=tuple(
                tuple(ClassScore(number, labels[number], float(row[number])) for number in order)
                for row, order in zip(scores, orders, strict=True)
            )
        )

    def samples(self, index: int) -> list[dict[str, Array]]:
        draw, (height, width) = np.random.default_rng(7), self.input.size
        samples = []
        for _ in range(2):
            pixels = draw.integers(0, 256, (height, width, 3)).astype(np.uint8)
            samples.append(self.input.stack([self.input.row(pixels)], self.input.batch))
        return samples

    def describe(self, info: Info) -> Info:
        described = replace(info, labels=self.model.card.labels, batch=self._most)
        if self.tower is not None:
            return replace(described, width=self.tower.width, space=self.tower.space.name)
        return replace(described, labels=self.classifier.labels) if self.classifier is not None else described
