"""Files: whole or not at all, nothing replaced by accident, each hashed once per change."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from anynpu import files
from anynpu.errors import ConfigError
from anynpu.files import cache_chosen, check_free, forget_hashes, hash_file, hashes, write_whole


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The files that are really hashed, with a cache of this test's own and files that settle at once."""
    seen: list[str] = []

    def hashing(path: Path) -> str:
        seen.append(path.name)
        return hash_file(path)

    monkeypatch.setattr(files, "hash_file", hashing)
    monkeypatch.setattr(files, "SETTLED_NS", -1)
    monkeypatch.setenv("ANYNPU_CACHE_DIR", str(tmp_path / "cache"))
    return seen


def test_a_file_is_hashed_once_per_change(tmp_path: Path, counted: list[str]) -> None:
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "b").write_bytes(b"two")
    first = hashes(tmp_path, ["a", "b"])
    assert hashes(tmp_path, ["a", "b"]) == first and counted == ["a", "b"]
    (tmp_path / "b").write_bytes(b"TWO")
    second = hashes(tmp_path, ["a", "b"])
    assert second["a"] == first["a"] and second["b"] == hash_file(tmp_path / "b") != first["b"]
    assert counted == ["a", "b", "b"]
    assert hashes(tmp_path, ["a"], anew=True)["a"] == first["a"] and counted[-1] == "a"


def same_times(path: Path) -> None:
    known = path.stat()
    path.write_bytes(b"TWO")
    os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns))


def swapped(path: Path) -> None:
    known = path.stat()
    path.with_name("other").write_bytes(b"TWO")
    os.utime(path.with_name("other"), ns=(known.st_atime_ns, known.st_mtime_ns))
    path.with_name("other").replace(path)


@pytest.mark.parametrize("change", [same_times, swapped])
def test_a_change_that_keeps_size_and_time_is_noticed(
    tmp_path: Path, counted: list[str], change: Callable[[Path], None]
) -> None:
    (tmp_path / "a").write_bytes(b"two")
    before = hashes(tmp_path, ["a"])
    time.sleep(0.02)  # the clock of a file system ticks every few milliseconds
    change(tmp_path / "a")
    assert hashes(tmp_path, ["a"]) != before


def test_a_file_that_has_just_changed_is_not_noted(
    tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "SETTLED_NS", 60_000_000_000)
    (tmp_path / "a").write_bytes(b"one")
    hashes(tmp_path, ["a"])
    hashes(tmp_path, ["a"])
    assert counted == ["a", "a"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": 3}', '{"files": {"a": 3}}', '{"files": {"a": [[1], 2]}}'])
def test_a_damaged_note_is_no_note(tmp_path: Path, counted: list[str], text: str) -> None:
    (tmp_path / "a").write_bytes(b"one")
    found = hashes(tmp_path, ["a"])
    [memo] = (tmp_path / "cache" / "hashes").iterdir()
    memo.write_text(text)
    assert hashes(tmp_path, ["a"]) == found and counted == ["a", "a"]


def test_a_note_goes_with_its_folder(tmp_path: Path, counted: list[str]) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a").write_bytes(b"one")
    hashes(tmp_path / "x", ["a"])
    forget_hashes(tmp_path / "cache")
    assert len(list((tmp_path / "cache" / "hashes").iterdir())) == 1
    (tmp_path / "x").rename(tmp_path / "y")
    forget_hashes(tmp_path / "cache")
    assert not list((tmp_path / "cache" / "hashes").iterdir())


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, counted: list[str]) -> None:
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "file").write_text("")
    with cache_chosen(tmp_path / "file" / "cache"):
        assert hashes(tmp_path, ["a"])["a"] == hash_file(tmp_path / "a")


def test_a_file_is_replaced_in_one_move_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_whole(path, "one")
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~files._umask()
    path.chmod(0o640)
    inode = path.stat().st_ino
    write_whole(path, b"two")
    assert path.read_bytes() == b"two" and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert path.stat().st_ino != inode and [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_what_goes_wrong_leaves_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text("one")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"a\.json: no space left on the disk"):
        write_whole(path, "two")
    assert path.read_text() == "one" and [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/file")
    write_whole(tmp_path / "link", "new")
    write_whole(tmp_path / "link", "newer")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "folder" / "file").read_text() == "newer"


def test_a_loop_of_links_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(ConfigError, match="cannot be written"):
        check_free(tmp_path / "a", overwrite=False)
        write_whole(tmp_path / "a", "x")


def test_pipes_and_devices_are_written_as_they_are(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    for path in (tmp_path / "pipe", Path("/dev/null"), Path("/dev/stdout")):
        check_free(path, overwrite=False)
        write_whole(path, "here")
    reader.join(10)
    assert read == [b"here"] and capfd.readouterr().out == "here" and stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_what_is_there_is_not_replaced_without_a_word(tmp_path: Path) -> None:
    path, other = tmp_path / "a", tmp_path / "b"
    check_free(path, overwrite=False)
    path.write_text("x")
    os.link(path, other)
    with pytest.raises(ConfigError, match="is there already") as refused:
        check_free(path, overwrite=False)
    assert "--overwrite" in refused.value.hint
    check_free(path, overwrite=True, reads=[None, tmp_path / "none", "zoo:kws"])
    with pytest.raises(ConfigError, match="is read by this command"):
        check_free(path, overwrite=True, reads=[other])
    with pytest.raises(ConfigError, match="is a folder"):
        check_free(tmp_path, overwrite=True)
    with pytest.raises(ConfigError, match="there is no such folder"):
        check_free(tmp_path / "none" / "a", overwrite=True)
