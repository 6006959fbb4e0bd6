"""The ai8x target: an ONNX model and calibration samples become a C project for the MAX78000 or MAX78002.

Quantisation is ours; the project is made by the vendor's ai8xize.py, whose own simulation of one sample must give, bit
for bit, what the integer twin gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from anynpu.artifact import Artifact, Estimates, Manifest, OperatorPlacement, Placement
from anynpu.capsules import capsule, worker
from anynpu.capsules.checkout import find_checkout
from anynpu.capsules.toolchain import read_toolchain
from anynpu.errors import AccuracyError, ConfigError, Finding, Unsupported
from anynpu.measure.samples import read_samples
from anynpu.platform import Platform
from anynpu.quantize.fixed import keep_quantisation
from anynpu.records.quantisation import Quantisation
from anynpu.runtime.ai8x import MODEL, Layer, Network, forward, write_network
from anynpu.schema import JsonObject
from anynpu.targets.ai8x import bits, files, memory, rules, scales, stated, trained
from anynpu.targets.ai8x.blocks import Blocks
from anynpu.targets.ai8x.options import AUTO, MOVES, Ai8xFacts, Ai8xOptions
from anynpu.targets.base import Work, scratch
from anynpu.targets.data import require_data
from anynpu.tensors import Array, Quantization, TensorSpec
from anynpu.training.record import read_record

TOOL = "ai8x"
PROJECT = "project"
ZERO = "All output values"
RANGE_SAMPLES = 256


@dataclass(frozen=True)
class Prepared:
    """A network in integers, ready for the vendor's tool."""

    blocks: Blocks
    network: Network
    parameters: dict[str, Array]
    integers: scales.Integers
    sample: Array
    quantisation: Quantisation


class Ai8x:
    """Compiles ONNX models for the MAX78000 and the MAX78002."""

    name = "ai8x"
    accepts = "onnx"
    produces = "ai8x"
    Options = Ai8xOptions
    Facts = Ai8xFacts
    moves = MOVES

    def tools(self) -> Mapping[str, str]:
        """Returns the vendor's tool and the torch that it runs on."""
        checkout = find_checkout(read_toolchain(TOOL))
        return {"ai8x-synthesis": checkout.version, "torch for ai8x": capsule.find(TOOL).version}

    def needs_data(self, options: Ai8xOptions) -> bool:
        """Ranges come from samples, and the known answer is that of a real one."""
        return True

    def check(self, model: Artifact, platform: Platform, options: Ai8xOptions) -> tuple[Finding, ...]:
        """Returns what the accelerator does not do."""
        return _cut(model, platform.facts_as(Ai8xFacts), options)[1]

    def compile(
        self, model: Artifact, data: Artifact | None, platform: Platform, options: Ai8xOptions, out: Path, work: Work
    ) -> Manifest:
        """Writes the twin's integers and the vendor's project, and returns what they are."""
        facts = platform.facts_as(Ai8xFacts)
        blocks, findings = _cut(model, facts, options)
        if findings:
            raise Unsupported(f"{platform.title.split(':')[0]} does not run this model", findings)
        width = _width(blocks, facts, options)
        prepared = _prepare(blocks, model, require_data(data, self.name), facts, options, width, work)
        write_network(out, prepared.network, prepared.parameters)
        with scratch(out / "ai8xize") as room:
            project = _synthesize(prepared, facts, options, room, work)
            expected = forward(prepared.network, prepared.parameters, prepared.sample)[-1]
            last = prepared.network.layers[-1]
            shape = prepared.blocks.blocks[-1].output
            answer = files.known_answer(project / "sampleoutput.h", shape, last.width, facts)
            equal = float(np.mean(answer == expected.reshape(shape)))
            if equal < 1.0:
                raise AccuracyError(
                    f"the vendor's known answer and the integer twin agree in {equal:.2%} of the outputs",
                    "equal outputs",
                    equal,
                    1.0,
                    hint=f"a config_file must describe this very network; the log is {work.log}",
                )
            project.replace(out / PROJECT)
        keep_quantisation(prepared.quantisation, out / MODEL)
        return _manifest(prepared, model, platform, options, out)


def _cut(model: Artifact, facts: Ai8xFacts, options: Ai8xOptions) -> tuple[Blocks, tuple[Finding, ...]]:
    from anynpu.source.onnx_file import read
    from anynpu.targets.ai8x.graph import cut

    blocks, misfits = cut(read(model.main))
    return blocks, misfits + rules.findings(blocks, facts, options)


def _width(blocks: Blocks, facts: Ai8xFacts, options: Ai8xOptions) -> int:
    """Returns the bits of the last layer: 32 where it has no activation and room for its sums."""
    last = blocks.blocks[-1]
    able = last.activation == "none" and last.weight is not None and not blocks.offset
    if options.output_width == "8" or (options.output_width == "auto" and not able):
        return 8
    if not able:
        words = "a 32-bit output needs a last layer with weights and without an activation"
        raise ConfigError(f"output_width=32: {words}", "leave output_width out")
    try:
        memory.place(blocks, facts, bits.stated(blocks, options), 32, options.fifo)
    except Unsupported:
        if options.output_width == "32":
            raise
        return 8
    return 32


def _prepare(
    blocks: Blocks,
    model: Artifact,
    data: Artifact,
    facts: Ai8xFacts,
    options: Ai8xOptions,
    width: int,
    work: Work,
) -> Prepared:
    """Returns the network in integers, and a calibration sample that gives every layer something other than zeros."""
    samples = list(read_samples(data.path).first(RANGE_SAMPLES))
    if record := read_record(model.path):
        if options.quantisation is not None:
            raise ConfigError("-O quantisation: training has decided all scales of this model", "leave one of them out")
        widths = trained.widths(blocks, record.scheme)
        integers = trained.integers(blocks, record.scheme, width, facts.biased_channels)
        quantisation = stated.quantisation_of(blocks, integers, widths, {}, width)
    else:
        widths, integers, quantisation = _quantised(blocks, model, samples, facts, options, width, work)
    network, parameters = _network(blocks, integers, facts, options, width, widths)
    for sample in samples:
        quantization = Quantization((integers.scale,), (-round(integers.centre / integers.scale),))
        stored = quantization.quantize(sample[blocks.tensor], "int8").astype(np.int64).reshape(blocks.input)
        dead = [
            layer.name
            for layer, out in zip(network.layers, forward(network, parameters, stored), strict=True)
            if not out.any()
        ]
        if not dead:
            return Prepared(blocks, network, parameters, integers, stored, quantisation)
    raise AccuracyError(
        f"no calibration sample gives every layer something other than zeros: {dead[0]} gives nothing but zeros",
        "layers with results other than zero",
        1 - len(dead) / len(network.layers),
        1.0,
        hint="more bits (bit_width=8, or weight_bits for that layer), or other calibration data",
    )


def _quantised(
    blocks: Blocks,
    model: Artifact,
    samples: Sequence[Mapping[str, Array]],
    facts: Ai8xFacts,
    options: Ai8xOptions,
    width: int,
    work: Work,
) -> tuple[tuple[int, ...], scales.Integers, Quantisation]:
    """Returns the bits of every layer's weights, the network in integers, and its quantisation, as the user states."""
    from anynpu.runtime.ort import OrtInner

    inner, names = OrtInner(model), blocks.tensors()
    seen = scales.observe(blocks, lambda sample: inner.tensors(sample, names), samples, options.method, work.progress)

    def quantised(widths: Sequence[int]) -> scales.Integers:
        return scales.quantise(blocks, seen, options, width, facts.biased_channels, widths)

    file = stated.stated_in(options.quantisation, blocks)
    seen = stated.with_stated(seen, blocks, file)
    widths = bits.stated(blocks, options)
    if options.weight_bits == AUTO:
        errors = {w: scales.shares(blocks, seen, quantised((w,) * len(blocks.blocks))) for w in bits.WIDTHS}
        widths = bits.chosen(blocks, errors, facts, options, width)
    widths = stated.with_bits(widths, blocks, file)
    integers = quantised(widths)
    quantisation = stated.quantisation_of(blocks, integers, widths, seen.fixed, width)
    if file is not None:
        file.check(quantisation)
    return widths, integers, quantisation


def _network(
    blocks: Blocks,
    integers: scales.Integers,
    facts: Ai8xFacts,
    options: Ai8xOptions,
    width: int,
    widths: Sequence[int],
) -> tuple[Network, dict[str, Array]]:
    layers, parameters = [], dict[str, Array]()
    for number, (block, quantised) in enumerate(zip(blocks.blocks, integers.layers, strict=True)):
        weighted = quantised.weight is not None
        layer = Layer(
            block.name,
            block.operation,
            block.sources,
            block.activation,
            block.pool,
            block.kernel,
            block.pad,
            block.dilation,
            block.groups,
            block.flatten,
            quantised.shift,
            32 if width == 32 and number == len(blocks.blocks) - 1 else 8,
            widths[number] if weighted else 8,  # type: ignore[arg-type]  # checked by the options
        )
        layers.append(layer)
        if quantised.weight is not None and quantised.bias is not None:
            parameters[f"weight{number}"] = quantised.weight.astype(np.int8)
            parameters[f"bias{number}"] = quantised.bias.astype(np.int8)
    scale = integers.layers[-1].scale if blocks.softmax else 0.0
    network = Network(facts.device, blocks.input, tuple(layers), options.avg_pool_rounding, scale)
    return network, parameters


def _synthesize(prepared: Prepared, facts: Ai8xFacts, options: Ai8xOptions, room: Path, work: Work) -> Path:
    """Runs ai8xize.py and returns the project that it wrote: whole, with a known answer that means something."""
    ai8x, checkout = capsule.find(TOOL), find_checkout(read_toolchain(TOOL))
    network, config = prepared.network, room / "network.yaml"
    if options.config_file:
        text, arch = files.read_config(options.config_file)
    else:
        places = memory.place(
            prepared.blocks, facts, [layer.bits for layer in network.layers], network.layers[-1].width, options.fifo
        )
        text, arch = files.network_yaml(network, places), files.ARCH
    config.write_text(text, "utf-8")
    np.save(room / "sample.npy", prepared.sample)
    names, arrays = files.checkpoint_arrays(network, prepared.parameters)
    checkpoint = str(room / "checkpoint.pth.tar")
    with worker.Worker(ai8x, "ai8x_worker", scratch=room, log=work.log) as process:
        arguments = {"path": checkpoint, "arch": arch, "names": names}
        process.ask("checkpoint", arguments, arrays, timeout_s=options.time_limit_s)
    argv = ["python", "ai8xize.py", "--config-file", str(config), "--checkpoint-file", checkpoint]
    argv += ["--sample-input", str(room / "sample.npy"), "--test-dir", str(room / "out"), "--prefix", "network"]
    argv += ["--device", facts.device, "--board-name", options.board_name]
    # Without --verbose no cycles are estimated; the short log leaves the layers' data out of it.
    argv += ["--no-version-check", "--verbose", "--short-log", "--no-progress", *options.flags()]
    limit = options.time_limit_s
    done = ai8x.run(argv, cwd=checkout.path, log=work.log, timeout_s=limit, called="ai8xize.py")
    project, chain = room / "out" / "network", ai8x.installed.toolchain
    for name in files.NEEDED:
        chain.require_file(project / name, "ai8xize.py", work.log, done.argv, done.output, filled=True)
    log = (project / "log.txt").read_text("utf-8", "replace")
    if any(ZERO in line and "zero" in line for line in (done.output + log).splitlines()):
        message = "ai8xize.py finds every output of its sample to be zero: its known answer would prove nothing"
        raise chain.failed(message, work.log, done.argv, said=done.output)
    files.relocate(project, room)
    config.replace(project / "network.yaml")
    return project


def _manifest(prepared: Prepared, model: Artifact, platform: Platform, options: Ai8xOptions, out: Path) -> Manifest:
    blocks, source_manifest = prepared.blocks, model.manifest
    figures = files.read_log((out / PROJECT / "log.txt").read_text("utf-8", "replace"))
    facts = platform.facts_as(Ai8xFacts)
    weights = (figures.weight_bytes or 0) + (figures.bias_bytes or 0)
    cycles = figures.cycles if facts.cycles else None
    source = "ai8xize.py's log: MACs, weight and bias memory"
    if cycles:
        source += f", cycles as it estimates them, at {facts.clock_mhz:g} MHz"
    integers = prepared.integers
    quantization = Quantization((integers.scale,), (-round(integers.centre / integers.scale),))
    operators = [OperatorPlacement(b.name, b.operation, "npu", macs=b.macs) for b in blocks.blocks]
    if blocks.softmax:
        reason = "the accelerator has no softmax: the processor computes it"
        operators.append(OperatorPlacement(blocks.softmax, "Softmax", "cpu", reason, macs=0))
    return Manifest(
        format=Ai8x.produces,
        main=MODEL,
        inputs=(replace(source_manifest.inputs[0], dtype="int8", quantization=quantization),),
        outputs=(_output_spec(prepared, source_manifest.outputs[0]),),
        fingerprint=source_manifest.fingerprint,
        placement=Placement(platform.npu, tuple(operators)),
        estimates=Estimates(
            source,
            macs=figures.macs,
            parameters=source_manifest.estimates.parameters if source_manifest.estimates else None,
            flash_bytes=weights or None,
            cycles=cycles,
            latency_ms=cycles / facts.clock_mhz / 1000 if cycles else None,
        ),
        notes=_notes(prepared, options),
        details=_details(prepared, figures),
        task=source_manifest.task,
    )


def _details(prepared: Prepared, figures: files.Figures) -> JsonObject:
    layers = [
        {
            "name": layer.name,
            "shift": layer.shift,
            "scale": quantised.scale,
            "bits": layer.bits,
            **trained.names(block, quantised),
        }
        for block, layer, quantised in zip(
            prepared.blocks.blocks, prepared.network.layers, prepared.integers.layers, strict=True
        )
    ]
    return {
        "project": PROJECT,
        "layers": layers,
        "weight_bytes": figures.weight_bytes,
        "bias_bytes": figures.bias_bytes,
        "known_answer": "the vendor's simulation of one calibration sample equals the twin bit for bit",
    }


def _notes(prepared: Prepared, options: Ai8xOptions) -> tuple[str, ...]:
    notes = [f"the project is for the board {options.board_name}; -O board_name=... makes one for another"]
    if options.simple1b:
        notes.append("simple1b: neither the vendor's simulation nor the twin models it; the chip's results may differ")
    if options.weight_bits:
        layers = [layer for layer in prepared.network.layers if layer.operation != "passthrough"]
        notes.append("bits of weights by layer: " + ", ".join(f"{layer.name} {layer.bits}" for layer in layers))
    if note := find_checkout(read_toolchain(TOOL)).note:
        notes.append(f"ai8x-synthesis: {note}")
    if offset := prepared.blocks.offset:
        steps = offset / prepared.integers.layers[-1].scale
        exact = "exact" if abs(steps - round(steps)) < 1e-6 else f"{steps:.2f} steps, rounded to whole ones"
        notes.append(f"the constant {offset:g} behind the last layer is the output's zero point: {exact}")
    if prepared.integers.layers[-1].rest is not None:
        notes.append("the last layer has more outputs than biases fit: they are the zero points of the 32-bit output")
    if prepared.integers.centre:
        notes.append("the input's zero point is folded into the first layer's bias")
    return tuple(notes)


def _output_spec(prepared: Prepared, spec: TensorSpec) -> TensorSpec:
    if prepared.blocks.softmax:
        return replace(spec, dtype="float32", quantization=None)
    last = prepared.integers.layers[-1]
    dtype = "int32" if prepared.network.layers[-1].width == 32 else "int8"
    if last.rest is not None:
        points = tuple(int(-p) for p in np.rint(last.rest / last.scale))
        return replace(spec, dtype=dtype, quantization=Quantization((last.scale,) * len(points), points, 1))
    zero = -round(prepared.blocks.offset / last.scale)
    return replace(spec, dtype=dtype, quantization=Quantization((last.scale,), (zero,)))
