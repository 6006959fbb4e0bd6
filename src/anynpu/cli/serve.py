"""anynpu serve: models behind HTTP."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from anynpu.apps.serve.base import FleetSettings, Limits, ModelSettings
from anynpu.apps.serve.units import Deployment, compose_file, systemd_unit
from anynpu.apps.web.limits import Limits as WebLimits
from anynpu.artifact import Artifact
from anynpu.cli.flags import read_tokens, require_packages
from anynpu.cli.serve_flags import MIB, PORT, Serve
from anynpu.cli.verb import verb
from anynpu.errors import ConfigError, on_one_line
from anynpu.files import check_free, write_whole

if TYPE_CHECKING:  # they need the extra `serve`, and --help does not
    from anynpu.apps.serve.desk import Desk
    from anynpu.apps.serve.service import ServiceSettings

INTERRUPTED = 130
ADDRESS_CONNECTIONS, ADDRESS_RATE = 256, 50.0
"""Of another computer: far more than a client needs, and too little to hold others up."""


@verb(Serve)
def serve(asked: Serve) -> int:
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
    SIGHUP loads every model again while the old one answers, and then switches. Every flag has an environment variable:
    ANYNPU_SERVE_PORT, ANYNPU_SERVE_TOKEN_FILE, ...; PORT, MODEL_PATH and BPE_PATH count too.
    """
    require_packages("serve")
    settings = settings_of(_models(asked), asked)
    if asked.systemd is None and asked.docker is None:
        asked.refuse_unused("no file is written", "overwrite")
        return _serve(settings, asked)
    if asked.systemd is not None:
        _write("--systemd", asked.systemd, systemd_unit(_deployment(settings, asked, "systemd")), asked.overwrite)
    if asked.docker is not None:
        _write("--docker", asked.docker, compose_file(_deployment(settings, asked, "docker")), asked.overwrite)
    return 0


def _serve(settings: ServiceSettings, asked: Serve) -> int:
    from anynpu.apps.serve.fleet import open_fleet
    from anynpu.apps.serve.service import listen
    from anynpu.apps.serve.service import serve as serve_models
    from anynpu.apps.web.server import is_loopback, url_of

    listener = listen(settings)
    url = url_of(listener)
    if not is_loopback(listener):
        if settings.tokens:
            text = "what goes over the network is not encrypted; put a proxy with TLS before it"
        else:
            text = "whoever reaches this computer can use the models; give --token-file, or leave out --host"
        click.echo(f"warning: listening on {url}: {text}", err=True)

    def ready(desk: Desk) -> None:
        infos = [model.info() for model in desk.fleet.models.values()]
        if asked.json:
            import json

            models = [{"name": i.name, "kind": i.kind, "device": i.device, "version": i.version} for i in infos]
            click.echo(json.dumps({"schema_version": 1, "kind": "serve", "ready": True, "url": url, "models": models}))
        else:
            if not asked.quiet:
                for info in infos:
                    line = f"{info.name:<16} {info.kind:<12} {info.device:<10} {info.version[:12]}  {info.executed}"
                    click.echo(on_one_line(line), err=True)
            click.echo(f"ready: {url}")
        sys.stdout.flush()

    with listener:
        ended_by = serve_models(settings, listener, partial(open_fleet, opener=_open_anywhere), ready)
    return INTERRUPTED if ended_by == signal.SIGINT else 0


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


def settings_of(models: tuple[ModelSettings, ...], asked: Serve) -> ServiceSettings:
    """Returns the settings that the flags make."""
    from anynpu.apps.serve.desk import DeskSettings
    from anynpu.apps.serve.service import ServiceSettings

    tokens = read_tokens(asked.token, asked.token_file)
    if asked.admin and not tokens and asked.socket is None:
        raise ConfigError("--admin: anyone could reload models", "give --token-file, or --socket")
    for origin in asked.cors:
        if origin != "*" and not origin.startswith(("http://", "https://")):
            raise ConfigError(f"--cors {origin}: an origin was expected, such as https://example.org", "* allows all")
    limits = Limits(asked.max_items, asked.max_chars, asked.max_pixels, asked.max_body * MIB)
    held, rate = asked.max_per_address, asked.max_connect_rate
    web = WebLimits(
        asked.max_body * MIB,
        max(WebLimits.bodies_bytes, 4 * asked.max_body * MIB),
        connections=asked.max_connections,
        grace_s=asked.drain,
        address_connections=ADDRESS_CONNECTIONS if held is None else held,
        address_rate=ADDRESS_RATE if rate is None else rate,
        address_local=held is not None or rate is not None,
    )
    log = asked.access_log
    return ServiceSettings(
        models,
        FleetSettings(limits, asked.max_queue, asked.run_limit, asked.canary_every),
        DeskSettings(asked.deadline, asked.admin),
        web,
        tokens,
        asked.cors,
        (asked.host, *asked.allow_host),
        asked.host,
        asked.port,
        asked.socket,
        None if log in ("-", "none") else Path(log),
        log != "none" and not (asked.quiet and log == "-"),
    )


def _models(asked: Serve) -> tuple[ModelSettings, ...]:
    """Returns the models by name; a name given twice is one model at several lengths."""
    seed = os.environ.get("MODEL_PATH", "") if not asked.artifacts else ""
    if not asked.artifacts and not seed:
        raise ConfigError("no artifact is named", "anynpu serve out/cpu, or NAME=out/cpu; `anynpu build` makes them")
    paths: dict[str, list[Path]] = {}
    unnamed: set[str] = set()
    for text in asked.artifacts or (seed,):
        name, sign, rest = text.partition("=")
        path = Path(rest)
        if not sign or Path(text).exists():  # a plain path has the name of its folder or file
            path = Path(text)
            name = (path.stem if path.is_file() else path.resolve().name) or "model"
        elif not name.strip() or not rest or not name.isprintable() or len(name) > 100:
            raise ConfigError(f"{text}: NAME=ARTIFACT was expected")
        if name in paths and (name in unnamed or not text.startswith(f"{name}=")):
            raise ConfigError(f"two models would be called {name}", f"name them: first={paths[name][0]} second={path}")
        if not text.startswith(f"{name}="):
            unnamed.add(name)
        paths.setdefault(name, []).append(path)
    values = {key: _by_model(f"--{flag}", getattr(asked, key), paths) for key, flag in PER_MODEL.items()}
    bpe = os.environ.get("BPE_PATH", "") if seed else ""
    return tuple(
        ModelSettings(
            name,
            tuple(places),
            values["device"].get(name) or None,
            values["task"].get(name) or ("clip-text" if bpe else ""),
            values["tokenizer"].get(name) or bpe,
            asked.channels or "",
            asked.strict,
            asked.threads,
            "cpu" if (text := values["fallback"].get(name, "")) == "cpu" else Path(text) if text else "",
            asked.max_batch,
        )
        for name, places in paths.items()
    )


PER_MODEL = {"device": "on", "task": "task", "tokenizer": "tokenizer", "fallback": "fallback"}


def _by_model(flag: str, texts: Sequence[str], names: Collection[str]) -> dict[str, str]:
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


def _deployment(settings: ServiceSettings, asked: Serve, kind: str) -> Deployment:
    """Returns this command line for a unit or a container: paths made absolute, the token left to its file."""
    if asked.token:
        raise ConfigError(f"--token would stand in the file of --{kind}", "give --token-file")
    program = Path(shutil.which("anynpu") or Path(sys.prefix) / "bin" / "anynpu")
    reads = [path.resolve() for model in settings.models for path in model.paths]
    reads += [Path(model.tokenizer).resolve() for model in settings.models if model.tokenizer]
    reads += [model.fallback.resolve() for model in settings.models if isinstance(model.fallback, Path)]
    arguments = [f"{model.name}={path.resolve()}" for model in settings.models for path in model.paths]
    for model in settings.models:
        for name, value in (("--on", model.device), ("--task", model.task), ("--tokenizer", model.tokenizer)):
            if value:
                whole = Path(value).resolve() if Path(value).exists() else value
                arguments += [name, f"{model.name}={whole}"]
        if model.fallback:
            whole = model.fallback if model.fallback == "cpu" else Path(model.fallback).resolve()
            arguments += ["--fallback", f"{model.name}={whole}"]
            reads += [path.resolve().parent for path in model.paths] if whole == "cpu" else []
    arguments += _other_arguments(kind)
    if kind == "systemd":
        reads += [Path(sys.prefix)]
    missing = [path for path in reads if not path.exists()]
    if missing:
        raise ConfigError(f"{missing[0]}: no such file or folder")
    token_file = asked.token_file.resolve() if asked.token_file else None
    return Deployment(
        program,
        tuple(arguments),
        tuple(dict.fromkeys(reads)),
        asked.port or PORT,
        asked.socket,
        token_file,
    )


def _other_arguments(kind: str) -> list[str]:
    """Returns the flags of the command line and the environment that are not about files or models."""
    ctx, words = click.get_current_context(), []
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
    return [*words, "--host", "0.0.0.0", "--port", str(PORT)]


def _write(flag: str, target: str, text: str, overwrite: bool) -> None:
    if target == "-":
        click.echo(text, nl=False)
        return
    check_free(Path(target), overwrite, flag=flag)
    write_whole(Path(target), text)
    click.echo(f"anynpu: {target} is written", err=True)
