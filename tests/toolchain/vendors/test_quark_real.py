"""Every zoo model and MiniLM through the real AMD Quark, executed on ONNX Runtime's CPU kernels: `make test-quark`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from anynpu import plugins
from anynpu.artifact import Artifact
from anynpu.testing import models

Built = Callable[..., dict[str, Any]]

MODELS = ("hello", "resnet8", "kws", "vww", "autoencoder", "detector")
FLOORS = {"xint8": 23.9, "a8w8": 28.5, "a16w8": 32.0, "bf16": 39.0}
"""SQNR in dB: a plain net is known to reach 23.9 in xint8 and 29.0 in a8w8; vww, of depthwise layers, has 28.8."""
DROPS = {"xint8": 2.0, "a8w8": 1.0, "a16w8": 1.0, "bf16": 1.0}
"""Points of accuracy that the precision may cost."""
STRIX = ("-t", "ryzen-ai-stx", "--require-npu", "50%")
"""AMD's list has neither Relu nor Clip in bf16; the share is judged below."""


def drop(record: dict[str, Any]) -> float:
    """Returns the points of accuracy lost against the float model."""
    proof = record["verification"]
    return 0.0 if proof["score"] is None else 100 * (proof["score_float"] - proof["score"])


@pytest.mark.parametrize("precision", list(FLOORS))
@pytest.mark.parametrize("model", MODELS)
def test_a_zoo_model_keeps_its_accuracy(built: Built, model: str, precision: str) -> None:
    record = built("-m", f"zoo:{model}", *STRIX, "-O", f"precision={precision}")
    assert record["verification"]["device"] == "quark"
    assert record["verification"]["sqnr_db"] >= FLOORS[precision]
    assert drop(record) <= DROPS[precision]
    assert record["receipt"]["source"].startswith("predicted from AMD's list")
    if precision != "bf16":  # whose list has neither Relu nor Clip
        assert record["receipt"]["share"] == 1.0


@pytest.mark.parametrize("precision", ["xint8", "a8w8", "a16w8"])
def test_our_ranges_are_at_least_as_good_as_quarks(built: Built, precision: str) -> None:
    words = ("-m", "zoo:kws", *STRIX, "-O", f"precision={precision}")
    theirs = built(*words, "-O", f"calibration={'min_mse' if precision == 'xint8' else 'min_max'}", out="theirs")
    ours = built(*words, out="ours")
    assert ours["verification"]["sqnr_db"] >= theirs["verification"]["sqnr_db"] - 0.1


@pytest.mark.parametrize(
    ("precision", "scale", "point"), [("xint8", 0.125, 128), ("a8w8", 0.11, 0), ("a16w8", 0.003, 0)]
)
def test_quark_writes_the_scales_that_are_stated(tmp_path: Path, precision: str, scale: float, point: int) -> None:
    given = models.artifacts(models.conv_net(), tmp_path)
    target, edited = plugins.load("targets", "vitisai")(), tmp_path / "edited.json"
    edited.write_text(json.dumps({"tensors": {"r1": {"scale": scale, "zero_point": point}}}))

    def compiled(path: Path, folder: str) -> Artifact:
        options = target.Options(precision=precision, quantisation=path)
        return models.compiled(target, *given, plugins.platform("ryzen-ai-stx"), options, tmp_path / folder)

    made = compiled(edited, "made")
    graph = onnx.load(made.main).graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    (node,) = [each for each in graph.node if each.op_type == "QuantizeLinear" and each.input[0] == "r1"]
    assert (float(stored[node.input[1]]), int(stored[node.input[2]])) == (np.float32(scale), point)
    assert compiled(made.file("quantisation.json"), "again").main.read_bytes() == made.main.read_bytes()


@pytest.mark.parametrize("model", ["resnet8", "kws"])
def test_adaround_gains(built: Built, model: str) -> None:
    words = ("-m", f"zoo:{model}", "--limit", "64", *STRIX)
    plain = built(*words, out="plain")
    learnt = built(*words, "-O", "adaround=true", "-O", "adaround_iterations=300", out="learnt")
    assert learnt["verification"]["sqnr_db"] >= plain["verification"]["sqnr_db"] + 1
    assert drop(learnt) <= 100 / 64  # one sample of those that were asked for


@pytest.mark.parametrize(("precision", "least"), [("a16w8", 12.0), ("bf16", 38.0)])
def test_minilm_is_quantised_too(built: Built, minilm: tuple[str, ...], precision: str, least: float) -> None:
    """One scale for all weights of a layer is too coarse for its dense layers: bf16 is the precision for it."""
    record = built(*minilm, *STRIX, "-O", f"precision={precision}")
    assert record["verification"]["sqnr_db"] >= least


def test_minilm_in_eight_bits_is_refused_and_not_shipped(built: Built, minilm: tuple[str, ...]) -> None:
    record = built(*minilm, "-t", "ryzen-ai-stx", status=7)
    assert record["error"]["kind"] == "AccuracyError"
