"""Verbs made of dataclasses: a verb's parameters are one frozen dataclass, and its flags, arguments, defaults and
`--help` come from the fields, as `-O` does from a target's Options.

    @dataclass(frozen=True, kw_only=True)
    class Prune(Common):
        older_than: float | None = flag("Drop what was not used for this many days.", None, minimum=0, metavar="DAYS")

    @verb(Prune)
    def prune(asked: Prune) -> int:
        "Drop what has not been used for long."

A field's type says what its flag takes: bool none, Literal one of the values, Path a file, a tuple may be repeated.
The flags of a class that another is derived from come after its own. A field that ends in _ has a flag without it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click

from anynpu.cli.command import Command, origin_of, refuse_unused
from anynpu.cli.flags import choose_cache, pairs
from anynpu.errors import ConfigError
from anynpu.files import check_free
from anynpu.schema import read_toml, settings_of
from anynpu.store import Store

P = TypeVar("P")


def flag(
    help: str,
    default: Any = MISSING,
    *names: str,
    metavar: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    shown: bool = False,
    type: click.ParamType[Any] | None = None,
    callback: Callable[..., Any] | None = None,
    read: Callable[..., Any] | None = None,
    envvar: str | Sequence[str] | None = None,
    alone: str | None = None,
) -> Any:
    """A field that is a flag. Its long name is the field's, unless `names` has one; `shown` shows the default in help;
    without a default the flag must be given.

    `alone` is its value where none follows it. A flag with `read` may be repeated: it makes the value of all texts and
    of what a configuration file says, or None.
    """
    how = {"help": help, "metavar": metavar or None, "show_default": shown, "callback": callback, "envvar": envvar}
    if alone is not None:
        how |= {"is_flag": False, "flag_value": alone}
    metadata = {"names": names, "click": how, "type": type, "range": (minimum, maximum), "read": read}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def table(
    help: str, flag_name: str, entry: Callable[[str, str], object] | None = None, metavar: str = "NAME=VALUE"
) -> Any:
    """A field of named values, each a NAME=VALUE of its own; those of a configuration file stay that no flag names."""

    def read(texts: Sequence[str], stated: Mapping[str, object] | None) -> dict[str, object]:
        entries = pairs(flag_name, tuple(texts))
        return {**(stated or {}), **{name: entry(name, text) if entry else text for name, text in entries.items()}}

    names = (flag_name, "--option") if flag_name == "-O" else (flag_name,)
    return flag(help, {}, *names, metavar=metavar, read=read)


def argument(default: Any = MISSING, metavar: str = "", type: click.ParamType[Any] | None = None) -> Any:
    """A field that is an argument; with a default it may be left out."""
    return field(default=default, metadata={"argument": True, "click": {"metavar": metavar or None}, "type": type})


@dataclass(frozen=True, kw_only=True)
class Common:
    """Flags of every verb."""

    format: Literal["text", "json"] = flag("Format of the output on stdout.", "text", "-f")
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

    def refuse_unused(self, why: str, *names: str, hint: str = "") -> None:
        """Raises for one of these flags on the command line, where this call has no use for it."""
        refuse_unused(click.get_current_context(), why, *names, hint=hint)


@dataclass(frozen=True, kw_only=True)
class Writes(Common):
    """Flags of a verb that may write a file."""

    output: Path | None = flag("Write the record to this JSON file too.", None, "-o")
    overwrite: bool = flag("Replace the file of -o if it exists.", False)

    def require_free(self, *read: Path | str | None) -> None:
        """Raises, before any work, if the file of -o is there or is one of those that are read."""
        if self.output is not None:
            check_free(self.output, self.overwrite, read)
        else:
            self.refuse_unused("there is no -o", "overwrite")


CONFIG, ORIGINS = "config", "origins"
"""The field that names a configuration file, and the one that gets the origin of every setting."""


def verb(
    form: type[P], name: str | None = None, group: click.Group | None = None, file: type[Any] | None = None
) -> Callable[[Callable[[P], int]], click.Command]:
    """Returns a decorator that makes a command of a function that takes the dataclass; its docstring is the help.

    A configuration file, where the form has the field `config`, may hold the settings of the class `file`, by default
    of the form itself.
    """

    def decorate(function: Callable[[P], int]) -> click.Command:
        @functools.wraps(function)
        def call(**values: Any) -> int:
            return function(filled(form, file or form, values))

        command = Command(
            name or function.__name__.rstrip("_").replace("_", "-"),
            callback=call,
            params=parameters(form),
            help=function.__doc__,
        )
        if group is not None:
            group.add_command(command)
        return command

    return decorate


def filled(form: type[P], file: type[Any], values: dict[str, Any]) -> P:
    """Returns the form of a command's values, taken from the configuration file where neither the command line nor the
    environment has them."""
    ctx, fields = click.get_current_context(), {each.name for each in dataclasses.fields(form)}  # type: ignore[arg-type]
    values = {f"{name}_" if f"{name}_" in fields else name: value for name, value in values.items()}
    origins = {name: origin for name in values if (origin := origin_of(ctx, name.rstrip("_")))}
    path = values.get(CONFIG)
    stated: Mapping[str, object] = {}
    if path is not None:
        unsaved = {each.name for each in dataclasses.fields(Common)} | {CONFIG, "plan", "overwrite"}
        names = [each.name for each in dataclasses.fields(file) if "click" in each.metadata]
        stated = settings_of(file, [name for name in names if name not in unsaved], read_toml(path), str(path))
    for each in dataclasses.fields(form):  # type: ignore[arg-type]  # it is a dataclass
        name, basis = each.name, stated.get(each.name)
        stated_here = name in origins
        if basis in (None, "", (), {}):
            basis = None
        elif name in values and not stated_here:
            origins[name], values[name] = str(path), basis
        if (read := each.metadata.get("read")) and (stated_here or basis is None):
            values[name] = read(values[name] or (), basis)
    if ORIGINS in fields:
        values[ORIGINS] = origins
    return form(**values)


def parameters(form: type[Any]) -> list[click.Parameter]:
    """Returns the click parameters of a dataclass: the fields of the class itself first, then those of its bases."""
    hints, fields = get_type_hints(form), {each.name: each for each in dataclasses.fields(form)}
    order = [name for cls in form.__mro__ for name in inspect.get_annotations(cls) if name in fields]
    names = [name for name in dict.fromkeys(order) if "click" in fields[name].metadata]
    common = inspect.get_annotations(Common)
    # Arguments first, and the flags of every verb last.
    return sorted(
        (_parameter(fields[name], hints[name]) for name in names),
        key=lambda each: (isinstance(each, click.Option), each.name in common),
    )


def _parameter(each: dataclasses.Field[Any], hint: Any) -> click.Parameter:
    how = {name: value for name, value in each.metadata["click"].items() if value not in (None, "")}
    name = each.name.rstrip("_")
    required = each.default is MISSING and each.default_factory is MISSING
    kind = hint
    if get_origin(hint) in (Union, types.UnionType):  # a field that may be None too
        kind = next(each for each in get_args(hint) if each is not type(None))
    many = get_origin(kind) is tuple and not each.metadata["type"]
    if each.metadata.get("argument"):
        if not required:
            how["default"] = None if many else each.default
        parsed = each.metadata["type"] or _click_type(get_args(kind)[0] if many else kind, (None, None))
        count = -1 if many else 1
        return click.Argument([name], type=parsed, required=required, nargs=count, **how)
    names = list(each.metadata["names"])
    if not any(text.startswith("--") for text in names):
        names.append(f"--{name.replace('_', '-')}")
    names.append(name)
    if each.metadata["read"]:
        return click.Option(names, multiple=True, **how)
    if kind is bool and not each.metadata["type"]:
        return click.Option(names, is_flag=True, default=each.default, **how)
    parsed = each.metadata["type"] or _click_type(get_args(kind)[0] if many else kind, each.metadata["range"])
    if not required:  # a default of None would count as a value
        how["default"] = each.default
    return click.Option(names, type=parsed, multiple=many, required=required, **how)


def _click_type(kind: Any, limits: Sequence[Any]) -> Any:
    minimum, maximum = limits
    if get_origin(kind) is Literal:
        return click.Choice(list(get_args(kind)))
    if kind is Path:
        return click.Path(path_type=Path)
    if kind in (int, float) and (minimum is not None or maximum is not None):
        return (click.IntRange if kind is int else click.FloatRange)(minimum, maximum)
    return {int: click.INT, float: click.FLOAT}.get(kind, click.STRING)
