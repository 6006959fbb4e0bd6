"""The nodes and tensors of a TFLite file as plain data, and which of them are the same in two files."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

from anynpu.graph.outline import NodeOutline, Outline, TensorOutline, is_shown
from anynpu.targets.flatbuffer import TfliteOperator, operators

CONVERSIONS = ("QUANTIZE", "DEQUANTIZE")
_IMAGE_KINDS = {
    "CONV_2D": 0,
    "DEPTHWISE_CONV_2D": 0,
    "AVERAGE_POOL_2D": 0,
    "MAX_POOL_2D": 0,
    "RESIZE_BILINEAR": 0,
    "RESIZE_NEAREST_NEIGHBOR": 0,
    "TRANSPOSE_CONV": 2,
}
"""Operators that TFLite defines on (N, H, W, C), each with the place of its image among the inputs."""
_KEEPS_AXES_NAMES = """
    QUANTIZE DEQUANTIZE ADD SUB MUL DIV PAD PADV2 MAXIMUM MINIMUM CONCATENATION SPLIT LOGISTIC TANH RELU RELU6
    RELU_N1_TO_1 LEAKY_RELU PRELU HARD_SWISH GELU ELU EXP SQRT RSQRT ABS NEG"""
_KEEPS_AXES = set(_KEEPS_AXES_NAMES.split())


def outline(path: Path) -> Outline:
    """Returns the operators and tensors of a .tflite file."""
    ops = operators(path)
    layouts = _layouts(ops)
    tensors = {
        t.name: TensorOutline(
            t.name,
            t.shape,
            t.dtype,
            layouts.get(t.name, ""),
            t.scale,
            t.zero_point,
            t.constant,
            value=t.name,
        )
        for op in ops
        for t in op.tensors
    }
    nodes = tuple(
        NodeOutline(
            op.name,
            op.custom_code or op.kind,
            tuple(t.name for t in op.inputs if t is not None and is_shown(tensors[t.name])),
            tuple(t.name for t in op.outputs),
            op.macs,
        )
        for op in ops
    )
    used = {name for node in nodes for name in (*node.inputs, *node.outputs)}
    return Outline(nodes, {name: tensor for name, tensor in tensors.items() if name in used})


def _layouts(ops: Sequence[TfliteOperator]) -> dict[str, str]:
    """Returns NHWC for every tensor of four axes that an image operator takes or makes, or that meets one unturned."""
    known = {
        t.name
        for op in ops
        if op.kind in _IMAGE_KINDS
        for t in (op.inputs[_IMAGE_KINDS[op.kind]], op.outputs[0])
        if t is not None
    }
    groups = [
        {t.name for t in op.tensors if len(t.shape) == 4 and not t.constant} for op in ops if op.kind in _KEEPS_AXES
    ]
    before = -1
    while len(known) != before:
        before = len(known)
        for group in groups:
            known |= group if group & known else set()
    return dict.fromkeys(known, "NHWC")


def same_tensors(path: Path, reference: Path) -> dict[str, str]:
    """Returns for each activation of one file the tensor of the other that means the same, as far as there is one.

    A quantiser keeps the operators and their order and puts conversions between: what stays of both files without the
    conversions is aligned by kind and shape. Layers that repeat look alike: where most operators of both files have the
    same names, as in ours, these decide. A conversion's output means what its input does.
    """
    mine, theirs = operators(path), operators(reference)
    ours, others = _plain(mine), _plain(theirs)
    pairs: dict[str, str] = {}
    shapes = [{op.outputs[0].name: op.outputs[0].shape for op in ops} for ops in (ours, others)]
    named = {name for name, shape in shapes[0].items() if shapes[1].get(name) == shape}
    if 2 * len(named) < len(others):
        named = set()

    def key(op: TfliteOperator) -> Hashable:
        result = op.outputs[0].name
        return result if result in named else (op.kind, *(t.shape for t in op.outputs))

    matcher = difflib.SequenceMatcher(None, [key(op) for op in ours], [key(op) for op in others], autojunk=False)
    for block in matcher.get_matching_blocks():
        for a, b in zip(ours[block.a :][: block.size], others[block.b :][: block.size], strict=True):
            pairs |= zip((t.name for t in a.outputs), (t.name for t in b.outputs), strict=True)
    borders = {t.name: t.shape for op in theirs for t in op.tensors if not t.constant}
    computed = {t.name for op in mine for t in op.outputs}
    for tensor in (t for op in mine for t in op.inputs if t is not None):
        if not tensor.constant and tensor.name not in computed and borders.get(tensor.name) == tensor.shape:
            pairs[tensor.name] = tensor.name
    for op in mine:
        source = op.inputs[0] if op.kind in CONVERSIONS else None
        if source is not None and source.name in pairs:
            pairs[op.outputs[0].name] = pairs[source.name]
    return pairs


def _plain(ops: Sequence[TfliteOperator]) -> list[TfliteOperator]:
    return [op for op in ops if op.kind not in CONVERSIONS]


def through_padding(path: Path, tensors: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """Returns the table with an entry for each PAD and conversion behind a tensor of it: they change no channel."""
    table = dict(tensors)
    for op in operators(path):
        source = op.inputs[0] if op.kind in ("PAD", "PADV2", *CONVERSIONS) else None
        if source is not None and source.name in table:
            table.setdefault(op.outputs[0].name, table[source.name])
    return table
