"""What every check of the kit is made of: a rule, a copy of a folder's state, and a file damaged on purpose."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from anynpu.artifact import Artifact, hash_file

Case = TypeVar("Case")
ANOTHER_FORMAT = b'{"this": "is a file of another format"}\n' * 64


def require(condition: bool, sentence: str) -> None:
    """Raises AssertionError with the sentence unless the condition holds, under `python -O` too."""
    if not condition:
        raise AssertionError(sentence)


def run_rules(rules: Iterable[Callable[[Case], None]], case: Case, subject: str) -> None:
    """Applies every rule; the first that is broken raises AssertionError with its own sentence and what was found."""
    for rule in rules:
        try:
            rule(case)
        except AssertionError as broken:
            text = (rule.__doc__ or "").splitlines()[0]
            raise AssertionError(f"{subject}: {broken} (rule {rule.__name__}: {text})") from broken


def snapshot(folder: Path) -> dict[str, str]:
    """Returns every file under a folder with its hash, folders with an empty one."""
    return {
        path.relative_to(folder).as_posix(): hash_file(path) if path.is_file() else ""
        for path in sorted(folder.rglob("*"))
    }


def difference(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Returns the names that differ between two snapshots."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def damaged(artifact: Artifact, folder: Path) -> dict[str, Artifact]:
    """Returns copies of an artifact under `folder` whose model file is cut in half, or of another format."""
    whole = artifact.main.read_bytes()
    contents = {"cut in half": whole[: len(whole) // 2], "of another format": ANOTHER_FORMAT}
    files = {}
    for what, content in contents.items():
        path = folder / what.replace(" ", "-")
        shutil.copytree(artifact.path, path)
        copy = replace(artifact, path=path)
        copy.main.write_bytes(content)
        files[what] = copy
    return files
