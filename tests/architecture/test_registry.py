"""What is registered is there, by the name it is registered under, and no part of a vendor's is forgotten."""

from __future__ import annotations

import importlib
import tomllib

import pytest
from source_tree import ROOT, SOURCE

from anynpu import plugins
from anynpu.capsules import toolchain

POINTS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
RECIPES = {name: toolchain.read_toolchain(name) for name in toolchain.names()}
CLASSES = [
    (kind, name, value)
    for kind in ("targets", "sessions", "verbs")
    for table in (POINTS[f"anynpu.{kind}"], *(getattr(recipe, kind, {}) for recipe in RECIPES.values()))
    for name, value in table.items()
]


def test_every_chip_with_a_file_is_registered():
    files = {path.stem for path in (SOURCE / "data" / "platforms").glob("*.toml")}
    assert files <= set(plugins.names("platforms")) and len(files) > 60


@pytest.mark.parametrize("kind", ["targets", "sessions", "verbs"])
def test_the_installed_package_registers_what_the_project_says(kind):
    assert set(POINTS[f"anynpu.{kind}"]) <= set(plugins.names(kind)), "install the package again: pip install -e ."


@pytest.mark.parametrize(("kind", "name", "value"), CLASSES, ids=[f"{kind} {name}" for kind, name, _ in CLASSES])
def test_a_plug_in_has_the_name_it_is_registered_by(kind, name, value):
    module, attribute = value.split(":")
    assert getattr(importlib.import_module(module), attribute).name == name
    assert plugins.load(kind, name).name == name


def test_every_recipe_says_which_compiler_or_session_it_is_for():
    assert [name for name, recipe in RECIPES.items() if not {**recipe.targets, **recipe.sessions}] == []


def test_what_ships_with_anynpu_is_of_anynpu():
    assert {plugins.provider(kind, name)[0] for kind, name, _ in CLASSES} == {"anynpu"}
    assert plugins.provider("platforms", "cpu")[0] == "anynpu"
