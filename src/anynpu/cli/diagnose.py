"""anynpu diagnose."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from anynpu import schema
from anynpu.cli.progress import observer
from anynpu.cli.table import print_json, print_table
from anynpu.cli.verb import Common, argument, flag, verb
from anynpu.records.parts import own_version


@dataclass(frozen=True, kw_only=True)
class Diagnose(Common):
    """A build, and how much is shown of it."""

    out: Path = argument(metavar="OUT")
    chips: tuple[str, ...] = flag("Only this chip of the build.", (), "-t", "--target", metavar="CHIP")
    top: int = flag("How many tensors the table has.", 10, minimum=1, shown=True)


@verb(Diagnose)
def diagnose(asked: Diagnose) -> int:
    """Show where a build departs from the float model: each tensor's error, its cause, the repair; status 1 if sick.

    The error of every tensor is split into what its own operator adds and what its inputs bring. The table shows the
    tensors where most is added. A known cause is reported with its evidence and what helps.

    \b
    anynpu build -m net.onnx -t cpu,tflite --data photos/ -o out
    anynpu diagnose out
    """
    from anynpu.pipeline.diagnosis.builds import diagnose_build, read_request

    request = read_request(asked.out, [chip for text in asked.chips for chip in text.split(",")])
    with observer(asked.quiet) as watcher:
        chips = diagnose_build(request, asked.store(), watcher)
    sick = any(each.diagnosis is not None and not each.diagnosis.healthy for each in chips)
    if asked.json:
        details = schema.to_dict(chips, whole=True)
        print_json("diagnosis", {"anynpu": own_version(), "output": str(asked.out), "chips": details})
        return int(sick)
    for each in chips:
        chip, diagnosis = each.chip, each.diagnosis
        if diagnosis is None:
            click.echo(f"{chip}: no diagnosis: {each.reason}")
            continue
        state = "healthy" if diagnosis.healthy else "sick"
        click.echo(f"{chip}: {state}: the worst output, {diagnosis.worst_output}, has {diagnosis.sqnr_db:.1f} dB SQNR")
        for cause in diagnosis.causes:
            more = f" and {cause.places - 1} more" if cause.places > 1 else ""
            click.echo(f"  {cause.cause} at {cause.tensor}{more}: {cause.evidence}")
            click.echo(f"    what helps: {cause.repair}")
        if diagnosis.first_bad:
            click.echo(f"  the first tensor below 20 dB is {diagnosis.first_bad}")
        for note in diagnosis.notes:
            click.echo(f"  {note}")
        print_table(
            [
                {
                    "tensor": loss.tensor,
                    "operator": loss.operator,
                    "made dB": f"{loss.made_db:.1f}",
                    "inherited dB": f"{loss.inherited_db:.1f}",
                    "in all dB": f"{loss.sqnr_db:.1f}",
                    "from": f"{loss.low:.4g}",
                    "to": f"{loss.high:.4g}",
                    "step": "-" if loss.step is None else f"{loss.step:.4g}",
                }
                for loss in sorted(diagnosis.tensors, key=lambda loss: loss.made_db)[: asked.top]
            ],
            title=f"{chip}: where most is lost ({diagnosis.samples} samples)",
        )
    return int(sick)
