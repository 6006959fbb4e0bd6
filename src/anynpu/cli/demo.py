"""anynpu demo: the main job on a model that ships with the project."""

from __future__ import annotations

from typing import Any

import click

from anynpu.cli import options
from anynpu.cli.build import build_and_report

CHIPS = "cpu,tflm,ethos-u55-128,ethos-u65-256,ethos-u85-256,hxwe2"


@click.command()
@click.option("-m", "--model", default="zoo:resnet8", show_default=True, help="Which model of the zoo.")
@click.option("-t", "--target", default=CHIPS, show_default=True, help="Which chips.")
@click.option("-o", "--output", default="demo-out", show_default=True, help="Where artifacts and reports go.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier demo instead of keeping it.")
@options.apply(options.COMMON)
@click.pass_context
def demo(ctx: click.Context, /, **_: Any) -> int:
    """Build a model that ships with anynpu for six chips: export, quantise, compile, execute, compare, report."""
    given = dict(ctx.params)
    return build_and_report(options.request(given), options.store(given), given)
