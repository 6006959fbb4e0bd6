"""The commands of anynpu: what is given is used or refused.

click takes the last of two values of one flag and knows nothing of a misspelled environment variable; `Command` and
`Group`, which every verb is made of, refuse the first and say the second.
"""

from __future__ import annotations

import math
import os

import click
from click.core import ParameterSource

from anynpu.errors import ConfigError
from anynpu.records.shared import Threshold
from anynpu.schema import near


class Command(click.Command):
    """A command that refuses a flag given twice with different values, an empty value, NaN and infinity."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _require_once(self, ctx, args)
        # A variable that is spelled like a setting of this command, but is not one
        prefix = f"{ctx.auto_envvar_prefix}_"
        known = {prefix + (param.name or "").upper() for param in self.get_params(ctx)}
        for name in sorted(os.environ):
            if ctx.auto_envvar_prefix and name.startswith(prefix) and name not in known:
                click.echo(f"anynpu: {name}: no such setting{near(name, known)}; not used", err=True)
        rest = super().parse_args(ctx, args)
        # Every comparison with NaN is false, so that no limit would hold
        for param in self.get_params(ctx):
            value = ctx.params.get(param.name or "")
            if isinstance(value, float) and not math.isfinite(value):
                raise click.UsageError(f"{flag_of(param)} {value}: a finite number was expected", ctx)
        return rest


class Group(click.Group):
    """A group of such commands; it may have flags of its own."""

    command_class = Command
    group_class = type

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _require_once(self, ctx, args)
        return super().parse_args(ctx, args)


def _require_once(command: click.Command, ctx: click.Context, args: list[str]) -> None:
    """Raises for a flag that takes one value and was given two different ones."""
    single = [
        param
        for param in command.get_params(ctx)
        if isinstance(param, click.Option) and not (param.multiple or param.is_flag or param.count)
    ]
    parser = command.make_parser(ctx)
    for param in single:  # added once more, now as one that keeps every value
        parser.add_option(obj=param, opts=param.opts, dest=param.name, action="append", nargs=param.nargs)
    values, _, _ = parser.parse_args(args=list(args))
    for param in single:
        distinct = list(dict.fromkeys(map(str, values.get(param.name or "") or ())))
        if len(distinct) > 1:
            raise click.UsageError(f"{flag_of(param)} is given more than once: {', '.join(distinct)}", ctx)
        if "" in distinct:  # what a script's variable that is not set makes of "$DATA"
            raise click.UsageError(f"{flag_of(param)} is empty", ctx)


def flag_of(param: click.Parameter) -> str:
    """Returns the long name of a flag."""
    return max(param.opts, key=len)


def origin_of(ctx: click.Context, name: str) -> str:
    """Returns where the value of a setting came from: its flag, its environment variable, or "" for the default."""
    param = next(param for param in ctx.command.params if param.name == name)
    source = ctx.get_parameter_source(name)
    if source == ParameterSource.COMMANDLINE:
        return flag_of(param)
    if source == ParameterSource.ENVIRONMENT:
        own = param.envvar if isinstance(param.envvar, str) else ""
        return own if os.environ.get(own) else f"{ctx.auto_envvar_prefix}_{name.upper()}"
    return ""


def threshold(name: str, value: float, default: float, unit: str = "") -> Threshold:
    """Returns a threshold that a flag of this command sets."""
    return Threshold(name, value, default, unit, origin_of(click.get_current_context(), name))


def refuse_unused(ctx: click.Context, why: str, *names: str, hint: str = "") -> None:
    """Raises for a flag on the command line that this call has no use for; the environment may speak of other calls."""
    for name in names:
        if ctx.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            raise ConfigError(f"{origin_of(ctx, name)} has no effect here: {why}", hint or "leave it out")
