"""Image files to model inputs: every step stated by the user, none guessed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from anynpu.errors import ConfigError, IntegrityError, ToolMissing
from anynpu.tensors import Array, TensorSpec

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
Resize = Literal["none", "stretch", "letterbox", "center-crop"]
Channels = Literal["RGB", "BGR", "GRAY"]


@dataclass(frozen=True)
class Preprocess:
    """How an image becomes an input: value = (pixel * scale - mean) / std, per channel in the stated order.

    `size` is (height, width); None means that images must already have the model's size. "stretch" ignores the aspect
    ratio, "letterbox" keeps it and fills the rest with `pad`, "center-crop" keeps it and cuts what is over.
    """

    size: tuple[int, int] | None = None
    resize: Resize = "none"
    channels: Channels = "RGB"
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    pad: int = 114

    def __post_init__(self) -> None:
        if self.resize not in get_args(Resize):
            raise ConfigError(f"no such resize: {self.resize}", "known: " + ", ".join(get_args(Resize)))
        if self.channels not in get_args(Channels):
            raise ConfigError(f"no such channel order: {self.channels}", "known: " + ", ".join(get_args(Channels)))
        if self.size is not None and min(self.size) < 1:
            raise ConfigError(f"image size {self.size} is not positive")
        if self.scale <= 0 or not np.isfinite(self.scale):
            raise ConfigError(f"pixel scale {self.scale} is not above zero")
        if 0.0 in self.std or not np.isfinite([*self.mean, *self.std]).all():
            raise ConfigError("mean and std must be finite and std not zero")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.depth):
                raise ConfigError(f"{name} has {len(values)} values for {self.depth} channels")
        if not 0 <= self.pad <= 255:
            raise ConfigError(f"pad {self.pad} is no pixel value", "0 to 255")

    @property
    def depth(self) -> int:
        return 1 if self.channels == "GRAY" else 3


def find_images(folder: Path) -> list[tuple[Path, int | None]]:
    """Returns the image files in sorted order, each with the number of its sub-folder if all are in sub-folders."""
    entries = sorted(e for e in folder.iterdir() if not e.name.startswith("."))
    folders = [e for e in entries if e.is_dir()]
    files = [e for e in entries if _is_image(e)]
    if folders and files:
        raise ConfigError(
            f"{folder} holds both images and folders", "put all images in one folder, or one sub-folder per class"
        )
    found: list[tuple[Path, int | None]] = [(file, None) for file in files]
    for label, sub in enumerate(folders):
        found += [(file, label) for file in sorted(sub.iterdir()) if _is_image(file)]
    if not found:
        raise ConfigError(f"{folder} holds no images", "known: " + " ".join(SUFFIXES))
    return found


def _is_image(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def check_input(spec: TensorSpec, preprocess: Preprocess) -> tuple[int, int]:
    """Returns the height and width that images must get to fit the input."""
    if spec.layout not in ("NCHW", "NHWC"):
        raise ConfigError(
            f"input {spec.name} has {'layout ' + spec.layout if spec.layout else 'no stated layout'}: images need NCHW "
            "or NHWC",
            "state the layout of the input, or give an .npy file",
        )
    if spec.dtype not in ("float32", "float16"):
        raise ConfigError(f"input {spec.name} holds {spec.dtype}: a folder of images fits float inputs only")
    shape = dict(zip(spec.layout, spec.shape, strict=True))
    if shape["C"] != preprocess.depth:
        raise ConfigError(f"input {spec.name} has {shape['C']} channels, {preprocess.channels} has {preprocess.depth}")
    if spec.channels and spec.channels != preprocess.channels:
        raise ConfigError(f"input {spec.name} takes {spec.channels}, the preprocessing gives {preprocess.channels}")
    size = (shape["H"], shape["W"])
    if preprocess.size is not None and preprocess.size != size:
        raise ConfigError(f"input {spec.name} is {size[0]}x{size[1]}, the preprocessing gives {preprocess.size}")
    return size


def load_images(files: list[Path], spec: TensorSpec, preprocess: Preprocess) -> Iterator[Array]:
    """Yields one array per image, in the input's layout, without the batch axis."""
    size = check_input(spec, preprocess)
    mean, std = (np.asarray(values, np.float32) for values in (preprocess.mean, preprocess.std))
    for file in files:
        pixels = _pixels(file, size, preprocess).astype(np.float32)
        values = (pixels * np.float32(preprocess.scale) - mean) / std
        yield np.ascontiguousarray(values.transpose(2, 0, 1) if spec.layout == "NCHW" else values)


def _pixels(file: Path, size: tuple[int, int], preprocess: Preprocess) -> Array:
    try:
        from PIL import Image
    except ImportError as error:
        raise ToolMissing("Pillow is not installed, images cannot be read", "pip install pillow") from error
    try:
        with Image.open(file) as image:
            image.load()
            if image.mode.startswith(("I", "F")):
                raise ConfigError(f"{file}: {image.mode} pixels are not 8 bit", "convert it, or give an .npy file")
            converted = image.convert("L" if preprocess.channels == "GRAY" else "RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise IntegrityError(f"{file} is not a readable image: {error}") from error
    pixels = np.asarray(_resized(converted, file, size, preprocess))
    pixels = pixels.reshape(*size, preprocess.depth)
    return pixels[:, :, ::-1] if preprocess.channels == "BGR" else pixels


def _resized(image: Image, file: Path, size: tuple[int, int], preprocess: Preprocess) -> Image:
    """Returns the image at the wanted size, bilinear where pixels must be made."""
    from PIL import Image, ImageOps

    wanted = (size[1], size[0])
    if image.size == wanted:
        return image
    if preprocess.resize == "none":
        raise ConfigError(
            f"{file} is {image.height}x{image.width}, the input {size[0]}x{size[1]}",
            "choose a resize: stretch, letterbox or center-crop",
        )
    if preprocess.resize == "stretch":
        return image.resize(wanted, Image.Resampling.BILINEAR)
    if preprocess.resize == "center-crop":
        return ImageOps.fit(image, wanted, Image.Resampling.BILINEAR)
    color = preprocess.pad if preprocess.channels == "GRAY" else (preprocess.pad,) * 3
    return ImageOps.pad(image, wanted, Image.Resampling.BILINEAR, color=color)
