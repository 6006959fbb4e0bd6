"""Each cause that has a name is found in a net made sick by it, and a healthy net has none."""

from __future__ import annotations

import numpy as np
import pytest
from families import FAMILIES, random_net
from sick import Net, diagnosed, naive, ours, samples

pytest.importorskip("onnxruntime")


def attention(net: Net, mask: np.ndarray | None, places: int = 8) -> tuple[Net, dict]:
    q, k, v = (net("MatMul", "x", net.weights(16, 16)) for _ in range(3))
    scores = net("MatMul", q, net("Transpose", k, perm=[0, 2, 1]))
    if mask is not None:
        scores = net("Add", scores, mask, name="masked")
    net("MatMul", net("Softmax", scores, axis=-1, name="shares"), v)
    return net, samples(net.seed, places, 16)


def mask_constant(net: Net):
    return attention(net, np.triu(np.full((1, 8, 8), -1e9), 1))


def softmax_in_8_bits(net: Net):
    q = net("MatMul", "x", net.normal(8, 1024, scale=0.02))
    net("MatMul", net("Softmax", q, axis=-1, name="shares"), net.normal(1024, 32) * 30)
    return net, samples(net.seed, 4, 8)


def norm_in_8_bits(net: Net):
    mean = net("ReduceMean", "x", axes=[-1])
    centred = net("Add", "x", net("Neg", mean))
    squares = net("Mul", centred, centred, name="squares")
    root = net("Sqrt", net("Add", net("ReduceMean", squares, axes=[-1]), np.array([1e-5])))
    net("MatMul", net("Div", centred, root), net.weights(64, 16))
    data = samples(net.seed, 12, 64)
    data["x"] *= np.geomspace(0.05, 20, 12, dtype=np.float32)[:, None]
    return net, data


def embedding_table(net: Net):
    table = net.normal(64, 16, scale=0.01)
    table[0] = 40.0
    net("MatMul", net("Gather", table, "x", name="rows"), net.weights(16, 8))
    return net, {"x": np.random.default_rng(net.seed).integers(1, 64, (16, 6))}


def unlike_branches(net: Net):
    first = net("Relu", net("Conv", "x", net.weights(8, 4, 3, 3), kernel_shape=[3, 3]))
    boxes = net("Mul", net("Conv", first, net.weights(4, 8, 1, 1), name="pixels"), np.array([300.0]), name="boxes")
    scores = net("Sigmoid", net("Conv", first, net.weights(8, 8, 1, 1)), name="scores")
    net("Concat", boxes, scores, axis=1, name="joined")
    return net, samples(net.seed, 4, 8, 8)


def outlier_channels(net: Net):
    loud = np.where(np.arange(16) == 3, 300.0, 1.0)
    first = net("Conv", "x", net.weights(16, 4, 3, 3) * loud[:, None, None, None], kernel_shape=[3, 3], name="uneven")
    net("Conv", net("Relu", first), net.weights(8, 16, 1, 1) / loud[:, None, None])
    return net, samples(net.seed, 4, 8, 8)


def range_before_activation(net: Net):
    bias = np.where(np.arange(16) % 2, -400.0, 0.0)
    first = net("Conv", "x", net.weights(16, 4, 3, 3), bias, kernel_shape=[3, 3], name="before")
    net("Conv", net("Mul", first, net("Sigmoid", first)), net.weights(8, 16, 1, 1))
    return net, samples(net.seed, 4, 8, 8)


def dead_rectifier(net: Net):
    first = net("Conv", "x", net.weights(8, 4, 3, 3), np.full(8, -1e3), kernel_shape=[3, 3])
    dead = net("Relu", first, name="dead")
    net("Add", net("Conv", dead, net.weights(4, 8, 1, 1)), net("Conv", "x", net.weights(4, 4, 3, 3)))
    return net, samples(net.seed, 4, 8, 8)


def degenerate_model(net: Net):
    net("Add", net("MatMul", "x", net.weights(16, 8) * 1e-7), net.normal(8))
    return net, samples(net.seed, 16)


SICK = {
    "mask constant": mask_constant,
    "softmax in 8 bits": softmax_in_8_bits,
    "norm in 8 bits": norm_in_8_bits,
    "embedding table": embedding_table,
    "unlike branches under one scale": unlike_branches,
    "outlier channels": outlier_channels,
    "range before an activation": range_before_activation,
    "dead rectifier": dead_rectifier,
    "degenerate model": degenerate_model,
}


@pytest.mark.parametrize("cause", SICK)
def test_a_net_made_sick_by_one_cause(cause, tmp_path):
    net, data = SICK[cause](Net())
    # The naive quantiser has no scale for a tensor of zeros.
    found = diagnosed(net.model(data), data, tmp_path, quantise=ours if cause == "dead rectifier" else naive)
    assert not found.healthy
    assert [each.cause for each in found.causes] == [cause], found


def test_an_output_with_several_rows_for_each_sample(tmp_path):
    """As the state of a recurrent net has: one row for each layer."""
    net, data = outlier_channels(Net())
    net("Reshape", net.nodes[-1].output[0], np.asarray([2, 1, -1]))
    found = diagnosed(net.model(data), data, tmp_path, quantise=naive)
    assert [each.cause for each in found.causes] == ["outlier channels"], found


def test_samples_that_the_calibration_never_saw(tmp_path):
    net = Net()
    first = net("Relu", net("Conv", "x", net.weights(8, 4, 3, 3), kernel_shape=[3, 3]))
    net("Conv", first, net.weights(8, 8, 1, 1))
    quiet, loud = samples(0, 4, 8, 8, scale=0.05), samples(1, 4, 8, 8)
    found = diagnosed(net.model(loud), loud, tmp_path, calibration=quiet)
    assert [each.cause for each in found.causes] == ["too little or foreign calibration data"]
    assert found.causes[0].tensor == found.first_bad == "x"


def test_vectors_that_collapse(tmp_path):
    net = Net()
    first = net("Relu", net("MatMul", "x", net.weights(32, 64)))
    net("Add", net("MatMul", first, net.weights(64, 32) * 4), net.normal(32, scale=0.3))
    data = samples(0, 32)
    quiet = {"x": data["x"] * np.float32(1e-3)}
    found = diagnosed(net.model(data), data, tmp_path, calibration=quiet)
    assert "collapsed embeddings" in [each.cause for each in found.causes]


def healthy(seed: int) -> tuple[Net, dict]:
    """Returns one of many ordinary nets: convolutions, dense layers, attention, residual sums, activations."""
    net = Net(seed)
    if seed % 3 == 0:
        return attention(net, None)
    if seed % 3 == 1:
        x = "x"
        for _ in range(int(net.draw.integers(1, 4))):
            y = net("MatMul", x, net.weights(24, 24))
            x = net("Relu" if net.draw.random() < 0.5 else "Sigmoid", net("Add", y, net.normal(24, scale=0.1)))
        net("MatMul", x, net.weights(24, 8))
        return net, samples(seed, 24)
    x = net("Conv", "x", net.weights(8, 4, 3, 3), net.normal(8, scale=0.1), kernel_shape=[3, 3], pads=[1] * 4)
    y = net("Conv", net("Mul", x, net("Sigmoid", x)), net.weights(8, 8, 3, 3), kernel_shape=[3, 3], pads=[1] * 4)
    net("Conv", net("Concat", net("Add", x, y), y, axis=1), net.weights(4, 16, 1, 1))
    return net, samples(seed, 4, 8, 8)


@pytest.mark.parametrize("seed", range(len(FAMILIES)))
def test_a_net_of_a_usual_family_has_no_cause(seed, tmp_path):
    """`run_healthy.py` tries as many as one likes."""
    net, data = random_net(seed)
    assert diagnosed(net.model(data), data, tmp_path, quantise=ours).healthy


@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_net_has_no_cause(seed, tmp_path):
    net, data = healthy(seed)
    found = diagnosed(net.model(data), data, tmp_path, quantise=ours)
    assert found.healthy and not found.causes and not found.first_bad
    assert found.tensors and all(loss.sqnr_db > 15 for loss in found.tensors)


def test_a_branch_whose_weights_are_zero_is_not_dead(tmp_path):
    """Residual nets begin with such a last layer in every branch, and pruning leaves some."""
    net = Net()
    first = net("Relu", net("Conv", "x", net.weights(8, 4, 1, 1)))
    branch = net("Conv", net("Relu", net("Conv", first, net.weights(8, 8, 1, 1))), np.zeros((8, 8, 1, 1)))
    net("Conv", net("Add", first, net("Relu", branch)), net.weights(4, 8, 1, 1))
    data = samples(0, 4, 8, 8)
    assert diagnosed(net.model(data), data, tmp_path, quantise=ours).healthy


@pytest.mark.parametrize(
    "cause", ["mask constant", "softmax in 8 bits", "norm in 8 bits", "range before an activation"]
)
def test_a_default_build_is_not_sick_of_it(cause, tmp_path):
    net, data = SICK[cause](Net())
    assert diagnosed(net.model(data), data, tmp_path, quantise=ours).healthy


def test_made_and_inherited_are_told_apart(tmp_path):
    """A layer whose stored weights are spoilt makes an error; the exact layers behind it pass that on."""
    import onnx

    net = Net()
    first = net("Relu", net("Conv", "x", net.weights(8, 4, 1, 1)), name="first")
    second = net("Relu", net("Conv", first, net.weights(8, 8, 1, 1)), name="second")
    net("Conv", second, net.weights(8, 8, 1, 1), name="third")

    def spoilt(model, data):
        model = naive(model, data)
        stored = next(t for t in model.graph.initializer if t.name == "c1_quantized")
        values = onnx.numpy_helper.to_array(stored)
        stored.CopyFrom(onnx.numpy_helper.from_array(np.roll(values, 1, axis=0), stored.name))
        return model

    data = samples(0, 4, 8, 8)
    found = diagnosed(net.model(data), data, tmp_path, quantise=spoilt)
    losses = {loss.tensor: loss for loss in found.tensors}
    assert losses["first"].sqnr_db > 30 and losses["second"].made_db < 5 < 30 < losses["second"].inherited_db
    assert losses["third"].sqnr_db < 8 and losses["third"].inherited_db < 8 < 25 < losses["third"].made_db
    assert found.first_bad == "second" or found.first_bad.startswith("conv")


def test_a_sample_beyond_all_others_is_not_the_hosts_fault(tmp_path):
    net = Net(4)
    net("MatMul", net("Relu", net("MatMul", "x", net.weights(16, 16))), net.weights(16, 8))
    data = samples(4, 6, 16)
    louder = {"x": data["x"] * np.where(np.arange(16) == 5, 50, 1)[:, None, None].astype(np.float32)}
    diagnosis = diagnosed(net.model(data), louder, tmp_path, ours, calibration=data)
    assert "saturating host kernels" not in [cause.cause for cause in diagnosis.causes]
