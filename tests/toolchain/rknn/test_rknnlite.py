"""The session on a board, over a RKNN-Toolkit-Lite2 of our own that computes what the artifact was built from."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from anynpu.artifact import Made, Manifest, Step, seal
from anynpu.errors import DeviceError, IntegrityError
from anynpu.runtime.base import choose
from anynpu.runtime.rknn import RknnSession
from anynpu.runtime.rknnlite import RknnLiteSession
from anynpu.testing import conformance, models

LITE = """
import pathlib
MODE = "@MODE@"


class RKNNLite:
    def load_rknn(self, path):
        import onnxruntime
        self.session = onnxruntime.InferenceSession(str(pathlib.Path(path).parent / "rebuild/model.onnx"))
        return -1 if MODE == "load" else 0

    def init_runtime(self):
        return -6 if MODE == "init" else 0

    def inference(self, inputs, data_format=None):
        assert data_format == ["nchw"]
        if MODE == "none":
            return None
        return [v.reshape(*v.shape, 1, 1) for v in self.session.run(None, {"image": inputs[0]})]

    def release(self):
        self.session = None
"""


@pytest.fixture
def board(tmp_path, monkeypatch):
    """Puts the package on the path, and forgets it after the test."""

    def put(mode=""):
        root = tmp_path / f"site{mode}"
        (root / "rknnlite").mkdir(parents=True)
        (root / "rknnlite/__init__.py").write_text("")
        (root / "rknnlite/api.py").write_text(LITE.replace("@MODE@", mode))
        monkeypatch.syspath_prepend(str(root))
        monkeypatch.setenv("PYTHONPATH", str(root))

    yield put
    for name in [n for n in sys.modules if n.startswith("rknnlite")]:
        del sys.modules[name]


@pytest.fixture
def artifact(tmp_path):
    model = models.onnx_artifact(models.conv_net(), tmp_path / "float")
    out = tmp_path / "rknn"
    (out / "rebuild").mkdir(parents=True)
    (out / "rebuild/model.onnx").write_bytes(model.main.read_bytes())
    (out / "model.rknn").write_bytes(b"RKNN" + bytes(100))
    manifest = Manifest("rknn", "model.rknn", model.manifest.inputs, model.manifest.outputs)
    return seal(out, manifest, Step("rknn", platform="rk3588"), Made("1970-01-01T00:00:00+00:00", 0.0)), model


def test_the_contract_of_a_session(board, artifact, tmp_path):
    board()
    conformance.check_session(RknnLiteSession, artifact[0], tmp_path / "kit", reference=artifact[1])


def test_the_board_comes_before_the_simulator(board):
    assert "on the board" in RknnLiteSession.missing()
    assert RknnLiteSession.rank < RknnSession.rank
    board()
    assert choose("rknn") is RknnLiteSession


@pytest.mark.parametrize(("mode", "kind"), [("load", IntegrityError), ("init", DeviceError), ("none", DeviceError)])
def test_what_the_board_refuses(board, artifact, mode, kind):
    board(mode)
    with pytest.raises(kind):
        RknnLiteSession(artifact[0]).run({"image": np.zeros((1, 3, 8, 8), np.float32)})
