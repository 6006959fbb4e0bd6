"""The machine around a measurement, as a record of kind bench holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anynpu.schema import rest


@dataclass(frozen=True, kw_only=True)
class Span:
    """How a figure of the machine went over the window."""

    first: float
    last: float
    min: float
    max: float


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the machine is and how it is set; what it does not tell is null."""

    cpu: str | None = None
    name: str = ""
    system: str = ""
    python: str = ""
    cores: int | None = None
    affinity: tuple[int, ...] | None = None
    governor: str | None = None
    turbo: bool | None = None
    load_1min: float | None = None


@dataclass(frozen=True, kw_only=True)
class Used:
    """What was used in the measured window."""

    wall_s: float = 0.0
    cpu_user_s: float = 0.0
    cpu_system_s: float = 0.0
    cores_used: float = 0.0
    other_cores_used: float | None = None
    stolen_cores: float | None = None
    held_back_s: float = 0.0
    asleep_s: float = 0.0
    involuntary_switches: int = 0
    worker_processes: int = 0
    worker_cpu_s: float = 0.0
    peak_rss_bytes: int = 0
    peak_rss_of: str = ""
    rss_delta_bytes: int | None = None
    worker_peak_rss_bytes: int = 0
    frequency_mhz: Span | None = None
    temperature_c: Span | None = None
    gc_collections: int = 0


@dataclass(frozen=True, kw_only=True)
class Host(Machine, Used):
    """The machine, what was used in the measured window, and what the garbage collector did."""

    gc: str = ""
    timed_share: float | None = None
    rest: Mapping[str, object] = rest()
