"""anynpu deploy: a firmware onto a board."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click

from anynpu.cli import flags
from anynpu.cli.command import Command, refuse_unused
from anynpu.deploy import probe, volume
from anynpu.deploy.image import find_image
from anynpu.errors import ConfigError
from anynpu.records.parts import as_json
from anynpu.schema import near

VOLUME = "volume:"


@click.command(cls=Command)
@click.argument("tree", type=click.Path(path_type=Path))
@click.option("--via", required=True, metavar="WAY", help="openocd, pyocd, probe-rs, or volume:FOLDER.")
@click.option("--elf", "image", type=click.Path(path_type=Path), help="The firmware, where it is not TREE/build's.")
@click.option("--chip", default="", metavar="NAME", help="The chip as the probe's program names it: stm32f4x, RP2040.")
@click.option("--probe", default="", metavar="NAME", help="OpenOCD: stlink or a .cfg file; the others: the probe's id.")
@click.option("--address", default="", metavar="NUMBER", help="Where a .bin file goes: 0x08000000.")
@click.option("--timeout", type=click.FloatRange(min=0.1), default=300.0, show_default=True, help="Seconds at most.")
@click.option("--dry-run", is_flag=True, help="Show the exact command, run nothing.")
@flags.apply(flags.COMMON)
@click.pass_context
def deploy(ctx: click.Context, /, tree: Path, via: str, image: Path | None, dry_run: bool, **given: Any) -> int:
    """Write a firmware to a board, check it and start it.

    TREE is a project that `anynpu firmware` wrote and make built.

    \b
    anynpu deploy tree --via openocd --probe stlink --chip stm32f4x
    anynpu deploy tree --via volume:/media/RPI-RP2 --dry-run
    """
    if via.startswith(VOLUME):
        refuse_unused(ctx, "a volume takes a copy of the file", "chip", "probe", "address", "timeout")
        done = _to_volume(Path(via.removeprefix(VOLUME)), tree, image, dry_run)
    elif via in probe.PROGRAMMERS:
        done = _through_probe(probe.PROGRAMMERS[via], tree, image, dry_run, given)
    else:
        known = [*probe.PROGRAMMERS, "volume:FOLDER"]
        raise ConfigError(f"--via {via}: no such way{near(via, known)}", "known: " + ", ".join(known))
    if given["format"] == "json":
        click.echo(as_json({"schema_version": 1, "kind": "deploy", "via": via, "dry_run": dry_run, **done}), nl=False)
    else:
        for line in done["commands"]:
            click.echo(line)
        if not dry_run:
            click.echo(f"{done['image']} is on the board")
    return 0


def _to_volume(folder: Path, tree: Path, named: Path | None, dry_run: bool) -> dict[str, Any]:
    image = find_image(tree, volume.kinds(folder), named)
    volume.check(folder, image)
    command = probe.shown(["cp", str(image), str(folder / image.name)])
    if not dry_run:
        volume.copy(folder, image)
    return {"image": str(image), "commands": [command]}


def _through_probe(
    programmer: probe.Programmer, tree: Path, named: Path | None, dry_run: bool, given: dict[str, Any]
) -> dict[str, Any]:
    image = find_image(tree, programmer.kinds, named)
    wiring = probe.Wiring(given["chip"], given["probe"], _address(given["address"]))
    argvs = probe.commands(programmer, image, wiring)
    if not dry_run:
        # Not removed: a failed tool's log must outlive it.
        log = Path(tempfile.mkdtemp(prefix="anynpu-deploy-")) / f"{programmer.name}.log"
        probe.flash(programmer, argvs, log, given["timeout"])
    return {"image": str(image), "commands": [probe.shown(argv) for argv in argvs]}


def _address(text: str) -> int | None:
    try:
        return int(text, 0) if text else None
    except ValueError:
        raise ConfigError(f"--address {text}: a number such as 0x08000000 was expected") from None
