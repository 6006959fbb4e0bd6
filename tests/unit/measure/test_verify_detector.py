"""Boxes and scores of a decoded detector are judged apart: scores that are lost cannot hide behind pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anynpu.artifact import Artifact, Manifest
from anynpu.measure.verify import compared
from anynpu.tensors import TensorSpec

RNG = np.random.default_rng(0)
ROWS = np.concatenate([RNG.uniform(0, 640, (2, 4, 90)), RNG.uniform(0, 1, (2, 3, 90))], 1)
TASK = {"kind": "detect", "yolo": {"decode": "model"}}


def truth(shape, task):
    return Artifact(Path(), Manifest("onnx", "model.onnx", outputs=(TensorSpec("out", shape),), task=task))


@pytest.mark.parametrize("turned", [False, True])
def test_scores_that_are_all_lost_show(turned):
    lost = ROWS.copy()
    lost[:, 4:] = 0
    arrays = [a.transpose(0, 2, 1) if turned else a for a in (ROWS, lost)]
    found = compared({"out": arrays[0]}, {"out": arrays[1]}, truth((1, *arrays[0].shape[1:]), TASK))
    assert found["out boxes"].sqnr_db > 100 and found["out scores"].sqnr_db == pytest.approx(0)


def test_an_output_of_another_task_stays_whole():
    found = compared({"out": ROWS}, {"out": ROWS}, truth((1, 7, 90), {}))
    assert list(found) == ["out"]


def test_maps_of_a_head_are_compared_whole():
    maps = RNG.normal(size=(2, 64, 4, 4))
    assert list(compared({"out": maps}, {"out": maps}, truth((1, 64, 4, 4), TASK))) == ["out"]
