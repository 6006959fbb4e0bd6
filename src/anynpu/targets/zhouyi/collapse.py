"""Successful garbage: a compiled model that gives the same vector whatever it is given.

Eight bits can map all tokens of a text model to one embedding; cixbuild reports success and the model runs. Two samples
that the float model tells apart must come apart in the compiled one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from anynpu.artifact import Artifact, Manifest
from anynpu.errors import AccuracyError
from anynpu.measure.samples import read_samples
from anynpu.runtime.base import choose, run_real
from anynpu.tasks.space import row_cosines
from anynpu.tensors import Array, by_name

SAME = 0.9999
"""Two outputs with a larger cosine are one and the same at eight bits."""
DIFFERENT = 0.999
"""Samples whose float outputs have a larger cosine prove nothing."""
SAMPLES = 8


def cosine(a: Array, b: Array) -> float:
    """Returns the cosine of two outputs, 1 where both are zero."""
    return float(row_cosines(np.reshape(a, (1, -1)), np.reshape(b, (1, -1)))[0])


def farthest(outputs: Sequence[Array]) -> tuple[int, int, float]:
    """Returns the two samples whose outputs differ most, and their cosine."""
    pairs = [(cosine(outputs[i], outputs[j]), i, j) for i, j in combinations(range(len(outputs)), 2)]
    value, i, j = min(pairs)
    return i, j, value


def judge(name: str, wanted: Sequence[Array], got: Sequence[Array]) -> str:
    """Raises AccuracyError where an output collapses; returns a note where nothing can be judged."""
    i, j, truth = farthest(wanted)
    if truth > DIFFERENT:
        return f"output {name}: the float model gives nearly the same for these samples (cosine {truth:.5f})"
    compiled = cosine(got[i], got[j])
    if not compiled < SAME:
        raise AccuracyError(
            f"the compiled model gives the same {name} for samples {i} and {j} (cosine {compiled:.6f}), "
            f"the float model tells them apart ({truth:.4f}): it runs, and its results mean nothing",
            "cosine of two samples",
            compiled,
            SAME,
            [name],
            "keep the embedding in floats (-O float_nodes=.*Gather.*), widen it (-O wide_nodes=...), "
            "or build with -O activation_bits=16",
        )
    return ""


def distinct(candidate: str, manifest: Manifest, reference: str, data: str) -> list[str]:
    """Runs both models on the same samples and judges every output (runs in a child process)."""
    truth = Artifact.open(Path(reference))
    samples = read_samples(Path(data)).first(SAMPLES)
    if len(samples) < 2:
        return ["one sample alone cannot show whether outputs collapse"]
    like = by_name((*truth.manifest.inputs, *truth.manifest.outputs))
    answers: list[dict[str, list[Array]]] = []
    for artifact in (truth, Artifact(Path(candidate), manifest)):
        session = choose(artifact.manifest.format)(artifact)
        try:
            rows = [run_real(session, sample, like) for sample in samples]
        finally:
            session.close()
        answers.append({name: [row[name] for row in rows] for name in rows[0]})
    wanted, got = answers
    return [note for name in wanted if (note := judge(name, wanted[name], got[name]))]
