"""A model on the fake NPU for the tests of the serving engine, with known answers as a build leaves them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anynpu import schema
from anynpu.apps.serve.known import VECTORS
from anynpu.artifact import EVIDENCE, Artifact, Manifest, Step, seal
from anynpu.tensors import Quantization, TensorSpec
from anynpu.testing import noe
from anynpu.testing.models import NOW

INPUT = TensorSpec("x", (1, 64), "int8", quantization=Quantization((0.5,), (3,)))
OUTPUT = TensorSpec("y", (1, 48), "int8", quantization=Quantization((0.25,), (-2,)))


def stored(number: int) -> np.ndarray:
    """An input that tells all numbers apart."""
    return np.random.default_rng(number).integers(-128, 128, INPUT.shape).astype(np.int8)


def expected(number: int) -> np.ndarray:
    return noe.expect_mix([stored(number)], [OUTPUT])[0]


def npu_model(folder: Path, evidence: bool = True) -> Artifact:
    """A model of the fake NPU; its evidence lies in it, as `anynpu build` puts it."""
    artifact = noe.model(folder, [INPUT], [OUTPUT])
    if evidence:
        write_evidence(artifact, [stored(10_000 + n) for n in range(5)])
    return artifact


def write_evidence(artifact: Artifact, inputs: list[np.ndarray], outputs: list[np.ndarray] | None = None) -> None:
    place = artifact.path / EVIDENCE
    place.mkdir()
    answers = outputs or [noe.expect_mix([x], [OUTPUT])[0] for x in inputs]
    np.savez(place / VECTORS, **{"input:x": np.concatenate(inputs), "output:y": np.concatenate(answers)})
    figures = {"y": {"sqnr_db": 31.0, "cosine": 0.999}}
    data = {"executed": "a simulator", "samples": 64, "outputs": figures}
    (place / "verification.json").write_text(schema.canonical_json(data) + "\n", "utf-8")
    step = Step("verify", {"candidate": artifact.digest})
    seal(place, Manifest("evidence", "verification.json"), step, NOW)
