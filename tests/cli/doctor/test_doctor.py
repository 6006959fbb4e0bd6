"""The doctor names the right first problem and the right fix, on machines of files."""

from __future__ import annotations

import gzip
import importlib
import json
import lzma
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import pytest
import roots
from click.testing import CliRunner

from anynpu.cli.doctor import doctor
from anynpu.cli.main import VERBS
from anynpu.drivers import detect
from anynpu.drivers.doctor import FAMILIES, diagnose, fixes, host, noe
from anynpu.drivers.doctor.machine import Machine
from anynpu.drivers.elf_module import read_module
from anynpu.drivers.root import Root, Unreadable
from anynpu.drivers.zhouyi import userspace
from anynpu.elf import DYNSYM, read_elf
from anynpu.errors import ConfigError, IntegrityError
from anynpu.platform import Platform

ALL_CHECKS = [check for checks in (*FAMILIES.values(), host.EVERYWHERE, host.OF_THIS_PROCESS) for check in checks]


def examine(name: str, folder: Path):
    case = roots.CASES[name]
    return diagnose(roots.build(name, folder), (case.model,) if case.model else ())


@pytest.mark.parametrize("name", roots.CASES)
def test_the_first_problem_and_its_fix(name, tmp_path):
    case, told = roots.CASES[name], examine(name, tmp_path)
    first = told.first_problem
    if not case.check:
        assert first is None, first
        assert told.count("unknown") == 0
        return
    assert first is not None
    assert first.check == case.check, first
    assert case.fix in first.result.fix
    assert case.evidence in first.result.evidence


def test_there_are_enough_machines_and_every_check_of_a_device_fails_somewhere():
    assert len(roots.CASES) >= 12
    fail = {case.check for case in roots.CASES.values()}
    never = {check.name for checks in FAMILIES.values() for check in checks} - fail
    # These state a fact or know no failure: nothing else than well, unknown or "not installed".
    # `answers` asks the library, which only the machine itself can.
    assert never == {"kernel", "linker", "device", "driver-version", "xrt", "running", "answers"}


WHOLE = [name for name, case in roots.CASES.items() if not case.check and name != "in-tree-built-in"]  # has no file


@pytest.mark.parametrize("name", WHOLE)
def test_every_check_of_a_healthy_machine_is_done(name, tmp_path):
    told = examine(name, tmp_path)
    assert told.count("skipped") == told.count("failed") == 0
    families = {device.family for device in told.devices}
    wanted = [check.name for family in families for check in FAMILIES[family] if check.name != "answers"]
    assert [f.check for f in told.findings if f.device] == wanted
    assert all(f.result.evidence for f in told.findings)


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("healthy", "zhouyi-z3"),
        ("npu-hidden", "zhouyi-z3"),
        ("ryzen", "ryzen-ai-stx"),
        ("ryzen-phoenix", "ryzen-ai-phx"),
        ("rockchip", "rk3588"),
        ("plain", ""),
    ],
)
def test_the_npu_is_recognised(name, device, tmp_path):
    found = detect.detect(Root(roots.build(name, tmp_path)))
    assert [each.name for each in found] == ([device] if device else [])


@pytest.mark.parametrize(
    ("device", "revision", "name", "title"),
    [
        ("0x1502", "0x00", "ryzen-ai-phx", "Phoenix"),
        ("0x17f0", "0x00", "ryzen-ai-stx", "Strix Point"),
        ("0x17f0", "0x10", "ryzen-ai-stx", "Strix Point"),
        ("0x17f0", "0x11", "ryzen-ai-stx", "Strix Halo"),
        ("0x17f0", "0x20", "ryzen-ai-krk", "Krackan"),
    ],
)
def test_ryzen_generations_differ_by_device_and_revision(device, revision, name, title, tmp_path):
    roots.ryzen(roots.Tree(tmp_path), device, revision)
    (found,) = detect.detect(Root(tmp_path))
    assert found.name == name and title in found.title


@pytest.mark.parametrize("chip", ["rk3588", "rk3576", "rk3568", "rk3562", "rv1106"])
def test_rockchip_chips_differ_by_the_device_tree(chip, tmp_path):
    roots.rockchip(roots.Tree(tmp_path), chip)
    assert [each.name for each in detect.detect(Root(tmp_path))] == [chip]


def test_the_zhouyi_npu_of_a_device_tree_is_recognised(tmp_path):
    tree = roots.Tree(tmp_path)
    tree.write("/sys/bus/platform/devices/14260000.aipu/of_node/compatible", "armchina,zhouyi-v3\0armchina,zhouyi\0")
    (found,) = detect.detect(Root(tmp_path))
    assert found.name == "zhouyi-z3" and not found.hidden


def test_a_platform_file_may_say_how_to_detect_its_chip(tmp_path, monkeypatch):
    facts = {"detect": {"pci": ["1234:5678"], "module": "toy", "nodes": ["/dev/toy"]}}
    chip = Platform("toychip", "Toy", "Toys", "null", facts=facts)
    monkeypatch.setattr(detect.plugins, "names", lambda kind: ("toychip",))
    monkeypatch.setattr(detect.plugins, "platform", lambda name: chip)
    monkeypatch.setattr(detect, "table", detect.table.__wrapped__)
    tree = roots.Tree(tmp_path)
    for name, value in (("vendor", "0x1234"), ("device", "0x5678"), ("revision", "0x01")):
        tree.write(f"/sys/bus/pci/devices/0000:01:00.0/{name}", f"{value}\n")
    (found,) = detect.detect(Root(tmp_path))
    assert (found.name, found.title, found.module, found.family) == ("toychip", "Toy", "toy", "other")


def test_what_lies_behind_a_problem_is_skipped_and_says_why(tmp_path):
    told = examine("no-module", tmp_path)
    skipped = {f.check: f.result.evidence for f in told.findings if f.result.status == "skipped"}
    assert skipped["vermagic"] == "module comes first"
    assert skipped["permission"] == "node comes first"
    assert "libnoe" not in skipped


def test_a_module_loaded_by_hand_is_no_problem_until_the_restart(tmp_path):
    tree = roots.Tree(roots.build("healthy", tmp_path))
    tree.remove(roots.AIPU)
    told = diagnose(tmp_path)
    assert told.first_problem is None
    (finding,) = (f for f in told.findings if f.check == "module")
    assert finding.result.status == "missing" and "gone after a restart" in finding.result.evidence


def test_a_kernel_that_nobody_tried_is_unknown(tmp_path):
    tree = roots.Tree(tmp_path)
    roots.zhouyi(tree)
    tree.write("/proc/sys/kernel/osrelease", "9.1.0\n")
    (finding,) = (f for f in diagnose(tmp_path).findings if f.check == "kernel")
    assert finding.result.status == "unknown" and finding.result.fix


@pytest.mark.parametrize(
    ("check", "path"), [("wheel", "/usr/local/lib"), ("dpkg", "/var/lib/dpkg/status"), ("loaded", "")]
)
def test_what_cannot_be_read_is_unknown_and_says_how_to_know(check, path, tmp_path):
    tree = roots.Tree(roots.build("healthy", tmp_path))
    if path:
        shutil.rmtree(tree.path(path)) if tree.path(path).is_dir() else tree.path(path).unlink(missing_ok=True)
        tree.link(path, path)  # a link to itself cannot be read, not even by root
    else:
        tree.remove("/proc/modules", "/sys/module")
    told = {f.check: f.result for f in diagnose(tmp_path).findings}
    assert told[check].status == "unknown"
    assert told[check].fix
    assert all(result.status != "failed" for result in told.values())


@pytest.fixture
def nobody_root():
    """A folder that any user may enter, and this process as a user who is not root."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def as_nobody(folder: Path):
    """Examines the folder as a user to whom modes apply."""
    diagnose(folder)  # the tables that ship with anynpu are read once
    me = os.geteuid()
    os.seteuid(65534 if me == 0 else me)
    try:
        return {finding.check: finding.result for finding in diagnose(folder).findings}
    finally:
        os.seteuid(me)


@pytest.mark.parametrize(
    ("name", "path", "check"),
    [
        ("rockchip", "/sys/kernel/debug", "driver-version"),
        ("healthy", "/var/lib/dpkg/status", "dpkg"),
        ("healthy", f"/{roots.SECURE_BOOT}", "signature"),
        ("healthy", roots.AIPU, "init-module"),
        ("healthy", "/usr/share/cix", "libnoe"),
        ("healthy", "/sys/bus", "devices"),
    ],
)
def test_a_file_of_root_is_unknown_and_says_how_to_know(name, path, check, nobody_root):
    tree = roots.Tree(roots.build(name, nobody_root))
    if not tree.path(path).exists():
        tree.write(path, b"\x06\0\0\0\x01")
    mode = tree.path(path).stat().st_mode
    tree.path(path).chmod(0)
    try:
        told = as_nobody(nobody_root)
    finally:
        tree.path(path).chmod(mode)
    assert told[check].status == "unknown" and told[check].fix.startswith("sudo "), told[check]
    assert "Permission denied" in told[check].evidence
    assert "failed" not in {result.status for result in told.values()}


class Watched:
    """Remembers every path that the process asks the system for."""

    def __init__(self, monkeypatch) -> None:
        self.paths: list[str] = []
        for name in ("stat", "lstat", "readlink", "scandir", "listdir", "open", "access"):
            monkeypatch.setattr(os, name, self._told(getattr(os, name)))
        real = Path.open
        monkeypatch.setattr(Path, "open", lambda path, *a, **k: (self.paths.append(str(path)), real(path, *a, **k))[1])

    def _told(self, real):
        def call(path=".", *arguments, **named):
            self.paths.append(os.fsdecode(path) if not isinstance(path, int) else f"fd {path}")
            return real(path, *arguments, **named)

        return call


@pytest.mark.parametrize("name", ["healthy-with-model", "no-module", "ryzen", "rockchip", "plain"])
def test_nothing_outside_of_the_root_is_read(name, tmp_path, monkeypatch):
    case = roots.CASES[name]
    roots.build(name, tmp_path)
    roots.Tree(tmp_path).link("/etc/ld.so.conf.d/zz.conf", "../../../../../../../../../etc/hostname")
    diagnose(tmp_path)  # the tables that ship with anynpu are read once
    watched = Watched(monkeypatch)
    diagnose(tmp_path, (case.model,) if case.model else ())
    monkeypatch.undo()
    assert len(watched.paths) > 50
    assert [path for path in watched.paths if not path.startswith(str(tmp_path))] == []


def test_an_empty_root_is_not_this_machine(tmp_path):
    told = diagnose(tmp_path)
    assert told.devices == () and told.kernel == "" and told.board == ""
    assert told.first_problem is not None and told.first_problem.check == "python"


def test_links_are_followed_inside_the_root(tmp_path):
    tree = roots.Tree(tmp_path)
    tree.write("/etc/real", "inside")
    tree.link("/etc/absolute", "/etc/real")
    tree.link("/etc/up", "../../../../etc/real")
    tree.link("/etc/loop", "/etc/loop")
    root = Root(tmp_path)
    assert root.read("/etc/absolute") == root.read("/etc/up") == "inside"
    assert root.inside("/etc/up") == "/etc/real"
    assert not root.exists("/etc/hostname") and root.read("/etc/hostname") == ""
    with pytest.raises(Unreadable, match="too many links"):
        root.read("/etc/loop")


def test_a_root_that_is_not_there_is_a_usage_error(tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        diagnose(tmp_path / "nowhere")


def snapshot(folder: Path) -> dict[str, tuple[int, float]]:
    return {str(p): (p.lstat().st_size, p.lstat().st_mtime) for p in folder.rglob("*")}


def test_nothing_is_changed(tmp_path):
    roots.build("stuck", tmp_path)
    before = snapshot(tmp_path)
    diagnose(tmp_path)
    assert snapshot(tmp_path) == before


def call(*arguments: str):
    result = CliRunner().invoke(doctor, arguments, standalone_mode=False)
    assert result.exception is None, result.output
    return result.return_value, result.output


def test_the_last_line_names_the_first_problem_and_its_fix(tmp_path):
    roots.build("not-loaded", tmp_path)
    status, output = call("--root", str(tmp_path))
    assert status == 1
    assert output.splitlines()[-1] == "first problem: loaded: aipu is not in /proc/modules; fix: sudo modprobe aipu"
    assert "skipped" not in output
    assert "skipped  node" in call("--root", str(tmp_path), "--all")[1]


def test_a_healthy_machine_ends_with_status_0(tmp_path):
    roots.build("healthy", tmp_path)
    status, output = call("--root", str(tmp_path), "--model", "models/clip_txt.cix")
    assert status == 0
    assert output.splitlines()[-1].startswith("no problem found in 2")


def test_the_json_record_is_whole(tmp_path):
    roots.build("python-3.13-wheel", tmp_path)
    status, output = call("--root", str(tmp_path), "-f", "json")
    record = json.loads(output)
    assert status == 1 and record["schema_version"] == 1 and record["kind"] == "doctor"
    assert record["first_problem"]["check"] == "wheel" and not record["healthy"]
    assert {"check", "device", "sentence", "status", "evidence", "fix"} == set(record["checks"][0])
    assert all(row["fix"] for row in record["checks"] if row["status"] in ("failed", "unknown", "missing"))


def test_this_machine_is_examined():
    status, output = call("-f", "json")
    record = json.loads(output)
    checks = {row["check"]: row for row in record["checks"]}
    assert status == int(not record["healthy"])
    assert record["kernel"] == os.uname().release and record["root"] == "/"
    assert {"python", "compilers", "emulators", "toolchains", "runtimes", "cache"} <= set(checks)
    assert checks["python"]["status"] == checks["cache"]["status"] == "ok"


def test_a_cache_without_room_is_a_problem(monkeypatch, tmp_path):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2**20))
    result = host.cache(Machine(Root(), cache=tmp_path / "cache"))
    assert result.status == "failed" and result.evidence == f"0.0 GiB free in {tmp_path / 'cache'}"
    assert commands(result.fix) == [["cache", "prune", "--max-size", "1G"]]


def test_no_heavy_package_and_no_vendor_library_is_loaded(tmp_path):
    roots.build("healthy-with-model", tmp_path)
    code = (
        "import sys\nfrom anynpu.drivers.doctor import diagnose\nfrom pathlib import Path\n"
        "told = diagnose(Path(sys.argv[1]), ('/models/clip_txt.cix',)); assert told.first_problem is None\n"
        "print([m for m in ('torch', 'onnxruntime', 'libnoe', 'tflite_micro') if m in sys.modules])\n"
        "print([line for line in open('/proc/self/maps') if 'libnoe' in line])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n[]\n"


def commands(fix: str) -> list[list[str]]:
    """Returns the anynpu commands of a fix."""
    parts = (part.strip().removeprefix("sudo ") for part in fix.partition("    #")[0].split("&&"))
    return [shlex.split(part)[1:] for part in parts if part.startswith("anynpu ")]


def parse(words: list[str]) -> click.Context:
    """Returns the command line as click understands it; a word that it does not know raises."""
    found = getattr(importlib.import_module(f"anynpu.cli.{VERBS.get(words[0], words)[0]}"), words[0])
    rest = words[1:]
    while isinstance(found, click.Group):
        found, rest = found.commands[rest[0]], rest[1:]
    return found.make_context(words[0], rest)


@pytest.mark.parametrize("name", roots.CASES)
def test_the_anynpu_commands_of_a_fix_exist(name, tmp_path):
    for finding in examine(name, tmp_path).findings:
        for words in commands(finding.result.fix):
            parse(words)


def test_a_command_that_does_not_exist_would_be_seen():
    for words in (["driver", "zhouyi", "mend"], ["driver", "zhouyi", "udev", "--all"], ["driver", "zhouyi", "patch"]):
        with pytest.raises((KeyError, click.UsageError)):
            parse(words)


def test_fixes_name_anynpu_commands():
    assert commands(fixes.INSTALL) == [
        *(["driver", "zhouyi", "patch", "TREE"], ["driver", "zhouyi", "build", "TREE", "-o", "aipu"]),
        ["driver", "zhouyi", "install", "aipu", "--yes"],
    ]


def test_the_repair_of_a_half_configured_package_edits_its_script_once(tmp_path):
    script = tmp_path / "postinst"
    text = "#!/bin/sh\nset -e\n# pip install is below\nif true; then\n  pip3 install /x/libnoe.whl\nfi\nldconfig\n"
    script.write_text(text)
    command = fixes.EXCUSE_PIP.replace(userspace.POSTINST, str(script)).removeprefix("sudo ")
    subprocess.run(shlex.split(command), check=True)
    assert script.read_text() == text.replace("libnoe.whl", f"libnoe.whl{userspace.EXCUSE}")
    assert script.read_text() == userspace.excused(text)
    subprocess.run(shlex.split(command), check=True)
    assert script.read_text() == userspace.excused(text)
    assert subprocess.run(["sh", "-n", str(script)], check=False).returncode == 0


def test_a_named_library_that_is_not_there_is_a_problem(monkeypatch):
    monkeypatch.setenv("ANYNPU_LIBNOE", "/nowhere/libnoe.so")
    result = noe.libnoe(Machine(Root()))
    assert result.status == "failed" and result.fix == "unset ANYNPU_LIBNOE"


def test_every_check_has_one_sentence():
    for check in ALL_CHECKS:
        assert check.sentence.endswith(".") and "\n" not in check.sentence, check.name


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress], ids=["plain", "gz", "xz"])
def test_a_packed_module_is_read(pack):
    found = read_module(pack(roots.module()))
    assert found.release == roots.KERNEL and "init_module" in found.symbols
    assert found.values("alias") == ("acpi*:CIXH4000:*", "of:N*T*Carmchina,zhouyi-v3")
    assert not found.signed


@pytest.mark.skipif(shutil.which("gcc") is None or shutil.which("nm") is None, reason="needs gcc and nm")
def test_symbols_are_those_that_nm_sees(tmp_path):
    (tmp_path / "x.c").write_text(
        'const char info[] __attribute__((section(".modinfo"), used)) = "vermagic=1.2.3 SMP ";\n'
        "static int hidden(void) { return 1; }\nextern int other(void);\n"
        "int noe_one(void) { return hidden() + other(); }\nint noe_two(void) { return 2; }\n"
    )
    subprocess.run(["gcc", "-c", "-o", "x.o", "x.c"], cwd=tmp_path, check=True)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", "x.so", "x.c"], cwd=tmp_path, check=True)
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", "x.so"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    names = {line.split()[-1] for line in listed.stdout.splitlines()}
    assert read_elf((tmp_path / "x.so").read_bytes()).symbols(DYNSYM) == names >= {"noe_one", "noe_two"}
    module = read_module((tmp_path / "x.o").read_bytes())
    assert module.release == "1.2.3" and module.symbols == {"info", "noe_one", "noe_two"}


@pytest.mark.parametrize("cut", range(0, 1000, 37))
def test_a_damaged_module_is_an_integrity_error(cut):
    whole = roots.module()
    with pytest.raises(IntegrityError):
        read_module(whole[: min(cut, len(whole) - 1)])


def test_random_damage_never_escapes():
    import random

    chance = random.Random(5)
    for _ in range(3000):
        data = bytearray(roots.module())
        for _ in range(chance.randint(1, 8)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            read_module(bytes(data))
        except IntegrityError:
            continue
