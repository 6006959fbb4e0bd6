"""Torch modules of the user, their checkpoints and their ONNX export."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from anynpu.errors import ConfigError, IntegrityError, ToolFailed, Unsupported
from anynpu.source.torch_module import load_module, parse_reference, source_files

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from anynpu.source import torch_export  # noqa: E402
from anynpu.source.checkpoint import load_into, load_tensors  # noqa: E402

torch.set_num_threads(1)

NET = """
    import torch
    from torch import nn
    from parts import width

    print("chatter on import")

    class Net(nn.Module):
        def __init__(self, units: int = 4, fail: bool = False):
            super().__init__()
            if fail:
                raise RuntimeError("no such size\\nmore")
            self.a = nn.Linear(width, units)

        def forward(self, x):
            return torch.relu(self.a(x))

    class Plain:
        pass

    def make(units=2):
        return Net(units)

    def wrong():
        return 3

    ready = Net(5)
"""


@pytest.fixture
def net(tmp_path):
    (tmp_path / "net.py").write_text(textwrap.dedent(NET))
    (tmp_path / "parts.py").write_text("from inner import deep\nwidth = 3\n")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "__init__.py").write_text("from . import deep\n")
    (tmp_path / "inner" / "deep.py").write_text("import json\n")
    (tmp_path / "unused.py").write_text("raise SystemExit\n")
    return tmp_path / "net.py"


def load(net, name, checkpoint=None, trust=False, **arguments):
    return load_module(parse_reference(f"{net}:{name}", arguments), checkpoint, trust)


def test_reference_is_parsed():
    reference = parse_reference("some/net.py:Net", {"units": 3})
    assert (reference.location, reference.attribute, dict(reference.arguments)) == ("some/net.py", "Net", {"units": 3})
    assert parse_reference("pack.mod:make").location == "pack.mod"


@pytest.mark.parametrize("text", ["net.py", "net.py:", ":Net", "net.onnx:Net", "a b:c", "net.py:1x", ""])
def test_other_texts_are_refused_with_examples(text):
    with pytest.raises(ConfigError) as caught:
        parse_reference(text)
    assert "net.py:Net" in caught.value.hint


def test_source_files_are_the_local_closure(net):
    names = [path.name for path in source_files(parse_reference(f"{net}:Net"))]
    assert sorted(names) == ["__init__.py", "deep.py", "net.py", "parts.py"]


def test_source_files_execute_nothing(net):
    code = "import sys; from pathlib import Path; from anynpu.source.torch_module import *; "
    code += "f = source_files(parse_reference(sys.argv[1])); assert len(f) == 4; assert 'torch' not in sys.modules"
    (net.parent / "parts.py").write_text("from inner import deep\nPath('/nowhere/x').write_text('ran')\n")
    subprocess.run([sys.executable, "-c", code, f"{net}:Net"], check=True, timeout=60)


def test_source_files_of_a_framework_stay_few():
    names = [path.parent.name for path in source_files(parse_reference("torch.nn:Linear"))]
    assert sorted(names) == ["nn", "torch"]


def test_source_files_of_an_importable_package(net, monkeypatch):
    monkeypatch.syspath_prepend(str(net.parent))
    (net.parent / "inner" / "deep.py").write_text("from .other import x\nraise SystemExit\n")
    (net.parent / "inner" / "other.py").write_text("x = 1\n")
    names = [path.name for path in source_files(parse_reference("inner.deep:x"))]
    assert sorted(names) == ["__init__.py", "deep.py", "other.py"]
    assert "inner" not in sys.modules
    with pytest.raises(ConfigError, match="no module"):
        source_files(parse_reference("inner.absent:x"))
    with pytest.raises(ConfigError, match="no module 'surely_absent'"):
        source_files(parse_reference("surely_absent.x:y"))


@pytest.mark.parametrize(("name", "arguments", "units"), [("Net", {"units": 7}, 7), ("make", {}, 2), ("ready", {}, 5)])
def test_class_factory_and_instance_are_loaded(net, name, arguments, units, capsys):
    before = list(sys.path)
    module = load(net, name, **arguments)
    assert not module.training
    assert module.a.out_features == units
    assert sys.path == before
    assert "parts" not in sys.modules
    assert capsys.readouterr().out == ""


def test_installed_factory_is_loaded():
    module = load_module(parse_reference("torch.nn:Linear", {"in_features": 3, "out_features": 2}), None)
    assert isinstance(module, nn.Linear)


@pytest.mark.parametrize(
    ("name", "arguments", "message", "hint"),
    [
        ("Nett", {}, r"has no 'Nett' \(did you mean 'Net'\?\)", "it defines: Net"),
        ("Zebra", {}, "has no 'Zebra'", "it defines: Net, Plain"),
        ("Plain", {}, "not derived from torch.nn.Module", "class"),
        ("wrong", {}, "gives a int", "class"),
        ("Net", {"fail": True}, r"RuntimeError: no such size \(net.py, line 12\)", "arguments"),
        ("Net", {"depth": 3}, "unexpected keyword argument 'depth'", "arguments"),
        ("ready", {"units": 3}, "ready module", "leave"),
    ],
)
def test_wrong_reference_is_one_sentence_with_a_hint(net, name, arguments, message, hint):
    with pytest.raises(ConfigError, match=message) as caught:
        load(net, name, **arguments)
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def broken(:\n", "not valid Python"),
        ("import surely_absent\n", r"surely_absent.*line 1"),
        ("x = 1\n1 / 0\n", r"ZeroDivisionError.*line 2"),
        ("raise SystemExit('stop')\n", "SystemExit: stop"),
    ],
)
def test_failing_file_is_one_sentence(tmp_path, text, message):
    path = tmp_path / "bad.py"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load(path, "Net")
    assert caught.value.hint


def test_missing_file_is_reported(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        load(tmp_path / "absent.py", "Net")


# Checkpoints.


def weights():
    return {"a.weight": torch.ones(4, 3), "a.bias": torch.zeros(4)}


@pytest.mark.parametrize(
    "wrap", [lambda d: d, *(lambda d, k=k: {k: d, "epoch": 3} for k in ("state_dict", "model_state_dict", "model"))]
)
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
def test_wrapped_and_prefixed_checkpoints_load(net, tmp_path, wrap, prefix):
    path = tmp_path / "w.pt"
    torch.save(wrap({prefix + name: tensor for name, tensor in weights().items()}), path)
    module = load(net, "Net", path)
    assert bool((module.a.weight == 1).all())


def test_npz_and_safetensors_load(net, tmp_path):
    np.savez(tmp_path / "w.npz", **{name: tensor.numpy() for name, tensor in weights().items()})
    assert bool((load(net, "Net", tmp_path / "w.npz").a.weight == 1).all())
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(weights(), tmp_path / "w.safetensors")
    assert bool((load(net, "Net", tmp_path / "w.safetensors").a.weight == 1).all())


def misfit(change):
    tensors = weights()
    change(tensors)
    return tensors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("a.bias"), "has no a.bias"),
        (lambda t: t.update({"b.x": torch.ones(1)}), "unexpected b.x"),
        (
            lambda t: t.update({"a.weigth": t.pop("a.weight")}),
            r"has no a.weight and has unexpected a.weigth \(did you mean 'a.weight'\?\)",
        ),
        (
            lambda t: t.update({"a.weight": torch.ones(4, 5)}),
            r"'a.weight' has shape \(4, 5\), the module wants \(4, 3\)",
        ),
        (lambda t: t.update({f"z{n}": torch.ones(1) for n in range(9)}), "z4.* and 4 more"),
    ],
)
def test_misfit_names_the_tensors(change, message):
    module = nn.Module()
    module.a = nn.Linear(3, 4)
    with pytest.raises(ConfigError, match=message):
        load_into(module, misfit(change))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(tmp_path, value):
    torch.save({"a": torch.ones(2), "b": torch.tensor([1.0, value])}, tmp_path / "w.pt")
    with pytest.raises(IntegrityError, match="'b'"):
        load_tensors(tmp_path / "w.pt")


class Malicious:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("save", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_pickled_program_does_not_run_without_the_switch(tmp_path, save):
    trap = tmp_path / "trap"
    path = tmp_path / "evil.pt"
    save({"state_dict": weights(), "extra": Malicious(trap)}, path)
    with pytest.raises(ConfigError, match="run any program") as caught:
        load_tensors(path)
    assert "--trust-checkpoint" in caught.value.hint
    assert not trap.exists()


def test_trusted_pickle_loads(tmp_path):
    trap = tmp_path / "trap"
    torch.save({"state_dict": weights(), "extra": Malicious(trap)}, tmp_path / "evil.pt")
    assert set(load_tensors(tmp_path / "evil.pt", trust=True)) == set(weights())
    assert trap.exists()


def test_whole_module_checkpoint_needs_trust(tmp_path):
    torch.save(nn.Linear(2, 2), tmp_path / "m.pt")
    with pytest.raises(ConfigError, match="run any program"):
        load_tensors(tmp_path / "m.pt")
    assert set(load_tensors(tmp_path / "m.pt", trust=True)) == {"weight", "bias"}


def test_object_arrays_in_npz_are_refused(tmp_path):
    trap = tmp_path / "trap"
    np.savez(tmp_path / "w.npz", a=np.array([Malicious(trap)], dtype=object))
    with pytest.raises(IntegrityError):
        load_tensors(tmp_path / "w.npz")
    assert not trap.exists()


def test_missing_checkpoint_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        load_tensors(tmp_path / "absent.pt")


@pytest.mark.parametrize("suffix", [".pt", ".npz", ".safetensors"])
@pytest.mark.parametrize("kind", ["empty", "lfs", "text", "truncated"])
def test_damaged_checkpoint_is_an_integrity_error(tmp_path, suffix, kind):
    path = tmp_path / f"w{suffix}"
    if kind == "truncated":
        if suffix == ".pt":
            torch.save(weights(), path)
        elif suffix == ".npz":
            np.savez(path, **{name: tensor.numpy() for name, tensor in weights().items()})
        else:
            pytest.importorskip("safetensors.torch").save_file(weights(), path)
        path.write_bytes(path.read_bytes()[:-60])
    else:
        contents = {
            "empty": b"",
            "lfs": b"version https://git-lfs.github.com/spec/v1\noid",
            "text": b"hello, not weights",
        }
        path.write_bytes(contents[kind])
    with pytest.raises(IntegrityError):
        load_tensors(path)


def test_checkpoint_without_tensors_is_refused(tmp_path):
    torch.save({"epoch": 3}, tmp_path / "w.pt")
    with pytest.raises(ConfigError, match="not tensors: epoch"):
        load_tensors(tmp_path / "w.pt")


# Export.


def export_onnx(module, shapes, types, names):
    return torch_export.export(module, shapes, types, names, torch_export.OPSET).model


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.conv = nn.Embedding(5, 4), nn.Conv1d(4, 6, 3, padding=1)

    def forward(self, tokens, scale):
        y = self.conv(self.words(tokens).transpose(1, 2)) * scale
        return {"features": y, "pooled": y.mean(-1)}


SHAPES = {"tokens": (1, 7), "scale": (1, 1, 1)}
TYPES = {"tokens": "int64", "scale": "float32"}


def dims(item):
    return tuple(dim.dim_value for dim in item.type.tensor_type.shape.dim)


@pytest.mark.parametrize("order", [list, lambda items: list(reversed(list(items)))])
def test_export_is_static_named_and_self_contained(order, capfd):
    module = Two().eval()
    model = export_onnx(module, dict(order(SHAPES.items())), TYPES, None)
    assert [(item.name, dims(item)) for item in model.graph.input] == [("tokens", (1, 7)), ("scale", (1, 1, 1))]
    assert [(item.name, dims(item)) for item in model.graph.output] == [("features", (1, 6, 7)), ("pooled", (1, 6))]
    assert all(not tensor.external_data for tensor in model.graph.initializer)
    assert model.opset_import[0].version == 18
    assert capfd.readouterr() == ("", "")
    assert not module._forward_hooks


def test_export_writes_the_same_bytes_each_time():
    module = Two().eval()
    first, second = (export_onnx(module, SHAPES, TYPES, ["a", "b"]).SerializeToString() for _ in range(2))
    assert first == second


def test_export_falls_back_to_torch_export(monkeypatch):
    pytest.importorskip("onnxscript")

    def fail(*_):
        raise RuntimeError("tracing is off")

    monkeypatch.setattr(torch_export, "_traced", fail)
    module = Two().eval()
    first = export_onnx(module, SHAPES, TYPES, ["a", "b"])
    assert Path(__file__).name.encode() not in first.SerializeToString()
    assert [item.name for item in first.graph.output] == ["a", "b"]


@pytest.mark.parametrize("frozen", [False, True])
def test_fused_attention_is_traced_in_its_plain_form(frozen, monkeypatch):
    monkeypatch.setattr(torch_export, "_by_torch_export", None)  # tracing alone has to do
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval().requires_grad_(not frozen)
    model = export_onnx(layer, {"src": (1, 4, 8)}, {"src": "float32"}, ["y"])
    assert {"MatMul", "Softmax"} <= {node.op_type for node in model.graph.node}


def test_failed_tracing_prints_nothing(capfd):
    class Odd(nn.Module):
        def forward(self, x):
            return torch.linalg.lu_factor(x)[0]

    with pytest.raises(ToolFailed, match="cannot export") as caught:
        export_onnx(Odd(), {"x": (3, 3)}, {"x": "float32"}, None)
    assert caught.value.log
    assert capfd.readouterr() == ("", "")


class Returns(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: 3, "returns int"),
        (lambda x: (x, "y"), "returns str"),
        (lambda x: None, "returns NoneType"),
        (lambda x: x @ torch.ones(9, 9), r"fails on x \(2, 3\): RuntimeError"),
        (lambda x: x + torch.rand(3), "different results"),
    ],
)
def test_module_that_cannot_be_exported_is_one_sentence(function, message):
    with pytest.raises(ConfigError, match=message) as caught:
        export_onnx(Returns(function), {"x": (2, 3)}, {"x": "float32"}, None)
    assert caught.value.hint


def test_branch_on_values_is_caught_by_execution():
    # The traced sample takes one path and the compared one the other.
    shape, types = {"x": (1,)}, {"x": "float32"}
    trace, probe = (torch_export._samples(["x"], shape, types, seed)[0] for seed in (0, 1))
    middle = float((trace + probe) / 2)
    module = Returns(lambda x: x * 3 if float(x) > middle else x - 3)
    with pytest.raises(
        Unsupported, match=r"differs from the module: .* on 1 of 1 samples .* test_torch_module.py, line"
    ):
        export_onnx(module, shape, types, None)


@pytest.mark.parametrize(
    ("shapes", "types", "names", "message"),
    [
        ({}, {}, None, "at least one input"),
        ({"scale": (1, 1, 1)}, TYPES, None, "'tokens' before 'scale'"),
        (SHAPES, {"tokens": "int65"}, None, "unknown type 'int65'"),
        (SHAPES, TYPES, ["one", "two", "three"], "3 output names"),
    ],
)
def test_wrong_inputs_are_refused(shapes, types, names, message):
    with pytest.raises(ConfigError, match=message):
        export_onnx(Two(), shapes, types, names)


def test_exported_user_file_imports_back(net):
    module = load(net, "Net")
    model = export_onnx(module, {"x": (1, 3)}, {"x": "float32"}, ["y"])
    assert [node.op_type for node in model.graph.node] == ["Gemm", "Relu"]


def test_a_forward_that_works_in_place_on_its_input_repeats_itself():
    class Doubling(nn.Module):
        def forward(self, x):
            x.mul_(2)
            return x + 1

    model = torch_export.export(Doubling(), {"x": (1, 3)}, {"x": "float32"}, None, torch_export.OPSET).model
    assert [value.name for value in model.graph.input] == ["x"]
