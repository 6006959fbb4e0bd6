import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu.errors import IntegrityError
from anynpu.measure.fidelity import compare_arrays
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.onnx_net import OnnxForm
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.qdq import model_ranges, write_qdq
from anynpu.quantize.qdq_record import float_operators
from anynpu.runtime.ort import inference_session

RNG = np.random.default_rng(5)


def weight(name, *shape, rng=RNG):
    values = rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))
    return numpy_helper.from_array(values.astype(np.float32), name)


def network(opset=17, extra=()):
    """A convolution with everything that shares ranges behind it; no node has a name."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p1", "w2"], ["c2"]),
        helper.make_node("Concat", ["p1", "c2"], ["k"], axis=1),
        helper.make_node("Transpose", ["k"], ["t"], perm=[0, 2, 3, 1]),
        helper.make_node("Flatten", ["t"], ["f"]),
        *extra,
        helper.make_node("Gemm", ["f2" if extra else "f", "w3", "b3"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
        [weight("w1", 8, 3, 3, 3), weight("b1", 8), weight("w2", 8, 8, 1, 1), weight("w3", 10, 256), weight("b3", 10)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def data(count=32):
    return Dataset({"x": RNG.normal(size=(count, 3, 8, 8)).astype(np.float32)}, None, "test")


def run(model, samples):
    session = inference_session(model.SerializeToString())
    return np.concatenate([session.run(["y"], samples[i])[0] for i in range(len(samples))])


def sqnr(model, quantised, samples):
    return compare_arrays("y", run(model, samples), run(quantised, samples)).sqnr_db


@pytest.mark.parametrize("weights", ["per-channel", "per-tensor"])
@pytest.mark.parametrize("activations", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("opset", [11, 17, 21])
def test_result_computes_what_the_model_does(opset, activations, weights):
    model, samples = network(opset), data()
    quantised = write_qdq(model, samples, QuantPlan(activations, weights))
    assert sqnr(model, quantised, samples) > 30
    types = {tensor.data_type for tensor in quantised.graph.initializer if tensor.name.endswith("zero_point")}
    assert getattr(TensorProto, activations.upper()) in types and TensorProto.INT32 in types
    assert float_operators(quantised) == []


@pytest.mark.parametrize("method", ["percentile", "mse", "entropy"])
def test_every_method_reaches_the_file(method):
    model, samples = network(), data(160)
    plain = write_qdq(model, samples, QuantPlan())
    other = write_qdq(model, samples, QuantPlan(method=method, percentile=99.0))
    assert sqnr(model, other, samples) > 20
    assert other.SerializeToString() != plain.SerializeToString()


def test_more_bits_are_better():
    model, samples = network(), data()
    figures = [sqnr(model, write_qdq(model, samples, QuantPlan(kind)), samples) for kind in ("int8", "int16")]
    assert figures[1] > figures[0] + 3


def scale(model, tensor):
    node = next(n for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == tensor)
    return next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == node.input[1])


def test_scales_are_our_ranges_and_shared_where_nothing_is_computed():
    model, samples = network(), data()
    quantised = write_qdq(model, samples, QuantPlan())
    found = model_ranges(OnnxForm(onnx.shape_inference.infer_shapes(model)), samples, QuantPlan()).ranges
    low, high = float(samples.inputs["x"].min()), float(samples.inputs["x"].max())
    assert (found["x"].min, found["x"].max) == (low, high)
    assert scale(quantised, "x") == pytest.approx((high - low) / 255, rel=1e-5)
    assert scale(quantised, "p1") == pytest.approx(scale(quantised, "r1"), rel=1e-6)
    assert scale(quantised, "t") == pytest.approx(scale(quantised, "k"), rel=1e-6)


def test_same_inputs_give_the_same_bytes_and_leave_the_model_alone():
    model, samples = network(), data()
    before = model.SerializeToString()
    first, second = (write_qdq(model, samples, QuantPlan()) for _ in range(2))
    assert first.SerializeToString() == second.SerializeToString()
    assert model.SerializeToString() == before


def test_float_islands_are_named():
    model = network(extra=[helper.make_node("Softplus", ["f"], ["f2"])])
    quantised = write_qdq(model, data(), QuantPlan())
    assert [entry["operator"] for entry in float_operators(quantised)] == ["Softplus"]


def test_float_plan_changes_nothing():
    model, samples = network(), data(2)
    same = write_qdq(model, samples, QuantPlan("float32"))
    assert sqnr(model, same, samples) > 150
    assert not any(node.op_type == "QuantizeLinear" for node in same.graph.node)


def test_progress_is_reported():
    seen = []
    write_qdq(network(), data(3), QuantPlan(method="mse"), lambda done, total: seen.append((done, total)))
    assert seen == [(i + 1, 6) for i in range(6)]


def test_broken_model_is_one_sentence():
    model = network()
    model.graph.initializer.pop()
    with pytest.raises(IntegrityError, match="ONNX Runtime refuses the model"):
        write_qdq(model, data(2), QuantPlan())


def test_bias_correction_takes_the_mean_error_back():
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c"], group=2),
        helper.make_node("Flatten", ["c"], ["f"]),
        helper.make_node("Gemm", ["f", "w2", "b2"], ["y"]),
    ]
    weights = [weight("w1", 8, 2, 3, 3), weight("b1", 8), weight("w2", 288, 10), weight("b2", 10)]
    taken = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 8, 8])]
    given = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])]
    graph = helper.make_graph(nodes, "net", taken, given, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    samples = Dataset({"x": RNG.uniform(1, 2, size=(64, 4, 8, 8)).astype(np.float32)}, None, "test")
    expected = run(model, samples)
    plans = [QuantPlan("int16", weights="per-tensor", bias_correction=on) for on in (False, True)]
    shifts = [np.abs((run(write_qdq(model, samples, p), samples) - expected).mean(axis=0)).mean() for p in plans]
    assert shifts[1] < shifts[0] / 10


def test_constant_nodes_are_weights_too():
    added = helper.make_node("Constant", [], ["k1"], value=weight("", 1, 256))
    scalar = helper.make_node("Constant", [], ["k2"], value_float=0.5)
    sums = [helper.make_node("Add", ["f", "k1"], ["f1"]), helper.make_node("Mul", ["f1", "k2"], ["f2"])]
    model, samples = network(extra=[added, scalar, *sums]), data()
    assert sqnr(model, write_qdq(model, samples, QuantPlan()), samples) > 30


def test_a_rectifier_that_gives_only_zeros_still_does():
    """onnxruntime's quantiser drops a rectifier whose range has the lowest code at zero; a range of zeros has not."""
    model = network()
    low = next(tensor for tensor in model.graph.initializer if tensor.name == "b1")
    low.CopyFrom(numpy_helper.from_array(np.full(8, -1e3, np.float32), "b1"))
    samples = data(8)
    expected, got = run(model, samples), run(write_qdq(model, samples, QuantPlan()), samples)
    assert np.abs(expected - got).max() < 0.05


def test_a_stored_matrix_that_stands_first_has_one_scale():
    """A learnt query: onnxruntime's kernels refuse one with a scale for each channel there."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["query", "x"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 2, 8])],
        [weight("query", 1, 3, 2, 8)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    samples = data()
    assert sqnr(model, write_qdq(model, samples, QuantPlan()), samples) > 30


@pytest.mark.parametrize("matrices", [1, 3])
def test_stored_matrices_of_a_batch_have_one_scale(matrices):
    """ONNX Runtime refuses others; a relative attention has one such matrix for all its heads."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 4, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 4, 9])],
        [weight("w", matrices, 16, 9)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    samples = Dataset({"x": RNG.normal(size=(16, 3, 4, 16)).astype(np.float32)}, None, "test")
    assert sqnr(model, write_qdq(model, samples, QuantPlan()), samples) > 30


def test_a_magnitude_is_computed_whole():
    """The squares of a spectrum span twice the bits: rounded one by one they leave a quiet bin nothing."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Split", ["c"], ["real", "imaginary"], axis=1, num_outputs=2),
        helper.make_node("Pow", ["real", "two"], ["a"]),
        helper.make_node("Mul", ["imaginary", "imaginary"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["s"]),
        helper.make_node("Sqrt", ["s"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 8, 8])],
        [weight("w", 8, 3, 1, 1), numpy_helper.from_array(np.float32(2.0), "two")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    samples = data()
    assert sqnr(model, write_qdq(model, samples, QuantPlan()), samples) > 32


@pytest.mark.parametrize("shape", [(1, 4), (), (1,), (1, 1)])
def test_a_bias_of_any_shape_that_is_broadcast(shape):
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("Gemm", ["f", "w", "b"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [weight("w", 192, 4), numpy_helper.from_array(np.ones(shape, np.float32), "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    samples = data()
    assert sqnr(model, write_qdq(model, samples, QuantPlan()), samples) > 30


def test_weights_of_a_convolution_along_one_axis_are_fitted_too():
    rng = np.random.default_rng(1)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], kernel_shape=[5], pads=[2, 2], strides=[2]),
        helper.make_node("Conv", ["c", "v", "d"], ["y"], auto_pad="SAME_UPPER"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 40])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 6, 20])],
        [weight(name, *shape, rng=rng) for name, *shape in (("w", 8, 4, 5), ("b", 8), ("v", 6, 8, 1), ("d", 6))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    loud = np.cumsum(rng.normal(size=(32, 4, 40)), axis=-1).astype(np.float32)
    samples = Dataset({"x": loud}, None, "test")
    plans = [QuantPlan(rounding=each, weight_bits=4, activations="int16") for each in ("nearest", "fitted")]
    nearest, fitted = (
        sqnr(model, write_qdq(model, samples, plan), [samples.sample(i) for i in range(32)]) for plan in plans
    )
    assert fitted > nearest + 1


@pytest.mark.parametrize(("activations", "stated"), [("int8", 20), ("int16", 25)])
def test_the_opset_is_one_in_which_the_zero_point_alone_says_the_type(activations, stated):
    """From 21 on, ONNX Runtime refuses some models whose quantisation it moves itself."""
    quantised = write_qdq(network(25), data(), QuantPlan(activations))
    assert [entry.version for entry in quantised.opset_import if not entry.domain] == [stated]


@pytest.mark.parametrize("plan", [QuantPlan(), QuantPlan(weights="per-tensor")])
def test_a_grouped_transposed_convolution_has_one_scale(plan):
    """Its weights have the channels of one group along their second axis, and its bias those of all."""
    graph = helper.make_graph(
        [helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], group=2)],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [weight("w", 4, 3, 2, 2), weight("b", 6)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = onnx.shape_inference.infer_shapes(made)
    samples = Dataset({"x": RNG.normal(size=(32, 4, 8, 8)).astype(np.float32)}, None, "test")
    assert sqnr(model, write_qdq(model, samples, plan), samples) > 30
