"""Lowers an ONNX graph to TFLite operators, node by node.

Every ONNX tensor is known by a view: the TFLite tensor that holds it and the order in which its axes are stored there.
An operator asks for the order it needs (channels last for a convolution) and says in which order it answers; element by
element arithmetic takes whatever order its operands have. A Transpose is a change of view alone, so transposes move
through the graph until an operator needs another order, and cancel where none does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import numpy_helper

from anynpu.artifact import PassEffect
from anynpu.errors import Finding, Unsupported
from anynpu.graph import passes
from anynpu.graph.fold import evaluated
from anynpu.graph.shapes import inputs_of
from anynpu.lowering.graph import Graph, Operator, Tensor, free_name, int32, pruned
from anynpu.lowering.options import Options, Reshape
from anynpu.lowering.table import RULES, Node, Refused
from anynpu.tensors import ENDLESS, Array

Axes = tuple[int, ...]
CHANNELS_LAST = {3: (0, 2, 1), 4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}
# What a rule raises on a node whose operands do not fit together.
_MISFITS = (ValueError, TypeError, IndexError, KeyError, ArithmeticError)
# TFLite indexes with 32 bits, and has no 64-bit arithmetic on microcontrollers.
_NARROWED = {"int64": "int32", "float64": "float32", "float16": "float32"}
# The types that operators compute with; those that are moved and cast besides, as the bytes of an image are.
_COMPUTED = frozenset((*_NARROWED, *_NARROWED.values(), "bool"))
# Kernels of these take real numbers alone.
_REAL, _WHOLE = frozenset(("Einsum", "Gemm", "MatMul", "ReduceL2")), frozenset(("int32", "int64"))
_MOVED = frozenset(("int8", "uint8", "int16"))
_CASTS = frozenset(("Cast", "CastLike"))
_MOVES = frozenset((
    "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Pad", "Reshape",
    "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
))  # fmt: skip


@dataclass(frozen=True)
class View:
    """Where an ONNX tensor is: axis k of the TFLite tensor is axis `axes[k]` of the ONNX tensor."""

    tensor: str
    axes: Axes


def plain(rank: int) -> Axes:
    """Returns the order of ONNX itself."""
    return tuple(range(rank))


class Lowering:
    """The graph as it grows, and what rules ask of it."""

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self.shapes, self.dtypes = dict[str, tuple[int, ...]](), dict[str, str]()
        for value in (*graph.input, *graph.value_info, *graph.output):
            kind = value.type.tensor_type
            if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
                continue
            if all(dim.HasField("dim_value") for dim in kind.shape.dim):
                self.shapes[value.name] = tuple(int(dim.dim_value) for dim in kind.shape.dim)
            if kind.elem_type:
                self.dtypes[value.name] = str(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)))
        for item in graph.initializer:
            self.shapes[item.name] = tuple(item.dims)
            self.dtypes[item.name] = str(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(item.data_type)))
        self.constants = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
        self.views: dict[str, View] = {}
        self.tensors: dict[str, Tensor] = {}
        self.operators: list[Operator] = []
        self.reads = Counter(name for node in model.graph.node for name in node.input)
        self.results = {value.name for value in model.graph.output}
        self.computed = {name for node in model.graph.node for name in node.output}
        self.reads.update(self.results)
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in model.graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self._orders: dict[tuple[str, Axes], str] = {}

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of an ONNX tensor."""
        return self.shapes[name]

    def rank(self, name: str) -> int:
        """Returns the number of axes of an ONNX tensor."""
        return len(self.shapes[name])

    def constant(self, name: str) -> Array | None:
        """Returns the contents of a constant ONNX tensor, None for another."""
        return self.constants.get(name)

    def axes(self, name: str) -> Axes:
        """Returns the order in which an ONNX tensor is stored now; a constant has the order of ONNX."""
        view = self.views.get(name)
        return plain(self.rank(name)) if view is None else view.axes

    def stored(self, name: str, axes: Axes) -> str:
        """Returns the TFLite tensor that holds an ONNX tensor with its axes in the given order."""
        array = self.constants.get(name)
        if array is not None:
            return self.store(np.transpose(array, axes), f"{name}")
        view = self.views[name]
        if view.axes == axes:
            return view.tensor
        key = view.tensor, tuple(view.axes.index(axis) for axis in axes)
        if key not in self._orders:
            self._orders[key] = self._reordered(*key)
        return self._orders[key]

    def _reordered(self, tensor: str, order: Axes) -> str:
        """Returns a tensor with its axes in another order; where only axes of size one move, the values stay put."""
        shape = self.tensors[tensor].shape
        result = tuple(shape[axis] for axis in order)
        moving = [axis for axis in order if shape[axis] != 1]
        if moving == sorted(moving):
            return self.reshape(tensor, result)
        return self.emit("TRANSPOSE", (tensor, self.store(int32(order), "order")), result, stem=tensor)

    def operand(self, name: str, axes: Axes) -> str:
        """Returns a tensor that broadcasts in TFLite, stored as `axes`, as the ONNX tensor does in ONNX."""
        rank, missing = len(axes), len(axes) - self.rank(name)
        own = tuple(axis - missing for axis in axes if axis >= missing)
        shape = tuple(1 if axis < missing else self.shape(name)[axis - missing] for axis in axes)
        array = self.constants.get(name)
        if array is not None:
            return self.store(np.transpose(array, own).reshape(shape if array.size > 1 else ()), name)
        tensor = self.stored(name, own)
        held = self.tensors[tensor].shape
        if (1,) * (rank - len(held)) + held == shape:
            return tensor
        return self.reshape(tensor, shape)

    def store(self, array: Array, stem: str) -> str:
        """Returns a new constant."""
        wanted = _NARROWED.get(str(array.dtype), str(array.dtype))
        if wanted == "int32" and array.size:
            array = np.clip(array, np.iinfo(np.int32).min, np.iinfo(np.int32).max)
        data = np.ascontiguousarray(array.astype(wanted)).reshape(array.shape)
        if data.dtype.kind == "f":
            data = unmasked(data)
        name = self.free(stem)
        self.tensors[name] = Tensor(name, data.shape, wanted, data)
        return name

    def emit(
        self,
        kind: str,
        inputs: Sequence[str],
        shape: Sequence[int],
        options: Options | None = None,
        stem: str = "",
        dtype: str = "",
    ) -> str:
        """Adds an operator with one result and returns the tensor that holds it."""
        name = self.free(stem or kind.lower())
        self.tensors[name] = Tensor(name, tuple(shape), dtype or self.tensors[inputs[0]].dtype)
        self.operators.append(Operator(kind, tuple(inputs), (name,), options))
        return name

    def emit_two(
        self,
        kind: str,
        inputs: Sequence[str],
        shape: Sequence[int],
        options: Options | None,
        stems: tuple[str, str],
        second: str,
    ) -> tuple[str, str]:
        """Adds an operator with two results of one shape, the second of another type, and returns their tensors."""
        first = self.emit(kind, inputs, shape, options, stems[0])
        name = self.free(stems[1])
        self.tensors[name] = Tensor(name, tuple(shape), second)
        self.operators[-1] = replace(self.operators[-1], outputs=(first, name))
        return first, name

    def reshape(self, tensor: str, shape: Sequence[int], stem: str = "") -> str:
        """Returns the same values under another shape."""
        size = tuple(int(each) for each in shape)
        if self.tensors[tensor].shape == size:
            return tensor
        target = self.store(int32(size), "shape")
        return self.emit("RESHAPE", (tensor, target), size, Reshape(size), stem or tensor)

    def give(self, name: str, tensor: str, axes: Axes | None = None) -> None:
        """Says which TFLite tensor holds an ONNX result, and in which order."""
        order = plain(self.rank(name)) if axes is None else axes
        held, wanted = self.tensors[tensor].shape, tuple(self.shape(name)[axis] for axis in order)
        if held != wanted:
            raise Refused(f"gives {list(held)} where ONNX has {list(wanted)}")
        self.views[name] = View(tensor, order)

    def value(self, name: str, number: float, like: str = "") -> str:
        """Returns a constant with one element, of the type of the tensor that it is computed with."""
        return self.store(np.asarray(number, self.tensors[like].dtype if like else np.float32), name)

    def free(self, stem: str) -> str:
        """Returns an unused name; that of a computed ONNX tensor is kept for the tensor that holds its values."""
        return free_name(stem.partition("~")[0] or "tensor", self.tensors, self.computed)


MASKED = 1e4
"""What stands for an infinity in a constant: a mask that a softmax cannot tell from it, and integers can hold."""


def unmasked(array: Array) -> Array:
    """Returns real numbers with a finite mask for infinities and what stands for them."""
    with np.errstate(invalid="ignore"):
        endless = np.abs(array) >= ENDLESS
    return np.where(endless, np.sign(array) * MASKED, array).astype(array.dtype) if endless.any() else array


def lower(
    model: onnx.ModelProto, channels_last_inputs: Sequence[str] = (), channels_last_outputs: Sequence[str] = ()
) -> Graph:
    """Returns the float graph of TFLite operators that computes what a static ONNX model does.

    The named inputs and outputs have their channels last. Raises Unsupported with a finding for each node that cannot
    be lowered.
    """
    return lower_by_passes(model, channels_last_inputs, channels_last_outputs)[0]


def lower_by_passes(
    model: onnx.ModelProto, last_inputs: Sequence[str], last_outputs: Sequence[str], without: Collection[str] = ()
) -> tuple[Graph, tuple[PassEffect, ...]]:
    """Does the same without some of the passes, and returns what each of the others did."""
    from anynpu.lowering.clean import CLEANING
    from anynpu.lowering.prepare import PREPARING

    prepared, before = passes.run(PREPARING, model, without=without)
    graph, behind = passes.run(CLEANING, lower_nodes(prepared, last_inputs, last_outputs), without=without)
    return graph, (*before, *behind)


def lower_nodes(model: onnx.ModelProto, last_inputs: Sequence[str], last_outputs: Sequence[str]) -> Graph:
    """Returns the TFLite operators of a prepared model, each node by its rule."""
    nodes_by_family()
    at = Lowering(model)
    inputs = [value.name for value in inputs_of(model)]
    for name in inputs:
        rank = at.rank(name)
        axes = CHANNELS_LAST.get(rank, plain(rank)) if name in last_inputs else plain(rank)
        dtype = _NARROWED.get(at.dtypes[name], at.dtypes[name])
        at.tensors[name] = Tensor(name, tuple(at.shape(name)[axis] for axis in axes), dtype)
        at.views[name] = View(name, axes)
    findings: list[Finding] = []
    lost: set[str] = set()
    for proto in model.graph.node:
        node = Node.of(proto)
        reason = "" if not lost & {*node.inputs} else "-"
        if not reason and (values := evaluated(proto, at.constants, at.shapes, model)) is not None:
            at.constants.update(zip(node.outputs, values, strict=False))  # a result that no input reaches
        elif not reason:
            reason = _lowered(at, node, proto.domain)
        if reason:
            lost |= {*node.outputs}
        if reason not in ("", "-"):
            findings.append(Finding("onnx-operator", reason, node.name))
    if findings:
        more = f" and {len(findings) - 1} more" if len(findings) > 1 else ""
        raise Unsupported(
            f"the ONNX model cannot be lowered to TFLite: {findings[0]}{more}",
            findings,
            "change these operators in the model, or end it before them and leave the rest to the host",
        )
    outputs = [value.name for value in model.graph.output]
    holders = {name: name for name in inputs} | _outputs(at, outputs, last_outputs)
    for name, view in at.views.items():
        if name in at.computed and name not in at.results and at.tensors[view.tensor].data is None:
            holders.setdefault(view.tensor, name)

    def named(tensors: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(holders.get(each, each) for each in tensors)

    operators = [replace(each, inputs=named(each.inputs), outputs=named(each.outputs)) for each in at.operators]
    tensors = [replace(tensor, name=holders.get(name, name)) for name, tensor in at.tensors.items()]
    return pruned(operators, {each.name: each for each in tensors}, tuple(inputs), tuple(outputs))


def nodes_by_family() -> dict[str, str]:
    """Returns the sentence of every ONNX operator that can be lowered."""
    from anynpu.lowering.operators import (  # noqa: F401  (importing a family registers its rules)
        activation,
        arithmetic,
        convolution,
        einsum,
        linear,
        logic,
        movement,
        normalization,
        pooling,
        recurrent,
        reduction,
        resize,
        selection,
        spectrum,
    )
    from anynpu.lowering.rewrite import REWRITES

    sentences = {name: rule.__doc__ for name, rule in REWRITES.items()} | {n: rule.__doc__ for n, rule in RULES.items()}
    return {name: (sentence or "").strip() for name, sentence in sorted(sentences.items())}


def _lowered(at: Lowering, node: Node, domain: str) -> str:
    """Lowers one node; returns why it cannot be done, or nothing."""
    if (foreign := domain not in ("", "ai.onnx")) or node.op not in RULES:
        if not foreign and (sentence := nodes_by_family().get(node.op)):
            return f"{node.op} has no TFLite form with these settings; what can be lowered: {sentence.rstrip('.')}"
        return f"operator {f'{domain}.' if foreign else ''}{node.op} has no rule for TFLite"
    computed = [name for name in (*node.inputs, *node.outputs) if name and name not in at.constants]
    takes = _COMPUTED - _WHOLE if node.op in _REAL else _COMPUTED
    strange = {at.dtypes[name] for name in computed if name in at.dtypes} - takes
    if strange and node.op not in _MOVES and not (node.op in _CASTS and strange <= _MOVED):
        return f"{node.op} of {min(strange)} numbers has no TFLite operator: cast them to float32 first"
    if any(math.prod(at.shapes.get(name, (1,))) == 0 for name in computed):
        return f"{node.op} reads or gives an empty tensor"
    unknown = [name for name in (*node.inputs, *node.outputs) if name and name not in at.shapes]
    if unknown:
        return f"{node.op}: the shape of {unknown[0]} is not known"
    try:
        RULES[node.op](at, node)
    except Refused as refusal:
        return f"{node.op}: {refusal}" if not str(refusal).startswith(node.op) else str(refusal)
    except _MISFITS as error:
        return f"{node.op} cannot be lowered: {(str(error).splitlines() or [type(error).__name__])[0]}"
    missing = [name for name in node.outputs if at.reads[name] and name not in {*at.views, *at.constants}]
    return f"{node.op}: its result {missing[0]} is read, which has no TFLite form" if missing else ""


def _outputs(at: Lowering, names: Sequence[str], last: Sequence[str]) -> dict[str, str]:
    """Returns the result that each of the last tensors holds, one tensor for each, in the order that is wanted."""
    fixed = {*at.views.keys()} & {*at.tensors.keys()}
    taken: dict[str, str] = {}
    for name in names:
        rank = at.rank(name)
        axes = CHANNELS_LAST.get(rank, plain(rank)) if name in last else plain(rank)
        tensor = at.stored(name, axes)
        alone = tensor not in taken and tensor not in fixed and at.tensors[tensor].data is None
        if not alone:
            shape = at.tensors[tensor].shape
            tensor = at.emit("RESHAPE", (tensor, at.store(int32(shape), "shape")), shape, Reshape(shape), name)
        taken[tensor] = name
    return taken
