"""One conversion of the kit's small model for every test here: each compiler's input and output, made once."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from anynpu import plugins
from anynpu.artifact import Artifact, Step, seal
from anynpu.errors import ToolMissing
from anynpu.platform import Platform
from anynpu.testing import conformance, models
from anynpu.testing.target_rules import TargetCase

CASES = {
    "null": "null",
    "cpu": "cpu",
    "litert": "tflite",
    "tflite": "tflm",
    "tflite_given": "tflm",
    "vela": "ethos-u55-128",
    "mcu_c": "host",
    "zhouyi": "zhouyi-z3",
    "ai8x": "max78000",
    "vitisai": "ryzen-ai-stx",
    "cvi": "cv180x",
    "neutron": "mcxn947",
    "rknn": "rk3568",
    "qnn": "hexagon-v73",
}
"""A chip for each compiler; a compiler that is registered and not named here fails its test."""


def chip_for(target: str) -> Platform:
    assert target in CASES, f"name a chip for the new compiler {target} in tests/conformance/conftest.py"
    return plugins.platform(CASES[target])


def as_given(made: Artifact, folder: Path) -> Artifact:
    """Returns a quantised file as one that the user brings."""
    if not folder.exists():
        folder.mkdir()
        shutil.copyfile(made.main, folder / "model.tflite")
    manifest = replace(
        made.manifest, format="tflite-given", main="model.tflite", seal="", details={"given": "an int8 model"}
    )
    return seal(folder, manifest, Step("import"), models.NOW)


@pytest.fixture(scope="session")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("conformance")


@pytest.fixture(scope="session")
def model(room: Path) -> Artifact:
    return models.onnx_artifact(models.conv_net(), room / "model")


@pytest.fixture(scope="session")
def data(room: Path, model: Artifact) -> Artifact:
    return models.data_artifact(model, room / "data")


@pytest.fixture(scope="session")
def case_of(room: Path, model: Artifact, data: Artifact) -> Callable[[str], TargetCase]:
    """Gives the case of a compiler; its input is what the case of the compiler before it made."""

    @functools.cache
    def case(name: str) -> TargetCase:
        target = plugins.load("targets", name)()
        try:
            target.tools()
        except ToolMissing as missing:
            pytest.skip(f"{missing.message}: {missing.hint}")
        return conformance.target_case(target, given(target.accepts), chip_for(name), room / name, data=data)

    def given(format: str) -> Artifact:
        if format == "onnx":
            return model
        if format == "tflite-given":
            return as_given(case("tflite").first.artifact, room / "as-given")
        makers = [n for n in plugins.names("targets") if plugins.load("targets", n).produces == format]
        return case(makers[0]).first.artifact

    return case
