"""Every lowered operator computes what ONNX Runtime does, executed from the written file by LiteRT."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowered_nets import agrees, by_litert, by_onnx, names_agree, net, one, samples
from onnx import TensorProto, helper

from anynpu.errors import Unsupported
from anynpu.lowering.lower import lower, nodes_by_family
from anynpu.lowering.write import to_bytes

RNG = np.random.default_rng(7)


def f(*shape: int) -> np.ndarray:
    return RNG.normal(0, 1, shape).astype(np.float32)


def own(*shape: int) -> np.ndarray:
    """Returns numbers that leave those of other nets as they are."""
    return np.random.default_rng(11).normal(0, 1, shape).astype(np.float32)


def i(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


IMAGE, ROWS, TOKENS = (1, 6, 8, 9), (1, 12), (1, 5, 12)
BLOCK = np.stack(np.meshgrid([0], [1, 2], [2, 3, 4], indexing="ij"), axis=-1)
"""The places of two rows and three columns in the middle of an image."""
MEETING = np.asarray([2, 0, 2, -1, 0])
CORNER = np.asarray([[[0, 2], [-1, 0]]])


def computed(image, weights, **attributes):
    """A convolution whose weights are an input."""
    nodes = [
        helper.make_node("Reshape", ["x", "image"], ["a"]),
        helper.make_node("Reshape", ["w", "weights"], ["b"]),
        helper.make_node("Conv", ["a", "b", "bias"], ["y"], **attributes),
    ]
    inputs = {"x": (1, image[0] * image[1], *image[2:]), "w": (1, *weights)}
    bias = np.random.default_rng(13).normal(0, 1, weights[0]).astype(np.float32)
    return net(nodes, inputs, {"image": i(*image), "weights": i(*weights), "bias": bias})


ONE_NODE = {
    "relu": one("Relu", IMAGE),
    "relu6": one("Clip", IMAGE, {"low": np.float32(0), "high": np.float32(6)}),
    "clip": one("Clip", IMAGE, {"low": np.float32(-0.5), "high": np.float32(1.5)}),
    "leaky": one("LeakyRelu", IMAGE, alpha=0.2),
    "prelu": one("PRelu", IMAGE, {"slope": np.abs(f(6, 1, 1))}),
    "prelu of one slope": one("PRelu", IMAGE, {"slope": np.full((1, 1, 1), 0.3, np.float32)}),
    "hard swish": one("HardSwish", IMAGE),
    "hard sigmoid": one("HardSigmoid", IMAGE, alpha=0.2, beta=0.5),
    "hard sigmoid of a sixth": one("HardSigmoid", IMAGE, alpha=1 / 6, beta=0.5),
    "sigmoid": one("Sigmoid", IMAGE),
    "tanh": one("Tanh", IMAGE),
    "elu": one("Elu", IMAGE, alpha=1.0),
    "elu of another slope": one("Elu", IMAGE, alpha=0.4),
    "gelu": one("Gelu", IMAGE, opset=20),
    "gelu by tanh": one("Gelu", IMAGE, opset=20, approximate="tanh"),
    "softmax": one("Softmax", TOKENS, axis=-1),
    "softmax over channels": one("Softmax", IMAGE, axis=1),
    "log softmax": one("LogSoftmax", ROWS, axis=1),
    "exp": one("Exp", ROWS),
    "erf": one("Erf", ROWS),
    "sinh": one("Sinh", ROWS),
    "cosh": one("Cosh", ROWS),
    "asinh": one("Asinh", ROWS),
    "mish": one("Mish", ROWS),
    "softplus": one("Softplus", ROWS),
    "celu": one("Celu", ROWS, alpha=0.7),
    "selu": one("Selu", ROWS),
    "mean of all": one("Mean", IMAGE, {"c": f(6, 1, 1), "d": f(9)}),
    "masked": net([helper.make_node("Where", ["mask", "x", "low"], ["y"])], {"x": TOKENS},
                  {"mask": np.tri(5, 12).astype(bool), "low": np.float32(-3)}),
    "guarded": net([helper.make_node("IsNaN", ["x"], ["n"]), helper.make_node("Where", ["n", "zero", "x"], ["y"])],
                   {"x": TOKENS}, {"zero": np.float32(0)}),
    "lower triangle": one("Trilu", TOKENS, upper=0),
    "running sum": one("CumSum", TOKENS, {"axis": np.asarray(1)}),
    "running sum from behind": one("CumSum", TOKENS, {"axis": np.asarray(2)}, reverse=1, exclusive=1),
    "einsum of a stored side": one("Einsum", TOKENS, {"w": f(12, 2, 3)}, equation="btc,chd->bhtd"),
    "einsum of itself": net([helper.make_node("Einsum", ["x", "x"], ["y"], equation="bhqd,bhkd->bhqk")],
                            {"x": (1, 2, 5, 4)}),
    "einsum of one": one("Einsum", TOKENS, equation="btc->bct"),
    "gather elements": one("GatherElements", TOKENS, {"n": np.asarray([[[1] * 12, [-1] * 12]])}, axis=1),
    "move of six axes": net([helper.make_node("Reshape", ["x", "s"], ["a"]),
                             helper.make_node("Transpose", ["a"], ["b"], perm=[0, 3, 5, 1, 2, 4]),
                             helper.make_node("Reshape", ["b", "t"], ["c"]),
                             helper.make_node("Mul", ["c", "w"], ["y"])], {"x": (1, 6, 8, 6)},
                            {"s": i(1, 6, 4, 2, 3, 2), "t": i(1, 4, 72), "w": f(72)}),
    "move of seven axes": net([helper.make_node("Reshape", ["x", "s"], ["a"]),
                               helper.make_node("Transpose", ["a"], ["b"], perm=[5, 3, 1, 6, 4, 0, 2]),
                               helper.make_node("Reshape", ["b", "t"], ["c"]),
                               helper.make_node("Mul", ["c", "w"], ["y"])], {"x": (1, 6, 8, 6)},
                              {"s": i(2, 3, 2, 2, 2, 3, 2), "t": i(1, 4, 72), "w": f(72)}),
    "broadcast in a product": net([helper.make_node("Relu", ["x"], ["a"]),
                                   helper.make_node("ReduceMean", ["x", "n"], ["b"]),
                                   helper.make_node("Expand", ["b", "s"], ["c"]),
                                   helper.make_node("Mul", ["a", "c"], ["y"])], {"x": TOKENS},
                                  {"n": i(2), "s": i(1, 5, 12)}),
    "pad by a number far away": one("Pad", TOKENS, {"p": i(0, 0, 0, 0, 2, 0), "v": np.float32(9)}),
    "normalised by torch": net([helper.make_node("ReduceL2", ["x", "n"], ["a"], keepdims=1),
                                helper.make_node("Clip", ["a", "e"], ["b"]),
                                helper.make_node("Expand", ["b", "s"], ["c"]),
                                helper.make_node("Div", ["x", "c"], ["y"])], {"x": TOKENS},
                               {"n": i(2), "e": np.float32(1e-12), "s": i(1, 5, 12)}),
    "divided by a sum": net([helper.make_node("Relu", ["x"], ["r"]),
                             helper.make_node("ReduceSum", ["r", "n"], ["a"], keepdims=1),
                             helper.make_node("Add", ["a", "e"], ["b"]),
                             helper.make_node("Div", ["x", "b"], ["y"])], {"x": TOKENS},
                            {"n": i(2), "e": np.float32(1e-3)}),
    "mean of many": one("ReduceMean", (1, 2, 4099 * 2), {"n": i(2)}),
    "mean over trailing axes": one("ReduceMean", (1, 3, 40, 120), {"n": i(2, 3)}, keepdims=0),
    "norm of each of many": one("InstanceNormalization", (1, 2, 5000), {"s": f(2), "b": f(2)}),
    "cubic": one("Resize", (1, 3, 8, 8), {"r": np.zeros(0, np.float32), "s": np.float32([1, 1, 2, 1.5])}, mode="cubic"),
    "a scale without a whole size": one("Resize", IMAGE, {"r": f(0), "s": np.float32([1, 1, 0.6, 0.6])}, mode="linear"),
    "made smaller smoothly": net([helper.make_node("Resize", ["x", "", "", "s"], ["y"], mode="linear", antialias=1)],
                                 {"x": (1, 3, 8, 9)}, {"s": i(1, 3, 4, 5)}),
    "resized rows": net([helper.make_node("Resize", ["x", "", "", "s"], ["y"], mode="linear")], {"x": (1, 3, 8)},
                        {"s": i(1, 3, 20)}),
    "resized frames": net([helper.make_node("Resize", ["x", "", "", "s"], ["y"], mode="linear")],
                          {"x": (1, 3, 4, 4, 4)}, {"s": i(1, 3, 8, 6, 4)}),
    "convolution of frames": one("Conv", (1, 4, 6, 8, 8), {"w": f(6, 2, 3, 3, 3), "b": f(6)}, pads=[1] * 6, group=2,
                                 strides=[2, 1, 2]),
    "convolution of frames far apart": one("Conv", (1, 3, 6, 8, 8), {"w": f(4, 3, 2, 3, 3)}, dilations=[2, 1, 1],
                                           auto_pad="VALID"),
    "convolution with computed weights": computed((1, 6, 9, 8), (4, 6, 3, 3), pads=[1, 1, 1, 1]),
    "convolution with computed weights in steps": computed((1, 6, 9, 8), (4, 6, 3, 2), strides=[2, 1],
                                                           pads=[1, 0, 0, 1], dilations=[1, 2]),
    "convolution with computed weights in groups": computed((1, 6, 9, 8), (4, 3, 3, 3), group=2, auto_pad="SAME_UPPER"),
    "convolution with computed weights of each channel": computed((1, 6, 9, 8), (6, 1, 5, 5), group=6),
    "convolution with computed weights of several images": computed((2, 6, 5, 5), (4, 6, 3, 3)),
    "convolution with computed weights along one axis": computed((1, 6, 20), (4, 6, 5), pads=[2, 2]),
    "transposed frames": one("ConvTranspose", (1, 4, 3, 5, 5), {"w": f(4, 3, 2, 2, 2), "b": f(3)}, strides=[2, 2, 2]),
    "transposed frames that overlap": one("ConvTranspose", (1, 4, 3, 5, 5), {"w": f(4, 3, 3, 3, 3), "b": f(6)}, group=2,
                                          strides=[2, 2, 1], pads=[1, 1, 1, 1, 1, 1], output_padding=[1, 1, 0]),
    "transposed frames far apart": one("ConvTranspose", (1, 2, 3, 4, 4), {"w": f(2, 3, 2, 2, 2)}, dilations=[3, 1, 1],
                                       strides=[2, 2, 2]),
    "transposed frames with gaps": one("ConvTranspose", (1, 2, 3, 4, 4), {"w": f(2, 3, 1, 2, 2)}, strides=[3, 2, 2]),
    "largest of frames": one("MaxPool", (1, 3, 6, 8, 8), kernel_shape=[2, 3, 3], strides=[2, 2, 2],
                             pads=[0, 1, 1, 0, 1, 1]),
    "mean of frames": one("AveragePool", (1, 3, 6, 8, 8), kernel_shape=[2, 2, 2], strides=[2, 2, 2]),
    "local response": one("LRN", (1, 6, 8, 8), size=3, alpha=0.3),
    "pool of squares": one("LpPool", IMAGE, kernel_shape=[2, 2], strides=[2, 2]),
    "pool of sizes": one("LpPool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], p=1),
    "norm of each channel": one("GlobalLpPool", IMAGE),
    **{f"{op} over axes from {axis} on": one(op, (1, 3, 4, 5), opset=11, axis=axis)
       for op in ("Softmax", "LogSoftmax", "Hardmax") for axis in (1, 2, 3)},
    "softmax without an axis": one("Softmax", (1, 3, 4, 5), opset=11),
    "sizes of one": one("LpNormalization", (1, 3, 4, 5), axis=1, p=1),
    "rotated places": one("RotaryEmbedding", (1, 2, 6, 8), {"c": f(1, 6, 4), "s": f(1, 6, 4)}, opset=23),
    "rotated pairs": one("RotaryEmbedding", (1, 6, 16), {"c": f(1, 6, 4), "s": f(1, 6, 4)}, opset=23, num_heads=2,
                         interleaved=1),
    "rotated in part": one("RotaryEmbedding", (1, 2, 6, 8), {"c": f(1, 6, 2), "s": f(1, 6, 2)}, opset=23,
                           rotary_embedding_dim=4),
    "cut and padded": one("CenterCropPad", (1, 3, 8, 8), {"n": i(6, 11)}, axes=[2, 3]),
    "sum of sizes of each channel": one("GlobalLpPool", IMAGE, p=1),
    "turned around": one("ReverseSequence", [1, 5, 3], {"n": np.asarray([5])}, time_axis=1, batch_axis=0),
    "turned around in part": one("ReverseSequence", [1, 6, 3], {"n": np.asarray([4])}, time_axis=1, batch_axis=0),
    "mean of padded frames": one("AveragePool", (1, 3, 5, 8, 8), kernel_shape=[2, 3, 3], strides=[1, 2, 2],
                                 pads=[1, 1, 1, 0, 1, 1]),
    "sampled, folded at the border": one("GridSample", IMAGE, {"g": 2 * f(1, 5, 4, 2)}, padding_mode="reflection"),
    "sampled, folded at the corners": one("GridSample", IMAGE, {"g": 2 * f(1, 5, 4, 2)}, padding_mode="reflection",
                                          align_corners=1, mode="nearest"),
    "written to a corner": one("ScatterElements", (1, 4, 4), {"n": CORNER, "u": f(1, 2, 2)}, axis=1),
    "added to a corner": one("ScatterElements", (1, 4, 4), {"n": CORNER, "u": f(1, 2, 2)}, axis=1, reduction="add"),
    "the larger in a corner": one("ScatterElements", (1, 4, 4), {"n": CORNER, "u": f(1, 2, 2)}, axis=1,
                                  reduction="max"),
    **{f"rows that meet at a place, {axis}": one("ScatterElements", (1, 3, 4), {
        "n": np.moveaxis(np.broadcast_to(MEETING, (*(size for at, size in enumerate((1, 3, 4)) if at != axis), 5)), -1,
                         axis), "u": f(*(5 if at == axis else size for at, size in enumerate((1, 3, 4))))},
        axis=axis, reduction="add") for axis in (1, 2)},
    **{f"the {kind} of all rows": one("ScatterElements", (1, 1, 4), {"n": np.zeros((1, 5, 4), np.int64),
       "u": f(1, 5, 4)}, axis=1, reduction=kind) for kind in ("max", "min")},
    "sampled at places": one("GridSample", IMAGE, {"g": np.tanh(f(1, 5, 4, 2))}),
    "sampled within the border": one("GridSample", IMAGE, {"g": 2 * f(1, 5, 4, 2)}, padding_mode="border",
                                     align_corners=1),
    "cuts and means of many axes": net(
        [
            helper.make_node("Reshape", ["x", "s"], ["a"]),
            helper.make_node("Slice", ["a", "one", "three", "one"], ["b"]),
            helper.make_node("Slice", ["b", "last", "before", "four", "back"], ["c"]),
            helper.make_node("ReduceMean", ["c", "over"], ["d"]),
            helper.make_node("Reshape", ["d", "t"], ["y"]),
        ],
        {"x": (1, 6, 8, 6)},
        {"s": i(2, 3, 2, 2, 3, 4), "one": i(1), "three": i(3), "last": i(-1), "before": i(-(2**40)), "four": i(4),
         "back": i(-2), "over": i(0, 2, 3), "t": i(1, 16)},
    ),
    "a factor of one number": net([helper.make_node("MatMul", ["x", "w"], ["a"]),
                                   helper.make_node("Reshape", ["a", "s"], ["b"]),
                                   helper.make_node("Mul", ["b", "c"], ["d"]), helper.make_node("Tanh", ["d"], ["y"])],
                                  {"x": ROWS}, {"w": own(12, 1), "s": i(), "c": np.float32(-0.1)}),
    "gather of places": one("GatherND", TOKENS, {"n": np.asarray([[0, 3], [0, 1]])}),
    "gather of a row that is computed": net(
        [helper.make_node("ReduceSum", ["x", "last"], ["sums"], keepdims=0),
         helper.make_node("ArgMax", ["sums"], ["at"], axis=1, keepdims=1),
         helper.make_node("Concat", ["zero", "at"], ["place"], axis=1),
         helper.make_node("GatherND", ["x", "place"], ["y"])],
        {"x": TOKENS}, {"last": i(2), "zero": np.zeros((1, 1), np.int64)},
    ),
    "gather of an element that is computed": net(
        [helper.make_node("ReduceSum", ["x", "last"], ["sums"], keepdims=0),
         helper.make_node("ReduceSum", ["x", "middle"], ["others"], keepdims=0),
         helper.make_node("ArgMax", ["sums"], ["row"], axis=1, keepdims=1),
         helper.make_node("ArgMax", ["others"], ["column"], axis=1, keepdims=1),
         helper.make_node("Concat", ["zero", "row", "column"], ["place"], axis=1),
         helper.make_node("GatherND", ["x", "place"], ["y"])],
        {"x": TOKENS}, {"last": i(2), "middle": i(1), "zero": np.zeros((1, 1), np.int64)},
    ),
    "rows added to others": one(
        "ScatterND", TOKENS, {"n": np.asarray([[0, 3], [0, 1], [0, -1], [0, 3]]), "u": f(4, 12)}, reduction="add"
    ),
    "rows added to a table": net(
        [helper.make_node("ScatterND", ["table", "n", "x"], ["y"], reduction="add")],
        {"x": (1, 3, 8)}, {"table": f(5, 8), "n": np.asarray([[[4], [0], [4]]])}, opset=18,
    ),
    "block in the middle": one("ScatterND", (1, 5, 6), {"n": BLOCK, "u": f(1, 2, 3)}),
    "block over stored zeros": net(
        [
            helper.make_node("Slice", ["x", "from", "to", "along"], ["part"]),
            helper.make_node("ScatterND", ["zeros", "n", "part"], ["y"]),
        ],
        {"x": (1, 2, 7)},
        {"zeros": f(1, 5, 6), "n": BLOCK, **{k: np.asarray([v]) for k, v in (("from", 1), ("to", 4), ("along", 2))}},
    ),
    "scatter": one("ScatterND", TOKENS, {"n": np.asarray([[0, 3], [0, 1]]), "u": f(2, 12)}),
    "pad by edges": one("Pad", IMAGE, {"p": i(0, 0, 1, 2, 0, 0, 3, 0)}, mode="edge"),
    "pad by wrapping": one("Pad", IMAGE, {"p": i(0, 0, 1, 2, 0, 0, 3, 0)}, mode="wrap", opset=19),
    "spectrum": one("DFT", (1, 16, 1), {"l": np.asarray(16), "a": np.asarray(1)}, opset=20, onesided=1),
    "spectrum of a padded signal": one("DFT", (1, 12, 1), {"l": np.asarray(16), "a": np.asarray(1)}, opset=20,
                                       onesided=1),
    "spectrum of a cut signal": one("DFT", (1, 3, 20, 2), {"l": np.asarray(16), "a": np.asarray(2)}, opset=20),
    "short spectra": one("STFT", (1, 64, 1), {"step": np.asarray(8), "w": np.hanning(16).astype(np.float32),
                                                "length": np.asarray(16)}, onesided=1),
    "sin": one("Sin", ROWS),
    "cos": one("Cos", ROWS),
    "neg": one("Neg", ROWS),
    "abs": one("Abs", ROWS),
    "square": one("Pow", ROWS, {"e": np.float32(2)}),
    "divided by constants": one("Div", IMAGE, {"c": np.abs(f(6, 1, 1)) + 1}),
    "add of channels": one("Add", IMAGE, {"c": f(6, 1, 1)}),
    "mul of columns": one("Mul", IMAGE, {"c": f(9)}),
    "maximum": one("Max", IMAGE, {"c": np.float32(0.25)}),
    "gemm": one("Gemm", ROWS, {"w": f(12, 4), "b": f(4)}),
    "gemm turned": one("Gemm", ROWS, {"w": f(4, 12), "b": f(1)}, transB=1, alpha=0.5, beta=2.0),
    "matmul": one("MatMul", TOKENS, {"w": f(12, 7)}),
    "matmul of stored matrices": one("MatMul", (1, 3, 5, 4), {"w": f(1, 3, 4, 6)}),
    "global average": one("GlobalAveragePool", IMAGE),
    "global maximum": one("GlobalMaxPool", IMAGE),
    "mean over the image": one("ReduceMean", IMAGE, {"axes": i(2, 3)}, keepdims=0),
    "mean of tokens": one("ReduceMean", TOKENS, {"axes": i(-1)}),
    "sum": one("ReduceSum", IMAGE, {"axes": i(1)}),
    "maximum of all": one("ReduceMax", TOKENS, {"axes": i(1)}, keepdims=0),
    "minimum": one("ReduceMin", TOKENS, {"axes": i(2)}),
    "norm": one("ReduceL2", TOKENS, {"axes": i(2)}),
    "product": one("ReduceProd", TOKENS, {"axes": i(1)}),
    "product over two axes": one("ReduceProd", (1, 3, 4, 2), {"axes": i(1, 3)}, keepdims=0),
    "transpose": one("Transpose", IMAGE, perm=[0, 2, 3, 1]),
    "reshape": one("Reshape", IMAGE, {"s": i(1, 2, 3, 72)}),
    "flatten": one("Flatten", IMAGE, axis=1),
    "squeeze": one("Squeeze", (1, 6, 1, 5), {"a": i(2)}),
    "unsqueeze": one("Unsqueeze", TOKENS, {"a": i(1)}),
    "slice": one("Slice", IMAGE, {"s": i(1, -3), "e": i(5, 2**31), "a": i(1, 3)}),
    "slice in steps": one("Slice", IMAGE, {"s": i(0, 1), "e": i(8, 9), "a": i(2, 3), "t": i(2, 3)}),
    "slice backwards": one("Slice", TOKENS, {"s": i(-1), "e": i(-(2**31)), "a": i(1), "t": i(-1)}),
    "pad": one("Pad", IMAGE, {"p": i(0, 0, 1, 2, 0, 0, 3, 0)}),
    "pad with ones": one("Pad", IMAGE, {"p": i(0, 0, 1, 2, 0, 0, 3, 0), "v": np.float32(1)}),
    "pad below zero": one("Pad", IMAGE, {"p": i(0, 0, -1, 2, 0, 0, 3, -2)}),
    "pad by reflection": one("Pad", IMAGE, {"p": i(0, 0, 1, 2, 0, 0, 1, 2)}, mode="reflect"),
    "expand": one("Expand", (1, 6, 1, 1), {"s": i(1, 6, 3, 4)}),
    "tile": one("Tile", TOKENS, {"r": i(1, 2, 3)}),
    "gather in a row": one("Gather", IMAGE, {"n": i(2, 3, 4)}, axis=1),
    "gather": one("Gather", IMAGE, {"n": i(4, 0, -1)}, axis=1),
    "gather one": one("Gather", TOKENS, {"n": np.asarray(2, np.int64)}, axis=1),
    "nearest": one("Resize", IMAGE, {"roi": f(0), "s": np.asarray([1, 1, 2, 2], np.float32)}, mode="nearest",
                   coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    "bilinear": one("Resize", IMAGE, {"roi": f(0), "s": np.asarray([1, 1, 2, 3], np.float32)}, mode="linear",
                    coordinate_transformation_mode="half_pixel"),
    "bilinear to corners": one("Resize", IMAGE, {"roi": f(0), "s": np.asarray([1, 1, 2, 2], np.float32)}, mode="linear",
                               coordinate_transformation_mode="align_corners"),
    "corners at a size that is no whole": net(
        [helper.make_node("Resize", ["x", "", "s"], ["y"], mode="linear",
                          coordinate_transformation_mode="align_corners")],
        {"x": (1, 3, 8, 8)}, {"s": np.asarray([1, 1, 1.7, 1.3], np.float32)}, opset=19,
    ),
    "depth to space": one("DepthToSpace", (1, 8, 3, 4), blocksize=2),
    "pixel shuffle": one("DepthToSpace", (1, 8, 3, 4), blocksize=2, mode="CRD"),
    "space to depth": one("SpaceToDepth", (1, 3, 4, 6), blocksize=2),
    "layer norm": one("LayerNormalization", TOKENS, {"s": f(12), "b": f(12)}),
    "layer norm of an image": one("LayerNormalization", (1, 4, 5, 6), {"s": f(6), "b": f(6)}),
    "instance norm": one("InstanceNormalization", IMAGE, {"s": f(6), "b": f(6)}),
    "group norm": one("GroupNormalization", IMAGE, {"s": f(6), "b": f(6)}, num_groups=3, opset=21),
    "batch norm": one("BatchNormalization", IMAGE, {"s": f(6), "b": f(6), "m": f(6), "v": np.abs(f(6)) + 0.5}),
    "batch norm of rows": one("BatchNormalization", ROWS, {"s": f(12), "b": f(12), "m": f(12), "v": np.abs(f(12)) + 1}),
    "convolution over time": one("Conv", (1, 6, 20), {"w": f(4, 6, 3), "b": f(4)}, pads=[1, 1], strides=[2]),
    "grouped": one("Conv", IMAGE, {"w": f(4, 3, 3, 3)}, group=2),
    "depthwise with two each": one("Conv", IMAGE, {"w": f(12, 1, 3, 3)}, group=6, pads=[1, 1, 1, 1]),
    "transposed": one("ConvTranspose", IMAGE, {"w": f(6, 4, 3, 3), "b": f(4)}, strides=[2, 2], pads=[1, 1, 1, 1],
                      output_padding=[1, 1]),
    "transposed in groups": one("ConvTranspose", IMAGE, {"w": f(6, 2, 2, 2)}, strides=[2, 2], group=3),
    "transposed by large steps": one("ConvTranspose", IMAGE, {"w": own(6, 4, 4, 5), "b": own(4)}, strides=[3, 3],
                                     pads=[1, 0, 1, 2], output_padding=[2, 1]),
    "transposed without overlap": one("ConvTranspose", IMAGE, {"w": own(6, 2, 4, 4)}, strides=[4, 4]),
    "transposed by large steps in groups": one("ConvTranspose", IMAGE, {"w": own(6, 2, 3, 5)}, strides=[1, 4], group=2),
    "transposed in time": one("ConvTranspose", (1, 6, 9), {"w": own(6, 4, 16), "b": own(4)}, strides=[8], pads=[4, 4]),
    "transposed with gaps": one("ConvTranspose", (1, 6, 9), {"w": own(6, 4, 2)}, strides=[5], output_padding=[4]),
    "transposed and dilated": one("ConvTranspose", IMAGE, {"w": f(6, 2, 3, 2)}, strides=[2, 1], dilations=[2, 3]),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_NODE)
def test_an_operator_agrees_with_onnx_runtime(name):
    agrees(ONE_NODE[name])


@pytest.mark.parametrize("name", [name for name in ONE_NODE if name != "group norm"])  # ONNX does not infer its shape
def test_the_steps_of_an_operator_do_not_have_the_name_of_its_result(name):
    model = onnx.ModelProto()
    model.CopyFrom(ONE_NODE[name])
    model.graph.value_info.append(model.graph.output[0])
    model.graph.node.append(helper.make_node("Sin", ["y"], ["behind"]))
    model.graph.output[0].name = "behind"
    assert "behind" in names_agree(model)


REMAINDERS = {
    "of a number": one("Mod", IMAGE, {"d": np.float32(0.7)}, fmod=1),
    "of a number below zero": one("Mod", IMAGE, {"d": np.float32(-0.7)}, fmod=1),
    "by channel": one("Mod", IMAGE, {"d": f(6, 1, 1)}, fmod=1),
    "of a computed divisor": net([helper.make_node("Mod", ["x", "z"], ["y"], fmod=1)], {"x": ROWS, "z": ROWS}),
}


@pytest.mark.parametrize("name", REMAINDERS)
def test_remainders_agree_with_onnx_runtime(name):
    agrees(REMAINDERS[name])


DIVISORS, EACH = np.asarray([3, -2, 5, -1]), {"c": np.asarray([3, -2, 5, 1])}
OVER = {"a": i(1)}
WHOLE_NUMBERS = {
    "add": ("Add", EACH, {}), "sub": ("Sub", EACH, {}), "mul": ("Mul", EACH, {}), "neg": ("Neg", {}, {}),
    "abs": ("Abs", {}, {}), "sign": ("Sign", {}, {}), "relu": ("Relu", {}, {}), "max": ("Max", EACH, {}),
    "quotient towards zero": ("Div", {"d": DIVISORS}, {}), "remainder": ("Mod", {"d": DIVISORS}, {}),
    "remainder of the dividend's sign": ("Mod", {"d": DIVISORS}, {"fmod": 1}),
    "square": ("Pow", {"e": np.asarray(2)}, {}), "powers": ("Pow", {"e": np.asarray([0, 1, 2, 3])}, {}),
    "clip": ("Clip", {"l": np.asarray(-3), "h": np.asarray(4)}, {}), "clip below": ("Clip", {"l": np.asarray(0)}, {}),
    "sum": ("ReduceSum", OVER, {}), "sum of all": ("ReduceSum", {"a": i()}, {}), "product": ("ReduceProd", OVER, {}),
    "largest": ("ReduceMax", OVER, {}), "sum of sizes": ("ReduceL1", OVER, {}),
    "sum of squares": ("ReduceSumSquare", OVER, {}), "running sum": ("CumSum", {"a": np.asarray(2)}, {}),
    "padded": ("Pad", {"p": i(0, 1, 0, 0, 0, 2), "v": np.asarray(7)}, {}), "triangle": ("Trilu", {}, {"upper": 0}),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE_NUMBERS)
def test_whole_numbers_are_computed_exactly(name):
    op, constants, settings = WHOLE_NUMBERS[name]
    model = one(op, (1, 5, 4), constants, **settings)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.INT64
    data = {"x": np.random.default_rng(0).integers(-9, 9, (3, 5, 4))}
    np.testing.assert_array_equal(by_litert(to_bytes(lower(model)), data), by_onnx(model, data))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_axis_of_classes_can_be_any(axis):
    classes = {"d": np.asarray([7]), "v": np.float32([-1, 2])}
    model = one("OneHot", (1, 5), classes, axis=axis)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    data = {"x": np.random.default_rng(0).integers(0, 7, (3, 5))}
    np.testing.assert_array_equal(by_litert(to_bytes(lower(model)), data), by_onnx(model, data))


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("over", [(1,), (2, 3), (1, 2, 3)], ids=str)
def test_whether_any_or_all_are_true(op, over):
    nodes = [
        helper.make_node("Greater", ["x", "bound"], ["g"]),
        helper.make_node(op, ["g", "axes"], ["m"]),
        helper.make_node("Where", ["m", "x", "bound"], ["y"]),
    ]
    bound = np.float32(1.9 if op == "ReduceMax" else -1.9)
    agrees(net(nodes, {"x": IMAGE}, {"bound": bound, "axes": np.asarray(over)}, opset=20))


def test_a_remainder_by_a_computed_divisor_is_exact():
    model = net([helper.make_node("Mod", ["x", "d"], ["y"], fmod=1)], {"x": (1, 24), "d": (1, 24)})
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.INT64
    data = {"x": np.arange(-12, 12)[None], "d": np.asarray([[-5, -3, 1, 3, 4, 5]] * 4).reshape(1, -1)}
    np.testing.assert_array_equal(by_litert(to_bytes(lower(model)), data), by_onnx(model, data))


@pytest.mark.parametrize("op", ["Log", "Sqrt", "Reciprocal"])
def test_functions_of_positive_numbers(op):
    model = one(op, ROWS)
    agrees(model, {name: np.abs(array) + 0.1 for name, array in samples(model).items()})


@settings(max_examples=25)
@given(
    size=st.tuples(st.integers(5, 12), st.integers(5, 12)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilations=st.sampled_from([(1, 1), (2, 1), (1, 2)]),
    pads=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    group=st.sampled_from([1, 2, 4]),
)
def test_convolution_windows(size, kernel, strides, dilations, pads, group):
    if any((k - 1) * d + 1 > s for k, d, s in zip(kernel, dilations, size, strict=True)):
        return
    weights = {"w": f(4, 4 // group, *kernel), "b": f(4)}
    agrees(one("Conv", (1, 4, *size), weights, strides=strides, dilations=dilations, pads=pads, group=group))


@settings(max_examples=25)
@given(
    op=st.sampled_from(["MaxPool", "AveragePool"]),
    size=st.tuples(st.integers(4, 11), st.integers(4, 11)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padded=st.tuples(*[st.booleans()] * 4),
    ceil=st.booleans(),
    counted=st.booleans(),
)
def test_pool_windows(op, size, kernel, strides, padded, ceil, counted):
    pads = [min(1, kernel[number % 2] - 1) * flag for number, flag in enumerate(padded)]
    extra = {"count_include_pad": int(counted)} if op == "AveragePool" else {}
    shape, settings = (1, 3, *size), {"kernel_shape": kernel, "strides": strides, "pads": pads, "ceil_mode": int(ceil)}
    model = one(op, shape, opset=19, **settings, **extra)
    inferred = [dim.dim_value for dim in model.graph.output[0].type.tensor_type.shape.dim]
    if ceil and list(by_onnx(model, samples(model, count=1)).shape[1:]) != inferred:
        return  # onnx infers a last window that ONNX Runtime drops
    agrees(model)


@pytest.mark.parametrize("automatic", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_automatic_pads(automatic):
    agrees(one("Conv", (1, 3, 9, 8), {"w": f(4, 3, 4, 3)}, auto_pad=automatic, strides=[2, 2]))
    agrees(one("MaxPool", (1, 3, 9, 8), kernel_shape=[3, 2], auto_pad=automatic, strides=[2, 2]))


def test_attention_reads_keys_turned_and_needs_no_other_transpose():
    nodes = [
        helper.make_node("MatMul", ["x", "wq"], ["q0"]),
        helper.make_node("Reshape", ["q0", "heads"], ["q1"]),
        helper.make_node("Transpose", ["q1"], ["q"], perm=[0, 2, 1, 3]),
        helper.make_node("MatMul", ["x", "wk"], ["k0"]),
        helper.make_node("Reshape", ["k0", "heads"], ["k1"]),
        helper.make_node("Transpose", ["k1"], ["k"], perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["q", "k"], ["scores"]),
        helper.make_node("Add", ["scores", "mask"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "q"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["back", "whole"], ["y"]),
    ]
    mask = np.where(np.tri(6), 0.0, -np.inf).astype(np.float32)
    constants = {"wq": f(8, 8), "wk": f(8, 8), "heads": i(1, 6, 2, 4), "whole": i(1, 6, 8), "mask": mask}
    agrees(net(nodes, {"x": (1, 6, 8)}, constants))


def test_transposes_move_through_arithmetic_and_cancel():
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"]),
        helper.make_node("Transpose", ["a"], ["b"], perm=[0, 2, 3, 1]),
        helper.make_node("LayerNormalization", ["b", "s", "o"], ["c"]),
        helper.make_node("Add", ["c", "o"], ["d"]),
        helper.make_node("Transpose", ["d"], ["e"], perm=[0, 3, 1, 2]),
        helper.make_node("Add", ["a", "e"], ["g"]),
        helper.make_node("Conv", ["g", "w2"], ["y"]),
    ]
    constants = {"w1": f(5, 3, 3, 3), "w2": f(4, 5, 1, 1), "s": f(5), "o": f(5)}
    model = net(nodes, {"x": (1, 3, 6, 7)}, constants)
    agrees(model)
    assert "TRANSPOSE" not in lower(model, ["x"], ["y"]).counts()


def test_shuffled_channels_stay_channels_last():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Reshape", ["a", "split"], ["b"]),
        helper.make_node("Transpose", ["b"], ["c"], perm=[0, 2, 1, 3, 4]),
        helper.make_node("Reshape", ["c", "join"], ["d"]),
        helper.make_node("Conv", ["d", "v"], ["y"]),
    ]
    constants = {"w": f(6, 3, 1, 1), "v": f(2, 6, 3, 3), "split": i(1, 2, 3, 5, 6), "join": i(1, 6, 5, 6)}
    model = net(nodes, {"x": (1, 3, 5, 6)}, constants)
    agrees(model)
    assert lower(model, ["x"], ["y"]).counts()["TRANSPOSE"] == 1


def test_activations_and_stored_factors_go_into_the_operator_before():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Mul", ["a", "m"], ["b"]),
        helper.make_node("Add", ["b", "o"], ["c"]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("MatMul", ["d", "v"], ["e"]),
        helper.make_node("Add", ["e", "p"], ["g"]),
        helper.make_node("Relu", ["g"], ["y"]),
    ]
    constants = {"w": f(4, 3, 1, 1), "m": f(4, 1, 1), "o": f(4, 1, 1), "v": f(6, 5), "p": f(5)}
    model = net(nodes, {"x": (1, 3, 5, 6)}, constants)
    agrees(model)
    assert not {"MUL", "ADD", "RELU"} & {*lower(model).counts()}


def test_channels_last_borders_hold_the_same_values():
    model = one("Conv", (1, 3, 6, 5), {"w": f(4, 3, 3, 3)})
    data = samples(model)
    last = {name: np.ascontiguousarray(np.moveaxis(array, 1, -1)) for name, array in data.items()}
    graph = lower(model, ["x"], ["y"])
    assert list(graph.counts()) == ["CONV_2D"]
    found = by_litert(to_bytes(graph), last)
    np.testing.assert_allclose(np.moveaxis(found, -1, 2), by_onnx(model, data), atol=1e-4)


def test_what_cannot_be_lowered_is_named_all_together():
    nodes = [
        helper.make_node("Det", ["x"], ["a"], name="first"),
        helper.make_node("Unsqueeze", ["a", "axes"], ["b"], name="lost"),
        helper.make_node("MaxPool", ["z"], ["c"], name="second", kernel_shape=[2, 2], dilations=[2, 2]),
    ]
    model = net(nodes, {"x": (1, 2, 2), "z": (1, 1, 6, 6)}, {"axes": i(0)}, outputs=("b", "c"))
    with pytest.raises(Unsupported) as raised:
        lower(model)
    assert [finding.where for finding in raised.value.findings] == ["first", "second"]
    assert "Det" in str(raised.value.findings[0])


REFUSED = {
    "the last of equal values": one("ArgMax", ROWS, axis=1, select_last_index=1),
    "training": net(
        [helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y", "n", "w"], training_mode=1)],
        {"x": IMAGE},
        {"s": f(6), "b": f(6), "m": f(6), "v": np.abs(f(6))},
        outputs=("y", "n", "w"),
    ),
    "chance": net(
        [helper.make_node("Dropout", ["x", "r", "t"], ["y"])],
        {"x": ROWS},
        {"r": np.float32(0.5), "t": np.asarray(True)},
    ),
    "a scale that is computed": net(
        [helper.make_node("Resize", ["x", "", "s"], ["y"], mode="linear")], {"x": IMAGE, "s": (4,)}
    ),
    "eight bits that stand for the number 4.0": net(
        [
            helper.make_node("Cast", ["x"], ["a"], to=TensorProto.FLOAT8E4M3FN),
            helper.make_node("Cast", ["a"], ["y"], to=TensorProto.FLOAT),
        ],
        {"x": ROWS},
        opset=19,
    ),
    "a mask that is read": net([helper.make_node("Dropout", ["x"], ["z", "y"])], {"x": ROWS}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_wrong_is_refused(name):
    with pytest.raises(Unsupported):
        lower(REFUSED[name])


@pytest.mark.parametrize("op, kind", [("Add", "uint8"), ("Mul", "int8"), ("Max", "uint32"), ("MatMul", "int32")])
def test_types_that_no_kernel_computes_with_are_named(op, kind):
    """LiteRT ends the process on some of them."""
    model = net([helper.make_node(op, ["x", "x"], ["y"])], {"x": (4, 4)})
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = getattr(TensorProto, kind.upper())
    with pytest.raises(Unsupported, match=f"{op} of {kind} numbers has no TFLite operator: cast them to float32 first"):
        lower(model)


def test_zeros_are_normalised_to_zeros():
    model = one("LpNormalization", TOKENS, axis=-1, p=2)
    data = samples(model)
    data["x"][:, 0] = 0
    agrees(model, data)


def test_every_rule_is_a_sentence():
    assert len(nodes_by_family()) > 60
    assert [name for name, rule in nodes_by_family().items() if not rule.endswith(".") or "\n" in rule] == []
