"""Vela in this process, and what comes out of it beside TFLite-Micro."""

from __future__ import annotations

import contextlib
import io
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ethosu.vela import vela

from anynpu.errors import IntegrityError
from anynpu.platform import read_platform
from anynpu.runtime.ethos_u.model import CpuCall, Model, NpuCall, read_model
from anynpu.runtime.ethos_u.session import Twin
from anynpu.runtime.tflm import _interpreter
from anynpu.targets.flatbuffer import operators
from anynpu.targets.vela.command import VelaFacts

PLATFORMS = Path(__file__).parents[2] / "src/anynpu/data/platforms"
CHIPS = (
    *(f"ethos-u55-{macs}" for macs in (32, 64, 128, 256)),
    *(f"ethos-u65-{macs}" for macs in (256, 512)),
    *(f"ethos-u85-{macs}" for macs in (128, 256, 512, 1024, 2048)),
)


class Refused(Exception):
    """Vela does not compile the model."""


class NoTeacher(Exception):
    """Neither TFLite-Micro nor LiteRT runs the model."""


@contextlib.contextmanager
def quiet():
    """Keeps what native code prints to itself."""
    kept = [(fd, os.dup(fd)) for fd in (1, 2)]
    with Path(os.devnull).open("w") as sink:
        for fd, _ in kept:
            os.dup2(sink.fileno(), fd)
        try:
            yield
        finally:
            for fd, copy in kept:
                os.dup2(copy, fd)
                os.close(copy)


def compile_model(model: Path, chip: str, folder: Path, goal: str = "Performance", mode: str = "") -> Path:
    """Returns the file that Vela makes of a TFLite file for one of Arm's reference systems."""
    facts = read_platform(PLATFORMS / f"{chip}.toml").facts_as(VelaFacts)
    argv = [str(model), "--accelerator-config", facts.accelerator, "--config", facts.config]
    argv += ["--system-config", facts.system_config, "--memory-mode", mode or facts.memory_mode]
    try:
        with quiet(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            vela.main([*argv, "--optimise", goal, "--enable-debug-db", "--output-dir", str(folder)])
    except (SystemExit, RuntimeError) as error:
        raise Refused(str(error)) from None
    return folder / f"{model.stem}_vela.tflite"


def samples(model: Model, count: int, seed: int = 0) -> list[np.ndarray]:
    """Returns random inputs; those of the first sample are extremes alone."""
    rng = np.random.default_rng(seed)
    inputs = []
    for tensor in (model.tensors[index] for index in model.inputs):
        dtype = np.dtype(tensor.dtype)
        shape = (count, *tensor.shape)
        if dtype.kind == "f":
            inputs.append(rng.normal(size=shape).astype(dtype))
            continue
        limits = np.iinfo(dtype) if dtype.kind != "b" else np.iinfo(np.uint8)
        values = rng.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)
        values[0] = rng.choice([limits.min, limits.max], shape[1:]).astype(dtype)
        inputs.append(values)
    return inputs


def micro(model: Path, inputs: list[np.ndarray], outputs: int) -> list[np.ndarray]:
    """Returns what TFLite-Micro makes of many samples."""
    interpreter = _interpreter(model.read_bytes())
    rows = []
    for sample in range(len(inputs[0])):
        interpreter.reset()  # a sample knows nothing of the one before
        for number, values in enumerate(inputs):
            interpreter.set_input(np.ascontiguousarray(values[sample]), number)
        interpreter.invoke()
        rows.append([interpreter.get_output(i).copy() for i in range(outputs)])
    return [np.stack(column) for column in zip(*rows, strict=True)]


def lite(model: Path, inputs: list[np.ndarray], outputs: int) -> list[np.ndarray]:
    """Returns what LiteRT's reference kernels make of many samples: for operators that TFLite-Micro lacks."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(
        model_content=model.read_bytes(), experimental_op_resolver_type=OpResolverType.BUILTIN_REF, num_threads=1
    )
    interpreter.allocate_tensors()
    rows = []
    for sample in range(len(inputs[0])):
        interpreter.reset_all_variables()
        for detail, values in zip(interpreter.get_input_details(), inputs, strict=True):
            interpreter.set_tensor(detail["index"], values[sample])
        interpreter.invoke()
        rows.append([interpreter.get_tensor(d["index"]).copy() for d in interpreter.get_output_details()[:outputs]])
    return [np.stack(column) for column in zip(*rows, strict=True)]


def reference(model: Path, inputs: list[np.ndarray], outputs: int) -> tuple[list[np.ndarray], bool]:
    """Returns TFLite-Micro's values and True, or LiteRT's where TFLite-Micro lacks an operator."""
    try:
        return micro(model, inputs, outputs), True
    except (IntegrityError, RuntimeError):
        pass  # LiteRT may know the operator
    try:
        return lite(model, inputs, outputs), False
    except (RuntimeError, ValueError) as error:
        raise NoTeacher(str(error)) from None


@dataclass(frozen=True)
class Comparison:
    """How many of how many values differ, and by how much at most."""

    differing: int
    values: int
    worst: float
    model: Model
    by_micro: bool
    """Whether the other side is TFLite-Micro; otherwise it is LiteRT."""

    @property
    def on_npu(self) -> bool:
        return any(isinstance(call, NpuCall) for call in self.model.calls)

    def npu_kinds(self, source: Path) -> list[str]:
        """Returns the operators of the source that are not left to the CPU."""
        left = {self.model.tensors[call.outputs[0]].name for call in self.model.calls if isinstance(call, CpuCall)}
        return [op.kind for op in operators(source) if op.outputs[0].name not in left] if self.on_npu else []


def compare(
    model: Path, chip: str, folder: Path, *, count: int = 3, goal: str = "Performance", mode: str = "", seed: int = 0
) -> Comparison:
    """Compiles a model and executes both sides on the same samples."""
    compiled = read_model(compile_model(model, chip, folder, goal, mode))
    inputs = samples(compiled, count, seed)
    got = Twin(compiled).run_batch(inputs)
    with quiet():
        wanted, by_micro = reference(model, inputs, len(got))
    pairs = [(g.reshape(w.shape).astype(np.float64), w.astype(np.float64)) for g, w in zip(got, wanted, strict=True)]
    return Comparison(
        sum(int((g != w).sum()) for g, w in pairs),
        sum(w.size for _, w in pairs),
        max(float(np.abs(g - w).max(initial=0)) for g, w in pairs),
        compiled,
        by_micro,
    )
