"""The kit on the vendor's own tree, which the user has cloned: patched, reverted, and built for real kernels.

ANYNPU_ZHOUYI_TREE names the tree, ANYNPU_ZHOUYI_HEADERS folders of arm64 kernel headers (joined by `:`), and
ANYNPU_ZHOUYI_CC a compiler where the headers' own is not installed.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from small_driver import digests

from anynpu.drivers.zhouyi import build, edits, kernel, tree, verify
from anynpu.errors import ConfigError

pytestmark = pytest.mark.driver
HEADERS = [Path(name) for name in os.environ.get("ANYNPU_ZHOUYI_HEADERS", "").split(":") if name]


@pytest.fixture
def vendor(tmp_path: Path) -> Path:
    """A copy of the vendor's driver folder."""
    named = os.environ.get("ANYNPU_ZHOUYI_TREE")
    if not named:
        pytest.skip("set ANYNPU_ZHOUYI_TREE to a clone of the vendor's driver")
    return Path(shutil.copytree(tree.recognise(Path(named)).folder, tmp_path / "driver"))


def patch(folder: Path) -> tree.Tree:
    tree.write(tree.patched(tree.recognise(folder)))
    return tree.recognise(folder)


def test_every_change_finds_its_place(vendor):
    found = tree.recognise(vendor)
    assert {state.name: state.state for state in found.states} == dict.fromkeys(
        ("kbuild", "devfreq", "remove", "import-ns", "pm-put", "iova", "description"), edits.MISSING
    )


def test_twice_is_as_once_and_revert_restores_every_byte(vendor):
    fresh = digests(vendor)
    assert patch(vendor).kind == tree.PATCHED
    once = digests(vendor)
    assert len(once) == len(fresh) + 1 and sum(once[name] != fresh[name] for name in fresh) == 3
    patch(vendor)
    assert digests(vendor) == once
    tree.write(tree.reverted(tree.recognise(vendor)))
    assert digests(vendor) == fresh


def test_the_diff_is_one_that_patch_understands(vendor, tmp_path):
    if shutil.which("patch") is None:
        pytest.skip("needs patch")
    copy = Path(shutil.copytree(vendor, tmp_path / "copy"))
    diff = "".join(rewrite.diff() for rewrite in tree.patched(tree.recognise(vendor)))
    subprocess.run(["patch", "-p1", "-s"], cwd=copy, input=diff.encode("latin-1"), check=True)
    patch(vendor)
    assert digests(copy) == digests(vendor)


def test_changes_made_by_hand_for_one_kernel_are_recognised(vendor):
    for name, old, new in (
        (edits.SKY1, "static int sky1_npu_remove(", "static void sky1_npu_remove("),
        (edits.DMA_BUF, "MODULE_IMPORT_NS(DMA_BUF)", 'MODULE_IMPORT_NS("DMA_BUF")'),
    ):
        text = tree.read(vendor / name)
        assert text.count(old) == 1
        (vendor / name).write_bytes(text.replace(old, new).encode("latin-1"))
    with pytest.raises(ConfigError, match="already patched by hand"):
        patch(vendor)


@pytest.mark.parametrize("headers", HEADERS or [None], ids=str)
@pytest.mark.timeout(1800)
def test_it_builds_a_module_that_is_right(vendor, headers, tmp_path):
    if headers is None:
        pytest.skip("set ANYNPU_ZHOUYI_HEADERS to folders of arm64 kernel headers")
    cross = "" if platform.machine() in kernel.ARM64_MACHINES else "aarch64-linux-gnu-"
    found = kernel.find(headers, cross=cross, compiler=os.environ.get("ANYNPU_ZHOUYI_CC", ""))
    before = digests(patch(vendor).folder)
    made = build.build(tree.recognise(vendor), found, tmp_path / "out")
    checks = verify.checks(verify.read(made.module), found.release)
    assert [check for check in checks if not check.ok] == [] and len(checks) == 6
    assert digests(vendor) == before
