"""Rockchip's simulator runs a model only in the process that has built it: the artifact holds what to build from.

    model.rknn              for the board
    rebuild/model.onnx      what the toolkit was given
    rebuild/samples.npz     the calibration samples it was given, where it quantised
    rebuild/recipe.json     its settings
    rebuild/answers.npz     what its simulator answered to one drawn input

A session builds the model again and takes it for the artifact's if the .rknn file is the same byte for byte. The
toolkit writes memory that it never filled into the file, and addresses: so its process runs with memory that is filled
alike, addresses that are not random, one thread and no clock in its words. Where a file differs all the same (a
container may forbid some of this), version, size and answers must be the same, and `what` says so.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from anynpu import schema
from anynpu.arrays import read_npz
from anynpu.artifact import Artifact, hash_file
from anynpu.errors import AnyNpuError, DeviceError, IntegrityError, ToolFailed
from anynpu.runtime import capsuled
from anynpu.runtime.capsuled import SessionLog, require_sound
from anynpu.tensors import Array, TensorSpec

if TYPE_CHECKING:
    from anynpu.capsules.capsule import Capsule

TOOL = "rknn"
RESULT, REBUILD = "model.rknn", "rebuild"
MODEL, SAMPLES, RECIPE, ANSWERS = "model.onnx", "samples.npz", "recipe.json", "answers.npz"
RUN_LIMIT_S = 600
PYTHON = """#!/bin/sh
export OMP_NUM_THREADS=1 TQDM_DISABLE=1 PYTHONHASHSEED=0
export GLIBC_TUNABLES=glibc.malloc.tcache_count=0:glibc.malloc.perturb=255
if setarch -R true 2>/dev/null; then exec setarch -R {python} "$@"; fi
exec {python} "$@"
"""


@dataclass(frozen=True)
class Recipe:
    """How the toolkit builds the model: the arguments of its `config` and `build`, and its version."""

    version: str
    config: Mapping[str, object]
    build: Mapping[str, object] = field(default_factory=dict)
    time_limit_s: int = 3600


class Simulator:
    """A process that has built a model from a folder as above, and runs it; it works in a folder of its own."""

    def __init__(self, tool: Capsule, log: Path) -> None:
        # Names of one length in every build: the lengths of paths decide where the process's memory lies.
        self._room = tempfile.TemporaryDirectory(prefix="anynpu-rknn-")
        self._folder = Path(self._room.name)
        python = self._folder / "python"
        python.write_text(PYTHON.format(python=shlex.quote(str(tool.python or "python3"))), "utf-8")
        python.chmod(0o755)
        from anynpu.capsules.worker import Worker

        self._worker = Worker(replace(tool, python=python), "rknn_worker", scratch=self._folder, log=log)
        self._inputs: tuple[TensorSpec, ...] = ()
        self._outputs: tuple[TensorSpec, ...] = ()

    def build(
        self,
        source: Path,
        recipe: Recipe,
        specs: tuple[Sequence[TensorSpec], Sequence[TensorSpec]],
        progress: Callable[[int, int], None] | None = None,
    ) -> Path:
        """Builds the model of the folder `source` and returns the .rknn file; `specs` are its inputs and outputs."""
        self._inputs, self._outputs = tuple(specs[0]), tuple(specs[1])
        present = [name for name in (MODEL, SAMPLES) if (source / name).is_file()]
        for name in present:
            shutil.copyfile(source / name, self._folder / name)
        arguments = {
            "model": MODEL,
            "config": dict(sorted(recipe.config.items())),
            "options": dict(sorted(recipe.build.items())),
            "inputs": [spec.name for spec in self._inputs],
            "samples": SAMPLES if SAMPLES in present else "",
            "out": RESULT,
        }
        self._worker.ask("build", arguments, timeout_s=recipe.time_limit_s, progress=progress)
        return self._folder / RESULT

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs the model once."""
        names = {"inputs": [s.name for s in self._inputs], "outputs": [s.name for s in self._outputs]}
        _, outputs = self._worker.ask("run", names, inputs, timeout_s=RUN_LIMIT_S)
        return {spec.name: shaped(spec, outputs[spec.name]) for spec in self._outputs}

    def answers(self) -> dict[str, Array]:
        """Returns what it makes of one drawn input: enough to tell two builds apart."""
        draw = np.random.default_rng(0)
        drawn = {}
        for spec in self._inputs:
            real = spec.dtype.startswith("float")
            drawn[spec.name] = draw.random(spec.shape) if real else draw.integers(0, 2, spec.shape)
        return self.run({spec.name: drawn[spec.name].astype(spec.dtype) for spec in self._inputs})

    def close(self) -> None:
        """Ends the process and removes its folder."""
        self._worker.close()
        self._room.cleanup()


def shaped(spec: TensorSpec, values: Array) -> Array:
    """Returns an output in the model's own shape and type; the toolkit adds axes of one."""
    if values.size != spec.size:
        shapes = f"{list(values.shape)}, not {list(spec.shape)}"
        raise DeviceError(f"output {spec.name} comes in the shape {shapes}", "inference")
    return values.reshape(spec.shape).astype(spec.dtype)


class RknnSession:
    """Runs .rknn artifacts on Rockchip's simulator."""

    name = "rknn"
    formats = ("rknn",)
    rank = 5
    what = "RKNN-Toolkit2 simulator on this host (it rebuilds the model; not evidence for one chip)"
    get = "anynpu tool install rknn"

    def __init__(self, artifact: Artifact) -> None:
        self.inputs, self.outputs = artifact.manifest.inputs, artifact.manifest.outputs
        require_sound(artifact)
        from anynpu.capsules.capsule import find

        tool = find(TOOL)
        self._log = SessionLog(TOOL)
        self._simulator = Simulator(tool, self._log.path)
        try:
            self._rebuild(artifact, tool)
        except BaseException as error:
            self._log.keep(error)
            self.close()
            raise

    @staticmethod
    def missing() -> str:
        return capsuled.missing(TOOL)

    def _rebuild(self, artifact: Artifact, tool: Capsule) -> None:
        source = artifact.path / REBUILD
        try:
            recipe = schema.from_dict(Recipe, schema.read_json(source / RECIPE), RECIPE)
            answers = read_npz(source / ANSWERS)
        except (AnyNpuError, OSError, ValueError) as error:
            raise IntegrityError(f"{source}: cannot be built again ({error})") from None
        rebuilt = self._simulator.build(source, recipe, (self.inputs, self.outputs))
        if hash_file(rebuilt) == hash_file(artifact.main):
            return
        alike = recipe.version == tool.version and rebuilt.stat().st_size == artifact.main.stat().st_size
        again = self._simulator.answers() if alike else {}
        same = answers.keys() == again.keys()  # and then the same bits, for every output
        if not same or not all(np.array_equal(value, again[n], equal_nan=True) for n, value in answers.items()):
            raise IntegrityError(
                f"{artifact.main}: RKNN-Toolkit2 {tool.version} builds another model from the same input",
                f"it was built with {recipe.version}; build it again with the toolkit that is here",
            )
        self.what = f"{self.what[:-1]}; this time its file came out in other bytes, of one size and with one answer)"

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        try:
            return self._simulator.run(inputs)
        except ToolFailed as error:
            self._log.keep(error)
            raise

    def close(self) -> None:
        self._simulator.close()
        self._log.close()
