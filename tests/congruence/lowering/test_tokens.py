"""Nets that read whole numbers: the table is integer, the numbers stay what they are."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from lowered_nets import by_litert, by_onnx, by_tflm, decibels, interpreter, net
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from test_float import f, own

from anynpu.lowering.integer_file import quantize_file
from anynpu.lowering.lookups import AT_ONCE, MOST_COMPARED
from anynpu.lowering.lower import lower
from anynpu.lowering.reals import in_reals, settled
from anynpu.lowering.write import to_bytes
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.fixed import NOTHING
from anynpu.quantize.plan import QuantPlan
from anynpu.targets.vela.constraints import table as vela_table


def embedding() -> onnx.ModelProto:
    """Returns a net that looks 64-bit tokens up, masks what is padding, and mixes the rest."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["a"]),
        helper.make_node("LayerNormalization", ["a", "s"], ["b"]),
        helper.make_node("Cast", ["mask"], ["m"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["one", "m"], ["n"]),
        helper.make_node("Mul", ["n", "far"], ["o"]),
        helper.make_node("Transpose", ["b"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["b", "t"], ["c"]),
        helper.make_node("Add", ["c", "o"], ["d"]),
        helper.make_node("Softmax", ["d"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "b"], ["y"]),
    ]
    constants = {"table": f(50, 16), "s": 0.3 * np.ones(16, np.float32), "one": np.float32(1), "far": np.float32(-30)}
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, [1, 8]) for name in ("ids", "mask")]
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 16])]
    graph = helper.make_graph(nodes, "net", inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


WORDS = 300


@pytest.fixture
def look_up(tmp_path):
    """A file with a net that looks eight words up in a table of 300 and mixes the rows, and its data."""
    nodes = [
        helper.make_node("Transpose", ["ids"], ["column"]),
        helper.make_node("Gather", ["table", "column"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("Transpose", ["b"], ["y"], perm=[1, 0, 2]),
    ]
    rng = np.random.default_rng(5)
    sizes = {"table": (WORDS, 16), "w": (16, 16)}
    stored = [numpy_helper.from_array(rng.normal(0, 0.5, size).astype("f4"), name) for name, size in sizes.items()]
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 8])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 16])]
    graph = helper.make_graph(nodes, "net", inputs, outputs, stored)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "net.onnx"
    )
    words = rng.permutation(np.arange(320) % (WORDS - 20)).reshape(-1, 8)
    np.savez(tmp_path / "data.npz", ids=words)
    return tmp_path


def test_every_word_of_a_small_table_is_found_on_an_npu_without_look_ups(look_up, monkeypatch):
    """Also words that the samples do not have, at both ends of the table, in files of any type of whole numbers."""
    monkeypatch.setenv("ANYNPU_CACHE_DIR", str(look_up / "cache"))
    command = [sys.executable, "-m", "anynpu"]
    flags = ["-t", "ethos-u55-256", "--data", str(look_up / "data.npz"), "-o", str(look_up / "out"), "-q"]
    built = subprocess.run([*command, "build", "-m", str(look_up / "net.onnx"), *flags], capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr  # 100 % on the NPU
    assert "more than 10 % (most: ids" not in built.stdout
    words = np.arange(WORDS + 4).clip(0, WORDS - 1).reshape(-1, 8)
    np.save(look_up / "words.npy", words)
    given = ["-i", str(look_up / "words.npy"), "-o", str(look_up / "result.npz")]
    artifact = str(look_up / "out" / "ethos-u55-256")
    done = subprocess.run([*command, "run", artifact, *given], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    session = onnxruntime.InferenceSession(look_up / "net.onnx")
    truth = np.concatenate([session.run(None, {"ids": row[None]})[0] for row in words])
    found = np.load(look_up / "result.npz")["y"].reshape(truth.shape)
    assert decibels(truth, found) > 30
    rows, given = truth.reshape(-1, 16)[:WORDS], found.reshape(-1, 16)[:WORDS]
    nearest = ((rows[np.newaxis] - given[:, np.newaxis]) ** 2).sum(axis=2).argmin(axis=1)
    assert np.array_equal(nearest, np.arange(WORDS))


@pytest.mark.parametrize(("words", "stays"), [(MOST_COMPARED // 64, False), (MOST_COMPARED // 64 + 1, True)])
def test_a_large_table_stays_a_look_up(words, stays):
    stored = [numpy_helper.from_array(np.zeros((words, 2), np.float32), "table")]
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 64])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64, 2])]
    graph = helper.make_graph([helper.make_node("Gather", ["table", "ids"], ["y"])], "net", inputs, outputs, stored)
    lowered = lower(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
    assert (in_reals(lowered) is lowered) == stays


def test_a_table_of_many_words_is_read_in_parts(tmp_path):
    words = 3 * AT_ONCE // 32 + 5
    table = np.random.default_rng(2).normal(size=(words, 6)).astype(np.float32)
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 32])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 32, 6])]
    nodes = [helper.make_node("Gather", ["table", "ids"], ["y"])]
    graph = helper.make_graph(nodes, "net", inputs, outputs, [numpy_helper.from_array(table, "table")])
    lowered = lower(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
    rewritten = in_reals(lowered)
    assert {operator.kind for operator in rewritten.operators} <= {*vela_table("EthosU55")}
    assert rewritten.counts()["MUL"] == 4
    ids = np.random.default_rng(3).integers(0, words, (8, 32))
    floating, result = tmp_path / "f.tflite", tmp_path / "i.tflite"
    floating.write_bytes(to_bytes(rewritten))
    data = {"ids": ids.astype(np.float32)}
    truth = table[ids][:, np.newaxis]
    assert decibels(truth, by_litert(floating.read_bytes(), data)) > 90
    ranges, wide = settled(lowered, rewritten)
    plan, fixed = QuantPlan(wide_tensors=tuple(wide)), replace(NOTHING, ranges=ranges)
    quantize_file(floating, Dataset(data, None, "test"), plan, result, fixed=fixed)
    assert decibels(truth, by_litert(result.read_bytes(), data)) > 35


def test_tokens_are_looked_up_in_a_table_of_integers(tmp_path):
    model, rng = embedding(), np.random.default_rng(5)
    mask = np.ones((8, 8), np.int64)
    mask[:, 6:] = 0
    data = {"ids": rng.integers(0, 50, (8, 8)), "mask": mask}
    floating, result = tmp_path / "f.tflite", tmp_path / "i.tflite"
    floating.write_bytes(to_bytes(lower(model)))
    narrow = {name: array.astype(np.int32) for name, array in data.items()}
    figures = quantize_file(floating, Dataset(narrow, None, "test"), QuantPlan(), result)
    for path, least in ((floating, 90), (result, 20)):
        made, found = interpreter(path.read_bytes()), []
        details = {detail["name"]: detail["index"] for detail in made.get_input_details()}
        output = made.get_output_details()[0]
        for row in range(8):
            for name, array in narrow.items():
                made.set_tensor(details[name], array[row : row + 1])
            made.invoke()
            scale, point = output["quantization"]
            values = made.get_tensor(output["index"]).astype(np.float64)
            found.append((values - point) * scale if scale else values)
        assert decibels(by_onnx(model, data), np.stack(found)) > least
    assert not figures["float_operators"]


@pytest.mark.parametrize("settings", [{}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}])
def test_positions_are_counted_and_looked_up_exactly(settings):
    nodes = [
        helper.make_node("Equal", ["ids", "padding"], ["e"]),
        helper.make_node("Not", ["e"], ["n"]),
        helper.make_node("Cast", ["n"], ["m"], to=TensorProto.INT64),
        helper.make_node("CumSum", ["m", "axis"], ["p"], **settings),
        helper.make_node("GatherElements", ["row", "p"], ["kinds"], axis=1),
        helper.make_node("GatherElements", ["other", "p"], ["others"], axis=1),
        helper.make_node("Gather", ["table", "p"], ["a"]),
        helper.make_node("Unsqueeze", ["kinds", "last"], ["k"]),
        helper.make_node("Unsqueeze", ["others", "last"], ["o"]),
        helper.make_node("Add", ["a", "k"], ["b"]),
        helper.make_node("Mul", ["b", "o"], ["y"]),
    ]
    constants = {
        "padding": np.int64(0), "axis": np.int64(1), "last": np.asarray([2]), "table": f(20, 4),
        "row": np.tile(f(1, 20), (2, 1)), "other": f(2, 20),
    }  # fmt: skip
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, [2, 11])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 11, 4])]
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "net", inputs, outputs, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    ids = np.random.default_rng(2).integers(0, 4, (2, 11))
    made = interpreter(to_bytes(lower(model)))
    made.set_tensor(made.get_input_details()[0]["index"], ids.astype(np.int32))
    made.invoke()
    found = made.get_tensor(made.get_output_details()[0]["index"])
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"ids": ids})
    np.testing.assert_allclose(found, expected, rtol=1e-6)


KINDS = ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")


def positions() -> onnx.ModelProto:
    """Returns a net that counts words from the padding word as RoBERTa does, and asks each kind of question of them."""
    nodes = [
        helper.make_node("Equal", ["ids", "padding"], ["e"]),
        helper.make_node("Not", ["e"], ["n"]),
        helper.make_node("Cast", ["n"], ["m"], to=TensorProto.INT64),
        helper.make_node("CumSum", ["m", "axis"], ["c"]),
        helper.make_node("Mul", ["c", "m"], ["d"]),
        helper.make_node("Add", ["d", "padding"], ["p"]),
        helper.make_node("Gather", ["places", "p"], ["a"]),
        helper.make_node("Gather", ["words", "ids"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["h"]),
        *(helper.make_node(kind, ["ids", "five"], [kind]) for kind in KINDS),
        helper.make_node("Or", ["Less", "Greater"], ["o"]),
        helper.make_node("And", ["GreaterOrEqual", "n"], ["g"]),
        helper.make_node("Xor", ["LessOrEqual", "g"], ["x"]),
        helper.make_node("Where", ["x", "high", "low"], ["v"]),
        helper.make_node("Where", ["o", "high", "low"], ["w"]),
        helper.make_node("Add", ["v", "w"], ["s"]),
        helper.make_node("Unsqueeze", ["s", "last"], ["k"]),
        helper.make_node("Mul", ["h", "k"], ["y"]),
    ]
    constants = {
        "padding": np.int64(1), "axis": np.int64(1), "five": np.int64(5), "last": np.asarray([2]),
        "places": own(14, 4), "words": own(9, 4), "high": np.float32(0.75), "low": np.float32(-0.5),
    }  # fmt: skip
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 12])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 12, 4])]
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "net", inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_questions_about_words_are_real_numbers_where_an_npu_has_no_others(tmp_path):
    model = positions()
    lowered = lower(model)
    rewritten = in_reals(lowered)
    assert {operator.kind for operator in rewritten.operators} <= {*vela_table("EthosU55")}
    rng = np.random.default_rng(7)
    seen, unseen = rng.integers(0, 9, (400, 12)), rng.integers(0, 9, (32, 12))
    unseen[0], unseen[1] = 1, 8  # padding alone, and none of it
    floating, result = tmp_path / "f.tflite", tmp_path / "i.tflite"
    floating.write_bytes(to_bytes(rewritten))
    ranges, wide = settled(lowered, rewritten)
    plan, fixed = QuantPlan(wide_tensors=tuple(wide)), replace(NOTHING, ranges=ranges)
    data = {"ids": seen.astype(np.float32)}
    quantize_file(floating, Dataset(data, None, "test"), plan, result, fixed=fixed)
    truth, words = by_onnx(model, {"ids": unseen}), {"ids": unseen.astype(np.float32)}
    assert decibels(truth, by_litert(floating.read_bytes(), words)) > 90
    for run in (by_litert, by_tflm):
        found = run(result.read_bytes(), words)
        assert np.abs(found - truth).max() < 0.05  # a wrong answer or a wrong place is off by far more


def test_numbers_beyond_16_bits_stay_whole():
    nodes = [
        helper.make_node("Mul", ["ids", "ids"], ["s"]),
        helper.make_node("Greater", ["s", "c"], ["g"]),
        helper.make_node("Cast", ["g"], ["y"], to=TensorProto.FLOAT),
    ]
    model = net(nodes, {"ids": (1, 4)}, {"c": np.asarray(40000)})
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    del model.graph.value_info[:]
    lowered = lower(onnx.shape_inference.infer_shapes(model))
    assert in_reals(lowered) is lowered


def test_types_of_tokens_that_are_stored_are_no_lookup():
    """RoBERTa reads its types, all of them zero, at the position of each token; TFLite-Micro has no such GATHER."""
    nodes = [
        helper.make_node("GatherElements", ["types", "ids"], ["a"], axis=1),
        helper.make_node("Gather", ["by_type", "a"], ["b"]),
        helper.make_node("Gather", ["table", "ids"], ["c"]),
        helper.make_node("Add", ["b", "c"], ["y"]),
    ]
    constants = {"types": np.zeros((1, 50), np.int64), "by_type": f(2, 16), "table": f(50, 16)}
    stored = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 8])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 16])]
    graph = helper.make_graph(nodes, "net", inputs, outputs, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    lowered = lower(model)
    assert [operator.kind for operator in lowered.operators] == ["GATHER", "ADD"]
    data = {"ids": np.arange(8, dtype=np.int64)[None]}
    made = interpreter(to_bytes(lowered))
    made.set_tensor(made.get_input_details()[0]["index"], data["ids"].astype(np.int32))
    made.invoke()
    found = made.get_tensor(made.get_output_details()[0]["index"])
    assert decibels(by_onnx(model, data)[0], found) > 90


def test_choices_between_whole_numbers_and_between_truths_run_on_micro():
    nodes = [
        helper.make_node("Equal", ["x", "c"], ["t"]),
        helper.make_node("Where", ["t", "d", "x"], ["w"]),
        helper.make_node("Greater", ["x", "w"], ["u"]),
        helper.make_node("Where", ["u", "t", "b"], ["v"]),
        helper.make_node("Cast", ["v"], ["n"], to=TensorProto.INT64),
        helper.make_node("Add", ["w", "n"], ["y"]),
    ]
    constants = {"c": np.asarray([[2], [1]]), "d": np.asarray([-9, 8, 7]), "b": np.asarray([True, False, True])}
    model = net(nodes, {"x": (1, 2, 3)}, constants)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.INT64
    del model.graph.value_info[:]  # they were inferred of real numbers
    model = onnx.shape_inference.infer_shapes(model)
    data = {"x": np.random.default_rng(0).integers(0, 4, (8, 2, 3))}
    reference = ReferenceEvaluator(model)  # ONNX Runtime does not choose between truths
    truth = np.stack([reference.run(None, {"x": row[None]})[0] for row in data["x"]])
    content = to_bytes(lower(model))
    np.testing.assert_array_equal(by_tflm(content, data), truth)
    np.testing.assert_array_equal(by_litert(content, data), truth)


def test_masks_made_of_truths_are_integers(tmp_path):
    nodes = [
        helper.make_node("Less", ["x", "pad"], ["t"]),
        helper.make_node("Gather", ["table", "x"], ["a"]),
        helper.make_node("Transpose", ["a"], ["b"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["a", "b"], ["c"]),
        helper.make_node("Where", ["t", "zero", "low"], ["m"]),
        helper.make_node("Add", ["c", "m"], ["d"]),
        helper.make_node("Softmax", ["d"], ["p"], axis=-1),
        helper.make_node("Cast", ["t"], ["r"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["p", "r"], ["y"]),
    ]
    constants = {"pad": np.asarray(40), "table": 0.3 * own(50, 16), "zero": np.float32(0), "low": np.float32(-np.inf)}
    model = net(nodes, {"x": (1, 8)}, constants)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    data = {"x": np.random.default_rng(5).integers(0, 50, (8, 8))}
    data["x"][:, 0] = 1  # one word that counts
    floating, result = tmp_path / "f.tflite", tmp_path / "i.tflite"
    floating.write_bytes(to_bytes(lower(model)))
    narrow = {name: array.astype(np.int32) for name, array in data.items()}
    figures = quantize_file(floating, Dataset(narrow, None, "test"), QuantPlan(), result)
    assert not figures["float_operators"]
    truth = by_onnx(model, data)
    for found in (by_litert(result.read_bytes(), narrow), by_tflm(result.read_bytes(), narrow)):
        assert decibels(truth, found) > 30


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize("kind", ["ArgMax", "ArgMin"])
def test_the_place_of_the_largest_whole_number_is_exact(kind, size):
    """As CLIP finds the end of a text; equal numbers are common, and numbers that 24 bits do not tell apart."""
    from tflite_micro import runtime

    nodes = [
        helper.make_node(kind, ["ids"], ["at"], axis=1, keepdims=0),
        helper.make_node("Gather", ["table", "at"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, [2, size])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])]
    graph = helper.make_graph(nodes, "net", inputs, outputs, [numpy_helper.from_array(f(size, 3), "table")])
    model = onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    )
    content, rng = to_bytes(lower(model)), np.random.default_rng(size)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    micro = runtime.Interpreter.from_bytes(content, arena_size=1 << 16)
    lite = interpreter(content)
    for low, high in ((-2, 3), (2**30, 2**30 + 3), (-(2**31), 2**31)) * 4:
        ids = rng.integers(low, high, (2, size))
        wanted = session.run(None, {"ids": ids})[0]
        lite.set_tensor(lite.get_input_details()[0]["index"], ids.astype(np.int32))
        lite.invoke()
        np.testing.assert_array_equal(lite.get_tensor(lite.get_output_details()[0]["index"]), wanted)
        micro.set_input(ids.astype(np.int32), 0)
        micro.invoke()
        np.testing.assert_array_equal(micro.get_output(0), wanted)
