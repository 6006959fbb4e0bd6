"""The files that ship with anynpu: copied as they are, or with @NAMES@ filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable

from anynpu.errors import IntegrityError

PLACE = re.compile(r"@([A-Z][A-Z_]+)@")


def folder(name: str) -> dict[str, str]:
    """Returns the text of every file of a folder by its path in it."""
    return dict(sorted(_walk(files("anynpu.firmware.project") / "files" / name, "")))


def _walk(root: Traversable, prefix: str) -> list[tuple[str, str]]:
    files = []
    for entry in root.iterdir():
        if entry.is_dir():
            files += _walk(entry, f"{prefix}{entry.name}/")
        else:
            files.append((prefix + entry.name, entry.read_text("utf-8")))
    return files


def fill(text: str, values: Mapping[str, object]) -> str:
    """Returns the text with every @NAME@ replaced; a name without a value raises."""

    def replace(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise IntegrityError(f"a template asks for {match[1]}, which nobody gives")
        return str(values[match[1]])

    return PLACE.sub(replace, text)
