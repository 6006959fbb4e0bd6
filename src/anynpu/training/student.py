"""The float graph as a torch module that rounds as the compiled model does, and passes gradients straight through."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from anynpu.errors import ToolMissing, Unsupported
from anynpu.source.torch_arrays import to_array, to_tensor
from anynpu.tensors import Array
from anynpu.training.scheme import Folded, Fractions, Rounding, Scheme

if TYPE_CHECKING:
    import onnx
    import torch
    from torch import Tensor


def require_torch() -> Any:
    """Returns torch, or says how to get it."""
    try:
        import torch
    except ImportError:
        raise ToolMissing("training needs torch, which is not installed", "pip install 'anynpu[build]'") from None
    return torch


def _dot(one: Tensor, other: Tensor) -> Tensor:
    """Returns the sum of the products of two tensors of one shape."""
    return one.reshape(-1).dot(other.reshape(-1))


@functools.cache
def _grid() -> Any:
    """Returns the rounding to a grid as one operation: several would go through memory again and again."""
    import torch

    class Grid(torch.autograd.Function):
        @staticmethod
        def forward(values: Tensor, scale: Tensor, low: float, high: float, fractions: Fractions) -> Tensor:
            stored = values / scale
            # Sums and means of integers that are whole or a half may come out a little less.
            if fractions == "up":
                stored.add_(0.5 + 1 / 4096).floor_()
            elif fractions == "cut":
                stored.add_(torch.sign(stored), alpha=1 / 1024).trunc_()
            else:
                stored.round_()
            return stored.clamp_(low, high).mul_(scale)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
            values, scale, ctx.low, ctx.high, _ = inputs
            ctx.save_for_backward(values, scale, output)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
            values, scale, output = ctx.saved_tensors
            if scale.ndim:
                ratio = values / scale
                straight = gradient * ((ratio >= ctx.low) & (ratio <= ctx.high))
                moved = ((gradient * output - straight * values) / scale).sum_to_size(scale.shape)
                return straight, moved, None, None, None
            # Its bounds are outside; a grid's are inside.
            low, high = (float(scale) * (end + side / 1024) for end, side in ((ctx.low, -1), (ctx.high, 1)))
            straight = torch.ops.aten.hardtanh_backward(gradient, values, low, high)
            moved = _dot(gradient, output) - _dot(straight, values)
            if not bool(torch.isfinite(moved)):
                # Roots and logarithms of zero rise without end: such a place says nothing, the others do.
                gradient, straight = (torch.nan_to_num(each, 0.0, 0.0, 0.0) for each in (gradient, straight))
                moved = _dot(gradient, output) - _dot(straight, values.clamp(low, high))
            return straight, moved / scale, None, None, None

        @staticmethod
        def vmap(info: Any, dims: tuple[int, ...], values: Tensor, *rest: Any) -> tuple[Tensor, int]:
            return Grid.apply(values.movedim(dims[0], 0), *rest), 0  # type: ignore[no-untyped-call]

    return Grid


def rounded(values: Tensor, scale: Tensor, low: float, high: float, fractions: Fractions = "even") -> Tensor:
    """Returns values on the grid of a scale: the gradient passes straight through, that of what is clipped goes to the
    scale alone."""
    grid: Tensor = _grid().apply(values, scale, low, high, fractions)
    return grid


def _rounder(
    parameter: torch.nn.Parameter | None,
    scale: Any,
    limits: tuple[float, float],
    fractions: Fractions = "even",
    gain: float = 1.0,
    folded: Folded | None = None,
    factor: Array | None = None,
) -> torch.nn.Module:
    """Returns a module that rounds to `scale`, times two to the power of a parameter where there is one.

    Biases that hold a zero point are rounded with it: their layer's weights come as a second argument then. Weights
    that a compiler multiplies by factors are rounded as their products.
    """
    import torch

    class Rounder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("basis", to_tensor(np.asarray(scale, np.float32)))
            self.exponent = parameter
            self.register_buffer("factor", None if factor is None else to_tensor(factor))

        def scale(self) -> Tensor:
            basis: Tensor = self.basis  # type: ignore[assignment]  # a buffer
            return basis if self.exponent is None else basis * torch.exp2(self.exponent)

        def forward(self, values: Tensor, weights: Tensor | None = None) -> Tensor:
            if factor is not None:
                by: Tensor = self.factor  # type: ignore[assignment]  # a buffer
                products = rounded(values * by, self.scale(), *limits, fractions)
                # What a factor of zero leaves nothing of is not rounded.
                return torch.where(by == 0, values, products / torch.where(by == 0, 1.0, by))
            if folded is None or weights is None:
                return rounded(values if gain == 1 else values * gain, self.scale(), *limits, fractions)
            shift = folded.centre * weights.movedim(folded.axis, 0).flatten(1).sum(1)
            return rounded(values + shift, self.scale(), *limits, fractions) - shift

    return Rounder()


class Student:
    """A rounding module and its parts by the names of the ONNX graph."""

    def __init__(self, model: onnx.ModelProto, scheme: Scheme, learn_ranges: bool = True) -> None:
        self.torch = require_torch()
        from anynpu.source.onnx_torch import import_model

        self.scheme = scheme
        imported: Any = import_model(model)
        self.module = imported
        self.tensors: Mapping[str, str] = self.module.meta["tensors"]
        self.weight_rounders: dict[str, Any] = {}
        self.rounded_weights: dict[str, Any] = {}
        self.range_rounders: dict[str, Any] = {}
        nodes = {node.name: node for node in self.module.graph.nodes}
        groups: dict[Any, Any] = {}
        for name, each in sorted(scheme.weights.items(), key=lambda item: item[1].folded is not None):
            node = nodes.get(self.tensors.get(name, ""))
            if node is None or node.op != "get_attr":
                raise Unsupported(f"training: the weights {name} are not read by any operator of the float model")
            values = getattr(self.module, node.target)
            rank = values.ndim
            scale = np.asarray(each.scale, np.float32)
            if len(scale) > 1:
                scale = scale.reshape([-1 if a == each.axis else 1 for a in range(rank)])
            exponent = None if each.fixed else self.torch.nn.Parameter(self.torch.zeros(scale.shape))
            if each.fixed and each.folded is None:
                # What lies beyond a grid that does not move gets no gradient, and would stay there.
                values.data.clamp_(each.low * each.scale[0], each.high * each.scale[0])
            factor = each.factor(rank) if each.factors else None
            limits = each.low, each.high
            self.weight_rounders[name] = _rounder(exponent, scale, limits, folded=each.folded, factor=factor)
            self.rounded_weights[name] = self._insert(node, self.weight_rounders[name], each.folded)
        for name, form in scheme.activations.items():
            node = nodes.get(self.tensors.get(name, ""))
            if node is not None:
                self._insert(node, self._range_rounder(name, form, groups, learn_ranges))
        self.module.graph.lint()
        self.module.recompile()

    def _insert(self, node: Any, rounder: Any, folded: Folded | None = None) -> Any:
        label = f"rounder_{len(self.weight_rounders) + len(self.range_rounders)}"
        self.module.add_submodule(label, rounder)
        graph = self.module.graph
        if folded is None:
            with graph.inserting_after(node):
                new = graph.call_module(label, (node,))
        else:  # only the operator that reads both comes after both
            with graph.inserting_before(next(iter(node.users))):
                new = graph.call_module(label, (node, self.rounded_weights[folded.weights]))
        node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
        return new

    def _range_rounder(self, name: str, each: Rounding, groups: dict[Any, Any], learn: bool) -> Any:
        exponent = None
        if learn and each.free:
            if each.group not in groups:
                groups[each.group] = self.torch.nn.Parameter(self.torch.zeros(()))
            exponent = groups[each.group]
        limits = each.low - each.zero_point, each.high - each.zero_point
        self.range_rounders[name] = _rounder(exponent, each.scale, limits, each.fractions, each.gain)
        return self.range_rounders[name]

    def weights(self) -> dict[str, Any]:
        """Returns the parameters of the model file that training may change, by name; scales are apart."""
        apart = {id(p) for p in self.scales()}
        attributes = self.module.meta["attributes"]
        constant = {attributes.get(name) for name in self.scheme.constant}
        return {name: p for name, p in self.module.named_parameters() if id(p) not in apart and name not in constant}

    def bits(self) -> dict[str, int]:
        """Returns the bits of rounded weights, by the name of their parameter; biases are not among them."""
        attributes = self.module.meta["attributes"]
        named = {attributes[name]: each.bits for name, each in self.scheme.weights.items()}
        return {name: bits for name, bits in named.items() if getattr(self.module, name).ndim > 1}

    def scales(self) -> list[Any]:
        """Returns the parameters of the scales, each once."""
        rounders = (*self.weight_rounders.values(), *self.range_rounders.values())
        return list({id(r.exponent): r.exponent for r in rounders if r.exponent is not None}.values())

    def trained(self) -> tuple[Scheme, dict[str, Any]]:
        """Returns the scheme with the scales of now, and the float weights of now by the ONNX name."""
        factors = {
            name: float(self.torch.exp2(r.exponent.detach()))
            for name, r in self.range_rounders.items()
            if r.exponent is not None
        }
        weights = {}
        for name, r in self.weight_rounders.items():
            scale = to_array(r.scale()).reshape(-1)
            weights[name] = replace(self.scheme.weights[name], scale=tuple(float(np.float32(s)) for s in scale))
        by_attribute = {attribute: name for name, attribute in self.module.meta["attributes"].items()}
        values = {by_attribute[name]: to_array(p) for name, p in self.weights().items()}
        return replace(self.scheme.stretched(factors), weights=weights), values
