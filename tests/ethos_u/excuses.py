"""Where Vela 5.2.0 compiles to something else than TFLite-Micro computes; docs/ethos-u.md has a model of each."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anynpu.targets.flatbuffer import TfliteOperator, operators

TABLES = ("LEAKY_RELU", "LOGISTIC", "TANH", "HARD_SWISH", "RSQRT", "QUANTIZE", "RELU6", "ABS", "SQUARED_DIFFERENCE")
SLICES = ("SPLIT", "SPLIT_V", "SLICE", "STRIDED_SLICE", "UNPACK")
SAME = 0
COMPARISONS = ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL")


def excuse(model: Path, chip: str) -> str:
    """Returns why a graph may differ, or an empty string."""
    found = operators(model)
    return next((reason for op in found if (reason := _reason(op, found, chip))), "")


def _reason(op: TfliteOperator, graph: tuple[TfliteOperator, ...], chip: str) -> str:
    source = op.inputs[0]
    if op.kind == "SUM":
        return "SUM is rounded by fixed point, TFLite-Micro rounds by floating point"
    if op.kind in ("REDUCE_MIN", "REDUCE_MAX"):
        return "reductions to a shape of fewer axes read one row alone"
    if op.kind == "CONV_2D" and source and source.shape[0] > 1 and source.shape[3] != op.inputs[1].shape[3]:
        return "convolution in groups with several batches reads the first batch alone"
    if op.kind == "BATCH_MATMUL" and any(o.kind in SLICES for o in graph):
        return "a matrix product of a slice reads what was not sliced"
    if "u85" in chip and op.kind == "RESIZE_NEAREST_NEIGHBOR" and not op.options.halfPixelCenters:
        return "RESIZE_NEAREST_NEIGHBOR is computed with half pixel centres"
    if chip in ("ethos-u55-32", "ethos-u55-64") and op.kind == "TRANSPOSE" and any(o.kind in TABLES for o in graph):
        return "the table of an operator fused with TRANSPOSE is loaded behind the end of the on-chip memory"
    before = {made.name: o.kind for o in graph for made in o.outputs if made}
    if op.kind == "DEPTHWISE_CONV_2D" and op.options.depthMultiplier > 1:
        if before.get(source.name) in SLICES and op.options.padding == SAME:
            return "a depthwise convolution with a multiplier pads a slice at its end alone"
        if any(o.kind in ("PAD", "PADV2") and o.inputs[0].name == op.outputs[0].name for o in graph):
            return "padding of what a depthwise convolution with a multiplier gives is written over it"
    if op.kind == "TRANSPOSE_CONV" and op.options.padding == SAME:
        kernel, strides = op.inputs[1].shape[1:3], (op.options.strideH, op.options.strideW)
        if any(k < s for k, s in zip(kernel, strides, strict=True)):
            return "a transposed convolution whose kernel is smaller than its stride begins too late"
    if "u85" in chip and op.kind == "TRANSPOSE" and any(o.kind in TABLES for o in graph):
        return "an operator with a table fused with TRANSPOSE writes behind the end of its memory"
    if op.kind == "SOFTMAX" and source.dtype == "int16" and source.scale[0] * op.options.beta > 10:
        return "TFLite-Micro's own SOFTMAX of 16 bits overflows at such a scale"
    if op.kind == "MIRROR_PAD" and _pads_outside_of_pictures(op):
        return "padding of channels and batches is left out"
    if op.kind == "TRANSPOSE" and source and source.dtype == "uint8" and "u85" not in chip:
        return "uint8 is moved as int8 and clipped there"
    if op.kind in COMPARISONS and len({(*np.atleast_1d(t.scale), *np.atleast_1d(t.zero_point)) for t in op.inputs}) > 1:
        return "tensors of different scales are compared without them"
    bias = op.inputs[2] if len(op.inputs) > 2 else None
    if "u85" in chip and source and source.dtype == "int16" and bias and bias.dtype == "int32":
        return "16-bit inputs with a 32-bit bias: the scale is cut to 15 bits"
    if op.kind in ("LOGISTIC", "TANH") and source and np.max(source.scale) > 1:
        return "TFLite-Micro's own range of LOGISTIC and TANH is empty at such a scale"
    return ""


def _pads_outside_of_pictures(op: TfliteOperator) -> bool:
    """Returns whether another axis than the second and the third from the end is padded."""
    pads = op.inputs[1].data
    return pads is not None and any(pads[axis].any() for axis in range(len(pads)) if axis - len(pads) not in (-2, -3))
