"""ONNX graphs as torch modules, exact and static, for training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from anynpu.errors import Unsupported

if TYPE_CHECKING:
    import torch

OPSETS = range(11, 22)


def operator_sentences() -> dict[str, str]:
    """Returns what the importer does with each ONNX operator, one sentence each."""
    from anynpu.source.onnx_torch import (  # noqa: F401  (importing a theme registers its operators)
        activation,
        constant,
        convolution,
        elementwise,
        gather,
        linear,
        normalization,
        pooling,
        reduction,
        resize,
        shape,
    )
    from anynpu.source.onnx_torch.table import OPERATORS

    return {name: (handler.__doc__ or "").strip() for name, handler in OPERATORS.items()}


def import_model(model: onnx.ModelProto) -> torch.nn.Module:
    """Returns a torch module that computes what a static ONNX model does, with its weights as parameters.

    `meta["inputs"]` and `meta["outputs"]` of the module hold the ONNX names in the order of its arguments and results,
    `meta["tensors"]` the fx node of each ONNX tensor, `meta["attributes"]` the attribute of each stored one.
    Whatever cannot be imported exactly raises Unsupported with one finding for each such node.
    """
    operator_sentences()
    from anynpu.source.onnx_torch.build import Builder

    version = next((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), 0)
    if version not in OPSETS:
        raise Unsupported(
            f"the ONNX model uses opset {version}; opsets {OPSETS[0]} to {OPSETS[-1]} are supported",
            hint="export it again with opset 18, or convert it with onnx.version_converter",
        )
    opset = int(version)
    if model.functions:
        from onnx import inliner

        model = inliner.inline_local_functions(model)
    builder = Builder(model, opset)
    module = builder.run()
    if module is None:
        count = len(builder.findings)
        first = builder.findings[0]
        more = f" and {count - 1} more" if count > 1 else ""
        raise Unsupported(
            f"the ONNX model cannot be imported exactly: {first}{more}",
            builder.findings,
            "change these operators in the model, or simplify it first",
        )
    return module
