"""Recognises functions that exporters write out with many nodes, so that each is lowered and rounded as one."""

from __future__ import annotations

import onnx

from anynpu.source.onnx_torch.gelu import fuse


def recognised(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with every written-out GELU as one node."""
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in fuse(model.graph)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model
