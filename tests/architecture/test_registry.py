"""What is registered is there, what is there is registered, and every page of the docs is found from the first."""

from __future__ import annotations

import importlib
import tomllib

import pytest
from source_tree import ROOT, SOURCE

from anynpu import plugins

POINTS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
FILES = {path.stem for path in (SOURCE / "data" / "platforms").glob("*.toml")}


def test_every_registered_chip_has_a_file_and_the_other_way_round():
    assert set(POINTS["anynpu.platforms"]) == FILES
    assert set(POINTS["anynpu.platforms"].values()) == {"anynpu.data.platforms"}


@pytest.mark.parametrize("kind", ["targets", "sessions", "platforms", "verbs"])
def test_the_installed_package_registers_what_the_project_says(kind):
    assert set(POINTS[f"anynpu.{kind}"]) <= set(plugins.names(kind)), "install the package again: pip install -e ."


@pytest.mark.parametrize(("group", "name"), [(g, n) for g in POINTS if g != "anynpu.platforms" for n in POINTS[g]])
def test_a_plug_in_has_the_name_it_is_registered_by(group, name):
    module, attribute = POINTS[group][name].split(":")
    assert getattr(importlib.import_module(module), attribute).name == name
