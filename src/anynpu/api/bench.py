"""anynpu.bench: how long an artifact takes, measured where it runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from anynpu.api.feed import feed_of, named_arrays, read_one, source_specs
from anynpu.api.session import ANSWER_S, is_board, open_on
from anynpu.artifact import Artifact
from anynpu.errors import ConfigError
from anynpu.files import cache_chosen
from anynpu.measure.bench import Sample, board_record, count_layers, known_sample, time_board
from anynpu.measure.energy import CsvMeter, Meter, find_meter, parse_window
from anynpu.measure.load import SINGLE, Runner, Settings, Tell
from anynpu.measure.outcome import to_record
from anynpu.measure.subject import INFER, PIPELINE, Infer, Pipeline, Read, Subject, session_of
from anynpu.measure.together import measure_together
from anynpu.records.bench import BenchRecord, BoardMemory
from anynpu.records.parts import own_version, receipt
from anynpu.records.shared import Summary
from anynpu.runtime import trial
from anynpu.runtime.abilities import placement_of
from anynpu.runtime.base import open_artifact, open_session
from anynpu.runtime.versions import versions_of
from anynpu.schema import from_json
from anynpu.seals import with_seal
from anynpu.store import Store
from anynpu.tasks.images import SUFFIXES, Preprocess
from anynpu.tensors import Array

BOARD_RUNS, BOARD_WARMUP = 10, 2


@dataclass(frozen=True)
class Asked:
    """What is measured, on what, and with which input; the names are those of the flags."""

    settings: Settings
    on: str | None = None
    scope: str = INFER
    inputs: str = ""
    """What -i names; a known answer where it is empty and there is no sample."""
    sample: Sample | None = None
    """The input itself."""
    preprocess: Preprocess | None = None
    post: Callable[..., Any] | str | None = None
    """Called with the real outputs at the end of a pipeline: a function, or MODULE:FUNCTION."""
    others: tuple[Path, ...] = ()
    energy_csv: Path | None = None
    energy_window: str | None = None
    energy_idle: str | None = None
    timeout_s: float = ANSWER_S
    layers: bool = False
    """Whether each layer is counted too, by firmware of its own."""


@dataclass(frozen=True)
class Measured:
    """The record of a measurement, what broke it off if something did, and what was moved to make its input."""

    record: BenchRecord
    error: BaseException | None = None
    notes: tuple[str, ...] = ()


class Bench:
    """A measurement: figures with their intervals, and the whole record."""

    def __init__(self, record: BenchRecord) -> None:
        self.record = record

    @property
    def executed(self) -> str:
        """What executed the artifact."""
        return self.record.executed

    @property
    def unit(self) -> str:
        """ms, or instructions where an emulator counted those: they say nothing about time."""
        return self.record.unit

    @property
    def samples(self) -> list[float]:
        """Every sample in `unit`, in the order of their start."""
        return list(self.record.measured.samples) if self.record.measured else []

    @property
    def median(self) -> float | None:
        return self._summary.median if self._summary else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the median."""
        low, high = (self._summary.median_interval if self._summary else None) or (None, None)
        return None if low is None or high is None else (low, high)

    def percentile(self, p: float) -> float | None:
        """Returns a percentile (90, 99, 99.9), or None where there are too few samples to state it."""
        estimate = self._summary.percentiles.get(f"p{p:g}") if self._summary else None
        return estimate.value if estimate else None

    @property
    def per_second(self) -> float | None:
        """Inferences in a second of wall time."""
        return self.record.throughput.per_s if self.record.throughput else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Every reason to distrust the figures."""
        return self.record.warnings or ()

    @property
    def _summary(self) -> Summary | None:
        return self.record.measured.summary if self.record.measured else None

    def __str__(self) -> str:
        between = f" [{self.interval[0]:.4g}, {self.interval[1]:.4g}]" if self.interval else ""
        median = "nothing measured" if self.median is None else f"median {self.median:.4g} {self.unit}{between}"
        rate = "" if self.per_second is None else f", {self.per_second:.4g} inferences a second"
        head = f"{self.executed}: {median}{rate}, {len(self.samples)} samples"
        return "\n".join([head, *(f"warning: {text}" for text in self.warnings)])

    def __repr__(self) -> str:
        return f"<anynpu.Bench {str(self).splitlines()[0]}>"

    def _repr_html_(self) -> str:
        from anynpu.report.html.markup import el, join

        return str(join([el("pre", str(self))]))


def bench(
    artifact: str | PathLike[str],
    inputs: str | PathLike[str] | Array | Mapping[str, Array] | None = None,
    *,
    on: str | None = None,
    scenario: str = Settings.scenario,
    scope: str = INFER,
    runs: int | None = None,
    warmup: int | None = None,
    min_time: float = Settings.min_time_s,
    min_count: int = Settings.min_count,
    max_time: float | None = None,
    streams: int = Settings.streams,
    qps: float | None = None,
    bound: float | None = None,
    percentile: float = Settings.percentile,
    seed: int = Settings.seed,
    preprocess: Preprocess | None = None,
    post: Callable[..., Any] | str | None = None,
    timeout: float = ANSWER_S,
    layers: bool = False,
    cache_dir: str | PathLike[str] | None = None,
) -> Bench:
    """Measures how long an artifact takes, as `anynpu bench` does; the names are those of its flags.

    `inputs` is what -i takes, or one sample as arrays; by default a known answer of the artifact. What breaks a
    measurement off raises.
    """
    subject = open_artifact(Path(artifact))
    sample, source = None, ""
    if isinstance(inputs, str | PathLike):
        source = str(inputs)
    elif inputs is not None:
        specs = subject.manifest.inputs
        feed = feed_of(named_arrays(inputs, specs), specs, source_specs(subject)[0])
        if len(feed.samples) != 1:
            raise ConfigError(
                f"the arrays hold {len(feed.samples)} samples, and one is run again and again", "give one"
            )
        sample = Sample("arrays", feed.samples[0])
    settings = Settings(
        scenario=scenario,
        min_time_s=min_time,
        min_count=min_count,
        max_time_s=longest(min_time, max_time),
        runs=runs,
        warm_up=warmup,
        streams=streams,
        qps=qps,
        bound_ms=bound,
        percentile=percentile,
        seed=seed,
    )
    asked = Asked(settings, on, scope, source, sample, preprocess, post, timeout_s=timeout, layers=layers)
    with cache_chosen(Path(cache_dir) if cache_dir else None):
        measured = measure(subject, asked, Store())
    if measured.error is not None:
        raise measured.error
    return Bench(sealed_record(measured.record))


def sealed_record(record: BenchRecord) -> BenchRecord:
    """Returns a measurement as a whole record."""
    return with_seal(replace(record, anynpu=own_version()))


def longest(min_time_s: float, max_time_s: float | None) -> float:
    """Returns the maximum of seconds to measure: as asked for, or a minute, or the minimum where that is more."""
    return max(Settings.max_time_s, min_time_s) if max_time_s is None else max_time_s


def measure(artifact: Artifact, asked: Asked, store: Store, tell: Tell = lambda stage, seconds: None) -> Measured:
    """Measures an artifact: on this host, or by a board itself. `tell` hears of every stage."""
    if asked.layers:
        if not (asked.on or "").startswith("qemu"):
            raise ConfigError("--layers counts the instructions of each layer in an emulator", "add --on qemu")
        if artifact.manifest.format != "c":
            raise ConfigError("--layers is for generated C", "build for a core such as cortex-m55")
        layers = artifact.manifest.details.get("layers")
        if not layers or "tensors" not in layers[0]:
            raise ConfigError(f"--layers: {artifact.path} does not say which tensors its layers make", "build it again")
    if is_board(artifact, asked.on):
        measured = _board(artifact, asked, store)
    elif asked.others:
        if asked.energy_csv is not None:
            raise ConfigError("--energy-csv is for one model: the window of several cannot be parted")
        own = replace(asked, inputs="", sample=None)
        timed = _timed(artifact, asked)
        openers = [(str(artifact.path), timed.opener)]
        for other in asked.others:
            artifact = open_artifact(other)
            if is_board(artifact, asked.on):
                raise ConfigError(f"{other}: a board measures itself, one model at a time")
            openers.append((str(other), _timed(artifact, own).opener))
        record, error = measure_together(openers, asked.settings, tell)
        measured = Measured(replace(record, input=timed.sample.source), error, timed.notes)
    else:
        measured = _alone(artifact, asked, tell)
    named = replace(
        measured.record,
        artifact=artifact.digest,
        path=str(artifact.path),
        fingerprint=artifact.manifest.fingerprint,
    )
    return replace(measured, record=named)


def _alone(artifact: Artifact, asked: Asked, tell: Tell) -> Measured:
    timed = _timed(artifact, asked)
    windows = {
        name: parse_window(f"--energy-{name}", text)
        for name, text in (("window", asked.energy_window), ("idle", asked.energy_idle))
        if text is not None
    }
    meter: Meter | None
    if asked.energy_csv is not None:
        meter = CsvMeter(asked.energy_csv, windows.get("window"), windows.get("idle"))
    elif windows:
        raise ConfigError(f"--energy-{next(iter(windows))} needs --energy-csv")
    else:
        meter = find_meter()  # the machine's own
    runner = Runner(timed.opener, asked.settings, tell)
    try:
        result = runner.run(meter)
        session = session_of(runner.subject)
        placed, versions = receipt(placement_of(session)), versions_of(session)
    finally:
        runner.close()
    measured = to_record(result, meter)
    record = replace(measured, input=timed.sample.source, receipt=placed, versions=versions or None)
    error = result.error or (result.energy_error if isinstance(meter, CsvMeter) else None)
    return Measured(record, error, timed.notes)


@dataclass(frozen=True)
class _Timed:
    """An input, a function that opens what is timed on it, and what was moved to make the input."""

    sample: Sample
    opener: Callable[[], Subject]
    notes: tuple[str, ...] = ()


def _timed(artifact: Artifact, asked: Asked) -> _Timed:
    path = Path(asked.inputs) if asked.inputs else None
    pipeline = asked.scope == PIPELINE
    if not pipeline and (asked.post or asked.preprocess):
        raise ConfigError("--post and -P belong to --scope pipeline")
    read: Read | None = None
    notes: tuple[str, ...] = ()
    if path is not None and path.suffix.lower() in SUFFIXES:
        if not pipeline:
            raise ConfigError(f"{path}: an image is an input of --scope pipeline only", "or give an .npy file")
        sample, read = _image(artifact, path, asked.preprocess)
    elif asked.preprocess:
        raise ConfigError("-P has no effect without an image", "give one with -i")
    else:
        sample, notes = _sample(artifact, asked)
    trial.require(artifact, asked.on)  # here, not where the cold start is timed
    if not pipeline:
        return _Timed(sample, lambda: Infer(open_session(artifact, asked.on), sample.inputs), notes)
    if isinstance(asked.post, str):
        # The function that --post MODULE:FUNCTION names
        module, sign, function = asked.post.partition(":")
        try:
            target = getattr(importlib.import_module(module), function) if sign and function else None
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"--post {asked.post}: {error}") from error
        if not callable(target):
            raise ConfigError(f"--post {asked.post}: MODULE:FUNCTION was expected")
        post = target
    else:
        post = asked.post
    return _Timed(sample, lambda: Pipeline(open_session(artifact, asked.on), sample.inputs, read, post), notes)


def _sample(artifact: Artifact, asked: Asked) -> tuple[Sample, tuple[str, ...]]:
    """Returns the input, and what was moved to make it."""
    if asked.sample is not None:
        return asked.sample, ()
    if not asked.inputs:
        return known_sample(artifact), ()
    inputs, notes = read_one(asked.inputs, artifact)
    return Sample(asked.inputs, inputs), notes


def _image(artifact: Artifact, path: Path, preprocess: Preprocess | None) -> tuple[Sample, Read]:
    """Returns an image as the only input, and a function that reads it from the disk again."""
    from anynpu.measure import calibrated
    from anynpu.tasks import card
    from anynpu.tasks.images import in_order, load_images

    if len(artifact.manifest.inputs) != 1:
        raise ConfigError(f"{path} is one image, the model has {len(artifact.manifest.inputs)} inputs")
    spec = artifact.manifest.inputs[0]
    if preprocess is None and artifact.manifest.task and (stated := card.of(artifact).card.preprocess):
        preprocess = in_order(stated, spec.channels)
    if preprocess is None and (known := calibrated.read(artifact)) is not None:
        preprocess = known.preprocess
    if preprocess is None:
        raise ConfigError(f"{path}: its preprocessing is not stated", "state it with -P size=96x96 -P mean=0.5 ...")

    def read() -> dict[str, Array]:
        return {spec.name: next(iter(load_images([path], spec, preprocess))).reshape(spec.shape)}

    return Sample(str(path), {spec.name: spec.to_stored(read()[spec.name])}), read


def _board(artifact: Artifact, asked: Asked, store: Store) -> Measured:
    """Lets a board measure itself."""
    settings = asked.settings
    stated = {"--scenario": settings.scenario != SINGLE, "--scope": asked.scope != INFER, "--with": asked.others}
    for flag, value in {**stated, "--qps": settings.qps, "--bound": settings.bound_ms, "--post": asked.post}.items():
        if value:
            raise ConfigError(f"{flag}: a board measures itself, single-stream", "leave it out, or name another --on")
    sample, notes = _sample(artifact, asked)
    warmup = BOARD_WARMUP if settings.warm_up is None else settings.warm_up
    with open_on(artifact, asked.on, store, asked.timeout_s) as session:
        board = session.board
        assert board is not None
        timing = time_board(board.session, sample, settings.runs or BOARD_RUNS, warmup, board.clock)
    record = replace(board_record(timing), memory=from_json(BoardMemory, board.memory()))
    if asked.layers and timing.error is None:
        with open_on(artifact, asked.on, store, asked.timeout_s, layers=True) as session:
            assert session.board is not None
            record = replace(record, layers=count_layers(session.board.session, sample, artifact))
    return Measured(record, timing.error, notes)
