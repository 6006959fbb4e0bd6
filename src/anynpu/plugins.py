"""Plug-ins: targets, sessions, platforms and verbs, listed without importing them.

    [project.entry-points."anynpu.targets"]     toycc = "anynpu_toychip.target:ToyCompiler"
    [project.entry-points."anynpu.sessions"]    toysim = "anynpu_toychip.target:ToySession"
    [project.entry-points."anynpu.platforms"]   toychip = "anynpu_toychip"
    [project.entry-points."anynpu.verbs"]       mine = "my_package.verb:mine"

A platform's entry point names the package whose folder holds `<name>.toml`. Every file in `data/platforms` is a chip
too, and a recipe in `data/toolchains` names the targets and sessions that need its tool.
"""

from __future__ import annotations

import functools
import importlib.util
import shlex
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from anynpu import __version__
from anynpu.errors import ConfigError, ToolFailed
from anynpu.platform import Platform, read_platform
from anynpu.schema import did_you_mean, letters, near

F = TypeVar("F")
OWN = "anynpu."
PLATFORMS = f"{OWN}data.platforms"


def registering(table: dict[str, F]) -> Callable[..., Callable[[F], F]]:
    """Returns a decorator that puts a function into a table, under each of the names it is given."""

    def named(*names: str) -> Callable[[F], F]:
        def register(function: F) -> F:
            table.update(dict.fromkeys(names, function))
            return function

        return register

    return named


@functools.cache
def _everything() -> Any:  # of another type in Python 3.12
    """Returns the entry points of all packages; every package's file is read to find them."""
    return entry_points()


def _shipped(kind: str) -> dict[str, EntryPoint]:
    """Returns the plug-ins that anynpu's own data files name."""
    group, data = f"anynpu.{kind}", Path(__file__).parent / "data"
    if kind == "platforms":
        chips = (path.stem for path in (data / kind).glob("*.toml"))
        return {chip: EntryPoint(chip, PLATFORMS, group) for chip in chips}
    recipes = (data / "toolchains").glob("*.toml") if kind in ("targets", "sessions") else ()
    named = [tomllib.loads(path.read_text("utf-8")).get(kind, {}) for path in recipes]
    return {name: EntryPoint(name, value, group) for table in named for name, value in table.items()}


@functools.cache
def _registered(kind: str) -> Mapping[str, EntryPoint]:
    points = _shipped(kind)
    for point in _everything().select(group=f"anynpu.{kind}"):
        other = points.get(point.name)
        if other is not None and other.value != point.value:
            raise ConfigError(f"two plug-ins give {kind} '{point.name}': {other.value} and {point.value}")
        points[point.name] = point
    return dict(sorted(points.items()))


def names(kind: str) -> tuple[str, ...]:
    """Returns the registered names of a kind: targets, sessions or platforms."""
    return tuple(_registered(kind))


def foreign(kind: str) -> tuple[str, ...]:
    """Returns the registered names of a kind that are not of this package."""
    return tuple(name for name, point in _registered(kind).items() if not point.value.startswith(OWN))


def _point(kind: str, name: str) -> EntryPoint:
    points = _registered(kind)
    if name in points:
        return points[name]
    if kind != "platforms":
        one = {"targets": "target", "sessions": "device", "verbs": "verb"}[kind]
        raise ConfigError(f"no such {one}: {name}{near(name, points)}", "`anynpu tool list` lists them")
    # Chips that have it in a name, board, family or vendor
    like = [chip.name for chip in platforms_like(name)] if len(letters(name)) > 2 else []
    like.sort(key=lambda chip: letters(name) not in letters(chip))  # a chip's own name says more than its vendor's
    if like:
        raise ConfigError(
            f"no such chip: {name}{did_you_mean(like)}", f"`anynpu targets {shlex.quote(name)}` tells more"
        )
    raise ConfigError(
        f"no such chip: {name}{near(name, (*names('platforms'), *_aliases()))}", "`anynpu targets` lists them"
    )


@functools.cache
def load(kind: str, name: str) -> Any:
    """Returns the registered class, imported now."""
    point = _point(kind, name)
    try:
        return point.load()
    except Exception as error:  # a foreign module may raise anything while it is imported
        raise ToolFailed(
            f"plug-in {point.value} does not load: {type(error).__name__}: {error}",
            hint="update or remove that package",
        ) from error


@functools.cache
def provider(kind: str, name: str) -> tuple[str, str]:
    """Returns the package that gives a plug-in and its version."""
    point = _point(kind, name)
    if point.value.startswith(OWN):
        return "anynpu", __version__
    return (point.dist.name, point.dist.version) if point.dist else ("unknown", "")


@functools.cache
def _aliases() -> Mapping[str, str]:
    aliases: dict[str, str] = {}
    for name in names("platforms"):
        with suppress(ConfigError):  # one chip's broken file must not hide the others; asking for that chip says so
            aliases |= dict.fromkeys(_read(name).aliases, name)
    return aliases


@functools.cache
def _read(name: str) -> Platform:
    point = _point("platforms", name)
    try:
        spec = importlib.util.find_spec(point.value)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"plug-in for chip {name}: {point.value} is not a package with {name}.toml in it")
    platform = read_platform(Path(spec.submodule_search_locations[0]) / f"{name}.toml")
    if platform.name != name:
        raise ConfigError(f"{name}.toml: name: is '{platform.name}', the file and its entry point say '{name}'")
    return platform


def platform(name: str) -> Platform:
    """Returns the chip of that name or alias."""
    wanted = name.strip().lower()
    if wanted not in _registered("platforms"):
        wanted = _aliases().get(wanted, wanted)
    return _read(wanted)


def platforms_like(part: str) -> tuple[Platform, ...]:
    """Returns the chips with `part` in a name, board, family of parts, vendor or NPU of theirs, whatever its case and
    punctuation; a whole part number finds the family that it begins with."""
    wanted = letters(part)
    chips = []
    for name in names("platforms"):
        with suppress(ConfigError):  # as for aliases
            chip = _read(name)
            words = (chip.name, *chip.aliases, *chip.boards, *chip.families, chip.vendor, chip.npu)
            known = any(wanted in letters(word) for word in words)
            if wanted and (known or wanted.startswith(tuple(map(letters, chip.families)))):
                chips.append(chip)
    return tuple(chips)
