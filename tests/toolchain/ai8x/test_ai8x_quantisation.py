"""The quantisation of a network for the MAX7800x as a file: written, edited, and the same network again."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from fake_ai8x import write_tool
from small_nets import residual, sequential, sqnr, strided

from anynpu import plugins, schema
from anynpu.errors import ConfigError
from anynpu.records.quantisation import FILE, Quantisation
from anynpu.runtime.ai8x import read_network
from anynpu.targets.ai8x import Ai8x
from anynpu.testing import models

CHIP = plugins.platform("max78000")


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    """Gives a function that makes the artifacts of a model and of samples, once."""
    made = {}

    def artifacts(function):
        if function not in made:
            made[function] = models.artifacts(function(), tmp_path_factory.mktemp(function.__name__))
        return made[function]

    return artifacts


@pytest.fixture
def build(net, tmp_path, monkeypatch):
    """Gives a function that compiles a net, each time in a folder of its own."""
    checkout, environment = write_tool(tmp_path / "tool", "ok")
    monkeypatch.setenv("AI8X_SYNTHESIS_PATH", str(checkout))
    monkeypatch.setenv("AI8X_PYTHON_PATH", str(environment))
    folders = itertools.count()

    def compile(function=sequential, **options):
        (folder := tmp_path / str(next(folders))).mkdir()
        return models.compiled(Ai8x(), *net(function), CHIP, Ai8x.Options(**options), folder)

    return compile


def stored_in(made) -> Quantisation:
    return schema.from_dict(Quantisation, schema.read_json(made.path / FILE), FILE)


def parameters(made) -> dict[str, np.ndarray]:
    return dict(read_network(made.path)[1])


def near(model, made) -> float:
    return sqnr(model, made, models.draw_samples(model.manifest.inputs, 16, seed=5))


def test_scales_are_those_of_the_network(build):
    made = build()
    tensors, layers = stored_in(made).tensors, made.manifest.details["layers"]
    for layer in layers:
        assert tensors[layer["tensor"]].scale == (pytest.approx(layer["scale"]),)
    form = made.manifest.inputs[0].quantization
    entry = tensors[made.manifest.inputs[0].name]
    assert (entry.scale[0], entry.zero_point[0]) == (pytest.approx(form.scale[0]), form.zero_point[0])
    first = layers[0]
    weights = tensors[f"{first['parameters']}/weights"]
    assert weights.scale[0] == pytest.approx(first["scale"] * 2.0 ** first["shift"] / (128 * entry.scale[0]))
    assert weights.dtype == "int8"


@pytest.mark.parametrize("function", [sequential, strided, residual])
def test_a_whole_file_builds_the_same_network_again(build, function):
    first = build(function)
    again = build(function, quantisation=first.file(FILE))
    before, after = parameters(first), parameters(again)
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_an_edited_range_and_width_hold(build, net, tmp_path):
    first = build()
    layers = [layer for layer in first.manifest.details["layers"] if layer["parameters"]]
    name, other = layers[0]["tensor"], layers[1]["parameters"] + "/weights"
    scale = stored_in(first).tensors[name].scale[0]
    edited = tmp_path / "edited.json"
    edited.write_text(json.dumps({"tensors": {name: {"range": [0, 127 * scale / 8]}, other: {"dtype": "int4"}}}))
    made = build(quantisation=edited)
    tensors = stored_in(made).tensors
    assert tensors[name].scale[0] == pytest.approx(scale / 8) and tensors[name].origin == "stated"
    assert tensors[other].dtype == "int4"
    assert np.abs(parameters(made)["weight1"]).max() <= 8
    assert near(net(sequential)[0], made) < near(net(sequential)[0], first) - 3, "what is cut off is lost"


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"no_such": {"range": [0, 1]}}, "stores no such tensor"),
        ({"RESULT": {"dtype": "int16"}}, "results have 8 bits"),
        ({"WEIGHTS": {"dtype": "int16"}}, "1, 2, 4 or 8 bits"),
    ],
)
def test_what_cannot_hold_ends_the_build(build, tmp_path, tensors, words):
    layer = build().manifest.details["layers"][0]
    names = {"RESULT": layer["tensor"], "WEIGHTS": layer["parameters"] + "/weights"}
    edited = tmp_path / "edited.json"
    edited.write_text(json.dumps({"tensors": {names.get(name, name): form for name, form in tensors.items()}}))
    with pytest.raises(ConfigError, match=words):
        build(quantisation=edited)
