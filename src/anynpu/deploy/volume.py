"""Boards that show themselves as a disk: a firmware is written by copying a file to it."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from anynpu.errors import ConfigError, DeviceError

UF2 = "INFO_UF2.TXT"
MARKERS = (UF2, "DETAILS.TXT", "MBED.HTM")
"""What boot loaders (UF2) and debug probes (DAPLink, ST-Link, J-Link) put on their volumes."""


def kinds(volume: Path) -> tuple[str, ...]:
    """Returns the endings that a volume takes; a folder that is not a board's volume raises."""
    if not volume.is_dir():
        raise DeviceError(
            f"{volume}: no such volume",
            call="open",
            cause="the board is not plugged in, not in its boot loader, or not mounted",
            hint="press the board's boot or reset button (twice, on many) and look where the disk appears",
        )
    marked = [name for name in MARKERS if (volume / name).is_file()]
    if not marked and not volume.is_mount():
        # A folder that a mount left behind would take the file and nothing would reach the board.
        raise DeviceError(f"{volume}: is a plain folder, not the volume of a board", call="open", cause="not mounted")
    return (".uf2",) if UF2 in marked else (".hex", ".bin", ".uf2")


def check(volume: Path, image: Path) -> None:
    """Raises unless the volume takes this file and has room for it."""
    if image.suffix.lower() not in kinds(volume):
        raise ConfigError(f"{image}: {volume} takes {' or '.join(kinds(volume))} files")
    if not os.access(volume, os.W_OK):
        raise DeviceError(f"{volume}: cannot be written", call="open", cause="mounted read-only, or by another user")
    free, size = shutil.disk_usage(volume).free, image.stat().st_size
    if size > free:
        raise DeviceError(
            f"{volume}: {image.name} has {size} bytes, {size - free} more than the volume has room for",
            call="copy",
            cause="another board's volume, or a firmware for a larger chip",
        )


def copy(volume: Path, image: Path, settle_s: float = 1.0) -> Path:
    """Copies the firmware to the volume and returns where it went; what the board complains of raises."""
    target, earlier = volume / image.name, _complaint(volume)
    try:
        with image.open("rb") as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink)
            sink.flush()
            # A board that has all of the firmware starts it, and its volume goes away under the open file.
            with suppress(OSError):
                os.fsync(sink.fileno())
    except OSError as error:
        raise DeviceError(
            f"{target}: the copy broke off ({error.strerror})", call="copy", cause="unplugged, or it refused the file"
        ) from error
    until = time.monotonic() + settle_s
    while time.monotonic() < until and _complaint(volume) in ("", earlier):
        time.sleep(0.05)
    if complaint := _complaint(volume):
        raise DeviceError(
            f"{volume}: the board refuses the firmware: {complaint}", call="copy", cause="not for this chip"
        )
    return target


def _complaint(volume: Path) -> str:
    """Returns the first line of what a debug probe writes when programming fails, or an empty string."""
    try:
        return (volume / "FAIL.TXT").read_text("utf-8", "replace").strip().partition("\n")[0]
    except OSError:
        return ""
