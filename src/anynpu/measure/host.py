"""The machine around a measurement: CPU time, memory, frequency, temperature, load, and the garbage collector.

`root` is the root of /sys and /proc, so that a machine can be described in a folder. What a machine does not tell is
None, never zero.
"""

from __future__ import annotations

import gc
import math
import os
import platform
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from anynpu.measure import workers
from anynpu.measure.timer import clock
from anynpu.records.host import Machine, Span, Used

ROOT = Path("/")
BUSY_CORES = 0.5
"""Other programs that use more than this many cores disturb a measurement."""
SLOWER = 0.9
"""A core that falls under this share of its first frequency is throttled."""


def read_text(path: Path) -> str | None:
    """Returns what a file of /sys or /proc says, or None where it says nothing."""
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return None


def read_number(path: Path) -> float | None:
    """Returns the number in such a file, or None; NaN and infinity are none."""
    try:
        value = float(read_text(path) or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def frequency_mhz(root: Path = ROOT) -> float | None:
    """Returns the highest current frequency of the cores."""
    return _highest((root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))


def temperature_c(root: Path = ROOT) -> float | None:
    """Returns the highest temperature that a thermal zone shows."""
    return _highest((root / "sys/class/thermal").glob("thermal_zone*/temp"))


def _highest(paths: Iterable[Path]) -> float | None:
    """Returns the largest number of files that count in thousandths."""
    numbers = [number for path in paths if (number := read_number(path)) is not None]
    return max(numbers) / 1000 if numbers else None


def describe(root: Path = ROOT) -> Machine:
    """Returns what the machine is and how it is set."""
    governors = {read_text(p) for p in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")}
    boost = read_text(root / "sys/devices/system/cpu/cpufreq/boost")
    turbo_off = read_text(root / "sys/devices/system/cpu/intel_pstate/no_turbo")
    lines = (read_text(root / "proc/cpuinfo") or "").splitlines()
    named = [each.partition(":")[2].strip() for each in lines if each.lower().startswith(("model name", "hardware"))]
    return Machine(
        cpu=named[0] if named else platform.processor() or None,
        name=f"{platform.node()} {platform.machine()}",
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        cores=os.cpu_count(),
        affinity=tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else None,
        governor=", ".join(sorted(filter(None, governors))) or None,
        turbo=boost == "1" if boost else turbo_off == "0" if turbo_off else None,
        load_1min=os.getloadavg()[0],
    )


def _busy_seconds(root: Path) -> tuple[float, float] | None:
    """Returns the seconds that all cores together have worked since the start, and that a hypervisor took away."""
    words = (read_text(root / "proc/stat") or "").split("\n")[0].split()
    if len(words) < 8 or words[0] != "cpu" or not all(word.isdecimal() for word in words[1:]):
        return None
    user, nice, system, _, _, irq, soft, *more = (int(word) for word in words[1:])
    tick = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + soft) / tick, (more[0] if more else 0) / tick


def _held_back_s(root: Path) -> float:
    """Returns the seconds that the limit of a control group (a container's CPU quota) has stopped this process for."""
    own = (read_text(root / "proc/self/cgroup") or "").rpartition("::")[2].split("\n")[0].strip("/")
    for folder in (root / "sys/fs/cgroup" / own, root / "sys/fs/cgroup"):
        for line in (read_text(folder / "cpu.stat") or "").splitlines():
            name, _, value = line.partition(" ")
            if name == "throttled_usec" and value.isdecimal():
                return int(value) / 1e6
    return 0.0


def switches() -> int:
    """Returns how often this process was taken off a core against its will."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


@dataclass(frozen=True)
class _Moment:
    """What the machine and this process's tree had used at one time."""

    at: int
    used: workers.Used
    busy: tuple[float, float] | None
    held_back_s: float
    asleep_s: float

    @classmethod
    def now(cls, root: Path) -> _Moment:
        at, asleep_s = clock(), 0.0
        if hasattr(time, "CLOCK_BOOTTIME"):  # time that the clock of latencies does not see
            asleep_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
        return cls(at, workers.used(root), _busy_seconds(root), _held_back_s(root), asleep_s)


@dataclass(frozen=True)
class Look:
    """One look at the machine: when (clock), the frequency, the temperature, involuntary switches until then."""

    at: int
    mhz: float | None
    degrees: float | None
    switches: int


@dataclass
class Watch:
    """Looks at the machine from `start` to `stop`, now and then in between, and never inside a timed part.

    No counter is read between calls: a call of the kernel is where a program that has used up its turn is taken off the
    core, so that what should lengthen a timed call would fall between two of them.
    """

    root: Path = ROOT
    every_ns: int = 100_000_000
    looks: list[Look] = field(default_factory=list)
    collections: list[tuple[int, int]] = field(default_factory=list)
    """When the garbage collector began and ended (clock)."""
    _next: int = 0
    _first: _Moment | None = None
    _rss: tuple[int | None, bool] = (None, False)

    def start(self) -> None:
        """Begins the window."""
        gc.callbacks.append(self._collected)
        reset = workers.forget_peak(self.root)
        self._rss = workers.memory(self.root, "VmRSS"), reset
        self._first = _Moment.now(self.root)
        for process in self._first.used.workers:
            workers.forget_peak(self.root, process)
        self._look(clock())

    def tick(self, now: int) -> None:
        """Looks at frequency and temperature if the last look is long enough ago."""
        if now >= self._next:
            self._look(now)

    def _look(self, now: int) -> None:
        self.looks.append(Look(now, frequency_mhz(self.root), temperature_c(self.root), switches()))
        # A machine of many cores takes its time to answer; looking must stay under a hundredth of the window.
        self._next = now + max(self.every_ns, 100 * (clock() - now) if self.every_ns else 0)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self.collections.append((clock(), 0))
        elif self.collections:
            self.collections[-1] = (self.collections[-1][0], clock())

    def stop(self) -> Used:
        """Ends the window and returns what was used in it."""
        first, last = self._first, _Moment.now(self.root)
        assert first is not None
        gc.callbacks.remove(self._collected)
        self._look(clock())
        wall = (last.at - first.at) / 1e9
        user, system = last.used.user_s - first.used.user_s, last.used.system_s - first.used.system_s
        rss, reset = self._rss
        lifetime = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        peak = (workers.memory(self.root, "VmHWM") if reset else None) or lifetime
        # Of the workers that are there at the end.
        theirs = sum(workers.memory(self.root, "VmHWM", process) or 0 for process in last.used.workers)
        busy = stolen = None
        if first.busy is not None and last.busy is not None:
            busy, stolen = (after - before for before, after in zip(first.busy, last.busy, strict=True))
        return Used(
            wall_s=wall,
            cpu_user_s=user,
            cpu_system_s=system,
            cores_used=(user + system) / wall,
            other_cores_used=None if busy is None else max(0.0, (busy - user - system) / wall),
            stolen_cores=None if stolen is None else max(0.0, stolen / wall),
            held_back_s=max(0.0, last.held_back_s - first.held_back_s),
            asleep_s=max(0.0, last.asleep_s - first.asleep_s),
            involuntary_switches=self.looks[-1].switches - self.looks[0].switches,
            worker_processes=len(last.used.workers),
            worker_cpu_s=max(0.0, user + system - (last.used.own_s - first.used.own_s)),
            peak_rss_bytes=peak + theirs,
            peak_rss_of="the measured window" if reset else "the whole process",
            rss_delta_bytes=None if rss is None or not reset else max(0, peak - rss),
            worker_peak_rss_bytes=theirs,
            frequency_mhz=_range([look.mhz for look in self.looks]),
            temperature_c=_range([look.degrees for look in self.looks]),
            gc_collections=len(self.collections),
        )

    def causes(self, began: int, ended: int) -> list[str]:
        """Returns what may have made the run between two moments slow."""
        reasons = []
        if any(start < ended and (end or ended) > began for start, end in self.collections):
            reasons.append("garbage collection")
        before = next((look for look in reversed(self.looks) if look.at <= began), None)
        after = next((look for look in self.looks if look.at >= ended), None)
        if before is not None and after is not None:
            if count := after.switches - before.switches:
                seconds = (after.at - before.at) / 1e9
                reasons.append(f"involuntary context switches: {count} in the {seconds:.2g} s around it")
            if before.mhz and after.mhz and abs(after.mhz - before.mhz) > 0.05 * before.mhz:
                reasons.append("the frequency changed")
        return reasons


def _range(values: list[float | None]) -> Span | None:
    known = [value for value in values if value is not None]
    return Span(first=known[0], min=min(known), max=max(known), last=known[-1]) if known else None


def throttled(used: Used) -> bool:
    """Says whether the cores became clearly slower within the window."""
    mhz = used.frequency_mhz
    return mhz is not None and mhz.last < SLOWER * mhz.first


@contextmanager
def without_gc() -> Iterator[None]:
    """Keeps the garbage collector from running inside the block."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
