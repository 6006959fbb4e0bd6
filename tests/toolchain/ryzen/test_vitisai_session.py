"""The session on the VitisAI provider, with a FAKE provider in a child process: there is no NPU here."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import fake_vitisai
import numpy as np
import onnxruntime
import pytest
import ryzen_machines as machines

from anynpu.errors import ToolMissing
from anynpu.runtime.base import open_session, sessions_for
from anynpu.runtime.vitisai import VitisAiSession
from anynpu.runtime.vitisai_report import PROVIDER

# What fails comes first: nothing of it may be kept. What is kept holds a report, which a later run would find.
MODES = ("missing", "dropped", "none", "refuse", "no-report", "npu", "mostly-cpu")


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    return tmp_path_factory.mktemp("vitisai")


@pytest.fixture(scope="module")
def fake(room):
    return fake_vitisai.install(room)


@pytest.fixture(scope="module")
def made(room):
    np.save(room / "image.npy", np.linspace(-1, 1, 192, dtype=np.float32).reshape(1, 3, 8, 8))
    return fake_vitisai.quantised(room)


@pytest.fixture(scope="module")
def outcome(room, fake, made):
    """What opening a session comes to in every mode of the fake."""
    cases = [(mode, str(made[1].path)) for mode in MODES]
    return dict(zip(MODES, fake_vitisai.open_each(fake, room / "cache", cases), strict=True))


@pytest.mark.skipif(PROVIDER in onnxruntime.get_available_providers(), reason="the provider is here")
def test_without_the_provider_the_session_says_what_is_missing(made):
    assert "ONNX Runtime has no VitisAIExecutionProvider here" in VitisAiSession.missing()
    with pytest.raises(ToolMissing) as missing:
        VitisAiSession(made[1])
    assert "Ryzen AI software" in missing.value.hint
    with pytest.raises(ToolMissing) as asked:
        open_session(made[1], "vitisai")
    assert asked.value.hint == missing.value.hint


def test_it_is_registered_and_the_cpu_stands_in_for_it():
    kinds = sessions_for("onnx-vitisai")
    assert kinds[0] is VitisAiSession and any(kind is not VitisAiSession for kind in kinds)


def test_a_missing_provider_is_a_missing_tool(outcome):
    assert (
        outcome["missing"]["error"] == "ToolMissing" and "no VitisAIExecutionProvider" in outcome["missing"]["message"]
    )


def test_a_provider_that_is_left_out_in_silence_is_refused(outcome):
    assert outcome["dropped"]["error"] == "DeviceError"
    assert "silently left out VitisAIExecutionProvider" in outcome["dropped"]["message"]
    assert "CPUExecutionProvider" in outcome["dropped"]["message"]


def test_the_receipt_comes_from_a_run(outcome):
    found = outcome["npu"]
    assert (found["on_npu"], found["all"]) == (398, 400)
    assert found["source"].startswith("read from the profile of a run")
    assert (outcome["mostly-cpu"]["on_npu"], outcome["mostly-cpu"]["all"]) == (10, 410)
    assert "it wrote no report" in outcome["no-report"]["source"] and outcome["no-report"]["on_npu"] > 1


def test_a_model_of_which_nothing_runs_on_the_npu_is_refused(outcome):
    assert outcome["none"]["error"] == "DeviceError"
    assert "none of the 7 operators runs on the NPU" in outcome["none"]["message"]
    assert "--on quark" in outcome["none"]["hint"]


def test_words_of_the_provider_reach_the_user(outcome):
    assert outcome["refuse"]["error"] == "DeviceError"
    assert outcome["refuse"]["message"].endswith("DPU timeout: ERT_CMD_STATE_TIMEOUT")


def test_only_what_opened_is_kept_compiled_and_found_again(outcome, room, fake, made):
    cache = room / "cache" / "vitisai"
    (entry,) = cache.iterdir()
    first = (entry / "compiled.xmodel").read_bytes()
    assert json.loads((entry / "options.json").read_text())["target"] == "X2"
    case = [("npu", str(made[1].path))]
    fake_vitisai.open_each(fake, room / "cache", case)
    assert (entry / "compiled.xmodel").read_bytes() == first
    fake_vitisai.open_each(fake, room / "cache", case, ANYNPU_VITISAI_OPT_LEVEL="3")
    assert len(list(cache.iterdir())) == 2


def test_the_npu_of_this_machine_counts_not_the_one_it_was_built_for(fake, tmp_path):
    machines.add_pci(tmp_path / "phx", "0000:c5:00.1", "1022", "1502", "00", driver="amdxdna", node="accel0")
    machines.strix(tmp_path / "stx")
    _, sixteen = fake_vitisai.quantised(tmp_path, "ryzen-ai-krk", "a16w8")
    cases = [("npu", str(sixteen.path), str(tmp_path / root)) for root in ("phx", "stx")]
    phoenix, strix = fake_vitisai.open_each(fake, tmp_path / "cache", cases)
    assert phoenix["error"] == "DeviceError" and "ryzen-ai-phx: the NPU does not compute in a16w8" in phoenix["message"]
    assert strix["chip"] == "ryzen-ai-stx"


def test_run_and_bench_end_with_the_receipt(cli, room, fake, made):
    given = {"PYTHONPATH": fake, "ANYNPU_FAKE_VITISAI": "mostly-cpu", "ANYNPU_CACHE_DIR": str(room / "cache")}
    path = str(made[1].path)
    ran = cli("run", path, "-i", str(room / "image.npy"), **given)
    assert ran.returncode == 0, ran.stderr
    assert "executed: Ryzen AI NPU" in ran.stdout and "2.4% (read from the profile of a run" in ran.stdout
    assert "receipt: 10 of 410 operators on the Ryzen AI NPU" in ran.stdout
    assert "  on the CPU: 400 Conv: the provider left it to CPU" in ran.stdout
    timed = cli("bench", path, "-n", "20", "-f", "json", "-q", **given)
    record = json.loads(timed.stdout)
    assert timed.returncode == 0 and record["receipt"]["on_npu"] == 10 and record["runs"] == 20


def test_what_run_compiles_is_kept_in_the_cache_folder_that_is_named(cli, room, fake, made, tmp_path):
    given = {"PYTHONPATH": fake, "ANYNPU_FAKE_VITISAI": "npu", "ANYNPU_CACHE_DIR": str(tmp_path / "other")}
    named = tmp_path / "Käse folder"
    ran = cli("run", str(made[1].path), "-i", str(room / "image.npy"), "--cache-dir", str(named), **given)
    assert ran.returncode == 0, ran.stderr
    assert len(list((named / "vitisai").iterdir())) == 1 and not (tmp_path / "other").exists()


@pytest.mark.parametrize("words", [("--data", "{image}"), ("--time", "--launches", "4", "--seconds", "0", "-n", "1")])
def test_so_is_what_compare_compiles(cli, room, fake, made, tmp_path, words):
    given = {"PYTHONPATH": fake, "ANYNPU_FAKE_VITISAI": "npu", "ANYNPU_CACHE_DIR": str(tmp_path / "other")}
    path, named = str(made[1].path), tmp_path / "named"
    more = [word.format(image=room / "image.npy") for word in words]
    done = cli("compare", path, path, *more, "--cache-dir", str(named), **given)
    assert done.returncode in (0, 1), done.stderr
    assert "Ryzen AI NPU" in done.stdout
    assert len(list((named / "vitisai").iterdir())) == 1 and not (tmp_path / "other").exists()


def test_a_crash_leaves_nothing_compiled(room, fake, made, tmp_path):
    with pytest.raises(AssertionError):
        fake_vitisai.open_each(fake, tmp_path / "cache", [("crash", str(made[1].path))])
    left = list((tmp_path / "cache" / "vitisai").iterdir())
    assert len(left) == 1 and not (left[0] / "anynpu.json").exists()
    (left[0] / "half").write_text("what the crash left")
    fake_vitisai.open_each(fake, tmp_path / "cache", [("npu", str(made[1].path))])
    assert not (left[0] / "half").exists() and (left[0] / "anynpu.json").exists()


def test_the_session_keeps_every_rule_of_the_kit(fake, made, tmp_path):
    words = "from pathlib import Path; from anynpu.artifact import Artifact; from anynpu.testing import conformance; "
    words += (
        "from anynpu.runtime.vitisai import VitisAiSession; import sys; model, made, room = map(Path, sys.argv[1:]); "
    )
    words += (
        "conformance.check_session(VitisAiSession, Artifact.open(made), room, Artifact.open(model), min_sqnr_db=20)"
    )
    done = subprocess.run(
        [sys.executable, "-c", words, str(made[0].path), str(made[1].path), str(tmp_path / "room")],
        env={**os.environ, "PYTHONPATH": fake, "ANYNPU_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
