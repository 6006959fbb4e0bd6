"""The vendor's library package: installed, or repaired where its own script left it half-configured.

The package's postinst installs Python wheels with pip under `set -e`. The wheels refuse Python 3.13, so dpkg calls the
package half-configured although the libraries are in place. Its pip lines are made to fail without consequence; our
session needs the library alone.
"""

from __future__ import annotations

import re
from pathlib import Path

from anynpu.drivers.plan import Step
from anynpu.drivers.root import Root
from anynpu.errors import ConfigError

PACKAGE = "cix-noe-umd"
LIBRARIES = "/usr/share/cix/lib"
LINKER_FILE = "/etc/ld.so.conf.d/anynpu-cix.conf"
POSTINST = f"/var/lib/dpkg/info/{PACKAGE}.postinst"
PIP = re.compile(r"^(?![ \t]*#)(.*\bpip3?[ \t]+install\b.*?)[ \t]*$", re.MULTILINE)
EXCUSE = " || true # anynpu: a wheel that this Python refuses is no reason to stop"
BROKEN = ("half-configured", "half-installed", "unpacked")


def package_state(root: Root) -> str:
    """Returns what dpkg says of the library package: installed, half-configured, ..., or nothing."""
    for block in root.read("/var/lib/dpkg/status").split("\n\n"):
        if re.search(rf"^Package: {PACKAGE}$", block, re.MULTILINE):
            status = re.search(r"^Status: \S+ \S+ (\S+)", block, re.MULTILINE)
            return status.group(1) if status else ""
    return ""


def excused(postinst: str) -> str:
    """Returns the script with its pip lines made to fail without consequence; twice is as once."""
    return PIP.sub(lambda match: match.group(1) + EXCUSE, accused(postinst))


def accused(postinst: str) -> str:
    """Returns the script as the vendor wrote it."""
    return postinst.replace(EXCUSE, "")


def steps(root: Root, package: Path | None) -> list[Step]:
    """Returns what installs or repairs the library package and lets the linker find its libraries."""
    plan = _package_steps(root, package)
    listed = any(LIBRARIES in root.read(f"/etc/ld.so.conf.d/{name}") for name in root.names("/etc/ld.so.conf.d"))
    if not listed and (package or root.exists(LIBRARIES)):
        why, file = "the linker finds libnoe.so", root.real(LINKER_FILE)
        plan += [Step(why, write=file, content=f"{LIBRARIES}\n", needs_root=root.is_host), _ldconfig(root)]
    return plan


def _package_steps(root: Root, package: Path | None) -> list[Step]:
    state, admin, dpkg = package_state(root), root.is_host, ["dpkg"]
    if not admin:
        dpkg += [f"--instdir={root.folder}", f"--admindir={root.real('/var/lib/dpkg')}"]
        dpkg += ["--force-script-chrootless", "--force-architecture,depends,not-root", "--log=/dev/null"]
    if package is None:
        if state not in BROKEN:
            return []
        text = root.read_bytes(POSTINST).decode("utf-8", "replace")
        why = f"{PACKAGE} is {state}: its script stops at a Python wheel that this Python refuses"
        write = Step(why, write=root.real(POSTINST), content=excused(text), mode=0o755, needs_root=admin)
        end = Step("dpkg finishes what it began", (*dpkg, "--configure", PACKAGE), needs_root=admin)
        return [write, end] if excused(text) != text else [end]
    if not package.is_file():
        raise ConfigError(f"{package}: no such file", f"--umd names the package file of {PACKAGE}")
    script = ("sed", "-i", "-E", rf"/anynpu:/! s/^([^#]*pip3? +install.*)$/\1{EXCUSE}/", str(root.real(POSTINST)))
    return [
        Step("unpack the library package", (*dpkg, "--unpack", str(package.absolute())), needs_root=admin),
        Step("its script must not stop at a Python wheel that this Python refuses", script, needs_root=admin),
        Step("configure it", (*dpkg, "--configure", PACKAGE), needs_root=admin),
    ]


def _ldconfig(root: Root) -> Step:
    argv = ("ldconfig",) if root.is_host else ("ldconfig", "-r", str(root.folder))
    return Step("the linker reads its folders again", argv, needs_root=root.is_host)


def remove_steps(root: Root) -> list[Step]:
    """Returns what undoes ours: the linker's entry and the excuse in the package's script; the package stays."""
    admin, plan = root.is_host, []
    text = root.read_bytes(POSTINST).decode("utf-8", "replace")
    if accused(text) != text:
        why = "the package's script as the vendor wrote it"
        plan.append(Step(why, write=root.real(POSTINST), content=accused(text), mode=0o755, needs_root=admin))
    if root.exists(LINKER_FILE):
        argv = ("rm", "-f", "--", str(root.real(LINKER_FILE)))
        plan += [Step("our entry for the linker", argv, needs_root=admin), _ldconfig(root)]
    return plan
