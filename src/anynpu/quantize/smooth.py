"""Smoothing through normalisations: the loud channels of what a normalisation gives are made quieter, and the weights
that meet them louder, so that eight bits serve all of them (SmoothQuant).

The scale and bias of the normalisation take the factors, the matrix products behind it take them back in their weights.
Whatever else reads the result, such as a residual sum, reads it through a product with the inverse factors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from anynpu.graph.fold import copied
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.equalize import ChannelPeaks, Floats, smoothing_factors
from anynpu.quantize.onnx_functions import Wiring
from anynpu.runtime.ort import open_session
from anynpu.tensors import Array

_NORMS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
# The loudness of channels shows in a few samples.
_SAMPLES = 32


@dataclass
class _Result:
    """What a normalisation gives, and who reads it: products of its channels with stored weights, or others."""

    norm: onnx.NodeProto
    parameters: list[str]
    products: list[onnx.NodeProto] = field(default_factory=list)
    moves: list[onnx.NodeProto] = field(default_factory=list)
    direct: list[onnx.NodeProto] = field(default_factory=list)
    others: list[onnx.NodeProto] = field(default_factory=list)


def smooth(model: onnx.ModelProto, data: Dataset) -> int:
    """Changes a float model so that what its normalisations give needs fewer bits, and returns how many of them; what
    it computes stays."""
    results = _results(model)
    if not results:
        return 0
    peaks = channel_peaks(model, {result.norm.output[0]: -1 for result in results}, data)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for result in results:
        weights = [_weight_peaks(node, stored) for node in result.products]
        factors = smoothing_factors(peaks.peak(result.norm.output[0]), np.max(weights, axis=0))
        for name in result.parameters:
            scale(stored[name], factors)
        for node in result.products:
            scale(stored[node.input[1]], 1 / (factors if _transposed(node) else factors[:, np.newaxis]))
        _rewire(model, result, factors)
    return len(results)


def _results(model: onnx.ModelProto) -> list[_Result]:
    wiring = Wiring.of(model.graph)
    uses = Counter(name for node in model.graph.node for name in node.input)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.value_info}
    stored = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    floats = {t.name for t in model.graph.initializer if t.data_type == TensorProto.FLOAT}
    found = []
    for node in model.graph.node:
        parameters = _parameters(node, wiring)
        axis = next((item.i for item in node.attribute if item.name == "axis"), -1)
        own = parameters and {*parameters} <= floats and all(uses[name] == 1 for name in parameters)
        rank = len(shapes.get(node.output[0], ())) if own else 0
        if not own or axis not in (-1, rank - 1) or node.output[0] in wiring.outputs:
            continue
        channels = stored[parameters[0]]
        result = _Result(node, parameters)
        for reader in wiring.readers.get(node.output[0], ()):
            _sort(reader, node.output[0], result, wiring, shapes, uses, channels)
        if result.products and all(stored[name] == channels for name in parameters):
            found.append(result)
    return found


def _parameters(node: onnx.NodeProto, wiring: Wiring) -> list[str]:
    """Returns the stored scale and bias of what a node gives: a normalisation, or the end of a written-out one."""
    if node.op_type in _NORMS:
        return [name for name in node.input[1:3] if name]
    stored = [name for name in node.input if name in wiring.stored]
    source = next((name for name in node.input if name not in wiring.stored), "")
    maker = wiring.makers.get(source)
    if node.op_type != "Add" or not stored or maker is None or maker.op_type != "Mul" or not wiring.alone(source):
        return []
    factors = [name for name in maker.input if name in wiring.stored]
    return [*factors, *stored] if factors else []


def _sort(
    reader: onnx.NodeProto,
    name: str,
    result: _Result,
    wiring: Wiring,
    shapes: Mapping[str, list[int]],
    uses: Mapping[str, int],
    channels: tuple[int, ...],
) -> None:
    """Adds a reader of a result to the products, also behind a Reshape that keeps channels last, or to others."""
    if _is_product(reader, name, wiring, uses):
        result.products.append(reader)
        result.direct.append(reader)
        return
    if (
        reader.op_type == "Reshape"
        and reader.input[0] == name
        and (shapes.get(reader.output[0]) or [0])[-1:] == [*channels]
    ):
        behind = wiring.readers.get(reader.output[0], [])
        if behind and all(_is_product(node, reader.output[0], wiring, uses) for node in behind):
            result.moves.append(reader)
            result.products += behind
            return
    result.others.append(reader)


def _is_product(node: onnx.NodeProto, name: str, wiring: Wiring, uses: Mapping[str, int]) -> bool:
    if node.op_type not in ("Gemm", "MatMul") or node.input[0] != name or node.input[1] not in wiring.stored:
        return False
    flipped = any(item.name == "transA" and item.i for item in node.attribute)
    return not flipped and uses[node.input[1]] == 1 and name not in node.input[1:]


def _transposed(node: onnx.NodeProto) -> bool:
    return any(item.name == "transB" and item.i for item in node.attribute)


def _weight_peaks(node: onnx.NodeProto, stored: Mapping[str, onnx.TensorProto]) -> Floats:
    weights = np.abs(numpy_helper.to_array(stored[node.input[1]]).astype(np.float64))
    return np.asarray(
        weights.max(axis=0 if _transposed(node) else tuple(a for a in range(weights.ndim) if a != weights.ndim - 2))
    )


def scale(tensor: onnx.TensorProto, factors: Array) -> None:
    """Multiplies a stored tensor."""
    values = numpy_helper.to_array(tensor) * factors
    tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float32), tensor.name))


def channel_peaks(model: onnx.ModelProto, axes: dict[str, int], data: Dataset) -> ChannelPeaks:
    """Returns the largest magnitude of each channel of some tensors, by their channel axes, over some samples."""
    copy = copied(model)
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in axes)
    session = open_session(copy.SerializeToString(), threads=1)
    names, peaks = list(axes), ChannelPeaks(axes)
    for index in range(0, data.count, max(1, data.count // _SAMPLES)):
        peaks.observe(dict(zip(names, session.run(names, data.sample(index)), strict=True)))
    return peaks


def _rewire(model: onnx.ModelProto, result: _Result, factors: Floats) -> None:
    """Gives what is smooth names of its own: the old ones keep what they stood for."""
    graph, name = model.graph, result.norm.output[0]
    infos = {value.name: value for value in graph.value_info}

    def renamed(old: str) -> str:
        value = graph.value_info.add()
        value.CopyFrom(infos[old])
        value.name = f"{old}/smooth"
        return str(value.name)

    new = renamed(name)
    result.norm.output[0] = new
    for node in (*result.direct, *result.moves):
        node.input[0] = new
    for node in result.moves:
        old = node.output[0]
        node.output[0] = renamed(old)
        for product in result.products:
            if product.input[0] == old:
                product.input[0] = node.output[0]
    if result.others:
        graph.initializer.append(numpy_helper.from_array((1 / factors).astype(np.float32), f"{name}/inverse"))
        place = list(graph.node).index(result.norm) + 1
        graph.node.insert(place, helper.make_node("Mul", [new, f"{name}/inverse"], [name], name=f"{name}/restored"))
