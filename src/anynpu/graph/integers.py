"""Operators on stored integers (QuantFormat.QOperator of onnxruntime), as operators on real numbers between pairs.

QLinearX(a, scale, zero point, ..., y scale, y zero point) is QuantizeLinear(X(DequantizeLinear(a), ...)). Operators
that only move or select values (MaxPool, Reshape) compute on integers in such files too: they get the pairs of what
they read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, version_converter

from anynpu.errors import Finding, IntegrityError
from anynpu.graph.fold import constant_value, copied, with_nodes
from anynpu.graph.opset import converted, opset_of
from anynpu.graph.precision import LEAST_DYNAMIC_DB, MOST_COMPARED, sqnr_db
from anynpu.graph.quantised import FLOAT_MODEL
from anynpu.graph.run import Session
from anynpu.graph.writer import Writer
from anynpu.runtime.int8_sums import exact
from anynpu.tensors import Array

Form = tuple[str, str]
"""The names of a tensor's scale and zero point; the latter may be empty."""
MOST_STEPS = 1
"""How far an operator between pairs may be from ONNX Runtime's kernel on integers, which rounds in another place."""
_AXIS_OF_SCALES = 13
"""The opset from which a DequantizeLinear has a scale for each channel."""
_SEVERAL_RESULTS = frozenset(("Split",))
_CHOICES = frozenset(("ArgMax", "ArgMin"))
MOVES = _SEVERAL_RESULTS | frozenset(
    [
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Gather",
        "Identity",
        "MaxPool",
        "Pad",
        "Reshape",
        "Resize",
        "Slice",
        "SpaceToDepth",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    ]
)
"""Operators whose results have the scale of what they read."""


@dataclass(frozen=True)
class Layout:
    """Where an operator on integers has its inputs: three of each operand, two of the result."""

    kind: str
    """The operator on real numbers."""
    operands: tuple[int, ...]
    result: int
    bias: int | None = None


LAYOUTS = {
    "QLinearConv": Layout("Conv", (0, 3), 6, bias=8),
    "QLinearMatMul": Layout("MatMul", (0, 3), 6),
    "QGemm": Layout("Gemm", (0, 3), 7, bias=6),
    "QLinearAdd": Layout("Add", (0, 3), 6),
    "QLinearMul": Layout("Mul", (0, 3), 6),
    "QLinearSigmoid": Layout("Sigmoid", (0,), 3),
    "QLinearLeakyRelu": Layout("LeakyRelu", (0,), 3),
    "QLinearAveragePool": Layout("AveragePool", (0,), 3),
    "QLinearGlobalAveragePool": Layout("GlobalAveragePool", (0,), 3),
    "QLinearSoftmax": Layout("Softmax", (0,), 3),
    "QLinearConcat": Layout("Concat", (), 0),
    "QLinearWhere": Layout("Where", (1, 4), 7),
}


def in_pairs(model: ModelProto) -> tuple[ModelProto, tuple[str, ...]]:
    """Returns a model whose operators on integers are operators on real numbers between pairs, and a note of their
    kinds; any other as it is."""
    if not any(node.op_type in LAYOUTS for node in model.graph.node):
        return model, ()
    result, nodes = _with_stored(model), list[NodeProto]()
    forms, kinds = _forms(result), list[str]()
    for node in map(copied, result.graph.node):
        at = Writer(node, result, opset_of(result))
        if _write(at, forms):
            kinds += [node.op_type] if node.op_type in LAYOUTS else []
        nodes += at.nodes or [node]
    if not kinds:
        return model, ()
    names = ", ".join(sorted({*kinds}))
    return with_nodes(result, nodes), (
        f"{len(kinds)} operator(s) on stored integers are written between pairs: {names}",
    )


def _with_stored(model: ModelProto) -> ModelProto:
    """Returns a copy whose Constant nodes are stored tensors, in an opset that has a scale for each channel where an
    operator brings such scales."""
    result = copied(model)
    values = {node.output[0]: constant_value(node) for node in model.graph.node if node.op_type == "Constant"}
    stored = {name: value for name, value in values.items() if value is not None}
    nodes = [node for node in model.graph.node if not {*node.output} & {*stored}]
    result.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in stored.items())
    result = with_nodes(result, nodes)
    sizes = {item.name: int(np.prod(item.dims)) for item in result.graph.initializer}
    scales = [node.input[place + 1] for node in nodes if node.op_type in LAYOUTS for place in _operands(node)]
    if opset_of(model) >= _AXIS_OF_SCALES or all(sizes.get(name, 1) == 1 for name in scales):
        return result
    # Weights as real numbers will not do: ONNX Runtime 1.31 rounds them anew, with one scale for all channels.
    try:
        return converted(result, _AXIS_OF_SCALES)
    except (RuntimeError, ValueError, version_converter.ConvertError):
        return result


def _operands(node: NodeProto) -> tuple[int, ...]:
    """Returns the places of an operator's operands."""
    return LAYOUTS[node.op_type].operands or tuple(range(2, len(node.input), 3))


def _form(node: NodeProto, place: int) -> Form:
    names = [*list(node.input)[place : place + 2], "", ""]
    return names[0], names[1]


def _forms(model: ModelProto) -> dict[str, Form]:
    """Returns the scale and zero point of each tensor of integers, as the operators around it state them."""
    forms: dict[str, Form] = {}
    for node in model.graph.node:
        if node.op_type in LAYOUTS:
            forms |= {node.input[place]: _form(node, place + 1) for place in _operands(node)}
            forms |= {node.output[0]: _form(node, LAYOUTS[node.op_type].result)}
        elif node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            forms[(node.output if node.op_type == "QuantizeLinear" else node.input)[0]] = _form(node, 1)
        elif node.op_type in MOVES and node.input[0] in forms:
            forms |= {name: forms[node.input[0]] for name in node.output if name not in forms}
    for node in reversed(model.graph.node):  # rows of a stored table are known by who reads them
        if node.op_type in MOVES and node.output[0] in forms:
            forms.setdefault(node.input[0], forms[node.output[0]])
    return {name: form for name, form in forms.items() if name and form[0]}


def _write(at: Writer, forms: Mapping[str, Form]) -> bool:
    """Writes an operator on integers between pairs; returns False for one that stays as it is."""
    kind = at.node.op_type
    if kind in LAYOUTS and _is_plain(at):
        _operator(at, LAYOUTS[kind])
    elif kind in MOVES | _CHOICES and at.input(0) in forms and (kind in _CHOICES or at.result() in forms):
        _moved(at, forms)
    else:
        return False
    return True


def _is_plain(at: Writer) -> bool:
    """Tells whether all scales are stored, and nothing is set that the operator on real numbers does not have."""
    layout, node = LAYOUTS[at.node.op_type], at.node
    forms = [_form(node, place + 1) for place in _operands(node)]
    scales = [at.array(scale) for scale, _ in forms]
    zeros = [at.array(zero) for _, zero in forms if zero]
    if at.get("channels_last", 0) or any(each is None for each in (*scales, *zeros)):
        return False
    sizes = [each.size for each in scales if each is not None]
    if layout.kind == "Softmax" and at.opset >= _AXIS_OF_SCALES > at.get("opset", 1) and at.get("axis", 1) != -1:
        return False  # before that opset it is over all axes from one on
    several = [place for place, size in zip(_operands(node), sizes, strict=True) if size > 1]
    weights = layout.operands[-1:] if layout.kind in ("Conv", "MatMul", "Gemm") else ()
    return not several or (at.opset >= _AXIS_OF_SCALES and {*several} <= {*weights})


def _operator(at: Writer, layout: Layout) -> None:
    """Writes an operator of ONNX Runtime's on integers."""
    axes = {"Conv": 0, "MatMul": -1, "Gemm": 0 if at.get("transB", 0) else 1}
    operands = [
        _real(at, at.input(place), _form(at.node, place + 1), axes.get(layout.kind, 0)) for place in _operands(at.node)
    ]
    if layout.kind == "Where":
        operands.insert(0, at.input(0))
    if layout.bias is not None and at.input(layout.bias):
        first, second = (at.array(at.input(place + 1)) for place in layout.operands)
        assert first is not None and second is not None
        steps = np.float64(at.get("alpha", 1.0)) * first.astype(np.float64).reshape(-1)[:1] * second.astype(np.float64)
        form = at.stored(steps.reshape(-1) if steps.size > 1 else steps.reshape(())), ""
        operands.append(_real(at, at.input(layout.bias), form, -1))
    settings = {
        each.name: helper.get_attribute_value(each)
        for each in at.node.attribute
        if each.name not in ("channels_last", "opset")
    }
    result = _form(at.node, layout.result)
    if result[0]:
        at.emit("QuantizeLinear", at.emit(layout.kind, *operands, **settings), *filter(None, result), to=at.result())
    else:
        at.emit(layout.kind, *operands, to=at.result(), **settings)


def _real(at: Writer, name: str, form: Form, axis: int) -> str:
    """Writes the real numbers that a tensor of integers stands for."""
    scale, zero = at.array(form[0]), at.array(form[1]) if form[1] else None
    if scale is None or scale.size == 1:
        return at.emit("DequantizeLinear", name, *filter(None, form))
    array = at.array(name)
    along = axis if array is None else axis % array.ndim
    if zero is not None and zero.size != scale.size:
        zero = np.full(scale.shape, zero.reshape(-1)[0])
    zeros = () if zero is None else (at.stored(zero, zero.dtype.type),)
    return at.emit("DequantizeLinear", name, form[0], *zeros, axis=along)


def _moved(at: Writer, forms: Mapping[str, Form]) -> None:
    """Writes an operator that moves or chooses integers."""
    node, form = copied(at.node), forms[at.input(0)]
    node.input[0] = _real(at, at.input(0), form, 0)
    if node.op_type == "Pad" and at.get("mode", "constant") == "constant":
        zero = at.array(form[1]) if form[1] else None
        value = at.input(2) or at.stored(0, np.uint8 if zero is None else zero.dtype.type)
        inputs = [*node.input, ""][:3] + list(node.input[3:])
        inputs[2] = _real(at, value, form, 0)
        del node.input[:]
        node.input.extend(inputs)
    at.nodes.append(node)
    if node.op_type in _CHOICES:
        return
    for place in range(len(node.output) if node.op_type in _SEVERAL_RESULTS else 1):
        node.output[place] = f"{at.result(place)}/real"
        at.emit("QuantizeLinear", node.output[place], *filter(None, form), to=at.result(place))


def compared(original: ModelProto, model: ModelProto, feeds: Sequence[Mapping[str, Array]]) -> tuple[str, ...]:
    """Returns in a note how far a file on integers is from the same between pairs, operator by operator and as a
    whole; more than rounding raises."""
    feeds = feeds[:MOST_COMPARED]
    beside, names = _beside(original)
    session = _exact(beside)
    steps = np.max([[float(each) for each in session.run(feed)] for feed in feeds], axis=0)
    findings = [
        Finding("integer-operator", f"{kind} is {far:.0f} steps from ONNX Runtime's", name)
        for (kind, name), far in zip(names, steps, strict=True)
        if far > MOST_STEPS
    ]
    if findings:
        raise IntegrityError(
            f"{len(findings)} operator(s) between pairs differ from the file, first {findings[0]}", FLOAT_MODEL
        )
    own, same = _exact(original), Session(model)
    real = [at for at, value in enumerate(model.graph.output) if value.type.tensor_type.elem_type == TensorProto.FLOAT]
    pairs = [(own.run(feed), same.run(feed)) for feed in feeds]
    answers = [[[side[at] for at in real] for side in pair] for pair in pairs]
    figures = sqnr_db([model.graph.output[at].name for at in real], answers)
    each = f"each operator is within {steps.max(initial=0.0):.0f} step(s) of the file's"
    if not figures:
        return (f"on {len(feeds)} samples {each}",)
    worst = min(figures, key=lambda name: figures[name])
    if figures[worst] < LEAST_DYNAMIC_DB:
        raise IntegrityError(
            f"between pairs the model is {figures[worst]:.1f} dB from the file at output '{worst}': more than rounding",
            FLOAT_MODEL,
        )
    equal = all(np.array_equal(*sides) for pair in pairs for sides in zip(*pair, strict=True))
    whole = "computes exactly what the file does" if equal else f"is {figures[worst]:.1f} dB from the file"
    return (f"on {len(feeds)} samples {each}, and the model {whole}",)


def _exact(model: ModelProto) -> Session:
    """Opens a model whose sums of integers no kernel clips."""
    content = exact(model.SerializeToString())
    assert isinstance(content, bytes)
    return Session(onnx.load_from_string(content))


def _beside(model: ModelProto) -> tuple[ModelProto, list[tuple[str, str]]]:
    """Returns a model that runs each operator on integers and, on the same integers, what is written for it; its
    outputs are the largest difference of each in steps, and come with the kinds and names of these operators."""
    result, nodes = _with_stored(model), list[NodeProto]()
    forms, names = _forms(result), list[tuple[str, str]]()
    outputs = []
    for node in map(copied, result.graph.node):
        nodes.append(node)
        other = copied(node)
        other.output[:] = [name and f"{name}/pairs" for name in node.output]
        other.name = ""  # ONNX Runtime wants names to differ
        at = Writer(other, result, opset_of(result))
        if not _write(at, {**forms, **{f"{name}/pairs": forms[name] for name in node.output if name in forms}}):
            continue
        names.append((node.op_type, node.name or node.output[0]))
        both = {name: f"{name}/float" for name in (node.output[0], at.result())}
        at.nodes += [helper.make_node("Cast", [name], [real], to=TensorProto.FLOAT) for name, real in both.items()]
        first, second = both.values()
        far = at.emit("ReduceMax", at.emit("Abs", at.emit("Sub", first, second)), keepdims=0)
        if node.op_type in LAYOUTS and node.output[0] not in forms:  # real numbers: in 255ths of the largest
            largest = at.emit("ReduceMax", at.emit("Abs", first), keepdims=0)
            far = at.emit("Div", at.emit("Mul", far, at.stored(255.0)), at.emit("Add", largest, at.stored(1e-30)))
        outputs.append(helper.make_tensor_value_info(far, TensorProto.FLOAT, []))
        nodes += at.nodes
    del result.graph.output[:]
    result.graph.output.extend(outputs)
    return with_nodes(result, nodes), names
