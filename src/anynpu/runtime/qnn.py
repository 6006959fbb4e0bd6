"""Context models of the Hexagon NPU on Qualcomm's simulator, in a process inside onnxruntime-qnn's environment."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from anynpu.artifact import Artifact
from anynpu.errors import DeviceError, IntegrityError, ToolFailed
from anynpu.runtime import capsuled
from anynpu.runtime.capsuled import SessionLog, require_sound
from anynpu.tensors import Array

TOOL, CONTEXT = "qnn", "model_ctx.onnx"
OPEN_LIMIT_S, RUN_LIMIT_S = 1800, 600


class QnnSession:
    """Runs onnx-qnn artifacts; operators of the CPU are let in only where the artifact was built with them."""

    name = "qnn"
    formats = ("onnx-qnn",)
    rank = 5
    what = "Qualcomm's HTP simulator on this host"
    get = "anynpu tool install qnn"

    def __init__(self, artifact: Artifact) -> None:
        self.inputs, self.outputs = artifact.manifest.inputs, artifact.manifest.outputs
        require_sound(artifact)
        from anynpu.capsules.capsule import find
        from anynpu.capsules.worker import Worker

        tool, details = find(TOOL), artifact.manifest.details
        self._lock = threading.Lock()
        self._log = SessionLog(TOOL)
        self._worker = Worker(tool, "qnn_worker", scratch=self._log.folder, log=self._log.path)
        opened = {"name": "npu", "model": str(artifact.main.absolute())}  # the worker runs in a folder of its own
        try:
            arch, open_cpu = int(details["htp_arch"]), bool(details.get("open_cpu"))
        except (KeyError, ValueError, TypeError):
            self.close()
            raise IntegrityError(f"{artifact.path}: the manifest does not say for which htp_arch it was made") from None
        self._ask("load", {**opened, "arch": arch, "open_cpu": open_cpu}, {}, OPEN_LIMIT_S)

    @staticmethod
    def missing() -> str:
        return capsuled.missing(TOOL)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        outputs = self._ask("run", {"name": "npu"}, inputs, RUN_LIMIT_S)
        for spec in self.outputs:
            if spec.name not in outputs:
                raise DeviceError(f"the simulator gives no output {spec.name}", "run")
        return {spec.name: outputs[spec.name] for spec in self.outputs}

    def _ask(
        self, function: str, arguments: Mapping[str, object], arrays: Mapping[str, Array], limit_s: float
    ) -> dict[str, Array]:
        try:
            with self._lock:
                return self._worker.ask(function, arguments, arrays, timeout_s=limit_s)[1]
        except ToolFailed as error:
            self._log.keep(error)
            self.close()
            raise

    def close(self) -> None:
        self._worker.close()
        self._log.close()
