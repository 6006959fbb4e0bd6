"""anynpu deploy: a firmware onto a board."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import click

from anynpu.cli.command import refuse_unused
from anynpu.cli.table import print_json
from anynpu.cli.verb import Common, argument, flag, verb
from anynpu.deploy import probe, volume
from anynpu.deploy.image import find_image
from anynpu.errors import ConfigError
from anynpu.schema import near

VOLUME = "volume:"


@dataclass(frozen=True, kw_only=True)
class Deploy(Common):
    """A firmware, and the way to its board."""

    tree: Path = argument()
    via: str = flag("openocd, pyocd, probe-rs, or volume:FOLDER.", metavar="WAY")
    image: Path | None = flag("The firmware, where it is not TREE/build's.", None, "--elf")
    chip: str = flag("The chip as the probe's program names it: stm32f4x, RP2040.", "", metavar="NAME")
    probe: str = flag("OpenOCD: stlink or a .cfg file; the others: the probe's id.", "", metavar="NAME")
    address: str = flag("Where a .bin file goes: 0x08000000.", "", metavar="NUMBER")
    timeout: float = flag("Maximum seconds.", 300.0, minimum=0.1, shown=True)
    dry_run: bool = flag("Show the exact command, run nothing.", False)


@dataclass(frozen=True)
class Done:
    """What was written, and the commands that did it."""

    image: str
    commands: list[str]


@verb(Deploy)
def deploy(asked: Deploy) -> int:
    """Write a firmware to a board, check it and start it.

    TREE is a project that `anynpu firmware` wrote and make built.

    \b
    anynpu deploy tree --via openocd --probe stlink --chip stm32f4x
    anynpu deploy tree --via volume:/media/RPI-RP2 --dry-run
    """
    via = asked.via
    if via.startswith(VOLUME):
        refuse_unused(
            click.get_current_context(), "a volume takes a copy of the file", "chip", "probe", "address", "timeout"
        )
        folder = Path(via.removeprefix(VOLUME))
        image = find_image(asked.tree, volume.kinds(folder), asked.image)
        volume.check(folder, image)
        command = probe.shown(["cp", str(image), str(folder / image.name)])
        if not asked.dry_run:
            volume.copy(folder, image)
        done = Done(str(image), [command])
    elif via in probe.PROGRAMMERS:
        programmer = probe.PROGRAMMERS[via]
        image = find_image(asked.tree, programmer.kinds, asked.image)
        try:
            address = int(asked.address, 0) if asked.address else None
        except ValueError:
            raise ConfigError(f"--address {asked.address}: a number such as 0x08000000 was expected") from None
        wiring = probe.Wiring(asked.chip, asked.probe, address)
        argvs = probe.commands(programmer, image, wiring)
        if not asked.dry_run:
            # Not removed: a failed tool's log must outlive it.
            log = Path(tempfile.mkdtemp(prefix="anynpu-deploy-")) / f"{programmer.name}.log"
            probe.flash(programmer, argvs, log, asked.timeout)
        done = Done(str(image), [probe.shown(argv) for argv in argvs])
    else:
        known = [*probe.PROGRAMMERS, "volume:FOLDER"]
        raise ConfigError(f"--via {via}: no such way{near(via, known)}", "known: " + ", ".join(known))
    if asked.json:
        print_json("deploy", {"via": via, "dry_run": asked.dry_run, **vars(done)})
    else:
        for line in done.commands:
            click.echo(line)
        if not asked.dry_run:
            click.echo(f"{done.image} is on the board")
    return 0
