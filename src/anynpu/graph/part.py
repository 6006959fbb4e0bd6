"""A sub-model of an ONNX model: the nodes between some tensors and others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from onnx import ModelProto, NodeProto, ValueInfoProto, helper

from anynpu.errors import Finding, Unsupported
from anynpu.graph.branches import renamed
from anynpu.graph.fold import names_read
from anynpu.graph.shapes import infer
from anynpu.tensors import Array


def sub_model(
    model: ModelProto, inputs: Mapping[str, Array], outputs: Iterable[str], names: Mapping[str, str]
) -> ModelProto:
    """Returns the nodes from some tensors to others; the arrays show shape and type of what goes in.

    `names` gives tensors other names. A cut that cannot be made raises Unsupported.
    """
    graph, wanted = model.graph, list(outputs)
    nodes, needed = _between(model, inputs, wanted)
    chosen = free_names(names, needed)
    types = {value.name: value for value in (*infer(model, strict=False).graph.value_info, *graph.output)}
    results = []
    for name in wanted:
        value = ValueInfoProto()
        value.CopyFrom(types.get(name, value))
        value.name = chosen.get(name, name)
        results.append(value)
    part = helper.make_graph(
        [renamed(node, chosen) for node in nodes],
        "part",
        [
            helper.make_tensor_value_info(
                chosen.get(name, name), helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in inputs.items()
        ],
        results,
        [tensor for tensor in graph.initializer if tensor.name in needed],
        sparse_initializer=[tensor for tensor in graph.sparse_initializer if tensor.values.name in needed],
    )
    return helper.make_model(part, opset_imports=model.opset_import, ir_version=model.ir_version)


def before_pairs(model: ModelProto) -> dict[str, str]:
    """Returns the tensor before each pair of QuantizeLinear and DequantizeLinear, by the one behind it."""
    nodes = model.graph.node
    stored = {node.output[0]: node.input[0] for node in nodes if node.op_type == "QuantizeLinear"}
    behind = {node.output[0]: node.input[0] for node in nodes if node.op_type == "DequantizeLinear"}
    return {name: stored[source] for name, source in behind.items() if source in stored}


def needed_tensors(
    model: str, inputs: Collection[str], outputs: Iterable[str], reads: Callable[[str], Iterable[str] | None]
) -> set[str]:
    """Returns every tensor that outputs need, up to the given ones.

    `reads` says what the operator that makes a tensor reads: nothing for a stored one, None where nothing makes it.
    """
    needed, waiting = set[str](), list(outputs)
    while waiting:
        name = waiting.pop()
        if not name or name in needed or name in inputs:
            continue
        needed.add(name)
        sources = reads(name)
        if sources is None:
            raise cannot_cut(model, f"{name} is needed too")
        waiting.extend(sources)
    return needed


def refuse_made(model: str, inputs: Collection[str], computed: Iterable[str]) -> None:
    """Raises where an operator of a part makes what goes into it."""
    if twice := {*computed} & {*inputs}:
        raise cannot_cut(model, f"{min(twice)} is made by an operator that the part needs")


def free_names(names: Mapping[str, str], present: Iterable[str]) -> dict[str, str]:
    """Returns the new names of tensors, with another one for each that has such a name already."""
    taken = {*names.values()} - {*names}
    return {**{name: f"{name}//inner" for name in present if name in taken}, **names}


def cannot_cut(model: str, why: str) -> Unsupported:
    """Returns the error of a cut that a model does not allow."""
    return Unsupported(f"{model} cannot be cut there: {why}", [Finding("cut", why)])


def _between(model: ModelProto, inputs: Collection[str], outputs: Iterable[str]) -> tuple[list[NodeProto], set[str]]:
    """Returns the nodes between tensors in their order, and everything that they read or make."""
    graph, title = model.graph, "the model"
    makers = {name: node for node in graph.node for name in node.output if name}
    stored = {tensor.name for tensor in graph.initializer} | {t.values.name for t in graph.sparse_initializer}

    def reads(tensor: str) -> Iterable[str] | None:
        return names_read(makers[tensor]) if tensor in makers else () if tensor in stored else None

    needed = needed_tensors(title, inputs, outputs, reads)
    nodes = [node for node in graph.node if {*node.output} & needed]
    refuse_made(title, inputs, (tensor for node in nodes for tensor in node.output))
    return nodes, needed
