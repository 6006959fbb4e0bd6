"""What a machine says of itself: psutil's figures, and those of its NPU where sysfs has them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress

from anynpu.drivers.root import Root, Unreadable
from anynpu.errors import ToolMissing

MOST_SENSORS = 16
MOST_DISKS = 16
DEVFREQ = "/sys/class/devfreq"
ACCEL = "/sys/class/accel"
RKNPU_LOAD = "/sys/kernel/debug/rknpu/load"
THERMAL = "/sys/class/thermal"
HWMON = "/sys/class/hwmon"
NPU = re.compile(r"npu|aipu|vpu|amdxdna", re.IGNORECASE)


def plain(name: str) -> str:
    """Returns a name as part of a metric's: small letters, digits and _."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:40] or "other"


class NpuSensors:
    """The NPU's utilisation and temperature, from whichever file this kernel has."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self._busy: dict[str, tuple[float, float]] = {}

    def read(self) -> dict[str, float]:
        """Returns npu_percent and npu_temperature_celsius as far as they are known."""
        values: dict[str, float] = {}
        with suppress(Unreadable):
            loads = list(self._loads())
            if loads:
                values["npu_percent"] = min(100.0, max(0.0, sum(loads) / len(loads)))
        with suppress(Unreadable):
            temperatures = list(self._temperatures())
            if temperatures:
                values["npu_temperature_celsius"] = max(temperatures)
        return values

    def _loads(self) -> Iterator[float]:
        for name in self.root.names(DEVFREQ):
            if NPU.search(name) and (match := re.match(r"(\d+)", self.root.read(f"{DEVFREQ}/{name}/load"))):
                yield float(match[1])  # 37@1000000000Hz
                return
        for name in self.root.names(ACCEL):
            text = self.root.read(f"{ACCEL}/{name}/device/npu_busy_time_us")  # Intel's driver counts busy time
            if text.isdigit():
                now, busy_s = time.monotonic(), int(text) / 1e6
                before = self._busy.get(name)
                self._busy[name] = (now, busy_s)
                if before is not None and now > before[0]:
                    yield 100 * (busy_s - before[1]) / (now - before[0])
        with suppress(Unreadable):
            yield from (float(share) for share in re.findall(r"(\d+)%", self.root.read(RKNPU_LOAD)))

    def _temperatures(self) -> Iterator[float]:
        for name in self.root.names(THERMAL):
            if name.startswith("thermal_zone") and NPU.search(self.root.read(f"{THERMAL}/{name}/type")):
                yield from _degrees(self.root.read(f"{THERMAL}/{name}/temp"))
        for name in self.root.names(HWMON):
            if NPU.search(self.root.read(f"{HWMON}/{name}/name")):
                yield from _degrees(self.root.read(f"{HWMON}/{name}/temp1_input"))


def _degrees(text: str) -> Iterator[float]:
    with suppress(ValueError):
        value = int(text) / 1000
        if -50 < value < 200:
            yield value


class Sensors:
    """All metrics of this machine; rates are since the last reading."""

    def __init__(self, root: Root | None = None) -> None:
        try:
            import psutil
        except ImportError:
            raise ToolMissing("psutil is not installed", "pip install 'anynpu[watch]'") from None
        self.psutil, self.npu = psutil, NpuSensors(root or Root())
        self._counters: tuple[float, dict[str, float]] | None = None
        psutil.cpu_percent(None)  # the first reading is of nothing

    def read(self) -> dict[str, float]:
        """Returns the metrics as they are now."""
        psutil, values = self.psutil, {}
        values["cpu_percent"] = float(psutil.cpu_percent(None))
        values["memory_percent"] = float(psutil.virtual_memory().percent)
        values["swap_percent"] = float(psutil.swap_memory().percent)
        values["load1"] = float(psutil.getloadavg()[0])
        shares: dict[str, float] = {}
        for part in self.psutil.disk_partitions(all=False):
            if part.fstype in ("squashfs", "iso9660") or len(shares) >= MOST_DISKS:
                continue
            with suppress(OSError):  # a disk that was taken out, a share that hangs off
                name = "root" if part.mountpoint == "/" else plain(part.mountpoint)
                shares[f"disk_{name}_percent"] = float(self.psutil.disk_usage(part.mountpoint).percent)
        values |= self._temperatures() | shares | self._rates() | self.npu.read()
        return values

    def _temperatures(self) -> dict[str, float]:
        values: dict[str, float] = {}
        with suppress(AttributeError, OSError, RuntimeError):  # not every kernel has them
            for chip, sensors in self.psutil.sensors_temperatures().items():
                for number, sensor in enumerate(sensors):
                    name = plain(f"{chip}_{sensor.label or number}")
                    if sensor.current is not None and -50 < sensor.current < 200 and len(values) < MOST_SENSORS:
                        values[f"temperature_{name}_celsius"] = float(sensor.current)
        return values

    def _rates(self) -> dict[str, float]:
        counters: dict[str, float] = {}
        with suppress(AttributeError, OSError, RuntimeError):
            links = [each for name, each in self.psutil.net_io_counters(pernic=True).items() if name != "lo"]
            counters["net_received"] = float(sum(each.bytes_recv for each in links))
            counters["net_sent"] = float(sum(each.bytes_sent for each in links))
        with suppress(AttributeError, OSError, RuntimeError):
            disks = self.psutil.disk_io_counters()
            if disks is not None:
                counters |= {"disk_read": float(disks.read_bytes), "disk_written": float(disks.write_bytes)}
        now, before = time.monotonic(), self._counters
        self._counters = (now, counters)
        if before is None or now <= before[0]:
            return {}
        return {
            f"{name}_bytes_per_s": (value - before[1][name]) / (now - before[0])
            for name, value in counters.items()
            if name in before[1] and value >= before[1][name]  # a counter that went back has started anew
        }
