"""Sub-models of TFLite files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from anynpu import schema
from anynpu.artifact import Artifact, Manifest
from anynpu.graph.outline import Outline
from anynpu.graph.part import free_names, needed_tensors, refuse_made
from anynpu.lowering.graph import pruned
from anynpu.lowering.read import from_bytes
from anynpu.lowering.write import to_bytes
from anynpu.pipeline.bisect.files import Fed, Place
from anynpu.runtime.tflite_file import read_specs
from anynpu.targets.tflite import EQUALIZATION
from anynpu.targets.tflite_outline import CONVERSIONS, outline, through_padding

MODEL = "model.tflite"


class TfliteFile:
    """A .tflite file, float or quantised."""

    suffix = ".tflite"

    def __init__(self, path: Path, format: str, artifact: Artifact | None = None) -> None:
        self.path, self.format = path, format
        self.graph = from_bytes(path.read_bytes(), path.name)
        self.outline: Outline = outline(path)
        inputs, outputs = read_specs(path)
        self.inputs = artifact.manifest.inputs if artifact else tuple(inputs)
        self.outputs = artifact.manifest.outputs if artifact else tuple(outputs)
        self._factors: Mapping[str, list[float]] = {}
        if artifact is not None and any(entry.path == EQUALIZATION for entry in artifact.manifest.files):
            self._factors = through_padding(path, schema.read_json(artifact.file(EQUALIZATION)))

    @property
    def quantised(self) -> bool:
        return any(tensor.scale and not tensor.constant for tensor in self.outline.tensors.values())

    def places(self) -> Mapping[str, Place]:
        places: dict[str, Place] = {}
        for name, tensor in self.outline.tensors.items():
            if not tensor.constant:
                factors = np.asarray(self._factors[name]) if name in self._factors else None
                places[name] = Place(name, name, tensor.shape, factors=factors)
        behind = {o.outputs[0]: o.inputs[0] for o in self.graph.operators if o.kind in CONVERSIONS}
        for name, source in behind.items():
            if source in places and name in places:
                # What a conversion makes is the same tensor, rounded: a cut goes in before it.
                places[name] = Place(places[source].fed, name, places[name].shape, factors=places[source].factors)
        return places

    def cut(self, inputs: Sequence[Fed], outputs: Mapping[str, str], folder: Path) -> Manifest:
        graph, fed_names = self.graph, {fed.own for fed in inputs}
        makers = graph.makers()

        def reads(tensor: str) -> Sequence[str] | None:
            return makers[tensor].inputs if tensor in makers else None if graph.constant(tensor) is None else ()

        needed = needed_tensors(self.path.name, fed_names, outputs.values(), reads)
        kept = [operator for operator in graph.operators if {*operator.outputs} & needed]
        refuse_made(self.path.name, fed_names, (name for operator in kept for name in operator.outputs))
        borders = {fed.own: fed.name for fed in inputs} | {own: name for name, own in outputs.items()}
        names = free_names(borders, graph.tensors)
        tensors = {names.get(n, n): replace(t, name=names.get(n, n)) for n, t in graph.tensors.items()}
        operators = [
            replace(
                operator,
                inputs=tuple(names.get(name, name) for name in operator.inputs),
                outputs=tuple(names.get(name, name) for name in operator.outputs),
            )
            for operator in kept
        ]
        part = pruned(operators, tensors, tuple(fed.name for fed in inputs), tuple(outputs))
        (folder / MODEL).write_bytes(to_bytes(part))
        layouts = {name: tensor.layout for name, tensor in self.outline.tensors.items() if tensor.layout}
        layouts = {names.get(name, name): layout for name, layout in layouts.items()}
        specs = read_specs(folder / MODEL, layouts)
        return Manifest(
            self.format,
            MODEL,
            tuple(specs[0]),
            tuple(specs[1]),
            details={"frozen": [], "degenerate": [], "index_sizes": {}},
        )
