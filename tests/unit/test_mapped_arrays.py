"""Arrays that stay in their file are those that are read from it, and take no memory of their own."""

import mmap

import numpy as np
import pytest

from anynpu.arrays import forget, map_npz, read_npz
from anynpu.errors import AnyNpuError
from anynpu.quantize.calibration import Dataset

ARRAYS = {
    "input:x": np.random.default_rng(0).normal(size=(5, 3, 4, 4)).astype(np.float32),
    "input:ids": np.arange(10).reshape(5, 2),
    "labels": np.array(["a", "bc", "d", "e", "f"]),
}


@pytest.mark.parametrize(
    "write", [np.savez, np.savez_compressed, lambda file, **arrays: np.savez(file, empty=np.zeros((0, 3)), **arrays)]
)
def test_mapped_arrays_are_those_that_are_read(write, tmp_path):
    write(tmp_path / "a.npz", **ARRAYS, turned=np.asfortranarray(ARRAYS["input:x"]), number=np.float32(7))
    mapped, read = map_npz(tmp_path / "a.npz"), read_npz(tmp_path / "a.npz")
    assert mapped.keys() == read.keys()
    for name, array in read.items():
        assert mapped[name].dtype == array.dtype
        np.testing.assert_array_equal(mapped[name], array)


def test_forgotten_memory_is_read_again_and_samples_are_the_same_in_any_order(tmp_path):
    np.savez(tmp_path / "a.npz", **ARRAYS)
    mapped = map_npz(tmp_path / "a.npz")
    base = mapped["input:x"]
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base.obj if isinstance(base, memoryview) else base, mmap.mmap)
    turned = mapped["input:x"].transpose(0, 2, 3, 1)
    data = Dataset({"x": turned, "ids": mapped["input:ids"]}, None, "a")
    kept = data.sample(3)
    for at in (1, 3, 0, 4):
        sample = data.sample(at)
        assert sample["x"].flags.c_contiguous
        np.testing.assert_array_equal(sample["x"][0], ARRAYS["input:x"][at].transpose(1, 2, 0))
        np.testing.assert_array_equal(sample["ids"][0], ARRAYS["input:ids"][at])
    forget(turned)
    np.testing.assert_array_equal(kept["x"][0], ARRAYS["input:x"][3].transpose(1, 2, 0))
    np.testing.assert_array_equal(kept["ids"][0], ARRAYS["input:ids"][3])


@pytest.mark.parametrize("cut", [10, 200, 600])
def test_a_file_that_is_cut_off_is_refused(cut, tmp_path):
    np.savez(tmp_path / "a.npz", **ARRAYS)
    content = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(content[:-cut])
    with pytest.raises(AnyNpuError):
        map_npz(tmp_path / "a.npz")
