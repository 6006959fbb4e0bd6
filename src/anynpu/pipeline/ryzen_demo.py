"""The whole way to a Ryzen AI NPU on a small model: create, export, quantise, run on the CPU, find the NPU, run there.

Everything but the run on the NPU works on any machine. Where there is no NPU, the result says so in one sentence. Where
Quark is missing, our own 8 bits for the CPU stand where its model would, and the error goes with the result.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from anynpu import plugins, schema, tool
from anynpu.artifact import Artifact
from anynpu.drivers import ryzenai
from anynpu.drivers.root import Root
from anynpu.drivers.ryzen_sdk import GET
from anynpu.errors import AccuracyError, AnyNpuError, ConfigError, ToolMissing
from anynpu.measure.execution import run_all
from anynpu.measure.fidelity import compare_outputs
from anynpu.measure.load import Runner, Settings
from anynpu.measure.metrics import score
from anynpu.measure.outcome import to_record
from anynpu.measure.samples import LABELS, SampleSet, read_samples
from anynpu.measure.subject import Infer, session_of
from anynpu.measure.verify import Gate, class_axes
from anynpu.pipeline.build import build
from anynpu.pipeline.observer import Observer
from anynpu.pipeline.request import Request
from anynpu.pipeline.result import BuildResult, ChipResult
from anynpu.records.bench import Cold, Latency
from anynpu.records.build import Receipt
from anynpu.records.parts import error_record, own_version, receipt
from anynpu.runtime.abilities import placement_of
from anynpu.runtime.base import sessions_for
from anynpu.runtime.vitisai import VitisAiSession
from anynpu.runtime.vitisai_cache import CompileCache
from anynpu.schema import JsonObject
from anynpu.source import zoo
from anynpu.source.load import ModelSource
from anynpu.store import Store
from anynpu.tensors import Array

MODEL, METRIC = "hello", "mean_top1"
TARGET, DEFAULT_CHIP = "vitisai", "ryzen-ai-stx"
WITHOUT_QUARK = "cpu"
SAMPLES = 50
LOAD = Settings(min_time_s=1.0, min_count=700, max_time_s=15.0)
"""The 99th percentile needs 662 runs; a network at 224x224 on a slow CPU gets as many as fit into the time."""
PERCENTILES = ("p50", "p90", "p99")
STAGE = "demo"


@dataclass(frozen=True)
class Asked:
    """What the user asks for; `root` is another machine's files, for tests."""

    npu: str = "auto"
    precision: str = "xint8"
    size: int = 32
    clear_cache: bool = False
    root: Root | None = None
    load: Settings = LOAD

    def __post_init__(self) -> None:
        tile = zoo.card(MODEL).input_shape[-1]
        if self.size < tile or self.size % tile:
            raise ConfigError(
                f"--size {self.size}: a multiple of {tile} was expected", "224 is the size of the tutorial"
            )


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """How far the worst output is from its reference."""

    sqnr_db: float
    cosine: float


@dataclass(frozen=True, kw_only=True)
class Run(schema.Whole):
    """One thing that ran, as the record has it."""

    run: str
    samples: int
    sqnr_db: float
    cosine: float
    mean_top1: float | None
    against_cpu: Accuracy | None = schema.about("the NPU against the same model on the CPU", None, optional=True)
    executed: str
    warmup: int
    runs: int
    cold: Cold | None
    ms: Mapping[str, float | None]
    samples_ms: tuple[float, ...]
    receipt: Receipt | None


@dataclass
class Demo:
    """What came of it: the build, what was found, and a row for everything that ran."""

    asked: Asked
    chip: str
    found: ryzenai.Search
    built: BuildResult
    rows: list[Run] = field(default_factory=list)
    npu: str = ""
    """Why nothing ran on the NPU, or an empty string."""
    receipt: Receipt | None = None
    error: AnyNpuError | None = None
    dropped: int = 0

    @property
    def exit_status(self) -> int:
        return 0 if self.error is None else self.error.exit_status


def run(asked: Asked, store: Store, observer: Observer) -> Demo:
    """Goes the whole way; what stops the build raises, what stops the run on the NPU is part of the result."""
    search = ryzenai.find(asked.root)
    # The chip to quantise for: the one named, the one found, or Strix Point
    if asked.npu == "auto":
        known = [npu.chip for npu in (*search.usable, *search.npus) if npu.chip]
        chip = known[0] if known else DEFAULT_CHIP
    else:
        platform = plugins.platform(asked.npu)
        if platform.target != TARGET:
            raise ConfigError(
                f"--npu {asked.npu}: is not a Ryzen AI chip", "ryzen-ai-phx, ryzen-ai-stx or ryzen-ai-krk"
            )
        chip = platform.name
    missing = None
    try:
        plugins.load("targets", TARGET)().tools()
    except ToolMissing as error:
        missing = ToolMissing(f"nothing is quantised for the NPU: {error.message}", error.hint)
    with tempfile.TemporaryDirectory() as folder:
        built = build(_request(asked, WITHOUT_QUARK if missing else chip, Path(folder)), store, observer)
    result = built.chips[0]
    if result.error is not None:
        raise result.error
    demo = Demo(asked, chip, search, built, error=missing, npu=missing.message if missing else "")
    measure(demo, store, observer)
    return demo


def measure(demo: Demo, store: Store, observer: Observer) -> None:
    """Adds what the built model does on the CPU, and on the NPU where there is one."""
    result = demo.built.chips[0]
    model, quantised, data = _parts(demo, result)
    samples = read_samples(data.path).first(SAMPLES)
    expected: dict[str, Array] | None = None
    precision = "int8 by anynpu" if result.chip == WITHOUT_QUARK else demo.asked.precision
    for name, artifact in (("float, CPU", model), (f"{precision}, CPU", quantised)):
        started = time.monotonic()
        observer.started(STAGE, name)
        kind = cpu_session(artifact.manifest.format)
        outputs = run_all(kind(artifact), samples, model)
        expected = outputs if expected is None else expected
        accuracy = _accuracy(model, expected, outputs)
        demo.rows.append(_timed(name, kind, artifact, samples, demo.asked.load, accuracy, _score(samples, outputs)))
        observer.finished(STAGE, name, time.monotonic() - started, False)
    if demo.error is None:
        _on_npu(demo, demo.built.chips[0], store, observer)


def _request(asked: Asked, chip: str, folder: Path) -> Request:
    """Returns the build: the zoo's own samples, or for a larger input the same textures as tiles."""
    card, options = zoo.card(MODEL), {} if chip == WITHOUT_QUARK else {"precision": asked.precision}
    tiles = asked.size // card.input_shape[-1]
    # The receipt of the run judges what is on the NPU, not the compiler's prediction.
    request = Request(ModelSource(f"zoo:{MODEL}"), (chip,), metric=METRIC, options=options, require_npu=0.0)
    if tiles == 1:
        return request
    shape = (*card.input_shape[:2], asked.size, asked.size)
    source = ModelSource(f"zoo:{MODEL}", shapes={card.input_name: shape})
    files = {}
    for split, count in (("calibration", max(8, 256 // tiles**2)), ("test", max(4, 200 // tiles**2))):
        samples = zoo.samples(MODEL, split, count)  # type: ignore[arg-type]  # both are splits
        arrays = {name: np.tile(values, (1, 1, tiles, tiles)) for name, values in samples.inputs.items()}
        files[split] = folder / f"{split}.npz"
        np.savez(files[split], **{LABELS: samples.labels}, **arrays)  # type: ignore[arg-type]  # as in samples.py
    return replace(request, source=source, data=str(files["calibration"]), test=str(files["test"]))


def _parts(demo: Demo, result: ChipResult) -> tuple[Artifact, Artifact, Artifact]:
    """Returns the float model, the quantised one and the held-out samples."""
    assert demo.built.model is not None and result.artifact is not None and demo.built.test is not None
    return demo.built.model, result.artifact, demo.built.test


def cpu_session(format: str) -> Any:
    """Returns the session class that runs a format on the CPU."""
    able = [kind for kind in sessions_for(format) if kind is not VitisAiSession and not kind.missing()]
    if not able:
        raise ToolMissing(f"nothing on this machine executes {format} on the CPU", "pip install 'anynpu[build]'")
    return able[0]


def _accuracy(model: Artifact, expected: Mapping[str, Array], outputs: Mapping[str, Array]) -> Accuracy:
    worst = min(compare_outputs(expected, outputs, class_axes(model)).values(), key=lambda f: f.sqnr_db)
    return Accuracy(sqnr_db=worst.sqnr_db, cosine=worst.cosine)


def _score(samples: SampleSet, outputs: Mapping[str, Array]) -> float | None:
    return None if samples.labels is None else score(METRIC, dict(samples.inputs), dict(outputs), samples.labels)


def _timed(
    name: str,
    open_session: Any,
    artifact: Artifact,
    samples: SampleSet,
    load: Settings,
    accuracy: Accuracy,
    right: float | None,
) -> Run:
    """Returns accuracy and the latency of one sample again and again, after warming up."""
    first = next(iter(samples))
    runner = Runner(lambda: Infer(open_session(artifact), first), load)
    try:
        result = runner.run()
        placed = receipt(placement_of(session_of(runner.subject)))
    finally:
        runner.close()
    if result.error is not None:
        raise result.error
    record = to_record(result)
    latency = record.latency or Latency()
    estimates = latency.summary.percentiles if latency.summary else {}
    return Run(
        run=name,
        samples=len(samples),
        sqnr_db=accuracy.sqnr_db,
        cosine=accuracy.cosine,
        mean_top1=right,
        executed=record.executed,
        warmup=record.warmup,
        runs=record.runs,
        cold=record.cold,
        ms={each: estimates[each].value if each in estimates else None for each in PERCENTILES},
        samples_ms=tuple(latency.samples),
        receipt=placed,
    )


def _on_npu(demo: Demo, result: ChipResult, store: Store, observer: Observer) -> None:
    """Adds the run on the NPU, or the sentence that says why there is none."""
    model, quantised, data = _parts(demo, result)
    if demo.asked.clear_cache:
        main = next(entry for entry in quantised.manifest.files if entry.path == quantised.manifest.main)
        demo.dropped = len(CompileCache(store.cache).clear(main.sha256))
    # An NPU of unknown revision is tried where the user names the chip.
    named = demo.asked.npu != "auto" and any(not npu.chip for npu in demo.found.npus)
    if not demo.found.usable and not named:
        demo.npu = demo.found.sentence()
        return
    started = time.monotonic()
    observer.started(STAGE, "NPU")
    try:
        if reason := VitisAiSession.missing():
            raise ToolMissing(reason, GET)
        log = store.cache / "logs" / "demo-ryzen-ai.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        names = ("model", "quantised", "data")
        arguments = {name: str(part.path) for name, part in zip(names, (model, quantised, data), strict=True)}
        arguments |= {
            "name": f"{demo.asked.precision}, NPU",
            "cache": str(store.cache),
            "root": str(demo.asked.root.folder) if demo.asked.root else "",
        }
        with tempfile.TemporaryDirectory() as scratch:
            answer = tool.call(
                f"{__name__}:on_npu", {**arguments, "load": demo.asked.load}, scratch=Path(scratch), log=log
            )
        row = schema.from_dict(Run, answer, "on_npu")
        demo.receipt = row.receipt
        demo.rows.append(row)
        sqnr_db, wanted = row.sqnr_db, Gate().min_sqnr_db
        if sqnr_db < wanted:
            message = f"the NPU's results are {sqnr_db:.1f} dB SQNR from the float model; {wanted:g} dB is asked for"
            hint = "the same model is right on the CPU: update the driver"
            raise AccuracyError(message, "sqnr_db", sqnr_db, wanted, hint=hint)
    except AnyNpuError as error:
        demo.error, demo.npu = error, demo.npu or error.message
    observer.finished(STAGE, "NPU", time.monotonic() - started, False)


def on_npu(name: str, model: str, quantised: str, data: str, cache: str, root: str, load: Settings) -> Run:
    """Returns accuracy, latency and receipt of a run on the NPU (runs in a child process)."""
    truth, subject = Artifact.open(Path(model)), Artifact.open(Path(quantised))
    samples = read_samples(Path(data)).first(SAMPLES)
    expected = run_all(cpu_session(truth.manifest.format)(truth), samples, truth)
    on_cpu = run_all(cpu_session(subject.manifest.format)(subject), samples, truth)

    def opened(artifact: Artifact) -> Any:
        return VitisAiSession(artifact, Root(Path(root)) if root else None, Path(cache))

    session = opened(subject)
    outputs = run_all(session, samples, truth)
    session.close()
    accuracy, right = _accuracy(truth, expected, outputs), _score(samples, outputs)
    row = _timed(name, opened, subject, samples, load, accuracy, right)
    return replace(row, against_cpu=_accuracy(truth, on_cpu, outputs))


def record(demo: Demo) -> JsonObject:
    """Returns everything that the demo tells, as plain data."""
    model, quantised, _ = _parts(demo, demo.built.chips[0])
    return {
        "schema_version": 1,
        "kind": "demo-ryzen-ai",
        "anynpu": own_version(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "chip": demo.chip,
        "built": demo.built.chips[0].chip,
        "precision": demo.asked.precision,
        "size": demo.asked.size,
        "model": {"digest": model.digest, "bytes": model.main.stat().st_size},
        "quantised": {"digest": quantised.digest, "bytes": quantised.main.stat().st_size, **quantised.manifest.details},
        "found": {**schema.to_dict(demo.found, whole=True), "sentence": demo.found.sentence()},
        "runs": schema.to_dict(demo.rows),
        "npu": {"ran": demo.receipt is not None, "why_not": demo.npu, "receipt": schema.to_dict(demo.receipt)},
        "compiled_models_dropped": demo.dropped,
        "notes": demo.built.notes,
        "error": None if demo.error is None else error_record(demo.error),
        "exit_status": demo.exit_status,
    }
