"""Which driver, firmware and runtime a session runs on, as far as they can be asked.

A model that is right on one driver may be wrong on the next: a receipt without versions cannot be repeated. A session
says it itself, `versions() -> Mapping[str, str]`, or names the Python packages that compute in `packages`.
"""

from __future__ import annotations

import importlib.metadata
from contextlib import suppress
from pathlib import Path

from anynpu.errors import AnyNpuError
from anynpu.runtime.abilities import NamesPackages, TellsVersions

KERNEL_MODULES, ACCELERATORS = Path("/sys/module"), Path("/sys/class/accel")


def versions_of(session: object) -> dict[str, str]:
    """Returns what runs a session by name, such as {"driver": "5.11.0", "libnoe": "0.6.0"}; never raises."""
    versions: dict[str, str] = {}
    for package in session.packages if isinstance(session, NamesPackages) else ():
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    if isinstance(session, TellsVersions):
        with suppress(AnyNpuError, OSError):
            versions.update({name: str(value) for name, value in session.versions().items() if value})
    return versions


def accelerator_firmware() -> str:
    """Returns the version of the firmware in the first accelerator that tells it, as amdxdna does."""
    for path in sorted(ACCELERATORS.glob("accel*/device/fw_version")):
        with suppress(OSError, UnicodeDecodeError):
            return path.read_text("utf-8").strip()
    return ""


def module_version(name: str) -> str:
    """Returns the version of a kernel module that is loaded, or an empty string."""
    with suppress(OSError, UnicodeDecodeError):
        return (KERNEL_MODULES / name / "version").read_text("utf-8").strip()
    return ""
