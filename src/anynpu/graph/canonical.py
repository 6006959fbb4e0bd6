"""How each operator becomes a term: one small rule for every operator that exporters spell in more than one way.

A rule returns the terms of a node's outputs, or None where it does not apply and the node is taken as it stands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from anynpu.graph import terms
from anynpu.graph.terms import Shape, Term, const, make

Result = list[Term] | None


@dataclass(frozen=True)
class Site:
    """One node with the terms of its inputs and what is known of its outputs."""

    op: str
    inputs: list[Term | None]
    attributes: dict[str, object]
    shapes: list[Shape | None]
    dtype: str
    opset: int

    @property
    def shape(self) -> Shape | None:
        """The shape of the first output."""
        return self.shapes[0] if self.shapes else None

    def operand(self, place: int) -> Term | None:
        """Returns an input, or None where it is left out."""
        return self.inputs[place] if place < len(self.inputs) else None

    def data(self) -> Term:
        """Returns the first input."""
        first = self.operand(0)
        return first if first is not None else make("Missing", [], None, "")

    def present(self) -> list[Term]:
        """Returns all inputs that are given."""
        return [term for term in self.inputs if term is not None]

    def integer(self, name: str, default: int) -> int:
        """Returns a whole-number attribute."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def number(self, name: str, default: float) -> float:
        """Returns a real attribute as float32 holds it."""
        value = self.attributes.get(name, default)
        return float(np.float32(value if isinstance(value, int | float) else default))

    def integers(self, name: str, place: int | None = None) -> list[int] | None:
        """Returns whole numbers from an attribute or, in later opsets, from a constant input."""
        value = self.attributes.get(name)
        if isinstance(value, tuple):
            return [int(item) for item in value]
        term = self.operand(place) if place is not None else None
        return None if term is None or term.value is None else [int(item) for item in term.value.ravel()]

    def generic(self) -> Term:
        """Returns the node as it stands: operator, inputs, and attributes other than defaults."""
        blank = make("Missing", [], None, "")
        parts = [blank if term is None else term for term in self.inputs]
        while parts and parts[-1] is blank:
            parts.pop()
        return make(self.op, parts, self.shape, self.dtype, **self.attributes)


Rule = Callable[[Site], Result]
RULES: dict[str, Rule] = {}


def rule(operators: str) -> Callable[[Rule], Rule]:
    """Makes a function the rule of these operators."""

    def listed(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(operators.split(), function))
        return function

    return listed


@rule("Identity")
def _idle(site: Site) -> Result:
    return [site.data()]


@rule("Dropout")
def _dropout(site: Site) -> Result:
    training = site.operand(2)
    return [site.data()] if training is None or terms.is_uniform(training, 0) else None


@rule("Cast")
def _cast(site: Site) -> Result:
    term = site.data()
    if site.dtype and term.dtype == site.dtype:
        return [term]
    other = {name: value for name, value in site.attributes.items() if name != "to"}
    return [terms.unary("Cast", term, site.dtype, **other)] if site.dtype else None


@rule("Flatten Reshape Squeeze Unsqueeze")
def _view(site: Site) -> Result:
    return [terms.reshape(site.data(), site.shape)] if site.shape is not None else None


@rule("Transpose")
def _transpose(site: Site) -> Result:
    term = site.data()
    order = site.integers("perm")
    if order is None and term.shape is not None:
        order = list(range(len(term.shape)))[::-1]
    return None if order is None else [terms.transpose(term, order)]


@rule("Expand")
def _expand(site: Site) -> Result:
    if site.shape is None:
        return None
    same = site.data().shape == site.shape
    return [site.data() if same else make("Expand", [terms.trim(site.data())], site.shape, site.dtype)]


@rule(
    "Abs Ceil Celu Cos Elu Erf Exp Floor HardSigmoid LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu Sigmoid "
    "Sign Sin Softplus Softsign Sqrt Tan Tanh ThresholdedRelu"
)
def _unary(site: Site) -> Result:
    return [terms.unary(site.op, site.data(), site.dtype, **site.attributes)]


@rule("Greater GreaterOrEqual Less LessOrEqual Mod PRelu Sub Where")
def _binary(site: Site) -> Result:
    if site.attributes:
        return None
    return [terms.elementwise(site.op, site.present(), site.shape, site.dtype)]


@rule("And Equal Max Mean Min Or Xor")
def _commutative(site: Site) -> Result:
    return [terms.elementwise(site.op, site.present(), site.shape, site.dtype, commutes=True)]


@rule("Add Sum")
def _add(site: Site) -> Result:
    parts = site.present()
    if len(parts) != 2:
        return _commutative(site)
    return [terms.add(parts[0], parts[1], site.shape, site.dtype)]


@rule("Mul")
def _multiply(site: Site) -> Result:
    return [terms.multiply(site.present(), site.shape, site.dtype)]


@rule("Div")
def _divide(site: Site) -> Result:
    left, right = site.present()
    if right.value is not None and right.value.dtype.kind == "f" and np.all(np.abs(np.frexp(right.value)[0]) == 0.5):
        # Dividing by a power of two is exactly a product.
        return [terms.multiply([left, const(1 / right.value)], site.shape, site.dtype)]
    return [terms.elementwise("Div", [left, right], site.shape, site.dtype)]


@rule("Pow")
def _power(site: Site) -> Result:
    base, exponent = site.present()
    if terms.is_scalar(exponent) and terms.is_uniform(exponent, 2) and base.shape == site.shape:
        return [terms.multiply([base, base], site.shape, site.dtype)]
    return _binary(site)


@rule("MatMul")
def _matmul(site: Site) -> Result:
    left, right = site.present()
    return [terms.matmul(left, right, site.shape, site.dtype)]


@rule("Gemm")
def _gemm(site: Site) -> Result:
    if site.number("alpha", 1.0) != 1.0 or (len(site.present()) > 2 and site.number("beta", 1.0) != 1.0):
        return None
    left, right, *bias = site.present()
    left = terms.transpose(left, (1, 0)) if site.integer("transA", 0) else left
    right = terms.transpose(right, (1, 0)) if site.integer("transB", 0) else right
    product = terms.matmul(left, right, site.shape, site.dtype)
    return [terms.add(product, bias[0], site.shape, site.dtype) if bias else product]


@rule("Clip")
def _clip(site: Site) -> Result:
    bounds: dict[str, object] = {}
    for place, name in enumerate(("min", "max"), start=1):
        term = site.operand(place)
        if term is not None and not terms.is_scalar(term):
            return None
        bound = site.attributes.get(name) if term is None or term.value is None else term.value.item()
        # Opset 6 wrote the largest float where it meant no bound.
        limit = float(np.finfo(np.float32).max)
        bounds[name] = None if not isinstance(bound, int | float) or abs(bound) >= limit else bound
    return [terms.unary("Clip", site.data(), site.dtype, **bounds)]


def _axis(site: Site, default: int) -> int | None:
    shape = site.data().shape
    return None if shape is None else site.integer("axis", default) % max(len(shape), 1)


@rule("Softmax LogSoftmax Hardmax")
def _softmax(site: Site) -> Result:
    shape = site.data().shape
    axis = _axis(site, -1 if site.opset >= 13 else 1)
    if axis is None or shape is None:
        return None
    # Before opset 13 all axes from this one on were one; on the last axis both mean the same.
    op = site.op if site.opset >= 13 or axis == len(shape) - 1 else f"{site.op}Flat"
    return [make(op, [site.data()], site.shape, site.dtype, axis=axis)]


@rule("Concat")
def _concat(site: Site) -> Result:
    axis = _axis(site, 0)
    if len(site.present()) == 1:
        return [site.data()]
    return None if axis is None else [make("Concat", site.present(), site.shape, site.dtype, axis=axis)]


def _mean_over(term: Term, op: str, axes: Sequence[int], shape: Shape | None, dtype: str) -> Term:
    """Returns a reduction that keeps its axes, and the view that drops them where the node does."""
    assert term.shape is not None
    places = sorted({axis % len(term.shape) for axis in axes})
    kept = tuple(1 if place in places else size for place, size in enumerate(term.shape))
    return terms.reshape(make(op, [term], kept, dtype, axes=tuple(places)), shape)


@rule(
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare"
)
def _reduce(site: Site) -> Result:
    term = site.data()
    if term.shape is None or site.shape is None or (site.operand(1) is not None and site.integers("axes", 1) is None):
        return None
    axes = site.integers("axes", 1)
    if not axes:
        if site.integer("noop_with_empty_axes", 0):
            return None
        axes = list(range(len(term.shape)))
    return [_mean_over(term, site.op, axes, site.shape, site.dtype)]


@rule("GlobalAveragePool GlobalMaxPool")
def _global_pool(site: Site) -> Result:
    term = site.data()
    if term.shape is None:
        return None
    op = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}[site.op]
    return [_mean_over(term, op, range(2, len(term.shape)), site.shape, site.dtype)]


@rule("Slice")
def _slice(site: Site) -> Result:
    term = site.data()
    starts, ends = site.integers("starts", 1), site.integers("ends", 2)
    if term.shape is None or site.shape is None or starts is None or ends is None:
        return None
    axes = site.integers("axes", 3) or list(range(len(starts)))
    steps = site.integers("steps", 4) or [1] * len(starts)
    first, stride = [0] * len(term.shape), [1] * len(term.shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        place = axis % len(term.shape)
        first[place], _, stride[place] = slice(start, end, step).indices(term.shape[place])
    return [terms.slice_of(term, first, stride, site.shape)]


@rule("Split")
def _split(site: Site) -> Result:
    term, axis = site.data(), _axis(site, 0)
    if axis is None or term.shape is None:
        return None
    parts: list[Term] = []
    start = 0
    for shape in site.shapes:
        if shape is None:
            return None
        parts.append(
            terms.slice_of(term, [start if i == axis else 0 for i in range(len(shape))], [1] * len(shape), shape)
        )
        start += shape[axis]
    return parts


@rule("Gather")
def _gather(site: Site) -> Result:
    term, index, axis = site.data(), site.operand(1), _axis(site, 0)
    if axis is None or term.shape is None or index is None:
        return None
    if index.value is None or index.value.size != 1 or site.shape is None:
        return [make("Gather", [term, index], site.shape, site.dtype, axis=axis)]
    start = int(index.value.item()) % term.shape[axis]
    part = tuple(1 if place == axis else size for place, size in enumerate(term.shape))
    starts = [start if place == axis else 0 for place in range(len(part))]
    return [terms.reshape(terms.slice_of(term, starts, [1] * len(part), part), site.shape)]


@rule("Pad")
def _pad(site: Site) -> Result:
    term, pads = site.data(), site.integers("pads", 1)
    if term.shape is None or pads is None:
        return None
    rank = len(term.shape)
    axes = site.integers("axes", 3) or list(range(rank))
    full = [0] * (2 * rank)
    for place, axis in enumerate(axes):
        full[axis % rank], full[axis % rank + rank] = pads[place], pads[place + len(axes)]
    if not any(full):
        return [term]
    value = site.operand(2)
    filling = site.attributes.get("value", 0.0) if value is None else value.digest
    if value is not None and value.value is not None:
        filling = float(value.value.item())
    mode = site.attributes.get("mode", "constant")
    return [make("Pad", [term], site.shape, site.dtype, pads=tuple(full), mode=mode, value=filling)]


@rule("Resize")
def _resize(site: Site) -> Result:
    term, scales = site.data(), site.operand(2)
    mode = site.attributes.get("mode", "nearest")
    coordinates = site.attributes.get("coordinate_transformation_mode", "half_pixel")
    plain = site.opset >= 11 and coordinates != "tf_crop_and_resize"
    if not plain or term.shape is None or site.shape is None or len(term.shape) != len(site.shape):
        return None
    ignored = {"extrapolation_value"} | ({"nearest_mode"} if mode != "nearest" else set())
    ignored |= {"cubic_coeff_a", "exclude_outside"} if mode != "cubic" else set()
    kept = {name: value for name, value in site.attributes.items() if name not in ignored}
    if "axes" in kept or kept.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    factors = (
        [] if scales is None or scales.value is None or not scales.value.size else [float(s) for s in scales.value]
    )
    exact = all(size * s == out for size, s, out in zip(term.shape, factors, site.shape, strict=False))
    return [make("Resize", [term], site.shape, site.dtype, **kept, scales=() if exact else tuple(factors))]


@rule("HardSwish")
def _hard_swish(site: Site) -> Result:
    gate = terms.unary("HardSigmoid", site.data(), site.dtype, alpha=float(np.float32(1 / 6)))
    return [terms.multiply([site.data(), gate], site.shape, site.dtype)]


@rule("Gelu")
def _gelu(site: Site) -> Result:
    if site.attributes.get("approximate", "none") != "none":
        return None
    x, shape, dtype = site.data(), site.shape, site.dtype
    inner = terms.elementwise("Div", [x, _scalar(math.sqrt(2), dtype)], shape, dtype)
    gate = terms.add(terms.unary("Erf", inner, dtype), _scalar(1, dtype), shape, dtype)
    return [terms.multiply([x, gate, _scalar(0.5, dtype)], shape, dtype)]


def _scalar(number: float, dtype: str) -> Term:
    return const(np.array(number, dtype))


@rule("LayerNormalization")
def _layer_norm(site: Site) -> Result:
    x, scale, dtype = site.data(), site.operand(1), site.dtype
    # Half precision computes inside in float32, which the operators spelled out do not.
    if x.shape is None or scale is None or dtype not in ("float32", "float64"):
        return None
    axes = range(site.integer("axis", -1) % len(x.shape), len(x.shape))
    kept = tuple(1 if place in axes else size for place, size in enumerate(x.shape))
    centred = terms.elementwise("Sub", [x, _mean_over(x, "ReduceMean", axes, kept, dtype)], x.shape, dtype)
    squares = terms.multiply([centred, centred], x.shape, dtype)
    variance = _mean_over(squares, "ReduceMean", axes, kept, dtype)
    shifted = terms.add(variance, _scalar(site.number("epsilon", 1e-5), dtype), kept, dtype)
    result = terms.elementwise("Div", [centred, terms.unary("Sqrt", shifted, dtype)], x.shape, dtype)
    result = terms.multiply([result, scale], x.shape, dtype)
    bias = site.operand(2)
    return [result if bias is None else terms.add(result, bias, x.shape, dtype)]
