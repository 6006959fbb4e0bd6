"""Numbers among the attributes of ONNX nodes."""

from __future__ import annotations

from onnx import NodeProto, helper


def attribute(node: NodeProto, name: str, default: float) -> float:
    """Returns a number among the attributes of a node."""
    item = next((item for item in node.attribute if item.name == name), None)
    return default if item is None else float(helper.get_attribute_value(item))


def numbers(node: NodeProto, name: str) -> tuple[int, ...]:
    """Returns a list of whole numbers among the attributes of a node, empty where there is none."""
    item = next((item for item in node.attribute if item.name == name), None)
    return () if item is None else tuple(item.ints)
