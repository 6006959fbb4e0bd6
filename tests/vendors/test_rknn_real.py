"""Every zoo model and MiniLM through the real RKNN-Toolkit2, executed on its simulator: `make test-rknn`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anynpu import plugins
from anynpu.artifact import Artifact
from anynpu.capsules import capsule
from anynpu.errors import ToolMissing, Unsupported
from anynpu.runtime.rknn import RknnSession
from anynpu.testing import models

Cli = Callable[..., "subprocess.CompletedProcess[str]"]

with suppress(ToolMissing):  # while the cache folder is still the user's own: tests have another
    os.environ.setdefault("RKNN_TOOLKIT2_PATH", str(capsule.find("rknn").root))

FLOORS = {"hello": 33.6, "resnet8": 33.6, "autoencoder": 33.6, "detector": 33.6, "kws": 32.0, "vww": 32.0}
"""SQNR in dB. 33.6 is the figure established for a comparable net; kws and vww are nets of depthwise convolutions."""
MINILM = Path(__file__).parents[2] / ".models"
TEXTS = [
    f"the {a} {b} {c}"
    for a in ("old", "red", "quiet", "huge")
    for b in ("cat", "river", "teacher", "market", "guitar")
    for c in ("waits near the house", "fell into the water", "is bigger than the car", "belongs to nobody")
]


def built(cli: Cli, folder: Path, source: tuple[str, ...], chip: str, *options: str) -> dict[str, Any]:
    """Returns the record of a build."""
    flags = [word for option in options for word in ("-O", option)]
    done = cli("build", *source, "-t", chip, *flags, "-o", str(folder), "-q", "-f", "json", timeout=1700)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (record,) = json.loads(done.stdout)["chips"]
    return record


def drop(record: dict[str, Any]) -> float:
    """Returns the points of accuracy lost against the float model."""
    proof = record["verification"]
    return 0.0 if proof["score"] is None else 100 * (proof["score_float"] - proof["score"])


@pytest.mark.parametrize("chip", ["rk3588", "rv1106"])
@pytest.mark.parametrize("model", list(FLOORS))
def test_a_zoo_model_keeps_its_accuracy_in_int8(cli: Cli, tmp_path: Path, model: str, chip: str) -> None:
    record = built(cli, tmp_path / "out", ("-m", f"zoo:{model}"), chip)
    assert record["verification"]["device"] == "rknn"
    assert record["verification"]["sqnr_db"] >= FLOORS[model]
    assert drop(record) <= 1.0
    assert record["receipt"]["share"] == 1.0


@pytest.mark.parametrize("model", ["kws", "vww"])
def test_mmse_gains_on_depthwise_convolutions(cli: Cli, tmp_path: Path, model: str) -> None:
    record = built(cli, tmp_path / "out", ("-m", f"zoo:{model}"), "rk3588", "algorithm=mmse")
    assert record["verification"]["sqnr_db"] >= 33.5 and drop(record) <= 1.0


def test_fp16_is_nearly_exact(cli: Cli, tmp_path: Path) -> None:
    record = built(cli, tmp_path / "out", ("-m", "zoo:resnet8"), "rk3588", "quantize=fp16")
    assert record["verification"]["sqnr_db"] >= 55 and drop(record) <= 0.5


def minilm(folder: Path) -> tuple[str, ...]:
    """Returns the flags that build MiniLM for 32 tokens; a cast and the look-up of words stay on the CPU."""
    texts = folder / "sentences.txt"
    texts.write_text("\n".join(TEXTS) + "\n")
    shapes = [w for n in ("input_ids", "attention_mask") for w in ("--shape", f"{n}=1,32", "--dtype", f"{n}=int64")]
    return (
        *("-m", "anynpu.source.bert:minilm", "--ckpt", str(MINILM / "minilm.safetensors")),
        *("--task", "minilm", "--tokenizer", str(MINILM / "minilm-tokenizer.json"), "--data", str(texts)),
        *(*shapes, "--require-npu", "95%"),
    )


@pytest.mark.skipif(not (MINILM / "minilm.safetensors").is_file(), reason="`make test-models` fetches MiniLM")
def test_minilm_is_good_in_fp16_and_refused_in_int8(cli: Cli, tmp_path: Path) -> None:
    source = minilm(tmp_path)
    record = built(cli, tmp_path / "out", source, "rk3588", "quantize=fp16")
    assert record["verification"]["sqnr_db"] >= 50
    done = cli("build", *source, "-t", "rk3588", "-o", str(tmp_path / "int8"), "-q", timeout=1700)
    assert done.returncode == 7


@pytest.mark.parametrize("chip", ["rk3588", "rk3576", "rk3568", "rk3566", "rk3562", "rv1103", "rv1103b", "rv1126b"])
def test_every_chip_builds_and_rebuilds(tmp_path: Path, chip: str) -> None:
    model = models.onnx_artifact(models.conv_net(), tmp_path / "model")
    data = models.data_artifact(model, tmp_path / "data")
    target = plugins.load("targets", "rknn")()
    made = models.compiled(target, model, data, plugins.platform(chip), target.Options(), tmp_path / "made")
    session = RknnSession(made)
    session.run({"image": np.zeros((1, 3, 8, 8), np.float32)})
    session.close()
    assert made.manifest.placement.share == 1.0


def test_what_the_toolkit_refuses_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from anynpu.targets.rknn import prepare

    monkeypatch.setattr(prepare, "MAX_OPSET", 99)  # our own rule would lower it
    net = models.conv_net()
    net.opset_import[0].version = 21
    model: Artifact = models.onnx_artifact(net, tmp_path / "model")
    data = models.data_artifact(model, tmp_path / "data")
    target = plugins.load("targets", "rknn")()
    with pytest.raises(Unsupported) as refused:
        models.compiled(target, model, data, plugins.platform("rk3588"), target.Options(), tmp_path / "made")
    assert "opset 21" in str(refused.value.findings[0])
