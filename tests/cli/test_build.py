"""Builds as users run them: several chips, output folders, configuration, streams, and what the report says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_net import left_behind, write_net

PLUGIN = '''
from dataclasses import dataclass
from anynpu.artifact import Manifest
from anynpu.errors import ToolMissing, Unsupported, Finding

@dataclass(frozen=True)
class Nothing:
    """No options."""

class NeedsTool:
    name, accepts, produces = "needs-tool", "onnx", "acme"
    Options = Facts = Nothing
    def tools(self):
        raise ToolMissing("acmecc is not installed", "get it from Acme")
    def needs_data(self, options):
        return False
    def check(self, model, platform, options):
        return ()
    def compile(self, model, data, platform, options, out, work):
        raise AssertionError("its tool is missing")

class Refuses(NeedsTool):
    name, produces = "refuses", "acme-2"
    def tools(self):
        return {"acmecc": "1"}
    def compile(self, model, data, platform, options, out, work):
        (out / "half").write_text("made")
        raise Unsupported("acme has no MatMul", [Finding("matmul", "MatMul is not there.", "y")])

class Crashes(Refuses):
    name, produces = "crashes", "acme-3"
    def compile(self, model, data, platform, options, out, work):
        return {}["matmul"]
'''
CHIP = 'name = "{0}"\ntitle = "Acme {0}"\nvendor = "Acme"\ntarget = "{1}"\nnpu = "Acme NPU"\n'


@pytest.fixture
def acme(tmp_path: Path) -> str:
    """A folder for PYTHONPATH that adds chips: a missing tool, a refusal, a crash, and code that is not there."""
    root = tmp_path / "site"
    package, info = root / "acme_chips", root / "acme_chips-1.0.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").write_text(PLUGIN)
    compilers = {"a": "needs-tool", "b": "refuses", "c": "crashes", "d": "absent"}
    for letter, compiler in compilers.items():
        (package / f"acme-{letter}.toml").write_text(CHIP.format(f"acme-{letter}", compiler))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-chips\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[anynpu.targets]\nneeds-tool = acme_chips:NeedsTool\nrefuses = acme_chips:Refuses\n"
        "crashes = acme_chips:Crashes\nabsent = acme_chips.absent:Absent\n"
        "[anynpu.platforms]\n" + "".join(f"acme-{letter} = acme_chips\n" for letter in compilers)
    )
    return str(root)


def report(out: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((out / "report.json").read_text(), parse_constant=pytest.fail)
    return data


def test_one_failing_chip_does_not_stop_the_others(tmp_path: Path, net: Path, cli: Callable, acme: str) -> None:
    flags = ("-m", "net.onnx", "-t", "acme-a,cpu,acme-b,null,acme-c,acme-d", "--data", "random:10", "-o", "out")
    done = cli("build", *flags, PYTHONPATH=acme)
    assert done.returncode == 4, done.stderr  # that of the first failure
    cells = [re.split(r" {2,}", line) for line in done.stdout.splitlines()]
    rows = {row[0]: row[1] for row in cells if len(row) > 8}
    expected = {"acme-a": "ToolMissing", "cpu": "ok", "acme-b": "Unsupported", "null": "not executed"}
    expected |= {"acme-c": "ToolFailed", "acme-d": "ToolFailed"}
    assert {chip: rows[chip] for chip in expected} == expected
    assert "acmecc is not installed (get it from Acme)" in done.stdout and "MatMul is not there." in done.stdout
    out = tmp_path / "out"
    assert "compiler crashes failed: KeyError: 'matmul'" in done.stdout and "does not load" in done.stdout
    made = {p.name for p in out.iterdir()}
    assert {"float", "cpu", "null", "report.json", "report.md"} <= made
    assert not [name for name in made if name.startswith("acme")]
    assert {c["chip"]: c["exit_status"] for c in report(out)["chips"]} == {
        "acme-a": 4,
        "cpu": 0,
        "acme-b": 3,
        "null": 0,
        "acme-c": 5,
        "acme-d": 5,
    }
    assert cli("cache", "verify").returncode == 0


def test_another_version_of_a_plug_in_compiles_again(tmp_path: Path, net: Path, cli: Callable, acme: str) -> None:
    plugin = Path(acme) / "acme_chips" / "__init__.py"
    plugin.write_text(
        PLUGIN.replace('        (out / "half").write_text("made")\n', "").replace(
            "        raise Unsupported", "        (out / 'm').write_text('1')\n        return Manifest('null', 'm')\n#"
        )
    )
    flags = ("build", "-m", "net.onnx", "-t", "acme-b", "-o", "out", "--require-npu", "0%")
    own = {"PYTHONPATH": acme, "ANYNPU_CACHE_DIR": str(tmp_path / "cache")}  # other tests have another such version
    first, second = cli(*flags, **own), cli(*flags, **own)
    assert "acme-b           refuses" in first.stderr and first.stderr.count("(cached)") < 2, first.stderr
    assert second.stderr.count("(cached)") == 2
    metadata = Path(acme) / "acme_chips-1.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("1.0", "1.1"))
    third = cli(*flags, **own)
    assert third.stderr.count("(cached)") == 1, third.stderr


def test_the_report_holds_the_whole_story(tmp_path: Path, net: Path, cli: Callable) -> None:
    done = cli("build", "-m", "net.onnx", "-t", "cpu", "--data", "random:10", "-o", "out", "-f", "json")
    assert done.returncode == 0, done.stderr
    data = report(tmp_path / "out")
    assert json.loads(done.stdout) == data
    assert data["schema_version"] == 1 and data["kind"] == "build" and data["exit_status"] == 0
    assert data["request"]["limit"] == 512 and data["request"]["gate"]["min_sqnr_db"] == 10.0  # defaults are told too
    assert data["request"]["source"]["model"] == "net.onnx" and data["request"]["chips"] == ["cpu"]
    assert {"onnx", "onnx-ir", "anynpu"} <= set(data["model"]["step"]["tools"])
    assert len(data["model"]["digest"]) == 64 and data["model"]["files"][0]["sha256"]
    assert data["data"]["calibration"]["random"] is True and data["data"]["test"]["held_out"] is True
    [chip] = data["chips"]
    assert chip["chain"][0]["step"]["inputs"]["model"] == data["model"]["digest"]
    assert chip["chain"][0]["step"]["options"]["method"]  # resolved, not only what was typed
    assert chip["verification"]["samples"] == 2 and chip["verification"]["sqnr_db"] > 10
    assert chip["receipt"] is None and chip["npu"] == ""
    assert {t["stage"] for t in data["timings"]} == {
        *("import", "calibration", "test", "prove", "cpu", "verify", "layers")
    }
    text = (tmp_path / "out" / "report.md").read_text()
    assert "RANDOM CALIBRATION DATA" in text and data["model"]["fingerprint"] in text


def test_the_artifact_runs_and_is_the_one_in_the_report(tmp_path: Path, net: Path, cli: Callable) -> None:
    assert cli("build", "-m", "net.onnx", "-t", "cpu", "--data", "random:10", "-o", "out").returncode == 0
    shown = json.loads(cli("show", "out/cpu", "-f", "json").stdout)
    assert shown["digest"] == report(tmp_path / "out")["chips"][0]["chain"][-1]["digest"]
    np.save(tmp_path / "x.npy", np.ones((1, 3, 8, 8), np.float32))
    done = cli("run", "out/cpu", "-i", "x.npy", "-f", "json")
    assert done.returncode == 0 and json.loads(done.stdout)["outputs"]["y"]["shape"] == [1, 5]


def test_output_folders_are_kept_or_replaced(tmp_path: Path, net: Path, cli: Callable) -> None:
    flags = ("build", "-m", "net.onnx", "-t", "null", "-o", "out")
    assert cli(*flags).returncode == 0
    (tmp_path / "out" / "note").write_text("mine")
    again = cli(*flags)
    assert again.returncode == 0 and "the earlier out is kept as out.backup-" in again.stderr
    [kept] = tmp_path.glob("out.backup-*")
    assert (kept / "note").read_text() == "mine" and not (tmp_path / "out" / "note").exists()
    assert cli(*flags, "--overwrite").returncode == 0
    assert left_behind(tmp_path) == ["net.onnx", "out", kept.name]


def test_command_line_before_environment_before_file_before_default(tmp_path: Path, net: Path, cli: Callable) -> None:
    (tmp_path / "c.toml").write_text(
        "model = 'net.onnx'\ntarget = ['null']\nlimit = 7\nmin_sqnr = 20\nrequire_npu = '50%'\n[option]\n"
    )
    done = cli("build", "-c", "c.toml", "-o", "out", "--limit", "5", ANYNPU_BUILD_LIMIT="6", ANYNPU_BUILD_MIN_SQNR="15")
    assert done.returncode == 0, done.stderr
    request = report(tmp_path / "out")["request"]
    assert request["limit"] == 5
    assert request["gate"] == {"min_sqnr_db": 15.0, "max_drop_points": 5.0}
    assert request["require_npu"] == 0.5 and request["chips"] == ["null"]


def test_a_file_and_flags_ask_for_the_same_build(tmp_path: Path, net: Path, cli: Callable) -> None:
    (tmp_path / "c.toml").write_text(
        "model = 'net.onnx'\ntarget = ['cpu']\ndata = 'random:10'\noutput = 'one'\n[option]\nactivations = 'uint8'\n"
        "[shape]\nx = [1, 3, 8, 8]\n"
    )
    assert cli("build", "-c", "c.toml").returncode == 0
    flags = ("-m", "net.onnx", "-t", "cpu", "--data", "random:10", "-O", "activations=uint8", "--shape", "x=1,3,8,8")
    second = cli("build", *flags, "-o", "two")
    assert second.returncode == 0 and second.stderr.count("(cached)") == 7
    assert report(tmp_path / "one")["request"] == report(tmp_path / "two")["request"]


def test_stdout_is_data_and_stderr_progress(net: Path, cli: Callable) -> None:
    flags = ("build", "-m", "net.onnx", "-t", "null", "-o", "out", "--overwrite")
    loud, quiet = cli(*flags), cli(*flags, "-q")
    assert "import" in loud.stderr and "import" not in loud.stdout and "null" in loud.stdout
    assert quiet.stderr == "" and quiet.stdout.splitlines()[1] == loud.stdout.splitlines()[1]


def test_a_generator_that_prints_does_not_spoil_the_data(tmp_path: Path, net: Path, cli: Callable) -> None:
    (tmp_path / "data.py").write_text(
        "import numpy as np\nprint('loading')\ndef gen():\n    for i in range(8):\n        print('sample', i)\n"
        "        yield np.random.default_rng(i).standard_normal((3, 8, 8)).astype('f')\n"
    )
    done = cli("build", "-m", "net.onnx", "-t", "cpu", "--data", "data.py:gen", "-o", "out", "-f", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["exit_status"] == 0


def test_a_plan_builds_nothing(tmp_path: Path, cli: Callable) -> None:
    write_net(tmp_path / "net.onnx", seed=99)
    done = cli("build", "-m", "net.onnx", "-t", "cpu", "--data", "random:10", "--plan", "-f", "json")
    assert done.returncode == 0, done.stderr
    assert {row["state"].split(" (")[0] for row in json.loads(done.stdout)["steps"]} == {"to build"}
    assert left_behind(tmp_path) == ["net.onnx"]


def test_the_accuracy_gate_is_an_exit_status(tmp_path: Path, net: Path, cli: Callable) -> None:
    flags = ("-m", "net.onnx", "-t", "cpu", "--data", "random:10", "-o", "out", "--min-sqnr", "150")
    done = cli("build", *flags)
    assert done.returncode == 7 and "150 dB is asked for" in done.stdout
    assert not (tmp_path / "out" / "cpu").exists()
    assert report(tmp_path / "out")["chips"][0]["error"]["kind"] == "AccuracyError"


def test_the_cache_verbs(tmp_path: Path, net: Path, cli: Callable) -> None:
    own = ("--cache-dir", str(tmp_path / "cache"))
    assert cli("build", "-m", "net.onnx", "-t", "null", "-o", "out", *own).returncode == 0
    assert len(json.loads(cli("cache", "ls", "-f", "json", *own).stdout)["entries"]) == 2
    assert cli("cache", "verify", *own).returncode == 0
    [model] = (tmp_path / "cache" / "store").glob("??/*/model.null")
    model.write_text("0" * 64 + "\n")
    damaged = cli("cache", "verify", *own)
    assert damaged.returncode == 8 and "model.null: has changed" in damaged.stdout
    assert cli("cache", "prune", "--max-size", "lots", *own).returncode == 2
    assert cli("cache", "clear", "--yes", *own).returncode == 0
    assert not list((tmp_path / "cache" / "store").glob("??/*"))
    assert cli("cache", "dir", *own).stdout.strip() == str(tmp_path / "cache")


def test_a_file_name_need_not_be_text(tmp_path: Path, cli: Callable) -> None:
    name = os.fsdecode(b"n\xff.onnx")
    try:
        write_net(tmp_path / name)
    except OSError:
        pytest.skip("this file system takes only text for names")
    done = cli("build", "-m", name, "-t", "null", "-o", "out", "-q", "-f", "json")
    assert done.returncode == 0, done.stderr
    assert r"n\udcff.onnx" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-"])
def test_closed_streams_do_not_matter(tmp_path: Path, net: Path, closed: str) -> None:
    command = f'"{sys.executable}" -m anynpu build -m net.onnx -t null -o out {closed}'
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "report.json").is_file()


def test_without_a_c_compiler_the_model_before_the_c_stands_for_it(tmp_path: Path, net: Path, cli: Callable) -> None:
    pytest.importorskip("ai_edge_litert")
    (tmp_path / "empty").mkdir()
    arguments = ("build", "-m", str(net), "-t", "cortex-m4", "--data", "random:16", "-o", "out", "-f", "json")
    done = cli(*arguments, PATH=str(tmp_path / "empty"))
    assert done.returncode == 0, done.stderr
    (chip,) = json.loads(done.stdout)["chips"]
    assert chip["verification"]["stands_for"] == "c" and chip["verification"]["device"] == "tflm"
