"""Which Ryzen AI NPU a machine has: sysfs trees under Linux, pnputil's text under Windows."""

from __future__ import annotations

import pytest
import ryzen_machines as machines

from anynpu.drivers import ryzenai
from anynpu.drivers.root import Root

KINDS = [
    ("1502", "00", "ryzen-ai-phx"),
    ("17f0", "00", "ryzen-ai-stx"),
    ("17f0", "10", "ryzen-ai-stx"),
    ("17f0", "11", "ryzen-ai-stx"),
    ("17f0", "20", "ryzen-ai-krk"),
]


@pytest.mark.parametrize(("device", "revision", "chip"), KINDS)
def test_every_device_of_the_table_is_found_under_linux(tmp_path, device, revision, chip):
    machines.add_pci(tmp_path, "0000:00:01.0", "10de", "17f0", revision)  # another vendor's device of the same number
    machines.add_pci(tmp_path, "0000:c5:00.1", "1022", device, revision, driver="amdxdna", node="accel0")
    found = ryzenai.find(Root(tmp_path))
    assert [npu.chip for npu in found.usable] == [chip]
    assert found.npus[0].driver == "amdxdna" and found.npus[0].nodes == ("/dev/accel/accel0",)
    assert f"0000:c5:00.1 1022:{device} rev {revision}" in found.sentence()


@pytest.mark.parametrize(("device", "revision", "chip"), KINDS)
@pytest.mark.parametrize("language", ["en", "de", "ja"])
def test_every_device_of_the_table_is_found_in_pnputils_text(device, revision, chip, language):
    text = machines.pnputil(machines.BRIDGE, machines.npu(device.upper(), revision), language=language)
    found = ryzenai.from_pnputil(text)
    assert [npu.chip for npu in found.usable] == [chip], found


def test_a_machine_without_an_npu(tmp_path):
    machines.add_pci(tmp_path, "0000:00:02.0", "8086", "7d1d", "04")
    for found in (ryzenai.find(Root(tmp_path)), ryzenai.from_pnputil(machines.pnputil(machines.BRIDGE))):
        assert found.npus == () and not found.problem
        assert found.sentence().startswith("this machine has no Ryzen AI NPU")


def test_two_devices_of_one_kind_and_of_two(tmp_path):
    for slot in ("0000:c5:00.1", "0000:c6:00.1"):
        machines.add_pci(tmp_path, slot, "1022", "17f0", "10", driver="amdxdna")
    same = ryzenai.find(Root(tmp_path))
    assert [npu.chip for npu in same.npus] == ["ryzen-ai-stx"] * 2 and "0000:c6:00.1" in same.npus[1].where
    text = machines.pnputil(
        machines.npu("1502", "00"), machines.BRIDGE, machines.npu("17F0", "20"), machines.npu("17F0", "20")
    )
    assert [npu.chip for npu in ryzenai.from_pnputil(text).usable] == ["ryzen-ai-phx", "ryzen-ai-krk", "ryzen-ai-krk"]


def test_an_unknown_revision_is_said_with_what_is_known(tmp_path):
    machines.add_pci(tmp_path, "0000:c5:00.1", "1022", "17f0", "30", driver="amdxdna", node="accel0")
    for found in (ryzenai.find(Root(tmp_path)), ryzenai.from_pnputil(machines.pnputil(machines.npu("17F0", "30")))):
        assert len(found.npus) == 1 and found.usable == () and found.npus[0].chip == ""
        said = found.sentence()
        assert "revision 30 is not in the table" in said and "20 is ryzen-ai-krk" in said and "1022:17f0" in said


@pytest.mark.parametrize(
    ("driver", "node", "said"),
    [
        ("", "", "no driver is bound"),
        ("vfio-pci", "", "the driver vfio-pci is bound"),
        ("amdxdna", "", "there is no /dev/accel/accel*"),
    ],
)
def test_an_npu_that_cannot_be_used_says_why(tmp_path, driver, node, said):
    machines.add_pci(tmp_path, "0000:c5:00.1", "1022", "1502", "00", driver=driver, node=node)
    found = ryzenai.find(Root(tmp_path))
    assert found.usable == () and found.npus[0].chip == "ryzen-ai-phx" and said in found.sentence()


def test_a_problem_that_windows_reports_is_told():
    text = machines.pnputil(
        machines.npu("17F0", "10"), problem="Problem\nProblem Code: 28 (0x1C) [CM_PROB_FAILED_INSTALL]"
    )
    found = ryzenai.from_pnputil(text)
    assert found.usable == () and "CM_PROB_FAILED_INSTALL" in found.sentence()


def test_encodings_and_cases_do_not_matter():
    text = machines.pnputil(machines.BRIDGE, machines.npu("17F0", "20"), language="de")
    as_utf16 = text.encode("utf-16").decode("utf-8", "replace")  # what tool.run makes of it
    as_oem = text.encode("cp850").decode("utf-8", "replace")
    yen = text.replace("\\", "¥")
    for noisy in (as_utf16, as_oem, yen, text.lower(), text.replace("\n", "\r\n"), text.replace("\n", " ")):
        assert [npu.chip for npu in ryzenai.from_pnputil(noisy).usable] == ["ryzen-ai-krk"]


def test_ids_without_instances_are_taken_once_each():
    text = "PCI\\VEN_1022&DEV_17F0&REV_10\nPCI\\VEN_1022&DEV_17F0\nPCI\\VEN_1022&DEV_17F0&REV_10\n"
    assert [npu.chip for npu in ryzenai.from_pnputil(text).npus] == ["ryzen-ai-stx"]


@pytest.mark.parametrize("text", ["", "\x00\x00\x00", "Zugriff verweigert\n", "PCI\\VEN_10", "\ufffd" * 400, "{}"])
def test_garbled_output_is_no_answer(text):
    found = ryzenai.from_pnputil(text)
    assert found.npus == () and "not known" in found.sentence() and "pnputil lists no PCI device" in found.problem


def _fake_pnputil(folder, monkeypatch, script):
    program = folder / "pnputil"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_windows_asks_pnputil(tmp_path, monkeypatch):
    (tmp_path / "text").write_text(machines.pnputil(machines.npu("1502", "00")))
    _fake_pnputil(tmp_path, monkeypatch, f'test "$*" = "/enum-devices /bus PCI /deviceids" && cat {tmp_path}/text')
    assert [npu.chip for npu in ryzenai.find(system="win32").usable] == ["ryzen-ai-phx"]


@pytest.mark.parametrize("script", ["exit 5", "kill -SEGV $$"])
def test_a_pnputil_that_fails_is_no_answer(tmp_path, monkeypatch, script):
    _fake_pnputil(tmp_path, monkeypatch, script)
    found = ryzenai.find(system="win32")
    assert found.npus == () and "pnputil failed with" in found.sentence()


def test_without_pnputil_and_on_other_systems_nothing_is_known(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no such program" in ryzenai.find(system="win32").problem
    assert "this is darwin" in ryzenai.find(system="darwin").problem
    assert "no /sys/bus/pci/devices" in ryzenai.find(Root(tmp_path)).problem


def test_the_doctor_tells_of_an_npu_of_unknown_kind(tmp_path):
    from anynpu.drivers.doctor import diagnose

    machines.add_pci(tmp_path, "0000:c5:00.1", "1022", "17f0", "30", driver="amdxdna", node="accel0")
    told = [finding.result.evidence for finding in diagnose(tmp_path).findings]
    assert any("revision 30 is not in the table" in words for words in told), told
