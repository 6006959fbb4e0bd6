"""How a side is executed: a file by a runtime as it is, or compiled again for its chip, part by part."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from anynpu import plugins, schema
from anynpu.artifact import Artifact, Made, Manifest, Step, seal
from anynpu.errors import ConfigError
from anynpu.measure.decibels import MAX_DB
from anynpu.measure.samples import FILE, SampleSet, write_samples
from anynpu.pipeline.bisect.files import Fed, ModelFile, Place
from anynpu.pipeline.bisect.shared import Part
from anynpu.pipeline.planner import Link
from anynpu.pipeline.preview import Silent
from anynpu.pipeline.request import Request
from anynpu.pipeline.steps import Steps
from anynpu.records.parts import now
from anynpu.runtime.base import open_session, run_real
from anynpu.runtime.versions import versions_of
from anynpu.source.load import ModelSource
from anynpu.store import Store
from anynpu.targets.base import AsksAgreement
from anynpu.tensors import Array, by_name

Rows = Sequence[Mapping[str, Array]]
"""Real numbers of shared tensors, one mapping a sample."""
Open = Callable[[Artifact], Any]


@dataclass(frozen=True)
class Ran:
    """What a part gave, and the files that gave it."""

    outputs: tuple[Mapping[str, Array], ...]
    model: Path
    compiled: Path | None = None
    """The folder with what the compiler made of the model."""


@dataclass
class Direct:
    """A file that a runtime executes, and sub-models of it that the same runtime executes."""

    name: str
    what: str
    file: ModelFile
    open: Open
    artifact: Artifact
    device: str
    places: Mapping[str, Place] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.places = self.places or self.file.places()

    def run_whole(self, part: Part, rows: Rows) -> tuple[Mapping[str, Array], ...]:
        return self._answers(self.artifact, part, rows)

    def run(self, part: Part, rows: Rows, calibration: Rows, folder: Path) -> Ran:
        cut = Artifact(folder, cut_file(self.file, self.places, part, rows[0], folder))
        return Ran(self._answers(cut, part, rows), cut.main)

    def _answers(self, artifact: Artifact, part: Part, rows: Rows) -> tuple[Mapping[str, Array], ...]:
        with closing(self.open(artifact)) as session:
            self.what, self.versions = session.what, versions_of(session)
            specs = by_name((*session.inputs, *session.outputs))
            answers = []
            for row in rows:
                stored = {}
                for name in part.inputs:
                    stored[name] = specs[name].to_stored(self.places[name].to_file(row[name]))
                outputs = session.run(stored)
                answers.append({n: self.places[n].to_shared(specs[n].to_real(outputs[n])) for n in part.outputs})
            return tuple(answers)


def cut_file(
    file: ModelFile, places: Mapping[str, Place], part: Part, example: Mapping[str, Array], folder: Path
) -> Manifest:
    """Writes a part of a file into a folder and returns what it is."""
    own = {name: places[name].read if name in part.rounded else places[name].fed for name in part.inputs}
    fed = [Fed(name, own[name], places[name].to_file(example[name])) for name in part.inputs]
    return file.cut(fed, {name: places[name].read for name in part.outputs}, folder)


@dataclass
class Compiled:
    """An artifact that a compiler made of a file: parts of the file go through the same compiler, with its options."""

    name: str
    what: str
    file: ModelFile
    artifact: Artifact
    before: Artifact
    device: str | None
    store: Store
    chip: str
    places: Mapping[str, Place] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        step = self.artifact.manifest.step
        assert step is not None  # `executions_of` opens no other
        self.places = self.places or self.file.places()
        target = plugins.load("targets", step.name)()
        options = schema.from_dict(target.Options, dict(step.options), f"{self.name}: options")
        # A part that disagrees is what is looked for.
        changed = {"agreement_db": -MAX_DB} if isinstance(options, AsksAgreement) else {}
        self._link = Link(target, replace(options, **changed))
        self._platform = plugins.platform(self.chip)

    def require_same_tools(self) -> None:
        """Raises where the compiler that is installed is not the one that made the artifact."""
        step = self.artifact.manifest.step
        assert step is not None
        for name, version in self._link.target.tools().items():
            if step.tools.get(name, version) != version:
                raise ConfigError(
                    f"{self.name} was compiled with {name} {step.tools[name]}, and {version} is installed here: its "
                    "parts would come out otherwise",
                    "build it again with what is installed, or bisect where the other version is",
                )

    def run_whole(self, part: Part, rows: Rows) -> tuple[Mapping[str, Array], ...]:
        return self._answers(self.artifact, self.before, part, rows)

    def run(self, part: Part, rows: Rows, calibration: Rows, folder: Path) -> Ran:
        room = folder / "before"
        room.mkdir()
        manifest = cut_file(self.file, self.places, part, rows[0], room)
        model = seal(room, manifest, Step("cut"), Made(now(), 0.0))
        samples = folder / "data"
        samples.mkdir()
        arrays = {n: np.concatenate([self.places[n].to_file(row[n]) for row in calibration]) for n in part.inputs}
        write_samples(samples, SampleSet(arrays))
        details = {"random": False, "samples": len(calibration), "held_out": False, "sample_digests": []}
        dataset = Manifest("dataset", FILE, model.manifest.inputs, details=details)
        data = seal(samples, dataset, Step("data"), Made(now(), 0.0))
        request = Request(ModelSource(str(model.main)), (self.chip,))
        steps = Steps(request, self.store, Silent())
        compiled = steps.compile(self.chip, self._link, model, data, self._platform)
        kept = folder / "artifact"
        shutil.copytree(compiled.path, kept)
        return Ran(self._answers(compiled, model, part, rows), model.main, kept)

    def _answers(self, artifact: Artifact, before: Artifact, part: Part, rows: Rows) -> tuple[Mapping[str, Array], ...]:
        like = by_name((*before.manifest.inputs, *before.manifest.outputs))
        answers = []
        with closing(open_session(artifact, self.device)) as session:
            step = artifact.manifest.step
            self.what = session.what
            self.versions = {**(step.tools if step else {}), **versions_of(session)}
            for row in rows:
                outputs = run_real(session, {n: self.places[n].to_file(row[n]) for n in part.inputs}, like)
                answers.append({n: self.places[n].to_shared(outputs[n]) for n in part.outputs})
        return tuple(answers)
