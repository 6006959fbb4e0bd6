"""anynpu eval: how good is an artifact on labelled data, and is it better than another?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import click

from anynpu import schema
from anynpu.api.compare import LEVEL_SHARE
from anynpu.api.feed import ZOO, judging_samples, source_specs, usual_metric
from anynpu.artifact import Artifact
from anynpu.cli.command import threshold
from anynpu.cli.compare import Level
from anynpu.cli.embed import TEMPLATE
from anynpu.cli.eval_text import show
from anynpu.cli.flags import read_preprocess
from anynpu.cli.progress import observer
from anynpu.cli.run import open_on
from anynpu.cli.table import print_record
from anynpu.cli.task import TaskFlags, opened, second_model
from anynpu.cli.verb import Writes, argument, flag, table, verb
from anynpu.errors import ConfigError, on_one_line
from anynpu.files import write_whole
from anynpu.measure import evaluate
from anynpu.measure.annotations import read_annotations
from anynpu.measure.calibrated import Calibrated
from anynpu.measure.compare import WORSE, Rules, side_of, verdict_of
from anynpu.measure.evaluate import Outcome, Progress
from anynpu.measure.labels import class_numbers, folder_classes, read_labels, require_fit, require_metric
from anynpu.measure.pairs import read_pairs
from anynpu.measure.threshold import sentences
from anynpu.pipeline import disjoint
from anynpu.records.eval import Against, ClassFigures, EvalRecord, FailedInput, ScoredData
from anynpu.records.parts import as_json, now, own_version
from anynpu.records.shared import Figure
from anynpu.seals import with_seal
from anynpu.tasks import card as cards
from anynpu.tasks.classify import Classifier
from anynpu.tasks.detect import Detector, Threshold
from anynpu.tasks.embed import ImageTower, TextTower, ZeroShot
from anynpu.tasks.images import Preprocess
from anynpu.tasks.model import Model
from anynpu.tensors import by_name

ARRAYS = "arrays"
"""What a model without a card is scored on."""


@dataclass(frozen=True)
class Evaluated:
    """An artifact that was scored: what executed it, what it is for, what came out."""

    artifact: Artifact
    executed: str
    task: str
    outcome: Outcome
    notes: tuple[str, ...]
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Eval(Writes, Level, TaskFlags):
    """An artifact, the labelled data it is scored on, and how."""

    artifact: Path = argument()
    data: str = flag("Images, sentence pairs, labelled .npz or zoo:NAME.", metavar="SOURCE")
    annotations: Path | None = flag("Boxes: COCO's .json, or VOC's .xml or a folder.", None)
    metric: str = flag("The figure that is the score; by default the task's usual one.", "")
    against: Path | None = flag("Compare with this artifact, sample by sample.", None, metavar="ARTIFACT")
    text_model: Path | None = flag("Zero-shot: the text tower.", None, metavar="ARTIFACT")
    template: str = flag("Zero-shot: the text around a class.", TEMPLATE, shown=True)
    rename: Mapping[str, str] = table("What the card calls a class of the data.", "--rename", metavar="NAME=LABEL")
    conf: float = flag("Boxes: minimum score.", 0.001, minimum=0, maximum=1, shown=True)
    iou: float = flag("Boxes: maximum overlap.", Threshold.iou, minimum=0, maximum=1, shown=True)
    multi_label: bool = flag("Boxes: a box counts for every class above --conf, as in COCO's tables.", False)
    limit: int | None = flag("Take only the first samples.", None, minimum=1)
    preprocess: Preprocess | None = flag(
        "How images become inputs, for a model without a card.", None, "-P", metavar="NAME=VALUE", read=read_preprocess
    )
    allow_overlap: bool = flag("Score on calibration samples too; the score is marked as such.", False)


@verb(Eval, "eval")
def eval_(asked: Eval) -> int:
    """Score an artifact on labelled data, with an interval.

    The artifact's card says what is scored: classes of a folder with one sub-folder per class (top-1, top-5); boxes of
    images with COCO or VOC annotations (mAP as pycocotools computes it); sentence pairs in a .csv or .tsv (Spearman);
    zero-shot classes with --text-model. A model without a card takes a labelled .npz and --metric. Samples that also
    calibrated the artifact are refused. With --against both are judged on the same samples; status 1 if the artifact
    is worse, or if part of the data could not be read.

    \b
    anynpu eval out/cpu --data test/
    anynpu eval out/cpu --data val2017/ --annotations instances_val2017.json -o eval.json
    anynpu eval out/tflm --data test.npz --metric top1 --against out/float
    """
    asked.require_free(asked.data, asked.annotations, asked.tokenizer)
    rules = Rules(asked.level, 0.0)
    if asked.against is None:
        asked.refuse_unused("there is no --against", "level")
    if asked.text_model is None:
        asked.refuse_unused("there is no --text-model", "template")
    subject = _evaluated(asked.artifact, asked)
    metric = evaluate.choose_metric(subject.outcome, asked.metric)
    record = _record(subject, metric, asked)
    if asked.against is not None:
        other = _evaluated(asked.against, replace(asked, device=None))
        gate = (threshold("level", rules.level, LEVEL_SHARE),)
        notes = (*record.notes, *(note for note in other.notes if note not in record.notes), *sentences(gate))
        against = _against(subject, other, metric, rules.level)
        record = replace(record, against=against, gate=gate, notes=notes)
    record = with_seal(record)
    if asked.output is not None:
        write_whole(asked.output, as_json(schema.to_dict(record)))
    if asked.json:
        print_record(record)
    else:
        show(record)
    for message in subject.outcome.failed.values():
        click.echo(on_one_line(f"anynpu: {message}"), err=True)
    worse = record.against is not None and record.against.verdict == WORSE
    return 1 if worse or subject.outcome.failed else 0


@contextmanager
def _progress(path: Path, quiet: bool) -> Iterator[Progress]:
    """Gives a function that shows how many samples are done, on stderr."""
    name, start = path.resolve().name, time.perf_counter()
    with observer(quiet) as shown:
        shown.started(name, "eval")
        yield shown.progress
        shown.finished(name, "eval", time.perf_counter() - start, False)


def _evaluated(path: Path, asked: Eval) -> Evaluated:
    """Returns what one artifact does with the data."""
    artifact = Artifact.open(path)
    task, tokenizer = asked.task, asked.tokenizer
    kind = cards.of(artifact, task, tokenizer).card.kind if artifact.manifest.task or task else ARRAYS
    if kind != "detect":
        asked.refuse_unused("the model is not a detector", "conf", "iou")
    if kind != ARRAYS and asked.preprocess:
        raise ConfigError("-P: the card says how images become inputs", "change the card, or give one with --task")
    if kind == ARRAYS or (
        kind == "classify"
        and (asked.data.endswith((".npz", ".npy")) or asked.data.startswith(ZOO) or ".py:" in asked.data)
    ):
        _refuse(asked, "labelled arrays", "annotations", "text_model", "rename", "multi_label", "channels", "strict")
        with _progress(path, asked.quiet) as progress:
            return _arrays(artifact, kind, asked, progress)
    evaluate.check_metric(kind, asked.metric)
    with opened(path, kind, asked) as model, _progress(path, asked.quiet) as progress:
        score = {"classify": _classes, "detect": _boxes, "embed-text": _pairs, "embed-image": _zero_shot}
        outcome, notes = score[kind](artifact, model, asked, progress)
        return Evaluated(artifact, model.what, kind, outcome, tuple(notes), model.versions)


def _refuse(asked: Eval, what: str, *names: str) -> None:
    """Raises for a flag that does not go with what is scored."""
    for name in names:
        if getattr(asked, name):
            raise ConfigError(f"--{name.replace('_', '-')} does not go with {what}")


def _images_apart(artifact: Artifact, model: Model, files: Sequence[Path], asked: Eval) -> list[str]:
    known = disjoint.known_of(artifact)
    overlap = disjoint.of_images(known, files, model.card.preprocess) if isinstance(known, Calibrated) else known
    return disjoint.require(overlap, asked.allow_overlap, artifact.path)


def _classes(artifact: Artifact, model: Model, asked: Eval, progress: Progress) -> tuple[Outcome, list[str]]:
    """Returns the accuracy of a classifier on a folder with one sub-folder a class."""
    _refuse(asked, "a classifier", "annotations", "text_model", "multi_label")
    judge, folder = Classifier(model), evaluate.Folder.open(Path(asked.data), asked.limit)
    numbers, note = folder_classes(folder.classes, judge.labels, asked.rename, named=bool(model.card.labels))
    notes = [note, *_images_apart(artifact, model, folder.files, asked)]
    reader = evaluate.Reader(folder.files, progress)
    scores = judge(reader)
    reader.require()
    labels = [numbers[folder.labels[at]] for at in reader.read]
    import numpy as np

    return replace(evaluate.classified(scores, np.asarray(labels, np.int64)), failed=reader.failed), notes


def _zero_shot(artifact: Artifact, model: Model, asked: Eval, progress: Progress) -> tuple[Outcome, list[str]]:
    """Returns the accuracy of two towers on a folder: its classes in words are the labels."""
    _refuse(asked, "zero-shot classes", "annotations", "multi_label")
    if asked.text_model is None:
        raise ConfigError("images are scored zero-shot, which needs the text tower", "give --text-model ARTIFACT")
    folder = evaluate.Folder.open(Path(asked.data), asked.limit)
    class_numbers(folder.classes, [asked.rename.get(c, c) for c in folder.classes], asked.rename)
    words = [asked.rename.get(name, name.replace("_", " ")) for name in folder.classes]
    if len(set(words)) < max(len(words), 2):
        raise ConfigError("zero-shot needs at least two classes, all different", "the names of the sub-folders")
    notes = _images_apart(artifact, model, folder.files, asked)
    with opened(asked.text_model, "embed-text", second_model(asked)) as texts:
        judge = ZeroShot.of(ImageTower(model), TextTower(texts), words, asked.template)
    reader = evaluate.Reader(folder.files, progress)
    scores = judge(reader)
    reader.require()
    outcome = evaluate.classified(scores, folder.labels[reader.read])
    return replace(outcome, failed=reader.failed), [*notes, f"zero-shot, template {asked.template!r}"]


def _boxes(artifact: Artifact, model: Model, asked: Eval, progress: Progress) -> tuple[Outcome, list[str]]:
    """Returns the mAP of a detector on annotated images."""
    _refuse(asked, "a detector", "text_model")
    folder = Path(asked.data)
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder", "a detector is scored on a folder of images")
    if asked.annotations is None:
        raise ConfigError("what is in the images?", "give --annotations: COCO's .json, or VOC's .xml or a folder")
    data = read_annotations(asked.annotations)
    data = replace(data, images=data.images[: asked.limit])
    detector = Detector(model, Threshold(asked.conf, asked.iou, multi_label=asked.multi_label))
    detector.layout  # noqa: B018  # a model that is not a detector is refused before anything is read
    present = []
    for image in data.images:
        with suppress(ConfigError):  # it is named when its turn comes
            present.append(evaluate.image_file(folder, image))
    notes = _images_apart(artifact, model, present, asked)
    outcome = evaluate.detected(detector, folder, data, asked.rename, progress)
    if asked.multi_label:
        notes.append("a box counts for every class above --conf (multi-label), and not for its best class only")
    return outcome, [*outcome.notes, *notes]


def _pairs(artifact: Artifact, model: Model, asked: Eval, progress: Progress) -> tuple[Outcome, list[str]]:
    """Returns how well a text model's cosines follow the scores of sentence pairs."""
    _refuse(asked, "sentence pairs", "annotations", "text_model", "rename", "multi_label", "channels", "strict")
    pairs = read_pairs(Path(asked.data), asked.limit)
    known = disjoint.known_of(artifact)
    texts = (*pairs.first, *pairs.second)
    overlap = disjoint.of_texts(known, texts, model.card, model.files) if isinstance(known, Calibrated) else known
    notes = disjoint.require(overlap, asked.allow_overlap, artifact.path)
    return evaluate.correlated(pairs, TextTower(model), progress), notes


def _arrays(artifact: Artifact, kind: str, asked: Eval, progress: Progress) -> Evaluated:
    """Returns the score of any model on labelled arrays."""
    import numpy as np

    from anynpu.measure.paired import SQUARED_ERROR, metric_of
    from anynpu.runtime.base import run_real

    require_metric(asked.metric, evaluate.ARRAY_METRICS)
    inputs, outputs = source_specs(artifact)
    data = judging_samples(asked.data, inputs, asked.preprocess, asked.limit, artifact)
    if data.labels is None:
        raise ConfigError(f"{asked.data}: has no labels", "an .npz needs an array `labels`, a folder sub-folders")
    metric = (
        asked.metric or usual_metric(asked.data) or ("top1" if kind == "classify" else metric_of(data.labels, outputs))
    )
    names = cards.of(artifact, asked.task, asked.tokenizer).card.labels if kind != ARRAYS else ()
    if metric != SQUARED_ERROR:
        require_fit(metric, inputs, outputs)
    labels = read_labels(metric, data.labels, data.folders, outputs, names, asked.data)
    known = disjoint.known_of(artifact)
    overlap = disjoint.of_arrays(known, data) if isinstance(known, Calibrated) else known
    notes = [*labels.notes, *disjoint.require(overlap, asked.allow_overlap, artifact.path)]
    like, rows = by_name((*inputs, *outputs)), []
    with open_on(artifact, asked) as session:
        for at in range(len(data)):
            rows.append(run_real(session.runtime, data[at], like))
            progress(at + 1, len(data))
        versions = session.versions
    answers = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    outcome = evaluate.scored(metric, data.inputs, answers, labels.values)
    return Evaluated(artifact, session.executed, kind, outcome, tuple(notes), versions)


def _record(subject: Evaluated, metric: str, asked: Eval) -> EvalRecord:
    """Returns a score and its conditions."""
    outcome, side = subject.outcome, side_of(subject.artifact)
    figures = evaluate.figures(outcome)
    named = dict(zip(outcome.names, figures, strict=False))
    count, first = len(outcome.classes), len(outcome.names)
    weak, score = evaluate.weak(outcome), named[metric]
    return EvalRecord(
        schema_version=1,
        kind="eval",
        anynpu=own_version(),
        at=now(),
        path=str(subject.artifact.path),
        artifact=side.artifact,
        fingerprint=side.fingerprint,
        chip=side.chip,
        tools=dict(side.tools or {}),
        options=dict(side.options or {}),
        executed=subject.executed,
        versions=dict(subject.versions),
        task=subject.task,
        metric=metric,
        score=score.value,
        low=score.low,
        high=score.high,
        interval=evaluate.interval_of(outcome),
        samples=outcome.samples,
        unit=outcome.unit,
        weak=bool(weak),
        overlap=any(note.startswith("OVERLAP") for note in subject.notes),
        metrics=named,
        classes=tuple(
            ClassFigures(name=name, ap=figures[first + at], ap50=figures[first + count + at])
            for at, name in enumerate(outcome.classes)
        ),
        data=ScoredData(
            source=str(asked.data),
            annotations=str(asked.annotations or ""),
            samples=outcome.samples,
            failed=tuple(FailedInput(input=name, message=text) for name, text in outcome.failed.items()),
        ),
        notes=tuple(note for note in (weak, evaluate.no_better(outcome), *subject.notes) if note),
    )


def _against(subject: Evaluated, other: Evaluated, metric: str, level: float) -> Against:
    """Returns the paired comparison with another artifact; the difference is the subject minus the other."""
    if subject.task != other.task:
        raise ConfigError(f"one model is for {subject.task}, the other for {other.task}: nothing can be compared")
    comparison = evaluate.against(other.outcome, subject.outcome, metric)
    figure = evaluate.figures(other.outcome)[other.outcome.names.index(metric)]
    return Against(
        path=str(other.artifact.path),
        artifact=other.artifact.digest,
        fingerprint=other.artifact.manifest.fingerprint,
        executed=other.executed,
        score=figure.value,
        low=figure.low,
        high=figure.high,
        difference=Figure(*comparison.difference),
        test=comparison.test,
        p_value=comparison.p_value,
        level=level,
        verdict=verdict_of(comparison.gain, comparison.p_value, level, 0.0),
    )
