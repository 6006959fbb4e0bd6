"""Rows of padding do not count: they are found by what they change, in both forms of a model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from padded_text import LOUD, WIDTH, net, samples

from anynpu.lowering.lower import lower
from anynpu.lowering.net import LoweredForm
from anynpu.quantize.bias import ChannelMeans
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.onnx_net import OnnxForm
from anynpu.quantize.padding import find_padding
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.qdq import prepare
from anynpu.quantize.ranges import collect
from anynpu.quantize.sketch import Sketch, sketched


def forms(model: onnx.ModelProto) -> list[tuple[OnnxForm | LoweredForm, dict[str, np.ndarray]]]:
    return [(OnnxForm(prepare(model)), samples()), (LoweredForm(lower(model)), samples(dtype=np.int32))]


@pytest.mark.parametrize("pooled", [True, False])
def test_rows_of_padding_are_left_out(pooled):
    for form, inputs in forms(net(pooled=pooled)):
        padding = find_padding(form, inputs)
        assert padding is not None and padding.mask == "mask"
        data = Dataset(inputs, None, "x", padding=padding)
        counted, everything = data.counted(form.run()), form.run()
        for at in range(3):
            rows = {name: np.array(values) for name, values in counted(data.sample(at)).items()}
            loud = {name for name, values in everything(data.sample(at)).items() if values.max(initial=0) == LOUD}
            assert loud and all(rows[name].max() < 4 for name in loud)
            assert all(rows[name].size == inputs["mask"][at].sum() * WIDTH for name in loud)


def test_what_an_answer_depends_on_is_no_padding():
    for form, inputs in forms(net(masked=False)):
        assert find_padding(form, inputs) is None


def test_zeros_and_ones_that_mask_nothing_are_no_mask():
    for form, inputs in forms(net()):
        segments = {"ids": inputs["mask"], "mask": np.ones_like(inputs["mask"])}
        assert find_padding(form, segments) is None


def test_means_are_those_of_what_counts():
    form, inputs = forms(net())[0]
    data = Dataset(inputs, None, "x", padding=find_padding(form, inputs))
    ranges = collect(form.run(), data, "minmax")
    means = ChannelMeans(sketched(form, data, Sketch({"embedded": -1}, {})), ranges, QuantPlan())
    table = form.net().constant("table")
    wanted = np.mean([table[ids[mask > 0]].mean(axis=0) for ids, mask in zip(*inputs.values(), strict=True)], axis=0)
    np.testing.assert_allclose(means.exact("embedded"), wanted, rtol=1e-5)
    assert ranges["embedded"].max == LOUD
