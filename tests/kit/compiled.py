"""Vela in this process, and what comes out of it beside TFLite-Micro."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ethosu.vela import vela

from anynpu.errors import IntegrityError
from anynpu.platform import read_platform
from anynpu.runtime.ethos_u.model import CpuCall, Model, NpuCall, call_of, read_model, tensors_of
from anynpu.runtime.ethos_u.twin import Twin
from anynpu.runtime.ethos_u.weights import Decoder
from anynpu.runtime.tflm import open_micro
from anynpu.targets.flatbuffer import operators
from anynpu.targets.vela.command import VelaFacts

PLATFORMS = Path(__file__).parents[2] / "src/anynpu/data/platforms"
CHIPS = (
    *(f"ethos-u55-{macs}" for macs in (32, 64, 128, 256)),
    *(f"ethos-u65-{macs}" for macs in (256, 512)),
    *(f"ethos-u85-{macs}" for macs in (128, 256, 512, 1024, 2048)),
)

DECODER = Decoder()
"""What all twins of a process share: weights are decoded once."""
_answers: dict[bytes, list[np.ndarray]] = {}
"""What a file makes of inputs, by the digest of both."""


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
    return micro_bytes(model.read_bytes(), inputs, outputs)


def micro_bytes(model: bytes, inputs: list[np.ndarray], outputs: int) -> list[np.ndarray]:
    """Returns what TFLite-Micro makes of many samples with the bytes of a model."""
    interpreter = open_micro(model)
    rows = []
    for sample in range(len(inputs[0])):
        interpreter.reset()  # a sample knows nothing of the one before
        for number, values in enumerate(inputs):
            interpreter.set_input(np.ascontiguousarray(values[sample]), number)
        interpreter.invoke()
        rows.append([interpreter.get_output(i).copy() for i in range(outputs)])
    return [np.stack(column) for column in zip(*rows, strict=True)]


def lite(model: bytes, inputs: list[np.ndarray], outputs: int) -> list[np.ndarray]:
    """Returns what LiteRT's reference kernels make of many samples."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(
        model_content=model, experimental_op_resolver_type=OpResolverType.BUILTIN_REF, num_threads=1
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


def operator_by_operator(
    model: Path, inputs: list[np.ndarray], instead: Callable[..., list[np.ndarray] | None] = lambda *_: None
) -> list[np.ndarray]:
    """Returns TFLite-Micro's values of a graph with operators that it lacks: LiteRT computes those, and those alone.

    LiteRT does not compute the others: where TFLite-Micro rounds twice, it rounds once, and is one step beside it.
    `instead` may compute an operator in their place.
    """
    whole = schema.ModelT.InitFromObj(schema.Model.GetRootAs(model.read_bytes(), 0))
    graph, tensors = whole.subgraphs[0], tensors_of(schema, whole, ())
    values = dict(zip(map(int, graph.inputs), inputs, strict=True))
    for tensor in tensors:
        if tensor.initial is not None:
            first = np.full(tensor.nbytes, tensor.initial, np.uint8).view(tensor.dtype).reshape(tensor.shape)
            values[tensor.index] = np.stack([first] * len(inputs[0]))
    for number, op in enumerate(graph.operators):
        call = call_of(schema, whole, op, tensors)
        given = [values[index].reshape(-1, *tensors[index].shape) for index in call.inputs]
        results = instead(number, call, given) or taught(call, given)
        values.update(zip(call.outputs, results, strict=True))
    return [values[int(index)] for index in graph.outputs]


def taught(call: CpuCall, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Returns what TFLite-Micro makes of one operator, or LiteRT where it lacks it."""
    try:
        return micro_bytes(call.model, inputs, len(call.outputs))
    except (IntegrityError, RuntimeError):
        pass  # LiteRT may know the operator
    try:
        return lite(call.model, inputs, len(call.outputs))
    except (RuntimeError, ValueError) as error:
        raise NoTeacher(str(error)) from None


def reference(model: Path, inputs: list[np.ndarray], outputs: int) -> list[np.ndarray]:
    """Returns TFLite-Micro's values, with LiteRT's for operators that it lacks; once for a model on many chips."""
    key = _key(model, inputs)
    if key not in _answers:
        try:
            _answers[key] = micro(model, inputs, outputs)
        except (IntegrityError, RuntimeError):
            _answers[key] = operator_by_operator(model, inputs)
    return _answers[key]


def executed(file: Path, model: Model, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Returns the twin's values; once for a file that several goals and memory modes give."""
    key = _key(file, inputs)
    if key not in _answers:
        _answers[key] = Twin(model, DECODER).run_batch(inputs)
    return _answers[key]


def _key(file: Path, inputs: list[np.ndarray]) -> bytes:
    digest = hashlib.sha256(file.read_bytes())
    for value in inputs:
        digest.update(value.tobytes())
    return digest.digest()


@dataclass(frozen=True)
class Comparison:
    """How many of how many values differ, and by how much at most."""

    differing: int
    values: int
    worst: float
    model: Model
    inputs: list[np.ndarray]
    got: list[np.ndarray]

    @property
    def on_npu(self) -> bool:
        return any(isinstance(call, NpuCall) for call in self.model.calls)

    def npu_kinds(self, source: Path) -> list[str]:
        """Returns the operators of the source that are not left to the CPU."""
        outputs = self.npu_outputs(source)
        return [op.kind for op in operators(source) if op.outputs[0].name in outputs]

    def npu_outputs(self, source: Path) -> set[str]:
        """Returns the first output of each operator of the source that is not left to the CPU."""
        left = {self.model.tensors[call.outputs[0]].name for call in self.model.calls if isinstance(call, CpuCall)}
        return {op.outputs[0].name for op in operators(source)} - left if self.on_npu else set()


def compare(
    model: Path, chip: str, folder: Path, *, count: int = 3, goal: str = "Performance", mode: str = "", seed: int = 0
) -> Comparison:
    """Compiles a model and executes both sides on the same samples."""
    compiled = read_model(file := compile_model(model, chip, folder, goal, mode))
    inputs = samples(compiled, count, seed)
    got = executed(file, compiled, inputs)
    with quiet():
        wanted = reference(model, inputs, len(got))
    pairs = [(g.reshape(w.shape).astype(np.float64), w.astype(np.float64)) for g, w in zip(got, wanted, strict=True)]
    return Comparison(
        sum(int((g != w).sum()) for g, w in pairs),
        sum(w.size for _, w in pairs),
        max(float(np.abs(g - w).max(initial=0)) for g, w in pairs),
        compiled,
        inputs,
        got,
    )
