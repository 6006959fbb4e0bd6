"""The layers that the operations of a stream come from, as the artifact's stream.csv has them."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from anynpu.artifact import Artifact

ORIGINS = "stream.csv"


@dataclass(frozen=True)
class Layer:
    """The operator of the source graph that an operation was compiled from, and the operators it reads from."""

    operator: int
    title: str
    reads: frozenset[int] | None
    """Operators by number, -1 for an input of the graph; None where it is not known."""


def layers_of(artifact: Artifact) -> dict[tuple[int, int], Layer]:
    """Returns the layer of each operation by stream and word, where the artifact has them."""
    if ORIGINS not in {file.path for file in artifact.manifest.files}:
        return {}
    return read_layers(artifact.file(ORIGINS))


def read_layers(origins: Path) -> dict[tuple[int, int], Layer]:
    """Returns the layer of each operation by stream and word."""
    with origins.open(encoding="utf-8", newline="") as source:
        rows = list(csv.DictReader(source))
    return {
        (int(row["stream"]), int(row["word"])): Layer(
            int(row["operator"]),
            f"{row['kind']} {row['name']}",
            frozenset(map(int, row["reads"].split())) if row.get("reads") is not None else None,
        )
        for row in rows
    }
