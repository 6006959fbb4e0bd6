"""Deploying: the exact commands, fake programmers on PATH, and boards that are disks."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import time
from pathlib import Path

import pytest

from anynpu.deploy import probe, volume
from anynpu.deploy.image import find_image
from anynpu.deploy.probe import PROGRAMMERS, Wiring
from anynpu.errors import ConfigError, DeviceError, IntegrityError, ToolFailed, ToolMissing

ELF = b"\x7fELF" + bytes(60)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    build = tmp_path / "tree" / "build"
    build.mkdir(parents=True)
    (build / "firmware.elf").write_bytes(ELF)
    (build / "self-test.elf").write_bytes(ELF)
    return tmp_path / "tree"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch):
    """Puts a program on PATH that writes down its arguments and then does what it is told."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def make(name: str, body: str = "") -> Path:
        said = tmp_path / f"{name}.argv"
        program = folder / name
        program.write_text(
            f"#!{sys.executable}\nimport json, sys, time\n"
            f"open({str(said)!r}, 'a').write(json.dumps(sys.argv[1:]) + '\\n')\n{body}\n"
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return said

    return make


def calls(said: Path) -> list[list[str]]:
    return [json.loads(line) for line in said.read_text().splitlines()]


def test_openocd(tree):
    elf = tree / "build" / "firmware.elf"
    (argv,) = probe.commands(PROGRAMMERS["openocd"], elf, Wiring("stm32f4x", "stlink"))
    assert argv[:5] == ["openocd", "-f", "interface/stlink.cfg", "-f", "target/stm32f4x.cfg"]
    assert argv[5:] == ["-c", f"program {{{elf}}} verify reset exit"]
    (argv,) = probe.commands(PROGRAMMERS["openocd"], elf.with_suffix(".bin"), Wiring("", "board/x.cfg", 0x8000000))
    assert argv[:3] == ["openocd", "-f", "board/x.cfg"] and " 0x8000000 verify" in argv[-1]
    with pytest.raises(ConfigError, match="braces"):
        probe.commands(PROGRAMMERS["openocd"], Path("/x/{a}/f.elf"), Wiring("stm32f4x"))


def test_pyocd_and_probe_rs(tree):
    elf = tree / "build" / "firmware.elf"
    assert probe.commands(PROGRAMMERS["pyocd"], elf, Wiring("stm32f407vg", "0669")) == [
        ["pyocd", "flash", "--no-wait", "--target", "stm32f407vg", "--uid", "0669", "--format", "elf", str(elf)]
    ]
    assert probe.commands(PROGRAMMERS["probe-rs"], elf, Wiring("STM32F407VG")) == [
        ["probe-rs", "download", "--chip", "STM32F407VG", "--binary-format", "elf", "--verify", str(elf)],
        ["probe-rs", "reset", "--chip", "STM32F407VG"],
    ]


@pytest.mark.parametrize("name", PROGRAMMERS)
def test_the_chip_must_be_named_and_plain_bytes_need_an_address(name):
    with pytest.raises(ConfigError, match="must know the chip"):
        probe.commands(PROGRAMMERS[name], Path("f.elf"), Wiring())
    with pytest.raises(ConfigError, match="where they go"):
        probe.commands(PROGRAMMERS[name], Path("f.bin"), Wiring("chip"))


def test_a_programmer_that_succeeds(tree, fake, tmp_path):
    said = fake("probe-rs")
    argvs = probe.commands(PROGRAMMERS["probe-rs"], tree / "build" / "firmware.elf", Wiring("RP2040"))
    probe.flash(PROGRAMMERS["probe-rs"], argvs, tmp_path / "log", 20)
    assert [["probe-rs", *call] for call in calls(said)] == argvs


def test_a_programmer_that_fails_stops_there_and_shows_its_last_lines(tree, fake, tmp_path):
    said = fake("probe-rs", "print('Error: no probe was found'); sys.exit(3)")
    argvs = probe.commands(PROGRAMMERS["probe-rs"], tree / "build" / "firmware.elf", Wiring("RP2040"))
    with pytest.raises(ToolFailed) as caught:
        probe.flash(PROGRAMMERS["probe-rs"], argvs, tmp_path / "log", 20)
    assert caught.value.status == 3 and caught.value.last_lines == ("Error: no probe was found",)
    assert "plugged in" in caught.value.hint and len(calls(said)) == 1


def test_a_programmer_that_hangs_is_killed(tree, fake, tmp_path):
    fake("pyocd", "print('Waiting for a debug probe', flush=True); time.sleep(60)")
    argvs = probe.commands(PROGRAMMERS["pyocd"], tree / "build" / "firmware.elf", Wiring("k64f"))
    started = time.monotonic()
    with pytest.raises(ToolFailed, match="did not finish") as caught:
        probe.flash(PROGRAMMERS["pyocd"], argvs, tmp_path / "log", 1.0)
    assert time.monotonic() - started < 50 and caught.value.last_lines == ("Waiting for a debug probe",)


@pytest.mark.parametrize("name", PROGRAMMERS)
def test_a_missing_programmer_names_its_package(name, tree, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    argvs = probe.commands(PROGRAMMERS[name], tree / "build" / "firmware.elf", Wiring("chip"))
    with pytest.raises(ToolMissing) as caught:
        probe.flash(PROGRAMMERS[name], argvs, tmp_path / "log", 5)
    assert "install" in caught.value.hint and caught.value.exit_status == 4


def test_which_file_is_the_firmware(tree, tmp_path):
    build = tree / "build"
    assert find_image(tree, (".elf", ".hex")) == build / "firmware.elf"
    (build / "firmware.hex").write_text(":00000001FF\n")
    assert find_image(tree, (".hex", ".elf")).suffix == ".hex"
    with pytest.raises(ConfigError, match=r"no .uf2 file"):
        find_image(tree, (".uf2",))
    (build / "other.elf").write_bytes(ELF)
    with pytest.raises(ConfigError, match="several files"):
        find_image(tree, (".elf",))
    assert find_image(tree, (".elf",), build / "other.elf") == build / "other.elf"
    with pytest.raises(ConfigError, match="no such file"):
        find_image(tree, (".elf",), build / "absent.elf")
    with pytest.raises(ConfigError, match="another kind"):
        find_image(tree, (".uf2",), build / "firmware.elf")
    with pytest.raises(ConfigError, match="no such folder"):
        find_image(tmp_path / "absent", (".elf",))


@pytest.mark.parametrize(("name", "data"), [("f.elf", b"MZ"), ("f.uf2", b""), ("f.bin", b""), ("f.hex", b"\x00")])
def test_a_file_that_is_not_what_its_name_says(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(IntegrityError):
        find_image(tmp_path, (".elf", ".uf2", ".bin", ".hex"), tmp_path / name)


def test_a_model_is_not_yet_a_firmware(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ConfigError, match="not yet a firmware") as caught:
        find_image(tmp_path, (".elf",))
    assert "anynpu firmware" in caught.value.hint


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "INFO_UF2.TXT").write_text("UF2 Bootloader v3.0\n")
    return tmp_path / "disk"


@pytest.fixture
def uf2(tmp_path: Path) -> Path:
    (tmp_path / "f.uf2").write_bytes(b"UF2\n" + bytes(508))
    return tmp_path / "f.uf2"


def test_copy_to_a_volume(disk, uf2):
    volume.check(disk, uf2)
    assert volume.copy(disk, uf2, 0.1).read_bytes() == uf2.read_bytes()


def test_volumes_that_cannot_take_it(disk, uf2, tmp_path, monkeypatch):
    with pytest.raises(DeviceError, match="no such volume"):
        volume.check(tmp_path / "absent", uf2)
    (tmp_path / "left").mkdir()
    with pytest.raises(DeviceError, match="plain folder"):
        volume.check(tmp_path / "left", uf2)
    with pytest.raises(ConfigError, match=r"takes \.uf2 files"):
        volume.check(disk, uf2.with_suffix(".hex"))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(DeviceError, match="cannot be written"):
        volume.check(disk, uf2)
    monkeypatch.undo()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1000, 500, 500))
    with pytest.raises(DeviceError, match="12 more than the volume has room for"):
        volume.check(disk, uf2)


def test_a_board_that_refuses_the_firmware(disk, uf2):
    (disk / "FAIL.TXT").write_text("The hex file cannot be decoded.\r\nerror type: user\r\n")
    with pytest.raises(DeviceError, match="refuses the firmware: The hex file cannot be decoded"):
        volume.copy(disk, uf2, 0.1)
