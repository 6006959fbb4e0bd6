"""Training in the accelerator's arithmetic: the student is the twin, and the file holds what training ended with."""

from __future__ import annotations

import functools
import re
import shutil
from dataclasses import replace

import numpy as np
import onnx
import pytest
from fake_ai8x import write_tool
from small_nets import Net

import anynpu
from anynpu.artifact import Artifact
from anynpu.errors import IntegrityError
from anynpu.pipeline import training
from anynpu.runtime.ai8x import Ai8xSession
from anynpu.runtime.base import run_real
from anynpu.targets.roundings import check_integers
from anynpu.tensors import by_name
from anynpu.training.files import INTEGERS, RECORD
from anynpu.training.fit import Settings, answers_of
from anynpu.training.record import read_integers, read_record

torch = pytest.importorskip("torch")
from anynpu.training.student import Student  # noqa: E402


def everything():
    """An input with a zero point, sums with and without an activation, a mean, a matrix that is not transposed."""
    net = Net((1, 3, 6, 6)).conv(3, 8, pad=0).op("Relu")
    first = net.last
    net.conv(8, 8).op("Add", first).op("Relu")
    second = net.last
    net.conv(8, 8).op("Add", second).op("GlobalAveragePool").op("Flatten")
    weights, biases = (net.const(net.draw.normal(size=shape)) for shape in ((8, 4), 4))
    return net.op("Gemm", weights, biases).model()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Gives what a build of the net for the accelerator came to, and its folder."""
    folder = tmp_path_factory.mktemp("trained")
    checkout, environment = write_tool(folder / "tool")
    samples = np.random.default_rng(3).normal(size=(40, 3, 6, 6)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AI8X_SYNTHESIS_PATH", str(checkout))
        patch.setenv("AI8X_PYTHON_PATH", str(environment))
        patch.setattr(training, "Settings", functools.partial(Settings, epochs=4))
        result = anynpu.build(
            *(everything(), "max78000", {"x": samples}),
            option={"weight_bits": "auto", "weight_bytes": "800"},
            qat=True,
            min_sqnr=0.0,
            output=folder / "out",
            cache_dir=folder / "cache",
        )
    return result, folder, samples


def test_a_build_trains_in_the_arithmetic_of_the_accelerator(built):
    result, folder, _ = built
    (chip,) = result.record.chips
    assert chip.error is None, chip.error
    (note,) = [note for note in result.record.notes if "trained by" in note]
    before, after = map(float, re.search(r"SQNR ([\d.]+) -> ([\d.]+) dB", note).groups())
    assert note.startswith("max78000: trained by the float model on 32 samples") and after > before
    scheme = read_record(folder / "out" / "max78000").scheme
    rounded = scheme.activations.values()
    assert any(each.fractions == "cut" for each in rounded) and any(each.gain != 1 for each in rounded)
    assert len(scheme.added) == 1 and sum(each.folded is not None for each in scheme.weights.values()) == 1
    bits = {
        layer["parameters"]: layer["bits"]
        for layer in Artifact.open(folder / "out" / "max78000").manifest.details["layers"]
    }
    trained = [each for each in (*scheme.weights.values(), *scheme.added.values()) if each.tensor.endswith("/weights")]
    assert {each.tensor: each.bits for each in trained} == {
        f"{name}/weights": width for name, width in bits.items() if name
    }
    assert min(bits.values()) < 8


def test_the_trained_student_is_the_twin(built):
    """Weights of few bits, means cut off, sums in front of an activation, zero points: output for output."""
    _, folder, samples = built
    made = Artifact.open(folder / "out" / "max78000")
    trained = next(
        path for path in (folder / "cache" / "store").glob("*/*/model.onnx") if (path.parent / INTEGERS).is_file()
    )
    student = Student(onnx.load(trained), read_record(made.path).scheme)
    inputs = {"x": torch.from_numpy(samples[:8, None])}
    ((name, given),) = answers_of(student.module, inputs, student.module.meta["outputs"], "cpu").items()
    like = by_name(
        [replace(spec, dtype="float32", quantization=None) for spec in (*made.manifest.inputs, *made.manifest.outputs)]
    )
    session = Ai8xSession(made)
    for at in range(8):
        twin = run_real(session, {"x": samples[at : at + 1]}, like)[name]
        np.testing.assert_allclose(given[at].detach().numpy(), twin, atol=1e-5 * np.abs(twin).max())


def test_other_integers_are_refused(built, tmp_path):
    _, folder, _ = built
    made = Artifact.open(folder / "out" / "max78000")
    for name in (RECORD, INTEGERS):
        shutil.copyfile(made.path / name, tmp_path / name)
    trained = Artifact(tmp_path, made.manifest)
    check_integers(trained, made)
    stored = read_integers(tmp_path)
    for first in (next(n for n, v in stored.items() if v.ndim > 1), next(n for n, v in stored.items() if v.ndim == 1)):
        changed = {name: values.copy() for name, values in stored.items()}
        changed[first].flat[0] ^= 1
        np.savez(tmp_path / INTEGERS, **changed)
        with pytest.raises(IntegrityError, match=f"the weights {first} are other integers: the compiled file"):
            check_integers(trained, made)
