"""anynpu driver zhouyi as people call it: shown first, run when told so, and undone."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from small_driver import by_hand, digests, write_tree

from anynpu.cli.driver import driver
from anynpu.errors import ConfigError, ToolFailed, ToolMissing

RELEASE = "6.12.1-arm64"
MODULE = """
#define INFO(n, text) static const char n[] __attribute__((section(".modinfo"), used, aligned(1))) = text
INFO(a, "license=GPL v2"); INFO(b, "import_ns=DMA_BUF"); INFO(c, "alias=acpi*:CIXH4000:*");
INFO(d, "vermagic=6.12.1-arm64 SMP mod_unload aarch64");
int init_module(void) { return 0; }
"""


def call(*arguments: str | Path) -> Result:
    """Calls the verb in this process; an error of ours is raised."""
    result = CliRunner().invoke(driver, ["zhouyi", *map(str, arguments)], standalone_mode=False)
    if result.exception:
        raise result.exception
    return result


def record(*arguments: str | Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(call(*arguments, "-f", "json").stdout)
    assert (data["schema_version"], data["kind"]) == (1, "driver")
    return data


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "driver")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("etc", "lib/modules", "usr/src", "var/lib"):
        (tmp_path / "root" / name).mkdir(parents=True)
    (tmp_path / "root/etc/group").write_text("render:x:105:\n")
    return tmp_path / "root"


@pytest.fixture(scope="session")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An arm64 object with a module's information: compiled here, its processor's number set by hand."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip("needs a C compiler for a 64-bit processor")
    folder = tmp_path_factory.mktemp("module")
    (folder / "aipu.c").write_text(MODULE)
    subprocess.run([compiler, "-c", "aipu.c", "-o", "aipu.ko"], cwd=folder, check=True)
    data = bytearray((folder / "aipu.ko").read_bytes())
    data[18:20] = (0xB7).to_bytes(2, "little")
    (folder / "aipu.ko").write_bytes(data)
    return folder / "aipu.ko"


@pytest.fixture
def headers(tmp_path: Path, module: Path) -> Path:
    """Headers whose make copies that module: what kbuild would do."""
    folder = tmp_path / "headers"
    (folder / "include/generated").mkdir(parents=True)
    (folder / "Makefile").write_text(f"modules:\n\ttest -f $(M)/Kbuild\n\tcp {module} $(M)/aipu.ko\n")
    (folder / ".config").write_text("CONFIG_ARM64=y\n")
    (folder / "include/generated/utsrelease.h").write_text(f'#define UTS_RELEASE "{RELEASE}"\n')
    return folder


def cross(headers: Path) -> tuple[str, ...]:
    return ("--kdir", str(headers), "--arch", "arm64", "--cross", "aarch64-linux-gnu-")


def test_plan_shows_every_step_and_changes_nothing(tree, root, headers, tmp_path):
    before = digests(tmp_path)
    text = call("plan", tree, "--root", root, *cross(headers)).stdout
    assert "as the vendor ships it" in text and text.count("missing") == 7
    for words in (
        "driver zhouyi patch",
        "driver zhouyi build",
        "driver zhouyi dkms",
        "70-anynpu-aipu.rules",
        "| SUBSYSTEM",
    ):
        assert words in text
    assert digests(tmp_path) == before
    steps = record("plan", tree, "--root", root, *cross(headers))["steps"]
    assert [step["argv"] for step in steps[-2:]] == [["modprobe", "aipu"], ["anynpu", "doctor"]]
    assert [step["needs_root"] for step in steps[-2:]] == [True, False]


def test_plan_goes_on_without_headers_and_says_so(tree, root):
    data = record("plan", tree, "--root", root, "--cross", "x-")
    assert any("there are no headers" in line for line in data["trouble"])
    assert [change["state"] for change in data["changes"]] == ["missing"] * 7


def test_patch_shows_writes_once_and_reverts(tree):
    fresh = digests(tree)
    diff = call("patch", tree, "--dry-run").stdout
    assert diff.count("\n+++ b/") == 4 and digests(tree) == fresh
    assert "patched: Kbuild" in call("patch", tree).stderr
    once = digests(tree)
    assert "nothing to do" in call("patch", tree).stderr and digests(tree) == once
    assert record("patch", tree)["tree_kind"] == "patched"
    call("patch", tree, "--revert")
    assert digests(tree) == fresh


def test_patch_applies_as_the_diff_that_it_shows(tree, tmp_path):
    if shutil.which("patch") is None:
        pytest.skip("needs patch")
    copy = Path(shutil.copytree(tree, tmp_path / "copy"))
    diff = call("patch", tree, "--dry-run").stdout_bytes
    subprocess.run(["patch", "-p1", "-s"], cwd=copy, input=diff, check=True)
    call("patch", tree)
    assert digests(copy) == digests(tree)


def test_foreign_and_hand_patched_trees(tree, tmp_path):
    with pytest.raises(ConfigError, match="not a Zhouyi driver tree"):
        call("patch", tmp_path / "driver/armchina-npu/zhouyi")
    by_hand(tree)
    with pytest.raises(ConfigError, match="already patched by hand"):
        call("patch", tree)
    data = record("plan", tree, "--cross", "x-")
    assert data["tree_kind"] == "patched by hand" and "by hand" in data["trouble"][0]
    assert not any("dkms" in step["argv"] for step in data["steps"])


def test_build_leaves_a_checked_module_and_an_untouched_tree(tree, headers, tmp_path):
    call("patch", tree)
    before = digests(tree)
    result = call("build", tree, *cross(headers), "-o", tmp_path / "out")
    assert result.return_value == 0 and "aipu.ko in" in result.stdout and "make -C" in result.stderr
    assert digests(tree) == before
    assert call("verify", tmp_path / "out", "--kdir", headers).return_value == 0


def test_build_of_an_unpatched_tree_fails_with_the_log(tree, headers, tmp_path):
    with pytest.raises(ToolFailed) as error:
        call("build", tree, *cross(headers), "-o", tmp_path / "out")
    assert error.value.log == str(tmp_path / "out/build.log")


def test_build_dry_run_shows_the_command(tree, headers, tmp_path):
    text = call("build", tree, *cross(headers), "--dry-run", "-o", tmp_path / "out").stdout
    assert "CROSS_COMPILE=aarch64-linux-gnu-" in text and not (tmp_path / "out").exists()


def test_verify_names_the_fault_and_ends_with_one(module, headers, tmp_path):
    bad = tmp_path / "aipu.ko"
    bad.write_bytes(module.read_bytes().replace(b"6.12.1-arm64", b"6.12.2-arm64"))
    result = call("verify", bad, "--kdir", headers)
    assert result.return_value == 1 and "vermagic: built for another kernel" in result.stdout
    checks = {check["name"]: check["ok"] for check in record("verify", bad, "--kdir", headers)["checks"]}
    assert [name for name, ok in checks.items() if not ok] == ["vermagic"]


@pytest.mark.parametrize("verb", ["install", "dkms", "udev", "remove"])
def test_nothing_runs_without_yes(verb, tree, root, headers, module, tmp_path):
    call("patch", tree)
    before = digests(tmp_path)
    subject = {"install": [module, *cross(headers)], "dkms": [tree, *cross(headers)]}.get(verb, [])
    result = call(verb, *subject, "--root", root)
    assert digests(tmp_path) == before
    data = record(verb, *subject, "--root", root)
    assert data["dry_run"] is True and (verb == "remove" or data["steps"])
    assert verb == "remove" or "nothing was run" in result.stderr
    with pytest.raises(ConfigError, match="contradict"):
        call(verb, *subject, "--root", root, "--yes", "--dry-run")


def test_root_is_not_taken_in_silence(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="need root") as error:
        call("udev", "--yes")
    assert "sudo anynpu driver zhouyi udev" in error.value.hint


def test_udev_and_remove_run_and_undo(tree, root):
    before = digests(root)
    fresh = digests(tree)
    call("patch", tree)
    result = call("udev", "--root", root, "--yes")
    assert "write" in result.stderr and digests(root) != before
    result = call("remove", tree, "--root", root, "--yes")
    assert "--revert" in result.stderr
    assert digests(root) == before and digests(tree) == fresh


def test_install_refuses_a_module_for_another_kernel(module, headers, root, tmp_path):
    bad = tmp_path / "aipu.ko"
    bad.write_bytes(module.read_bytes().replace(b"import_ns=DMA_BUF", b"import_ns=DMA_BAF"))
    with pytest.raises(ConfigError, match="import_ns: DMA_BAF"):
        call("install", bad, *cross(headers), "--root", root)


def test_install_shows_the_module_s_place_and_a_key_signs_first(module, headers, root, tmp_path):
    for name in ("key", "cert"):
        (tmp_path / name).touch()
    steps = record(
        *("install", module, *cross(headers), "--root", root, "--key", tmp_path / "key", "--cert", tmp_path / "cert")
    )["steps"]
    assert steps[0]["argv"][0].endswith("scripts/sign-file")
    assert steps[1]["argv"][-1] == str(root / f"lib/modules/{RELEASE}/updates/aipu.ko")


def test_dkms_wants_a_patched_tree(tree, headers, root):
    with pytest.raises(ConfigError, match="DKMS would build it"):
        call("dkms", tree, *cross(headers), "--root", root)


def test_the_running_kernel_s_headers_are_named_when_missing(tree, root):
    call("patch", tree)
    with pytest.raises(ToolMissing, match="there are no headers"):
        call("dkms", tree, "--root", root, "--cross", "x-")


def test_every_command_teaches_with_examples():
    for name in ("plan", "patch", "build", "install", "dkms", "udev", "verify", "remove"):
        result = CliRunner().invoke(driver, ["zhouyi", name, "--help"])
        assert result.exit_code == 0 and f"anynpu driver zhouyi {name}" in result.output
