"""CLIP's pictures beside the steps that torchvision documents for them: Resize, CenterCrop, ToTensor, Normalize."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import Image

from anynpu.tasks import card
from anynpu.tasks.clip_image import crop_start, resized_size, shortest_crop
from anynpu.tasks.images import fit, to_input
from anynpu.tensors import Quantization, TensorSpec

MEAN = np.array([0.48145466, 0.4578275, 0.40821073])
STD = np.array([0.26862954, 0.26130258, 0.27577711])
SIZES = [
    (224, 224), (225, 224), (224, 227), (1, 1), (2, 3), (7, 5), (17, 300), (301, 299), (640, 427), (375, 500),
    (223, 1001), (100, 2000), (2000, 100), (3, 999), (999, 3), (1, 500), (500, 1), (900, 900), (449, 897), (33, 57),
]  # fmt: skip


def photo(height: int, width: int) -> np.ndarray:
    """Smooth colours with edges and noise."""
    rng = np.random.default_rng(height * 31 + width)
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    waves = np.stack([np.sin(9 * x + 4 * y), np.cos(7 * y), np.sign(np.sin(20 * (x - y)))], 2) * 90 + 128
    return np.clip(waves + rng.normal(0, 25, waves.shape), 0, 255).astype(np.uint8)


def documented(pixels: np.ndarray, side: int) -> np.ndarray:
    """Returns what `Resize(side, BICUBIC)` and `CenterCrop(side)` give, written from their description."""
    height, width = pixels.shape[:2]
    short, long = sorted((height, width))
    longer = int(side * long / short)
    wanted = (side, longer) if width <= height else (longer, side)
    image = Image.fromarray(pixels)
    image = image if image.size == wanted else image.resize(wanted, Image.Resampling.BICUBIC)
    top, left = round((image.height - side) / 2.0), round((image.width - side) / 2.0)
    return np.asarray(image)[top : top + side, left : left + side]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_pictures_are_within_one_step_of_the_documented_ones(size):
    pixels = photo(*size)
    ours = np.asarray(shortest_crop(Image.fromarray(pixels), (224, 224), "bicubic"))
    wanted = documented(pixels, 224)
    assert ours.shape == (224, 224, 3)
    error = np.abs(ours.astype(int) - wanted.astype(int))
    assert error.max() <= (1 if max(size) > 4 * min(size) else 0)


@pytest.mark.parametrize("size", [(1, 60_000), (60_000, 1), (2, 50_000)])
def test_a_panorama_of_one_row_does_not_fill_the_memory(size):
    pixels = photo(*size)
    ours = np.asarray(shortest_crop(Image.fromarray(pixels), (224, 224), "bicubic"))
    assert ours.shape == (224, 224, 3)
    middle = pixels[:, size[1] // 2] if size[0] < 10 else pixels[size[0] // 2]
    assert np.abs(ours[112, 112].astype(int) - middle.mean(0)).max() < 60


def test_the_values_are_those_of_the_published_statistics():
    chosen = card.choose("clip-image").card
    assert chosen.preprocess is not None
    pixels = photo(301, 500)
    spec = TensorSpec("image", (1, 3, 224, 224), layout="NCHW")
    ours = to_input(fit(pixels, (224, 224), chosen.preprocess, "NCHW")[0], chosen.preprocess, spec)
    wanted = ((documented(pixels, 224) / 255 - MEAN) / STD).transpose(2, 0, 1)[None]
    assert ours.dtype == np.float32 and np.abs(ours - wanted).max() * STD.max() < 1e-5 < 1 / 255


def test_an_input_of_eight_bits_holds_the_nearest_steps():
    chosen = card.choose("clip-image").card
    assert chosen.preprocess is not None
    scale = Quantization((1 / 64.75,), (-12,))
    spec = TensorSpec("image", (1, 224, 224, 3), "int8", "NHWC", "RGB", scale)
    pixels = photo(224, 224)
    ours = to_input(fit(pixels, (224, 224), chosen.preprocess, "NHWC")[0], chosen.preprocess, spec)
    wanted = np.clip(np.rint((pixels / 255 - MEAN) / STD * 64.75 - 12), -128, 127)
    assert ours.dtype == np.int8 and np.abs(ours[0].astype(int) - wanted).max() <= 1


def test_sides_and_offsets_are_rounded_as_torchvision_rounds_them():
    assert resized_size(299, 301, (224, 224)) == (224, 225)
    assert resized_size(480, 640, (224, 224), 256) == (256, 341)
    assert resized_size(100, 300, (224, 336)) == (224, 672)
    assert [crop_start(length, 224) for length in (224, 225, 226, 227)] == [0, 0, 1, 2]


def test_a_picture_of_the_right_size_is_still_enlarged_before_it_is_cut():
    pixels = photo(224, 224)
    assert not np.array_equal(np.asarray(shortest_crop(Image.fromarray(pixels), (224, 224), "bilinear", 256)), pixels)
