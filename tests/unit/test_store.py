"""The store: built once, whole or not at all, damage noticed."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from anynpu import tool
from anynpu.artifact import MANIFEST, Manifest, Step
from anynpu.errors import ConfigError, IntegrityError, ToolFailed
from anynpu.files import cache_chosen, default_cache_dir, usual_cache_dir, writing
from anynpu.store import ALIVE, Store

STEP = Step("make", {"model": "ab"})


def make(out: Path, log: Path) -> Manifest:
    (out / "model.bin").write_bytes(b"0123456789")
    log.write_text("the tool says hello\n")
    return Manifest("bin", "model.bin")


def never(out: Path, log: Path) -> Manifest:
    raise AssertionError("it is in the store already")


def edit_manifest(folder: Path, **changes: object) -> None:
    data = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**data, **changes}))


def names(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def test_the_second_build_is_a_hit(store: Store) -> None:
    first = store.build(STEP, make)
    second = store.build(STEP, never)
    assert (first.hit, second.hit) == (False, True)
    assert second.artifact.digest == first.artifact.digest
    assert second.artifact.main.read_bytes() == b"0123456789"
    assert not list((store.cache / "scratch").iterdir())


def test_another_step_has_another_place(store: Store) -> None:
    store.build(STEP, make)
    assert not store.build(Step("make", {"model": "cd"}), make).hit
    assert len(list(store.entries())) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: (path / "model.bin").write_bytes(b"012"),
        lambda path: (path / "model.bin").write_bytes(bytes(10)),
        lambda path: edit_manifest(path, notes=["all is well"]),
        lambda path: (path / "model.bin").unlink(),
        lambda path: (path / MANIFEST).write_text('{"format":'),
        lambda path: (path / MANIFEST).write_bytes(b""),
        lambda path: (path / MANIFEST).unlink(),
    ],
    ids=["truncated", "zeroed", "edited manifest", "file gone", "garbled manifest", "empty manifest", "manifest gone"],
)
def test_a_damaged_entry_is_flagged_and_built_again(store: Store, damage: Callable[[Path], object]) -> None:
    built = store.build(STEP, make)
    damage(built.artifact.path)
    assert store.find(STEP.address) is None
    assert [bool(complaint) for _, complaint in store.verify()] == [True]
    again = store.build(STEP, make)
    assert not again.hit and str(built.artifact.path) in again.damage
    assert again.artifact.digest == built.artifact.digest
    assert [complaint for _, complaint in store.verify()] == [""]
    assert not list((store.cache / "scratch").iterdir())


def test_a_changed_byte_is_flagged(store: Store) -> None:
    built = store.build(STEP, make)
    built.artifact.main.write_bytes(b"0123456780")
    [(address, complaint)] = store.verify()
    assert address == STEP.address and "model.bin: has changed" in complaint


def test_an_entry_under_another_address_is_not_taken(store: Store) -> None:
    built = store.build(STEP, make)
    other = Step("make", {"model": "cd"})
    store.path(other.address).parent.mkdir(parents=True, exist_ok=True)
    built.artifact.path.rename(store.path(other.address))
    assert store.find(other.address) is None
    assert "another address" in next(store.verify())[1]


def test_a_failing_step_leaves_only_its_log(store: Store) -> None:
    def fails(out: Path, log: Path) -> Manifest:
        (out / "half").write_bytes(b"x")
        log.write_text("why\n")
        raise ToolFailed("vela failed")

    with pytest.raises(ToolFailed):
        store.build(STEP, fails)
    assert store.log(STEP.address).read_text() == "why\n"
    left = {name for name in names(store.cache) if not name.startswith(("locks/", "leases/"))}
    assert left == {f"logs/{STEP.address}.log"}
    assert not store.build(STEP, make).hit


def test_a_step_without_its_main_file_is_refused(store: Store) -> None:
    with pytest.raises(IntegrityError, match="made no file"):
        store.build(STEP, lambda out, log: Manifest("bin", "model.bin"))
    assert store.find(STEP.address) is None


def test_sweeping_takes_remains_and_spares_builds_at_work(store: Store) -> None:
    scratch = store.cache / "scratch"
    for name in ("dead", "young", "busy"):
        (scratch / name).mkdir(parents=True)
    (scratch / "stray").write_text("a file, not a folder")
    old = time.time() - 3600
    with FileLock(scratch / "busy" / ALIVE):
        for name in ("dead", "busy", "stray"):
            os.utime(scratch / name, (old, old))
        assert store.sweep() == 2
        assert {p.name for p in scratch.iterdir()} == {"young", "busy"}
    os.utime(scratch / "busy", (old, old))
    assert store.sweep() == 1


def test_a_build_sweeps_what_is_old(store: Store) -> None:
    dead = store.cache / "scratch" / "dead"
    dead.mkdir(parents=True)
    os.utime(dead, (1, 1))
    store.build(STEP, make)
    assert not dead.exists()


def test_removing_takes_the_artifact_and_its_log(store: Store) -> None:
    store.build(STEP, make)
    store.remove(STEP.address)
    assert store.find(STEP.address) is None and not store.log(STEP.address).exists()
    store.remove(STEP.address)


def test_a_hit_counts_as_used(store: Store) -> None:
    built = store.build(STEP, make)
    os.utime(built.artifact.path / MANIFEST, (1, 1))
    store.build(STEP, never)
    assert next(store.entries()).used > 1000


def test_an_empty_store_has_nothing_to_say(store: Store) -> None:
    assert not list(store.entries()) and not list(store.verify()) and store.sweep() == 0


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "no space left on the disk"),
        (errno.EROFS, "cannot be written"),
        (errno.EACCES, "cannot be written"),
        (errno.ENOTDIR, "cannot be a folder here"),
    ],
)
def test_errors_of_the_disk_are_one_sentence(number: int, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^/some/where: {words}"), writing(Path("/some/where")):
        raise OSError(number, os.strerror(number))


def test_other_errors_pass_unchanged() -> None:
    with pytest.raises(ConnectionResetError), writing(Path("x")):
        raise ConnectionResetError(errno.ECONNRESET, "reset")


def test_the_cache_folder_is_the_users_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANYNPU_CACHE_DIR", str(tmp_path / "c"))
    assert default_cache_dir() == tmp_path / "c"
    monkeypatch.delenv("ANYNPU_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "anynpu"
    with cache_chosen(tmp_path / "for now"):
        assert default_cache_dir() == Store().cache == tmp_path / "for now"
        assert usual_cache_dir() == tmp_path / "anynpu"
        (tmp_path / "seen.py").write_text(
            "from anynpu import files\n"
            "def folders(): return [str(files.default_cache_dir()), str(files.usual_cache_dir())]\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        child = tool.call("seen:folders", {}, scratch=tmp_path, log=tmp_path / "log")
        assert child == [str(tmp_path / "for now"), str(tmp_path / "anynpu")]
    assert default_cache_dir() == tmp_path / "anynpu"


def test_what_was_found_out_is_kept_and_found_out_again_where_it_is_damaged(tmp_path):
    store, asked = Store(tmp_path), []

    def find_out():
        asked.append(1)
        return {"tables": True}

    assert store.recall("ab", find_out) == store.recall("ab", find_out) == {"tables": True}
    assert len(asked) == 1
    (kept,) = (tmp_path / "settled").iterdir()
    for damage in ("{", "[]", "\xff", kept.read_text().replace("true", "false")):
        kept.write_bytes(damage.encode("latin-1"))
        assert store.recall("ab", find_out) == {"tables": True}
    assert len(asked) == 5
    store.clear()
    assert not kept.exists()
