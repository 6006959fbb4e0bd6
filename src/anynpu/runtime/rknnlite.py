"""The NPU of the Rockchip board that this runs on, through RKNN-Toolkit-Lite2 and the board's librknnrt."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import numpy as np

from anynpu.artifact import Artifact
from anynpu.errors import DeviceError, IntegrityError
from anynpu.runtime.capsuled import require_sound
from anynpu.runtime.rknn import shaped
from anynpu.runtime.versions import module_version
from anynpu.tensors import Array


class RknnLiteSession:
    """Runs .rknn files on the board's own NPU; the board converts real numbers to what the NPU computes with."""

    name = "rknnlite"
    formats = ("rknn",)
    rank = 0
    what = "this board's Rockchip NPU (RKNN-Toolkit-Lite2)"
    packages = ("rknn-toolkit-lite2",)
    hardware = True
    get = "pip install rknn-toolkit-lite2    # on the board; `anynpu doctor` looks at its driver and runtime"

    def __init__(self, artifact: Artifact) -> None:
        from rknnlite.api import RKNNLite  # type: ignore[import-not-found]  # the vendor's

        self.inputs, self.outputs = artifact.manifest.inputs, artifact.manifest.outputs
        require_sound(artifact)
        self._lite: Any = RKNNLite()
        if code := self._lite.load_rknn(str(artifact.main)):
            raise IntegrityError(f"{artifact.main}: RKNN-Toolkit-Lite2 does not load it (load_rknn gives {code})")
        if code := self._lite.init_runtime():
            chip = artifact.manifest.step.platform if artifact.manifest.step else ""
            raise DeviceError(
                "the board's NPU does not take the model",
                "init_runtime",
                code,
                "another chip than it was built for, or a driver or librknnrt older than the toolkit",
                f"it was built for {chip or 'another chip'}: compare with `anynpu doctor`",
            )

    def versions(self) -> dict[str, str]:
        """Returns the versions that the runtime tells of itself and its driver, as it writes them."""
        version = self._lite.get_sdk_version() if hasattr(self._lite, "get_sdk_version") else ""
        return {"runtime": " ".join(str(version or "").split()), "driver": module_version("rknpu")}

    @staticmethod
    def missing() -> str:
        installed = importlib.util.find_spec("rknnlite") is not None
        return "" if installed else "rknn-toolkit-lite2 is not installed (it runs on the board alone)"

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        if self._lite is None:
            raise DeviceError("the session is closed", "inference")
        arrays = [np.ascontiguousarray(inputs[spec.name]) for spec in self.inputs]
        formats = ["nchw" if array.ndim == 4 else None for array in arrays]
        results = self._lite.inference(inputs=arrays, data_format=formats if any(formats) else None)
        if results is None or len(results) != len(self.outputs):
            got = 0 if results is None else len(results)
            raise DeviceError(f"the board gave {got} outputs, not {len(self.outputs)}", "inference")
        return {spec.name: shaped(spec, np.array(value)) for spec, value in zip(self.outputs, results, strict=True)}

    def close(self) -> None:
        if self._lite is not None:
            self._lite.release()
        self._lite = None
