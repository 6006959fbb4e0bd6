"""Real firmware over the line: built for this host on a pty, and for emulated boards in QEMU."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from board_model import INPUTS, model, sample
from hand_model import c_artifact

from anynpu.errors import AccuracyError, ConfigError, DeviceError, ToolMissing, Unsupported
from anynpu.firmware import run as firmware
from anynpu.measure.bench import known_sample, time_board
from anynpu.runtime import qemu
from anynpu.runtime.device import elf
from anynpu.runtime.device.program import Program
from anynpu.runtime.device.session import BoardSession
from anynpu.store import Store

NEEDS = {
    "host": {"cc": "gcc", "make": "make"},
    "qemu": {"arm-none-eabi-gcc": "gcc-arm-none-eabi", "qemu-system-arm": "qemu-system-arm", "make": "make"},
}
CHIPS = {"host": "host", "cortex-m4": "qemu", "cortex-m55": "qemu"}


def require(on: str) -> None:
    for program, package in NEEDS[on].items():
        if shutil.which(program) is None:
            pytest.skip(f"the Debian package {package} is not installed")


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Store:
    return Store(tmp_path_factory.mktemp("firmware-cache"))


@pytest.fixture
def start(tmp_path, cache):
    """Starts firmware and ends it after the test."""
    opened = []

    def begin(chip: str, **changes):
        require(CHIPS[chip])
        running = firmware.start(c_artifact(tmp_path, chip, **changes), CHIPS[chip], cache)
        opened.append(running.session)
        return running

    yield begin
    for session in opened:
        session.close()


@pytest.mark.parametrize("chip", CHIPS)
def test_firmware_computes_what_the_model_computes(chip, start):
    session = start(chip).session
    assert session.known_answers == 3
    for seed in (20, 21, 22):
        got = session.run(sample(seed))
        for name, values in model(sample(seed)).items():
            np.testing.assert_array_equal(got[name], values)


@pytest.mark.parametrize("chip", CHIPS)
def test_the_mlperf_tiny_session(chip, start):
    client = start(chip).session.client
    board = {"host": "host", "cortex-m4": "qemu-mps2-an386", "cortex-m55": "qemu-mps3-an547"}[chip]
    assert client.ask("name") == [f"m-name-dut-[anynpu-{board}-by-hand]"]
    assert client.profile() == ("ULPMark for tinyML Firmware V0.0.1", "by-hand")
    data = b"".join(sample(5)[spec.name].tobytes() for spec in INPUTS)
    client.load(data)
    assert client.ask("db print") == [f"m-buffer-{data.hex()}"]
    assert client.infer(10, 3) >= 0
    expected = model(sample(5))
    real = [*((expected["scores"].ravel().astype(int) - 3) * 0.25), *expected["sum"].ravel()]
    assert client.results() == pytest.approx(real)
    with pytest.raises(DeviceError, match="Unknown command: dance"):
        client.ask("dance")
    assert client.timestamp() <= client.timestamp()


@pytest.mark.parametrize("chip", ["cortex-m4", "cortex-m55"])
def test_an_emulator_counts_instructions_and_nothing_else(chip, start, tmp_path):
    running = start(chip)
    found = time_board(running.session, known_sample(c_artifact(tmp_path / "again", chip)), 4, 1, running.clock)
    assert found.unit == "instructions" and found.tick_hz == 0 and "not time" in found.clock
    assert list(found.stages) == ["init", "memory I/O", "inference", "post-processing"]
    # The loop over 105 elements takes at least three instructions each; ticks come in steps of 31 to 40.
    assert 250 < found.stages["inference"].median < 2000
    assert found.stages["inference"].most - found.stages["inference"].least <= 80
    assert len(found.stages["init"].samples) == 4 and 300 < found.per_inference < 3000


def test_the_host_is_timed_by_its_clock(start, tmp_path):
    running = start("host")
    found = time_board(running.session, known_sample(c_artifact(tmp_path / "again", "host")), 5, 2, running.clock)
    assert found.unit == "ms" and found.clock == "wall clock of this host" and found.tick_hz == 10**9
    assert 0 < found.stages["inference"].median < 10


@pytest.mark.parametrize("chip", ["cortex-m4", "cortex-m55"])
def test_sections_are_those_that_the_size_tool_sees(chip, start, cache, tmp_path):
    running = start(chip)
    built = firmware.build(
        c_artifact(tmp_path / "again", chip), firmware.qemu_board(c_artifact(tmp_path / "x", chip)), cache
    )
    printed = subprocess.run(["arm-none-eabi-size", "-A", built.main], capture_output=True, text=True, check=True)
    sizes = {line.split()[0]: int(line.split()[1]) for line in printed.stdout.splitlines() if line.startswith(".")}
    for section in running.footprint.sections:
        assert sizes[section.name] == max(section.flash_bytes, section.ram_bytes)
    text = subprocess.run(["arm-none-eabi-size", built.main], capture_output=True, text=True, check=True).stdout
    code, data, bss = map(int, text.splitlines()[1].split()[:3])
    assert running.footprint.flash_bytes == code + data and running.footprint.ram_bytes == data + bss
    assert running.vector_bytes == 3 * (105 + 8 + 4 + 4)


def test_a_second_start_does_not_compile_again(start, cache, tmp_path):
    start("host")
    artifact = c_artifact(tmp_path / "again", "host")
    before = set((cache.cache / "store").glob("??/*"))
    firmware.build(artifact, "host", cache)
    assert set((cache.cache / "store").glob("??/*")) == before


@pytest.mark.parametrize("chip", CHIPS)
def test_firmware_that_fails_its_known_answer(chip, start):
    with pytest.raises(AccuracyError, match=r"known answer 0: scores\[0\] is -?\d+, expected -?\d+") as caught:
        start(chip, off=1)
    assert caught.value.got == caught.value.wanted + 1


def test_a_board_with_other_firmware_than_the_artifact(start, cache, tmp_path):
    require("host")
    built = firmware.build(c_artifact(tmp_path, "host"), "host", cache)
    other = c_artifact(tmp_path / "other", "host", fingerprint="ee" * 32)
    with pytest.raises(DeviceError, match="another model"):
        BoardSession(other, Program([str(built.main)], built.path, "firmware"), 3.0)


def test_a_closed_line_leaves_no_process(start):
    session = start("cortex-m4").session
    pid = session.client.line._process.pid
    session.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    session.close()


ORPHAN = """
import os, sys
sys.path[:0] = {path!r}
from pathlib import Path
from anynpu.runtime import qemu
line = qemu.line_to("mps2-an386", Path({elf!r}))
print(line._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_an_emulator_does_not_outlive_us(cache, tmp_path):
    require("qemu")
    built = firmware.build(c_artifact(tmp_path, "cortex-m4"), "qemu-mps2-an386", cache)
    code = ORPHAN.format(path=sys.path, elf=str(built.main))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == -signal.SIGKILL, done.stderr
    until = time.monotonic() + 10
    while time.monotonic() < until and alive(int(done.stdout)):
        time.sleep(0.05)
    assert not alive(int(done.stdout))


def alive(pid: int) -> bool:
    """Returns whether a process runs; one that has ended and that nobody has waited for does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_the_emulator_is_killed_in_the_middle(start):
    session = start("cortex-m4").session
    os.kill(session.client.line._process.pid, signal.SIGKILL)
    with pytest.raises(DeviceError, match="the program ended") as caught:
        session.run(sample(0))
    assert "crashed" in caught.value.cause


def program(body: str) -> Program:
    return Program([sys.executable, "-u", "-c", body], Path.cwd(), "a program")


def test_programs_that_are_no_firmware(tmp_path):
    artifact = c_artifact(tmp_path, "host")
    with pytest.raises(DeviceError, match="the program ended with status 3 \\(no such file\\)"):
        BoardSession(artifact, program("import sys; sys.stderr.write('no such file'); sys.exit(3)"), 5.0)
    with pytest.raises(DeviceError, match="does not answer"):
        BoardSession(artifact, program("import time; time.sleep(60)"), 0.5)
    with pytest.raises(DeviceError, match="garbage on the line"):
        BoardSession(artifact, program("while True: print('hello')"), 0.5)
    with pytest.raises(DeviceError, match=r"garbage|without an end"):
        BoardSession(artifact, program("import sys\nwhile True: sys.stdout.write('x' * 4096)"), 1.0)


def test_a_program_that_does_not_read_is_not_waited_for_for_ever():
    line = program("import time; time.sleep(60)")
    started = time.monotonic()
    with pytest.raises(DeviceError, match="takes no more input"):
        line.write(bytes(1 << 20), time.monotonic() + 0.5)
    assert time.monotonic() - started < 50
    line.close()


def test_missing_programs_name_their_packages(tmp_path, monkeypatch, cache):
    monkeypatch.setenv("PATH", str(tmp_path))
    artifact = c_artifact(tmp_path, "cortex-m4")
    with pytest.raises(ToolMissing) as caught:
        firmware.start(artifact, "qemu", cache)
    assert caught.value.hint == "apt install qemu-system-arm"
    (tmp_path / "qemu-system-arm").write_text("#!/bin/sh\n")
    (tmp_path / "qemu-system-arm").chmod(0o755)
    with pytest.raises(ToolMissing) as caught:
        firmware.start(artifact, "qemu", cache)
    assert "gcc-arm-none-eabi" in caught.value.hint and caught.value.exit_status == 4
    with pytest.raises(ToolMissing) as caught:
        firmware.start(artifact, "host", cache)
    assert "apt install gcc" in caught.value.hint


def test_which_emulated_board(tmp_path):
    assert firmware.qemu_board(c_artifact(tmp_path, "cortex-m55")) == "qemu-mps3-an547"
    assert firmware.qemu_board(c_artifact(tmp_path, "cortex-m0plus")) == "qemu-mps2-an386"
    assert firmware.qemu_board(c_artifact(tmp_path, "cortex-m7"), "mps3-an547") == "qemu-mps3-an547"
    with pytest.raises(Unsupported, match="riscv32"):
        firmware.qemu_board(c_artifact(tmp_path, "riscv32"))
    with pytest.raises(ConfigError, match="no such emulated board"):
        firmware.qemu_board(c_artifact(tmp_path, "cortex-m33"), "virt")


def test_the_emulator_command():
    argv = qemu.command("mps3-an547", Path("/x/firmware.elf"))
    assert argv[:3] == ["qemu-system-arm", "-M", "mps3-an547"] and argv[-4:-2] == ["-icount", "shift=0"]
    with pytest.raises(ConfigError, match="did you mean 'mps2-an386'"):
        qemu.command("mps2-an385", Path("f.elf"))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "not an ELF file"),
        (b"MZ", "not an ELF file"),
        (b"\x7fELF", "not an ELF file"),
        (b"\x7fELF\1\1" + bytes(20), "not a whole ELF file"),
        (b"\x7fELF\2\1" + b"\xff" * 80, "not a whole ELF file"),
    ],
)
def test_damaged_elf_files(tmp_path, data, sentence):
    from anynpu.errors import IntegrityError

    (tmp_path / "f.elf").write_bytes(data)
    with pytest.raises(IntegrityError, match=sentence):
        elf.footprint(tmp_path / "f.elf")
