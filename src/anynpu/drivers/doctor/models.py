"""Checks of model files that the user names."""

from __future__ import annotations

import shlex

from anynpu.drivers.doctor.machine import Machine
from anynpu.drivers.doctor.result import Check, Result, failed, ok
from anynpu.errors import IntegrityError
from anynpu.runtime.noe.cix import LFS_POINTER, read_cix
from anynpu.runtime.tflite_form import IDENTIFIER

AGAIN = "rm {}    # and fetch or build it again"
MARKS = {".tflite": (4, IDENTIFIER), ".rknn": (0, b"RKNN")}
"""Where a kind of file has which bytes."""


def checks(machine: Machine) -> tuple[Check, ...]:
    """Returns one check for each model file that the user named."""
    return tuple(_check(path) for path in machine.models)


def _check(path: str) -> Check:
    def model(machine: Machine) -> Result:
        """The model file is whole."""
        return examine_model(machine, path)

    return Check(model)


def examine_model(machine: Machine, path: str) -> Result:
    """Returns whether a model file is what its name says."""
    here = machine.root.real(path)
    if not machine.root.is_file(path):
        return failed(f"{path}: no such file", f"ls {shlex.quote(path.rpartition('/')[0] or '/')}")
    start = machine.root.read_bytes(path, 64)
    if start.startswith(LFS_POINTER):
        folder, _, name = path.rpartition("/")
        fix = f"git -C {shlex.quote(folder or '/')} lfs pull --include {shlex.quote(name)}"
        return failed(f"{path} is a git-lfs pointer of {here.stat().st_size} bytes, not the model", fix)
    if path.endswith(".cix"):
        try:
            cix = read_cix(machine.root.real(path))
        except IntegrityError as error:
            message = error.message.replace(str(machine.root.real(path)), path)
            return failed(message, AGAIN.format(shlex.quote(path)))
        names = [", ".join(f"{t.name} {t.dtype}" for t in tensors) for tensors in (cix.inputs, cix.outputs)]
        return ok(f"{path}: {names[0]} -> {names[1]}, for {cix.target}")
    ending = next((ending for ending in MARKS if path.endswith(ending)), "")
    at, mark = MARKS.get(ending, (0, b""))
    if not start or start[at : at + len(mark)] != mark:
        what = "empty" if not start else f"no {ending} file"
        return failed(f"{path} is {what}", AGAIN.format(shlex.quote(path)))
    return ok(f"{path}, {here.stat().st_size} bytes")
