"""What an agent sends: batches of samples, checked field by field, and placed in the collector's time.

    {"version": 1, "host": "web1", "boot": "5f0c...", "time": 1767571230.1, "uptime": 812.4, "samples": [
        {"id": "a1b2c3-17", "boot": "5f0c...", "time": 1767571230.0, "uptime": 812.3, "metrics": {"cpu_percent": 3.1}}]}

`time` is the machine's clock, which may be wrong or jump; `uptime` counts seconds since its boot and does not. A sample
of the boot in which it is sent is placed by its age, whatever the clock said; an older one by the clock's offset.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anynpu.errors import OBEYED, ConfigError, on_one_line

VERSION = 1
MOST_SAMPLES = 1000
MOST_METRICS = 200
OLDEST_S = 35 * 86_400.0
METRIC = re.compile(r"[a-z][a-z0-9_]{0,99}")
ID = re.compile(r"[A-Za-z0-9._-]{1,80}")
HOST_LENGTH = 253


@dataclass(frozen=True)
class Sample:
    """One sample as it was taken."""

    id: str
    boot: str
    time_s: float
    uptime_s: float
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Placed:
    """A sample in the collector's time; `stamped_s` is what the machine's clock said."""

    id: str
    time_s: float
    stamped_s: float
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Delivery:
    """A batch that was understood: its samples, and what of it was not, by id."""

    host: str
    samples: tuple[Placed, ...]
    rejected: tuple[tuple[str, str], ...]


def checked_host(name: object) -> str:
    """Returns the name of a host if it can be shown and kept as it is."""
    if not isinstance(name, str) or not name.strip() or len(name) > HOST_LENGTH:
        raise ConfigError(f"a host's name has 1 to {HOST_LENGTH} characters")
    if OBEYED.search(name) or "\n" in name or "\t" in name or name != name.strip():
        raise ConfigError(f"the host's name {on_one_line(name)!r} has control characters or blanks around it")
    return name


def _finite(value: object, what: str, most: float = 1e12) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or abs(value) > most:
        raise ConfigError(f"{what} is not a number that can be used")
    return float(value)


def _sample(raw: object) -> Sample:
    if not isinstance(raw, dict):
        raise ConfigError("a sample is not an object")
    id, boot, metrics = raw.get("id"), raw.get("boot"), raw.get("metrics")
    if not isinstance(id, str) or not ID.fullmatch(id) or not isinstance(boot, str) or not ID.fullmatch(boot):
        raise ConfigError("id and boot are 1 to 80 letters, digits, '.', '_' and '-'")
    if not isinstance(metrics, dict) or not metrics:
        raise ConfigError("metrics is an object of names and numbers")
    if len(metrics) > MOST_METRICS:
        raise ConfigError(f"more than {MOST_METRICS} metrics")
    values = {}
    for name, value in metrics.items():
        if not METRIC.fullmatch(name):
            raise ConfigError(f"metric {on_one_line(str(name))[:60]!r}: small letters, digits and _, at most 100")
        if value is not None:
            values[name] = _finite(value, f"metric {name}", 1e300)
    time_s, uptime_s = _finite(raw.get("time"), "time"), _finite(raw.get("uptime"), "uptime")
    return Sample(id, boot, time_s, uptime_s, values)


def understood(raw: Any, received_s: float) -> Delivery:
    """Returns the samples of a batch; what is wrong with the batch raises, what is wrong with a sample is noted."""
    if not isinstance(raw, dict):
        raise ConfigError("a batch is a JSON object")
    if raw.get("version") != VERSION:
        raise ConfigError(
            f"a batch of version {on_one_line(repr(raw.get('version')))[:40]}, this collector takes {VERSION}",
            "install the same version of anynpu on agent and collector",
        )
    host, boot, entries = checked_host(raw.get("host")), raw.get("boot"), raw.get("samples")
    sent_s, uptime_s = _finite(raw.get("time"), "time"), _finite(raw.get("uptime"), "uptime")
    if not isinstance(entries, list) or not 1 <= len(entries) <= MOST_SAMPLES:
        raise ConfigError(f"samples is a list of 1 to {MOST_SAMPLES}")
    placed, rejected = [], []
    for entry in entries:
        try:
            sample = _sample(entry)
            same_boot = sample.boot == boot
            age_s = (uptime_s - sample.uptime_s) if same_boot else (sent_s - sample.time_s)
            if age_s < -60:
                raise ConfigError("the sample was taken after it was sent")
            if age_s > OLDEST_S:
                raise ConfigError(f"the sample is older than {OLDEST_S / 86_400:.0f} days")
            age_s = max(age_s, 0.0)
            # The clock at sampling against the collector's; of an earlier boot only the clock of now is known.
            offset_s = sample.time_s + age_s - received_s if same_boot else sent_s - received_s
            time_s = received_s - age_s
            placed.append(Placed(sample.id, time_s, time_s + offset_s, sample.metrics))
        except ConfigError as error:
            id = entry.get("id") if isinstance(entry, dict) else None
            rejected.append((id[:80] if isinstance(id, str) else "", error.message))
    return Delivery(host, tuple(placed), tuple(rejected))
