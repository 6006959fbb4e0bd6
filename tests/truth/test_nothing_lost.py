"""Nothing lost: no verb replaces a file or folder by accident, and a build keeps what it uses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small_build import BUILD, Place, place

from anynpu.artifact import MANIFEST, Artifact, Manifest, Step
from anynpu.store import Store

__all__ = ["place"]

RUN = ("run", "out/cpu", "-i", "one.npy")
WRITERS = {
    "run": (*RUN, "-o"),
    "bench": ("bench", "out/cpu", "-n", "2", "-q", "-o"),
    "eval": ("eval", "out/cpu", "--data", "test.npz", "--metric", "top1", "-q", "-o"),
    "report": ("report", "bench.json", "-o"),
    "embed": ("embed", "out/cpu", "--text", "a", "-o"),
    "similar": ("similar", "out/cpu", "one.npy", "-o"),
}
ENDINGS = {"embed": ".npz", "similar": ".svg"}


@pytest.mark.parametrize("verb", WRITERS)
def test_a_file_that_is_there_is_kept(place: Place, verb: str) -> None:
    kept = place.folder / f"kept{ENDINGS.get(verb, '.json')}"
    kept.write_text("mine")
    done = place.call(*WRITERS[verb], kept.name)
    done.refused(2, f"{kept.name}: is there already")
    assert "--overwrite" in done.err and kept.read_text() == "mine"


def test_overwrite_replaces_the_file(place: Place) -> None:
    kept = place.folder / "kept.npz"
    kept.write_text("mine")
    assert place.call(*RUN, "-o", "kept.npz", "--overwrite").status == 0
    with np.load(kept) as found:
        assert found["y"].shape == (1, 5)


@pytest.mark.parametrize("way", ["itself", "link", "hard-link"])
def test_the_input_is_not_replaced_by_the_result(place: Place, way: str) -> None:
    before = (place.folder / "one.npy").read_bytes()
    if way == "link":
        (place.folder / "o.npy").symlink_to("one.npy")
    elif way == "hard-link":
        os.link("one.npy", "o.npy")
    name = "one.npy" if way == "itself" else "o.npy"
    place.call(*RUN, "-o", name, "--overwrite").refused(2, f"{name}: is read by this command")
    assert (place.folder / "one.npy").read_bytes() == before


def test_a_record_is_not_replaced_by_its_report(place: Place) -> None:
    place.call("report", "bench.json", "-o", "bench.json", "--overwrite").refused(2, "is read by this command")
    place.call("report", "out", "-o", "out/report.json", "--overwrite").refused(2, "is read by this command")


@pytest.mark.parametrize("name", ["model.onnx", MANIFEST])
def test_a_file_of_an_artifact_is_not_replaced(place: Place, name: str) -> None:
    place.call(*RUN, "-o", f"out/cpu/{name}", "--overwrite").refused(2, f"out/cpu/{name}: is a file of the artifact")
    Artifact.open(place.out / "cpu")


def test_the_page_of_a_build_is_made_again_where_it_was(place: Place) -> None:
    (place.out / "report.html").write_text("old")
    assert place.call("report", "out").status == 0
    assert "<title>" in (place.out / "report.html").read_text("utf-8")


@pytest.mark.parametrize("more", [(), ("--overwrite",)], ids=["kept", "overwrite"])
def test_a_build_into_a_link_leaves_the_link(place: Place, more: tuple[str, ...]) -> None:
    (place.folder / "disk").mkdir()
    place.out.rename(place.folder / "disk" / "real")
    place.out.symlink_to("disk/real")
    (place.folder / "disk" / "real" / "old.txt").write_text("of the earlier build")
    done = place.build(*more)
    assert done.status == 0, done.err
    assert place.out.is_symlink() and not (place.out / "old.txt").exists() and (place.out / "cpu").is_dir()
    backups = [p.name for p in (place.folder / "disk").iterdir() if p.name.startswith("real.backup-")]
    assert len(backups) == (0 if more else 1)


def test_a_build_into_a_link_that_leads_nowhere_makes_the_folder(place: Place) -> None:
    (place.folder / "new").symlink_to("later")
    assert place.build(out="new").status == 0
    assert (place.folder / "new").is_symlink() and (place.folder / "later" / "cpu").is_dir()


def test_a_build_into_a_loop_of_links(place: Place) -> None:
    (place.folder / "a").symlink_to("b")
    (place.folder / "b").symlink_to("a")
    place.build(out="a").refused(2, "a: cannot be written")


@pytest.mark.parametrize("more", [(), ("--overwrite",)], ids=["kept", "overwrite"])
def test_a_build_into_the_folder_of_its_own_model(place: Place, more: tuple[str, ...]) -> None:
    flags = ("-m", "out/float/model.onnx", "-t", "null", "-o", "out")
    place.call("build", *flags, *more).refused(2, "out: holds out/float/model.onnx, which this command reads")
    assert (place.out / "float" / "model.onnx").is_file()


@pytest.mark.parametrize("what", ["samples", "link", "module", "config"])
def test_a_build_into_a_folder_that_it_reads_from(place: Place, what: str) -> None:
    (place.folder / "data").mkdir()
    name = {"samples": "x.npz", "link": "net.onnx", "module": "net.py", "config": "build.toml"}[what]
    if what == "link":
        (place.folder / "data" / name).symlink_to("../net.onnx")
    elif what == "samples":
        (place.folder / name).rename(place.folder / "data" / name)
    else:
        (place.folder / "data" / name).write_text("")
    flags = {
        "samples": ("-m", "net.onnx", "--data", "data/x.npz"),
        "link": ("-m", "data/net.onnx"),
        "module": ("-m", "data.net:Net", "--shape", "x=1,3,8,8"),
        "config": ("-m", "net.onnx", "-c", "data/build.toml"),
    }[what]
    done = place.call("build", "-t", "null", *flags, "-o", "data")
    done.refused(2, f"data: holds data/{name}, which this command reads")


@pytest.mark.parametrize("out", ["cache/out", "cache/store/out", "cache"])
def test_a_build_into_the_cache(place: Place, out: str) -> None:
    place.build(out=out).refused(2, "the cache", "cannot lie in each other")


def test_a_build_into_a_folder_that_holds_the_cache(place: Place) -> None:
    place.build("--cache-dir", "new/cache", out="new").refused(2, "the cache", "cannot lie in each other")


def test_a_sweep_leaves_a_folder_of_something_else_alone(place: Place) -> None:
    before = (place.out / "report.html").read_bytes()
    place.call("sweep", "-m", "net.onnx", "-t", "null", "-o", "out", "-q").refused(2, "that is not of a sweep")
    assert (place.out / "report.html").read_bytes() == before


def test_firmware_is_not_put_where_its_model_lies(place: Place) -> None:
    place.call("firmware", "out/cpu", "-b", "host", "-o", "out", "--overwrite").refused(2, "out: holds out/cpu")
    assert (place.out / "cpu" / "model.onnx").is_file()


def test_a_file_that_is_edited_in_the_output_leaves_the_store_alone(place: Place) -> None:
    with (place.out / "cpu" / "model.onnx").open("r+b") as stream:
        stream.write(bytes(64))
    Artifact.open(place.stored("cpu").path)
    assert place.build("--overwrite").status == 0
    Artifact.open(place.out / "cpu")


USER = """
import sys
from pathlib import Path
from anynpu.artifact import Manifest, Step
from anynpu.store import Store
def make(out, log):
    (out / "model.bin").write_bytes(b"x")
    return Manifest("bin", "model.bin")
store = Store(Path(sys.argv[1]))
path = store.build(Step("make", {"model": "ab"}), make).artifact.path
print(path, flush=True)
sys.stdin.read()
assert (path / "model.bin").read_bytes() == b"x"
"""


@pytest.mark.parametrize("command", [("prune", "--max-size", "0"), ("clear", "--yes")], ids=["prune", "clear"])
def test_the_cache_is_emptied_while_a_build_uses_it(place: Place, command: tuple[str, ...]) -> None:
    argv = [sys.executable, "-c", USER, str(place.folder / "cache")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdin is not None and user.stdout is not None
        used = Path(user.stdout.readline().strip())
        done = place.call("cache", *command)
        assert done.status == 0 and "1 steps are in use by a build that runs now; they stay" in done.err
        assert [p.name for p in (place.folder / "cache" / "store").glob("??/*")] == [used.name]
        user.stdin.close()
        assert user.wait(60) == 0
    assert "removed 1 steps" in place.call("cache", *command).out
    assert not used.exists()


def test_a_killed_build_keeps_nothing_from_being_removed(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", USER, str(tmp_path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None
        used = Path(user.stdout.readline().strip())
        store = Store(tmp_path)
        assert not store.remove(used.name)
        user.kill()
        user.wait()
    assert store.remove(used.name) and not used.exists()


def test_logs_of_a_build_under_way_are_not_taken_from_it(tmp_path: Path) -> None:
    def make(out: Path, log: Path) -> Manifest:
        assert Store(tmp_path).clear() == 1
        log.write_text("still here")
        (out / "model.bin").write_bytes(b"x")
        return Manifest("bin", "model.bin")

    built = Store(tmp_path).build(Step("make"), make)
    assert built.artifact.main.read_bytes() == b"x"


def test_a_second_build_of_the_same_flags_is_all_hits(place: Place) -> None:
    done = place.call("build", *[flag for flag in BUILD if flag != "-q"], "-o", "out", "--overwrite")
    assert done.status == 0 and done.err.count("(cached)") >= 5
