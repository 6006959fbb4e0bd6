"""Labels mean one thing in every verb, metrics are known before anything runs, and the gate in force is shown."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from given_calls import CLASSES, call, write_labelled, write_linear
from PIL import Image

from anynpu.cli.main import main
from anynpu.errors import ConfigError
from anynpu.measure.fidelity import compare_arrays
from anynpu.measure.labels import folder_classes, read_labels
from anynpu.measure.verify import Gate, Verification
from anynpu.pipeline.request import Request
from anynpu.pipeline.result import ChipResult
from anynpu.records.load import load
from anynpu.report import junit, markdown
from anynpu.report.html import render
from anynpu.source.load import ModelSource
from anynpu.tasks.images import evenly
from anynpu.tensors import TensorSpec

COLOURS = ("red", "green", "blue")
CARD = f"""
kind = "classify"
labels = {list(COLOURS)}
[preprocess]
size = [4, 4]
resize = "stretch"
"""


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a built classifier; its gate comes from a file, a variable and a flag."""
    folder = tmp_path_factory.mktemp("labelled")
    write_linear(folder / "net.onnx")
    write_labelled(folder / "x.npz")
    (folder / "gate.toml").write_text("min_sqnr = -50.0\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("ANYNPU_BUILD_MAX_DROP", "90")
        words = ["build", "-m", "net.onnx", "-t", "cpu", "--data", "x.npz", "--metric", "top1", "-o", "out"]
        assert main([*words, "-c", "gate.toml", "--require-npu", "50%", "-q"]) == 0
    return folder


@pytest.fixture
def here(built: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the built classifier, where the test runs."""
    monkeypatch.chdir(built)
    return built


BUILD = ("build", "-m", "net.onnx", "-t", "cpu", "-q")
FORCED = (
    "gate in force: require-npu 50 % instead of 100 %, set by --require-npu",
    "gate in force: min-sqnr -50 dB instead of 10 dB, set by gate.toml",
    "gate in force: max-drop 90 points instead of 5 points, set by ANYNPU_BUILD_MAX_DROP",
)


@pytest.mark.parametrize("file", ["report.md", "report.html", "report.junit.xml", "report.json"])
def test_the_gate_in_force_and_its_origin_are_in_every_report(here, file):
    text = (here / "out" / file).read_text("utf-8")
    for line in FORCED:
        assert line in text, line


def test_the_gate_in_force_is_under_the_closing_table(here, capsys, monkeypatch):
    monkeypatch.setenv("ANYNPU_BUILD_MIN_SQNR", "-50")
    answer = call(capsys, *BUILD, "-o", "other", "--data", "x.npz", "--metric", "top1", "--overwrite")
    assert answer.status == 0
    assert "gate in force: min-sqnr -50 dB instead of 10 dB, set by ANYNPU_BUILD_MIN_SQNR" in answer.out


def test_a_part_of_the_gate_that_judges_nothing_is_said(here):
    notes = json.loads((here / "out/report.json").read_text("utf-8"))["notes"]
    assert "--require-npu: require-npu has no effect, none of these chips has an NPU" in notes


def test_a_default_gate_is_recorded_and_not_talked_of():
    request = Request(ModelSource("zoo:kws"), ("cpu",))
    assert [each.changed for each in request.thresholds] == [False] * len(request.thresholds)
    assert len(request.thresholds) == 1 + len(Gate.__dataclass_fields__)


def test_a_result_that_only_the_lowered_gate_lets_pass_is_named():
    truth = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
    outputs = {"y": compare_arrays("y", truth, truth + truth[::-1], 1)}
    proof = Verification("here", "ort", "", 20, True, outputs)
    platform = SimpleNamespace(npu="", name="cpu", title="cpu")
    artifact = SimpleNamespace(manifest=SimpleNamespace(placement=None))
    chip = ChipResult("cpu", platform, (artifact,), verification=proof)  # type: ignore[arg-type]
    assert chip.status == "ok" and "10 dB is asked for" in chip.by_gate_only


def test_compare_shows_its_gate(here, capsys):
    answer = call(capsys, "compare", "out/float", "out/cpu", "--data", "x.npz", "--min-sqnr", "-50", "--margin", "90%")
    assert "gate in force: min-sqnr -50 dB instead of 10 dB, set by --min-sqnr" in answer.out
    assert "gate in force: margin 90 % instead of 1 %, set by --margin" in answer.out


def test_eval_and_its_reports_show_the_level(here, capsys):
    words = ["eval", "out/cpu", "--data", "x.npz", "--against", "out/float", "--allow-overlap", "--level", "0.5"]
    printed = call(capsys, *words, "-f", "json", "-q").out
    record = load(json.loads(printed), "x")
    line = "gate in force: level 0.5 instead of 0.05, set by --level"
    for text in (markdown.render(record), render(record), junit.render(record), printed):
        assert line in text


def test_regress_shows_its_gate(here, capsys):
    answer = call(capsys, "regress", "--add", "out/report.json", "--ledger", "ledger.jsonl", "--margin", "50%")
    assert "gate in force: margin 50 % instead of 1 %, set by --margin" in answer.out


def test_sweep_shows_its_gate(here, capsys):
    words = ["sweep", "-m", "net.onnx", "-t", "cpu", "--data", "x.npz", "--metric", "top1", "-o", "s", "-j", "1", "-q"]
    answer = call(capsys, *words, "--min-sqnr", "-50")
    assert "gate in force: min-sqnr -50 dB instead of 10 dB, set by --min-sqnr" in answer.out
    assert FORCED[1].replace("gate.toml", "--min-sqnr") in (here / "s/report.html").read_text("utf-8")


def test_unpu_bench_shows_its_gate(here, capsys):
    words = ["unpu-bench", "--target_format", "onnx", "--model", "net.onnx", "--model_name", "net", "--out_dir", "u"]
    answer = call(capsys, *words, "--data_sample", "x.npz", "--min_sqnr", "-50", "-q")
    assert answer.status == 0 and "gate in force: min-sqnr -50 dB instead of 10 dB, set by --min_sqnr" in answer.out


ONES = np.ones(60, np.int64)
BAD = [
    pytest.param(ONES - 2, "labels from -1 to -1 for 3 classes", id="negative"),
    pytest.param(ONES + 2, "labels from 3 to 3 for 3 classes", id="out-of-range"),
    pytest.param(ONES + 0.5, "labels such as 1.5 are not class numbers", id="fractional"),
    pytest.param(ONES * np.nan, "labels hold NaN or infinity", id="nan"),
    pytest.param(ONES[:50], "50 labels for 60 samples", id="too-few"),
    pytest.param(np.ones(700, np.int64), "700 labels for 60 samples", id="too-many"),
    pytest.param(np.ones((60, 2), np.int64), "labels of shape [2] for each sample: one class number", id="two-columns"),
    pytest.param(np.full((60, 3), 0.4), "are not class numbers", id="soft"),
    pytest.param(np.array(["cat"] * 60), "which of the 3 classes is cat?", id="unknown-names"),
]


@pytest.mark.parametrize(("labels", "words"), BAD)
@pytest.mark.parametrize("verb", ["build", "eval", "compare"])
def test_labels_that_are_no_classes_are_refused(here, capsys, verb, labels, words):
    write_labelled(here / "bad.npz", labels=labels)
    start = {
        "build": (*BUILD, "-o", "refused"),
        "eval": ("eval", "out/cpu", "-q"),
        "compare": ("compare", "out/float", "out/cpu"),
    }[verb]
    answer = call(capsys, *start, "--data", "bad.npz", "--metric", "top1")
    assert answer.status == 2 and words in answer.err, answer.err
    assert not (here / "refused").exists()


GOOD = [
    pytest.param(lambda truth: truth.astype(np.float64), "", id="whole-floats"),
    pytest.param(lambda truth: truth[:, None], "", id="a-column"),
    pytest.param(lambda truth: np.eye(CLASSES)[truth], "one-hot labels, taken as class numbers", id="one-hot"),
    pytest.param(lambda truth: truth.astype(str), "0 = 0, 1 = 1, 2 = 2", id="numbers-as-text"),
]


@pytest.mark.parametrize(("form", "words"), GOOD)
def test_labels_in_other_forms_mean_the_same(here, capsys, form, words):
    truth = write_labelled(here / "other.npz")
    write_labelled(here / "other.npz", labels=form(truth))
    words_of = ["eval", "out/float", "--data", "other.npz", "--metric", "top1", "-f", "json", "-q"]
    record = json.loads(call(capsys, *words_of).out)
    assert record["score"] == 1.0 and words in "".join(record["notes"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["--metric", "topp1"], "--metric topp1: no such metric (did you mean 'top1'?)", id="build"),
        pytest.param(["--metric", "mse"], "--metric mse: no such metric", id="build-mse"),
    ],
)
def test_an_unknown_metric_is_known_before_the_model_is_read(here, capsys, words, message):
    (here / "damaged.onnx").write_bytes(b"no model")
    answer = call(capsys, "build", "-m", "damaged.onnx", "-t", "cpu", "-o", "other", "--data", "x.npz", *words)
    assert answer.status == 2 and message in answer.err


@pytest.mark.parametrize("data", ["x.npy", "random:20"])
def test_a_metric_without_labels_is_refused_before_the_conversion(here, capsys, data):
    np.save(here / "x.npy", np.load(here / "x.npz")["x"])
    answer = call(capsys, *BUILD, "-o", "refused", "--data", data, "--metric", "top1")
    assert answer.status == 2 and f"--metric top1: {data} has no labels" in answer.err


@pytest.mark.parametrize("metric", ["mean_top1", "auc_reconstruction", "map50"])
def test_a_metric_that_does_not_fit_the_model_is_refused_before_the_conversion(here, capsys, metric):
    write_labelled(here / "bad.npz", labels=ONES)
    answer = call(capsys, *BUILD, "-o", "refused", "--data", "bad.npz", "--metric", metric)
    assert answer.status == 2 and metric in answer.err


def test_labels_that_nothing_scores_are_said(here, capsys):
    answer = call(capsys, *BUILD, "-o", "other", "--data", "x.npz", "--overwrite")
    assert answer.status == 0 and "x.npz has labels, which nothing scores without a --metric" in answer.out


def test_a_max_drop_without_a_metric_is_said(here, capsys):
    answer = call(capsys, *BUILD, "-o", "other", "--data", "x.npz", "--overwrite", "--max-drop", "3")
    assert "--max-drop: max-drop has no effect without a --metric" in answer.out


@pytest.mark.parametrize(
    ("folders", "names", "wanted"),
    [
        pytest.param(("blue", "green", "red"), COLOURS, [2, 1, 0], id="by-name"),
        pytest.param(("blue", "red"), COLOURS, [2, 0], id="some-of-them"),
        pytest.param(("Blue", "GREEN", "red"), COLOURS, [2, 1, 0], id="case"),
        pytest.param(("hot_dog", "tench"), ("tench", "hot dog"), [1, 0], id="underscore"),
        pytest.param(("0", "1", "10", "2"), tuple(map(str, range(11))), [0, 1, 10, 2], id="numbers"),
        pytest.param(("00", "01", "02"), COLOURS, [0, 1, 2], id="padded-numbers"),
        pytest.param(("1", "2", "3"), COLOURS, [0, 1, 2], id="numbers-from-one"),
        pytest.param(("n01440764", "n02102040"), ("n02102040 spaniel", "n01440764 tench"), [1, 0], id="synsets"),
    ],
)
def test_folders_are_mapped_and_the_mapping_is_said(folders, names, wanted):
    numbers, note = folder_classes(folders, names, {})
    assert numbers == wanted
    assert all(f"{folder} = {number}" in note for folder, number in zip(folders, wanted, strict=True))


@pytest.mark.parametrize(
    ("folders", "named", "words"),
    [
        pytest.param(("a", "b", "c", "d"), True, "4 sub-folders for 3 classes", id="more-than-classes"),
        pytest.param(("blue", "cyan"), True, "the card has no label cyan", id="one-unknown"),
        pytest.param(("cat", "dog"), False, "which of the 3 classes is cat?", id="no-names"),
        pytest.param(("0", "7"), True, "sub-folder 7: the model has 3 classes, 0 to 2", id="number-too-large"),
        pytest.param(("Blue", "blue"), True, "are one label of the card", id="two-for-one"),
        pytest.param(("01", "1"), True, "two sub-folders have one number", id="one-number-twice"),
    ],
)
def test_folders_that_are_no_classes_are_refused(folders, named, words):
    with pytest.raises(ConfigError, match=words):
        folder_classes(folders, COLOURS if named else ("0", "1", "2"), {}, named=named)


def test_a_regressor_has_no_classes_to_score():
    with pytest.raises(ConfigError, match="0 to 0"):
        read_labels("top1", np.array([0, 1]), (), [TensorSpec("y", (1, 1))], (), "x.npz")


def test_anomalies_are_not_numbered_by_the_alphabet():
    output = [TensorSpec("y", (1, 8))]
    with pytest.raises(ConfigError, match="folder anomaly says no class"):
        read_labels("auc_reconstruction", np.array([0, 1]), ("anomaly", "normal"), output, (), "data")


def test_a_limit_takes_images_of_every_class():
    found = [(Path(f"{label}/{at}.png"), label) for label in range(3) for at in range(100)]
    labels = [label for _, label in evenly(found, 30)]
    assert labels == [0] * 10 + [1] * 10 + [2] * 10


def test_build_and_eval_score_a_folder_alike(here, capsys):
    write_colours(here / "photos")
    (here / "card.toml").write_text(CARD)
    write_averages(here / "mean.onnx")
    words = ["build", "-m", "mean.onnx", "-t", "cpu", "--task", "card.toml", "--data", "photos", "--metric", "top1"]
    answer = call(capsys, *words, "-o", "colours", "-f", "json", "-q", "--overwrite")
    record = json.loads(answer.out)
    assert record["chips"][0]["verification"]["score_float"] == 1.0
    assert "classes by name: blue = 2, green = 1, red = 0" in record["notes"]
    scored = json.loads(call(capsys, "eval", "colours/float", "--data", "photos", "-f", "json", "-q").out)
    assert scored["score"] == 1.0 and "classes by name: blue = 2, green = 1, red = 0" in scored["notes"]


def write_colours(folder: Path) -> None:
    """Writes pictures of three colours, one sub-folder each."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(COLOURS):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for at in range(8):
            pixels = rng.integers(0, 60, (4, 4, 3), np.uint8)
            pixels[..., number] += 150
            Image.fromarray(pixels).save(folder / name / f"{at}.png")


def write_averages(path: Path) -> None:
    """Writes a model that gives the mean of every colour."""
    from onnx import TensorProto, helper, numpy_helper

    kernel = np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Flatten", ["p"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 4, 4])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])]
    graph = helper.make_graph(nodes, "mean", inputs, outputs, [numpy_helper.from_array(kernel, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
