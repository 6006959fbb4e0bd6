"""Image files to model inputs: every step stated, none guessed; calibration and running take the same steps."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from anynpu.errors import ConfigError, ToolMissing
from anynpu.tasks.clip_image import crop_start, resized_size, shortest_crop
from anynpu.tasks.picture import Picture, read_image
from anynpu.tensors import Array, TensorSpec

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "Fit",
    "Picture",
    "Preprocess",
    "check_input",
    "class_folders",
    "evenly",
    "find_images",
    "fit",
    "images_in",
    "in_order",
    "load_images",
    "opencv",
    "read_image",
    "to_input",
]

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
Resize = Literal["none", "stretch", "letterbox", "center-crop", "shortest-crop"]
Channels = Literal["RGB", "BGR", "GRAY"]
Interpolation = Literal["bilinear", "bicubic", "linear"]


@dataclass(frozen=True)
class Preprocess:
    """How an image becomes an input: value = (pixel * scale - mean) / std, per channel in the stated order.

    `size` is (height, width); None means that images must already have the model's size. "stretch" ignores the aspect
    ratio, "letterbox" keeps it and fills the rest with `pad`, "center-crop" keeps it and cuts what is over,
    "shortest-crop" does so in torchvision's steps and rounding: the shorter side to `shortest` (without it to what just
    covers the input), then the centre.
    "bilinear" and "bicubic" widen their filter when an image shrinks, as Pillow does; "linear" mixes the nearest four
    pixels only, as OpenCV does, and needs OpenCV.
    """

    size: tuple[int, int] | None = None
    resize: Resize = "none"
    channels: Channels = "RGB"
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    pad: int = 114
    interpolation: Interpolation = "bilinear"
    shortest: int | None = None

    def __post_init__(self) -> None:
        for value, kind, name in (
            (self.resize, Resize, "resize"),
            (self.channels, Channels, "channel order"),
            (self.interpolation, Interpolation, "interpolation"),
        ):
            if value not in get_args(kind):
                raise ConfigError(f"no such {name}: {value}", "known: " + ", ".join(get_args(kind)))
        if self.size is not None and min(self.size) < 1:
            raise ConfigError(f"image size {self.size} is not positive")
        if self.shortest is not None and (self.resize != "shortest-crop" or self.shortest < 1):
            raise ConfigError(f"shortest = {self.shortest} needs resize shortest-crop and a number above zero")
        if self.scale <= 0 or not np.isfinite(self.scale):
            raise ConfigError(f"pixel scale {self.scale} is not above zero")
        if 0.0 in self.std or not np.isfinite([*self.mean, *self.std]).all():
            raise ConfigError("mean and std must be finite and std not zero")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.depth):
                raise ConfigError(f"{name} has {len(values)} values for {self.depth} channels")
        if not 0 <= self.pad <= 255:
            raise ConfigError(f"pad {self.pad} is not a pixel value", "0 to 255")

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
    images: list[tuple[Path, int | None]] = [(file, None) for file in files]
    for label, sub in enumerate(folders):  # as class_folders names them
        images += [(file, label) for file in sorted(sub.iterdir()) if _is_image(file)]
    if not images:
        raise ConfigError(f"{folder} holds no images", "known: " + " ".join(SUFFIXES))
    return images


def class_folders(folder: Path) -> tuple[str, ...]:
    """Returns the names of the sub-folders by the numbers that `find_images` gives their images."""
    return tuple(e.name for e in sorted(folder.iterdir()) if e.is_dir() and not e.name.startswith("."))


def evenly(images: list[tuple[Path, int | None]], limit: int | None) -> list[tuple[Path, int | None]]:
    """Returns at most `limit` images, from all classes alike: the first ones would all be of the first class."""
    if limit is None or len(images) <= limit:
        return images
    turns: dict[int | None, int] = {}
    order = []
    for at, (_, label) in enumerate(images):
        turns[label] = turns.get(label, -1) + 1
        order.append((turns[label], at))
    return [images[at] for at in sorted(at for _, at in sorted(order)[:limit])]


def images_in(folder: Path) -> list[Path]:
    """Returns the image files in a folder and in all folders below it, in sorted order."""
    images = sorted(path for path in folder.rglob("*") if _is_image(path))
    if not images:
        raise ConfigError(f"{folder} holds no images", "known: " + " ".join(SUFFIXES))
    return images


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
    shape = dict(zip(spec.layout, spec.shape, strict=True))
    if shape["C"] != preprocess.depth:
        raise ConfigError(f"input {spec.name} has {shape['C']} channels, {preprocess.channels} has {preprocess.depth}")
    if spec.channels and spec.channels != preprocess.channels:
        raise ConfigError(f"input {spec.name} takes {spec.channels}, the preprocessing gives {preprocess.channels}")
    size = (shape["H"], shape["W"])
    if preprocess.size is not None and preprocess.size != size:
        raise ConfigError(f"input {spec.name} is {size[0]}x{size[1]}, the preprocessing gives {preprocess.size}")
    if preprocess.shortest is not None and preprocess.shortest < max(size):
        raise ConfigError(
            f"input {spec.name} is {size[0]}x{size[1]}: a shorter side of {preprocess.shortest} does not fill it",
            f"give a card with shortest = {max(size)} or more, or without it",
        )
    return size


def in_order(preprocess: Preprocess, channels: str) -> Preprocess:
    """Returns the preprocessing with its colour channels in the order that the input states, if it states one."""
    if {channels, preprocess.channels} != {"RGB", "BGR"}:
        return preprocess
    turned = replace(preprocess, channels="BGR" if channels == "BGR" else "RGB")
    return replace(turned, mean=preprocess.mean[::-1], std=preprocess.std[::-1])


def load_images(files: list[Path], spec: TensorSpec, preprocess: Preprocess) -> Iterator[Array]:
    """Yields one array per image, in the input's layout, without the batch axis."""
    size = check_input(spec, preprocess)
    if spec.dtype not in ("float32", "float16"):
        raise ConfigError(f"input {spec.name} holds {spec.dtype}: a folder of images fits float inputs only")
    for file in files:
        pixels, _ = fit(read_image(file).pixels, size, preprocess, spec.layout, str(file))
        yield _real(pixels, preprocess, spec.layout)


@dataclass(frozen=True)
class Fit:
    """Where an image came to lie in an input: pixel (x, y) of the input is ((x - left) / gain_x, ...) of the image."""

    left: float
    top: float
    gain_x: float
    gain_y: float
    width: int
    height: int


def fit(
    pixels: Array, size: tuple[int, int], preprocess: Preprocess, layout: str = "NHWC", name: str = "the image"
) -> tuple[Array, Fit]:
    """Returns 8-bit RGB pixels at the wanted (height, width), in the stated channel order, as CHW or HWC."""
    height, width = pixels.shape[:2]
    if preprocess.resize == "shortest-crop":
        return _shortest(pixels, size, preprocess, layout)
    if (height, width) == size:
        return _arranged(pixels, preprocess.channels, layout), Fit(0, 0, 1, 1, width, height)
    if preprocess.resize == "none":
        raise ConfigError(
            f"{name} is {height}x{width}, the input {size[0]}x{size[1]}",
            "choose a resize: stretch, letterbox or center-crop",
        )
    if preprocess.resize == "stretch":
        drawn = _scaled(pixels, size, preprocess)
        return _arranged(drawn, preprocess.channels, layout), Fit(
            0, 0, size[1] / width, size[0] / height, width, height
        )
    if preprocess.resize == "center-crop":
        ratio = size[1] / size[0]
        w, h = (width, width / ratio) if width / height < ratio else (height * ratio, height)
        box = ((width - w) / 2, (height - h) / 2, (width + w) / 2, (height + h) / 2)
        gain = size[1] / (box[2] - box[0])
        drawn = _scaled(pixels, size, preprocess, box)
        return _arranged(drawn, preprocess.channels, layout), Fit(
            -box[0] * gain, -box[1] * gain, gain, gain, width, height
        )
    return _letterboxed(pixels, size, preprocess, layout)


def _shortest(pixels: Array, size: tuple[int, int], preprocess: Preprocess, layout: str) -> tuple[Array, Fit]:
    from PIL import Image

    if preprocess.interpolation == "linear":
        raise ConfigError("interpolation linear does not go with shortest-crop", "choose bilinear or bicubic")
    height, width = pixels.shape[:2]
    image = Image.fromarray(np.ascontiguousarray(pixels))
    drawn = shortest_crop(image, size, preprocess.interpolation, preprocess.shortest)
    resized = resized_size(height, width, size, preprocess.shortest)
    left, top = crop_start(resized[1], size[1]), crop_start(resized[0], size[0])
    placed = Fit(-left, -top, resized[1] / width, resized[0] / height, width, height)
    return _arranged(drawn, preprocess.channels, layout), placed


def _letterboxed(pixels: Array, size: tuple[int, int], preprocess: Preprocess, layout: str) -> tuple[Array, Fit]:
    height, width = pixels.shape[:2]
    gain = min(size[0] / height, size[1] / width)
    inner = (max(round(height * gain), 1), max(round(width * gain), 1))
    # The odd row of an uneven border goes below and to the right, as the detectors were trained with.
    top, left = round((size[0] - inner[0]) / 2 - 0.1), round((size[1] - inner[1]) / 2 - 0.1)
    drawn = pixels if inner == (height, width) else _scaled(pixels, inner, preprocess)
    part = _arranged(drawn, preprocess.channels, layout)
    rows, columns = slice(top, top + inner[0]), slice(left, left + inner[1])
    if layout == "NCHW":
        whole = np.full((preprocess.depth, *size), preprocess.pad, np.uint8)
        whole[:, rows, columns] = part
    else:
        whole = np.full((*size, preprocess.depth), preprocess.pad, np.uint8)
        whole[rows, columns] = part
    return whole, Fit(left, top, gain, gain, width, height)


def _scaled(
    pixels: Array, size: tuple[int, int], preprocess: Preprocess, box: tuple[float, float, float, float] | None = None
) -> Image | Array:
    """Returns the pixels, or those in `box`, at another size: a Pillow image, or an array where OpenCV made it."""
    if preprocess.interpolation == "linear":
        if box is not None:
            raise ConfigError("interpolation linear does not go with center-crop", "choose bilinear or bicubic")
        cv2 = opencv("interpolation linear")
        resized: Array = cv2.resize(pixels, (size[1], size[0]), interpolation=cv2.INTER_LINEAR)
        return resized
    from PIL import Image

    kind = Image.Resampling.BICUBIC if preprocess.interpolation == "bicubic" else Image.Resampling.BILINEAR
    return Image.fromarray(np.ascontiguousarray(pixels)).resize((size[1], size[0]), kind, box=box)


def _arranged(drawn: Image | Array, channels: Channels, layout: str) -> Array:
    """Returns RGB pixels with their channels in the stated order, as CHW or HWC."""
    if channels == "GRAY":
        from PIL import Image

        image = Image.fromarray(np.ascontiguousarray(drawn)) if isinstance(drawn, np.ndarray) else drawn
        grey = np.asarray(image.convert("L"))
        return grey[None] if layout == "NCHW" else grey[:, :, None]
    if layout == "NCHW" and not isinstance(drawn, np.ndarray):  # Pillow parts planes faster than numpy does
        planes = drawn.split()
        return np.stack([np.asarray(plane) for plane in (planes[::-1] if channels == "BGR" else planes)])
    pixels = np.asarray(drawn)
    pixels = pixels[:, :, ::-1] if channels == "BGR" else pixels
    return pixels.transpose(2, 0, 1) if layout == "NCHW" else pixels


def _real(pixels: Array, preprocess: Preprocess, layout: str) -> Array:
    """Returns (pixel * scale - mean) / std."""
    shape = (-1, 1, 1) if layout == "NCHW" else (-1,)
    mean, std = (np.asarray(values, np.float32).reshape(shape) for values in (preprocess.mean, preprocess.std))
    values = np.empty(pixels.shape, np.float32)
    np.multiply(pixels, np.float32(preprocess.scale), out=values)
    if mean.any():
        values -= mean
    if (std != 1).any():
        values /= std
    return values


def to_input(pixels: Array, preprocess: Preprocess, spec: TensorSpec) -> Array:
    """Returns fitted pixels as the input stores them, with the batch axis."""
    if spec.quantization is None and spec.dtype == "float32":
        return _real(pixels, preprocess, spec.layout)[None]
    if spec.quantization is None or spec.quantization.axis is not None or np.dtype(spec.dtype).itemsize != 1:
        return spec.to_stored(_real(pixels, preprocess, spec.layout)[None])
    axis = spec.layout.index("C") - 1
    # What each of the 256 pixel values is stored as, channel by channel: an 8-bit input needs no floats
    every = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], preprocess.depth, 2)
    stored = spec.to_stored(_real(every, preprocess, "NHWC"))
    tables = [np.ascontiguousarray(stored[0, :, channel]) for channel in range(preprocess.depth)]
    if len({table.tobytes() for table in tables}) == 1:
        return _looked_up(pixels, tables[0])[None]
    planes = [_looked_up(plane, table) for plane, table in zip(np.moveaxis(pixels, axis, 0), tables, strict=True)]
    return np.stack(planes, axis)[None]


def _looked_up(pixels: Array, table: Array) -> Array:
    raw = table.view(np.uint8)
    if np.array_equal(raw - np.arange(256, dtype=np.uint8), np.full(256, raw[0])):
        shifted: Array = np.add(pixels, raw[0], dtype=np.uint8)  # the table only moves the zero point
        return shifted.view(table.dtype)
    values: Array = np.frombuffer(np.ascontiguousarray(pixels).tobytes().translate(raw.tobytes()), table.dtype)
    return values.reshape(pixels.shape)


def opencv(what: str) -> Any:
    """Returns the module cv2, which `what` needs."""
    try:
        return importlib.import_module("cv2")
    except ImportError as error:
        raise ToolMissing(f"{what} needs OpenCV, which is not installed", "pip install 'anynpu[video]'") from error
