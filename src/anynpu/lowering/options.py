"""The settings of TFLite operators, one class for each table of the schema, with the schema's names and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Padding = Literal["SAME", "VALID"]
Activation = Literal["NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH", "SIGN_BIT"]


@dataclass(frozen=True)
class Options:
    """What every operator's settings are."""


@dataclass(frozen=True)
class Fused(Options):
    """Settings of an operator that can apply an activation to its result."""

    fused_activation_function: Activation = "NONE"


@dataclass(frozen=True)
class Conv2D(Fused):
    padding: Padding = "VALID"
    stride_w: int = 1
    stride_h: int = 1
    dilation_w_factor: int = 1
    dilation_h_factor: int = 1


@dataclass(frozen=True)
class DepthwiseConv2D(Conv2D):
    depth_multiplier: int = 1


@dataclass(frozen=True)
class TransposeConv(Fused):
    padding: Padding = "VALID"
    stride_w: int = 1
    stride_h: int = 1


@dataclass(frozen=True)
class Pool2D(Fused):
    padding: Padding = "VALID"
    stride_w: int = 1
    stride_h: int = 1
    filter_width: int = 1
    filter_height: int = 1


@dataclass(frozen=True)
class FullyConnected(Fused):
    keep_num_dims: bool = False


@dataclass(frozen=True)
class BatchMatMul(Options):
    adj_x: bool = False
    adj_y: bool = False


@dataclass(frozen=True)
class Add(Fused):
    # Any scale may go with 16 bits; the schema's default demands powers of two.
    pot_scale_int16: bool = False


@dataclass(frozen=True)
class Sub(Fused):
    pot_scale_int16: bool = False


@dataclass(frozen=True)
class Mul(Fused):
    pass


@dataclass(frozen=True)
class Div(Fused):
    pass


@dataclass(frozen=True)
class Concatenation(Fused):
    axis: int = 0


@dataclass(frozen=True)
class Reducer(Options):
    keep_dims: bool = False


@dataclass(frozen=True)
class Softmax(Options):
    beta: float = 1.0


@dataclass(frozen=True)
class LeakyRelu(Options):
    alpha: float = 0.0


@dataclass(frozen=True)
class Gelu(Options):
    approximate: bool = False


@dataclass(frozen=True)
class Reshape(Options):
    new_shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Split(Options):
    num_splits: int = 1


@dataclass(frozen=True)
class StridedSlice(Options):
    begin_mask: int = 0
    end_mask: int = 0
    shrink_axis_mask: int = 0


@dataclass(frozen=True)
class Gather(Options):
    axis: int = 0


@dataclass(frozen=True)
class ResizeBilinear(Options):
    align_corners: bool = False
    half_pixel_centers: bool = False


@dataclass(frozen=True)
class ResizeNearestNeighbor(Options):
    align_corners: bool = False
    half_pixel_centers: bool = False


@dataclass(frozen=True)
class DepthToSpace(Options):
    block_size: int = 1


@dataclass(frozen=True)
class SpaceToDepth(Options):
    block_size: int = 1


@dataclass(frozen=True)
class MirrorPad(Options):
    mode: Literal["REFLECT", "SYMMETRIC"] = "REFLECT"


@dataclass(frozen=True)
class ArgMax(Options):
    output_type: str = "int32"


@dataclass(frozen=True)
class ArgMin(Options):
    output_type: str = "int32"


@dataclass(frozen=True)
class TopKV2(Options):
    pass


@dataclass(frozen=True)
class Cast(Options):
    in_data_type: str = "float32"
    out_data_type: str = "float32"


# The tables that hold nothing but must be there for a reader of the file.
EMPTY_TABLES = {
    "MAXIMUM": "MaximumMinimum",
    "MINIMUM": "MaximumMinimum",
    "PAD": "Pad",
    "PADV2": "PadV2",
    "TRANSPOSE": "Transpose",
    "EXP": "Exp",
    "COS": "Cos",
    "NEG": "Neg",
    "POW": "Pow",
    "SLICE": "Slice",
    "TILE": "Tile",
    "HARD_SWISH": "HardSwish",
    "LOG_SOFTMAX": "LogSoftmax",
    "SQUARED_DIFFERENCE": "SquaredDifference",
    "BROADCAST_TO": "BroadcastTo",
    "ABS": "Abs",
    "FLOOR_MOD": "FloorMod",
    "SQUARE": "Square",
    "QUANTIZE": "Quantize",
    "DEQUANTIZE": "Dequantize",
    "SELECT_V2": "SelectV2",
    "GREATER": "Greater",
    "LESS": "Less",
    "EQUAL": "Equal",
    "NOT_EQUAL": "NotEqual",
    "LESS_EQUAL": "LessEqual",
    "GREATER_EQUAL": "GreaterEqual",
    "LOGICAL_AND": "LogicalAnd",
    "LOGICAL_OR": "LogicalOr",
    "LOGICAL_NOT": "LogicalNot",
}
