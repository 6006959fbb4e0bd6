"""Which file is the firmware."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anynpu import elf
from anynpu.artifact import MANIFEST
from anynpu.errors import ConfigError, IntegrityError

BUILD = "build"
MAGIC = {".elf": elf.MAGIC, ".uf2": b"UF2\n", ".hex": b":"}


def find_image(where: Path, kinds: Sequence[str], named: Path | None = None) -> Path:
    """Returns the firmware to write: the file that the user named, or the one that was built in the tree `where`.

    `kinds` are the endings that the board takes, the best first.
    """
    image = _built(where, kinds) if named is None else named
    if not image.is_file():
        raise ConfigError(f"{image}: no such file")
    if image.suffix.lower() not in kinds:
        raise ConfigError(f"{image}: a file of another kind was expected", "one of " + ", ".join(kinds))
    magic = MAGIC.get(image.suffix.lower(), b"")
    with image.open("rb") as stream:
        head = stream.read(len(magic) or 1)
    if head != magic if magic else not head:
        raise IntegrityError(f"{image}: is not a {image.suffix} file, or is empty")
    return image


def _built(where: Path, kinds: Sequence[str]) -> Path:
    if not where.is_dir():
        raise ConfigError(f"{where}: no such folder", "name a project that `anynpu firmware` wrote and make built")
    folders = (where / BUILD, where)
    for kind in kinds:
        # In addition to the firmware a tree builds its self-test, which ends after one run.
        images = sorted(p for f in folders for p in f.glob(f"*{kind}") if p.is_file() and "self-test" not in p.name)
        if len(images) > 1:
            raise ConfigError(
                f"{where}: several files end with {kind}: {', '.join(p.name for p in images)}", "use --elf"
            )
        if images:
            return images[0]
    if (where / MANIFEST).is_file():
        hint = f"`anynpu firmware {where} -b BOARD -o TREE`, then `make -C TREE`, then `anynpu deploy TREE`"
        raise ConfigError(f"{where}: is a model, not yet a firmware", hint)
    raise ConfigError(f"{where}: no {' or '.join(kinds)} file in it", f"build it first: make -C {where}")
