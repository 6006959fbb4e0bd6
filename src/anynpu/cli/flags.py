"""Flags of every verb, and how their texts are read; what only builds need is in options.py."""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from anynpu import schema
from anynpu.errors import ConfigError, ToolMissing
from anynpu.files import cache_chosen, default_cache_dir
from anynpu.schema import literal
from anynpu.tasks.images import Preprocess


def choose_cache(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Makes --cache-dir the cache of the whole command, of toolchains and sessions too."""
    if value is None:
        return None
    ctx.with_resource(cache_chosen(value))
    return default_cache_dir()


def require_packages(extra: str) -> None:
    """Raises where the packages of the extra `serve` or `watch` are not installed."""
    import importlib.util

    missing = [name for name in ("httptools", "orjson", "uvloop") if importlib.util.find_spec(name) is None]
    if missing:
        raise ToolMissing(f"{', '.join(missing)}: not installed", f"pip install 'anynpu[{extra}]'")


def read_tokens(token: str | None, path: Path | None) -> tuple[str, ...]:
    """Returns the tokens that clients must send one of; no message ever shows one."""
    tokens = [token] if token else []
    if path is not None:
        try:
            tokens += [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
            mode = path.stat().st_mode
        except OSError as error:
            raise ConfigError(f"--token-file {path}: {error.strerror}") from None
        except ValueError:
            raise ConfigError(f"--token-file {path}: is not text") from None
        if not tokens:
            raise ConfigError(f"--token-file {path}: holds no token", "openssl rand -hex 32 makes one")
        if mode & stat.S_IROTH:
            click.echo(f"warning: --token-file {path}: everybody on this computer can read it", err=True)
    for text in tokens:
        if not text.isascii() or not text.isprintable() or " " in text:
            raise ConfigError("the token holds a character that no header can carry", "use letters and digits")
    return tuple(tokens)


def pairs(flag: str, texts: tuple[str, ...]) -> dict[str, str]:
    """Returns {"name": "value"} for texts of the form name=value."""
    values = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise ConfigError(f"{flag} {text}: NAME=VALUE was expected")
        if name.strip() in values:
            raise ConfigError(f"{flag} {text}: {name.strip()} is given twice")
        values[name.strip()] = value.strip()
    return values


def shape_of(name: str, value: Any) -> tuple[int, ...]:
    try:
        parts = value.replace("x", ",").split(",") if isinstance(value, str) else value
        dims = tuple(int(part) for part in parts)
    except ValueError:
        dims = ()
    if not dims or min(dims) < 1:
        raise ConfigError(f"--shape {name}={value}: whole numbers above zero were expected, such as 1,3,224,224")
    return dims


def preprocess(value: Any, basis: Mapping[str, object] | None = None) -> Preprocess | None:
    """Returns how images become inputs as -P says it, in all else as `basis` does."""
    if isinstance(value, Preprocess) or not value:
        return value or None
    data: dict[str, object] = dict(basis or {})
    for name, text in pairs("-P", tuple(value)).items():
        if name == "size":
            data[name] = list(shape_of("size", text))
        elif name in ("mean", "std"):
            try:
                data[name] = [float(part) for part in text.split(",")]
            except ValueError:
                raise ConfigError(f"-P {name}={text}: numbers were expected") from None
        else:
            data[name] = literal(text)
    return schema.from_dict(Preprocess, data, "-P")


def read_preprocess(texts: Sequence[str], stated: Preprocess | None) -> Preprocess | None:
    """Reads -P, where it may be repeated, over what a configuration file says."""
    return preprocess(tuple(texts), schema.to_dict(stated)) if texts else stated
