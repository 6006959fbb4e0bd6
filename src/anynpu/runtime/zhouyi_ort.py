"""ONNX models on the Zhouyi NPU through CIX's build of ONNX Runtime, which compiles them when they are opened.

Operators that its provider lacks would go to the CPU without a word. Here the CPU is closed to them: such a model does
not open, and the error names them. `receipt` opens the CPU again in order to say what ran where.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anynpu.artifact import Artifact, Placement
from anynpu.errors import Finding, IntegrityError, ToolFailed, ToolMissing, Unsupported, first_line
from anynpu.foreign import ONNX
from anynpu.runtime import ort_profile
from anynpu.runtime.ort import open_session, run_named
from anynpu.tensors import Array

PROVIDER, CPU = "ZhouyiExecutionProvider", "CPUExecutionProvider"
NPU = "Zhouyi Z3"
CLOSED = "session.disable_cpu_ep_fallback"
LACKS = frozenset({"Shape", "Gather", "Slice", "Where", "Concat", "Cast"})
"""Operators that the provider of SDK 25 Q3 leaves to the CPU."""
INSTALL = (
    "install the onnxruntime_zhouyi wheel of /usr/share/cix/pypi in a Python 3.11 or 3.12 environment on the board"
)
OPERATORS = "OPERATOR_PATH must name /usr/share/cix/lib/onnxruntime/operator"


class ZhouyiOrtSession:
    """Runs float and QDQ ONNX models of fixed shapes, all of it on the NPU."""

    name = "zhouyi_ort"
    formats = ("onnx", "onnx-ort")
    rank = 60
    what = "Zhouyi NPU through ONNX Runtime"
    packages = ("onnxruntime",)
    hardware = True
    get = "install CIX's build of ONNX Runtime (the package cix-npu-onnxruntime) in this Python"

    def __init__(self, artifact: Artifact) -> None:
        if reason := self.missing():
            raise ToolMissing(reason, INSTALL)
        self.inputs, self.outputs = artifact.manifest.inputs, artifact.manifest.outputs
        self._session: Any = _opened(artifact, [PROVIDER], closed=True)

    @staticmethod
    def missing() -> str:
        """Returns what is to be installed before ONNX Runtime can use the NPU here."""
        import onnxruntime

        present = onnxruntime.get_available_providers()
        return "" if PROVIDER in present else f"ONNX Runtime has no {PROVIDER} here (it has {', '.join(present)})"

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return run_named(self._session, [spec.name for spec in self.outputs], inputs, OPERATORS)

    def close(self) -> None:
        self._session = None


def _opened(artifact: Artifact, providers: Sequence[str], closed: bool, profile: str = "") -> Any:
    """Returns an ONNX Runtime session that neither places operators elsewhere nor tries other providers, if closed."""
    entries = {CLOSED: "1"} if closed else {}
    try:
        session = open_session(str(artifact.main), profile=profile, providers=providers, entries=entries)
    except IntegrityError as error:
        if lacking := findings(artifact.main):
            raise Unsupported(
                "the NPU's provider cannot take the whole model",
                lacking,
                "compile it with `anynpu build -t zhouyi-z3`, or cut the model before these operators",
            ) from error
        words = first_line(error.__cause__ or error)
        raise IntegrityError(f"ONNX Runtime refuses the model: {words}", OPERATORS) from error
    session.disable_fallback()  # the binding would open it again on the CPU when a run fails
    if closed and session.get_providers()[:1] != list(providers[:1]):
        raise ToolFailed(f"ONNX Runtime did not take {providers[0]}, but {', '.join(session.get_providers())}")
    return session


def findings(model: Path) -> tuple[Finding, ...]:
    """Returns the operators of an ONNX file that the provider leaves to the CPU, and inputs without a fixed shape."""
    import onnx

    try:
        graph = onnx.load(str(model)).graph
    except ONNX:  # what is not a model has no operators; ONNX Runtime's words say so
        return ()
    lacking = [
        Finding("provider", f"{node.op_type} runs on the CPU in the provider of SDK 25 Q3", node.name or node.output[0])
        for node in graph.node
        if node.op_type in LACKS
    ]
    stored = {tensor.name for tensor in graph.initializer}
    loose = [
        Finding("static_shapes", "the provider takes fixed shapes only", value.name)
        for value in graph.input
        if value.name not in stored and any(not d.HasField("dim_value") for d in value.type.tensor_type.shape.dim)
    ]
    return (*lacking, *loose)


def receipt(artifact: Artifact, samples: Sequence[Mapping[str, Array]], provider: str = PROVIDER) -> Placement:
    """Returns which operators ran on the provider and which on the CPU, by executing the model with the CPU open."""
    providers = list(dict.fromkeys([provider, CPU]))
    with tempfile.TemporaryDirectory() as folder:
        session = _opened(artifact, providers, closed=False, profile=str(Path(folder) / "profile"))
        for sample in samples:
            session.run(None, dict(sample))
        text = Path(session.end_profiling()).read_text("utf-8")
    return placement(text, provider)


def placement(profile: str, provider: str = PROVIDER) -> Placement:
    """Returns the receipt that a profile of ONNX Runtime (JSON) holds; each executed node counts once."""
    lacks, left = "the provider has no such operator", "the provider did not take it"
    return ort_profile.placement(profile, provider, NPU, lambda kind: lacks if kind in LACKS else left)
