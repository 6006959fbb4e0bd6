"""Reads the layout of inputs and outputs from the operators that define one; sizes are never looked at.

A convolution says that axis 1 of its input is channels. Operators that keep the order of axes carry that knowledge
to their neighbours in both directions, a Transpose carries it permuted, everything else stops it.
"""

from __future__ import annotations

from onnx import ModelProto, NodeProto

from anynpu.graph.shapes import infer, inputs_of

_AXES = {3: "NCW", 4: "NCHW", 5: "NCDHW"}
# Operators whose ONNX definition says "N x C x D1 x ...".
_CHANNELS_FIRST_NAMES = """
    Conv ConvTranspose ConvInteger QLinearConv MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool
    GlobalLpPool BatchNormalization InstanceNormalization GroupNormalization LRN DepthToSpace SpaceToDepth GridSample
    MaxRoiPool RoiAlign"""
_RESIZE = {"Resize", "Upsample"}
_KEEPS_AXES_NAMES = """
    Abs Add And Cast CastLike Ceil Celu Clip Concat CumSum DequantizeLinear Div Dropout Elu Equal Erf Exp Floor Gelu
    Greater GreaterOrEqual HardSigmoid HardSwish Hardmax Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log LogSoftmax
    LpNormalization Max Mean MeanVarianceNormalization Min Mish Mod Mul Neg Not Or PRelu Pad Pow QuantizeLinear
    Reciprocal Relu Round Selu Sigmoid Sign Sin Cos Slice Softmax Softplus Softsign Split Sqrt Sub Sum Tan Tanh
    ThresholdedRelu Tile Trilu Where Xor"""
_CHANNELS_FIRST = set(_CHANNELS_FIRST_NAMES.split())
_KEEPS_AXES = set(_KEEPS_AXES_NAMES.split())
_CONFLICT = "conflict"


def read_layouts(model: ModelProto) -> dict[str, str]:
    """Returns the layout of each graph input and output, such as "NCHW" or "NHWC"; "" where no operator tells."""
    known = tensor_layouts(infer(model, strict=False))
    names = [value.name for value in (*inputs_of(model), *model.graph.output)]
    return {name: known.get(name, "") for name in names}


def tensor_layouts(inferred: ModelProto) -> dict[str, str]:
    """Returns the layout of every tensor that an operator tells of, in a model whose shapes are inferred."""
    return _Reader(inferred).settled()


class _Reader:
    def __init__(self, model: ModelProto) -> None:
        self._nodes = [node for node in model.graph.node if node.domain in ("", "ai.onnx")]
        self._dims = {
            value.name: tuple(dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim)
            for value in (*model.graph.input, *model.graph.value_info, *model.graph.output)
            if value.type.tensor_type.HasField("shape")
        }
        self._known: dict[str, str] = {}
        self._changed = False

    def layout(self, name: str) -> str:
        axes = self._known.get(name, "")
        return "" if axes == _CONFLICT else axes

    def settled(self) -> dict[str, str]:
        """Spreads what operators say until nothing new is learned; each round settles at least one tensor."""
        for node in self._nodes:
            if node.op_type in _CHANNELS_FIRST or (node.op_type in _RESIZE and self._resizes_last_two(node)):
                for name in (node.input[0], node.output[0]):
                    axes = _AXES.get(len(self._dims.get(name, ())))
                    if axes:
                        self._learn(name, axes)
        self._changed = True
        while self._changed:
            self._changed = False
            for node in (*self._nodes, *reversed(self._nodes)):
                if node.op_type == "Transpose":
                    source, target = node.input[0], node.output[0]
                    rank = len(self._dims.get(source, ()))
                    order = next((list(a.ints) for a in node.attribute if a.name == "perm"), list(range(rank))[::-1])
                    before, after = self.layout(source), self.layout(target)
                    if len(before) == len(order) > 0:
                        self._learn(target, "".join(before[axis] for axis in order))
                    if len(after) == len(order) > 0:
                        self._learn(source, "".join(after[order.index(axis)] for axis in range(len(order))))
                elif node.op_type in _KEEPS_AXES or node.op_type in _RESIZE:
                    cut = node.op_type in _RESIZE | {"Pad", "Slice", "Tile", "Split"}
                    names = [name for name in (*node.input[: 1 if cut else None], *node.output) if name]
                    rank = len(self._dims.get(node.output[0], ()))
                    for axes in {self._known[name] for name in names if name in self._known}:
                        if axes != _CONFLICT and len(axes) == rank:
                            for name in names:
                                self._learn(name, axes)
        return {name: axes for name, axes in self._known.items() if axes != _CONFLICT}

    def _learn(self, name: str, axes: str) -> None:
        rank = len(self._dims.get(name, ()))
        if axes != _CONFLICT and rank != len(axes):
            return
        known = self._known.get(name)
        if known in (axes, _CONFLICT):
            return
        # Two operators that disagree leave the tensor without a layout, rather than with the first one.
        self._known[name] = axes if known is None else _CONFLICT
        self._changed = True

    def _resizes_last_two(self, node: NodeProto) -> bool:
        """Returns whether a 4-D resize changes exactly axes 2 and 3, which makes them height and width."""
        before, after = self._dims.get(node.input[0], ()), self._dims.get(node.output[0], ())
        changed = [place for place, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]]
        return len(before) == len(after) == 4 and changed == [2, 3]
