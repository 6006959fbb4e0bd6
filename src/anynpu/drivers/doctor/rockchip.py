"""The NPU of Rockchip boards."""

from __future__ import annotations

import re
from contextlib import suppress

from anynpu.drivers import detect
from anynpu.drivers.doctor import access, modules, noe
from anynpu.drivers.doctor.machine import Machine
from anynpu.drivers.doctor.result import Check, Result, failed, ok, unknown
from anynpu.drivers.root import Unreadable

BOUND = "/sys/bus/platform/drivers/RKNPU"
VERSION = "/sys/kernel/debug/rknpu/version"
LIBRARY = "librknnrt.so"
SOURCE = "https://github.com/airockchip/rknn-toolkit2"
PYTHON_PACKAGE = "rknn-toolkit-lite2"


def board(machine: Machine) -> Result:
    """The chip of the board has an NPU."""
    assert machine.device is not None
    return ok(f"{machine.device.title}: {machine.device.found} ({detect.board_name(machine.root) or 'no name'})")


def driver(machine: Machine) -> Result:
    """The vendor's driver rknpu runs; the vendor's runtime works with no other."""
    if machine.root.exists(BOUND) or machine.built_in or machine.module_state == "Live":
        evidence = f"{BOUND if machine.root.exists(BOUND) else 'rknpu'} is there"
        with suppress(Unreadable):  # debugfs is root's; that the driver is there is seen elsewhere
            evidence = machine.root.read(VERSION) or evidence
        return ok(evidence)
    if machine.root.exists("/sys/module/rocket"):
        return failed(
            "the kernel's own driver rocket has the NPU: librknnrt cannot use it",
            "sudo apt install linux-image-vendor-rk35xx    # a kernel of the board's maker, with rknpu",
        )
    if machine.module_path:
        return modules.loaded(machine)
    return failed(f"no rknpu in Linux {machine.release}", modules.install_module(machine))


def driver_version(machine: Machine) -> Result:
    """The version of rknpu is known."""
    try:
        version = machine.root.read(VERSION)
    except Unreadable as error:
        return unknown(error.message, f"sudo cat {VERSION}")
    return (
        ok(version)
        if version
        else unknown(f"{VERSION} is not there", f"sudo cat {VERSION} || sudo dmesg | grep -i rknpu")
    )


def runtime(machine: Machine) -> Result:
    """The vendor's runtime library librknnrt is installed."""
    folders = dict.fromkeys((*noe.linker_folders(machine.root), "/usr/local/lib"))
    path = next((f"{f}/{LIBRARY}" for f in folders if machine.root.exists(f"{f}/{LIBRARY}")), "")
    if not path:
        name = f"rknpu2/runtime/Linux/librknn_api/aarch64/{LIBRARY}"
        return failed(f"no {LIBRARY} where the linker looks", f"sudo cp {name} /usr/lib/    # from {SOURCE}")
    match = re.search(rb"librknnrt version: ([\w.]+)", machine.root.read_bytes(path))
    return ok(f"{path}, version {match[1].decode()}" if match else f"{path}, version unknown")


def python_package(machine: Machine) -> Result:
    """The vendor's Python package rknn-toolkit-lite2 is installed."""
    package = next(machine.packages(PYTHON_PACKAGE), None)
    if package:
        return ok(f"{PYTHON_PACKAGE} {package[1]} in {package[0]}")
    python = ".".join(str(part) for part in machine.python)
    return failed(f"no {PYTHON_PACKAGE} for Python {python}", f"pip install {PYTHON_PACKAGE}")


CHECKS = (
    Check(board),
    Check(driver),
    Check(driver_version, needs=("driver",)),
    Check(access.node, needs=("driver",)),
    Check(access.permission, needs=("node",)),
    Check(runtime),
    Check(python_package),
)
