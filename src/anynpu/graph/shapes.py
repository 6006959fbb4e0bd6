"""Makes every shape of a model known: NPU compilers plan memory before the first inference."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress

import onnx
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

from anynpu import schema
from anynpu.errors import ConfigError, Finding, IntegrityError, Unsupported, first_line
from anynpu.foreign import ONNX
from anynpu.graph.branches import MOST_ROUNDS, has_branches
from anynpu.graph.fold import copied_without, fold_constants, initializer_names, names_read, same_nodes, static_shapes
from anynpu.graph.opset import SKLEARN, opset_of, refuse_foreign

_ROUNDS = 64
_AS_SHAPES = 4096
"""Fewer bytes than this may be a shape that something is computed from."""
# Names that exporters give to a first axis that is not a batch.
_LENGTH = re.compile("len|seq|time|frame|node|edge|point|token|step|sample|height|width", re.IGNORECASE)
_SAME_SHAPE = ("GroupNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
"""Functions whose shapes ONNX does not infer."""
_LEFT = {
    "Loop": f"Loop runs as often as the data say, or more than {MOST_ROUNDS} times",
    "Scan": f"Scan walks along an axis of unknown size, or takes more than {MOST_ROUNDS} steps",
    "If": "If chooses by the data between results of different shapes",
}
"""Why control flow is not written out, where there is more to say than that shapes depend on it."""
VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
"""Operators that give the same values in another shape."""
_NEGATIVE_AXES = 11
"""The first opset that counts axes from the end."""


def inputs_of(model: ModelProto) -> list[ValueInfoProto]:
    """Returns the graph inputs that the caller feeds, in order, without weights listed as inputs."""
    stored = initializer_names(model.graph)
    return [value for value in model.graph.input if value.name not in stored]


def maker_behind(tensor: str, makers: Mapping[str, NodeProto], passed: Container[str]) -> NodeProto | None:
    """Returns the operator that a tensor comes from, behind those of the kinds that are passed; None for an input."""
    node = makers.get(tensor)
    while node is not None and node.op_type in passed:
        node = makers.get(node.input[0])
    return node


def dtype_of(value: ValueInfoProto) -> str:
    """Returns the NumPy name of a tensor's type, such as 'float32'."""
    kind = value.type.tensor_type.elem_type
    if not value.type.HasField("tensor_type") or kind == onnx.TensorProto.UNDEFINED:
        raise IntegrityError(f"tensor '{value.name}' has no element type", "export the model again")
    return str(onnx.helper.tensor_dtype_to_np_dtype(kind).name)


def shape_of(value: ValueInfoProto) -> tuple[int | str, ...]:
    """Returns the dimensions of a tensor: numbers where known, the symbol or '?' where not."""
    dims = value.type.tensor_type.shape.dim
    return tuple(dim.dim_value if _is_known(dim) else dim.dim_param or "?" for dim in dims)


def tensor_shapes(model: ModelProto) -> dict[str, tuple[int, ...]]:
    """Returns every known static shape by tensor name, after shape inference."""
    return static_shapes(infer(model).graph)


def infer(model: ModelProto, *, strict: bool = True) -> ModelProto:
    """Returns the model with the shapes ONNX can infer; where they contradict, `strict` raises IntegrityError."""
    # ONNX copies a model twice to infer from it: types and shapes of large weights will do.
    bare = copied_without(model, ("initializer",))
    for tensor in model.graph.initializer:
        if tensor.ByteSize() < _AS_SHAPES:
            bare.graph.initializer.append(tensor)
        else:
            bare.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    try:
        result = onnx.shape_inference.infer_shapes(bare, check_type=strict, strict_mode=strict, data_prop=True)
        while keeps_shapes(result.graph):
            result = onnx.shape_inference.infer_shapes(result, check_type=strict, strict_mode=strict, data_prop=True)
        for known, whole in zip(result.graph.initializer, model.graph.initializer, strict=True):
            known.CopyFrom(whole)
        return result
    except ONNX as error:
        if strict:
            with suppress(*ONNX):  # ONNX adds vectors of one size alone: do shapes agree without sums?
                onnx.shape_inference.infer_shapes(bare, check_type=True, strict_mode=True, data_prop=False)
                return infer(model, strict=False)
        raise IntegrityError(f"the shapes of the model contradict each other: {first_line(error)}") from error


def keeps_shapes(graph: GraphProto) -> bool:
    """Gives functions whose shapes ONNX does not infer the shape of what they read, and says whether there was one."""
    known = {value.name: value.type for value in (*graph.input, *graph.value_info, *graph.output)}
    known = {name: kind for name, kind in known.items() if kind.tensor_type.HasField("shape")}
    nodes = [n for n in graph.node if n.op_type in _SAME_SHAPE and n.input[0] in known and n.output[0] not in known]
    values = {value.name: value for value in (*graph.value_info, *graph.output)}
    for node in nodes:
        value = values.get(node.output[0]) or graph.value_info.add(name=node.output[0])
        value.type.CopyFrom(known[node.input[0]])
    return bool(nodes)


def open_batches(model: ModelProto, stated: Container[str] = ()) -> dict[str, list[int]]:
    """Returns shapes with a batch of one for inputs that leave nothing but their batch open.

    A batch is a first axis without a size, of an input with several axes, whose name is not that of a length; a
    recurrent state has the same name further back.
    """
    shapes = {value.name: shape_of(value) for value in inputs_of(model) if value.name not in stated}
    first = {shape[0] for shape in shapes.values() if len(shape) > 1 and isinstance(shape[0], str)}
    batch = {name for name in first if not _LENGTH.search(str(name))}
    batches = {}
    for name, shape in shapes.items():
        sizes = [1 if dim in batch and (place == 0 or dim != "?") else dim for place, dim in enumerate(shape)]
        if sizes != list(shape) and len(shape) > 1 and not any(isinstance(dim, str) for dim in sizes):
            batches[name] = [int(dim) for dim in sizes]
    return batches


def with_shapes(model: ModelProto, shapes: Mapping[str, Sequence[int]]) -> ModelProto:
    """Returns the model with the input shapes that the user states."""
    result = ModelProto()
    result.CopyFrom(model)
    inputs = {value.name: value for value in inputs_of(result)}
    for name, shape in shapes.items():
        if name not in inputs:
            raise ConfigError(
                f"the model has no input '{name}'{schema.near(name, inputs)}", f"its inputs: {', '.join([*inputs][:5])}"
            )
        if any(isinstance(dim, bool) or int(dim) != dim or dim < 1 for dim in shape):
            raise ConfigError(f"shape of '{name}': every dimension is a whole number above 0, not {list(shape)}")
        _set_shape(inputs[name], [int(dim) for dim in shape])
    return result


def make_static(model: ModelProto, shapes: Mapping[str, Sequence[int]] = {}) -> ModelProto:
    """Returns the model with every tensor shape known, given the input shapes the user states."""
    result = with_shapes(model, shapes)
    inputs = {value.name: value for value in inputs_of(result)}
    for value in inputs_of(result):
        if not value.type.HasField("tensor_type"):
            raise Unsupported(f"input '{value.name}' is not a tensor", hint="export the model with tensor inputs")
        dims = shape_of(value)
        if not value.type.tensor_type.HasField("shape"):
            raise ConfigError(
                f"input '{value.name}' has no shape", f"state it, for example: --shape {value.name}=1,3,224,224"
            )
        for place, dim in enumerate(dims):
            if isinstance(dim, str):
                symbol = f" ('{dim}')" if dim != "?" else ""
                size = 224 if len(dims) == 4 else 128
                example = [d if isinstance(d, int) else 1 if at == 0 else size for at, d in enumerate(dims)]
                raise ConfigError(
                    f"input '{value.name}': dimension {place}{symbol} is dynamic",
                    f"state the shape, for example: --shape {value.name}={','.join(map(str, example))}",
                )
    if inputs and all(0 in shape_of(value) for value in inputs.values()):
        name, value = next(iter(inputs.items()))
        raise ConfigError(f"input '{name}' has no elements: its shape is {list(shape_of(value))}")
    _forget_shapes(result.graph, static_shapes(result.graph))
    try:
        result = _propagate(result)
    except IntegrityError as error:
        try:  # ONNX Runtime takes a shape that a file declares behind its operators for a remark
            _forget_shapes(result.graph, ())
            result = _propagate(result)
        except IntegrityError:
            if not shapes:
                raise error from None
            stated = " ".join(f"{name}={','.join(map(str, shape))}" for name, shape in shapes.items())
            raise ConfigError(f"the model does not accept the shape {stated}: {error.message}") from error
    require_known(result)
    return result


def require_known(model: ModelProto) -> None:
    """Raises Unsupported where the shape of a tensor depends on the data, or on an operator of another domain."""
    if any(node.domain == SKLEARN for node in model.graph.node):  # ONNX infers the shapes of some
        refuse_foreign(model)
    static = static_shapes(model.graph)
    # ONNX infers no shape for the mask of an old Dropout, which nobody reads.
    read = {value.name for value in model.graph.output}.union(*map(names_read, model.graph.node))
    findings = [
        Finding(
            "data-dependent-shape",
            _LEFT.get(node.op_type, f"{node.op_type} gives a shape that depends on the data"),
            node.name or next(iter(node.output), ""),
        )
        for node in model.graph.node
        if all(name in static for name in node.input if name)
        and any(name not in static for name in node.output if name in read)
    ]
    if findings:
        from anynpu.graph.quantised import refuse_integers

        refuse_integers(model)  # ONNX does not infer the shapes of these operators, which says nothing to the user
        refuse_foreign(model)
        from anynpu.graph.end import places_before

        lost = [name for node in model.graph.node for name in node.output if name in read and name not in static]
        places = places_before(model, lost)
        end = f", or end an ONNX file in front of them: --end-at {','.join(places)}" if places else ""
        raise Unsupported(
            f"{len(findings)} operator(s) give tensors whose shape depends on the data, first {findings[0]}",
            findings,
            f"export the model without data-dependent shapes, e.g. without NonZero or NMS in the graph{end}",
        )


def _is_known(dim: onnx.TensorShapeProto.Dimension) -> bool:
    # Some exporters write -1 for a dimension they do not know.
    return dim.HasField("dim_value") and dim.dim_value >= 0


def _set_shape(value: ValueInfoProto, shape: list[int]) -> None:
    tensor = value.type.tensor_type
    known = shape_of(value)
    text = ", ".join(map(str, known))
    if tensor.HasField("shape") and len(known) != len(shape):
        raise ConfigError(f"shape of '{value.name}': the model has {len(known)} dimensions [{text}], not {len(shape)}")
    if not tensor.HasField("shape"):
        tensor.shape.dim.extend(onnx.TensorShapeProto.Dimension() for _ in shape)
    for place, (dim, wanted) in enumerate(zip(tensor.shape.dim, shape, strict=True)):
        a_batch_of_one = place == 0 and wanted == 1 and len(shape) > 1
        if _is_known(dim) and dim.dim_value != wanted and not a_batch_of_one:
            raise ConfigError(
                f"shape of '{value.name}': dimension {place} is fixed to {dim.dim_value} in the model, not {wanted}",
                f"the model's shape is [{text}]; only its dynamic dimensions and a batch of one can be stated",
            )
        dim.dim_value = wanted


def _forget_shapes(graph: GraphProto, kept_names: Container[str]) -> None:
    """Drops what is declared of the shapes of tensors behind operators, so that inference fills it in."""
    stored = initializer_names(graph)  # their own sizes count, and not what a file declares of them
    kept = [value for value in graph.value_info if value.name in kept_names and value.name not in stored]
    copies = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in kept]
    del graph.value_info[:]
    graph.value_info.extend(copies)
    for value in graph.output:
        if value.name not in kept_names:
            value.type.tensor_type.ClearField("shape")


def _propagate(model: ModelProto) -> ModelProto:
    """Alternates inference and folding: a folded Shape settles the Reshape behind it, and so on."""
    for node in model.graph.node:  # ONNX infers the shape of both sides where the default is not written down
        if node.op_type == "STFT" and not any(item.name == "onesided" for item in node.attribute):
            node.attribute.append(onnx.helper.make_attribute("onesided", 1))
    for _ in range(_ROUNDS):
        model = infer(model)
        static = static_shapes(model.graph)
        known = all(name in static for node in model.graph.node for name in node.output if name)
        if known and not has_branches(model):
            break
        # In old opsets ONNX infers nothing behind axes counted from the end, though exporters write them and ONNX
        # Runtime takes them.
        from_end = [
            (item, len(static.get(node.input[0], ())))
            for node in (model.graph.node if opset_of(model) < _NEGATIVE_AXES else ())
            if node.input
            for item in node.attribute
            if item.name == "axis" and item.i < 0
        ]
        for item, rank in from_end:
            item.i += rank
        folded = fold_constants(model)
        if same_nodes(folded, model) and not any(rank for _, rank in from_end):
            break
        model = folded
    return model
