"""Commands that mend what more than one check finds; TREE is the folder of the driver that the user has cloned."""

from __future__ import annotations

PATCH = "anynpu driver zhouyi patch TREE"
BUILD = f"{PATCH} && anynpu driver zhouyi build TREE && sudo anynpu driver zhouyi install TREE"
DKMS = "sudo anynpu driver zhouyi dkms TREE"
UDEV = "sudo anynpu driver zhouyi udev"
PLAN = "anynpu driver zhouyi plan TREE"
LOG = "sudo dmesg | grep -i -E 'aipu|armchina'"


def apt(*packages: str) -> str:
    """Returns the command that installs Debian packages."""
    return f"sudo apt install {' '.join(packages)}"
