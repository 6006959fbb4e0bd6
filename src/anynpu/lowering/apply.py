"""Applies a quantisation to the float graph it is of: stored integers, and conversions where two forms meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from anynpu.lowering.graph import Graph, Operator, Tensor, pruned
from anynpu.lowering.options import Activation, Fused
from anynpu.lowering.quantise import Form, Quantised

# Activations with an upper end, and the one without it.
_ENDS: Mapping[str, tuple[float, Activation]] = {"RELU6": (6.0, "RELU"), "RELU_N1_TO_1": (1.0, "NONE")}
# The kernels count the end in steps of the result, in 32 bits.
_MOST_STEPS = 2.0**31 - 1


def applied(graph: Graph, quantised: Quantised, integer_borders: bool = True) -> Graph:
    """Returns the graph of integers; with float borders, inputs and outputs are converted inside."""
    return _Applied(graph, quantised, integer_borders).graph()


class _Applied:
    """The graph of integers as it grows."""

    def __init__(self, source: Graph, quantised: Quantised, integer_borders: bool) -> None:
        self.source, self.floats = source, quantised.floats
        self.forms, self.reads = quantised.forms, quantised.reads
        self.integer_borders = integer_borders
        self.tensors: dict[str, Tensor] = {}
        self.operators: list[Operator] = []
        self.held: dict[str, Form | None] = {}
        self.converted: dict[tuple[str, Form | None], str] = {}

    def graph(self) -> Graph:
        borders = {} if self.integer_borders else dict.fromkeys((*self.source.inputs, *self.source.outputs))
        for name in self.source.inputs:
            self._hold(name, borders.get(name, self.forms.get(name)))
        for operator in self.source.operators:
            self._operator(operator, borders)
        return pruned(self.operators, self.tensors, self.source.inputs, self.source.outputs)

    def _hold(self, name: str, form: Form | None) -> None:
        """Adds a computed tensor in a form, None for the one it has in the float graph."""
        self.tensors[name] = _in_form(self.source.tensors[name], form)
        self.held[name] = form

    def _operator(self, operator: Operator, borders: Mapping[str, None]) -> None:
        is_float = operator.outputs[0] in self.floats
        inputs = tuple(self._input(operator, name, is_float) for name in operator.inputs)
        outputs, behind = [], []
        for name in operator.outputs:
            form = None if is_float else self.forms.get(name)
            wanted = self.forms.get(name) if name not in borders else None
            if name in self.source.outputs and form != wanted:
                # The result keeps its name: what is computed gets another, and a conversion stands between.
                inner = f"{name}/inner"
                self.tensors[inner] = _in_form(replace(self.source.tensors[name], name=inner), form)
                self._hold(name, wanted)
                behind.append(Operator(_conversion(form, wanted), (inner,), (name,)))
                outputs.append(inner)
            else:
                self._hold(name, form)
                outputs.append(name)
        form = None if is_float else self.forms.get(operator.outputs[0])
        self.operators.append(replace(_countable(operator, form), inputs=inputs, outputs=tuple(outputs)))
        self.operators += behind

    def _input(self, operator: Operator, name: str, is_float: bool) -> str:
        if not name:
            return ""
        wanted = self.reads.get((operator.outputs[0], name)) if not is_float else None
        tensor = self.source.tensors[name]
        if tensor.data is not None:
            key = tensor.name, wanted
            if key not in self.converted:
                stored = tensor.name if tensor.name not in self.tensors else f"{tensor.name}/{len(self.converted)}"
                self.tensors[stored] = _in_form(replace(tensor, name=stored), wanted)
                self.converted[key] = stored
            return self.converted[key]
        if self.held[name] == wanted:
            return name
        key = name, wanted
        if key not in self.converted:
            new = f"{name}/{len(self.converted)}"
            self.tensors[new] = _in_form(replace(tensor, name=new), wanted)
            self.operators.append(Operator(_conversion(self.held[name], wanted), (name,), (new,)))
            self.converted[key] = new
        return self.converted[key]


def _countable(operator: Operator, form: Form | None) -> Operator:
    """Returns the operator without an end of its activation that is further away than the kernels can count."""
    fused = operator.options.fused_activation_function if isinstance(operator.options, Fused) else operator.kind
    if form is None or fused not in _ENDS:
        return operator
    end, without = _ENDS[fused]
    if end / min(form.quantization.scale) <= _MOST_STEPS:
        return operator
    if isinstance(operator.options, Fused):
        return replace(operator, options=replace(operator.options, fused_activation_function=without))
    return replace(operator, kind=without) if without != "NONE" else operator


def _conversion(before: Form | None, after: Form | None) -> str:
    return "DEQUANTIZE" if after is None and before is not None else "QUANTIZE"


def _in_form(tensor: Tensor, form: Form | None) -> Tensor:
    if form is None:
        return tensor
    data = None if tensor.data is None else form.stored(tensor.data)
    return Tensor(tensor.name, tensor.shape, form.dtype, data, form.quantization)
