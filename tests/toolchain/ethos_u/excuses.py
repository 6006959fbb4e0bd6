"""Where Vela 5.2.0 compiles to something else than TFLite-Micro computes, and `emulated.py` does not say which values:
they depend on memory that nothing has written, or TFLite-Micro's own are wrong. docs/ethos-u.md has a model of each.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from emulated import SLICES, pads_outside_of_pictures

from anynpu.targets.flatbuffer import TfliteOperator, operators

TABLES = ("LEAKY_RELU", "LOGISTIC", "TANH", "HARD_SWISH", "RSQRT", "QUANTIZE", "RELU6", "ABS", "SQUARED_DIFFERENCE")
LAYING = ("CONCATENATION", "PAD", "PADV2")
READ_UNCUT = ("REDUCE_MAX", "REDUCE_MIN", "SUM", "TRANSPOSE_CONV")
PAIRING = ("ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE")
WIDE_TABLES = ("RSQRT", "EXP", "LOG")
READ_BY_WINDOWS = ("CONV_2D", "DEPTHWISE_CONV_2D", "MAX_POOL_2D", "AVERAGE_POOL_2D", "SOFTMAX", "BATCH_MATMUL")


def excuse(model: Path, chip: str) -> str:
    """Returns why the values of a graph may differ, or an empty string."""
    graph = operators(model)
    if _same_weights(graph):
        return "of layers with the same weights and scales all have the biases of the first"
    return next((reason for op in graph if (reason := _reason(op, graph, chip))), "")


def _same_weights(graph: tuple[TfliteOperator, ...]) -> bool:
    layers = [op for op in graph if op.kind in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV")]
    contents = [op.inputs[1].data for op in layers if op.inputs[1] and op.inputs[1].constant]
    return len({bytes(each) for each in contents}) < len(contents)


def excused_refusal(model: Path, chip: str) -> str:
    """Returns why a stream may be refused for where it writes, or an empty string."""
    graph = operators(model)
    kinds = {op.kind for op in graph}
    if chip in ("ethos-u55-32", "ethos-u55-64") and "TRANSPOSE" in kinds and kinds & set(TABLES):
        return "the table of an operator fused with TRANSPOSE is loaded behind the end of the on-chip memory"
    return next((reason for op in graph if (reason := _behind_the_end(op, graph, chip))), "")


def _behind_the_end(op: TfliteOperator, graph: tuple[TfliteOperator, ...], chip: str) -> str:
    table = any(o.kind in TABLES and o.outputs[0].name == op.inputs[0].name for o in graph if op.inputs[0])
    if "u85" in chip and op.kind == "TRANSPOSE" and table:
        return "an operator with a table fused with TRANSPOSE writes behind the end of its memory"
    return ""


def _reason(op: TfliteOperator, graph: tuple[TfliteOperator, ...], chip: str) -> str:
    source = op.inputs[0]
    before = {made.name: o.kind for o in graph for made in o.outputs if made}
    if op.kind == "BATCH_MATMUL" and "u85" not in chip and any(before.get(t.name) in SLICES for t in op.inputs):
        return "a matrix product of a slice reads what was not sliced"
    if op.kind in READ_UNCUT and any(before.get(t.name) in SLICES for t in op.inputs if t):
        return "a slice is read as if it were the tensor it was cut from"
    if op.kind == "RESHAPE" and "u85" in chip and len(op.outputs[0].shape) > 4 and before.get(source.name) in SLICES:
        return "half of a slice is read where a RESHAPE gives it a fifth axis"
    if op.kind in PAIRING and "u85" not in chip:
        if any(before.get(t.name) == "STRIDED_SLICE" for t in op.inputs):
            return "what a slice steps over is taken for an axis that broadcasts"
        if _viewed(op, graph) and all(np.prod(t.shape) < np.prod(op.outputs[0].shape) for t in op.inputs):
            return "an operand is spread in another shape of its tensor"
    if op.kind in LAYING and any(_in_pieces(before.get(t.name, ""), chip) for t in op.inputs if t):
        return "an operator that Vela computes in pieces writes them as if it were the tensor they are laid into"
    if before.get(source.name if source else "") == "STRIDED_SLICE" and op.kind in READ_BY_WINDOWS:
        return "the rows that a slice steps over are taken for rows of the window"
    if op.kind == "RESHAPE" and before.get(source.name) == "MIRROR_PAD":
        return "a mirrored border is laid where the shape behind a RESHAPE has it"
    if op.kind == "RESHAPE" and before.get(source.name) == "REDUCE_MIN" and "u85" not in chip:
        return "the last operation of a minimum has the shape behind a RESHAPE"
    if op.kind == "RESHAPE" and before.get(source.name) in SLICES and "u85" in chip and len(op.outputs[0].shape) > 4:
        return "of a slice that has five axes behind a RESHAPE only the first row is read"
    if op.kind == "SOFTMAX" and source.dtype == "int16" and source.scale[0] * op.options.beta > 10:
        return "TFLite-Micro's own SOFTMAX of 16 bits overflows at such a scale"
    if op.kind in WIDE_TABLES and source.dtype == "int16" and "u85" in chip and _behind_a_table(op, graph):
        return "the table of the second operator of a chain is loaded over that of the first"
    if pads_outside_of_pictures(op):
        return "padding of channels and batches is left out"
    if op.kind in ("LOGISTIC", "TANH") and source.dtype == "int16" and np.max(source.scale) > 1:
        return "TFLite-Micro's own range of LOGISTIC and TANH is empty at such a scale"
    return _behind_the_end(op, graph, chip)


def _behind_a_table(op: TfliteOperator, graph: tuple[TfliteOperator, ...]) -> bool:
    """Returns whether element-wise operators alone lie between an operator and one with a table."""
    makers = {made.name: o for o in graph for made in o.outputs}
    waiting = [makers[t.name] for t in op.inputs if t and t.name in makers]
    while waiting:
        maker = waiting.pop()
        if maker.kind in WIDE_TABLES:
            return True
        if maker.kind in PAIRING:
            waiting += [makers[t.name] for t in maker.inputs if t and t.name in makers]
    return False


def _viewed(op: TfliteOperator, graph: tuple[TfliteOperator, ...]) -> bool:
    """Returns whether other shapes of the first operand's values are in the graph."""
    return any(o.kind == "RESHAPE" and op.inputs[0].name in (o.inputs[0].name, o.outputs[0].name) for o in graph)


def _in_pieces(kind: str, chip: str) -> bool:
    narrow = ("TRANSPOSE_CONV",) if "u85" in chip else ("RESIZE_BILINEAR", "BATCH_MATMUL")
    return kind in ("REDUCE_MAX", "REDUCE_MIN", "DEPTHWISE_CONV_2D", *narrow)
