"""Verbs made of dataclasses: a verb's parameters are one frozen dataclass, and its flags, arguments, defaults and
`--help` come from the fields, as `-O` does from a target's Options.

    @dataclass(frozen=True, kw_only=True)
    class Prune(Common):
        older_than: float | None = flag("Drop what was not used for this many days.", None, least=0, metavar="DAYS")

    @verb(Prune)
    def prune(asked: Prune) -> int:
        "Drop what has not been used for long."

A field's type says what its flag takes: bool none, Literal one of the values, Path a file, a tuple may be repeated.
The flags of a class that another is derived from come after its own.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click

from anynpu.cli.command import Command, Group
from anynpu.cli.flags import choose_cache
from anynpu.errors import ConfigError
from anynpu.store import Store

P = TypeVar("P")


def flag(
    help: str,
    default: Any = MISSING,
    *names: str,
    metavar: str = "",
    least: float | None = None,
    most: float | None = None,
    shown: bool = False,
    type: click.ParamType[Any] | None = None,
    callback: Callable[..., Any] | None = None,
    envvar: str = "",
) -> Any:
    """A field that is a flag. Its long name is the field's, unless `names` has one; `shown` shows the default in help;
    without a default the flag must be given."""
    how = {"help": help, "metavar": metavar or None, "show_default": shown, "callback": callback, "envvar": envvar}
    metadata = {"names": names, "click": how, "type": type, "range": (least, most)}
    return field(default=default, metadata=metadata)


def argument(default: Any = MISSING, metavar: str = "", type: click.ParamType[Any] | None = None) -> Any:
    """A field that is an argument; with a default it may be left out."""
    return field(default=default, metadata={"argument": True, "click": {"metavar": metavar or None}, "type": type})


@dataclass(frozen=True, kw_only=True)
class Common:
    """Flags of every verb."""

    format: Literal["text", "json"] = flag("What stdout holds.", "text", "-f")
    verbose: bool = flag("Show tracebacks of errors.", False, "-v")
    quiet: bool = flag("No progress on stderr.", False, "-q")
    cache_dir: Path | None = flag("Where built steps are kept [ANYNPU_CACHE_DIR].", None, callback=choose_cache)

    @property
    def json(self) -> bool:
        """Whether stdout is to hold JSON."""
        return self.format == "json"

    def store(self) -> Store:
        """Returns the store under the chosen cache folder."""
        store = Store(self.cache_dir)
        if store.cache.exists() and not store.cache.is_dir():
            raise ConfigError(f"{store.cache}: is a file, not a cache folder", "name a folder with --cache-dir")
        return store


def verb(
    form: type[P], name: str | None = None, group: Group | None = None
) -> Callable[[Callable[[P], int]], click.Command]:
    """Returns a decorator that makes a command of a function that takes the dataclass; its docstring is the help."""

    def decorate(function: Callable[[P], int]) -> click.Command:
        command = Command(
            name or function.__name__.rstrip("_").replace("_", "-"),
            callback=lambda **values: function(form(**values)),
            params=parameters(form),
            help=function.__doc__,
        )
        if group is not None:
            group.add_command(command)
        return command

    return decorate


def parameters(form: type[Any]) -> list[click.Parameter]:
    """Returns the click parameters of a dataclass: the fields of the class itself first, then those of its bases."""
    hints, fields = get_type_hints(form), {each.name: each for each in dataclasses.fields(form)}
    order = [name for cls in form.__mro__ for name in inspect.get_annotations(cls) if name in fields]
    made = [_parameter(fields[name], hints[name]) for name in dict.fromkeys(order)]
    return sorted(made, key=lambda parameter: isinstance(parameter, click.Option))  # arguments first


def _parameter(each: dataclasses.Field[Any], hint: Any) -> click.Parameter:
    how = {name: value for name, value in each.metadata["click"].items() if value not in (None, "")}
    required = each.default is MISSING and each.default_factory is MISSING
    kind = _plain(hint)
    many = get_origin(kind) is tuple
    if each.metadata.get("argument"):
        default = None if required or many else each.default
        parsed = each.metadata["type"] or _click_type(get_args(kind)[0] if many else kind, (None, None))
        count = -1 if many else 1
        return click.Argument([each.name], type=parsed, required=required, default=default, nargs=count, **how)
    names = list(each.metadata["names"])
    if not any(name.startswith("--") for name in names):
        names.append(f"--{each.name.replace('_', '-')}")
    if kind is bool:
        return click.Option([*names, each.name], is_flag=True, default=each.default, **how)
    parsed = each.metadata["type"] or _click_type(get_args(kind)[0] if many else kind, each.metadata["range"])
    default = None if required else each.default
    return click.Option([*names, each.name], type=parsed, multiple=many, required=required, default=default, **how)


def _plain(hint: Any) -> Any:
    """Returns the type of a field that may be None too."""
    if get_origin(hint) in (Union, types.UnionType):
        return next(each for each in get_args(hint) if each is not type(None))
    return hint


def _click_type(kind: Any, limits: Sequence[Any]) -> Any:
    least, most = limits
    if get_origin(kind) is Literal:
        return click.Choice(list(get_args(kind)))
    if kind is Path:
        return click.Path(path_type=Path)
    if kind in (int, float) and (least is not None or most is not None):
        return (click.IntRange if kind is int else click.FloatRange)(least, most)
    return {int: click.INT, float: click.FLOAT}.get(kind, click.STRING)
