"""A card's labels are written last: one that changes repeats nothing, and every artifact has the new word."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from colours import LAYOUT, colours_net

import anynpu
from anynpu.apps.serve.known import evidence_of
from anynpu.artifact import Artifact
from anynpu.pipeline.sweep import Silent
from anynpu.tasks import card

CARD = 'kind = "classify"\nlabels = {labels}\ntitle = "{title}"\n\n[preprocess]\nsize = [8, 8]\nresize = "stretch"\n'
CHIPS = ("cpu", "tflm")


class Counting(Silent):
    """An observer that keeps the stages that ran, those of the cache apart."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def finished(self, chip: str, stage: str, seconds: float, cached: bool) -> None:
        if not cached:
            self.ran.append(stage)


@pytest.fixture
def build(tmp_path: Path, monkeypatch) -> Callable[..., tuple[anynpu.Build, list[str]]]:
    monkeypatch.chdir(tmp_path)
    colours_net(Path("net.onnx"))
    rng = np.random.default_rng(0)
    images = rng.random((20, 3, 8, 8), dtype=np.float32)
    np.savez("data.npz", image=images, labels=np.arange(20) % 3)

    def run(labels: list[str], title: str = "colours", **more: object) -> tuple[anynpu.Build, list[str]]:
        Path("card.toml").write_text(CARD.format(labels=json.dumps(labels), title=title))
        counting = Counting()
        layout = {"layout": {"image": LAYOUT["layout"]}, "channels": {"image": LAYOUT["channels"]}}
        taken = {"task": "card.toml", "observer": counting, "cache_dir": tmp_path / "cache", **layout, **more}
        return anynpu.build("net.onnx", CHIPS, data="data.npz", **taken), counting.ran

    return run


def test_a_label_that_changes_repeats_nothing(build) -> None:
    first, ran = build(["red", "green", "blue"], output="a")
    assert {"import", "cpu", "litert", "tflite", "verify"} <= set(ran)
    second, ran = build(["crimson", "green", "blue"], "hues", output="b")
    assert ran == []
    for chip in CHIPS:
        assert second[chip].sqnr_db == first[chip].sqnr_db
        for out, word in (("a", "red"), ("b", "crimson")):
            artifact = Artifact.open(Path(out, chip))
            assert card.names_of(artifact) == (word, "green", "blue")
            assert artifact.manifest.task["title"] == ("colours" if out == "a" else "hues")
            assert evidence_of(artifact) is not None  # what was proved is proved of either
    assert card.names_of(Artifact.open(Path("b/float"))) == ("crimson", "green", "blue")
    assert [card.names_of(Artifact.open(step))[0] for step in Path("b/steps").iterdir()] == ["crimson"]


def test_without_a_folder_too_artifacts_have_the_names(build) -> None:
    built, _ = build(["red", "green", "blue"])
    assert card.names_of(Artifact.open(built["tflm"].path)) == ("red", "green", "blue")


def test_one_artifact_is_made_of_the_other(build) -> None:
    build(["red", "green", "blue"], output="a")
    floating, (litert,) = Artifact.open(Path("a/float")), map(Artifact.open, Path("a/steps").iterdir())
    steps = [
        Artifact.open(Path("a/cpu")).manifest.step,
        litert.manifest.step,
        Artifact.open(Path("a/tflm")).manifest.step,
    ]
    assert [step.inputs["model"] for step in steps if step] == [floating.digest, floating.digest, litert.digest]


def test_another_number_of_labels_is_another_model(build) -> None:
    build(["red", "green", "blue"])
    with pytest.raises(anynpu.errors.ConfigError, match="2 labels"):
        build(["red", "green"])


def test_labels_that_a_metric_reads_count(build) -> None:
    build(["red", "green", "blue"], metric="top1")
    _, ran = build(["crimson", "green", "blue"], metric="top1")
    assert "test" in ran and not {"import", "cpu", "litert", "tflite"} & set(ran)
