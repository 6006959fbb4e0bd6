"""Averages that one run of the float model gives for two repairs are those that separate runs give."""

import numpy as np
import onnx
import pytest

from anynpu.lowering.lower import lower
from anynpu.lowering.net import LoweredForm
from anynpu.quantize import averages as module
from anynpu.quantize import sketch
from anynpu.quantize.averages import averages, biased
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.measured import FEWEST, SAMPLES, measurable, sampled
from anynpu.quantize.net import Change
from anynpu.quantize.onnx_net import OnnxForm
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.qdq import prepare
from anynpu.quantize.ranges import Range, collect, quantization_for
from anynpu.quantize.repairs import biases_corrected
from anynpu.quantize.sightings import calibrated
from tests.unit.quantize.test_measured import net, samples
from tests.unit.quantize.test_sightings import case as levelled_case

COUNT = SAMPLES + 16
ROWS = sketch.ROWS


def case(kind):
    model, x = net(), samples(COUNT, 1)
    if kind == "onnx":
        return OnnxForm(prepare(model)), Dataset({"x": x}, None, "x")
    graph = lower(onnx.shape_inference.infer_shapes(model), ["x"], ["y"])
    return LoweredForm(graph), Dataset({"x": np.ascontiguousarray(np.moveaxis(x, 1, -1))}, None, "x")


def values(form, data, name, at):
    return np.concatenate([np.array(form.run([name])(data.sample(each))[name]) for each in at]).astype(np.float64)


@pytest.mark.parametrize("kind", ["onnx", "tflite"])
@pytest.mark.parametrize("seen", [True, False])
def test_one_run_gives_what_two_give(kind, seen, monkeypatch):
    form, data = case(kind)
    plan = QuantPlan()
    monkeypatch.setattr(sketch, "ROWS", 1 << 20)
    ranges = {name: Range(0.8 * each.min, 0.8 * each.max) for name, each in collect(form.run(), data, "minmax").items()}
    before = calibrated(form, data, plan, False, False).sketch if seen else None
    if seen:
        monkeypatch.setattr(module, "sketched", None)  # nobody runs the model again
    both, places = averages(form, data, plan, ranges, (), before), measurable(form.net(), (), data)
    assert len(places) == 6
    for source, layer, _ in biased(form.net()):
        read = values(form, data, source, range(COUNT))
        others = tuple(axis for axis in range(4) if axis != layer.channel_axis % 4)
        np.testing.assert_allclose(both.inputs.exact(source), read.mean(axis=others), rtol=1e-4, atol=1e-5)
        stored = quantization_for(ranges[source], "int8", False)
        kept = stored.dequantize(stored.quantize(read, "int8"))
        np.testing.assert_allclose(both.inputs.rounded(source), kept.mean(axis=others), rtol=1e-4, atol=1e-4)
    for place in places:
        others = tuple(axis for axis in range(4) if axis != place.axis % 4)
        before, behind = (values(form, data, name, sampled(data)) for name in (place.result, place.behind))
        limits, target = ranges[place.behind], both.targets.of(place)
        clipped = np.clip(behind, min(limits.min, 0.0), max(limits.max, 0.0))
        np.testing.assert_allclose(target.mean, clipped.mean(axis=others), rtol=1e-4, atol=1e-5)
        slope = ((place.of(before + 0.01) - place.of(before - 0.01)) / 0.02).mean(axis=others)
        np.testing.assert_allclose(target.slope, slope, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(target.spread, before.std(axis=others), rtol=1e-3)


@pytest.mark.parametrize("kind", ["onnx", "tflite"])
def test_some_rows_say_what_all_of_them_say(kind, monkeypatch):
    form, data = case(kind)
    plan, ranges = QuantPlan(), collect(form.run(), data, "minmax")
    some = averages(form, data, plan, ranges, ())
    monkeypatch.setattr(sketch, "ROWS", 1 << 20)
    every, places = averages(form, data, plan, ranges, ()), measurable(form.net(), (), data)
    for source, _, _ in biased(form.net()):
        kept = [each.inputs.rounded(source) - each.inputs.exact(source) for each in (some, every)]
        step = (ranges[source].max - ranges[source].min) / 255
        # A rounding error is even over a step, the mean of n of them has 0.29 / sqrt(n) of it.
        assert np.abs(kept[0] - kept[1]).max() < 5 * 0.29 * step / np.sqrt(ROWS)
    for place in places:
        few, all_rows = (each.targets.of(place) for each in (some, every))
        np.testing.assert_allclose(few.mean, all_rows.mean, atol=2e-3 * all_rows.spread.max())
        np.testing.assert_allclose(few.slope, all_rows.slope, atol=0.03)
        np.testing.assert_allclose(few.spread, all_rows.spread, rtol=0.1)


@pytest.mark.parametrize("kind", ["onnx", "tflite"])
def test_averages_of_a_louder_graph_come_from_the_first_one(kind, monkeypatch):
    monkeypatch.setattr(sketch, "ROWS", 1 << 20)
    form, data = levelled_case(kind, "rectified" if kind == "tflite" else "gate")
    plan = QuantPlan()
    first = calibrated(form, data, plan, True, kind == "tflite")
    assert any(each.changed for each in first.effects)
    wanted = averages(first.form, data, plan, first.ranges, ())
    monkeypatch.setattr(module, "sketched", None)
    got = averages(first.form, data, plan, first.ranges, (), first.sketch)
    for source, _, _ in biased(first.form.net()):
        size = np.abs(wanted.inputs.exact(source)).max()
        np.testing.assert_allclose(got.inputs.exact(source), wanted.inputs.exact(source), atol=1e-4 * size)
        step = (first.ranges[source].max - first.ranges[source].min) / 255
        np.testing.assert_allclose(got.inputs.rounded(source), wanted.inputs.rounded(source), atol=0.02 * step)


@pytest.mark.parametrize("kind", ["onnx", "tflite"])
def test_averages_of_another_graph_are_not_taken(kind):
    form, data = case(kind)
    plan, ranges = QuantPlan(), collect(form.run(), data, "minmax")
    change = Change(form.net())
    first = biased(form.net())[0][1]
    change.scale(first.bias, np.full(1, 3.0))
    other = form.changed(change)
    wanted = biases_corrected(other, data, plan, ranges)[0]
    got = biases_corrected(other, data, plan, ranges, exact=averages(form, data, plan, ranges, ()))[0]
    for _, layer, _ in biased(other.net()):
        np.testing.assert_array_equal(got.net().constant(layer.bias), wanted.net().constant(layer.bias))


def test_too_few_samples_measure_nothing():
    form, data = case("onnx")
    assert not measurable(form.net(), (), data.take(range(FEWEST - 1)))
