"""CVITEK's and SOPHGO's simulators: .cvimodel and .bmodel files run inside TPU-MLIR's own environment."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from anynpu.artifact import Artifact
from anynpu.errors import IntegrityError, ToolFailed
from anynpu.runtime import capsuled
from anynpu.runtime.capsuled import SessionLog, require_sound
from anynpu.schema import from_dict
from anynpu.tensors import Array, StoredTensor

if TYPE_CHECKING:
    from anynpu.capsules.capsule import Capsule

TOOL, PACKAGE = "cvi", "tpu_mlir"
OPEN_S, RUN_S = 120, 1800
_SIMULATOR = re.compile(r"libcmodel_\w+\.so")


@dataclass(frozen=True)
class CompiledTensors:
    """A compiled model's inputs and outputs as TPU-MLIR has them; the scale of an input multiplies real numbers."""

    inputs: tuple[StoredTensor, ...]
    outputs: tuple[StoredTensor, ...]


class Simulator:
    """A compiled model in a process of its own; `tensors` are its inputs and outputs as its runtime has them."""

    def __init__(self, tool: Capsule, model: Path, simulator: str, *, log: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="anynpu-cvi-")
        scratch = Path(self._folder.name)
        from anynpu.capsules.worker import Worker

        self._worker = Worker(_bound(tool, scratch, simulator), "cvi_worker", scratch=scratch, log=log)
        try:
            answer, _ = self._worker.ask("open_model", {"path": str(model.absolute())}, timeout_s=OPEN_S)
            self.tensors = from_dict(CompiledTensors, answer, "open_model")
        except BaseException:
            self.close()
            raise

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs the model once on stored values by the runtime's names."""
        return self._worker.ask("run", {}, inputs, timeout_s=RUN_S)[1]

    def close(self) -> None:
        """Ends the process and removes what it wrote."""
        self._worker.close()
        self._folder.cleanup()

    def __enter__(self) -> Simulator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _bound(tool: Capsule, scratch: Path, simulator: str) -> Capsule:
    """Returns the tool with its libraries on the loader's path, the chip's simulator first.

    The runtime loads whatever is called libcmodel.so. TPU-MLIR exchanges that file inside its package, which neither
    two chips at once nor the digests of the package would survive.
    """
    own = tool.installed.packages
    if own is None:
        return tool
    folders = [str(own / PACKAGE / part) for part in ("lib", "lib/capi", "lib/third_party")]
    if simulator:
        (scratch / "lib").mkdir()
        (scratch / "lib" / "libcmodel.so").symlink_to(own / PACKAGE / "lib" / simulator)
        folders.insert(0, str(scratch / "lib"))
    chain = replace(tool.installed.toolchain, library_path=tuple(folders))
    return replace(tool, installed=replace(tool.installed, toolchain=chain))


class CviSession:
    """Runs what the cvi compiler makes."""

    name = "cvi"
    formats = ("tpu-model",)
    rank = 0
    what = "TPU-MLIR's simulator of the chip on this host"
    get = "anynpu tool install cvi"

    def __init__(self, artifact: Artifact) -> None:
        self.inputs, self.outputs = artifact.manifest.inputs, artifact.manifest.outputs
        details = artifact.manifest.details
        names, simulator = details.get("names"), str(details.get("simulator", ""))
        wanted = {"inputs": self.inputs, "outputs": self.outputs}
        if not isinstance(names, Mapping) or any(
            s.name not in names.get(side, ()) for side in wanted for s in wanted[side]
        ):
            raise IntegrityError(f"{artifact.path}: the manifest does not say what the compiled file calls its tensors")
        if simulator and not _SIMULATOR.fullmatch(simulator):
            # It is loaded into a process: a manifest must not name any library that it likes.
            raise IntegrityError(f"{artifact.path}: {simulator!r} is not a simulator of TPU-MLIR's")
        self._names = names
        require_sound(artifact)
        from anynpu.capsules.capsule import find

        tool = find(TOOL)
        self._log = SessionLog(TOOL)
        try:
            self._simulator = Simulator(tool, artifact.main, simulator, log=self._log.path)
        except BaseException as failure:
            self._log.keep(failure)
            self._log.close()
            raise

    @staticmethod
    def missing() -> str:
        return capsuled.missing(TOOL)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        names = self._names["inputs"]
        try:
            outputs = self._simulator.run({names[name]: value for name, value in inputs.items()})
        except ToolFailed as failure:
            self._log.keep(failure)
            raise
        return {s.name: outputs[self._names["outputs"][s.name]].reshape(s.shape) for s in self.outputs}

    def close(self) -> None:
        self._simulator.close()
        self._log.close()
