"""A file of Vela as plain C: each NPU subgraph is a call of the driver, what is left to the CPU is generated C."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from anynpu.artifact import Artifact
from anynpu.errors import ConfigError, Finding
from anynpu.firmware.generator.generate import layers_of
from anynpu.firmware.generator.graph import Graph, read_graph
from anynpu.firmware.generator.layer import Layer
from anynpu.firmware.generator.movement import copy, item_of, whole
from anynpu.firmware.generator.planner import Plan
from anynpu.firmware.generator.source import Names, Writer, comment, layouts_of
from anynpu.firmware.project import templates
from anynpu.firmware.project.carray import byte_rows
from anynpu.firmware.project.model import Model
from anynpu.firmware.project.tflm import check_tensors, model_name
from anynpu.firmware.project.working import working_bytes
from anynpu.runtime import tflite_file
from anynpu.runtime.device.elf import Footprint, Section
from anynpu.runtime.ethos_u.model import Model as VelaModel
from anynpu.runtime.ethos_u.model import NpuCall, Tensor, read_model
from anynpu.targets.flatbuffer import operators

NPU = "ethos-u"
ALIGNMENT = 16
"""What Vela and the NPU align tensors to."""


@dataclass(frozen=True)
class Payload:
    """What one NPU call hands to the driver, by the names of the arrays."""

    number: int
    commands: bytes
    constants: str
    constants_bytes: int
    call: NpuCall

    @property
    def own_fast_bytes(self) -> int:
        """The memory that the NPU alone uses, where it is not a part of the arena."""
        return 0 if self.call.scratch_fast.index == self.call.scratch.index else self.call.scratch_fast.nbytes


@dataclass(frozen=True)
class VelaWriter(Writer):
    """The C files of a model whose layers are partly calls of the NPU."""

    payloads: dict[int, Payload]
    """By the index of the operator."""
    macs: int
    variables: tuple[Tensor, ...]
    """What an inference may change for itself alone: each one begins with the same values."""

    def more_includes(self) -> list[str]:
        return [
            '#include "anynpu_npu_data.h"',
            '#include "ethosu_driver.h"',
            "",
            "#include <stddef.h>",
            "#include <string.h>",
            "",
            '/* Where the arena is linked, such as __attribute__((section(".bss.npu"))): in reach of the NPU. */',
            "#ifndef ANYNPU_ARENA_ATTRIBUTE",
            "#define ANYNPU_ARENA_ATTRIBUTE",
            "#endif",
        ]

    def arena_note(self) -> str:
        return f"{self.plan.bytes} bytes as Vela laid them out, and what the CPU needs besides."

    def arena_attribute(self) -> str:
        return f" __attribute__((aligned({ALIGNMENT}))) ANYNPU_ARENA_ATTRIBUTE"

    def parameters(self) -> list[str]:
        lines = templates.folder("npu-model")["run_npu.c"].splitlines()
        for payload in self.payloads.values():
            call, n = payload.call, payload.number
            lines += [
                "",
                f"static const npu_call npu_{n} = {{",
                f"    anynpu_npu_{n}_commands, {len(payload.commands)},",
                f"    {payload.constants}, {payload.constants_bytes}u,",
                f"    {max(call.scratch.offset, 0)}u, {call.scratch.nbytes}u, {payload.own_fast_bytes}u,",
                "};",
            ]
        return [*lines, "", *super().parameters()]

    def layer_function(self, step: int, layer: Layer) -> list[str]:
        payload = self.payloads.get(layer.node.index)
        begin = [
            f"    memset(AT(void, {self.plan.tensors[variable.index]}), {variable.initial}, {variable.nbytes});"
            for variable in (() if step else self.variables)
        ]
        if payload is None:
            return [*begin, *super().layer_function(step, layer)]
        operations = len(payload.call.stream.operations)
        return [
            *begin,
            f"    /* {layer.node.index:02d} NPU: {operations} operations for {comment(payload.call.stream.title)} */",
            f"    if (run_npu(&npu_{payload.number}) != 0) {{",
            "        return 1;",
            "    }",
            *(
                f"    TRACE({n}, AT(void, {self.plan.tensors[n]}), {self.graph.tensors[n].bytes});"
                for n in layer.node.outputs
            ),
        ]

    def total_macs(self) -> int:
        return self.macs

    def feature_macros(self) -> list[str]:
        return ["/* The board says what executes the NPU's part. */", "#define ANYNPU_HAS_NPU 1"]


def direct(artifact: Artifact) -> Model | list[Finding]:
    """Returns the model of a Vela file as plain C, or why operators that are left to the CPU have none."""
    manifest, file = artifact.manifest, artifact.main
    order = tflite_file.border_names(tflite_file.read_model(file.read_bytes(), str(file)))
    promised = (manifest.inputs, manifest.outputs)
    if [sorted(names) for names in order] != [sorted(s.name for s in specs) for specs in promised]:
        raise ConfigError(f"{file}: has other inputs or outputs than the artifact: it is another network")
    compiled = operators(file)
    check_tensors(file, compiled, manifest.inputs, manifest.outputs)
    touched = {tensor.name for op in compiled for tensor in op.tensors}
    if untouched := [s.name for s in (*manifest.inputs, *manifest.outputs) if s.name not in touched]:
        return [Finding("border", "an input or output that no operator touches", name) for name in untouched]
    graph, vela = read_graph(file), read_model(file)
    places = [{graph.tensors[n].name: n for n in numbers} for numbers in (graph.inputs, graph.outputs)]
    graph = replace(
        graph,
        inputs=tuple(places[0][spec.name] for spec in manifest.inputs),
        outputs=tuple(places[1][spec.name] for spec in manifest.outputs),
    )
    on_cpu, refused = layers_of(replace(graph, nodes=tuple(n for n in graph.nodes if n.kind != NPU)))
    if refused:
        return refused
    layers = _in_order(graph, on_cpu)
    plan = _plan(graph, layers, vela)
    payloads: dict[int, Payload] = {}
    nodes = [node for node in graph.nodes if node.kind == NPU]
    calls = [call for call in vela.calls if isinstance(call, NpuCall)]
    for number, (node, call) in enumerate(zip(nodes, calls, strict=True)):
        commands, constants = graph.tensors[node.inputs[0]], graph.tensors[node.inputs[1]]
        assert commands.data is not None  # read_model has read the stream in it
        symbol = f"anynpu_npu_constants_{node.inputs[1]}" if constants.data is not None else "NULL"
        payloads[node.index] = Payload(number, commands.data.tobytes(), symbol, len(call.read_only), call)
    return _model(artifact, graph, on_cpu, layers, plan, payloads, vela)


def _model(
    artifact: Artifact,
    graph: Graph,
    on_cpu: Sequence[Layer],
    layers: Sequence[Layer],
    plan: Plan,
    by_index: dict[int, Payload],
    vela: VelaModel,
) -> Model:
    manifest, name, payloads = artifact.manifest, model_name(artifact), list(by_index.values())
    macs = (manifest.estimates.macs if manifest.estimates else 0) or 0
    variables = tuple(t for t in vela.tensors if t.initial is not None and t.index in plan.tensors)
    names = Names(name, manifest.fingerprint, layouts=layouts_of(manifest.inputs, manifest.outputs))
    writer = VelaWriter(graph, layers, plan, names, by_index, macs, variables)
    kinds = ", ".join(sorted({layer.node.kind for layer in on_cpu}))
    besides = f"; left to the CPU, as generated C: {kinds}" if on_cpu else ""
    streams = "1 command stream" if len(payloads) == 1 else f"{len(payloads)} command streams"
    constants = {p.constants: p.constants_bytes for p in payloads}
    sections = [
        Section(".rodata NPU command stream", sum(len(p.commands) for p in payloads), 0),
        Section(".rodata NPU weights", sum(constants.values()), 0),
        Section(".rodata constants of the CPU's operators", sum(c.bytes for c, _ in writer.constants().values()), 0),
        Section(".bss arena", 0, writer.plan.bytes),
        Section(".bss fast memory of the NPU", 0, max((p.own_fast_bytes for p in payloads), default=0)),
    ]
    return Model(
        name,
        manifest.fingerprint,
        manifest.inputs,
        manifest.outputs,
        plan.bytes,
        {n: text.encode() for n, text in {**writer.files(), **_data(payloads)}.items()},
        Footprint(tuple(s for s in sections if s.flash_bytes or s.ram_bytes)),
        (
            f"{streams} for the NPU, called through Arm's driver without TFLite-Micro{besides}",
            f"arena of {plan.bytes} bytes: Vela's memory plan"
            + (" and what the CPU's operators need" if on_cpu else ""),
        ),
        {n: text.encode() for n, text in _reference(payloads).items()},
        max((p.own_fast_bytes for p in payloads), default=0),
    )


def _in_order(graph: Graph, of_cpu: Sequence[Layer]) -> list[Layer]:
    """Returns a layer for every operator; the memory plan is Vela's, so what only renames has to copy."""
    on_cpu = {layer.node.index: layer for layer in of_cpu}
    layers = []
    for node in graph.nodes:
        layer = on_cpu.get(node.index, Layer(node))
        if layer.alias is not None:
            tensor = graph.tensors[layer.alias]
            box = whole(tensor.shape)
            call = copy(layer.alias, node.outputs[0], tensor.shape, box, box, item_of(tensor))
            layer = Layer(node, (call,), note="same bytes")
        layers.append(layer)
    return layers


def _plan(graph: Graph, layers: Sequence[Layer], vela: VelaModel) -> Plan:
    """Returns Vela's memory plan, with what it does not place and the CPU's scratch behind it."""
    total = _aligned(vela.arena_bytes)
    tensors = {}
    memories = {n for node in graph.nodes if node.kind == NPU for n in node.inputs[:4]}
    for number in graph.tensors.keys() - memories:
        tensor = vela.tensors[number]
        if tensor.constant is not None:
            continue
        tensors[number] = tensor.offset
        if tensor.offset < 0:
            tensors[number], total = total, total + _aligned(tensor.nbytes)
    scratch = max((layer.scratch for layer in layers), default=0)
    steps = {step: total for step, layer in enumerate(layers) if layer.scratch}
    total += _aligned(scratch)
    return Plan(tensors, steps, total, total, 0, 0)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _data(payloads: Sequence[Payload]) -> dict[str, str]:
    """Returns the command streams and constants as arrays that the NPU may read in place."""
    arrays = {f"anynpu_npu_{p.number}_commands": p.commands for p in payloads}
    arrays |= {p.constants: p.call.read_only.tobytes() for p in payloads if p.constants != "NULL"}
    mark = f"__attribute__((aligned({ALIGNMENT})))"
    definitions = [f"const uint8_t {n}[{len(d)}] {mark} = {{\n{byte_rows(d)}}};\n" for n, d in arrays.items()]
    lines = [f"extern const uint8_t {name}[{len(data)}];" for name, data in arrays.items()]
    header = templates.fill(templates.folder("npu-model")["anynpu_npu_data.h"], {"ARRAYS": "\n".join(lines)})
    return {
        "anynpu_npu_data.h": header,
        "anynpu_npu_data.c": '#include "anynpu_npu_data.h"\n\n' + "\n".join(definitions),
    }


def _reference(payloads: Sequence[Payload]) -> dict[str, str]:
    """Returns the C that executes streams on the processor, with the memory that these streams need."""
    files = {Path(name).name: text for name, text in templates.folder("ethos-u-reference").items()}
    sizes = {
        "WORKING": max(working_bytes(p.call.stream) for p in payloads),
        "FAST": max(p.own_fast_bytes for p in payloads),
    }
    return files | {n: templates.fill(text, sizes) for n, text in files.items() if n == "ethosu_reference_bytes.h"}
