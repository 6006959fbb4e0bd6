"""Ends a model at tensors that the user names, so that a program of theirs computes what lies behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from anynpu import schema
from anynpu.errors import ConfigError
from anynpu.graph.fold import initializer_names, names_read, needed_nodes, static_shapes, with_nodes
from anynpu.graph.shapes import infer, inputs_of

MOST_NAMED = 12
"""More tensors than that are no place to end at."""


def ended(model: ModelProto, names: Sequence[str]) -> tuple[ModelProto, tuple[str, ...]]:
    """Returns the model with these tensors as its outputs, in this order, and a note on what lies behind them.

    Without names it ends where it ended.
    """
    if not names:
        return model, ()
    computed = {name for node in model.graph.node for name in node.output if name}
    require_computed(names, computed, {value.name for value in inputs_of(model)})
    nodes = needed_nodes(model.graph.node, names)
    result = with_nodes(model, nodes)
    types = {v.name: v for v in (*infer(model, strict=False).graph.value_info, *model.graph.output)}
    outputs = [_open(types.get(name, ValueInfoProto()), name) for name in names]
    del result.graph.output[:]
    result.graph.output.extend(outputs)
    result = with_nodes(result, nodes)  # without constants that only the other outputs were
    _without_unread_inputs(result, before=model)
    kept = {name for node in nodes for name in node.output}
    behind = Counter(node.op_type for node in model.graph.node if not kept & {*node.output})
    return result, (note(names, behind),)


def require_computed(names: Sequence[str], computed: Collection[str], inputs: Collection[str]) -> None:
    """Raises for a name to end at that no operator computes."""
    for name in names:
        if name not in computed:
            what = "is an input" if name in inputs else "is not one of the model's"
            raise ConfigError(
                f"--end-at {name}: {what}{schema.near(name, computed)}",
                "name tensors that operators of the model compute",
            )


def note(names: Sequence[str], behind: Counter[str]) -> str:
    """Returns the sentence on where a model ends and on the kinds of operators that lay behind."""
    sentence = f"the model ends at {', '.join(names)}"
    if behind:
        kinds = ", ".join([*(kind for kind, _ in behind.most_common(5)), *(["..."] if len(behind) > 5 else [])])
        sentence += f": {behind.total()} operators behind are left to the program that runs it ({kinds})"
    return sentence


def _open(value: ValueInfoProto, name: str) -> ValueInfoProto:
    """Returns an output whose shape is to be inferred."""
    kind = value.type.tensor_type.elem_type
    if kind == TensorProto.UNDEFINED:
        raise ConfigError(f"--end-at {name}: its type is not known", "name a tensor in front of it")
    return helper.make_tensor_value_info(name, kind, None)


def _without_unread_inputs(model: ModelProto, before: ModelProto) -> None:
    """Drops inputs that only operators behind the end read."""
    read = {name for node in model.graph.node for name in names_read(node)}
    had = {name for node in before.graph.node for name in names_read(node)}
    kept = [value for value in model.graph.input if value.name in read or value.name not in had]
    copies = [ValueInfoProto.FromString(value.SerializeToString()) for value in kept]
    del model.graph.input[:]
    model.graph.input.extend(copies)


def places_before(model: ModelProto, outputs: Collection[str]) -> list[str]:
    """Returns the last tensors of known shape before the operators that give these outputs, or nothing.

    All that lies behind those operators counts as lost; whatever else the model gives is named too. Where one of them
    reads an input of the model, or more than a dozen tensors lie in front of them, there is no place to end at.
    """
    static, behind, front = static_shapes(model.graph), set(outputs), dict[str, None]()
    inputs = {value.name for value in inputs_of(model)}
    varying = set(inputs)
    for node in model.graph.node:
        reads = names_read(node)
        if reads & varying:
            varying |= {*node.output}
        if reads & behind or behind & {*node.output}:
            behind |= {*node.output}
            front |= dict.fromkeys([*filter(None, node.input), *sorted(reads)])
    front |= dict.fromkeys(value.name for value in model.graph.output)
    stored = initializer_names(model.graph)
    ends = [name for name in front if name in varying and name not in behind and name not in stored]
    settled = all(name in static for name in ends) and not inputs & {*ends}
    return ends if settled and len(ends) <= MOST_NAMED else []
