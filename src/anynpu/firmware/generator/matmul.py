"""BATCH_MATMUL, TRANSPOSE_CONV and ARG_MAX: sums and searches that have kernels of their own."""

from __future__ import annotations

import math

import numpy as np

from anynpu.firmware.generator.boxes import broadcast_strides, filled
from anynpu.firmware.generator.convolution import CHANNEL_BYTES
from anynpu.firmware.generator.fixedpoint import activation_range, quantize_multiplier
from anynpu.firmware.generator.graph import Graph, Node, scale_of, values, zero_of
from anynpu.firmware.generator.layer import Call, Constant, Layer, Tensor, Value, require
from anynpu.firmware.generator.types import C_TYPES, SUFFIX
from anynpu.firmware.generator.windows import SAME, padding, window


def batch_matmul(graph: Graph, node: Node) -> Layer:
    """BATCH_MATMUL."""
    a, b, out = graph.input(node, 0), graph.input(node, 1), graph.output(node)
    require(a.dtype == b.dtype == out.dtype and a.dtype in SUFFIX, f"has no kernel for {a.dtype} and {b.dtype}")
    rows, columns = out.shape[-2:]
    depth = a.shape[-2] if node.options.adjX else a.shape[-1]
    batch = out.shape[:-2]
    walks = []
    for tensor in (a, b):
        size = math.prod(tensor.shape[-2:])
        walks.append([s * size for s in broadcast_strides(tensor.shape[:-2], batch)])
    full, (stride1, stride2) = filled(batch, walks)
    multiplier, shift = quantize_multiplier(scale_of(a) * scale_of(b) / scale_of(out))
    params: dict[str, Value] = {
        "size": full,
        "stride1": stride1,
        "stride2": stride2,
        "rows": rows,
        "columns": columns,
        "depth": depth,
        "row_stride": 1 if node.options.adjX else depth,
        "left_stride": rows if node.options.adjX else 1,
        "column_stride": depth if node.options.adjY else 1,
        "right_stride": 1 if node.options.adjY else columns,
    }
    zeros: dict[str, Value] = {"zero1": zero_of(a), "zero2": zero_of(b), "out_zero": zero_of(out)}
    if a.dtype == "int16":
        require(not any(zeros.values()), "takes 16-bit tensors with zero point 0")
        require(shift < 8, "has an output scale far below those of its inputs")
    else:
        params |= zeros
    params |= {"multiplier": multiplier, "shift": shift}
    arguments = tuple(Tensor(n, C_TYPES[a.dtype]) for n in (node.inputs[0], node.inputs[1], node.outputs[0]))
    return Layer(node, (Call(f"matmul_{SUFFIX[a.dtype]}", params, arguments),))


def transpose_conv(graph: Graph, node: Node) -> Layer:
    """TRANSPOSE_CONV."""
    kernel, image, bias, out = graph.input(node, 1), graph.input(node, 2), graph.optional(node, 3), graph.output(node)
    require(image.dtype == out.dtype and image.dtype in ("int8", "int16"), f"has no kernel for {image.dtype}")
    require(kernel.constant and kernel.dtype == "int8", "takes constant int8 weights")
    require(not any(kernel.zero_point), "takes weights with zero point 0")
    require(bias is None or bias.constant, "takes a constant bias")
    count = kernel.shape[0]
    scales = kernel.scale if len(kernel.scale) == count else kernel.scale * count
    biases = [0] * count if bias is None else values(bias).reshape(-1).tolist()
    rows = [(b, *quantize_multiplier(scale_of(image) * s / scale_of(out))) for b, s in zip(biases, scales, strict=True)]
    activation = getattr(node.options, "fusedActivationFunction", 0)
    low, high = activation_range(out.dtype, activation, scale_of(out), zero_of(out))
    places, same = window(node, image.shape, out.shape, kernel.shape[1:3]), node.options.padding == SAME
    for axis, stride, pad in ((1, node.options.strideH, "pad_y"), (2, node.options.strideW, "pad_x")):
        # The padding is that of the convolution which would lead back from the output.
        back = -(-out.shape[axis] // stride) if same else (out.shape[axis] + stride - kernel.shape[axis]) // stride
        places[pad] = padding(same, out.shape[axis], kernel.shape[axis], stride, 1, back)
    wide, ctype = image.dtype == "int16", C_TYPES[image.dtype]
    packed, size = ("anynpu_wide_channel", 16) if wide else ("anynpu_channel", CHANNEL_BYTES)
    params: dict[str, Value] = {
        "window": places,
        "weights": Constant("weights", "int8_t", values(kernel).reshape(-1)),
        "channels": Constant("channels", packed, np.array(rows, np.int64), size),
        "low": low,
        "high": high,
    }
    if wide:
        require(zero_of(image) == 0 and zero_of(out) == 0, "takes 16-bit tensors with zero point 0")
        require(bias is None or bias.dtype == "int64", "takes 16-bit tensors with a bias of 64 bits")
        require(all(shift < 8 for _, _, shift in rows), "has an output scale far below that of its input")
    else:
        params |= {"in_zero": zero_of(image), "out_zero": zero_of(out)}
    arguments = (Tensor(node.inputs[2], ctype), Tensor(node.outputs[0], ctype))
    return Layer(node, (Call(f"transpose_conv_{SUFFIX[image.dtype]}", params, arguments),))


def _arg(graph: Graph, node: Node, sign: int) -> Layer:
    image, axis, out = graph.input(node, 0), graph.input(node, 1), graph.output(node)
    require(image.dtype == "int8" and out.dtype == "int32", f"turns {image.dtype} into {out.dtype}")
    require(axis.constant, "takes a constant axis")
    at = int(values(axis).reshape(-1)[0]) % len(image.shape)
    params: dict[str, Value] = {
        "outer": math.prod(image.shape[:at]),
        "axis": image.shape[at],
        "inner": math.prod(image.shape[at + 1 :]),
        "sign": sign,
    }
    arguments = (Tensor(node.inputs[0], "int8_t"), Tensor(node.outputs[0], "int32_t"))
    return Layer(node, (Call("arg_max_s8", params, arguments),))


def arg_max(graph: Graph, node: Node) -> Layer:
    """ARG_MAX."""
    return _arg(graph, node, 1)


def arg_min(graph: Graph, node: Node) -> Layer:
    """ARG_MIN."""
    return _arg(graph, node, -1)
