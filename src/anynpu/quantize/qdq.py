"""QDQ ONNX emitter: our ranges and plan, written by onnxruntime's own quantiser.

Inputs and outputs stay float in a QDQ model, whatever the plan says of them: the integers begin behind the first
QuantizeLinear and end before the last DequantizeLinear.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx

from anynpu.artifact import PassEffect
from anynpu.errors import ToolFailed
from anynpu.foreign import quantising
from anynpu.graph import passes
from anynpu.graph.attributes import attribute
from anynpu.graph.fold import copied, fold_constants
from anynpu.graph.functions import is_function, written_out
from anynpu.graph.idle import without_idle
from anynpu.graph.opset import STANDARD, converted
from anynpu.graph.passes import Pass
from anynpu.graph.shapes import infer
from anynpu.graph.simplify import without_infinities
from anynpu.quantize.adequacy import calibration
from anynpu.quantize.averages import averages
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.fixed import NOTHING, Fixed, FixedWeights, Stated, read_stated
from anynpu.quantize.functions import followers
from anynpu.quantize.headroom import with_room
from anynpu.quantize.measured import Place, measured
from anynpu.quantize.most_samples import kept_by_most
from anynpu.quantize.onnx_net import OnnxForm, net_of
from anynpu.quantize.padding import find_padding
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.qdq_pieces import QdqPieces
from anynpu.quantize.qdq_record import described, quantizable
from anynpu.quantize.ranges import Progress, Range, planned_form
from anynpu.quantize.rectifiers import Rectifiers, put_back
from anynpu.quantize.repairs import rounded
from anynpu.quantize.sightings import Calibrated, calibrated
from anynpu.quantize.silu import merge_silu
from anynpu.quantize.weights import planned_scales
from anynpu.quantize.whole import before_rectifiers, left_in_float, whole_operators, without_rounding
from anynpu.records.calibration import Calibration
from anynpu.records.quantisation import Emitter, Origin, Quantisation
from anynpu.tensors import Array

# Per-channel QuantizeLinear begins here.
_OPSET = 13
_COMPUTED_WHOLE = ("RMSNormalization", "RotaryEmbedding")
"""Operators of later opsets that ONNX Runtime computes in floating point, with no rounding inside."""
_PLAIN_OPSET = 20
_BYTES = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)


@dataclass(frozen=True)
class Dialect:
    """How a runtime wants its pairs: what writes them for ranges, and which tensors it hands on without rounding."""

    emitter: Emitter
    emitted: Callable[
        [onnx.ModelProto, Mapping[str, Range], QuantPlan, Fixed], tuple[onnx.ModelProto, tuple[PassEffect, ...]]
    ]
    unrounded: Callable[[onnx.GraphProto, QuantPlan], frozenset[str]]


def write_qdq(
    model: onnx.ModelProto,
    data: Dataset,
    plan: QuantPlan,
    progress: Progress | None = None,
    report: Callable[[Calibration], None] | None = None,
    fixed: Fixed = NOTHING,
    effects: list[PassEffect] | None = None,
    keep: Callable[[Quantisation], None] | None = None,
) -> onnx.ModelProto:
    """Returns the model with QuantizeLinear and DequantizeLinear pairs as ONNX Runtime computes them; the arguments are
    those of `with_pairs`."""
    prepared = prepare(model)
    if plan.activations == "float32":
        return prepared
    return with_pairs(prepared, data, plan, ONNX_RUNTIME, progress, report, fixed, effects, keep)


@dataclass(frozen=True)
class Settled:
    """A float model with its repairs, the ranges of its tensors and where they come from, and pairs that carry them."""

    model: onnx.ModelProto
    ranges: Mapping[str, Range]
    origins: Mapping[str, Origin]
    plan: QuantPlan
    pairs: onnx.ModelProto
    effects: tuple[PassEffect, ...]
    stated: Stated | None = None
    automatic: Quantisation = field(default_factory=Quantisation)
    """What the pairs would hold if nothing was stated."""

    def check(self, quantisation: Quantisation) -> None:
        """Raises unless a quantisation holds what is stated."""
        if self.stated is not None:
            self.stated.check(quantisation, self.automatic)


def with_pairs(
    model: onnx.ModelProto,
    data: Dataset,
    plan: QuantPlan,
    dialect: Dialect,
    progress: Progress | None = None,
    report: Callable[[Calibration], None] | None = None,
    fixed: Fixed = NOTHING,
    effects: list[PassEffect] | None = None,
    keep: Callable[[Quantisation], None] | None = None,
) -> onnx.ModelProto:
    """Returns a prepared model with pairs that carry our ranges; `report` takes what the samples say of them, `effects`
    what each pass did, `keep` the quantisation; what is `fixed` holds."""
    settled = settle(model, data, plan, dialect, progress, report, fixed)
    if effects is not None:
        effects += settled.effects
    if keep is not None or settled.stated is not None:
        quantisation = described(settled.pairs, settled.ranges, settled.origins, settled.plan, dialect.emitter)
        settled.check(quantisation)
        if keep is not None:
            keep(quantisation)
    return settled.pairs


def settle(
    model: onnx.ModelProto,
    data: Dataset,
    plan: QuantPlan,
    dialect: Dialect,
    progress: Progress | None = None,
    report: Callable[[Calibration], None] | None = None,
    fixed: Fixed = NOTHING,
) -> Settled:
    """Returns a prepared model with its ranges, its repairs and its pairs; the arguments are those of `with_pairs`."""
    emitter = dialect.emitter
    stated, automatic = read_stated(plan.quantisation, emitter), Quantisation()
    form = OnnxForm(model)
    data = replace(data, padding=find_padding(form, data.inputs))
    first = model_ranges(form, data, plan, plan.equalize and plan.bits == 8 and fixed.repaired, progress, dialect)
    form, done, observed, ranges = first.form, first.effects, first.observed, first.ranges
    plan.check_tensors(ranges)
    if stated is not None:
        automatic = described(dialect.emitted(form.model, ranges, plan, fixed)[0], ranges, {}, plan, emitter)
        fixed = stated.over(fixed, form.net(), plan)
        plan = stated.planned(plan, {name: plan.stored_type(name) for name in ranges})
    ranges |= fixed.ranges
    if report is not None:
        report(calibration(observed, ranges, data))
    graph, names = form.model.graph, {node.output[0]: node.name for node in form.model.graph.node}
    unrounded = dialect.unrounded(graph, plan)
    corrected = fixed.repaired and plan.bias_correction
    exact = averages(form, data, plan, ranges, unrounded, first.sketch) if corrected else None
    if fixed.repaired:
        form, changes = rounded(form, data, plan, ranges, exact=exact)
        done = (*done, *changes)
    quantised, changes = dialect.emitted(form.model, ranges, plan, fixed)
    if exact is not None:

        def pieces(chosen: Sequence[Place], samples: Iterable[dict[str, Array]]) -> QdqPieces:
            return QdqPieces(quantised, names, ranges, plan, chosen, samples)

        form, effect = measured(form, exact.targets, pieces, data, unrounded)
        done = (*done, *effect)
        if effect[-1].changed:
            quantised, changes = dialect.emitted(form.model, ranges, plan, fixed)
    behind = followers(form.net()) if plan.method == "auto" else ()
    origins: dict[str, Origin] = {**dict.fromkeys(behind, "function"), **fixed.origins}
    return Settled(form.model, ranges, origins, plan, quantised, (*done, *changes), stated, automatic)


def _emitted(
    model: onnx.ModelProto, ranges: Mapping[str, Range], plan: QuantPlan, fixed: Fixed
) -> tuple[onnx.ModelProto, tuple[PassEffect, ...]]:
    """Returns a float model with pairs, and what the passes behind onnxruntime's quantiser did."""
    whole, floating = whole_operators(model.graph), left_in_float(model.graph, plan.float_tensors)
    unrounded = whole.unrounded | floating.unrounded
    fusing = (
        Pass("silu", "x * sigmoid(x) is rounded once, at its end", merge_silu, keeps_results=False),
        Pass(
            "whole-operators",
            "normalisations, softmax and functions are not rounded inside",
            lambda graph: without_rounding(graph, unrounded),
            keeps_results=False,
        ),
    )
    pairs = _quantized(copied(model), ranges, plan, whole.nodes | floating.nodes, fixed)
    quantised, effects = passes.run(fusing, pairs)
    _use_plain_opset(quantised)
    try:
        onnx.checker.check_model(quantised)
    except onnx.checker.ValidationError as error:
        raise ToolFailed(f"onnxruntime's quantiser wrote a model that is not valid: {error}") from error
    return quantised, effects


def _use_plain_opset(model: onnx.ModelProto) -> None:
    """States the last opset whose QuantizeLinear has its type from the zero point alone, where the operators are the
    same there.

    From the next one on, ONNX Runtime 1.31 moves it through Unsqueeze and others with a type that it then contradicts,
    and refuses the model.
    """
    entry = next((each for each in model.opset_import if each.domain in STANDARD), None)
    if entry is None or entry.version <= _PLAIN_OPSET:
        return
    narrow = {tensor.name for tensor in model.graph.initializer if tensor.data_type not in _BYTES}
    for node in (node for node in model.graph.node if node.domain in STANDARD):
        try:
            known = onnx.defs.get_schema(node.op_type, _PLAIN_OPSET).attributes
        except onnx.defs.SchemaError:
            return
        newer = any(item.name not in known for item in node.attribute) or node.op_type == "GroupNormalization"
        if newer or (node.op_type == "QuantizeLinear" and len(node.input) > 2 and node.input[2] in narrow):
            return
    entry.version = _PLAIN_OPSET


def _is_newer(node: onnx.NodeProto) -> bool:
    """Tells whether a later opset than that of plain QuantizeLinear has an operator, and defines it by others."""
    newer = is_function(node) and not onnx.defs.has(node.op_type, _PLAIN_OPSET, "")
    return newer and node.op_type not in _COMPUTED_WHOLE


def prepare(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a copy that the quantiser can take: a recent opset, known types, a name on every node."""
    copy = copied(model)
    opset = next((entry.version for entry in copy.opset_import if entry.domain in ("", "ai.onnx")), 0)
    if opset < _OPSET:
        copy = converted(copy, _OPSET)
    if any(map(_is_newer, copy.graph.node)):  # they would keep the opset from being stated lower
        plain = fold_constants(infer(written_out(infer(copy), _is_newer)))
        copy, _ = without_infinities(without_idle(infer(plain))[0])
    taken = {node.name for node in copy.graph.node}
    for number, node in enumerate(copy.graph.node):
        if not node.name:
            node.name = next(n for n in (f"{node.op_type}_{number}{'_' * i}" for i in range(99)) if n not in taken)
            taken.add(node.name)
    # Turns Constant nodes into initializers: the quantiser takes only these for weights
    for node in [node for node in copy.graph.node if node.op_type == "Constant" and node.attribute[0].name == "value"]:
        tensor = copy.graph.initializer.add()
        tensor.CopyFrom(node.attribute[0].t)
        tensor.name = node.output[0]
        copy.graph.node.remove(node)
    stored = {tensor.name: tensor for tensor in copy.graph.initializer}
    for node in copy.graph.node:
        bias = stored.get(node.input[2]) if node.op_type == "Gemm" and len(node.input) > 2 else None
        weights = stored.get(node.input[1]) if bias is not None else None
        if bias is None or weights is None or math.prod(bias.dims[:-1]) != 1:
            continue
        columns = weights.dims[0 if attribute(node, "transB", 0) else 1]
        if list(bias.dims) != [columns]:
            values = np.broadcast_to(onnx.numpy_helper.to_array(bias).reshape(-1), (columns,))
            node.input[2] = f"{node.name}/bias"
            copy.graph.initializer.append(onnx.numpy_helper.from_array(values, node.input[2]))
    return onnx.shape_inference.infer_shapes(copy, data_prop=True)


def rounded_everywhere(
    model: onnx.ModelProto, ranges: Mapping[str, Range], plan: QuantPlan, fixed: Fixed, keep_rectifiers: bool = False
) -> tuple[onnx.ModelProto, tuple[PassEffect, ...]]:
    """Returns a float model with pairs around every operator and the rectifier behind it, as most NPUs compute; with
    `keep_rectifiers` these stay where the ends of the integers do what they do."""
    unrounded = before_rectifiers(model.graph)
    return without_rounding(_quantized(copied(model), ranges, plan, (), fixed, keep_rectifiers), unrounded)[0], ()


def but_before_rectifiers(graph: onnx.GraphProto, plan: QuantPlan) -> frozenset[str]:
    """Returns no tensor but those that rectifiers read: every other one is rounded."""
    return before_rectifiers(graph)


def _unrounded(graph: onnx.GraphProto, plan: QuantPlan) -> frozenset[str]:
    return whole_operators(graph).unrounded | left_in_float(graph, plan.float_tensors).unrounded


ONNX_RUNTIME = Dialect("qdq", _emitted, _unrounded)


def model_ranges(
    form: OnnxForm,
    data: Dataset,
    plan: QuantPlan,
    level: bool = False,
    progress: Progress | None = None,
    dialect: Dialect = ONNX_RUNTIME,
) -> Calibrated[OnnxForm]:
    """Returns the model with the range of every floating-point activation over the data; `level` lets passes make its
    channels equally loud before."""
    # Between layers it gains nothing here, and loses as often: docs/quantize.md has the figures.
    first = calibrated(form, data, plan, level, between_layers=False, progress=progress)
    graph, net = first.form.model.graph, first.form.net()
    ranges = kept_by_most(net, first.ranges, first.observed, plan, dialect.unrounded(graph, plan))
    return replace(first, ranges=with_room(net, ranges, plan))


def _quantized(
    model: onnx.ModelProto,
    ranges: Mapping[str, Range],
    plan: QuantPlan,
    left_out: Collection[str],
    fixed: Fixed,
    keep_rectifiers: bool = False,
) -> onnx.ModelProto:
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    types = {"int8": QuantType.QInt8, "uint8": QuantType.QUInt8, "int16": QuantType.QInt16, "uint16": QuantType.QUInt16}
    quantizer = QDQQuantizer(
        model,
        per_channel=plan.weights == "per-channel",
        reduce_range=False,
        weight_qType=QuantType.QInt8,
        activation_qType=types[plan.activations],
        tensors_range=limits(ranges),
        nodes_to_quantize=[],
        nodes_to_exclude=sorted(left_out),
        op_types_to_quantize=quantizable(),
        extra_options={
            "ActivationSymmetric": plan.symmetric,
            "WeightSymmetric": True,
            "TensorQuantOverrides": stated_forms(model, plan, fixed, on_grids(model, plan, fixed)),
        },
    )
    with quantising():
        rectifiers = Rectifiers.of(model)
        quantizer.quantize_model()
        put_back(quantizer.model.model, rectifiers, all_of_them=keep_rectifiers)
        quantizer.model.topological_sort()
    return without_leftovers(quantizer.model.model)


def limits(ranges: Mapping[str, Range]) -> Any:
    """Returns ranges as onnxruntime's quantiser takes them."""
    from onnxruntime.quantization import CalibrationMethod
    from onnxruntime.quantization.calibrate import TensorData, TensorsData

    # onnxruntime drops a rectifier and lets the lowest code clip instead, which is zero only where the range is not.
    tops = {name: r.max if r.min or r.max else 1.0 for name, r in ranges.items()}
    ends = {
        name: TensorData(lowest=np.array(r.min, np.float32), highest=np.array(tops[name], np.float32))
        for name, r in ranges.items()
    }
    return TensorsData(CalibrationMethod.MinMax, ends)


def stated_forms(
    model: onnx.ModelProto, plan: QuantPlan, fixed: Fixed, grids: Mapping[str, FixedWeights]
) -> dict[str, list[dict[str, Any]]]:
    """Returns the forms that onnxruntime's quantiser is not to find itself: weights, fixed ranges, and activations of
    sixteen bits in addition to those of eight."""
    from onnxruntime.quantization import QuantType

    kinds = {4: QuantType.QInt4, 8: QuantType.QInt8}
    wide = QuantType.QInt16 if plan.wide == "int16" else QuantType.QUInt16
    stored = {tensor.name for tensor in model.graph.initializer}
    # onnxruntime's kernels take one scale for what stands first, such as the stored query of an attention pool.
    first = [node.input[0] for node in model.graph.node if node.op_type == "MatMul" and node.input[0] in stored]
    forms: dict[str, list[dict[str, Any]]] = {
        name: [{"quant_type": QuantType.QInt8, "symmetric": True}] for name in first
    }
    for name, limits in fixed.ranges.items():
        form = planned_form(limits, plan.activations, plan)
        scale, point = fixed.scales.get(name, (form.scale[0], form.zero_point[0]))
        if plan.stored_type(name) == plan.activations:
            forms[name] = [{"scale": np.array(scale, np.float32), "zero_point": np.array(point, plan.activations)}]
    for name in plan.wide_tensors if plan.bits == 8 else ():
        forms[name] = [{"quant_type": wide}]  # not symmetric: it drops rectifiers
        if name in fixed.scales:
            scale, point = fixed.scales[name]
            forms[name][0] |= {"scale": np.array(scale, np.float32), "zero_point": np.array(point, plan.wide)}
    for name, each in {**fixed.weights, **grids}.items():
        zero = {"zero_point": np.array(0, np.int8), "quant_type": kinds[each.bits]}
        axes = {} if each.axis is None else {"axis": each.axis}
        forms[name] = [{"scale": np.array(scale, np.float32), **zero, **axes} for scale in each.scale]
    # The second axis of a grouped transposed convolution's weights has the channels of one group, the bias has all.
    for node in model.graph.node:
        if node.op_type == "ConvTranspose" and attribute(node, "group", 1) > 1 and node.input[1] in stored:
            forms.setdefault(node.input[1], [{"quant_type": QuantType.QInt8, "symmetric": True}])
    # onnxruntime looks for types that need other operators in the first form alone.
    rare = [name for name, each in forms.items() if each[0].get("quant_type") in (wide, QuantType.QInt4)]
    return {name: forms[name] for name in (*rare, *forms)}


def on_grids(
    model: onnx.ModelProto, plan: QuantPlan, fixed: Fixed, whole_products: bool = False
) -> dict[str, FixedWeights]:
    """Replaces the weights of layers by what their integers stand for, and returns their scales; with `whole_products`
    the stored factor of a MatMul has one.

    onnxruntime's quantiser divides in single precision, and would round one weight in a thousand to another integer
    than the other emitter.
    """
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    grids: dict[str, FixedWeights] = {}
    for node, operation in zip(model.graph.node, net_of(model.graph).operations, strict=True):
        layer, products = operation.layer, node.op_type == "MatMul"
        if layer is None or layer.weights in grids:
            continue
        tensor = stored[layer.weights]
        values, grid = onnx.numpy_helper.to_array(tensor), fixed.weights.get(layer.weights)
        if grid is None:
            # ONNX Runtime multiplies several with one scale alone.
            one_scale = products and (whole_products or len(layer.shape) > 2)
            axis = layer.output_axis if plan.scale_for_each(layer.dense) and not one_scale else None
            bits = 8 if products else plan.weight_bits
            scales = planned_scales(values, axis, bits, plan).astype(np.float32)
            grid = FixedWeights(bits, tuple(scales.tolist()), axis)
        grids[layer.weights] = grid
        tensor.CopyFrom(onnx.numpy_helper.from_array(grid.kept(values), tensor.name))
    return grids


def without_leftovers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model without the constants that removed activations leave behind."""
    used = {name for node in model.graph.node for name in node.input} | {value.name for value in model.graph.output}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    for node in [node for node in model.graph.node if node.op_type == "Constant" and not used & {*node.output}]:
        model.graph.node.remove(node)
    return model
