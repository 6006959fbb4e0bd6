"""A package from outside adds a chip with one TOML and one module, and nothing of anynpu is changed for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from anynpu.testing import models

PACKAGE = Path(__file__).parent / "anynpu-toychip"
KIT = """
import sys
from pathlib import Path
from anynpu import plugins
from anynpu.testing import conformance, models
from anynpu_toychip.target import ToyCompiler, ToySession

folder = Path(sys.argv[1])
platform = plugins.platform("toychip")
conformance.check_platform(platform)
model = models.onnx_artifact(models.dense_net(), folder / "model")
made = conformance.check_target(ToyCompiler(), model, platform, folder / "target")
conformance.check_session(ToySession, made, folder / "session", reference=model, min_sqnr_db=30)
print("green", made.manifest.format)
"""


def install(site: Path, name: str, points: dict[str, dict[str, str]], version: str = "1.0") -> None:
    """Registers a package as pip does, without the network: a dist-info folder beside it."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for group, entries in points.items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def module(site: Path, name: str, text: str) -> None:
    site.mkdir(exist_ok=True)
    (site / f"{name}.py").write_text(text)


@pytest.fixture(scope="module")
def toychip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample package, installed in a folder of its own."""
    site = tmp_path_factory.mktemp("site")
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    shutil.copytree(PACKAGE / "src" / "anynpu_toychip", site / "anynpu_toychip")
    install(site, project["name"], project["entry-points"], project["version"])
    return site


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """A dense net and samples for it."""
    np.savez(tmp_path / "x.npz", features=np.random.default_rng(1).normal(0, 1, (40, 16)).astype(np.float32))
    return models.save(models.dense_net(), tmp_path / "net.onnx")


def test_targets_lists_the_new_chip(cli, toychip):
    done = cli("targets", "-f", "json", PYTHONPATH=str(toychip))
    assert done.returncode == 0, done.stderr
    rows = {row["chip"]: row for row in json.loads(done.stdout)["chips"]}
    assert rows["toychip"]["chain"] == "toycc"
    assert rows["toychip"]["tools"] == "ready"
    assert rows["toychip"]["executes here"] == "toysim"
    assert "cpu" in rows
    assert "toychip" not in cli("targets").stdout


def test_a_build_for_the_new_chip_is_executed_by_its_own_session(cli, toychip, net, tmp_path):
    arguments = ("build", "-m", str(net), "-t", "toychip,cpu", "--data", "x.npz", "-o", "out", "-f", "json")
    done = cli(*arguments, PYTHONPATH=str(toychip))
    assert done.returncode == 0, done.stdout + done.stderr
    chip, cpu = json.loads((tmp_path / "out" / "report.json").read_text())["chips"]
    assert (chip["chip"], chip["status"], cpu["chip"], cpu["status"]) == ("toychip", "ok", "cpu", "ok")
    assert chip["verification"]["executed"] == "Toychip simulator"
    assert chip["verification"]["held_out"] is True
    assert 30 < chip["verification"]["sqnr_db"] < 90
    assert chip["receipt"]["share"] == 1.0
    np.save(tmp_path / "x1.npy", np.load(tmp_path / "x.npz")["features"][:1])
    ran = cli("run", "out/toychip", "-i", "x1.npy", PYTHONPATH=str(toychip))
    assert (ran.returncode, "Toychip simulator" in ran.stdout) == (0, True), ran.stderr


def test_its_options_are_options_of_the_command_line(cli, toychip, net, tmp_path):
    def sqnr(*more: str) -> float:
        arguments = ("build", "-m", str(net), "-t", "toychip", "--data", "x.npz", "-o", "out", "--overwrite")
        done = cli(*arguments, *more, PYTHONPATH=str(toychip))
        assert done.returncode == 0, done.stderr
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        return report["chips"][0]["verification"]["sqnr_db"]

    assert sqnr("-O", "bits=5") < sqnr() - 10
    bad = cli(
        "build",
        "-m",
        str(net),
        "-t",
        "toychip",
        "--data",
        "x.npz",
        "-o",
        "out",
        "-O",
        "bits=9",
        PYTHONPATH=str(toychip),
    )
    assert (bad.returncode, "bits: 9 is not 2 to 8" in bad.stderr) == (2, True), bad.stderr
    near = cli(
        "build", "-m", str(net), "-t", "toychip", "--data", "x.npz", "-o", "out", "-O", "bit=8", PYTHONPATH=str(toychip)
    )
    assert (near.returncode, "did you mean 'bits'?" in near.stderr) == (2, True), near.stderr


def test_what_the_chip_cannot_do_is_said_in_its_own_words(cli, toychip, tmp_path):
    models.save(models.conv_net(), tmp_path / "conv.onnx")
    done = cli("check", "-m", "conv.onnx", "-t", "toychip", PYTHONPATH=str(toychip))
    assert done.returncode == 1
    assert "conv1: Conv is not a dense layer or its ReLU." in done.stdout
    done = cli("build", "-m", "conv.onnx", "-t", "toychip", "--data", "random:8", "-o", "out", PYTHONPATH=str(toychip))
    assert done.returncode == 3
    assert "the model does not go to toychip" in done.stdout


def test_the_kit_is_green_on_it_and_needs_no_torch(toychip, tmp_path):
    module(tmp_path / "without", "torch", "raise ImportError('the kit needs no torch')\n")
    done = subprocess.run(
        [sys.executable, "-c", KIT, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{toychip}{os.pathsep}{tmp_path / 'without'}"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "green toy\n"), done.stderr


@pytest.mark.parametrize(("kind", "name"), [("targets", "cpu"), ("sessions", "ort"), ("platforms", "cpu")])
def test_a_name_given_twice_is_refused(cli, tmp_path, kind, name):
    install(tmp_path / "site", "anynpu-rival", {f"anynpu.{kind}": {name: "rival:Thing"}})
    module(tmp_path / "site", "rival", "class Thing: pass\n")
    done = cli("targets", PYTHONPATH=str(tmp_path / "site"))
    assert done.returncode == 2
    assert f"two plug-ins give {kind} '{name}'" in done.stderr
    assert "rival:Thing" in done.stderr
    assert "Traceback" not in done.stderr


BROKEN = {
    "missing package": "import no_such_vendor_package\n",
    "missing name": "",
    "syntax": "def (:\n",
    "any error": "raise RuntimeError('no licence')\n",
}


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("kind", ["targets", "sessions"])
def test_a_plug_in_that_does_not_load_is_named_in_one_sentence(cli, tmp_path, what, kind):
    install(tmp_path / "site", "anynpu-lame", {f"anynpu.{kind}": {"lame": "lame_plugin:Lame"}})
    module(tmp_path / "site", "lame_plugin", BROKEN[what])
    done = cli("tool", "list", PYTHONPATH=str(tmp_path / "site"))
    told = done.stdout + done.stderr
    assert done.returncode in (0, 5), told
    assert "lame_plugin:Lame does not load" in told
    assert "Traceback" not in told and "internal error" not in told


@pytest.mark.parametrize("kind", ["targets", "sessions"])
def test_a_plug_in_that_does_not_load_does_not_stop_the_other_chips(cli, tmp_path, net, kind):
    install(tmp_path / "site", "anynpu-lame", {f"anynpu.{kind}": {"lame": "lame_plugin:Lame"}})
    module(tmp_path / "site", "lame_plugin", BROKEN["missing package"])
    arguments = ("build", "-m", str(net), "-t", "cpu", "--data", "x.npz", "-o", "out")
    done = cli(*arguments, PYTHONPATH=str(tmp_path / "site"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_chip_whose_compiler_does_not_load_does_not_hide_the_others(cli, tmp_path):
    site = tmp_path / "site"
    points = {"anynpu.targets": {"lame": "lame_plugin:Lame"}, "anynpu.platforms": {"lamechip": "lame_chip"}}
    install(site, "anynpu-lame", points)
    module(site, "lame_plugin", BROKEN["missing package"])
    (site / "lame_chip").mkdir()
    (site / "lame_chip" / "__init__.py").touch()
    facts = {"name": "lamechip", "title": "Lame", "vendor": "Lame", "target": "lame", "source": "invented"}
    (site / "lame_chip" / "lamechip.toml").write_text("".join(f'{k} = "{v}"\n' for k, v in facts.items()))
    done = cli("targets", PYTHONPATH=str(site))
    assert "lame_plugin:Lame does not load" in done.stdout + done.stderr
    assert "ethos-u55-128" in done.stdout
