"""SiLU as one step from integers to integers: x * sigmoid(x) is rounded once, at its end.

A quantiser that sees two operators rounds the sigmoid to 256 levels and then the product. One table from the input's
integers to the output's has the second error only, and 8-bit hardware computes any function of one tensor that way. In
QDQ form it is Sigmoid and Mul between one DequantizeLinear and one QuantizeLinear.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from onnx import ModelProto, NodeProto

from anynpu.graph.fold import copied


def merge_silu(model: ModelProto) -> tuple[ModelProto, int]:
    """Returns the QDQ model without the rounding between the Sigmoid and the Mul of each SiLU, and their number."""
    result = copied(model)
    graph = result.graph
    made_by = {name: node for node in graph.node for name in node.output}
    used = Counter(name for node in graph.node for name in node.input)
    used.update(value.name for value in graph.output)
    dropped: set[str] = set()
    for node in graph.node:
        for place in (0, 1) if node.op_type == "Mul" else ():
            pair = _rounded_gate(node, place, made_by, used)
            if pair:
                node.input[place] = pair[1].input[0]
                dropped |= {pair[0].output[0], pair[1].output[0]}
    kept = [node for node in graph.node if node.output[0] not in dropped]
    del graph.node[:]
    graph.node.extend(kept)
    return result, len(dropped) // 2


def _rounded_gate(
    product: NodeProto, place: int, made_by: Mapping[str, NodeProto], used: Mapping[str, int]
) -> tuple[NodeProto, NodeProto] | None:
    """Returns the DequantizeLinear and QuantizeLinear between a product and the sigmoid of its other factor."""
    back = made_by.get(product.input[place])
    if back is None or back.op_type != "DequantizeLinear":
        return None
    there = made_by.get(back.input[0])
    gate = made_by.get(there.input[0]) if there is not None and there.op_type == "QuantizeLinear" else None
    if there is None or gate is None or gate.op_type != "Sigmoid" or gate.input[0] != product.input[1 - place]:
        return None
    alone = all(used[name] == 1 for name in (back.output[0], there.output[0], gate.output[0]))
    return (back, there) if alone else None


def is_silu(node: NodeProto, users: Sequence[NodeProto]) -> bool:
    """Returns whether the node is the Sigmoid of a merged SiLU."""
    return (
        node.op_type == "Sigmoid"
        and len(users) == 1
        and users[0].op_type == "Mul"
        and {*users[0].input} == {node.input[0], node.output[0]}
    )
