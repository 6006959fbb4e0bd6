"""Draws detections into the picture they were found in."""

from __future__ import annotations

import colorsys
import io
from typing import TYPE_CHECKING

from anynpu.tensors import Array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anynpu.tasks.detect import Detections

Color = tuple[int, int, int]
_GOLDEN = 0.618034


def color(number: int) -> Color:
    """Returns the colour of a class: neighbours in number are far apart in hue."""
    red, green, blue = colorsys.hsv_to_rgb((number * _GOLDEN) % 1.0, 0.85, 0.9)
    return round(red * 255), round(green * 255), round(blue * 255)


def annotated(pixels: Array, detections: Detections, names: Sequence[str]) -> Array:
    """Returns a copy of the picture with a box and a label for each detection; `names` are theirs, one each."""
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    image = Image.fromarray(pixels)
    draw = ImageDraw.Draw(image)
    width = max(2, round((image.width + image.height) * 0.0015))
    font = ImageFont.load_default(max(10, round((image.width + image.height) * 0.009)))
    # The best is drawn last: its label stays readable.
    for index in reversed(range(len(detections))):
        x0, y0, x1, y1 = detections.boxes[index].tolist()
        hue = color(int(detections.classes[index]))
        draw.rectangle((x0, y0, max(x1 - 1, x0), max(y1 - 1, y0)), outline=hue, width=width)
        text = f"{names[index]} {detections.scores[index]:.2f}"
        _, _, right, bottom = draw.textbbox((0, 0), text, font=font)
        above = y0 - bottom - 4 if y0 > bottom + 4 else y0
        draw.rectangle((x0, above, x0 + right + 6, above + bottom + 4), fill=hue)
        # Black or white, whichever is easier to read on the colour.
        ink = (0, 0, 0) if hue[0] * 0.299 + hue[1] * 0.587 + hue[2] * 0.114 > 140 else (255, 255, 255)
        draw.text((x0 + 3, above + 1), text, fill=ink, font=font)
    return np.asarray(image)


def jpeg(pixels: Array) -> bytes:
    """Returns a picture as JPEG."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=90)
    return stream.getvalue()
