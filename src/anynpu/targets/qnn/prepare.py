"""What is done to a float model before it is quantised for the HTP."""

from __future__ import annotations

import onnx

from anynpu.foreign import ONNX, mapped
from anynpu.graph import gelu
from anynpu.graph.opset import converted, opset_of
from anynpu.quantize import qdq
from anynpu.targets.qnn import dense

QUANTISED = ("QuantizeLinear", "DequantizeLinear")
GELU_OPSET = 20


def is_quantised(model: onnx.ModelProto) -> bool:
    """Whether the model has QuantizeLinear and DequantizeLinear pairs of its own."""
    return {*QUANTISED} <= {node.op_type for node in model.graph.node}


def prepared(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with names, types and constants as the quantiser wants them; a float one with Gelu and Gemm
    as one operator each."""
    with mapped(ONNX, "the model cannot be prepared"):
        if is_quantised(model):
            return qdq.prepare(model)
        result = qdq.prepare(_with_gelu(model))
    dense.fuse(result)
    return result


def _with_gelu(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with Gelu where it is written out with Erf, which the HTP lacks."""
    nodes = gelu.fuse(model.graph)
    if len(nodes) == len(model.graph.node):
        return model
    newer = model if opset_of(model) >= GELU_OPSET else converted(model, GELU_OPSET)
    result = onnx.ModelProto()
    result.CopyFrom(newer)
    nodes = gelu.fuse(result.graph)
    read = {name for node in nodes for name in node.input} | {value.name for value in result.graph.output}
    del result.graph.node[:]
    result.graph.node.extend(node for node in nodes if any(name in read for name in node.output))
    return result
