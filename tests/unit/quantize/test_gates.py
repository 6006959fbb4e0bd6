"""Gates between convolutions have level channels, in ONNX graphs and in those of our own writer."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu.lowering.integer_file import quantize_file
from anynpu.lowering.lower import lower
from anynpu.lowering.net import LoweredForm
from anynpu.lowering.write import to_bytes
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.equalize import gate_factors
from anynpu.quantize.net import Change
from anynpu.quantize.onnx_net import OnnxForm
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.qdq import prepare, write_qdq
from anynpu.quantize.repairs import gates_levelled, levelled
from anynpu.quantize.whole import whole_operators

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


FORMS = {"onnx": lambda model: OnnxForm(prepare(model)), "tflite": lambda model: LoweredForm(lower(model))}


@pytest.fixture(params=FORMS)
def form_of(request):
    return FORMS[request.param]


def answers(form) -> np.ndarray:
    run = form.run(["y"])
    return np.concatenate([np.array(run(DATA.sample(at))["y"]) for at in range(DATA.count)])


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("pads", [0, 1])
def test_a_levelled_graph_computes_the_same(form_of, depthwise, pads):
    given = form_of(net(40.0, depthwise, pads))
    form, count = gates_levelled(given, DATA)
    assert count == 1 and len(form.operators) == len(given.operators) + 1
    assert np.allclose(answers(given), answers(form), rtol=1e-5, atol=1e-5)


def test_a_level_gate_of_an_onnx_model_is_rounded_behind_its_end():
    levelled_model = gates_levelled(FORMS["onnx"](net(40.0)), DATA)[0].model
    inside = whole_operators(levelled_model.graph)
    assert inside.nodes == {"c/restored", "gate"}
    assert inside.unrounded == {"c", "s"}


def test_a_levelled_tflite_graph_names_its_factors():
    given = FORMS["tflite"](net(40.0))
    form, _ = gates_levelled(given, DATA)
    before, after = given.run()(DATA.sample(0)), form.run()(DATA.sample(0))
    assert form.factors
    for name, each in form.factors.items():
        assert np.allclose(after[name], before[name] * np.asarray(each), rtol=1e-4, atol=1e-5), name


def test_passes_are_listed_and_one_that_changes_results_is_left_out(form_of, monkeypatch):
    """The factors go into the first weights, and are not taken back behind the gate."""
    given = form_of(net(40.0))
    form, effects = levelled(given, DATA)
    changes = {each.name: bool(each.changed) for each in effects}
    assert changes == {"smooth": False, "level-gates": True, "equalize": False} and effects[1].operators == 1
    assert form != given
    monkeypatch.setattr(Change, "take_back", lambda self, layer, factors: None)
    form, effects = levelled(given, DATA)
    assert form == given
    assert effects[1].dropped.startswith("it would change output 'y' on 4 of 4 samples")


def test_even_channels_stay_as_they_are(form_of):
    given = form_of(net(1.0))
    assert gates_levelled(given, DATA) == (given, 0)


def test_a_gate_that_something_else_reads_stays_as_it_is(form_of):
    model = net(40.0)
    model.graph.output.append(helper.make_tensor_value_info("m", TensorProto.FLOAT, [1, CHANNELS, 4, 4]))
    assert gates_levelled(form_of(model), DATA)[1] == 0


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
        quantize_file(tmp_path / "float.tflite", DATA, QuantPlan(equalize=each), out)
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
