"""ai8x-synthesis itself: known answers bit for bit, figures of the zoo, flags, and projects that compile."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from anynpu import plugins
from anynpu.capsules.capsule import find
from anynpu.errors import AccuracyError
from anynpu.files import default_cache_dir
from anynpu.measure.samples import read_samples
from anynpu.targets.ai8x import Ai8x
from anynpu.testing import models

HERE = Path(__file__).parent.parent / "ai8x"
import small_nets  # noqa: E402

USER_CACHE = default_cache_dir()
pytestmark = pytest.mark.skipif(
    not os.environ.get("AI8X_SYNTHESIS_PATH"), reason="AI8X_SYNTHESIS_PATH names no checkout of ai8x-synthesis"
)


@pytest.fixture(scope="module", autouse=True)
def environment():
    """The capsule is in the user's cache, the tests have their own."""
    if not os.environ.get("AI8X_PYTHON_PATH"):
        os.environ["AI8X_PYTHON_PATH"] = str(find("ai8x", USER_CACHE).root)
        yield
        del os.environ["AI8X_PYTHON_PATH"]
    else:
        yield


def made_of(function, folder, chip="max78000", **options):
    """Returns the model, its samples and what the real tool made of them; the twin was compared with it then."""
    model, data = models.artifacts(function(), folder)
    made = models.compiled(Ai8x(), model, data, plugins.platform(chip), Ai8x.Options(**options), folder)
    return model, data, made


def sqnr(model, data, made) -> float:
    return small_nets.sqnr(model, made, read_samples(data.path))


@pytest.mark.parametrize(
    ("name", "chip", "options", "floor"),
    [
        ("sequential", "max78000", {}, 26),
        ("sequential", "max78000", {"output_width": "8", "avg_pool_rounding": True}, 26),
        ("sequential", "max78000", {"bit_width": 4}, 8),
        ("sequential", "max78000", {"bit_width": 2, "q_scale": 0.3}, 10),
        ("wide", "max78000", {"bit_width": 1}, 0.5),
        ("sequential", "max78000", {"weight_bits": "8,4,2,8"}, 8),
        ("sequential", "max78002", {"max_speed": True}, 26),
        ("strided", "max78000", {}, 26),
        ("wide", "max78000", {}, 26),
        ("signal", "max78000", {}, 26),
        ("residual", "max78000", {}, 24),
        ("residual", "max78002", {}, 24),
        ("depthwise", "max78002", {}, 24),
        ("softmax", "max78000", {"softmax": True}, 26),
        ("shifted", "max78000", {"fifo": True, "mlator": True}, 30),
    ],
)
def test_the_known_answer_is_the_twins_bit_for_bit(tmp_path, name, chip, options, floor):
    model, data, made = made_of(getattr(small_nets, name), tmp_path, chip, **options)
    assert sqnr(model, data, made) > floor
    assert made.manifest.estimates.macs
    assert (made.manifest.estimates.cycles is not None) == (chip == "max78000")
    assert not made.manifest.notes or "written for" not in made.manifest.notes[0]


def test_a_yaml_of_ones_own_is_judged_by_the_known_answer(tmp_path):
    text = (made_of(small_nets.strided, tmp_path / "first")[2].path / "project" / "network.yaml").read_text()
    own = tmp_path / "own.yaml"
    own.write_text(text.replace("arch: anynpu", "arch: mine"))
    model, data, made = made_of(small_nets.strided, tmp_path / "second", config_file=own)
    assert sqnr(model, data, made) > 26
    own.write_text(text.replace("activate: relu", "activate: None"))
    with pytest.raises(AccuracyError, match="agree in"):
        made_of(small_nets.strided, tmp_path / "third", config_file=own)


@pytest.mark.skipif(shutil.which("arm-none-eabi-gcc") is None, reason="no arm-none-eabi-gcc")
@pytest.mark.parametrize("options", [{}, {"compact_weights": True, "no_wfi": True, "zero_sram": True}])
def test_the_project_compiles_for_the_cortex_m4(tmp_path, options):
    _, _, made = made_of(small_nets.sequential, tmp_path, **options)
    project = made.path / "project"
    for source in ("cnn.c", "main.c"):
        argv = ["arm-none-eabi-gcc", "-mcpu=cortex-m4", "-mthumb", "-O2", "-I", str(HERE / "stubs"), "-I", str(project)]
        done = subprocess.run(
            [*argv, "-c", str(project / source), "-o", str(tmp_path / f"{source}.o")], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_an_edited_quantisation_is_the_vendors_known_answer(tmp_path):
    """The whole file gives the same project; a layer cut off costs what it must; answers are the twin's."""
    model, data, made = made_of(small_nets.strided, tmp_path / "first")
    file = made.path / "quantisation.json"
    same = made_of(small_nets.strided, tmp_path / "second", quantisation=file)[2]
    assert (same.path / "project" / "weights.h").read_bytes() == (made.path / "project" / "weights.h").read_bytes()
    tensor = made.manifest.details["layers"][0]["tensor"]
    scale = json.loads(file.read_text())["tensors"][tensor]["scale"][0]
    edited = tmp_path / "edited.json"
    edited.write_text(json.dumps({"tensors": {tensor: {"scale": scale / 8, "zero_point": 0}}}))
    cut = made_of(small_nets.strided, tmp_path / "third", quantisation=edited)[2]
    assert sqnr(model, data, cut) < sqnr(model, data, made) - 5


def test_equal_networks_give_equal_projects(tmp_path):
    one, two = (made_of(small_nets.strided, tmp_path / part)[2] for part in "ab")
    assert one.manifest.files == two.manifest.files


@pytest.mark.parametrize(
    ("model", "chip", "floor"),
    [
        ("hello", "max78000", 30),
        ("autoencoder", "max78000", 33),
        ("resnet8", "max78000", 25),
        ("detector", "max78002", 29),
        ("vww", "max78002", 25),
    ],
)
def test_zoo_models_build(built, tmp_path, model, chip, floor):
    found = built("-m", f"zoo:{model}", "-t", chip)["verification"]
    assert found["sqnr_db"] > floor
    assert found["score"] > found["score_float"] - 0.01
    manifest = json.loads((tmp_path / "out" / chip / "manifest.json").read_text())
    assert manifest["details"]["known_answer"].endswith("bit for bit")


@pytest.mark.parametrize("model", ["kws", "vww"])
def test_other_zoo_models_are_refused_with_reasons(cli, model):
    done = cli("build", "-m", f"zoo:{model}", "-t", "max78000", "-o", "out", "-q", timeout=600)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "Groups are not supported" in done.stdout
