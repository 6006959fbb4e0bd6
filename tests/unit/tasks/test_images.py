"""Pictures of every kind become 8-bit RGB, or one sentence; inputs are what the preprocessing states."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anynpu.errors import AnyNpuError, ConfigError, IntegrityError
from anynpu.tasks.images import Preprocess, fit, read_image, to_input
from anynpu.tasks.picture import read_frames
from anynpu.tensors import Quantization, TensorSpec

Image = pytest.importorskip("PIL.Image")
RNG = np.random.default_rng(3)
PIXELS = RNG.integers(0, 256, (9, 14, 3), dtype=np.uint8)


def encoded(image, format="PNG", **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


@pytest.mark.parametrize("format", ["PNG", "BMP", "PPM", "TIFF"])
def test_plain_pictures_come_back_as_they_are(tmp_path, format):
    data = encoded(Image.fromarray(PIXELS), format)
    (tmp_path / "x").write_bytes(data)
    for source in (data, tmp_path / "x"):
        found = read_image(source)
        assert np.array_equal(found.pixels, PIXELS) and found.notes == ()
        assert found.pixels.dtype == np.uint8 and found.pixels.flags.c_contiguous


def test_grey_palette_and_bilevel_become_rgb():
    grey = Image.fromarray(PIXELS[:, :, 0])
    assert np.array_equal(read_image(encoded(grey)).pixels, np.repeat(PIXELS[:, :, :1], 3, 2))
    palette = Image.fromarray(PIXELS).quantize(16)
    assert np.array_equal(read_image(encoded(palette)).pixels, np.asarray(palette.convert("RGB")))
    bilevel = Image.fromarray((PIXELS[:, :, 0] > 127).astype(np.uint8) * 255).convert("1")
    assert set(np.unique(read_image(encoded(bilevel)).pixels)) == {0, 255}


def test_cmyk_is_converted_and_said():
    inks = Image.new("CMYK", (4, 4), (255, 0, 0, 0))
    found = read_image(encoded(inks, "TIFF"))
    assert found.pixels[0, 0].tolist() == [0, 255, 255] and "CMYK" in found.notes[0]
    assert read_image(encoded(inks, "JPEG")).pixels[0, 0] == pytest.approx([0, 255, 255], abs=3)


@pytest.mark.parametrize("format", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_are_scaled_and_not_clipped(format):
    deep = np.array([[0, 128, 257, 4096], [32768, 40000, 65407, 65535]], np.uint16)
    found = read_image(encoded(Image.fromarray(deep), format))
    assert np.array_equal(found.pixels[:, :, 0], np.rint(deep / 257).astype(np.uint8))
    assert "16 bits" in found.notes[0]


def test_colour_of_sixteen_bits_keeps_its_range():
    values = (PIXELS.astype(">u2") * 257).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in values)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", PIXELS.shape[1], PIXELS.shape[0], 16, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    assert np.array_equal(read_image(data).pixels, PIXELS)


def test_pixels_without_a_range_are_refused():
    for array in (np.full((3, 3), 1e6, np.float32), np.full((3, 3), 10**6, np.int32)):
        with pytest.raises(ConfigError, match="no range"):
            read_image(encoded(Image.fromarray(array), "TIFF"))


def test_transparent_parts_are_white_and_said():
    layered = np.dstack([PIXELS, np.full(PIXELS.shape[:2], 255, np.uint8)])
    opaque = read_image(encoded(Image.fromarray(layered)))
    assert np.array_equal(opaque.pixels, PIXELS) and opaque.notes == ()
    layered[0, 0, 3], layered[0, 1] = 0, (0, 0, 0, 128)
    found = read_image(encoded(Image.fromarray(layered)))
    assert found.pixels[0, 0].tolist() == [255] * 3 and found.pixels[0, 1] == pytest.approx([127] * 3, abs=1)
    assert np.array_equal(found.pixels[1:], PIXELS[1:]) and "white" in found.notes[0]
    keyed = encoded(Image.fromarray(PIXELS[:, :, 0]), transparency=int(PIXELS[0, 0, 0]))
    assert read_image(keyed).pixels[0, 0].tolist() == [255] * 3


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation):
    stored = {
        1: PIXELS,
        2: PIXELS[:, ::-1],
        3: PIXELS[::-1, ::-1],
        4: PIXELS[::-1],
        5: PIXELS.transpose(1, 0, 2),
        6: np.rot90(PIXELS),
        7: np.rot90(PIXELS.transpose(1, 0, 2), 2),
        8: np.rot90(PIXELS, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = read_image(encoded(Image.fromarray(np.ascontiguousarray(stored)), exif=exif))
    assert np.array_equal(found.pixels, PIXELS)
    assert bool(found.notes) == (orientation != 1)


def animation(tmp_path, count=3):
    frames = [Image.new("RGB", (8, 6), color) for color in ("red", "lime", "blue")[:count]]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    return tmp_path / "a.gif"


def test_of_an_animation_the_first_frame_is_taken_or_each(tmp_path):
    path = animation(tmp_path)
    found = read_image(path)
    assert found.pixels[0, 0].tolist() == [255, 0, 0] and "several frames" in found.notes[0]
    assert [frame.pixels[0, 0].tolist() for frame in read_frames(path)] == [[255, 0, 0], [0, 255, 0], [0, 0, 255]]
    assert read_image(encoded(Image.new("RGB", (8, 6), "red"), "GIF")).notes == ()


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.9])
def test_truncated_files_are_one_sentence(format, share):
    data = encoded(Image.fromarray(RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8)), format)
    with pytest.raises(IntegrityError, match=r"photo\.x is not a readable image"):
        read_image(data[: int(len(data) * share)], "photo.x")


@pytest.mark.parametrize(
    "data",
    [b"", b"text, not pixels", b"\x89PNG\r\n\x1a\n", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", bytes(1000)],
)
def test_what_is_no_image_is_said(data):
    with pytest.raises(IntegrityError, match="not a readable image"):
        read_image(data)


def test_pictures_without_pixels_and_without_measure_are_refused(tmp_path):
    with pytest.raises(AnyNpuError):
        read_image(b"P6 0 5 255\n")
    bomb = struct.pack("<HIHHI", 0x4D42, 54, 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, 30000, 30000, 1, 24, *[0] * 6)
    with pytest.raises(ConfigError, match="89,000,000"):
        read_image(bomb)
    with pytest.raises(ConfigError, match="14x9 pixels are more than the 100"):
        read_image(encoded(Image.fromarray(PIXELS)), most_pixels=100)
    with pytest.raises(ConfigError, match="no such file"):
        read_image(tmp_path / "gone.png")
    with pytest.raises(ConfigError, match="is not a file"):
        read_image(tmp_path)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["PNG", "GIF", "BMP", "TIFF", "PPM", "JPEG", "WEBP"]), st.data())
def test_damaged_bytes_give_pixels_or_one_sentence(format, data):
    whole = bytearray(encoded(Image.fromarray(PIXELS), format))
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read_image(bytes(whole))
    except AnyNpuError as error:
        assert error.message
    else:
        assert found.pixels.ndim == 3 and found.pixels.shape[2] == 3 and found.pixels.size


LETTERBOX = Preprocess(resize="letterbox")


@pytest.mark.parametrize(
    ("height", "width", "size", "inner", "corner"),
    [
        (1080, 810, (640, 640), (640, 480), (0, 80)),
        (720, 1280, (640, 640), (360, 640), (140, 0)),
        (100, 101, (64, 64), (63, 64), (0, 0)),
        (101, 99, (64, 96), (64, 63), (0, 16)),
        (10, 10, (64, 96), (64, 64), (0, 16)),
        (1, 5000, (64, 64), (1, 64), (31, 0)),
    ],
)
def test_letterbox_keeps_the_ratio_and_pads_the_odd_row_below(height, width, size, inner, corner):
    white = np.full((height, width, 3), 255, np.uint8)
    fitted, place = fit(white, size, LETTERBOX)
    rows, columns = np.nonzero((fitted == 255).all(2))
    assert (rows.max() - rows.min() + 1, columns.max() - columns.min() + 1) == inner
    assert (rows.min(), columns.min()) == corner == (place.top, place.left)
    assert set(np.unique(fitted)) <= {114, 255} and fitted.shape == (*size, 3)


def test_layouts_and_channel_orders_hold_the_same_pixels():
    pixels = RNG.integers(0, 256, (37, 51, 3), dtype=np.uint8)
    plain, _ = fit(pixels, (32, 32), LETTERBOX, "NHWC")
    chw, _ = fit(pixels, (32, 32), LETTERBOX, "NCHW")
    bgr, _ = fit(pixels, (32, 32), Preprocess(resize="letterbox", channels="BGR"), "NCHW")
    assert np.array_equal(chw, plain.transpose(2, 0, 1)) and np.array_equal(bgr, chw[::-1])
    grey, _ = fit(pixels, (32, 32), Preprocess(resize="letterbox", channels="GRAY"), "NCHW")
    assert grey.shape == (1, 32, 32)
    same, place = fit(pixels, (37, 51), Preprocess())
    assert np.array_equal(same, pixels) and place.gain_x == 1


@pytest.mark.parametrize("resize", ["stretch", "center-crop", "letterbox"])
def test_a_place_in_the_input_leads_back_to_the_place_in_the_picture(resize):
    pixels = np.zeros((60, 90, 3), np.uint8)
    pixels[30:36, 42:48] = 255
    fitted, place = fit(pixels, (40, 40), Preprocess(resize=resize))
    rows, columns = np.nonzero(fitted[:, :, 0] > 127)
    assert (columns.mean() + 0.5 - place.left) / place.gain_x == pytest.approx(45, abs=1.5)
    assert (rows.mean() + 0.5 - place.top) / place.gain_y == pytest.approx(33, abs=1.5)


def test_interpolation_is_the_stated_one():
    pixels = RNG.integers(0, 256, (40, 40, 3), dtype=np.uint8)
    for name, kind in (("bilinear", Image.Resampling.BILINEAR), ("bicubic", Image.Resampling.BICUBIC)):
        made, _ = fit(pixels, (20, 20), Preprocess(resize="stretch", interpolation=name))
        assert np.array_equal(made, np.asarray(Image.fromarray(pixels).resize((20, 20), kind)))
    with pytest.raises(ConfigError, match="interpolation"):
        Preprocess(interpolation="nearest")


def test_linear_is_what_opencv_does_or_says_what_to_install():
    pixels = RNG.integers(0, 256, (40, 40, 3), dtype=np.uint8)
    steps = Preprocess(resize="stretch", interpolation="linear")
    try:
        import cv2
    except ImportError:
        with pytest.raises(AnyNpuError, match="OpenCV") as caught:
            fit(pixels, (20, 20), steps)
        assert "video" in caught.value.hint
    else:
        assert np.array_equal(fit(pixels, (20, 20), steps)[0], cv2.resize(pixels, (20, 20)))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("dtype", "scale", "zero", "steps"),
    [
        ("uint8", 1 / 255, 0, LETTERBOX),
        ("int8", 1 / 255, -128, LETTERBOX),
        ("int8", 1 / 127, 0, LETTERBOX),
        ("uint8", 1 / 64.75, 12, Preprocess(resize="letterbox", mean=(0.48, 0.46, 0.41), std=(0.27, 0.26, 0.28))),
        ("int16", 1 / 4096, 3, LETTERBOX),
    ],
)
def test_the_table_of_a_quantised_input_equals_quantising_every_pixel(layout, dtype, scale, zero, steps):
    shape = (1, 3, 9, 14) if layout == "NCHW" else (1, 9, 14, 3)
    spec = TensorSpec("x", shape, dtype, layout, quantization=Quantization((scale,), (zero,)))
    fitted, _ = fit(PIXELS, (9, 14), steps, layout)
    stored = to_input(fitted, steps, spec)
    spec.check(stored)
    last = (3, 1, 1) if layout == "NCHW" else (3,)
    mean, std = (np.broadcast_to(np.array(v, np.float32), 3).reshape(last) for v in (steps.mean, steps.std))
    real = (fitted.astype(np.float32) * np.float32(steps.scale) - mean) / std
    assert np.array_equal(stored[0], spec.to_stored(real))


def test_float_inputs_hold_the_stated_values():
    spec = TensorSpec("x", (1, 3, 9, 14), layout="NCHW")
    fitted, _ = fit(PIXELS, (9, 14), LETTERBOX, "NCHW")
    assert np.allclose(to_input(fitted, LETTERBOX, spec), PIXELS.transpose(2, 0, 1)[None] / 255, atol=1e-7)
    half = to_input(fitted, LETTERBOX, TensorSpec("x", (1, 3, 9, 14), "float16", "NCHW"))
    assert half.dtype == np.float16
