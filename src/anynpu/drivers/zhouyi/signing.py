"""Secure Boot: a kernel that demands signatures loads only a module signed with a key that the firmware knows."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from anynpu import tool
from anynpu.drivers.plan import Step
from anynpu.drivers.zhouyi.kernel import Kernel
from anynpu.errors import ConfigError, ToolFailed

DKMS_KEY = "/var/lib/dkms/mok.pub"
MAKE_KEY = (
    "openssl req -new -x509 -newkey rsa:2048 -nodes -days 36500 -subj /CN=aipu-module/ "
    "-outform DER -keyout mok.key -out mok.der"
)


def secure_boot() -> bool:
    """Tells whether mokutil says that Secure Boot is on; without mokutil or UEFI it is off."""
    if shutil.which("mokutil") is None:
        return False
    with tempfile.TemporaryDirectory() as scratch:
        try:
            answer = tool.run(["mokutil", "--sb-state"], cwd=Path(scratch), log=Path(scratch) / "log", timeout_s=10)
        except ToolFailed:
            return False
    return "SecureBoot enabled" in answer.output


def steps(module: Path, kernel: Kernel, key: Path | None, certificate: Path | None, secure: bool) -> list[Step]:
    """Returns how the module gets its signature: with the user's key, by hand where there is none, or not at all."""
    if (key is None) != (certificate is None):
        raise ConfigError("--key and --cert go together", f"{MAKE_KEY} makes both")
    if key is not None and certificate is not None:
        for path in (key, certificate):
            if not path.is_file():
                raise ConfigError(f"{path}: no such file", f"{MAKE_KEY} makes both")
        program = str(kernel.folder / "scripts" / "sign-file")
        argv = (program, "sha256", str(key.absolute()), str(certificate.absolute()), str(module))
        return [Step("sign the module with your key", argv), *_enrol(str(certificate), secure)]
    if secure:
        why = f"Secure Boot is on and the module has no signature: the kernel will refuse it. Make a key ({MAKE_KEY})"
        return [Step(f"{why}, and install again with --key mok.key --cert mok.der")]
    return []


def dkms_steps(secure: bool) -> list[Step]:
    """Returns what is left to the user where DKMS signs with a key of its own."""
    return _enrol(DKMS_KEY, secure)


def _enrol(certificate: str, secure: bool) -> list[Step]:
    if not secure:
        return []
    why = (
        f"Secure Boot is on. Once: `mokutil --import {certificate}` (asks for a new password), then reboot and confirm"
    )
    return [Step(why)]
