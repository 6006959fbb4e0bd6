"""Energy of a measurement: from the machine's own counters and sensors, or from the file of an external meter.

    RAPL     /sys/class/powercap: counters of the processor's own model of its energy; no NPU on the board, no memory
    hwmon    /sys/class/hwmon: power*_input, or curr*_input times in*_input (INA219 and its like), read now and then
    CSV      time and watts, or time, volts and amps, as an external meter writes it

Gross energy is all that was drawn in the window; net is without what the machine draws at rest, measured apart.
"""

from __future__ import annotations

import csv
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

import numpy as np

from anynpu.errors import ConfigError, DeviceError
from anynpu.measure.host import read_number, read_text
from anynpu.records.bench import EnergyForm
from anynpu.tensors import Array

ROOT = Path("/")
RATE_HZ = 20.0
FLUSH_S, NEAR_S = 3.0, 30.0
"""How long a logger may take to write its last samples, and how far behind it may be to be waited for at all."""
COUNTER_S = 5.0
"""A package of 1 kW fills the smallest range of a counter, 65 kJ, in a minute."""
NOISE = 1e-3
"""A meter's zero may lie this share of its largest reading below zero; more is not a power that anything draws."""
CLOCK_S = 0.05
NONE = "no RAPL counter, no power sensor and no meter's file"
NOT_HERE = "the server may be another machine: the sensors of this one do not measure it"
Window = tuple[float, float]


@dataclass(frozen=True)
class Reading:
    """What was drawn in a window, and how finely that was looked at (None: a counter was read at both ends)."""

    joules: float
    seconds: float
    samples: int
    rate_hz: float | None = None

    @property
    def watts(self) -> float:
        return self.joules / self.seconds


class Meter(Protocol):
    """Something that tells the energy between `start` and `stop`."""

    source: str
    label: str
    has_idle: bool
    """Whether a window at rest is to be measured before."""

    def start(self) -> None: ...

    def stop(self) -> Reading: ...


class Rapl:
    """The sum of the processor packages' energy counters, read often enough that none runs over twice unseen."""

    label = "estimate of the processor's own model: packages only, not memory, board or NPU"
    has_idle = True

    def __init__(self, domains: Sequence[Path], every_s: float = COUNTER_S) -> None:
        self._domains, self._every_s = tuple(domains), every_s
        names = ", ".join(read_text(d / "name") or d.name for d in domains)
        self.source = f"RAPL ({names})"
        self._ranges = [read_number(d / "max_energy_range_uj") or 0.0 for d in domains]
        self._began, self._last, self._used = 0.0, [0.0], 0.0
        self._over, self._thread, self._error = threading.Event(), threading.Thread(), ""

    def _read(self) -> list[float]:
        counters = [read_number(d / "energy_uj") for d in self._domains]
        if any(value is None or value < 0 for value in counters):
            raise DeviceError(f"{self.source}: the counter can no longer be read", call="read")
        return [value for value in counters if value is not None]

    def _add(self) -> None:
        now = self._read()
        for before, after, most in zip(self._last, now, self._ranges, strict=True):
            step = after - before if after >= before else after - before + most  # it starts again at zero
            if step < 0:
                raise DeviceError(f"{self.source}: the counter went back, and its range is not known", call="read")
            self._used += step
        self._last = now

    def _watch(self) -> None:
        try:
            while not self._over.wait(self._every_s):
                self._add()
        except DeviceError as error:
            self._error = error.message

    def start(self) -> None:
        self._last, self._began, self._used, self._error = self._read(), time.perf_counter(), 0.0, ""
        self._over, self._thread = threading.Event(), threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> Reading:
        self._over.set()
        self._thread.join()
        if self._error:
            raise DeviceError(self._error, call="read")
        self._add()
        if not self._used:
            raise DeviceError(f"{self.source}: the counter did not move", call="read")
        return Reading(self._used / 1e6, time.perf_counter() - self._began, 2)


class Sensors:
    """Power sensors of the kernel, read by a thread a few times a second."""

    label = "sum of the board's power sensors, whatever they feed"
    has_idle = True

    def __init__(self, channels: Sequence[tuple[Path, ...]], names: str, rate_hz: float = RATE_HZ) -> None:
        self._channels, self._rate = tuple(channels), rate_hz
        self.source = f"hwmon ({names})"
        self._points: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def watts(self) -> float | None:
        """Returns the power now, NaN for one that is negative, or None if a sensor does not answer."""
        total = 0.0
        for channel in self._channels:
            values = [read_number(path) for path in channel]
            if any(value is None for value in values):
                return None
            if any(value < 0 for value in values if value is not None):
                return math.nan
            total += math.prod(value for value in values if value is not None) / 1e6  # uW, or mA times mV
        return total

    def _sample(self) -> None:
        if (power := self.watts()) is not None:
            self._points.append((time.perf_counter(), power))

    def _watch(self) -> None:
        while not self._over.wait(1 / self._rate):
            self._sample()

    def start(self) -> None:
        self._points, self._over = [], threading.Event()
        self._sample()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> Reading:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._sample()
        if len(self._points) < 2 or self._points[0][0] == self._points[-1][0]:
            raise DeviceError(f"{self.source}: the sensor gave no power", call="read")
        times, watts = np.array(self._points).T
        if np.isnan(watts).any():
            raise DeviceError(f"{self.source}: a sensor shows a negative voltage, current or power", call="read")
        if not watts.any():
            raise DeviceError(f"{self.source}: every power is zero", call="read")
        return integrate(times, watts, (float(times[0]), float(times[-1])), self.source)


class CsvMeter:
    """The file that an external meter writes; the window is the measured one by the wall clock, or the one given."""

    label = "external meter"

    def __init__(self, path: Path, window: Window | None = None, idle: Window | None = None) -> None:
        for each in (window, idle):
            if each is not None and not (all(map(math.isfinite, each)) and each[0] < each[1]):
                raise ConfigError(f"an energy window from {each[0]:g} to {each[1]:g} has no length")
        if idle is not None and window is None:
            raise ConfigError("--energy-idle needs --energy-window: both count in the file's own time")
        read_csv(path)  # a file that cannot be read is refused before anything is measured
        self._path, self._windows = path, [w for w in (idle, window) if w is not None]
        self.source, self._began, self._clock = f"meter's file {path.name}", 0.0, 0.0
        self.has_idle = window is None or idle is not None

    def start(self) -> None:
        self._began, self._clock = time.time(), time.perf_counter()

    def stop(self) -> Reading:
        measured, lasted = (self._began, time.time()), time.perf_counter() - self._clock
        window = self._windows.pop(0) if self._windows else measured
        if window == measured and abs(measured[1] - measured[0] - lasted) > CLOCK_S + 0.01 * lasted:
            raise ConfigError(
                f"{self._path}: this machine's clock was set meanwhile: by it the measurement took "
                f"{measured[1] - measured[0]:.3f} s, in truth {lasted:.3f} s",
                "measure again, or name the part to take with --energy-window START,END",
            )
        times, watts = read_csv(self._path)
        near = window[0] - NEAR_S
        while near < times[-1] < window[1] and window == measured and time.time() < measured[1] + FLUSH_S:
            time.sleep(0.1)  # loggers write in blocks
            times, watts = read_csv(self._path)
        return integrate(times, watts, window, str(self._path))


def integrate(times: Array, watts: Array, window: Window, place: str) -> Reading:
    """Returns the energy in a window: the area under the power, its ends interpolated."""
    begin, end = window
    if not begin < end:
        raise ConfigError(f"{place}: a window from {begin:g} to {end:g} has no length")
    inside = (times >= begin) & (times <= end)
    if times[0] > begin + (end - begin) * 0.01 or times[-1] < end - (end - begin) * 0.01 or inside.sum() < 2:
        raise ConfigError(
            f"{place}: {int(inside.sum())} samples between {begin:.3f} and {end:.3f} s; "
            f"the file holds {times[0]:.3f} to {times[-1]:.3f} s",
            "its clock is another one, or it stopped too early: --energy-window START,END names the part to take",
        )
    at = np.concatenate([[begin], times[inside], [end]])
    joules = float(np.trapezoid(np.interp(at, times, watts), at))
    return Reading(joules, end - begin, int(inside.sum()), float(inside.sum() / (end - begin)))


TIME = {"time": 1.0, "t": 1.0, "timestamp": 1.0, "time_s": 1.0, "seconds": 1.0, "s": 1.0, "time_ms": 1e-3, "ms": 1e-3}
TIME |= {"time_us": 1e-6, "us": 1e-6, "time(s)": 1.0, "time(ms)": 1e-3}
POWER = {"watts": 1.0, "watt": 1.0, "w": 1.0, "power": 1.0, "power_w": 1.0, "power(w)": 1.0}
POWER |= {"mw": 1e-3, "power_mw": 1e-3, "milliwatts": 1e-3, "uw": 1e-6, "power_uw": 1e-6}
VOLTS = {"volts": 1.0, "volt": 1.0, "v": 1.0, "voltage": 1.0, "voltage_v": 1.0, "mv": 1e-3, "voltage_mv": 1e-3}
AMPS = {"amps": 1.0, "amp": 1.0, "a": 1.0, "current": 1.0, "current_a": 1.0, "ma": 1e-3, "current_ma": 1e-3}
AMPS |= {"ua": 1e-6, "current_ua": 1e-6}


def read_csv(path: Path) -> tuple[Array, Array]:
    """Returns times in seconds and watts; the header names the columns, and with them the units."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            rows = [row for row in csv.reader(stream) if row and not row[0].startswith("#")]
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file", "start the meter's logger before the bench") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: cannot be read as CSV ({error})") from None
    if len(rows) > 1 and len(rows[-1]) < len(rows[0]):
        rows.pop()  # a logger that is still writing is in the middle of its last line
    if len(rows) < 3:
        raise ConfigError(f"{path}: a header and at least two samples were expected")
    names = [name.strip().lower().replace(" ", "") for name in rows[0]]
    t, power = _column(names, TIME), _column(names, POWER)
    volts, amps = _column(names, VOLTS), _column(names, AMPS)
    if t is None or (power is None and (volts is None or amps is None)):
        raise ConfigError(
            f"{path}: the columns are {', '.join(rows[0])}", "time and watts, or time, volts and amps were expected"
        )
    times = _numbers(path, rows, t, dates=True)
    if power is not None:
        watts = _drawn(path, rows, power)
    elif volts is not None and amps is not None:
        watts = _drawn(path, rows, volts) * _drawn(path, rows, amps)
    if (np.diff(times) < 0).any():
        raise ConfigError(f"{path}: the times do not rise")
    if not watts.any():
        raise ConfigError(f"{path}: every power is zero", "is the meter connected?")
    return times, watts


def _column(names: Sequence[str], known: dict[str, float]) -> tuple[int, float] | None:
    return next(((at, known[name]) for at, name in enumerate(names) if name in known), None)


def _numbers(path: Path, rows: Sequence[Sequence[str]], column: tuple[int, float], dates: bool = False) -> Array:
    at, unit = column
    numbers = []
    for line, row in enumerate(rows[1:], 2):
        try:
            numbers.append((_number if dates else _finite)(row[at].strip()) * unit)
        except (ValueError, OverflowError, IndexError):
            raise ConfigError(f"{path}: row {line} has no number under {rows[0][at]}") from None
    return np.array(numbers)


def _drawn(path: Path, rows: Sequence[Sequence[str]], column: tuple[int, float]) -> Array:
    """Returns a column of watts, volts or amps; one that is really negative is refused, the noise of a zero is not."""
    values = _numbers(path, rows, column)
    with np.errstate(over="ignore"):
        if not np.isfinite(values.sum()):
            raise ConfigError(f"{path}: {rows[0][column[0]]} holds values beyond all measure")
    if len(low := np.flatnonzero(values < -NOISE * np.abs(values).max())):
        raise ConfigError(
            f"{path}: row {low[0] + 2} has {rows[low[0] + 1][column[0]].strip()} under {rows[0][column[0]]}: "
            "no device draws a negative power",
            "swap the meter's leads, or write the file anew",
        )
    return values


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _number(text: str) -> float:
    """Returns a time: seconds, or a date and time of day."""
    try:
        return (
            datetime.fromisoformat(text).timestamp() if "-" in text[1:] and "e" not in text.lower() else _finite(text)
        )
    except OverflowError:
        raise ValueError(text) from None


def find_meter(root: Path = ROOT) -> Meter | None:
    """Returns the machine's own meter: RAPL first, then its power sensors; None where there is neither."""
    zones = sorted((root / "sys/class/powercap").glob("*rapl:*"))
    packages = [z for z in zones if z.name.count(":") == 1 and (read_text(z / "name") or "").startswith("package")]
    if packages and all(read_number(z / "energy_uj") is not None for z in packages):
        return Rapl(packages)
    sensors, names = [], []
    for device in sorted((root / "sys/class/hwmon").glob("hwmon*")):
        if channels := _channels(device):
            sensors += channels
            names.append(read_text(device / "name") or device.name)
    return Sensors(sensors, ", ".join(names)) if sensors else None


def _channels(device: Path) -> list[tuple[Path, ...]]:
    """Returns the files whose product is a power, one tuple a channel."""
    powers = [(p,) for p in sorted(device.glob("power*_input")) if read_number(p) is not None]
    if powers:
        return list(powers)
    pairs: list[tuple[Path, ...]] = []
    for current in sorted(device.glob("curr*_input")):
        volts = device / current.name.replace("curr", "in")
        if read_number(current) is not None and read_number(volts) is not None:
            pairs.append((current, volts))
    return pairs


def account(meter: Meter | None, reading: Reading | None, idle: Reading | None, inferences: int) -> EnergyForm:
    """Returns the energy of a measurement, labelled; `source` None says that there is none, and `why`.

    Where the machine drew no less at rest, the net is not known: `net_j` is None and `idle_w` says why.
    """
    if meter is None or reading is None or not inferences:
        return EnergyForm(why=NONE if meter is None else f"{meter.source} gave nothing")
    net = None if idle is None else reading.joules - idle.watts * reading.seconds
    net = None if net is not None and net <= 0 else net
    return EnergyForm(
        source=meter.source,
        label=meter.label,
        method="counter" if reading.rate_hz is None else "integrated samples",
        rate_hz=reading.rate_hz,
        samples=reading.samples,
        window_s=reading.seconds,
        inferences=inferences,
        average_w=reading.watts,
        idle_w=None if idle is None else idle.watts,
        gross_j=reading.joules,
        net_j=net,
        gross_j_per_inference=reading.joules / inferences,
        net_j_per_inference=None if net is None else net / inferences,
    )


def parse_window(flag: str, text: str) -> Window:
    """Returns the two times of START,END."""
    parts = text.split(",")
    try:
        begin, end = (_number(part.strip()) for part in parts)
    except ValueError:
        raise ConfigError(f"{flag} {text}: START,END was expected, two times in the file's own clock") from None
    if not begin < end:
        raise ConfigError(f"{flag} {text}: a window must have a length")
    return begin, end
