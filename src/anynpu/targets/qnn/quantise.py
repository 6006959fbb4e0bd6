"""QDQ ONNX as the QNN provider wants it: our quantisation, written by onnxruntime's quantiser with its QNN rules."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from anynpu import tool
from anynpu.artifact import Artifact, OperatorPlacement, PassEffect
from anynpu.foreign import quantising
from anynpu.graph.cost import cost
from anynpu.graph.fold import copied
from anynpu.quantize import qdq
from anynpu.quantize.fixed import NOTHING, Fixed, keep_quantisation
from anynpu.quantize.onnx_net import MOVES
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.qdq import Dialect
from anynpu.quantize.ranges import Range
from anynpu.quantize.rectifiers import Rectifiers, put_back
from anynpu.targets.data import dataset
from anynpu.targets.qnn.options import ForProvider, QnnOptions
from anynpu.targets.qnn.prepare import QUANTISED, is_quantised, prepared
from anynpu.targets.quantising import keep_calibration
from anynpu.training.record import read_record

Forms = dict[str, list[dict[str, Any]]]
"""How onnxruntime's quantiser is told the forms of tensors."""


def write(model: str, data: str, options: QnnOptions, out: str) -> ForProvider:
    """Writes the model for the provider (runs in a child process)."""
    from anynpu.source.onnx_file import read

    tool.hide_packages("torch")  # two seconds that onnxruntime's tools spend for nothing
    logging.getLogger().setLevel(logging.ERROR)  # onnxruntime advises to prepare the model, which is done
    imported = Artifact.open(Path(model))
    source = read(imported.main)
    as_given = options.quantize == "none" or is_quantised(source)
    source = qdq.prepare(source) if as_given else prepared(source)
    # With Microsoft's pairs as ONNX's own: shapes are not known behind the others.
    standard = onnx.ModelProto()
    standard.CopyFrom(source)
    for each in standard.graph.node:
        each.domain = "" if each.op_type in QUANTISED else each.domain
    macs = {node.name: node.macs for node in cost(standard).nodes}
    operators = tuple(
        OperatorPlacement(node.name, node.op_type, "npu", macs=macs[node.name])
        for node in source.graph.node
        if node.op_type not in QUANTISED and node.name in macs
    )
    effects: list[PassEffect] = []
    result = source
    if not as_given:
        record = read_record(imported.path)
        fixed = NOTHING if record is None else record.scheme.fixed(weights_of_file=False)
        report, keep = partial(keep_calibration, result=Path(out)), partial(keep_quantisation, result=Path(out))
        samples, progress = dataset(Path(data)), tool.report_progress
        result = qdq.with_pairs(source, samples, options, dialect(options), progress, report, fixed, effects, keep)
    onnx.save(result, out)
    return ForProvider(operators, as_given, _write_twin(source, out) if as_given else False, tuple(effects))


def dialect(options: QnnOptions) -> Dialect:
    """Returns how the HTP wants its pairs: every tensor is rounded, in the types that it takes."""

    def emitted(
        model: onnx.ModelProto, ranges: Mapping[str, Range], plan: QuantPlan, fixed: Fixed
    ) -> tuple[onnx.ModelProto, tuple[PassEffect, ...]]:
        return _emitted(copied(model), ranges, plan, fixed, options.weight_type), ()

    return Dialect("qnn", emitted, qdq.but_before_rectifiers)


def _emitted(
    model: onnx.ModelProto, ranges: Mapping[str, Range], plan: QuantPlan, fixed: Fixed, weight_type: str
) -> onnx.ModelProto:
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    types = {"int8": QuantType.QInt8, "uint8": QuantType.QUInt8, "uint16": QuantType.QUInt16}
    per_channel = plan.weights == "per-channel"
    grids = qdq.on_grids(model, plan, fixed, whole_products=True) if weight_type == "int8" else {}
    forms = qdq.stated_forms(model, plan, fixed, grids)
    gains = {node.input[1] for node in model.graph.node if node.op_type == "LayerNormalization"}
    # The HTP validates LayerNormalization with a gain of uint8 only.
    for name in sorted(gains & {tensor.name for tensor in model.graph.initializer}):
        forms[name] = [{"quant_type": QuantType.QUInt8, "symmetric": False}]
    with quantising():
        if plan.wide_tensors and plan.bits == 8:
            forms = _with_conversions(model, plan, forms)
        rules = get_qnn_qdq_config(
            model,
            None,
            activation_type=types[plan.activations],
            weight_type=types[weight_type],
            per_channel=per_channel,
            init_overrides=forms,
            add_qtype_converts=False,
        )
        quantizer = QDQQuantizer(
            model,
            per_channel=per_channel,
            reduce_range=False,
            weight_qType=rules.weight_type,
            activation_qType=rules.activation_type,
            tensors_range=qdq.limits(ranges),
            nodes_to_quantize=[],
            nodes_to_exclude=[],
            op_types_to_quantize=sorted(rules.op_types_to_quantize),
            extra_options=rules.extra_options,
        )
        rectifiers = Rectifiers.of(model)
        quantizer.quantize_model()
        put_back(quantizer.model.model, rectifiers, paired=True)
        quantizer.model.topological_sort()
    return qdq.without_leftovers(quantizer.model.model)


def _with_conversions(model: onnx.ModelProto, plan: QuantPlan, forms: Forms) -> Forms:
    """Returns the forms with those of wide tensors, and with conversions for the operators next to them: the HTP
    computes an operator in one width."""
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.execution_providers.qnn import mixed_precision_overrides_utils as mixed
    from onnxruntime.quantization.tensor_quant_overrides import TensorQuantOverridesHelper

    makers, wide = {name: node for node in model.graph.node for name in node.output}, list(plan.wide_tensors)
    for name in wide:  # what is only moved or cut off would have lost its bits before
        maker = makers.get(name)
        if maker is not None and maker.op_type in (*MOVES, "Relu", "Clip", "MaxPool") and maker.input[0] not in wide:
            wide.append(maker.input[0])
    helper = TensorQuantOverridesHelper({name: [{"quant_type": QuantType.QUInt16}] for name in wide})
    fixer = mixed.MixedPrecisionTensorQuantOverridesFixer.create_from_model(helper, model, QuantType.QUInt8)
    fixer.apply(QuantType.QUInt8, False)
    result: Forms = {**forms, **helper.get_dict()}
    for name, form in forms.items():
        stored = result[name][0]
        for part in (stored, stored.get("convert", {})) if "scale" in form[0] else ():
            bits = "uint16" if part.get("quant_type") == QuantType.QUInt16 else "uint8"
            if form[0]["zero_point"].dtype == bits:
                part |= {each: form[0][each] for each in ("scale", "zero_point")}
    return result


def _write_twin(model: onnx.ModelProto, out: str) -> bool:
    """Writes the quantised model without the rounding of its activations, its float twin, and returns whether it has
    one."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    source = {node.output[0]: node.input[0] for node in copy.graph.node if node.op_type == "QuantizeLinear"}
    if not source:
        return False
    for node in copy.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in source:
            kept = source[node.input[0]]
            node.CopyFrom(onnx.helper.make_node("Identity", [kept], [node.output[0]], name=node.name))
    for node in [node for node in copy.graph.node if node.op_type == "QuantizeLinear"]:
        copy.graph.node.remove(node)
    onnx.save(copy, str(Path(out).with_name("twin.onnx")))
    return True
