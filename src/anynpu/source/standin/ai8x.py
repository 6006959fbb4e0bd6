"""A stand-in for the module `ai8x` of Analog Devices' ai8x-training: the layers that models are written with.

Names, arguments and tensors are those of ai8x-training, so that its checkpoints fit. The layers compute in real numbers
what it computes outside its simulation: a window, the operator, a batch norm divided by four, the output shift, the
activation, and the clamp to [-1, 127/128], or to the accumulator's range where a layer is wide. A checkpoint with the
figure final_scale comes from a version that does not divide, and clamps only where its figure says so. Weights from
quantisation-aware training are rounded as there; activations are not, since the compiler quantises them itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

HIGHEST = 127 / 128
WIDE = float(2**15)


class Device:
    """The chip that was chosen: 85 is the MAX78000, 87 the MAX78002."""

    def __init__(self, device: int, simulate: bool, round_avg: bool) -> None:
        self.device, self.simulate, self.round_avg = device, simulate, round_avg


dev = Device(85, False, False)


def set_device(device: int, simulate: bool = False, round_avg: bool = False, verbose: bool = True) -> None:
    """Chooses the chip; the simulation of integers is the compiler's work here."""
    global dev
    if device not in (84, 85, 87):
        raise ValueError(f"Unknown device {device}.")
    if simulate:
        raise ValueError("this stand-in does not simulate: set AI8X_TRAIN_PATH to a clone of ai8x-training")
    dev = Device(device, False, bool(round_avg))


class QuantizationAwareModule(nn.Module):
    """A layer: pool, op, bn and activation, each where there is one, with the figures that training keeps."""

    output_shift: Tensor
    weight_bits: Tensor
    bias_bits: Tensor
    quantize_activation: Tensor
    adjust_output_shift: Tensor
    shift_quantile: Tensor
    activation_threshold: Tensor
    final_scale: Tensor
    clamp_activation: Tensor
    op: Any

    def __init__(
        self,
        pooling: str | None = None,
        activation: str | None = None,
        wide: bool = False,
        weight_bits: int | None = None,
        bias_bits: int | None = None,
        quantize_activation: bool = False,
        pool: nn.Module | None = None,
        op: nn.Module | None = None,
        bn: nn.Module | None = None,
        shift_quantile: float = 1.0,
    ) -> None:
        super().__init__()
        if activation not in (None, "ReLU", "Abs"):
            raise ValueError(f"activation {activation!r}: ReLU, Abs or None was expected")
        if wide and activation is not None:
            raise ValueError("a wide layer has no activation")
        self.pooling, self.activation, self.wide = pooling, activation, wide
        self.pool, self.op, self.bn = pool, op, bn
        trained = bool(weight_bits)
        for name, value in (
            ("output_shift", 0.0),
            ("weight_bits", float(weight_bits or 0)),
            ("bias_bits", float(bias_bits or 0)),
            ("quantize_activation", float(quantize_activation)),
            ("adjust_output_shift", float(trained)),
            ("shift_quantile", shift_quantile),
        ):
            self.register_parameter(name, nn.Parameter(torch.tensor([value]), requires_grad=False))

    newer = False

    def fit_checkpoint(self, figures: Mapping[str, Tensor]) -> None:
        """Takes the figures that a newer version keeps, where a checkpoint has them for this layer."""
        if "final_scale" not in figures:
            return
        self.newer = True
        for name in ("activation_threshold", "final_scale", "clamp_activation"):
            self.register_parameter(name, nn.Parameter(torch.zeros_like(figures[name], dtype=torch.float32), False))

    def forward(self, x: Tensor) -> Tensor:
        """Returns what the layer makes of `x`."""
        clamps = bool(self.clamp_activation) if self.newer else True
        if self.pool is not None:
            x = self.pool(x)
            x = x.clamp(-1.0, HIGHEST) if self.pooling == "Avg" and clamps else x
        if self.op is None:
            return x
        # The power of two that the weights were divided by: stored, or by their size in training
        if not bool(self.adjust_output_shift):
            shift = float(self.output_shift)
        else:
            parts = [self.op.weight.detach().flatten()]
            parts += [self.op.bias.detach().flatten()] if self.op.bias is not None else []
            limit = torch.quantile(torch.cat(parts).abs(), float(self.shift_quantile))
            shift = float(-(1.0 / limit).log2().floor().clamp(-15.0, 15.0))
        weight, bias = self.op.weight, self.op.bias
        if bool(self.weight_bits):
            scale = 2.0**-shift if bool(self.adjust_output_shift) else 1.0
            weight = _rounded(scale * weight, int(self.weight_bits))
            bias = None if bias is None else _rounded(scale * bias, int(self.bias_bits))
        x = self._operate(x, weight, bias)
        if self.newer:
            shift = max(-15.0, min(15.0, shift - float(self.activation_threshold)))
        if self.bn is not None:
            x = self.bn(x) if self.newer else self.bn(x) / 4
        if shift and not self.wide:
            x = x * 2.0**shift
        x = self._activated(x, clamps)
        return x * 2.0 ** float(self.final_scale) if self.newer and bool(self.final_scale) else x

    def _activated(self, x: Tensor, clamps: bool) -> Tensor:
        """Returns the activation of `x`, and its clamp as one step with it: a ReLU with a bound."""
        if self.wide:
            return x.clamp(-WIDE, WIDE) if clamps else x
        if self.activation == "ReLU":
            return x.clamp(0.0, HIGHEST) if clamps else x.relu()
        x = x.abs() if self.activation == "Abs" else x
        return x.clamp(-1.0, HIGHEST) if clamps else x

    def _operate(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        op: Any = self.op
        if isinstance(self.op, nn.Linear):
            return functional.linear(x, weight, bias)
        if isinstance(self.op, nn.ConvTranspose2d):
            return functional.conv_transpose2d(
                x, weight, bias, op.stride, op.padding, op.output_padding, op.groups, op.dilation
            )
        convolve = functional.conv1d if isinstance(self.op, nn.Conv1d) else functional.conv2d
        return convolve(x, weight, bias, op.stride, op.padding, op.dilation, op.groups)


def _rounded(values: Tensor, bits: int) -> Tensor:
    steps = 2.0 ** (bits - 1)
    return (values * steps + 0.5).floor().div(steps).clamp(-1.0, (steps - 1) / steps)


class _Conv(QuantizationAwareModule):
    """A convolution over `dims` axes behind a window."""

    dims = 2

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        op: str = "",
        pooling: str | None = None,
        pool_size: Any = 2,
        pool_stride: Any = 2,
        stride: int | None = None,
        padding: int = 0,
        dilation: int = 1,
        bias: bool = True,
        activation: str | None = None,
        wide: bool = False,
        batchnorm: str | None = None,
        weight_bits: int | None = None,
        bias_bits: int | None = None,
        quantize_activation: bool = False,
        groups: int = 1,
        eps: float = 1e-05,
        momentum: float = 0.05,
    ) -> None:
        pools = {"Max": (nn.MaxPool1d, nn.MaxPool2d), "Avg": (nn.AvgPool1d, nn.AvgPool2d)}
        pool = pools[pooling][self.dims - 1](pool_size, pool_stride or pool_size) if pooling else None
        norm = (nn.BatchNorm1d, nn.BatchNorm2d)[self.dims - 1]
        norms = batchnorm in ("Affine", "NoAffine")
        bn = norm(out_channels, eps=eps, momentum=momentum, affine=batchnorm == "Affine") if norms else None
        step = stride or (3 if self.dims == 1 else 1)
        operator: nn.Module | None = None
        if kernel_size is not None and op == "ConvTranspose2d":
            operator = nn.ConvTranspose2d(
                in_channels, out_channels, kernel_size, step, padding, 1, groups, bias, dilation
            )
        elif kernel_size is not None:
            kind = (nn.Conv1d, nn.Conv2d)[self.dims - 1]
            operator = kind(in_channels, out_channels, kernel_size, step, padding, dilation, groups, bias)
        bits = (weight_bits, bias_bits, quantize_activation)
        super().__init__(pooling, activation, wide, *bits, pool, operator, bn)


class Conv2d(_Conv):
    """A convolution over two axes."""


class Conv1d(_Conv):
    """A convolution over one axis."""

    dims = 1


def _fused(name: str, base: type[_Conv], **preset: Any) -> type[_Conv]:
    """Returns a layer with some arguments chosen by its name; a batch norm that it names is affine unless stated."""

    def __init__(self: Any, *arguments: Any, **keywords: Any) -> None:
        norm = {"batchnorm": keywords.pop("batchnorm", "Affine")} if "BN" in name else {}
        groups = {"groups": arguments[0]} if "Depthwise" in name else {}
        base.__init__(self, *arguments, **{**preset, **norm, **groups, **keywords})

    return type(name, (base,), {"__init__": __init__, "__doc__": f"{name}, as ai8x-training names it."})


for _base, _kind in ((Conv1d, "Conv1d"), (Conv2d, "Conv2d"), (Conv2d, "ConvTranspose2d")):
    for _pool, _depth, _norm, _activation in itertools.product(
        ("", "Max", "Avg"), ("", "Depthwise"), ("", "BN"), ("", "ReLU", "Abs")
    ):
        _preset = {"op": _kind} if _kind == "ConvTranspose2d" else {}
        _preset |= {"pooling": _pool} if _pool else {}
        _preset |= {"activation": _activation} if _activation else {}
        _plain = not (_pool or _norm or _activation)
        _name = f"{'' if _plain else 'Fused'}{_pool and f'{_pool}Pool'}{_depth}{_kind}{_norm}{_activation}"
        if _name not in ("Conv1d", "Conv2d"):
            globals()[_name] = _fused(_name, _base, **_preset)


def _window(name: str, base: type[_Conv], pooling: str) -> type[_Conv]:
    def __init__(self: Any, kernel_size: Any, stride: Any = None, padding: int = 0, **keywords: Any) -> None:
        if padding:
            raise ValueError(f"{name}: a window has no padding on this accelerator")
        base.__init__(self, 0, 0, None, pooling=pooling, pool_size=kernel_size, pool_stride=stride, **keywords)

    return type(name, (base,), {"__init__": __init__, "__doc__": f"{name}, as ai8x-training names it."})


MaxPool2d, AvgPool2d = _window("MaxPool2d", Conv2d, "Max"), _window("AvgPool2d", Conv2d, "Avg")
MaxPool1d, AvgPool1d = _window("MaxPool1d", Conv1d, "Max"), _window("AvgPool1d", Conv1d, "Avg")


class Linear(QuantizationAwareModule):
    """A fully connected layer."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        pooling: str | None = None,
        bias: bool | None = None,
        activation: str | None = None,
        wide: bool = False,
        batchnorm: str | None = None,
        weight_bits: int | None = None,
        bias_bits: int | None = None,
        quantize_activation: bool = False,
    ) -> None:
        if pooling is not None or batchnorm is not None:
            raise ValueError("a Linear layer has neither a window nor a batch norm")
        op = nn.Linear(in_features, out_features, bool(bias))
        super().__init__(None, activation, wide, weight_bits, bias_bits, quantize_activation, None, op)


class FusedLinearReLU(Linear):
    """A fully connected layer with ReLU."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **{**keywords, "activation": "ReLU"})


class FusedLinearAbs(Linear):
    """A fully connected layer with Abs."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **{**keywords, "activation": "Abs"})


class Eltwise(nn.Module):
    """An operation on tensors, element by element, and the clamp; a newer version trains without the clamp."""

    newer = False

    def fit_checkpoint(self, figures: Mapping[str, Tensor]) -> None:
        """Takes the figure that a newer version keeps."""
        if "activation_threshold" in figures:
            self.newer = True
            self.register_parameter("activation_threshold", nn.Parameter(torch.tensor(0.0), False))

    def combine(self, a: Tensor, b: Tensor) -> Tensor:
        """Returns two tensors as one."""
        raise NotImplementedError

    def forward(self, *x: Tensor) -> Tensor:
        """Returns all tensors as one."""
        total = x[0]
        for each in x[1:]:
            total = self.combine(total, each)
        return total if self.newer else total.clamp(-1.0, HIGHEST)


class Add(Eltwise):
    """The sum."""

    def combine(self, a: Tensor, b: Tensor) -> Tensor:
        """Returns the sum of two tensors."""
        return a + b


class Sub(Eltwise):
    """The first less all others."""

    def combine(self, a: Tensor, b: Tensor) -> Tensor:
        """Returns the difference of two tensors."""
        return a - b


class Empty(nn.Module):
    """Nothing."""

    def forward(self, x: Tensor) -> Tensor:
        """Returns its input."""
        return x


def update_model(m: nn.Module) -> None:
    """Does nothing: these layers read what a checkpoint says when they run."""


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    raise ImportError(
        f"anynpu's stand-in for ai8x has no {name}: set AI8X_TRAIN_PATH to a clone of ai8x-training", name="ai8x"
    )
