"""What TPU-MLIR refuses, as functions over a node: the docstring is what the user reads.

Each operator was compiled by itself with TPU-MLIR 1.30.2, in BF16 for cv180x and in F16 for bm1684x; the lists say how
that ended. A refusal stops a build; the rest are findings of `anynpu check` and, after a build, of the receipt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from onnx import ModelProto, NodeProto, helper

from anynpu.errors import Finding
from anynpu.targets.cvi.options import CviFacts

# The operators that its ONNX reader has, without those of no use here (Loop, If, quantised ones).
READ = """
Abs Acos Add And ArgMax ArgMin Atan Atanh AveragePool BatchNormalization Cast Ceil Clip Concat Constant
ConstantOfShape Conv ConvTranspose Cos Cosh CumSum DepthToSpace Div Dropout Einsum Elu Equal Erf Exp Expand Flatten
Floor Gather GatherElements GatherND Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GridSample
GroupNormalization GRU HardSigmoid HardSwish Identity InstanceNormalization LRN LSTM LayerNormalization LeakyRelu Less
LessOrEqual Log LogSoftmax MatMul Max MaxPool Min Mod Mul Neg NonMaxSuppression NonZero Not OneHot Or PRelu Pad Pow
Range Reciprocal ReduceL1 ReduceL2 ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Relu Reshape
Resize ReverseSequence RoiAlign Round ScatterElements ScatterND Shape Sigmoid Sign Sin Sinh Slice Softmax Softplus
Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Tan Tanh Tile TopK Transpose Trilu Unsqueeze Upsample Where Xor
"""
QUANTISED = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")

Rule = Callable[[NodeProto, ModelProto, CviFacts], bool]


def is_float(node: NodeProto, model: ModelProto, facts: CviFacts) -> bool:
    """The model is quantised already: give the float model, TPU-MLIR quantises it with the calibration data."""
    return node.op_type not in QUANTISED and not node.op_type.startswith("QLinear")


def is_read(node: NodeProto, model: ModelProto, facts: CviFacts) -> bool:
    """TPU-MLIR's ONNX reader has no such operator."""
    return not is_float(node, model, facts) or (node.op_type in READ.split() and node.domain in ("", "ai.onnx"))


def chip_has_it(node: NodeProto, model: ModelProto, facts: CviFacts) -> bool:
    """TPU-MLIR refuses the operator for this chip, in every number format."""
    return node.op_type not in facts.refused


def erf_is_part_of_gelu(node: NodeProto, model: ModelProto, facts: CviFacts) -> bool:
    """Erf compiles for CV18xx chips as part of x * (1 + erf(x / sqrt 2)) / 2 alone, which becomes one GELU."""
    if not facts.old or node.op_type != "Erf":
        return True
    makers = {name: other for other in model.graph.node for name in other.output}
    before = makers.get(node.input[0])
    after = [other for other in model.graph.node if node.output[0] in other.input]
    return before is not None and before.op_type in ("Div", "Mul") and [n.op_type for n in after] == ["Add"]


def power_is_a_number(node: NodeProto, model: ModelProto, facts: CviFacts) -> bool:
    """Pow compiles for CV18xx chips where the exponent is one constant number."""
    if not facts.old or node.op_type != "Pow":
        return True
    held = {tensor.name: math.prod(tensor.dims) for tensor in model.graph.initializer}
    constants = {name for other in model.graph.node if other.op_type == "Constant" for name in other.output}
    return held.get(node.input[1]) == 1 or node.input[1] in constants


def tpu_computes_it(node: NodeProto, model: ModelProto, facts: CviFacts) -> bool:
    """The chip's TPU has no such operator: its runtime computes it on the CPU."""
    return node.op_type not in facts.on_cpu


def rows_are_constant(node: NodeProto, model: ModelProto, facts: CviFacts) -> bool:
    """CV18xx chips look rows of a table up on the CPU, where which rows is data (embeddings of tokens)."""
    held = {tensor.name for tensor in model.graph.initializer}
    return not facts.old or node.op_type != "Gather" or node.input[0] not in held or node.input[1] in held


REFUSALS: tuple[Rule, ...] = (is_float, is_read, chip_has_it, erf_is_part_of_gelu, power_is_a_number)
RULES: tuple[Rule, ...] = (*REFUSALS, tpu_computes_it, rows_are_constant)


def with_kernel_shapes(model: ModelProto) -> ModelProto:
    """Returns the model with the size of every kernel stated: TPU-MLIR's ConvTranspose ends without (KeyError)."""
    copy = ModelProto()
    copy.CopyFrom(model)
    weights = {tensor.name: list(tensor.dims[2:]) for tensor in copy.graph.initializer}
    for node in copy.graph.node:
        stated = any(attribute.name == "kernel_shape" for attribute in node.attribute)
        if node.op_type == "ConvTranspose" and not stated and node.input[1] in weights:
            node.attribute.append(helper.make_attribute("kernel_shape", weights[node.input[1]]))
    return copy


def refusals(model: ModelProto, facts: CviFacts) -> tuple[Finding, ...]:
    """Returns the operators for which the compiler would end with an error."""
    return tuple(_judged(model, facts, REFUSALS))


def findings(model: ModelProto, facts: CviFacts) -> tuple[Finding, ...]:
    """Returns every operator that would not run on the chip's TPU, and why."""
    return tuple(_judged(model, facts, RULES))


def _judged(model: ModelProto, facts: CviFacts, rules: tuple[Rule, ...]) -> Iterator[Finding]:
    for node in model.graph.node:
        for rule in rules:
            if not rule(node, model, facts):
                yield Finding(rule.__name__, f"{node.op_type}: {rule.__doc__}", node.name or node.output[0])
