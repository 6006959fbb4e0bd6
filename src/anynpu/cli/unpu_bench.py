"""Build by µNPU-Bench's command line: formats, hardware and flags with underscores.

A verb by entry point, as those of other packages are: nothing in `main.py` names it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import click

from anynpu.api.result import report_files
from anynpu.cli import options
from anynpu.cli.build import files_read
from anynpu.cli.command import Command, origin_of
from anynpu.cli.progress import observer
from anynpu.cli.table import print_record, print_table
from anynpu.cli.verb import Common, flag, parameters
from anynpu.errors import AnyNpuError, ConfigError
from anynpu.pipeline import unpu_bench as bench
from anynpu.pipeline.build import build as run_build
from anynpu.pipeline.observer import Timed
from anynpu.pipeline.output import check_output, write_output
from anynpu.pipeline.record import record
from anynpu.pipeline.request import Request
from anynpu.pipeline.steps import Steps
from anynpu.pipeline.unpu_flags import BIT_WIDTH, BITS, FORMATS, INSTEAD, parse_formats, settings, spelled_here
from anynpu.pipeline.unpu_flags import flags as unpu_flags
from anynpu.pipeline.unpu_source import LAYOUTS, Named, layouts, names, shapes
from anynpu.pipeline.unpu_source import source as model_source
from anynpu.records.build import BuildRecord
from anynpu.records.parts import as_json
from anynpu.report.figures import chip_row, table_notes
from anynpu.schema import to_dict

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
OWN, BEYOND, OTHER = "Model, data and output", "Beyond µNPU-Bench", "Other"
"""Titles of the help; the flags of every format have one more."""


class Underscored(Command):
    """A command whose lists may be written with spaces, and whose help groups the flags by format."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, gathered(args))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            name = parameter.name or ""
            forms = {OWN: Seed, BEYOND: Beyond}
            own = (title for title, form in forms.items() if name in {each.name for each in fields(form)})
            title = next(own, OTHER)
            if name in INSTEAD:
                title = f"Flags of {INSTEAD[name][0]}"
            elif name in unpu_flags() and name != BIT_WIDTH:
                title = f"Flags of {', '.join(unpu_flags()[name].formats)}"
            if shown := parameter.get_help_record(ctx):
                groups.setdefault(title, []).append(shown)
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def gathered(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with the values of each list joined by commas: click takes one value a flag.

    A list that is given again goes on; shapes stay apart, since each is that of another tensor.
    """
    words: list[str] = []
    places: dict[str, int] = {}
    rest = list(arguments)
    while rest:
        word, sign, value = rest.pop(0).partition("=")
        name = word.removeprefix("--")
        if name not in LISTS or not word.startswith("--"):
            words.append(word + sign + value)
            continue
        values = [value] if sign else []
        while rest and not rest[0].startswith("--") and rest[0] not in ("-f", "-v", "-q", "-h"):
            values.append(rest.pop(0))
        if name in places and values:
            words[places[name]] = ",".join([words[places[name]], *values])
            continue
        words += [word, ",".join(values)] if values else [word]
        if values and name not in SHAPES:
            places[name] = len(words) - 1
    return words


def own(name: str, help: str, default: Any = "", **more: Any) -> Any:
    """A field whose flag has underscores."""
    return flag(help, default, f"--{name}", **more)


def switch(name: str, help: str) -> Any:
    """A truth value: alone it is true, and it takes true or false."""
    return flag(help, None, f"--{name}", type=click.BOOL, metavar="[true|false]", alone="true")


@dataclass(frozen=True, kw_only=True)
class Seed:
    """The flags that µNPU-Bench has for every format."""

    target_format: str = own("target_format", f"One or more of {', '.join(FORMATS)}.", MISSING, metavar="FORMAT...")
    target_hardware: str = own(
        "target_hardware",
        "One or more chips; onnx and tflm are for all.",
        "max78000",
        shown=True,
        metavar="CHIP...",
    )
    model: str = flag("A Python file with the model's class; or net.onnx, or zoo:NAME.")
    model_ckpt: str = own(
        "model_ckpt", "Its checkpoint (.pth, .pth.tar, .npz, .safetensors): tensors only.", metavar="FILE"
    )
    model_name: str = own("model_name", "Base name of the output files.", MISSING, metavar="NAME")
    model_module_name: str = own("model_module_name", "The model's class in --model.", metavar="CLASS")
    model_module_args: str = own(
        "model_module_args", "Arguments of its constructor; a JSON object as well.", metavar="NAME=VALUE..."
    )
    data_sample: str = own(
        "data_sample", "Real input samples (.npy, .npz) to calibrate with; some are held out.", metavar="FILE"
    )
    input_names: str | None = own("input_names", "Names of the inputs.", None, metavar="NAME...")
    input_shape: tuple[str, ...] = own(
        "input_shape", "Shape of an input; repeat it for several inputs.", (), metavar="N C H W"
    )
    input_layout: str | None = own(
        "input_layout", "Layout of the inputs, where no operator of it tells.", None, metavar="|".join(LAYOUTS)
    )
    output_names: str | None = own("output_names", "Names of the outputs.", None, metavar="NAME...")
    output_shape: tuple[str, ...] = own(
        "output_shape", "Shape of an output, with or without its batch axis.", (), metavar="N..."
    )
    bit_width: str = own(
        BIT_WIDTH, "Bits; 32 leaves it in float, 1 and 2 are of ai8x.", "8", shown=True, type=click.Choice(BITS)
    )
    out_dir: str = own("out_dir", "Where everything goes; an earlier one is backed up.", MISSING, metavar="FOLDER")
    debug: bool | None = switch("debug", "Show the output of the tools on stderr.")
    overwrite: bool | None = switch("overwrite", "Replace the output of an earlier build instead of keeping it.")


@dataclass(frozen=True, kw_only=True)
class Beyond:
    """The flags that only we have."""

    trust_checkpoint: bool | None = switch(
        "trust_checkpoint", "Unpickle the checkpoint. That can run any code: do it with your own only."
    )
    require_npu: str = own("require_npu", "Minimum share on the NPU (100%); less ends with status 1.", metavar="SHARE")
    min_sqnr: float | None = own("min_sqnr", "Minimum SQNR against the float model (10).", None, metavar="DB")
    max_drop: float | None = own("max_drop", "Maximum loss of task accuracy in points (5).", None, metavar="POINTS")


@dataclass(frozen=True, kw_only=True)
class UnpuBench(Seed, Beyond, Common):
    """A build as µNPU-Bench asks for it."""

    compilers: Mapping[str, str]
    """The flags of the formats, which the compilers' options are made of, as they were typed."""
    origins: Mapping[str, str]
    """Where each setting came from."""

    def named(self) -> Named:
        """Returns the model that the flags name."""
        return Named(
            self.model,
            self.model_module_name,
            self.model_module_args,
            self.model_ckpt,
            bool(self.trust_checkpoint),
            names(self.input_names),
            shapes("--input_shape", self.input_shape),
            layouts(self.input_layout),
            names(self.output_names),
            shapes("--output_shape", self.output_shape),
        )


def _generated() -> list[click.Option]:
    """Returns the flags of the options of the compilers that are here."""
    flags = []
    for name, known in unpu_flags().items():
        if name == BIT_WIDTH or name in INSTEAD:
            continue
        choices = f" [{'|'.join(known.choices)}]" if known.choices and not known.boolean else ""
        how = {"is_flag": False, "flag_value": "true", "type": click.BOOL} if known.boolean else {}
        metavar = "[true|false]" if known.boolean else "VALUE"
        flags.append(click.Option([f"--{name}"], metavar=metavar, help=known.help + choices, **how))  # type: ignore[arg-type]
    for name, (_, sentence) in INSTEAD.items():
        help = f"Accepted: {sentence}."
        flags.append(click.Option([f"--{name}"], is_flag=False, flag_value="true", metavar="VALUE", help=help))
    return flags


@click.command(
    "unpu-bench",
    cls=Underscored,
    params=[*parameters(Seed), *_generated(), *parameters(Beyond), *parameters(Common)],
)
def unpu_bench(**values: Any) -> int:
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
    ctx, own_names = click.get_current_context(), {each.name for each in fields(UnpuBench)}
    typed = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
        if name not in own_names and value is not None
    }
    origins = {name: origin for name in values if (origin := origin_of(ctx, name))}
    form = {name: value for name, value in values.items() if name in own_names}
    try:
        return _run(UnpuBench(**form, compilers=typed, origins=origins))
    except AnyNpuError as error:
        if here := spelled_here(f"{error.message} {error.hint}"):
            error.hint = f"{error.hint}; {here}" if error.hint else here
        raise


def _run(asked: UnpuBench) -> int:
    formats = parse_formats(options.distinct(asked.target_format))
    if not SAFE.fullmatch(asked.model_name):
        raise ConfigError(f"--model_name {asked.model_name}: letters, digits, _, - and . make a file name")
    chips_stated = "target_hardware" in asked.origins
    wanted = bench.wanted(formats, options.distinct(asked.target_hardware), chips_stated)
    pairs, chosen = bench.with_bits(wanted, asked.bit_width)
    named = asked.named()
    request, notes = _request(asked, named, formats, pairs, chosen)
    if "onnx" in formats and asked.bit_width != "32" and BIT_WIDTH in asked.origins:
        notes.append(f"--{BIT_WIDTH} {asked.bit_width}: onnx stays the float model that the others are made from")
    if chips_stated:
        served = {pair.hardware for pair in wanted}
        idle = [name for name in names(asked.target_hardware) if name not in served]
        notes += [f"--target_hardware {name}: {', '.join(formats)} is the same for all chips" for name in idle]
    store = asked.store()
    check_output(Path(asked.out_dir), bool(asked.overwrite), files_read(request), store.cache)
    with observer(asked.quiet) as watcher:
        model = Steps(request, store, Timed(watcher)).import_model().artifact.manifest
        notes += bench.check_tensors(model, named.inputs, named.output_names, named.output_shapes)
        for line in notes:
            click.echo(f"anynpu: {line}", err=True)
        result = run_build(request, store, watcher)
    rows, files = bench.deliver(result, pairs, asked.model_name)
    data, status = bench.record(rows, asked.model_name, notes), bench.exit_status(rows)
    out = Path(asked.out_dir)
    built = record(result)
    texts = {**report_files(built), "unpu-bench.json": as_json(data)}
    kept = write_output(result, out, bool(asked.overwrite), {**texts, **files})
    if asked.debug:
        # What the tools of every step said, whether they ran now or in an earlier build
        steps = {a.path.name: a for chip in result.chips for a in (*chip.artifacts, chip.evidence) if a is not None}
        logs = [
            (a.manifest.step.name if a.manifest.step else "step", store.log(address)) for address, a in steps.items()
        ]
        logs += [(chip.chip, Path(log)) for chip in result.chips if (log := getattr(chip.error, "log", ""))]
        for what, path in logs:
            text = path.read_text("utf-8", "replace").strip() if path.is_file() else ""
            click.echo(f"--- {what}: {text or 'said nothing'}", err=True)
    if asked.json:
        print_record({**data, "build": to_dict(built)})
    else:
        _print(rows, built, asked.model_name)
    if kept is not None and not asked.quiet:
        click.echo(f"the earlier {out} is kept as {kept.name}", err=True)
    if not asked.quiet:
        click.echo(f"report: {out / 'report.html'}", err=True)
    return status


def _request(
    asked: UnpuBench,
    named: Named,
    formats: Sequence[str],
    pairs: Sequence[bench.Wanted],
    chosen: Mapping[str, str],
) -> tuple[Request, list[str]]:
    """Returns our request, and a sentence for every flag that means something else here, or nothing."""
    chips = tuple(dict.fromkeys(pair.chip for pair in pairs if pair.chip))
    if not chips:
        raise next(pair.error for pair in pairs if pair.error)
    more, notes = settings(asked.compilers, formats)
    source, unused = model_source(named)
    if source.kind != "zoo" and not asked.data_sample:
        raise ConfigError("there are no samples to calibrate and prove with", "give --data_sample samples.npy")
    generated = {"mcu_c.name": asked.model_name} if any(bench.is_c(chip) for chip in chips) else {}
    request = Request(
        source=source,
        chips=chips,
        data=asked.data_sample,
        options={name: str(value) for name, value in {**chosen, **generated, **more}.items()},
    )
    gate = options.GateFlags(
        require_npu=asked.require_npu, min_sqnr=asked.min_sqnr, max_drop=asked.max_drop, origins=asked.origins
    )
    return gate.judged(request), notes + unused


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
        what = f"{row.wanted.format} {row.wanted.hardware}"
        lines = [f"{what}: {row.result.verdict}"] if row.result and row.result.verdict else []
        if row.error is not None:
            hint = f" ({row.error.hint})" if row.error.hint else ""
            more = [*getattr(row.error, "findings", ()), *(f"| {x}" for x in getattr(row.error, "last_lines", ()))]
            lines = [f"{what}: {row.error.message}{hint}", *(f"  {line}" for line in more)]
        here = spelled_here(" ".join(lines))
        for line in (*lines, f"  {here}") if here else lines:
            click.echo(line)
