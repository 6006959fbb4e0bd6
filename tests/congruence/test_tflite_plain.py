"""Files with states, branches, called graphs, sparse weights: the plain graph gives what LiteRT does with the file."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from tflite_builder import Builder, schema

import anynpu
from anynpu import tool
from anynpu.errors import IntegrityError, Unsupported
from anynpu.pipeline import tflite_source
from anynpu.quantize.tflite_given import read_given
from anynpu.runtime.litert import REFERENCE, open_interpreter
from anynpu.runtime.tflite_file import operator_names, pack_model, read_model
from anynpu.source.load import ModelSource

pytest.importorskip("ai_edge_litert")

RNG = np.random.default_rng(0)


class Running:
    """A file in LiteRT, which keeps its states between the calls."""

    def __init__(self, content: bytes) -> None:
        self.interpreter = open_interpreter(content, REFERENCE)

    def __call__(self, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        for detail in self.interpreter.get_input_details():
            self.interpreter.set_tensor(detail["index"], inputs[detail["name"]])
        self.interpreter.invoke()
        return {d["name"]: self.interpreter.get_tensor(d["index"]) for d in self.interpreter.get_output_details()}


def handle(b: Builder, name: str) -> int:
    settings = {"options": "VarHandleOptions", "container": "", "sharedName": name}
    return b.operator("VAR_HANDLE", [], [b.tensor(f"{name}_handle", (), "resource", scale=None)], **settings)


def streaming(path, dtype="int8", start=-128, set_to="new"):
    """Writes a net that keeps the last two rows of what it saw, and starts with rows of one value."""
    b = Builder()
    form = {"scale": 0.05, "zero_point": -128} if dtype == "int8" else {}
    x = b.input((1, 1, 3), dtype, name="x", **form)
    b.operator("CALL_ONCE", [], [], options="CallOnceOptions", initSubgraphIndex=1)
    variable = handle(b, "rows")
    old = b.operator("READ_VARIABLE", [variable], [b.tensor("old", (1, 2, 3), dtype, **form)])
    window = b.tensor("window", (1, 3, 3), dtype, **form)
    b.operator("CONCATENATION", [old, x], [window], options="ConcatenationOptions", axis=1)
    begin, size = b.constant("begin", [0, 1, 0]), b.constant("size", [1, 2, 3])
    new = b.operator("SLICE", [window, begin, size], [b.tensor("new", (1, 2, 3), dtype, **form)])
    b.operator("ASSIGN_VARIABLE", [variable, new if set_to == "new" else old], [])
    again = b.operator("READ_VARIABLE", [variable], [b.tensor("again", (1, 2, 3), dtype, **form)])
    y = b.binary("ADD", again, x, "y", (1, 2, 3), dtype)
    first = b.graph()
    rows = first.tensor("start", (1, 2, 3), dtype, np.full((1, 2, 3), start), **form)
    first.operator("ASSIGN_VARIABLE", [handle(first, "rows"), rows], [])
    return b.write_graphs(path, [y, window], [(first, [])])


@pytest.mark.parametrize(("dtype", "start"), [("int8", -128), ("int8", 7), ("float32", 0), ("float32", 0.5)])
def test_a_state_is_an_input_and_an_output_that_the_next_run_takes(tmp_path, dtype, start):
    path = streaming(tmp_path / "m.tflite", dtype, start)
    plain = read_given(path)
    assert not {"READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE"} & {*operator_names(read_model(plain.content))}
    [state] = plain.states
    assert (state.input, state.output) == ("rows", "rows/next") and np.all(state.start == np.asarray(start, dtype))
    [note] = [note for note in plain.notes if "from one run to the next" in note]
    assert ("zeros to the first" in note) == (start in (-128, 0))
    original, stateless, carried = Running(path.read_bytes()), Running(plain.content), state.start
    for _ in range(6):
        x = (RNG.integers(-128, 128, (1, 1, 3)) if dtype == "int8" else RNG.normal(size=(1, 1, 3))).astype(dtype)
        wanted, got = original(x=x), stateless(x=x, rows=carried)
        carried = got["rows/next"]
        for name in wanted:
            np.testing.assert_array_equal(got[name], wanted[name], name)


def test_a_state_that_is_never_changed_is_an_output_too(tmp_path):
    plain = read_given(streaming(tmp_path / "m.tflite", set_to="old"))
    rows = RNG.integers(-128, 128, (1, 2, 3)).astype(np.int8)
    assert np.array_equal(Running(plain.content)(x=np.zeros((1, 1, 3), np.int8), rows=rows)["rows/next"], rows)


@pytest.fixture
def imported(tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "ask", lambda manifest: [])
    (tmp_path / "out").mkdir()
    return lambda path: tflite_source.import_and_prove(ModelSource(str(path)), str(tmp_path / "out")).manifest


def test_the_import_proves_a_stream_and_fails_where_the_state_is_lost(tmp_path, imported, monkeypatch):
    path = streaming(tmp_path / "m.tflite")
    manifest = imported(path)
    assert [spec.name for spec in manifest.inputs] == ["x", "rows"]
    assert [spec.name for spec in manifest.outputs] == ["y", "window", "rows/next"]
    forgetful = read_given(path)
    state = forgetful.states[0]
    wrong = type(state)("rows", "y", state.start, state.zero_point)
    monkeypatch.setattr(
        tflite_source, "read_given", lambda *_: type(forgetful)(**{**vars(forgetful), "states": (wrong,)})
    )
    with pytest.raises(IntegrityError, match="with its states as inputs and outputs, it differs"):
        imported(path)


def branching(path, stored=None, shapes=((2, 3), (2, 3)), flat=True):
    """Writes y = tanh(x) where the mean of x is above zero, and the maximum of x and 0 doubled otherwise."""
    b = Builder()
    x = b.input((2, 3), "float32", name="x")
    if stored is None:
        axes, zero = b.constant("axes", [0, 1]), b.tensor("zero", (), "float32", np.float32(0))
        mean = b.operator("MEAN", [x, axes], [b.tensor("mean", (), "float32")], options="ReducerOptions")
        condition = b.operator("GREATER", [mean, zero], [b.tensor("c", (), "bool", scale=None)])
    else:
        condition = b.tensor("c", (), "bool", np.asarray(stored), scale=None)
    then, other = b.graph(), b.graph()
    a = then.input((2, 3), "float32", name="a")
    positive = then.unary("TANH", a, "t", shapes[0], "float32")
    a = other.input((2, 3), "float32", name="a")
    kept = other.unary("RELU", a, "r", (2, 3), "float32")
    doubled = other.binary("ADD", kept, kept, "d", shapes[1], "float32")
    settings = {"options": "IfOptions", "thenSubgraphIndex": 1, "elseSubgraphIndex": 2}
    y, same = b.tensor("y", (2, 3), "float32"), b.tensor("same", (2, 3), "float32")
    b.operator("IF", [condition, x], [y, same], **settings)
    # the second result is what the graph was called with
    return b.write_graphs(path, [y, same], [(then, [positive, then.inputs[0]]), (other, [doubled, other.inputs[0]])])


@pytest.mark.parametrize("stored", [None, True, False])
def test_both_sides_of_a_branch_are_computed_and_one_is_chosen(tmp_path, stored, imported):
    path = branching(tmp_path / "m.tflite", stored)
    plain = read_given(path)
    kinds = operator_names(read_model(plain.content))
    assert "IF" not in kinds and ("SELECT_V2" in kinds) == (stored is None)
    original, flat = Running(path.read_bytes()), Running(plain.content)
    for shift in (-1, 1):
        x = RNG.normal(shift, 0.1, (2, 3)).astype(np.float32)
        for name, wanted in original(x=x).items():
            np.testing.assert_array_equal(flat(x=x)[name], wanted)
    imported(path)


def test_branches_of_two_shapes_stay_refused_by_name(tmp_path):
    with pytest.raises(Unsupported, match=r"y: operator IF is control flow: the shapes of its two sides differ"):
        read_given(branching(tmp_path / "m.tflite", shapes=((2, 3), (3, 3))))


def test_a_called_graph_is_part_of_the_main_one(tmp_path):
    b = Builder()
    x = b.input((2, 3), "float32", name="x")
    called = b.graph()
    a = called.input((2, 3), "float32", name="x")
    y = called.unary("TANH", a, "y", (2, 3), "float32")
    once = b.operator("STABLEHLO_COMPOSITE", [x], [b.tensor("once", (2, 3), "float32")])
    twice = b.operator("STABLEHLO_COMPOSITE", [once], [b.tensor("twice", (2, 3), "float32")])
    for op in b.operators:
        op.builtinOptions2Type = schema.BuiltinOptions2.StableHLOCompositeOptions
        op.builtinOptions2 = schema.StableHLOCompositeOptionsT()
        op.builtinOptions2.name, op.builtinOptions2.decompositionSubgraphIndex = "own.tanh", 1
    plain = read_given(b.write_graphs(tmp_path / "m.tflite", [twice], [(called, [y])]))
    assert operator_names(read_model(plain.content)) == ["TANH", "TANH"]
    x = RNG.normal(size=(2, 3)).astype(np.float32)
    np.testing.assert_allclose(Running(plain.content)(x=x)["twice"], np.tanh(np.tanh(x)), rtol=1e-6)


def test_graphs_that_call_themselves_are_refused(tmp_path):
    """Eight calls in each would be eight to the power of the depth."""
    b = Builder()
    x = b.input((2, 3), "float32", name="x")
    called = b.graph()
    a = called.input((2, 3), "float32", name="x")
    for graph, source, count in ((b, x, 1), (called, a, 8)):
        for number in range(count):
            source = graph.operator("STABLEHLO_COMPOSITE", [source], [graph.tensor(f"t{number}", (2, 3), "float32")])
        for op in graph.operators:
            op.builtinOptions2Type = schema.BuiltinOptions2.StableHLOCompositeOptions
            op.builtinOptions2 = schema.StableHLOCompositeOptionsT()
            op.builtinOptions2.name, op.builtinOptions2.decompositionSubgraphIndex = "own.loop", 1
    with pytest.raises((Unsupported, IntegrityError)):
        read_given(b.write_graphs(tmp_path / "m.tflite", [b.operators[-1].outputs[0]], [(called, [source])]))


def sparse_form(dense: np.ndarray, order: list[int], compressed: set[int], blocks: dict[int, int]):
    """Returns a tensor's sparsity as the schema has it, and the values that are stored: walked place by place."""
    sizes = [size // blocks.get(axis, 1) for axis, size in enumerate(dense.shape)] + [*blocks.values()]
    split = dense.reshape(
        [part for axis, size in enumerate(dense.shape) for part in (sizes[axis], blocks.get(axis, 1))]
    )
    outer = [2 * axis for axis in range(dense.ndim)] + [2 * axis + 1 for axis in blocks]
    whole = split.transpose(outer + [a for a in range(split.ndim) if a not in outer]).reshape(sizes)
    whole, form = whole.transpose(order), schema.SparsityParametersT()
    form.traversalOrder, form.blockMap, form.dimMetadata = order, list(blocks), []
    reached = [()]
    for level, size in enumerate(whole.shape):
        data = schema.DimensionMetadataT()
        if level in compressed:
            segments, listed, following = [0], [], []
            for place in reached:
                here = [at for at in range(size) if whole[(*place, at)].any()]
                listed += here
                following += [(*place, at) for at in here]
                segments.append(len(listed))
            data.format, reached = schema.DimensionType.SPARSE_CSR, following
            for name, values in (("arraySegments", segments), ("arrayIndices", listed)):
                table = schema.Int32VectorT()
                table.values = values
                setattr(data, name, table)
                setattr(data, f"{name}Type", schema.SparseIndexVector.Int32Vector)
        else:
            data.format, data.denseSize = schema.DimensionType.DENSE, size
            reached = [(*place, at) for place in reached for at in range(size)]
        form.dimMetadata.append(data)
    return form, np.asarray([whole[place] for place in reached], dense.dtype)


SPARSE = {
    "rows": ((4, 6), [0, 1], {1}, {}),
    "columns": ((4, 6), [1, 0], {1}, {}),
    "blocks": ((8, 8), [0, 1, 2, 3], {1}, {0: 4, 1: 2}),
    "windows": ((3, 2, 2, 4), [0, 1, 2, 3], {3}, {}),
    "two axes": ((3, 2, 2, 4), [0, 1, 2, 3], {0, 3}, {}),
}


@pytest.mark.parametrize("case", SPARSE)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_sparse_weights_are_those_that_litert_sees(tmp_path, case, dtype):
    shape, order, compressed, blocks = SPARSE[case]
    dense = (RNG.normal(size=shape) * (RNG.random(shape) < 0.3)).astype(dtype)
    form, values = sparse_form(dense, order, compressed, blocks)
    b = Builder()
    x = b.input(shape, "float32", name="x")
    weights = b.tensor("w", shape, dtype, values, scale=None)
    b.tensors[weights].sparsity = form
    whole = b.operator("DENSIFY", [weights], [b.tensor("whole", shape, dtype, scale=None)])
    if dtype == "float16":
        whole = b.operator("DEQUANTIZE", [whole], [b.tensor("real", shape, "float32")])
    b.binary("ADD", x, whole, "y", shape, "float32")
    path = b.write(tmp_path / "m.tflite")
    plain = read_given(path)
    assert operator_names(read_model(plain.content)) == ["ADD"]
    x = RNG.normal(size=shape).astype(np.float32)
    got = Running(plain.content)(x=x)["y"]
    np.testing.assert_array_equal(got, x + dense.astype(np.float32))
    if (case, dtype) not in (("columns", "float16"),):
        np.testing.assert_array_equal(got, Running(path.read_bytes())(x=x)["y"])


def test_sparse_weights_with_more_values_than_places_are_damage(tmp_path):
    form, values = sparse_form(np.ones((4, 6), np.float32), [0, 1], {1}, {})
    form.dimMetadata[1].arraySegments.values = [0, 20, 40, 60, 80]
    b = Builder()
    x = b.input((4, 6), "float32", name="x")
    weights = b.tensor("w", (4, 6), "float32", values)
    b.tensors[weights].sparsity = form
    whole = b.operator("DENSIFY", [weights], [b.tensor("whole", (4, 6), "float32")])
    b.binary("ADD", x, whole, "y", (4, 6), "float32")
    with pytest.raises(IntegrityError, match="more values than places"):
        read_given(b.write(tmp_path / "m.tflite"))


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "same"), [(8, 2, 2, 1), (8, 4, 2, 0), (7, 3, 2, 0), (6, 3, 1, 1), (5, 2, 2, 1)]
)
def test_mediapipes_transposed_convolution_is_that_of_pytorch(tmp_path, size, kernel, stride, same):
    import torch

    pad = max(0, kernel - (size - 1) % stride - 1) if same else 0
    extent = stride * (size - 1) + kernel - pad
    b = Builder()
    x = b.input((1, size, size, 3), "float32", name="x")
    w, bias = RNG.normal(size=(2, kernel, kernel, 3)), RNG.normal(size=2)
    inputs = [x, b.tensor("w", w.shape, "float32", w), b.tensor("b", (2,), "float32", bias)]
    b.operator("CUSTOM", inputs, [b.tensor("y", (1, extent, extent, 2), "float32")])
    b.codes[-1].customCode = "Convolution2DTransposeBias"
    settings = struct.pack("<3i", 1 if same else 2, stride, stride)
    b.operators[-1].customOptions = np.frombuffer(settings, np.uint8)
    plain = read_given(b.write(tmp_path / "m.tflite"))
    assert operator_names(read_model(plain.content)) == ["TRANSPOSE_CONV"] and not plain.loads and not plain.custom
    x = RNG.normal(size=(1, size, size, 3)).astype(np.float32)
    chw, filters = torch.tensor(x).permute(0, 3, 1, 2), torch.tensor(w, dtype=torch.float32).permute(3, 0, 1, 2)
    whole = torch.nn.functional.conv_transpose2d(chw, filters, torch.tensor(bias, dtype=torch.float32), stride)
    cut = whole[:, :, pad // 2 : pad // 2 + extent, pad // 2 : pad // 2 + extent].permute(0, 2, 3, 1)
    np.testing.assert_allclose(Running(plain.content)(x=x)["y"], cut.numpy(), atol=1e-5)


def test_activations_of_a_float_file_are_fused_as_those_from_onnx(tmp_path, imported):
    b = Builder()
    x = b.input((1, 4, 4, 2), "float32", name="x")
    b.unary("RELU", b.conv(x, "conv", (1, 4, 4, 2), 3, dtype="float32"), "y", (1, 4, 4, 3), "float32")
    manifest = imported(b.write(tmp_path / "m.tflite"))
    assert manifest.details["operators"] == {"CONV_2D": 1}


def test_damaged_control_flow_is_damage(tmp_path):
    model = read_model(branching(tmp_path / "m.tflite").read_bytes())
    model.subgraphs[0].operators[-1].builtinOptions.elseSubgraphIndex = 9
    path = tmp_path / "n.tflite"
    path.write_bytes(pack_model(model))
    with pytest.raises(IntegrityError):
        read_given(path)


def test_every_operator_that_tflite_micro_lacks_is_named(tmp_path):
    b = Builder()
    first = b.unary("GELU", b.input((1, 4)), "first", (1, 4))
    b.unary("GELU", b.unary("TANH", first, "tanh", (1, 4)), "second", (1, 4))
    path = b.write(tmp_path / "m.tflite")
    chip = anynpu.build(str(path), ["tflm"], data="random:8", output=str(tmp_path / "out"))["tflm"]
    assert [finding.where for finding in chip.error.findings][:2] == ["first", "second"]
    assert "GELU of int8 does not run on TFLite-Micro" in str(chip.error.findings[0])
