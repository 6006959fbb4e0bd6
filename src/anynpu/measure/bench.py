"""How long an artifact takes: repeated, with the raw samples, and with every run's output compared with the first."""

from __future__ import annotations

import statistics
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from anynpu.artifact import Artifact
from anynpu.errors import AccuracyError, DeviceError, IntegrityError
from anynpu.runtime.base import Session, run_stored
from anynpu.runtime.device.answers import STAGES
from anynpu.runtime.device.session import BoardSession
from anynpu.tensors import Array, TensorSpec

INSTRUCTIONS = "instructions"
STAGE_NAMES = dict(zip(STAGES, ("init", "memory I/O", "inference", "post-processing"), strict=True))


@dataclass(frozen=True)
class Figure:
    """One stage of a run, measured several times."""

    samples: tuple[float, ...]

    @property
    def least(self) -> float:
        return min(self.samples)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def most(self) -> float:
        return max(self.samples)


@dataclass(frozen=True)
class Bench:
    """A measurement and its conditions. `unit` is "ms" or, where nothing but those was counted, "instructions"."""

    executed: str
    unit: str
    clock: str
    warmup: int
    input: str
    stages: Mapping[str, Figure]
    board: str = ""
    tick_hz: int | None = None
    ticks: Mapping[str, tuple[int, ...]] | None = None
    per_inference: float | None = None
    """The mean of the same number of inferences in one go, as MLPerf Tiny measures it."""
    known_answers: int | None = None


@dataclass(frozen=True)
class Sample:
    """An input and where it is from; `outputs` is the known answer to it, if there is one."""

    source: str
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array] | None = None


def known_sample(artifact: Artifact) -> Sample:
    """Returns the first known answer that the build left beside the artifact, or random numbers where there is none."""
    path = artifact.path.absolute().parent / "evidence" / artifact.path.name / "vectors.npz"
    if not path.is_file():
        return Sample("random numbers", {spec.name: _random(spec) for spec in artifact.manifest.inputs})
    try:
        with np.load(path, allow_pickle=False) as stored:
            inputs = {spec.name: _first(spec, stored[f"input:{spec.name}"]) for spec in artifact.manifest.inputs}
            outputs = {spec.name: _first(spec, stored[f"output:{spec.name}"]) for spec in artifact.manifest.outputs}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
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


class _Same:
    """Compares every run's outputs with those of the first."""

    def __init__(self) -> None:
        self._first: Mapping[str, Array] | None = None
        self._runs = 0

    def check(self, outputs: Mapping[str, Array]) -> None:
        self._runs += 1
        if self._first is None:
            self._first = {name: values.copy() for name, values in outputs.items()}
        for name, values in outputs.items():
            if not np.array_equal(values, self._first[name], equal_nan=values.dtype.kind == "f"):
                raise DeviceError(
                    f"run {self._runs} gives another output {name} than the first, for the same input",
                    call="run",
                    cause="memory that one run leaves for the next, or a race",
                )


def time_session(session: Session, sample: Sample, runs: int, warmup: int) -> Bench:
    """Returns the wall time of runs on this host, from inputs in memory to outputs in memory."""
    same, samples = _Same(), []
    for index in range(warmup + runs):
        started = time.perf_counter_ns()
        outputs = run_stored(session, sample.inputs)
        elapsed = time.perf_counter_ns() - started
        same.check(outputs)
        if index >= warmup:
            samples.append(elapsed / 1e6)
    stages = {"inference": Figure(tuple(samples))}
    return Bench(session.what, "ms", "wall clock of this host", warmup, sample.source, stages)


def time_board(
    session: BoardSession,
    sample: Sample,
    runs: int,
    warmup: int,
    clock: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Bench:
    """Returns what the board itself measures of each stage, one repeat at a time, so that every sample is kept."""
    hz, same = session.info.tick_hz, _Same()
    session.load(sample.inputs)
    together = session.client.infer(runs, warmup)
    _check_known(session, sample)
    same.check(session.fetch())
    ticks: dict[str, list[int]] = {name: [] for name in STAGES}
    for done in range(runs):
        for name, (_, median, _) in session.client.stages(1).items():
            ticks[name].append(median)
        same.check(session.fetch())
        progress(done + 1, runs)
    return Bench(
        executed=session.what,
        unit=INSTRUCTIONS if hz == 0 else "ms",
        clock=clock or ("instruction counter" if hz == 0 else f"the board's timer at {hz} Hz"),
        warmup=warmup,
        input=sample.source,
        stages={
            STAGE_NAMES[name]: Figure(tuple(t * 1000 / hz if hz else t for t in values))
            for name, values in ticks.items()
        },
        board=session.board,
        tick_hz=hz,
        ticks={STAGE_NAMES[name]: tuple(values) for name, values in ticks.items()},
        per_inference=together / runs / (1000 if hz else 1),
        known_answers=session.known_answers,
    )


def _check_known(session: BoardSession, sample: Sample) -> None:
    """Raises unless the board gives the known answer to what it was sent: the line may lose characters both ways."""
    if sample.outputs is None:
        return
    for name, got in session.fetch().items():
        wanted = sample.outputs[name]
        for at in np.flatnonzero(got.ravel() != wanted.ravel())[:1]:
            values = float(got.ravel()[at]), float(wanted.ravel()[at])
            raise AccuracyError(
                f"{session.what}: output {name}[{at}] is {values[0]:g}, the known answer is {values[1]:g}",
                "known answer",
                *values,
            )
