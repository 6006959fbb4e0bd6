"""Whether ONNX Runtime's kernels compute what the file says, on this host and on others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from anynpu.measure.fidelity import compare_outputs
from anynpu.measure.samples import SampleSet
from anynpu.runtime.int8_sums import instruction_set
from anynpu.runtime.ort import OrtSession, run_named
from anynpu.tensors import Array

SAMPLES = 2
APART_DB = 30.0
"""Kernels that are nearer than this to the file's own arithmetic differ from it by roundings."""
CLIPPED_DB = 40.0
"""Clipped sums that come nearer than this to exact ones are no one's concern."""


def kernel_notes(session: Any, known: Mapping[str, Array]) -> list[str]:
    """Returns a note on the kernels that gave the known answers of an ONNX model; others have no choice."""
    if not isinstance(session, OrtSession):
        return []
    samples = SampleSet({spec.name: known[f"input:{spec.name}"] for spec in session.inputs}).first(SAMPLES)
    mine = _real(session, [session.run(sample) for sample in samples])
    names = [spec.name for spec in session.outputs]
    apart = {}
    for kind, other in session.other_kernels().items():
        theirs = _real(session, [run_named(other, names, sample) for sample in samples])
        finite = all(np.isfinite(a).all() for a in (*mine.values(), *theirs.values()))
        apart[kind] = min(f.sqnr_db for f in compare_outputs(mine, theirs).values()) if finite else CLIPPED_DB
    notes = []
    if apart["plain"] < APART_DB:
        notes.append(
            f"the result of the fused kernels, which is judged, is {apart['plain']:.0f} dB from the file's own "
            "arithmetic, which the figures of single layers are of"
        )
    if apart.get("native", CLIPPED_DB) < CLIPPED_DB:
        notes.append(
            f"by itself, ONNX Runtime clips int8 sums on this CPU ({instruction_set()} without VNNI) and is "
            f"{apart['native']:.0f} dB from this result; a program of your own needs session.x64quantprecision=1 here"
        )
    return notes


def _real(session: OrtSession, rows: list[dict[str, Array]]) -> dict[str, Array]:
    return {spec.name: np.concatenate([spec.to_real(row[spec.name]) for row in rows]) for spec in session.outputs}
