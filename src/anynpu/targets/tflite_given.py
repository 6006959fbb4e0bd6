"""A .tflite file that came quantised: handed on with its own integers, so that every chip after TFLite takes it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from anynpu.artifact import Artifact, Manifest
from anynpu.errors import Finding
from anynpu.platform import Platform
from anynpu.runtime.tflite_file import float_operators, read_model
from anynpu.targets.base import NoFacts, Work
from anynpu.targets.quantising import bare, float_notes

WHAT = "given"
"""The detail that says what a given file is, such as "an int8 model"."""


@dataclass(frozen=True)
class TfLiteGivenOptions:
    """Nothing is left to choose: scales, types and granularities are the file's own."""


class TfLiteGiven:
    """Takes a quantised TensorFlow Lite file as it was given."""

    name = "tflite_given"
    accepts = "tflite-given"
    produces = "tflite"
    Options = TfLiteGivenOptions
    Facts = NoFacts

    def tools(self) -> Mapping[str, str]:
        return {}

    def needs_data(self, options: TfLiteGivenOptions) -> bool:
        return False

    def check(self, model: Artifact, platform: Platform, options: TfLiteGivenOptions) -> tuple[Finding, ...]:
        return ()

    def compile(
        self,
        model: Artifact,
        data: Artifact | None,
        platform: Platform,
        options: TfLiteGivenOptions,
        out: Path,
        work: Work,
    ) -> Manifest:
        source, result = model.manifest, out / "model.tflite"
        shutil.copyfile(model.main, result)
        left = float_operators(read_model(result.read_bytes(), str(result)))
        return replace(
            bare(source, result),
            format=self.produces,
            details={WHAT: source.details.get(WHAT, "")},
            notes=float_notes(left),
        )
