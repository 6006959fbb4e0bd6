import numpy as np
import pytest

from anynpu.errors import ConfigError, IntegrityError
from anynpu.quantize.calibration import (
    Dataset,
    Preprocess,
    content_digest,
    distinct,
    load_data,
    sample_digests,
    source_digest,
    split_holdout,
)
from anynpu.tensors import TensorSpec

IMAGE = TensorSpec("image", (1, 3, 4, 6), layout="NCHW")
FLAT = TensorSpec("x", (1, 5))
IDS = TensorSpec("ids", (1, 5), "int64")
RNG = np.random.default_rng(0)


def save(path, array):
    np.save(path, array)
    return str(path)


def test_npy_and_limit(tmp_path):
    values = RNG.normal(size=(7, 5)).astype(np.float32)
    source = save(tmp_path / "x.npy", values)
    loaded = load_data(source, [FLAT], limit=3)
    assert loaded.count == 3 and not loaded.random and loaded.origin == source
    assert np.array_equal(loaded.inputs["x"], values[:3])
    assert loaded[1]["x"].shape == (1, 5) and np.array_equal(loaded.sample(1)["x"][0], values[1])


def test_float64_is_narrowed_and_a_lone_sample_taken(tmp_path):
    loaded = load_data(save(tmp_path / "x.npy", np.arange(5.0)), [FLAT])
    assert loaded.inputs["x"].dtype == np.float32 and loaded.inputs["x"].shape == (1, 5)


def test_npz_with_labels(tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, x=np.ones((4, 5), np.float32), ids=np.ones((4, 5), np.int32), labels=np.arange(4))
    loaded = load_data(str(path), [FLAT, IDS])
    assert loaded.inputs["ids"].dtype == np.int64 and loaded.labels.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"X1": np.ones((2, 5), np.float32)}, r"lacks input x \(did you mean 'X1'\?\); it holds X1"),
        ({"x": np.ones((2, 5), np.float32), "y": np.ones(2)}, "holds y, which is not an input"),
        ({"x": np.ones((2, 5), np.float32), "labels": np.ones(3)}, "3 labels for 2 samples"),
        ({"x": np.ones((0, 5), np.float32)}, "no samples"),
    ],
)
def test_npz_names(tmp_path, arrays, message):
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises(ConfigError, match=message):
        load_data(str(tmp_path / "d.npz"), [FLAT])


def test_near_name_is_offered(tmp_path):
    np.savez(tmp_path / "d.npz", imag=np.ones((1, 3, 4, 6), np.float32))
    with pytest.raises(ConfigError) as caught:
        load_data(str(tmp_path / "d.npz"), [IMAGE])
    assert "lacks input image (did you mean 'imag'?)" in caught.value.message


def test_inputs_must_agree_in_count(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.ones((4, 5), np.float32), ids=np.ones((3, 5), np.int64))
    with pytest.raises(ConfigError, match="differ in their number"):
        load_data(str(tmp_path / "d.npz"), [FLAT, IDS])


def test_layout_mistake_is_hinted(tmp_path):
    source = save(tmp_path / "x.npy", np.ones((2, 4, 6, 3), np.float32))
    with pytest.raises(ConfigError, match=r"needs shape \[N, 3, 4, 6\], got \[2, 4, 6, 3\]") as caught:
        load_data(source, [IMAGE])
    assert "NCHW" in caught.value.hint


def test_wrong_shape_and_type(tmp_path):
    with pytest.raises(ConfigError, match=r"got \[2, 7\]"):
        load_data(save(tmp_path / "a.npy", np.ones((2, 7), np.float32)), [FLAT])
    with pytest.raises(ConfigError, match="uint8") as caught:
        load_data(save(tmp_path / "b.npy", np.ones((2, 5), np.uint8)), [FLAT])
    assert "scale" in caught.value.hint
    with pytest.raises(ConfigError, match="float32"):
        load_data(save(tmp_path / "c.npy", np.ones((2, 5), np.float32)), [IDS])
    with pytest.raises(ConfigError, match="values outside"):
        load_data(save(tmp_path / "d.npy", np.full((2, 5), 300)), [TensorSpec("ids", (1, 5), "int8")])


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_bad_numbers_are_located(tmp_path, bad):
    values = np.zeros((4, 5))
    values[2, 3] = bad
    with pytest.raises(IntegrityError, match=r"input x .* sample 2"):
        load_data(save(tmp_path / "x.npy", values), [FLAT])


def test_damaged_files(tmp_path):
    whole = tmp_path / "x.npy"
    np.save(whole, np.ones((100, 5), np.float32))
    (tmp_path / "cut.npy").write_bytes(whole.read_bytes()[:300])
    (tmp_path / "no.npy").write_bytes(b"hello")
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "lfs.npz").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    np.savez(tmp_path / "z.npz", x=np.ones((100, 5), np.float32))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "z.npz").read_bytes()[:500])
    for name in ("cut.npy", "no.npy", "empty.npy", "lfs.npz", "cut.npz"):
        with pytest.raises(IntegrityError, match=name):
            load_data(str(tmp_path / name), [FLAT])


def test_pickles_are_refused(tmp_path):
    np.save(tmp_path / "o.npy", np.array([{"a": 1}], object), allow_pickle=True)
    np.savez(tmp_path / "o.npz", x=np.array([{"a": 1}], object), allow_pickle=True)
    for name in ("o.npy", "o.npz"):
        with pytest.raises(ConfigError, match="Python objects"):
            load_data(str(tmp_path / name), [FLAT])


def test_request_errors(tmp_path):
    (tmp_path / "x.csv").write_text("1")
    for source, message in [
        (str(tmp_path / "gone.npy"), "no such file"),
        (str(tmp_path / "x.csv"), "no such kind"),
        ("random:", "form"),
        ("random:0", "form"),
        ("random:4:x", "form"),
        (str(tmp_path / "gone.py:f"), "no such file"),
    ]:
        with pytest.raises(ConfigError, match=message):
            load_data(source, [FLAT])
    with pytest.raises(ConfigError, match="limit"):
        load_data("random:4", [FLAT], limit=0)
    with pytest.raises(ConfigError, match="one sample at a time"):
        load_data("random:4", [TensorSpec("x", (4, 5))])
    with pytest.raises(ConfigError, match="model has 2"):
        load_data(save(tmp_path / "x.npy", np.ones((1, 5))), [FLAT, IDS])


def test_samples_for_a_net_with_a_batch_of_its_own_say_what_to_state(tmp_path):
    rows = save(tmp_path / "x.npy", np.ones((64, 5)))
    with pytest.raises(ConfigError, match=r"needs shape \[N, 8, 5\], got \[64, 5\]") as error:
        load_data(rows, [TensorSpec("x", (1, 8, 5))])
    assert "--shape x=1,5" in error.value.hint


def test_random_is_marked_and_repeatable():
    first, again, other = (load_data(s, [FLAT, IDS]) for s in ("random:8:1", "random:8:1", "random:8:2"))
    assert first.random and first.count == 8
    assert content_digest(first) == content_digest(again) != content_digest(other)


def write(tmp_path, text):
    (tmp_path / "gen.py").write_text("import numpy as np\n" + text)
    return str(tmp_path / "gen.py")


def test_generator_of_arrays_and_dicts(tmp_path):
    path = write(
        tmp_path,
        "def plain():\n    for i in range(4): yield np.full(5, i, np.float32)\n"
        "def batched():\n    for i in range(4): yield {'x': np.full((1, 5), i, np.float32), 'labels': i}\n"
        "def endless():\n    while True: yield np.zeros(5)\n",
    )
    plain, batched = load_data(path + ":plain", [FLAT]), load_data(path + ":batched", [FLAT])
    assert np.array_equal(plain.inputs["x"], batched.inputs["x"]) and batched.labels.tolist() == [0, 1, 2, 3]
    assert load_data(path + ":endless", [FLAT], limit=9).count == 9


def test_generator_errors(tmp_path):
    path = write(
        tmp_path,
        "def bad():\n    yield np.zeros(5)\n    raise KeyError('oops')\n"
        "def none():\n    return []\n"
        "def ragged():\n    yield np.zeros(5)\n    yield np.zeros(6)\n",
    )
    for name, message in [("bad", "KeyError"), ("none", "no samples"), ("ragged", "differ in shape")]:
        with pytest.raises(ConfigError, match=message):
            load_data(f"{path}:{name}", [FLAT])
    with pytest.raises(ConfigError, match="no function raged") as caught:
        load_data(path + ":raged", [FLAT])
    assert "(did you mean 'ragged'?)" in caught.value.message
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        load_data(str(tmp_path / "broken.py:f"), [FLAT])


def test_holdout_is_disjoint_even_with_copies():
    values = RNG.normal(size=(23, 5)).astype(np.float32)
    values[9] = values[4]
    calibration, held = split_holdout(Dataset({"x": values}, np.arange(23), "t"))
    assert not set(sample_digests(calibration)) & set(sample_digests(held))
    assert calibration.count + held.count == 23 and {4, 9} <= set(held.labels.tolist())
    again = split_holdout(Dataset({"x": values}, np.arange(23), "t"))[1]
    assert content_digest(again) == content_digest(held)


def test_holdout_needs_two_samples():
    with pytest.raises(ConfigError, match="one distinct sample"):
        split_holdout(Dataset({"x": np.ones((9, 5))}, None, "t"))
    calibration, held = split_holdout(Dataset({"x": np.eye(2)}, None, "t"))
    assert (calibration.count, held.count) == (1, 1)


def test_digests_tell_content_apart():
    one = Dataset({"x": np.zeros((2, 4), np.float32)}, None, "a")
    assert content_digest(one) == content_digest(Dataset({"x": np.zeros((2, 4), np.float32)}, None, "b"))
    for other in (np.zeros((2, 2, 2), np.float32), np.zeros((2, 4), np.float64), np.ones((2, 4), np.float32)):
        assert content_digest(one) != content_digest(Dataset({"x": other}, None, "a"))
    assert content_digest(one) != content_digest(Dataset(one.inputs, np.zeros(2), "a"))


def images(folder, count, size=(6, 4), mode="RGB"):
    image_module = pytest.importorskip("PIL.Image")
    folder.mkdir(parents=True, exist_ok=True)
    depth = {"RGB": (3,), "L": ()}[mode]
    pixels = RNG.integers(0, 256, (count, size[1], size[0], *depth), dtype=np.uint8)
    for index, array in enumerate(pixels):
        image_module.fromarray(array).save(folder / f"{index}.png")
    return pixels


def test_images_follow_the_stated_preprocessing(tmp_path):
    pixels = images(tmp_path / "d", 3)
    steps = Preprocess(None, "none", "BGR", 1 / 255, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    loaded = load_data(str(tmp_path / "d"), [IMAGE], steps)
    expected = (pixels[:, :, :, ::-1] / 255 - [0.1, 0.2, 0.3]) / [0.5, 0.6, 0.7]
    np.testing.assert_allclose(loaded.inputs["image"], expected.transpose(0, 3, 1, 2), atol=1e-6)
    channel_last = TensorSpec("image", (1, 4, 6, 3), layout="NHWC")
    np.testing.assert_allclose(
        load_data(str(tmp_path / "d"), [channel_last], steps).inputs["image"], expected, atol=1e-6
    )


@pytest.mark.parametrize("resize", ["stretch", "letterbox", "center-crop"])
def test_images_are_resized_as_stated(tmp_path, resize):
    images(tmp_path / "d", 1, size=(12, 12))
    values = load_data(str(tmp_path / "d"), [IMAGE], Preprocess((4, 6), resize)).inputs["image"]
    assert values.shape == (1, 3, 4, 6)
    border = np.abs(values[..., 0] - 114 / 255).max()
    assert (border < 1e-6) == (resize == "letterbox")
    with pytest.raises(ConfigError, match="12x12"):
        load_data(str(tmp_path / "d"), [IMAGE], Preprocess())


def test_sub_folders_are_labels(tmp_path):
    images(tmp_path / "d" / "cat", 2)
    images(tmp_path / "d" / "dog", 1)
    assert load_data(str(tmp_path / "d"), [IMAGE], Preprocess()).labels.tolist() == [0, 0, 1]
    images(tmp_path / "d", 1)
    with pytest.raises(ConfigError, match="both images and folders"):
        load_data(str(tmp_path / "d"), [IMAGE], Preprocess())


def test_image_errors(tmp_path):
    images(tmp_path / "d", 2)
    folder = str(tmp_path / "d")
    with pytest.raises(ConfigError, match="not stated"):
        load_data(folder, [IMAGE])
    with pytest.raises(ConfigError, match="no stated layout"):
        load_data(folder, [TensorSpec("image", (1, 3, 4, 6))], Preprocess())
    with pytest.raises(ConfigError, match="3 channels"):
        load_data(folder, [IMAGE], Preprocess(channels="GRAY"))
    with pytest.raises(ConfigError, match="takes BGR"):
        load_data(folder, [TensorSpec("i", (1, 3, 4, 6), layout="NCHW", channels="BGR")], Preprocess())
    (tmp_path / "d" / "1.png").write_bytes((tmp_path / "d" / "1.png").read_bytes()[:60])
    with pytest.raises(IntegrityError, match=r"1\.png"):
        load_data(folder, [IMAGE], Preprocess())
    (tmp_path / "none").mkdir()
    with pytest.raises(ConfigError, match="no images"):
        load_data(str(tmp_path / "none"), [IMAGE], Preprocess())


@pytest.mark.parametrize(
    "bad",
    [{"resize": "fill"}, {"channels": "RGBA"}, {"std": (0.0,)}, {"mean": (1.0, 2.0)}, {"scale": 0}, {"size": (0, 1)}],
)
def test_preprocess_is_checked(bad):
    with pytest.raises(ConfigError):
        Preprocess(**bad)


def test_source_digest_follows_the_bytes(tmp_path):
    images(tmp_path / "d", 2)
    path = write(tmp_path, "def f(): yield 1\ndef g(): yield 2\n")
    np.save(tmp_path / "x.npy", np.zeros(3))
    sources = [str(tmp_path / "d"), path + ":f", path + ":g", str(tmp_path / "x.npy"), "random:4:0", "random:4:1"]
    before = [source_digest(source) for source in sources]
    assert len(set(before)) == len(sources) and before == [source_digest(source) for source in sources]
    (tmp_path / "d" / "0.png").rename(tmp_path / "d" / "7.png")
    np.save(tmp_path / "x.npy", np.ones(3))
    write(tmp_path, "def f(): yield 3\n")
    after = [source_digest(source) for source in sources]
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, False, False, False, True, True]
    with pytest.raises(ConfigError, match="no such file"):
        source_digest(str(tmp_path / "gone.npy"))


@pytest.mark.parametrize("mapped", [False, True])
def test_samples_are_told_apart_wherever_they_differ(mapped, tmp_path):
    values = np.zeros((8, 3, 40, 30), np.float32)
    values[1, 1, 17, 19] = 1e-30  # one place of 3,600
    values[2:4, 0, 0, 0] = [2, 3]
    values[7] = values[1]
    if mapped:
        np.save(tmp_path / "x.npy", values)
        values = np.load(tmp_path / "x.npy", mmap_mode="r")
    turned = values.transpose(0, 2, 3, 1)
    for inputs in ({"x": values}, {"x": turned}, {"x": values, "y": np.zeros((8, 0), np.float32)}):
        data = Dataset(inputs, None, "t")
        assert distinct(data) == 4 == len({*sample_digests(data)})
    assert distinct(Dataset({"x": values, "y": np.arange(8)}, None, "t")) == 8
