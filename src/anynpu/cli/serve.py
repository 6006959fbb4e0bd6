"""anynpu serve: models behind HTTP."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from anynpu.apps.serve.base import FleetSettings, Limits, ModelSettings
from anynpu.apps.serve.units import Deployment, compose_file, systemd_unit
from anynpu.apps.web.limits import Limits as WebLimits
from anynpu.artifact import Artifact
from anynpu.cli import flags
from anynpu.cli.command import Command, refuse_unused
from anynpu.errors import ConfigError, ToolMissing, on_one_line
from anynpu.files import check_free, write_whole

if TYPE_CHECKING:  # they need the extra `serve`, and --help does not
    from anynpu.apps.serve.desk import Desk
    from anynpu.apps.serve.service import ServiceSettings

INTERRUPTED = 130
MIB = 1024 * 1024
ADDRESS_CONNECTIONS, ADDRESS_RATE = 256, 50.0
"""Of another computer: far more than a client needs, and too little to hold others up."""
PACKAGES = ("httptools", "orjson", "uvloop")
MODEL_FLAGS = (
    click.option("--on", "device", multiple=True, metavar="DEVICE", help="ort, litert, noe, ...; or NAME=DEVICE."),
    click.option("--task", multiple=True, metavar="CARD", help="What a model is for; or NAME=CARD."),
    click.option("--tokenizer", multiple=True, metavar="FILE", help="Of --task; or NAME=FILE [BPE_PATH]."),
    click.option("--channels", type=click.Choice(("RGB", "BGR"), case_sensitive=False), help="Of a bare .cix file."),
    click.option("--strict", is_flag=True, help="Refuse a .cix file whose container says other than its program."),
    click.option("--fallback", multiple=True, metavar="cpu|PATH", help="Answer from this CPU twin while the device is "
                 "wrong or gone; cpu finds it beside the artifact. Or NAME=PATH."),
    click.option("--threads", type=click.IntRange(0), default=0, help="Of a session on the CPU; 0: half of the cores."),
)  # fmt: skip
ADDRESS_FLAGS = (
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True,
                 envvar=["ANYNPU_SERVE_PORT", "PORT"], help="Port; 0 takes a free one [PORT]."),
    click.option("--socket", type=click.Path(path_type=Path), help="Listen on a Unix socket at this path instead."),
    click.option("--token", metavar="TOKEN", help="Ask clients for this bearer token. Others may see a command line: "
                 "use --token-file, or ANYNPU_SERVE_TOKEN."),
    click.option("--token-file", type=click.Path(path_type=Path), help="File with the token; one a line for several."),
    click.option("--cors", multiple=True, metavar="ORIGIN", help="Let pages of this origin call; * for all."),
    click.option("--allow-host", multiple=True, metavar="NAME", help="Another name of this server, as a proxy sends "
                 "it; without a token, names other than localhost are refused."),
    click.option("--admin", is_flag=True, help="Serve /admin/reload and /admin/check; needs a token or --socket."),
)  # fmt: skip
LIMIT_FLAGS = (
    click.option("--max-body", type=click.IntRange(1, 4096), default=32, show_default=True, help="MiB of a body."),
    click.option("--max-items", type=click.IntRange(1), default=256, show_default=True, help="Items of a request."),
    click.option("--max-chars", type=click.IntRange(1), default=100_000, show_default=True, help="Of one text."),
    click.option("--max-pixels", type=click.IntRange(1), default=50_000_000, show_default=True, help="Of a picture."),
    click.option("--max-queue", type=click.IntRange(1), default=512, show_default=True,
                 help="Items that may wait for a model; then 429 with Retry-After."),
    click.option("--max-batch", type=click.IntRange(1), default=32, show_default=True, help="Rows that run together."),
    click.option("--max-connections", type=click.IntRange(1), default=4096, show_default=True,
                 help="Beyond these the longest idle ones are closed."),
    click.option("--max-per-address", type=click.IntRange(0), metavar="COUNT",
                 help="Connections of one address; 0 for any number. By default 256 for addresses of other computers."),
    click.option("--max-connect-rate", type=click.FloatRange(0), metavar="PER_SECOND",
                 help="New connections of one address a second, ten seconds' worth at once; 0 for any number. By "
                 "default 50 for addresses of other computers."),
    click.option("--deadline", type=click.FloatRange(0.001, 3600), default=30.0, show_default=True,
                 help="Seconds for a request; clients may ask for less with X-Request-Timeout."),
    click.option("--run-limit", type=click.FloatRange(0.1), default=30.0, show_default=True,
                 help="Seconds for one run; then the device counts as hung and is opened again."),
    click.option("--drain", type=click.FloatRange(0.1), default=30.0, show_default=True,
                 help="Seconds for the last requests after SIGTERM."),
    click.option("--canary-every", type=click.FloatRange(0), default=300.0, show_default=True,
                 help="Seconds between two checks of the known answers, in idle time; 0: at start and reload only."),
    click.option("--access-log", metavar="FILE", default="-", show_default=True,
                 help="JSON line a request; - is stderr, none is none."),
)  # fmt: skip
WRITE_FLAGS = (
    click.option(
        "--systemd", metavar="FILE", help="Write a hardened unit that starts this server, and stop; - prints."
    ),
    click.option("--docker", metavar="FILE", help="Write a compose file that starts this server, and stop; - prints."),
    click.option("--overwrite", is_flag=True, help="Replace the file of --systemd or --docker if it is there."),
)


@click.command(cls=Command)
@click.argument("artifacts", nargs=-1, metavar="[NAME=]ARTIFACT...")
@flags.apply(MODEL_FLAGS, ADDRESS_FLAGS, LIMIT_FLAGS, WRITE_FLAGS, flags.COMMON)
@click.pass_context
def serve(ctx: click.Context, /, artifacts: tuple[str, ...], **given: Any) -> int:
    """Serve models over HTTP: vectors, detections, classes and raw tensors, with the proof still attached.

    Every answer names the digest of the artifact that computed it. OpenAI's and Hugging Face's clients, TEI's and
    KServe's forms and curl work unchanged; /docs shows every route, / is a page to try it. The known answers of the
    artifact's own verification are run again and again; a device that drifts turns /health to degraded.

    \b
    anynpu serve out/cpu
    anynpu serve minilm=out/cpu yolo=yolo/zhouyi-z3 --fallback cpu --port 8091
    anynpu serve minilm=out/cpu --host 0.0.0.0 --token-file token
    anynpu serve minilm=out/cpu --systemd anynpu.service

    \b
    curl --json '{"input": "hello", "model": "minilm"}' http://127.0.0.1:8000/v1/embeddings

    The same name twice is one text model at several lengths. SIGTERM answers what is in flight and ends with status 0,
    SIGHUP loads every model again beside the old one and then switches. Every flag has an environment variable:
    ANYNPU_SERVE_PORT, ANYNPU_SERVE_TOKEN_FILE, ...; PORT, MODEL_PATH and BPE_PATH count too.
    """
    require_packages()
    settings = settings_of(_models(artifacts, given), given)
    if given["systemd"] is None and given["docker"] is None:
        refuse_unused(ctx, "no file is written", "overwrite")
        return _serve(settings, given)
    for flag, write in (("systemd", systemd_unit), ("docker", compose_file)):
        if given[flag] is not None:
            _write(f"--{flag}", given[flag], write(_deployment(ctx, settings, given, flag)), given["overwrite"])
    return 0


def require_packages() -> None:
    """Raises where the extra `serve` is not installed."""
    import importlib.util

    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ToolMissing(f"{', '.join(missing)}: not installed", "pip install 'anynpu[serve]'")


def _open_anywhere(artifact: Artifact, settings: ModelSettings) -> Any:
    """Returns a session for an artifact: of this machine, or of our firmware on a board that --on names."""
    from anynpu.api.session import is_board
    from anynpu.apps.serve.version import open_here

    on = settings.device or None
    if not is_board(artifact, on):
        return open_here(artifact, settings)
    from anynpu.firmware import run as firmware
    from anynpu.store import Store

    return firmware.start(artifact, on or "host", Store()).session


def _serve(settings: ServiceSettings, given: Mapping[str, Any]) -> int:
    from anynpu.apps.serve.fleet import open_fleet
    from anynpu.apps.serve.service import listen
    from anynpu.apps.serve.service import serve as serve_models
    from anynpu.apps.web.server import is_loopback, url_of

    listener = listen(settings)
    url = url_of(listener)
    if not is_loopback(listener):
        _warn_open(url, bool(settings.tokens))

    def ready(desk: Desk) -> None:
        _tell_ready(url, desk, given)

    with listener:
        ended_by = serve_models(settings, listener, partial(open_fleet, opener=_open_anywhere), ready)
    return INTERRUPTED if ended_by == signal.SIGINT else 0


def _warn_open(url: str, token: bool) -> None:
    if token:
        text = "what goes over the network is not encrypted; put a proxy with TLS before it"
    else:
        text = "whoever reaches this computer can use the models; give --token-file, or leave out --host"
    click.echo(f"warning: listening on {url}: {text}", err=True)


def _tell_ready(url: str, desk: Desk, given: Mapping[str, Any]) -> None:
    infos = [model.info() for model in desk.fleet.models.values()]
    if given["format"] == "json":
        import json

        models = [{"name": i.name, "kind": i.kind, "device": i.device, "version": i.version} for i in infos]
        click.echo(json.dumps({"schema_version": 1, "kind": "serve", "ready": True, "url": url, "models": models}))
    else:
        if not given["quiet"]:
            for info in infos:
                line = f"{info.name:<16} {info.kind:<12} {info.device:<10} {info.version[:12]}  {info.executed}"
                click.echo(on_one_line(line), err=True)
        click.echo(f"ready: {url}")
    sys.stdout.flush()


def settings_of(models: tuple[ModelSettings, ...], given: Mapping[str, Any]) -> ServiceSettings:
    """Returns the settings that the flags make."""
    from anynpu.apps.serve.desk import DeskSettings
    from anynpu.apps.serve.service import ServiceSettings

    tokens = read_tokens(given["token"], given["token_file"])
    if given["admin"] and not tokens and given["socket"] is None:
        raise ConfigError("--admin: anyone could reload models", "give --token-file, or --socket")
    for origin in given["cors"]:
        if origin != "*" and not origin.startswith(("http://", "https://")):
            raise ConfigError(f"--cors {origin}: an origin was expected, such as https://example.org", "* allows all")
    limits = Limits(given["max_items"], given["max_chars"], given["max_pixels"], given["max_body"] * MIB)
    held, rate = given["max_per_address"], given["max_connect_rate"]
    web = WebLimits(
        given["max_body"] * MIB,
        max(WebLimits.bodies_bytes, 4 * given["max_body"] * MIB),
        connections=given["max_connections"],
        grace_s=given["drain"],
        address_connections=ADDRESS_CONNECTIONS if held is None else held,
        address_rate=ADDRESS_RATE if rate is None else rate,
        address_local=held is not None or rate is not None,
    )
    log = given["access_log"]
    return ServiceSettings(
        models,
        FleetSettings(limits, given["max_queue"], given["run_limit"], given["canary_every"]),
        DeskSettings(given["deadline"], given["admin"]),
        web,
        tokens,
        given["cors"],
        (given["host"], *given["allow_host"]),
        given["host"],
        given["port"],
        given["socket"],
        None if log in ("-", "none") else Path(log),
        log != "none" and not (given["quiet"] and log == "-"),
    )


def read_tokens(token: str | None, path: Path | None) -> tuple[str, ...]:
    """Returns the tokens that clients must send one of; no message ever shows one."""
    found = [token] if token else []
    if path is not None:
        try:
            found += [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
            mode = path.stat().st_mode
        except OSError as error:
            raise ConfigError(f"--token-file {path}: {error.strerror}") from None
        except ValueError:
            raise ConfigError(f"--token-file {path}: is not text") from None
        if not found:
            raise ConfigError(f"--token-file {path}: holds no token", "openssl rand -hex 32 makes one")
        if mode & stat.S_IROTH:
            click.echo(f"warning: --token-file {path}: everybody on this computer can read it", err=True)
    for text in found:
        if not text.isascii() or not text.isprintable() or " " in text:
            raise ConfigError("the token holds a character that no header can carry", "use letters and digits")
    return tuple(found)


def _models(artifacts: Sequence[str], given: Mapping[str, Any]) -> tuple[ModelSettings, ...]:
    """Returns the models by name; a name given twice is one model at several lengths."""
    seed = os.environ.get("MODEL_PATH", "") if not artifacts else ""
    if not artifacts and not seed:
        raise ConfigError("no artifact is named", "anynpu serve out/cpu, or NAME=out/cpu; `anynpu build` makes them")
    paths: dict[str, list[Path]] = {}
    unnamed: set[str] = set()
    for text in artifacts or (seed,):
        name, path = _named(text)
        if name in paths and (name in unnamed or not text.startswith(f"{name}=")):
            raise ConfigError(f"two models would be called {name}", f"name them: first={paths[name][0]} second={path}")
        if not text.startswith(f"{name}="):
            unnamed.add(name)
        paths.setdefault(name, []).append(path)
    values = {key: _by_model(f"--{flag}", given[key], paths) for key, flag in PER_MODEL.items()}
    bpe = os.environ.get("BPE_PATH", "") if seed else ""
    return tuple(
        ModelSettings(
            name,
            tuple(found),
            values["device"].get(name) or None,
            values["task"].get(name) or ("clip-text" if bpe else ""),
            values["tokenizer"].get(name) or bpe,
            (given["channels"] or "").upper(),
            given["strict"],
            given["threads"],
            _fallback(values["fallback"].get(name, "")),
            given["max_batch"],
        )
        for name, found in paths.items()
    )


PER_MODEL = {"device": "on", "task": "task", "tokenizer": "tokenizer", "fallback": "fallback"}


def _named(text: str) -> tuple[str, Path]:
    """Returns the name and the path of NAME=PATH; a plain path has the name of its folder or file."""
    name, sign, path = text.partition("=")
    if not sign or Path(text).exists():
        where = Path(text)
        return (where.stem if where.is_file() else where.resolve().name) or "model", where
    if not name.strip() or not path or not name.isprintable() or len(name) > 100:
        raise ConfigError(f"{text}: NAME=ARTIFACT was expected")
    return name, Path(path)


def _by_model(flag: str, texts: Sequence[str], names: Mapping[str, Any]) -> dict[str, str]:
    """Returns a flag's value for every model: one for all, or NAME=VALUE for some."""
    values: dict[str, str] = {}
    plain: list[str] = []
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or name not in names:
            plain.append(text)
        elif name in values:
            raise ConfigError(f"{flag} {text}: {name} is given twice")
        else:
            values[name] = value
    if len(set(plain)) > 1:
        raise ConfigError(f"{flag} is given for all models more than once: {', '.join(plain)}", f"{flag} NAME=VALUE")
    return {**dict.fromkeys(names, *plain[:1]), **values} if plain else values


def _fallback(text: str) -> Any:
    return text if text in ("", "cpu") else Path(text)


def _deployment(ctx: click.Context, settings: ServiceSettings, given: Mapping[str, Any], kind: str) -> Deployment:
    """Returns this command line for a unit or a container: paths made absolute, the token left to its file."""
    if given["token"]:
        raise ConfigError(f"--token would stand in the file of --{kind}", "give --token-file")
    program = Path(shutil.which("anynpu") or Path(sys.prefix) / "bin" / "anynpu")
    reads = [path.resolve() for model in settings.models for path in model.paths]
    reads += [Path(model.tokenizer).resolve() for model in settings.models if model.tokenizer]
    reads += [model.fallback.resolve() for model in settings.models if isinstance(model.fallback, Path)]
    arguments = [f"{model.name}={path.resolve()}" for model in settings.models for path in model.paths]
    for model in settings.models:
        for flag, value in (("--on", model.device), ("--task", model.task), ("--tokenizer", model.tokenizer)):
            if value:
                whole = Path(value).resolve() if Path(value).exists() else value
                arguments += [flag, f"{model.name}={whole}"]
        if model.fallback:
            whole = model.fallback if model.fallback == "cpu" else Path(model.fallback).resolve()
            arguments += ["--fallback", f"{model.name}={whole}"]
            reads += [path.resolve().parent for path in model.paths] if whole == "cpu" else []
    arguments += _other_arguments(ctx, kind)
    if kind == "systemd":
        reads += [Path(sys.prefix)]
    missing = [path for path in reads if not path.exists()]
    if missing:
        raise ConfigError(f"{missing[0]}: no such file or folder")
    token_file = given["token_file"].resolve() if given["token_file"] else None
    return Deployment(
        program,
        tuple(arguments),
        tuple(dict.fromkeys(reads)),
        given["port"] or 8000,
        given["socket"],
        token_file,
    )


def _other_arguments(ctx: click.Context, kind: str) -> list[str]:
    """Returns the flags of the command line and the environment that are not about files or models."""
    words: list[str] = []
    skipped = {"systemd", "docker", "overwrite", "format", "verbose", "quiet", "cache_dir", "token", "token_file"}
    skipped |= {*PER_MODEL, "artifacts"} | ({"host", "port", "socket"} if kind == "docker" else set())
    for param in ctx.command.params:
        name = param.name or ""
        if name in skipped or ctx.get_parameter_source(name) in (ParameterSource.DEFAULT, None):
            continue
        value, flag = ctx.params[name], max(param.opts, key=len)
        if value is True:
            words.append(flag)
        elif isinstance(value, tuple):
            words += [word for each in value for word in (flag, str(each))]
        elif value not in (None, False):
            words += [flag, str(value.resolve() if isinstance(value, Path) else value)]
    if kind != "docker":
        return words
    for flag in ("--max-per-address", "--max-connect-rate"):  # all clients have the address of the container's gateway
        words += [] if flag in words else [flag, "0"]
    return [*words, "--host", "0.0.0.0", "--port", "8000"]


def _write(flag: str, target: str, text: str, overwrite: bool) -> None:
    if target == "-":
        click.echo(text, nl=False)
        return
    check_free(Path(target), overwrite, flag=flag)
    write_whole(Path(target), text)
    click.echo(f"anynpu: {target} is written", err=True)
