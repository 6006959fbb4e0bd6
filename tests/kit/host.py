"""Builds generated C for this machine and compares it, tensor by tensor, with TensorFlow Lite Micro."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from emulator import random_input

from anynpu.firmware.generator import Generated, Settings, generate
from anynpu.firmware.generator.graph import Graph, read_graph
from anynpu.firmware.generator.variants import PLAIN, Core

DTYPES = ("int8", "uint8", "int16", "int32", "int64", "float32", "bool")
WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Werror")
TRACE = """
#include <stdint.h>
static void (*seen)(int32_t, const void *, uint32_t);
void set_trace(void (*function)(int32_t, const void *, uint32_t)) { seen = function; }
void trace(int32_t tensor, const void *data, uint32_t bytes) { if (seen) { seen(tensor, data, bytes); } }
"""
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint32)


class Descriptor(ctypes.Structure):
    """anynpu_tensor."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_uint32),
        ("elements", ctypes.c_uint32),
        ("type", ctypes.c_int),
        ("rank", ctypes.c_uint8),
        ("shape", ctypes.c_int32 * 6),
        ("scale", ctypes.c_float),
        ("zero_point", ctypes.c_int32),
    )


def write_c(model: Path, folder: Path, core: Core = PLAIN) -> Generated:
    """Generates the C files of a model into a folder, with a file that includes them all."""
    made = generate(model, Settings(model.stem, "test", core=core))
    folder.mkdir(parents=True, exist_ok=True)
    made.write(folder)
    (folder / "trace.c").write_text(TRACE)
    parts = ["trace.c", *sorted(name for name in made.files if name.endswith(".c"))]
    (folder / "whole.c").write_text("".join(f'#include "{name}"\n' for name in parts))
    return made


@dataclass
class Library:
    """Generated C, compiled and loaded."""

    folder: Path
    flags: tuple[str, ...] = ("-O2",)
    seen: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shared = self.folder / "whole.so"
        argv = ["gcc", *self.flags, *WARNINGS, "-DANYNPU_TRACE=trace", "-shared", "-fPIC", str(self.folder / "whole.c")]
        done = subprocess.run([*argv, "-o", str(shared)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:3000]
        self.lib = ctypes.CDLL(str(shared))
        for function in (self.lib.anynpu_input, self.lib.anynpu_output):
            function.restype = ctypes.POINTER(Descriptor)
        self._callback = CALLBACK(lambda number, data, size: self.seen.update({number: ctypes.string_at(data, size)}))
        assert self.lib.anynpu_init() == 0

    def trace(self, on: bool) -> None:
        self.lib.set_trace(self._callback if on else CALLBACK())

    def view(self, role: str, index: int) -> np.ndarray:
        tensor = getattr(self.lib, f"anynpu_{role}")(index).contents
        memory = (ctypes.c_uint8 * tensor.bytes).from_address(tensor.data)
        return np.frombuffer(memory, DTYPES[tensor.type])

    def run(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        for index, value in enumerate(inputs):
            self.view("input", index)[:] = value.reshape(-1)
        assert self.lib.anynpu_invoke() == 0
        outputs, index = [], 0
        while self.lib.anynpu_output(index):
            outputs.append(self.view("output", index).copy())
            index += 1
        return outputs


class Oracle:
    """TensorFlow Lite Micro with every tensor kept."""

    def __init__(self, model: Path, graph: Graph, keep: bool = True) -> None:
        from tflite_micro import runtime

        raw = model.read_bytes()
        config = runtime.InterpreterConfig
        kind = config.kPreserveAllTensors if keep else config.kAllocationRecording
        self.graph = graph
        self.interpreter: Any = runtime.Interpreter.from_bytes(
            raw, arena_size=max(1 << 23, 6 * len(raw)), intrepreter_config=kind
        )

    def run(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        for index, value in enumerate(inputs):
            self.interpreter.set_input(value, index)
        self.interpreter.invoke()
        return [self.interpreter.get_output(i).reshape(-1) for i in range(len(self.graph.outputs))]

    def tensor(self, number: int) -> bytes:
        return np.asarray(self.interpreter.GetTensor(number, 0)["tensor_data"]).tobytes()


def compare(
    model: Path, folder: Path, count: int, traced: int = 2, flags: tuple[str, ...] = ("-O2",), core: Core = PLAIN
) -> list[str]:
    """Returns every disagreement on `count` inputs; the first `traced` compare every tensor that is made."""
    write_c(model, folder, core)
    graph = read_graph(model)
    library, oracle = Library(folder, flags), Oracle(model, graph, keep=traced > 0)
    rng = np.random.default_rng(0)
    wrong = []
    for index in range(count):
        tensors = [graph.tensors[n] for n in graph.inputs]
        inputs = [random_input(rng, t.shape, t.dtype, index) for t in tensors]
        library.trace(index < traced)
        library.seen.clear()
        expected, got = oracle.run(inputs), library.run(inputs)
        for place, (a, b) in enumerate(zip(expected, got, strict=True)):
            if a.tobytes() != b.tobytes():
                at = int(np.flatnonzero(a != b)[0]) if (a != b).any() else -1
                wrong.append(f"input {index}, output {place}, element {at}: {a[at]} expected, {b[at]} computed")
        for number, data in library.seen.items():
            if oracle.tensor(number) != data:
                wrong.append(f"input {index}: tensor {number} ({graph.tensors[number].name})")
    return wrong
