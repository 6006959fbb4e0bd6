"""Targets and sessions that break the contract, each in one way: the kit must catch every one of them.

They live in a module of their own because the kit looks at some of them from a child process.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx

from anynpu.artifact import OperatorPlacement, Placement
from anynpu.errors import IntegrityError, ToolFailed, ToolMissing
from anynpu.runtime.null import NullSession
from anynpu.runtime.ort import OrtSession
from anynpu.targets.base import option
from anynpu.targets.null import Null
from anynpu.tensors import TensorSpec


@dataclass(frozen=True)
class NoHelp:
    level: int = 0


@dataclass(frozen=True)
class NoDefault:
    level: int = field(metadata={"help": "how much"})


@dataclass
class NotFrozen:
    level: int = option(0, "how much")


@dataclass(frozen=True)
class StrangeFacts:
    voltage: float


class NotNamed(Null):
    name = ""


class NeedsAnArgument(Null):
    def __init__(self, port="/dev/toy0"):
        self.port = port

    def __new__(cls, *arguments):
        if not arguments:
            raise TypeError("port is missing")
        return super().__new__(cls)


class OptionsWithoutHelp(Null):
    Options = NoHelp


class OptionsWithoutDefault(Null):
    Options = NoDefault


class OptionsNotFrozen(Null):
    Options = NotFrozen


class FactsThatDoNotFit(Null):
    Facts = StrangeFacts


class ToolsImportHeavyPackages(Null):
    def tools(self):
        import onnxruntime

        return {"onnxruntime": onnxruntime.__version__}


class ToolsRaiseAnotherError(Null):
    def tools(self):
        raise ToolFailed("no tool")


class ToolsMissingWithoutHint(Null):
    def tools(self):
        raise ToolMissing("no tool")


class ToolsWithoutVersion(Null):
    def tools(self):
        return {"toycc": 3}


class NeedsDataAndTakesNone(Null):
    def needs_data(self, options):
        return True


class NeedsDataAndFallsOver(Null):
    def needs_data(self, options):
        return True

    def compile(self, model, data, platform, options, out, work):
        assert data.path  # an AttributeError without data
        return super().compile(model, data, platform, options, out, work)


class CheckGivesTexts(Null):
    def check(self, model, platform, options):
        return ("too large",)


class CheckWrites(Null):
    def check(self, model, platform, options):
        Path("check.log").write_text("checked")
        return ()


class WritesBesideOut(Null):
    def compile(self, model, data, platform, options, out, work):
        (out.parent / "summary.csv").write_text("done")
        return super().compile(model, data, platform, options, out, work)


class WritesIntoTheWorkingFolder(Null):
    def compile(self, model, data, platform, options, out, work):
        Path("toycc.log").write_text("done")
        return super().compile(model, data, platform, options, out, work)


class ChangesItsInput(Null):
    def compile(self, model, data, platform, options, out, work):
        (model.path / "cache.bin").write_text("warm")
        return super().compile(model, data, platform, options, out, work)


class _Changed(Null):
    change: ClassVar = {}

    def compile(self, model, data, platform, options, out, work):
        return replace(super().compile(model, data, platform, options, out, work), **self.change)


class AnotherFormat(_Changed):
    change: ClassVar = {"format": "toy"}


class NoMainFile(_Changed):
    change: ClassVar = {"main": "model.toy"}


class NotJson(_Changed):
    change: ClassVar = {"details": {"figures": np.float32(1)}}


class DropsTheFingerprint(_Changed):
    change: ClassVar = {"fingerprint": ""}


class DropsAnOutput(_Changed):
    change: ClassVar = {"outputs": ()}


class _Respecified(Null):
    def compile(self, model, data, platform, options, out, work):
        manifest = super().compile(model, data, platform, options, out, work)
        return replace(manifest, inputs=tuple(self.respecify(spec) for spec in manifest.inputs))


class TurnsAxesWithoutSaying(_Respecified):
    def respecify(self, spec):
        return replace(spec, shape=spec.shape[::-1])


class QuantisesWithoutSaying(_Respecified):
    def respecify(self, spec):
        return replace(spec, dtype="int8")


class NoReceipt(Null):
    """For a chip with an NPU, says nothing about where operators run."""


class ReceiptWithoutReasons(_Changed):
    change: ClassVar = {"placement": Placement("toy", (OperatorPlacement("conv1", "Conv", "cpu"),))}


class FileWithTheTime(Null):
    def compile(self, model, data, platform, options, out, work):
        (out / "built.txt").write_text(str(time.time_ns()))
        return super().compile(model, data, platform, options, out, work)


class ManifestWithItsFolder(Null):
    def compile(self, model, data, platform, options, out, work):
        manifest = super().compile(model, data, platform, options, out, work)
        return replace(manifest, details={"folder": str(out)})


class FallsOverBadFiles(Null):
    def compile(self, model, data, platform, options, out, work):
        onnx.load(str(model.main))  # raises the parser's own errors
        return super().compile(model, data, platform, options, out, work)


class CopiesBadFiles(Null):
    def compile(self, model, data, platform, options, out, work):
        shutil.copyfile(model.main, out / "copy.bin")
        return super().compile(model, data, platform, options, out, work)


class WithoutFormats(OrtSession):
    formats = ()


class MissingIsNone(OrtSession):
    @staticmethod
    def missing():
        return None


class OtherSpecs(OrtSession):
    def __init__(self, artifact):
        super().__init__(artifact)
        self.inputs = tuple(spec.renamed("x") for spec in self.inputs)


class GivesFloat64(OrtSession):
    def run(self, inputs):
        return {name: value.astype(np.float64) for name, value in super().run(inputs).items()}


class DropsAResult(OrtSession):
    def run(self, inputs):
        super().run(inputs)
        return {}


class Remembers(OrtSession):
    runs = 0

    def run(self, inputs):
        self.runs += 1
        return {name: value + self.runs for name, value in super().run(inputs).items()}


class ScalesItsInput(OrtSession):
    def run(self, inputs):
        outputs = super().run(inputs)
        for value in inputs.values():
            value *= 2
        return outputs


class ReadsRawMemory(OrtSession):
    def run(self, inputs):
        # As a C runtime reads a buffer: in memory order, whatever the strides say.
        raw = {name: np.frombuffer(a.tobytes("A"), a.dtype).reshape(a.shape) for name, a in inputs.items()}
        return super().run(raw)


class ReusesItsBuffers(OrtSession):
    buffers = None

    def run(self, inputs):
        outputs = super().run(inputs)
        if self.buffers is None:
            self.buffers = outputs
        for name, value in outputs.items():
            self.buffers[name][:] = value
        return self.buffers


class SharesOneDevice(OrtSession):
    """Keeps the model in one place for all sessions, and close() takes it away from the others."""

    device: ClassVar = {}

    def __init__(self, artifact):
        super().__init__(artifact)
        self.device["model"] = self._session

    def run(self, inputs):
        if "model" not in self.device:
            return {spec.name: np.zeros(spec.shape, spec.dtype) for spec in self.outputs}
        return super().run(inputs)

    def close(self):
        self.device.pop("model", None)


class LaxSpec(TensorSpec):
    def check(self, array):
        return


class TakesAnyInput(OrtSession):
    def __init__(self, artifact):
        super().__init__(artifact)
        self.inputs = tuple(LaxSpec(**vars(spec)) for spec in self.inputs)


class ClosesOnce(OrtSession):
    def close(self):
        del self._session


class FallsOverDamage(OrtSession):
    def __init__(self, artifact):
        onnx.load(str(artifact.main))  # raises the parser's own errors
        super().__init__(artifact)


class CrashesOnDamage(OrtSession):
    def __init__(self, artifact):
        try:
            super().__init__(artifact)
        except IntegrityError:
            os.abort()


class RunsDamage(NullSession):
    formats = ("onnx",)

    def __init__(self, artifact):
        super().__init__(artifact)
        self.size = artifact.main.stat().st_size

    def run(self, inputs):
        return {name: value + self.size for name, value in super().run(inputs).items()}


class WrongNumbers(OrtSession):
    def run(self, inputs):
        return {name: np.roll(value, 1) for name, value in super().run(inputs).items()}
