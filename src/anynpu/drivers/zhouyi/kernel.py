"""The kernel that a module is built for: its headers, its version, its processor and the compiler."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from anynpu.drivers.root import Root
from anynpu.errors import ConfigError, ToolMissing

ARCH = "arm64"
ARM64_MACHINES = ("aarch64", "arm64")
CROSS = "--arch arm64 --cross aarch64-linux-gnu-"


@dataclass(frozen=True)
class Kernel:
    """A prepared folder of kernel headers and how to build modules with it."""

    folder: Path
    release: str
    version: tuple[int, int]
    cross: str = ""
    compiler: str = ""

    def make(self, tree: Path, goal: str) -> tuple[str, ...]:
        """Returns the command that builds, or cleans, the module in a folder."""
        extra = [f"CROSS_COMPILE={self.cross}"] if self.cross else []
        extra += [f"CC={self.compiler}"] if self.compiler else []
        jobs = f"-j{os.cpu_count() or 1}"
        return ("make", "-C", str(self.folder), f"M={tree}", f"ARCH={ARCH}", *extra, jobs, goal)


def running() -> str:
    """Returns the release of the running kernel."""
    return platform.release()


def machine() -> str:
    """Returns the processor's name as the kernel says it."""
    return platform.machine()


def find(
    kdir: Path | None,
    *,
    release: str = "",
    arch: str = "",
    cross: str = "",
    compiler: str = "",
    root: Root | None = None,
) -> Kernel:
    """Returns the kernel whose headers are named or found, or says how to get them."""
    if arch not in ("", ARCH):
        raise ConfigError(f"--arch {arch}: the driver exists for {ARCH} alone", f"--arch {ARCH}")
    release, root = release or running(), root or Root()
    path = f"/lib/modules/{release}/build"
    if kdir is None and not root.exists(path):
        raise ToolMissing(
            f"there are no headers for kernel {release} ({path})",
            f"apt install linux-headers-{release}, or name another folder of headers with --kdir",
        )
    folder = kdir or root.real(path)
    if not (folder / "include").is_dir() or not (folder / "Makefile").is_file():
        raise ConfigError(f"{folder}: no kernel headers", "name the folder that /lib/modules/RELEASE/build leads to")
    # Every folder of headers carries its configuration in one of these forms.
    forms = [folder / name for name in (".config", "include/config/auto.conf") if (folder / name).is_file()]
    if not forms:
        raise ConfigError(f"{folder}: these headers are not prepared: there is no .config", "make modules_prepare")
    if "CONFIG_ARM64=y" not in forms[0].read_text("utf-8", "replace").splitlines():
        raise ConfigError(f"{folder}: headers of a kernel for another processor; the driver has arm64 assembly", CROSS)
    if machine() not in ARM64_MACHINES and not cross:
        raise ConfigError(f"this machine is {machine()}: an arm64 module needs a cross compiler", f"add {CROSS}")
    # The release that modules built with these headers are for
    generated = folder / "include/generated/utsrelease.h"
    text = generated.read_text("utf-8", "replace") if generated.is_file() else ""
    match = re.search(r'UTS_RELEASE\s+"([^"]+)"', text)
    if match:
        built_for = match.group(1)
    else:
        stated = folder / "include/config/kernel.release"
        if not stated.is_file():
            raise ConfigError(f"{folder}: these headers do not say their release", "make modules_prepare")
        built_for = stated.read_text("utf-8", "replace").strip()
    return Kernel(folder.resolve(), built_for, version_of(built_for), cross, compiler)


def version_of(release: str) -> tuple[int, int]:
    """Returns (6, 12) for "6.12.107+deb13-arm64"."""
    match = re.match(r"(\d+)\.(\d+)", release)
    if match is None:
        raise ConfigError(f"{release}: not the release of a kernel, such as 6.12.0-arm64")
    return int(match.group(1)), int(match.group(2))
