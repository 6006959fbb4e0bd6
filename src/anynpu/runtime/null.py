"""The null device: a real session that computes nothing but zeros of the right shape, for tests and dry runs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from anynpu.artifact import Artifact
from anynpu.tensors import Array


class NullSession:
    """Gives zeros."""

    name = "null"
    formats = ("null",)
    rank = 0
    what = "null device: nothing is computed"

    def __init__(self, artifact: Artifact) -> None:
        self.inputs = artifact.manifest.inputs
        self.outputs = artifact.manifest.outputs

    @staticmethod
    def missing() -> str:
        return ""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {spec.name: np.zeros(spec.shape, spec.dtype) for spec in self.outputs}

    def close(self) -> None:
        return
