"""The trees for Ethos-U, built and run without an NPU: C in the driver's place executes what Vela wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import rect_model
from project_tools import need, on_pty, sh
from random_graphs import Drawer
from test_board_trees import ETHOSU, compiles, objects
from test_host_tree import spoil

from anynpu import plugins
from anynpu.artifact import Artifact, Manifest, Step, seal
from anynpu.errors import Unsupported
from anynpu.firmware import run
from anynpu.firmware.project.boards import find
from anynpu.firmware.project.model import read_model
from anynpu.firmware.project.tree import make_project
from anynpu.runtime.tflm import TflmSession
from anynpu.store import Store
from anynpu.targets.base import Work
from anynpu.targets.flatbuffer import operators
from anynpu.targets.vela import Vela
from anynpu.targets.vela.command import VelaOptions
from anynpu.tensors import Quantization, TensorSpec

NO_DRIVER = [a for a in ETHOSU if a.startswith("CMSIS")]
QUICK = "OPTIMISE=-O0"
SANITIZED = ("CFLAGS=-Werror -fsanitize=address,undefined -fno-sanitize-recover=all", QUICK)


def network(path: Path, dtype: str, seed: int = 5) -> Path:
    """A convolution, a table, a depthwise convolution, an addition, pooling, a dense layer and a softmax."""
    d = Drawer(np.random.default_rng(seed))
    x = d.input((1, 9, 8, 5), dtype, 0.05 if dtype == "int8" else 0.001, 3 if dtype == "int8" else 0)
    for name in ("conv", "unary", "depthwise", "binary", "pool", "dense", "softmax"):
        if name == "unary" and dtype == "int16":
            continue  # it would turn them into 8 bits
        kind = {"unary": "LOGISTIC", "binary": "ADD", "pool": "MAX_POOL_2D"}.get(name)
        x = getattr(d, name)(x, kind) if kind else getattr(d, name)(x)
    return d.write(path)


def built(out: Path, chip: str, dtype: str = "int8") -> Artifact:
    """Returns a network as Vela compiles it for a chip, with the answers of TFLite-Micro beside it."""
    folder = out / "tflm"
    folder.mkdir(parents=True)
    model = network(folder / "model.tflite", dtype)
    found = operators(model)
    ends = (found[0].inputs[0], found[-1].outputs[0])
    specs = [
        (TensorSpec(t.name, t.shape, t.dtype, quantization=Quantization(t.scale[:1], t.zero_point[:1])),) for t in ends
    ]
    manifest = Manifest("tflite", "model.tflite", *specs, rect_model.FINGERPRINT)
    source = seal(folder, manifest, Step("tflite", platform="tflm"), rect_model.MADE)
    (out / chip).mkdir()
    work = Work(out / "log", lambda done, total: None)
    compiled = Vela().compile(source, None, plugins.platform(chip), VelaOptions(), out / chip, work)
    artifact = seal(out / chip, compiled, Step("vela", {"model": source.digest}, platform=chip), rect_model.MADE)
    session, (given,), (made,) = TflmSession(source), *specs
    limits = np.iinfo(dtype)
    inputs = np.random.default_rng(3).integers(limits.min, limits.max, (5, *given.shape[1:]), endpoint=True)
    inputs[1], inputs[2] = limits.max, limits.min
    stored = inputs.astype(dtype)
    answers = np.concatenate([session.run({given.name: x[None]})[made.name].copy() for x in stored])
    evidence = out / "evidence" / chip
    evidence.mkdir(parents=True)
    np.savez(evidence / "vectors.npz", **{f"input:{given.name}": stored, f"output:{made.name}": answers})
    (evidence / "verification.json").write_text("{}\n")
    proof = Manifest("evidence", "verification.json")
    seal(evidence, proof, Step("verify", {"candidate": source.digest}), rect_model.MADE)
    return artifact


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> Artifact:
    """A model whose last operator is left to the CPU."""
    return rect_model.compiled(tmp_path_factory.mktemp("mixed"), "ethos-u55-256", "SPACE_TO_DEPTH")


def passes(done) -> None:
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kat-result PASS 5/5" in lines and [line for line in lines if line.startswith("a-npu-[reference: ")]


def test_the_tree_for_the_board_runs_on_this_computer(mixed, tree):
    """A wrong answer fails there, and a damaged stream is named."""
    need("make", "cc")
    folder = tree(mixed, "ethos-u")
    passes(sh("make", "-s", "check", *SANITIZED, cwd=folder))
    spoil(folder)
    done = sh("make", "-s", "check", *SANITIZED, cwd=folder)
    assert done.returncode != 0 and "kat-result FAIL 4/5" in done.stdout
    data = folder / "model" / "anynpu_npu_data.c"
    rows = data.read_text().splitlines()
    first = next(i for i, row in enumerate(rows) if "commands" in row) + 1
    rows[first + 6] = ", ".join(["255"] * 20) + ","  # past the driver's actions
    data.write_text("\n".join(rows) + "\n")
    done = sh("make", "-s", "check", *SANITIZED, cwd=folder)
    assert done.returncode != 0 and "kat-result FAIL 0/5" in done.stdout, done.stdout + done.stderr
    assert "e-[NPU reference, operation " in done.stdout and "kat 0 FAIL invoke returned 1" in done.stdout


def test_the_tree_for_the_board_runs_in_qemu_and_says_what_is_not_measured(mixed, tree):
    need("make", "arm-none-eabi-gcc", "qemu-system-arm")
    folder = tree(mixed, "ethos-u")
    done = sh("make", "-s", "check-qemu", "CFLAGS=-Werror", QUICK, cwd=folder)
    passes(done)
    assert done.stderr == ""
    with on_pty(["make", "-s", "run-qemu", "CFLAGS=-Werror", QUICK], folder) as line:
        line.until_ready()
        info = line.ask("info", b"%")
        stages = line.ask("stages 2", b"%")
    assert "a-tick-hz-0" in info
    assert [text for text in info if text.startswith("a-npu-[reference:") and "are not the NPU's" in text]
    assert sum(text.startswith("a-stage-") for text in stages) == 4


@pytest.mark.parametrize(
    ("chip", "dtype"),
    [("ethos-u65-512", "int8"), ("ethos-u85-512", "int8"), ("ethos-u55-256", "int16")],
)
def test_every_family_gives_the_answers_of_tflite_micro(chip, dtype, tmp_path, tree):
    need("make", "cc", "arm-none-eabi-gcc", "qemu-system-arm")
    artifact = built(tmp_path, chip, dtype)
    folder = tree(artifact, "ethos-u")
    passes(sh("make", "-s", "check", *SANITIZED, cwd=folder))
    if chip == "ethos-u85-512":
        passes(sh("make", "-s", "check-qemu", "CFLAGS=-Werror", QUICK, cwd=folder))


def test_one_switch_takes_the_driver_or_the_reference(mixed, tree):
    need("make", "arm-none-eabi-gcc")
    folder = tree(mixed, "ethos-u")
    compiles(folder, QUICK, *(a for a in ETHOSU if not a.startswith("TFLM")))
    assert (folder / "build/board/npu_ethosu.c.o").is_file() and not (folder / "build/npu").exists()
    compiles(folder, QUICK, "NPU=reference", *NO_DRIVER)
    assert (folder / "build/reference/npu/ethosu_reference.c.o").is_file()
    assert not (folder / "build/reference/board/npu_ethosu.c.o").exists()
    done = objects(folder, "BUILD=fresh", *NO_DRIVER)
    assert done.returncode != 0 and "ETHOSU_DRIVER_PATH is not set" in done.stderr
    done = objects(folder, "NPU=hardware", *NO_DRIVER)
    assert done.returncode != 0 and "NPU=hardware: it is driver or reference" in done.stderr


def test_cmake_has_the_same_switch(mixed, tree):
    need("cmake", "arm-none-eabi-gcc", "arm-none-eabi-g++")
    folder = tree(mixed, "ethos-u")
    cross = [f"-DCMAKE_{k}_COMPILER=arm-none-eabi-{v}" for k, v in (("C", "gcc"), ("CXX", "g++"))]
    flags = [f"-DCMAKE_{k}_FLAGS=-mcpu=cortex-m55 -mthumb -Werror" for k in ("C", "CXX")]
    more = ["-DCMAKE_SYSTEM_NAME=Generic", "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY", "-DNPU=reference"]
    done = sh("cmake", "-B", "out", *cross, *flags, *more, *(f"-D{a}" for a in NO_DRIVER), cwd=folder)
    assert done.returncode == 0, done.stderr
    done = sh("cmake", "--build", "out", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ETHOSU_DRIVER_PATH is not set" in sh("cmake", "-B", "other", cwd=folder).stderr


def test_an_artifact_for_an_npu_runs_on_a_board_without_one(mixed, tmp_path):
    need("make", "arm-none-eabi-gcc", "qemu-system-arm")
    known = rect_model.answers(Artifact.open(mixed.path.parent / "tflm"))
    running = run.start(mixed, "qemu", Store(tmp_path / "cache"), timeout_s=60)
    try:
        got = running.session.run({"image": known["input:image"][:1]})
        assert np.array_equal(got["deep"], known["output:deep"][:1])
        assert running.session.known_answers == 5
        assert "simulated" in running.clock and "not the NPU's latency" in running.clock
    finally:
        running.session.close()


def test_a_tree_without_an_npu_says_so(mixed):
    for board in ("host", "qemu-mps3-an547"):
        readme = make_project(mixed, board).files["README.md"].decode()
        assert "compiled by Vela for ethos-u55-256, which is not here" in readme and "is not the NPU's" in readme
    assert "which is not here" not in make_project(mixed, "ethos-u").files["README.md"].decode()


def test_what_has_no_c_kernel_is_refused_without_an_npu(npu_out, tree):
    artifact = Artifact.open(npu_out / "hxwe2")
    with pytest.raises(Unsupported, match=r"board host has no TFLite-Micro, .*SPACE_TO_BATCH_ND"):
        make_project(artifact, "host")
    need("make")
    folder = tree(artifact, "hxwe2")
    assert "SPACE_TO_BATCH_ND" in (folder / "report.json").read_text()
    done = sh("make", "-s", "check", cwd=folder)
    assert done.returncode != 0 and "this model needs TFLite-Micro, which runs on the board alone" in done.stderr


def test_an_input_that_nothing_reads_is_left_to_tflite_micro(tmp_path):
    folder = tmp_path / "tflm"
    folder.mkdir()
    b = rect_model.Builder()
    image = b.input(rect_model.SHAPE, name="image")
    b.input((1, 2, 2, 3), name="unused")
    b.conv(image, "answer", rect_model.SHAPE, 4, padding="VALID")
    b.write(folder / "model.tflite")
    inputs = (rect_model.spec("image", rect_model.SHAPE), rect_model.spec("unused", (1, 2, 2, 3)))
    outputs = (rect_model.spec("answer", (1, 8, 12, 4)),)
    manifest = Manifest("tflite", "model.tflite", inputs, outputs, rect_model.FINGERPRINT)
    source = seal(folder, manifest, Step("tflite", platform="tflm"), rect_model.MADE)
    (tmp_path / "npu").mkdir()
    work = Work(tmp_path / "log", lambda done, total: None)
    compiled = Vela().compile(source, None, plugins.platform("hxwe2"), VelaOptions(), tmp_path / "npu", work)
    artifact = seal(
        tmp_path / "npu", compiled, Step("vela", {"model": source.digest}, platform="hxwe2"), rect_model.MADE
    )
    assert "anynpu_model.cc" in read_model(artifact, find("hxwe2")).files
    with pytest.raises(Unsupported, match="unused: an input or output that no operator touches"):
        read_model(artifact, find("host"))


def test_a_board_with_another_core_refuses_what_vela_compiled(mixed):
    with pytest.raises(Unsupported, match="qemu-mps2-an386 does not run what Vela compiles") as caught:
        make_project(mixed, "qemu-mps2-an386")
    assert "qemu-mps3-an547" in caught.value.hint and "ethos-u" in caught.value.hint
