"""anynpu targets, show and check: looking before building."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from anynpu import plugins, schema
from anynpu.api.build import RANDOM
from anynpu.api.result import Checks
from anynpu.artifact import MANIFEST, Artifact
from anynpu.cli import options
from anynpu.cli.build import Build
from anynpu.cli.command import refuse_unused
from anynpu.cli.progress import observer
from anynpu.cli.run import STRICT_HELP
from anynpu.cli.show_cix import show_cix
from anynpu.cli.show_open import read_open, show_open
from anynpu.cli.show_quantisation import show_quantisation
from anynpu.cli.show_stream import show_stream
from anynpu.cli.table import print_json, print_record, print_table
from anynpu.cli.verb import Common, argument, flag, verb
from anynpu.errors import AnyNpuError, ConfigError, ToolFailed, on_one_line
from anynpu.measure.layers import worst_layers
from anynpu.pipeline.check import check as run_check
from anynpu.pipeline.planner import chain
from anynpu.pipeline.request import Request
from anynpu.pipeline.steps import Steps
from anynpu.platform import Platform
from anynpu.records.build import BuildRecord
from anynpu.records.load import read as read_record
from anynpu.records.parts import REPORT, receipt
from anynpu.report.figures import count, kib
from anynpu.runtime.base import sessions_for

MODEL_FLAGS = (
    "ckpt",
    "trust_checkpoint",
    "arg",
    "shape",
    "dtype",
    "layout",
    "channels",
    "output_names",
    "fix",
    "end_at",
    "keep_outputs",
    "config",
)


@dataclass(frozen=True, kw_only=True)
class Targets(Common):
    """One chip, or all."""

    chip: str | None = argument(None)


@verb(Targets)
def targets(asked: Targets) -> int:
    """List every chip: how a model gets there, whether the tools are here, and what executes the result here.

    With a chip's name: its memories, boards, quirks, and every option of the compilers that lead to it. With part of a
    name, of a board, a vendor, an NPU or a part number: the chips that match, or the only one.

    \b
    anynpu targets
    anynpu targets hxwe2
    anynpu targets alif
    anynpu targets stm32f407vg
    """
    if asked.chip is not None:
        chips = _chips_named(asked.chip)
        if len(chips) == 1:
            return _show_chip(chips[0], asked.format)
        rows = [
            {
                "chip": platform.name,
                "what": platform.title,
                "NPU": platform.npu or "-",
                "boards": ", ".join(platform.boards) or "-",
                "parts": ", ".join(platform.families) or "-",
                "also called": ", ".join(platform.aliases) or "-",
            }
            for platform in chips
        ]
    else:
        names = sorted(plugins.names("platforms"), key=_natural)
        rows = [_target_row(plugins.platform(name)) for name in names]
    if asked.json:
        print_json("targets", {"chips": rows})
    else:
        print_table(rows)
    return 0


def _chips_named(name: str) -> list[Platform]:
    """Returns the chip of that name or alias, or else those that it is a part of; raises if there are none."""
    try:
        return [plugins.platform(name)]
    except ConfigError:
        like = plugins.platforms_like(name)
        if like and name.strip().lower() not in plugins.names("platforms"):  # or else the chip's own file is bad
            return sorted(like, key=lambda platform: _natural(platform.name))
        raise


def _show_chip(platform: Platform, format: str) -> int:
    choices = [
        {
            "-O": f"{target.name}.{field.name}",
            "default": str(field.default),
            "what": field.metadata.get("help", ""),
        }
        for target in chain(platform)
        for field in dataclasses.fields(target.Options)
    ]
    if format == "json":
        print_json("target", {**schema.to_dict(platform), "options": choices})
        return 0
    for name, value in _target_row(platform).items():
        click.echo(f"{name:<14} {value}")
    click.echo(f"{'also called':<14} {', '.join(platform.aliases) or '-'}")
    click.echo(f"{'boards':<14} {', '.join(platform.boards) or '-'}")
    if platform.families:
        click.echo(f"{'parts':<14} {', '.join(platform.families)}")
    if platform.clock_mhz is not None:
        click.echo(f"{'NPU clock':<14} {platform.clock_mhz:g} MHz")
    memory = platform.memory
    click.echo(f"{'memory':<14} SRAM {_limit(memory.sram_kib)}, flash {_limit(memory.flash_kib)}")
    click.echo(f"{'source':<14} {platform.source or '-'}")
    for quirk in platform.quirks:
        click.echo(f"{'quirk':<14} {quirk.text} ({quirk.source}, {quirk.seen})")
    print_table(choices)
    return 0


def _limit(size_kib: int | None) -> str:
    return "not bounded" if size_kib is None else f"{size_kib} KiB"


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Sorts ethos-u55-32 before ethos-u55-128."""
    return [(p.isdigit(), int(p) if p.isdigit() else 0, p) for p in re.split(r"(\d+)", name)]


def _target_row(platform: Platform) -> dict[str, str]:
    row = {"chip": platform.name, "what": platform.title, "NPU": platform.npu or "-"}
    try:
        links = chain(platform)
    except ToolFailed as error:  # a plug-in that does not load is one bad row, not the end of the list
        return {**row, "chain": platform.target, "tools": error.message, "executes here": "-"}
    try:
        for target in links:
            target.tools()
        ready = "ready"
    except AnyNpuError as error:
        ready = error.message
    runs = ""
    for target in reversed(links):
        able = [s.name for s in sessions_for(target.produces) if not s.missing()]
        if able:
            before = "" if target is links[-1] else " (before " + links[-1].name + ")"
            runs = ", ".join(able) + before
            break
    return {
        **row,
        "chain": " > ".join(target.name for target in links),
        "tools": ready,
        "executes here": runs or "-",
    }


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is shown, and what of it."""

    subject: str | None = argument(None)
    layers: bool = flag("The layers of a built chip that are furthest from the float model.", False)
    stream: bool = flag("The command stream of an Ethos-U artifact, operation by operation.", False)
    quantisation: bool = flag("How every tensor of a quantised artifact is stored, and where its scale is from.", False)
    against: Path | None = flag("With --quantisation: only what another artifact stores differently.", None)
    strict: bool = flag(STRICT_HELP, False)


@dataclass(frozen=True, kw_only=True)
class Show(Subject, options.ModelFlags, Common):
    """A model or an artifact to show."""


@verb(Show, file=Build)
def show(asked: Show) -> int:
    """Show a model or an artifact folder: tensors, operators, cost, fingerprint, placement, lineage.

    A .cix file is read on any machine: tensors in our convention and the vendor's, target, compiler, sections. An ONNX
    file with open dimensions is shown as it is, with the --shape that fixes them.

    \b
    anynpu show zoo:resnet8
    anynpu show model.cix
    anynpu show out/ethos-u55-128
    anynpu show out/ethos-u55-128 --layers
    anynpu show out/ethos-u55-128 --stream
    anynpu show out/tflm --quantisation
    anynpu show out/tflm --quantisation --against before/tflm
    """
    ctx = click.get_current_context()
    subject, layers, stream, strict = asked.subject, asked.layers, asked.stream, asked.strict
    is_cix = subject is not None and Path(subject).suffix.lower() == ".cix" and not Path(subject).is_dir()
    if asked.against is not None and not asked.quantisation:
        raise ConfigError("--against needs --quantisation", "add it")
    if asked.quantisation:
        if layers or stream or strict:
            raise ConfigError("--quantisation is shown alone", "leave --layers, --stream and --strict out")
        refuse_unused(ctx, f"{subject or '.'} is shown", "model", *MODEL_FLAGS)
        return show_quantisation(Path(subject or "."), asked.against, asked.format)
    if strict and (layers or stream or not is_cix):
        raise ConfigError("--strict is for .cix files", "name one, or leave it out")
    if subject and (layers or stream or is_cix or Path(subject).is_dir()):
        refuse_unused(ctx, f"{subject} is not a model to import", *MODEL_FLAGS)
    if subject or layers or stream:
        refuse_unused(ctx, f"{subject or '.'} is shown", "model")
    if stream:
        if layers:
            raise ConfigError("--layers and --stream are shown one at a time", "leave one of them out")
        return show_stream(Path(subject or "."), asked.format)
    if layers:
        return _show_layers(Path(subject or "."), asked.format)
    if subject and is_cix:
        return show_cix(Path(subject), asked.format, strict)
    if subject and (Path(subject) / MANIFEST).is_file():
        artifact = Artifact.open(Path(subject))
    elif subject and Path(subject).is_dir():
        artifact = Artifact.open(Path(subject))  # says what a folder must hold
    else:
        source = replace(asked, model=asked.model or subject or "").source()
        if (model := read_open(source)) is not None:
            return show_open(model, source.shapes, asked.format)
        request = Request(source, ("null",))
        with observer(asked.quiet) as watcher:
            artifact = Steps(request, asked.store(), watcher).import_model().artifact
    if asked.json:
        print_record({"digest": artifact.digest, **schema.to_dict(artifact.manifest)})
    else:
        _show(artifact)
    return 0


def _show(artifact: Artifact) -> None:
    manifest = artifact.manifest
    rows = [
        {
            "": kind,
            "name": spec.name,
            "shape": "x".join(map(str, spec.shape)),
            "type": spec.dtype,
            "layout": spec.layout or "not stated",
            "scale, zero point": _quantization(spec.quantization),
        }
        for kind, specs in (("input", manifest.inputs), ("output", manifest.outputs))
        for spec in specs
    ]
    click.echo(on_one_line(f"format       {manifest.format}"))
    click.echo(on_one_line(f"fingerprint  {manifest.fingerprint or '-'}"))
    click.echo(f"digest       {artifact.digest}")
    print_table(rows)
    if e := manifest.estimates:
        click.echo(f"cost         {count(e.macs)} MACs, {count(e.parameters)} parameters ({e.source})")
        click.echo(f"memory       SRAM {kib(e.sram_bytes)} KiB, flash {kib(e.flash_bytes)} KiB")
        if e.latency_ms is not None:
            click.echo(f"latency      {e.latency_ms:.3f} ms, an estimate")
    if kinds := manifest.details.get("operators"):
        click.echo("operators    " + ", ".join(f"{n} {kind}" for kind, n in kinds.items()))
    if data := receipt(manifest.placement):
        where = f"operators on the {data.npu}{data.said_by}"
        click.echo(f"receipt      {data.on_npu} of {data.operators} {where}")
        for op in data.elsewhere:
            click.echo(on_one_line(f"  on the CPU: {op.kind} {op.name}: {op.reason}"))
    if step := manifest.step:
        tools = ", ".join(f"{k} {v}" for k, v in step.tools.items())
        click.echo(
            f"made by      {step.name} ({tools}) from " + ", ".join(f"{k} {v[:12]}" for k, v in step.inputs.items())
        )
    for note in dict.fromkeys((*manifest.notes, *_notes_of_build(artifact))):
        click.echo(on_one_line(f"note         {note}"))


def _notes_of_build(artifact: Artifact) -> list[str]:
    """Returns what the report next to a chip's folder notes of the build and of the steps that led to it."""
    report = artifact.path.resolve().parent / REPORT
    if not report.is_file():
        return []
    try:
        record, _ = read_record(report)
    except AnyNpuError as error:  # the artifact is whole without it
        return [error.message]
    chips = record.chips if isinstance(record, BuildRecord) else ()
    steps = next((chip.chain for chip in chips if chip.chain and chip.chain[-1].digest == artifact.digest), None)
    if steps is None or not isinstance(record, BuildRecord):
        return []
    whole = (record.model, *steps) if record.model else steps
    return [*(note for step in whole for note in step.notes), *record.notes]


def _show_layers(folder: Path, format: str) -> int:
    """Prints what the report next to a chip's folder says of its layers, the worst first."""
    Artifact.open(folder)  # says what a folder must hold
    report = folder.resolve().parent / REPORT
    if not report.is_file():
        raise ConfigError(f"{folder}: no {REPORT} next to it", "name a chip's folder where `anynpu build` put it")
    record, note = read_record(report)
    if note:
        click.echo(f"note: {note}", err=True)
    chips = {chip.chip: chip.graph for chip in record.chips} if isinstance(record, BuildRecord) else {}
    graph = chips.get(folder.resolve().name)
    if graph is None:
        raise ConfigError(f"{report}: says nothing about the layers of {folder.name}", "build it again")
    if format == "json":
        print_json("layers", {"chip": folder.resolve().name, **schema.to_dict(graph)})
        return 0
    unit = graph.time_unit or "nothing: none is known"
    click.echo(f"nodes of {graph.of}, {graph.samples} samples; time in {unit}")
    print_table(
        [
            {
                "layer": node.name,
                "operator": node.kind,
                "on": node.device,
                "SQNR dB": f"{node.sqnr_db:.1f}",
                "lost dB": "-" if lost is None else f"{lost:z.1f}",
                "MACs": count(node.macs),
                "time": "-"
                if node.time is None
                else f"{node.time:,}"
                if isinstance(node.time, int)
                else f"{node.time:.3f}",
            }
            for node, lost in worst_layers(graph)
        ]
    )
    for note in graph.notes:
        click.echo(f"note: {note}")
    return 0


def _quantization(q: Any) -> str:
    if q is None:
        return ""
    return f"{q.scale[0]:.6g}, {q.zero_point[0]}" if q.axis is None else f"{len(q.scale)} along axis {q.axis}"


@dataclass(frozen=True, kw_only=True)
class Check(options.ModelFlags, options.DataFlags, Common):
    """A model to check, and for which chips."""


@verb(Check, file=Build)
def check(asked: Check) -> int:
    """Ask before compiling: will it fit, will every operator run there?

    Findings come from the compiler's own table of constraints and the chip's memories. Exit status 1 if there are any.
    The model is quantised for this; without --data the ranges are random, which changes no operator.

    \b
    anynpu check -m net.onnx -t ethos-u55-128,hxwe2
    """
    refuse_unused(click.get_current_context(), "check executes nothing, it only calibrates", "test")
    source = asked.source()
    if not asked.data and source.kind != "zoo":
        asked = replace(asked, data=RANDOM)
    with observer(asked.quiet) as watcher:
        checks = Checks(tuple(run_check(asked.request(source), asked.store(), watcher)))
    if asked.json:
        print_record(checks.record)
    else:
        for line in str(checks).splitlines():
            click.echo(on_one_line(line))
    return checks.exit_status
