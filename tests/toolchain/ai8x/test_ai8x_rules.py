"""What has a place on the accelerator, what has none, and why."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import small_nets
from onnx import helper
from small_nets import Net

from anynpu import plugins
from anynpu.errors import Unsupported
from anynpu.targets.ai8x import memory, rules
from anynpu.targets.ai8x.graph import cut
from anynpu.targets.ai8x.options import Ai8xFacts, Ai8xOptions

FACTS = {name: plugins.platform(name).facts_as(Ai8xFacts) for name in ("max78000", "max78002")}


def found(model, chip="max78000", **options) -> set[str]:
    blocks, misfits = cut(model)
    return {f.rule for f in (*misfits, *rules.findings(blocks, FACTS[chip], Ai8xOptions(**options)))}


@pytest.mark.parametrize(
    ("net", "rule"),
    [
        (Net((1, 3, 8, 8)).conv(3, 4, 5, 2), "kernel_size"),
        (Net((1, 3, 8, 8)).conv(3, 4, 3, 3), "padding"),
        (Net((1, 3, 8, 8)).conv(3, 4, 1, 1), "padding"),
        (Net((1, 4, 8, 8)).conv(4, 4, groups=4), "groups"),
        (Net((1, 1100, 1, 1)).conv(1100, 4, 1, 0), "channels"),
        (Net((1, 3, 1100, 2)).conv(3, 4), "pixels"),
        (Net((1, 3, 96, 96)).conv(3, 4), "data_memory"),
        (Net((1, 256, 8, 8)).conv(256, 256), "weight_memory"),
        (Net((1, 80, 8, 8)).conv(80, 80).op("MaxPool", kernel_shape=[2, 2], strides=[2, 2]), "lone_window"),
        (
            Net((1, 3, 40, 40)).conv(3, 4).op("MaxPool", kernel_shape=[20, 20], strides=[20, 20]).conv(4, 4, 1, 0),
            "window",
        ),
        (Net((1, 8, 8)).conv(8, 8, 11, 2, dims=1), "kernel_size"),
        (Net((1, 3, 8, 8)).conv(3, 4).op("Sigmoid"), "operator"),
        (Net((1, 3, 8, 8)).conv(3, 4).op("MaxPool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]), "pool_padding"),
        (Net((1, 3, 8, 8)).op("Relu").conv(3, 4), "activation"),
        (Net((1, 3, 20, 20)).conv(3, 4).op("Flatten").linear(1600, 4), "flattened"),
        (Net((1, 3, 4, 4)).conv(3, 4).op("Flatten").norm(64).linear(64, 4), "batch_norm"),
    ],
)
def test_what_has_no_place_is_named(net, rule):
    assert rule in found(net.model())


@pytest.mark.parametrize("name", ["sequential", "wide", "strided", "signal", "residual", "softmax", "shifted"])
def test_what_has_a_place_is_not_complained_about(name):
    assert not found(getattr(small_nets, name)())


def test_chips_differ():
    assert found(small_nets.depthwise()) == {"groups"}
    assert not found(small_nets.depthwise(), "max78002")
    assert found(small_nets.sequential(), max_speed=True) == {"max_speed"}
    assert not found(small_nets.sequential(), "max78002", max_speed=True)
    assert not found(Net((1, 3, 96, 96)).conv(3, 4).model(), "max78002")
    assert found(small_nets.wide(), fifo=True) == {"fifo"}


def test_too_many_layers():
    net = Net((1, 4, 4, 4))
    for _ in range(33):
        net.conv(4, 4).op("Relu")
    assert found(net.model()) == {"layers"}
    assert not found(net.model(), "max78002")


def test_fewer_bits_take_less_memory():
    model = Net((1, 256, 8, 8)).conv(256, 256).model()
    assert "weight_memory" not in found(model, bit_width=4)


def test_two_outputs_are_refused():
    model = small_nets.sequential()
    model.graph.output.append(helper.make_tensor_value_info("t2", 1, (1, 16, 16, 16)))
    assert "one_output" in found(model)


def test_a_sum_of_constants_is_named():
    net = Net((1, 3, 4, 4)).conv(3, 4)
    last = net.last
    net.op("Add", net.const(1.0), source=net.const(2.0))
    net.op("Add", net.last, source=last)
    assert found(net.model()) == {"constant"}


def test_batch_norm_is_folded_with_its_own_epsilon():
    blocks, _ = cut(Net((1, 3, 4, 4)).conv(3, 2).norm(2).op("Relu").model())
    (block,) = blocks.blocks
    plain, _ = cut(Net((1, 3, 4, 4)).conv(3, 2).model())
    net = Net((1, 3, 4, 4)).conv(3, 2).norm(2)
    gamma, beta, mean, variance = (np.frombuffer(c.raw_data, np.float32) for c in net.constants[2:6])
    factor = gamma / np.sqrt(variance + 1e-3)
    assert np.allclose(block.weight, plain.blocks[0].weight * factor[:, None, None, None], rtol=1e-5)
    assert np.allclose(block.bias, plain.blocks[0].bias * factor + beta - mean * factor, rtol=1e-4, atol=1e-6)
    assert (block.activation, block.tensor) == ("relu", "t3")


@pytest.mark.parametrize("name", ["sequential", "wide", "residual", "signal"])
def test_what_lives_at_one_time_does_not_overlap(name):
    blocks, _ = cut(getattr(small_nets, name)())
    places = memory.place(blocks, FACTS["max78000"], [8] * len(blocks.blocks), 8, False)
    spans = {-1: (0, memory.data_bytes(blocks.input), 1)}
    for number, (block, place) in enumerate(zip(blocks.blocks, places, strict=True)):
        step = place.write_gap + 1
        spans[number] = (place.out_offset, memory.data_bytes(block.output), step)
    words = {n: {start + i * step for i in range(0, size, 4)} for n, (start, size, step) in spans.items()}
    for first, second in itertools.combinations(spans, 2):
        if max(blocks.users(first), default=len(blocks.blocks)) >= second:
            assert not words[first] & words[second], (first, second)
    for block, place in zip(blocks.blocks, places, strict=True):
        assert place.in_offset == min(spans[s][0] for s in block.sources)


def test_weights_go_where_there_is_room():
    net = Net((1, 4, 4, 4))
    for _ in range(20):
        net.conv(4, 4).op("Relu")
    blocks = cut(net.model())[0]
    places = memory.place(blocks, FACTS["max78000"], [8] * len(blocks.blocks), 8, False)
    assert len({p.processors for p in places}) == 16


def test_weights_that_no_processor_can_hold_are_refused():
    net = Net((1, 4, 4, 4)).conv(4, 1000, 3, 1, bias=0.0)
    blocks, _ = cut(net.model())
    with pytest.raises(Unsupported) as caught:
        memory.place(blocks, FACTS["max78000"], [8] * len(blocks.blocks), 8, False)
    assert caught.value.findings[0].rule == "kernel_memory"
