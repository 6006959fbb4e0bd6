"""anynpu.build, check and open: live modules, ONNX models and arrays, with what the command line says and writes."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from dataclasses import fields

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import anynpu
from anynpu.errors import AccuracyError, ConfigError, IntegrityError, Unsupported

RNG = np.random.default_rng(7)
KERNEL = (RNG.standard_normal((4, 3, 3, 3)) * 0.2).astype(np.float32)
MATRIX = (RNG.standard_normal((4 * 64, 5)) * 0.1).astype(np.float32)
SAMPLES = RNG.standard_normal((40, 3, 8, 8)).astype(np.float32)


def graph() -> onnx.ModelProto:
    """Returns a convolution, a ReLU and a matrix product."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["l"]),
        helper.make_node("MatMul", ["l", "m"], ["y"]),
    ]
    made = helper.make_graph(
        nodes,
        "little net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(KERNEL, "w"), numpy_helper.from_array(MATRIX, "m")],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def built() -> anynpu.Build:
    return anynpu.build(graph(), "cpu", SAMPLES)


def test_import_alone_loads_nothing_heavy():
    code = "import sys, anynpu; print(sorted(m for m in sys.modules if m.partition('.')[0] in "
    code += "('numpy', 'click', 'onnx', 'torch', 'onnxruntime', 'rich') or m.startswith('anynpu.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_name_is_there_and_no_other():
    assert all(getattr(anynpu, name) is not None for name in anynpu.__all__)
    assert set(anynpu.__all__) <= set(dir(anynpu))
    with pytest.raises(AttributeError, match="no attribute 'biuld'"):
        anynpu.biuld  # noqa: B018


def test_an_onnx_model_and_an_array(built):
    chip = built["cpu"]
    assert built.ok and chip.ok and chip.error is None and list(built) == ["cpu"] and len(built) == 1
    assert chip.sqnr_db > 25 and chip.cosine > 0.99 and chip.placement is None
    assert chip.verification.samples == 8
    assert built.record.request.source.model == "little net"
    assert built.record.request.rest["data"] == "arrays"


def test_a_session_repeats_the_float_model(built):
    with built["cpu"].open() as session:
        assert [spec.name for spec in session.inputs] == ["x"]
        found = session.run(SAMPLES[:6])["y"]
        assert np.array_equal(session.run({"x": SAMPLES[0]})["y"], found[:1])
        with pytest.raises(ConfigError, match="no input z"):
            session.run({"z": SAMPLES[:1]})
    padded = np.pad(SAMPLES[:6].astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    hidden = np.maximum(np.einsum("nchwij,ocij->nohw", windows, KERNEL), 0)
    wanted = hidden.reshape(6, -1) @ MATRIX
    assert np.sum(wanted**2) / np.sum((found - wanted) ** 2) > 10**2.5


def test_layers_and_texts(built):
    layers = built["cpu"].layers
    assert [layer.kind for layer in layers][-1] == "MatMul" or layers[-1].kind == "Gemm"
    worst = built["cpu"].worst_layers(1)[0]
    assert worst.sqnr_db == min(layer.sqnr_db for layer in layers if layer.sqnr_db is not None)
    text = str(built)
    assert text.splitlines()[0].split()[:2] == ["chip", "result"] and "executed: ONNX Runtime" in text
    page = built._repr_html_()
    assert "<caption>little net</caption>" in page and f"{built['cpu'].sqnr_db:.1f}" in page and "<details>" in page
    assert repr(built) == "<anynpu.Build little net: cpu: ok>"


def test_the_folder_is_that_of_the_command_line(built, cli, tmp_path):
    onnx.save(graph(), str(tmp_path / "net.onnx"))
    np.save(tmp_path / "x.npy", SAMPLES)
    done = cli("build", "-m", "net.onnx", "-t", "cpu", "--data", "x.npy", "-o", "by-command", "-q")
    assert done.returncode == 0, done.stderr
    assert built.save(tmp_path / "by-api") is None

    def files(name):
        return sorted(p.relative_to(tmp_path / name).as_posix() for p in (tmp_path / name).rglob("*") if p.is_file())

    assert files("by-api") == files("by-command")
    record, other = (json.loads((tmp_path / name / "report.json").read_text()) for name in ("by-api", "by-command"))
    assert record["chips"][0]["verification"] == other["chips"][0]["verification"]
    with anynpu.open(tmp_path / "by-api" / "cpu") as session:
        assert session.run(SAMPLES[:1])["y"].shape == (1, 5)
    kept = built.save(tmp_path / "by-api")
    assert kept is not None and kept.name.startswith("by-api.backup-")


def test_a_live_module_for_two_chips_stays_as_it_was():
    torch = pytest.importorskip("torch")
    pytest.importorskip("ai_edge_litert")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.features = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8))
            self.drop = torch.nn.Dropout(0.5)
            self.head = torch.nn.Linear(8, 5)

        def forward(self, picture):
            return {"scores": self.head(self.drop(torch.relu(self.features(picture)).mean((2, 3))))}

    net = Net()
    net.features.eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    built = anynpu.build(net, ["cpu", "tflite"], data={"picture": torch.from_numpy(SAMPLES)})
    assert built.require() is built and list(built) == ["cpu", "tflite"]
    assert net.training and net.drop.training and not net.features.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    with torch.no_grad(), built["tflite"].open() as session:
        wanted = net.eval()(torch.from_numpy(SAMPLES[:4]))["scores"].numpy()
        found = session.run(SAMPLES[:4])["scores"]
    assert np.sum(wanted**2) / np.sum((found - wanted) ** 2) > 10**2


def test_a_module_that_branches_on_values_is_refused():
    torch = pytest.importorskip("torch")

    class Branching(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.line(x) if x.sum() > 100 else -self.line(x)

    near = np.ones((20, 4), np.float32) * np.linspace(0, 60, 20, dtype=np.float32)[:, None]
    with pytest.raises(Unsupported, match="reads values of its input"):
        anynpu.build(Branching(), "cpu", near)


def test_a_module_with_states_sequences_first_and_a_number_as_result():
    torch = pytest.importorskip("torch")

    class Recurrent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = torch.nn.GRU(3, 4, num_layers=2)

        def forward(self, x, state):
            y, state = self.cell(x, state)
            return y.abs().mean(), state

    rng = np.random.default_rng(0)
    samples = {"x": rng.normal(size=(20, 5, 1, 3)), "state": rng.normal(size=(20, 2, 1, 4))}
    samples = {name: array.astype(np.float32) for name, array in samples.items()}
    net = Recurrent()
    built = anynpu.build(net, ["cpu"], data=samples, shape={"x": (5, 1, 3), "state": (2, 1, 4)})
    assert built["cpu"].ok, built["cpu"].error
    with built["cpu"].open() as session, torch.no_grad():
        here = session.run({name: array[:1] for name, array in samples.items()})
        number, state = net(*(torch.from_numpy(array[0]) for array in samples.values()))
    names = list(here)
    assert here[names[0]].shape == (1,) and here[names[0]][0] == pytest.approx(float(number), abs=0.05)
    np.testing.assert_allclose(here[names[1]], state.numpy(), atol=0.1)


def test_labels_and_a_metric():
    labels = (SAMPLES.reshape(40, -1)[:, :5]).argmax(1)
    built = anynpu.build(graph(), "cpu", {"x": SAMPLES, "labels": labels}, metric="top1", max_drop=100.0)
    chip = built["cpu"]
    assert 0 <= chip.score <= 1 and 0 <= chip.score_float <= 1
    assert any("max-drop 100 points instead of 5 points, set by the keyword max_drop" in note for note in built.notes)


def test_what_fails_on_one_chip_is_its_result():
    built = anynpu.build(graph(), ["cpu", "null"], SAMPLES, min_sqnr=90.0)
    assert not built.ok and built.exit_status == AccuracyError.exit_status
    assert built["cpu"].status == "AccuracyError" and built["cpu"].sqnr_db < 90
    assert "cpu: " in str(built) and "<p>cpu: " in built._repr_html_()
    with pytest.raises(AccuracyError):
        built.require()
    with pytest.raises(AccuracyError):
        built["cpu"].open()
    with pytest.raises(KeyError, match="did you mean 'cpu'"):
        built["cpus"]


@pytest.mark.parametrize(
    ("keywords", "kind", "sentence"),
    [
        ({"chips": ()}, ConfigError, "no chip"),
        ({"chips": "cpuu"}, ConfigError, "did you mean"),
        ({"metirc": "top1"}, ConfigError, "metirc: no such keyword (did you mean 'metric'?)"),
        ({"methodd": "mse"}, ConfigError, "method"),
        ({"data": None}, ConfigError, "samples|data"),
        ({"data": np.full((4, 3, 8, 8), np.nan, np.float32)}, IntegrityError, "^data.npy: input x holds NaN"),
        ({"data": {"z": SAMPLES}}, ConfigError, "^data.npz lacks input x"),
        ({"data": np.array([object()])}, ConfigError, "numbers were expected"),
        ({"model": 3}, ConfigError, "int: not a model"),
        ({"require_npu": 1.5}, ConfigError, "0% to 100%"),
    ],
)
def test_bad_requests_raise_in_one_sentence(keywords, kind, sentence):
    import re

    asked = {"model": graph(), "chips": "cpu", "data": SAMPLES, **keywords}
    with pytest.raises(kind) as caught:
        anynpu.build(**asked)
    pattern = re.escape(sentence) if "(" in sentence else sentence
    assert re.search(pattern, f"{caught.value.message} {caught.value.hint}"), caught.value.message


def test_the_keywords_are_the_flags_of_the_verb_and_hold_no_default():
    from anynpu.api.keywords import BuildKeywords, CheckKeywords, OptionKeywords
    from anynpu.cli.build import Build as Verb
    from anynpu.cli.verb import Common
    from anynpu.quantize.plan import QuantPlan

    flags = {each.name for each in fields(Verb)} - {each.name for each in fields(Common)} | {"cache_dir"}
    flags -= {"model", "target", "data", "config", "plan", "origins"}  # arguments, and what a program has no use for
    assert {*OptionKeywords.__annotations__} == {each.name for each in fields(QuantPlan)} | {"option"}
    options = {*OptionKeywords.__annotations__} - {"option"}
    assert {*BuildKeywords.__annotations__} - options == flags | {"observer"}
    shown = inspect.signature(anynpu.build).parameters
    assert {*BuildKeywords.__annotations__} == {name for name in shown if shown[name].kind is shown[name].KEYWORD_ONLY}
    assert {*CheckKeywords.__annotations__} < {*shown} and "metric" not in inspect.signature(anynpu.check).parameters
    assert all(each.default is None for each in shown.values() if each.kind is each.KEYWORD_ONLY)


def test_a_module_needs_shapes_without_samples():
    torch = pytest.importorskip("torch")
    with pytest.raises(ConfigError, match="does not say what its inputs look like"):
        anynpu.build(torch.nn.Linear(4, 2), "cpu", "random:20")
    built = anynpu.build(torch.nn.Linear(4, 2), "cpu", "random:20", shape={"x": (1, 4)}, output_names=["y"])
    assert [spec.name for spec in built.model.manifest.outputs] == ["y"]


def test_check_finds_what_is_in_the_way():
    pytest.importorskip("ethosu")
    checks = anynpu.check(graph(), ["cpu", "ethos-u55-128"])
    assert checks.ok and checks.exit_status == 0 and str(checks).splitlines()[0] == "cpu: nothing in the way"
    sick = graph()
    sick.graph.node[3].op_type = "Einsum"
    sick.graph.node[3].attribute.append(helper.make_attribute("equation", "ab,bc->ac"))
    sick.graph.node.insert(3, helper.make_node("Erf", ["l"], ["e"]))
    sick.graph.node[4].input[0] = "e"
    assert anynpu.check(sick, "cpu").findings() == []
