"""Training and the accelerator: how a compiled network rounds, and the integers that a trained one must get."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from anynpu.artifact import Artifact
from anynpu.errors import IntegrityError
from anynpu.runtime.ai8x import INPUT, read_network
from anynpu.schema import JsonObject
from anynpu.targets.ai8x.blocks import Block, Blocks
from anynpu.targets.ai8x.scales import Integers, Quantised
from anynpu.tensors import Array
from anynpu.training.scheme import Folded, Fractions, Rounding, Scheme, WeightRounding


def names(block: Block, layer: Quantised) -> JsonObject:
    """Returns what a layer's tensors are called in the float model, for the manifest."""
    own_bias = block.own_bias and layer.rest is None
    return {
        "tensor": block.tensor,
        "sum": block.sum,
        "window": block.window,
        "parameters": block.key if block.weight is not None else "",
        "own_bias": own_bias,
    }


def forms(compiled: Artifact) -> tuple[dict[str, Rounding], dict[str, tuple[WeightRounding, Array]]]:
    """Returns how a compiled network rounds; its scales are bound to one another by shifts, so that none is free."""
    network, parameters = read_network(compiled.path)
    form = compiled.manifest.inputs[0].quantization
    assert form is not None
    scales, centre = {INPUT: form.scale[0]}, -form.zero_point[0] * form.scale[0]
    rounded = {compiled.manifest.inputs[0].name: _eight_bits(form.scale[0], form.zero_point[0], "even")}
    weights = {}
    for number, (layer, stated) in enumerate(zip(network.layers, compiled.manifest.details["layers"], strict=True)):
        incoming, scales[number] = scales[layer.sources[0]], stated["scale"]
        if stated["sum"]:
            rounded[stated["sum"]] = _eight_bits(incoming)
        if layer.width == 8:
            rounded.setdefault(stated["tensor"], _eight_bits(stated["scale"]))
        if stated["window"]:
            whole = network.round_averages and layer.operation != "conv1d"
            rounded[stated["window"]] = _eight_bits(incoming, fractions="up" if whole else "cut")
        if not (name := stated["parameters"]):
            continue
        step = (
            stated["scale"] / incoming if layer.width == 32 else stated["scale"] * 2.0**layer.shift / (128 * incoming)
        )
        most = 2 ** (layer.bits - 1)
        rounding = WeightRounding(-most, most - 1, (step,), None, f"{name}/weights", fixed=True)
        weights[rounding.tensor] = rounding, parameters[f"weight{number}"]
        if stated["sum"]:
            gain = step * float(parameters[f"weight{number}"][0, 0, 0, 0])
            rounded[stated["tensor"]] = replace(rounded[stated["tensor"]], gain=gain)
        if stated["own_bias"]:
            # Which weights these are, and their axis, the float model says.
            folded = Folded("", 0, centre) if centre and layer.sources[0] == INPUT else None
            bias = WeightRounding(-128, 127, (128 * incoming * step,), None, f"{name}/biases", True, folded)
            weights[bias.tensor] = bias, parameters[f"bias{number}"]
    return rounded, weights


def _eight_bits(scale: float, zero_point: int = 0, fractions: Fractions = "up") -> Rounding:
    return Rounding(-128, 127, scale, zero_point, False, fractions)


def widths(blocks: Blocks, scheme: Scheme) -> tuple[int, ...]:
    """Returns the bits of every layer's weights as they were in training."""
    held = _weights(scheme)
    return tuple(8 if block.weight is None else _rounding(held, block).bits for block in blocks.blocks)


def integers(blocks: Blocks, scheme: Scheme, last_width: int, biased: int) -> Integers:
    """Returns a trained network in integers, under the scales that it was trained with."""
    held, tensors = _weights(scheme), {**scheme.activations, **scheme.others}
    first = tensors[blocks.tensor]
    centre = -first.zero_point * first.scale
    scales, layers = {INPUT: first.scale}, list[Quantised]()
    for number, block in enumerate(blocks.blocks):
        incoming = scales[block.sources[0]]
        if block.weight is None:
            layer = Quantised(None, None, 0, incoming)
        else:
            rounding = _rounding(held, block)
            wide = last_width == 32 and number == len(blocks.blocks) - 1
            scale = rounding.scale[0] * incoming if wide else tensors[block.tensor].scale
            assert block.bias is not None
            shift = 0 if wide else round(math.log2(rounding.scale[0] * 128 * incoming / scale))
            step = scale / incoming if wide else scale * 2.0**shift / (128 * incoming)
            weight = np.clip(np.rint(block.weight / step), rounding.low, rounding.high)
            zero = centre if block.sources[0] == INPUT else 0.0
            real = block.bias + zero * step * weight.reshape(len(weight), -1).sum(axis=1)
            bias = np.clip(np.rint(real / (128 * incoming * step)), -128, 127)
            bare = wide and block.output[0] > biased  # biases that do not fit are the processor's
            stored = weight.astype(np.int64), (np.zeros_like(bias) if bare else bias).astype(np.int64)
            layer = Quantised(*stored, shift, scale, real if bare else None)
        scales[number] = layer.scale
        layers.append(layer)
    return Integers(layers, first.scale, centre)


def _weights(scheme: Scheme) -> dict[str, WeightRounding]:
    return {each.tensor: each for each in (*scheme.weights.values(), *scheme.added.values())}


def _rounding(held: dict[str, WeightRounding], block: Block) -> WeightRounding:
    rounding = held.get(f"{block.key}/weights")
    if rounding is None:
        raise IntegrityError(
            f"training: the layer {block.name} of the trained model has no counterpart in the untrained one",
            "leave --qat out, and report this model",
        )
    return rounding
