"""Full and read-only disks: exit status 2, one sentence, nothing half-written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from small_build import pristine
from small_net import left_behind, write_net

from anynpu.cli.main import main
from anynpu.files import cache_chosen
from anynpu.store import Store

HIDDEN = 2000  # weights of about 2.8 MB


def refused(done: subprocess.CompletedProcess[str], words: str) -> None:
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr and "internal error" not in done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("anynpu: ")]
    assert len(told) == 1 and words in told[0], done.stderr


@pytest.mark.parametrize("size", ["64k", "1m"])
def test_a_full_cache_disk(tmp_path: Path, cli: Callable, mount: Callable, size: str) -> None:
    cache = mount("disk", f"size={size}")
    write_net(tmp_path / "net.onnx", hidden=HIDDEN)
    flags = ("-m", "net.onnx", "-t", "cpu", "--data", "random:10", "-o", "out", "--cache-dir", str(cache))
    refused(cli("build", *flags), "no space left on the disk")
    assert left_behind(tmp_path) == ["disk", "net.onnx"]
    assert [complaint for _, complaint in Store(cache).verify() if complaint] == []
    assert not list((cache / "scratch").glob("*"))


def test_a_disk_that_fills_up_while_one_chip_is_built(tmp_path: Path, cli: Callable, mount: Callable) -> None:
    cache = mount("disk", "size=3100k")
    write_net(tmp_path / "net.onnx", hidden=HIDDEN)
    flags = ("-m", "net.onnx", "-t", "cpu", "--data", "random:10", "-o", "out", "--cache-dir", str(cache))
    done = cli("build", *flags)
    assert done.returncode == 2 and "no space left on the disk" in done.stdout, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    chip = json.loads((tmp_path / "out" / "report.json").read_text())["chips"][0]
    assert chip["error"]["kind"] == "ConfigError" and not (tmp_path / "out" / "cpu").exists()
    assert [complaint for _, complaint in Store(cache).verify() if complaint] == []
    assert not list((cache / "scratch").glob("*"))


def test_a_full_output_disk(tmp_path: Path, cli: Callable, mount: Callable) -> None:
    disk = mount("disk", "size=1m")
    write_net(tmp_path / "net.onnx", hidden=HIDDEN)
    refused(cli("build", "-m", "net.onnx", "-t", "null", "-o", "disk/out"), "no space left on the disk")
    assert left_behind(disk) == []


def test_a_full_disk_of_temporary_files(tmp_path: Path, cli: Callable, mount: Callable) -> None:
    disk = mount("disk", "size=64k")
    write_net(tmp_path / "net.onnx", hidden=HIDDEN, seed=3)
    done = cli("build", "-m", "net.onnx", "-t", "cpu", "--data", "random:8", "-o", "out", TMPDIR=str(disk))
    assert done.returncode == 2 and "no space left" in done.stdout + done.stderr
    assert left_behind(disk) == []


@pytest.mark.build
def test_a_full_disk_of_temporary_files_is_no_damage_of_weights(tmp_path: Path, cli: Callable, mount: Callable) -> None:
    disk = mount("disk", "size=64k")
    write_net(tmp_path / "net.onnx", hidden=256, seed=3)
    flags = ("build", "-m", "net.onnx", "-t", "ethos-u55-128", "--data", "random:8", "-o", "out")
    assert cli(*flags, TMPDIR=str(disk)).returncode == 0


@pytest.mark.parametrize("what", ["output", "cache"])
def test_a_read_only_disk(tmp_path: Path, cli: Callable, mount: Callable, what: str) -> None:
    mount("disk", "size=1m,ro")
    write_net(tmp_path / "net.onnx")
    flags = ("-o", "disk/out") if what == "output" else ("-o", "out", "--cache-dir", "disk/cache")
    refused(cli("build", "-m", "net.onnx", "-t", "null", *flags), "cannot be written")
    assert left_behind(tmp_path) == ["disk", "net.onnx"]


def test_a_read_only_cache_still_gives_hits(tmp_path: Path, cli: Callable, mount: Callable) -> None:
    disk = mount("disk", "size=4m")
    write_net(tmp_path / "net.onnx")
    flags = ("build", "-m", "net.onnx", "-t", "null", "-o", "out", "--cache-dir", "disk/cache")
    assert cli(*flags).returncode == 0
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    again = cli(*flags, "--overwrite")
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("(cached)") == 2


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder of a small build with samples and records of it, which is the working folder."""
    monkeypatch.chdir(pristine())
    with cache_chosen(pristine() / "cache"):
        yield


WRITERS = {
    "run": ("run", "out/cpu", "-i", "one.npy"),
    "bench": ("bench", "out/cpu", "-n", "300", "-q"),
    "eval": ("eval", "out/cpu", "--data", "test.npz", "--metric", "top1", "-q"),
    "report": ("report", "bench.json"),
}


@pytest.mark.parametrize("verb", WRITERS)
def test_a_full_disk_leaves_the_earlier_file(
    measured: None, mount: Callable, capfd: pytest.CaptureFixture[str], verb: str
) -> None:
    disk = mount("disk", "size=8k")
    (disk / "old").write_text("mine")
    (disk / "ballast").write_bytes(bytes(4096))
    assert main([*WRITERS[verb], "-o", str(disk / "old"), "--overwrite"]) == 2
    assert f"{disk / 'old'}: no space left on the disk" in capfd.readouterr().err
    assert (disk / "old").read_text() == "mine" and left_behind(disk) == ["ballast", "old"]


def test_a_full_disk_leaves_the_ledger_as_it_was(
    measured: None, mount: Callable, capfd: pytest.CaptureFixture[str]
) -> None:
    disk = mount("disk", "size=64k")
    ledger = disk / "ledger.jsonl"
    assert main(["regress", "--add", "out/report.json", "--ledger", str(ledger)]) == 0
    before = ledger.read_bytes()
    with suppress(OSError), (disk / "ballast").open("wb") as ballast:
        while True:
            ballast.write(bytes(4096))
            ballast.flush()
    assert main(["regress", "--add", "bench.json", "--ledger", str(ledger)]) == 2
    assert "no space left on the disk" in capfd.readouterr().err
    assert ledger.read_bytes() == before


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("what", ["output", "cache"])
def test_a_folder_without_permission(tmp_path: Path, cli: Callable, what: str) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    write_net(tmp_path / "net.onnx")
    flags = ("-o", "locked/out") if what == "output" else ("-o", "out", "--cache-dir", "locked/cache")
    refused(cli("build", "-m", "net.onnx", "-t", "null", *flags), "cannot be written")


def test_a_mount_point_is_no_output_folder(tmp_path: Path, cli: Callable, mount: Callable) -> None:
    mount("disk", "size=1m")
    write_net(tmp_path / "net.onnx")
    done = cli("build", "-m", "net.onnx", "-t", "null", "-o", "disk")
    refused(done, "cannot be replaced while it is in use")
    assert "-o disk/build" in done.stderr


def test_stdout_on_a_full_disk(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "anynpu", "targets"], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True
        )
    refused(done, "no space left on the disk")
