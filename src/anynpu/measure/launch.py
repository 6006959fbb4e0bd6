"""Two artifacts timed in turn, each launch in a fresh process: ABBA order, so that a drift of the machine hits both."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from anynpu import tool
from anynpu.errors import AnyNpuError, DeviceError
from anynpu.measure.host import Watch, without_gc
from anynpu.measure.load import Settings, Trace, loop
from anynpu.measure.subject import Infer
from anynpu.records.compare import Conditions
from anynpu.runtime.base import Session, open_artifact, open_session
from anynpu.tensors import Array

MOST_RUNS = 20_000
MOST_SECONDS = 5.0
"""A launch of a slow model ends after this time (or the seconds asked for) with fewer runs, but with FEWEST_RUNS."""
FEWEST_RUNS = 3
WARM_SECONDS = 0.1
WARM_RUNS = 5
WARM_ENOUGH = 1.0
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


@dataclass(frozen=True)
class Job:
    """What to launch, and how long: until both the seconds and the runs are reached."""

    artifact: Path
    device: str | None = None
    seconds: float = 0.5
    runs: int = 30


@dataclass
class Side:
    """What the launches of one side gave, in milliseconds."""

    executed: str = ""
    input: str = ""
    launches: list[list[float]] = field(default_factory=list)


@dataclass
class Interleaved:
    """Both sides, the order of their launches, and what stopped the measurement if something did."""

    a: Side
    b: Side
    order: str = ""
    failure: AnyNpuError | None = None


def launch(artifact: str, device: str | None, seconds: float, runs: int) -> dict[str, object]:
    """Times one artifact (in a child process) and returns the samples, those before a failure included."""
    from anynpu.measure.bench import known_sample

    subject = open_artifact(Path(artifact))
    sample = known_sample(subject)
    session = open_session(subject, device)
    samples: list[float] = []
    failure = ""
    try:
        _time(session, dict(sample.inputs), seconds, runs, samples)
    except DeviceError as error:
        failure = error.message
    finally:
        with suppress(DeviceError):
            session.close()
    return {"executed": session.what, "input": sample.source, "samples_ms": samples, "failure": failure}


def _time(session: Session, inputs: dict[str, Array], seconds: float, runs: int, samples: list[float]) -> None:
    """Appends the time of each run; every output is compared with the first, outside of the timed part."""
    subject, trace = Infer(session, inputs), Trace()
    subject.check(subject.call())
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < (WARM_SECONDS if done >= WARM_RUNS else WARM_ENOUGH):
        session.run(inputs)
        done += 1

    def ended(done: int, elapsed: float) -> str:
        enough = done >= runs and elapsed >= seconds
        limit = done >= MOST_RUNS or elapsed >= max(MOST_SECONDS, seconds)
        return "done" if done >= FEWEST_RUNS and (enough or limit) else ""

    try:
        with without_gc():
            loop(subject, Settings(), trace, Watch(), ended)
    finally:
        samples += trace.samples_ms()


def order_of(launches: int) -> str:
    """Returns the order ABBAABBA...: every pair of launches is turned round after the one before."""
    return "".join("AB" if i % 2 == 0 else "BA" for i in range(launches))


def interleave(
    a: Job, b: Job, launches: int, progress: Callable[[int, int], None] = lambda done, total: None
) -> Interleaved:
    """Returns the samples of both sides; after a failure, those until then, and the failure."""
    result = Interleaved(Side(), Side())
    order = order_of(launches)
    with tempfile.TemporaryDirectory(prefix="anynpu-compare-") as scratch:
        for done, letter in enumerate(order):
            side, job = (result.a, a) if letter == "A" else (result.b, b)
            try:
                answer = tool.call(
                    "anynpu.measure.launch:launch",
                    {
                        "artifact": str(job.artifact.absolute()),
                        "device": job.device,
                        "seconds": job.seconds,
                        "runs": job.runs,
                    },
                    scratch=Path(scratch),
                    log=Path(scratch, "launch.log"),
                    timeout_s=600 + 20 * job.seconds,
                )
                side.executed, side.input = answer["executed"], answer["input"]
                if answer["samples_ms"]:
                    side.launches.append(answer["samples_ms"])
                if answer["failure"]:
                    runs = f"{len(answer['samples_ms'])} runs of this launch"
                    raise DeviceError(f"{job.artifact}: {answer['failure']}, after {runs}", call="run")
            except AnyNpuError as failure:
                result.failure = failure
                break
            result.order += letter
            progress(done + 1, len(order))
    return result


def conditions() -> Conditions:
    """Returns what the machine is doing that could disturb a measurement, as far as it tells."""
    governor = None
    with suppress(OSError):
        governor = GOVERNOR.read_text("utf-8").strip()
    load = None
    with suppress(OSError, AttributeError):
        load = round(os.getloadavg()[0], 2)
    name = f"{platform.node()} {platform.machine()}"
    return Conditions(name=name, cpus=os.cpu_count(), governor=governor, load=load)
