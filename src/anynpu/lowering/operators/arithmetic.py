"""Arithmetic element by element, in whatever order of axes the operands have."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from anynpu.lowering.lower import Axes, Lowering, plain
from anynpu.lowering.options import Add, Cast, Div, Gelu, Mul, Options, Sub
from anynpu.lowering.table import Node, Refused, operator, required

_OPTIONS: dict[str, Options | None] = {
    "ADD": Add(), "SUB": Sub(), "MUL": Mul(), "DIV": Div(), "MAXIMUM": None, "MINIMUM": None,
}  # fmt: skip
_KINDS = {"Add": "ADD", "Sub": "SUB", "Mul": "MUL", "Div": "DIV", "Max": "MAXIMUM", "Min": "MINIMUM"}
_ROUNDING = frozenset(("Floor", "Ceil", "Round", "Cast", "Mod"))
_KINDS |= {"Sum": "ADD", "Mean": "ADD"}


def common_axes(at: Lowering, names: Sequence[str], rank: int) -> Axes:
    """Returns the order of the largest computed operand that has every axis; the order of ONNX where there is none."""
    whole = [name for name in names if at.constant(name) is None and at.rank(name) == rank]
    largest = max(whole, key=lambda name: math.prod(at.shape(name)), default="")
    return at.axes(largest) if largest else plain(rank)


def combined(at: Lowering, kind: str, names: Sequence[str], output: str) -> None:
    """Emits one operator over two operands that broadcast."""
    shape = at.shape(output)
    axes = common_axes(at, names, len(shape))
    tensors = [at.operand(name, axes) for name in names]
    stored = tuple(shape[axis] for axis in axes)
    result = at.emit(kind, tensors, stored, _OPTIONS[kind], output)
    at.give(output, result, axes)


@operator("Add", "Sub", "Mul", "Div")
def binary(at: Lowering, node: Node) -> None:
    """ADD, SUB, MUL or DIV; division of real numbers by constants is multiplication by their reciprocals."""
    # But for what is rounded to whole numbers: 41 times the inverse of 41 is below one.
    kind, names = _KINDS[node.op], list(node.inputs)
    divisor = at.constant(names[1])
    whole = at.dtypes[names[0]].startswith("int")
    rounded = any(each.op_type in _ROUNDING for each in at.readers.get(node.output, ()))
    if kind == "DIV" and not whole and divisor is not None and np.all(divisor != 0) and not rounded:
        at.constants[f"1/{names[1]}"] = np.asarray(1.0 / divisor.astype(np.float64), np.float32)
        at.shapes[f"1/{names[1]}"], at.dtypes[f"1/{names[1]}"] = divisor.shape, "float32"
        kind, names[1] = "MUL", f"1/{names[1]}"
    combined(at, kind, names, node.output)


@operator("Mod")
def remainder(at: Lowering, node: Node) -> None:
    """FLOOR_MOD, which has the sign of the divisor; with fmod, as the dividend has it, above and below zero apart."""
    # Of whole numbers by stored ones it is what DIV leaves, which microcontrollers have a kernel for.
    shape = at.shape(node.output)
    axes = common_axes(at, node.inputs, len(shape))
    stored = tuple(shape[axis] for axis in axes)
    dividend, divisor = (at.operand(name, axes) for name in node.inputs)
    numbers = at.tensors[divisor].data
    if at.tensors[dividend].dtype == "int32" and numbers is not None and numbers.all():
        rest = _left_over(at, dividend, divisor, stored, node.output)
        if not int(node.get("fmod", 0)) and not (numbers.min() > 0 and _counts(at, dividend)):
            above = at.emit("ADD", (rest, divisor), stored, Add(), node.output)
            rest = _left_over(at, above, divisor, stored, node.output)
        at.give(node.output, rest, axes)
        return
    if not int(node.get("fmod", 0)):
        at.give(node.output, at.emit("FLOOR_MOD", (dividend, divisor), stored, stem=node.output), axes)
        return
    form, array = at.tensors[divisor], at.tensors[divisor].data
    number = np.dtype(form.dtype).type
    if array is not None:
        sides = [at.store(each, node.input(1)) for each in (np.abs(array), -np.abs(array))]
    else:
        minus = at.store(np.asarray(-1, number), "minus")
        turned = at.emit("MUL", (divisor, minus), form.shape, Mul(), node.output)
        sides = [at.emit(kind, (divisor, turned), form.shape, stem=node.output) for kind in ("MAXIMUM", "MINIMUM")]
    zero, whole = at.store(np.asarray(0, number), "zero"), at.tensors[dividend].shape
    rests = []
    for kind, side in zip(("MAXIMUM", "MINIMUM"), sides, strict=True):
        part = at.emit(kind, (dividend, zero), whole, stem=node.output)
        rests.append(at.emit("FLOOR_MOD", (part, side), stored, stem=node.output))
    at.give(node.output, at.emit("ADD", rests, stored, Add(), node.output), axes)


def _left_over(at: Lowering, dividend: str, divisor: str, shape: Sequence[int], stem: str) -> str:
    """Returns what a division towards zero leaves."""
    quotient = at.emit("DIV", (dividend, divisor), shape, Div(), stem)
    return at.emit("SUB", (dividend, at.emit("MUL", (quotient, divisor), shape, Mul(), stem)), shape, Sub(), stem)


def _counts(at: Lowering, tensor: str) -> bool:
    """Tells whether whole numbers are places, which are never below zero, by the operators that make them."""
    maker = next((o for o in reversed(at.operators) if tensor in o.outputs), None)
    if maker is None:
        data = at.tensors[tensor].data
        return data is not None and bool(data.size) and int(data.min()) >= 0
    if maker.kind in ("ARG_MAX", "ARG_MIN", "TOPK_V2"):
        return True
    parts = maker.inputs if maker.kind == "CONCATENATION" else maker.inputs[:1]
    moves = ("CONCATENATION", "RESHAPE", "TRANSPOSE", "SLICE", "GATHER", "BROADCAST_TO")
    return maker.kind in moves and all(_counts(at, part) for part in parts)


@operator("Max", "Min", "Sum", "Mean")
def several(at: Lowering, node: Node) -> None:
    """MAXIMUM, MINIMUM or ADD, one operand after the other; a mean is the sum by their number."""
    names = list(node.inputs)
    if len(names) == 1:
        at.give(node.output, at.stored(names[0], at.axes(names[0])), at.axes(names[0]))
        return
    total = names[0]
    for number, name in enumerate(names[1:], 2):
        last = number == len(names)
        result = node.output if last else f"{node.output}/{number}"
        if not last:
            at.shapes[result] = tuple(np.broadcast_shapes(at.shape(total), at.shape(name)))
            at.dtypes[result] = at.dtypes[name]
        combined(at, _KINDS[node.op], (total, name), result)
        total = result
    if node.op == "Mean":
        view = at.views[total]
        share = at.value("share", 1 / len(names))
        tensor = at.emit("MUL", (view.tensor, share), at.tensors[view.tensor].shape, Mul(), total)
        at.give(total, tensor, view.axes)


@operator("Pow")
def power(at: Lowering, node: Node) -> None:
    """MUL by itself for a square, SQRT, RSQRT or DIV for a root or reciprocal, otherwise POW."""
    exponent = at.constant(node.input(1))
    name = node.input(0)
    whole = at.dtypes[name].startswith("int")
    if exponent is not None and not (whole and exponent.dtype.kind == "f"):
        at.constants[node.input(1)] = exponent = exponent.astype(np.int32 if whole else np.float32)
    elif at.dtypes[node.input(1)] != at.dtypes[name]:
        raise Refused("base and exponent have different types")
    axes = at.axes(name)
    if exponent is None or exponent.size != 1 or whole:
        shape = at.shape(node.output)
        axes = common_axes(at, node.inputs, len(shape))
        tensors = [at.operand(each, axes) for each in node.inputs]
        at.give(node.output, at.emit("POW", tensors, tuple(shape[a] for a in axes), stem=node.output), axes)
        return
    tensor = at.stored(name, axes)
    shape = at.tensors[tensor].shape
    match float(exponent.reshape(-1)[0]):
        case 1.0:
            result = tensor
        case 2.0:
            result = at.emit("MUL", (tensor, tensor), shape, Mul(), node.output)
        case 3.0:
            square = at.emit("MUL", (tensor, tensor), shape, Mul(), node.output)
            result = at.emit("MUL", (square, tensor), shape, Mul(), node.output)
        case 0.5:
            result = at.emit("SQRT", (tensor,), shape, stem=node.output)
        case -0.5:
            result = at.emit("RSQRT", (tensor,), shape, stem=node.output)
        case -1.0:
            result = at.emit("DIV", (at.value("one", 1.0), tensor), shape, Div(), node.output)
        case other:
            result = at.emit("POW", (tensor, at.value("exponent", other)), shape, stem=node.output)
    at.give(node.output, result, axes)


def function(at: Lowering, node: Node, kind: str, options: Options | None = None) -> None:
    """Emits an operator of one operand, in the order that the operand has."""
    axes = at.axes(node.input(0))
    tensor = at.stored(node.input(0), axes)
    at.give(node.output, at.emit(kind, (tensor,), at.tensors[tensor].shape, options, node.output), axes)


@operator("Exp", "Log", "Sqrt", "Abs", "Sin", "Cos", "Floor", "Sign")
def unary(at: Lowering, node: Node) -> None:
    """The TFLite operator of the same name."""
    function(at, node, node.op.upper())


@operator("Neg")
def negative(at: Lowering, node: Node) -> None:
    """MUL by -1: LiteRT's NEG turns integers around without regard to their zero point."""
    axes = at.axes(node.input(0))
    tensor = at.stored(node.input(0), axes)
    shape = at.tensors[tensor].shape
    at.give(node.output, at.emit("MUL", (tensor, at.value("minus", -1, tensor)), shape, Mul(), node.output), axes)


@operator("Ceil")
def ceiling(at: Lowering, node: Node) -> None:
    """FLOOR of the negative, negative: LiteRT's reference kernels lack CEIL."""
    axes = at.axes(node.input(0))
    tensor = at.stored(node.input(0), axes)
    shape, minus = at.tensors[tensor].shape, at.value("minus", -1.0)
    turned = at.emit("MUL", (tensor, minus), shape, Mul(), node.output)
    below = at.emit("FLOOR", (turned,), shape, stem=node.output)
    at.give(node.output, at.emit("MUL", (below, minus), shape, Mul(), node.output), axes)


@operator("Round")
def nearest(at: Lowering, node: Node) -> None:
    """FLOOR of x + 1/2, and of a half between two whole numbers the even one: LiteRT's reference kernels lack ROUND."""
    axes = at.axes(node.input(0))
    tensor = at.stored(node.input(0), axes)
    shape, half, minus = at.tensors[tensor].shape, at.value("half", 0.5), at.value("minus", -1.0)

    def computed(kind: str, *operands: str) -> str:
        return at.emit(kind, operands, shape, {"ADD": Add(), "SUB": Sub(), "MUL": Mul()}.get(kind), node.output)

    above = computed("FLOOR", computed("ADD", tensor, half))
    turned = computed("FLOOR", computed("ADD", computed("MUL", tensor, minus), half))
    between = computed("ADD", above, turned)  # one halfway, else nothing
    pairs = computed("FLOOR", computed("MUL", above, half))
    odd = computed("SUB", above, computed("MUL", pairs, at.value("two", 2.0)))
    at.give(node.output, computed("SUB", above, computed("MUL", between, odd)), axes)


@operator("Reciprocal")
def reciprocal(at: Lowering, node: Node) -> None:
    """DIV of one; RSQRT where what it divides is a square root that nothing else reads."""
    axes = at.axes(node.input(0))
    tensor = at.stored(node.input(0), axes)
    shape = at.tensors[tensor].shape
    at.give(node.output, at.emit("DIV", (at.value("one", 1.0), tensor), shape, Div(), node.output), axes)


@operator("Erf")
def error_function(at: Lowering, node: Node) -> None:
    """2 * GELU(z) / z - 1 for z = x * sqrt(2): TFLite has the error function inside of GELU alone."""
    axes = at.axes(node.input(0))
    tensor = at.stored(node.input(0), axes)
    shape = at.tensors[tensor].shape
    scaled = at.emit("MUL", (tensor, at.value("root", math.sqrt(2))), shape, Mul(), node.output)
    # GELU(z) / z is 1/2 at zero: the smallest step beside it gives that without a division by zero.
    moved = at.emit("ADD", (scaled, at.value("tiny", 1e-20)), shape, Add(), node.output)
    part = at.emit("GELU", (moved,), shape, Gelu(), node.output)
    ratio = at.emit("DIV", (part, moved), shape, Div(), node.output)
    double = at.emit("MUL", (ratio, at.value("two", 2.0)), shape, Mul(), node.output)
    at.give(node.output, at.emit("SUB", (double, at.value("one", 1.0)), shape, Sub(), node.output), axes)


@operator("Sinh", "Cosh", "Tan")
def quotients(at: Lowering, node: Node) -> None:
    """(exp(x) -+ exp(-x)) / 2, or SIN divided by COS."""
    axes = at.axes(node.input(0))
    tensor = at.stored(node.input(0), axes)
    shape = at.tensors[tensor].shape
    if node.op == "Tan":
        sides = [at.emit(kind, (tensor,), shape, stem=node.output) for kind in ("SIN", "COS")]
        at.give(node.output, at.emit("DIV", sides, shape, Div(), node.output), axes)
        return
    turned = at.emit("MUL", (tensor, at.value("minus", -1.0)), shape, Mul(), node.output)
    up, down = (at.emit("EXP", (each,), shape, stem=node.output) for each in (tensor, turned))
    kind, options = ("SUB", Sub()) if node.op == "Sinh" else ("ADD", Add())
    both = at.emit(kind, (up, down), shape, options, node.output)
    at.give(node.output, at.emit("MUL", (both, at.value("half", 0.5)), shape, Mul(), node.output), axes)


@operator("Asinh", "Acosh", "Atanh")
def inverse_hyperbolics(at: Lowering, node: Node) -> None:
    """log(x + sqrt(x * x +- 1)), or half of log((1 + x) / (1 - x))."""
    axes = at.axes(node.input(0))
    tensor = at.stored(node.input(0), axes)
    shape = at.tensors[tensor].shape
    one = at.value("one", 1.0)
    if node.op == "Atanh":
        above = at.emit("ADD", (tensor, one), shape, Add(), node.output)
        below = at.emit("SUB", (one, tensor), shape, Sub(), node.output)
        logarithm = at.emit("LOG", (at.emit("DIV", (above, below), shape, Div(), node.output),), shape)
        at.give(node.output, at.emit("MUL", (logarithm, at.value("half", 0.5)), shape, Mul(), node.output), axes)
        return
    square = at.emit("MUL", (tensor, tensor), shape, Mul(), node.output)
    kind, options = ("ADD", Add()) if node.op == "Asinh" else ("SUB", Sub())
    root = at.emit("SQRT", (at.emit(kind, (square, one), shape, options, node.output),), shape, stem=node.output)
    total = at.emit("ADD", (tensor, root), shape, Add(), node.output)
    at.give(node.output, at.emit("LOG", (total,), shape, stem=node.output), axes)


@operator("Atan", "Asin", "Acos")
def inverse_angles(at: Lowering, node: Node) -> None:
    """ATAN2 of x and one, or of x and sqrt(1 - x * x); the arc cosine is what is missing to a right angle."""
    axes = at.axes(node.input(0))
    tensor = at.stored(node.input(0), axes)
    shape, one = at.tensors[tensor].shape, at.value("one", 1.0)
    if node.op == "Atan":  # LiteRT's kernel wants both sides of one shape
        nothing = at.emit("MUL", (tensor, at.value("zero", 0.0)), shape, Mul(), node.output)
        other = at.emit("ADD", (nothing, one), shape, Add(), node.output)
    else:
        square = at.emit("MUL", (tensor, tensor), shape, Mul(), node.output)
        rest = at.emit("SUB", (one, square), shape, Sub(), node.output)
        positive = at.emit("MAXIMUM", (rest, at.value("zero", 0.0)), shape, stem=node.output)
        other = at.emit("SQRT", (positive,), shape, stem=node.output)
    result = at.emit("ATAN2", (tensor, other), shape, stem=node.output)
    if node.op == "Acos":
        result = at.emit("SUB", (at.value("right", math.pi / 2), result), shape, Sub(), node.output)
    at.give(node.output, result, axes)


@operator("Identity", "Dropout")
def identity(at: Lowering, node: Node) -> None:
    """Nothing: the result is the input."""
    name = node.input(0)
    if node.op == "Dropout" and node.input(2) and np.any(required(at.constant(node.input(2)), "training_mode")):
        raise Refused("in training mode it leaves out elements by chance")
    if at.constant(name) is not None:
        at.constants[node.output] = at.constants[name]
    else:
        at.views[node.output] = at.views[name]


@operator("Cast", "CastLike")
def cast(at: Lowering, node: Node) -> None:
    """CAST between number types; SELECT_V2 of truth as a real number; between kinds of one number type, nothing."""
    name = node.input(0)
    array = at.constant(name)
    if array is not None:
        at.constants[node.output] = array.astype(at.dtypes[node.output])
        return
    axes = at.axes(name)
    tensor = at.stored(name, axes)
    have = at.tensors[tensor].dtype
    wanted = at.dtypes[node.output]
    wanted = "float32" if wanted in ("float16", "float64") else "int32" if wanted in ("int64", "int32") else wanted
    if have == wanted:
        at.views[node.output] = at.views[name]
        return
    shape = at.tensors[tensor].shape
    maker = next((each for each in reversed(at.operators) if each.outputs[0] == tensor), None)
    if maker is not None and maker.options == Cast("bool", "int32") and wanted == "float32":
        tensor, have = maker.inputs[0], "bool"  # truth as a whole number, as a real number
    if have == "bool" and wanted == "float32":  # which has an integer form, one or zero
        choice = (tensor, at.value("one", 1.0), at.value("zero", 0.0))
        at.give(node.output, at.emit("SELECT_V2", choice, shape, stem=node.output, dtype=wanted), axes)
        return
    at.give(node.output, at.emit("CAST", (tensor,), shape, Cast(have, wanted), node.output, dtype=wanted), axes)


@operator("BatchNormalization")
def batch_norm(at: Lowering, node: Node) -> None:
    """A depthwise convolution of one element with the statistics in weights and bias; MUL and ADD without an image."""
    from anynpu.lowering.operators.normalization import scaled_channels

    if int(node.get("training_mode", 0)):
        raise Refused("a batch normalisation in training mode computes its own statistics")
    scale, bias, mean, variance = (np.asarray(at.constants[name], np.float64) for name in node.inputs[1:5])
    factor = scale / np.sqrt(variance + float(node.get("epsilon", 1e-5)))
    scaled_channels(at, node.input(0), factor, bias - mean * factor, node.output)
