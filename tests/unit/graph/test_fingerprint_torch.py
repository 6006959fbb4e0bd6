"""Exports of one torch module agree, whatever exporter, opset, folding and simplifier made them."""

from __future__ import annotations

import io
import logging
import warnings

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from anynpu.graph.fingerprint import fingerprint
from anynpu.graph.simplify import simplify

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
nn, functional = torch.nn, torch.nn.functional


class Vision(nn.Module):
    """Convolutions of every kind with batch norms, pools, resizing and common activations."""

    def __init__(self):
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.depth, self.depth_norm = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8)
        self.up, self.up_norm = nn.ConvTranspose2d(8, 8, 2, stride=2, groups=2), nn.BatchNorm2d(8)
        self.drop, self.head = nn.Dropout(), nn.Linear(8, 10)
        for norm in (self.stem_norm, self.depth_norm, self.up_norm):
            norm.weight.data.normal_()
            norm.bias.data.normal_()
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        x = torch.relu(self.stem_norm(self.stem(x)))
        x = functional.hardswish(x + functional.relu6(self.depth_norm(self.depth(x))))
        x = functional.max_pool2d(x, 2)
        x = self.up_norm(self.up(x)) - x.mean((2, 3), keepdim=True)
        x = functional.interpolate(functional.silu(x), scale_factor=2, mode="nearest")
        x = functional.adaptive_avg_pool2d(functional.avg_pool2d(x, 2), 1).flatten(1)
        return torch.softmax(self.head(self.drop(x)), -1)


class Transformer(nn.Module):
    """One attention block with layer norm, GELU and two outputs."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Linear(6, 16), nn.LayerNorm(16)
        self.norm.weight.data.normal_()
        self.norm.bias.data.normal_()
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 16, bias=False), nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        x = self.embed(x)
        h = self.norm(x)
        q, k, v = (layer(h).reshape(1, 5, 4, 4).transpose(1, 2) for layer in (self.q, self.k, self.v))
        attended = torch.softmax(q @ k.transpose(-1, -2) / 2, -1) @ v
        x = x + attended.transpose(1, 2).reshape(1, 5, 16)
        return self.head(functional.gelu(x)), x[:, 0]


class Audio(nn.Module):
    """One-dimensional convolutions, and a batch norm behind a dense layer."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(2, 6, 5, stride=2, padding=2), nn.BatchNorm1d(6)
        self.dense, self.dense_norm = nn.Linear(6, 4), nn.BatchNorm1d(4)
        for norm in (self.norm, self.dense_norm):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        x = functional.leaky_relu(self.norm(self.conv(x)), 0.1)
        left, right = x.chunk(2, 1)
        x = torch.cat([left * torch.sigmoid(right), torch.tanh(left)], 1)
        return functional.relu(self.dense_norm(self.dense(x.mean(-1))))


SHAPES = {Vision: (1, 3, 16, 16), Transformer: (1, 5, 6), Audio: (1, 2, 32)}
RAW = {"do_constant_folding": False, "training": torch.onnx.TrainingMode.PRESERVE}
WAYS = [
    *({"dynamo": False, "opset_version": opset} for opset in (13, 15, 18)),
    {"dynamo": False, "opset_version": 13, **RAW},
    {"dynamo": False, "opset_version": 17, **RAW},
    {"dynamo": True, "opset_version": 18},
    {"dynamo": True, "opset_version": 18, "optimize": False},
]
RAW_EXPORT = 4


def export(module, dynamo, **options):
    example = (torch.zeros(SHAPES[type(module)]),)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            return torch.onnx.export(module, example, dynamo=True, verbose=False, **options).model_proto
        buffer = io.BytesIO()
        torch.onnx.export(module, example, buffer, dynamo=False, **options)
        return onnx.load_from_string(buffer.getvalue())


def folds_exactly(module):
    """Returns whether torch's square root is correctly rounded for this module; that of some builds is not always."""
    norms = [m for m in module.modules() if hasattr(m, "running_var")]
    shifted = [(m.running_var + m.eps).detach() for m in norms]
    return all(np.array_equal(torch.sqrt(v).numpy(), np.sqrt(v.numpy())) for v in shifted)


@pytest.fixture(scope="module", params=list(SHAPES), ids=lambda kind: kind.__name__)
def exports(request):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    module = request.param().eval()
    if not folds_exactly(module):
        pytest.skip("this torch rounds the square root its own way, so its TorchScript exporter folds differently")
    return [export(module, **way) for way in WAYS]


def test_all_exports_agree(exports):
    found = [fingerprint(model) for model in exports]
    wrong = [way for way, digest in zip(WAYS, found, strict=True) if digest != found[RAW_EXPORT]]
    assert wrong == []


def test_simplified_exports_agree(exports):
    onnxsim = pytest.importorskip("onnxsim")
    wanted = fingerprint(exports[RAW_EXPORT])
    found = [fingerprint(onnxsim.simplify(exports[place])[0]) for place in (0, 3, 4, 5)]
    assert found == [wanted] * 4
    assert [fingerprint(simplify(model)[0]) for model in exports] == [wanted] * len(exports)


def test_raw_exports_are_really_different_files(exports):
    kinds = [tuple(node.op_type for node in model.graph.node) for model in exports]
    assert len(set(kinds)) >= 3


def test_every_tensor_counts(exports):
    """One clearly changed value in any weight tensor changes the fingerprint."""
    model = exports[RAW_EXPORT]
    wanted = fingerprint(model)
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor).copy()
        if values.dtype != np.float32 or not values.size:
            continue
        other = onnx.ModelProto()
        other.CopyFrom(model)
        values.flat[0] += np.float32(0.05)
        next(t for t in other.graph.initializer if t.name == tensor.name).CopyFrom(
            numpy_helper.from_array(values, tensor.name)
        )
        assert fingerprint(other) != wanted, tensor.name


def test_other_seed_differs():
    digests = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        digests.append(fingerprint(export(Audio().eval(), dynamo=False, opset_version=17)))
    assert digests[0] != digests[1]
