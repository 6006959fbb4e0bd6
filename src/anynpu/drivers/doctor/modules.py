"""Checks of a kernel module: is it there for the running kernel, is it whole, is it loaded?"""

from __future__ import annotations

from anynpu.drivers.doctor import fixes
from anynpu.drivers.doctor.machine import Machine
from anynpu.drivers.doctor.result import Result, failed, missing, ok, unknown
from anynpu.drivers.elf_module import read_module
from anynpu.errors import AnyNpuError

SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
DKMS_KEY = "/var/lib/dkms/mok.pub"
SHORT_LIST = 3


def headers(machine: Machine) -> Result:
    """The headers of the running kernel are installed, so that a module can be built for it."""
    build = f"{machine.modules}/build"
    if machine.root.is_file(f"{build}/Makefile"):
        return ok(f"{build} -> {machine.root.inside(build)}")
    install = fixes.apt(f"linux-headers-{machine.release}")
    if machine.built_in or _fits(machine):
        return missing(f"{build} is not there; the module is built already", install)
    return failed(f"{build} is not there", install)


def _fits(machine: Machine) -> bool:
    """Returns whether there is a module for the running kernel; its own check reports what is wrong with it."""
    try:
        return bool(machine.module_path) and machine.module.release == machine.release
    except AnyNpuError:
        return False


def module(machine: Machine) -> Result:
    """The driver's module is installed for the running kernel."""
    name = machine.module_name
    if not machine.release:
        return unknown("the running kernel is not known", "uname -r")
    if machine.built_in:
        return ok(f"{name} is built into Linux {machine.release}")
    if machine.listed_module:
        return ok(machine.listed_module)
    if machine.module_path:
        return failed(f"{machine.module_path} is not in modules.dep: modprobe does not find it", "sudo depmod -a")
    others = [r for r in machine.root.names("/lib/modules") if r != machine.release and any(machine.module_files(r))]
    elsewhere = f"; there is one for {', '.join(others[:SHORT_LIST])}" if others else ""
    evidence = f"no {name}.ko below {machine.modules}{elsewhere}"
    if machine.module_state == "Live":
        return missing(f"{evidence}; it was loaded by hand and is gone after a restart", install_module(machine))
    return failed(evidence, install_module(machine))


def install_module(machine: Machine) -> str:
    """Returns the command that brings the module of this machine's NPU."""
    if not machine.is_zhouyi:
        return {
            "amdxdna": fixes.apt("linux-generic") + "    # amdxdna is part of Linux 6.14 and later",
            "rknpu": "uname -r    # boot a kernel of the board's maker: rknpu is part of those only",
        }.get(machine.module_name, f"sudo modprobe {machine.module_name}")
    if machine.dkms_version:
        return f"sudo dkms install {machine.module_name}/{machine.dkms_version} -k {machine.release}"
    return fixes.build(machine.has_dkms)


def dkms(machine: Machine) -> Result | None:
    """DKMS builds the module again when the kernel is upgraded."""
    version = machine.dkms_version
    if not version and machine.comes_with_kernel:
        return ok(f"{machine.module_name} comes with the kernel, and so does the next one's")
    if not version:
        return missing(f"{machine.module_name} is not in DKMS: build it again after every new kernel", fixes.DKMS)
    path = f"/var/lib/dkms/{machine.module_name}/{version}/source/dkms.conf"
    settings = dict(
        line.split("=", 1) for line in machine.root.read(path).splitlines() if "=" in line and line.lstrip()[0] != "#"
    )
    setting = settings.get("AUTOINSTALL", "").strip().strip("\"'").lower()
    if setting in ("yes", "y", "true", "1"):
        return ok(f"{machine.root.inside(path)}: AUTOINSTALL={setting}")
    why = "AUTOINSTALL is not set: a new kernel gets no module, and nothing says so"
    return failed(f"{machine.root.inside(path)}: {why}", fixes.DKMS)


def init_module(machine: Machine) -> Result | None:
    """The module has init_module; without it the kernel loads it and does nothing."""
    if not machine.module_path:
        return None
    if "init_module" in machine.module.symbols:
        return ok(f"{len(machine.module.symbols)} symbols, init_module among them")
    why = "no init_module: the driver's own Makefile makes a module of each file"
    return failed(f"{machine.module_path}: {why}", fixes.build(machine.has_dkms))


def vermagic(machine: Machine) -> Result | None:
    """The module is built for the running kernel."""
    if not machine.module_path:
        return None
    own = machine.module.vermagic.strip()
    if not own:
        return failed(f"{machine.module_path}: no vermagic", install_module(machine))
    if machine.module.release != machine.release:
        if machine.module_state == "Live" and "modversions" in own.split():
            return ok(f"built for {machine.module.release}; this kernel compares symbols and has accepted it")
        return failed(f"built for {machine.module.release}, running is {machine.release}", _rebuild(machine))
    reference = _reference_vermagic(machine)
    if reference and reference.split() != own.split():
        return failed(f"vermagic '{own}', modules of this kernel have '{reference.strip()}'", _rebuild(machine))
    return ok(own)


def _rebuild(machine: Machine) -> str:
    version = machine.dkms_version
    if version:
        return f"sudo dkms install --force {machine.module_name}/{version} -k {machine.release}"
    return fixes.build(machine.has_dkms) if machine.is_zhouyi else install_module(machine)


def _reference_vermagic(machine: Machine) -> str:
    """Returns the vermagic of a module that came with the kernel, or an empty string where none can be read."""
    lines = machine.root.read(f"{machine.modules}/modules.dep").splitlines()
    listed = [line.partition(":")[0] for line in lines if line.startswith("kernel/")]
    for path in listed[:SHORT_LIST]:
        try:
            return read_module(machine.root.read_bytes(f"{machine.modules}/{path}")).vermagic
        except AnyNpuError:
            continue
    return ""


def signature(machine: Machine) -> Result | None:
    """A kernel under Secure Boot accepts the module's signature."""
    if machine.built_in or not machine.module_path:
        return None
    state = machine.root.read_bytes(SECURE_BOOT)
    if not state:
        return ok("Secure Boot is not there")
    if state[-1] != 1:
        return ok("Secure Boot is off")
    if machine.module.signed:
        return ok("Secure Boot is on, the module is signed")
    sign = fixes.SIGN if machine.is_zhouyi else install_module(machine)
    if machine.dkms_version:  # DKMS has a key of its own that the firmware must be told of
        sign = f"sudo mokutil --import {DKMS_KEY} && {_rebuild(machine)} && sudo reboot"
    return failed(f"Secure Boot is on and {machine.module_path} is not signed: the kernel refuses it", sign)


def loaded(machine: Machine) -> Result:
    """The module is loaded and alive."""
    name, state = machine.module_name, machine.module_state
    if machine.built_in:
        return ok(f"{name} is built in")
    if state == "Live":
        return ok(f"{name} is live")
    if state == "Loading":
        why = "it crashed while it was loaded and cannot be removed"
        # It is removed before the restart: it would crash again while the computer starts.
        remove = f"sudo rm {machine.module_path} && sudo depmod -a && " if machine.module_path else ""
        if machine.dkms_version:
            remove = f"sudo dkms remove {name}/{machine.dkms_version} --all && "
        return failed(f"{name} is stuck in 'coming': {why}", f"{remove}sudo reboot")
    if state:
        return failed(f"{name} is in state {state}", "sudo reboot")
    if not machine.root.exists("/proc/modules"):
        return unknown("/proc/modules is not there", f"lsmod | grep {name}")
    return failed(f"{name} is not in /proc/modules", f"sudo modprobe {name}")


def firmware(machine: Machine) -> Result | None:
    """The firmware files that the module loads are installed."""
    wanted = machine.device.firmware if machine.device else ()
    if not wanted and machine.module_path:
        wanted = machine.module.values("firmware")
    if not wanted:
        return ok("the driver asks for no firmware file")
    places = [f"/lib/firmware/{release}{name}" for name in wanted for release in ("", "updates/")]
    present = [path + packed for path in places for packed in ("", ".xz", ".zst") if machine.root.exists(path + packed)]
    if present:
        return ok(present[0])
    return failed(f"none of {', '.join(wanted)} below /lib/firmware", fixes.apt("linux-firmware"))
