"""What TFLite's integer kernels demand: types, tied scales, fixed scales. Each entry was executed on LiteRT."""

from __future__ import annotations

from collections.abc import Mapping

from anynpu.lowering.compared import KINDS as COMPARISONS
from anynpu.lowering.functions import ALWAYS
from anynpu.lowering.graph import Graph, Operator
from anynpu.tensors import Quantization

# The axis of the output channels of stored weights.
WEIGHT_AXES = {"CONV_2D": 0, "FULLY_CONNECTED": 0, "DEPTHWISE_CONV_2D": 3, "TRANSPOSE_CONV": 0}

# LiteRT's kernels take weights of four bits here, with activations of eight.
HALF_BYTE_KINDS = frozenset(("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"))

# The result has the scale of the first input, because values are moved or chosen and none is computed.
KEEPS_SCALE = frozenset(
    (
        "RESHAPE",
        "TRANSPOSE",
        "PAD",
        "PADV2",
        "MIRROR_PAD",
        "MAX_POOL_2D",
        "AVERAGE_POOL_2D",
        "SLICE",
        "STRIDED_SLICE",
        "SPLIT",
        "GATHER",
        "DEPTH_TO_SPACE",
        "SPACE_TO_DEPTH",
        "BROADCAST_TO",
        "TILE",
        "RESIZE_BILINEAR",
        "RESIZE_NEAREST_NEIGHBOR",
        "REDUCE_MAX",
        "REDUCE_MIN",
        # TFLite-Micro clips the integers as they are.
        "RELU6",
    )
)
# All inputs and the result have one scale.
ONE_SCALE = frozenset(("CONCATENATION", "MAXIMUM", "MINIMUM", "SELECT_V2"))

_BOTH = frozenset(
    (
        "CONV_2D",
        "DEPTHWISE_CONV_2D",
        "FULLY_CONNECTED",
        "TRANSPOSE_CONV",
        "BATCH_MATMUL",
        "ADD",
        "SUB",
        "MUL",
        "DIV",
        "RELU",
        "RELU6",
        "LEAKY_RELU",
        "LOGISTIC",
        "TANH",
        "SOFTMAX",
        "MEAN",
        "RSQRT",
        "SQRT",
        "EXP",
        "LOG",
        "ABS",
        "GELU",
        "CONCATENATION",
        "MAXIMUM",
        "MINIMUM",
        "SELECT_V2",
    )
)
BYTE_KINDS = (
    _BOTH
    | KEEPS_SCALE
    | frozenset(("HARD_SWISH", "SQUARED_DIFFERENCE", "PRELU", "LOG_SOFTMAX", "ARG_MAX", "ARG_MIN", "FUNCTION"))
    | ALWAYS
    | COMPARISONS
)
# A PRELU of 16 bits is written in others (`slopes.py`), and comparisons are of whole numbers (`compared.py`).
WIDE_KINDS = (_BOTH | KEEPS_SCALE | COMPARISONS | {"PRELU"}) - {"DEPTH_TO_SPACE", "SPACE_TO_DEPTH"}
INTEGER_KINDS: Mapping[str, frozenset[str]] = {"int8": BYTE_KINDS, "int16": WIDE_KINDS}

# Scales that a kernel has built in.
FIXED: Mapping[tuple[str, str], Quantization] = {
    ("SOFTMAX", "int8"): Quantization((1 / 256,), (-128,)),
    ("LOGISTIC", "int8"): Quantization((1 / 256,), (-128,)),
    ("TANH", "int8"): Quantization((1 / 128,), (0,)),
    ("LOG_SOFTMAX", "int8"): Quantization((16 / 256,), (127,)),
    ("SOFTMAX", "int16"): Quantization((1 / 32768,), (0,)),
    ("LOGISTIC", "int16"): Quantization((1 / 32768,), (0,)),
    ("TANH", "int16"): Quantization((1 / 32768,), (0,)),
}
# The finest scale at which those read. Not far below it, TFLite-Micro aborts in SOFTMAX and LOG_SOFTMAX, and takes
# LOGISTIC and TANH for saturated; no result of such a scale can tell values so small apart.
FINEST_READ = 2.0**-25


def data_input(operator: Operator) -> str:
    """Returns the input whose scale a result keeps."""
    place = {"SPLIT": 1, "TRANSPOSE_CONV": 2}.get(operator.kind, 0)
    return operator.inputs[place]


def real_inputs(operator: Operator, graph: Graph) -> list[str]:
    """Returns the inputs that hold real numbers, not numbers of axes, places or sizes."""
    return [name for name in operator.inputs if name and graph.tensors[name].dtype == "float32"]


def is_function(operator: Operator, graph: Graph) -> bool:
    """Tells whether an operator computes from one tensor and stored numbers, so that a table can stand for it."""
    arrays = [graph.constant(name) for name in operator.inputs]
    stored = [array for array in arrays if array is not None]
    return len(arrays) - len(stored) == 1 and all(array.size == 1 for array in stored)


def runs_on(operator: Operator, dtype: str, graph: Graph) -> bool:
    """Tells whether LiteRT has an integer kernel for the operator with activations of that type."""
    if operator.kind not in INTEGER_KINDS[dtype]:
        return False
    reals = real_inputs(operator, graph)
    if operator.kind in ALWAYS and not is_function(operator, graph):
        return False
    if operator.kind in WEIGHT_AXES:
        stored = operator.inputs[1]
        return graph.constant(stored) is not None
    # An operator that reads or gives whole numbers already is neither float nor ours to quantise.
    return bool(reals)
