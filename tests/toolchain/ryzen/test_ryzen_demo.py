"""`anynpu demo ryzen-ai`: without an NPU, and with a FAKE Quark and a FAKE provider as far as fakes go."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import fake_vitisai
import pytest
import ryzen_machines as machines
from fake_quark import write_quark

from anynpu.errors import ConfigError, ToolFailed
from anynpu.pipeline.ryzen_demo import Asked, Run
from anynpu.schema import from_dict

# Measures a built model in one child process: on each machine (a tree) and in each mode of the fake provider.
MEASURE = """
import json, os, sys
from pathlib import Path
from anynpu import plugins
from anynpu.artifact import Artifact
from anynpu.drivers import ryzenai
from anynpu.drivers.root import Root
from anynpu.measure.load import Settings
from anynpu.pipeline import ryzen_demo
from anynpu.pipeline.result import BuildResult, ChipResult
from anynpu.pipeline.request import Request
from anynpu.source.load import ModelSource
from anynpu.store import Store
from anynpu.cli.progress import Lines

def measured(mode, tree, clear):
    os.environ["ANYNPU_FAKE_VITISAI"] = mode
    model, made, data = (Artifact.open(Path(p)) for p in sys.argv[2:5])
    asked = ryzen_demo.Asked(root=Root(Path(tree)), load=Settings(runs=5, warm_up=1), clear_cache=clear)
    chip = ChipResult("ryzen-ai-stx", plugins.platform("ryzen-ai-stx"), (made,))
    built = BuildResult(Request(ModelSource("zoo:hello"), ("ryzen-ai-stx",)), model, data, data, [chip])
    demo = ryzen_demo.Demo(asked, "ryzen-ai-stx", ryzenai.find(asked.root), built)
    ryzen_demo.measure(demo, Store(Path(sys.argv[5])), Lines(True))
    return ryzen_demo.record(demo)

print(json.dumps([measured(*case) for case in json.loads(sys.argv[1])]))
"""


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """The demo's record for each case."""
    from anynpu.testing import models

    room = tmp_path_factory.mktemp("demo")
    fake = fake_vitisai.install(room)
    model, made = fake_vitisai.quantised(room)
    data = models.data_artifact(model, room / "data", 4)
    machines.add_pci(room / "bare", "0000:00:00.0", "1022", "1507", "00")
    trees = {"npu": str(machines.strix(room / "strix")), "bare": str(room / "bare")}
    cases = {
        "no NPU": ("npu", trees["bare"], False),
        "no provider": ("missing", trees["npu"], False),
        "crash": ("crash", trees["npu"], False),
        "NPU": ("npu", trees["npu"], False),
        "garbage": ("garbage", trees["npu"], True),
    }
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            MEASURE,
            json.dumps(list(cases.values())),
            *map(str, (model.path, made.path, data.path)),
            str(room / "cache"),
        ],
        env={**os.environ, "PYTHONPATH": fake},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(cases, json.loads(done.stdout.splitlines()[-1]), strict=True))


def test_without_an_npu_the_cpu_is_measured_and_the_rest_is_said(record):
    found = record["no NPU"]
    assert found["exit_status"] == 0 and found["error"] is None
    assert not found["npu"]["ran"] and found["npu"]["why_not"].startswith("this machine has no Ryzen AI NPU")
    assert [row["run"] for row in found["runs"]] == ["float, CPU", "xint8, CPU"]
    for row in found["runs"]:
        assert row["runs"] == 5 and row["warmup"] == 1 and len(row["samples_ms"]) == 5
        assert row["ms"]["p99"] is None  # five runs say nothing about it


def test_the_run_on_the_npu_is_compared_and_has_a_receipt(record):
    found = record["NPU"]
    assert found["exit_status"] == 0 and found["npu"]["ran"]
    assert found["npu"]["receipt"]["on_npu"] == 398 and "profile of a run" in found["npu"]["receipt"]["source"]
    row = found["runs"][-1]
    assert row["run"] == "xint8, NPU" and row["executed"].startswith("Ryzen AI NPU") and row["runs"] == 5
    assert row["against_cpu"]["sqnr_db"] == 200.0  # the fake computes on the CPU


def test_an_npu_without_its_provider_is_a_missing_tool(record):
    found = record["no provider"]
    assert found["exit_status"] == 4 and "no VitisAIExecutionProvider here" in found["error"]["message"]
    assert not found["npu"]["ran"] and len(found["runs"]) == 2


def test_a_provider_that_crashes_takes_only_the_child_with_it(record):
    found = record["crash"]
    assert found["exit_status"] == 5 and "SIGSEGV" in found["error"]["message"]
    assert found["error"]["log"].endswith("demo-ryzen-ai.log") and len(found["runs"]) == 2


def test_what_kept_it_from_the_npu_is_told_with_the_log(capsys):
    from anynpu.cli.terminal import show_error

    show_error(ToolFailed("it crashed", log="logs/demo.log"), "on the NPU: ")
    assert capsys.readouterr().err == "anynpu: on the NPU: it crashed\n  log: logs/demo.log\n"


def test_the_closing_table_of_a_run_on_the_npu(record, capsys, tmp_path):
    from anynpu.cli.demo import _show

    data = record["NPU"]
    rows = [from_dict(Run, row, "run") for row in data["runs"]]
    done = SimpleNamespace(
        asked=Asked(size=data["size"]),
        chip=data["chip"],
        found=SimpleNamespace(sentence=lambda: data["found"]["sentence"]),
        rows=rows,
        receipt=rows[-1].receipt,
        built=SimpleNamespace(chips=[SimpleNamespace(chip=data["built"])]),
    )
    _show(done, tmp_path)
    told = capsys.readouterr().out
    assert "xint8, NPU" in told and "receipt: 398 of 400 operators" in told
    assert "NPU against CPU, the same model: exact, too few runs to compare the medians" in told


def test_garbage_from_the_npu_is_an_accuracy_error(record):
    found = record["garbage"]
    assert found["exit_status"] == 7 and found["error"]["kind"] == "AccuracyError"
    assert found["compiled_models_dropped"] == 1  # that of the run before


@pytest.mark.parametrize("size", [0, 33, 16, -32])
def test_sizes_are_multiples_of_the_zoos(size):
    with pytest.raises(ConfigError, match="a multiple of 32"):
        Asked(size=size)


def test_without_quark_every_other_step_runs_and_the_way_to_get_it_is_said(cli, tmp_path):
    pytest.importorskip("torch")
    done = cli("demo", "ryzen-ai", "--runs", "3", "-o", "out", QUARK_PATH="")
    assert done.returncode == 4, done.stderr
    assert "anynpu: nothing is quantised for the NPU: " in done.stderr and "anynpu tool install quark" in done.stderr
    assert "float, CPU" in done.stdout and "int8 by anynpu, CPU" in done.stdout and "found: " in done.stdout
    data = json.loads((tmp_path / "out/demo.json").read_text())
    assert data["exit_status"] == 4 and data["error"]["kind"] == "ToolMissing" and not data["npu"]["ran"]
    assert data["runs"][1]["sqnr_db"] > 10 and (tmp_path / "out/cpu/model.onnx").is_file()


def test_without_a_name_the_demo_is_the_old_one():
    from click.testing import CliRunner

    from anynpu.cli.demo import demo

    told = CliRunner().invoke(demo, ["-t", "no-such-chip", "--overwrite"])
    assert isinstance(told.exception, ConfigError) and "no-such-chip" in told.exception.message


def test_a_flag_in_front_of_the_demos_name_is_not_dropped_in_silence(cli):
    done = cli("demo", "-o", "elsewhere", "ryzen-ai")
    assert done.returncode == 2 and "--output is not for `demo ryzen-ai` there" in done.stderr


def test_a_chip_of_another_maker_is_refused(cli):
    done = cli("demo", "ryzen-ai", "--npu", "ethos-u55-128")
    assert done.returncode == 2 and "is not a Ryzen AI chip" in done.stderr


def test_the_whole_way_on_a_fake_quark(cli, tmp_path):
    pytest.importorskip("torch")
    quark = write_quark(tmp_path / "quark")
    done = cli("demo", "ryzen-ai", "--runs", "3", "-o", "out", "-f", "json", QUARK_PATH=str(quark))
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["kind"] == "demo-ryzen-ai" and data["quantised"]["opset"] == 17 and data["precision"] == "xint8"
    assert data["runs"][0]["mean_top1"] > 0.9 and data["runs"][1]["sqnr_db"] > 10
    for name in ("float/model.onnx", f"{data['chip']}/model.onnx", "report.html", "demo.json"):
        assert (tmp_path / "out" / name).is_file()
    assert json.loads((tmp_path / "out/demo.json").read_text()) == data
    if not data["found"]["npus"]:
        assert (
            data["npu"]["why_not"].startswith("this machine has no Ryzen AI NPU")
            or "not known" in data["npu"]["why_not"]
        )
