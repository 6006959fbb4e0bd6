"""Samples that TFLite-Micro hands on: only to what gave the same integers for its own, and the record says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")
pytest.importorskip("tflite_micro")

from lowered_nets import net, quantised, samples
from onnx import helper

from anynpu.artifact import Artifact, Estimates, Made, Manifest, Step, seal
from anynpu.measure import execution
from anynpu.measure.execution import OWN_MACS, TAUGHT, execute, own_share, run_all, taught_samples
from anynpu.measure.refusals import second_opinions
from anynpu.measure.remembered import Memory, answers_file
from anynpu.measure.samples import SampleSet
from anynpu.runtime.litert import LiteRtSession
from anynpu.runtime.tflite_file import is_stateless, pack_model, read_model, read_specs, shared_model
from anynpu.runtime.tflite_halves import HalvesSession, can_halve, tail_begin
from anynpu.runtime.tflm import TflmSession

OWN, ALL = 5, 24


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """A net whose first output comes from its head and whose second one from its tail."""
    return made(tmp_path_factory.mktemp("net"))


@pytest.fixture(scope="module")
def without_means(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return made(tmp_path_factory.mktemp("plain"), means=False)


def made(folder: Path, means: bool = True) -> Artifact:
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.normal(0, 0.3, (8, 3, 3, 3)).astype(np.float32),
        "v": rng.normal(0, 0.3, (8, 8, 3, 3)).astype(np.float32),
        "f": rng.normal(0, 0.3, (8, 4)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "v"], ["early"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["early"], ["d"]),
        helper.make_node("GlobalAveragePool", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["g"]),
        helper.make_node("MatMul", ["g", "f"], ["late"]),
    ]
    nodes = nodes if means else nodes[:3]
    model = net(nodes, {"x": (1, 3, 12, 12)}, constants, ("early", "late") if means else ("early",))
    (folder / "model.tflite").write_bytes(quantised(model, samples(model), folder))
    inputs, outputs = read_specs(folder / "model.tflite")
    manifest = Manifest("tflite", "model.tflite", inputs=tuple(inputs), outputs=tuple(outputs))
    return seal(folder, manifest, Step("net"), Made("2026-01-01T00:00:00+00:00", 0.0))


@pytest.fixture
def fed(subject: Artifact, monkeypatch: pytest.MonkeyPatch) -> SampleSet:
    monkeypatch.setattr(execution, "MOST_OWN", OWN)
    shape = subject.manifest.inputs[0].shape[1:]
    return SampleSet({"x": np.random.default_rng(1).normal(0, 2, (ALL, *shape)).astype(np.float32)})


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who ran a sample, sample by sample."""
    ran: list[str] = []
    for kind in (TflmSession, HalvesSession, LiteRtSession):

        def counted(session, inputs, run=kind.run, name=kind.__name__):
            ran.append(name)
            return run(session, inputs)

        monkeypatch.setattr(kind, "run", counted)
    return ran


def test_both_halves_have_operators_and_give_what_the_whole_gives(subject, fed):
    model = shared_model(subject.main.read_bytes())
    assert can_halve(subject) and 0 < tail_begin(model) < len(model.subgraphs[0].operators)
    whole, halves = (run_all(kind(subject), fed, subject) for kind in (TflmSession, HalvesSession))
    assert whole.keys() == halves.keys() == {"early", "late"}
    assert all(np.array_equal(whole[name], halves[name]) for name in whole)


def test_samples_are_handed_on_and_the_record_says_how_many(subject, fed, runs):
    got = execute(subject, None, fed, subject, lambda *_: None)
    assert runs == ["TflmSession"] * OWN + ["HalvesSession"] * ALL
    assert any(f"ran {ALL - OWN} of them, and gave the same values for the other {OWN}" in note for note in got.notes)
    assert {len(values) for values in got.answers.values()} == {OWN}
    whole = run_all(TflmSession(subject), fed, subject)
    assert all(np.array_equal(got.outputs[name], whole[name]) for name in whole)


def test_what_differs_in_one_value_runs_nothing(subject, fed, runs, monkeypatch):
    run = HalvesSession.run

    def off_by_one(session, inputs):
        outputs = run(session, inputs)
        outputs["early"].flat[7] += 1
        return outputs

    monkeypatch.setattr(HalvesSession, "run", off_by_one)
    got = execute(subject, None, fed, subject, lambda *_: None)
    assert runs.count("TflmSession") == ALL and runs.count("HalvesSession") == 1 and not got.notes


def test_two_chips_of_one_file_run_each_sample_once_in_each_runtime(without_means, fed, runs, tmp_path):
    plain = execute(without_means, "litert", fed, without_means, lambda *_: None)
    own = execute(without_means, "tflm", fed, without_means, lambda *_: None)
    runs.clear()
    answered = []
    for device, kind in (("litert", LiteRtSession), ("tflm", TflmSession)):
        memory = Memory(without_means, str(tmp_path))  # what the first leaves in the folder, the second reads
        answered.append(execute(without_means, device, fed, without_means, lambda *_: None, memory))
        second_opinions(kind, without_means, fed, without_means, memory)
        memory.write()
    assert runs.count("LiteRtSession") == ALL and not runs.count("HalvesSession")
    assert runs.count("TflmSession") == ALL  # whose opinion was asked on all of this small net
    for got, wanted in zip(answered, (plain, own), strict=True):
        assert got.outputs.keys() == wanted.outputs.keys() and got.notes == wanted.notes
        assert all(np.array_equal(got.outputs[name], wanted.outputs[name]) for name in wanted.outputs)
        assert all(np.array_equal(got.answers[name], wanted.answers[name]) for name in wanted.answers)
    assert f"LiteRT reference kernels on this host's CPU ran {ALL - OWN} of them" in answered[1].notes[0]


def test_remembered_answers_that_differ_are_not_taken(without_means, fed, runs, tmp_path):
    memory = Memory(without_means, str(tmp_path))
    execute(without_means, "litert", fed, without_means, lambda *_: None, memory)
    memory.write()
    with np.load(tmp_path / answers_file("litert")) as file:
        arrays = dict(file)
    arrays["output:early"].reshape(ALL, -1)[OWN - 1, 7] ^= 1
    np.savez(tmp_path / answers_file("litert"), **arrays)
    runs.clear()
    got = execute(without_means, "tflm", fed, without_means, lambda *_: None, Memory(without_means, str(tmp_path)))
    assert runs == ["TflmSession"] * OWN + ["HalvesSession"] * ALL
    whole = run_all(TflmSession(without_means), fed, without_means)
    assert np.array_equal(got.outputs["early"], whole["early"])


def test_answers_are_those_to_the_same_inputs(without_means, fed, tmp_path):
    memory = Memory(without_means, str(tmp_path))
    session = memory.of("litert", LiteRtSession(without_means))
    first, second = (run_all(session, fed.after(at).first(3), without_means)["early"] for at in (0, 3))
    assert not np.array_equal(first, second)
    memory.write()
    again = Memory(without_means, str(tmp_path)).of("litert", LiteRtSession(without_means))
    assert np.array_equal(run_all(again, fed.after(2).first(3), without_means)["early"][1:], second[:2])


def test_a_costly_model_is_run_on_fewer_samples_and_never_on_fewer_than_two(tmp_path):
    def share(macs: int | None, available: int = 500) -> int:
        return own_share(available, Artifact(tmp_path, Manifest("onnx", "", estimates=Estimates("", macs=macs))))

    assert (share(None), share(OWN_MACS // 20), share(OWN_MACS * 9), share(OWN_MACS * 9, 1)) == (50, 20, 2, 1)
    costly = Artifact(tmp_path, Manifest("onnx", "", estimates=Estimates("", macs=OWN_MACS)))
    assert len(taught_samples(SampleSet({"x": np.zeros((90, 1))}), costly)) == 2 < TAUGHT


def test_what_has_a_state_or_another_format_is_run_every_time(without_means, tmp_path):
    model = read_model(without_means.main.read_bytes())
    assert is_stateless(model)
    model.subgraphs[0].tensors[1].isVariable = True
    assert not is_stateless(model)
    (tmp_path / "model.tflite").write_bytes(pack_model(model))
    stateful = Artifact(tmp_path, replace(without_means.manifest, files=()))
    session = LiteRtSession(without_means)
    assert Memory(stateful).of("litert", session) is session
    assert Memory(Artifact(tmp_path, replace(stateful.manifest, format="onnx"))).of("ort", session) is session
