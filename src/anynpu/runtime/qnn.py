"""Context models of the Hexagon NPU on Qualcomm's simulator, in a process inside onnxruntime-qnn's environment."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from anynpu.artifact import Artifact, hash_file
from anynpu.capsules.capsule import find
from anynpu.capsules.worker import Worker
from anynpu.errors import DeviceError, IntegrityError, ToolFailed, ToolMissing
from anynpu.store import default_cache_dir
from anynpu.tensors import Array

TOOL, CONTEXT = "qnn", "model_ctx.onnx"
OPEN_LIMIT_S, RUN_LIMIT_S = 1800, 600


class QnnSession:
    """Runs onnx-qnn artifacts; operators of the CPU are let in only where the artifact was built with them."""

    name = "qnn"
    formats = ("onnx-qnn",)
    rank = 5
    what = "Qualcomm's HTP simulator on this host"

    def __init__(self, artifact: Artifact) -> None:
        self.inputs, self.outputs = artifact.manifest.inputs, artifact.manifest.outputs
        _require_sound(artifact)
        tool, details = find(TOOL), artifact.manifest.details
        self._lock = threading.Lock()
        self._folder = tempfile.TemporaryDirectory(prefix="anynpu-qnn-")
        self._log = Path(self._folder.name) / "log.txt"
        self._worker = Worker(tool, "qnn_worker", scratch=Path(self._folder.name), log=self._log)
        opened = {"name": "npu", "model": str(artifact.main)}
        try:
            arch, open_cpu = int(details["htp_arch"]), bool(details.get("open_cpu"))
        except (KeyError, ValueError, TypeError):
            self.close()
            raise IntegrityError(f"{artifact.path}: the manifest does not say for which htp_arch it was made") from None
        self._ask("load", {**opened, "arch": arch, "open_cpu": open_cpu}, {}, OPEN_LIMIT_S)

    @staticmethod
    def missing() -> str:
        try:
            find(TOOL)
        except ToolMissing as missing:
            return f"{missing.message}; {missing.hint}"
        return ""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        found = self._ask("run", {"name": "npu"}, inputs, RUN_LIMIT_S)
        for spec in self.outputs:
            if spec.name not in found:
                raise DeviceError(f"the simulator gives no output {spec.name}", "run")
        return {spec.name: found[spec.name] for spec in self.outputs}

    def _ask(
        self, function: str, arguments: Mapping[str, Any], arrays: Mapping[str, Array], limit_s: float
    ) -> dict[str, Array]:
        try:
            with self._lock:
                return self._worker.ask(function, arguments, arrays, timeout_s=limit_s)[1]
        except ToolFailed as error:
            self._keep_log(error)
            self.close()
            raise

    def _keep_log(self, error: ToolFailed) -> None:
        """Saves the log from the folder that goes with the session, and names it in the error."""
        kept = default_cache_dir() / "logs" / "qnn-simulator.log"
        with suppress(OSError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._log, kept)
            error.log = str(kept)

    def close(self) -> None:
        self._worker.close()
        self._folder.cleanup()


def _require_sound(artifact: Artifact) -> None:
    """Raises unless the files are those that were sealed: the simulator crashes on a damaged context."""
    for entry in artifact.manifest.files:
        path = artifact.file(entry.path)
        if not path.is_file() or hash_file(path) != entry.sha256:
            raise IntegrityError(f"{path}: has changed since it was made")
