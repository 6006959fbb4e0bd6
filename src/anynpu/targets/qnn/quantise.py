"""QDQ ONNX as the QNN provider wants it: our ranges and bias correction, onnxruntime's quantiser with its QNN rules."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from anynpu import tool
from anynpu.artifact import Artifact, OperatorPlacement
from anynpu.foreign import quantising
from anynpu.graph.cost import cost
from anynpu.quantize import qdq
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.functions import followers
from anynpu.quantize.onnx_net import OnnxForm, net_of
from anynpu.quantize.padding import find_padding
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import Progress, Range, collect
from anynpu.quantize.rectifiers import Rectifiers, put_back
from anynpu.quantize.repairs import biases_corrected
from anynpu.targets.data import dataset
from anynpu.targets.qnn.options import ForProvider, QnnOptions
from anynpu.targets.qnn.prepare import QUANTISED, is_quantised, prepared


def write(model: str, data: str, options: QnnOptions, out: str) -> ForProvider:
    """Writes the model for the provider (runs in a child process)."""
    from anynpu.source.onnx_file import read

    tool.hide_packages("torch")  # two seconds that onnxruntime's tools spend for nothing
    logging.getLogger().setLevel(logging.ERROR)  # onnxruntime advises to prepare the model, which is done
    source = read(Artifact.open(Path(model)).main)
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
    result = source if as_given else quantised(source, dataset(Path(data)), options, tool.report_progress)
    onnx.save(result, out)
    return ForProvider(operators, as_given, _write_twin(source, out) if as_given else False)


def quantised(
    model: onnx.ModelProto, data: Dataset, options: QnnOptions, progress: Progress | None = None
) -> onnx.ModelProto:
    """Returns a prepared float model with pairs that carry our ranges, in the types that the HTP takes."""
    whole = {value.name for value in model.graph.output}
    form, behind = OnnxForm(model), followers(net_of(model.graph))
    data = replace(data, padding=find_padding(form, data.inputs))
    ranges = collect(form.run(), data, options.method, options.percentile, options.bits, False, progress, whole, behind)
    if options.bias_correction and options.weight_type == "int8":
        # At 16 bits activations lose nothing that a bias could take back: what the plan says of them does not matter.
        plan = QuantPlan("uint8" if options.bits == 8 else "int16", options.weights)
        form, _ = biases_corrected(form, data, plan, ranges)
    return _emitted(form.model, ranges, options)


def _emitted(model: onnx.ModelProto, ranges: Mapping[str, Range], options: QnnOptions) -> onnx.ModelProto:
    from onnxruntime.quantization import CalibrationMethod, QuantType
    from onnxruntime.quantization.calibrate import TensorData, TensorsData
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    types = {"int8": QuantType.QInt8, "uint8": QuantType.QUInt8, "uint16": QuantType.QUInt16}
    per_channel = options.weights == "per-channel"
    limits = {
        name: TensorData(lowest=np.array(r.min, np.float32), highest=np.array(r.max, np.float32))
        for name, r in ranges.items()
    }
    gains = {node.input[1] for node in model.graph.node if node.op_type == "LayerNormalization"}
    with quantising():
        rules = get_qnn_qdq_config(
            model,
            None,
            activation_type=types[options.activations],
            weight_type=types[options.weight_type],
            per_channel=per_channel,
            # The HTP validates LayerNormalization with a gain of uint8 only.
            init_overrides={
                name: [{"quant_type": QuantType.QUInt8, "symmetric": False}]
                for name in sorted(gains & {tensor.name for tensor in model.graph.initializer})
            },
            add_qtype_converts=False,
        )
        quantizer = QDQQuantizer(
            model,
            per_channel=per_channel,
            reduce_range=False,
            weight_qType=rules.weight_type,
            activation_qType=rules.activation_type,
            tensors_range=TensorsData(CalibrationMethod.MinMax, limits),
            nodes_to_quantize=[],
            nodes_to_exclude=[],
            op_types_to_quantize=sorted(rules.op_types_to_quantize),
            extra_options=rules.extra_options,
        )
        rectifiers = Rectifiers.of(model)
        quantizer.quantize_model()
        put_back(quantizer.model.model, rectifiers)
        quantizer.model.topological_sort()
    return qdq.without_leftovers(quantizer.model.model)


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
