"""PyTorch models that are not there, do not construct, or do not fit their checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

Refuse = Callable[..., object]
SOURCE = """
import torch

class Network(torch.nn.Module):
    def __init__(self, width: int = 4):
        super().__init__()
        if width > 99:
            raise RuntimeError("too wide")
        self.first = torch.nn.Linear(3, width)

    def forward(self, x):
        return self.first(x)
"""
BUILD = ("build", "-t", "null", "-o", "out", "--shape", "x=1,3")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "net.py"
    file.write_text(SOURCE)
    return file


def test_a_class_that_is_not_there_names_the_nearest(source: Path, refuse: Refuse) -> None:
    refuse(2, "net.py has no 'Netwrok' (did you mean 'Network'?)", *BUILD, "-m", "net.py:Netwrok", hint="it defines")


def test_a_constructor_that_fails(source: Path, refuse: Refuse) -> None:
    words = "constructing net.py:Network failed: RuntimeError: too wide (net.py, line 8)"
    refuse(2, words, *BUILD, "-m", "net.py:Network", "--arg", "width=100")


def test_shapes_are_asked_for(source: Path, refuse: Refuse) -> None:
    refuse(2, "does not say what its inputs look like", *BUILD[:-2], "-m", "net.py:Network", hint="--shape")


def test_files_and_modules_that_are_not_there(source: Path, refuse: Refuse) -> None:
    refuse(2, "none.py does not exist", *BUILD, "-m", "none.py:Network")
    refuse(2, "there is no module 'no_such_package'", *BUILD, "-m", "no_such_package.net:Network")
    refuse(2, "none.pth: no such checkpoint", *BUILD, "-m", "net.py:Network", "--ckpt", "none.pth")


def test_checkpoints_that_do_not_fit(tmp_path: Path, source: Path, refuse: Refuse) -> None:
    weight, bias = torch.zeros(4, 3), torch.zeros(4)
    torch.save({"first.weight": weight}, tmp_path / "missing.pth")
    torch.save({"first.weight": weight, "first.bais": bias}, tmp_path / "unexpected.pth")
    (tmp_path / "damaged.pth").write_bytes((tmp_path / "missing.pth").read_bytes()[:300])
    given = (*BUILD, "-m", "net.py:Network", "--ckpt")
    refuse(2, "it has no first.bias", *given, "missing.pth")
    refuse(2, "has unexpected first.bais (did you mean 'first.bias'?)", *given, "unexpected.pth")
    refuse(8, "damaged.pth", *given, "damaged.pth")


def test_a_pickled_checkpoint_needs_the_switch(tmp_path: Path, source: Path, refuse: Refuse) -> None:
    torch.save(torch.nn.Linear(3, 4), tmp_path / "whole.pth")
    refuse(2, "whole.pth", *BUILD, "-m", "net.py:Network", "--ckpt", "whole.pth", hint="--trust-checkpoint")


def test_a_module_of_the_working_folder_is_found_by_its_name(cli, tmp_path):
    (tmp_path / "mynets.py").write_text("import torch\n\n\ndef factory():\n    return torch.nn.Linear(4, 2)\n")
    done = cli("show", "mynets:factory", "--shape", "x=1,4", "-f", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["inputs"][0]["shape"] == [1, 4]
