"""A server measured from outside, as a record of kind bench holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from anynpu.schema import about, rest


@dataclass(frozen=True, kw_only=True)
class Connections:
    """Connections to a server."""

    limit: int | None = None
    opened: int | None = None
    most_busy: int | None = None


@dataclass(frozen=True, kw_only=True)
class Process:
    """What the processes of a server used."""

    program: str = ""
    pids: tuple[int, ...] = ()
    cores_used: float = 0.0
    cpu_ms_per_request: float | None = None
    rss_bytes: int = 0
    most_rss_bytes: int = 0
    rest: Mapping[str, object] = rest()


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server as it describes itself, and its processes where they run here."""

    software: str = ""
    models: tuple[str, ...] = ()
    info: Mapping[str, object] = field(default_factory=dict)
    info_digest: str = ""
    process: Process | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class NoOp:
    """A request that computes nothing: the client's own share."""

    requests: int | None = None
    median_ms: float | None = None
    max_ms: float | None = None
    cpu_us_per_request: float | None = None
    rest: Mapping[str, object] = rest()


@dataclass(frozen=True, kw_only=True)
class Client:
    """What the load generator itself used."""

    cpu_us_per_request: float = 0.0
    cores_used: float = 0.0
    no_op: NoOp | None = None


@dataclass(frozen=True, kw_only=True)
class LimitStep:
    """One rate that was tried."""

    rate_per_s: float | None = None
    connections: int | None = None
    answered_per_s: float = 0.0
    median_ms: float | None = None
    p99_ms: float | None = None
    failed: int = 0
    kept: bool = False
    why: str = ""
    rest: Mapping[str, object] = rest()


@dataclass(frozen=True, kw_only=True)
class RateLimit:
    """The highest rate that a server keeps up with."""

    kept_per_s: float | None = None
    not_kept_per_s: float | None = None
    closed_per_s: float | None = None
    steps: tuple[LimitStep, ...] = ()
    rest: Mapping[str, object] = rest()


@dataclass(frozen=True, kw_only=True)
class Http:
    """A server, measured from outside."""

    label: str = about("client-side latency: with the network, the server's queue and the client's share", "")
    loop: str = about("open: arrivals wait for nothing; closed: each connection waits for its answer", "")
    url: str = ""
    route: str = ""
    model: str = ""
    batch: int = 1
    timeout_s: float | None = None
    connections: Connections = field(default_factory=Connections)
    requests: int = 0
    failed: int = about("requests without a right answer", 0)
    outcomes: Mapping[str, int] = field(
        default_factory=dict, metadata={"help": "requests by status, and by what was wrong with the answer"}
    )
    example: str = about("the beginning of the first answer that was not right", "")
    retried: int = about("sent again, because the server closed an idle connection in that moment", 0)
    server: Server = field(default_factory=Server)
    client: Client = field(default_factory=Client)
    limit: RateLimit | None = None
