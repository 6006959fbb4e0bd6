"""Every zoo model and MiniLM through the real RKNN-Toolkit2, executed on its simulator: `make test-rknn`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anynpu import plugins
from anynpu.capsules import capsule
from anynpu.errors import ToolMissing, Unsupported
from anynpu.runtime.rknn import RknnSession
from anynpu.testing import models

Built = Callable[..., dict[str, Any]]

with suppress(ToolMissing):  # while the cache folder is still the user's own: tests have another
    os.environ.setdefault("RKNN_TOOLKIT2_PATH", str(capsule.find("rknn").root))

FLOORS = {"hello": 33.6, "resnet8": 33.6, "autoencoder": 33.6, "detector": 33.6, "kws": 32.0, "vww": 32.0}
"""SQNR in dB. 33.6 is the figure established for a comparable net; kws and vww are nets of depthwise convolutions."""


def drop(record: dict[str, Any]) -> float:
    """Returns the points of accuracy lost against the float model."""
    proof = record["verification"]
    return 0.0 if proof["score"] is None else 100 * (proof["score_float"] - proof["score"])


@pytest.mark.parametrize("chip", ["rk3588", "rv1106"])
@pytest.mark.parametrize("model", list(FLOORS))
def test_a_zoo_model_keeps_its_accuracy_in_int8(built: Built, model: str, chip: str) -> None:
    record = built("-m", f"zoo:{model}", "-t", chip)
    assert record["verification"]["device"] == "rknn"
    assert record["verification"]["sqnr_db"] >= FLOORS[model]
    assert drop(record) <= 1.0
    assert record["receipt"]["share"] == 1.0


def test_results_have_the_scales_that_are_stated(tmp_path: Path) -> None:
    """The simulator's own answers lie on the grid of an edited quantisation, with any zero point."""
    given = models.artifacts(models.conv_net(), tmp_path)
    target, edited = plugins.load("targets", "rknn")(), tmp_path / "edited.json"
    for point in (0, 11):
        edited.write_text(json.dumps({"tensors": {"scores": {"scale": 0.05, "zero_point": point}}}))
        options = target.Options(quantisation=edited)
        made = models.compiled(target, *given, plugins.platform("rk3588"), options, tmp_path / f"at{point}")
        session = RknnSession(made)
        draws = models.draw_samples(made.manifest.inputs, 24, seed=1)
        steps = np.concatenate([session.run(sample)["scores"].ravel() for sample in draws]) / 0.05
        session.close()
        assert np.abs(steps - np.rint(steps)).max() < 1e-3 and len(np.unique(np.rint(steps))) > 5
        again = target.Options(quantisation=made.file("quantisation.json"))
        same = models.compiled(target, *given, plugins.platform("rk3588"), again, tmp_path / f"again{point}")
        assert same.file("rebuild/model.onnx").read_bytes() == made.file("rebuild/model.onnx").read_bytes()


@pytest.mark.parametrize("model", ["kws", "vww"])
def test_ours_is_at_least_as_good_as_the_toolkits_own(built: Built, model: str) -> None:
    proofs = [
        built("-m", f"zoo:{model}", "-t", "rk3588", "-O", f"algorithm={name}", out=name)["verification"]
        for name in ("anynpu", "normal")
    ]
    assert proofs[0]["sqnr_db"] >= proofs[1]["sqnr_db"] - 0.1


@pytest.mark.parametrize("model", ["kws", "vww"])
def test_mmse_gains_on_depthwise_convolutions(built: Built, model: str) -> None:
    record = built("-m", f"zoo:{model}", "-t", "rk3588", "-O", "algorithm=mmse")
    assert record["verification"]["sqnr_db"] >= 33.5 and drop(record) <= 1.0


def test_fp16_is_nearly_exact(built: Built) -> None:
    record = built("-m", "zoo:resnet8", "-t", "rk3588", "-O", "quantize=fp16")
    assert record["verification"]["sqnr_db"] >= 55 and drop(record) <= 0.5


def test_minilm_is_good_in_fp16_and_refused_in_int8(built: Built, minilm: tuple[str, ...]) -> None:
    words = (*minilm, "-t", "rk3588", "--require-npu", "95%")  # a cast and the look-up of words stay on the CPU
    record = built(*words, "-O", "quantize=fp16")
    assert record["verification"]["sqnr_db"] >= 50
    built(*words, out="int8", status=7)


@pytest.mark.parametrize("chip", ["rk3588", "rk3576", "rk3568", "rk3566", "rk3562", "rv1103", "rv1103b", "rv1126b"])
def test_every_chip_builds_and_rebuilds(tmp_path: Path, chip: str) -> None:
    given = models.artifacts(models.conv_net(), tmp_path)
    target = plugins.load("targets", "rknn")()
    made = models.compiled(target, *given, plugins.platform(chip), target.Options(), tmp_path)
    session = RknnSession(made)
    session.run({"image": np.zeros((1, 3, 8, 8), np.float32)})
    session.close()
    assert made.manifest.placement.share == 1.0


def test_what_the_toolkit_refuses_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from anynpu.targets.rknn import prepare

    monkeypatch.setattr(prepare, "MAX_OPSET", 99)  # our own rule would lower it
    net = models.conv_net()
    net.opset_import[0].version = 21
    given = models.artifacts(net, tmp_path)
    target = plugins.load("targets", "rknn")()
    with pytest.raises(Unsupported) as refused:
        models.compiled(target, *given, plugins.platform("rk3588"), target.Options(algorithm="normal"), tmp_path)
    assert "opset 21" in str(refused.value.findings[0])
