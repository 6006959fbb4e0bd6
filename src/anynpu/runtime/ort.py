"""ONNX Runtime on the CPU, for float and QDQ models."""

from __future__ import annotations

import json
import re
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anynpu.artifact import Artifact
from anynpu.errors import DeviceError, first_line
from anynpu.foreign import ONNX_RUNTIME, mapped
from anynpu.runtime.int8_sums import exact, host
from anynpu.tensors import Array

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

# What ONNX Runtime puts behind the name of a node that it moved, copied or ran.
_RENAMED = re.compile(r"(_token_\d+|/duplicated)*_kernel_time$")


SLEEPS = {"session.force_spinning_stop": "1", "session.intra_op.spin_duration_us": "20"}
"""Threads spin from one operator to the next, for which they would otherwise be woken a hundred times in a run, and
sleep as soon as that takes longer or the run is over."""


def inference_session(model: str | bytes, threads: int = 0, plain: bool = False, profile: str = "") -> Any:
    """Returns an ONNX Runtime session on the CPU; a model it refuses raises IntegrityError.

    Its int8 sums are exact on every CPU, see `int8_sums`. `plain` leaves the graph as it is; `profile` is where a file
    with the time of every kernel goes.
    """
    return open_session(exact(model, fused=not plain), threads, plain=plain, profile=profile)


def open_session(
    model: str | bytes,
    threads: int = 0,
    *,
    plain: bool = False,
    profile: str = "",
    spin: bool = True,
    quiet: bool = False,
    providers: Sequence[str] = ("CPUExecutionProvider",),
    provider_options: Sequence[Mapping[str, str]] | None = None,
    entries: Mapping[str, str] = {},
) -> Any:
    """Returns an ONNX Runtime session of a file or its bytes, as they are; a model it refuses raises IntegrityError.

    `quiet` keeps what fails in a run from its log, `entries` are settings of the session by their own names.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4 if quiet else 3
    options.intra_op_num_threads = threads
    for name, value in {**({} if spin else SLEEPS), **entries}.items():
        options.add_session_config_entry(name, value)
    if plain:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    settings: dict[str, Any] = {}
    if provider_options is not None:
        settings["provider_options"] = [dict(each) for each in provider_options]
    content = model if isinstance(model, bytes) else Path(model).read_bytes() if Path(model).is_file() else b""
    if b"MaxPool" in content and b"\x03Pad" in content:
        # 1.31 moves a padding with zeros into the pool, which pads with the lowest number: negative maxima differ.
        settings["disabled_optimizers"] = ["Pad_Fusion"]
    with mapped(ONNX_RUNTIME, "ONNX Runtime refuses the model"):
        return onnxruntime.InferenceSession(model, options, providers=list(providers), **settings)


def run_named(session: Any, names: Sequence[str], inputs: Mapping[str, Array], hint: str = "") -> dict[str, Array]:
    """Returns the named tensors of one run of an ONNX Runtime session; None stands for one that was closed."""
    if session is None:
        raise DeviceError("the session was closed", "run")
    if not names:
        return {}  # ONNX Runtime takes none for all
    try:
        values = session.run(list(names), dict(inputs))
    except ONNX_RUNTIME as error:
        raise DeviceError(f"ONNX Runtime failed: {first_line(error)}", call="run", hint=hint) from error
    return dict(zip(names, values, strict=True))


_FLOATS = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16}


def lent_outputs(session: Any, names: Sequence[str]) -> Callable[[Mapping[str, Array]], dict[str, Array]] | None:
    """Returns a function that runs a session and gives named outputs in arrays that every run overwrites, which takes
    half the memory; None where their sizes are not known before."""
    from onnxruntime import OrtValue

    known = {output.name: output for output in session.get_outputs() if output.name in names}
    sized = all(isinstance(size, int) and size > 0 for each in known.values() for size in each.shape)
    if not known or not sized or any(each.type not in _FLOATS for each in known.values()):
        return None
    arrays = {name: np.zeros(known[name].shape, _FLOATS[known[name].type]) for name in names}
    held = {name: OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
    binding = session.io_binding()
    for name, value in held.items():
        binding.bind_ortvalue_output(name, value)

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        for name, array in inputs.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        session.run_with_iobinding(binding)
        return dict(arrays)

    return run


class OrtSession:
    """Runs ONNX models."""

    name = "ort"
    formats: tuple[str, ...] = ("onnx", "onnx-ort")
    rank = 0
    package = "onnxruntime"
    what = "ONNX Runtime on this host's CPU"
    packages = ("onnxruntime",)

    def __init__(self, artifact: Artifact, threads: int = 0, file: Path | None = None, spin: bool = True) -> None:
        """`spin` lets threads burn their cores while they wait for work, which only a session alone gains by; without
        it they do so for a moment within a run."""
        self.inputs = artifact.manifest.inputs
        self.outputs = artifact.manifest.outputs
        self._file = str(file or artifact.main)
        model = exact(self._file)
        self.exact_sums = model is not self._file
        """Whether the model was rewritten so that this host adds its int8 products exactly."""
        self.host = f"{host()}, exact int8 sums" if self.exact_sums else host()
        """The instructions of this host's CPU, and what was done about them."""
        self.what = f"{type(self).what} ({self.host})"
        self._session = open_session(model, threads, spin=spin)

    @staticmethod
    def missing() -> str:
        return ""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return run_named(self._session, [spec.name for spec in self.outputs], inputs)

    def other_kernels(self) -> dict[str, InferenceSession]:
        """Returns ONNX Runtime sessions of the same file: `plain` is its own arithmetic without fused kernels, `native`
        the kernels that this session is kept from, if any."""
        sessions = {"plain": inference_session(self._file, threads=1, plain=True)}
        return sessions | {"native": open_session(self._file, threads=1)} if self.exact_sums else sessions

    def close(self) -> None:
        self._session = None


class OrtInner(OrtSession):
    """Runs an ONNX model as it is written, without fusing anything, and gives inner tensors too."""

    def __init__(self, artifact: Artifact) -> None:
        import onnx

        self.inputs = artifact.manifest.inputs
        self.outputs = artifact.manifest.outputs
        model = onnx.load(artifact.main)
        present = {value.name for value in model.graph.output}
        computed = {name for node in model.graph.node for name in node.output if name}
        # Without a type: ONNX Runtime knows it.
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(computed - present))
        self._known = computed
        self._session = inference_session(model.SerializeToString(), threads=1, plain=True)

    def tensors(self, inputs: Mapping[str, Array], names: Iterable[str]) -> dict[str, Array]:
        """Runs the model once and returns the named tensors that it has."""
        feeds = dict(inputs)
        wanted = [name for name in dict.fromkeys(names) if name in self._known]
        return run_named(self._session, wanted, feeds) | {n: feeds[n] for n in names if n in feeds}


def kernel_times(artifact: Artifact, samples: Sequence[Mapping[str, Array]], warm_up: int = 2) -> dict[str, float]:
    """Returns the median time in milliseconds of every node that ONNX Runtime executes, on one thread.

    A node has the name it has in the file wherever ONNX Runtime keeps it, and is one that it put in elsewhere.
    """
    with tempfile.TemporaryDirectory() as folder:
        session = inference_session(str(artifact.main), threads=1, profile=str(Path(folder) / "profile"))
        for sample in [*[samples[0]] * warm_up, *samples]:
            session.run(None, dict(sample))
        events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    durations: dict[str, list[float]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            durations.setdefault(event["name"], []).append(event["dur"] / 1000)
    total: dict[str, float] = {}
    for name, values in durations.items():
        node = _RENAMED.sub("", name)
        total[node] = total.get(node, 0.0) + statistics.median(values[warm_up:] or values)
    return total
