"""An artifact on a board: a session whose runs go over the line."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from anynpu.artifact import Artifact
from anynpu.errors import DeviceError
from anynpu.runtime.device.answers import BoardTensor
from anynpu.runtime.device.client import Client
from anynpu.runtime.device.transport import Transport
from anynpu.tensors import Array, TensorSpec


class BoardSession:
    """Runs an artifact on the board that a line leads to.

    Opening it asks who is there: firmware of another model is refused, and so is one that fails its known answers.
    `fingerprint` is the one that the artifact's code holds, where that is not the network's own.
    """

    name = "board"
    hardware = True

    def __init__(
        self, artifact: Artifact, line: Transport, timeout_s: float = 10.0, run_s: float = 30.0, fingerprint: str = ""
    ) -> None:
        self.inputs = artifact.manifest.inputs
        self.outputs = artifact.manifest.outputs
        self.what = line.where
        try:
            self.client = Client(line, timeout_s, run_s)
            self.board = self.client.board
            self.info = self.client.info()
            self._refuse_another(artifact, fingerprint or artifact.manifest.fingerprint)
            self.known_answers = self.client.known_answers(self.info.vectors)
        except BaseException:
            line.close()
            raise

    def versions(self) -> dict[str, str]:
        """Returns what the firmware says it is: the board, and the model by its fingerprint."""
        return {"board": self.board, "firmware": self.info.fingerprint[:12]}

    def _refuse_another(self, artifact: Artifact, wanted: str) -> None:
        if self.info.fingerprint != wanted:
            raise DeviceError(
                f"{self.what}: the board runs another model than {artifact.path} (fingerprints "
                f"{self.info.fingerprint[:12]} and {wanted[:12]})",
                call="info",
                cause="the board was flashed with firmware of another build",
                hint="flash the firmware of this artifact, or name the artifact that the board runs",
            )
        for kind, specs, tensors in (
            ("input", self.inputs, self.info.inputs),
            ("output", self.outputs, self.info.outputs),
        ):
            if len(specs) != len(tensors):
                raise self._differs(f"has {len(tensors)} {kind}s", f"{len(specs)}")
            for spec, tensor in zip(specs, tensors, strict=True):
                self._compare(kind, spec, tensor)

    def _compare(self, kind: str, spec: TensorSpec, tensor: BoardTensor) -> None:
        if (tensor.dtype, tensor.shape) != (spec.dtype, spec.shape):
            raise self._differs(
                f"has {kind} {tensor.name} of {tensor.dtype} {list(tensor.shape)}", f"{spec.dtype} {list(spec.shape)}"
            )
        quantization = spec.quantization
        if quantization is None or quantization.axis is not None:
            return
        scale, zero_point = quantization.scale[0], quantization.zero_point[0]
        if tensor.zero_point != zero_point or not math.isclose(tensor.scale, scale, rel_tol=1e-5):
            raise self._differs(
                f"has {kind} {tensor.name} with scale {tensor.scale:g} and zero point {tensor.zero_point}",
                f"{scale:g} and {zero_point}",
            )

    def _differs(self, got: str, wanted: str) -> DeviceError:
        return DeviceError(
            f"{self.what}: the board's model {got}; the artifact says {wanted}",
            call="info",
            cause="the board was flashed with firmware of another build of the same network",
            hint="flash the firmware of this artifact",
        )

    def load(self, inputs: Mapping[str, Array]) -> None:
        """Sends the inputs to the board."""
        self.client.load(b"".join(_little(inputs[spec.name], spec.dtype).tobytes() for spec in self.inputs))

    def fetch(self) -> dict[str, Array]:
        """Returns the outputs of the last inference."""
        return {
            spec.name: np.frombuffer(self.client.output(index, spec.nbytes), np.dtype(spec.dtype).newbyteorder("<"))
            .astype(spec.dtype)
            .reshape(spec.shape)
            for index, spec in enumerate(self.outputs)
        }

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self.load(inputs)
        self.client.infer(1)
        return self.fetch()

    def close(self) -> None:
        self.client.close()


def _little(array: Array, dtype: str) -> Array:
    return np.ascontiguousarray(array, np.dtype(dtype).newbyteorder("<"))
