"""A defect of ours at one chip is that chip's result, with the place in our code; the others keep theirs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from small_net import SHAPE, write_net

from anynpu.cli.main import main
from anynpu.pipeline import build


@pytest.mark.parametrize("step", ["_proof", "_graph"])
def test_a_defect_at_one_chip_costs_no_other_its_result(tmp_path, monkeypatch, capsys, step):
    write_net(tmp_path / "net.onnx")
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).normal(size=(8, *SHAPE[1:])).astype(np.float32))
    whole = getattr(build, step)

    def broken(steps, platform, *rest):
        return {}["no such layer"] if platform.name == "null" else whole(steps, platform, *rest)

    monkeypatch.setattr(build, step, broken)
    monkeypatch.setenv("ANYNPU_CACHE_DIR", str(tmp_path / "cache"))
    flags = ("--data", str(tmp_path / "x.npz"), "-o", str(tmp_path / "out"), "-f", "json", "-q")
    command = ["build", "-m", str(tmp_path / "net.onnx"), "-t", "null,cpu", *flags]
    assert main(command) == 70
    null, cpu = json.loads(capsys.readouterr().out)["chips"]
    assert null["error"]["kind"] == "Defect" and null["error"]["message"] == "internal error: KeyError: 'no such layer'"
    assert null["error"]["last_lines"][-1].startswith("test_defects.py:")
    assert cpu["error"] is None and cpu["verification"]["sqnr_db"] > 20
