"""Generated C on this machine: compiled with the system's compiler and called in this process."""

from __future__ import annotations

import ctypes
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anynpu import tool
from anynpu.artifact import Artifact
from anynpu.errors import DeviceError, IntegrityError, ToolFailed, ToolMissing
from anynpu.tensors import Array

COMPILERS = ("cc", "gcc", "clang")
RANK = 6


class Descriptor(ctypes.Structure):
    """anynpu_tensor, as the generated header declares it."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_uint32),
        ("elements", ctypes.c_uint32),
        ("type", ctypes.c_int),
        ("rank", ctypes.c_uint8),
        ("shape", ctypes.c_int32 * RANK),
        ("scale", ctypes.c_float),
        ("zero_point", ctypes.c_int32),
    )


class HostCSession:
    """Runs generated C as the host's compiler makes it."""

    name = "host"
    formats = ("c",)
    rank = 0
    what = "the generated C on this host's CPU"
    get = "install gcc or clang (Debian: apt install gcc)"

    def __init__(self, artifact: Artifact) -> None:
        self.inputs = artifact.manifest.inputs
        self.outputs = artifact.manifest.outputs
        # A folder of its own: the loader would hand out the same arena for the same file.
        self._folder = tempfile.TemporaryDirectory(prefix="anynpu-host-")
        try:
            self._library = _load(artifact, Path(self._folder.name))
            self._views: dict[str, Array] = {}
            for role, specs in (("input", self.inputs), ("output", self.outputs)):
                for index, spec in enumerate(specs):
                    pointer = getattr(self._library, f"anynpu_{role}")(index)
                    if not pointer or pointer.contents.bytes != spec.nbytes:
                        raise IntegrityError(
                            f"{role} {spec.name}: the generated C has no tensor of {spec.nbytes} bytes there"
                        )
                    memory = (ctypes.c_uint8 * spec.nbytes).from_address(pointer.contents.data)
                    self._views[spec.name] = np.ctypeslib.as_array(memory).view(spec.dtype).reshape(spec.shape)
        except BaseException:
            self._folder.cleanup()
            raise

    @staticmethod
    def missing() -> str:
        return "" if _compiler() else "a C compiler is not installed (the package gcc or clang)"

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        for spec in self.inputs:
            self._views[spec.name][...] = inputs[spec.name]
        if (status := self._library.anynpu_invoke()) != 0:
            raise DeviceError("the generated C failed", call="anynpu_invoke", code=status)
        return {spec.name: self._views[spec.name].copy() for spec in self.outputs}

    def close(self) -> None:
        self._folder.cleanup()


def _compiler() -> str:
    return next((name for name in COMPILERS if shutil.which(name)), "")


def _load(artifact: Artifact, folder: Path) -> Any:
    """Returns the compiled and initialised library."""
    compiler = _compiler()
    if not compiler:
        raise ToolMissing(HostCSession.missing(), "install the package gcc")
    sources = [str(artifact.file(f.path).resolve()) for f in artifact.manifest.files if f.path.endswith(".c")]
    shared = folder / "model.so"
    argv = [compiler, "-std=c99", "-O2", "-shared", "-fPIC", *sources, "-o", str(shared)]
    try:
        tool.run(argv, cwd=folder, log=folder / "log.txt")
        library = ctypes.CDLL(str(shared))
        for function in (library.anynpu_input, library.anynpu_output):
            function.restype = ctypes.POINTER(Descriptor)
        status = library.anynpu_init()
    except ToolFailed as failure:
        first = next((line for line in failure.last_lines if "error" in line), failure.message)
        raise IntegrityError(f"{artifact.path}: the generated C does not compile: {first}") from failure
    except (OSError, AttributeError) as error:
        raise IntegrityError(f"{artifact.path}: is not generated C: {error}") from error
    if status != 0:
        raise DeviceError("the generated C does not start", call="anynpu_init", code=status)
    return library
