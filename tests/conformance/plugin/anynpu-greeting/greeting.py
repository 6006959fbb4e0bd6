"""A verb of its own, as a package for anynpu brings one."""

from dataclasses import dataclass

import click

from anynpu.cli.verb import Common, argument, flag, verb


@dataclass(frozen=True, kw_only=True)
class Greet(Common):
    name: str = argument()
    times: int = flag("How often.", 1, "-n", minimum=1, maximum=3, shown=True)


@verb(Greet)
def greet(asked: Greet) -> int:
    """Greet somebody."""
    click.echo(" ".join(["hello", asked.name] * asked.times))
    return 1 if asked.name == "nobody" else 0
