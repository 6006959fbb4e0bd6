"""Which compilers take a model to a chip, and with which options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from anynpu import plugins, schema
from anynpu.errors import AnyNpuError, ConfigError, ToolFailed, Unsupported
from anynpu.platform import Platform
from anynpu.quantize.tflite_given import FLOAT, GIVEN, given_format
from anynpu.source.load import ModelSource, identify
from anynpu.targets.base import Target

SOURCE_FORMAT = "onnx"
TFLITE_FORMATS = (FLOAT, GIVEN)
"""What a .tflite file becomes, by what it holds: numbers to quantise, or integers of its own."""
MAKERS = {"tflite-float": "litert", "tflite": "tflite"}
"""Our compilers of the formats between ONNX and a chip: to find them, none of the others has to be imported."""


@dataclass(frozen=True)
class Link:
    """One compiler of a chain, with its resolved options."""

    target: Target
    options: Any


def source_format(source: ModelSource) -> str:
    """Returns the format of the artifact that an import makes, which decides the chain of compilers."""
    if source.kind != "tflite":
        return SOURCE_FORMAT
    identify(source)
    return given_format(Path(source.model))


def chain(platform: Platform, source_format: str = SOURCE_FORMAT) -> tuple[Target, ...]:
    """Returns the compilers from the source format to the chip."""
    known = plugins.names("targets")
    if platform.target not in known:
        near = schema.near(platform.target, known)
        raise ConfigError(f"platform {platform.name}: target: no such compiler: {platform.target}{near}")
    if way := _own_way(platform.target, source_format):
        return way
    targets: dict[str, Target] = {platform.target: plugins.load("targets", platform.target)()}
    for name in known:
        with suppress(ToolFailed):  # a plug-in that does not load must not take the other chips with it
            targets[name] = plugins.load("targets", name)()
    if way_there := _path(targets, platform.target, source_format):
        return way_there
    if source_format not in TFLITE_FORMATS:
        raise ConfigError(f"no chain of compilers leads from {source_format} to {platform.name}")
    chips: dict[str, list[str]] = {}  # that the format can go to, by the compiler that comes last
    for name in plugins.names("platforms"):
        with suppress(AnyNpuError):  # of a chip whose own file is broken, asking for it says so
            last = plugins.platform(name).target
            if last in targets and _path(targets, last, source_format):
                chips.setdefault(last, []).append(name)
    few = (", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") for names in chips.values())
    raise Unsupported(
        f"{platform.name} is compiled from ONNX: a .tflite file cannot go there",
        hint=f"give the ONNX or PyTorch model; a .tflite file goes to {'; '.join(few)}",
    )


def _own_way(last: str, source_format: str) -> tuple[Target, ...]:
    """Returns the compilers from ONNX to the chip's own where all that are registered are ours, or nothing."""
    if source_format != SOURCE_FORMAT or plugins.foreign("targets"):
        return ()
    way: tuple[Target, ...] = (plugins.load("targets", last)(),)
    while way[0].accepts != source_format:
        if way[0].accepts not in MAKERS:
            return ()
        way = (plugins.load("targets", MAKERS[way[0].accepts])(), *way)
    return way


def _path(targets: Mapping[str, Target], last: str, source_format: str) -> tuple[Target, ...]:
    """Returns the compilers to the chip's own, found backwards from it, or nothing.

    A model that comes in another format may enter behind that one: what makes the same format then takes its place.
    """
    own = targets[last]
    equals = [t for t in targets.values() if t.produces == own.produces and t.accepts == source_format and t is not own]
    paths: list[tuple[Target, ...]] = [(own,), *((t,) for t in equals if source_format != SOURCE_FORMAT)]
    while paths:
        path = paths.pop(0)
        if path[0].accepts == source_format:
            return path
        makers = (t for t in targets.values() if t.produces == path[0].accepts and t not in path)
        paths.extend((maker, *path) for maker in makers)
    return ()


def plan(platform: Platform, options: Mapping[str, str], source_format: str = SOURCE_FORMAT) -> tuple[Link, ...]:
    """Returns the chain for a chip with the options that concern it."""
    links = []
    for target in chain(platform, source_format):
        chosen: dict[str, object] = {}
        hints = get_type_hints(target.Options)
        for key, text in options.items():
            owner, _, name = key.rpartition(".")
            if name in hints and owner in ("", target.name):
                value = schema.parse_text(hints[name], text, f"-O {key}")
                if name in chosen and chosen[name] != value:
                    raise ConfigError(f"-O {key}={text}: {name} of {target.name} is given another value too")
                chosen[name] = value
        links.append(Link(target, schema.from_dict(target.Options, chosen, f"-O for {target.name}")))
    return tuple(links)


def plan_all(
    platforms: Sequence[Platform], options: Mapping[str, str], source_format: str = SOURCE_FORMAT
) -> tuple[dict[str, tuple[Link, ...]], dict[str, AnyNpuError]]:
    """Returns the plan of each chip by name, and why a chip can have none."""
    check_options(platforms, options, source_format)
    plans: dict[str, tuple[Link, ...]] = {}
    broken: dict[str, AnyNpuError] = {}
    for platform in platforms:
        try:
            plans[platform.name] = plan(platform, options, source_format)
        except (ToolFailed, Unsupported) as error:
            broken[platform.name] = error
    return plans, broken


def check_options(
    platforms: Sequence[Platform], options: Mapping[str, str], source_format: str = SOURCE_FORMAT
) -> None:
    """Raises for an option that no compiler of any chain has."""
    known: set[str] = set()
    for platform in platforms:
        with suppress(ToolFailed, Unsupported):  # the plan of that chip says so
            for target in chain(platform, source_format):
                names = [f.name for f in dataclasses.fields(target.Options)]
                known |= set(names) | {f"{target.name}.{name}" for name in names}
    for key in options:
        if key not in known:
            names_known = ", ".join(sorted(n for n in known if "." not in n)) or "none for these chips"
            own = "; a quantised .tflite file keeps its own scales" if source_format == "tflite-given" else ""
            raise ConfigError(f"-O {key}: no such option{schema.near(key, known)}", f"options: {names_known}{own}")
