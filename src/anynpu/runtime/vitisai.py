"""Quantised ONNX models on a Ryzen AI NPU, through ONNX Runtime's VitisAI provider.

The provider leaves to the CPU what it does not take, ONNX Runtime leaves out a provider that does not start, and both
do so without a word. Here a provider that is left out is an error, so is a model of which nothing runs on the NPU, and
every session holds the receipt of a run: which operators really ran there.
"""

from __future__ import annotations

import importlib.metadata
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anynpu import plugins, schema
from anynpu.artifact import Artifact, Placement, hash_file
from anynpu.drivers.ryzen_facts import VitisFacts
from anynpu.drivers.ryzen_sdk import GET, VARIABLE, provider_options
from anynpu.errors import DeviceError, IntegrityError, ToolMissing, Unsupported, first_line
from anynpu.runtime.ort import inference_session, open_session, run_named
from anynpu.runtime.versions import accelerator_firmware, module_version
from anynpu.runtime.vitisai_cache import CompileCache
from anynpu.runtime.vitisai_report import FILE, PROVIDER, receipt
from anynpu.schema import JsonObject
from anynpu.tensors import Array

if TYPE_CHECKING:
    from anynpu.drivers.root import Root

REPORT_VARIABLE = "XLNX_ONNX_EP_REPORT_FILE"
PACKAGES = ("onnxruntime-vitisai", "onnxruntime", "voe", "ryzen-ai-lt")
"""The packages whose versions tell one provider from another."""
DOCTOR = "`anynpu doctor` looks at driver, library and packages"


class VitisAiSession:
    """Runs models that were quantised for Ryzen AI; the first one of a model compiles it, later ones find it compiled.

    Opening it runs the model once on zeros, under a profile, which `placement` is read from.
    """

    name = "vitisai"
    formats = ("onnx-vitisai",)
    rank = 10
    get = GET
    what = "Ryzen AI NPU through ONNX Runtime's VitisAI provider"
    packages = (
        "onnxruntime-vitisai",
        "onnxruntime",
    )
    hardware = True

    def __init__(self, artifact: Artifact, root: Root | None = None, cache: Path | None = None) -> None:
        from anynpu.drivers import ryzenai  # this class is loaded with all others, to ask what it runs

        if reason := self.missing():
            raise ToolMissing(reason, self.get)
        self.inputs, self.outputs = artifact.manifest.inputs, artifact.manifest.outputs
        # The chip of this machine, or the one that the model was built for where none is recognised.
        usable, step = ryzenai.find(root).usable, artifact.manifest.step
        self.chip = usable[0].chip if usable else step.platform if step else ""
        if not self.chip:
            raise IntegrityError(
                "the artifact does not say which chip it was built for", "build it with `anynpu build`"
            )
        platform = plugins.platform(self.chip)
        facts, precision = platform.facts_as(VitisFacts), str(artifact.manifest.details.get("precision", "xint8"))
        compiled = CompileCache(cache)
        try:
            options = provider_options(facts, precision, compiled.folder, "")
        except Unsupported as error:  # this machine's NPU is not the one that the model was built for
            raise DeviceError(f"{self.chip}: {error.message}", "InferenceSession", hint=error.hint) from error
        about: JsonObject = {
            "chip": self.chip,
            "model": hash_file(artifact.main),
            "fingerprint": artifact.manifest.fingerprint,
            "options": {name: value for name, value in options.items() if not name.startswith("cache_")},
            "versions": versions(),
        }
        self.cache_key = schema.digest(about)[:32]
        with compiled.entry(self.cache_key, about) as folder:
            self._session: Any
            self._session, self.placement = self._open(artifact, options | {"cache_key": folder.name}, platform.npu)

    def versions(self) -> dict[str, str]:
        """Returns the versions of the kernel's driver and of the NPU's firmware."""
        return {"driver": module_version("amdxdna"), "firmware": accelerator_firmware()}

    @staticmethod
    def missing() -> str:
        """Returns what is to be installed before ONNX Runtime can use the NPU here."""
        try:
            import onnxruntime
        except ImportError:
            return f"onnxruntime is not installed, nor its {PROVIDER}"
        present = onnxruntime.get_available_providers()
        return "" if PROVIDER in present else f"ONNX Runtime has no {PROVIDER} here (it has {', '.join(present)})"

    def _open(self, artifact: Artifact, options: dict[str, str], npu: str) -> tuple[Any, Placement]:
        """Returns a session that has run once, and what ran where."""
        report = Path(options["cache_dir"]) / options["cache_key"] / FILE
        with tempfile.TemporaryDirectory() as folder, _reporting_to(report):
            try:
                session = open_session(
                    str(artifact.main),
                    profile=str(Path(folder) / "profile"),
                    providers=[PROVIDER],
                    provider_options=[options],
                )
            except IntegrityError as error:
                inference_session(str(artifact.main))  # what the CPU refuses too is damaged, whatever the NPU says
                words = first_line(error.__cause__ or error)
                raise DeviceError(
                    f"ONNX Runtime cannot open the model on the NPU: {words}", "InferenceSession", hint=DOCTOR
                ) from error
            if PROVIDER not in session.get_providers():
                raise DeviceError(
                    f"ONNX Runtime silently left out {PROVIDER} and would run the model on "
                    f"{', '.join(session.get_providers())}",
                    call="InferenceSession",
                    cause="the provider's libraries did not load, or the driver refused",
                    hint=DOCTOR,
                )
            session.disable_fallback()  # the binding would open it again on the CPU when a run fails
            self._session = session
            self.run({spec.name: np.zeros(spec.shape, spec.dtype) for spec in self.inputs})
            profile = Path(session.end_profiling()).read_text("utf-8")
        report_text = report.read_text("utf-8", "replace") if report.is_file() else ""
        placed = receipt(profile, report_text, npu)
        if not placed.on_npu:
            raise DeviceError(
                f"none of the {len(placed.operators)} operators runs on the NPU: {placed.operators[0].reason}",
                call="InferenceSession",
                cause="the model's precision or opset, or a driver that does not fit the Ryzen AI software",
                hint=f"run it on the CPU with --on quark, where that is meant; {DOCTOR}",
            )
        return session, placed

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return run_named(self._session, [spec.name for spec in self.outputs], inputs, DOCTOR)

    def close(self) -> None:
        self._session = None


def versions() -> dict[str, str]:
    """Returns the versions of everything that has a part in compiling for the NPU."""
    installed = {}
    for package in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            installed[package] = importlib.metadata.version(package)
    return installed | {"sdk": Path(os.environ.get(VARIABLE, "")).name}


@contextmanager
def _reporting_to(path: Path) -> Iterator[None]:
    """Has the provider write its report there; since Ryzen AI 1.5 it does so on request only."""
    before = os.environ.get(REPORT_VARIABLE)
    os.environ[REPORT_VARIABLE] = str(path)
    try:
        yield
    finally:
        if before is None:
            del os.environ[REPORT_VARIABLE]
        else:
            os.environ[REPORT_VARIABLE] = before
