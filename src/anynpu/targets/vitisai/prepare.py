"""The graph as Quark gets it, and its result as it is kept."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import ModelProto

from anynpu.foreign import ONNX
from anynpu.graph.fold import names_read
from anynpu.graph.opset import STANDARD, converted, opset_of


def in_opset(model: ModelProto, opset: int) -> tuple[ModelProto, str]:
    """Returns the model in an opset, or the model as it is and why it cannot be written so."""
    if opset_of(model) == opset:
        return model, ""
    try:
        newer = converted(model, opset)
        onnx.checker.check_model(newer)
    except ONNX as error:
        reason = str(error).strip().splitlines()[0].rpartition("failed: ")[2] or type(error).__name__
        return model, reason
    return newer, ""


def in_order(model: ModelProto) -> ModelProto:
    """Returns the model with every node behind those it reads from.

    Quark 0.13 appends the scaling that it puts behind an average pool at the end, which ONNX does not allow.
    """
    computed = {name for node in model.graph.node for name in node.output}
    placed: set[str] = set()
    waiting, done = list(model.graph.node), []
    while waiting:
        ready = [node for node in waiting if not (names_read(node) & computed) - placed]
        if not ready:
            return model  # a circle, which whoever reads the file complains about
        for node in ready:
            placed |= set(node.output)
        done += ready
        waiting = [node for node in waiting if not set(node.output) <= placed]
    kept = ModelProto()
    kept.CopyFrom(model)
    del kept.graph.node[:]
    kept.graph.node.extend(done)
    return kept


def put_in_order(path: Path) -> None:
    """Writes the model in a file again with its nodes in order; a file that is not a model stays as it is."""
    try:
        model = ModelProto.FromString(path.read_bytes())
    except ONNX:  # whoever reads the file says what is wrong with it
        return
    path.write_bytes(in_order(model).SerializeToString())


def cleaned(model: ModelProto) -> ModelProto:
    """Returns the model without the opsets that it does not use and what other tools noted down in no fixed order."""
    kept = ModelProto()
    kept.CopyFrom(model)
    used = {"" if node.domain in STANDARD else node.domain for node in kept.graph.node} | {""}
    opsets = [o for o in kept.opset_import if ("" if o.domain in STANDARD else o.domain) in used]
    del kept.opset_import[:]
    kept.opset_import.extend(sorted(opsets, key=lambda o: o.domain))
    del kept.metadata_props[:]
    return kept
