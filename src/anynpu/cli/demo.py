"""anynpu demo: the main job on a model that ships with the project."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from anynpu.api.result import report_files
from anynpu.cli import options
from anynpu.cli.build import Output, build_and_report
from anynpu.cli.command import Group
from anynpu.cli.progress import observer
from anynpu.cli.receipt import lines
from anynpu.cli.table import print_record, print_table
from anynpu.cli.terminal import show_error
from anynpu.cli.verb import flag, parameters, verb
from anynpu.errors import ConfigError, ToolMissing
from anynpu.measure.decibels import MAX_DB
from anynpu.pipeline.output import check_output, write_output
from anynpu.pipeline.record import record as build_record
from anynpu.pipeline.request import Request
from anynpu.records.parts import as_json
from anynpu.source.load import ModelSource

if TYPE_CHECKING:
    from anynpu.pipeline import ryzen_demo

CHIPS = "cpu,tflm,ethos-u55-128,ethos-u65-256,ethos-u85-256,hxwe2"
RECORD = "demo.json"


@dataclass(frozen=True, kw_only=True)
class Demo(Output):
    """A model of the zoo, and the chips it is built for."""

    model: str = flag("Which model of the zoo.", "zoo:resnet8", "-m", shown=True)
    target: tuple[str, ...] = flag("Which chips. Repeat for more.", (CHIPS,), "-t", shown=True)
    output: str = flag("Where artifacts and reports go.", "demo-out", "-o", shown=True)
    overwrite: bool = flag("Replace an earlier demo instead of keeping it.", False)


@click.group(cls=Group, invoke_without_command=True, params=parameters(Demo))
@click.pass_context
def demo(ctx: click.Context, /, **values: Any) -> int:
    """Build a model that ships with anynpu for six chips: export, quantise, compile, execute, compare, report.

    \b
    anynpu demo
    anynpu demo ryzen-ai
    """
    if ctx.invoked_subcommand is not None:
        # That demo would not see a flag in front of its name
        for option in ctx.command.params:
            if ctx.get_parameter_source(option.name or "") == click.core.ParameterSource.COMMANDLINE:
                raise ConfigError(
                    f"{option.opts[-1]} is not for `demo {ctx.invoked_subcommand}` there",
                    f"put its flags behind {ctx.invoked_subcommand}",
                )
        return 0
    asked = Demo(**values)
    request = Request(ModelSource(asked.model), options.distinct(asked.target))
    return build_and_report(request, asked.store(), asked)


@dataclass(frozen=True, kw_only=True)
class RyzenAi(Output):
    """How far to go, and with what."""

    npu: str = flag("Which NPU; auto: the one found.", "auto", metavar="auto|CHIP", shown=True)
    precision: Literal["xint8", "a8w8", "a16w8", "bf16"] = flag("What Quark quantises to.", "xint8", shown=True)
    size: int = flag("Height and width of the input, a multiple of 32.", 32, shown=True)
    runs: int | None = flag("Exact number of timed runs, instead of 700 or 15 seconds.", None, metavar="N", minimum=1)
    clear_cache: bool = flag("Drop what was compiled for the NPU before, so that it compiles anew.", False)
    output: str = flag("Where models and reports go.", "demo-ryzen-ai", "-o", shown=True)
    overwrite: bool = flag("Replace an earlier demo instead of keeping it.", False)


@verb(RyzenAi, "ryzen-ai", group=demo)
def ryzen_ai(asked: RyzenAi) -> int:
    """Go the whole way to a Ryzen AI NPU on a small model, or as far as this machine lets you.

    Creates the network, exports it to ONNX opset 17, quantises it with AMD Quark, measures it on the CPU, looks for the
    NPU, runs it there, and compares accuracy and latency. The receipt says which operators really ran on the NPU. On a
    machine without one everything else runs, and the exit status is 0. Without Quark everything but its own step runs,
    with 8 bits of ours for the CPU, and the status is 4.

    \b
    anynpu demo ryzen-ai
    anynpu demo ryzen-ai --size 224 --npu ryzen-ai-phx --clear-cache -o out
    """
    from anynpu.pipeline import ryzen_demo

    out, store = Path(asked.output), asked.store()
    check_output(out, asked.overwrite, cache=store.cache)
    load = replace(ryzen_demo.LOAD, runs=asked.runs)
    wanted = ryzen_demo.Asked(asked.npu, asked.precision, asked.size, asked.clear_cache, load=load)
    with observer(asked.quiet) as watcher:
        done = ryzen_demo.run(wanted, store, watcher)
    data = ryzen_demo.record(done)
    files = report_files(build_record(done.built)) | {RECORD: as_json(data)}
    kept = write_output(done.built, out, asked.overwrite, files)
    if asked.json:
        print_record(data)
    else:
        _show(done, out)
    if kept is not None and not asked.quiet:
        click.echo(f"the earlier {out} is kept as {kept.name}", err=True)
    if done.error is not None:
        show_error(done.error, "" if isinstance(done.error, ToolMissing) else "on the NPU: ")
    return done.exit_status


def _show(done: ryzen_demo.Demo, out: Path) -> None:
    size = done.asked.size
    print_table(
        [
            {
                "run": run.run,
                "SQNR dB": _sqnr(run.sqnr_db),
                "top-1": "-" if run.mean_top1 is None else f"{run.mean_top1:.1%}",
                "samples": str(run.samples),
                **{f"{name} ms": "-" if value is None else f"{value:.3g}" for name, value in run.ms.items()},
                "n": str(run.runs),
                "warm-up": str(run.warmup),
            }
            for run in done.rows
        ],
        title=f"zoo:hello at {size}x{size}, {done.chip}",
    )
    click.echo(f"found: {done.found.sentence()}")
    if done.receipt is not None:
        cpu, npu = done.rows[-2:]
        sqnr = _sqnr(npu.against_cpu.sqnr_db, " dB") if npu.against_cpu else "not compared"
        before, after = cpu.ms["p50"], npu.ms["p50"]
        speed = "too few runs to compare the medians"
        if before is not None and after is not None:
            speed = f"{before / after:.2f} times as fast (medians)"
        click.echo(f"NPU against CPU, the same model: {sqnr}, {speed}")
        for line in lines(done.receipt):
            click.echo(line)
    else:
        click.echo("nothing ran on an NPU, so there is no figure for one")
    click.echo(f"files: {out / 'float/model.onnx'}, {out / done.built.chips[0].chip / 'model.onnx'}, {out / RECORD}")


def _sqnr(sqnr_db: float, unit: str = "") -> str:
    return "exact" if sqnr_db >= MAX_DB else f"{sqnr_db:.1f}{unit}"
