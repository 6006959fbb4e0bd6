"""Which compilers take a model to a chip, and with which options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, get_type_hints

from anynpu import plugins, schema
from anynpu.errors import ConfigError, ToolFailed
from anynpu.platform import Platform
from anynpu.targets.base import Target

SOURCE_FORMAT = "onnx"


@dataclass(frozen=True)
class Link:
    """One compiler of a chain, with its resolved options."""

    target: Target
    options: Any


def chain(platform: Platform, source_format: str = SOURCE_FORMAT) -> tuple[Target, ...]:
    """Returns the compilers from the source format to the chip, found backwards from the chip's own."""
    known = plugins.names("targets")
    if platform.target not in known:
        near = schema.near(platform.target, known)
        raise ConfigError(f"platform {platform.name}: target: no such compiler: {platform.target}{near}")
    targets: dict[str, Target] = {platform.target: plugins.load("targets", platform.target)()}
    for name in known:
        with suppress(ToolFailed):  # a plug-in that does not load must not take the other chips with it
            targets[name] = plugins.load("targets", name)()
    paths: list[tuple[Target, ...]] = [(targets[platform.target],)]
    while paths:
        path = paths.pop(0)
        if path[0].accepts == source_format:
            return path
        makers = (t for t in targets.values() if t.produces == path[0].accepts and t not in path)
        paths.extend((maker, *path) for maker in makers)
    raise ConfigError(f"no chain of compilers leads from {source_format} to {platform.name}")


def plan(platform: Platform, given: Mapping[str, str]) -> tuple[Link, ...]:
    """Returns the chain for a chip with the options that concern it."""
    links = []
    for target in chain(platform):
        chosen: dict[str, Any] = {}
        hints = get_type_hints(target.Options)
        for key, text in given.items():
            owner, _, name = key.rpartition(".")
            if name in hints and owner in ("", target.name):
                value = schema.parse_text(hints[name], text, f"-O {key}")
                if name in chosen and chosen[name] != value:
                    raise ConfigError(f"-O {key}={text}: {name} of {target.name} is given another value too")
                chosen[name] = value
        links.append(Link(target, schema.from_dict(target.Options, chosen, f"-O for {target.name}")))
    return tuple(links)


def plan_all(
    platforms: Sequence[Platform], given: Mapping[str, str]
) -> tuple[dict[str, tuple[Link, ...]], dict[str, ToolFailed]]:
    """Returns the plan of each chip by name, and what is broken about a chip that can have none."""
    check_options(platforms, given)
    plans: dict[str, tuple[Link, ...]] = {}
    broken: dict[str, ToolFailed] = {}
    for platform in platforms:
        try:
            plans[platform.name] = plan(platform, given)
        except ToolFailed as error:
            broken[platform.name] = error
    return plans, broken


def check_options(platforms: Sequence[Platform], given: Mapping[str, str]) -> None:
    """Raises for an option that no compiler of any chain has."""
    known: set[str] = set()
    for platform in platforms:
        with suppress(ToolFailed):  # the plan of that chip says so
            for target in chain(platform):
                names = [f.name for f in dataclasses.fields(target.Options)]
                known |= set(names) | {f"{target.name}.{name}" for name in names}
    for key in given:
        if key not in known:
            names_known = ", ".join(sorted(n for n in known if "." not in n)) or "none for these chips"
            raise ConfigError(f"-O {key}: no such option{schema.near(key, known)}", f"options: {names_known}")
