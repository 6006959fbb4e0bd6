"""Operators that ONNX Runtime fuses when it optimises a model (domain com.microsoft), in ONNX's own operators.

Those of scikit-learn that are plain arithmetic (graph/linear.py) are written out with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper

from anynpu.graph import linear
from anynpu.graph.fold import copied, with_nodes
from anynpu.graph.opset import SKLEARN, opset_of
from anynpu.graph.writer import Writer

DOMAIN = "com.microsoft"
_ACTIVATION_SETTINGS = {
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
    "Elu": ("alpha",),
}


def is_fused(node: NodeProto) -> bool:
    """Tells whether an operator of another domain is one that is written out here."""
    if node.domain == SKLEARN:
        return linear.is_plain(node)
    if node.op_type == "SimplifiedLayerNormalization":  # ONNX Runtime has it in ONNX's own domain
        return True
    batches = any(each.name in ("transBatchA", "transBatchB") and each.i for each in node.attribute)
    return node.domain == DOMAIN and node.op_type in RULES and not batches


def written_out(model: ModelProto) -> tuple[ModelProto, tuple[str, ...]]:
    """Returns the model with ONNX Runtime's fused operators in ONNX's own, and a note of their kinds."""
    fused = [node for node in model.graph.node if is_fused(node)]
    if not fused:
        return model, ()
    result, nodes = copied(model), list[NodeProto]()
    for node in model.graph.node:
        if not is_fused(node):
            nodes.append(node)
            continue
        at = Writer(node, result, opset_of(model))
        (linear.RULES if node.domain == SKLEARN else RULES)[node.op_type](at)
        nodes += at.nodes
    kinds = ", ".join(sorted({node.op_type for node in fused}))
    return with_nodes(result, nodes), (
        f"{len(fused)} operator(s) of ONNX Runtime or scikit-learn are written in ONNX's own: {kinds}",
    )


def _kept(at: Writer, *names: str) -> dict[str, Any]:
    """Returns the settings of the fused operator that the plain one has too."""
    return {each.name: helper.get_attribute_value(each) for each in at.node.attribute if each.name in names}


def _activated(at: Writer, kind: str, params: list[float], tensor: str) -> None:
    """Writes the activation that was fused behind an operator, or nothing, to the operator's result."""
    if not kind:
        at.renamed(at.result())
    elif kind == "Clip" and at.opset >= 11:
        at.emit("Clip", tensor, *(at.stored(each) for each in params), to=at.result())
    else:
        settings = dict(zip(_ACTIVATION_SETTINGS.get(kind, ()), params, strict=False))
        at.emit(kind, tensor, to=at.result(), **settings)


def conv(at: Writer) -> None:
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    tensor = at.emit("Conv", *(name for name in at.node.input[:3] if name), **_kept(at, *names))
    if at.input(3):
        tensor = at.emit("Add", tensor, at.input(3))
    _activated(at, at.get("activation", ""), list(at.get("activation_params", [])), tensor)


def gemm(at: Writer) -> None:
    tensor = at.emit("Gemm", *at.node.input, **_kept(at, "alpha", "beta", "transA", "transB"))
    params = [at.get(f"activation_{name}", None) for name in ("alpha", "beta", "gamma")]
    _activated(at, at.get("activation", ""), [each for each in params if each is not None], tensor)


def product(at: Writer) -> None:
    names = [at.input(0), at.input(1)]
    turned = [bool(at.get(name, 0)) for name in ("transA", "transB")]
    for place in (0, 1):
        array = at.array(names[place])
        if turned[place] and array is not None:
            names[place], turned[place] = at.stored(np.swapaxes(array, -1, -2), array.dtype.type), False
    if any(turned):
        left, right = "...ji" if turned[0] else "...ij", "...kj" if turned[1] else "...jk"
        tensor = at.emit("Einsum", *names, equation=f"{left},{right}->...ik")
    else:
        tensor = at.emit("MatMul", *names)
    if at.get("alpha", 1.0) != 1.0:
        at.emit("Mul", tensor, at.stored(at.get("alpha", 1.0)))
    at.renamed(at.result())


def gelu(at: Writer) -> None:
    tensor = at.emit("Add", at.input(0), at.input(1)) if at.input(1) else at.input(0)
    inner = at.emit("Erf", at.emit("Mul", tensor, at.stored(np.sqrt(0.5))))
    half = at.emit("Mul", tensor, at.stored(0.5))
    at.emit("Mul", half, at.emit("Add", inner, at.stored(1.0)), to=at.result())


def fast_gelu(at: Writer) -> None:
    tensor = at.emit("Add", at.input(0), at.input(1)) if at.input(1) else at.input(0)
    cube = at.emit("Mul", at.emit("Mul", tensor, tensor), tensor)
    inner = at.emit("Add", tensor, at.emit("Mul", cube, at.stored(0.044715)))
    bent = at.emit("Tanh", at.emit("Mul", inner, at.stored(np.sqrt(2 / np.pi))))
    half = at.emit("Mul", tensor, at.stored(0.5))
    at.emit("Mul", half, at.emit("Add", bent, at.stored(1.0)), to=at.result())


def quick_gelu(at: Writer) -> None:
    scaled = at.emit("Mul", at.input(0), at.stored(at.get("alpha", 1.702)))
    at.emit("Mul", at.input(0), at.emit("Sigmoid", scaled), to=at.result())


def _normalised(at: Writer, tensor: str, scale: str, shift: str, centred: bool) -> None:
    """Writes a layer norm over the last axis, or one of roots of mean squares, to the operator's result."""
    if centred:
        tensor = at.emit("Sub", tensor, at.reduced("ReduceMean", tensor))
    spread = at.reduced("ReduceMean", at.emit("Mul", tensor, tensor))
    root = at.emit("Sqrt", at.emit("Add", spread, at.stored(at.get("epsilon", 1e-5 if not centred else 1e-12))))
    at.emit("Mul", at.emit("Div", tensor, root), scale)
    if shift:
        at.emit("Add", at.nodes[-1].output[0], shift)
    at.renamed(at.result())


def simple_norm(at: Writer) -> None:
    _normalised(at, at.input(0), at.input(1), "", centred=False)


def skip_norm(at: Writer) -> None:
    plain = at.node.op_type == "SkipLayerNormalization"
    bias = at.input(4 if plain else 3)
    total = at.emit("Add", at.input(0), at.input(1))
    total = at.emit("Add", total, bias) if bias else total
    if at.result(3):
        total = at.emit("Identity", total, to=at.result(3))
    _normalised(at, total, at.input(2), at.input(3) if plain else "", centred=plain)


RULES: dict[str, Callable[[Writer], None]] = {
    "FusedConv": conv,
    "FusedGemm": gemm,
    "FusedMatMul": product,
    "TransposeMatMul": product,
    "Gelu": gelu,
    "BiasGelu": gelu,
    "FastGelu": fast_gelu,
    "QuickGelu": quick_gelu,
    "SimplifiedLayerNormalization": simple_norm,
    "SkipLayerNormalization": skip_norm,
    "SkipSimplifiedLayerNormalization": skip_norm,
}
"""What writes each fused operator out."""
