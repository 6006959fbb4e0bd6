"""The host's tree: it builds with make and CMake, proves itself, and fails when an answer is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from project_tools import need, sh

STRICT = "-Werror -Wshadow -Wsign-conversion"


def spoil(tree: Path) -> int:
    """Changes the first expected value of the second vector and returns it as it was."""
    path = tree / "vectors" / "anynpu_vectors.c"
    text = path.read_text()
    rows = text[text.index("kat_outputs") :].split("    {\n        ")
    value = int(re.match(r"\d+", rows[2])[0])
    rows[2] = re.sub(r"^\d+", str((value + 3) % 256), rows[2])
    path.write_text(text[: text.index("kat_outputs")] + "    {\n        ".join(rows))
    return value - 256 if value > 127 else value


@pytest.mark.parametrize("compiler", ["cc", "clang"])
def test_make_check_passes_without_a_warning(c_artifact, tree, compiler):
    need("make", compiler)
    done = sh("make", "all", "check", f"CC={compiler}", f"CFLAGS={STRICT}", cwd=tree(c_artifact, "host"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("kat")] == [
        *(f"kat {i} PASS" for i in range(5)),
        "kat-result PASS 5/5",
    ]
    assert done.stderr == ""


def test_a_wrong_answer_fails_with_the_first_differing_value(c_artifact, tree):
    need("make", "cc")
    folder = tree(c_artifact, "host")
    right = spoil(folder)
    assert sh("make", "all", cwd=folder).returncode == 0
    done = sh("build/self-test", cwd=folder)
    wrong = (right + 3 + 128) % 256 - 128
    assert done.returncode == 1
    assert f"kat 1 FAIL output answer[0] expected {wrong} got {right}" in done.stdout.splitlines()
    assert done.stdout.splitlines()[-1] == "kat-result FAIL 4/5"
    assert sh("make", "check", cwd=folder).returncode != 0


def test_a_tolerance_must_be_asked_for(c_artifact, tree):
    need("make", "cc")
    folder = tree(c_artifact, "host")
    spoil(folder)
    assert sh("make", "check", "CFLAGS=-DANYNPU_KAT_TOLERANCE=2", cwd=folder).returncode != 0
    (folder / "build" / "app" / "anynpu_kat.o").unlink()
    assert sh("make", "check", "CFLAGS=-DANYNPU_KAT_TOLERANCE=3", cwd=folder).returncode == 0


def test_cmake_builds_and_ctest_tells(c_artifact, tree):
    need("cmake", "make", "cc")
    folder = tree(c_artifact, "host")
    assert sh("cmake", "-B", "out", "-DCMAKE_C_FLAGS=-Werror", cwd=folder).returncode == 0
    assert sh("cmake", "--build", "out", cwd=folder).returncode == 0
    assert sh("ctest", "--test-dir", "out", cwd=folder).returncode == 0
    spoil(folder)
    assert sh("cmake", "--build", "out", cwd=folder).returncode == 0
    assert sh("ctest", "--test-dir", "out", cwd=folder).returncode != 0


def test_vectors_of_another_network_in_the_tree_are_noticed_by_the_firmware(c_artifact, tree):
    need("make", "cc")
    folder = tree(c_artifact, "host")
    header = folder / "vectors" / "anynpu_vectors.h"
    header.write_text(header.read_text().replace("5a5a", "5b5b", 1))
    done = sh("make", "check", cwd=folder)
    assert done.returncode != 0 and "kat-result FAIL the vectors are of another network" in done.stdout


def test_the_application_takes_no_heap_and_no_printf(c_artifact, tree):
    need("make", "cc")
    folder = tree(c_artifact, "host")
    assert sh("make", "all", cwd=folder).returncode == 0
    objects = [str(p) for p in folder.glob("build/app/*.o")] + [str(p) for p in folder.glob("build/model/*.o")]
    wanted = {line.split()[-1] for line in sh("nm", "-u", *objects, cwd=folder).stdout.splitlines() if " U " in line}
    foreign = {name for name in wanted if not name.startswith(("anynpu_", "kat_"))}
    assert foreign <= {"memcpy", "memset", "memmove", "memcmp", "strlen", "strcmp", "strncmp", "__stack_chk_fail"}, (
        foreign
    )
