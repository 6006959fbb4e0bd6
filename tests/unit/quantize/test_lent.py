"""Activations that are lent hold the same numbers as those that are given, until the next sample."""

import gc

import numpy as np
import onnx
import pytest

from anynpu.lowering import net as lowered
from anynpu.lowering.lower import lower
from anynpu.quantize import onnx_net
from anynpu.quantize.qdq import prepare
from tests.unit.quantize.test_measured import net, samples


def runners(kind):
    model, x = net(), samples(3, 1)
    if kind == "onnx":
        prepared = prepare(model)
        return lambda *how: onnx_net.runner(prepared, *how), [{"x": row[None]} for row in x]
    graph = lower(onnx.shape_inference.infer_shapes(model), ["x"], ["y"])
    return lambda *how: lowered.runner(graph, *how), [{"x": np.moveaxis(row[None], 1, -1)} for row in x]


@pytest.mark.parametrize("kind", ["onnx", "tflite"])
@pytest.mark.parametrize("names", [(), ("c1", "z3", "y"), ("x", "s0")])
def test_what_is_lent_is_what_is_given(kind, names):
    open_runner, feeds = runners(kind)
    given, lent = open_runner(names, False), open_runner(names, True)
    kept = [given(feed) for feed in feeds]
    for feed, wanted in zip(feeds, kept, strict=True):
        got = lent(feed)
        assert {*got} >= {*names} and {*got} == {*wanted}
        for name, values in wanted.items():
            np.testing.assert_array_equal(got[name], values)
    assert not np.array_equal(kept[0].popitem()[1], kept[1].popitem()[1])


@pytest.mark.parametrize("kind", ["onnx", "tflite"])
def test_lent_memory_lives_as_long_as_its_arrays(kind):
    open_runner, feeds = runners(kind)
    wanted = open_runner(("z3",), False)(feeds[0])["z3"]
    got = open_runner(("z3",), True)(feeds[0])["z3"]
    gc.collect()
    np.full(4 << 20, 7.0)  # whoever takes freed memory writes over it
    np.testing.assert_array_equal(got, wanted)


def test_outputs_of_unknown_size_are_given():
    model = net()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    del model.graph.value_info[:]
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
    run = onnx_net.runner(prepare(model), reuse=True)
    first, second = (run({"x": samples(count, 1)})["z1"] for count in (1, 2))
    assert len(first) == 1 and len(second) == 2
