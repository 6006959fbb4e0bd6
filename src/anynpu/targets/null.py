"""The null target: a real compiler that makes nothing, for tests, dry runs and as the smallest example."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from anynpu.artifact import Artifact, Manifest
from anynpu.errors import Finding
from anynpu.platform import Platform
from anynpu.targets.base import NoFacts, Work


@dataclass(frozen=True)
class NoOptions:
    """The null target has no options."""


class Null:
    """Turns any ONNX model into a file that says which model it was."""

    name = "null"
    accepts = "onnx"
    produces = "null"
    Options = NoOptions
    Facts = NoFacts

    def tools(self) -> Mapping[str, str]:
        return {}

    def needs_data(self, options: NoOptions) -> bool:
        return False

    def check(self, model: Artifact, platform: Platform, options: NoOptions) -> tuple[Finding, ...]:
        return ()

    def compile(
        self, model: Artifact, data: Artifact | None, platform: Platform, options: NoOptions, out: Path, work: Work
    ) -> Manifest:
        (out / "model.null").write_text(model.manifest.fingerprint + "\n", "utf-8")
        return Manifest(
            format=self.produces,
            main="model.null",
            inputs=model.manifest.inputs,
            outputs=model.manifest.outputs,
            fingerprint=model.manifest.fingerprint,
            notes=("the null device computes nothing; there is nothing to verify",),
        )
