"""Follows the axes of rows and tokens through an ONNX graph, and frees what is fixed to their numbers.

An axis is the product of its atoms in row-major order: whole numbers, and the letters B (rows) and L (tokens). So
[B, 128 tokens, 384] reshaped to [128, 384] is [B L, 384], and to [1, 128, 12, 32] again is [B, L, 12, 32].
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

Atom = int | str
Axis = tuple[Atom, ...]
Shape = list[Axis]
LETTERS = {"batch": "B", "length": "L"}
FOREVER = np.iinfo(np.int64).max


class NotLoose(Exception):  # an outcome, not a failure
    """Says what in the graph is fixed."""


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


def make_node(kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> NodeProto:
    from onnx import helper

    return helper.make_node(kind, inputs, outputs, **attributes)


def loosen(model: ModelProto, inputs: Sequence[str], axes: Sequence[str]) -> ModelProto:
    """Returns the model with the axes free, or raises NotLoose."""
    return _Walk(model, inputs, [LETTERS[axis] for axis in axes]).model()


class _Walk:
    """One walk through a graph."""

    def __init__(self, model: ModelProto, inputs: Sequence[str], letters: Sequence[str]) -> None:
        from onnx import numpy_helper, shape_inference

        self._model = shape_inference.infer_shapes(model, data_prop=True)
        graph = self._model.graph
        self.constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        known = [*graph.value_info, *graph.input, *graph.output]
        self.static = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in known}
        self.static |= {name: list(array.shape) for name, array in self.constants.items()}
        self.first, self.letters = inputs[0], letters
        shape = self.static[inputs[0]]
        self.values = dict(zip(letters, shape, strict=False))
        self.shapes: dict[str, Shape] = {}
        for name in inputs:
            dims = self.static[name]
            self.shapes[name] = [(letters[i],) if i < len(letters) else (dim,) for i, dim in enumerate(dims)]
        self.nodes: list[NodeProto] = []
        self._made: dict[Any, str] = {}

    def model(self) -> ModelProto:
        from onnx import numpy_helper

        graph = self._model.graph
        for node in graph.node:
            self._visit(node)
        for value in (*graph.input, *graph.output):
            shape = self.shapes.get(value.name)
            if shape is None:
                raise NotLoose(f"{value.name} does not depend on the rows")
            self._declare(value, shape)
        del graph.node[:], graph.value_info[:]
        graph.node.extend(self._sizes() + self.nodes)
        del graph.initializer[:]
        graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in self.constants.items())
        return self._model

    def _declare(self, value: Any, shape: Shape) -> None:
        if not shape or shape[0] != ("B",) or any("B" in axis for axis in shape[1:]):
            raise NotLoose(f"the first axis of {value.name} is not the rows")
        for dim, axis in zip(value.type.tensor_type.shape.dim, shape, strict=True):
            if any(isinstance(atom, str) for atom in axis):
                dim.dim_param = "".join(map(str, axis))

    def _sizes(self) -> list[NodeProto]:
        """Returns the nodes that tell the numbers of rows and tokens, where something asks for them."""
        if not any(key[0] == "shape" for key in self._made if isinstance(key, tuple)):
            return []
        nodes = [make_node("Shape", [self.first], ["loose_shape"])]
        for place, letter in enumerate(self.letters):
            at = self._constant(np.array([place], np.int64))
            nodes.append(make_node("Gather", ["loose_shape", at], [f"loose_{letter}"]))
        return nodes

    def _visit(self, node: NodeProto) -> None:
        from onnx import numpy_helper

        if node.op_type == "Constant" and node.attribute[0].name == "value":
            self.constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
            self.static[node.output[0]] = list(self.constants[node.output[0]].shape)
            return
        if not any(name in self.shapes for name in node.input):
            self.nodes.append(node)  # made of constants alone
            return
        rule = RULES.get(node.op_type)
        if rule is None or any(attribute.type == 5 for attribute in node.attribute):
            raise NotLoose(f"{node.op_type} is not known")
        fresh = type(node)()
        fresh.CopyFrom(node)
        shapes = rule(self, fresh)
        self.nodes.append(fresh)
        for name, shape in zip(node.output, shapes, strict=False):
            if name:
                self.shapes[name] = shape
                self._check(node, name, shape)

    def _check(self, node: NodeProto, name: str, shape: Shape) -> None:
        stated = self.static.get(name)
        found = [self.value(axis) for axis in shape]
        if stated is not None and all(stated) and stated != found:
            raise NotLoose(f"{node.op_type} {node.name}: {found} was expected, the model has {stated}")

    def value(self, axis: Axis) -> int:
        return math.prod(self.values[atom] if isinstance(atom, str) else atom for atom in axis)

    def shape(self, name: str) -> Shape:
        if name in self.shapes:
            return self.shapes[name]
        if name not in self.static:
            raise NotLoose(f"the shape of {name} is not known")
        return [(dim,) for dim in self.static[name]]

    def numbers(self, name: str) -> list[int]:
        if name not in self.constants:
            raise NotLoose(f"{name} is computed")
        return [int(number) for number in self.constants[name].ravel()]

    def _constant(self, array: Any) -> str:
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._made:
            self._made[key] = f"loose_c{len(self._made)}"
            self.constants[self._made[key]] = array
        return self._made[key]

    def dims(self, shape: Shape) -> str:
        """Returns a tensor that holds a shape."""
        if not any(isinstance(atom, str) for axis in shape for atom in axis):
            return self._constant(np.array([self.value(axis) for axis in shape], np.int64))
        key = ("shape", tuple(shape))
        if key not in self._made:
            self._made[key] = name = f"loose_d{len(self._made)}"
            parts = [self._size(axis) for axis in shape]
            self.nodes.append(make_node("Concat", parts, [name], axis=0))
        return self._made[key]

    def _size(self, axis: Axis) -> str:
        letters = [atom for atom in axis if isinstance(atom, str)]
        number = math.prod(atom for atom in axis if isinstance(atom, int))
        if not letters:
            return self._constant(np.array([number], np.int64))
        key = ("shape", axis)
        if key not in self._made:
            name = f"loose_{letters[0]}"
            factors = [f"loose_{letter}" for letter in letters[1:]]
            factors += [self._constant(np.array([number], np.int64))] if number != 1 else []
            for factor in factors:
                product = f"loose_p{len(self.nodes)}_{len(self._made)}"
                self.nodes.append(make_node("Mul", [name, factor], [product]))
                name = product
            self._made[key] = name
        return self._made[key]

    def part(self, name: str, axis: int, letter: str) -> str:
        """Returns a constant that is as long as the text, cut to the text's length."""
        key = ("part", name, axis)
        if key not in self._made:
            self._made[key] = fresh = f"loose_s{len(self._made)}"
            zero, at = self._constant(np.array([0], np.int64)), self._constant(np.array([axis], np.int64))
            self.nodes.append(make_node("Slice", [name, zero, self._size((letter,)), at], [fresh]))
        return self._made[key]


def alike(one: Axis, other: Axis) -> bool:
    """Returns whether two axes have one size, whatever the numbers are."""
    letters = [sorted(atom for atom in axis if isinstance(atom, str)) for axis in (one, other)]
    sizes = [math.prod(atom for atom in axis if isinstance(atom, int)) for axis in (one, other)]
    return letters[0] == letters[1] and sizes[0] == sizes[1]


Rule = Callable[[_Walk, "NodeProto"], list[Shape]]


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    from onnx import helper

    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def _same(walk: _Walk, node: NodeProto) -> list[Shape]:
    if node.input[0] not in walk.shapes:
        raise NotLoose(f"{node.op_type} of a constant by a tensor")
    return [walk.shape(node.input[0])]


def _broadcast(walk: _Walk, node: NodeProto) -> list[Shape]:
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


def _cut_constant(walk: _Walk, name: str, out: Shape) -> str:
    shape = walk.shape(name)
    for place, axis in enumerate(shape):
        wanted = out[len(out) - len(shape) + place]
        if axis != (1,) and any(isinstance(atom, str) for atom in wanted):
            if wanted != ("L",) or walk.value(axis) != walk.values["L"]:
                raise NotLoose(f"{name} has a number for every row")
            name = walk.part(name, place, "L")
    return name


def _matmul(walk: _Walk, node: NodeProto) -> list[Shape]:
    a, b = walk.shape(node.input[0]), walk.shape(node.input[1])
    if len(a) < 2 or len(b) < 2 or not alike(a[-1], b[-2]):
        raise NotLoose(f"MatMul {node.name}: inner axes {a[-1:]} and {b[-2:-1]}")
    rank = max(len(a), len(b))
    first, second = ([(1,)] * (rank - len(s)) + s[:-2] for s in (a, b))
    return [[x if x != (1,) else y for x, y in zip(first, second, strict=True)] + [a[-2], b[-1]]]


def _gemm(walk: _Walk, node: NodeProto) -> list[Shape]:
    a, b = walk.shape(node.input[0]), walk.shape(node.input[1])
    a = a[::-1] if attribute(node, "transA", 0) else a
    b = b[::-1] if attribute(node, "transB", 0) else b
    if not alike(a[1], b[0]):
        raise NotLoose(f"Gemm {node.name}: inner axes {a[1]} and {b[0]}")
    if len(node.input) > 2 and len(walk.shape(node.input[2])) == 2 and walk.value(walk.shape(node.input[2])[0]) != 1:
        raise NotLoose(f"Gemm {node.name}: a bias for every row")
    return [[a[0], b[1]]]


def _transpose(walk: _Walk, node: NodeProto) -> list[Shape]:
    shape = walk.shape(node.input[0])
    order = attribute(node, "perm", list(range(len(shape)))[::-1])
    return [[shape[place] for place in order]]


def _reshape(walk: _Walk, node: NodeProto) -> list[Shape]:
    before, stated = walk.shape(node.input[0]), walk.static.get(node.output[0])
    if node.input[1] not in walk.constants or not stated or not all(stated):
        raise NotLoose(f"Reshape {node.name}: its shape is not fixed")
    after = regroup(before, stated, walk.values)
    node.input[1] = _target(walk, before, after)
    return [after]


def _target(walk: _Walk, before: Shape, after: Shape) -> str:
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


def _flatten(walk: _Walk, node: NodeProto) -> list[Shape]:
    shape = walk.shape(node.input[0])
    axis = attribute(node, "axis", 1) % (len(shape) + 1)
    sides = [tuple(a for each in part for a in each if a != 1) or (1,) for part in (shape[:axis], shape[axis:])]
    return [sides]


def _axes(walk: _Walk, node: NodeProto, rank: int) -> list[int] | None:
    given = attribute(node, "axes")
    if given is None and len(node.input) > 1 and node.input[1]:
        given = walk.numbers(node.input[1])
    return None if given is None else sorted(axis % rank for axis in given)


def _unsqueeze(walk: _Walk, node: NodeProto) -> list[Shape]:
    shape = list(walk.shape(node.input[0]))
    given = attribute(node, "axes") or walk.numbers(node.input[1])
    for axis in sorted(axis % (len(shape) + len(given)) for axis in given):
        shape.insert(axis, (1,))
    return [shape]


def _squeeze(walk: _Walk, node: NodeProto) -> list[Shape]:
    shape = walk.shape(node.input[0])
    axes = _axes(walk, node, len(shape))
    if axes is None or any(isinstance(atom, str) for axis in axes for atom in shape[axis]):
        raise NotLoose(f"Squeeze {node.name} of the rows")
    return [[axis for place, axis in enumerate(shape) if place not in axes]]


def _gather(walk: _Walk, node: NodeProto) -> list[Shape]:
    data, indices = walk.shape(node.input[0]), walk.shape(node.input[1])
    axis = attribute(node, "axis", 0) % len(data)
    if node.input[0] in walk.shapes and node.input[1] not in walk.constants:
        raise NotLoose(f"Gather {node.name} by computed numbers")
    return [[*data[:axis], *indices, *data[axis + 1 :]]]


def _gather_nd(walk: _Walk, node: NodeProto) -> list[Shape]:
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


def _concat(walk: _Walk, node: NodeProto) -> list[Shape]:
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


def _slice(walk: _Walk, node: NodeProto) -> list[Shape]:
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


def _reduce(walk: _Walk, node: NodeProto) -> list[Shape]:
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


def _pixels(walk: _Walk, node: NodeProto) -> list[Shape]:
    shape, stated = walk.shape(node.input[0]), walk.static.get(node.output[0])
    fixed = node.op_type in ("Resize", "Upsample") and len(node.input) > 3 and node.input[3]
    if shape[0] != ("B",) or not stated or not all(stated) or fixed or node.input[0] not in walk.shapes:
        raise NotLoose(f"{node.op_type} {node.name}")
    if any(isinstance(atom, str) for axis in shape[1:] for atom in axis):
        raise NotLoose(f"{node.op_type} {node.name} over tokens")
    return [[("B",), *((dim,) for dim in stated[1:])]] * len(node.output)


def _split(walk: _Walk, node: NodeProto) -> list[Shape]:
    shape = walk.shape(node.input[0])
    axis = attribute(node, "axis", 0) % len(shape)
    if any(isinstance(atom, str) for atom in shape[axis]):
        raise NotLoose(f"Split {node.name} of rows or tokens")
    return [[*shape[:axis], (walk.static[name][axis],), *shape[axis + 1 :]] for name in node.output]


def _expand(walk: _Walk, node: NodeProto) -> list[Shape]:
    shape, stated = walk.shape(node.input[0]), walk.static.get(node.output[0])
    if not stated or not all(stated):
        raise NotLoose(f"Expand {node.name}: its shape is not fixed")
    padded: Shape = [(1,)] * (len(stated) - len(shape)) + list(shape)
    out = [axis if isinstance(axis[0], str) else (dim,) for axis, dim in zip(padded, stated, strict=True)]
    node.input[1] = walk.dims(out)
    return [out]


def _one_hot(walk: _Walk, node: NodeProto) -> list[Shape]:
    shape, depth = walk.shape(node.input[0]), walk.numbers(node.input[1])[0]
    axis = attribute(node, "axis", -1) % (len(shape) + 1)
    if "L" in walk.values:
        raise NotLoose("OneHot")
    return [[*shape[:axis], (depth,), *shape[axis:]]]


RULES: dict[str, Rule] = {
    **dict.fromkeys(SAME, _same),
    **dict.fromkeys(BROADCAST, _broadcast),
    **dict.fromkeys(PIXELS, _pixels),
    **dict.fromkeys(REDUCE, _reduce),
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Concat": _concat,
    "Slice": _slice,
    "Split": _split,
    "Expand": _expand,
    "OneHot": _one_hot,
}
"""What every operator does to the axes; one that is not here keeps a model as it was built."""
