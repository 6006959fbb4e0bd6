"""What an artifact is measured with, and boards that measure themselves; the load generator is measure.load."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from anynpu.arrays import read_npz
from anynpu.artifact import MANIFEST, Artifact
from anynpu.errors import AccuracyError, AnyNpuError, IntegrityError
from anynpu.measure.outcome import SCHEMA_VERSION, error_of, figure, latency
from anynpu.measure.stats import percentile
from anynpu.measure.subject import Same
from anynpu.records.bench import BenchRecord, Checked, EnergyForm, LayerCount, WarmUpForm
from anynpu.runtime.device.answers import STAGES
from anynpu.runtime.device.session import BoardSession
from anynpu.schema import from_json
from anynpu.tensors import Array, TensorSpec

INSTRUCTIONS, INFERENCE = "instructions", "inference"
STAGE_NAMES = dict(zip(STAGES, ("init", "memory I/O", INFERENCE, "post-processing"), strict=True))


@dataclass(frozen=True)
class Figure:
    """One stage of a run, measured several times."""

    samples: tuple[float, ...]

    @property
    def least(self) -> float:
        return min(self.samples)

    @property
    def most(self) -> float:
        return max(self.samples)

    @property
    def median(self) -> float:
        return percentile(self.samples, 0.5)


@dataclass(frozen=True)
class BoardBench:
    """A board's own measurement and its conditions. `unit` is "ms", or "instructions" where only those were counted."""

    executed: str
    unit: str
    clock: str
    warmup: int
    input: str
    stages: Mapping[str, Figure]
    started_s: tuple[float, ...]
    board: str
    tick_hz: int
    ticks: Mapping[str, tuple[int, ...]]
    per_inference: float
    """The mean of the same number of inferences in one go, as MLPerf Tiny measures it."""
    known_answers: int
    outputs: Mapping[str, object]
    error: BaseException | None = None
    """What broke the measurement off; the samples are those before."""


@dataclass(frozen=True)
class Sample:
    """An input and where it is from; `outputs` is the known answer to it, if there is one."""

    source: str
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array] | None = None


def known_sample(artifact: Artifact) -> Sample:
    """Returns the first known answer that the build left next to the artifact, or else random numbers."""
    path = artifact.path.absolute().parent / "evidence" / artifact.path.name / "vectors.npz"
    if (path.parent / MANIFEST).is_file():
        Artifact.open(path.parent)  # the answers are as they were sealed
    if not path.is_file():
        return Sample("random numbers", {spec.name: _random(spec) for spec in artifact.manifest.inputs})
    try:
        stored = read_npz(path)
        inputs = {spec.name: _first(spec, stored[f"input:{spec.name}"]) for spec in artifact.manifest.inputs}
        outputs = {spec.name: _first(spec, stored[f"output:{spec.name}"]) for spec in artifact.manifest.outputs}
    except (AnyNpuError, KeyError) as error:
        raise IntegrityError(f"{path}: not the known answers of {artifact.path} ({error})") from error
    return Sample("the first known answer of the build", inputs, outputs)


def _first(spec: TensorSpec, stacked: Array) -> Array:
    """Returns the first sample; samples are joined along the tensor's own first axis."""
    first = stacked[: spec.shape[0]] if spec.shape else stacked
    spec.check(first)
    return first


def _random(spec: TensorSpec) -> Array:
    generator = np.random.default_rng(0)
    if spec.dtype.startswith(("int", "uint")):
        limits = np.iinfo(spec.dtype)
        return generator.integers(limits.min, limits.max, spec.shape, spec.dtype, endpoint=True)
    return generator.random(spec.shape).astype(spec.dtype)


def time_board(
    session: BoardSession,
    sample: Sample,
    runs: int,
    warmup: int,
    clock: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> BoardBench:
    """Returns what the board itself measures of each stage, one repeat at a time, so that every sample is kept."""
    hz, same = session.info.tick_hz, Same()
    session.load(sample.inputs)
    together = session.client.infer(runs, warmup)
    if sample.outputs is not None:
        for name, got in session.fetch().items():
            wanted = sample.outputs[name]
            for at in np.flatnonzero(got.ravel() != wanted.ravel())[:1]:
                values = float(got.ravel()[at]), float(wanted.ravel()[at])
                raise AccuracyError(
                    f"{session.what}: output {name}[{at}] is {values[0]:g}, the known answer is {values[1]:g}",
                    "known answer",
                    *values,
                )
    same.check(session.fetch())
    ticks: dict[str, list[int]] = {name: [] for name in STAGES}
    started, error = _repeat(session, same, runs, ticks, progress)
    return BoardBench(
        executed=session.what,
        unit=INSTRUCTIONS if hz == 0 else "ms",
        clock=clock or ("instruction counter" if hz == 0 else f"the board's timer at {hz} Hz"),
        warmup=warmup,
        input=sample.source,
        stages={
            STAGE_NAMES[name]: Figure(tuple(t * 1000 / hz if hz else t for t in values))
            for name, values in ticks.items()
        },
        started_s=started,
        board=session.board,
        tick_hz=hz,
        ticks={STAGE_NAMES[name]: tuple(values) for name, values in ticks.items()},
        per_inference=together / runs / (1000 if hz else 1),
        known_answers=session.known_answers,
        outputs=same.to_json(),
        error=error,
    )


def count_layers(session: BoardSession, sample: Sample, artifact: Artifact) -> tuple[LayerCount, ...]:
    """Returns the layers of generated C with the instructions that each took.

    Firmware that stops to count after every tensor is a little slower as a whole: its own share is taken off.
    """
    session.load(sample.inputs)
    counts = dict(session.client.layers())
    return tuple(
        LayerCount(
            index=layer["index"],
            kind=layer["kind"],
            name=layer["name"],
            output=layer["output"],
            variant=layer["variant"],
            macs=layer["macs"],
            expected_instructions=layer["expected_instructions"],
            instructions=sum(counts.get(tensor, 0) for tensor in layer["tensors"]),
        )
        for layer in artifact.manifest.details["layers"]
    )


def _repeat(
    session: BoardSession,
    same: Same,
    runs: int,
    ticks: dict[str, list[int]],
    progress: Callable[[int, int], None],
) -> tuple[tuple[float, ...], BaseException | None]:
    """Fills `ticks` run by run and returns when each began, and what broke it off after the first, if anything did."""
    began, started = time.perf_counter(), []
    try:
        for done in range(runs):
            at = time.perf_counter() - began
            stages = session.client.stages(1)
            same.check(session.fetch())
            started.append(at)
            for name, (_, median, _) in stages.items():
                ticks[name].append(median)
            progress(done + 1, runs)
    except (AnyNpuError, KeyboardInterrupt) as error:
        if not started:
            raise
        return tuple(started), error
    return tuple(started), None


def board_record(board: BoardBench) -> BenchRecord:
    """Returns a board's own measurement."""
    samples, counted = board.stages[INFERENCE].samples, board.unit == INSTRUCTIONS
    measured = latency(samples, board.started_s, board.unit)
    return BenchRecord(
        schema_version=SCHEMA_VERSION,
        kind="bench",
        executed=board.executed,
        scenario="single-stream",
        scope="infer",
        board=board.board,
        unit=board.unit,
        clock=board.clock,
        tick_hz=board.tick_hz,
        input=board.input,
        warmup=board.warmup,
        runs=len(samples),
        warm_up=WarmUpForm(runs=board.warmup),
        latency=None if counted else measured,
        counts=measured if counted else None,
        stages={name: figure(stage.samples) for name, stage in board.stages.items()},
        ticks=board.ticks,
        per_inference=board.per_inference,
        known_answers=board.known_answers,
        outputs=from_json(Checked, board.outputs),
        energy=EnergyForm(why="the board is not this machine"),
        warnings=(),
        complete=board.error is None,
        error=error_of(board.error),
    )
