"""Flags of every verb; a verb that needs no more of them starts without what builds need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from anynpu.files import cache_chosen, default_cache_dir

Command = Callable[..., Any]


def _choose_cache(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Makes --cache-dir the cache of the whole command, of toolchains and sessions too."""
    if value is None:
        return None
    ctx.with_resource(cache_chosen(value))
    return default_cache_dir()


COMMON = (
    click.option("-f", "--format", type=click.Choice(["text", "json"]), default="text", help="What stdout holds."),
    click.option("-v", "--verbose", is_flag=True, help="Show tracebacks of errors."),
    click.option("-q", "--quiet", is_flag=True, help="No progress on stderr."),
    click.option(
        "--cache-dir",
        type=click.Path(path_type=Path),
        callback=_choose_cache,
        help="Where built steps are kept [ANYNPU_CACHE_DIR].",
    ),
)


def apply(*groups: tuple[Callable[[Command], Command], ...]) -> Callable[[Command], Command]:
    """Returns a decorator that adds groups of flags."""

    def decorate(command: Command) -> Command:
        for option in reversed([option for group in groups for option in group]):
            command = option(command)
        return command

    return decorate
