"""The error of each layer taken from the command stream itself: what the operations of the NPU store, against the float
model's tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from anynpu.artifact import Artifact
from anynpu.measure.layers import Inner, Match, Sums
from anynpu.measure.samples import SampleSet, read_samples
from anynpu.records.build import GraphForm
from anynpu.runtime.base import stored_inputs
from anynpu.tensors import Array, by_name

FILE = "inner.npz"
SAMPLES = 2
MOST_BYTES = 64 << 20
"""Inner tensors of larger models are not kept."""


def keep_inner(session: Inner, matches: Sequence[Match], samples: SampleSet, truth: Artifact, path: Path) -> None:
    """Writes the float model's tensors for the first samples, by the names that the quantised model has for them."""
    like = by_name((*truth.manifest.inputs, *truth.manifest.outputs))
    kept: dict[str, Array] = {}
    for number, sample in enumerate(samples.first(SAMPLES)):
        tensors = session.tensors(stored_inputs(session, sample, like), [m.reference for m in matches])  # type: ignore[arg-type]  # it is a session too
        for index, match in enumerate(matches):
            if match.reference in tensors:
                kept[f"{number} {index}"] = np.asarray(tensors[match.reference], np.float32)
        if sum(value.nbytes for value in kept.values()) > MOST_BYTES:
            return
    kept |= {f"factors {i}": match.factors for i, match in enumerate(matches) if match.factors is not None}
    np.savez(path, names=np.array([match.subject for match in matches]), **kept)  # type: ignore[arg-type]


def stream_errors(final: Artifact, before: Artifact, truth: Artifact, data: Artifact, inner: Path) -> dict[str, float]:
    """Returns the SQNR in dB of every tensor that the stream stores whole, by its name in the model before Vela."""
    from anynpu.runtime.ethos_u.difference import arranged, layer_values
    from anynpu.runtime.ethos_u.layers import ORIGINS
    from anynpu.runtime.ethos_u.session import EthosUSession
    from anynpu.targets.flatbuffer import operators

    session: Any = EthosUSession(final)
    graph = operators(before.main)
    like = by_name((*truth.manifest.inputs, *truth.manifest.outputs))
    sums: dict[str, Sums] = {}
    with np.load(inner) as kept:
        numbers = {str(name): i for i, name in enumerate(kept["names"])}
        for sample_number, sample in enumerate(read_samples(data.path).first(SAMPLES)):
            stored = stored_inputs(session, sample, like)
            inputs = [stored[spec.name].reshape(spec.shape) for spec in session.inputs]
            for operator, pieces in layer_values(session.twin, final.path / ORIGINS, inputs).items():
                tensor = graph[operator].outputs[0]
                key = f"{sample_number} {numbers.get(tensor.name, -1)}" if tensor is not None else ""
                if tensor is None or key not in kept or not tensor.scale:
                    continue
                wanted = kept[key]
                factors = kept.get(f"factors {numbers[tensor.name]}")
                ways = arranged(pieces, wanted)
                if not ways:
                    continue
                real = [(way.astype(np.float64) - tensor.zero_point[0]) * tensor.scale[0] for way in ways]
                lifted = [way if factors is None else way / factors for way in real]
                best = min(lifted, key=lambda way: float(np.square(way - wanted).sum()))
                sums.setdefault(tensor.name, Sums()).add(wanted, best)
    return {name: round(result.sqnr_db, 3) for name, total in sums.items() if (result := total.result) is not None}


def add_stream_errors(graph: GraphForm, errors: Mapping[str, float]) -> GraphForm:
    """Returns a graph whose nodes have the error of what the stream stores for them; None for one that is fused."""
    nodes = []
    for node in graph.nodes:
        known = [errors[name] for name in node.outputs if name in errors]
        nodes.append(replace(node, stream_sqnr_db=min(known) if known else None))
    return replace(graph, nodes=tuple(nodes))
