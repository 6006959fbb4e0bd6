"""A compiled TFLite file behind the model interface: TFLite-Micro runs it and calls the NPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anynpu.artifact import Artifact
from anynpu.errors import ConfigError, IntegrityError, Unsupported
from anynpu.firmware.generator.source import comment, number, quoted
from anynpu.firmware.project import templates
from anynpu.firmware.project.arena import measure
from anynpu.firmware.project.boards import Board
from anynpu.firmware.project.carray import byte_rows
from anynpu.firmware.project.model import HEADER, Model, dimensions
from anynpu.firmware.project.operators import resolver_calls
from anynpu.runtime.device.elf import Footprint, Section
from anynpu.runtime.tflite_file import border_names, read_model
from anynpu.targets.flatbuffer import TfliteOperator, operators
from anynpu.tensors import TensorSpec

NPU_OPERATOR = {"ethos-u": "ethos-u", "neutron": "NeutronGraph"}
COMPILER = {"ethos-u": "Vela", "neutron": "NXP's neutron-converter"}
TYPES = {
    "int8": "ANYNPU_INT8",
    "uint8": "ANYNPU_UINT8",
    "int16": "ANYNPU_INT16",
    "int32": "ANYNPU_INT32",
    "int64": "ANYNPU_INT64",
    "float32": "ANYNPU_FLOAT32",
    "bool": "ANYNPU_BOOL",
}
NEUTRON_MARGIN = 16 * 1024


def interpreted(artifact: Artifact, board: Board, compiled: Path | None) -> Model:
    """Returns the model for a board that runs TFLite-Micro with its NPU; an un-compiled one raises Unsupported."""
    manifest = artifact.manifest
    file = artifact.main if compiled is None else compiled
    npu_operator = NPU_OPERATOR[board.engine]
    # A file that the user had converted does not say for which chip.
    compiled_with = check_compiled(artifact, board) if compiled is None else compiled_operators(file, board)
    order = border_names(read_model(file.read_bytes(), str(file)))
    promised = (manifest.inputs, manifest.outputs)
    if [sorted(names) for names in order] != [sorted(s.name for s in specs) for specs in promised]:
        raise ConfigError(f"{file}: has other inputs or outputs than the artifact: it is another network")
    check_tensors(file, compiled_with, manifest.inputs, manifest.outputs)
    margin = NEUTRON_MARGIN if board.engine == "neutron" else 0
    arena = measure(file, npu_operator) + margin
    planned = manifest.estimates.sram_bytes if manifest.estimates and board.engine == "ethos-u" else None
    name = model_name(artifact)
    how = arena_words(board, planned, arena, margin)
    files = {
        HEADER: header(name, artifact, arena, how).encode(),
        "anynpu_model.cc": source(
            resolver_calls(compiled_with), board, manifest.inputs, manifest.outputs, order
        ).encode(),
        "anynpu_model_data.h": templates.folder("tflm")["anynpu_model_data.h"].encode(),
        "anynpu_model_data.c": data_source(file).encode(),
    }
    taken = memory(file.stat().st_size, compiled_with, arena)
    notes = (how, *release_words(board, str(manifest.details.get("converter", ""))))
    return Model(name, manifest.fingerprint, manifest.inputs, manifest.outputs, arena, files, taken, notes)


def check_compiled(artifact: Artifact, board: Board) -> Sequence[TfliteOperator]:
    """Returns the operators of an artifact that is compiled for the board's NPU; any other one raises Unsupported."""
    compiled = compiled_operators(artifact.main, board)
    made_for = artifact.manifest.details.get("accelerator", "") or "an unknown NPU"
    if board.accelerator and made_for != board.accelerator:
        what = f"{artifact.main} is compiled for {made_for}"
        raise Unsupported(f"board {board.name} has an {board.accelerator}, and {what}")
    return compiled


def release_words(board: Board, converter: str) -> tuple[str, ...]:
    """Returns which release of the NPU's libraries the compiled file needs, where that matters."""
    if board.engine != "neutron":
        return ()
    version = f"neutron-converter {converter}" if converter else "the neutron-converter that made the model"
    return (f"link the Neutron driver and firmware of the same eIQ release as {version}: others hang or refuse it",)


def memory(file_bytes: int, operators: Sequence[TfliteOperator], arena: int) -> Footprint:
    """Returns what the compiled file takes of flash, with the parts of it that are known, and the arena."""
    # Vela's operator reads its commands first, then weights in one tensor that several of them may share.
    units = [op.inputs for op in operators if op.custom_code == NPU_OPERATOR["ethos-u"]]
    parts = {}
    for place, name in enumerate(("NPU command stream", "NPU weights")):
        read = [inputs[place] for inputs in units if place < len(inputs)]
        parts[name] = sum({t.name: t.bytes for t in read if t is not None and t.constant}.values())
    rest = Section(".rodata TFLite file" + (", the rest" if units else ""), file_bytes - sum(parts.values()), 0)
    sections = [Section(f".rodata {name}", size, 0) for name, size in parts.items() if size]
    return Footprint((*sections, rest, Section(".bss TFLite-Micro arena", 0, arena)))


def compiled_operators(file: Path, board: Board) -> Sequence[TfliteOperator]:
    """Returns the operators of a file that holds work for the board's NPU; any other file raises Unsupported."""
    compiled = operators(file) if file.suffix == ".tflite" else ()
    if any(op.custom_code == NPU_OPERATOR[board.engine] for op in compiled):
        return compiled
    message = f"is not compiled by {COMPILER[board.engine]}: none of it would run on the NPU of board {board.name}"
    hint = "build for the chip itself, such as -t hxwe2 or -t ethos-u55-128, and name that folder"
    if board.engine == "neutron":
        hint = f"build for it with -t {board.name}, or run neutron-converter on the model.tflite of -t tflm: --compiled"
    raise Unsupported(f"{file}: {message}", hint=hint)


def model_name(artifact: Artifact) -> str:
    """Returns the name that the build gave the model, or one from its fingerprint."""
    name = artifact.manifest.details.get("name", "")
    return str(name) or f"model-{artifact.manifest.fingerprint[:8]}"


def check_tensors(
    file: Path, operators: Sequence[TfliteOperator], inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> None:
    """Raises unless inputs and outputs of the file are those that the artifact promises."""
    tensors = {t.name: t for op in operators for t in op.tensors}
    for spec in (*inputs, *outputs):
        tensor = tensors.get(spec.name)
        if tensor is None:  # an input that no operator reads
            continue
        if tensor.shape != spec.shape or tensor.dtype != spec.dtype:
            shown = f"{tensor.dtype} {list(tensor.shape)}, not {spec.dtype} {list(spec.shape)}"
            raise IntegrityError(f"{file}: tensor {spec.name} is {shown} as the manifest says")
        quantization = spec.quantization
        if quantization is not None and (tensor.scale, tensor.zero_point) != (
            quantization.scale,
            quantization.zero_point,
        ):
            raise IntegrityError(f"{file}: tensor {spec.name} is quantised otherwise than the manifest says")


def arena_words(board: Board, planned: int | None, arena: int, margin: int) -> str:
    """Returns how the size of the arena was obtained."""
    words = f"arena of {arena} bytes: the smallest in which TFLite-Micro starts this file on a 64-bit host"
    if planned is not None:
        words += f" ({COMPILER[board.engine]} plans {planned} of them, the rest is TFLite-Micro's bookkeeping)"
    if margin:
        words += f", and {margin} bytes for what the NPU's kernel asks for on the chip, which is not known here"
    return words


def header(name: str, artifact: Artifact, arena: int, how: str) -> str:
    """Returns the header with the same interface as that of generated C."""
    manifest = artifact.manifest
    macs = manifest.estimates.macs if manifest.estimates else None
    tensors = [*_macros("INPUT", manifest.inputs), *_macros("OUTPUT", manifest.outputs)]
    values = {
        "NAME": quoted(name),
        "FINGERPRINT": quoted(manifest.fingerprint),
        "HOW": how,
        "ARENA": arena,
        "INPUTS": len(manifest.inputs),
        "OUTPUTS": len(manifest.outputs),
        "MACS": macs or 0,
        "RANK": max(4, *(len(s.shape) for s in (*manifest.inputs, *manifest.outputs))),
        "TENSORS": "\n".join(tensors),
        "TYPES": ", ".join(TYPES.values()),
    }
    return templates.fill(templates.folder("tflm")[HEADER], values)


def _macros(kind: str, specs: Sequence[TensorSpec]) -> list[str]:
    lines = []
    for index, spec in enumerate(specs):
        values: dict[str, object] = {**dimensions(spec), "ELEMENTS": spec.size}
        if spec.quantization is not None:
            values |= {
                "SCALE": number(spec.quantization.scale[0]),
                "ZERO_POINT": f"({spec.quantization.zero_point[0]})",
            }
        lines += [
            f"/* {comment(spec.name)}: {spec.dtype} {'x'.join(map(str, spec.shape))} {spec.layout}".rstrip() + " */"
        ]
        lines += [f"#define ANYNPU_{kind}_{index}_{word} {value}" for word, value in values.items()]
    return lines


def source(
    calls: Sequence[str],
    board: Board,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    order: tuple[list[str], list[str]],
) -> str:
    """Returns the C++ file that runs the model with TFLite-Micro; `order` is that of the file's inputs and outputs."""
    extra = '#include "tensorflow/lite/micro/kernels/neutron/neutron.h"\n' if board.engine == "neutron" else ""
    values = {
        "INCLUDES": extra,
        "COUNT": len(calls),
        "ADDS": "\n".join(f"    if (resolver->{call} != kTfLiteOk) {{\n        return 1;\n    }}" for call in calls),
        "INPUTS": _rows(inputs),
        "OUTPUTS": _rows(outputs),
        "INPUT_ORDER": ", ".join(f"{order[0].index(spec.name)}u" for spec in inputs),
        "OUTPUT_ORDER": ", ".join(f"{order[1].index(spec.name)}u" for spec in outputs),
    }
    return templates.fill(templates.folder("tflm")["anynpu_model.cc"], values)


def _rows(specs: Sequence[TensorSpec]) -> str:
    rows = []
    for spec in specs:
        shape = "{" + ", ".join(map(str, spec.shape)) + "}"
        scale, zero = (spec.quantization.scale[0], spec.quantization.zero_point[0]) if spec.quantization else (0.0, 0)
        rows.append(
            f"    {{{quoted(spec.name)}, nullptr, {spec.nbytes}u, {spec.size}u, {TYPES[spec.dtype]}, "
            f"{len(spec.shape)}, {shape}, {number(scale)}, {zero}}},"
        )
    return "\n".join(rows)


def data_source(file: Path) -> str:
    """Returns the compiled file as an array that TFLite-Micro and the NPU may read in place."""
    data = file.read_bytes()
    text = '#include "anynpu_model_data.h"\n\n'
    text += f"const uint32_t anynpu_model_data_bytes = {len(data)}u;\n"
    text += f"const uint8_t anynpu_model_data[{len(data)}] __attribute__((aligned(16))) = {{\n"
    return text + byte_rows(data) + "};\n"
