"""A whole proof in one process: import, quantise, execute beside the float model, judge."""

from __future__ import annotations

import contextlib
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from anynpu import schema
from anynpu.artifact import Artifact, Made, Manifest, Step, seal
from anynpu.measure.samples import SampleSet, write_samples
from anynpu.measure.verify import Gate, Verification, judge, verify
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.qdq import write_qdq
from anynpu.source.load import ModelSource, import_model
from anynpu.targets.quantising import bare

MADE = Made("2026-01-01T00:00:00+00:00", 0.0)
RNG = np.random.default_rng(7)
SAMPLES = RNG.normal(size=(60, 8)).astype(np.float32)


def network(text: str, **tensors: Any) -> onnx.ModelProto:
    """Returns the model of an ONNX text graph, with `tensors` as its initializers; numbers are float32."""
    graph = onnx.parser.parse_graph(text)
    for name, values in tensors.items():
        array = np.asarray(values)
        array = array.astype(np.float32) if array.dtype.kind == "f" else array
        graph.initializer.append(numpy_helper.from_array(array, name))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape) / np.sqrt(shape[0])


def artifact(folder: Path, manifest: Manifest, step: str) -> Artifact:
    return seal(folder, manifest, Step(step), MADE)


def proof(
    folder: Path,
    model: onnx.ModelProto,
    samples: Any = SAMPLES,
    plan: QuantPlan | None = None,
    labels: np.ndarray | None = None,
    metric: str = "",
    task: dict[str, Any] | None = None,
) -> Verification:
    """Returns the verification of an int8 (or otherwise planned) build of a model on these samples."""
    plan = plan or QuantPlan()
    inputs = samples if isinstance(samples, dict) else {"x": samples}
    places = {name: folder / name for name in ("float", "int8", "data")}
    for place in places.values():
        place.mkdir(parents=True)
    onnx.save(model, folder / "net.onnx")
    manifest = import_model(ModelSource(str(folder / "net.onnx"), keep_outputs=True), str(places["float"]))
    truth = artifact(places["float"], replace(manifest, task=task or {}), "import")
    result = places["int8"] / "model.onnx"
    source = onnx.load(truth.main)
    if plan.activations == "float32":
        onnx.save(source, result)
    else:
        onnx.save(write_qdq(source, Dataset(inputs, None, "test"), plan), result)
    subject = artifact(places["int8"], replace(bare(truth.manifest, result), format="onnx-ort"), "cpu")
    write_samples(places["data"], SampleSet(inputs, labels))
    with contextlib.redirect_stdout(io.StringIO()):  # progress, for a parent process
        found = verify(
            str(subject.path), str(truth.path), str(places["data"]), str(folder / "vectors.npz"), metric=metric
        )
    return schema.from_dict(Verification, schema.to_dict(replace(found, held_out=True)), "verification")


def judged(*arguments: Any, gate: Gate | None = None, **named: Any) -> Verification:
    """Returns the verification of a build that passes the gate."""
    verification = proof(*arguments, **named)
    judge(verification, gate or Gate())
    return verification
