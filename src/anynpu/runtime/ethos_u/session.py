"""The session: what Vela wrote, executed on this host by a twin, which is loaded only then."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import numpy as np

from anynpu.artifact import Artifact
from anynpu.runtime.ethos_u.findings import Audited, memory_figures
from anynpu.runtime.ethos_u.layers import ORIGINS, layers_of
from anynpu.tensors import Array


class EthosUSession:
    """Executes the command streams of a Vela file; operators left to the CPU run in TFLite-Micro."""

    name = "ethos_u"
    formats = ("tflite-vela",)
    rank = 0
    what = "the NPU's command stream on a twin of the Ethos-U on this host's CPU"
    package = "tflite-micro"
    """It runs the operators that are left to the CPU, and does not survive every damaged one."""

    def __init__(self, artifact: Artifact) -> None:
        from anynpu.runtime.ethos_u.model import read_model
        from anynpu.runtime.ethos_u.twin import Twin

        self.inputs = artifact.manifest.inputs
        self.outputs = artifact.manifest.outputs
        self._origins = artifact.path / ORIGINS
        self._layers = layers_of(artifact)
        self._figures = memory_figures(artifact.manifest)
        self.twin: Any = Twin(read_model(artifact.main))

    @staticmethod
    def missing() -> str:
        for package, module in (("ethos-u-vela", "ethosu"), ("ai-edge-litert", "ai_edge_litert")):
            if not importlib.util.find_spec(module):
                return f"{package} is not installed"
        return ""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        values = self.twin.run([inputs[spec.name] for spec in self.inputs])
        return {spec.name: value.reshape(spec.shape) for spec, value in zip(self.outputs, values, strict=True)}

    def run_many(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs the model on many samples, which lie behind each other along the first axis."""
        stacked = [inputs[spec.name].reshape(-1, *spec.shape) for spec in self.inputs]
        values = self.twin.run_batch(stacked)
        return {spec.name: value.reshape(-1, *spec.shape[1:]) for spec, value in zip(self.outputs, values, strict=True)}

    def audit(self, inputs: Mapping[str, Array]) -> Audited:
        """Runs one sample and returns what its operations did that they must not do, and how much memory they used."""
        from anynpu.runtime.ethos_u.audit import audited

        followed = self.twin.audit([inputs[spec.name][np.newaxis] for spec in self.inputs], self._layers)
        return audited(followed, *self._figures)

    def first_difference(self, source: bytes, inputs: Mapping[str, Array]) -> str:
        """Returns the first operation that does not compute what TFLite-Micro does with the model before Vela."""
        if not self._origins.is_file():
            return ""
        from anynpu.runtime.ethos_u.difference import first_difference

        return first_difference(self.twin, self._origins, source, [inputs[spec.name] for spec in self.inputs])

    def close(self) -> None:
        self.twin = None
