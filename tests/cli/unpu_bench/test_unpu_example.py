"""The example command of µNPU-Bench without the toolchain; tests/toolchain/vendors runs it on the real one."""

from __future__ import annotations

import json
import sys

import pytest
from unpu_example import without, write_example

from anynpu.cli.main import main
from anynpu.pipeline.unpu_flags import FORMATS

pytest.importorskip("torch")
if not FORMATS["ai8x"].registered:
    pytest.skip("no compiler ai8x is registered", allow_module_level=True)


def test_without_the_toolchain_it_says_what_to_install(monkeypatch, capsys, tmp_path):
    place = write_example(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("AI8X_SYNTHESIS_PATH", "AI8X_PYTHON_PATH"):
        monkeypatch.delenv(name, raising=False)
    status = main(["unpu-bench", *without("--config_file"), "--cache-dir", str(tmp_path / "cache")])
    out, _ = capsys.readouterr()
    assert status == 4, out
    assert "ai8x max78000: " in out and "ToolMissing" in out
    record = json.loads((place / "out/unpu-bench.json").read_text())
    assert "ai8x" in record["formats"][0]["error"]["hint"]
    options = json.loads((place / "out/report.json").read_text())["request"]["options"]
    assert options == {
        "ai8x.bit_width": "8",
        "ai8x.avg_pool_rounding": "true",
        "ai8x.q_scale": "0.85",
        "ai8x.fifo": "true",
    }
