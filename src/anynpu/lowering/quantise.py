"""The quantisation of a graph, computed once: for every tensor its type, scales and zero points.

Ranges come from `quantize/ranges.py`. What cannot be integer stays in floating point and is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from anynpu.lowering.graph import Graph, Operator
from anynpu.lowering.integers import FIXED, KEEPS_SCALE, ONE_SCALE, WEIGHT_AXES, data_input, real_inputs, runs_on
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import SMALLEST_SCALE, Range, quantization_for
from anynpu.tensors import Array, Quantization

# A bias beyond this would leave no room in 32 bits for the products.
_MOST_BIAS = 2.0**30


@dataclass(frozen=True)
class Form:
    """How a tensor is stored: its type, and what the integers stand for."""

    dtype: str
    quantization: Quantization

    def to_json(self) -> dict[str, object]:
        """Returns the form as plain data."""
        form = self.quantization
        plain: dict[str, object] = {"dtype": self.dtype, "scale": form.scale, "zero_point": form.zero_point}
        return plain if form.axis is None else plain | {"axis": form.axis}


@dataclass(frozen=True)
class Quantised:
    """The quantisation of a graph: the form of every tensor that is integer, and the operators that are not."""

    forms: Mapping[str, Form]
    floats: frozenset[str]
    """The first result of each operator that stays in floating point."""

    def to_json(self) -> dict[str, object]:
        """Returns the quantisation as plain data, by tensor."""
        return {"tensors": {n: f.to_json() for n, f in sorted(self.forms.items())}, "float": sorted(self.floats)}


def quantised(graph: Graph, ranges: Mapping[str, Range], plan: QuantPlan) -> Quantised:
    """Returns the quantisation of a float graph for the ranges of its activations."""
    work = _Quantiser(graph, ranges, plan)
    for name in graph.inputs:
        if graph.tensors[name].dtype == "float32":
            work.forms[name] = work.measured(name)
    work.adopt_concatenations()
    for operator in graph.operators:
        work.result(operator)
    for operator in graph.operators:
        work.constants(operator)
    return Quantised(work.forms, frozenset(work.floats))


class _Quantiser:
    """The forms as they are found, in the order of the graph."""

    def __init__(self, graph: Graph, ranges: Mapping[str, Range], plan: QuantPlan) -> None:
        self.graph, self.ranges, self.plan = graph, ranges, plan
        self.dtype = plan.activations
        self.forms: dict[str, Form] = {}
        self.floats: set[str] = set()
        self.adopted: dict[str, str] = {}
        self.readers = graph.readers()

    def measured(self, name: str) -> Form:
        """Returns the form that covers the range of a tensor."""
        found = self.ranges.get(name, Range(0.0, 0.0))
        return Form(self.dtype, quantization_for(found, self.dtype, self.plan.symmetric))

    def adopt_concatenations(self) -> None:
        """Lets a tensor that only a concatenation reads have its scale at once: it is not rounded twice."""
        makers = self.graph.makers()
        for operator in reversed(self.graph.operators):
            if operator.kind not in ONE_SCALE or not runs_on(operator, self.dtype, self.graph):
                continue
            for name in operator.inputs:
                while self._alone(name) and name in makers and makers[name].kind in KEEPS_SCALE:
                    name = data_input(makers[name])
                maker = makers.get(name)
                if maker is not None and self._alone(name) and (maker.kind, self.dtype) not in FIXED:
                    self.adopted[name] = operator.outputs[0]

    def _alone(self, name: str) -> bool:
        """Tells whether one operator reads a tensor, and nobody else."""
        return len(self.readers.get(name, ())) == 1 and name not in self.graph.outputs

    def result(self, operator: Operator) -> None:
        """Finds the form of what an operator gives."""
        real = [name for name in operator.outputs if self.graph.tensors[name].dtype == "float32"]
        if not runs_on(operator, self.dtype, self.graph) and (real or real_inputs(operator, self.graph)):
            self.floats.add(operator.outputs[0])
        for name in real:
            self.forms[name] = self._form(operator, name)

    def _form(self, operator: Operator, name: str) -> Form:
        fixed = FIXED.get((operator.kind, self.dtype))
        if operator.outputs[0] in self.floats:
            return self.measured(name)
        if fixed is not None:
            return Form(self.dtype, fixed)
        if operator.kind in KEEPS_SCALE:
            return self._kept(operator)
        root = name
        while root in self.adopted:
            root = self.adopted[root]
        return self.measured(root)

    def _kept(self, operator: Operator) -> Form:
        source = data_input(operator)
        array = self.graph.constant(source)
        if source not in self.forms and array is not None:
            self.forms[source] = self._constant_form(array)
        return self.forms[source]

    def _constant_form(self, array: Array) -> Form:
        limits = Range(float(array.min()), float(array.max())) if array.size else Range(0.0, 0.0)
        return Form(self.dtype, quantization_for(limits, self.dtype, self.plan.symmetric))

    def constants(self, operator: Operator) -> None:
        """Finds the forms of the constants that an operator reads."""
        if operator.outputs[0] in self.floats:
            return
        if operator.kind in WEIGHT_AXES:
            self._weights(operator)
            return
        for name in real_inputs(operator, self.graph):
            array = self.graph.constant(name)
            if array is None:
                continue
            if operator.kind in ONE_SCALE or (operator.kind in KEEPS_SCALE and name != data_input(operator)):
                self.forms[name] = self.forms[operator.outputs[0]]
            else:
                self.forms.setdefault(name, self._constant_form(array))

    def _weights(self, operator: Operator) -> None:
        stored, bias = operator.inputs[1], operator.inputs[3 if operator.kind == "TRANSPOSE_CONV" else 2]
        weights, axis = self.graph.constant(stored), WEIGHT_AXES[operator.kind]
        source = self.forms[data_input(operator)].quantization.scale[0]
        if weights is None:
            return
        offsets = self.graph.constant(bias) if bias else None
        scales = weight_scales(weights, axis if self.plan.weights == "per-channel" else None, offsets, source)
        per_axis = axis if len(scales) > 1 else None
        self.forms[stored] = Form("int8", Quantization(tuple(scales.tolist()), (0,) * len(scales), per_axis))
        if offsets is not None:
            products = tuple(float(np.float32(source) * np.float32(scale)) for scale in scales)
            kind = "int64" if self.dtype == "int16" else "int32"
            self.forms[bias] = Form(kind, Quantization(products, (0,) * len(scales), None if per_axis is None else 0))


def weight_scales(weights: Array, axis: int | None, bias: Array | None, source: float) -> np.ndarray:
    """Returns the scales of symmetric 8-bit weights, large enough for the bias to fit 32 bits beside the products.

    A channel of zeros has the finest scale of the others: its bias is all it gives.
    """
    magnitude = np.abs(np.asarray(weights, np.float64))
    others = None if axis is None else tuple(a for a in range(weights.ndim) if a != axis)
    top = np.atleast_1d(magnitude.max(axis=others))
    finest = float(top[top > 0].min()) if np.any(top > 0) else 1.0
    scales = np.where(top > 0, top, finest) / 127.0
    if bias is not None:
        needed = np.abs(np.asarray(bias, np.float64)) / (_MOST_BIAS * source)
        scales = np.maximum(scales, needed if axis is not None else needed.max())
    return np.maximum(scales, SMALLEST_SCALE).astype(np.float32)
