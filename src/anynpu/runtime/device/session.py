"""An artifact on a board: a session whose runs go over the line."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from anynpu.artifact import Artifact
from anynpu.errors import DeviceError
from anynpu.runtime.device.client import Client
from anynpu.runtime.device.transport import Transport
from anynpu.tensors import Array


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
            wanted = fingerprint or artifact.manifest.fingerprint
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
                    about = f"has {kind} {tensor.name}"
                    if (tensor.dtype, tensor.shape) != (spec.dtype, spec.shape):
                        stated = f"{spec.dtype} {list(spec.shape)}"
                        raise self._differs(f"{about} of {tensor.dtype} {list(tensor.shape)}", stated)
                    if spec.quantization is None or spec.quantization.axis is not None:
                        continue
                    (scale,), (zero,) = spec.quantization.scale, spec.quantization.zero_point
                    if tensor.zero_point != zero or not math.isclose(tensor.scale, scale, rel_tol=1e-5):
                        form = f"scale {tensor.scale:g} and zero point {tensor.zero_point}"
                        raise self._differs(f"{about} with {form}", f"{scale:g} and {zero}")
            self.known_answers = self.client.known_answers(self.info.vectors)
        except BaseException:
            line.close()
            raise

    def versions(self) -> dict[str, str]:
        """Returns what the firmware says it is: the board, and the model by its fingerprint."""
        return {"board": self.board, "firmware": self.info.fingerprint[:12]}

    def _differs(self, got: str, wanted: str) -> DeviceError:
        return DeviceError(
            f"{self.what}: the board's model {got}; the artifact says {wanted}",
            call="info",
            cause="the board was flashed with firmware of another build of the same network",
            hint="flash the firmware of this artifact",
        )

    def load(self, inputs: Mapping[str, Array]) -> None:
        """Sends the inputs to the board."""
        little = {spec.name: np.dtype(spec.dtype).newbyteorder("<") for spec in self.inputs}
        self.client.load(b"".join(np.ascontiguousarray(inputs[n], dtype).tobytes() for n, dtype in little.items()))

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
