"""anynpu unpu-bench: the command line of µNPU-Bench, served by our pipeline."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from anynpu.api.result import report_files
from anynpu.cli import flags, options
from anynpu.cli.build import files_read
from anynpu.cli.command import Command, origin_of
from anynpu.cli.progress import observer
from anynpu.cli.table import print_table
from anynpu.errors import AnyNpuError, ConfigError
from anynpu.pipeline import unpu_bench as bench
from anynpu.pipeline.build import BuildResult, Timed
from anynpu.pipeline.build import build as run_build
from anynpu.pipeline.output import check_output, write_output
from anynpu.pipeline.record import record
from anynpu.pipeline.request import Request
from anynpu.pipeline.steps import Steps
from anynpu.pipeline.unpu_flags import BIT_WIDTH, BITS, FORMATS, INSTEAD, Flag, parse_formats, settings
from anynpu.pipeline.unpu_flags import flags as unpu_flags
from anynpu.pipeline.unpu_source import LAYOUTS, Named, layouts, names, shapes
from anynpu.pipeline.unpu_source import source as model_source
from anynpu.records.build import BuildRecord
from anynpu.records.parts import as_json
from anynpu.report.figures import chip_row, table_notes
from anynpu.schema import to_dict
from anynpu.store import Store

LISTS = (
    "target_format",
    "target_hardware",
    "model_module_args",
    "input_names",
    "input_shape",
    "input_layout",
    "output_names",
    "output_shape",
)
"""Flags that take several values: separated by spaces, by commas, or both."""
SHAPES = ("input_shape", "output_shape")
SAFE = re.compile(r"\w[\w.-]*")
COMMON_TITLE = "Model, data and output"


class Grouped(click.Option):
    """A flag that the help shows under a title."""

    def __init__(self, *arguments: Any, group: str = COMMON_TITLE, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.group = group


class Underscored(Command):
    """A command whose lists may be written with spaces, and whose help groups the flags by format."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, gathered(args))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if shown := parameter.get_help_record(ctx):
                groups.setdefault(getattr(parameter, "group", "Other"), []).append(shown)
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def gathered(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with the values of each list joined by commas: click takes one value a flag.

    A list that is given again goes on; shapes stay apart, since each is that of another tensor.
    """
    found: list[str] = []
    places: dict[str, int] = {}
    rest = list(arguments)
    while rest:
        word, sign, value = rest.pop(0).partition("=")
        name = word.removeprefix("--")
        if name not in LISTS or not word.startswith("--"):
            found.append(word + sign + value)
            continue
        values = [value] if sign else []
        while rest and not rest[0].startswith("--") and rest[0] not in ("-f", "-v", "-q", "-h"):
            values.append(rest.pop(0))
        if name in places and values:
            found[places[name]] = ",".join([found[places[name]], *values])
            continue
        found += [word, ",".join(values)] if values else [word]
        if values and name not in SHAPES:
            places[name] = len(found) - 1
    return found


def _common(name: str, **more: Any) -> Any:
    return click.option(f"--{name}", cls=Grouped, **more)


def _switch(name: str, help: str, group: str = COMMON_TITLE) -> Any:
    """A truth value: alone it is true, and it takes true or false."""
    return click.option(
        f"--{name}",
        cls=Grouped,
        group=group,
        is_flag=False,
        flag_value="true",
        type=click.BOOL,
        metavar="[true|false]",
        help=help,
    )


SEED = (
    _common("target_format", required=True, metavar="FORMAT...", help=f"One or more of {', '.join(FORMATS)}."),
    _common(
        "target_hardware",
        default="max78000",
        show_default=True,
        metavar="CHIP...",
        help="One or more chips; onnx and tflm are for all.",
    ),
    _common("model", required=True, help="A Python file with the model's class; or net.onnx, or zoo:NAME."),
    _common("model_ckpt", metavar="FILE", help="Its checkpoint (.pth, .pth.tar, .npz, .safetensors): tensors only."),
    _common("model_name", required=True, metavar="NAME", help="Base name of the output files."),
    _common("model_module_name", metavar="CLASS", help="The model's class in --model."),
    _common("model_module_args", metavar="NAME=VALUE...", help="Arguments of its constructor; a JSON object as well."),
    _common(
        "data_sample", metavar="FILE", help="Real input samples (.npy, .npz) to calibrate with; some are held out."
    ),
    _common("input_names", metavar="NAME...", help="Names of the inputs."),
    _common("input_shape", multiple=True, metavar="N C H W", help="Shape of an input; repeat it for several inputs."),
    _common("input_layout", metavar="|".join(LAYOUTS), help="Layout of the inputs, where no operator of it tells."),
    _common("output_names", metavar="NAME...", help="Names of the outputs."),
    _common("output_shape", multiple=True, metavar="N...", help="Shape of an output, with or without its batch axis."),
    _common(
        BIT_WIDTH,
        type=click.Choice(BITS),
        default="8",
        show_default=True,
        help="Bits; 32 leaves it in float, 1 and 2 are of ai8x.",
    ),
    _common("out_dir", required=True, metavar="FOLDER", help="Where everything goes; backed up if it is there."),
    _switch("debug", "Show on stderr what the tools said."),
    _switch("overwrite", "Replace the output of an earlier build instead of keeping it."),
)
OURS = (
    _switch("trust_checkpoint", "Unpickle the checkpoint. It can run any code: only your own.", "Beyond µNPU-Bench"),
    *(
        click.option(f"--{name}", cls=Grouped, group="Beyond µNPU-Bench", type=kind, metavar=metavar, help=help)
        for name, kind, metavar, help in (
            ("require_npu", str, "SHARE", "Minimum share on the NPU (100%); less ends with status 1."),
            ("min_sqnr", float, "DB", "Minimum SQNR against the float model (10)."),
            ("max_drop", float, "POINTS", "Points of task accuracy that may be lost (5)."),
        )
    ),
)


def _generated(flag: Flag) -> Any:
    """Returns the flag of an option."""
    group = f"Flags of {', '.join(flag.formats)}"
    if flag.boolean:
        return _switch(flag.name, flag.help, group)
    also = f" [{'|'.join(flag.choices)}]" if flag.choices else ""
    return click.option(f"--{flag.name}", cls=Grouped, group=group, metavar="VALUE", help=flag.help + also)


def _every_flag() -> tuple[Any, ...]:
    made = {name: _generated(flag) for name, flag in unpu_flags().items() if name != BIT_WIDTH}
    for name, (format, sentence) in INSTEAD.items():
        made[name] = click.option(
            f"--{name}",
            cls=Grouped,
            group=f"Flags of {format}",
            is_flag=False,
            flag_value="true",
            metavar="VALUE",
            help=f"Accepted: {sentence}.",
        )
    return (*SEED, *made.values(), *OURS)


@click.command("unpu-bench", cls=Underscored)
@flags.apply(_every_flag(), flags.COMMON)
@click.pass_context
def unpu_bench(ctx: click.Context, /, **_: Any) -> int:
    """Build by the command line of µNPU-Bench: formats and hardware instead of chips, flags with underscores.

    The formats that a format needs are built first; one that fails does not stop the others. Every result is executed
    and compared with the float model, and where there is a project for the board, its source tree is written.

    \b
    anynpu unpu-bench --target_format onnx tflm vela --target_hardware hxwe2 \\
        --model net.py --model_module_name Net --model_ckpt net.pth --model_name net \\
        --data_sample samples.npy --input_names input --input_shape 1 3 32 32 \\
        --output_names output --output_shape 10 --bit_width 8 --out_dir out --overwrite
    anynpu unpu-bench --target_format vela --target_hardware ethos-u55-64 --model zoo:resnet8 \\
        --model_name resnet8 --vela_optimise Size --out_dir out
    """
    try:
        return _run(ctx)
    except AnyNpuError as error:
        raise _in_own_flags(error) from error.__cause__


def _run(ctx: click.Context) -> int:
    given = {**ctx.params, "origins": {name: origin for name in ctx.params if (origin := origin_of(ctx, name))}}
    formats = parse_formats(options.distinct(given["target_format"]))
    if not SAFE.fullmatch(given["model_name"]):
        raise ConfigError(f"--model_name {given['model_name']}: letters, digits, _, - and . make a file name")
    asked = bench.wanted(formats, options.distinct(given["target_hardware"]), _is_stated(ctx, "target_hardware"))
    pairs, chosen = bench.with_bits(asked, given[BIT_WIDTH])
    named = _named(given)
    request, said = _request(given, named, formats, pairs, chosen)
    if "onnx" in formats and given[BIT_WIDTH] != "32" and _is_stated(ctx, BIT_WIDTH):
        said.append(f"--{BIT_WIDTH} {given[BIT_WIDTH]}: onnx stays the float model that the others are made from")
    if _is_stated(ctx, "target_hardware"):
        served = {pair.hardware for pair in asked}
        idle = [name for name in names(given["target_hardware"]) if name not in served]
        said += [f"--target_hardware {name}: {', '.join(formats)} is the same for all chips" for name in idle]
    store = flags.store(given)
    check_output(Path(given["out_dir"]), bool(given["overwrite"]), files_read(request), store.cache)
    with observer(given["quiet"]) as watcher:
        model = Steps(request, store, Timed(watcher)).import_model().artifact.manifest
        said += bench.check_tensors(model, named.inputs, named.output_names, named.output_shapes)
        for line in said:
            click.echo(f"anynpu: {line}", err=True)
        result = run_build(request, store, watcher)
    rows, files = bench.deliver(result, pairs, given["model_name"])
    return _finish(result, rows, files, bench.record(rows, given["model_name"], said), given)


def _is_stated(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) != click.core.ParameterSource.DEFAULT


def _named(given: Mapping[str, Any]) -> Named:
    return Named(
        given["model"],
        given["model_module_name"] or "",
        given["model_module_args"] or "",
        given["model_ckpt"] or "",
        bool(given["trust_checkpoint"]),
        names(given["input_names"]),
        shapes("--input_shape", given["input_shape"]),
        layouts(given["input_layout"]),
        names(given["output_names"]),
        shapes("--output_shape", given["output_shape"]),
    )


def _request(
    given: Mapping[str, Any],
    named: Named,
    formats: Sequence[str],
    pairs: Sequence[bench.Wanted],
    chosen: Mapping[str, str],
) -> tuple[Request, list[str]]:
    """Returns our request, and a sentence for every flag that means something else here, or nothing."""
    chips = tuple(dict.fromkeys(pair.chip for pair in pairs if pair.chip))
    if not chips:
        raise next(pair.error for pair in pairs if pair.error)
    typed = {
        name: _text(given[name]) for name in (*unpu_flags(), *INSTEAD) if name != BIT_WIDTH and given[name] is not None
    }
    more, said = settings(typed, formats)
    source, unused = model_source(named)
    if source.kind != "zoo" and not given["data_sample"]:
        raise ConfigError("there are no samples to calibrate and prove with", "give --data_sample samples.npy")
    generated = {"mcu_c.name": given["model_name"]} if any(bench.is_c(chip) for chip in chips) else {}
    request = Request(
        source=source,
        chips=chips,
        data=given["data_sample"] or "",
        options={name: str(value) for name, value in {**chosen, **generated, **more}.items()},
    )
    gate = options.GateFlags(
        require_npu=given["require_npu"] or "",
        min_sqnr=given["min_sqnr"],
        max_drop=given["max_drop"],
        origins=given["origins"],
    )
    return gate.judged(request), said + unused


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _finish(
    result: BuildResult,
    rows: Sequence[bench.Row],
    files: Mapping[str, bytes],
    data: dict[str, Any],
    given: Mapping[str, Any],
) -> int:
    """Writes the output folder, prints the closing table and returns the exit status."""
    out = Path(given["out_dir"])
    built = record(result)
    texts = {**report_files(built), "unpu-bench.json": as_json(data)}
    kept = write_output(result, out, bool(given["overwrite"]), {**texts, **files})
    if given["debug"]:
        _tell_logs(result, flags.store(given))
    if given["format"] == "json":
        click.echo(as_json({**data, "build": to_dict(built)}), nl=False)
    else:
        _print(rows, built, given["model_name"])
    if kept is not None and not given["quiet"]:
        click.echo(f"the earlier {out} is kept as {kept.name}", err=True)
    if not given["quiet"]:
        click.echo(f"report: {out / 'report.html'}", err=True)
    return int(data["exit_status"])


def _tell_logs(result: BuildResult, store: Store) -> None:
    """Shows what the tools of every step said, whether they ran now or in an earlier build."""
    made = {a.path.name: a for chip in result.chips for a in (*chip.artifacts, chip.evidence) if a is not None}
    logs = [(a.manifest.step.name if a.manifest.step else "step", store.log(address)) for address, a in made.items()]
    logs += [(chip.chip, Path(log)) for chip in result.chips if (log := getattr(chip.error, "log", ""))]
    for what, path in logs:
        text = path.read_text("utf-8", "replace").strip() if path.is_file() else ""
        click.echo(f"--- {what}: {text or 'said nothing'}", err=True)


def _print(rows: Sequence[bench.Row], built: BuildRecord, name: str) -> None:
    chips = {chip.chip: chip_row(chip) for chip in built.chips}
    empty = dict.fromkeys(next(iter(chips.values())), "-")
    shown = []
    for row in rows:
        figures = {**chips.get(row.wanted.chip, empty), "result": row.status}
        figures.pop("chip")
        needs = ", ".join(row.wanted.needs) or "-"
        first = {"format": row.wanted.format, "hardware": row.wanted.hardware, "needs": needs}
        shown.append({**first, **figures, "source tree": row.tree or "-"})
    print_table(shown, title=name)
    for note in (*table_notes(built.chips), *built.notes):
        click.echo(note)
    for row in rows:
        for line in _complaint(row):
            click.echo(bench.in_own_flags(line))


def _complaint(row: bench.Row) -> list[str]:
    """Returns why a row did not go well."""
    what = f"{row.wanted.format} {row.wanted.hardware}"
    if row.error is not None:
        hint = f" ({row.error.hint})" if row.error.hint else ""
        more = [*getattr(row.error, "findings", ()), *(f"| {x}" for x in getattr(row.error, "last_lines", ()))]
        return [f"{what}: {row.error.message}{hint}", *(f"  {line}" for line in more)]
    return [f"{what}: {row.result.verdict}"] if row.result and row.result.verdict else []


def _in_own_flags(error: AnyNpuError) -> AnyNpuError:
    error.message, error.hint = bench.in_own_flags(error.message), bench.in_own_flags(error.hint)
    error.args = (error.message, *error.args[1:])
    return error
