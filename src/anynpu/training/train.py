"""Trains a float ONNX model for the rounding of one compiler, and writes the model that the compiler is to take."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from anynpu import schema, tool
from anynpu.artifact import Artifact
from anynpu.errors import AccuracyError, ConfigError, IntegrityError
from anynpu.files import write_whole
from anynpu.measure.samples import SampleSet, read_samples
from anynpu.source.torch_arrays import to_tensor
from anynpu.tasks import card
from anynpu.tasks.detect import Detector
from anynpu.tasks.model import Model
from anynpu.tasks.yolo import Layout
from anynpu.tensors import Array
from anynpu.training.files import INTEGERS, RECORD
from anynpu.training.fit import Fit, Lesson, Settings, answers_of, batch_of, check_samples, prepare_torch
from anynpu.training.record import MODEL, Epoch, TrainingRecord
from anynpu.training.scheme import Scheme, grids
from anynpu.training.student import Student


def train(
    model: str, data: str, scheme: dict[str, Any], settings: dict[str, Any], out: str, checkpoint: str, macs: float
) -> dict[str, Any]:
    """Writes the trained model, its record and its integers into a folder (runs in a child process)."""
    source = Artifact.open(Path(model))
    loaded = onnx.load(source.main)
    rounding = schema.from_dict(Scheme, scheme, "scheme")
    how = schema.from_dict(Settings, settings, "settings")
    samples = read_samples(Path(data))
    check_samples(samples.inputs)
    torch = prepare_torch(macs)
    torch.manual_seed(how.seed)
    student = Student(loaded, rounding, how.learn_ranges)
    lesson = replace(_lesson(loaded, samples, batch_of(macs)), maps=_maps(source))
    fit = Fit(student, lesson, how, macs)

    def report(epoch: Epoch, planned: int) -> None:
        tool.report_progress(epoch.number, planned)
        words = f"epoch {epoch.number} of {planned}: loss {epoch.loss:.4f}, held-out loss {epoch.held_out_loss:.4f}"
        tool.ask(words)

    fit.run(Path(checkpoint), report)
    final, values = student.trained()
    record = TrainingRecord(
        final,
        len(samples),
        lesson.labels is not None,
        fit.device,
        how.seed,
        tuple(fit.history),
        planned=fit.epochs,
    )
    write_trained(loaded, record, values, Path(out))
    return schema.to_dict(record)  # type: ignore[no-any-return]


def _lesson(model: onnx.ModelProto, samples: SampleSet, batch: int) -> Lesson:
    """Returns the samples with the float model's answers as torch has them."""
    import torch

    from anynpu.source.onnx_torch import import_model

    teacher: Any = import_model(model)
    names, outputs = teacher.meta["inputs"], teacher.meta["outputs"]
    inputs = {name: to_tensor(samples.inputs[name][:, None]) for name in names}
    answers = answers_of(teacher, inputs, outputs, "cpu", batch)
    for name, values in answers.items():
        if not bool(torch.isfinite(values).all()):
            raise AccuracyError(
                f"training: the float model's output {name} holds NaN or infinity on the training samples",
                "loss",
                float("nan"),
                0.0,
                hint="a model that gives no numbers cannot be learnt from: fix it, or leave --qat out",
            )
    if samples.labels is None:
        return Lesson(inputs, answers)
    labels, scored = _classes(samples.labels, answers)
    return Lesson(inputs, answers, labels, scored)


def _maps(model: Artifact) -> Layout | None:
    """Returns where a detector has its boxes and scores, if they are decoded on the host."""
    if not model.manifest.task or not (chosen := card.of(model)).card.yolo:
        return None
    specs = model.manifest.inputs, model.manifest.outputs
    layout = Detector(Model(chosen.card, chosen.files, *specs, lambda inputs: {})).layout
    return layout if layout.parts[0].stride else None


def _classes(labels: Array, answers: Mapping[str, Any]) -> tuple[Any, str]:
    """Returns labels as classes of the model's only output with one score for each, or raises."""

    name, values = next(iter(answers.items()))
    count = int(values[0].numel())
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(answers) != 1:
        raise ConfigError(
            "training: the labels are not one class for each sample of a model with one output",
            "leave the labels out of --data: the float model teaches without them",
        )
    if labels.min() < 0 or labels.max() >= count:
        raise ConfigError(
            f"training: labels go from {labels.min()} to {labels.max()}, the output {name} has {count} classes",
            f"number the classes from 0 to {count - 1}, or leave the labels out",
        )
    return to_tensor(labels.astype(np.int64)), name


def write_trained(model: onnx.ModelProto, record: TrainingRecord, values: Mapping[str, Array], out: Path) -> None:
    """Writes the model with trained weights on their grids, the record, and the integers."""
    stored, real = grids(record.scheme, values)
    for tensor in model.graph.initializer:
        if (trained := real.get(tensor.name)) is not None:
            before = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(trained.astype(before.dtype).reshape(before.shape), tensor.name))
    missing = set(record.scheme.weights) - set(stored)
    if missing:
        raise IntegrityError(f"training: the weights {sorted(missing)[0]} have no place in the model file")
    onnx.save(model, out / MODEL)
    (out / RECORD).write_text(schema.canonical_json(schema.to_dict(record)) + "\n", "utf-8")
    buffer = io.BytesIO()
    np.savez(buffer, **stored)  # type: ignore[arg-type]  # numpy types the keywords as its own options
    write_whole(out / INTEGERS, buffer.getvalue())
