"""Reading ONNX files that nobody vouches for."""

from __future__ import annotations

import io
import os
import random
import time
import zipfile

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu.errors import AnyNpuError, ConfigError, IntegrityError
from anynpu.source import onnx_file


def conv_model(weight=None, opset=17):
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(4, 3, 3, 3)).astype(np.float32) if weight is None else weight
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 8, 8])],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.zeros(4, np.float32), "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    return model


def saved(tmp_path, model):
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_reads_a_good_file(tmp_path):
    model = conv_model()
    assert onnx_file.read(saved(tmp_path, model)).SerializeToString() == model.SerializeToString()


def test_a_graph_without_a_name_gets_one(tmp_path):
    model = conv_model()
    model.graph.ClearField("name")
    path = saved(tmp_path, model)
    onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])  # it runs there
    read = onnx_file.read(path)
    assert read.graph.name and read.graph.node == model.graph.node


def test_nodes_in_any_order_are_sorted(tmp_path):
    model = conv_model()
    sorted_nodes = list(model.graph.node)
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in reversed(sorted_nodes)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    path = saved(tmp_path, model)
    onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])  # it runs there
    assert [node.op_type for node in onnx_file.read(path).graph.node] == ["Conv", "Relu"]


def test_nodes_that_wait_for_each_other_are_refused(tmp_path):
    model = conv_model()
    model.graph.node[0].input[0] = "y"
    with pytest.raises(IntegrityError, match="sorted"):
        onnx_file.read(saved(tmp_path, model))


def test_a_result_whose_shape_is_left_open_is_read(tmp_path):
    model = conv_model()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    path = saved(tmp_path, model)
    onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])  # it runs there
    assert onnx_file.read(path).graph.output[0].type == conv_model().graph.output[0].type


def test_missing_file_names_the_others(tmp_path):
    saved(tmp_path, conv_model())
    with pytest.raises(ConfigError, match="no such file") as error:
        onnx_file.read(tmp_path / "nets.onnx")
    assert "net.onnx" in error.value.hint


def test_folder(tmp_path):
    with pytest.raises(ConfigError, match="is a folder"):
        onnx_file.read(tmp_path)


def test_pipe_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(ConfigError, match="not a regular file"):
        onnx_file.read(tmp_path / "pipe.onnx")


def test_no_permission(tmp_path, monkeypatch):
    path = saved(tmp_path, conv_model())

    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "read_bytes", refuse)
    with pytest.raises(ConfigError, match="Permission denied"):
        onnx_file.read(path)


def test_too_large(tmp_path):
    path = tmp_path / "big.onnx"
    with path.open("wb") as stream:
        stream.truncate(2**31)
    with pytest.raises(IntegrityError, match="2 GiB"):
        onnx_file.read(path)


def zipped(name):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, b"x")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "git-lfs pointer"),
        (b"hello, this is text\n" * 60, "looks like text"),
        ("grüße\n".encode() * 200, "looks like text"),
        (b"<!DOCTYPE html><html>404</html>", "HTML page"),
        (zipped("a.txt"), "zip archive"),
        (zipped("archive/data.pkl"), "PyTorch checkpoint"),
        (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", "PyTorch checkpoint"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "PNG"),
        (b"\x1c\0\0\0TFL3" + bytes(40), "TensorFlow Lite"),
        ((20).to_bytes(8, "little") + b'{"a": 1}            ' + bytes(8), "safetensors"),
        (bytes(100), "not a whole ONNX model"),
        (bytes(range(256)), "not a whole ONNX model"),
    ],
)
def test_other_kinds_are_named(tmp_path, data, words):
    path = tmp_path / "net.onnx"
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match=words) as error:
        onnx_file.read(path)
    assert error.value.hint


def test_git_lfs_hint(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(IntegrityError) as error:
        onnx_file.read(path)
    assert "git lfs pull" in error.value.hint


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "Inf"), (-np.inf, "Inf")])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_weights_that_are_not_finite(tmp_path, value, word, dtype):
    weight = np.ones((4, 3, 3, 3), dtype)
    weight[1, 2, 0, 1] = value
    with pytest.raises(IntegrityError, match=rf"'w': holds {word}"):
        onnx_file.read(saved(tmp_path, conv_model(weight)))


MINUS = np.float32(-np.inf)


@pytest.mark.parametrize("mask", [MINUS, [MINUS], [0, MINUS, 0, 0], np.where(np.tri(4), 0, MINUS), [[MINUS] * 4]])
def test_attention_masks_may_hold_minus_infinity(tmp_path, mask):
    graph = onnx.parser.parse_graph("g (float[4,4] x) => (float[4,4] y) { y = Add(x, mask) }")
    graph.initializer.append(numpy_helper.from_array(np.asarray(mask, np.float32), "mask"))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert len(onnx_file.read(saved(tmp_path, model)).graph.initializer) == 1


def test_nan_in_a_constant_node_is_named(tmp_path):
    model = conv_model()
    bad = numpy_helper.from_array(np.array([[np.nan, 1.0]], np.float32))
    model.graph.node.insert(0, helper.make_node("Constant", [], ["k"], value=bad))
    with pytest.raises(IntegrityError, match="'k': holds NaN"):
        onnx_file.read(saved(tmp_path, model))


@pytest.mark.parametrize("change", ["short", "long", "negative", "typed"])
def test_tensor_bytes_must_fit_the_dimensions(tmp_path, change):
    model = conv_model()
    tensor = model.graph.initializer[0]
    if change == "short":
        tensor.raw_data = tensor.raw_data[:-1]
    elif change == "long":
        tensor.raw_data += b"\0\0\0\0"
    elif change == "negative":
        tensor.dims[0] = -4
    else:
        tensor.ClearField("raw_data")
        tensor.float_data.extend([1.0] * 107)
    with pytest.raises(IntegrityError, match="'w'"):
        onnx_file.read(saved(tmp_path, model))


@pytest.mark.parametrize("part", ["node", "output", "opset", "producer", "dangling"])
def test_graphs_that_are_not_whole(tmp_path, part):
    model = conv_model()
    if part == "node":
        del model.graph.node[:]
    elif part == "output":
        del model.graph.output[:]
    elif part == "opset":
        del model.opset_import[:]
    elif part == "producer":
        model.graph.output[0].name = "z"
    else:
        del model.graph.initializer[:]
    with pytest.raises(IntegrityError):
        onnx_file.read(saved(tmp_path, model))


def test_opset_from_the_future(tmp_path):
    model = conv_model()
    model.opset_import[0].version = onnx.defs.onnx_opset_version() + 1
    with pytest.raises(ConfigError, match="newer than this onnx") as error:
        onnx_file.read(saved(tmp_path, model))
    assert "opset" in error.value.hint


def external(tmp_path, location="weights.bin"):
    model = conv_model()
    onnx.save_model(
        model,
        str(tmp_path / "net.onnx"),
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location="weights.bin",
        size_threshold=0,
    )
    if location != "weights.bin":
        raw = onnx.load(str(tmp_path / "net.onnx"), load_external_data=False)
        for tensor in raw.graph.initializer:
            next(e for e in tensor.external_data if e.key == "location").value = location
        saved(tmp_path, raw)
    return tmp_path / "net.onnx"


def test_external_data_is_loaded(tmp_path):
    model = onnx_file.read(external(tmp_path))
    (tmp_path / "weights.bin").unlink()
    wanted = numpy_helper.to_array(conv_model().graph.initializer[0])
    assert np.array_equal(numpy_helper.to_array(model.graph.initializer[0]), wanted)
    assert not any(t.external_data or t.data_location for t in model.graph.initializer)


def test_external_data_missing(tmp_path):
    path = external(tmp_path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(IntegrityError, match=r"'weights.bin' is missing"):
        onnx_file.read(path)


def test_external_data_truncated(tmp_path):
    path = external(tmp_path)
    data = (tmp_path / "weights.bin").read_bytes()
    (tmp_path / "weights.bin").write_bytes(data[:-3])
    with pytest.raises(IntegrityError, match="external data gives"):
        onnx_file.read(path)


@pytest.mark.parametrize("location", ["../secret.bin", "sub/../../secret.bin", "/etc/hostname", "sub/../weights.bin"])
def test_external_data_outside_the_folder(tmp_path, location):
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "secret.bin").write_bytes(bytes(4096))
    with pytest.raises(IntegrityError, match="outside the model's folder"):
        onnx_file.read(external(folder, location))


def test_external_data_through_a_link(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    path = external(folder)
    (folder / "weights.bin").rename(tmp_path / "secret.bin")
    (folder / "weights.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(IntegrityError, match="outside the model's folder"):
        onnx_file.read(path)


def test_truncation_anywhere_is_found(tmp_path):
    data = conv_model().SerializeToString()
    path = tmp_path / "net.onnx"
    start = time.process_time()
    for size in sorted({round(i * (len(data) - 1) / 219) for i in range(220)}):
        path.write_bytes(data[:size])
        with pytest.raises(IntegrityError):
            onnx_file.read(path)
    assert time.process_time() - start < 200


def test_flipped_bytes_never_escape(tmp_path):
    data = conv_model().SerializeToString()
    path = tmp_path / "net.onnx"
    rng = random.Random(1)
    start = time.process_time()
    refused = 0
    for _ in range(800):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            # weights fill most of the file; half of the flips go to the structure before and after them
            place = rng.choice([rng.randrange(len(data)), rng.randrange(150), len(data) - 1 - rng.randrange(150)])
            damaged[place] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            assert onnx_file.read(path).graph.node
        except AnyNpuError:
            refused += 1
    assert refused > 100
    assert time.process_time() - start < 300


def test_an_output_without_a_shape_gets_the_inferred_one(tmp_path):
    model = conv_model()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    shape = onnx_file.read(saved(tmp_path, model)).graph.output[0].type.tensor_type.shape
    assert [dim.dim_value for dim in shape.dim] == [1, 4, 8, 8]


def test_a_norm_of_groups_as_opset_18_has_it_is_read(tmp_path):
    """onnx calls it deprecated and refuses such files; ONNX Runtime runs them."""
    draw = np.random.default_rng(0)
    stored = {name: draw.normal(size=2).astype(np.float32) for name in "sb"}
    node = helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2, epsilon=0.01)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 6, 5, 4]) for name in "xy"]
    weights = [numpy_helper.from_array(values, name) for name, values in stored.items()]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    path, x = saved(tmp_path, model), draw.normal(size=(1, 6, 5, 4)).astype(np.float32)
    files = (path.read_bytes(), onnx_file.read(path).SerializeToString())
    before, after = (onnxruntime.InferenceSession(each).run(None, {"x": x})[0] for each in files)
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)
