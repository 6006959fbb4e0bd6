"""Averages that one run of the float model gives for two repairs are those that separate runs give."""

import numpy as np
import onnx
import pytest

from anynpu.lowering.lower import lower
from anynpu.lowering.net import LoweredForm
from anynpu.quantize.averages import averages, biased
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.measured import FEWEST, SAMPLES, measurable, sampled
from anynpu.quantize.net import Change
from anynpu.quantize.onnx_net import OnnxForm
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.qdq import prepare
from anynpu.quantize.ranges import Range, collect, quantization_for
from anynpu.quantize.repairs import biases_corrected
from tests.unit.quantize.test_measured import net, samples

COUNT = SAMPLES + 16


def case(kind):
    model, x = net(), samples(COUNT, 1)
    if kind == "onnx":
        return OnnxForm(prepare(model)), Dataset({"x": x}, None, "x")
    graph = lower(onnx.shape_inference.infer_shapes(model), ["x"], ["y"])
    return LoweredForm(graph), Dataset({"x": np.ascontiguousarray(np.moveaxis(x, 1, -1))}, None, "x")


def values(form, data, name, at):
    return np.concatenate([np.array(form.run([name])(data.sample(each))[name]) for each in at]).astype(np.float64)


@pytest.mark.parametrize("kind", ["onnx", "tflite"])
def test_one_run_gives_what_two_give(kind):
    form, data = case(kind)
    plan = QuantPlan()
    ranges = {name: Range(0.8 * each.min, 0.8 * each.max) for name, each in collect(form.run(), data, "minmax").items()}
    both, places = averages(form, data, plan, ranges, ()), measurable(form.net(), (), data)
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
        spread = before.reshape(len(before), 1, *before.shape[1:]).std(axis=tuple(axis + 1 for axis in others))
        np.testing.assert_allclose(target.spread, spread.mean(axis=0), rtol=1e-3)


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
