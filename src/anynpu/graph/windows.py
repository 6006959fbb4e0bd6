"""How convolutions, pools and batch normalisation become terms: paddings spelled out, normalisation folded in."""

from __future__ import annotations

import numpy as np

from anynpu.graph import terms
from anynpu.graph.canonical import Result, Site, rule
from anynpu.graph.terms import Shape, Term, const, make

Ints = tuple[int, ...]


def _tuple(site: Site, name: str, count: int, default: int) -> Ints:
    return tuple(site.integers(name) or [default] * count)


def _pads(site: Site, kernel: Shape, strides: Ints, dilations: Ints) -> Ints | None:
    """Returns the padding before and after each axis, or None where the shapes that decide it are unknown."""
    mode = site.attributes.get("auto_pad", "NOTSET")
    if mode == "NOTSET":
        return _tuple(site, "pads", 2 * len(kernel), 0)
    if mode == "VALID":
        return (0,) * (2 * len(kernel))
    before, after = site.data().shape, site.shape
    if before is None or after is None:
        return None
    begin, end = [], []
    for size, out, k, stride, dilation in zip(before[2:], after[2:], kernel, strides, dilations, strict=True):
        total = max((out - 1) * stride + (k - 1) * dilation + 1 - size, 0)
        small, large = total // 2, total - total // 2
        begin.append(small if mode == "SAME_UPPER" else large)
        end.append(large if mode == "SAME_UPPER" else small)
    return (*begin, *end)


def _without_pad(term: Term, pads: Ints) -> tuple[Term, Ints]:
    """Returns the term behind a Pad of zeros on the spatial axes, and the padding both give together."""
    if term.op != "Pad" or term.settings["mode"] != "constant" or term.settings["value"] != 0.0:
        return term, pads
    full = term.settings["pads"]
    assert isinstance(full, tuple)
    rank = len(full) // 2
    outer = (*full[:2], *full[rank : rank + 2])
    if any(outer) or any(pad < 0 for pad in full):
        return term, pads
    spatial = (*full[2:rank], *full[rank + 2 :])
    return term.inputs[0], tuple(a + b for a, b in zip(pads, spatial, strict=True))


def _bias(site: Site) -> list[Term]:
    bias = site.operand(2)
    return [] if bias is None or terms.is_uniform(bias, 0) else [bias]


@rule("Conv")
def _conv(site: Site) -> Result:
    weight = site.operand(1)
    if weight is None or weight.shape is None:
        return None
    kernel = weight.shape[2:]
    strides, dilations = _tuple(site, "strides", len(kernel), 1), _tuple(site, "dilations", len(kernel), 1)
    pads = _pads(site, kernel, strides, dilations)
    if pads is None:
        return None
    x, pads = _without_pad(site.data(), pads)
    parts = [x, weight, *_bias(site)]
    group = site.integer("group", 1)
    settings = {"strides": strides, "dilations": dilations, "pads": pads, "group": group}
    return [make("Conv", parts, site.shape, site.dtype, **settings)]


@rule("ConvTranspose")
def _conv_transpose(site: Site) -> Result:
    weight = site.operand(1)
    if weight is None or weight.shape is None or "output_shape" in site.attributes or "auto_pad" in site.attributes:
        return None
    count = len(weight.shape) - 2
    settings = {name: _tuple(site, name, count, 1) for name in ("strides", "dilations")}
    settings["pads"] = _tuple(site, "pads", 2 * count, 0)
    settings["output_padding"] = _tuple(site, "output_padding", count, 0)
    parts = [site.data(), weight, *_bias(site)]
    return [make("ConvTranspose", parts, site.shape, site.dtype, **settings, group=site.integer("group", 1))]


@rule("AveragePool MaxPool")
def _pool(site: Site) -> Result:
    kernel = site.integers("kernel_shape")
    x = site.data()
    if kernel is None or x.shape is None or site.shape is None or site.integer("storage_order", 0):
        return None
    strides, dilations = _tuple(site, "strides", len(kernel), 1), _tuple(site, "dilations", len(kernel), 1)
    pads = _pads(site, tuple(kernel), strides, dilations)
    if pads is None:
        return None
    counted = site.integer("count_include_pad", 0)
    if site.op == "AveragePool" and (counted or not any(pads)):
        behind, wider = _without_pad(x, pads)
        counted, x, pads = (1 if any(wider) else 0), behind, wider
    whole = x.shape is not None and tuple(kernel) == x.shape[2:] and not any(pads)
    if whole and site.op == "AveragePool":
        reduced = make("ReduceMean", [x], site.shape, site.dtype, axes=tuple(range(2, len(kernel) + 2)))
        return [reduced] if all(size == 1 for size in site.shape[2:]) else None
    # Where rounding up changes nothing it is not part of the network.
    shape = x.shape or ()
    count = len(kernel)
    padded = [size + pads[i] + pads[i + count] for i, size in enumerate(shape[2:])]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    ceil = int(site.shape[2:] != tuple((size - r) // s + 1 for size, r, s in zip(padded, reach, strides, strict=True)))
    settings = {"kernel": tuple(kernel), "strides": strides, "dilations": dilations, "pads": pads}
    return [make(site.op, [x], site.shape, site.dtype, **settings, counted=counted, ceil=ceil)]


@rule("BatchNormalization")
def _batch_norm(site: Site) -> Result:
    x, *rest = site.present()
    values = [term.value for term in rest if term.value is not None]
    if site.integer("training_mode", 0) or len(rest) != 4:
        return None
    epsilon = site.number("epsilon", 1e-5)
    if len(values) == 4:
        folded = _fold_norm(x, values, epsilon)
        if folded is not None:
            return [folded]
    return [make("BatchNormalization", [x, *rest], site.shape, site.dtype, epsilon=epsilon)]


def _fold_norm(x: Term, values: list[np.ndarray], epsilon: float) -> Term | None:
    """Returns the operator in front with the normalisation in its weights, rounded as every exporter rounds it."""
    gamma, beta, mean, variance = values
    # torch (both exporters) and onnxsim compute in this order and precision; any other differs in the last bit.
    scale = gamma / np.sqrt(variance + variance.dtype.type(epsilon))
    convolves = x.op in ("Conv", "ConvTranspose")
    layer, bias = (x, x.inputs[2] if len(x.inputs) > 2 else None) if convolves else _linear(x)
    if layer is None or layer.inputs[1].value is None or (bias is not None and bias.value is None):
        return None
    start = np.zeros_like(mean) if bias is None or bias.value is None else bias.value.reshape(-1)
    if start.shape != mean.shape and start.size != 1:
        return None
    shifted = const((start - mean) * scale + beta)
    weight = const(_scaled(layer, layer.inputs[1].value, scale))
    if layer.op == "MatMul":
        product = make("MatMul", [layer.inputs[0], weight], layer.shape, layer.dtype)
        return terms.add(product, shifted, layer.shape, layer.dtype)
    parts = [layer.inputs[0], weight] + ([] if terms.is_uniform(shifted, 0) else [shifted])
    return make(layer.op, parts, layer.shape, layer.dtype, **layer.settings)


def _linear(x: Term) -> tuple[Term | None, Term | None]:
    """Returns the matrix product with constant weights that a term is, and the bias added to it."""
    if x.op == "MatMul" and x.shape is not None and len(x.shape) == 2:
        return x, None
    if x.op == "Add" and x.shape is not None and len(x.shape) == 2:
        products = [part for part in x.inputs if part.op == "MatMul"]
        constants = [part for part in x.inputs if part.value is not None]
        if len(products) == len(constants) == 1:
            return products[0], constants[0]
    return None, None


def _scaled(layer: Term, weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    tail = (1,) * (weight.ndim - 2)
    if layer.op == "Conv":
        factor = scale.reshape(-1, 1, *tail)
    elif layer.op == "MatMul":
        factor = scale
    else:
        group = layer.settings.get("group", 1)
        assert isinstance(group, int)
        # A transposed convolution stores its output channels group by group on axis 1.
        rows = np.repeat(scale.reshape(group, -1), weight.shape[0] // group, axis=0)
        factor = rows.reshape(*rows.shape, *tail)
    return np.asarray(weight * factor)
