"""Binds inputs of a model to values that never change: they become constants, and are inputs no more."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

from anynpu import schema
from anynpu.errors import ConfigError
from anynpu.graph.fold import RANDOM, inner_graphs, names_read
from anynpu.graph.shapes import dtype_of, inputs_of, shape_of

# What depends on the shape of a tensor alone.
_BY_SHAPE = frozenset(("Shape", "Size"))
PICTURES = 4
"""The axes of a batch of pictures: one that is not of one picture is stated anew, not taken for a sample."""
_TRUTHS = {"true": "1", "false": "0"}


def fixed(model: ModelProto, values: Mapping[str, str]) -> tuple[ModelProto, tuple[str, ...]]:
    """Returns the model with inputs as constants, and a note for each; a value is one number for all, or one for each
    element.
    """
    if not values:
        return model, ()
    inputs = {value.name: value for value in inputs_of(model)}
    result = ModelProto()
    result.CopyFrom(model)
    for name, text in values.items():
        if name not in inputs:
            raise ConfigError(
                f"--fix {name}={text}: the model has no input {name}{schema.near(name, inputs)}",
                f"its inputs: {', '.join(inputs)}",
            )
        value = inputs[name]
        dtype, shape = np.dtype(dtype_of(value)), shape_of(value)
        where = f"--fix {value.name}={text}"
        try:
            numbers = [float(_TRUTHS.get(part.strip().lower(), part)) for part in text.split(",")]
        except ValueError:
            raise ConfigError(f"{where}: numbers with commas between them were expected") from None
        if dtype.kind in "iub":
            limits = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            if any(number != int(number) or not limits[0] <= number <= limits[1] for number in numbers):
                raise ConfigError(f"{where}: the input is {dtype.name}, which has no such value")
        open_axes = [place for place, size in enumerate(shape) if isinstance(size, str)]
        sizes = [1 if isinstance(size, str) else size for size in shape]
        if len(open_axes) == 1:  # as many as there are values for
            sizes[open_axes[0]] = max(1, len(numbers) // math.prod(sizes))
        if len(numbers) not in (1, math.prod(sizes)):
            raise ConfigError(f"{where}: {len(numbers)} values for {math.prod(sizes)} elements ({list(shape)})")
        array = np.asarray(numbers, np.float64).astype(dtype)
        whole = np.broadcast_to(array.reshape(sizes if len(numbers) > 1 else ()), sizes).copy()
        result.graph.initializer.append(numpy_helper.from_array(whole, name))
    kept = [value for value in result.graph.input if value.name not in values]
    if not any(value.name in inputs for value in kept):
        raise ConfigError("--fix leaves the model without an input", "leave out one of them")
    copies = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in kept]
    del result.graph.input[:]
    result.graph.input.extend(copies)
    return result, tuple(f"the input {name} is fixed at {text}" for name, text in values.items())


def without_constant_outputs(model: ModelProto) -> tuple[ModelProto, tuple[str, ...]]:
    """Returns the model without the outputs that no input reaches, and a sentence for each; one stays in any case."""
    reached = {value.name for value in inputs_of(model)}
    for node in model.graph.node:
        by_values = node.op_type not in _BY_SHAPE and bool(names_read(node) & reached)
        if by_values or node.op_type in RANDOM or node.domain not in ("", "ai.onnx"):
            reached |= {*node.output}
    lost = [value.name for value in model.graph.output if value.name not in reached]
    if not lost or len(lost) == len(model.graph.output):
        return model, ()
    result = ModelProto()
    result.CopyFrom(model)
    kept = [value for value in model.graph.output if value.name in reached]
    del result.graph.output[:]
    result.graph.output.extend(kept)
    return result, tuple(f"output '{name}' is left out: it is the same whatever the inputs are" for name in lost)


def with_sample_axis(model: ModelProto) -> tuple[ModelProto, tuple[str, ...]]:
    """Returns the model with an axis of one in front of inputs that have none for samples, and what to know of it.

    Where some input begins with a batch of one, another that begins otherwise (a recurrent state, a number) is not
    batched; a sample of it is then the whole of it. Where none does (a sequence before its batch, rows of a graph, a
    picture by itself), a sample is all of them, unless they look like a batch of pictures. A result that is a number
    gets an axis of one.
    """
    inputs = inputs_of(model)
    bare = {value.name for value in inputs if shape_of(value)[:1] != (1,)}
    pictures = len(bare) == len(inputs) and any(len(shape_of(value)) == PICTURES for value in inputs)
    bare = set() if pictures else bare
    numbers = {v.name for v in model.graph.output if v.type.tensor_type.HasField("shape") and not shape_of(v)}
    if not bare and not numbers:
        return model, ()
    result = ModelProto()
    result.CopyFrom(model)
    notes = []
    for value in (each for each in result.graph.output if each.name in numbers):
        inner, target = f"{value.name}/number", f"{value.name}/number_shape"
        for node in result.graph.node:
            _reread(node, value.name, inner)
            node.output[:] = [inner if name == value.name else name for name in node.output]
        result.graph.initializer.append(numpy_helper.from_array(np.asarray([1], np.int64), target))
        result.graph.node.append(onnx.helper.make_node("Reshape", [inner, target], [value.name]))
        value.type.tensor_type.shape.dim.add(dim_value=1)
        notes.append(f"output {value.name} is a number: it is taken as [1]")
    for value in (each for each in result.graph.input if each.name in bare):
        shape = [int(size) for size in shape_of(value)]
        inner, target = f"{value.name}/sample", f"{value.name}/sample_shape"
        for node in result.graph.node:
            _reread(node, value.name, inner)
        result.graph.initializer.append(numpy_helper.from_array(np.asarray(shape, np.int64), target))
        result.graph.node.insert(0, onnx.helper.make_node("Reshape", [value.name, target], [inner]))
        value.type.tensor_type.shape.dim.insert(0, onnx.TensorShapeProto.Dimension(dim_value=1))
        wide = [1, *shape]
        notes.append(f"input {value.name} {shape} is taken as {wide}: its first axis is not one of samples")
    return result, tuple(notes)


def _reread(node: onnx.NodeProto, name: str, new: str) -> None:
    """Lets a node read another tensor, inside its subgraphs too."""
    for place, read in enumerate(node.input):
        if read == name:
            node.input[place] = new
    for graph in inner_graphs(node):
        for each in graph.node:
            _reread(each, name, new)
