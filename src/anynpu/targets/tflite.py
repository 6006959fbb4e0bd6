"""TensorFlow Lite files: lowered from ONNX and quantised by our own writer."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from anynpu import schema, tool
from anynpu.artifact import Artifact, Manifest, PassEffect
from anynpu.errors import ConfigError, Finding, Unsupported
from anynpu.foreign import ONNX, mapped
from anynpu.platform import Platform
from anynpu.quantize.plan import QuantPlan
from anynpu.targets.base import NoFacts, Work, option
from anynpu.targets.flatbuffer import TfliteOperator, operators
from anynpu.targets.quantising import MOVES, bare, emit, float_notes, keep_calibration, needs_samples, with_passes
from anynpu.tensors import TensorSpec

if TYPE_CHECKING:
    from anynpu.lowering.graph import Graph

EQUALIZATION = "equalization.json"
"""The factors by which inner channels of the quantised file are louder than those of the float file, by its tensors."""
CHILDREN_IMPORT = ("numpy",)
"""Quantising a TFLite file needs neither ONNX nor its runtime."""
OWN_RANGES = "ranges.json"
"""What the tensors of a model that came quantised can hold: their scales are kept."""


@dataclass(frozen=True)
class LiteRtOptions:
    """How the float model is converted."""

    border: Literal["channels-last", "as-model"] = option(
        "channels-last",
        "image inputs and outputs: channels last (what microcontrollers feed), or as the model has them",
    )
    skip_passes: str = option(
        "", "passes that are left out, with commas between their names (docs/graph.md lists them)"
    )


@dataclass(frozen=True)
class TfLiteOptions(QuantPlan):
    """How the float file is quantised."""

    tables: bool | None = option(
        None,
        "functions that TFLite-Micro lacks (GELU, EXP, LOG, SQRT) as tables; by default for tflm and "
        "generated C, and nowhere else",
    )
    written_for: str | None = option(
        None,
        "the Ethos-U, such as ethos-u55-256, for which operators that it does not compute (a resize by "
        "three, a square root, a shuffle) are written as others; by default the chip's own, and none elsewhere",
    )


class LiteRt:
    """Converts an ONNX model to a float TensorFlow Lite file."""

    name = "litert"
    accepts = "onnx"
    produces = "tflite-float"
    Options = LiteRtOptions
    Facts = NoFacts

    def tools(self) -> Mapping[str, str]:
        return {name: tool.version_of(name) for name in ("flatbuffers", "onnx")}

    def needs_data(self, options: LiteRtOptions) -> bool:
        return False

    def check(self, model: Artifact, platform: Platform, options: LiteRtOptions) -> tuple[Finding, ...]:
        """Returns every node that cannot be lowered, with its reason."""
        try:
            _lowered(model.main)
        except Unsupported as refusal:
            if not refusal.findings:
                raise
            return tuple(refusal.findings)
        return ()

    def compile(
        self, model: Artifact, data: Artifact | None, platform: Platform, options: LiteRtOptions, out: Path, work: Work
    ) -> Manifest:
        source = model.manifest
        last = options.border == "channels-last"
        inputs = [s.name for s in source.inputs if last and s.layout == "NCHW"]
        outputs = [s.name for s in source.outputs if last and s.layout == "NCHW"]
        # The passes that the user leaves out; a name that no pass has raises
        from anynpu.graph.passes import passes_of
        from anynpu.lowering.clean import CLEANING
        from anynpu.lowering.prepare import PREPARING

        names = [name.strip() for name in options.skip_passes.split(",") if name.strip()]
        known = [*(each.name for each in PREPARING), *(each.name for each in passes_of(CLEANING))]
        for name in names:
            if name not in known:
                raise ConfigError(f"-O skip_passes={name}: no such pass{schema.near(name, known)}", ", ".join(known))
        written = lower(str(model.main), str(out / "model.tflite"), inputs, outputs, names)
        return replace(
            with_passes(bare(source, out / "model.tflite"), written["passes"]),
            format=self.produces,
            inputs=_specs(written["inputs"], source.inputs, inputs),
            outputs=_specs(written["outputs"], source.outputs, outputs),
        )


class TfLite:
    """Quantises a float TensorFlow Lite file."""

    name = "tflite"
    accepts = "tflite-float"
    produces = "tflite"
    Options = TfLiteOptions
    Facts = NoFacts
    moves = MOVES

    def tools(self) -> Mapping[str, str]:
        return {name: tool.version_of(name) for name in ("ai-edge-litert", "numpy")}

    def needs_data(self, options: TfLiteOptions) -> bool:
        return needs_samples(options)

    def settled(self, options: TfLiteOptions, model: Artifact, platform: Platform) -> TfLiteOptions:
        """Returns the options, with tables for a chip that lacks a function of the model, and other operators for an
        Ethos-U that lacks some; the remaining chips share one file."""
        from anynpu.lowering.functions import ALWAYS, ON_MICRO

        bits: int = options.weight_bits
        if bits < 8 and (platform.target != self.name or platform.device == "tflm"):
            # Vela dies of them by SIGFPE, and TFLite-Micro refuses the file.
            raise Unsupported(
                f"weight_bits={bits}: nothing on the way to {platform.name} takes {bits}-bit weights but LiteRT itself",
                hint="leave weight_bits out for this chip; tflite and cpu take it",
            )
        if options.tables is None:
            lacks = ON_MICRO - ALWAYS if platform.device == "tflm" or platform.target == "mcu_c" else ()
            tables = any(each.kind in lacks for each in operators(model.main)) if lacks else False
            options = replace(options, tables=tables)
        if options.written_for is None:
            accelerator = str(platform.facts.get("accelerator", "")) if platform.target == "vela" else ""
            rewritten = accelerator and (
                for_npu(model.main, accelerator) is not None
                or _ramps(model.main, accelerator)
                or _lacks_wide(model.main, accelerator, options)
            )
            options = replace(options, written_for=accelerator if rewritten else "")
        return options

    def check(self, model: Artifact, platform: Platform, options: TfLiteOptions) -> tuple[Finding, ...]:
        """Returns the operators that TFLite-Micro has no kernel for, where it is what runs the file."""
        if platform.device != "tflm":
            return ()
        from anynpu.targets.micro import lacking

        return lacking(model.main, options, bool(self.settled(options, model, platform).tables))

    def compile(
        self, model: Artifact, data: Artifact | None, platform: Platform, options: TfLiteOptions, out: Path, work: Work
    ) -> Manifest:
        source = model.manifest
        result = out / "model.tflite"
        if not self.needs_data(options):
            operators(model.main)  # a damaged file is not handed on
            shutil.copyfile(model.main, result)
            return replace(bare(source, result), format=self.produces, notes=source.notes)
        answer = emit("anynpu.targets.tflite:quantize", model, data, options, result, work)
        left = answer["figures"].get("float_operators", ())
        manifest = with_passes(bare(source, result), answer["passes"])
        return replace(
            manifest,
            format=self.produces,
            inputs=_specs(answer["inputs"], source.inputs, ()),
            outputs=_specs(answer["outputs"], source.outputs, ()),
            details={"quantisation": answer["figures"]},
            notes=(*source.notes, *manifest.notes, *float_notes(left)),
        )


def _specs(
    tensors: list[dict[str, Any]], source: tuple[TensorSpec, ...], turned: Sequence[str]
) -> tuple[TensorSpec, ...]:
    """Returns the specs read from the file, with the layouts that the conversion gave them."""
    layouts = {s.name: "NHWC" if s.name in turned else s.layout for s in source}
    channels = {s.name: s.channels for s in source}
    specs = (schema.from_dict(TensorSpec, item, "tensor") for item in tensors)
    return tuple(replace(s, layout=layouts[s.name], channels=channels[s.name]) for s in specs)


def lower(model: str, out: str, inputs: list[str], outputs: list[str], skipped: Sequence[str] = ()) -> dict[str, Any]:
    """Lowers to float TensorFlow Lite, without the passes that are skipped."""
    from anynpu.lowering.write import to_bytes

    graph, effects, ranges = _lowered(Path(model), inputs, outputs, skipped)
    if ranges is not None:
        Path(out).with_name(OWN_RANGES).write_text(schema.canonical_json(ranges) + "\n", "utf-8")
    Path(out).write_bytes(to_bytes(graph))

    def described(names: Sequence[str]) -> list[Any]:
        return [
            schema.to_dict(TensorSpec(each, graph.tensors[each].shape, graph.tensors[each].dtype)) for each in names
        ]

    return {
        "inputs": described(graph.inputs),
        "outputs": described(graph.outputs),
        "passes": schema.to_dict(effects),
    }


def _lowered(
    model: Path, inputs: Sequence[str] = (), outputs: Sequence[str] = (), skipped: Sequence[str] = ()
) -> tuple[Graph, tuple[PassEffect, ...], Mapping[str, tuple[float, float]] | None]:
    """Returns the float graph of TFLite operators, what each pass did, and the ranges that a quantised model brings."""
    import onnx

    from anynpu.graph.quantised import has_pairs, refuse_integers, taken_apart
    from anynpu.lowering.lower import lower_by_passes

    ranges = None
    with mapped(ONNX, f"{model}: is not a whole ONNX file", hint="export the model again"):
        source = onnx.load(model)
    refuse_integers(source)
    if has_pairs(source):
        source, ranges = taken_apart(source)
    return *lower_by_passes(source, inputs, outputs, skipped), ranges


def for_npu(path: Path, accelerator: str) -> bytes | None:
    """Returns a float file in operators that an Ethos-U computes, or None where it has no others."""
    from anynpu.lowering.apart import apart
    from anynpu.lowering.ethos_u import for_ethos_u
    from anynpu.lowering.read import from_bytes
    from anynpu.lowering.reals import in_reals
    from anynpu.lowering.write import to_bytes
    from anynpu.targets.vela.constraints import LONGEST_STEP, family, unresized

    if family(accelerator) not in LONGEST_STEP:
        raise ConfigError(f"-O written_for={accelerator}: no such NPU", "an Ethos-U, such as ethos-u55-256")
    graph = from_bytes(path.read_bytes())
    foreign = unresized(operators(path), accelerator)
    step = LONGEST_STEP[family(accelerator)]
    rewritten = graph if family(accelerator) == "EthosU85" else in_reals(graph)
    rewritten = for_ethos_u(rewritten, lambda operator, _: operator.outputs[0] not in foreign, step)
    rewritten = apart(rewritten, family(accelerator))
    return None if rewritten is graph else to_bytes(rewritten)


def _ramps(path: Path, accelerator: str) -> bool:
    """Tells whether a float file has functions for which an Ethos-U needs ramps in place of tables."""
    from anynpu.lowering.functions import ALWAYS
    from anynpu.targets.vela.constraints import family

    def divides(each: TfliteOperator) -> bool:
        """Tells whether it divides by what is computed, which a table does where that can be zero."""
        return each.kind == "DIV" and each.inputs[1] is not None and each.inputs[1].data is None

    written = family(accelerator) != "EthosU85"
    return written and any(each.kind in ALWAYS or divides(each) for each in operators(path))


def _lacks_wide(path: Path, accelerator: str, plan: QuantPlan) -> bool:
    """Tells whether a file may have an operator of 16 bits that an Ethos-U has in 8 bits alone."""
    from anynpu.lowering.wide_forms import ON_ETHOS_U
    from anynpu.targets.vela.constraints import family

    wide = plan.activations == "int16" or bool(plan.wide_tensors)
    return wide and family(accelerator) != "EthosU85" and any(each.kind in ON_ETHOS_U for each in operators(path))


def quantize(model: str, data: str, plan: dict[str, Any], out: str) -> dict[str, Any]:
    """Quantises a float TensorFlow Lite file (runs in a child process)."""
    import numpy as np

    from anynpu.lowering.integer_file import in_layout, quantize_file, read_specs
    from anynpu.lowering.read import from_bytes
    from anynpu.lowering.reals import settled
    from anynpu.lowering.wide_forms import ON_ETHOS_U, as_micro_has
    from anynpu.lowering.write import to_bytes
    from anynpu.quantize.fixed import NOTHING, Fixed
    from anynpu.quantize.ranges import Range
    from anynpu.targets.data import dataset
    from anynpu.training.record import read_record

    source = Artifact.open(Path(model))
    options = schema.from_dict(TfLiteOptions, plan, "plan")
    samples = Artifact.open(Path(data))
    turned = in_layout(dataset(samples.path), samples.manifest.inputs, source.manifest.inputs)
    floating = source.main
    if options.written_for and (content := for_npu(source.main, options.written_for)) is not None:
        floating = Path(out).with_name("float.tflite")
        floating.write_bytes(content)
    stored_types = {spec.name: spec.dtype for spec in source.manifest.inputs}
    trained, stored, fixed = read_record(source.path), source.path / OWN_RANGES, NOTHING
    if trained is not None:
        fixed = trained.scheme.fixed(weights_of_file=True)
    elif stored.is_file():
        limits = schema.read_as(dict[str, tuple[float, float]], schema.read_json(stored), OWN_RANGES)
        fixed = Fixed({name: Range(*each) for name, each in limits.items()}, origin="file")
        options = replace(options, equalize=False)
    if floating != source.main:
        # Whole numbers are real numbers of 16 bits where the NPU has no others.
        ranges, wide = settled(*(from_bytes(path.read_bytes()) for path in (source.main, floating)))
        fixed = replace(fixed, ranges={**fixed.ranges, **ranges})
        options = replace(options, wide_tensors=(*options.wide_tensors, *wide))
        numbers = [spec.name for spec in read_specs(floating)[0] if spec.dtype != stored_types[spec.name]]
        real = {name: turned.inputs[name].astype(np.float32) for name in numbers}
        turned = replace(turned, inputs={**turned.inputs, **real})
    if options.wide_tensors or options.activations == "int16":
        graph = from_bytes(floating.read_bytes())
        written, options = as_micro_has(graph, options)
        if options.written_for and _lacks_wide(source.main, options.written_for, options):
            written, options = as_micro_has(written, options, ON_ETHOS_U)
        if written is not graph:
            floating = Path(out).with_name("float.tflite")
            floating.write_bytes(to_bytes(written))
    as_ramps = bool(options.written_for and _ramps(source.main, options.written_for))
    figures = quantize_file(
        floating, turned, options, Path(out), bool(options.tables), tool.report_progress, fixed, as_ramps
    )
    if floating != source.main:
        floating.unlink()
    figures.pop("seconds", None)  # the same build must give the same manifest; the store times every step
    if factors := figures.pop("equalized", None):
        Path(out).with_name(EQUALIZATION).write_text(schema.canonical_json(factors) + "\n", "utf-8")
    if (said := figures.pop("calibration", None)) is not None:
        keep_calibration(said, Path(out))
    inputs, outputs = (schema.to_dict(specs) for specs in figures.pop("borders"))
    effects = schema.to_dict(figures.pop("passes", ()))
    return {"figures": figures, "passes": effects, "inputs": inputs, "outputs": outputs}
