"""The verb `firmware`: what it writes, what it refuses, and that it does both the same way every time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import rect_model
from click.testing import CliRunner
from project_tools import need, sh

from anynpu.artifact import Artifact
from anynpu.cli.firmware import firmware
from anynpu.errors import AnyNpuError, ConfigError, IntegrityError, Unsupported
from anynpu.firmware.project import templates
from anynpu.firmware.project.boards import BOARDS
from anynpu.firmware.project.tree import make_project


def call(*arguments: str | Path) -> str:
    """Runs the command and returns its stdout; an error is raised as it is."""
    runner = CliRunner()
    done = runner.invoke(firmware, [str(a) for a in arguments], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.stdout


def refused(*arguments: str | Path) -> AnyNpuError:
    with pytest.raises(AnyNpuError) as caught:
        call(*arguments)
    assert "\n" not in caught.value.message
    return caught.value


def test_json_tells_what_was_written(c_artifact, tmp_path):
    said = json.loads(call(c_artifact.path, "-b", "host", "-o", tmp_path / "fw", "-f", "json"))
    assert (said["kind"], said["board"], said["model"], said["vectors"]) == ("firmware", "host", "rect", 5)
    assert said["fingerprint"] == rect_model.FINGERPRINT and said["artifact"] == c_artifact.digest
    written = sorted(p.relative_to(tmp_path / "fw").as_posix() for p in (tmp_path / "fw").rglob("*") if p.is_file())
    assert written == sorted(said["files"])
    assert json.loads((tmp_path / "fw" / "report.json").read_text())["arena_bytes"] == said["arena_bytes"]


def test_text_names_the_next_step(c_artifact, tmp_path):
    said = call(c_artifact.path, "-b", "qemu-mps2-an386", "-o", tmp_path / "fw")
    assert "rect for QEMU's mps2-an386 (Cortex-M4F)" in said and "README.md" in said
    assert "make check" in (tmp_path / "fw" / "README.md").read_text()


def test_without_a_board_all_are_listed():
    boards = {row["board"] for row in json.loads(call("-f", "json"))["boards"]}
    assert boards == set(BOARDS) >= {"host", "qemu-mps2-an386", "cmsis", "stm32", "arduino", "zephyr", "hxwe2"}


@pytest.mark.parametrize("board", [board for board in BOARDS if board != "cvi-linux"])  # test_cvi_tree.py
def test_the_tree_is_the_same_every_time_and_has_no_place_left_open(c_artifact, npu_out, board):
    engine = BOARDS[board].engine
    artifact = {"c": c_artifact}.get(engine) or Artifact.open(npu_out / ("hxwe2" if engine == "ethos-u" else "mcxn947"))
    once, again = (make_project(Artifact.open(artifact.path), board).files for _ in range(2))
    assert once == again
    for name, data in once.items():
        assert not templates.PLACE.search(data.decode()), name
        assert str(artifact.path).encode() not in data, name
    assert {"README.md", "report.json"} <= set(once)


def test_an_earlier_tree_is_kept_or_replaced_and_foreign_folders_are_left_alone(c_artifact, tmp_path):
    out = tmp_path / "fw"
    call(c_artifact.path, "-b", "host", "-o", out)
    (out / "mine.txt").write_text("edited")
    call(c_artifact.path, "-b", "host", "-o", out)
    (kept,) = tmp_path.glob("fw.backup-*")
    assert (kept / "mine.txt").is_file() and not (out / "mine.txt").exists()
    call(c_artifact.path, "-b", "host", "-o", out, "--overwrite")
    assert len(list(tmp_path.iterdir())) == 2
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("x")
    assert "was not made by anynpu" in refused(c_artifact.path, "-b", "host", "-o", foreign, "--overwrite").message


def test_a_refused_tree_leaves_nothing_behind(npu_out, tmp_path):
    error = refused(npu_out / "tflm", "-b", "hxwe2", "-o", tmp_path / "fw")
    assert isinstance(error, Unsupported) and error.exit_status == 3
    assert list(tmp_path.iterdir()) == []


def test_wrong_names(c_artifact, tmp_path):
    error = refused(c_artifact.path, "-b", "quemu-mps2-an386", "-o", tmp_path / "fw")
    assert "did you mean 'qemu-mps2-an386'?" in error.message and isinstance(error, ConfigError)
    assert "no artifact is named" in refused("-b", "host").message
    assert "no such folder" in refused(tmp_path / "nothing", "-b", "host", "-o", tmp_path / "fw").message
    assert (
        "takes no --compiled file"
        in refused(c_artifact.path, "-b", "host", "--compiled", "x.tflite", "-o", tmp_path / "fw").message
    )


def test_code_for_another_core_is_refused(tmp_path):
    artifact = rect_model.generated(tmp_path / "out", "cortex-m55")
    error = refused(artifact.path, "-b", "qemu-mps2-an386", "-o", tmp_path / "fw")
    assert error.message == "board qemu-mps2-an386 does not run what is generated for cortex-m55"
    assert "cortex-m4" in error.hint


def test_vectors_of_another_network_are_refused(c_artifact, npu_out, tmp_path):
    other = rect_model.generated(tmp_path / "out", "cortex-m4")
    own = other.path.parent / "evidence" / "cortex-m4" / "vectors.npz"
    assert call(c_artifact.path, "-b", "host", "-o", tmp_path / "a", "--vectors", own), "the same model, built again"
    theirs = npu_out / "evidence" / "hxwe2" / "vectors.npz"
    error = refused(c_artifact.path, "-b", "host", "-o", tmp_path / "b", "--vectors", theirs)
    assert "those of another network" in error.message
    shutil.rmtree(other.path.parent / "evidence")
    error = refused(other.path, "-b", "host", "-o", tmp_path / "b")
    assert "no known answers next to it" in error.message and "--vectors" in error.hint


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda k: k.update(fingerprint=np.array("00" * 32)), "another network"),
        (lambda k: k.update({"output:answer": k["output:answer"][:3]}), "same number of samples"),
        (lambda k: k.update({"output:answer": k["output:answer"].astype(np.int16)}), "holds int8, not int16"),
        (lambda k: k.update({"output:other": k.pop("output:answer")}), "holds output:other"),
        (lambda k: k.update({"input:image": k["input:image"][:, :9]}), "has shape"),
    ],
)
def test_vectors_that_do_not_fit_are_refused(c_artifact, tmp_path, change, words):
    known = rect_model.answers(Artifact.open(c_artifact.path.parent / "tflm"))
    change(known)
    np.savez(tmp_path / "vectors.npz", **known)
    error = refused(c_artifact.path, "-b", "host", "-o", tmp_path / "fw", "--vectors", tmp_path / "vectors.npz")
    assert words in error.message


def test_vectors_that_say_nothing_of_their_origin_are_taken_with_a_note(c_artifact, tmp_path):
    known = rect_model.answers(Artifact.open(c_artifact.path.parent / "tflm"))
    np.savez(tmp_path / "vectors.npz", **known)
    argv = (c_artifact.path, "-b", "host", "-o", tmp_path / "fw", "--vectors", tmp_path / "vectors.npz", "-f", "json")
    said = json.loads(call(*argv, "--count", "2"))
    assert said["vectors"] == 2 and "does not say of which network" in said["notes"][0]


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 nothing", b"\x93NUMPY\x01\x00"])
def test_a_damaged_file_of_vectors_is_named(c_artifact, tmp_path, data):
    (tmp_path / "vectors.npz").write_bytes(data)
    error = refused(c_artifact.path, "-b", "host", "-o", tmp_path / "fw", "--vectors", tmp_path / "vectors.npz")
    assert isinstance(error, IntegrityError) and "is not a file of known answers" in error.message


def test_an_artifact_that_was_edited_is_refused(c_artifact, tmp_path):
    shutil.copytree(c_artifact.path, tmp_path / "cortex-m4")
    path = tmp_path / "cortex-m4" / "anynpu_model.c"
    path.write_text(path.read_text().replace("return 0;", "return 1;"))
    error = refused(tmp_path / "cortex-m4", "-b", "host", "-o", tmp_path / "fw")
    assert isinstance(error, IntegrityError) and "has changed since it was made" in error.message


def test_a_stack_that_does_not_fit_is_a_link_error(c_artifact, tree):
    need("make", "arm-none-eabi-gcc")
    folder = tree(c_artifact, "qemu-mps2-an386")
    script = folder / "board" / "machine.ld"
    script.write_text(script.read_text().replace("0x20000000, LENGTH = 4M", "0x20000000, LENGTH = 17K"))
    done = sh("make", "all", cwd=folder)
    assert done.returncode != 0 and "leave no room for the stack" in done.stderr


NET = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Linear(8, 5)
    def forward(self, x):
        return self.b(torch.relu(self.a(x)).mean((2, 3)))
"""


def test_from_a_model_to_a_firmware_that_proves_itself(cli, tmp_path):
    need("make", "cc")
    pytest.importorskip("ai_edge_litert", reason="pip install 'anynpu[build]'")
    (tmp_path / "net.py").write_text(NET)
    model = ("-m", "net.py:Net", "--shape", "x=1,3,12,20", "--layout", "x=NCHW", "--data", "random:32")
    done = cli("build", *model, "-t", "host", "-o", "out")
    assert done.returncode == 0, done.stderr
    done = cli("firmware", "out/host", "-b", "host", "-o", "fw", "-f", "json")
    assert done.returncode == 0 and json.loads(done.stdout)["vectors"] == 5, done.stderr
    assert "#define ANYNPU_INPUT_0_HEIGHT 12\n" in (tmp_path / "fw" / "model" / "anynpu_model.h").read_text()
    done = sh("make", "-s", "check", "CFLAGS=-Werror", cwd=tmp_path / "fw")
    assert done.stdout.splitlines()[-1] == "kat-result PASS 5/5", done.stderr
    done = cli("firmware", "out/host", "-b", "hxwe2", "-o", "fw2")
    assert done.returncode == 3 and "is not compiled by Vela" in done.stderr
