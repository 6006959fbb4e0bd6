"""Threads of a served session sleep while there is nothing to do: a server shares its cores with others."""

from __future__ import annotations

from engine_models import linear

from anynpu.runtime.loose import open_loose
from anynpu.runtime.ort import OrtSession

SPINNING = "session.intra_op.allow_spinning"


def test_a_served_session_does_not_spin(tmp_path):
    artifact = linear(tmp_path / "net")
    served, alone = open_loose(artifact, 2), OrtSession(artifact, 2)
    assert served._session.get_session_options().get_session_config_entry(SPINNING) == "0"
    try:
        spins = alone._session.get_session_options().get_session_config_entry(SPINNING)
    except RuntimeError:  # not set: ONNX Runtime's own default, which is to spin
        spins = ""
    assert spins != "0"
