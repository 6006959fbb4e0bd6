"""A verb that another package adds through an entry point."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent / "anynpu-greeting"


@pytest.fixture
def call(tmp_path):
    """Calls anynpu where a package adds the verb `greet`, and one that tries to take the place of `build`."""
    shutil.copy(PACKAGE / "greeting.py", tmp_path)
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    about = tmp_path / "anynpu_greeting-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    verbs = {**project["entry-points"]["anynpu.verbs"], "build": "greeting:greet", "broken": "greeting:nothing"}
    lines = ["[anynpu.verbs]", *(f"{name} = {function}" for name, function in verbs.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        argv = [sys.executable, "-m", "anynpu", *words]
        return subprocess.run(argv, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)

    return run


def test_a_verb_of_another_package(call):
    done = call("greet", "you", "-n", "2")
    assert (done.returncode, done.stdout) == (0, "hello you hello you\n")
    assert call("greet", "nobody").returncode == 1
    lacking = call("greet")
    assert lacking.returncode == 2 and "missing argument 'NAME'" in lacking.stderr
    refused = call("greet", "you", "-n", "4")
    assert refused.returncode == 2 and "1<=x<=3" in refused.stderr
    listed = call("--help").stdout
    assert "greet" in listed and "from anynpu-greeting" in listed


def test_a_plug_in_takes_no_name_of_ours_and_a_broken_one_is_said(call):
    assert "Export, quantise, compile" in call("build", "--help").stdout
    broken = call("broken")
    assert broken.returncode == 5 and "does not load" in broken.stderr and "Traceback" not in broken.stderr
