"""One run over the samples says of a levelled graph what a run of that graph would say."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu.quantize import repairs, sightings
from anynpu.quantize.adequacy import SampleLimits
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.functions import followers
from anynpu.quantize.padding import Padding
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import RangeCollector, collect
from anynpu.quantize.repairs import levelled, proof_places
from anynpu.quantize.sightings import calibrated, louder, sighted
from tests.unit.quantize.test_gates import DATA, FORMS, net

WIDTH = 12


def rectified() -> onnx.ModelProto:
    """Three convolutions with rectifiers between them, the second by channel."""
    draw, nodes, stored, source = np.random.default_rng(4), [], [], "x"
    for at, (outputs, inputs, groups) in enumerate(((WIDTH, 3, 1), (WIDTH, 1, WIDTH), (8, WIDTH, 1))):
        weights = draw.normal(0, 0.4, (outputs, inputs, 3, 3)) * np.exp(draw.normal(0, 1, (outputs, 1, 1, 1)))
        stored += [numpy_helper.from_array(weights.astype(np.float32), f"w{at}")]
        stored += [numpy_helper.from_array(draw.normal(0, 0.3, outputs).astype(np.float32), f"b{at}")]
        result = "y" if at == 2 else f"c{at}"
        nodes.append(helper.make_node("Conv", [source, f"w{at}", f"b{at}"], [result], pads=[1] * 4, group=groups))
        if at < 2:
            nodes.append(helper.make_node("Relu", [result], [source := f"r{at}"]))
    return made(nodes, stored, [1, 3, 8, 8], [1, 8, 8, 8])


def normalised() -> onnx.ModelProto:
    """A normalisation with loud channels, two layers behind it with a GELU between them, and a sum around them."""
    draw = np.random.default_rng(5)
    arrays = {
        "scale": np.exp(draw.normal(0, 1.5, WIDTH)),
        "shift": draw.normal(0, 0.5, WIDTH),
        "w": draw.normal(0, 0.3, (WIDTH, WIDTH)),
        "v": draw.normal(0, 0.3, (WIDTH, WIDTH)),
        "a": draw.normal(0, 0.3, WIDTH),
        "d": draw.normal(0, 0.3, WIDTH),
    }
    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale", "shift"], ["n"], axis=-1),
        helper.make_node("MatMul", ["n", "w"], ["p"]),
        helper.make_node("Add", ["p", "a"], ["q"]),
        helper.make_node("Sigmoid", ["q"], ["s"]),
        helper.make_node("Mul", ["q", "s"], ["g"]),
        helper.make_node("MatMul", ["g", "v"], ["o"]),
        helper.make_node("Add", ["o", "d"], ["e"]),
        helper.make_node("Add", ["e", "n"], ["y"]),
    ]
    stored = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    return made(nodes, stored, [1, 6, WIDTH], [1, 6, WIDTH])


def made(nodes, stored, inputs, outputs) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    ends = [value("x", TensorProto.FLOAT, inputs)], [value("y", TensorProto.FLOAT, outputs)]
    graph = helper.make_graph(nodes, "g", *ends, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


NETS = {
    "gate": lambda: net(40.0),
    "padded gate": lambda: net(40.0, depthwise=True, pads=0),
    "even gate": lambda: net(1.0),
    "rectified": rectified,
    "normalised": normalised,
}


def case(kind, name):
    model = NETS[name]()
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    values = np.random.default_rng(3).normal(size=(40, *shape[1:])).astype(np.float32)
    return FORMS[kind](model), Dataset({"x": values}, None, "drawn")


def separately(form, data, plan, between):
    form, effects = levelled(form, data, between)
    observed, how = SampleLimits(), (plan.method, plan.percentile, plan.bits, plan.symmetric)
    whole, behind = form.net().outputs, followers(form.net())
    return form, effects, collect(form.run(), data, *how, None, whole, behind, observed), observed


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("method", ["auto", "minmax"])
def test_one_run_says_what_runs_of_each_graph_say(kind, name, method, monkeypatch):
    form, data = case(kind, name)
    plan, between = QuantPlan(method=method), kind == "tflite"
    wanted, effects, ranges, observed = separately(form, data, plan, between)
    monkeypatch.setattr(sightings, "collect", None)  # nobody runs the levelled graph for its ranges
    got = calibrated(form, data, plan, True, between)
    levels = name != "even gate" and (name != "rectified" or between)
    assert got.effects == effects and any(each.changed for each in effects) == levels
    assert got.ranges.keys() == ranges.keys() and got.observed.lows.keys() == observed.lows.keys()
    for tensor, limits in ranges.items():
        size = max(-limits.min, limits.max, 1e-6)
        assert got.ranges[tensor].min == pytest.approx(limits.min, abs=1e-5 * size)
        assert got.ranges[tensor].max == pytest.approx(limits.max, abs=1e-5 * size)
        np.testing.assert_allclose(got.observed.lows[tensor], observed.lows[tensor], atol=1e-5 * size)
        np.testing.assert_allclose(got.observed.highs[tensor], observed.highs[tensor], atol=1e-5 * size)
    mine, theirs = got.form.net(), wanted.net()
    for tensor in sorted(theirs.stored):
        np.testing.assert_allclose(mine.constant(tensor), theirs.constant(tensor), rtol=1e-5, atol=1e-6)


def test_what_is_not_known_is_run(monkeypatch):
    form, data = case("tflite", "gate")
    plan = QuantPlan()
    wanted = separately(form, data, plan, True)[2]
    monkeypatch.setattr(sightings, "MOST_BYTES", 8)
    assert calibrated(form, data, plan, True, True).ranges == wanted
    collector = RangeCollector("percentile", followers=followers(form.net()))
    assert sighted(form, DATA, collector, {}, None, None) is None


def test_rows_of_padding_are_not_mixed_with_what_counts():
    form, data = case("onnx", "normalised")
    padded = Dataset(data.inputs, None, "x", padding=Padding("x", ()))
    assert (axes := louder(form.net(), False))
    assert sighted(form, padded, RangeCollector("auto"), axes, None, None) is None


@pytest.mark.parametrize("kind", FORMS)
def test_passes_are_proved_by_the_answers_that_were_seen(kind, monkeypatch):
    form, data = case(kind, "gate")
    plan = RangeCollector("auto", followers=followers(form.net())), louder(form.net(), False), None, None
    seen = sighted(form, data, *plan)
    assert sorted(seen.answers) == proof_places(data) == [0, 13, 26, 39]
    for place, answers in seen.answers.items():
        np.testing.assert_allclose(answers["y"], form.run(["y"])(data.sample(place))["y"], rtol=1e-4, atol=1e-5)
    opened, run = [], type(form).run
    monkeypatch.setattr(type(form), "run", lambda self, names=(): opened.append(self) or run(self, names))
    after, effects = levelled(form, data, False, seen)
    assert not any(each.dropped for each in effects) and [each is after for each in opened] == [True]
    other = FORMS[kind](net(1.0))
    monkeypatch.setattr(repairs, "smoothed", lambda *_: (other, 1))
    assert [each.name for each in levelled(form, data, False, seen)[1] if each.dropped] == ["smooth"]


def moved() -> onnx.ModelProto:
    """Results that are put together, moved, padded and counted, so that some limits follow from others."""
    draw = np.random.default_rng(6)
    arrays = {
        "w": draw.normal(0, 0.4, (4, 3, 3, 3)),
        "v": draw.normal(0, 0.4, (4, 11, 1, 1)),
        "k": np.ones((1, 3, 8, 8)),
    }
    stored = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    whole = {"pads": [0, 0, 1, 1, 0, 0, 2, 0], "shape": [1, 4, 4, 16], "flat": [1, -1], "first": [0], "all": [5]}
    whole |= {"axes": [1]}
    stored += [numpy_helper.from_array(np.asarray(values, np.int64), name) for name, values in whole.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("Concat", ["c", "s", "x"], ["joined"], axis=1),
        helper.make_node("Pad", ["joined", "pads"], ["padded"]),
        helper.make_node("Conv", ["padded", "v"], ["d"]),
        helper.make_node("Reshape", ["s", "shape"], ["folded"]),
        helper.make_node("Transpose", ["folded"], ["turned"], perm=[0, 2, 1, 3]),
        helper.make_node("Concat", ["x", "k"], ["half stored"], axis=1),
        helper.make_node("Greater", ["turned", "folded"], ["larger"]),
        helper.make_node("Cast", ["larger"], ["number"], to=TensorProto.INT32),
        helper.make_node("Reshape", ["number", "flat"], ["numbers"]),
        helper.make_node("Cast", ["numbers"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["d", "flat"], ["d flat"]),
        helper.make_node("Reshape", ["half stored", "flat"], ["h flat"]),
        helper.make_node("Concat", ["real", "d flat", "h flat"], ["y"], axis=1),
    ]
    return made(nodes, stored, [1, 3, 8, 8], [1, 256 + 4 * 99 + 384])


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("name", [*NETS, "moved"])
@pytest.mark.parametrize("level", [False, True])
def test_limits_that_follow_are_those_that_are_read(kind, name, level, monkeypatch):
    monkeypatch.setitem(NETS, "moved", moved)
    form, data = case(kind, name)
    axes = louder(form.net(), True) if level else {}

    def seen():
        collector = RangeCollector("auto", followers=followers(form.net()), observed=SampleLimits())
        return sighted(form, data, collector, axes, None, None)

    got, follow = seen(), sightings.derived(form.net(), axes)
    monkeypatch.setattr(sightings, "derived", lambda *_: {})
    read = seen()
    for side in ("lows", "highs"):
        for mine, theirs in ((got, read), (got.collector.observed, read.collector.observed)):
            limits, wanted = getattr(mine, side), getattr(theirs, side)
            assert limits.keys() == wanted.keys()
            for tensor in wanted:  # runtimes compute sigmoids to some parts in ten thousand
                np.testing.assert_allclose(limits[tensor], wanted[tensor], rtol=1e-3, atol=1e-6, err_msg=tensor)
    kinds = {form.net().makers[tensor].kind for tensor in follow}
    assert name != "moved" or kinds == {"sigmoid", "other", *(("pad",) if kind == "tflite" else ())}
