"""The quantisation of a graph, computed once: for every tensor its type, scales and zero points.

Ranges come from `quantize/ranges.py`. What cannot be integer stays in floating point and is named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from anynpu.lowering.compared import KINDS as COMPARISONS
from anynpu.lowering.graph import Graph, Operator
from anynpu.lowering.integers import (
    FINEST_READ,
    FIXED,
    HALF_BYTE_KINDS,
    KEEPS_SCALE,
    ONE_SCALE,
    WEIGHT_AXES,
    data_input,
    real_inputs,
    runs_on,
)
from anynpu.lowering.widen import around, chosen_wide, wide_operators
from anynpu.quantize.fixed import NOTHING, Fixed, form_of
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import SMALLEST_SCALE, Range, quantization_for
from anynpu.quantize.weights import integer_bits, largest_integer, symmetric_scales
from anynpu.records.quantisation import Converted, OperatorForm, Origin, Quantisation, TensorForm
from anynpu.tensors import Array, Quantization

# A number as large as this stands for an infinity, and any code that is far away holds it.
_MASK = 1e4
# A bias beyond this would leave no room in 32 bits for the products.
_MOST_BIAS = 2.0**30
# The lowest number that a computed mask is stored for: below it, the kernels' sums have no bits left for the scores.
_LOWEST_MASK = -1e4
# How far the scale of a sum may be below those of what is added: the kernels shift operands up by 20 and 15 bits.
_FINEST_SUM = {"int8": 2.0**-18, "int16": 2.0**-13}
# How many times the smallest inverse root an 8-bit model holds: its steps are then a thousandth of that one.
_INVERSES = 32.0
_LARGEST = {"int8": 127, "int16": 32767}


def with_shorter_rows(graph: Graph, ranges: Mapping[str, Range], plan: QuantPlan) -> dict[str, Range]:
    """Returns the ranges, wider for inverse roots in a model of 8 bits: rows shorter than calibration showed would come
    out with another length."""
    wider = dict(ranges)
    for operator in graph.operators if plan.activations == "int8" else ():
        limits = ranges.get(operator.outputs[0]) if operator.kind == "RSQRT" else None
        if limits is not None:
            wider[operator.outputs[0]] = Range(limits.min, max(limits.max, _INVERSES * limits.min))
    return wider


@dataclass(frozen=True)
class Form:
    """How a tensor is stored: its type, and what the integers stand for."""

    dtype: str
    quantization: Quantization

    def stored(self, real: Array) -> Array:
        """Returns the integers of a constant; those below eight bits are kept one to a byte, and packed in the file."""
        if (bits := integer_bits(self.dtype)) >= 8:
            return self.quantization.quantize(real, self.dtype)
        most = largest_integer(bits)
        return np.clip(self.quantization.quantize(real, "int8"), -most, most)


@dataclass(frozen=True)
class Quantised:
    """The quantisation of a graph.

    `forms` says how each fed or computed tensor is stored, `reads` in which form an operator, named by its first
    result, takes each of its inputs: constants, and tensors that are converted on the way. `floats` are the operators
    that stay in floating point.
    """

    forms: Mapping[str, Form]
    reads: Mapping[tuple[str, str], Form]
    floats: frozenset[str]
    origins: Mapping[str, Origin]
    """Where forms come from that are not measured."""

    def described(self, graph: Graph, ranges: Mapping[str, Range], origins: Mapping[str, Origin]) -> Quantisation:
        """Returns the quantisation as its record; `origins` says where ranges come from that were not measured."""
        tensors: dict[str, TensorForm] = {}
        inverses = {each.outputs[0] for each in graph.operators if each.kind == "RSQRT"}
        in_float = {name for each in graph.operators if each.outputs[0] in self.floats for name in each.outputs}
        for name, form in self.forms.items():
            origin = self.origins.get(name) or origins.get(name) or "measured"
            limits = None if origin in ("kernel", "tied") else ranges.get(name)
            if limits is not None and name in inverses and form.dtype in _LARGEST:  # it may cover less
                top = _LARGEST[form.dtype] * form.quantization.scale[0]
                limits = Range(min(limits.min, top), min(limits.max, top))
            plain = TensorForm(dtype="float32")
            tensors[name] = plain if name in in_float else form_of(form.dtype, form.quantization, limits, origin)
        converted = []
        for (operator, name), form in sorted(self.reads.items()):
            described = form_of(form.dtype, form.quantization, None, self.origins.get(name, "constant"))
            held = tensors.setdefault(name, described)
            if held.dtype != described.dtype or not held.same_scale(described):
                converted.append(Converted(operator=operator, tensor=name, form=replace(described, origin=None)))
        types = {name: tensors[name].dtype for name in self.forms}
        operators = {
            each.outputs[0]: OperatorForm(kind=each.kind, computes=types.get(each.outputs[0], "int32"))
            for each in graph.operators
        }
        return Quantisation(emitter="tflite", tensors=tensors, operators=operators, converted=tuple(converted))


def quantised(
    graph: Graph,
    ranges: Mapping[str, Range],
    plan: QuantPlan,
    fixed: Fixed = NOTHING,
    wide: frozenset[str] | None = None,
) -> Quantised:
    """Returns the quantisation of a float graph for the ranges of its activations; the scales of weights that are
    `fixed` hold as they are, `wide` are the results of 16 bits in a graph of 8."""
    if wide is None:
        wide = wide_operators(graph, ranges) | chosen_wide(graph, plan.wide_tensors)
    work = _Quantiser(graph, ranges, plan, fixed, wide if plan.activations == "int8" else frozenset())
    for name in graph.inputs:
        if graph.tensors[name].dtype == "float32":
            chosen = plan.activations == "int8" and name in plan.wide_tensors
            work.forms[name] = work.measured(name, "int16" if chosen else plan.activations)
    work.adopt_joined()
    for operator in graph.operators:
        work.result(operator)
    for operator in graph.operators:
        work.operands(operator)
    return Quantised(work.forms, work.reads, frozenset(work.floats), work.origins)


class _Quantiser:
    """The forms as they are found, in the order of the graph."""

    def __init__(
        self,
        graph: Graph,
        ranges: Mapping[str, Range],
        plan: QuantPlan,
        fixed: Fixed,
        wide: frozenset[str],
    ) -> None:
        self.fixed = fixed
        self.origins: dict[str, Origin] = {}
        self.masked = {o.inputs[0] for o in graph.operators if o.kind == "SOFTMAX"}
        # Ranges of computed masks, which nothing but sums before a softmax reads, are cut far below
        bounded = dict(ranges)
        readers = graph.readers()
        for name, limits in ranges.items():
            users = readers.get(name, [])
            only = users and all(user.kind == "ADD" and user.outputs[0] in self.masked for user in users)
            if only and limits.min < _LOWEST_MASK < limits.max:
                bounded[name] = replace(limits, min=_LOWEST_MASK)
        self.graph, self.ranges, self.plan = graph, bounded, plan
        self.wide = wide
        self.in_float = around(graph, plan.float_tensors)
        self.forms: dict[str, Form] = {}
        self.reads: dict[tuple[str, str], Form] = {}
        self.floats: set[str] = set()
        self.adopted: dict[str, str] = {}
        self.readers = graph.readers()

    def dtype(self, operator: Operator) -> str:
        """Returns the type of an operator's activations."""
        return "int16" if operator.outputs[0] in self.wide else self.plan.activations

    def runs(self, operator: Operator) -> bool:
        """Tells whether an operator can be integer, and is to be."""
        return operator.outputs[0] not in self.in_float and runs_on(operator, self.dtype(operator), self.graph)

    def measured(self, name: str, dtype: str) -> Form:
        """Returns the form that covers the range of a tensor."""
        limits = self.fixed.copies.get((name, dtype), self.ranges.get(name, Range(0.0, 0.0)))
        return Form(dtype, quantization_for(limits, dtype, dtype == "int16"))

    def adopt_joined(self) -> None:
        """Lets a tensor that only a join reads have the scale of the joined at once: it is not rounded twice."""
        makers = self.graph.makers()
        for operator in reversed(self.graph.operators):
            if operator.kind not in ONE_SCALE or not self.runs(operator):
                continue
            for name in operator.inputs:
                while self._alone(name) and name in makers and makers[name].kind in KEEPS_SCALE:
                    name = data_input(makers[name])
                maker = makers.get(name)
                if maker is None or not self._alone(name) or (maker.kind, self.dtype(maker)) in FIXED:
                    continue
                if self.dtype(maker) == self.dtype(operator):
                    self.adopted[name] = operator.outputs[0]

    def _alone(self, name: str) -> bool:
        """Tells whether one operator reads a tensor, and nobody else."""
        return len(self.readers.get(name, ())) == 1 and name not in self.graph.outputs

    def result(self, operator: Operator) -> None:
        """Finds the form of what an operator gives."""
        real = [name for name in operator.outputs if self.graph.tensors[name].dtype == "float32"]
        if not self.runs(operator) and (real or real_inputs(operator, self.graph)):
            self.floats.add(operator.outputs[0])
        for name in real:
            self.forms[name] = self._form(operator, name)

    def _form(self, operator: Operator, name: str) -> Form:
        dtype = self.dtype(operator)
        if operator.outputs[0] in self.floats:
            return self.measured(name, dtype)
        fixed = FIXED.get((operator.kind, dtype))
        if fixed is not None:
            self.origins[name] = "kernel"
            return Form(dtype, fixed)
        if operator.kind in KEEPS_SCALE and not self._pads_beyond(operator):
            self.origins[name] = "tied"
            return self._taken(data_input(operator), dtype)
        root = name
        if name in self.adopted:
            self.origins[name] = "tied"
        while root in self.adopted:
            root = self.adopted[root]
        if operator.kind == "RSQRT":
            # It covers the smallest input that is not stored as zero, and nothing beyond: a row of zeros has the
            # inverse of the square root of epsilon, which would leave the other rows no bits.
            most = 1.0 / math.sqrt(self._taken(operator.inputs[0], dtype).quantization.scale[0])
            limits = self.ranges.get(root, Range(0.0, 0.0))
            limits = Range(min(limits.min, most), min(limits.max, most))
            return Form(dtype, quantization_for(limits, dtype, dtype == "int16"))
        form = self.measured(root, dtype)
        if operator.kind in ("ADD", "SUB") and root == name:
            computed = [self._taken(each, dtype) for each in operator.inputs if self.graph.constant(each) is None]
            finest = max(each.quantization.scale[0] for each in computed) * _FINEST_SUM[dtype]
            if form.quantization.scale[0] < finest:
                return Form(dtype, Quantization((finest,), form.quantization.zero_point))
        return form

    def _pads_beyond(self, operator: Operator) -> bool:
        """Tells whether a PADV2 pads with a number that the input's scale cannot hold; masks hold as they can."""
        value = self.graph.constant(operator.inputs[2]) if operator.kind == "PADV2" else None
        if value is None or abs(number := float(value.reshape(-1)[0])) >= _MASK:
            return False
        limits = self.ranges.get(data_input(operator), Range(0.0, 0.0))
        return not min(limits.min, 0.0) <= number <= max(limits.max, 0.0)

    def _taken(self, name: str, dtype: str) -> Form:
        """Returns the form in which an operator of that type reads a tensor."""
        array = self.graph.constant(name)
        if array is not None:
            limits = Range(float(array.min()), float(array.max())) if array.size else Range(0.0, 0.0)
            return Form(dtype, quantization_for(limits, dtype, dtype == "int16"))
        form = self.forms[name]
        return form if form.dtype == dtype else self.measured(name, dtype)

    def operands(self, operator: Operator) -> None:
        """Finds the forms in which an operator reads its inputs."""
        key, dtype = operator.outputs[0], self.dtype(operator)
        if key in self.floats:
            return
        if operator.kind in WEIGHT_AXES:
            self._weights(operator)
            return
        for name in real_inputs(operator, self.graph):
            kept = operator.kind in KEEPS_SCALE and name != data_input(operator)
            one = operator.kind in ONE_SCALE or kept or self._pads_beyond(operator)
            stored = self.graph.constant(name) if operator.kind in ("ADD", "SUB") else None
            one |= stored is not None and not stored.any()  # zeros have no scale of their own
            form = self.forms[key] if one else self._taken(name, dtype)
            if operator.kind in COMPARISONS and dtype == "int8":
                form = self.measured(name, dtype)  # both sides have one range
            elif operator.kind in COMPARISONS:
                sides = [self._taken(each, dtype) for each in operator.inputs]
                form = max(sides, key=lambda side: side.quantization.scale[0])
            if (operator.kind, dtype) in FIXED and form.quantization.scale[0] < FINEST_READ:
                form = Form(dtype, Quantization((FINEST_READ,), form.quantization.zero_point))
            self.reads[key, name] = form
        if operator.kind == "ADD" and key in self.masked:
            # A constant added before a softmax is stored only as low as the sum is stored for any score.
            for name, other in (operator.inputs, operator.inputs[::-1]):
                array, top = self.graph.constant(name), self.ranges.get(other)
                if array is not None and array.size and top is not None and key in self.ranges:
                    low = max(float(array.min()), min(self.ranges[key].min - top.max, 0.0))
                    limits = Range(low, max(float(array.max()), low))
                    self.reads[key, name] = Form(dtype, quantization_for(limits, dtype, dtype == "int16"))

    def _weights(self, operator: Operator) -> None:
        key, dtype, source = operator.outputs[0], self.dtype(operator), data_input(operator)
        stored, bias = operator.inputs[1], operator.inputs[3 if operator.kind == "TRANSPOSE_CONV" else 2]
        self.reads[key, source] = self._taken(source, dtype)
        scale = self.reads[key, source].quantization.scale[0]
        weights, axis = np.asarray(self.graph.constant(stored)), WEIGHT_AXES[operator.kind]
        offsets = self.graph.constant(bias) if bias else None
        bits: int = self.plan.weight_bits if operator.kind in HALF_BYTE_KINDS and dtype == "int8" else 8
        self.origins |= {stored: "weights", bias: "bias"}
        if known := self.fixed.weights.get(stored):
            bits, scales = known.bits, np.asarray(known.scale, np.float32)
        else:
            axes = axis if self.plan.weights == "per-channel" else None
            scales = weight_scales(weights, axes, offsets, scale, bits)
        one = len(scales) == 1
        points = (0,) * len(scales)
        self.reads[key, stored] = Form(
            f"int{bits}", Quantization(tuple(scales.tolist()), points, None if one else axis)
        )
        if offsets is not None:
            products = tuple((np.float32(scale) * scales).tolist())
            kind = "int64" if dtype == "int16" else "int32"
            self.reads[key, bias] = Form(kind, Quantization(products, points, None if one else 0))


def weight_scales(
    weights: Array, axis: int | None, bias: Array | None, source: float, bits: int = 8
) -> NDArray[np.float32]:
    """Returns the scales of symmetric weights, large enough for the bias to fit 32 bits beside the products.

    A channel of zeros has the finest scale of the others: its bias is all it gives.
    """
    scales = symmetric_scales(weights, axis, bits)
    if bias is not None:
        needed = np.abs(np.asarray(bias, np.float64)) / (_MOST_BIAS * source)
        scales = np.maximum(scales, needed if axis is not None else needed.max())
    return np.maximum(scales, SMALLEST_SCALE).astype(np.float32)
