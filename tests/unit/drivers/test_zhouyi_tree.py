"""The change set on a tree with the vendor's shapes: placed by meaning, once, and undone to the byte."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_driver import DMA_BUF, FILES, MM, SKY1, by_hand, digests, write_tree

from anynpu.drivers.zhouyi import ctext, edits, tree
from anynpu.errors import ConfigError

KERNELS = ((6, 1), (6, 10), (6, 11), (6, 12), (6, 13), (6, 17), (7, 0), (7, 3))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "driver")


def patch(folder: Path) -> tree.Tree:
    tree.write(tree.patched(tree.recognise(folder)))
    return tree.recognise(folder)


def revert(folder: Path) -> None:
    tree.write(tree.reverted(tree.recognise(folder)))


def compiled(folder: Path, file: str, version: tuple[int, int]) -> str:
    """Returns what a kernel of that version would compile: the preprocessor's output without the includes."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C preprocessor")
    text = (folder / file).read_text("latin-1")
    major, minor = version
    head = "#define KERNEL_VERSION(a,b,c) ((a)*65536+(b)*256+(c))\n"
    head += f"#define LINUX_VERSION_CODE KERNEL_VERSION({major},{minor},0)\n"
    source = head + re.sub(r"^#include.*$", "", text, flags=re.MULTILINE)
    done = subprocess.run([compiler, "-E", "-P", "-"], input=source, capture_output=True, text=True, check=True)
    return done.stdout


def test_every_change_is_missing_in_a_fresh_tree_and_ours_after(folder):
    before = tree.recognise(folder)
    assert before.kind == tree.VENDOR and {s.state for s in before.states} == {edits.MISSING}
    after = patch(folder)
    assert after.kind == tree.PATCHED and {s.state for s in after.states} == {edits.OURS}
    assert len(after.states) == 7 and after.version == "5.11.0"


def test_twice_is_as_once_and_revert_restores_every_byte(folder):
    fresh = digests(folder)
    patch(folder)
    once = digests(folder)
    patch(folder)
    assert digests(folder) == once != fresh
    revert(folder)
    assert digests(folder) == fresh


def test_modes_stay(folder):
    path = folder / edits.SKY1
    path.chmod(0o640)
    patch(folder)
    assert path.stat().st_mode & 0o777 == 0o640


def test_line_ends_stay(folder):
    for name in edits.FILES:
        path = folder / name
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    fresh = digests(folder)
    patch(folder)
    for name in edits.FILES:
        assert re.search(rb"[^\r]\n", (folder / name).read_bytes()) is None
    revert(folder)
    assert digests(folder) == fresh


@pytest.mark.parametrize("version", KERNELS)
def test_each_kernel_compiles_its_own_form(folder, version):
    patch(folder)
    sky1, dma_buf, mm = (compiled(folder, name, version) for name in (edits.SKY1, edits.DMA_BUF, edits.MM))
    assert ('MODULE_IMPORT_NS("DMA_BUF")' in dma_buf) == (version >= (6, 13))
    assert ("MODULE_IMPORT_NS(DMA_BUF)" in dma_buf) == (version < (6, 13))
    assert (".remove = sky1_npu_remove_void," in sky1) == (version >= (6, 11))
    assert (".remove = sky1_npu_remove," in sky1) == (version < (6, 11))
    assert ("static void sky1_npu_remove_void(" in sky1) == (version >= (6, 11))
    used = len(re.findall(r"= pm_runtime_put", sky1))
    assert used == (0 if version >= (7, 0) else 2)
    assert sky1.count("(pm_runtime_put(") == 2 - used
    assert ("cookie" in mm) == (version < (6, 13))
    assert "scmi_device_get_freq" not in sky1 and "remove_debugfs_dir(const" not in sky1
    assert "devfreq_init_failed:" not in sky1 and "MODULE_DESCRIPTION" in sky1


def test_the_version_header_comes_with_the_conditions(folder):
    patch(folder)
    for name in edits.FILES:
        assert (folder / name).read_text("latin-1").count("#include <linux/version.h>") == 1


def test_names_in_comments_and_strings_are_no_places():
    assert edits.import_ns("/* MODULE_IMPORT_NS(A); */\n").state == edits.LOST
    assert edits.devfreq('char *s = "sky1_npu_devfreq_target(x) {}";\n').state == edits.LOST
    assert edits.pm_put('char *s = "ret = pm_runtime_put(x);";\n').state == edits.DONE


def test_places_are_found_by_meaning_after_the_vendor_moved_things(folder):
    moved = "int more;\n" * 57 + SKY1.replace("sky1_npu_remove", "cix_gone").replace("p_dev", "pdev")
    (folder / edits.SKY1).write_text(moved)
    patch(folder)
    text = compiled(folder, edits.SKY1, (6, 12))
    assert "static void cix_gone_void(struct platform_device *pdev)" in text and ".remove = cix_gone_void," in text
    assert "cix_gone(pdev);" in text


def test_a_users_edit_elsewhere_survives_a_revert(folder):
    patch(folder)
    path = folder / edits.MM
    path.write_text(
        path.read_text("latin-1").replace("struct iommu_dma_cookie *cookie = NULL;", "void *cookie = mine;")
    )
    revert(folder)
    assert path.read_text("latin-1") == MM.replace("struct iommu_dma_cookie *cookie = NULL;", "void *cookie = mine;")
    assert tree.recognise(folder).kind == tree.VENDOR


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (edits.DMA_BUF, 'MODULE_IMPORT_NS("DMA_BUF");', 'MODULE_IMPORT_NS("OTHER");'),
        (edits.DMA_BUF, "#else /* anynpu: import-ns */\n", ""),
        (edits.MM, "\treturn 0; /* anynpu: iova */", "\treturn 1; /* anynpu: iova */"),
        (edits.SKY1, "#endif /* anynpu: devfreq */", "#endif"),
        ("Kbuild", "-DCONFIG_SKY1", "-DCONFIG_SKY2"),
    ],
)
def test_an_edit_of_our_lines_is_refused_and_nothing_is_written(folder, name, old, new):
    patch(folder)
    path = folder / name
    text = path.read_text("latin-1")
    assert old in text
    path.write_text(text.replace(old, new))
    changed = digests(folder)
    for change in (tree.reverted, tree.patched):
        with pytest.raises(ConfigError, match="changed"):
            tree.write(change(tree.recognise(folder)))
    assert digests(folder) == changed


def test_a_partly_patched_tree_is_completed(folder):
    text = edits.apply(DMA_BUF, [change for change in edits.CHANGES if change.name == "import-ns"])
    (folder / edits.DMA_BUF).write_text(text)
    assert tree.recognise(folder).kind == tree.PARTLY
    whole = digests(write_tree(folder.parent / "other"))
    assert patch(folder).kind == tree.PATCHED
    revert(folder)
    assert digests(folder) == whole


def test_a_tree_patched_by_hand_is_recognised_and_left_alone(folder):
    by_hand(folder)
    found = tree.recognise(folder)
    assert found.kind == tree.BY_HAND
    states = {state.name: state.state for state in found.states}
    assert states["remove"] == states["import-ns"] == edits.CONFLICT
    assert states["kbuild"] == states["devfreq"] == edits.DONE and states["pm-put"] == edits.MISSING
    with pytest.raises(ConfigError, match="by hand, for some kernels only") as error:
        tree.patched(found)
    assert "restore" in error.value.hint


def test_what_the_vendor_fixed_itself_is_not_fixed_again(folder):
    path = folder / edits.SKY1
    path.write_text(SKY1.replace('MODULE_LICENSE("GPL v2");', 'MODULE_DESCRIPTION("own");\nMODULE_LICENSE("GPL v2");'))
    states = {state.name: state.state for state in patch(folder).states}
    assert states["description"] == edits.DONE and states["remove"] == edits.OURS
    assert tree.recognise(folder).kind == tree.PATCHED


def foreign(tmp_path: Path) -> dict[str, Path]:
    """Folders that are no driver tree of ours, by the words that say why."""
    whole, other = write_tree(tmp_path / "whole"), write_tree(tmp_path / "other")
    (whole / edits.MM).unlink()
    (other / edits.SKY1).write_text(SKY1.replace("CIXH4000", "ABCD0001"))
    (tmp_path / "compass/driver/kmd/armchina-npu").mkdir(parents=True)
    (tmp_path / "compass/driver/kmd/armchina-npu/aipu.c").touch()
    (tmp_path / "empty").mkdir()
    return {
        "no such folder": tmp_path / "none",
        "this is not a Zhouyi driver tree": tmp_path / "empty",
        "aipu_mm.c is not there": whole,
        "this is Arm China's driver, not the edition": tmp_path / "compass",
        "does not know the ACPI device CIXH4000": other,
    }


def test_foreign_trees_are_refused_with_a_sentence(tmp_path):
    for words, path in foreign(tmp_path).items():
        with pytest.raises(ConfigError, match=words) as error:
            tree.recognise(path)
        assert "clone" in error.value.hint


def test_a_foreign_kbuild_file_is_never_overwritten(folder):
    (folder / "Kbuild").write_text("obj-m := mine.o\n")
    with pytest.raises(ConfigError, match="not ours"):
        patch(folder)
    assert tree.reverted(tree.recognise(folder)) == []


def test_the_tree_is_found_from_the_clone_and_from_inside(tmp_path):
    clone = tmp_path / "clone"
    driver = write_tree(clone / "cix_opensource/npu/npu_driver/driver")
    for path in (clone, driver, driver / "armchina-npu"):
        assert tree.recognise(path).folder == driver.resolve()


def test_a_lost_place_names_itself(folder):
    (folder / edits.MM).write_text(MM.replace("never_map", "ever_map"))
    with pytest.raises(ConfigError, match="iova: aipu_mm_reserved_iova_for_never_map is not where"):
        patch(folder)
    assert digests(folder)[edits.SKY1] == digests(write_tree(folder.parent / "x"))[edits.SKY1]


def test_kbuild_lists_what_the_makefile_lists_and_the_chips_own(folder):
    patch(folder)
    text = (folder / "Kbuild").read_text()
    names = re.findall(r"armchina-npu/([\w/]+\.o)", text)
    assert names == ["aipu.o", "aipu_mm.o", "aipu_dma_buf.o", "zhouyi/v3.o", "zhouyi/v3_priv.o", "sky1/sky1.o"]
    assert r"-DKMD_VERSION=\"5.11.0\"" in text and "$(src)" in text and "EXTRA_CFLAGS" not in text
    assert (folder / "Makefile").read_text() == FILES["Makefile"]


@given(
    name=st.sampled_from(edits.FILES),
    cuts=st.lists(st.tuples(st.integers(0, 90), st.integers(0, 90), st.booleans()), max_size=6),
)
def test_whatever_others_did_to_a_file_ours_comes_out_to_the_byte(name, cuts):
    lines = FILES[name].splitlines(keepends=True)
    for at, other, move in cuts:
        line = lines.pop(at % len(lines)) if lines else "\n"
        if move:
            lines.insert(other % (len(lines) + 1), line)
    text = "".join(lines)
    changes = [change for change in edits.CHANGES if change.file == name]
    try:
        changed = edits.apply(text, changes)
    except ConfigError:
        assert not text.endswith("\n")
        return
    assert edits.strip(changed) == text
    assert edits.is_consistent(changed, changes) and edits.apply(edits.strip(changed), changes) == changed


def test_two_declarations_that_share_a_body_are_one_function(tmp_path):
    """CIX's current tree declares remove() for old and new kernels and writes its body once."""
    old = "static int sky1_npu_remove(struct platform_device *p_dev)"
    guarded = f"#if KERNEL_VERSION(6, 11, 0) > LINUX_VERSION_CODE\n{old}\n#else\n{old.replace('int', 'void')}\n#endif"
    assert SKY1.count(old) == 1
    text = SKY1.replace(old, guarded)
    place = edits.remove(text)
    assert (place.state, place.why) == (edits.DONE, "depends on the kernel's version already")
    found = ctext.function(text, "sky1_npu_remove")
    assert found is not None and found.kind == "static void"
