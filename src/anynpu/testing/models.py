"""Small models and samples with fixed weights, ready as artifacts; none of it needs torch or a converter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anynpu.artifact import Artifact, Made, Manifest, Step, seal
from anynpu.measure.samples import FILE, SampleSet, write_samples
from anynpu.pipeline.planner import plan
from anynpu.platform import Platform
from anynpu.targets.base import Target, Work
from anynpu.tensors import Array, TensorSpec

if TYPE_CHECKING:
    import onnx

OPSET = 17
NOW = Made("1970-01-01T00:00:00+00:00", 0.0)


def conv_net(seed: int = 0) -> onnx.ModelProto:
    """Returns a 1x3x8x8 image net: convolution, ReLU, strided convolution, ReLU, global mean, dense layer to 4."""
    from onnx import helper

    draw = np.random.default_rng(seed)
    weights = {
        "w1": draw.normal(0, 0.3, (8, 3, 3, 3)),
        "b1": draw.normal(0, 0.1, 8),
        "w2": draw.normal(0, 0.2, (16, 8, 3, 3)),
        "b2": draw.normal(0, 0.1, 16),
        "w3": draw.normal(0, 0.4, (16, 4)),
        "b3": draw.normal(0, 0.1, 4),
    }
    nodes = [
        helper.make_node("Conv", ["image", "w1", "b1"], ["c1"], "conv1", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node(
            "Conv", ["r1", "w2", "b2"], ["c2"], "conv2", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]
        ),
        helper.make_node("Relu", ["c2"], ["r2"], "relu2"),
        helper.make_node("GlobalAveragePool", ["r2"], ["mean"], "mean"),
        helper.make_node("Flatten", ["mean"], ["flat"], "flatten"),
        helper.make_node("Gemm", ["flat", "w3", "b3"], ["scores"], "dense"),
    ]
    return _model("conv_net", nodes, weights, {"image": (1, 3, 8, 8)}, {"scores": (1, 4)})


def dense_net(seed: int = 0) -> onnx.ModelProto:
    """Returns a net of two dense layers, 1x16 to 1x8 through a ReLU."""
    from onnx import helper

    draw = np.random.default_rng(seed)
    weights = {
        "w1": draw.normal(0, 0.3, (16, 12)),
        "b1": draw.normal(0, 0.1, 12),
        "w2": draw.normal(0, 0.3, (12, 8)),
        "b2": draw.normal(0, 0.1, 8),
    }
    nodes = [
        helper.make_node("Gemm", ["features", "w1", "b1"], ["h"], "dense1"),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["scores"], "dense2"),
    ]
    return _model("dense_net", nodes, weights, {"features": (1, 16)}, {"scores": (1, 8)})


def _model(
    name: str,
    nodes: list[Any],
    weights: Mapping[str, Array],
    inputs: Mapping[str, tuple[int, ...]],
    outputs: Mapping[str, tuple[int, ...]],
) -> onnx.ModelProto:
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in outputs.items()],
        [numpy_helper.from_array(w.astype(np.float32), n) for n, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def save(model: onnx.ModelProto, path: Path) -> Path:
    """Writes an ONNX file and returns its path."""
    import onnx

    onnx.save(model, str(path))
    return path


def onnx_artifact(model: onnx.ModelProto, folder: Path) -> Artifact:
    """Returns the model as the float artifact that a build starts from, made in the new folder `folder`."""
    from anynpu.source.load import ModelSource, import_model

    folder.mkdir(parents=True)
    source = save(model, folder.parent / f"{folder.name}.onnx")
    return seal(folder, import_model(ModelSource(str(source)), str(folder)), Step("import"), NOW)


def draw_samples(specs: tuple[TensorSpec, ...], count: int = 32, seed: int = 0) -> SampleSet:
    """Returns seeded samples in the form of `specs`: normal numbers, or integers over the range of their type."""
    draw = np.random.default_rng(seed)
    samples: dict[str, Array] = {}
    for spec in specs:
        shape = (count * spec.shape[0], *spec.shape[1:]) if spec.shape else (count,)
        if spec.dtype.startswith("float"):
            samples[spec.name] = draw.normal(0, 1, shape).astype(spec.dtype)
        elif spec.dtype == "bool":
            samples[spec.name] = draw.integers(0, 2, shape).astype(bool)
        else:
            kind, limits = np.dtype(spec.dtype), np.iinfo(spec.dtype)
            samples[spec.name] = draw.integers(limits.min, limits.max, shape, dtype=kind, endpoint=True)
    return SampleSet(samples)


def data_artifact(model: Artifact, folder: Path, count: int = 32, seed: int = 0) -> Artifact:
    """Returns calibration samples for a model as an artifact, made in the new folder `folder`."""
    folder.mkdir(parents=True)
    inputs = model.manifest.inputs
    write_samples(folder, draw_samples(inputs, count, seed))
    details = {"role": "calibration", "samples": count, "random": True, "held_out": True, "sample_digests": []}
    return seal(folder, Manifest("dataset", FILE, inputs, details=details), Step("data"), NOW)


def artifacts(model: onnx.ModelProto, folder: Path) -> tuple[Artifact, Artifact]:
    """Returns a model and calibration samples for it as artifacts, made in the new folders model and data of `folder`.

    They are what `compiled` and the checks of the kit take.
    """
    model_artifact = onnx_artifact(model, folder / "model")
    return model_artifact, data_artifact(model_artifact, folder / "data")


def compiled(
    target: Target, model: Artifact, data: Artifact | None, platform: Platform, options: Any, folder: Path
) -> Artifact:
    """Returns what a compiler makes of an artifact, sealed in `folder`/artifact; the log is `folder`/log.txt.

    `folder` is new, or one in which a compiler has failed: it leaves nothing there but its log.
    """
    out = folder / "artifact"
    out.mkdir(parents=True, exist_ok=True)
    samples = data if target.needs_data(options) else None
    work = Work(folder / "log.txt", lambda done, total: None)
    return seal(out, target.compile(model, samples, platform, options, out, work), Step(target.name), NOW)


def chain_inputs(
    platform: Platform, model: Artifact, data: Artifact, folder: Path
) -> tuple[tuple[Target, Artifact], ...]:
    """Returns each compiler on the way to a chip with the artifact it is given, made with the default options."""
    pairs: list[tuple[Target, Artifact]] = []
    current = model
    links = plan(platform, {})
    for link in links:
        pairs.append((link.target, current))
        if link is not links[-1]:
            current = compiled(link.target, current, data, platform, link.options, folder / link.target.name)
    return tuple(pairs)
