"""Checks of a device node: is it there, may this user use it?"""

from __future__ import annotations

import os
import stat

from anynpu.drivers.doctor import fixes
from anynpu.drivers.doctor.machine import Machine
from anynpu.drivers.doctor.result import Result, failed, ok, unknown


def node(machine: Machine) -> Result:
    """The driver has made its device node."""
    patterns = " or ".join(machine.device.nodes) if machine.device else ""
    nodes = machine.nodes()
    devices = [path for path in nodes if machine.root.is_device(path)]
    if devices:
        return ok(", ".join(devices))
    if nodes:
        return failed(f"{nodes[0]} is not a device", f"sudo rm {nodes[0]} && sudo modprobe -r {machine.module_name}")
    log = f"sudo dmesg | grep -i {machine.module_name}"
    return failed(f"no {patterns}", fixes.LOG if machine.is_zhouyi else log)


def permission(machine: Machine) -> Result:
    """This user may read and write the device node."""
    paths = [path for path in machine.nodes() if machine.root.is_device(path)]
    able = next((path for path in paths if _may_use(machine, path)), "")
    shown = describe(machine, able or paths[0])
    if able:
        return ok(shown)
    if machine.user.uid < 0:
        return unknown(f"{shown}; the user is not known", f"test -r {paths[0]} -a -w {paths[0]} && echo yes")
    name = machine.user_name() or f"uid {machine.user.uid}"
    return failed(f"{shown}: {name} may not use it", _grant(machine, paths[0]))


def describe(machine: Machine, path: str) -> str:
    """Returns a path with its mode, owner and group, as ls shows them."""
    status = machine.root.status(path)
    if status is None:
        return path
    return f"{path} {stat.filemode(status.st_mode)} group {machine.group(status.st_gid)[0]}"


def _may_use(machine: Machine, path: str) -> bool:
    if machine.root.is_host:
        return os.access(path, os.R_OK | os.W_OK)  # knows of access lists too
    status = machine.root.status(path)
    if status is None:
        return False
    user = machine.user
    if user.uid == 0:
        return True
    shift = 6 if status.st_uid == user.uid else 3 if status.st_gid in user.groups else 0
    return status.st_mode >> shift & 0o6 == 0o6


def _grant(machine: Machine, path: str) -> str:
    """Returns the command that gives this user access: through the node's group where that has it."""
    status = machine.root.status(path)
    assert status is not None
    name, members = machine.group(status.st_gid)
    if status.st_mode & 0o060 == 0o060 and name not in ("root", "0"):
        if machine.user_name() in members:
            return f"newgrp {name}    # a member since the last login: log out and in again"
        return f"sudo usermod -aG {name} $USER && newgrp {name}"
    if machine.is_zhouyi:
        return fixes.UDEV
    return f"sudo chgrp render {path} && sudo chmod 660 {path} && sudo usermod -aG render $USER && newgrp render"
