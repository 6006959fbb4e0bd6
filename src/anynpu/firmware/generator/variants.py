"""Kernels for what a core can do beyond plain C, chosen layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from anynpu.firmware.generator import dsp, mve, mve_values, short, tables
from anynpu.firmware.generator.cost import expected
from anynpu.firmware.generator.graph import Graph, Node
from anynpu.firmware.generator.layer import Emitter, Layer, VariantEmitter
from anynpu.firmware.generator.size import smallest

SURE = 0.95
"""What share of plain C's instructions a variant may take at most, as far as they can be expected."""

EXTENSIONS = {"dsp": "the DSP extension (SMLAD)", "mve": "Helium (MVE)"}
"""What a core may have, in the order of preference where a model is forced to use one."""

TABLES: Mapping[str, Emitter] = {
    "ABS": tables.absolute,
    "HARD_SWISH": tables.hard_swish,
    "LEAKY_RELU": tables.leaky_relu,
    "LOGISTIC": tables.logistic,
    "QUANTIZE": tables.quantize,
    "RELU": tables.relu,
    "RELU6": tables.relu6,
    "RSQRT": tables.rsqrt,
    "TABLE": tables.table,
    "TANH": tables.tanh,
}
"""Operators that are a table of bytes, where they take and make 8 bits."""

EMITTERS: Mapping[str, Mapping[str, VariantEmitter]] = {
    "dsp": {
        "ADD": dsp.add,
        "CONV_2D": dsp.conv_2d,
        "DEPTHWISE_CONV_2D": dsp.depthwise_conv_2d,
        "FULLY_CONNECTED": dsp.fully_connected,
        "SUB": dsp.add,
    },
    "mve": {
        "ADD": mve_values.add,
        "AVERAGE_POOL_2D": mve_values.average_pool_2d,
        "CONV_2D": mve.conv_2d,
        "DEPTHWISE_CONV_2D": mve.depthwise_conv_2d,
        "FULLY_CONNECTED": mve.fully_connected,
        "MAX_POOL_2D": mve_values.max_pool_2d,
        "MEAN": mve_values.mean,
        "MUL": mve_values.mul,
        "SOFTMAX": mve_values.softmax,
        "SUB": mve_values.add,
        "SUM": mve_values.mean,
        **{kind: mve_values.table(emitter) for kind, emitter in TABLES.items()},
    },
}


WIDE_EMITTERS: Mapping[str, Mapping[str, VariantEmitter]] = {
    form.extension: {
        "ADD": values.add,
        "CONV_2D": short.conv_2d(form),
        "DEPTHWISE_CONV_2D": short.depthwise_conv_2d(form),
        "FULLY_CONNECTED": short.fully_connected(form),
        "SUB": values.add,
        **more,
    }
    for form, values, more in (
        (short.DSP, dsp, {}),
        (short.MVE, mve_values, {"MEAN": mve_values.mean, "MUL": mve_values.mul, "SUM": mve_values.mean}),
    )
}
"""The same for 16-bit activations."""


@dataclass(frozen=True)
class Core:
    """What the kernels may use beyond plain C, and what they are chosen for: few instructions, or little flash."""

    extensions: tuple[str, ...] = ()
    forced: bool = False
    """Uses them wherever there is a kernel, whether it pays or not."""
    small: bool = False


PLAIN = Core()


def variants(graph: Graph, node: Node, core: Core, fixed: frozenset[int]) -> list[Layer]:
    """Returns the layer as each extension of the core can make it; tensors in `fixed` are constants."""
    emitters = {"int8": EMITTERS, "int16": WIDE_EMITTERS}.get(graph.input(node, 0).dtype, {})
    layers = []
    for extension in core.extensions:
        emitter = emitters.get(extension, {}).get(node.kind)
        layer = emitter(graph, node) if emitter else None
        # A constant lies in flash, where nothing is known of what is behind it.
        if layer and not (layer.reads_past and node.inputs[0] in fixed):
            better = layer.roomy and (expected(layer.roomy) or 0) < (expected(layer) or 0)
            roomy = replace(layer.roomy, variant=extension) if layer.roomy and better else None
            layers.append(replace(layer, variant=extension, roomy=roomy))
    return layers


def choose(forms: Sequence[Sequence[Layer]], core: Core) -> list[Layer]:
    """Returns the layers to generate, of the forms that each can have; the first is plain."""
    if core.small and not core.forced:
        return [_beside(layer, expected(options[0])) for layer, options in zip(smallest(forms), forms, strict=True)]
    return [_fastest(plain, others, core) for plain, *others in forms]


def _fastest(plain: Layer, others: Sequence[Layer], core: Core) -> Layer:
    """Returns the layer that is expected to take fewest instructions; a variant must save more than the model errs."""
    cost = expected(plain)
    if core.forced and others:
        return _beside(others[-1], cost)
    counts = {index: count for index, layer in enumerate(others) if (count := expected(layer)) is not None}
    if cost is None or not counts:
        return plain
    best = min(counts, key=counts.__getitem__)
    return _beside(others[best], cost) if counts[best] < SURE * cost else plain


def _beside(layer: Layer, plain: int | None) -> Layer:
    """Returns a layer, and its roomier form, that knows what plain kernels would take."""
    if layer.variant == "plain":
        return layer
    roomy = replace(layer.roomy, plain_instructions=plain) if layer.roomy else None
    return replace(layer, plain_instructions=plain, roomy=roomy)
