"""Small ONNX nets, and what executes them: ONNX Runtime, LiteRT's reference kernels, TFLite-Micro."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from anynpu.lowering.integer_file import quantize_file
from anynpu.lowering.lower import lower
from anynpu.lowering.net import runner
from anynpu.lowering.write import to_bytes
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.plan import QuantPlan
from anynpu.tensors import Quantization

SAMPLES = 8


def net(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int]],
    constants: Mapping[str, np.ndarray] | None = None,
    outputs: Sequence[str] = ("y",),
    opset: int = 18,
) -> onnx.ModelProto:
    """Returns a model of float inputs; the shapes of the outputs are inferred."""
    graph = helper.make_graph(
        list(nodes),
        "net",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name, shape in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    for value in graph.output:
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def one(
    op: str, shape: Sequence[int], constants: Mapping[str, np.ndarray] | None = None, opset: int = 18, **attributes
):
    """Returns a model of one operator over the input x and constants."""
    node = helper.make_node(op, ["x", *(constants or {})], ["y"], **attributes)
    return net([node], {"x": shape}, constants, opset=opset)


def samples(model: onnx.ModelProto, seed: int = 0, scale: float = 2.0, count: int = SAMPLES) -> dict[str, np.ndarray]:
    """Returns samples for every input of a model with a batch of one."""
    rng = np.random.default_rng(seed)
    sizes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    return {name: rng.normal(0, scale, (count, *size[1:])).astype(np.float32) for name, size in sizes.items()}


def by_onnx(model: onnx.ModelProto, data: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the first output for each sample."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    count = len(next(iter(data.values())))
    return np.stack([session.run(None, {k: v[i : i + 1] for k, v in data.items()})[0] for i in range(count)])


def _stored(detail, array):
    scale, zero_point = detail["quantization"]
    if not scale:
        return array.astype(detail["dtype"])
    return Quantization((scale,), (zero_point,)).quantize(array, np.dtype(detail["dtype"]).name)


def _real(detail, array):
    scale, zero_point = detail["quantization"]
    return (array.astype(np.float64) - zero_point) * scale if scale else array


def interpreter(content: bytes, kernels: str = "BUILTIN_REF"):
    """Returns a LiteRT interpreter."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = Interpreter(model_content=content, experimental_op_resolver_type=OpResolverType[kernels])
    made.allocate_tensors()
    return made


def by_litert(content: bytes, data: Mapping[str, np.ndarray], kernels: str = "BUILTIN_REF") -> np.ndarray:
    """Returns the first output for each sample as real numbers."""
    made, results = interpreter(content, kernels), []
    details = {d["name"]: d for d in made.get_input_details()}
    output = made.get_output_details()[0]
    for index in range(len(next(iter(data.values())))):
        for name, detail in details.items():
            made.set_tensor(detail["index"], _stored(detail, data[name][index : index + 1]))
        made.invoke()
        results.append(_real(output, made.get_tensor(output["index"])))
    return np.stack(results)


def by_tflm(content: bytes, data: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the first output of TFLite-Micro for each sample as real numbers."""
    from tflite_micro import runtime

    forms = interpreter(content)
    made, results = runtime.Interpreter.from_bytes(content, arena_size=1 << 21), []
    for index in range(len(next(iter(data.values())))):
        for place, detail in enumerate(forms.get_input_details()):
            made.set_input(_stored(detail, data[detail["name"]][index : index + 1]), place)
        made.invoke()
        results.append(_real(forms.get_output_details()[0], made.get_output(0).copy()))
    return np.stack(results)


def decibels(truth: np.ndarray, found: np.ndarray) -> float:
    """Returns the signal-to-noise ratio."""
    noise = float(np.sum((truth - found) ** 2))
    return float(10 * np.log10(np.sum(truth.astype(np.float64) ** 2) / noise)) if noise else 200.0


def quantised(
    model: onnx.ModelProto, data: Mapping[str, np.ndarray], folder: Path, tables: bool = False, **plan
) -> bytes:
    """Returns the file of integers that our own route makes of a model."""
    floating, result = folder / "float.tflite", folder / "integers.tflite"
    floating.write_bytes(to_bytes(lower(model)))
    quantize_file(floating, Dataset(dict(data), None, "test"), QuantPlan(**plan), result, tables=tables)
    return result.read_bytes()


def agrees(model: onnx.ModelProto, data: Mapping[str, np.ndarray] | None = None, tolerance: float = 2e-5) -> None:
    """Fails unless the float file computes what ONNX Runtime does."""
    data = samples(model) if data is None else data
    truth = by_onnx(model, data)
    found = by_litert(to_bytes(lower(model)), data)
    assert found.shape == truth.shape
    top = max(float(np.abs(truth).max()), 1e-6)
    assert float(np.abs(found - truth).max()) <= tolerance * top, lower(model).counts()


def names_agree(model: onnx.ModelProto) -> set[str]:
    """Checks that lowered tensors with the name of an ONNX tensor hold its values, and returns these names."""
    names = [name for node in model.graph.node for name in node.output if name]
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    del whole.graph.output[:]
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = onnxruntime.InferenceSession(whole.SerializeToString(), providers=["CPUExecutionProvider"])
    sample = {name: values[:1] for name, values in samples(model).items()}
    wanted = dict(zip(names, session.run(names, sample), strict=True))
    lowered = runner(lower(model))(sample)
    for name in wanted.keys() & lowered.keys():
        pairs = (np.sort(each[name], axis=None) for each in (wanted, lowered))  # the axes may have another order
        np.testing.assert_allclose(*pairs, rtol=1e-4, atol=1e-4, err_msg=name)
    return wanted.keys() & lowered.keys()
