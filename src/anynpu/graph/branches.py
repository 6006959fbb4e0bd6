"""Writes out control flow that is known beforehand: an If whose condition is constant, a Loop or Scan of a known count.

The count of a Loop is its limit, or follows from what its condition reads: a counter and numbers that never change.
That of a Scan is the size of the axis that it walks along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, OperatorSetIdProto, helper, numpy_helper

from anynpu.foreign import ONNX

MOST_ROUNDS = 256
"""A loop that runs more often is left as it is: written out, it would be larger than any device."""
_NUMBERS = count()
# The opsets since which a Scan has no axis of batches, and an Unsqueeze reads its axes.
_SCAN_WITHOUT_BATCH, _AXES_ARE_INPUTS = 9, 13

Constants = dict[str, np.ndarray]


def written_out(
    node: NodeProto,
    constants: Mapping[str, np.ndarray],
    opsets: Sequence[OperatorSetIdProto],
    shapes: Mapping[str, tuple[int, ...]],
) -> tuple[list[NodeProto], Constants] | None:
    """Returns the nodes and constants that stand for a known branch or loop; None for any other node."""
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "If" and node.input[0] in constants:
        taken = "then_branch" if bool(np.asarray(constants[node.input[0]]).reshape(-1)[0]) else "else_branch"
        return _inlined(_graph(node, taken), {}, list(node.output))
    if node.op_type == "If" and all(name in shapes for name in (*node.input, *node.output)):
        # Both branches and a choice of their results, which have one shape: ONNX infers one where they agree
        nodes, arrays = list[NodeProto](), Constants()
        prefix = f"{node.name or node.output[0]}.{next(_NUMBERS)}"
        for branch in ("then_branch", "else_branch"):
            inlined = _inlined(_graph(node, branch), {}, [f"{prefix}/{branch}/{name}" for name in node.output])
            if inlined is None:
                return None
            nodes += inlined[0]
            arrays |= inlined[1]
        for name in node.output:
            both = [f"{prefix}/then_branch/{name}", f"{prefix}/else_branch/{name}"]
            nodes.append(helper.make_node("Where", [node.input[0], *both], [name]))
        return nodes, arrays
    if node.op_type == "Loop":
        return _unrolled(node, constants, opsets)
    if node.op_type == "Scan":
        return _walked(node, opsets, shapes)
    return None


def _graph(node: NodeProto, name: str) -> GraphProto:
    graph: GraphProto = next(attribute.g for attribute in node.attribute if attribute.name == name)
    return graph


def _inlined(
    graph: GraphProto, bound: Mapping[str, str], results: list[str]
) -> tuple[list[NodeProto], Constants] | None:
    """Returns a subgraph's nodes under new names, its inputs as they are called outside, its results as wanted."""
    if graph.sparse_initializer:
        return None
    prefix = f"{graph.name or 'graph'}.{next(_NUMBERS)}/"
    inside = [tensor.name for tensor in graph.initializer]
    inside += [name for node in graph.node for name in node.output if name]
    names = {name: prefix + name for name in inside} | dict(bound)
    nodes = [renamed(node, names) for node in graph.node]
    for node in nodes:  # ONNX Runtime refuses two nodes of one name
        node.name = prefix + node.name if node.name else ""
    for value, result in zip(graph.output, results, strict=True):
        if result:
            nodes.append(helper.make_node("Identity", [names.get(value.name, value.name)], [result]))
    constants = {names[tensor.name]: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    return nodes, constants


def renamed(node: NodeProto, names: Mapping[str, str]) -> NodeProto:
    """Returns a copy of a node that reads and makes tensors under other names, inside its own subgraphs too."""
    twin = NodeProto()
    twin.CopyFrom(node)
    for field in (twin.input, twin.output):
        field[:] = [names.get(name, name) for name in field]
    for attribute in twin.attribute:
        for graph in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
            for inner in graph.node:
                inner.CopyFrom(renamed(inner, names))
            for value in graph.output:
                value.name = names.get(value.name, value.name)
    return twin


def _unrolled(
    node: NodeProto, constants: Mapping[str, np.ndarray], opsets: Sequence[OperatorSetIdProto]
) -> tuple[list[NodeProto], Constants] | None:
    body = _graph(node, "body")
    rounds = _rounds(node, body, constants, opsets)
    carried = list(node.input[2:])
    scanned = len(body.output) - 1 - len(carried)
    if rounds is None or not 0 < rounds <= MOST_ROUNDS:
        return None
    nodes, arrays = list[NodeProto](), Constants()
    parts: list[list[str]] = [[] for _ in range(scanned)]
    prefix = f"{node.name or node.output[0]}.{next(_NUMBERS)}"
    arrays[f"{prefix}/yes"] = np.asarray(True)
    for turn in range(rounds):
        number = f"{prefix}/{turn}"
        arrays[number] = np.asarray(turn, np.int64)
        results = [f"{number}/{place}/{value.name}" for place, value in enumerate(body.output)]
        bound = dict(zip((v.name for v in body.input), (number, f"{prefix}/yes", *carried), strict=True))
        inlined = _inlined(body, bound, results)
        if inlined is None:
            return None
        nodes += inlined[0]
        arrays |= inlined[1]
        carried = results[1 : len(carried) + 1]
        for part, result in zip(parts, results[len(carried) + 1 :], strict=True):
            nodes.append(_row(result, 0, opsets, arrays))
            part.append(nodes[-1].output[0])
    return nodes + _results(node, carried, parts, [0] * scanned), arrays


def _walked(
    node: NodeProto, opsets: Sequence[OperatorSetIdProto], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[list[NodeProto], Constants] | None:
    """Returns a Scan as one copy of its body for each slice of what it walks along."""
    if max((item.version for item in opsets if item.domain in ("", "ai.onnx")), default=0) < _SCAN_WITHOUT_BATCH:
        return None
    body = _graph(node, "body")
    walks = next(int(item.i) for item in node.attribute if item.name == "num_scan_inputs")
    carried, walked = list(node.input[:-walks]), list(node.input[-walks:])
    scanned = len(body.output) - len(carried)

    def listed(name: str, size: int) -> list[int]:
        stated = next((list(item.ints) for item in node.attribute if item.name == name), [])
        return stated or [0] * size

    axes, backward = listed("scan_input_axes", walks), listed("scan_input_directions", walks)
    sizes = {shapes[name][axis] for name, axis in zip(walked, axes, strict=True) if name in shapes}
    if len(sizes) != 1 or not 0 < (rounds := sizes.pop()) <= MOST_ROUNDS:
        return None
    nodes, arrays = list[NodeProto](), Constants()
    parts: list[list[str]] = [[] for _ in range(scanned)]
    out_axes, out_backward = listed("scan_output_axes", scanned), listed("scan_output_directions", scanned)
    prefix = f"{node.name or node.output[0]}.{next(_NUMBERS)}"
    for turn in range(rounds):
        number, slices = f"{prefix}/{turn}", []
        for place, (name, axis) in enumerate(zip(walked, axes, strict=True)):
            slices.append(f"{number}/slice{place}")
            arrays[f"{number}/at{place}"] = np.asarray(rounds - 1 - turn if backward[place] else turn, np.int64)
            nodes.append(helper.make_node("Gather", [name, f"{number}/at{place}"], slices[-1:], axis=axis))
        results = [f"{number}/{place}/{value.name}" for place, value in enumerate(body.output)]
        inlined = _inlined(body, dict(zip((v.name for v in body.input), (*carried, *slices), strict=True)), results)
        if inlined is None:
            return None
        nodes += inlined[0]
        arrays |= inlined[1]
        carried = results[: len(carried)]
        for place, result in enumerate(results[len(carried) :]):
            nodes.append(_row(result, out_axes[place], opsets, arrays))
            parts[place].insert(0 if out_backward[place] else turn, nodes[-1].output[0])
    return nodes + _results(node, carried, parts, out_axes), arrays


def _row(result: str, axis: int, opsets: Sequence[OperatorSetIdProto], arrays: Constants) -> NodeProto:
    """Returns the node that gives what one round made an axis to be joined along."""
    if max((item.version for item in opsets if item.domain in ("", "ai.onnx")), default=0) < _AXES_ARE_INPUTS:
        return helper.make_node("Unsqueeze", [result], [f"{result}/row"], axes=[axis])
    arrays[f"{result}/axis"] = np.asarray([axis], np.int64)
    return helper.make_node("Unsqueeze", [result, f"{result}/axis"], [f"{result}/row"])


def _results(node: NodeProto, carried: list[str], parts: list[list[str]], axes: list[int]) -> list[NodeProto]:
    """Returns the nodes that give a loop's results: what was carried last, and what its rounds made, joined."""
    nodes = [helper.make_node("Identity", [last], [name]) for name, last in zip(node.output, carried, strict=False)]
    for name, part, axis in zip(node.output[len(carried) :], parts, axes, strict=False):
        nodes.append(helper.make_node("Concat", part, [name], axis=axis))
    return [each for each in nodes if each.output[0]]


def _rounds(
    node: NodeProto, body: GraphProto, constants: Mapping[str, np.ndarray], opsets: Sequence[OperatorSetIdProto]
) -> int | None:
    """Returns how often a loop runs, None where that is not known beforehand."""
    limit, condition = node.input[:2]
    if (limit and limit not in constants) or (condition and condition not in constants):
        return None
    if condition and not np.asarray(constants[condition]).reshape(-1)[0]:
        return 0
    most = int(np.asarray(constants[limit]).reshape(-1)[0]) if limit else MOST_ROUNDS + 1
    if _never_ends_early(body):
        return most if limit else None
    return _counted(node, body, constants, opsets, min(most, MOST_ROUNDS + 1))


def _counted(
    node: NodeProto,
    body: GraphProto,
    constants: Mapping[str, np.ndarray],
    opsets: Sequence[OperatorSetIdProto],
    most: int,
) -> int | None:
    """Returns how often a loop runs by computing its condition, None where that reads what is not known."""
    from onnx.reference import ReferenceEvaluator

    fed = [value.name for value in body.input]
    begin = dict(zip(fed[2:], node.input[2:], strict=True))
    carried_as = dict(zip(fed[2:], (value.name for value in body.output[1:]), strict=False))
    needed = {body.output[0].name}
    nodes: list[NodeProto] = []
    size = -1
    while len(needed) > size:  # a carried value that is read is computed in the round before
        size = len(needed)
        needed |= {carried_as[name] for name in needed & {*carried_as}}
        nodes = [each for each in body.node if needed & {*each.output}]
        needed |= {name for each in nodes for name in each.input if name}
    produced = {name for each in nodes for name in each.output}
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in body.initializer}
    outside = needed - produced - {*fed} - {*stored}
    carried = sorted(needed & {*begin})
    inner = any(attribute.HasField("g") or attribute.graphs for each in nodes for attribute in each.attribute)
    if inner or not outside <= {*constants} or not {begin[name] for name in carried} <= {*constants}:
        return None
    values = {name: constants[begin[name]] for name in carried} | {name: constants[name] for name in outside} | stored
    results = [body.output[0].name, *(carried_as[name] for name in carried)]
    free = [helper.make_value_info(name, onnx.TypeProto()) for name in {*values, *fed[:2]}]
    graph = helper.make_graph(nodes, "condition", free, [helper.make_value_info(n, onnx.TypeProto()) for n in results])
    try:
        step = ReferenceEvaluator(helper.make_model(graph, opset_imports=opsets))
        for turn in range(most):
            feeds = values | {fed[0]: np.asarray(turn, np.int64), fed[1]: np.asarray(True)}
            goes_on, *following = step.run(None, feeds)
            if not np.asarray(goes_on).reshape(-1)[0]:
                return turn + 1
            values |= dict(zip(carried, map(np.asarray, following), strict=True))
    except ONNX:  # an operator the evaluator lacks: the loop stays, and is refused by its name
        return None
    return most


def _never_ends_early(body: GraphProto) -> bool:
    """Tells whether the condition that a body gives is the one it got, or a stored truth."""
    name, makers = body.output[0].name, {output: node for node in body.node for output in node.output}
    stored = {tensor.name: bool(numpy_helper.to_array(tensor).all()) for tensor in body.initializer}
    while (maker := makers.get(name)) is not None and maker.op_type in ("Identity", "Cast"):
        name = maker.input[0]
    if maker is not None and maker.op_type == "Constant":
        value = next((a.t for a in maker.attribute if a.name == "value"), None)
        return value is not None and bool(numpy_helper.to_array(value).all())
    return name == body.input[1].name or stored.get(name, False)


def has_branches(model: onnx.ModelProto) -> bool:
    """Tells whether a model has an If, a Loop or a Scan."""
    return any(node.op_type in ("If", "Loop", "Scan") for node in model.graph.node)
