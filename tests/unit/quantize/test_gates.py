"""Gates between convolutions have level channels, in ONNX graphs and in those of our own writer."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu.artifact import PassEffect
from anynpu.lowering import gates as lowering_gates
from anynpu.lowering.emit import quantising
from anynpu.lowering.followers import followers
from anynpu.lowering.lower import lower
from anynpu.lowering.read import from_bytes
from anynpu.lowering.smooth import smoothed
from anynpu.lowering.write import to_bytes
from anynpu.quantize import gates
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.equalize import gate_factors
from anynpu.quantize.gates import level_gates
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.qdq import prepare, write_qdq
from anynpu.quantize.tflite import quantize_file
from anynpu.quantize.tflite_passes import FloatFile, levelled, peaks, runner

SIZE, CHANNELS = 8, 16
DRAW = np.random.default_rng(3)
SAMPLES = DRAW.normal(size=(12, 1, 3, SIZE, SIZE)).astype(np.float32)[:, 0]
DATA = Dataset({"x": SAMPLES}, None, "drawn")


def net(loud: float, depthwise: bool = False, pads: int = 1) -> onnx.ModelProto:
    """A convolution with one channel that many times as loud, SiLU, and a convolution that heeds all channels alike."""
    draw = np.random.default_rng(1)
    first = draw.normal(0, 0.4, (CHANNELS, 3, 3, 3)).astype(np.float32)
    first[5] *= loud
    group = CHANNELS if depthwise else 1
    second = draw.normal(0, 0.3, (CHANNELS, CHANNELS // group, 3, 3)).astype(np.float32)
    second[5 if depthwise else slice(None), 0 if depthwise else 5] /= loud
    stored = {"w": first, "b": draw.normal(0, 0.3, CHANNELS).astype(np.float32), "v": second}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1] * 4, strides=[2, 2], name="one"),
        helper.make_node("Sigmoid", ["c"], ["s"], name="gate"),
        helper.make_node("Mul", ["c", "s"], ["m"], name="product"),
        helper.make_node("Conv", ["m", "v"], ["y"], pads=[pads] * 4, group=group, name="two"),
    ]
    value = helper.make_tensor_value_info
    side = SIZE // 2 - 2 + 2 * pads
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, [1, 3, SIZE, SIZE])],
        [value("y", TensorProto.FLOAT, [1, CHANNELS, side, side])],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def outputs(model: onnx.ModelProto) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(["y"], {"x": sample[None]})[0] for sample in SAMPLES])


def sqnr(wanted: np.ndarray, got: np.ndarray) -> float:
    return float(10 * np.log10((wanted**2).sum() / ((got - wanted) ** 2).sum()))


@pytest.mark.parametrize("depthwise", [False, True])
def test_a_levelled_onnx_model_computes_the_same(depthwise):
    model = net(40.0, depthwise)
    prepared = prepare(model)
    inside = level_gates(prepared, DATA)
    assert inside.nodes == {"c/restored", "gate"}
    assert inside.unrounded == {"c", "s"}
    assert np.allclose(outputs(model), outputs(prepared), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("pads", [0, 1])
def test_a_levelled_float_file_computes_the_same_and_names_its_factors(depthwise, pads):
    content = to_bytes(lower(net(40.0, depthwise, pads)))
    changed, factors = smoothed(content, lambda names: peaks(content, DATA, names))
    sample = {from_bytes(content).inputs[0]: SAMPLES[:1]}
    before, after = runner(content)(sample), runner(changed)(sample)
    assert np.allclose(before["y"], after["y"], rtol=1e-5, atol=1e-5)
    assert factors
    for name, each in factors.items():
        assert np.allclose(after[name], before[name] * np.asarray(each), rtol=1e-4, atol=1e-5), name


def test_passes_that_level_a_float_model_are_listed_and_one_that_changes_results_is_left_out(monkeypatch):
    """The factors go into the first weights, and are not taken back behind the gate."""
    content = to_bytes(lower(net(40.0)))
    file, effects = levelled(FloatFile(content), DATA, smoothed)
    assert [(each.name, bool(each.changed)) for each in effects] == [("smooth", True), ("equalize", False)]
    assert file.factors and effects[0].operators == 1
    real = lowering_gates._scale

    def one_sided(tensors, name, factors):
        real(tensors, name, factors if factors.max() > 1 else np.ones_like(factors))

    monkeypatch.setattr(lowering_gates, "_scale", one_sided)
    file, effects = levelled(FloatFile(content), DATA, smoothed)
    assert file == FloatFile(content)
    assert effects[0].dropped.startswith("it would change output 'y' on 4 of 4 samples")
    listed: list[PassEffect] = []
    monkeypatch.setattr(gates, "_behind", lambda factors, weights: np.ones_like(factors).reshape(1, -1, 1, 1))
    quantised = write_qdq(net(40.0), DATA, QuantPlan(), effects=listed)
    assert [each.name for each in listed if each.dropped] == ["level-gates"]
    assert quantised == write_qdq(net(40.0), DATA, QuantPlan(equalize=False))


def test_even_channels_stay_as_they_are():
    prepared = prepare(net(1.0))
    wanted = prepared.SerializeToString()
    assert not level_gates(prepared, DATA).nodes
    assert prepared.SerializeToString() == wanted
    content = to_bytes(lower(net(1.0)))
    assert smoothed(content, lambda names: peaks(content, DATA, names)) == (content, {})


def test_a_gate_that_something_else_reads_stays_as_it_is():
    model = net(40.0)
    model.graph.output.append(helper.make_tensor_value_info("m", TensorProto.FLOAT, [1, CHANNELS, 4, 4]))
    assert not level_gates(prepare(model), DATA).nodes
    content = to_bytes(lower(model))
    assert smoothed(content, lambda names: pytest.fail("nothing is to be observed")) == (content, {})


def test_factors_are_powers_of_two_that_lift_quiet_channels():
    factors = gate_factors(np.asarray([100.0, 1.0, 1.0, 4.0, 0.0]))
    assert factors is not None
    assert factors.tolist() == [1.0, 8.0, 8.0, 4.0, 1.0]
    assert gate_factors(np.asarray([7.0, 1.0, 1.0])) is None
    assert gate_factors(np.zeros(4)) is None


def test_levelling_pays_on_both_emitters(tmp_path):
    """With one scale for all channels the loud one takes their integers."""
    model = net(40.0)
    wanted = outputs(model)
    qdq = [sqnr(wanted, outputs(write_qdq(model, DATA, QuantPlan(equalize=each)))) for each in (False, True)]
    assert qdq[1] > qdq[0] + 6
    (tmp_path / "float.tflite").write_bytes(to_bytes(lower(model)))
    found = []
    for each in (False, True):
        out = tmp_path / "int8.tflite"
        quantize_file(
            tmp_path / "float.tflite", DATA, QuantPlan(equalize=each), out, quantising(), None, followers, smoothed
        )
        found.append(sqnr(wanted, by_litert(out.read_bytes())))
    assert found[1] > found[0] + 6


def by_litert(content: bytes) -> np.ndarray:
    """Returns the real outputs that LiteRT computes, channels first."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=content)
    interpreter.allocate_tensors()
    taken, given = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    (scale, zero), (step, middle) = taken["quantization"], given["quantization"]
    rows = []
    for sample in SAMPLES:
        stored = np.clip(np.rint(sample[None] / scale) + zero, -128, 127).astype(np.int8)
        interpreter.set_tensor(taken["index"], stored)
        interpreter.invoke()
        rows.append((interpreter.get_tensor(given["index"]).astype(np.float32) - middle) * step)
    return np.concatenate(rows)
