"""The operators of a TFLite file by the names under which TFLite-Micro's resolver adds them."""

from __future__ import annotations

from collections.abc import Sequence

from anynpu.errors import Unsupported
from anynpu.targets.flatbuffer import TfliteOperator

IRREGULAR = {
    "BATCH_MATMUL": "BatchMatMul",
    "CONV_2D": "Conv2D",
    "CUMSUM": "CumSum",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2D",
    "AVERAGE_POOL_2D": "AveragePool2D",
    "MAX_POOL_2D": "MaxPool2D",
    "L2_POOL_2D": "L2Pool2D",
    "PADV2": "PadV2",
    "REVERSE_V2": "ReverseV2",
    "SELECT_V2": "SelectV2",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "UnidirectionalSequenceLSTM",
}
REGULAR = """
    ABS ADD ADD_N ARG_MAX ARG_MIN ASSIGN_VARIABLE BATCH_TO_SPACE_ND BROADCAST_ARGS BROADCAST_TO CALL_ONCE CAST CEIL
    CONCATENATION COS DEPTH_TO_SPACE DEQUANTIZE DIV ELU EMBEDDING_LOOKUP EQUAL EXP EXPAND_DIMS FILL FLOOR FLOOR_DIV
    FLOOR_MOD FULLY_CONNECTED GATHER GATHER_ND GREATER GREATER_EQUAL HARD_SWISH IF L2_NORMALIZATION LEAKY_RELU LESS
    LESS_EQUAL LOG LOGICAL_AND LOGICAL_NOT LOGICAL_OR LOGISTIC LOG_SOFTMAX MAXIMUM MEAN MINIMUM MIRROR_PAD MUL NEG
    NOT_EQUAL PACK PAD PRELU QUANTIZE READ_VARIABLE REDUCE_MAX REDUCE_MIN RELU RELU6 RESHAPE RESIZE_BILINEAR
    RESIZE_NEAREST_NEIGHBOR ROUND RSQRT SHAPE SIN SLICE SOFTMAX SPACE_TO_BATCH_ND SPACE_TO_DEPTH SPLIT SPLIT_V SQRT
    SQUARE SQUARED_DIFFERENCE SQUEEZE STRIDED_SLICE SUB SUM SVDF TANH TRANSPOSE TRANSPOSE_CONV UNPACK VAR_HANDLE WHILE
    ZEROS_LIKE
"""
METHODS = {name: name.title().replace("_", "") for name in REGULAR.split()} | IRREGULAR
CUSTOM = {
    "ethos-u": "AddEthosU()",
    "NeutronGraph": "AddCustom(tflite::GetString_NEUTRON_GRAPH(), tflite::Register_NEUTRON_GRAPH())",
}


def resolver_calls(operators: Sequence[TfliteOperator]) -> list[str]:
    """Returns a call per kind of operator in the file: no more, no less; one that TFLite-Micro lacks raises."""
    calls = {}
    for operator in operators:
        name = operator.custom_code or operator.kind
        if operator.custom_code in CUSTOM:
            calls[name] = CUSTOM[operator.custom_code]
        elif operator.kind in METHODS and not operator.custom_code:
            calls[name] = f"Add{METHODS[operator.kind]}()"
        else:
            raise Unsupported(f"TFLite-Micro has no operator {name} ({operator.name})")
    return [calls[name] for name in sorted(calls)]
