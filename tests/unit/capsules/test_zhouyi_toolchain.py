"""Where a vendor's tool is found, which version it has, and what its words mean."""

from __future__ import annotations

import pytest

from anynpu.capsules import toolchain
from anynpu.capsules.toolchain import Saying, find, read_toolchain
from anynpu.errors import ConfigError, ToolFailed


def environment(root, python="3.10", version="6.1.3407.2"):
    """An environment with cixbuild in it, as pip leaves it."""
    program = root / "bin" / "cixbuild"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    packages = root / "lib" / f"python{python}" / "site-packages"
    (packages / f"CixBuilder-{version}.dist-info").mkdir(parents=True)
    return program, packages


@pytest.mark.parametrize("part", ["", "bin", "bin/cixbuild"])
def test_the_variable_names_the_environment_its_folder_or_the_program(tmp_path, monkeypatch, part):
    program, packages = environment(tmp_path / "env")
    monkeypatch.setenv("CIXBUILD_PATH", str(tmp_path / "env" / part))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/more")
    found = find("cixbuild")
    assert (found.program, found.version, found.packages) == (program, "6.1.3407.2", packages)
    assert found.environment()["LD_LIBRARY_PATH"] == f"{packages}/AIPUBuilder/simulator-lib:/opt/more"


def test_a_program_on_the_path_without_a_package_is_told_apart_by_its_content(tmp_path, monkeypatch):
    monkeypatch.delenv("CIXBUILD_PATH", raising=False)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    program = tmp_path / "cixbuild"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    first = find("cixbuild").version
    program.write_text("#!/bin/sh\ntrue\n")
    assert first.startswith("sha256:")
    assert find("cixbuild").version != first
    assert "LD_LIBRARY_PATH" not in find("cixbuild").environment()


def test_the_last_known_line_counts():
    chain = read_toolchain("cixbuild")
    assert "no setting a" in chain.hint("duplicate symbol: x\n[E] Unknown option: a\nbye")
    assert chain.hint("all is well") == ""


def test_a_log_that_cannot_be_read_leaves_the_last_lines(tmp_path):
    failure = ToolFailed("x", last_lines=["Unknown option: tiling"], log=str(tmp_path / "none"))
    assert "no setting tiling" in read_toolchain("cixbuild").explained(failure).hint


def test_facts_are_read_strictly():
    with pytest.raises(ConfigError, match="not a regular expression"):
        Saying("(", "", "")
    with pytest.raises(ConfigError, match="no such group"):
        Saying("a", "{what}", "")


def test_nothing_is_started_to_find_a_version(tmp_path, monkeypatch):
    environment(tmp_path)
    monkeypatch.setenv("CIXBUILD_PATH", str(tmp_path))
    monkeypatch.setattr("subprocess.Popen", None)
    assert toolchain.find("cixbuild").version == "6.1.3407.2"
