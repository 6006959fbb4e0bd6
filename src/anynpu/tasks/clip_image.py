"""CLIP's pictures: the shorter side resized, the centre cut out, as torchvision does it with Pillow.

The reference is the transform that CLIP models are published with: `Resize(n)` and `CenterCrop(n)` on 8-bit pixels,
with torchvision's own rounding of the longer side (down) and of the offsets (to even).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from PIL.Image import Image

Filter = Literal["bilinear", "bicubic"]
# A picture of one row grows by its length: past this ratio only the part that stays is resized, not the whole.
LONG = 4
# A cubic reaches two pixels of the smaller side to each side; what lies farther away has no part in the result.
REACH = 3


def resized_size(height: int, width: int, size: tuple[int, int], shortest: int | None = None) -> tuple[int, int]:
    """Returns the height and width after the resize: the shorter side `shortest`, or what just covers `size`."""
    side = shortest if shortest is not None else size[0] if size[0] == size[1] else None
    if side is None:
        ratio = min(height / size[0], width / size[1])
        return round(height / ratio), round(width / ratio)
    if height <= width:
        return side, int(side * width / height)
    return int(side * height / width), side


def crop_start(length: int, wanted: int) -> int:
    """Returns where the centre begins."""
    return round((length - wanted) / 2)


def shortest_crop(image: Image, size: tuple[int, int], filter: Filter, shortest: int | None = None) -> Image:
    """Returns the centre of an image, `size` (height, width) large, after its shorter side was resized."""
    from PIL.Image import Resampling

    kind = Resampling.BICUBIC if filter == "bicubic" else Resampling.BILINEAR
    height, width = resized_size(image.height, image.width, size, shortest)
    top, left = crop_start(height, size[0]), crop_start(width, size[1])
    if max(height, width) <= LONG * max(size):
        whole = image if image.size == (width, height) else image.resize((width, height), kind)
        return whole.crop((left, top, left + size[1], top + size[0]))
    x0, x1 = _source(image.width, width, left, size[1])
    y0, y1 = _source(image.height, height, top, size[0])
    part = image.crop((x0, y0, x1, y1))
    across, down = image.width / width, image.height / height
    box = (
        max(left * across - x0, 0.0),
        max(top * down - y0, 0.0),
        min((left + size[1]) * across - x0, float(part.width)),
        min((top + size[0]) * down - y0, float(part.height)),
    )
    return part.resize((size[1], size[0]), kind, box=box)


def _source(length: int, resized: int, start: int, wanted: int) -> tuple[int, int]:
    """Returns the pixels that have a part in `wanted` resized ones from `start`."""
    scale = length / resized
    margin = REACH * max(scale, 1.0)
    return max(int(start * scale - margin), 0), min(int((start + wanted) * scale + margin) + 1, length)
