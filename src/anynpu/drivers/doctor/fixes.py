"""Commands that mend what checks find. TREE is the folder of the driver that the user has cloned."""

from __future__ import annotations

from anynpu.drivers.zhouyi import userspace

PLAN = "anynpu driver zhouyi plan TREE"
PATCH = "anynpu driver zhouyi patch TREE"
DKMS = f"{PATCH} && sudo anynpu driver zhouyi dkms TREE --yes"
INSTALL = f"{PATCH} && anynpu driver zhouyi build TREE -o aipu && sudo anynpu driver zhouyi install aipu --yes"
SIGN = "sudo anynpu driver zhouyi install aipu --key mok.key --cert mok.der --yes    # after `build TREE -o aipu`"
UDEV = "sudo anynpu driver zhouyi udev --user $USER --yes"
LOG = "sudo dmesg | grep -i -E 'aipu|armchina'"
PACKAGE_FILE = f"./{userspace.PACKAGE}_2.0.2_arm64.deb"
EXCUSE_PIP = rf"sudo sed -i -E '/anynpu:/! s/^([^#]*pip3? +install.*)$/\1{userspace.EXCUSE}/' {userspace.POSTINST}"
REPAIR = f"{EXCUSE_PIP} && sudo dpkg --configure {userspace.PACKAGE}"
"""The package's script must not stop at a Python wheel; the same edit as `anynpu driver zhouyi install` makes."""


def build(dkms: bool) -> str:
    """Returns the command that builds and installs the Zhouyi driver: with DKMS where the machine has it."""
    return DKMS if dkms else INSTALL


def library(wheel_fits: bool) -> str:
    """Returns the command that installs the vendor's library, also where its script would stop at a wheel."""
    return apt(PACKAGE_FILE) if wheel_fits else f"sudo dpkg --unpack {PACKAGE_FILE} && {REPAIR}"


def apt(*packages: str) -> str:
    """Returns the command that installs Debian packages."""
    return f"sudo apt install {' '.join(packages)}"
