"""A driver tree that the user has cloned: is it the one we know, what was done to it; doing and undoing ours."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from anynpu.drivers.plan import write_file
from anynpu.drivers.zhouyi import edits, makefile
from anynpu.drivers.zhouyi.edits import CHANGES, CONFLICT, DONE, LOST, MISSING, OURS, SKY1
from anynpu.errors import ConfigError, IntegrityError

INSIDE = (".", "driver", "cix_opensource/npu/npu_driver/driver")
OTHERS = ("", "*/", "*/*/", "*/*/*/")
NEEDED = (
    "Makefile",
    *edits.FILES,
    "armchina-npu/include/armchina_aipu.h",
    "armchina-npu/include/cix_sky1_soc.h",
    "armchina-npu/zhouyi/v3.c",
)
VENDOR, PATCHED, PARTLY = "as the vendor ships it", "patched", "partly patched"
BY_HAND, CHANGED = "patched by hand", "changed by others"
SOURCE = "https://github.com/orangepi-xunlong/component_cix-current"
CLONE = f"clone {SOURCE} and name its folder cix_opensource/npu/npu_driver/driver"
NO_LINE_END = "\\ No newline at end of file"
DEFAULT_VERSION = "5.11.0"
MOST_BYTES = 4 << 20
BUILD_CHANGE = "kbuild"
BUILD_SENTENCE = "A Kbuild file: new kernels ignore the flags of the vendor's Makefile."


@dataclass(frozen=True)
class State:
    """How far one change is in a tree."""

    name: str
    file: str
    sentence: str
    state: str
    why: str = ""


@dataclass(frozen=True)
class Tree:
    """A driver tree that was recognised, and the state of every change in it."""

    folder: Path
    version: str
    states: tuple[State, ...]

    @property
    def kind(self) -> str:
        """In one word: as the vendor ships it, patched by us, partly, or by hand for one range of kernels."""
        states = {state.state for state in self.states}
        if CONFLICT in states:
            return BY_HAND
        if LOST in states:
            return CHANGED
        if MISSING not in states:
            return PATCHED
        return PARTLY if OURS in states else VENDOR


@dataclass(frozen=True)
class Rewrite:
    """A file before and after; None stands for a file that is not there."""

    path: Path
    name: str
    before: str | None
    after: str | None

    def diff(self) -> str:
        """Returns the difference as a unified diff."""
        old, new = (edits.lines_of(text or "") for text in (self.before, self.after))
        lines = difflib.unified_diff(old, new, f"a/{self.name}", f"b/{self.name}")
        return "".join(line if line.endswith("\n") else f"{line}\n{NO_LINE_END}\n" for line in lines)


def recognise(folder: Path) -> Tree:
    """Returns the driver tree in a folder, or says why the folder holds none that we know."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder", CLONE)
    inside = ("..",) if folder.resolve().name == "armchina-npu" else INSIDE
    edition = next((folder / part for part in inside if (folder / part / SKY1).is_file()), None)
    if edition is None:
        if any(next(folder.glob(f"{depth}armchina-npu/aipu.c"), None) for depth in OTHERS):
            raise ConfigError(
                f"{folder}: this is Arm China's driver, not the edition for CIX SKY1 that boards ship", CLONE
            )
        raise ConfigError(f"{folder}: this is not a Zhouyi driver tree: {SKY1} is not there", CLONE)
    driver = edition.resolve()
    if missing := [name for name in NEEDED if not (driver / name).is_file()]:
        raise ConfigError(f"{driver}: not the edition for CIX SKY1 that boards ship: {missing[0]} is not there", CLONE)
    if '"CIXH4000"' not in read(driver / SKY1):
        raise ConfigError(f"{driver}: {SKY1} does not know the ACPI device CIXH4000: this is another driver", CLONE)
    conf = driver / "dkms.conf"
    stated = re.search(r'^PACKAGE_VERSION="?([\w.+~-]+)', read(conf), re.MULTILINE) if conf.is_file() else None
    version = stated.group(1) if stated else DEFAULT_VERSION
    states = [_build_state(driver, version)]
    for change in CHANGES:
        text = read(driver / change.file)
        if change.name not in edits.names_in(text):
            place = change.find(edits.strip(text))
            state, why = place.state, place.why
        elif edits.is_consistent(text, _of_file(change.file)):
            state, why = OURS, ""
        else:
            state, why = LOST, "lines that anynpu inserted were changed"
        states.append(State(change.name, change.file, change.sentence, state, why))
    return Tree(driver, version, tuple(states))


def read(path: Path) -> str:
    """Returns a source file; every byte is one character, so that writing it again changes nothing."""
    if path.stat().st_size > MOST_BYTES:
        raise IntegrityError(f"{path}: too large for a source file of this driver")
    return path.read_bytes().decode("latin-1")


def _build_state(driver: Path, version: str) -> State:
    path = driver / makefile.FILE
    rules = read(driver / "Makefile")
    state, why = MISSING, ""
    if path.is_file():
        if not makefile.is_ours(read(path)):
            state, why = LOST, "there is a Kbuild file that is not ours, or ours was changed"
        elif not makefile.common_objects(rules) or read(path) == _kbuild(driver, version):
            state = OURS
    elif makefile.is_kbuild_form(rules):
        state, why = DONE, "the Makefile is in kbuild form already"
    elif not makefile.common_objects(rules):
        state, why = LOST, "the Makefile lists no COMM_OBJ"
    return State(BUILD_CHANGE, makefile.FILE, BUILD_SENTENCE, state, why)


def _kbuild(driver: Path, version: str) -> str:
    return makefile.kbuild(makefile.common_objects(read(driver / "Makefile")), version)


def _of_file(file: str) -> list[edits.Change]:
    return [change for change in CHANGES if change.file == file]


def patched(tree: Tree) -> list[Rewrite]:
    """Returns the files as the change set makes them; those that are so already are left out."""
    if tree.kind == BY_HAND:
        why = "; ".join(state.why for state in tree.states if state.state == CONFLICT)
        raise ConfigError(
            f"{tree.folder}: already patched by hand, for some kernels only ({why})",
            "it may build for yours as it is; to patch it for every kernel, restore the vendor's files first",
        )
    for state in tree.states:
        if state.state == LOST:
            raise _changed(tree, state.file, f"{state.name}: {state.why}")
    rewrites = []
    if any(state.name == BUILD_CHANGE and state.state == MISSING for state in tree.states):
        path = tree.folder / makefile.FILE
        before = read(path) if path.is_file() else None
        rewrites.append(Rewrite(path, makefile.FILE, before, _kbuild(tree.folder, tree.version)))
    for file in edits.FILES:
        text = read(tree.folder / file)
        rewrites.append(Rewrite(tree.folder / file, file, text, edits.apply(edits.strip(text), _of_file(file))))
    return [rewrite for rewrite in rewrites if rewrite.before != rewrite.after]


def reverted(tree: Tree) -> list[Rewrite]:
    """Returns the files as they were before our change set; what others changed meanwhile stays."""
    rewrites = []
    for file in edits.FILES:
        text = read(tree.folder / file)
        if not edits.is_consistent(text, _of_file(file)):
            raise _changed(tree, file, "lines that anynpu inserted were changed")
        rewrites.append(Rewrite(tree.folder / file, file, text, edits.strip(text)))
    path = tree.folder / makefile.FILE
    if path.is_file() and read(path).startswith(makefile.FIRST_LINE):
        if not makefile.is_ours(read(path)):
            raise _changed(tree, makefile.FILE, "the file that anynpu wrote was changed")
        rewrites.append(Rewrite(path, makefile.FILE, read(path), None))
    return [rewrite for rewrite in rewrites if rewrite.before != rewrite.after]


def _changed(tree: Tree, file: str, why: str) -> ConfigError:
    return ConfigError(
        f"{tree.folder / file}: {why}",
        f"nothing was written; if it was changed here, restore it (git checkout -- {file}); an edition that is "
        f"shipped so is newer than this kit: build it with its own Makefile, or use the one that is known ({SOURCE})",
    )


def write(rewrites: list[Rewrite]) -> None:
    """Writes or removes the files."""
    for rewrite in rewrites:
        if rewrite.after is None:
            rewrite.path.unlink()
        else:
            write_file(rewrite.path, rewrite.after.encode("latin-1"))
