"""What chips share is proved once: the float model runs once on the samples, and so does its float TFLite model."""

from __future__ import annotations

import importlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")
pytest.importorskip("onnxruntime")

import test_source_conversion
from test_source_conversion import SAMPLES, chain, sealed

from anynpu import plugins, tool
from anynpu.artifact import Artifact, Manifest
from anynpu.measure import expected, verify
from anynpu.measure.expected import FILE as KEPT
from anynpu.measure.expected import Expected, expected_of
from anynpu.measure.reference import Reference
from anynpu.measure.samples import FILE
from anynpu.pipeline import conversion, evidence
from anynpu.pipeline.preview import Silent
from anynpu.pipeline.request import Request
from anynpu.pipeline.steps import Steps
from anynpu.source.load import ModelSource
from anynpu.store import Store


@pytest.fixture
def calls(monkeypatch):
    """How often each proof runs; children are functions of this process."""
    counted = Counter()

    def called(function, arguments, **how):
        module, name = function.split(":")
        return getattr(importlib.import_module(module), name)(**arguments)

    def counting(owner, name):
        run = getattr(owner, name)

        def counted_run(*given, **named):
            counted[name] += 1
            return run(*given, **named)

        monkeypatch.setattr(owner, name, counted_run)

    monkeypatch.setattr(tool, "call", lambda function, arguments, **how: tool.to_dict(called(function, arguments)))
    counting(verify, "run_all")
    counting(conversion, "require_converted")
    return counted


def test_the_second_chip_takes_what_the_first_has_found_out(calls, tmp_path, monkeypatch):
    monkeypatch.setattr(test_source_conversion, "RNG", np.random.default_rng(1))  # its own tests go on with theirs
    paths = chain(tmp_path, "RELU", 2.0)
    twin, truth = Artifact.open(Path(paths["candidate"])), Artifact.open(Path(paths["reference"]))
    data = sealed(tmp_path / "data", Manifest("dataset", FILE, details={"random": False, "held_out": True}))
    other = tmp_path / "other"
    other.mkdir()
    (other / "m.tflite").write_bytes(twin.main.read_bytes())
    second = sealed(other, replace(twin.manifest, files=(), step=None, made=None, notes=("for another chip",)))
    steps = Steps(Request(ModelSource("net.onnx"), ("tflite",)), Store(tmp_path / "cache"), Silent())
    chip = plugins.platform("tflite")
    proofs = [evidence.verify(steps, chip, each, truth, data, floating=twin) for each in (twin, second)]
    found = [evidence.read_verification(proof, "") for proof in proofs]
    assert calls == {"run_all": 1, "require_converted": 1}
    assert found[0].samples == SAMPLES and found[0].outputs == found[1].outputs


def test_what_is_kept_comes_back_as_it_was(tmp_path):
    outputs = {"a/b": np.linspace(0, 1, 7, dtype=np.float32).reshape(7, 1), "file": np.arange(3)}
    first = expected_of(str(tmp_path), lambda: Expected(outputs, Reference(("unfit",), ("dim", "slow"))))
    again = expected_of(str(tmp_path), lambda: pytest.fail("asked twice"))
    assert again.about == first.about == Reference(("unfit",), ("dim", "slow"))
    for name, array in outputs.items():
        assert again.outputs[name].dtype == array.dtype and np.array_equal(again.outputs[name], array)


def test_outputs_that_are_too_large_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(expected, "MOST_BYTES", 8)
    expected_of(str(tmp_path), lambda: Expected({"y": np.zeros(4)}, Reference()))
    assert not (tmp_path / KEPT).exists()
