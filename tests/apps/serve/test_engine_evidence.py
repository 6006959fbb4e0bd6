"""What a build leaves is what a server checks: known answers in the artifact itself."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from engine_models import running, settings_of, sync

from anynpu.apps.serve.base import Request
from anynpu.apps.serve.known import evidence_of
from anynpu.artifact import Artifact
from anynpu.testing import models

pytest.importorskip("onnxruntime")


def test_an_artifact_carries_its_known_answers_wherever_it_goes(cli, tmp_path):
    models.save(models.dense_net(), tmp_path / "net.onnx")
    done = cli("build", "-m", "net.onnx", "-t", "cpu", "--data", "random:64", "-o", "out", "-q")
    assert done.returncode == 0, done.stderr
    alone = tmp_path / "elsewhere"
    shutil.copytree(tmp_path / "out" / "cpu", alone)
    evidence = evidence_of(Artifact.open(alone))
    assert evidence is not None and len(evidence.cases) == 5 and evidence.figures["scores"].sqnr_db > 10

    async def main():
        async with running(settings_of(alone, fallback=tmp_path / "out" / "float")) as fleet:
            model = fleet.models["m"]
            runs = model.health().canary.runs
            canary = await fleet.check("m")
            assert canary.ok and canary.source.startswith("verification") and canary.cases == 5
            assert canary.runs == runs + 1 > 1
            info = model.info()
            assert info.verification == evidence.figures and "samples" in info.verified_by
            case = evidence.cases[0]
            real = info.inputs[0].to_real(case.inputs["features"])
            answer = await model.answer(Request(({"features": real},)))
            wanted = info.outputs[0].to_real(case.outputs["scores"])
            assert np.allclose(answer.tensors[0]["scores"], wanted)

    sync(main())
