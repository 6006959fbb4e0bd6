"""Nothing runs on the CPU in silence: receipts and exit statuses of models that an NPU cannot take whole."""

from __future__ import annotations

import json

import pytest

for package in ("torch", "litert_torch", "ai_edge_quantizer", "ethosu"):
    pytest.importorskip(package)

NETS = '''
import torch
from torch import nn


class Gelu(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.second(nn.functional.gelu(self.first(x)))


class Root(nn.Module):
    """Ethos-U55 knows no square root."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x):
        return torch.sqrt(torch.relu(self.conv(x)) + 1.0)


class Signs(nn.Module):
    """The own TFLite writer has no rule for the sign of a number."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(16, 8)

    def forward(self, x):
        return self.linear(x) + torch.sign(x[:, :8])
'''


@pytest.fixture
def build(cli, tmp_path):
    (tmp_path / "nets.py").write_text(NETS)

    def call(net, shape, *arguments):
        done = cli(
            "build", "-m", f"nets.py:{net}", "--shape", f"x={shape}", "--data", "random:32", "-o", "out", *arguments
        )
        report = tmp_path / "out" / "report.json"
        return done, json.loads(report.read_text())["chips"][0] if report.exists() else None

    return call


def test_an_operator_that_the_npu_lacks_is_a_negative_verdict_with_its_reason(build, tmp_path):
    done, chip = build("Root", "1,3,8,8", "-t", "ethos-u55-128")
    assert done.returncode == 1 and chip["status"] == "fallback"
    reasons = {op["kind"]: op["reason"] for op in chip["receipt"]["elsewhere"]}
    assert reasons.get("SQRT")
    assert chip["receipt"]["share"] < 1 and "on the CPU: SQRT" in done.stdout
    assert (tmp_path / "out" / "ethos-u55-128" / "model_vela.tflite").exists()
    # TFLite-Micro has no int8 SQRT, so the twin's CPU part cannot run: what ran is the model before Vela.
    assert chip["verification"]["stands_for"] == "tflite-vela" and chip["verification"]["device"] == "litert"


def test_the_user_may_accept_a_share(build):
    done, chip = build("Root", "1,3,8,8", "-t", "ethos-u55-128", "--require-npu", "10%")
    assert done.returncode == 0 and chip["status"] == "ok" and chip["receipt"]["elsewhere"]


def test_gelu_at_int16_stays_on_the_cpu_of_a_u55_and_says_so(build):
    done, chip = build("Gelu", "1,16", "-t", "ethos-u55-128", "-O", "activations=int16")
    assert done.returncode == 1
    assert [op["kind"] for op in chip["receipt"]["elsewhere"]] == ["GELU"]
    assert "Int16" in chip["receipt"]["elsewhere"][0]["reason"]


def test_gelu_at_int8_runs_on_the_npu(build):
    done, chip = build("Gelu", "1,16", "-t", "ethos-u55-128")
    assert done.returncode == 0 and chip["receipt"]["share"] == 1.0
    # TFLite-Micro has no GELU: the NPU's stream ran, and the report says that it was compared with nothing bit by bit.
    assert chip["verification"]["device"] == "ethos_u" and chip["verification"]["stands_for"] == ""
    assert any("not compared bit by bit" in note for note in chip["verification"]["notes"])


def test_a_float_model_cannot_go_to_an_npu(build, tmp_path):
    done, chip = build("Gelu", "1,16", "-t", "ethos-u55-128", "-O", "activations=float32")
    assert done.returncode == 3 and chip["status"] == "Unsupported"
    assert "float32" in chip["error"]["message"] and chip["error"]["findings"]
    assert not (tmp_path / "out" / "ethos-u55-128").exists()


def test_check_tells_before_compiling(cli, tmp_path):
    (tmp_path / "nets.py").write_text(NETS)
    done = cli("check", "-m", "nets.py:Root", "--shape", "x=1,3,8,8", "-t", "ethos-u55-128")
    assert done.returncode == 1 and "SQRT" in done.stdout
    fine = cli("check", "-m", "nets.py:Gelu", "--shape", "x=1,16", "-t", "ethos-u55-128")
    assert fine.returncode == 0, fine.stdout + fine.stderr


def test_a_graph_that_the_own_writer_does_not_take_says_who_converted_it(build):
    done, chip = build("Signs", "1,16", "-t", "tflite")
    assert done.returncode == 0 and chip["status"] == "ok", done.stderr
    assert "converted by litert-torch: the ONNX model cannot be lowered to TFLite" in done.stdout
    assert "Sign" in done.stdout
    done, _ = build("Signs", "1,16", "-t", "tflite", "-O", "converter=own", "--overwrite")
    assert done.returncode == 3 and "operator Sign is not one that the TFLite path converts" in done.stdout
