"""Generated C behind the server: built for this host and asked over the boards' protocol."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from engine_models import running, settings_of, sync

from anynpu.apps.serve.base import Options, Request
from anynpu.cli.serve import _open_anywhere

pytest.importorskip("tflite_micro")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (package gcc)")


def test_generated_c_is_served_as_tensors_with_its_known_answers(tmp_path):
    import rect_model

    made = rect_model.generated(tmp_path, "cortex-m4")
    known = rect_model.answers(rect_model.Artifact.open(tmp_path / "tflm"))

    async def main():
        async with running(settings_of(made), opener=_open_anywhere) as fleet:
            model = fleet.models["m"]
            answer = await model.answer(Request(({"image": known["input:image"][3:4]},), Options(stored=True)))
            return answer, model.info(), await fleet.check("m")

    answer, info, canary = sync(main())
    assert np.array_equal(answer.tensors[0]["answer"], known["output:answer"][3:4])
    assert canary.ok and canary.cases == 5 and canary.source.startswith("verification")
    assert (info.format, info.kind, info.device) == ("c", "tensors", "board")
