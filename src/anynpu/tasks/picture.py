"""Reads pictures that nobody vouches for: any file, any mode, any number of frames become 8-bit RGB or one sentence."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from anynpu.errors import ConfigError, IntegrityError, ToolMissing
from anynpu.foreign import PILLOW
from anynpu.tensors import Array

if TYPE_CHECKING:
    from PIL.Image import Image

# Only these: others start programs (EPS), or are not pictures.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
MOST_PIXELS = 89_000_000
"""About 267 MB of pixels; also the size from which Pillow suspects a decompression bomb."""
ORIENTATION = 0x0112


class TooManyPixels(ConfigError):
    """The picture is whole, and larger than what is read."""


@dataclass(frozen=True)
class Picture:
    """8-bit RGB pixels [height, width, 3], and what had to be done to get them."""

    pixels: Array
    notes: tuple[str, ...] = ()


def read_image(source: Path | bytes, name: str = "", most_pixels: int = MOST_PIXELS) -> Picture:
    """Returns the picture in a file or in bytes, upright and as RGB; of an animation the first frame."""
    where = name or (str(source) if isinstance(source, Path) else "the image")
    with _opened(source, where, most_pixels) as image:
        with _quiet():
            pixels, notes = _rgb(image, where)
        # Only after the pixels: to look for a second frame moves on in the file.
        if getattr(image, "is_animated", False):
            notes = (*notes, "it has several frames, the first is taken")
    return Picture(pixels, notes)


def read_frames(path: Path) -> Iterator[Picture]:
    """Yields every frame of an animation (GIF, PNG, WebP); a still picture has one."""
    with _opened(path, str(path)) as image:
        for index in range(getattr(image, "n_frames", 1)):
            with _quiet():
                image.seek(index)
                picture = Picture(*_rgb(image, f"{path} frame {index}"))
            yield picture


@contextmanager
def _opened(source: Path | bytes, where: str, most_pixels: int = MOST_PIXELS) -> Iterator[Image]:
    """Gives the picture, its pixels not read yet; whatever is wrong with it becomes one sentence."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise ToolMissing("Pillow is not installed, images cannot be read", "pip install pillow") from error
    if isinstance(source, Path) and not source.is_file():
        raise ConfigError(f"{where}: {'is not a file' if source.exists() else 'no such file'}")
    try:
        with _quiet():
            opened = Image.open(source if isinstance(source, Path) else io.BytesIO(source), formats=FORMATS)
        with opened as image:
            if image.width * image.height > most_pixels:
                raise TooManyPixels(*_too_large(where, f"{image.width}x{image.height} pixels are", most_pixels))
            yield image
    except Image.DecompressionBombError as error:
        raise TooManyPixels(*_too_large(where, "its pixels are", most_pixels)) from error
    except PILLOW as error:
        reason = "no image of a known format" if isinstance(error, UnidentifiedImageError) else error
        raise IntegrityError(f"{where} is not a readable image: {reason}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Pillow's words on large pictures and odd metadata off stderr: what matters is an error or a note here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _too_large(where: str, size: str, most_pixels: int) -> tuple[str, str]:
    return f"{where}: {size} more than the {most_pixels:,} that are read", "make it smaller first"


def _rgb(image: Image, where: str) -> tuple[Array, tuple[str, ...]]:
    """Returns the pixels of the frame the image stands at, upright, and notes."""
    from PIL import Image, ImageOps

    image.load()
    if 0 in image.size:
        raise IntegrityError(f"{where} has no pixels ({image.width}x{image.height})")
    notes: tuple[str, ...] = ()
    try:
        if image.getexif().get(ORIENTATION, 1) in range(2, 9):
            image, notes = ImageOps.exif_transpose(image), ("it is turned as its EXIF orientation says",)
    except PILLOW:
        notes = ("its EXIF data cannot be read",)
    if image.mode.startswith("I") or image.mode == "F":
        # 16-bit grey pixels scaled to 8; 32-bit and float pixels have no range that could be scaled
        values = np.asarray(image)
        sixteen = image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PPM", "PNG"))
        if not sixteen or values.min() < 0 or values.max() > 65535:
            raise ConfigError(
                f"{where}: {image.mode} pixels have no range that could be scaled to 8 bits",
                "convert it, or give an .npy file",
            )
        grey = ((values.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, 2), (*notes, "its 16 bits are scaled to 8")
    if "A" in image.mode or "a" in image.mode or "transparency" in image.info:
        layered = image.convert("RGBA")
        if np.asarray(layered.getchannel("A")).min() == 255:
            return np.array(layered.convert("RGB")), notes
        white = Image.new("RGBA", layered.size, (255, 255, 255, 255))
        shown = Image.alpha_composite(white, layered).convert("RGB")
        return np.array(shown), (*notes, "its transparent parts are white")
    if image.mode == "CMYK":
        notes = (*notes, "CMYK is converted without a colour profile")
    return np.array(image.convert("RGB")), notes
