"""How compiled files round the tensors of the float ONNX model that they come from, read from the files themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from anynpu import schema
from anynpu.artifact import Artifact
from anynpu.errors import IntegrityError, Unsupported
from anynpu.quantize.weights import integer_bits, largest_integer
from anynpu.records import calibration
from anynpu.tensors import Array, Quantization
from anynpu.training.record import read_integers, read_record
from anynpu.training.scheme import Factors, Rounding, Scheme, WeightRounding

if TYPE_CHECKING:
    import onnx

    from anynpu.lowering.graph import Tensor

_WEIGHTED = ("Conv", "Gemm", "MatMul", "ConvTranspose")
_TURNS = 40
"""More than factors along two axes need to be found, where there are such."""


@dataclass(frozen=True)
class Weighted:
    """Stored weights of the float model, as one operator reads them."""

    name: str
    shape: tuple[int, ...]
    axis: int
    """That of the output channels."""
    output: str
    bias: str = ""
    """Stored, and read by this operator alone."""


@dataclass(frozen=True)
class Compiled:
    """What a compiled file holds: the form of every activation, and the integers of stored weights."""

    activations: Mapping[str, Rounding]
    weights: Mapping[str, tuple[WeightRounding, Array]]
    """By the name in the compiled file; output channels come first, then input channels, where a file has them so."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """Activations that are others in another type."""


def weighted(model: onnx.ModelProto) -> Iterator[Weighted]:
    """Yields the weights that training may change: each read by one operator alone."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    uses: dict[str, int] = {}
    for node in model.graph.node:
        for name in node.input:
            uses[name] = uses.get(name, 0) + 1
    for node in model.graph.node:
        if node.op_type not in _WEIGHTED or len(node.input) < 2:
            continue
        name = node.input[1]
        if name not in shapes or uses[name] != 1 or node.input[0] in shapes:
            continue
        axis = 0
        if node.op_type == "Gemm":
            axis = 0 if any(a.name == "transB" and a.i for a in node.attribute) else 1
        elif node.op_type == "MatMul":
            axis = len(shapes[name]) - 1
        elif node.op_type == "ConvTranspose":
            axis = 1
        bias = node.input[2] if len(node.input) > 2 else ""
        yield Weighted(name, shapes[name], axis, node.output[0], bias if uses.get(bias) == 1 else "")


def scheme_of(model: Artifact, compiled: Artifact, lowered: Artifact | None = None) -> Scheme:
    """Returns the roundings of a compiled file, by the names of the float model; other files raise Unsupported.

    `lowered` is the float file that was compiled, where it is another than the model.
    """
    import onnx

    reader = READERS.get(compiled.manifest.format)
    if reader is None:
        raise Unsupported(f"training does not know how {compiled.manifest.format} rounds", hint="leave --qat out")
    layers, graph = reader(compiled), onnx.load(model.main)
    floats: dict[str, Array] | None = None
    if lowered is not None and lowered.manifest.format == "tflite-float":
        floats = {tensor.name: values for tensor, values in _stored(lowered)}
    initializers = {tensor.name: tensor for tensor in graph.graph.initializer}
    weights = {}
    for each in weighted(graph):
        stored = next((n for n in (each.name, f"{each.output}/weights") if n in layers.weights), None)
        if stored is None:
            continue
        rounding, _ = layers.weights[stored]
        channels = each.shape[each.axis]
        if len(rounding.scale) in (1, channels):
            axis = None if len(rounding.scale) == 1 else each.axis
            weights[each.name] = replace(rounding, axis=axis, tensor=stored)
            if floats is not None and stored in floats:
                factors = factors_of(each, onnx.numpy_helper.to_array(initializers[each.name]), floats[stored])
                weights[each.name] = replace(weights[each.name], factors=factors)
        if each.bias and (biases := f"{each.output}/biases") in layers.weights:
            form = layers.weights[biases][0]
            folded = form.folded and replace(form.folded, weights=each.name, axis=each.axis)
            weights[each.bias] = replace(form, folded=folded)
    if not weights:
        raise Unsupported(
            "training finds none of the model's weights in the compiled file",
            hint="leave --qat out",
        )
    names = {name for node in graph.graph.node for name in node.output} | {v.name for v in graph.graph.input}
    fixed = {each.group for each in layers.activations.values() if not each.free}
    known = {name: replace(each, free=each.group not in fixed) for name, each in layers.activations.items()}
    taken = {each.tensor for each in weights.values()}
    return Scheme(
        {name: each for name, each in known.items() if name in names},
        weights,
        {name: each for name, each in known.items() if name not in names},
        {name: each for name, (each, _) in layers.weights.items() if name not in taken},
        () if floats is None else tuple(constants_of(graph.graph)),
        layers.copies,
    )


def factors_of(layer: Weighted, weights: Array, lowered: Array) -> tuple[Factors, ...]:
    """Returns what the weights of the float model were multiplied by on the way to a float file, output by output and
    input by input; raises where that is not all that became of them."""
    rows = np.moveaxis(weights, layer.axis, 0).astype(np.float64)
    if lowered.size == rows.size and len(lowered) == len(rows):
        if _alike(rows.reshape(len(rows), -1), lowered.reshape(len(rows), -1), rows.ndim == 2):
            return ()
        sizes = len(rows), rows.shape[1], -1
        one, other = rows.reshape(sizes), lowered.reshape(sizes).astype(np.float64)
        sides = [np.ones((len(rows), 1, 1)), np.ones((1, sizes[1], 1))]
        for turn in range(_TURNS):
            side, fixed = turn % 2, one * sides[1 - turn % 2]
            along = (1 - side, 2)
            norm = np.square(fixed).sum(along, keepdims=True)
            sides[side] = np.divide(
                (fixed * other).sum(along, keepdims=True), norm, where=norm > 0, out=np.ones_like(norm)
            )
            if np.allclose(one * sides[0] * sides[1], other, 1e-4, 1e-6 * np.abs(other).max()):
                inputs = 1 if layer.axis == 0 else 0
                named = ((layer.axis, sides[0]), (inputs, sides[1]))
                return tuple(
                    Factors(axis, tuple(float(np.float32(v)) for v in side.reshape(-1)))
                    for axis, side in named
                    if not np.all(side == 1)
                )
    raise Unsupported(
        f"training: the weights {layer.name} become others before they are rounded: no factor of inputs and outputs "
        "tells how",
        hint="leave --qat out",
    )


def constants_of(graph: onnx.GraphProto) -> Iterator[str]:
    """Yields stored factors, which may become part of weights, and zeros, which leave no trace in a file."""
    from onnx import numpy_helper

    stored = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        scaling = node.op_type in ("Mul", "Div")
        for place, name in enumerate(node.input):
            if name not in stored or node.op_type in _WEIGHTED:
                continue
            scales = scaling or (place == 1 and node.op_type.endswith("Normalization"))
            if scales or not np.any(numpy_helper.to_array(stored[name])):
                yield name


def check_integers(trained: Artifact, compiled: Artifact) -> None:
    """Raises unless the compiled file holds the integers that training ended with, under the scales it ended with."""
    record = read_record(trained.path)
    assert record is not None
    layers, wanted = READERS[compiled.manifest.format](compiled), read_integers(trained.path)
    for name, rounding in record.scheme.weights.items():
        stored = layers.weights.get(rounding.tensor)
        if stored is None:
            raise _changed(compiled, name, "are not in the file")
        if not np.allclose(stored[0].scale, rounding.scale, rtol=1e-6, atol=0):
            raise _changed(compiled, name, "have other scales")
        if not _holds(stored[1], wanted[name], rounding.axis):
            raise _changed(compiled, name, "are other integers")
    for name, each in {**record.scheme.activations, **record.scheme.others}.items():
        other = layers.activations.get(name)
        if other is None or (other.zero_point, np.float32(other.scale)) != (each.zero_point, np.float32(each.scale)):
            raise IntegrityError(
                f"training: the compiled file ({compiled.manifest.format}) stores {name} in another range than the "
                "one that was trained with",
                "leave --qat out, and report this model",
            )


def _changed(compiled: Artifact, name: str, what: str) -> IntegrityError:
    where = f"the compiled file ({compiled.manifest.format})"
    words = f"training: the weights {name} {what}: {where} must hold them as trained"
    return IntegrityError(words, "leave --qat out, and report this model")


def _holds(stored: Array, wanted: Array, axis: int | None) -> bool:
    """Tells whether stored integers are those wanted, in their places.

    Behind a flattening the inputs of a dense layer may have another order in the file: the same one for all outputs.
    """
    if axis is None and wanted.ndim == 2:  # one scale for all: either axis may be that of the outputs
        return _holds(stored, wanted, 0) or _holds(stored, wanted, 1)
    rows = wanted if axis is None else np.moveaxis(wanted, axis, 0)
    if stored.size != rows.size or len(stored) != len(rows):
        return False
    dense = max((1, *stored.shape[2:], *rows.shape[2:])) == 1
    return _alike(stored.reshape(len(stored), -1), rows.reshape(len(rows), -1), dense)


def _alike(rows: Array, others: Array, dense: bool) -> bool:
    """Tells whether rows are the same; those of a dense layer may have another order of columns."""
    pairs = [(rows, others), *([tuple(each[:, np.lexsort(each)] for each in (rows, others))] if dense else [])]
    return any(np.allclose(one, other, 1e-5, 0) for one, other in pairs)


def _stored(file: Artifact) -> Iterator[tuple[Tensor, Array]]:
    """Yields the stored weights of a TFLite file with their numbers as ONNX has them, outputs first."""
    from anynpu.lowering.integers import HALF_BYTE_KINDS
    from anynpu.lowering.read import from_bytes

    graph = from_bytes(file.main.read_bytes(), file.main.name)
    for operator in graph.operators:
        if operator.kind in HALF_BYTE_KINDS and (tensor := graph.tensors[operator.inputs[1]]).data is not None:
            # (outputs, rows, columns, inputs), or (1, rows, columns, outputs).
            order = {"CONV_2D": (0, 3, 1, 2), "DEPTHWISE_CONV_2D": (3, 0, 1, 2)}.get(operator.kind)
            values = np.asarray(tensor.data)
            yield tensor, values if order is None else values.transpose(order)


def _tflite(compiled: Artifact) -> Compiled:
    from anynpu.lowering.integers import FIXED
    from anynpu.lowering.read import from_bytes

    graph = from_bytes(compiled.main.read_bytes(), compiled.main.name)
    makers = graph.makers()
    measured: Mapping[str, tuple[float, float]] = {}
    if (compiled.path / calibration.FILE).is_file():
        said = schema.read_json(compiled.path / calibration.FILE)
        measured = schema.from_dict(calibration.Calibration, said, calibration.FILE).limits
    activations, weights = {}, {}
    for name, tensor in graph.tensors.items():
        form = tensor.quantization
        if tensor.data is None and form is not None and tensor.dtype in ("int8", "int16") and len(form.scale) == 1:
            maker = makers.get(name)
            built_in = maker is not None and ((maker.kind, tensor.dtype) in FIXED or maker.kind == "RSQRT")
            each = _rounding(tensor.dtype, form, not built_in)
            # What follows from how far values reach down is not told by integers on both sides of zero.
            least = measured[name][0] if name in measured and tensor.dtype == "int16" else None
            between = least is not None and each.limits().min < least <= each.limits().max
            activations[name] = replace(each, least=least if between else None)
    for tensor, values in _stored(compiled):
        if tensor.quantization is not None:
            most = largest_integer(integer_bits(tensor.dtype))
            rounding = WeightRounding(-most, most, tensor.quantization.scale, tensor.quantization.axis, tensor.name)
            weights[tensor.name] = rounding, values
    ends = [(each.outputs[0], each.inputs[0]) for each in graph.operators if each.kind == "QUANTIZE"]
    types = {name: tensor.dtype for name, tensor in graph.tensors.items()}
    copies = {copy: source for copy, source in ends if copy in activations and types[copy] != types[source]}
    return Compiled(activations, weights, copies)


def _qdq(compiled: Artifact) -> Compiled:
    """Reads the pairs of a QDQ model: what is quantised keeps its name, stored weights have it with a suffix."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(compiled.file(compiled.manifest.details.get("quantised", compiled.manifest.main))).graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    types = {tensor.name: onnx.TensorProto.DataType.Name(tensor.data_type).lower() for tensor in graph.initializer}
    activations: dict[str, Rounding] = {}
    weights: dict[str, tuple[WeightRounding, Array]] = {}
    for node in graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear") or len(node.input) < 3:
            continue
        name, scale, point = node.input[0], stored.get(node.input[1]), stored.get(node.input[2])
        if scale is None or point is None:
            continue
        if node.op_type == "QuantizeLinear" and scale.size == 1:
            form = Quantization((float(scale.reshape(-1)[0]),), (int(point.reshape(-1)[0]),))
            # A result of the model keeps its name behind the pair.
            activations[name.removesuffix("_QuantizeLinear_Input")] = _rounding(str(point.dtype), form, True)
        elif name in stored and stored[name].dtype.itemsize == 1 and stored[name].ndim > 1:
            most = largest_integer(integer_bits(types[name]))
            axis = next((int(a.i) for a in node.attribute if a.name == "axis"), 1) if scale.size > 1 else None
            scales = tuple(float(each) for each in scale.reshape(-1))
            plain = name.removesuffix("_quantized")
            values = stored[name].astype(np.int8)
            rows = values if axis is None else np.moveaxis(values, axis, 0)
            weights[plain] = WeightRounding(-most, most, scales, axis, plain), rows
    return Compiled(activations, weights)


def _vitisai(compiled: Artifact) -> Compiled:
    import onnx

    from anynpu.targets.vitisai.trained import forms

    precision = compiled.manifest.details.get("precision")
    if precision != "xint8":
        raise Unsupported(
            f"--qat: training knows xint8 among the precisions of this chip, not {precision}",
            hint="-O precision=xint8, or leave --qat out",
        )
    return Compiled(*forms(onnx.load(compiled.main)))


def _ai8x(compiled: Artifact) -> Compiled:
    from anynpu.targets.ai8x.trained import forms

    return Compiled(*forms(compiled))


def _rounding(dtype: str, form: Quantization, free: bool) -> Rounding:
    limits = np.iinfo(dtype)
    low = -limits.max if dtype == "int16" else limits.min
    return Rounding(int(low), int(limits.max), form.scale[0], form.zero_point[0], free)


READERS: dict[str, Callable[[Artifact], Compiled]] = {
    "tflite": _tflite,
    "onnx-ort": _qdq,
    "onnx-qnn": _qdq,
    "onnx-vitisai": _vitisai,
    "ai8x": _ai8x,
}
