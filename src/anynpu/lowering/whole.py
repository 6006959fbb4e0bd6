"""Whole numbers that are fed and are real from there on, such as the bytes of a picture or the mask of a text.

In float a CAST makes them real. In integers they are what a scale of one stands for: one QUANTIZE brings them to
the scale of what reads them, without a float in between, which microcontrollers' kernels and NPUs lack.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from anynpu.lowering.compared import KINDS as COMPARISONS
from anynpu.lowering.graph import Graph, Operator, pruned
from anynpu.lowering.options import Cast
from anynpu.tensors import Quantization

_PLAIN = Quantization((1.0,), (0,))
_FED = frozenset(("uint8", "int8", "int16", "int32"))
_MOST_SHORT = 2.0**14
"""How large numbers of 32 bits may be that 16 bits hold with one to spare."""
_ENDS = (-128, 127)


def without_casts(graph: Graph) -> Graph:
    """Returns a graph of integers with one QUANTIZE for each CAST of an input and what quantises its result; numbers
    of 32 bits, which no NPU rescales, are cast to 16 before."""
    readers, makers, tensors = graph.readers(), graph.makers(), dict(graph.tensors)
    plain = [name for name in graph.inputs if _is_plain(name, graph, readers)]
    if not plain:
        return graph
    operators, short = list[Operator](), dict[str, str]()
    for operator in graph.operators:
        cast = makers.get(operator.inputs[0])
        if operator.kind == "QUANTIZE" and cast is not None and cast.kind == "CAST" and cast.inputs[0] in plain:
            operator = replace(operator, inputs=(short.get(cast.inputs[0], cast.inputs[0]),))
        elif operator.kind == "CAST" and operator.inputs[0] in plain and tensors[operator.inputs[0]].dtype == "int32":
            name = short[operator.inputs[0]] = operator.outputs[0]
            tensors[name] = replace(tensors[name], dtype="int16", quantization=_PLAIN)
            operator = replace(operator, options=Cast("int32", "int16"))
        operators.append(operator)
    for name in plain:
        if name not in short:
            tensors[name] = replace(tensors[name], quantization=_PLAIN)
    return pruned(operators, tensors, graph.inputs, graph.outputs)


def _is_plain(name: str, graph: Graph, readers: dict[str, list[Operator]]) -> bool:
    """Tells whether an input holds whole numbers that are made real and quantised, or read as the numbers they are."""
    tensor, users = graph.tensors[name], readers.get(name, [])
    casts = [user for user in users if user.options == Cast(tensor.dtype, "float32")]
    if tensor.dtype not in _FED or tensor.quantization is not None or not casts or name in graph.outputs:
        return False
    if any(user not in casts and user.kind not in COMPARISONS for user in users):
        return False
    real = [cast.outputs[0] for cast in casts]
    behind = [user for each in real for user in readers.get(each, [])]
    if {user.kind for user in behind} != {"QUANTIZE"} or {*real} & {*graph.outputs}:
        return False
    forms = [graph.tensors[user.outputs[0]].quantization for user in behind]
    return all(form is not None and max(abs(form.dequantize(np.asarray(_ENDS)))) < _MOST_SHORT for form in forms)
