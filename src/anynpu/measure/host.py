"""The machine around a measurement: CPU time, memory, frequency, temperature, load, and the garbage collector.

`root` is the root of /sys and /proc, so that a machine can be described in a folder. What a machine does not tell is
None, never zero.
"""

from __future__ import annotations

import gc
import os
import platform
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anynpu.measure.timer import clock

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
    """Returns the number in such a file, or None."""
    try:
        return float(read_text(path) or "")
    except ValueError:
        return None


def frequency_mhz(root: Path = ROOT) -> float | None:
    """Returns the highest current frequency of the cores."""
    cores = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq")
    found = [khz for path in cores if (khz := read_number(path)) is not None]
    return max(found) / 1000 if found else None


def temperature_c(root: Path = ROOT) -> float | None:
    """Returns the highest temperature that a thermal zone shows."""
    zones = (root / "sys/class/thermal").glob("thermal_zone*/temp")
    found = [milli for path in zones if (milli := read_number(path)) is not None]
    return max(found) / 1000 if found else None


def describe(root: Path = ROOT) -> dict[str, Any]:
    """Returns what the machine is and how it is set."""
    governors = {read_text(p) for p in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")}
    boost = read_text(root / "sys/devices/system/cpu/cpufreq/boost")
    turbo_off = read_text(root / "sys/devices/system/cpu/intel_pstate/no_turbo")
    return {
        "cpu": _cpu_name(root),
        "name": f"{platform.node()} {platform.machine()}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "governor": ", ".join(sorted(filter(None, governors))) or None,
        "turbo": boost == "1" if boost else turbo_off == "0" if turbo_off else None,
        "load_1min": os.getloadavg()[0],
    }


def _cpu_name(root: Path) -> str | None:
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        if line.lower().startswith(("model name", "hardware")):
            return line.partition(":")[2].strip()
    return platform.processor() or None


def _busy_seconds(root: Path) -> float | None:
    """Returns the seconds that all cores together have worked since the start of the machine."""
    words = (read_text(root / "proc/stat") or "").split("\n")[0].split()
    if len(words) < 8 or words[0] != "cpu":
        return None
    user, nice, system, _, _, irq, soft = (int(word) for word in words[1:8])
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


def _memory(root: Path, name: str) -> int | None:
    """Returns a line of this process's status ("VmRSS", "VmHWM") in bytes."""
    for line in (read_text(root / "proc/self/status") or "").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return None


def _forget_peak(root: Path) -> bool:
    """Makes the kernel count the peak of this process's memory anew; False where it does not let us."""
    try:
        (root / "proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def switches() -> int:
    """Returns how often this process was taken off a core against its will."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _lifetime_peak() -> int:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


@dataclass
class Watch:
    """Looks at the machine from `start` to `stop`, now and then in between, and never inside a timed part."""

    root: Path = ROOT
    every_ns: int = 100_000_000
    looks: list[tuple[int, float | None, float | None]] = field(default_factory=list)
    """When (clock), MHz, degrees."""
    collections: list[tuple[int, int]] = field(default_factory=list)
    """When the garbage collector began and ended (clock)."""
    _next: int = 0
    _first: tuple[Any, ...] = ()
    _mute: bool = False

    def start(self) -> None:
        """Begins the window."""
        gc.callbacks.append(self._collected)
        reset = _forget_peak(self.root)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self._first = (clock(), usage, _busy_seconds(self.root), _memory(self.root, "VmRSS"), reset)
        self._look(self._first[0])

    def tick(self, now: int) -> None:
        """Looks at frequency and temperature if the last look is long enough ago."""
        if now >= self._next:
            self._look(now)

    def _look(self, now: int) -> None:
        self._next = now + self.every_ns
        if self._mute:
            return
        look = (now, frequency_mhz(self.root), temperature_c(self.root))
        self._mute = look[1] is None and look[2] is None  # a machine that says nothing is not asked again
        if not self._mute:
            self.looks.append(look)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self.collections.append((clock(), 0))
        elif self.collections:
            self.collections[-1] = (self.collections[-1][0], clock())

    def stop(self) -> dict[str, Any]:
        """Ends the window and returns what was used in it."""
        began, before, busy, rss, reset = self._first
        wall = (clock() - began) / 1e9
        after = resource.getrusage(resource.RUSAGE_SELF)
        gc.callbacks.remove(self._collected)
        user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
        now_busy = _busy_seconds(self.root)
        others = None if busy is None or now_busy is None else max(0.0, (now_busy - busy - user - system) / wall)
        peak = (_memory(self.root, "VmHWM") if reset else None) or _lifetime_peak()
        return {
            "wall_s": wall,
            "cpu_user_s": user,
            "cpu_system_s": system,
            "cores_used": (user + system) / wall,
            "other_cores_used": others,
            "involuntary_switches": after.ru_nivcsw - before.ru_nivcsw,
            "peak_rss_bytes": peak,
            "peak_rss_of": "the measured window" if reset else "the whole process",
            "rss_delta_bytes": None if rss is None or not reset else max(0, peak - rss),
            "frequency_mhz": _range([look[1] for look in self.looks]),
            "temperature_c": _range([look[2] for look in self.looks]),
            "gc_collections": len(self.collections),
        }

    def causes(self, began: int, ended: int, switched: int) -> list[str]:
        """Returns what may have made the run between two moments slow."""
        found = []
        if any(start < ended and (end or ended) > began for start, end in self.collections):
            found.append("garbage collection")
        if switched:
            found.append(f"involuntary context switches: {switched}")
        if self._changed(began, ended):
            found.append("the frequency changed")
        return found

    def _changed(self, began: int, ended: int) -> bool:
        before = [mhz for at, mhz, _ in self.looks if at <= began and mhz is not None][-1:]
        after = [mhz for at, mhz, _ in self.looks if at >= ended and mhz is not None][:1]
        return bool(before and after and abs(after[0] - before[0]) > 0.05 * before[0])


def _range(values: list[float | None]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    return {"first": known[0], "min": min(known), "max": max(known), "last": known[-1]} if known else None


def throttled(used: dict[str, Any]) -> bool:
    """Says whether the cores became clearly slower within the window."""
    mhz = used.get("frequency_mhz")
    return bool(mhz and mhz["last"] < SLOWER * mhz["first"])


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
