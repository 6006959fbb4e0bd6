"""Small nets made sick by exactly one cause, quantised by ONNX Runtime's own tool, which knows none of our repairs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from anynpu.artifact import Artifact, Manifest, Step, seal
from anynpu.measure.samples import FILE, SampleSet, write_samples
from anynpu.pipeline.diagnosis.run import diagnose
from anynpu.records.diagnosis import Diagnosis
from anynpu.tensors import TensorSpec
from anynpu.testing.models import NOW

Samples = Mapping[str, np.ndarray]


@dataclass
class Net:
    """An ONNX graph as it grows; every call adds one node and returns the name of its result."""

    seed: int = 0
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    stored: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.draw = np.random.default_rng(self.seed)

    def __call__(self, kind: str, *inputs: str | np.ndarray, name: str = "", **attributes: object) -> str:
        names = []
        for value in inputs:
            if isinstance(value, np.ndarray):
                names.append(f"c{len(self.stored)}")
                self.stored[names[-1]] = value if value.dtype == np.int64 else value.astype(np.float32)
            else:
                names.append(value)
        result = name or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, names, [result], name=f"n{len(self.nodes)}", **attributes))
        return result

    def normal(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return self.draw.normal(0, scale, shape)

    def weights(self, *shape: int) -> np.ndarray:
        return self.normal(*shape, scale=1 / np.sqrt(np.prod(shape[1:] if len(shape) == 4 else shape[:1])))

    def model(self, inputs: Samples) -> onnx.ModelProto:
        values = [
            helper.make_tensor_value_info(
                name, TensorProto.INT64 if a.dtype == np.int64 else TensorProto.FLOAT, (1, *a.shape[1:])
            )
            for name, a in inputs.items()
        ]
        last = self.nodes[-1].output[0]
        graph = helper.make_graph(
            self.nodes,
            "sick",
            values,
            [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)],
            [numpy_helper.from_array(value, name) for name, value in self.stored.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        return onnx.shape_inference.infer_shapes(model)


def samples(seed: int, *shape: int, count: int = 16, scale: float = 1.0) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(100 + seed).normal(0, scale, (count, *shape)).astype(np.float32)}


def naive(model: onnx.ModelProto, data: Samples) -> onnx.ModelProto:
    """Returns what ONNX Runtime's quantize_static makes of a model: min-max ranges, every operator on its own."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            count = len(next(iter(data.values())))
            self.rows = iter([{name: a[i : i + 1] for name, a in data.items()} for i in range(count)])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.rows, None)

    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        onnx.save(model, before)
        quantize_static(
            before,
            after,
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
        )
        return onnx.load(after)


def ours(model: onnx.ModelProto, data: Samples) -> onnx.ModelProto:
    """Returns what a default build makes of a model."""
    from anynpu.quantize.calibration import Dataset
    from anynpu.quantize.plan import QuantPlan
    from anynpu.quantize.qdq import write_qdq

    return write_qdq(model, Dataset(dict(data), None, "test"), QuantPlan())


def artifact(model: onnx.ModelProto, format: str, data: Samples, folder: Path, fingerprint: str = "") -> Artifact:
    import onnxruntime

    folder.mkdir(parents=True)
    onnx.save(model, folder / "model.onnx")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = tuple(TensorSpec(name, (1, *a.shape[1:]), str(a.dtype)) for name, a in data.items())
    first = session.run(None, {name: a[:1] for name, a in data.items()})
    outputs = tuple(
        TensorSpec(value.name, a.shape, str(a.dtype)) for value, a in zip(session.get_outputs(), first, strict=True)
    )
    return seal(folder, Manifest(format, "model.onnx", inputs, outputs, fingerprint), Step(format), NOW)


def diagnosed(
    model: onnx.ModelProto,
    data: Samples,
    folder: Path,
    quantise: Callable[[onnx.ModelProto, Samples], onnx.ModelProto] = naive,
    calibration: Samples | None = None,
) -> Diagnosis:
    """Returns the diagnosis of a model, quantised with some data, on other data."""
    truth = artifact(model, "onnx", data, folder / "float")
    made = artifact(quantise(model, calibration or data), "onnx-ort", data, folder / "int8")
    (folder / "data").mkdir()
    write_samples(folder / "data", SampleSet(data))
    seal(folder / "data", Manifest("dataset", FILE, truth.manifest.inputs), Step("data"), NOW)
    return diagnose(str(made.path), str(truth.path), "", str(folder / "data"))


def joined_scales(home):
    """Writes a detector that joins pixels and scores under one scale to `net.onnx`, and returns samples for it.

    In 8 bits nothing of the scores is left, in 16 bits enough.
    """
    net = Net()
    first = net("Relu", net("Conv", "x", net.weights(8, 4, 3, 3), kernel_shape=[3, 3], name="stem"), name="seen")
    boxes = net("Mul", net("Conv", first, net.weights(4, 8, 1, 1)), np.array([300.0]), name="boxes")
    scores = net("Sigmoid", net("Conv", first, net.weights(8, 8, 1, 1)), name="scores")
    net("Concat", boxes, scores, axis=1, name="joined")
    data = samples(0, 4, 8, 8, count=40)
    onnx.save(net.model(data), home / "net.onnx")
    return data
