"""The Zhouyi NPU of CIX boards, from the firmware up to the vendor's library."""

from __future__ import annotations

import functools
import re

from anynpu.drivers import detect
from anynpu.drivers.doctor import access, fixes, modules, noe
from anynpu.drivers.doctor.machine import Machine
from anynpu.drivers.doctor.result import Check, Look, Result, failed, missing, ok, unknown
from anynpu.errors import IntegrityError

DRIVER = "/sys/bus/platform/drivers/armchina"
OLDEST, NEWEST = (6, 1), (7, 2)
"""The kernels that the version-guarded driver was built for, first and last."""
NAMESPACE = "DMA_BUF"
HARDWARE = "CIXH4000"


def board(machine: Machine) -> Result:
    """The board has its NPU and the firmware tells the kernel of it."""
    device = machine.device
    assert device is not None
    name = detect.board_name(machine.root) or "a board without a name"
    if device.hidden:
        return failed(
            f"{name}: no {HARDWARE} in /sys/bus/acpi/devices; the NPU is switched off or the BIOS is too old",
            "sudo systemctl reboot --firmware-setup    # switch the NPU and ACPI on, or update the BIOS",
        )
    return ok(f"{device.found} ({name})")


def kernel(machine: Machine) -> Result:
    """The running kernel is one that the driver is known to build for."""
    match = re.match(r"(\d+)\.(\d+)", machine.release)
    if not match:
        return unknown("/proc/sys/kernel/osrelease does not say which kernel runs", "uname -r")
    version = (int(match[1]), int(match[2]))
    span = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
    if OLDEST <= version <= NEWEST:
        return ok(f"Linux {machine.release}, within {span}")
    return unknown(f"Linux {machine.release}: the driver was built for {span} only", fixes.PLAN)


def running(machine: Machine) -> Result | None:
    """A driver is alive, has taken the NPU and has made its node."""
    if not machine.works:
        return None
    taken = [f"{DRIVER}/{name}" for name in _taken(machine)]
    version = machine.root.read(f"/sys/module/{machine.module_name}/version")
    facts = [f"{machine.module_name} {version}".strip(), *taken[:1], machine.works]
    return ok(", ".join(facts))


def _taken(machine: Machine) -> list[str]:
    """Returns what the driver has taken of the platform's devices."""
    return [name for name in machine.root.names(DRIVER) if name.startswith(HARDWARE) or "zhouyi" in name]


def _of_file(look: Look) -> Look:
    """Returns a check of the module's file that cannot fail while the driver that runs does its work.

    Editions of the driver differ in their files: only where nothing runs is the file the place to look for the reason.
    """

    @functools.wraps(look)
    def lenient(machine: Machine) -> Result | None:
        try:
            result = look(machine)
        except IntegrityError as error:
            if not machine.works:
                raise
            result = failed(error.message, error.hint)
        if result is None or result.status != "failed" or not machine.works:
            return result
        return missing(f"{result.evidence}; the driver that runs now works", result.fix)

    return lenient


def namespace(machine: Machine) -> Result | None:
    """The module names the kernel's DMA_BUF namespace once, and as this kernel spells it."""
    if not machine.module_path:
        return None
    spaces = machine.module.values("import_ns")
    if spaces == (NAMESPACE,):
        return ok(f"import_ns={NAMESPACE}")
    shown = ", ".join(f"import_ns={space}" for space in spaces) or "no import_ns"
    early = len(spaces) > 1 or '"' in shown
    why = "the change for Linux 6.13 was applied to an older kernel" if early else "the driver is not patched"
    return failed(f"{machine.module_path}: {shown}: {why}", fixes.build(machine.has_dkms))


def identity(machine: Machine) -> Result | None:
    """The module has the licence and the alias by which the kernel finds it for the NPU."""
    if not machine.module_path:
        return None
    licence = ", ".join(machine.module.values("license")) or "no licence"
    aliases = machine.module.values("alias")
    if not licence.startswith("GPL"):
        return failed(
            f"{machine.module_path}: {licence}: the kernel refuses it its symbols", fixes.build(machine.has_dkms)
        )
    if not any(HARDWARE in alias for alias in aliases):
        return failed(
            f"{machine.module_path}: no alias for {HARDWARE}: it is built for another chip",
            fixes.build(machine.has_dkms),
        )
    return ok(f"{licence}, {next(alias for alias in aliases if HARDWARE in alias)}")


def bound(machine: Machine) -> Result:
    """The driver has taken the NPU."""
    if taken := _taken(machine):
        return ok(f"{DRIVER}/{taken[0]}")
    if machine.nodes():
        return ok(f"{machine.nodes()[0]} is there")
    return failed(f"the module is loaded and {DRIVER} holds no {HARDWARE}: its probe failed", fixes.LOG)


WHOLE = ("module", "init-module", "vermagic", "namespace", "identity", "signature")
CHECKS = (
    Check(board),
    Check(running),
    Check(kernel),
    Check(modules.headers, needs=("board",)),
    Check(modules.dkms, needs=("board",)),
    Check(_of_file(modules.module), needs=("board",)),
    Check(_of_file(modules.init_module), needs=("module",)),
    Check(_of_file(modules.vermagic), needs=("module", "init-module")),
    Check(_of_file(namespace), needs=("module", "init-module")),
    Check(_of_file(identity), needs=("module", "init-module")),
    Check(_of_file(modules.signature), needs=("module", "init-module")),
    Check(modules.loaded, needs=("board", *WHOLE)),
    Check(bound, needs=("loaded",)),
    Check(access.node, needs=("loaded", "bound")),
    Check(access.permission, needs=("node",)),
    Check(modules.firmware, needs=("module", "init-module")),
    Check(noe.libnoe),
    Check(noe.libnoe_abi, needs=("libnoe",)),
    Check(noe.answers, needs=("permission", "libnoe", "libnoe-abi")),
    Check(noe.linker, needs=("libnoe",)),
    Check(noe.wheel),
    Check(noe.dpkg),
)
