"""Static shapes: what the user states, what inference finds, what is refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graph_nets import parse, run, weights
from onnx import helper, numpy_helper

from anynpu.errors import ConfigError, IntegrityError, Unsupported
from anynpu.graph import shapes

CONV = "g (float[N,3,H,W] image) => (float[N,4,H2,W2] y) { y = Conv<strides=[2,2], pads=[1,1,1,1]>(image, w) }"


def conv():
    return parse(CONV, w=weights(4, 3, 3, 3))


def test_stated_shape_reaches_the_outputs():
    model = shapes.make_static(conv(), {"image": [1, 3, 32, 48]})
    assert shapes.shape_of(model.graph.input[0]) == (1, 3, 32, 48)
    assert shapes.shape_of(model.graph.output[0]) == (1, 4, 16, 24)
    assert shapes.dtype_of(model.graph.output[0]) == "float32"


def test_weights_that_are_left_out_come_back():
    """Shapes are inferred without large weights; a stored shape of any use is small."""
    body = "c = Conv<pads=[1,1,1,1]>(x, w) s = Shape<start=0, end=1>(c) t = Concat<axis=0>(s, rest) y = Reshape(c, t)"
    stored = {"w": weights(128, 32, 3, 3), "rest": np.int64([128, -1]), "unused": weights(8, 600)}
    model = parse(f"g (float[1,32,6,6] x) => (float[A,B,C] y) {{ {body} }}", **stored)
    model.metadata_props.add(key="author", value="somebody")
    model.graph.doc_string = "a net"
    inferred = shapes.infer(model)
    assert inferred == onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    assert shapes.tensor_shapes(model)["y"] == (1, 128, 36)


def test_shapes_are_read_off_the_graph_as_often_for_many_nodes_as_for_few(monkeypatch):
    reads = []
    read = shapes.static_shapes
    monkeypatch.setattr(shapes, "static_shapes", lambda graph: reads.append(1) or read(graph))
    counts = []
    for length in (2, 200):
        body = " ".join(f"t{n + 1} = Relu(t{n})" for n in range(length))
        shapes.make_static(parse(f"g (float[1,4] t0) => (float[1,4] t{length}) {{ {body} }}"))
        counts.append(len(reads))
        reads.clear()
    assert counts[0] == counts[1]


def test_the_given_model_is_not_changed():
    model = conv()
    before = model.SerializeToString()
    shapes.make_static(model, {"image": [1, 3, 32, 48]})
    assert model.SerializeToString() == before


def test_static_models_pass_unasked():
    model = shapes.make_static(conv(), {"image": [1, 3, 8, 8]})
    assert shapes.make_static(model).graph == model.graph


def test_dynamic_dimension_is_named():
    with pytest.raises(ConfigError, match=r"input 'image': dimension 0 \('N'\) is dynamic") as error:
        shapes.make_static(conv())
    assert "--shape image=1,3,224,224" in error.value.hint


@pytest.mark.parametrize(
    ("inputs", "batches"),
    [
        ("float[N,3,8,8] x", {"x": [1, 3, 8, 8]}),
        ("float[batch,4] x, float[2,batch,5] state", {"x": [1, 4], "state": [2, 1, 5]}),
        ("float[batch,time,4] x, float[batch,5] z", {"z": [1, 5]}),
        ("float[sequence_length,4] x", {}),
        ("float[num_nodes,4] x, float[4] z", {}),
        ("float[N] x", {}),
        ("float[1,3] x", {}),
    ],
)
def test_an_open_batch_is_one(inputs, batches):
    model = parse(f"g ({inputs}) => (float[N] y) {{ y = Relu(x) }}")
    assert shapes.open_batches(model) == batches
    assert shapes.open_batches(model, {"x", "z", "state"}) == {}


def test_a_first_axis_of_unknown_size_without_a_name_is_a_batch_and_a_later_one_is_not():
    model = parse("g (float[2,4] x, float[2,4] z) => (float[2,4] y) { y = Add(x, z) }")
    for value, place in zip(model.graph.input, (0, 1), strict=True):
        value.type.tensor_type.shape.dim[place].dim_value = -1
    assert shapes.open_batches(model) == {"x": [1, 4]}


def test_unnamed_and_negative_dimensions_are_dynamic():
    model = parse("g (float[2,4] x) => (float[2,4] y) { y = Relu(x) }")
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = -1
    with pytest.raises(ConfigError, match="dimension 1 is dynamic"):
        shapes.make_static(model)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ConfigError, match="'x' has no shape"):
        shapes.make_static(model)
    assert shapes.shape_of(shapes.make_static(model, {"x": (2, 4)}).graph.output[0]) == (2, 4)


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"imgae": [1, 3, 8, 8]}, "no input 'imgae'"),
        ({"image": [1, 4, 8, 8]}, "dimension 1 is fixed to 3 in the model, not 4"),
        ({"image": [3, 8, 8]}, "the model has 4 dimensions"),
        ({"image": [0, 3, 8, 8]}, "above 0"),
        ({"image": [1, 3, -1, 8]}, "above 0"),
        ({"image": [1, 3, 8, 0.5]}, "above 0"),
        ({"w": [4, 3, 3, 3]}, "no input 'w'"),
    ],
)
def test_wrong_statements(stated, message):
    with pytest.raises(ConfigError, match=message):
        shapes.make_static(conv(), stated)


def test_near_names_are_hinted():
    with pytest.raises(ConfigError) as error:
        shapes.make_static(conv(), {"imgae": [1, 3, 8, 8]})
    assert "image" in error.value.hint


def test_shape_the_network_cannot_take():
    model = parse("g (float[1,K] x) => (float[1,2] y) { y = MatMul(x, w) }", w=weights(8, 2))
    with pytest.raises(ConfigError, match="does not accept the shape x=1,9"):
        shapes.make_static(model, {"x": [1, 9]})
    assert shapes.make_static(model, {"x": [1, 8]})


def test_contradiction_in_the_file():
    model = parse("g (float[1,9] x) => (float[1,2] y) { y = MatMul(x, w) }", w=weights(8, 2))
    with pytest.raises(IntegrityError, match="contradict"):
        shapes.make_static(model)


def test_shapes_declared_behind_operators_do_not_outlive_another_batch():
    text = "g (float[10,3,8,8] image) => (float[10,4,4,4] y) { y = Conv<strides=[2,2], pads=[1,1,1,1]>(image, w) }"
    model = parse(text, w=weights(4, 3, 3, 3))
    static = shapes.make_static(model, {"image": [1, 3, 8, 8]})
    assert shapes.shape_of(static.graph.output[0]) == (1, 4, 4, 4)
    assert run(static, weights(1, 3, 8, 8))[0].shape == (1, 4, 4, 4)
    with pytest.raises(ConfigError, match="dimension 0 is fixed to 10 in the model, not 2"):
        shapes.make_static(model, {"image": [2, 3, 8, 8]})
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1  # by hand, as scripts do it
    assert shapes.shape_of(shapes.make_static(model).graph.output[0]) == (1, 4, 4, 4)


def test_a_symbol_declared_of_a_constant_does_not_count():
    model = parse(
        "g (float[1,4,6] x) => (float[N,4,6] y) { y = GatherND(x, places) }", places=np.zeros((1, 1), np.int64)
    )
    model.graph.value_info.append(helper.make_tensor_value_info("places", onnx.TensorProto.INT64, ["u0", 1]))
    assert shapes.shape_of(shapes.make_static(model).graph.output[0]) == (1, 4, 6)


def test_operators_of_other_domains_are_named():
    node = helper.make_node("TreeEnsembleClassifier", ["x"], ["label", "scores"], "trees", domain="ai.onnx.ml")
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4])
    scores = helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [x], [scores])
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("ai.onnx.ml", 1)]
    with pytest.raises(Unsupported, match=r"trees: ai\.onnx\.ml\.TreeEnsembleClassifier is not one of ONNX's own"):
        shapes.make_static(helper.make_model(graph, opset_imports=opsets))


def test_shape_arithmetic_is_settled():
    model = parse(
        """g (float[N,3,4,4] x) => (float[N,K] y) {
            s = Shape(x)
            zero = Constant<value_int=0>()
            n = Gather(s, zero)
            axes = Constant<value_ints=[0]>()
            n1 = Unsqueeze(n, axes)
            f = Cast<to=1>(n1)
            h = Mul(f, one)
            i = Cast<to=7>(h)
            rest = Constant<value_ints=[-1]>()
            target = Concat<axis=0>(i, rest)
            y = Reshape(x, target)
        }""",
        one=np.ones(1, np.float32),
    )
    static = shapes.make_static(model, {"x": [2, 3, 4, 4]})
    assert shapes.shape_of(static.graph.output[0]) == (2, 48)
    x = weights(2, 3, 4, 4)
    assert np.array_equal(run(static, x)[0], x.reshape(2, 48))


@pytest.mark.parametrize(("sizes", "wanted"), [(np.array(3), 3), (np.array([2, 4, 1]), 2)])
def test_split_sequences_become_slices(sizes, wanted):
    model = parse(
        """g (float[2,7] x) => (float[2,A] y, float[2,B] z) {
            s = SplitToSequence<axis=1>(x, sizes)
            a = SequenceAt(s, first)
            b = SequenceAt(s, second)
            c = SequenceAt(s, third)
            y = Relu(a)
            z = Concat<axis=1>(b, c)
        }""",
        sizes=sizes,
        first=np.array(0),
        second=np.array(1),
        third=np.array(2),
    )
    static = shapes.make_static(model)
    x = weights(2, 7)
    assert shapes.shape_of(static.graph.output[0]) == (2, wanted)
    for before, after in zip(run(model, x), run(static, x), strict=True):
        assert np.array_equal(before, after)


def test_data_dependent_shape_is_a_finding():
    model = parse("g (float[1,8] x) => (int64[2,K] y) { z = NonZero(x)\n y = Neg(z) }")
    model.graph.node[0].name = "find"
    with pytest.raises(Unsupported, match="depends on the data") as error:
        shapes.make_static(model)
    assert [(f.rule, f.where) for f in error.value.findings] == [("data-dependent-shape", "find")]


@pytest.mark.parametrize("opset", [7, 9, 12])
def test_the_mask_of_a_dropout_that_nobody_reads_needs_no_shape(opset):
    model = parse("g (float[1,8] x) => (float[1,8] y) { a, mask = Dropout(x)\n y = Neg(a) }")
    model.opset_import[0].version = opset
    assert shapes.shape_of(shapes.make_static(model).graph.output[0]) == (1, 8)


def test_huge_constants_are_not_materialised():
    model = parse(
        "g (float[1] x) => (float[A,B] y) { c = ConstantOfShape(dims)\n y = Add(x, c) }",
        dims=np.array([1 << 20, 1 << 20], np.int64),
    )
    static = shapes.make_static(model)
    assert shapes.shape_of(static.graph.output[0]) == (1 << 20, 1 << 20)
    assert static.ByteSize() < 10_000


def test_weights_listed_as_inputs_are_not_inputs():
    model = conv()
    model.graph.input.append(helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [4, 3, 3, 3]))
    assert [value.name for value in shapes.inputs_of(model)] == ["image"]


def test_a_spectrum_is_one_sided_unless_it_says_otherwise():
    """ONNX infers both sides where the attribute is not written down, and the product behind it contradicts that."""
    window, mel = np.hanning(16).astype(np.float32), np.ones((9, 4), np.float32)
    nodes = [
        helper.make_node("STFT", ["x", "step", "window"], ["waves"]),
        helper.make_node("ReduceSumSquare", ["waves", "last"], ["power"], keepdims=0),
        helper.make_node("MatMul", ["power", "mel"], ["y"]),
    ]
    arrays = {"step": np.asarray(8), "window": window, "last": np.asarray([-1]), "mel": mel}
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    values = [helper.make_tensor_value_info("x", 1, [1, 64]), helper.make_tensor_value_info("y", 1, ["b", "t", "m"])]
    graph = helper.make_graph(nodes, "net", values[:1], values[1:], constants)
    static = shapes.make_static(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
    assert shapes.tensor_shapes(static)["y"] == (1, 7, 4)


def test_vectors_that_broadcast_against_each_other_have_a_shape():
    """ONNX's computing with shapes takes a row and a column of whole numbers for a contradiction."""
    nodes = [helper.make_node("Add", ["row", "column"], ["table"]), helper.make_node("Gather", ["x", "table"], ["y"])]
    constants = [
        numpy_helper.from_array(np.arange(2), "row"),
        numpy_helper.from_array(np.arange(3)[:, None], "column"),
    ]
    values = [helper.make_tensor_value_info("x", 1, [8]), helper.make_tensor_value_info("y", 1, ["a", "b"])]
    graph = helper.make_graph(nodes, "net", values[:1], values[1:], constants)
    static = shapes.make_static(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
    assert shapes.tensor_shapes(static)["y"] == (3, 2)


def test_axes_from_the_end_of_an_old_opset():
    """Exporters write them before opset 11, and ONNX Runtime takes them."""
    nodes = [helper.make_node("Concat", ["a", "b"], ["c"], axis=-1), helper.make_node("Softmax", ["c"], ["y"], axis=-1)]
    inputs = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4, size]) for name, size in (("a", 3), ("b", 5))
    ]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = shapes.make_static(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=8))
    assert shapes.shape_of(model.graph.output[0]) == (1, 4, 8)


def test_a_model_whose_every_input_is_empty_is_refused():
    with pytest.raises(ConfigError, match=r"input 'x' has no elements: its shape is \[1, 0, 4\]"):
        shapes.make_static(parse("g (float[1,0,4] x) => (float[1,0,4] y) { y = Neg(x) }"))


def test_a_norm_of_groups_has_the_shape_of_what_it_reads():
    body = "".join(f"n{k} = GroupNormalization<num_groups=2>({s}, w, w)\n" for k, s in ((0, "x"), (1, "n0"), (2, "n1")))
    text = f"g (float[1,4,6,6] x) => (float[A,B,C,D] y) {{\n{body}y = Relu(n2)\n}}"
    model = parse(text, w=np.abs(weights(4)))
    model.opset_import[0].version = 21
    static = shapes.make_static(model, {})
    assert shapes.shape_of(static.graph.output[0]) == (1, 4, 6, 6)
