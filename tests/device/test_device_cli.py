"""run, bench and deploy as users call them: what they print and how they end."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from board_model import INPUTS, artifact, board, model, sample
from hand_model import c_artifact

from anynpu.artifact import Made, Manifest, Step, seal
from anynpu.cli.main import main
from anynpu.measure.load import Runner, Settings
from anynpu.measure.subject import Infer
from anynpu.runtime.null import NullSession


@pytest.fixture
def cli(capsys):
    """Runs a command in this process and returns status, stdout and stderr."""

    def call(*words: object) -> tuple[int, str, str]:
        status = main([str(word) for word in words])
        return status, *capsys.readouterr()

    return call


@pytest.fixture
def given(tmp_path) -> Path:
    np.savez(tmp_path / "x.npz", **sample(30))
    return tmp_path / "x.npz"


def needs(*packages: str) -> None:
    programs = {"gcc": "cc", "gcc-arm-none-eabi": "arm-none-eabi-gcc"}
    for package in packages:
        if shutil.which(programs.get(package, package)) is None:
            pytest.skip(f"the Debian package {package} is not installed")


def outputs(text: str) -> dict[str, list[float]]:
    return {name: one["values"] for name, one in json.loads(text)["outputs"].items()}


EXPECTED = {
    "scores": ((model(sample(30))["scores"].ravel().astype(int) - 3) * 0.25).tolist(),
    "sum": model(sample(30))["sum"].ravel().tolist(),
}


@pytest.mark.parametrize(
    ("chip", "on"), [("host", "host"), ("host", None), ("cortex-m4", "qemu"), ("cortex-m55", "qemu")]
)
def test_run_on_firmware(cli, tmp_path, given, chip, on):
    needs("make", "gcc", *(["gcc-arm-none-eabi", "qemu-system-arm"] if on == "qemu" else []))
    c_artifact(tmp_path, chip)
    status, out, err = cli("run", tmp_path / chip, "-i", given, *(["--on", on] if on else []), "-f", "json")
    assert status == 0, err
    assert outputs(out) == EXPECTED
    assert ("QEMU" if on == "qemu" else "this host") in json.loads(out)["executed"]
    memory = json.loads(out)["memory"]
    assert memory["arena_bytes"] == 128 and memory["flash_bytes"] > 4000 and memory["ram_bytes"] > 128


def test_run_on_a_serial_port(cli, tmp_path, given):
    pytest.importorskip("serial", reason="pip install 'anynpu[device]'")
    c_artifact(tmp_path, "chip")
    with board() as device:
        status, out, err = cli("run", tmp_path / "chip", "-i", given, "--on", f"serial:{device.port}", "-f", "json")
    assert status == 0, err
    assert outputs(out) == EXPECTED


@pytest.mark.parametrize(
    ("faults", "status", "said"),
    [
        ({"silent": True}, 6, "does not answer"),
        ({"garbage": b"\xff\xfe\r\n"}, 6, "garbage on the line"),
        ({"fingerprint": "cd" * 32}, 6, "another model"),
        ({"wrong_results": True}, 7, "known answer 0: scores[0] is"),
        ({"cut": "output"}, 6, "no complete answer to 'output 0'"),
    ],
)
@pytest.mark.parametrize("verb", ["run", "bench"])
def test_boards_that_misbehave(cli, tmp_path, given, verb, faults, status, said):
    pytest.importorskip("serial", reason="pip install 'anynpu[device]'")
    c_artifact(tmp_path, "chip")
    with board(**faults) as device:
        words = [verb, tmp_path / "chip", "-i", given, "--on", f"serial:{device.port}", "--timeout", "0.5"]
        found, out, err = cli(*words)
    assert (found, out) == (status, "") and said in err


def test_bench_on_a_serial_port(cli, tmp_path):
    pytest.importorskip("serial", reason="pip install 'anynpu[device]'")
    made = c_artifact(tmp_path, "chip")
    with board(tick_hz=2_000_000) as device:
        status, out, err = cli(
            "bench", tmp_path / "chip", "--on", f"serial:{device.port}", "-n", 4, "--warmup", 3, "-f", "json"
        )
        commands = device.commands
    assert status == 0, err
    found = json.loads(out)
    assert found["artifact"] == made.digest and found["fingerprint"] == made.manifest.fingerprint
    assert (found["unit"], found["tick_hz"], found["runs"], found["warmup"]) == ("ms", 2_000_000, 4, 3)
    assert found["board"] == "anynpu-pty-model" and found["known_answers"] == 3
    infer = found["stages"]["inference"]
    assert infer["samples"] == [ticks / 2000 for ticks in found["ticks"]["inference"]] and len(infer["samples"]) == 4
    assert infer["min"] <= infer["median"] <= infer["max"] and 0.5 <= infer["median"] <= 0.501
    assert found["stages"]["init"]["median"] == 10 / 2000 and found["memory"] == {"arena_bytes": 1024}
    assert "infer 4 3" in commands and commands.count("stages 1") == 4
    assert found["input"] == "the first known answer of the build"
    assert found["latency"]["samples"] == infer["samples"] and found["complete"] and found["schema_version"] == 2


def test_bench_notices_outputs_that_change(cli, tmp_path, given):
    pytest.importorskip("serial", reason="pip install 'anynpu[device]'")
    c_artifact(tmp_path, "chip")
    with board(drifts=True) as device:
        device.vectors = ()
        status, _, err = cli("bench", tmp_path / "chip", "-i", given, "--on", f"serial:{device.port}", "-n", 3)
    assert status == 6 and "gives another output scores than the first" in err


def test_bench_compares_with_the_known_answer(cli, tmp_path):
    pytest.importorskip("serial", reason="pip install 'anynpu[device]'")
    c_artifact(tmp_path, "chip")
    with board(wrong_results=True) as device:
        device.vectors = ()  # firmware that was built without any
        status, _, err = cli("bench", tmp_path / "chip", "--on", f"serial:{device.port}", "-n", 2)
    assert status == 7 and "output scores[0] is" in err


@pytest.mark.parametrize("chip", ["cortex-m4", "cortex-m55"])
def test_bench_in_qemu_speaks_of_instructions_alone(cli, tmp_path, chip):
    needs("make", "gcc-arm-none-eabi", "qemu-system-arm")
    c_artifact(tmp_path, chip)
    status, out, err = cli("bench", tmp_path / chip, "--on", "qemu", "-n", 3)
    assert status == 0, err
    assert "instructions" in out and " ms" not in out and "cycles" not in out.replace("not cycles", "")
    status, out, _ = cli("bench", tmp_path / chip, "--on", "qemu", "-n", 3, "-f", "json")
    found = json.loads(out)
    assert found["unit"] == "instructions" and found["tick_hz"] == 0
    memory = found["memory"]
    assert memory["flash_bytes"] == sum(s["flash_bytes"] for s in memory["sections"]) > 4000
    assert memory["ram_bytes"] > memory["arena_bytes"] == 128 and memory["known_answer_bytes"] == 363


def test_bench_on_the_host(cli, tmp_path):
    needs("make", "gcc")
    c_artifact(tmp_path, "host")
    status, out, err = cli("bench", tmp_path / "host", "-n", 3, "-f", "json")
    assert status == 0, err
    found = json.loads(out)
    assert found["unit"] == "ms" and found["clock"] == "wall clock of this host" and found["executed"].endswith("host")


def test_bench_of_an_ordinary_session(cli, tmp_path):
    (tmp_path / "null").mkdir()
    (tmp_path / "null" / "model").write_text("nothing")
    seal(tmp_path / "null", Manifest("null", "model", INPUTS, INPUTS), Step("null"), Made("2025-01-01", 0.0))
    status, out, err = cli("bench", tmp_path / "null", "-n", 7, "--warmup", 0, "-f", "json")
    assert status == 0, err
    found = json.loads(out)
    assert len(found["latency"]["samples"]) == 7 and found["unit"] == "ms" and found["complete"]
    assert found["input"] == "random numbers" and "memory" not in found


def test_an_ordinary_session_that_changes_its_mind(tmp_path):
    class Fickle(NullSession):
        runs = 0

        def run(self, inputs):
            self.runs += 1
            return {"scores": np.full((1, 4), self.runs, np.int8)}

    from anynpu.errors import DeviceError

    with pytest.raises(DeviceError, match="run 2 gives another output scores"):
        Runner(lambda: Infer(Fickle(artifact(tmp_path)), sample(0)), Settings(runs=2, warm_up=1))


def test_firmware_of_what_is_no_c(cli, tmp_path, given):
    (tmp_path / "null").mkdir()
    (tmp_path / "null" / "model").write_text("nothing")
    seal(tmp_path / "null", Manifest("null", "model", INPUTS, INPUTS), Step("null"), Made("2025-01-01", 0.0))
    status, _, err = cli("run", tmp_path / "null", "-i", given, "--on", "host")
    assert status == 3 and "takes generated C" in err


@pytest.fixture
def tree(tmp_path) -> Path:
    (tmp_path / "tree" / "build").mkdir(parents=True)
    (tmp_path / "tree" / "build" / "firmware.elf").write_bytes(b"\x7fELF" + bytes(60))
    return tmp_path / "tree"


def test_deploy_shows_the_command(cli, tree, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ["deploy", tree, "--via", "openocd", "--probe", "stlink", "--chip", "stm32f4x"]
    status, out, _ = cli(*words, "--dry-run")
    elf = tree / "build" / "firmware.elf"
    assert (status, out) == (
        0,
        f"openocd -f interface/stlink.cfg -f target/stm32f4x.cfg -c 'program {{{elf}}} verify reset exit'\n",
    )
    status, out, err = cli(*words)
    assert (status, out) == (4, "") and "apt install openocd" in err


@pytest.mark.parametrize(
    ("body", "status"), [("", 0), ("print('no probe'); raise SystemExit(1)", 5), ("import time; time.sleep(60)", 5)]
)
def test_deploy_runs_it(cli, tree, tmp_path, monkeypatch, body, status):
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "pyocd"
    program.write_text(f"#!{sys.executable}\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    found, out, err = cli("deploy", tree, "--via", "pyocd", "--chip", "k64f", "--timeout", "2")
    assert found == status
    assert ("is on the board" in out) == (status == 0)
    if "no probe" in body:
        assert "  | no probe" in err


def test_deploy_to_a_volume(cli, tree, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    status, _, err = cli("deploy", tree, "--via", f"volume:{disk}")
    assert status == 6 and "plain folder" in err
    (disk / "DETAILS.TXT").write_text("DAPLink\n")
    status, _, err = cli("deploy", tree, "--via", f"volume:{disk}")
    assert status == 2 and "no .hex or .bin or .uf2 file" in err
    (tree / "build" / "firmware.hex").write_text(":00000001FF\n")
    status, out, _ = cli("deploy", tree, "--via", f"volume:{disk}", "--dry-run", "-f", "json")
    assert status == 0 and json.loads(out)["commands"][0].startswith("cp ") and not (disk / "firmware.hex").exists()
    status, out, err = cli("deploy", tree, "--via", f"volume:{disk}")
    assert status == 0, err
    assert (disk / "firmware.hex").read_text() == ":00000001FF\n"


def test_deploy_refuses_what_makes_no_sense(cli, tree, tmp_path):
    assert cli("deploy", tree, "--via", "opencd")[0] == 2
    assert cli("deploy", tree, "--via", "openocd")[0] == 2
    assert cli("deploy", tmp_path / "absent", "--via", "openocd", "--chip", "x")[0] == 2
    status, _, err = cli("deploy", tree, "--via", "openocd", "--chip", "x", "--address", "here")
    assert status == 2 and "0x08000000" in err
