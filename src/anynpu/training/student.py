"""The float graph as a torch module that rounds as the compiled model does, and passes gradients straight through."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from anynpu.errors import ToolMissing, Unsupported
from anynpu.training.scheme import Rounding, Scheme, WeightRounding

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def require_torch() -> Any:
    """Returns torch, or says how to get it."""
    try:
        import torch
    except ImportError:
        raise ToolMissing("training needs torch, which is not installed", "pip install 'anynpu[build]'") from None
    return torch


@functools.cache
def _straight() -> Any:
    """Returns a rounding whose gradient is that of doing nothing."""
    import torch

    class Straight(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(values: Tensor) -> Tensor:
            return torch.round(values)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            return

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient

    return Straight


def rounded(values: Tensor, scale: Tensor, low: float, high: float) -> Tensor:
    """Returns values on the grid of a scale; the gradient of what is clipped goes to the scale alone."""
    import torch

    stored: Tensor = _straight().apply(torch.clamp(values / scale, low, high))
    return stored * scale


def _rounder(parameter: torch.nn.Parameter | None, scale: Any, low: float, high: float) -> torch.nn.Module:
    """Returns a module that rounds to `scale`, times two to the power of a parameter where there is one."""
    import torch

    class Rounder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("basis", torch.as_tensor(np.asarray(scale, np.float32)))
            self.exponent = parameter

        def scale(self) -> Tensor:
            basis: Tensor = self.basis  # type: ignore[assignment]  # a buffer
            return basis if self.exponent is None else basis * torch.exp2(self.exponent)

        def forward(self, values: Tensor) -> Tensor:
            return rounded(values, self.scale(), float(low), float(high))

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
        self.range_rounders: dict[str, Any] = {}
        nodes = {node.name: node for node in self.module.graph.nodes}
        groups: dict[Any, Any] = {}
        for name, each in scheme.weights.items():
            node = nodes.get(self.tensors.get(name, ""))
            if node is None or node.op != "get_attr":
                raise Unsupported(f"training: the weights {name} are not read by any operator of the float model")
            self._insert(node, self._weight_rounder(name, node, each))
        for name, form in scheme.activations.items():
            node = nodes.get(self.tensors.get(name, ""))
            if node is not None:
                self._insert(node, self._range_rounder(name, form, groups, learn_ranges))
        self.module.graph.lint()
        self.module.recompile()

    def _insert(self, node: Any, rounder: Any) -> None:
        label = f"rounder_{len(self.weight_rounders) + len(self.range_rounders)}"
        self.module.add_submodule(label, rounder)
        with self.module.graph.inserting_after(node):
            new = self.module.graph.call_module(label, (node,))
        node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)

    def _weight_rounder(self, name: str, node: Any, each: WeightRounding) -> Any:
        rank = getattr(self.module, node.target).ndim
        scale = np.asarray(each.scale, np.float32)
        if len(scale) > 1:
            scale = scale.reshape([-1 if a == each.axis else 1 for a in range(rank)])
        exponent = None if each.fixed else self.torch.nn.Parameter(self.torch.zeros(scale.shape))
        self.weight_rounders[name] = _rounder(exponent, scale, each.low, each.high)
        return self.weight_rounders[name]

    def _range_rounder(self, name: str, each: Rounding, groups: dict[Any, Any], learn: bool) -> Any:
        exponent = None
        if learn and each.free:
            if each.group not in groups:
                groups[each.group] = self.torch.nn.Parameter(self.torch.zeros(()))
            exponent = groups[each.group]
        limits = each.low - each.zero_point, each.high - each.zero_point
        self.range_rounders[name] = _rounder(exponent, each.scale, *limits)
        return self.range_rounders[name]

    def weights(self) -> dict[str, Any]:
        """Returns the parameters that the model file holds, by name; scales are apart."""
        scales = {id(p) for p in self.scales()}
        return {name: p for name, p in self.module.named_parameters() if id(p) not in scales}

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
            scale = r.scale().detach().cpu().numpy().reshape(-1)
            weights[name] = replace(self.scheme.weights[name], scale=tuple(float(np.float32(s)) for s in scale))
        by_attribute = {attribute: name for name, attribute in self.module.meta["attributes"].items()}
        values = {by_attribute[name]: p.detach().cpu().numpy() for name, p in self.weights().items()}
        return replace(self.scheme.stretched(factors), weights=weights), values
