"""Exact sums of int8 products in ONNX Runtime, whatever the CPU.

On x86 without VNNI its kernels add each pair of uint8 x int8 products in 16 bits and clip the sum: a net whose weights
reach the ends of their range loses 4 to 28 dB there. The kernels for uint8 x uint8 are exact on every CPU, and a tensor
of int8 is a tensor of uint8 with 128 added to its values and to its zero point. So the model is opened in that form, in
memory; the file and what it computes stay as they are.

ONNX Runtime's own setting for this (session.x64quantprecision) does not open nets that use a weight twice or that have
int8 activations in QLinear operators, and leaves out products of two activations.
"""

from __future__ import annotations

import functools
import importlib
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from anynpu.foreign import ONNX

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto

VARIABLE = "ANYNPU_INT8_SUMS"
"""`native` leaves the kernels as the host has them, `exact` has the model rewritten on every host."""
_EXTENSIONS = {
    "AVX512F": "AVX-512",
    "AVX2": "AVX2",
    "SSE41": "SSE4.1",
    "ASIMDDP": "NEON with dot product",
    "NEON": "NEON",
}
"""What NumPy calls an extension, and its usual name; the best first."""
_WEIGHTS: Mapping[str, tuple[tuple[int, int | None, int], ...]] = {
    "DequantizeLinear": ((0, 1, 2),),
    "MatMulInteger": ((1, None, 3),),
    "MatMulIntegerToFloat": ((1, 3, 5),),
    "DynamicQuantizeMatMul": ((1, 2, 3),),
    "DynamicQuantizeLSTM": ((1, 8, 9), (2, 10, 11)),
    "QAttention": ((1, 4, 7),),
    "QLinearMatMul": ((3, 4, 5),),
    "QLinearConv": ((3, 4, 5),),
    "QGemm": ((3, 4, 5),),
}
"""Operators that take integers: which of their inputs are weights, which are the scale and the zero point of these."""
_ACTIVATIONS = {"QLinearMatMul": 2, "QLinearConv": 2, "QGemm": 2}
"""Where such an operator has the zero point of its activations, whose type its weights follow."""


@functools.cache
def instruction_set() -> str:
    """Returns the widest vector instructions of this host, for the evidence: "AVX2", "AVX-512 with VNNI", "NEON"."""
    try:  # NumPy asks the CPU itself: that is right under Windows, macOS and an emulator too
        features = importlib.import_module("numpy._core._multiarray_umath").__cpu_features__
    except (ImportError, AttributeError):  # of no public module
        features = {}
    best = next((name for key, name in _EXTENSIONS.items() if features.get(key)), platform.machine())
    vnni = features.get("AVX512VNNI") or (best == "AVX2" and "avx_vnni" in _flags())
    return f"{best} with VNNI" if vnni else best


def _flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Returns what Linux says the CPU can do; NumPy does not ask for VNNI without AVX-512."""
    try:
        lines = cpuinfo.read_text("ascii", "replace").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())


def host() -> str:
    """Returns what of this host decides over the figures of an int8 model."""
    wish = os.environ.get(VARIABLE, "")
    return f"{instruction_set()}, {wish} int8 sums" if wish else instruction_set()


def clipping() -> bool:
    """Says whether models must be rewritten on this host."""
    wish = os.environ.get(VARIABLE, "")
    return wish == "exact" or (wish != "native" and _kernels_clip())


@functools.cache
def _kernels_clip() -> bool:
    """Says whether ONNX Runtime's kernels clip sums here, by having them multiply the largest values there are."""
    from onnx import TensorProto, helper

    from anynpu.runtime.ort import open_session

    columns = [helper.make_tensor_value_info("x", TensorProto.UINT8, [4, 32])]
    results = [helper.make_tensor_value_info("y", TensorProto.INT32, [4, 16])]
    weights = helper.make_tensor("w", TensorProto.INT8, [32, 16], bytes([127]) * 512, raw=True)
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "largest", columns, results, [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = open_session(model.SerializeToString(), threads=1, quiet=True)
    return bool(session.run(None, {"x": np.full((4, 32), 255, np.uint8)})[0][0, 0] != 255 * 127 * 32)


def exact(model: str | bytes, fused: bool = True) -> str | bytes:
    """Returns a model (a path or its bytes) as it is, or with unsigned integers where this host would clip its sums.

    Unless it is `fused`, what stands between QuantizeLinear and DequantizeLinear is computed with real numbers.
    """
    import onnx

    if not clipping():
        return model
    try:
        parsed = onnx.load(model, load_external_data=False) if isinstance(model, str) else onnx.load_from_string(model)
    except ONNX:  # ONNX Runtime says what is wrong with it
        return model
    if not _holds_int8(parsed.graph):
        return model
    if isinstance(model, str):
        onnx.load_external_data_for_model(parsed, str(Path(model).parent))
    return parsed.SerializeToString() if unsigned(parsed.graph, fused) else model


def unsigned(graph: GraphProto, fused: bool = True, outer: Mapping[str, TensorProto] | None = None) -> bool:
    """Turns int8 into uint8 wherever the results do not show it, and says whether there was any to turn.

    `outer` holds the constants of the graphs around this one.
    """
    constants = {**(outer or {}), **_constants(graph)}
    inner = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    turned = [unsigned(subgraph, fused, constants) for subgraph in inner]
    visible = {value.name for value in graph.output} | {name for subgraph in inner for name in _names_in(subgraph)}
    shift = _Shift(graph, constants)
    activations = [shift.activations(visible), shift.borders()] if fused else []
    return any([*turned, *activations, shift.weights()])


def _holds_int8(graph: GraphProto) -> bool:
    inner = (a.g for node in graph.node for a in node.attribute if a.HasField("g"))
    return any(map(_is_int8, _constants(graph).values())) or any(map(_holds_int8, inner))


def _constants(graph: GraphProto) -> dict[str, TensorProto]:
    stored = {tensor.name: tensor for tensor in graph.initializer}
    nodes = [node for node in graph.node if node.op_type == "Constant"]
    return stored | {n.output[0]: a.t for n in nodes for a in n.attribute if a.name == "value"}


def _names_in(graph: GraphProto) -> Iterable[str]:
    """Returns every name that the nodes of a graph and of those inside it read."""
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            yield from _names_in(attribute.g)
    yield from (value.name for value in graph.output)


class _Shift:
    """Adds 128 to the stored integers and to the zero points of one graph."""

    def __init__(self, graph: GraphProto, constants: Mapping[str, TensorProto]) -> None:
        self.graph, self.constants = graph, constants
        self.shifted: dict[str, str] = {}

    def activations(self, visible: set[str]) -> bool:
        """Turns what QuantizeLinear makes and only DequantizeLinear reads."""
        readers: dict[str, list[tuple[NodeProto, int]]] = {}
        for node in self.graph.node:
            for index, name in enumerate(node.input):
                readers.setdefault(name, []).append((node, index))
        turned = set()
        for node in self.graph.node:
            mine = readers.get(node.output[0], []) if _kind(node) == "QuantizeLinear" else []
            hidden = all(_kind(reader) == "DequantizeLinear" and index == 0 for reader, index in mine)
            users = [node, *(reader for reader, _ in mine)]
            hidden = hidden and node.output[0] not in visible
            if mine and hidden and self._gives_int8(node) and all(self._can_shift(user, 1, 2) for user in users):
                turned.add(node.output[0])
                for user in users:
                    self._shift_zero_point(user, 1, 2)
        typed = [value for value in self.graph.value_info if value.name not in turned]
        del self.graph.value_info[:]
        self.graph.value_info.extend(typed)
        return bool(turned)

    def borders(self) -> bool:
        """Has int8 that is seen from outside (an input of the graph) quantised again, unsigned, where it is read."""
        from onnx import helper

        nodes = list(self.graph.node)
        readers = [n for n in nodes if _kind(n) == "DequantizeLinear" and self._gives_int8(n)]
        for node in readers:
            real, scale, zero = node.output[0], node.input[1], self._plus_128(node.input[2])
            node.output[0] = f"{real}/int8"
            axis = {a.name: helper.get_attribute_value(a) for a in node.attribute if a.name in ("axis", "block_size")}
            again = helper.make_node(
                "QuantizeLinear", [f"{real}/int8", scale, zero], [f"{real}/uint8"], f"{real}/again", **axis
            )
            back = helper.make_node("DequantizeLinear", [f"{real}/uint8", scale, zero], [real], f"{real}/back", **axis)
            nodes[(at := nodes.index(node) + 1) : at] = [again, back]
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        return bool(readers)

    def _gives_int8(self, node: NodeProto) -> bool:
        zero = self.constants.get(node.input[2]) if len(node.input) > 2 else None
        return zero is not None and _is_int8(zero)

    def weights(self) -> bool:
        """Turns stored weights; operators that want weights like their activations keep those as well as int8."""
        turned = False
        for node in self.graph.node:
            for data, scale, zero in _WEIGHTS.get(_kind(node), ()):
                stored = self.constants.get(node.input[data]) if len(node.input) > data else None
                activations = self.constants.get(node.input[_ACTIVATIONS.get(node.op_type, data)])
                follows = node.op_type in _ACTIVATIONS and (activations is None or _is_int8(activations))
                if stored is None or not _is_int8(stored) or follows or not self._can_shift(node, scale, zero):
                    continue
                node.input[data] = self._plus_128(node.input[data])
                self._shift_zero_point(node, scale, zero)
                turned = True
        return turned

    def _can_shift(self, node: NodeProto, scale: int | None, zero: int) -> bool:
        if len(node.input) > zero and node.input[zero]:
            return node.input[zero] in self.constants
        return scale is None or node.input[scale] in self.constants

    def _shift_zero_point(self, node: NodeProto, scale: int | None, zero: int) -> None:
        """Adds 128 to a zero point; one that is left out is 0 for every scale."""
        from onnx import TensorProto, numpy_helper

        if len(node.input) > zero and node.input[zero]:
            node.input[zero] = self._plus_128(node.input[zero])
        else:
            shape = () if scale is None else tuple(self.constants[node.input[scale]].dims)
            name = f"{node.output[0]}/zero point"
            self.graph.initializer.append(numpy_helper.from_array(np.full(shape, 128, np.uint8), name))
            node.input.extend([""] * (zero + 1 - len(node.input)))
            node.input[zero] = name
        for attribute in node.attribute:
            if node.op_type == "QuantizeLinear" and attribute.name == "output_dtype" and attribute.i:
                attribute.i = TensorProto.UINT8

    def _plus_128(self, name: str) -> str:
        """Returns the name of a constant's unsigned form."""
        from onnx import numpy_helper

        if name not in self.shifted:
            values = numpy_helper.to_array(self.constants[name]).view(np.uint8) ^ np.uint8(128)
            self.shifted[name] = f"{name}/uint8"
            self.graph.initializer.append(numpy_helper.from_array(values, self.shifted[name]))
        return self.shifted[name]


def _kind(node: NodeProto) -> str:
    """Returns the operator of a node, where ONNX or ONNX Runtime defines it."""
    return str(node.op_type) if node.domain in ("", "ai.onnx", "com.microsoft") else ""


def _is_int8(tensor: TensorProto) -> bool:
    return bool(tensor.data_type == 3)  # TensorProto.INT8, without importing onnx for it
