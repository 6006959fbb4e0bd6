"""A model as the tasks see it: its card, its tensors, and a function that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from anynpu.errors import ConfigError
from anynpu.schema import near
from anynpu.tasks.card import Card
from anynpu.tensors import Array, TensorSpec


@dataclass(frozen=True)
class Model:
    """A model that is ready to run. `run` takes and gives stored values, as every session's `run` does."""

    card: Card
    files: Mapping[str, Path]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    run: Callable[[Mapping[str, Array]], dict[str, Array]]
    what: str = ""
    """What executes it, for reports."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of the driver, firmware and runtime that execute it, as far as they can be asked."""

    def real(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs the model on real numbers and returns real numbers."""
        specs = {spec.name: spec for spec in self.inputs}
        if set(inputs) != set(specs):
            odd = sorted(set(inputs) ^ set(specs))[0]
            wrong = f"no input {odd}{near(odd, specs)}" if odd in inputs else f"input {odd}, which is missing"
            raise ConfigError(f"the model has {wrong}", "its inputs: " + ", ".join(specs))
        stored = {name: specs[name].to_stored(array) for name, array in inputs.items()}
        for name, array in stored.items():
            specs[name].check(array)
        outputs = self.run(stored)
        return {spec.name: spec.to_real(outputs[spec.name]) for spec in self.outputs}
