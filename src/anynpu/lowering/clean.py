"""Makes a lowered graph smaller without changing what it computes: activations fused, moves joined and cancelled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np

from anynpu.graph.passes import Pass, Repeated
from anynpu.lowering.graph import Graph, Operator, Tensor, free_name, int32, pruned
from anynpu.lowering.moves import (
    few_axes,
    joined_transposes,
    repeated,
    small_transposes,
    without_broadcasts,
    without_reshapes_between,
)
from anynpu.lowering.options import Activation, Fused, Mul, Reducer, Reshape
from anynpu.lowering.squares import later_broadcasts, means_for_sums, roots_of_squares, variances
from anynpu.lowering.whole_moves import casts_first, whole_transposes

_ACTIVATIONS = ("RELU", "RELU6", "RELU_N1_TO_1")
_APPLIES = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "ADD", "SUB", "MUL", "AVERAGE_POOL_2D", "MAX_POOL_2D")
_WEIGHT_AXIS = {"CONV_2D": 0, "FULLY_CONNECTED": 0, "DEPTHWISE_CONV_2D": 3}


def _rebuilt(graph: Graph, operators: list[Operator], tensors: dict[str, Tensor]) -> Graph:
    return pruned(operators, tensors, graph.inputs, graph.outputs)


def _sole(graph: Graph) -> Callable[[str], bool]:
    """Returns a function that tells whether a tensor is read once and is not a result."""
    readers = graph.readers()
    return lambda name: len(readers.get(name, [])) == 1 and name not in graph.outputs


def joined_moves(graph: Graph) -> Graph:
    """RESHAPE of RESHAPE is one; TRANSPOSE of TRANSPOSE is one or none; a move that moves nothing goes."""
    makers, tensors = graph.makers(), dict(graph.tensors)
    same: dict[str, str] = {}
    operators: list[Operator] = []
    for operator in graph.operators:
        operator = replace(operator, inputs=tuple(same.get(name, name) for name in operator.inputs))
        before = makers.get(operator.inputs[0])
        if operator.kind in ("RESHAPE", "TRANSPOSE") and before is not None and before.kind == operator.kind:
            operator = _joined(operator, before, tensors)
        if operator.kind in ("RESHAPE", "TRANSPOSE") and operator.outputs[0] not in graph.outputs:
            order = tensors[operator.inputs[1]].data
            shape = tensors[operator.inputs[0]].shape
            idle = operator.kind == "RESHAPE" and shape == tensors[operator.outputs[0]].shape
            if idle or (operator.kind == "TRANSPOSE" and order is not None and list(order) == sorted(order)):
                same[operator.outputs[0]] = operator.inputs[0]
                continue
        makers[operator.outputs[0]] = operator
        operators.append(operator)
    return _rebuilt(graph, operators, tensors)


def _joined(operator: Operator, before: Operator, tensors: dict[str, Tensor]) -> Operator:
    if operator.kind == "RESHAPE":
        return replace(operator, inputs=(before.inputs[0], operator.inputs[1]))
    first, second = tensors[before.inputs[1]].data, tensors[operator.inputs[1]].data
    if first is None or second is None:
        return operator
    name = f"{operator.outputs[0]}/order"
    tensors[name] = Tensor(name, second.shape, "int32", int32(first[second]))
    return replace(operator, inputs=(before.inputs[0], name))


BROADCASTS = frozenset(("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "SELECT_V2"))
"""Operators that take a tensor with axes of one for a number."""


def without_idle(graph: Graph) -> Graph:
    """A sum with zeros and a product with ones go: zeros have no scale that fits beside what they are added to.

    A number that broadcasts is read with its axes of one: NPUs have no tensors without axes.
    """
    same: dict[str, str] = {}
    outputs: dict[str, str] = {}
    readers = graph.readers()
    operators: list[Operator] = []
    for operator in graph.operators:
        operator = replace(operator, inputs=tuple(same.get(name, name) for name in operator.inputs))
        neutral = {"ADD": 0.0, "SUB": 0.0, "MUL": 1.0}.get(operator.kind)
        stored = [name for name in operator.inputs[operator.kind == "SUB" :] if name and neutral is not None]
        idle = [name for name in stored if (data := graph.constant(name)) is not None and bool(np.all(data == neutral))]
        result = operator.outputs[0]
        source = next((name for name in operator.inputs if name not in idle[:1]), "")
        if operator.kind == "RESHAPE" and graph.tensors[result].shape == () and result not in graph.outputs:
            rank, users = len(graph.tensors[source].shape), readers.get(result, [])
            others = [user for user in users if user.kind != "RESHAPE"]
            if all(u.kind in BROADCASTS and len(graph.tensors[u.outputs[0]].shape) >= rank for u in others):
                same[result] = source
                continue
        if idle and operator.activation == "NONE" and graph.constant(source) is None:
            alike = graph.tensors[source].shape == graph.tensors[result].shape
            if alike and result not in graph.outputs:
                same[result] = source
                continue
            if alike and source not in (*graph.inputs, *graph.outputs, *outputs):  # its maker gives the output itself
                outputs[source] = result
                continue
        operators.append(operator)

    def named(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(outputs.get(name, name) for name in names)

    operators = [replace(each, inputs=named(each.inputs), outputs=named(each.outputs)) for each in operators]
    return _rebuilt(graph, operators, dict(graph.tensors))


_QUESTIONS = {"EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL", "LOGICAL_AND", "LOGICAL_OR"}
_UNARY = {"LOG", "EXP", "SQRT", "RSQRT", "NEG", "ABS", "LOGISTIC", "TANH", "RELU", "SQUARE", "LOGICAL_NOT", "CAST"}
_FUNCTIONS = {"SIN", "COS", "FLOOR", "CEIL", "ROUND", "SIGN", "GELU", "ELU", "HARD_SWISH", "LEAKY_RELU", "POW"}
ELEMENTWISE = BROADCASTS | _QUESTIONS | _UNARY | _FUNCTIONS
REDUCERS = frozenset(("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"))


def numbers_with_axes(graph: Graph) -> Graph:
    """A number that is computed has an axis of one where all that read it broadcast: NPUs have none without axes."""
    makers, readers = graph.makers(), graph.readers()
    borders = {*graph.inputs, *graph.outputs}
    numbers = {n for n, t in graph.tensors.items() if not t.shape and t.data is None and n in makers} - borders

    def stays(name: str) -> bool:
        maker, users = makers[name], readers.get(name, [])
        fed = {each for each in maker.inputs if each in makers or each in graph.inputs}
        made_so = maker.kind in REDUCERS or maker.kind == "RESHAPE" or (maker.kind in ELEMENTWISE and fed <= numbers)
        ends = {u.outputs[0] for u in users if u.kind != "RESHAPE" and not graph.tensors[u.outputs[0]].shape}
        return made_so and ends <= numbers and all(u.kind in ELEMENTWISE or u.kind == "RESHAPE" for u in users)

    while lost := {name for name in numbers if not stays(name)}:
        numbers -= lost
    tensors, operators = dict(graph.tensors), list[Operator]()
    tensors |= {name: replace(tensors[name], shape=(1,)) for name in numbers}
    for operator in graph.operators:
        result = operator.outputs[0]
        if result not in numbers or operator.kind in ELEMENTWISE:
            operators.append(operator)
            continue
        source = operator.inputs[0]
        if operator.kind in REDUCERS:
            source = f"{result}/kept"
            tensors[source] = replace(tensors[result], name=source, shape=(1,) * len(tensors[operator.inputs[0]].shape))
            operators.append(replace(operator, outputs=(source,), options=Reducer(keep_dims=True)))
        tensors[f"{result}/one"] = Tensor(f"{result}/one", (1,), "int32", int32([1]))
        operators.append(Operator("RESHAPE", (source, f"{result}/one"), (result,), Reshape((1,))))
    return _rebuilt(graph, operators, tensors)


def inverse_roots(graph: Graph) -> Graph:
    """A division by a square root that nothing else reads is a product with RSQRT, which has integer kernels.

    A root that is kept above a small number is the root of what is kept above its square.
    """
    sole, makers, tensors = _sole(graph), graph.makers(), dict(graph.tensors)
    operators: list[Operator] = []
    for operator in graph.operators:
        divisor = operator.inputs[1] if operator.kind == "DIV" else ""
        bound = makers.get(divisor)
        least: float | None = None
        if bound is not None and bound.kind == "MAXIMUM" and sole(divisor):
            data = tensors[bound.inputs[1]].data
            number = float(data.reshape(-1)[0]) if data is not None and data.size == 1 else -1.0
            least = number if number >= 0 else None
        root = bound if least is None else makers.get(bound.inputs[0]) if bound is not None else None
        if root is None or root.kind != "SQRT" or not sole(divisor) or not sole(root.outputs[0]):
            operators.append(operator)
            continue
        source, inverse = root.inputs[0], f"{divisor}/inverse"
        if least is not None:
            square, kept = f"{divisor}/least", f"{divisor}/kept"
            tensors[square] = Tensor(square, (), "float32", np.asarray(max(least * least, 1e-30), np.float32))
            tensors[kept] = replace(tensors[source], name=kept)
            operators.append(Operator("MAXIMUM", (source, square), (kept,)))
            source = kept
        tensors[inverse] = replace(tensors[source], name=inverse)
        operators.append(Operator("RSQRT", (source,), (inverse,)))
        factors = (operator.inputs[0], inverse)
        operators.append(Operator("MUL", factors, operator.outputs, Mul(cast(Activation, operator.activation))))
    return _rebuilt(graph, operators, tensors)


def activations_first(graph: Graph) -> Graph:
    """An activation behind a RESHAPE or TRANSPOSE that nothing else reads goes before it, where it can be fused."""
    makers, sole, tensors = graph.makers(), _sole(graph), dict(graph.tensors)
    operators = list(graph.operators)
    for place, operator in enumerate(graph.operators):
        move = makers.get(operator.inputs[0])
        if operator.kind not in _ACTIVATIONS or move is None or move.kind not in ("RESHAPE", "TRANSPOSE"):
            continue
        behind = makers.get(move.inputs[0])
        if not sole(operator.inputs[0]) or not sole(move.inputs[0]) or behind is None or behind.kind not in _APPLIES:
            continue
        middle = f"{operator.outputs[0]}/moved"
        tensors[middle] = replace(tensors[move.inputs[0]], name=middle)
        operators[operators.index(move)] = replace(operator, inputs=(move.inputs[0],), outputs=(middle,))
        operators[place] = replace(move, inputs=(middle, *move.inputs[1:]), outputs=operator.outputs)
        return _rebuilt(graph, operators, tensors)
    return graph


def fused_activations(graph: Graph) -> Graph:
    """An activation behind an operator that can apply it, and that nothing else reads, becomes its setting."""
    sole, dropped = _sole(graph), dict[str, Operator]()
    makers = graph.makers()
    for operator in graph.operators:
        maker = makers.get(operator.inputs[0])
        if operator.kind not in _ACTIVATIONS or maker is None or maker.kind not in _APPLIES:
            continue
        if sole(operator.inputs[0]) and maker.activation == "NONE" and maker.outputs[0] not in dropped:
            dropped[maker.outputs[0]] = operator
    operators = []
    for operator in graph.operators:
        follower = dropped.get(operator.outputs[0])
        if follower is not None and isinstance(operator.options, Fused):
            options = replace(operator.options, fused_activation_function=cast(Activation, follower.kind))
            operators.append(replace(operator, outputs=follower.outputs, options=options))
        elif operator not in dropped.values():
            operators.append(operator)
    return _rebuilt(graph, operators, dict(graph.tensors))


def folded_channels(graph: Graph) -> Graph:
    """A MUL or ADD of one number per channel behind stored weights goes into weights and bias.

    What the weights give then has the name of its result: under its own it had other values.
    """
    sole, makers, tensors = _sole(graph), graph.makers(), dict(graph.tensors)
    users = graph.readers()
    same: dict[str, str] = {}
    names: dict[str, str] = {}
    operators: list[Operator] = []
    for operator in graph.operators:
        # What another operator reads too must not change, also where both read what was folded a moment ago.
        alone = all(sole(name) for name in operator.inputs if name in same)
        operator = replace(operator, inputs=tuple(same.get(name, name) for name in operator.inputs))
        folded = _folded(operator, graph, makers, sole, users, tensors) if alone else None
        if folded is not None and operator.outputs[0] not in graph.outputs:
            same[operator.outputs[0]] = folded
            names[folded] = operator.outputs[0]
            while (maker := makers[folded]).kind == "RESHAPE":
                folded = maker.inputs[0]
                names[folded] = f"{operator.outputs[0]}/{folded}"
            continue
        operators.append(operator)
    for old, new in names.items():
        tensors[new] = replace(tensors[old], name=new)

    def named(each: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(name, name) for name in each)

    operators = [replace(each, inputs=named(each.inputs), outputs=named(each.outputs)) for each in operators]
    return _rebuilt(graph, operators, tensors)


def _folded(
    operator: Operator,
    graph: Graph,
    makers: dict[str, Operator],
    sole: Callable[[str], bool],
    users: dict[str, list[Operator]],
    tensors: dict[str, Tensor],
) -> str | None:
    """Changes the weights that an operator can go into, and returns what stands for its result."""
    if operator.kind not in ("MUL", "ADD") or operator.activation != "NONE":
        return None
    sides = [name for name in operator.inputs if tensors[name].data is None]
    if len(sides) != 1 or not sole(sides[0]) or len(operator.inputs) != 2 or not tensors[sides[0]].shape:
        return None
    array = next(np.asarray(t) for n in operator.inputs if (t := tensors[n].data) is not None)
    below = sides[0]
    while makers.get(below) is not None and makers[below].kind == "RESHAPE" and sole(makers[below].inputs[0]):
        if tensors[below].shape[-1:] != tensors[makers[below].inputs[0]].shape[-1:]:
            return None
        below = makers[below].inputs[0]
    maker = makers.get(below)
    channels = tensors[sides[0]].shape[-1]
    fits = array.size == 1 or (array.shape[-1:] == (channels,) and array.size == channels)
    if maker is None or maker.kind not in _WEIGHT_AXIS or maker.activation != "NONE" or not fits:
        return None
    if tensors[sides[0]].shape != tensors[operator.outputs[0]].shape:
        return None
    if any(len(users[name]) > 1 or tensors[name].data is None for name in maker.inputs[1:3]):
        return None
    along = np.broadcast_to(array.reshape(-1), (channels,))
    weights, bias = tensors[maker.inputs[1]], tensors[maker.inputs[2]]
    if operator.kind == "MUL":
        shape = [-1 if a == _WEIGHT_AXIS[maker.kind] else 1 for a in range(len(weights.shape))]
        tensors[weights.name] = _with(weights, weights.data * along.reshape(shape))
        tensors[bias.name] = _with(bias, bias.data * along)
    else:
        tensors[bias.name] = _with(bias, bias.data + along)
    return sides[0]


def folded_ahead(graph: Graph) -> Graph:
    """A MUL or ADD of one number, or one per channel, goes into the stored weights that alone read its result.

    What is moved between the two has other values then, and another name.
    """
    readers, makers, tensors = graph.readers(), graph.makers(), dict(graph.tensors)
    same: dict[str, str] = {}
    names: dict[str, str] = {}
    operators: list[Operator] = []
    for operator in graph.operators:
        operator = replace(operator, inputs=tuple(same.get(name, name) for name in operator.inputs))
        sides = [name for name in operator.inputs if tensors[name].data is None] if len(operator.inputs) == 2 else []
        source, result = "".join(sides[:1]), operator.outputs[0]
        if operator.kind in ("MUL", "ADD") and len(sides) == 1 and operator.activation == "NONE":
            users = _weighing(graph, result, readers)
            array = next(np.asarray(t) for n in operator.inputs if (t := tensors[n].data) is not None)
            channels = tensors[source].shape[-1:]
            one = array.size == 1 or (array.shape[-1:] == channels and array.size == channels[0])
            fits = one and tensors[source].shape == tensors[result].shape
            if users and fits and all(_takes(user, operator.kind, array, tensors, readers) for user in users):
                for user in users:
                    along = array.reshape(-1)
                    weights, bias = tensors[user.inputs[1]], tensors[user.inputs[2]]
                    if operator.kind == "MUL":
                        tensors[weights.name] = _with(weights, weights.data * along)
                    else:
                        rows = np.asarray(weights.data, np.float64).reshape(weights.shape[0], -1)
                        tensors[bias.name] = _with(bias, bias.data + (rows * along).sum(axis=1))
                same[result] = source
                for moved in {user.inputs[0] for user in users} - {result}:
                    while moved != result and moved not in names:
                        names[moved] = free_name(f"{source}/moved", tensors)
                        tensors[names[moved]] = replace(tensors[moved], name=names[moved])
                        moved = makers[moved].inputs[0]
                continue
        operators.append(operator)

    def named(each: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(name, name) for name in each)

    operators = [replace(each, inputs=named(each.inputs), outputs=named(each.outputs)) for each in operators]
    return _rebuilt(graph, operators, tensors)


def _weighing(graph: Graph, name: str, readers: dict[str, list[Operator]]) -> list[Operator]:
    """Returns the operators with stored weights that read a tensor, none where anything else reads it too."""
    users: list[Operator] = []
    waiting = [name]
    while waiting:
        tensor = waiting.pop()
        if tensor in graph.outputs or not readers.get(tensor):
            return []
        for user in readers[tensor]:
            last = graph.tensors[tensor].shape[-1:]
            if user.kind == "RESHAPE" and graph.tensors[user.outputs[0]].shape[-1:] == last:
                waiting.append(user.outputs[0])
            elif user.kind in _WEIGHT_AXIS and user.inputs[0] == tensor:
                users.append(user)
            else:
                return []
    return users


def _takes(
    user: Operator, kind: str, array: np.ndarray, tensors: dict[str, Tensor], readers: dict[str, list[Operator]]
) -> bool:
    """Tells whether factors or summands of an operator's input can go into its weights and bias."""
    weights = tensors[user.inputs[1]]
    if any(tensors[name].data is None or len(readers[name]) > 1 for name in user.inputs[1:3]):
        return False
    dense = user.kind == "FULLY_CONNECTED" or (user.kind == "CONV_2D" and weights.shape[1:3] == (1, 1))
    whole = weights.shape[-1] == tensors[user.inputs[0]].shape[-1]
    return (array.size == 1 and kind == "MUL") or (dense and whole)


def _with(tensor: Tensor, data: np.ndarray) -> Tensor:
    return replace(tensor, data=np.ascontiguousarray(data, np.float32))


def _pass(change: Callable[[Graph], Graph]) -> Pass[Graph]:
    """Returns a pass that is called as its function, and does what its docstring says."""

    def call(graph: Graph) -> tuple[Graph, int]:
        result = change(graph)
        return result, int(result.operators != graph.operators)

    does = " ".join((change.__doc__ or "").partition("\n\n")[0].split())
    return Pass(change.__name__.replace("_", "-"), does, call)


_SETTLED = Repeated(
    tuple(
        _pass(change)
        for change in (
            joined_moves,
            joined_transposes,
            later_broadcasts,
            without_broadcasts,
            without_idle,
            variances,
            inverse_roots,
            folded_channels,
            folded_ahead,
            without_reshapes_between,
            activations_first,
            fused_activations,
        )
    )
)
SMALL_MOVES: tuple[Pass[Graph], ...] = (_pass(small_transposes), _pass(few_axes))
"""Moves of many axes as several of few, which is what kernels have."""
CLEANING: tuple[Pass[Graph] | Repeated[Graph], ...] = (
    _pass(casts_first),
    _pass(means_for_sums),
    _pass(numbers_with_axes),
    _SETTLED,
    _pass(roots_of_squares),
    _pass(repeated),
    *SMALL_MOVES,
    _SETTLED,
    _pass(whole_transposes),
)
