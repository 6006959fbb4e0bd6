"""The torch import of every ONNX operator and of whole networks equals onnxruntime."""

from __future__ import annotations

import copy
import io
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu.errors import ConfigError, IntegrityError, Unsupported
from anynpu.source.onnx_torch import import_model, operator_sentences

torch = pytest.importorskip("torch")
ort = pytest.importorskip("onnxruntime")
from torch import nn  # noqa: E402

torch.set_num_threads(1)
RNG = np.random.default_rng(7)


class C:
    """A constant operand of a case; a bare array is a run-time input."""

    def __init__(self, value, dtype=None):
        self.array = np.asarray(value, dtype) if dtype else np.asarray(value)


def f(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def pos(*shape):
    return (RNG.random(shape) + 0.1).astype(np.float32)


def i(low, high, *shape, dtype=np.int64):
    return RNG.integers(low, high, shape).astype(dtype)


def b(*shape):
    return RNG.random(shape) > 0.5


def ci(*values):
    return C(np.asarray(values, np.int64))


def c0(value, dtype=np.float32):
    return C(np.asarray(value, dtype))


def case(op, *inputs, opset=18, outputs=1, **attributes):
    return op, inputs, opset, outputs, attributes


def make_model(op, inputs, opset, outputs, attributes, domain=""):
    names, graph_inputs, constants, feeds = [], [], [], {}
    for at, value in enumerate(inputs):
        name = "" if value is None else f"in.{at}"
        names.append(name)
        if value is None:
            continue
        array = value.array if isinstance(value, C) else value
        if isinstance(value, C):
            constants.append(numpy_helper.from_array(array, name))
        else:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            graph_inputs.append(helper.make_tensor_value_info(name, kind, array.shape))
            feeds[name] = array
    outs = [f"out.{at}" for at in range(outputs)]
    node = helper.make_node(op, names, outs, name="the_node", domain=domain, **attributes)
    graph_outputs = [helper.make_empty_tensor_value_info(name) for name in outs]
    graph = helper.make_graph([node], "g", graph_inputs, graph_outputs, constants)
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10 if opset >= 21 else 8)
    return onnx.shape_inference.infer_shapes(model), feeds


def reference(model, feeds):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def imported(model, feeds):
    module = import_model(model)
    with torch.no_grad():
        got = module(*(torch.from_numpy(np.array(feeds[name])) for name in module.meta["inputs"]))
    return [each.numpy() for each in (got if isinstance(got, tuple) else (got,))]


def assert_close(got, wanted):
    assert len(got) == len(wanted)
    for a, w in zip(got, wanted, strict=True):
        assert a.shape == w.shape
        assert a.dtype == w.dtype
        scale = max(1e-6, float(np.abs(w[np.isfinite(w)]).max(initial=0))) if w.dtype.kind == "f" else 1
        np.testing.assert_allclose(a, w, rtol=1e-4, atol=1e-5 * scale)


def unary(*ops, make=f):
    return [case(op, make(2, 3, 4), opset=o) for op in ops for o in (13, 20 if op != "HardSwish" else 14)]


def broadcast(op, make):
    return [case(op, make(2, 3, 4), make(3, 1)), case(op, make(4), make(2, 1, 4)), case(op, make(2, 2), C(make(2, 2)))]


def convolutions():
    for group, dilation, stride in ((1, 1, 1), (2, 1, 2), (4, 2, 1)):
        common = {"group": group, "dilations": [dilation] * 2, "strides": [stride] * 2}
        w, bias = C(f(8, 4 // group, 3, 3)), C(f(8))
        yield case("Conv", f(1, 4, 9, 8), w, bias, pads=[1, 1, 1, 1], **common)
        yield case("Conv", f(2, 4, 9, 8), w, pads=[0, 1, 2, 1], **common)
        if dilation == 1:
            yield case("Conv", f(1, 4, 9, 8), w, bias, auto_pad="SAME_UPPER", **common)
            yield case("Conv", f(1, 4, 9, 8), w, bias, auto_pad="SAME_LOWER", kernel_shape=[3, 3], **common)
        yield case("Conv", f(1, 4, 9, 8), w, bias, opset=11, auto_pad="VALID", **common)
    yield case("Conv", f(1, 4, 12), C(f(6, 4, 5)), C(f(6)), pads=[2, 2], strides=[3])
    yield case("Conv", f(1, 4, 12), C(f(4, 1, 4)), group=4, auto_pad="SAME_UPPER")
    yield case("Conv", f(1, 2, 5, 6, 7), C(f(3, 2, 3, 3, 3)), C(f(3)), pads=[1] * 6)
    yield case("Conv", f(1, 2, 5, 5), f(3, 2, 3, 3))


def transposed():
    w = C(f(4, 3, 3, 3))
    yield case("ConvTranspose", f(1, 4, 5, 6), w, C(f(3)))
    yield case("ConvTranspose", f(1, 4, 5, 6), w, strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1])
    yield case("ConvTranspose", f(1, 4, 5, 6), w, strides=[2, 2], pads=[0, 0, 1, 1])
    yield case("ConvTranspose", f(1, 4, 5, 6), w, group=2, strides=[2, 1], dilations=[1, 2])
    yield case("ConvTranspose", f(1, 4, 5, 6), w, strides=[2, 2], auto_pad="SAME_UPPER")
    yield case("ConvTranspose", f(1, 4, 5, 6), w, strides=[2, 2], auto_pad="SAME_LOWER")
    yield case("ConvTranspose", f(1, 4, 5, 6), w, strides=[2, 2], output_shape=[10, 12])
    yield case("ConvTranspose", f(1, 4, 7), C(f(4, 2, 4)), strides=[2], pads=[1, 1])


def pools():
    for op in ("MaxPool", "AveragePool"):
        for shape in ((1, 3, 9, 10), (2, 3, 8, 8)):
            for attributes in (
                {"kernel_shape": [2, 2], "strides": [2, 2]},
                {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
                {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 0, 1, 1]},
                {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1},
                {"kernel_shape": [3, 3], "pads": [2, 2, 2, 2]},
                {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2]},
                {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER"},
                {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "VALID"},
            ):
                yield case(op, f(*shape), **attributes)
                if op == "AveragePool":
                    yield case(op, f(*shape), count_include_pad=1, **attributes)
        yield case(op, f(1, 3, 11), kernel_shape=[3], strides=[2])
        yield case(op, f(1, 2, 6, 6, 6), kernel_shape=[2, 2, 2], strides=[2, 2, 2])
        yield case(op, f(1, 3, 10, 10), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1)
    yield case("AveragePool", f(1, 2, 8, 8), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, count_include_pad=1)
    yield case("MaxPool", f(1, 3, 9, 9), kernel_shape=[3, 3], dilations=[2, 2], pads=[1, 1, 1, 1], opset=11)


def reductions():
    for op in ("Mean", "Sum", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"):
        name = f"Reduce{op}"
        x = pos(2, 3, 4, 2)
        old = 11 if op == "Sum" else 13
        yield case(name, x, opset=old, axes=[1, -1], keepdims=0)
        yield case(name, x, opset=old)
        yield case(name, x, ci(2, 3), opset=18)
        yield case(name, x, ci(-3), opset=20, keepdims=0)
        yield case(name, x, opset=18, keepdims=0)
        yield case(name, x, opset=18, noop_with_empty_axes=1) if op in ("Mean", "Sum", "Max") else case(name, x)
    yield case("ReduceSum", i(0, 9, 2, 3), ci(1))
    yield case("ReduceMax", i(0, 9, 2, 3, dtype=np.int32), ci(1))


def pads():
    for value in (None, c0(1.5)):
        yield case("Pad", f(1, 2, 4, 5), ci(0, 0, 1, 2, 0, 0, 3, 0), *([value] if value else []))
    yield case("Pad", f(2, 3), ci(1, 0, 0, 2), opset=11)
    yield case("Pad", f(1, 2, 4, 5), ci(0, 0, -1, 0, 0, 0, 0, -2))
    yield case("Pad", f(1, 2, 4, 5), ci(1, 2, 0, 1), None, ci(1, -1))
    for mode in ("reflect", "edge"):
        yield case("Pad", f(1, 2, 4, 5), ci(0, 0, 1, 2, 0, 0, 3, 1), mode=mode)
        yield case("Pad", f(2, 5), ci(0, 2, 0, 1), mode=mode)
        yield case("Pad", f(2, 3, 5), ci(0, 1, 2, 0, 2, 1), mode=mode)
        yield case("Pad", f(2, 3, 2, 5), ci(0, 0, 0, 2, 0, 0, 0, 1), mode=mode)


def resizes():
    empty = C(np.zeros(0, np.float32))
    x = f(1, 2, 5, 6)
    for scales in ([1, 1, 2, 2], [1, 1, 3, 2]):
        s = C(scales, np.float32)
        yield case("Resize", x, empty, s, coordinate_transformation_mode="asymmetric", nearest_mode="floor")
        yield case("Resize", x, empty, s)
        yield case("Resize", x, empty, s, mode="linear", coordinate_transformation_mode="half_pixel")
        yield case("Resize", x, empty, s, mode="linear", coordinate_transformation_mode="pytorch_half_pixel")
        yield case("Resize", x, empty, s, mode="linear", coordinate_transformation_mode="align_corners")
        yield case("Resize", x, empty, s, mode="cubic", coordinate_transformation_mode="half_pixel")
        yield case("Resize", x, empty, s, mode="cubic", coordinate_transformation_mode="align_corners", opset=11)
    yield case("Resize", x, None, None, ci(1, 2, 7, 11), mode="linear")
    yield case("Resize", x, None, None, ci(7, 11), mode="linear", axes=[2, 3])
    yield case("Resize", x, None, None, ci(1, 2, 3, 3), mode="linear", opset=13)
    yield case("Resize", x, empty, empty, ci(1, 2, 10, 12), opset=11)
    yield case("Resize", f(1, 2, 6), None, C([1, 1, 2], np.float32), mode="linear")
    yield case("Resize", x, None, C([1, 1, 1, 1], np.float32))
    for mode in ("linear", "cubic"):
        yield case("Resize", x, None, C([1, 1, 1.7, 0.65], np.float32), mode=mode)
    for size in (7, 13, 30, 49 * 5):
        yield case(
            "Resize",
            x,
            None,
            None,
            ci(1, 2, size, 18),
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )


def slices():
    x = f(4, 5, 6)
    yield case("Slice", x, ci(1), ci(3))
    yield case("Slice", x, ci(1, 0), ci(2**31, -1), ci(-1, 0), ci(2, 1))
    yield case("Slice", x, ci(-1), ci(-(2**63)), ci(1), ci(-1))
    yield case("Slice", x, ci(4, 1), ci(0, 9), ci(2, 1), ci(-2, 3))
    yield case("Slice", x, ci(0), ci(100), ci(0), opset=11)
    yield from (case("Slice", C(x), ci(3), ci(1), ci(1)), case("Slice", C(f(4)), ci(1), ci(3), ci(0), ci(-1)))


def shapes():
    x = f(2, 3, 4)
    yield from (case("Reshape", x, ci(*s)) for s in ((6, 4), (0, -1), (-1,), (2, 3, 2, 2), (0, 0, 4)))
    yield case("Reshape", x, ci(2, -1, 1), allowzero=1)
    yield from (case("Flatten", x, axis=a) for a in (0, 1, 2, -1, 3))
    yield case("Transpose", x)
    yield case("Transpose", x, perm=[1, 2, 0])
    yield from (case("Squeeze", f(1, 3, 1, 2)), case("Squeeze", f(1, 3, 1), ci(-1)))
    yield case("Squeeze", f(1, 3, 1), axes=[0], opset=11)
    yield from (case("Unsqueeze", x, ci(0, -1)), case("Unsqueeze", x, axes=[1, 2], opset=11))
    yield from (case("Expand", f(3, 1), ci(2, 1, 4)), case("Expand", f(3, 4), ci(1, 1)))
    yield case("Tile", f(2, 3), ci(2, 1))
    yield from (case("Concat", x, f(2, 1, 4), C(f(2, 2, 4)), axis=1), case("Concat", x, x, axis=-1))
    yield case("Split", f(2, 6), axis=1, outputs=3, num_outputs=3)
    yield case("Split", f(2, 7), axis=-1, outputs=3, num_outputs=3)
    yield case("Split", f(2, 7), ci(3, 4), axis=1, outputs=2)
    yield case("Split", f(2, 7), axis=1, split=[1, 6], outputs=2, opset=11)
    yield case("Split", f(4, 2), outputs=2, opset=13)
    yield from (case("DepthToSpace", f(1, 8, 2, 3), blocksize=2, mode=m) for m in ("DCR", "CRD"))
    yield case("SpaceToDepth", f(1, 3, 4, 6), blocksize=2)
    yield case("Identity", x)
    yield from (case("Dropout", x), case("Dropout", x, c0(0.3), c0(False, np.bool_)), case("Dropout", x, opset=11))
    yield from (case("Trilu", f(4, 5)), case("Trilu", f(2, 4, 5), c0(-1, np.int64), upper=0))
    yield from (case("EyeLike", f(3, 4)), case("EyeLike", f(3, 3), k=1, dtype=TensorProto.INT64))


def constants():
    tensor = numpy_helper.from_array(f(2, 3))
    yield from (case("Constant", value=tensor), case("Constant", value_float=1.5), case("Constant", value_ints=[1, 2]))
    yield case("ConstantOfShape", ci(2, 3), value=numpy_helper.from_array(np.array([4], np.int64)))
    yield case("ConstantOfShape", ci(2, 3))
    yield from (case("Shape", f(2, 3, 4)), case("Shape", f(2, 3, 4), start=-2, end=3), case("Size", f(2, 3)))
    yield case("Range", c0(1, np.int64), c0(9, np.int64), c0(2, np.int64))
    yield case("Range", c0(1.0), c0(0.0), c0(-0.25))


def gathers():
    yield from (case("Gather", f(5, 4), ci(0, -1, 3)), case("Gather", f(3, 4, 2), c0(-1, np.int64), axis=1))
    yield from (case("Gather", f(3, 4, 2), C(i(-4, 4, 2, 3)), axis=1), case("Gather", C(f(9, 4)), i(0, 9, 2, 3)))
    yield from (case("Gather", f(3, 4), i(-4, 4, 2), axis=1), case("Gather", f(3, 4), i(0, 3, 2, 2, dtype=np.int32)))
    yield from (case("GatherElements", f(3, 4), i(-3, 3, 2, 4)), case("GatherElements", f(3, 4), i(0, 4, 3, 2), axis=1))
    yield case("OneHot", i(-3, 4, 2, 3), c0(4, np.int64), C(np.array([0, 2], np.float32)))
    yield case("OneHot", i(0, 4, 3), c0(4, np.int64), C(np.array([0, 1], np.float32)), axis=0)


def linears():
    yield case("Gemm", f(2, 3), C(f(4, 3)), C(f(4)), transB=1)
    yield case("Gemm", f(2, 3), C(f(3, 4)), C(f(4)))
    yield case("Gemm", f(3, 2), C(f(3, 4)), C(f(2, 1)), transA=1, alpha=0.5, beta=2.0)
    yield case("Gemm", f(2, 3), f(3, 4), C(f(1, 4)))
    yield case("Gemm", f(2, 3), C(f(3, 4)), alpha=2.0)
    yield case("MatMul", f(2, 3), C(f(3, 4)))
    yield from (case("MatMul", f(2, 5, 3), f(2, 3, 4)), case("MatMul", f(3), f(2, 3, 4)), case("MatMul", f(2, 3), f(3)))
    yield case("Einsum", f(2, 3, 4), f(2, 5, 4), equation="bij,bkj->bik")
    yield case("Einsum", f(3, 3), equation="ii->i")


def normalizations():
    stats = (C(f(3)), C(f(3)), C(f(3)), C(pos(3)))
    yield case("BatchNormalization", f(2, 3, 4, 4), *stats, epsilon=1e-3)
    yield case("BatchNormalization", f(2, 3), *stats, opset=11)
    yield case("LayerNormalization", f(2, 3, 4), C(f(4)), C(f(4)))
    yield case("LayerNormalization", f(2, 3, 4), C(f(3, 4)), axis=1, epsilon=1e-3)
    yield case("LayerNormalization", f(2, 3, 4), C(f(3, 4)), C(f(4)), axis=-2)
    yield case("InstanceNormalization", f(2, 3, 4, 5), C(f(3)), C(f(3)), epsilon=1e-2)
    yield case("InstanceNormalization", f(2, 3, 7), C(f(3)), C(f(3)))
    yield case("GroupNormalization", f(2, 6, 4), C(f(3)), C(f(3)), num_groups=3, opset=18)
    yield case("GroupNormalization", f(2, 6, 4, 2), C(f(6)), C(f(6)), num_groups=3, opset=21)
    yield from (case("LpNormalization", f(2, 3, 4), axis=1, p=p) for p in (1, 2))
    yield case("LRN", f(1, 7, 3, 3), size=5, alpha=0.1, beta=0.5, bias=2.0)


def activations():
    x = 3 * f(2, 3, 4)
    yield from unary("Relu", "Sigmoid", "Tanh", "Softplus", "Softsign", "HardSigmoid", "Elu", "Selu", "Celu", make=f)
    yield from (case("HardSwish", 2 * x), case("Mish", x), case("LeakyRelu", x), case("LeakyRelu", x, alpha=0.3))
    yield from (case("PRelu", x, C(f(3, 1))), case("PRelu", x, C(f(1))), case("PRelu", f(2, 3, 4, 4), C(f(3, 1, 1))))
    yield from (case("Elu", x, alpha=0.4), case("Selu", x, alpha=1.0, gamma=2.0), case("Celu", x, alpha=2.0))
    yield from (case("ThresholdedRelu", x), case("ThresholdedRelu", x, alpha=0.2))
    yield from (case("HardSigmoid", x, alpha=a) for a in (1 / 6, 0.5))
    yield from (case("Gelu", x, opset=20), case("Gelu", x, opset=20, approximate="tanh"))
    yield from (
        case("Clip", 4 * x, c0(0), c0(6)),
        case("Clip", x, c0(-1)),
        case("Clip", x, None, c0(1)),
        case("Clip", x),
    )
    yield from (case("Clip", x, np.array(-0.5, np.float32), np.array(0.7, np.float32)), case("Clip", i(0, 9, 5), C(3)))
    yield case("Clip", x, c0(-0.5), np.array(0.7, np.float32), opset=11)
    for op in ("Softmax", "LogSoftmax"):
        yield from (case(op, x), case(op, x, axis=1), case(op, x, opset=11), case(op, x, opset=11, axis=2))


def elements():
    for op in ("Add", "Sub", "Mul", "Div", "Min", "Max"):
        yield from broadcast(op, f)
    yield from (case("Div", i(-9, 9, 6), C(i(1, 4, 6))), case("Mod", i(-9, 9, 6), C(i(2, 4, 6))))
    yield from (case("Mod", f(6), pos(6), fmod=1), case("Mod", i(-9, 9, 6), C(-i(2, 4, 6)), fmod=1))
    yield from (case("Pow", pos(2, 3), c0(2.0)), case("Pow", pos(2, 3), c0(0.5)), case("Pow", pos(2, 3), f(3)))
    yield from (case("Pow", i(0, 5, 4), c0(3, np.int64)), case("Pow", pos(3), C(np.full((2, 1), 2, np.float32))))
    yield from (case(op, f(2, 3), f(3), C(f(2, 1))) for op in ("Sum", "Mean", "Min", "Max"))
    yield from unary("Neg", "Abs", "Floor", "Ceil", "Sign", "Sin", "Cos", "Erf", "Exp")
    yield from unary("Sqrt", "Log", "Reciprocal", make=pos)
    yield from (case("Round", np.array([0.5, 1.5, -2.5, 1.2], np.float32)), case("Neg", i(-4, 4, 3)))
    for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
        yield from (case(op, i(0, 3, 2, 9), C(i(0, 3, 9))), case(op, f(2, 3), f(2, 1)))
    for op in ("And", "Or", "Xor"):
        yield case(op, b(2, 8), b(8))
    yield from (case("Not", b(5)), case("Where", b(2, 1), f(2, 3), C(f(3))))
    for kind in (TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT16, TensorProto.DOUBLE):
        yield case("Cast", 3 * f(2, 3), to=kind)
    yield from (case("Cast", b(4), to=TensorProto.FLOAT), case("CastLike", f(4), i(0, 2, 1), opset=15))
    for op in ("ArgMax", "ArgMin"):
        yield from (case(op, f(2, 3, 4), axis=-1, keepdims=0), case(op, i(0, 2, 3, 8).astype(np.float32), axis=1))
        yield from (case(op, i(0, 3, 2, 9), axis=1, keepdims=0), case(op, i(0, 3, 2, 9) + 2**40, axis=0))
    yield case("CumSum", f(2, 3), c0(1, np.int64))
    yield case("CumSum", f(2, 3), c0(-2, np.int64), reverse=1)
    for op in ("GlobalAveragePool", "GlobalMaxPool"):
        yield from (case(op, f(2, 3, 4, 5)), case(op, f(2, 3, 4)))


GROUPS = (convolutions, transposed, pools, reductions, pads, resizes, slices, shapes, constants, gathers, linears)
CASES = [each for group in (*GROUPS, normalizations, activations, elements) for each in group()]


@pytest.mark.parametrize("at", range(len(CASES)), ids=[f"{c[0]}-{n}" for n, c in enumerate(CASES)])
def test_operator_equals_onnxruntime(at):
    model, feeds = make_model(*CASES[at])
    assert_close(imported(model, feeds), reference(model, feeds))


def test_every_operator_is_tested():
    assert sorted({each[0] for each in CASES}) == sorted(operator_sentences())
    assert len(operator_sentences()) >= 60


def test_every_operator_has_its_sentence_in_the_docs():
    page = (Path(__file__).parents[2] / "docs" / "import.md").read_text()
    rows = [f"| {name} | {sentence} |" for name, sentence in sorted(operator_sentences().items())]
    assert all(row.endswith(". |") for row in rows)
    assert [line for line in page.splitlines() if line.startswith("| ") and line.endswith(". |")] == rows


REFUSED = [
    case("Conv", f(1, 2, 8, 8), C(f(2, 2, 3, 3)), dilations=[2, 2], auto_pad="SAME_UPPER"),
    case("MaxPool", f(1, 2, 6, 6), kernel_shape=[2, 2], outputs=2),
    case("AveragePool", f(1, 2, 6, 6), kernel_shape=[2, 2], dilations=[2, 2], opset=19),
    case(
        "Resize",
        f(1, 2, 5, 5),
        None,
        C([1, 1, 2, 2], np.float32),
        mode="linear",
        coordinate_transformation_mode="asymmetric",
    ),
    case("Resize", f(1, 2, 5, 5), None, C([1, 1, 3, 3], np.float32), coordinate_transformation_mode="asymmetric"),
    case("Resize", f(1, 2, 5, 5), None, C([1, 2, 1, 1], np.float32)),
    case("Resize", f(1, 2, 8, 8), None, C([1, 1, 0.5, 0.5], np.float32), mode="linear", antialias=1),
    case("Resize", f(1, 2, 5, 5), None, C([1, 1, 2, 2], np.float32), mode="cubic", cubic_coeff_a=-0.5),
    case("Pad", f(1, 2, 4, 5), ci(1, 0, 1, 2, 0, 0, 3, 1), mode="reflect"),
    case("Pad", f(1, 2, 4, 5), ci(0, 0, 1, 1, 0, 0, 1, 1), mode="wrap", opset=19),
    case("Resize", f(1, 2, 5, 3), None, C([1, 1, 1, 1.25], np.float32), mode="linear"),
    case("Slice", f(4, 5), ci(3), ci(1), ci(1)),
    case("AveragePool", f(1, 1, 9, 12), kernel_shape=[4, 1], strides=[1, 3], auto_pad="SAME_UPPER", opset=19),
    case("ConvTranspose", f(1, 4, 3, 7), C(f(4, 2, 2, 3)), pads=[2, 0, 2, 0]),
    case("Reshape", f(2, 3), np.array([3, 2])),
    case("Expand", f(3, 1), np.array([3, 2])),
    case("ArgMax", f(3, 4), select_last_index=1),
    case("CumSum", f(3, 4), c0(0, np.int64), exclusive=1),
    case("BatchNormalization", f(2, 3, 4), *[C(pos(3)) for _ in range(4)], training_mode=1, outputs=1),
    case("Dropout", f(3), c0(0.5), c0(True, np.bool_)),
    case("LRN", f(1, 4, 3, 3), size=2),
    case("LayerNormalization", f(2, 4), C(f(4)), outputs=2),
    case("Cast", f(3), to=TensorProto.BFLOAT16),
    case("NonZero", f(3)),
    case("LSTM", f(2, 1, 3), C(f(1, 8, 3)), C(f(1, 8, 2)), hidden_size=2, outputs=1),
]


@pytest.mark.parametrize("at", range(len(REFUSED)), ids=[f"{c[0]}-{n}" for n, c in enumerate(REFUSED)])
def test_inexact_node_is_refused(at):
    model, _ = make_model(*REFUSED[at])
    with pytest.raises(Unsupported) as caught:
        import_model(model)
    (finding,) = caught.value.findings
    assert (finding.rule, finding.where) == ("onnx-operator", "the_node")
    assert REFUSED[at][0] in finding.message or "BFLOAT16" in finding.message


def test_foreign_domain_is_refused():
    model, _ = make_model("Gelu", (f(2),), 18, 1, {}, domain="com.microsoft")
    with pytest.raises(Unsupported, match=r"com\.microsoft\.Gelu"):
        import_model(model)


def chain(*nodes, shape=(1, 3, 4), opset=18):
    """A model of nodes one after the other; each is (operator, attributes)."""
    made = [helper.make_node(op, [f"t{n}"], [f"t{n + 1}"], name=f"n{n}", **a) for n, (op, a) in enumerate(nodes)]
    graph_in = helper.make_tensor_value_info("t0", TensorProto.FLOAT, shape)
    graph_out = helper.make_empty_tensor_value_info(f"t{len(nodes)}")
    graph = helper.make_graph(made, "g", [graph_in], [graph_out])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def test_all_unsupported_nodes_are_listed_at_once():
    bad = ("Det", {}), ("Relu", {}), ("ArgMax", {"select_last_index": 1}), ("Unknown", {}), ("Hardmax", {})
    with pytest.raises(Unsupported) as caught:
        import_model(chain(*bad, shape=(2, 3, 3)))
    assert [finding.where for finding in caught.value.findings] == ["n0", "n2", "n3", "n4"]
    assert "3 more" in caught.value.message


@pytest.mark.parametrize("opset", [10, 22])
def test_other_opsets_are_refused(opset):
    with pytest.raises(Unsupported, match=f"opset {opset}"):
        import_model(chain(("Relu", {}), opset=opset))


def test_dynamic_dimension_is_refused():
    with pytest.raises(ConfigError, match="dynamic dimension 'batch'"):
        import_model(chain(("Relu", {}), shape=("batch", 3)))


def test_missing_tensor_is_reported():
    model = chain(("Relu", {}))
    model.graph.node[0].input[0] = "nowhere"
    with pytest.raises(IntegrityError, match="nowhere"):
        import_model(model)


def test_weights_are_parameters_and_statistics_are_buffers():
    model, _ = make_model(*case("BatchNormalization", f(2, 3, 4), *[C(pos(3)) for _ in range(4)]))
    module = import_model(model)
    assert sorted(name for name, _ in module.named_parameters()) == ["in_1", "in_2"]
    assert sorted(name for name, _ in module.named_buffers()) == ["in_3", "in_4"]


# Whole networks, written in torch and exported.


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.a = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1))
        self.skip = nn.Conv2d(8, 16, 1, 2)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = self.stem(x)
        x = torch.relu(self.a(x) + self.skip(x))
        return self.head(torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1))


class MobileNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(4, 16, 1), nn.BatchNorm2d(16), nn.ReLU6())
        self.depth = nn.Sequential(nn.Conv2d(16, 16, 3, 2, 1, groups=16), nn.BatchNorm2d(16), nn.Hardswish())
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 4, 1), nn.ReLU(), nn.Conv2d(4, 16, 1), nn.Hardsigmoid()
        )
        self.project = nn.Conv2d(16, 8, 1)

    def forward(self, x):
        x = self.depth(self.expand(x))
        x = self.project(x * self.squeeze(x))
        return nn.functional.interpolate(x, scale_factor=2.0, mode="nearest").mean((2, 3))


class Block(nn.Module):
    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x, mask=None):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
        scores = scores if mask is None else scores + mask
        mixed = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = self.norm1(x + self.out(mixed))
        return self.norm2(x + self.down(nn.functional.gelu(self.up(x))))


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(30, 16), nn.Embedding(12, 16)
        self.norm, self.blocks, self.pool = nn.LayerNorm(16), nn.ModuleList([Block(), Block()]), nn.Linear(16, 16)

    def forward(self, tokens, mask):
        x = self.norm(self.words(tokens) + self.places(torch.arange(tokens.shape[1])))
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * -100.0
        for block in self.blocks:
            x = block(x, bias)
        return x, torch.tanh(self.pool(x[:, 0]))


class BertBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        return self.block(x)


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.cls, self.places = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(1, 17, 16))
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(16, 3)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.blocks(x)[:, 0])


NETS = {
    "resnet": (ResNet, lambda: (torch.randn(1, 3, 32, 32),)),
    "mobilenet": (MobileNet, lambda: (torch.randn(1, 4, 12, 12),)),
    "bert": (Bert, lambda: (torch.randint(0, 30, (1, 8)), torch.tensor([[1, 1, 1, 1, 1, 0, 0, 0]]))),
    "bert-block": (BertBlock, lambda: (torch.randn(1, 8, 16),)),
    "vit": (ViT, lambda: (torch.randn(1, 3, 16, 16),)),
}


def exported(name, opset=18):
    torch.manual_seed(3)
    kind, make = NETS[name]
    net, inputs = kind().eval(), make()
    for norm in (each for each in net.modules() if isinstance(each, nn.BatchNorm2d)):
        nn.init.uniform_(norm.running_var, 0.5, 2.0)
        nn.init.normal_(norm.running_mean)
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = [f"x{n}" for n in range(len(inputs))]
        torch.onnx.export(net, inputs, stream, dynamo=False, input_names=names, opset_version=opset)
    return onnx.load_from_string(stream.getvalue()), dict(zip(names, (each.numpy() for each in inputs), strict=True))


@pytest.mark.parametrize("opset", [11, 18])
@pytest.mark.parametrize("name", NETS)
def test_network_equals_onnxruntime(name, opset):
    model, feeds = exported(name, opset)
    assert_close(imported(model, feeds), reference(model, feeds))


@pytest.mark.parametrize("name", NETS)
def test_network_goes_through_torch_export_without_shape_arithmetic(name):
    model, feeds = exported(name)
    module = import_model(model)
    program = torch.export.export(module, tuple(torch.from_numpy(each) for each in feeds.values()))
    targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not any("sym_size" in target or "_local_scalar" in target or ".item" in target for target in targets)


def test_imported_network_can_be_copied_and_trained():
    model, feeds = exported("resnet")
    module = import_model(model)
    twin = copy.deepcopy(module)
    twin(torch.from_numpy(feeds["x0"])).square().sum().backward()
    assert all(each.grad is not None and bool(each.grad.abs().sum() > 0) for each in twin.parameters())
    assert all(each.grad is None for each in module.parameters())
    assert twin.meta["inputs"] == ("x0",)


def test_written_out_gelu_becomes_one_operator():
    model, _ = exported("bert-block")
    assert "Erf" in {node.op_type for node in model.graph.node}
    code = import_model(model).code
    assert code.count("gelu(") == 1
    assert "erf" not in code


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_only_the_exact_form_of_gelu_is_fused(factor):
    one, half, root = (
        numpy_helper.from_array(np.float32(v), n) for v, n in ((1, "one"), (factor, "half"), (2**0.5, "root"))
    )
    nodes = [
        ("Div", "x", "root", "a"),
        ("Erf", "a", None, "b"),
        ("Add", "b", "one", "c"),
        ("Mul", "half", "x", "d"),
        ("Mul", "d", "c", "y"),
    ]
    made = [helper.make_node(op, [p] + ([q] if q else []), [out]) for op, p, q, out in nodes]
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3))
    graph = helper.make_graph(made, "g", [value], [helper.make_empty_tensor_value_info("y")], [one, half, root])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    feeds = {"x": f(2, 3)}
    assert ("gelu" in import_model(model).code) == (factor == 0.5)
    assert_close(imported(model, feeds), reference(onnx.shape_inference.infer_shapes(model), feeds))


@pytest.mark.parametrize("name", ["resnet", "mobilenet", "bert-block", "vit"])
def test_network_converts_to_tflite(name):
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    from anynpu.lowering.lower import lower
    from anynpu.lowering.write import to_bytes

    model, feeds = exported(name)
    runner = interpreter.Interpreter(model_content=to_bytes(lower(model)), num_threads=1)
    runner.allocate_tensors()
    for detail, each in zip(runner.get_input_details(), feeds.values(), strict=True):
        runner.set_tensor(detail["index"], each.astype(detail["dtype"]))
    runner.invoke()
    got = [runner.get_tensor(detail["index"]) for detail in runner.get_output_details()]
    for a, w in zip(got, reference(model, feeds), strict=True):
        np.testing.assert_allclose(a, w, rtol=1e-4, atol=1e-4 * np.abs(w).max())
