"""Putting a built module in place, and taking everything away again."""

from __future__ import annotations

from pathlib import Path

from anynpu.drivers.plan import Step
from anynpu.drivers.root import Root
from anynpu.drivers.zhouyi import dkms, signing, udev, userspace, verify
from anynpu.drivers.zhouyi.kernel import Kernel, running

PLACE = "updates"


def steps(
    module: Path,
    kernel: Kernel,
    root: Root,
    *,
    key: Path | None = None,
    certificate: Path | None = None,
    secure: bool = False,
) -> list[Step]:
    """Returns what signs a module where needed, installs it for a kernel and loads it if that kernel runs."""
    admin = root.is_host
    final = root.real(f"/lib/modules/{kernel.release}/{PLACE}/aipu.ko")
    copy = ("install", "-D", "-m", "0644", str(module.absolute()), str(final))
    return [
        *signing.steps(module.absolute(), kernel, key, certificate, secure),
        Step(f"the module for kernel {kernel.release}", copy, needs_root=admin),
        _depmod(root, kernel.release),
        *([load()] if root.is_host and kernel.release == running() else []),
    ]


def _depmod(root: Root, release: str) -> Step:
    base = () if root.is_host else ("-b", str(root.folder))
    return Step("the kernel finds it by its ACPI alias", ("depmod", *base, release), needs_root=root.is_host)


def load() -> Step:
    """Returns what loads the installed module into the running kernel."""
    return Step("load it now; later the ACPI device does that", ("modprobe", "aipu"), needs_root=True)


def remove_steps(root: Root) -> list[Step]:
    """Returns what undoes every step of install, dkms and udev that is found on the machine."""
    plan = []
    if root.is_host and root.exists("/sys/module/aipu"):
        plan.append(Step("unload the module", ("modprobe", "-r", "aipu"), needs_root=True))
    for version in dkms.versions(root):
        plan += dkms.forget(root, version)
    releases = []
    for path in verify.installed(root):
        if "/dkms/" not in path:  # DKMS takes its own away
            argv = ("rm", "-f", "--", str(root.real(path)))
            plan.append(Step("the installed module", argv, needs_root=root.is_host))
            releases.append(path.split("/")[3])
    plan += [_depmod(root, release) for release in dict.fromkeys(releases)]
    return [*plan, *udev.remove_steps(root), *userspace.remove_steps(root)]
