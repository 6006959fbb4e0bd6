"""The C files: text from layers, a layout and constants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anynpu.firmware.generator import kernels
from anynpu.firmware.generator.cost import expected
from anynpu.firmware.generator.graph import Graph, scale_of, zero_of
from anynpu.firmware.generator.layer import MAX_RANK, Constant, Layer, Scratch, Tensor, Value
from anynpu.firmware.generator.planner import Plan
from anynpu.firmware.generator.types import C_TYPES
from anynpu.firmware.generator.variants import PLAIN, Core
from anynpu.targets.flatbuffer import TfliteTensor
from anynpu.tensors import TensorSpec

WIDTH = 116
TYPE_NAMES = ("INT8", "UINT8", "INT16", "INT32", "INT64", "FLOAT32", "BOOL")


@dataclass(frozen=True)
class Names:
    """What the user may choose about the text: names, and attributes for where things are linked."""

    model: str
    fingerprint: str
    arena_section: str = ""
    weights_section: str = ""
    core: Core = PLAIN
    layouts: tuple[tuple[str, ...], ...] = ((), ())
    """The order of the axes of each input and each output; where none is known, channels are last."""


def layouts_of(*borders: Sequence[TensorSpec]) -> tuple[tuple[str, ...], ...]:
    """Returns the order of the axes of inputs and outputs."""
    return tuple(tuple(spec.layout for spec in specs) for specs in borders)


def dimensions(shape: Sequence[int], layout: str) -> dict[str, int]:
    """Returns height, width and channels of an image tensor by the names of the macros."""
    if len(shape) != 4:
        return {}
    words = {"HEIGHT": "H", "WIDTH": "W", "CHANNELS": "C"}
    known = layout or "NHWC"
    return {word: shape[known.index(axis)] for word, axis in words.items() if axis in known}


def comment(text: str) -> str:
    """Returns text that can stand in a C comment."""
    plain = "".join(c if c.isprintable() and c.isascii() else "?" for c in text)
    return plain.replace("\\", "/").replace("*/", "* /").replace("/*", "/ *").replace("??", "? ?")


def quoted(text: str) -> str:
    """Returns text as a C string."""
    escaped = "".join(
        chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}" for b in text.encode("utf-8", "replace")
    )
    return f'"{escaped}"'


def number(value: float) -> str:
    """Returns a float32 as a C constant that reads back as the same bits."""
    text = str(np.float32(value))
    return (text if any(c in text for c in ".en") else text + ".0") + "f"


def integer(value: int) -> str:
    """Returns an integer as a C constant."""
    return f"{value}LL" if abs(value) > 0x7FFFFFFF else str(value)


def shape_text(tensor: TfliteTensor) -> str:
    """Returns "int8 1x32x32x3"."""
    return f"{tensor.dtype} " + ("x".join(map(str, tensor.shape)) or "scalar")


def wrapped(items: Iterable[str], indent: str = "    ") -> str:
    """Returns items separated by commas in lines of limited width."""
    lines, line = [], indent
    for item in items:
        if len(line) + len(item) + 2 > WIDTH and line.strip():
            lines.append(line.rstrip())
            line = indent
        line += item + ", "
    return "\n".join([*lines, line.rstrip()])


def array(constant: Constant, symbol: str) -> str:
    """Returns the definition of a constant array."""
    values = constant.values
    if values.ndim == 2:
        items = ["{" + ", ".join(integer(int(v)) for v in row) + "}" for row in values]
    elif values.dtype.kind == "f":
        items = [number(float(v)) for v in values.reshape(-1)]
    else:
        items = [integer(int(v)) for v in values.reshape(-1).tolist()]
    return f"const {constant.ctype} {symbol}[{len(items)}] ANYNPU_WEIGHTS = {{\n{wrapped(items)}\n}};\n"


@dataclass(frozen=True)
class Writer:
    """Turns a planned model into files."""

    graph: Graph
    layers: Sequence[Layer]
    plan: Plan
    names: Names

    def files(self) -> dict[str, str]:
        """Returns the text of every file by its name."""
        parts = kernels.needed(call.kernel for layer in self.layers for call in layer.calls)
        constants = self.constants()
        includes = "".join(f'#include "{name}"\n' for name in ("anynpu_kernels.h", *kernels.own_headers(parts)))
        title = self._title("Kernels that this model needs")
        section = self.names.weights_section
        mark = f' __attribute__((section("{section}")))' if section else ""
        blocks = [f"/* {comment(about)} */\n{array(c, name)}" for name, (c, about) in constants.items()]
        head = [self._title("Constants"), '#include "anynpu_weights.h"', "", f"#define ANYNPU_WEIGHTS{mark}", ""]
        weights = [*head, *(blocks or ["/* This model has none. */", "typedef int anynpu_no_weights;", ""])]
        declared = ['#include "anynpu_kernels.h"', ""]
        for name, (constant, _) in constants.items():
            length = int(constant.values.shape[0] if constant.values.ndim == 2 else constant.values.size)
            declared.append(f"extern const {constant.ctype} {name}[{length}];")
        return {
            "anynpu_model.h": self._model_header(),
            "anynpu_model.c": self._model(),
            "anynpu_weights.h": _guarded("ANYNPU_WEIGHTS_H", self._title("Constants"), declared),
            "anynpu_weights.c": "\n".join(weights),
            "anynpu_kernels.h": kernels_header(parts),
            "anynpu_kernels.c": f"{title}\n{includes}\n#include <string.h>\n\n{kernels.body(parts)}",
            **kernels.own_headers(parts),
        }

    def constants(self) -> dict[str, tuple[Constant, str]]:
        """Returns every array in flash with a comment, by its symbol."""
        arrays: dict[str, tuple[Constant, str]] = {}
        for layer in self.layers:
            for place, call in enumerate(layer.calls):
                for key, value in call.params.items():
                    if isinstance(value, Constant):
                        arrays[self._symbol(layer, place, key)] = (value, f"{layer.node.kind} {layer.node.name}")
                for argument in call.arguments:
                    if isinstance(argument, Tensor) and self._tensor(argument.number).constant:
                        number = self._source(argument.number)
                        tensor = self.graph.tensors[number]
                        assert tensor.data is not None
                        constant = Constant("", C_TYPES[tensor.dtype], tensor.data, tensor.data.itemsize)
                        arrays[f"anynpu_tensor_{number}"] = (constant, f"{tensor.name}: {shape_text(tensor)}")
        return arrays

    def _source(self, number: int) -> int:
        """Returns the tensor that holds the bytes: the input of operators that only rename."""
        for layer in self.layers:
            if layer.alias is not None and layer.node.outputs[0] == number and number not in self.plan.tensors:
                return self._source(layer.alias)
        return number

    def _tensor(self, number: int) -> TfliteTensor:
        return self.graph.tensors[self._source(number)]

    def _symbol(self, layer: Layer, place: int, key: str) -> str:
        call = f"_{place}" if len(layer.calls) > 1 else ""
        return f"anynpu_{layer.node.index:02d}{call}_{key}"

    def _title(self, what: str) -> str:
        return f"/* {what}: {comment(self.names.model)}. Generated; do not edit. */"

    def _model_header(self) -> str:
        g = self.graph
        lines = [
            "#include <stdint.h>",
            "",
            f"#define ANYNPU_MODEL_NAME {quoted(self.names.model)}",
            f"#define ANYNPU_MODEL_FINGERPRINT {quoted(self.names.fingerprint)}",
            f"#define ANYNPU_MODEL_MACS {self.total_macs()}",
            f"#define ANYNPU_ARENA_BYTES {self.plan.bytes}",
            f"#define ANYNPU_NUM_INPUTS {len(g.inputs)}",
            f"#define ANYNPU_NUM_OUTPUTS {len(g.outputs)}",
            f"#define ANYNPU_MAX_RANK {MAX_RANK}",
            *self.feature_macros(),
            "",
        ]
        borders = zip(("INPUT", "OUTPUT"), (g.inputs, g.outputs), self.names.layouts, strict=True)
        for role, numbers, layouts in borders:
            for place, tensor_number in enumerate(numbers):
                tensor, prefix = g.tensors[tensor_number], f"ANYNPU_{role}_{place}"
                lines.append(f"/* {comment(tensor.name)}: {shape_text(tensor)} */")
                sizes = dimensions(tensor.shape, layouts[place] if layouts else "")
                lines += [f"#define {prefix}_{name} {size}" for name, size in sizes.items()]
                lines.append(f"#define {prefix}_ELEMENTS {int(np.prod(tensor.shape))}")
                if tensor.scale:
                    lines.append(f"#define {prefix}_SCALE {number(scale_of(tensor))}")
                    lines.append(f"#define {prefix}_ZERO_POINT ({zero_of(tensor)})")
                lines.append("")
        return _guarded("ANYNPU_MODEL_H", self._title("Model"), [*lines, *_API])

    def _model(self) -> str:
        plan = self.plan
        size = max(plan.bytes, 1)
        head = [
            self._title("Model"),
            '#include "anynpu_model.h"',
            '#include "anynpu_kernels.h"',
            '#include "anynpu_weights.h"',
            *self.more_includes(),
            "",
            f"/* {self.arena_note()} */",
            "static union {",
            f"    uint8_t bytes[{size}];",
            "    int64_t alignment;",
            f"}} arena{self.arena_attribute()};",
            "",
            "#define AT(type, offset) ((type *)(void *)(arena.bytes + (offset)))",
            "",
            *_TRACE,
            "",
        ]
        functions = [
            "int anynpu_init(void)",
            "{",
            "    return 0;",
            "}",
            "",
            "const anynpu_tensor *anynpu_input(int i)",
            "{",
            "    return i >= 0 && i < ANYNPU_NUM_INPUTS ? &inputs[i] : 0;",
            "}",
            "",
            "const anynpu_tensor *anynpu_output(int i)",
            "{",
            "    return i >= 0 && i < ANYNPU_NUM_OUTPUTS ? &outputs[i] : 0;",
            "}",
            "",
            "int anynpu_invoke(void)",
            "{",
        ]
        for step, layer in enumerate(self.layers):
            functions += self.layer_function(step, layer)
        functions += ["    return 0;", "}", ""]
        return "\n".join([*head, *self.parameters(), *self._descriptors(), *functions])

    def total_macs(self) -> int:
        """Returns the multiply-accumulates of one inference."""
        return sum(n.macs for n in self.graph.nodes)

    def feature_macros(self) -> list[str]:
        """Returns macros that tell the application what else the model has."""
        return []

    def more_includes(self) -> list[str]:
        """Returns further headers that the model needs."""
        return []

    def arena_note(self) -> str:
        """Returns the sentence above the arena: how large it is, and why."""
        plan = self.plan
        peak = self.graph.nodes[plan.peak_step].index if self.graph.nodes else 0
        return f"{plan.bytes} bytes; tensors need {plan.bound} at once, most of them in layer {peak:02d}."

    def arena_attribute(self) -> str:
        """Returns what puts the arena into a section, where one is named."""
        section = self.names.arena_section
        return f' __attribute__((section("{section}")))' if section else ""

    def parameters(self) -> list[str]:
        """Returns the constants of the layers."""
        lines = []
        for layer in self.layers:
            for place, call in enumerate(layer.calls):
                name = self._symbol(layer, place, "").removeprefix("anynpu").rstrip("_")
                lines += [f"static const anynpu_{call.kernel}_params layer{name} = {{"]
                lines += [f"    .{k} = {self._value(layer, place, k, v)}," for k, v in call.params.items()]
                lines += ["};", ""]
        return lines

    def _value(self, layer: Layer, place: int, key: str, value: Value) -> str:
        if isinstance(value, Constant):
            return self._symbol(layer, place, key)
        if isinstance(value, Mapping):
            inner = wrapped((f".{k} = {self._value(layer, place, k, v)}" for k, v in value.items()), " " * 8)
            return f"{{\n{inner}\n    }}"
        if isinstance(value, Sequence):
            return "{" + ", ".join(integer(int(v)) for v in value) + "}"
        return number(value) if isinstance(value, float) else integer(value)

    def _descriptors(self) -> list[str]:
        lines = []
        for role, numbers in (("inputs", self.graph.inputs), ("outputs", self.graph.outputs)):
            rows = []
            for tensor_number in numbers:
                tensor = self.graph.tensors[tensor_number]
                size = int(np.prod(tensor.shape))
                scale = number(scale_of(tensor)) if tensor.scale else "0.0f"
                dims = ", ".join(map(str, tensor.shape)) or "1"
                where = f"{quoted(tensor.name)}, arena.bytes + {self.plan.tensors[tensor_number]}, {tensor.bytes}"
                form = f"ANYNPU_{tensor.dtype.upper()}, {len(tensor.shape)}, {{{dims}}}, {scale}, {zero_of(tensor)}"
                rows.append(f"    {{{where}, {size}, {form}}}")
            lines += [f"static const anynpu_tensor {role}[{len(numbers)}] = {{\n" + ",\n".join(rows) + ",\n};", ""]
        return lines

    def layer_function(self, step: int, layer: Layer) -> list[str]:
        """Returns the function of one layer."""
        node, tensors = layer.node, self.graph.tensors
        read = ", ".join(shape_text(tensors[n]) for n in node.inputs if n >= 0 and not tensors[n].constant)
        outputs = ", ".join(shape_text(tensors[n]) for n in node.outputs)
        note = f" ({layer.note})" if layer.note else " (with the PAD before it)" if node.pads else ""
        count, plain = expected(layer), layer.plain_instructions
        if layer.variant != "plain" and count is not None:
            note += f"; {layer.variant}, {count} instructions expected" + (f", {plain} in plain C" if plain else "")
        lines = [f"    /* {node.index:02d} {node.kind} {comment(node.name)}: {read} -> {outputs}{note} */"]
        for place, call in enumerate(layer.calls):
            name = self._symbol(layer, place, "").removeprefix("anynpu").rstrip("_")
            arguments = [f"&layer{name}"] if call.params else ["0"]
            arguments += [self._argument(step, layer, a) for a in call.arguments]
            lines.append(f"    anynpu_{call.kernel}({', '.join(arguments)});")
        lines += [
            f"    TRACE({n}, AT(void, {self.plan.tensors[n]}), {tensors[n].bytes});"
            for n in node.outputs
            if n in self.plan.tensors
        ]
        return lines

    def _argument(self, step: int, layer: Layer, argument: Tensor | Scratch) -> str:
        if isinstance(argument, Scratch):
            return f"AT({argument.ctype}, {self.plan.scratch[step]})" if layer.scratch else "0"
        if self._tensor(argument.number).constant:
            same = argument.ctype in ("void", C_TYPES[self._tensor(argument.number).dtype])
            cast = "" if same else f"(const {argument.ctype} *)"
            return f"{cast}anynpu_tensor_{self._source(argument.number)}"
        return f"AT({argument.ctype}, {self.plan.tensors[argument.number]})"


def _guarded(guard: str, title: str, lines: Sequence[str]) -> str:
    start = ["#ifdef __cplusplus", 'extern "C" {', "#endif", ""]
    stop = ["", "#ifdef __cplusplus", "}", "#endif", ""]
    return "\n".join(
        [title, f"#ifndef {guard}", f"#define {guard}", "", *start, *lines, *stop, f"#endif /* {guard} */", ""]
    )


def kernels_header(parts: Sequence[str]) -> str:
    """Returns the header that declares kernels and their parts."""
    lines = ["#include <stdint.h>", "", f"#define ANYNPU_AXES {MAX_RANK}", "", kernels.header(parts)]
    return _guarded("ANYNPU_KERNELS_H", "/* Kernels that this model needs. */", lines)


_TRACE = [
    "/* Define ANYNPU_TRACE as the name of a function to see every tensor as it is made. */",
    "#ifdef ANYNPU_TRACE",
    "void ANYNPU_TRACE(int32_t tensor, const void *data, uint32_t bytes);",
    "#define TRACE(tensor, data, bytes) ANYNPU_TRACE(tensor, data, bytes)",
    "#else",
    "#define TRACE(tensor, data, bytes)",
    "#endif",
]

_API = [
    "typedef enum { " + ", ".join(f"ANYNPU_{name}" for name in TYPE_NAMES) + " } anynpu_type;",
    "",
    "/* real = (stored - zero_point) * scale; scale is 0 where nothing is quantised. */",
    "typedef struct {",
    "    const char *name;",
    "    void *data;",
    "    uint32_t bytes;",
    "    uint32_t elements;",
    "    anynpu_type type;",
    "    uint8_t rank;",
    "    int32_t shape[ANYNPU_MAX_RANK];",
    "    float scale;",
    "    int32_t zero_point;",
    "} anynpu_tensor;",
    "",
    "/* 0 on success. */",
    "int anynpu_init(void);",
    "",
    "/* The i-th input and output, or a null pointer. */",
    "const anynpu_tensor *anynpu_input(int i);",
    "const anynpu_tensor *anynpu_output(int i);",
    "",
    "/* Runs the model once; 0 on success. What the inputs hold afterwards is undefined. */",
    "int anynpu_invoke(void);",
]
