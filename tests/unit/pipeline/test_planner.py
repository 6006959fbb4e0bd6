"""Chains of compilers, their options, and the verdict on what does not run on the NPU."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from anynpu import plugins
from anynpu.artifact import Artifact, Manifest, OperatorPlacement, Placement
from anynpu.errors import ConfigError, Unsupported
from anynpu.measure.verify import Verification
from anynpu.pipeline import planner
from anynpu.pipeline.build import platforms
from anynpu.pipeline.planner import chain, check_options, plan
from anynpu.pipeline.request import Request
from anynpu.pipeline.result import BuildResult, ChipResult, fallback
from anynpu.source.load import ModelSource

NPU = OperatorPlacement("conv", "CONV_2D", "npu", macs=90)
CPU = OperatorPlacement("soft", "SOFTMAX", "cpu", "no", macs=10)
U55 = plugins.platform("ethos-u55-128")


def artifact(placement: Placement | None) -> Artifact:
    return Artifact(Path("nowhere"), Manifest("vela", "m", placement=placement))


@pytest.mark.parametrize("name", plugins.names("platforms"))
def test_every_chip_has_a_chain_whose_formats_meet(name: str) -> None:
    links = chain(plugins.platform(name))
    assert links[0].accepts == "onnx" and links[-1].name == plugins.platform(name).target
    assert all(a.produces == b.accepts for a, b in itertools.pairwise(links))


def test_a_chain_that_leads_nowhere_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no such compiler: vella \(did you mean 'vela'\?\)"):
        chain(replace(U55, target="vella"))
    with pytest.raises(ConfigError, match="no chain of compilers leads from caffe to ethos-u55-128"):
        chain(U55, "caffe")


def test_options_go_to_the_compiler_that_has_them() -> None:
    [link] = plan(plugins.platform("cpu"), {"method": "mse", "cpu.activations": "uint8"})
    assert link.options.method == "mse" and link.options.activations == "uint8"
    [other] = plan(plugins.platform("cpu"), {"vela.activations": "int16"})
    assert other.options == type(other.options)()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"metod": "x"}, r"-O metod: no such option \(did you mean 'method'\?\)"),
        ({"cpu.metod": "x"}, r"-O cpu\.metod: no such option \(did you mean 'cpu\.method'\?\)"),
        ({"vela.optimise": "size"}, r"-O vela\.optimise: no such option"),
    ],
)
def test_an_option_of_no_compiler_is_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_options([plugins.platform("cpu")], given)


def test_chips_are_taken_once_in_the_order_given() -> None:
    assert [p.name for p in platforms(["null", "CPU", "null", "cpu"])] == ["null", "cpu"]


def test_the_verdict_on_a_fallback() -> None:
    partly = artifact(Placement("Ethos-U55", (NPU, CPU)))
    assert fallback(artifact(Placement("Ethos-U55", (NPU,))), U55, 1.0) == ""
    assert "1 of 2 operators run on the CPU" in fallback(partly, U55, 1.0)
    assert fallback(partly, U55, 0.5) == "" and fallback(partly, U55, 0.51)
    assert fallback(artifact(Placement("Ethos-U55", ())), U55, 1.0)
    assert "no receipt" in fallback(artifact(None), U55, 0.5)
    assert fallback(artifact(None), plugins.platform("cpu"), 1.0) == ""


def test_the_status_of_a_build_is_that_of_the_first_failure() -> None:
    good = ChipResult("a", U55)
    fell, failed = replace(good, verdict="50%"), replace(good, error=Unsupported("no"))
    request = Request(ModelSource("net.onnx"), ("cpu",))
    assert BuildResult(request, chips=[good]).exit_status == 0
    assert BuildResult(request, chips=[good, fell, failed]).exit_status == 1
    assert BuildResult(request, chips=[failed, fell]).exit_status == 3
    assert (good.status, fell.status, failed.status) == ("not executed", "fallback", "Unsupported")
    proof = Verification("ORT", "ort", "", 1, True, {})
    assert replace(good, verification=proof).status == "ok"


@pytest.mark.parametrize("name", plugins.names("platforms"))
def test_the_short_way_is_the_one_that_a_search_among_all_compilers_finds(name: str) -> None:
    platform = plugins.platform(name)
    targets = {each: plugins.load("targets", each)() for each in plugins.names("targets")}
    found = planner._path(targets, platform.target, "onnx")
    assert [target.name for target in chain(platform)] == [target.name for target in found]


def test_a_chain_imports_its_own_compilers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, load = set(), plugins.load
    monkeypatch.setattr(plugins, "load", lambda kind, name: loaded.add(name) or load(kind, name))
    check_options([plugins.platform("cpu"), U55], {"method": "mse"})
    assert loaded == {"cpu", "litert", "tflite", "vela"}


def test_with_a_compiler_of_another_package_all_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "foreign", lambda kind: ("acme",))
    loaded, load = set(), plugins.load
    monkeypatch.setattr(plugins, "load", lambda kind, name: loaded.add(name) or load(kind, name))
    assert [target.name for target in chain(U55)] == ["litert", "tflite", "vela"]
    assert loaded == set(plugins.names("targets"))
