"""What counts in the maps of a detector: the scores of objects, and the boxes where objects are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from anynpu.tasks.yolo import Layout

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 8
LEAST = 1e-6


class Objects:
    """The distance between the maps of two detectors as their decode sees it.

    Most places of a map hold nothing, and the decode drops them; a mean over all places would hardly see the others.
    """

    def __init__(self, layout: Layout, answers: Mapping[str, Tensor]) -> None:
        self.layout = layout
        count = len(next(iter(answers.values())))
        energy = spread = 0.0
        for start in range(0, count, CHUNK):
            for boxes, scores in self._places({name: each[start : start + CHUNK] for name, each in answers.items()}):
                sure = scores.amax(1, keepdim=True)
                energy += float((scores**2).sum())
                spread += float((sure * (boxes - boxes.mean()) ** 2).mean(1).sum())
        self.energy = max(energy / count, LEAST)
        self.spread = max(spread / count, LEAST)

    def loss(self, outputs: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Tensor:
        """Returns the error of scores and of boxes, each as a share of what the samples hold of them on average."""
        count = len(next(iter(wanted.values())))
        parts: list[Tensor] = []
        for (boxes, scores), (right, sought) in zip(self._places(outputs), self._places(wanted), strict=True):
            sure = sought.amax(1, keepdim=True)
            parts.append(((scores - sought) ** 2).sum() / self.energy)
            parts.append((sure * (boxes - right) ** 2).mean(1).sum() / self.spread)
        return sum(parts[1:], parts[0]) / (2 * count)

    def _places(self, outputs: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields for each stride the boxes as the maps have them [n, rows, places] and the scores [n, classes, places]
        of outputs that have an axis of samples before all others."""
        for parts in self.layout.of_stride.values():
            maps = [outputs[part.spec.name].movedim(part.axis + 1, 2).flatten(0, 1).flatten(2) for part in parts]
            if self.layout.head.version == "v5":
                rows = maps[0].reshape(-1, 5 + self.layout.classes, maps[0].shape[2])
                yield rows[:, :4], rows[:, 4:5].sigmoid() * rows[:, 5:].sigmoid()
            else:
                split = 4 * self.layout.head.reg_max
                boxes, scores = maps if len(maps) == 2 else (maps[0][:, :split], maps[0][:, split:])
                yield boxes, scores.sigmoid()
