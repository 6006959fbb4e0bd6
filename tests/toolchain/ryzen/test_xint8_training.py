"""Training in powers of two on a fake Quark, whose own search gives a trained model other scales."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from fake_quark import write_quark
from onnx import numpy_helper

import anynpu
from anynpu.artifact import Artifact
from anynpu.errors import IntegrityError
from anynpu.targets.roundings import check_integers
from anynpu.testing import models
from anynpu.training.record import read_integers, read_record

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[anynpu.BuildResult, Path]:
    folder = tmp_path_factory.mktemp("xint8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUARK_PATH", str(write_quark(folder / "quark")))
        model = models.conv_net()
        (border,) = model.graph.input
        shape = [d.dim_value for d in border.type.tensor_type.shape.dim][1:]
        samples = np.random.default_rng(4).normal(0, 1, (100, *shape)).astype(np.float32)
        result = anynpu.build(
            *(model, "ryzen-ai-stx", {border.name: samples}),
            output=folder / "out",
            cache_dir=folder / "cache",
            qat=True,
            option={"calibration": "min_mse"},
        )
    return result, folder / "out" / "ryzen-ai-stx"


def test_training_brings_powers_of_two_nearer_to_the_float_model(built):
    result, _ = built
    (chip,) = result.record.chips
    assert chip.error is None, chip.error
    (note,) = [note for note in result.record.notes if "ryzen-ai-stx: trained by the float model on 80 samples" in note]
    before, after = (float(part.split()[-1]) for part in note.split(" dB")[0].split("SQNR")[1].split("->"))
    assert after > before + 0.5


def test_the_file_holds_the_trained_integers_and_scales(built):
    """Read by onnx alone: weights and biases of eight bits under powers of two."""
    _, folder = built
    record, wanted = read_record(folder), read_integers(folder)
    graph = onnx.load(folder / "model.onnx").graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    kept = {f"{name}_q": values for name, values in wanted.items()}  # as the fake names them
    assert set(kept) <= set(stored) and any(values.ndim == 1 for values in kept.values())
    for name, values in kept.items():
        assert np.array_equal(stored[name], values)
    for name, each in record.scheme.weights.items():
        assert float(stored[f"{name}_s"]) == each.scale[0] and np.log2(each.scale[0]).is_integer()


def test_a_file_with_quarks_own_scales_is_refused(built, tmp_path):
    _, folder = built
    made = Artifact.open(folder)
    file = onnx.load(made.main)
    scale = next(t for t in file.graph.initializer if t.name == file.graph.node[0].input[1])
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(2), scale.name))
    onnx.save(file, tmp_path / "model.onnx")
    with pytest.raises(IntegrityError, match=r"in another range than|have other scales"):
        check_integers(made, Artifact(tmp_path, made.manifest))
