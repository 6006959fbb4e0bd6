"""A verb that another package adds through an entry point."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

VERB = '''
from dataclasses import dataclass

import click

from anynpu.cli.verb import Common, argument, flag, verb


@dataclass(frozen=True, kw_only=True)
class Greet(Common):
    name: str = argument()
    times: int = flag("How often.", 1, "-n", least=1, most=3, shown=True)


@verb(Greet)
def greet(asked: Greet) -> int:
    """Greet somebody."""
    click.echo(" ".join(["hello", asked.name] * asked.times))
    return 3
'''


@pytest.fixture
def call(tmp_path):
    """Calls anynpu where a package adds the verb `greet`, and one that tries to take the place of `build`."""
    (tmp_path / "greeting.py").write_text(VERB)
    about = tmp_path / "greeting-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
    points = "[anynpu.verbs]\ngreet = greeting:greet\nbuild = greeting:greet\nbroken = greeting:nothing\n"
    (about / "entry_points.txt").write_text(points)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        argv = [sys.executable, "-m", "anynpu", *words]
        return subprocess.run(argv, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)

    return run


def test_a_verb_of_another_package(call):
    done = call("greet", "you", "-n", "2")
    assert (done.returncode, done.stdout) == (3, "hello you hello you\n")
    refused = call("greet", "you", "-n", "4")
    assert refused.returncode == 2 and "1<=x<=3" in refused.stderr
    listed = call("--help").stdout
    assert "greet" in listed and "from greeting" in listed


def test_a_plug_in_takes_no_name_of_ours_and_a_broken_one_is_said(call):
    assert "Export, quantise, compile" in call("build", "--help").stdout
    broken = call("broken")
    assert broken.returncode == 5 and "does not load" in broken.stderr and "Traceback" not in broken.stderr
