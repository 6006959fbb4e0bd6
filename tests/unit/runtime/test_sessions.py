"""Sessions: chosen by format, fed by name, in the layouts and types that the specs say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from lowered_nets import net
from onnx import helper
from onnx.reference import ReferenceEvaluator

from anynpu.artifact import Artifact, Made, Manifest, Step, seal
from anynpu.errors import ConfigError, IntegrityError, ModelRefused, ToolMissing
from anynpu.lowering.lower import lower
from anynpu.lowering.write import to_bytes
from anynpu.runtime.base import check_names, choose, open_session, run_real, run_stored, sessions_for
from anynpu.runtime.ort import open_session as open_ort
from anynpu.runtime.ort import run_named
from anynpu.runtime.tflm import TflmSession
from anynpu.tensors import Array, Quantization, TensorSpec, by_name

X = TensorSpec("x", (1, 2, 3, 4), layout="NCHW")
Y = TensorSpec("y", (1, 2, 3, 4), layout="NCHW")


class Doubling:
    """Doubles real numbers, in int8 and with the channels last."""

    inputs = (TensorSpec("x", (1, 3, 4, 2), "int8", "NHWC", quantization=Quantization((0.5,), (3,))),)
    outputs = (TensorSpec("y", (1, 3, 4, 2), "int8", "NHWC", quantization=Quantization((1.0,), (3,))),)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        assert inputs["x"].dtype == np.int8 and inputs["x"].shape == (1, 3, 4, 2)
        return {"y": inputs["x"]}  # the same steps at twice the scale


def null_artifact(folder: Path, format: str = "null", content: bytes = b"m") -> Artifact:
    (folder / "m").write_bytes(content)
    return seal(folder, Manifest(format, "m", (X,), (Y,)), Step("s"), Made("2026-01-01T00:00:00+00:00", 0.0))


def test_real_numbers_go_through_layout_and_scale_and_back() -> None:
    real = np.arange(24, dtype=np.float32).reshape(X.shape) * 0.5
    found = run_real(Doubling(), {"x": real}, by_name((X, Y)))["y"]  # type: ignore[arg-type]
    assert np.array_equal(found, 2 * real)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"xx": np.zeros(1)}, r"the model has no input xx"),
        ({}, "input x is missing"),
        ({"x": np.zeros((1, 2, 3, 4), np.float64)}, "holds float32, not float64"),
        ({"x": np.zeros((1, 3, 4, 2), np.float32)}, r"\[1, 2, 3, 4\], not \[1, 3, 4, 2\]"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, given: dict[str, Array], words: str) -> None:
    session = open_session(null_artifact(tmp_path))
    with pytest.raises(ConfigError, match=words):
        run_stored(session, given)


def test_the_null_device_gives_zeros_of_the_right_shape(tmp_path: Path) -> None:
    session = open_session(null_artifact(tmp_path), "null")
    found = run_stored(session, {"x": np.ones(X.shape, np.float32)})
    assert found["y"].shape == Y.shape and not found["y"].any()
    session.close()


def test_names_must_be_exactly_those_of_the_model() -> None:
    check_names({"x": np.zeros(1)}, (X,))
    with pytest.raises(ConfigError, match="no input z") as caught:
        check_names({"x": np.zeros(1), "z": np.zeros(1)}, (X,))
    assert caught.value.hint == "its inputs: x"


def test_choosing_a_session() -> None:
    assert choose("onnx").name == "ort" and choose("null").name == "null"
    ranks = [cls.rank for cls in sessions_for("tflite")]
    assert ranks == sorted(ranks) and len(ranks) > 1
    with pytest.raises(ConfigError, match="device ort does not run null artifacts") as caught:
        choose("null", "ort")
    assert caught.value.hint == "they run on: null"
    with pytest.raises(ConfigError, match=r"no such device: otr \(did you mean 'ort'\?\)"):
        choose("onnx", "otr")
    with pytest.raises(ToolMissing, match="nothing on this machine executes punched-cards"):
        choose("punched-cards")


def test_a_model_that_the_runtime_refuses_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="ONNX Runtime refuses the model"):
        open_session(null_artifact(tmp_path, "onnx", b"no protobuf"))


def test_a_model_that_tflite_micro_refuses_is_refused_by_operator_and_layer(tmp_path: Path) -> None:
    pytest.importorskip("tflite_micro")
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("TopK", ["a", "k"], ["top", "places"])]
    model = net(nodes, {"x": (1, 80)}, {"k": np.asarray([70])}, outputs=("top",))  # up to 64 are found one by one
    with pytest.raises(IntegrityError, match="refuses the model: top: Didn't find op for builtin opcode 'TOPK_V2'"):
        TflmSession(null_artifact(tmp_path, "tflite", to_bytes(lower(model))))


@pytest.mark.parametrize("as_file", [True, False])
def test_zeros_around_a_pool_of_negative_numbers_count(tmp_path, as_file):
    """ONNX Runtime fuses them into the pool, which then ignores them; onnx's own evaluator is the judge."""
    nodes = [
        helper.make_node("Pad", ["x", "pads", "zero"], ["wide"]),
        helper.make_node("MaxPool", ["wide"], ["y"], kernel_shape=[3, 3], strides=[2, 2]),
    ]
    model = net(nodes, {"x": (1, 2, 7, 7)}, {"pads": np.asarray([0, 0, 1, 1] * 2), "zero": np.float32(0)})
    x = np.random.default_rng(0).uniform(-2, -1, (1, 2, 7, 7)).astype(np.float32)
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    session = open_ort(str(tmp_path / "net.onnx") if as_file else model.SerializeToString())
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], ReferenceEvaluator(model).run(None, {"x": x})[0])


def test_a_model_that_only_litert_runs_is_opened_there_unless_a_device_is_named(tmp_path: Path) -> None:
    pytest.importorskip("tflite_micro")
    nodes = [helper.make_node("Gelu", ["x"], ["y"])]
    model = net(nodes, {"x": (1, 80)}, outputs=("y",), opset=20)
    lowered = null_artifact(tmp_path, "tflite-float", to_bytes(lower(model)))
    assert open_session(lowered).name == "litert"
    with pytest.raises(ModelRefused, match="Didn't find op for builtin opcode 'GELU'"):
        open_session(lowered, "tflm")


def test_no_names_are_no_tensors():
    session = open_ort(net([helper.make_node("Neg", ["x"], ["y"])], {"x": (1, 3)}).SerializeToString())
    assert run_named(session, [], {"x": np.zeros((1, 3), np.float32)}) == {}
    assert [*run_named(session, ["y"], {"x": np.zeros((1, 3), np.float32)})] == ["y"]
