"""The functions behind the tensors of a float graph, by which `quantize/followers.py` chooses their ranges."""

from __future__ import annotations

from anynpu.lowering.functions import function_of, sources_of
from anynpu.lowering.graph import Graph
from anynpu.lowering.integers import KEEPS_SCALE, data_input
from anynpu.lowering.read import from_bytes
from anynpu.quantize.followers import Follower, Gate, Pointwise, Rows


def followers(content: bytes) -> dict[str, Follower]:
    """Returns the function behind each tensor of a float .tflite file that nothing else reads."""
    return graph_followers(from_bytes(content))


def graph_followers(graph: Graph) -> dict[str, Follower]:
    """Returns the function behind each tensor of a float graph that nothing else reads."""
    makers, readers = graph.makers(), graph.readers()
    sources = sources_of(graph, frozenset())
    members: dict[str, list[str]] = {}
    for name, source in sources.items():
        if source != name:
            members.setdefault(source, []).append(name)

    def leaves(name: str) -> bool:
        users = readers.get(name, [])
        outside = any(sources.get(user.outputs[0]) != sources.get(name, name) for user in users)
        return name in graph.outputs or not users or outside

    found: dict[str, Follower] = {}
    for source, names in members.items():
        ends = [name for name in names if leaves(name)]
        inside = all(sources.get(user.outputs[0]) == source for user in readers[source])
        if inside and len(ends) == 1 and source not in graph.outputs:
            found[source] = Pointwise(function_of(ends[0], source, makers, graph))
    for operator in graph.operators:
        name = operator.inputs[0] if operator.kind == "SOFTMAX" else ""
        if name and len(readers[name]) == 1 and name not in graph.outputs:
            found[name] = Rows(-1)
        if operator.kind == "LOGISTIC" and operator.inputs[0] in makers:
            level, users = makers[operator.inputs[0]], readers.get(operator.outputs[0], [])
            inverse = graph.constant(level.inputs[1]) if level.kind == "MUL" else None
            source = level.inputs[0]
            gated = len(users) == 1 and {*users[0].inputs} == {source, operator.outputs[0]}
            alone = len(readers[source]) == 2 and source not in graph.outputs
            if gated and alone and inverse is not None and inverse.size > 1 and inverse.min() > 0:
                found[source] = Gate(1 / float(inverse.min()))
    for name, follower in list(found.items()):
        maker = makers.get(name)
        while isinstance(follower, Pointwise) and maker is not None and maker.kind in KEEPS_SCALE:
            name = data_input(maker)
            if len(readers[name]) != 1 or name in graph.outputs:
                break
            found[name] = follower
            maker = makers.get(name)
    return found
