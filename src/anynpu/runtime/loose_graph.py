"""What each ONNX operator does to the axes of rows and tokens, and how it is freed of their numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anynpu.plugins import registering
from anynpu.runtime.loose_walk import Atom, Axis, NotLoose, Rule, Shape, Walk, make_node

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

LETTERS = {"batch": "B", "length": "L"}
FOREVER = np.iinfo(np.int64).max


SAME = frozenset(
    re.findall(
        r"\w+",
        "Relu LeakyRelu Elu Selu Celu Gelu Erf Exp Log Sqrt Neg Abs Reciprocal Sigmoid HardSigmoid HardSwish "
        "Tanh Sin Cos Softplus Softsign Sign Floor Ceil Round Not IsNaN IsInf Cast Clip Identity Dropout "
        "Softmax LogSoftmax Mish LayerNormalization BatchNormalization InstanceNormalization "
        "GroupNormalization LpNormalization LRN QuantizeLinear DequantizeLinear ThresholdedRelu CumSum "
        "QuickGelu",
    )
)
BROADCAST = frozenset(
    re.findall(
        r"\w+",
        "Add Sub Mul Div Pow Where And Or Xor Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mod PRelu Sum Mean",
    )
)
PIXELS = frozenset(
    re.findall(
        r"\w+",
        "Conv ConvTranspose MaxPool AveragePool GlobalAveragePool GlobalMaxPool LpPool Pad DepthToSpace "
        "SpaceToDepth Resize Upsample",
    )
)
REDUCE = frozenset(
    re.findall(
        r"\w+",
        "ReduceMean ReduceSum ReduceMax ReduceMin ReduceL1 ReduceL2 ReduceProd ReduceLogSumExp "
        "ReduceSumSquare ArgMax ArgMin",
    )
)


RULES: dict[str, Rule] = {}
"""What every operator does to the axes; one that is not here keeps a model as it was built."""


rule = registering(RULES)


def loosen(model: ModelProto, inputs: Sequence[str], axes: Sequence[str]) -> ModelProto:
    """Returns the model with the axes free, or raises NotLoose."""
    return Walk(model, inputs, [LETTERS[axis] for axis in axes], RULES).model()


def alike(one: Axis, other: Axis) -> bool:
    """Returns whether two axes have one size, whatever the numbers are."""
    letters = [sorted(atom for atom in axis if isinstance(atom, str)) for axis in (one, other)]
    sizes = [math.prod(atom for atom in axis if isinstance(atom, int)) for axis in (one, other)]
    return letters[0] == letters[1] and sizes[0] == sizes[1]


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    from onnx import helper

    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


@rule(*SAME)
def _same(walk: Walk, node: NodeProto) -> list[Shape]:
    if node.input[0] not in walk.shapes:
        raise NotLoose(f"{node.op_type} of a constant by a tensor")
    return [walk.shape(node.input[0])]


@rule(*BROADCAST)
def _broadcast(walk: Walk, node: NodeProto) -> list[Shape]:
    rank = max(len(walk.shape(name)) for name in node.input)
    out: Shape = [(1,)] * rank
    for name in sorted(node.input, key=lambda name: name not in walk.shapes):  # constants last
        shape = walk.shape(name)
        for place, axis in enumerate(shape, rank - len(shape)):
            if any(isinstance(atom, str) for atom in axis):
                out[place] = axis
            elif out[place] == (1,) and axis != (1,):
                # As long as the text, and no tensor says otherwise: a mask of positions.
                mask = name not in walk.shapes and walk.value(axis) == walk.values.get("L")
                out[place] = ("L",) if mask else axis
    for number, name in enumerate(node.input):
        if name not in walk.shapes:
            node.input[number] = _cut_constant(walk, name, out)
    return [out]


def _cut_constant(walk: Walk, name: str, out: Shape) -> str:
    shape = walk.shape(name)
    for place, axis in enumerate(shape):
        wanted = out[len(out) - len(shape) + place]
        if axis != (1,) and any(isinstance(atom, str) for atom in wanted):
            if wanted != ("L",) or walk.value(axis) != walk.values["L"]:
                raise NotLoose(f"{name} has a number for every row")
            name = walk.part(name, place, "L")
    return name


@rule("MatMul")
def _matmul(walk: Walk, node: NodeProto) -> list[Shape]:
    a, b = walk.shape(node.input[0]), walk.shape(node.input[1])
    if len(a) < 2 or len(b) < 2 or not alike(a[-1], b[-2]):
        raise NotLoose(f"MatMul {node.name}: inner axes {a[-1:]} and {b[-2:-1]}")
    rank = max(len(a), len(b))
    first, second = ([(1,)] * (rank - len(s)) + s[:-2] for s in (a, b))
    return [[x if x != (1,) else y for x, y in zip(first, second, strict=True)] + [a[-2], b[-1]]]


@rule("Gemm")
def _gemm(walk: Walk, node: NodeProto) -> list[Shape]:
    a, b = walk.shape(node.input[0]), walk.shape(node.input[1])
    a = a[::-1] if attribute(node, "transA", 0) else a
    b = b[::-1] if attribute(node, "transB", 0) else b
    if not alike(a[1], b[0]):
        raise NotLoose(f"Gemm {node.name}: inner axes {a[1]} and {b[0]}")
    if len(node.input) > 2 and len(walk.shape(node.input[2])) == 2 and walk.value(walk.shape(node.input[2])[0]) != 1:
        raise NotLoose(f"Gemm {node.name}: a bias for every row")
    return [[a[0], b[1]]]


@rule("Transpose")
def _transpose(walk: Walk, node: NodeProto) -> list[Shape]:
    shape = walk.shape(node.input[0])
    order = attribute(node, "perm", list(range(len(shape)))[::-1])
    return [[shape[place] for place in order]]


@rule("Reshape")
def _reshape(walk: Walk, node: NodeProto) -> list[Shape]:
    before, stated = walk.shape(node.input[0]), walk.static.get(node.output[0])
    if node.input[1] not in walk.constants or not stated or not all(stated):
        raise NotLoose(f"Reshape {node.name}: its shape is not fixed")
    after = regroup(before, stated, walk.values)
    node.input[1] = _target(walk, before, after)
    return [after]


def _target(walk: Walk, before: Shape, after: Shape) -> str:
    """Returns the shape that a Reshape is given: 0 copies an axis, one -1 is what remains, else it is computed."""
    numbers = []
    for place, axis in enumerate(after):
        free = any(isinstance(atom, str) for atom in axis)
        copied = free and place < len(before) and before[place] == axis
        numbers.append(0 if copied else -1 if free else walk.value(axis))
    if numbers.count(-1) <= 1:
        return walk._constant(np.array(numbers, np.int64))
    return walk.dims(after)


def regroup(before: Shape, stated: Sequence[int], values: dict[str, int]) -> Shape:
    """Returns the axes of a tensor after it was reshaped to the stated numbers."""
    atoms: list[Atom] = [atom for axis in before for atom in axis if atom != 1]
    after: Shape = []
    for wanted in stated:
        axis: list[Atom] = []
        rest = wanted
        while atoms and (rest > 1 or (not axis and isinstance(atoms[0], str) and values[atoms[0]] == 1)):
            atom = atoms[0]
            size = values[atom] if isinstance(atom, str) else atom
            if rest % size == 0:
                axis.append(atom)
                atoms.pop(0)
                rest //= size
            elif isinstance(atom, int) and atom % rest == 0:
                axis.append(rest)
                atoms[0], rest = atom // rest, 1
            else:
                raise NotLoose(f"{before} does not become {list(stated)}")
        if rest != 1:
            raise NotLoose(f"{before} does not become {list(stated)}")
        letters = any(isinstance(atom, str) for atom in axis)
        after.append(tuple(axis) if letters else (wanted,))
    if atoms:
        raise NotLoose(f"{before} does not become {list(stated)}")
    return after


@rule("Flatten")
def _flatten(walk: Walk, node: NodeProto) -> list[Shape]:
    shape = walk.shape(node.input[0])
    axis = attribute(node, "axis", 1) % (len(shape) + 1)
    sides = [tuple(a for each in part for a in each if a != 1) or (1,) for part in (shape[:axis], shape[axis:])]
    return [sides]


def _axes(walk: Walk, node: NodeProto, rank: int) -> list[int] | None:
    stated = attribute(node, "axes")
    if stated is None and len(node.input) > 1 and node.input[1]:
        stated = walk.numbers(node.input[1])
    return None if stated is None else sorted(axis % rank for axis in stated)


@rule("Unsqueeze")
def _unsqueeze(walk: Walk, node: NodeProto) -> list[Shape]:
    shape = list(walk.shape(node.input[0]))
    axes = attribute(node, "axes") or walk.numbers(node.input[1])
    for axis in sorted(axis % (len(shape) + len(axes)) for axis in axes):
        shape.insert(axis, (1,))
    return [shape]


@rule("Squeeze")
def _squeeze(walk: Walk, node: NodeProto) -> list[Shape]:
    shape = walk.shape(node.input[0])
    axes = _axes(walk, node, len(shape))
    if axes is None or any(isinstance(atom, str) for axis in axes for atom in shape[axis]):
        raise NotLoose(f"Squeeze {node.name} of the rows")
    return [[axis for place, axis in enumerate(shape) if place not in axes]]


@rule("Gather")
def _gather(walk: Walk, node: NodeProto) -> list[Shape]:
    data, indices = walk.shape(node.input[0]), walk.shape(node.input[1])
    axis = attribute(node, "axis", 0) % len(data)
    if node.input[0] in walk.shapes and node.input[1] not in walk.constants:
        raise NotLoose(f"Gather {node.name} by computed numbers")
    return [[*data[:axis], *indices, *data[axis + 1 :]]]


@rule("GatherND")
def _gather_nd(walk: Walk, node: NodeProto) -> list[Shape]:
    """Gathers that only spread a tensor over new axes, as those of attention masks, become a Reshape and an Expand."""
    data, indices = walk.shape(node.input[0]), walk.constants.get(node.input[1])
    if indices is None or attribute(node, "batch_dims", 0) or indices.shape[-1] != len(data) or indices.ndim < 2:
        raise NotLoose(f"GatherND {node.name}")
    out: Shape = [(1,)] * (indices.ndim - 1)
    taken: set[int] = set()
    for place, axis in enumerate(data):
        along = _runs_along(indices[..., place], walk.value(axis))
        if along is None or along <= max(taken, default=-1):
            raise NotLoose(f"GatherND {node.name}")
        out[along] = axis
        taken.add(along)
    turned = f"loose_g{len(walk.nodes)}"
    walk.nodes.append(make_node("Reshape", [node.input[0], _target(walk, data, out)], [turned]))
    tokens = walk.values.get("L")
    spread: Shape = [
        axis if place in taken else ("L",) if size == tokens else (size,)
        for place, (axis, size) in enumerate(zip(out, indices.shape, strict=False))
    ]
    node.op_type = "Expand"
    del node.attribute[:]
    node.input[0], node.input[1] = turned, walk.dims(spread)
    return [spread]


def _runs_along(indices: Any, size: int) -> int | None:
    """Returns the axis along which numbers count up from 0, all else equal; of a single one the first axis."""
    if size == 1:
        return 0 if not indices.any() else None
    for axis in range(indices.ndim):
        counting = np.arange(size).reshape([-1 if place == axis else 1 for place in range(indices.ndim)])
        if indices.shape[axis] == size and (indices == counting).all():
            return axis
    return None


@rule("Concat")
def _concat(walk: Walk, node: NodeProto) -> list[Shape]:
    shapes = [walk.shape(name) for name in node.input]
    axis = attribute(node, "axis") % len(shapes[0])
    out = list(shapes[0])
    for place in range(len(out)):
        if place == axis:
            out[place] = (sum(walk.value(shape[place]) for shape in shapes),)
            if any(isinstance(atom, str) for shape in shapes for atom in shape[place]):
                raise NotLoose(f"Concat {node.name} of rows or tokens")
        else:
            out[place] = next((s[place] for s in shapes if isinstance(s[place][0], str)), out[place])
    for number, (name, shape) in enumerate(zip(node.input, shapes, strict=True)):
        wanted = [*out[:axis], shape[axis], *out[axis + 1 :]]
        if name not in walk.shapes and wanted != shape:  # a constant, such as a class token, once for every row
            if any(x != y and walk.value(x) != 1 for x, y in zip(shape, wanted, strict=True)):
                raise NotLoose(f"Concat {node.name}")
            spread = f"loose_e{len(walk.nodes)}_{number}"
            walk.nodes.append(make_node("Expand", [name, walk.dims(wanted)], [spread]))
            node.input[number] = spread
    return [out]


@rule("Slice")
def _slice(walk: Walk, node: NodeProto) -> list[Shape]:
    if len(node.input) < 3:
        raise NotLoose(f"Slice {node.name} of an old form")
    shape, stated = list(walk.shape(node.input[0])), walk.static.get(node.output[0])
    starts, ends = walk.numbers(node.input[1]), walk.numbers(node.input[2])
    axes = walk.numbers(node.input[3]) if len(node.input) > 3 else list(range(len(starts)))
    if not stated or not all(stated):
        raise NotLoose(f"Slice {node.name}: its shape is not fixed")
    for number, (start, end, axis) in enumerate(zip(starts, ends, axes, strict=True)):
        axis %= len(shape)
        if not any(isinstance(atom, str) for atom in shape[axis]):
            shape[axis] = (stated[axis],)
        elif start == 0 and end >= walk.value(shape[axis]):
            ends[number] = FOREVER
        elif 0 <= start < end and end - start == stated[axis] and "B" not in shape[axis]:
            shape[axis] = (stated[axis],)
        else:
            raise NotLoose(f"Slice {node.name} of rows or tokens")
    node.input[2] = walk._constant(np.array(ends, np.int64))
    return [shape]


@rule(*REDUCE)
def _reduce(walk: Walk, node: NodeProto) -> list[Shape]:
    shape = walk.shape(node.input[0])
    single = attribute(node, "axis")
    if node.op_type in ("ArgMax", "ArgMin"):
        axes: list[int] | None = [(single or 0) % len(shape)]
    else:
        axes = _axes(walk, node, len(shape))
    if axes is None or any("B" in shape[axis] for axis in axes):
        raise NotLoose(f"{node.op_type} {node.name} over the rows")
    if attribute(node, "keepdims", 1):
        return [[(1,) if place in axes else axis for place, axis in enumerate(shape)]]
    return [[axis for place, axis in enumerate(shape) if place not in axes]]


@rule(*PIXELS)
def _pixels(walk: Walk, node: NodeProto) -> list[Shape]:
    shape, stated = walk.shape(node.input[0]), walk.static.get(node.output[0])
    fixed = node.op_type in ("Resize", "Upsample") and len(node.input) > 3 and node.input[3]
    if shape[0] != ("B",) or not stated or not all(stated) or fixed or node.input[0] not in walk.shapes:
        raise NotLoose(f"{node.op_type} {node.name}")
    if any(isinstance(atom, str) for axis in shape[1:] for atom in axis):
        raise NotLoose(f"{node.op_type} {node.name} over tokens")
    return [[("B",), *((dim,) for dim in stated[1:])]] * len(node.output)


@rule("Split")
def _split(walk: Walk, node: NodeProto) -> list[Shape]:
    shape = walk.shape(node.input[0])
    axis = attribute(node, "axis", 0) % len(shape)
    if any(isinstance(atom, str) for atom in shape[axis]):
        raise NotLoose(f"Split {node.name} of rows or tokens")
    return [[*shape[:axis], (walk.static[name][axis],), *shape[axis + 1 :]] for name in node.output]


@rule("Expand")
def _expand(walk: Walk, node: NodeProto) -> list[Shape]:
    shape, stated = walk.shape(node.input[0]), walk.static.get(node.output[0])
    if not stated or not all(stated):
        raise NotLoose(f"Expand {node.name}: its shape is not fixed")
    padded: Shape = [(1,)] * (len(stated) - len(shape)) + list(shape)
    out = [axis if isinstance(axis[0], str) else (dim,) for axis, dim in zip(padded, stated, strict=True)]
    node.input[1] = walk.dims(out)
    return [out]


@rule("OneHot")
def _one_hot(walk: Walk, node: NodeProto) -> list[Shape]:
    shape, depth = walk.shape(node.input[0]), walk.numbers(node.input[1])[0]
    axis = attribute(node, "axis", -1) % (len(shape) + 1)
    if "L" in walk.values:
        raise NotLoose("OneHot")
    return [[*shape[:axis], (depth,), *shape[axis:]]]
