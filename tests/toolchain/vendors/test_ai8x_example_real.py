"""The example command of µNPU-Bench, as it is written there, on ai8x-synthesis itself."""

from __future__ import annotations

import json
import os
import shutil
import sys

import pytest
from unpu_example import EXAMPLE, without, write_example

from anynpu.cli.main import main

pytestmark = pytest.mark.skipif(
    not os.environ.get("AI8X_SYNTHESIS_PATH"), reason="AI8X_SYNTHESIS_PATH names no checkout of ai8x-synthesis"
)


def test_it_runs_as_written(tmp_path, monkeypatch, capsys):
    place = write_example(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    first = main(["unpu-bench", *without("--config_file")])
    assert first == 0, capsys.readouterr()
    project = place / "out/max78000/project"
    shutil.copyfile(project / "network.yaml", place / "ai85-yolo-96-hwc.yaml")
    capsys.readouterr()
    status = main(["unpu-bench", *EXAMPLE])
    out, err = capsys.readouterr()
    assert status == 0, out + err
    row = json.loads((place / "out/unpu-bench.json").read_text())["formats"][0]
    assert (row["format"], row["hardware"], row["status"]) == ("ai8x", "max78000", "ok")
    assert row["source_tree"] == "max78000/project" and (project / "cnn.c").is_file()
    proof = json.loads((place / "out/report.json").read_text())["chips"][0]["verification"]
    assert proof["sqnr_db"] > 25
