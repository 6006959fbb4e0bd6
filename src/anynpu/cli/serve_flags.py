"""The flags of `anynpu serve`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from anynpu.apps.serve.base import FleetSettings, Limits, ModelSettings
from anynpu.apps.web.limits import Limits as WebLimits
from anynpu.cli.task import CHANNELS
from anynpu.cli.verb import Common, argument, flag

MIB = 1024 * 1024
PORT, DEADLINE_S = 8000, 30.0


@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """Models, and what their artifacts do not say."""

    artifacts: tuple[str, ...] = argument((), metavar="[NAME=]ARTIFACT...")
    device: tuple[str, ...] = flag("ort, litert, noe, ...; or NAME=DEVICE.", (), "--on", metavar="DEVICE")
    task: tuple[str, ...] = flag("What a model is for; or NAME=CARD.", (), metavar="CARD")
    tokenizer: tuple[str, ...] = flag("Of --task; or NAME=FILE [BPE_PATH].", (), metavar="FILE")
    channels: str | None = flag("Of a bare .cix file.", None, type=CHANNELS)
    strict: bool = flag("Refuse a .cix file whose container contradicts its program.", False)
    fallback: tuple[str, ...] = flag(
        "Answer from this CPU twin while the device is wrong or gone; cpu finds it next to the artifact. Or NAME=PATH.",
        (),
        metavar="cpu|PATH",
    )
    threads: int = flag("Of a session on the CPU; 0: half of the cores.", ModelSettings.threads, minimum=0)


@dataclass(frozen=True, kw_only=True)
class AddressFlags:
    """Where the server listens, and who may call it."""

    host: str = flag("Address to listen on.", "127.0.0.1", shown=True)
    port: int = flag(
        "Port; 0 takes a free one [PORT].",
        PORT,
        minimum=0,
        maximum=65535,
        shown=True,
        envvar=("ANYNPU_SERVE_PORT", "PORT"),
    )
    socket: Path | None = flag("Listen on a Unix socket at this path instead.", None)
    token: str = flag(
        "Ask clients for this bearer token. Others may see a command line: use --token-file, or ANYNPU_SERVE_TOKEN.",
        "",
        metavar="TOKEN",
    )
    token_file: Path | None = flag("File with the tokens, one per line.", None)
    cors: tuple[str, ...] = flag("Let pages of this origin call; * for all.", (), metavar="ORIGIN")
    allow_host: tuple[str, ...] = flag(
        "Another name of this server, as a proxy sends it; without a token, names other than localhost are refused.",
        (),
        metavar="NAME",
    )
    admin: bool = flag("Serve /admin/reload and /admin/check; needs a token or --socket.", False)


@dataclass(frozen=True, kw_only=True)
class LimitFlags:
    """What one client may cost, and how long things may take."""

    max_body: int = flag("Maximum MiB of a body.", Limits.image_bytes // MIB, minimum=1, maximum=4096, shown=True)
    max_items: int = flag("Maximum items per request.", Limits.items, minimum=1, shown=True)
    max_chars: int = flag("Maximum characters of one text.", Limits.characters, minimum=1, shown=True)
    max_pixels: int = flag("Maximum pixels of a picture.", Limits.pixels, minimum=1, shown=True)
    max_queue: int = flag(
        "Items that may wait for a model; then 429 with Retry-After.", FleetSettings.queue, minimum=1, shown=True
    )
    max_batch: int = flag("Maximum rows that run together.", ModelSettings.most_batch, minimum=1, shown=True)
    max_connections: int = flag(
        "Beyond these the longest idle ones are closed.", WebLimits.connections, minimum=1, shown=True
    )
    max_per_address: int | None = flag(
        "Connections from one address; 0 for any number. By default 256 for addresses of other computers.",
        None,
        metavar="COUNT",
        minimum=0,
    )
    max_connect_rate: float | None = flag(
        "New connections per second from one address, ten seconds' worth at once; 0 for any number. By default 50 for "
        "addresses of other computers.",
        None,
        metavar="PER_SECOND",
        minimum=0,
    )
    deadline: float = flag(
        "Seconds for a request; clients may ask for less with X-Request-Timeout.",
        DEADLINE_S,
        minimum=0.001,
        maximum=3600,
        shown=True,
    )
    run_limit: float = flag(
        "Seconds for one run; then the device counts as hung and is opened again.",
        FleetSettings.run_limit_s,
        minimum=0.1,
        shown=True,
    )
    drain: float = flag("Seconds for the last requests after SIGTERM.", WebLimits.grace_s, minimum=0.1, shown=True)
    canary_every: float = flag(
        "Seconds between two checks of the known answers, in idle time; 0: at start and reload only.",
        FleetSettings.canary_s,
        minimum=0,
        shown=True,
    )
    access_log: str = flag("One JSON line per request; - is stderr, none writes none.", "-", metavar="FILE", shown=True)


@dataclass(frozen=True, kw_only=True)
class WriteFlags:
    """Files to write instead of serving."""

    systemd: str | None = flag(
        "Write a hardened unit that starts this server, and stop; - prints.", None, metavar="FILE"
    )
    docker: str | None = flag("Write a compose file that starts this server, and stop; - prints.", None, metavar="FILE")
    overwrite: bool = flag("Replace the file of --systemd or --docker if it exists.", False)


@dataclass(frozen=True, kw_only=True)
class Serve(ModelFlags, AddressFlags, LimitFlags, WriteFlags, Common):
    """Models to serve, where, to whom and within which bounds."""
