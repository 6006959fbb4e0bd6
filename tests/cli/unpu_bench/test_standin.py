"""Models written with the vendor's module ai8x import without it: our stand-in has its names, tensors and results."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from anynpu.errors import ConfigError
from anynpu.source.load import ModelSource, identify
from anynpu.source.torch_module import AI8X_VARIABLE, STANDIN, load_module, parse_reference

torch = pytest.importorskip("torch")
VENDORS = os.environ.get(AI8X_VARIABLE, "")

# As µNPU-Bench's models begin, and with layers of each kind.
MODEL = f"""
import os, sys
train_path = os.environ.get("{AI8X_VARIABLE}")
if not train_path:
    raise EnvironmentError("{AI8X_VARIABLE} is not set.")
sys.path.append(train_path)
import torch.nn as nn
import ai8x
from ai8x import FusedConv2dReLU, FusedMaxPoolConv2dBNReLU
ai8x.set_device(85, 0, True)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = FusedConv2dReLU(3, 8, 3, stride=1, padding=1, bias=True, batchnorm="NoAffine")
        self.second = FusedMaxPoolConv2dBNReLU(8, 8, 1, stride=1, padding=0, bias=True)
        self.up = ai8x.FusedConvTranspose2dReLU(8, 8, 3, stride=2, padding=1)
        self.down = ai8x.FusedAvgPoolConv2dAbs(8, 8, 3, padding=1)
        self.sum = ai8x.Add()
        self.pool = ai8x.AvgPool2d(kernel_size=2, stride=2)
        self.fc = ai8x.Linear(8 * 2 * 2, 5, bias=True, wide=True)

    def forward(self, x):
        x = self.second(self.first(x))
        x = self.sum(self.down(self.up(x)), x)
        return self.fc(self.pool(x).flatten(1))
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.delenv(AI8X_VARIABLE, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "ai8x", raising=False)
    path = tmp_path / "net.py"
    path.write_text(MODEL)
    yield path
    sys.modules.pop("ai8x", None)


def loaded(path: Path, checkpoint: Path | None = None):
    torch.manual_seed(0)
    return load_module(parse_reference(f"{path}:Net"), checkpoint)


def test_a_model_that_wants_the_variable_loads_without_it(model: Path) -> None:
    net = loaded(model)
    assert AI8X_VARIABLE not in os.environ
    assert net(torch.zeros(1, 3, 8, 8)).shape == (1, 5)
    figures = {name.removeprefix("first.") for name in net.state_dict() if name.startswith("first.")}
    assert {"output_shift", "weight_bits", "op.weight", "op.bias", "bn.running_mean", "shift_quantile"} <= figures


def test_a_layer_is_window_operator_norm_shift_and_clamp(model: Path, monkeypatch) -> None:
    loaded(model)
    import ai8x

    layer = ai8x.FusedMaxPoolConv2dReLU(3, 4, 3, padding=1, batchnorm="NoAffine").eval()
    layer.bn.running_mean.fill_(0.1)
    layer.output_shift.fill_(2.0)
    x = torch.rand(1, 3, 8, 8) * 2 - 1
    expected = layer.bn(layer.op(torch.nn.functional.max_pool2d(x, 2))) / 4 * 4
    torch.testing.assert_close(layer(x), expected.clamp(0, 127 / 128))
    zeros = torch.zeros(())
    layer.fit_checkpoint({"final_scale": zeros, "activation_threshold": zeros, "clamp_activation": torch.zeros(1)})
    newer = layer.bn(layer.op(torch.nn.functional.max_pool2d(x, 2))) * 4
    torch.testing.assert_close(layer(x), newer.relu())


def test_checkpoints_of_newer_versions_fit(model: Path, tmp_path: Path) -> None:
    state = loaded(model).state_dict()
    layers = {name.rpartition(".")[0] for name in state if name.endswith(".output_shift")}
    for layer in layers:
        state |= {f"{layer}.final_scale": torch.tensor(0.0), f"{layer}.activation_threshold": torch.tensor(0.0)}
        state[f"{layer}.clamp_activation"] = torch.tensor([False])
    state["sum.activation_threshold"] = torch.tensor(0.0)
    torch.save({"state_dict": state}, tmp_path / "net.pth.tar")
    net = loaded(model, tmp_path / "net.pth.tar")
    assert net.first.newer and net.sum.newer and net.state_dict().keys() == state.keys()


def test_the_vendors_own_module_comes_first_and_counts(model: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv(AI8X_VARIABLE, str(tmp_path))
    source = ModelSource(f"{model}:Net", shapes={"x": (1, 3, 8, 8)})
    with pytest.raises(ConfigError, match=r"there is no ai8x\.py") as caught:
        identify(source)
    assert "stand-in" in caught.value.hint
    (tmp_path / "ai8x.py").write_text("raise RuntimeError('the vendor own')\n")
    first = identify(source)
    (tmp_path / "ai8x.py").write_text("raise RuntimeError('another one')\n")
    assert identify(source) != first
    with pytest.raises(ConfigError, match="another one"):
        loaded(model)


def test_what_the_stand_in_lacks_is_said(model: Path) -> None:
    model.write_text(MODEL.replace("FusedConv2dReLU, ", "FusedConv2dReLU, bayer_filter, "))
    with pytest.raises(ConfigError, match="stand-in for ai8x has no bayer_filter: set AI8X_TRAIN_PATH"):
        loaded(model)


@pytest.mark.skipif(not VENDORS, reason=f"{AI8X_VARIABLE} names no clone of ai8x-training")
def test_the_stand_in_computes_what_the_vendors_module_does(model: Path, monkeypatch) -> None:
    results = {}
    for folder in (VENDORS, str(STANDIN)):
        monkeypatch.setenv(AI8X_VARIABLE, folder)
        sys.modules.pop("ai8x", None)
        net = loaded(model)
        torch.manual_seed(1)
        results[folder] = (sorted(net.state_dict()), net(torch.rand(1, 3, 8, 8)))
    (names, values), (own_names, own_values) = results.values()
    assert names == own_names
    torch.testing.assert_close(own_values, values)
