"""Artifacts of one small model that is not square, and trees around them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("ai_edge_litert", reason="pip install 'anynpu[build]'")
pytest.importorskip("tflite_micro", reason="pip install 'anynpu[build]'")
pytest.importorskip("ethosu.vela", reason="pip install 'anynpu[build]'")

import rect_model

from anynpu.artifact import Artifact
from anynpu.cli.firmware import write_tree
from anynpu.firmware.project.tree import make_project


@pytest.fixture(scope="session")
def c_artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Generated C for a Cortex-M4."""
    return rect_model.generated(tmp_path_factory.mktemp("c"), "cortex-m4")


@pytest.fixture(scope="session")
def npu_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of a build for hxwe2, and a stand-in for one for mcxn947."""
    out = tmp_path_factory.mktemp("npu")
    rect_model.neutron(out)
    rect_model.compiled(out, "hxwe2")
    return out


@pytest.fixture
def tree(tmp_path: Path) -> Callable[..., Path]:
    """Writes the project of an artifact for a board and returns its folder."""

    def write(artifact: Artifact, board: str, **more) -> Path:
        out = tmp_path / f"tree-{board}"
        write_tree(make_project(artifact, board, **more).files, out, overwrite=False)
        return out

    return write
