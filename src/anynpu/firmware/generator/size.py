"""How much flash a model is expected to take: its constants, and the code of its kernels, each once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from anynpu.firmware.generator.layer import Constant, Layer

CODE_BYTES: Mapping[str, int] = {
    "add_dsp_s16": 146,
    "add_dsp_s8": 146,
    "add_mve_s16": 436,
    "add_mve_s8": 460,
    "add_s16": 330,
    "add_s8": 302,
    "average_pool_mve_s8": 568,
    "average_pool_s8": 296,
    "clamp_s8": 40,
    "conv_any_s8": 432,
    "conv_dsp_s16": 796,
    "conv_dsp_s8": 1252,
    "conv_mve_s16": 928,
    "conv_mve_s8": 1710,
    "conv_s16": 784,
    "conv_s8": 1022,
    "dense_dsp_s8": 374,
    "dense_mve_s8": 274,
    "dense_s8": 474,
    "depthwise_dsp_s16": 720,
    "depthwise_dsp_s8": 1132,
    "depthwise_mve_s16": 736,
    "depthwise_mve_s8": 1400,
    "depthwise_s8": 1248,
    "max_pool_mve_s8": 300,
    "max_pool_s8": 246,
    "mean_mve_s16": 240,
    "mean_mve_s8": 234,
    "mean_rows_mve_s8": 224,
    "mean_s16": 252,
    "mean_s8": 252,
    "mul_mve_s16": 368,
    "mul_mve_s8": 392,
    "mul_s16": 290,
    "mul_s8": 246,
    "pointwise_dsp_s16": 446,
    "pointwise_dsp_s8": 664,
    "pointwise_mve_s16": 632,
    "pointwise_mve_s8": 1060,
    "pointwise_s8": 578,
    "softmax_mve_s8": 572,
    "softmax_s8": 456,
    "table_mve_u8": 92,
    "table_u8": 34,
}
"""Of each kernel that has another for the same layer: gcc 12, -Os, Cortex-M55, the kernel with all its parts."""


def flash_bytes(layers: Sequence[Layer]) -> int:
    """Returns the flash that layers are expected to take, without kernels that have no other."""
    calls = [call for layer in layers for call in layer.calls]
    constants = sum(v.bytes for call in calls for v in call.params.values() if isinstance(v, Constant))
    return constants + sum(CODE_BYTES.get(kernel, 0) for kernel in {call.kernel for call in calls})


def smallest(forms: Sequence[Sequence[Layer]]) -> list[Layer]:
    """Returns one of each layer's forms, of which the first is plain, so that together they take little flash.

    Layers of one operator change together, since they share their code; it goes on as long as a change saves something.
    """
    layers = [options[0] for options in forms]
    changes = {(option.variant, option.node.kind) for options in forms for option in options}
    least, before = flash_bytes(layers), -1
    while least != before:
        before = least
        for variant, kind in sorted(changes):
            trial = [
                next((o for o in options if o.variant == variant and o.node.kind == kind), layer)
                for layer, options in zip(layers, forms, strict=True)
            ]
            if flash_bytes(trial) < least:
                layers, least = trial, flash_bytes(trial)
    return [replace(layer, roomy=None) for layer in layers]
