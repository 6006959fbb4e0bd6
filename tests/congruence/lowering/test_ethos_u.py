"""What an Ethos-U does not compute, written in operators that it does: equal in floating point, whole on the NPU."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiled import compare, compile_model
from lowered_nets import by_litert, by_onnx, by_tflm, decibels, interpreter, net, one, quantised, samples
from onnx import helper

from anynpu.lowering.ethos_u import for_ethos_u
from anynpu.lowering.integer_file import quantize_file
from anynpu.lowering.lower import lower
from anynpu.lowering.options import Conv2D
from anynpu.lowering.read import from_bytes
from anynpu.lowering.reals import in_reals, settled
from anynpu.lowering.write import to_bytes
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.fixed import NOTHING
from anynpu.quantize.plan import QuantPlan
from anynpu.runtime.ethos_u.difference import _outputs
from anynpu.runtime.ethos_u.model import read_model
from anynpu.runtime.ethos_u.twin import Twin
from anynpu.targets.tflite import for_npu
from anynpu.targets.vela.constraints import table

RNG = np.random.default_rng(5)
IMAGE = (1, 6, 8, 8)


def resize(mode: str, where: str, height: int, width: int) -> onnx.ModelProto:
    node = helper.make_node(
        "Resize", ["x", "", "", "size"], ["y"], mode=mode, coordinate_transformation_mode=where, nearest_mode="floor"
    )
    return net([node], {"x": IMAGE}, {"size": np.asarray([1, 6, height, width], np.int64)})


def gather(numbers: list[int], axis: int) -> onnx.ModelProto:
    return one("Gather", IMAGE, {"numbers": np.asarray(numbers, np.int64)}, axis=axis)


def rows(count: int, width: int) -> np.ndarray:
    """The places of the elements of rows in disorder."""
    return (np.random.default_rng(1).permutation(count)[:, np.newaxis] * width + np.arange(width)).reshape(-1)


def cut(shape: tuple[int, ...], start: int, end: int, axis: int, step: int) -> onnx.ModelProto:
    bounds = {name: np.asarray([n]) for name, n in (("start", start), ("end", end), ("axis", axis), ("step", step))}
    return one("Slice", shape, bounds)


def conv(kernel: int, stride: int, pads: list[int], size: int = 16) -> onnx.ModelProto:
    weights = RNG.normal(0, 0.2, (5, 3, kernel, kernel)).astype(np.float32)
    return one("Conv", (1, 3, size, size), {"w": weights}, strides=[stride, stride], pads=pads)


def sqrt() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["a"]),
        helper.make_node("ReduceMean", ["a", "axes"], ["b"], keepdims=1),
        helper.make_node("Sqrt", ["b"], ["y"]),
    ]
    return net(nodes, {"x": IMAGE}, {"axes": np.asarray([2])})


def mean(axes: list[int]) -> onnx.ModelProto:
    return one("ReduceMean", (1, 4, 9, 6), {"axes": np.asarray(axes, np.int64)}, keepdims=1)


def mean_of_batches() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["a"]),
        helper.make_node("ReduceMean", ["a", "axes"], ["y"], keepdims=1),
    ]
    return net(nodes, {"x": (1, 2 * 5 * 6 * 4)}, {"shape": np.asarray((2, 5, 6, 4)), "axes": np.asarray([0])})


def mean_of_large_images() -> onnx.ModelProto:
    """Two images, each with 4,096 pixels or more: U55 has no axis as long as that."""
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["a"]),
        helper.make_node("Conv", ["a", "w"], ["b"]),
        helper.make_node("ReduceMean", ["b", "axes"], ["y"], keepdims=0),
    ]
    weights = RNG.normal(0.1, 0.2, (4, 1, 1, 1)).astype(np.float32)
    constants = {"shape": np.asarray((2, 1, 64, 65)), "w": weights, "axes": np.asarray([2, 3])}
    return net(nodes, {"x": (1, 2 * 64 * 65)}, constants)


def mean_of_many_channels() -> onnx.ModelProto:
    """Halves of an image that are added: 73,728 numbers each, more than an axis may have."""
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["a"]),
        helper.make_node("ReduceMean", ["a", "axes"], ["y"], keepdims=0),
    ]
    return net(nodes, {"x": (1, 2 * 73728)}, {"shape": np.asarray((1, 2, 48, 24, 64)), "axes": np.asarray([1])})


def norm(shape: tuple[int, ...]) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["a"]),
        helper.make_node("LayerNormalization", ["a", "scale", "bias"], ["y"], axis=-1),
    ]
    factors = {name: np.ones(shape[-1], np.float32) for name in ("scale", "bias")}
    return net(nodes, {"x": (1, int(np.prod(shape)))}, {"shape": np.asarray(shape), **factors})


def expand(shape: list[int], target: list[int]) -> onnx.ModelProto:
    nodes = [
        helper.make_node("ReduceMean", ["x", "axes"], ["a"]),
        helper.make_node("Reshape", ["a", "shape"], ["b"]),
        helper.make_node("Expand", ["b", "target"], ["y"]),
    ]
    constants = {"axes": np.asarray([2, 3]), "shape": np.asarray(shape), "target": np.asarray(target)}
    return net(nodes, {"x": IMAGE}, constants)


NETS = {
    "bilinear by three": resize("linear", "half_pixel", 24, 24),
    "bilinear by eight": resize("linear", "half_pixel", 64, 64),
    "bilinear, corners aligned": resize("linear", "align_corners", 11, 19),
    "bilinear, smaller": resize("linear", "asymmetric", 5, 6),
    "nearest by three": resize("nearest", "asymmetric", 24, 8),
    "nearest, smaller": resize("nearest", "asymmetric", 3, 5),
    "depth to space": one("DepthToSpace", (1, 8, 4, 4), blocksize=2),
    "depth to space, columns first": one("DepthToSpace", (1, 12, 4, 4), blocksize=2, mode="CRD"),
    "space to depth": one("SpaceToDepth", IMAGE, blocksize=2),
    "square root": sqrt(),
    "mean of several images": mean([2]),
    "mean of the images of a batch": mean_of_batches(),
    "mean of large images": mean_of_large_images(),
    "mean of many channels": mean_of_many_channels(),
    "mean of channels between others": mean([1, 3]),
    "norm of channels of several rows": norm((4, 9, 24)),
    "shuffle": gather([0, 2, 4, 1, 3, 5], 1),
    "some": gather([7, 0, 1, 5], 2),
    "many, in disorder": gather([int(n) for n in np.random.default_rng(1).integers(0, 8, 23)], 3),
    "patches": conv(4, 4, [0, 0, 0, 0]),
    "patches that overlap": conv(7, 4, [3, 3, 3, 3]),
    "patches with a rest": conv(4, 5, [0, 0, 0, 0], 18),
    "steps that differ": one(
        "Conv", (1, 3, 16, 16), {"w": RNG.normal(0, 0.2, (5, 3, 3, 5)).astype(np.float32)}, strides=[1, 4]
    ),
    "whole rows, in disorder": one("Gather", (1, 384), {"numbers": rows(32, 12)}, axis=1),
    "patches of one channel": one(
        "Conv", (1, 1, 64), {"w": RNG.normal(0, 0.2, (1, 1, 10)).astype(np.float32)}, strides=[8], pads=[1, 3]
    ),
    "patches of each channel": one(
        "Conv", (1, 3, 16, 16), {"w": RNG.normal(0, 0.2, (6, 1, 4, 4)).astype(np.float32)}, strides=[4, 4], group=3
    ),
    "a pixel over an image": expand([1, 1, 1, 6], [1, 20, 3, 6]),
    "rows over columns": expand([1, 6, 1, 1], [1, 6, 1, 30]),
    "reflected channels": one("Pad", (1, 5, 20), {"pads": np.asarray([0, 0, 3, 0, 0, 4])}, mode="reflect"),
    "reflected sound": one("Pad", (1, 300), {"pads": np.asarray([0, 40, 0, 40])}, mode="reflect"),
    "every other channel": cut((1, 6, 4, 16), 1, 16, 3, 2),
    "every third of a row": cut((1, 40), 2, 40, 1, 3),
    "backwards": cut((1, 7, 12), 11, -100, 2, -1),
    "rows over a few columns": expand([1, 6, 1, 1], [1, 6, 3, 4]),
}


@pytest.fixture(scope="module", params=[*NETS])
def rewritten(request, tmp_path_factory):
    """A net, and its float file as a U55 has it."""
    model, folder = NETS[request.param], tmp_path_factory.mktemp("net")
    floating = folder / "float.tflite"
    floating.write_bytes(to_bytes(lower(model)))
    return model, for_npu(floating, "ethos-u55-256")


def test_the_float_file_computes_the_same(rewritten):
    model, content = rewritten
    assert content is not None
    data = samples(model)
    assert decibels(by_onnx(model, data), by_litert(content, data)) > 90
    operators = from_bytes(content).operators
    assert not {operator.kind for operator in operators} - {*table("EthosU55")}
    windows = [operator.options for operator in operators if isinstance(operator.options, Conv2D)]
    assert all(max(each.stride_h, each.stride_w) <= 3 for each in windows)


def test_a_choice_too_large_for_a_matrix_stays():
    for numbers, kinds in ((rows(4096, 1), {"GATHER"}), (rows(64, 64), {"RESHAPE", "TRANSPOSE", "FULLY_CONNECTED"})):
        graph = for_ethos_u(lower(one("Gather", (1, 4096), {"numbers": numbers}, axis=1)), lambda *_: True, 3)
        assert {operator.kind for operator in graph.operators} <= kinds


def test_integers_keep_it(rewritten, tmp_path):
    model, content = rewritten
    floating, result, data = tmp_path / "float.tflite", tmp_path / "integers.tflite", samples(model)
    floating.write_bytes(content)
    quantize_file(floating, Dataset(data, None, "test"), QuantPlan(), result)
    assert decibels(by_onnx(model, data), by_litert(result.read_bytes(), data)) > 30


def test_what_the_npu_has_stays(tmp_path):
    for name, model in {
        "by two": resize("linear", "half_pixel", 16, 16),
        "nearest by four": resize("nearest", "asymmetric", 32, 32),
        "rows": mean([3]),
        "image": mean([2, 3]),
        "steps of three": conv(3, 3, [0, 0, 0, 0]),
    }.items():
        floating = tmp_path / f"{name}.tflite"
        floating.write_bytes(to_bytes(lower(model)))
        assert for_npu(floating, "ethos-u55-256") is None, name


def test_a_larger_npu_keeps_more(tmp_path):
    whole = resize("nearest", "asymmetric", 24, 40)
    for model in (resize("linear", "half_pixel", 64, 64), conv(4, 4, [0, 0, 0, 0]), whole):
        floating = tmp_path / "float.tflite"
        floating.write_bytes(to_bytes(lower(model)))
        assert for_npu(floating, "ethos-u85-256") is None


def test_vela_leaves_nothing_to_the_cpu(tmp_path):
    """All the nets in one, each with a result of its own."""
    nodes, inputs, constants, outputs, data = [], {}, {}, [], {}
    for number, model in enumerate(NETS.values()):
        prefixed = onnx.compose.add_prefix(model, f"n{number}_")
        nodes += prefixed.graph.node
        constants |= {t.name: onnx.numpy_helper.to_array(t) for t in prefixed.graph.initializer}
        for value in prefixed.graph.input:
            inputs[value.name] = [d.dim_value for d in value.type.tensor_type.shape.dim]
        outputs.append(f"n{number}_y")
        data |= {f"n{number}_{key}": array for key, array in samples(model).items()}
    whole = net(nodes, inputs, constants, outputs)
    floating, other, result = (tmp_path / f"{name}.tflite" for name in ("float", "other", "integers"))
    floating.write_bytes(to_bytes(lower(whole)))
    other.write_bytes(for_npu(floating, "ethos-u55-256"))
    quantize_file(other, Dataset(data, None, "test"), QuantPlan(), result)
    command = [sys.executable, "-c", "from ethosu.vela.vela import main; main()", str(result)]
    command += ["--accelerator-config", "ethos-u55-256", "--output-dir", str(tmp_path / "out")]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert re.search(r"CPU operators = 0 ", compiled.stdout), compiled.stdout + compiled.stderr


def resized_and_joined() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], strides=[2, 2]),
        helper.make_node("Resize", ["a", "", "", "size"], ["b"], mode="linear", nearest_mode="floor"),
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Concat", ["c", "b"], ["y"], axis=1),
    ]
    weights = RNG.normal(0, 0.2, (5, 6, 1, 1)).astype(np.float32)
    return net(nodes, {"x": IMAGE}, {"size": np.asarray([1, 5, 8, 8], np.int64), "w": weights})


def spatial_attention() -> onnx.ModelProto:
    nodes = [
        helper.make_node("ReduceMax", ["x", "axes"], ["a"]),
        helper.make_node("ReduceMean", ["x", "axes"], ["b"]),
        helper.make_node("Concat", ["a", "b"], ["c"], axis=1),
        helper.make_node("Conv", ["c", "w"], ["y"], pads=[3, 3, 3, 3]),
    ]
    return net(nodes, {"x": IMAGE}, {"axes": np.asarray([1]), "w": RNG.normal(0, 0.2, (1, 2, 7, 7)).astype(np.float32)})


def smallest_channel() -> onnx.ModelProto:
    """The smallest channel of each pixel, in the shape that pixels have with their channels first."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("ReduceMin", ["a", "axes"], ["y"]),
    ]
    weights = RNG.normal(0, 0.2, (5, 6, 3, 3)).astype(np.float32)
    return net(nodes, {"x": IMAGE}, {"w": weights, "axes": np.asarray([1])})


def frames() -> onnx.ModelProto:
    weights = {"w": RNG.normal(0, 0.2, (4, 3, 3, 3, 3)).astype(np.float32)}
    return one("Conv", (1, 3, 6, 8, 8), weights, pads=[1] * 6)


def every_other_row() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["b"], pads=[1, 1, 1, 1]),
        helper.make_node("Slice", ["b", "begin", "end", "axes", "steps"], ["c"]),
        helper.make_node("Conv", ["c", "w"], ["y"], pads=[1, 1, 1, 1]),
    ]
    bounds = {name: np.asarray([n, n]) for name, n in (("begin", 0), ("end", 8), ("steps", 2))}
    weights = RNG.normal(0, 0.2, (6, 6, 3, 3)).astype(np.float32)
    return net(nodes, {"x": IMAGE}, {**bounds, "axes": np.asarray([2, 3]), "w": weights})


def transposed_and_joined() -> onnx.ModelProto:
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w"], ["a"], strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Concat", ["b", "a"], ["y"], axis=2),
    ]
    return net(nodes, {"x": IMAGE}, {"w": RNG.normal(0, 0.2, (6, 5, 2, 2)).astype(np.float32)})


def sine_between_convolutions() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[3, 3]),
        helper.make_node("Sin", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "v"], ["y"], pads=[3, 3]),
    ]
    weights = {name: RNG.normal(0, 0.3, (8, n, 7)).astype(np.float32) for name, n in (("w", 1), ("v", 8))}
    return net(nodes, {"x": (1, 1, 400)}, weights)


def differences() -> onnx.ModelProto:
    """Every scaled point less every other, and the scaled points once more as one row."""
    nodes = [
        helper.make_node("Reshape", ["x", "rows"], ["a"]),
        helper.make_node("Mul", ["a", "scale"], ["m"]),
        helper.make_node("Reshape", ["x", "columns"], ["b"]),
        helper.make_node("Sub", ["m", "b"], ["y"]),
        helper.make_node("Reshape", ["m", "row"], ["c"]),
        helper.make_node("MatMul", ["c", "w"], ["z"]),
    ]
    shapes = {"rows": (1, 16, 1, 3), "columns": (1, 1, 16, 3), "row": (1, 48)}
    stored = {name: RNG.normal(0, 0.5, shape).astype(np.float32) for name, shape in (("scale", 3), ("w", (48, 5)))}
    constants = {**{name: np.asarray(shape) for name, shape in shapes.items()}, **stored}
    return net(nodes, {"x": (1, 16, 3)}, constants, ("y", "z"))


def pair_of_every_other() -> onnx.ModelProto:
    """Every other row added to what is not stepped over."""
    nodes = [
        helper.make_node("Slice", ["x", "begin", "end", "axes", "steps"], ["a"]),
        helper.make_node("Slice", ["x", "begin", "half", "axes"], ["b"]),
        helper.make_node("Mul", ["b", "scale"], ["c"]),
        helper.make_node("Add", ["a", "c"], ["y"]),
    ]
    bounds = {name: np.asarray([n]) for name, n in (("begin", 0), ("end", 8), ("half", 4), ("axes", 2), ("steps", 2))}
    return net(nodes, {"x": IMAGE}, {**bounds, "scale": RNG.normal(1, 0.3, (1, 6, 1, 1)).astype(np.float32)})


def cut_and(kind: str, **attributes: object) -> onnx.ModelProto:
    """A part of an image that an operator reads in windows of its own making."""
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"]),
        helper.make_node("Slice", ["a", "begin", "end", "axes"], ["b"]),
        helper.make_node(kind, ["b", "w" if kind == "ConvTranspose" else "over"], ["y"], **attributes),
    ]
    bounds = {name: np.asarray([n]) for name, n in (("begin", 3), ("end", 8), ("axes", 2), ("over", 1))}
    weights = {name: RNG.normal(0, 0.3, (6, 6, n, n)).astype(np.float32) for name, n in (("v", 1), ("w", 2))}
    used = ("begin", "end", "axes", "v", "w" if kind == "ConvTranspose" else "over")
    return net(nodes, {"x": IMAGE}, {name: {**bounds, **weights}[name] for name in used})


def joined_frames() -> onnx.ModelProto:
    """A convolution over three axes joins slices of frames."""
    weights = RNG.normal(0, 0.2, (4, 2, 3, 1, 1)).astype(np.float32)
    return one("Conv", (1, 2, 6, 4, 8), {"w": weights})


NEIGHBOURS = {
    "joined frames": (joined_frames(), "ethos-u85-256"),
    "differences of scaled points": (differences(), "ethos-u55-256"),
    "every other one of a pair": (pair_of_every_other(), "ethos-u55-256"),
    "largest of a part on a small one": (cut_and("ReduceMax"), "ethos-u55-256"),
    "largest of a part on a large one": (cut_and("ReduceMax"), "ethos-u85-256"),
    "transposed part on a small one": (cut_and("ConvTranspose", strides=[2, 2]), "ethos-u55-256"),
    "transposed part on a large one": (cut_and("ConvTranspose", strides=[2, 2]), "ethos-u85-256"),
    "reflected channels on a small one": (NETS["reflected channels"], "ethos-u55-256"),
    "reflected channels on a large one": (NETS["reflected channels"], "ethos-u85-256"),
    "every other channel": (NETS["every other channel"], "ethos-u85-256"),
    "resized and joined": (resized_and_joined(), "ethos-u55-256"),
    "spatial attention on a small one": (spatial_attention(), "ethos-u55-256"),
    "spatial attention on a large one": (spatial_attention(), "ethos-u85-256"),
    "every other row": (every_other_row(), "ethos-u55-256"),
    "convolution of frames": (frames(), "ethos-u85-256"),
    "smallest channel": (smallest_channel(), "ethos-u55-256"),
    "transposed and joined": (transposed_and_joined(), "ethos-u85-256"),
    "nearest, larger by parts": (resize("nearest", "asymmetric", 12, 11), "ethos-u85-256"),
    "nearest, smaller": (resize("nearest", "asymmetric", 4, 5), "ethos-u85-256"),
}


@pytest.mark.parametrize(("model", "chip"), NEIGHBOURS.values(), ids=[*NEIGHBOURS])
def test_what_vela_gets_wrong_is_written_otherwise(model, chip, tmp_path):
    """What the command stream computes is what LiteRT computes from the file that Vela was given."""
    floating, result, data = tmp_path / "float.tflite", tmp_path / "integers.tflite", samples(model)
    floating.write_bytes(to_bytes(lower(model)))
    floating.write_bytes(for_npu(floating, chip) or floating.read_bytes())
    quantize_file(floating, Dataset(data, None, "test"), QuantPlan(), result)
    assert compare(result, chip, tmp_path, count=4).differing == 0


def test_tables_of_one_chain_are_kept_apart(tmp_path):
    """The root of a variance and the division by it: both chips compute the same from the same file."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["k"]),
        helper.make_node("ReduceMean", ["k", "axes"], ["m"], keepdims=1),
        helper.make_node("Sub", ["k", "m"], ["s"]),
        helper.make_node("Mul", ["k", "k"], ["a"]),
        helper.make_node("ReduceMean", ["a", "axes"], ["b"], keepdims=1),
        helper.make_node("Mul", ["m", "m"], ["n"]),
        helper.make_node("Sub", ["b", "n"], ["v"]),
        helper.make_node("Sqrt", ["v"], ["c"]),
        helper.make_node("Add", ["c", "tiny"], ["d"]),
        helper.make_node("Div", ["s", "d"], ["y"]),
    ]
    weights = RNG.normal(0, 0.3, (6, 6, 1, 1)).astype(np.float32)
    constants = {"axes": np.asarray([0, 2, 3]), "tiny": np.asarray(1e-9, np.float32), "w": weights}
    model = net(nodes, {"x": IMAGE}, constants)
    floating, result, data = tmp_path / "float.tflite", tmp_path / "integers.tflite", samples(model)
    floating.write_bytes(to_bytes(lower(model)))
    floating.write_bytes(for_npu(floating, "ethos-u85-256") or floating.read_bytes())
    quantize_file(floating, Dataset(data, None, "test"), QuantPlan(), result)
    small, large = (compare(result, f"ethos-{chip}-256", tmp_path, count=4).got[0] for chip in ("u55", "u85"))
    assert np.array_equal(small, large)


@pytest.mark.parametrize(("kernel", "stride", "pad"), [(8, 8, 1), (16, 16, 2), (7, 4, 3)])
def test_patches_with_a_border_have_their_bias_once(kernel, stride, pad, tmp_path):
    """The U85 sums them up tap by tap, each with the bias in its stream."""
    weights = RNG.normal(0, 0.1, (16, 3, kernel, kernel)).astype(np.float32)
    constants = {"w": weights, "b": RNG.normal(0, 2.0, 16).astype(np.float32)}
    model = one("Conv", (1, 3, 32, 32), constants, strides=[stride, stride], pads=[pad] * 4)
    floating, result, data = tmp_path / "float.tflite", tmp_path / "integers.tflite", samples(model)
    floating.write_bytes(to_bytes(lower(model)))
    quantize_file(floating, Dataset(data, None, "test"), QuantPlan(), result)
    assert compare(result, "ethos-u85-256", tmp_path, count=4).differing == 0


def test_what_a_memory_held_before_is_no_index(tmp_path):
    floating, result, model = tmp_path / "float.tflite", tmp_path / "integers.tflite", sine_between_convolutions()
    floating.write_bytes(to_bytes(lower(model)))
    quantize_file(floating, Dataset(samples(model), None, "test"), QuantPlan(), result)
    inputs = [RNG.integers(-128, 128, (2, 1, 1, 400)).astype(np.int8)]
    found = []
    for held in (0, 85):
        twin = Twin(read_model(compile_model(result, "ethos-u85-256", tmp_path)))
        twin._fill = held
        found.append(twin.run_batch(inputs)[0])
    assert np.array_equal(*found)


def integers_of(function: str, data: np.ndarray, folder: Path, as_ramps: bool) -> Path:
    """Returns the file of integers of one function, read from a table or as ramps."""
    floating, result = folder / "float.tflite", folder / f"{as_ramps}.tflite"
    floating.write_bytes(to_bytes(lower(one(function, data.shape))))
    quantize_file(floating, Dataset({"x": data}, None, "test"), QuantPlan(), result, as_ramps=as_ramps)
    return result


@pytest.mark.parametrize("function", ["Sin", "Floor", "Sign"])
@pytest.mark.parametrize(("size", "away"), [(256, 0), (40000, 1)])
def test_a_table_is_a_sum_of_ramps(function, size, away, tmp_path):
    """Of all 256 integers; where it would have too many values the ramps are longer and one integer off at most."""
    numbers = np.resize(np.linspace(-3, 3, 256), size).astype(np.float32).reshape(1, 8, size // 8)
    plain, ramps = (integers_of(function, numbers, tmp_path, as_ramps).read_bytes() for as_ramps in (False, True))
    kinds = {operator.kind for operator in from_bytes(ramps).operators}
    assert kinds == {"RESHAPE", "CONV_2D"} and "GATHER" in {each.kind for each in from_bytes(plain).operators}
    wanted, data = by_litert(plain, {"x": numbers}), {"x": numbers}
    step = interpreter(plain).get_output_details()[0]["quantization"][0]
    for run in (by_litert, by_tflm):
        assert np.abs(run(ramps, data) - wanted).max() <= (away + 0.01) * step


def test_ramps_are_computed_by_the_npu(tmp_path):
    numbers = np.linspace(-3, 3, 288, dtype=np.float32).reshape(1, 12, 24)
    assert compare(integers_of("Cos", numbers, tmp_path, True), "ethos-u55-256", tmp_path, count=4).differing == 0


def test_layers_with_the_same_weights_keep_their_biases(tmp_path):
    """Vela stores equal weights once, with the biases of the first layer."""
    weights = RNG.normal(0, 0.4, (6, 6, 1, 1)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "w", f"b{number}"], [f"c{number}"]) for number in range(3)]
    nodes += [helper.make_node("Concat", ["c0", "c1", "c2"], ["y"], axis=1)]
    biases = {f"b{number}": np.full(6, 0.2 * number - 0.1, np.float32) for number in range(3)}
    model = net(nodes, {"x": IMAGE}, {"w": weights, **biases})
    floating, result, data = tmp_path / "float.tflite", tmp_path / "integers.tflite", samples(model)
    floating.write_bytes(to_bytes(lower(model)))
    quantize_file(floating, Dataset(data, None, "test"), QuantPlan(equalize=False), result)
    for chip in ("ethos-u55-256", "ethos-u85-256"):
        assert compare(result, chip, tmp_path, count=4).differing == 0


def test_real_numbers_that_are_cut_to_whole_ones_stay_as_they_are():
    nodes = [
        helper.make_node("Cast", ["x"], ["n"], to=onnx.TensorProto.INT32),
        helper.make_node("Add", ["n", "two"], ["m"]),
        helper.make_node("Cast", ["m"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    graph = lower(net(nodes, {"x": (1, 6, 16)}, {"two": np.asarray([2], np.int32)}))
    assert [operator.kind for operator in in_reals(graph).operators] == ["CAST", "ADD", "CAST"]


def test_a_layer_without_a_bias_is_no_whole_number():
    """As TensorFlow's converter writes one: its last input is left out."""
    graph = lower(one("MatMul", (1, 6), {"w": RNG.normal(size=(6, 4)).astype(np.float32)}))
    bare = [replace(each, inputs=(*each.inputs[:2], "")) for each in graph.operators]
    graph = replace(graph, operators=tuple(bare))
    assert in_reals(graph) == graph


def branches() -> onnx.ModelProto:
    """A choice by a comparison with a number, one by a comparison of two tensors, and what is 0.5 or more."""
    nodes = [
        helper.make_node("Greater", ["x", "quarter"], ["g"]),
        helper.make_node("Tanh", ["x"], ["t"]),
        helper.make_node("Where", ["g", "x", "t"], ["a"]),
        helper.make_node("LessOrEqual", ["t", "z"], ["l"]),
        helper.make_node("Where", ["l", "a", "z"], ["b"]),
        helper.make_node("GreaterOrEqual", ["z", "half"], ["h"]),
        helper.make_node("Cast", ["h"], ["c"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Add", ["b", "c"], ["y"]),
    ]
    numbers = {"quarter": np.float32(0.25), "half": np.float32(0.5)}
    return net(nodes, {"x": (1, 6, 16), "z": (1, 6, 16)}, numbers)


def bounds() -> onnx.ModelProto:
    """A Clip in the form that ONNX writes it out in."""
    nodes = [
        helper.make_node("Less", ["x", "low"], ["l"]),
        helper.make_node("Where", ["l", "low", "x"], ["a"]),
        helper.make_node("Less", ["high", "a"], ["h"]),
        helper.make_node("Where", ["h", "high", "a"], ["y"]),
    ]
    return net(nodes, {"x": (1, 6, 16)}, {"low": np.float32(-1), "high": np.float32(1)})


def place_of_the_largest(size: int) -> onnx.ModelProto:
    """The rows of a table at the places of the largest numbers."""
    nodes = [
        helper.make_node("ArgMax", ["x"], ["n"], axis=2, keepdims=0),
        helper.make_node("Gather", ["table", "n"], ["y"]),
    ]
    return net(nodes, {"x": (1, 6, size)}, {"table": RNG.normal(size=(size, 5)).astype(np.float32)})


def two_largest() -> onnx.ModelProto:
    nodes = [helper.make_node("TopK", ["x", "k"], ["y", "n"], axis=2)]
    return net(nodes, {"x": (1, 6, 20)}, {"k": np.asarray([2])})


QUESTIONS = {
    "branches": (branches(), 20),
    "bounds": (bounds(), 35),
    "the place of the largest": (place_of_the_largest(20), 25),
    "the place of the largest of many": (place_of_the_largest(200), 25),
    "the two largest": (two_largest(), 30),
}


@pytest.mark.parametrize(("model", "least_db"), QUESTIONS.values(), ids=[*QUESTIONS])
def test_real_numbers_are_compared_where_an_npu_has_no_truth_values(model, least_db, tmp_path):
    floating, other, result = (tmp_path / f"{name}.tflite" for name in ("float", "other", "integers"))
    floating.write_bytes(to_bytes(lower(model)))
    other.write_bytes(for_npu(floating, "ethos-u55-256"))
    data = samples(model, count=32)
    truth = by_onnx(model, data)
    assert decibels(truth, by_litert(other.read_bytes(), data)) > 90
    ranges, wide = settled(from_bytes(floating.read_bytes()), from_bytes(other.read_bytes()))
    plan, fixed = QuantPlan(wide_tensors=tuple(wide)), replace(NOTHING, ranges=ranges)
    quantize_file(other, Dataset(data, None, "test"), plan, result, fixed=fixed)
    assert {each.kind for each in from_bytes(result.read_bytes()).operators} <= {*table("EthosU55")}
    for run in (by_litert, by_tflm):
        found = run(result.read_bytes(), data)
        near = np.abs(found - truth) < 0.1 * np.abs(truth).max()
        assert near.mean() > 0.97  # numbers within a step of each other may change places
        assert decibels(truth[near], found[near]) > least_db
    assert compare(result, "ethos-u55-256", tmp_path, count=4).differing == 0


def test_equal_numbers_are_found_at_the_first_place(tmp_path):
    model = place_of_the_largest(8)
    floating, result = tmp_path / "float.tflite", tmp_path / "integers.tflite"
    floating.write_bytes(to_bytes(in_reals(lower(model))))
    data = {"x": np.random.default_rng(1).integers(-2, 3, (16, 6, 8)).astype(np.float32)}
    ranges, wide = settled(lower(model), from_bytes(floating.read_bytes()))
    plan, fixed = QuantPlan(wide_tensors=tuple(wide)), replace(NOTHING, ranges=ranges)
    quantize_file(floating, Dataset(data, None, "test"), plan, result, fixed=fixed)
    assert decibels(by_onnx(model, data), by_tflm(result.read_bytes(), data)) > 35


def test_real_numbers_that_become_whole_stay_what_they_are():
    nodes = [
        helper.make_node("Floor", ["x"], ["a"]),
        helper.make_node("Cast", ["a"], ["b"], to=onnx.TensorProto.INT32),
        helper.make_node("Cast", ["b"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    graph = lower(net(nodes, {"x": (1, 8)}))
    assert [each.kind for each in in_reals(graph).operators] == [each.kind for each in graph.operators]


def test_the_place_of_a_difference_is_looked_for_in_large_nets_too(tmp_path):
    """TFLite-Micro keeps every tensor of the net, which together are larger than its first arena."""
    names = [f"t{number}" for number in range(18)]
    steps = zip(["x", *names], [*names, "y"], strict=True)
    nodes = [helper.make_node("LeakyRelu", [a], [b], alpha=0.5 + n / 50) for n, (a, b) in enumerate(steps)]
    content = quantised(
        net(nodes, {"x": (1, 1024, 4096)}, {}), {"x": RNG.normal(size=(2, 1024, 4096)).astype("f")}, tmp_path
    )
    tensors = _outputs(content, [np.zeros((1, 1024, 4096), np.int8)])
    assert len(tensors) >= 19 and tensors[-1][1].size == 4 << 20
