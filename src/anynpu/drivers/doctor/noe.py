"""Checks of libnoe, the vendor's library for the Zhouyi NPU.

It is never loaded into this process: its file is read, and where a driver works another process asks for its versions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from anynpu.drivers.doctor import fixes
from anynpu.drivers.doctor.machine import Machine
from anynpu.drivers.doctor.result import Result, failed, missing, ok
from anynpu.drivers.root import Root
from anynpu.drivers.zhouyi import userspace
from anynpu.elf import DYNSYM, read_elf
from anynpu.errors import DeviceError, IntegrityError
from anynpu.runtime.noe.abi import PROTOTYPES
from anynpu.runtime.noe.cix import LFS_POINTER
from anynpu.runtime.noe.client import CLIENTS

LIBRARY = "libnoe.so"
DEFAULT_FOLDERS = ("/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib", "/usr/lib", "/usr/lib64")
PYTHONS = ((3, 11), (3, 12))
"""The versions that the vendor's wheel loads a library for."""
DONE = ("installed", "config-files", "not-installed")


def linker_folders(root: Root) -> tuple[str, ...]:
    """Returns the folders that the dynamic linker searches."""
    return tuple(dict.fromkeys((*_configured(root, "/etc/ld.so.conf", 0), *DEFAULT_FOLDERS)))


def _configured(root: Root, path: str, depth: int) -> Iterator[str]:
    for line in root.read(path).splitlines():
        word = line.partition("#")[0].strip()
        if word.startswith("include") and depth < 4:
            folder, _, pattern = word.split()[-1].rpartition("/")
            ending = pattern.removeprefix("*")
            for name in root.names(folder):
                if name.endswith(ending):
                    yield from _configured(root, f"{folder}/{name}", depth + 1)
        elif word.startswith("/"):
            yield word


def library_path(root: Root) -> str:
    """Returns where libnoe is, in the order in which a session looks for it; empty where it is not."""
    if root.is_host and (named := os.environ.get("ANYNPU_LIBNOE")):
        return named
    chosen = os.environ.get("LD_LIBRARY_PATH", "").split(":") if root.is_host else []
    folders = (userspace.LIBRARIES, *filter(None, chosen), *linker_folders(root))
    return next((f"{folder}/{LIBRARY}" for folder in folders if root.exists(f"{folder}/{LIBRARY}")), "")


def _install(machine: Machine) -> str:
    return fixes.library(machine.system_python in PYTHONS)


def libnoe(machine: Machine) -> Result:
    """The vendor's library libnoe is installed."""
    path = library_path(machine.root)
    if not path:
        return failed(f"no {LIBRARY} in {userspace.LIBRARIES} or where the linker looks", _install(machine))
    if not machine.root.exists(path):
        return failed(f"ANYNPU_LIBNOE names {path}, which is not there", "unset ANYNPU_LIBNOE")
    if machine.root.read_bytes(path, 64).startswith(LFS_POINTER):
        return failed(f"{path} is a git-lfs pointer, not a library", "git lfs pull    # in the clone with the packages")
    real = machine.root.inside(path)
    names = (real.rpartition("/")[2], *machine.root.names(path.rpartition("/")[0]))
    matches = (re.fullmatch(rf"{re.escape(LIBRARY)}\.(\d+\.\d+\.\d+)", name) for name in names)
    version = next((match[1] for match in matches if match), "unknown")
    return ok(f"{path}, version {version}")


def libnoe_abi(machine: Machine) -> Result:
    """libnoe is built for this processor and exports the functions that anynpu calls."""
    path, wanted = library_path(machine.root), frozenset(PROTOTYPES)
    try:
        elf = read_elf(machine.root.read_bytes(path))
        exported = {name for name in elf.symbols(DYNSYM) if name.startswith("noe_")}
    except IntegrityError as error:
        return failed(f"{path}: {error.message}", _install(machine))
    if lost := sorted(wanted - exported):
        return failed(f"{path} lacks {', '.join(lost[:3])} ({len(lost)} of {len(wanted)} functions)", _install(machine))
    if elf.machine_name != "aarch64":
        return failed(f"{path} is for {elf.machine_name}, the NPU is in an aarch64 computer", _install(machine))
    more = f" and {len(exported - wanted)} more" if exported - wanted else ""
    return ok(f"{elf.machine_name}, all {len(wanted)} functions{more}")


def answers(machine: Machine) -> Result | None:
    """The library opens the device and says which versions and which NPU it has; asked in a process of its own."""
    if not machine.root.is_host or not machine.works:
        return None
    path = Path(library_path(machine.root)).resolve()
    client = CLIENTS.acquire(path)
    try:
        info = client.ask("info")
    except DeviceError as error:
        return failed(error.message, error.hint or "sudo dmesg | tail")
    finally:
        CLIENTS.release(path, client)
    return ok(f"libnoe {info['library']}, driver {info['driver']}, {info['target']}")


def linker(machine: Machine) -> Result | None:
    """Programs other than anynpu find libnoe without LD_LIBRARY_PATH."""
    path = library_path(machine.root)
    folder = path.rpartition("/")[0]
    if folder in linker_folders(machine.root):
        return ok(f"{folder} is where the linker looks")
    fix = f"echo {folder} | sudo tee {userspace.LINKER_FILE} && sudo ldconfig"
    return missing(f"{folder} is in no file of /etc/ld.so.conf.d; anynpu finds it without", fix)


def wheel(machine: Machine) -> Result:
    """No wheel of the vendor is installed for a Python that it cannot be imported by; anynpu needs none."""
    wheels = sorted({(folder, version) for folder, version in machine.packages("libnoe")})
    for folder, version in wheels:
        named = re.search(r"python(\d+)\.(\d+)/", folder)
        python = (int(named[1]), int(named[2])) if named else machine.system_python
        if python in PYTHONS:
            continue
        name = f"{python[0]}.{python[1]}"
        uninstall = f"{folder.rpartition('/lib/')[0]}/bin/python -m pip uninstall"
        if folder.startswith("/usr/"):  # Debian's own Python lets pip touch it only when told so
            uninstall = f"sudo python{name} -m pip uninstall --break-system-packages"
        return failed(
            f"libnoe {version} in {folder}: `import libnoe` fails under Python {name}, it knows 3.11 and 3.12 only",
            f"{uninstall} libnoe    # anynpu calls libnoe.so itself, under every Python",
        )
    if wheels:
        return ok(f"libnoe {wheels[0][1]} in {wheels[0][0]}")
    return ok("none is installed")


def dpkg(machine: Machine) -> Result | None:
    """dpkg has finished the vendor's packages."""
    ours = {name: state for name, state in package_states(machine.root).items() if name.startswith("cix-")}
    if not ours:
        return ok("no package of the vendor")
    broken = {name: state for name, state in ours.items() if state.split()[-1] not in DONE}
    if broken:
        name, state = next(iter(broken.items()))
        why = "its script runs pip, which refuses this Python" if name == userspace.PACKAGE else "its script failed"
        return failed(
            f"{name} is '{state}': {why}; the files themselves are installed",
            fixes.REPAIR if name == userspace.PACKAGE else f"sudo dpkg --configure {name}",
        )
    return ok(", ".join(f"{name} {state.split()[-1]}" for name, state in sorted(ours.items())))


def package_states(root: Root) -> dict[str, str]:
    """Returns the state of every package that dpkg knows, such as "install ok installed"."""
    states = {}
    for paragraph in root.read("/var/lib/dpkg/status").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        if "Package" in fields and fields.get("Status", "").strip():
            states[fields["Package"]] = fields["Status"].strip()
    return states
