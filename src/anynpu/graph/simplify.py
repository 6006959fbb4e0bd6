"""Simplifies a model without changing what it computes, tried on one input; the import proves it on the samples.

onnxsim does it where it is installed; otherwise passes of onnx-ir and our own folding do.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, ValueInfoProto, numpy_helper

from anynpu import tool
from anynpu.artifact import PassEffect
from anynpu.errors import IntegrityError, ToolFailed
from anynpu.foreign import ONNX, mapped
from anynpu.graph import passes
from anynpu.graph.agreement import Feeds, executed
from anynpu.graph.batch_norm import BATCH_NORM
from anynpu.graph.fold import copied, fold_constants, names_read, same_nodes, static_shapes
from anynpu.graph.passes import Pass
from anynpu.graph.run import random_feeds
from anynpu.graph.shapes import dtype_of, infer, shape_of
from anynpu.graph.versions import tool_versions
from anynpu.tool import hide_packages

_LOG = logging.getLogger(__name__)
_TIMEOUT_S = 600
_ROUNDS = 8


def simplify(model: ModelProto, feeds: Sequence[Feeds] = ()) -> tuple[ModelProto, tuple[PassEffect, ...]]:
    """Returns an equal model with fewer nodes, constants folded, dead and idle nodes gone, and what each pass did.

    It is compared with the given one on `feeds`, or on random numbers where there are none.
    """
    compare = executed(feeds or [random_feeds(model, seed=0)])
    simpler, effects = _with_fewer_nodes(model, compare)
    simpler, folded = passes.run([BATCH_NORM], simpler, compare)
    simpler, whole = passes.run([EMPTY], simpler, compare)
    effects += tuple(effect for effect in (*folded, *whole) if effect.changed or effect.dropped)
    if any(map(_is_endless, simpler.graph.initializer)):
        simpler, finite = passes.run([FINITE], simpler, compare)
        effects += finite
    return simpler, effects


def _with_fewer_nodes(
    model: ModelProto, compare: passes.Compare[ModelProto]
) -> tuple[ModelProto, tuple[PassEffect, ...]]:
    """Returns what onnxsim makes of the model, or our own passes where it fails."""

    def same_border(simpler: ModelProto) -> str:
        if {node.domain for node in simpler.graph.node} - {node.domain for node in model.graph.node}:
            return "it writes operators of other domains"
        return "" if _same_border(model, simpler) else "it changes the inputs or outputs"

    onnxsim = Pass("onnxsim", "constants are folded, dead and idle nodes go", _by_onnxsim, ensures=same_border)
    effects: tuple[PassEffect, ...] = ()
    if "onnxsim" in tool_versions():
        simpler, effects = passes.run([onnxsim], model, compare)
        if effects[0].changed:
            return simpler, effects
        if effects[0].dropped:
            _LOG.warning("onnxsim is left out, %s; the passes of onnx-ir simplify this model", effects[0].dropped)
    simpler, own = passes.run(OWN_PASSES, model, compare)
    if not _same_border(model, simpler):
        raise IntegrityError("simplification changed the inputs or outputs of the model", "report this model")
    return simpler, (*effects, *own)


def _by_onnxsim(model: ModelProto) -> tuple[ModelProto, int]:
    """Returns what onnxsim makes of the model; it dies on some models, so it runs apart."""
    with tempfile.TemporaryDirectory(prefix="anynpu-simplify-") as folder:
        scratch = Path(folder)
        source, result = scratch / "in.onnx", scratch / "out.onnx"
        source.write_bytes(model.SerializeToString())
        try:
            tool.call(
                "anynpu.graph.simplify:run_onnxsim",
                {"source": str(source), "result": str(result)},
                scratch=scratch,
                log=scratch / "log",
                timeout_s=_TIMEOUT_S,
            )
            simpler = ModelProto()
            simpler.ParseFromString(result.read_bytes())
            return simpler, 1
        except (ToolFailed, OSError) as error:
            _LOG.warning("onnxsim failed (%s); the passes of onnx-ir simplify this model instead", error)
            return model, 0


def run_onnxsim(source: str, result: str) -> bool:
    """Simplifies one file into another with onnxsim and returns whether its own check passed."""
    # onnxsim imports these only for checks and tables we do not use; without them it starts in a tenth of the time.
    hide_packages("torch", "sympy", "rich")
    import onnxsim

    # An attention fused into an operator of ONNX Runtime has no shape that ONNX infers, and no rule.
    simpler, passed = onnxsim.simplify(onnx.load(source), skipped_optimizers=["fuse_attention"])
    Path(result).write_bytes(simpler.SerializeToString())
    return bool(passed)


def _without_dropout(model: ModelProto) -> tuple[ModelProto, int]:
    result, changed = copied(model), 0
    read = {name for node in result.graph.node for name in node.input} | {v.name for v in result.graph.output}
    for node in result.graph.node:
        mask_read = any(name in read for name in node.output[1:])
        if node.op_type != "Dropout" or node.domain or len(node.input) > 2 or mask_read:
            continue
        node.op_type = "Identity"
        del node.input[1:], node.output[1:], node.attribute[:]
        changed += 1
    return result, changed


def _folded(model: ModelProto) -> tuple[ModelProto, int]:
    rounds = 0
    for _ in range(_ROUNDS):
        # Lenient on purpose: what inference cannot tell stays unfolded, and the equality check has the last word.
        folded = fold_constants(infer(model, strict=False))
        if same_nodes(folded, model):
            return folded, max(rounds, 1)  # shapes are inferred, at least
        model, rounds = folded, rounds + 1
    return model, rounds


def _tidied(model: ModelProto) -> tuple[ModelProto, int]:
    import onnx_ir
    from onnx_ir.passes import Sequential, common

    with mapped(ONNX, "the model cannot be simplified", hint="export the model again"):
        result = Sequential(
            common.InlinePass(),
            common.IdentityEliminationPass(),
            common.CommonSubexpressionEliminationPass(),
            common.RemoveUnusedNodesPass(),
            common.RemoveUnusedFunctionsPass(),  # type: ignore[no-untyped-call]
            common.RemoveUnusedOpsetsPass(),
        )(onnx_ir.from_proto(model))
        return onnx_ir.to_proto(result.model), int(result.modified)


def _is_endless(tensor: onnx.TensorProto) -> bool:
    kinds = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
    return tensor.data_type in kinds and bool(np.isinf(numpy_helper.to_array(tensor)).any())


def _without_infinities(model: ModelProto) -> tuple[ModelProto, int]:
    result, changed = copied(model), 0
    for tensor in result.graph.initializer:
        if _is_endless(tensor):
            finite = np.nan_to_num(numpy_helper.to_array(tensor), nan=np.nan)
            tensor.CopyFrom(numpy_helper.from_array(finite, tensor.name))
            changed += 1
    return result, changed


def _without_empty_pieces(model: ModelProto) -> tuple[ModelProto, int]:
    result, changed = infer(model, strict=False), 0
    empty = {name for name, shape in static_shapes(result.graph).items() if 0 in shape}
    for node in result.graph.node:
        pieces = [name for name in node.input if name not in empty]
        if node.op_type == "Concat" and 0 < len(pieces) < len(node.input):
            del node.input[:]
            node.input.extend(pieces)
            changed += 1
    while changed:
        read = {value.name for value in result.graph.output}.union(*map(names_read, result.graph.node))
        idle = [node for node in result.graph.node if not read & set(node.output)]
        if not idle:
            break
        for node in idle:
            result.graph.node.remove(node)
    return result, changed


EMPTY = Pass("empty-pieces", "pieces without elements leave the concatenations that read them", _without_empty_pieces)
FINITE = Pass(
    "finite-masks", "infinite constants, which have no range, become the largest numbers", _without_infinities
)
OWN_PASSES = (
    Pass("dropout", "Dropout becomes Identity, which it is outside training", _without_dropout),
    Pass("fold", "what depends on constants and known shapes alone is computed", _folded),
    Pass("tidy", "functions are written out; idle, repeated and unused nodes go", _tidied),
)


def _same_border(model: ModelProto, simpler: ModelProto) -> bool:
    before, after = model.graph, simpler.graph
    stored = {tensor.name for tensor in before.initializer}
    wanted = [_signature(value) for value in before.input if value.name not in stored]
    stored = {tensor.name for tensor in after.initializer}
    inputs = [_signature(value) for value in after.input if value.name not in stored]
    # Inference may settle an output dimension that the file left open; it may not change a known one.
    pairs = zip(before.output, after.output, strict=False)
    outputs_agree = len(before.output) == len(after.output) and all(_agrees(old, new) for old, new in pairs)
    return wanted == inputs and outputs_agree


def _signature(value: ValueInfoProto) -> tuple[Any, ...]:
    return value.name, dtype_of(value), shape_of(value)


def _agrees(old: ValueInfoProto, new: ValueInfoProto) -> bool:
    if old.name != new.name or dtype_of(old) != dtype_of(new):
        return False
    if not old.type.tensor_type.HasField("shape"):
        return True
    a, b = shape_of(old), shape_of(new)
    return len(a) == len(b) and all(x == y or isinstance(x, str) for x, y in zip(a, b, strict=True))
