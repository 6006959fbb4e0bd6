"""Vela's constraints on the shapes and attributes of single operators, as in `rules`."""

from __future__ import annotations

import math

from anynpu.targets.flatbuffer import TfliteOperator
from anynpu.targets.vela.rules import Rule, ifms, nhwc, option, rule, said, weights

SAME = 0


def _strides(op: TfliteOperator) -> tuple[int, int]:
    return option(op, "strideH"), option(op, "strideW")


def _kernel(op: TfliteOperator) -> tuple[int, int]:
    filters = weights(op)
    if filters is not None and len(filters.shape) == 4:
        return filters.shape[1], filters.shape[2]
    return option(op, "filterHeight"), option(op, "filterWidth")


def _is_padded(op: TfliteOperator) -> bool:
    """Whether padding is SAME and really adds something: Vela takes one that adds nothing for VALID."""
    if option(op, "padding", None) != SAME:
        return False
    sizes = zip(nhwc(ifms(op)[0])[1:3], nhwc(op.outputs[0])[1:3], _kernel(op), _strides(op), strict=True)
    return any((out - 1) * stride + kernel > size for size, out, kernel, stride in sizes)


@rule
def _stride_range(op: TfliteOperator) -> bool:
    """Kernel stride must be in the range (1,3)."""
    return all(1 <= s <= 3 for s in _strides(op))


@rule
def _large_stride(op: TfliteOperator) -> bool:
    """Stride>3 is only supported IF (dilation = 1 AND padding = VALID)"""
    dilated = option(op, "dilationHFactor") != 1 or option(op, "dilationWFactor") != 1
    return max(_strides(op)) <= 3 or not (dilated or _is_padded(op))


@rule
def _same_shape(op: TfliteOperator) -> bool:
    """IFM and OFM shapes must match"""
    return ifms(op)[0].shape == op.outputs[0].shape


@rule
def _splits(op: TfliteOperator) -> bool:
    """num_splits must match the number of outputs."""
    return bool(option(op, "numSplits", len(op.outputs)) == len(op.outputs))


@rule
def _same_quantization(op: TfliteOperator) -> bool:
    """Both Input quantization parameters must match OFM quantization parameters"""
    out = op.outputs[0]
    return all((t.scale, t.zero_point) == (out.scale, out.zero_point) for t in ifms(op))


def _typed(same: bool, *names: str) -> Rule:
    def holds(op: TfliteOperator) -> bool:
        dtype = ifms(op)[0].dtype
        return dtype in names and (not same or op.outputs[0].dtype == dtype)

    return holds


said("IFM and OFM datatypes must match, and must be Int8 or UInt8", _typed(True, "int8", "uint8"))
said("IFM and OFM datatypes must match, and must be Int8 or Int16", _typed(True, "int8", "int16"))
said("IFM and OFM datatypes must match, and must be Int8", _typed(True, "int8"))
said("IFM must be Int8 or Int16", _typed(False, "int8", "int16"))
said("IFM precision must be one of: (Int8, UInt8, Int16)", _typed(False, "int8", "uint8", "int16"))


@rule
def _softmax_area(op: TfliteOperator) -> bool:
    """The product of IFM width and height must be less than 65536"""
    _, height, width, _ = nhwc(ifms(op)[0])
    return height * width < 65536


def _axes(op: TfliteOperator) -> set[int]:
    """The reduced axes, counted from the front."""
    values = op.inputs[1].data if len(op.inputs) > 1 and op.inputs[1] else None
    rank = len(ifms(op)[0].shape)
    return {int(a) % rank for a in values.reshape(-1)} if values is not None and rank else set()


@rule
def _mean_batch(op: TfliteOperator) -> bool:
    """Batch must be 1."""
    return len(ifms(op)[0].shape) < 4 or ifms(op)[0].shape[0] == 1


@rule
def _mean_depth(op: TfliteOperator) -> bool:
    """Reduction over depth is only supported if any of h,w,c == 1"""
    shape = ifms(op)[0].shape
    return len(shape) - 1 not in _axes(op) or 1 in nhwc(ifms(op)[0])[1:]


@rule
def _mean_axis(op: TfliteOperator) -> bool:
    """Reduced axis must be less than 4096"""
    return all(ifms(op)[0].shape[a] < 4096 for a in _axes(op))


@rule
def _mean_elements(op: TfliteOperator) -> bool:
    """Amount of reduced elements cannot exceed: 16777216(Int8), 8388608(UInt8), 65536(Int16)."""
    limit = {"int8": 16777216, "uint8": 8388608, "int16": 65536}.get(ifms(op)[0].dtype, 0)
    return math.prod(ifms(op)[0].shape[a] for a in _axes(op)) <= limit


@rule
def _dense_weights(op: TfliteOperator) -> bool:
    """FullyConnected weights must be on the form O,1,1,..,1,I."""
    filters = weights(op)
    return filters is None or math.prod(filters.shape[1:-1]) == 1


def _is_matmul(op: TfliteOperator) -> bool:
    filters = weights(op)
    return op.kind == "BATCH_MATMUL" or (filters is not None and not filters.constant)


@rule
def _matmul_axis(op: TfliteOperator) -> bool:
    """IF Matmul or (FC with dynamic weights): Reduced axis must be less than or equal to 2^16"""
    return not _is_matmul(op) or op.macs <= math.prod(op.outputs[0].shape) * 2**16


@rule
def _matmul_depth(op: TfliteOperator) -> bool:
    """IF Matmul or (FC with dynamic weights): OFM depth must be less than or equal to 2^16"""
    return not _is_matmul(op) or op.outputs[0].shape[-1] <= 2**16


@rule
def _matmul_type(op: TfliteOperator) -> bool:
    """IF Matmul or (FC with dynamic weights): IFM precision must be Int8"""
    return not _is_matmul(op) or ifms(op)[0].dtype == "int8"


@rule
def _average_pool_kernel(op: TfliteOperator) -> bool:
    """Kernel constraints:
    - IF padding=VALID:
      - Kernel product must be less than or equal to 256*256
      - Kernel height must be less than or equal to 256.
    - ELSE:
      - Kernel width and height must be less than or equal to 8"""
    return max(_kernel(op)) <= 8 if _is_padded(op) else _max_pool_kernel(op)


@rule
def _max_pool_kernel(op: TfliteOperator) -> bool:
    """kernel product must be less than or equal to 256*256 and kernel height must be less than or equal to 256."""
    height, width = _kernel(op)
    return height * width <= 256 * 256 and height <= 256


@rule
def _transpose_conv_shape(op: TfliteOperator) -> bool:
    """Shape constraints:
    - IF PADDING=SAME:
      - OFM must be equal to IFM * stride
    - ELSE:
      - OFM must be equal to IFM * stride + (kernel - stride)"""
    same = option(op, "padding", SAME) == SAME
    sizes = zip(nhwc(ifms(op)[0])[1:3], nhwc(op.outputs[0])[1:3], _kernel(op), _strides(op), strict=True)
    return all(out == size * stride + (0 if same else max(kernel - stride, 0)) for size, out, kernel, stride in sizes)


@rule
def _transpose_conv_stride(op: TfliteOperator) -> bool:
    """Stride values WxH must be: 1x1 OR 2x2 OR 2x1 (if IFM height and kernel height is 1) OR 1x2 (if IFM width and
    kernel width is 1)"""
    height, width = _strides(op)
    _, ifm_height, ifm_width, _ = nhwc(ifms(op)[0])
    flat = ifm_height == 1 and _kernel(op)[0] == 1
    thin = ifm_width == 1 and _kernel(op)[1] == 1
    return (
        (height, width) in ((1, 1), (2, 2))
        or ((height, width) == (1, 2) and flat)
        or ((height, width) == (2, 1) and thin)
    )


@rule
def _transpose_rank(op: TfliteOperator) -> bool:
    """Tensor dimension must be <= 8"""
    return len(ifms(op)[0].shape) <= 8


@rule
def _argmax_depth(op: TfliteOperator) -> bool:
    """IFM depth must be less than or equal to 127."""
    return ifms(op)[0].shape[-1] <= 127


@rule
def _argmax_axis(op: TfliteOperator) -> bool:
    """Operation must be performed along the depth axis."""
    return _axes(op) <= {len(ifms(op)[0].shape) - 1}


@rule
def _slice(op: TfliteOperator) -> bool:
    """Slice must represent a volume. Stride must be non-negative (and over W or H)."""
    steps = op.inputs[3].data if len(op.inputs) > 3 and op.inputs[3] else None
    if steps is None or 0 in op.outputs[0].shape:
        return False
    rank = len(ifms(op)[0].shape)
    return all(step == 1 or (step > 1 and rank - 3 <= axis < rank - 1) for axis, step in enumerate(steps.tolist()))
