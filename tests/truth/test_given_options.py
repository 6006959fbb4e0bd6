"""What is given is used or refused: every option of every verb, and flags that this call has no use for."""

from __future__ import annotations

import ast
import importlib
import json
from pathlib import Path

import click
import numpy as np
import onnx
import pytest
from given_calls import Answer, call, commands, write_labelled, write_linear
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from anynpu import cli
from anynpu.cli.command import Command, Group, flag_of
from anynpu.cli.unpu_bench import LISTS
from anynpu.graph.indices import index_sizes
from anynpu.quantize.calibration import load_data
from anynpu.tensors import TensorSpec

EVERY = [(path, command, param) for path, command in commands() for param in command.params]
OPTIONS = [each for each in EVERY if isinstance(each[2], click.Option)]
SINGLE = [(path, o) for path, _, o in OPTIONS if not (o.multiple or o.is_flag or o.count)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small model, samples and a picture, where every call runs."""
    monkeypatch.chdir(tmp_path)
    write_linear(tmp_path / "net.onnx")
    write_labelled(tmp_path / "x.npz")
    np.save(tmp_path / "x.npy", np.load(tmp_path / "x.npz")["x"])
    Image.new("RGB", (8, 8)).save(tmp_path / "photo.png")
    return tmp_path


def refused(answer: Answer, words: str) -> None:
    assert answer.status == 2, answer.all
    assert words in answer.err, answer.err


def test_every_command_is_of_the_kind_that_refuses():
    assert all(isinstance(command, Command | Group) for _, command in commands())


def test_a_flag_given_twice_with_different_values_is_refused(capsys):
    for path, option in SINGLE:
        if path == ("unpu-bench",) and option.name in LISTS:
            continue  # lists go on
        refused(
            call(capsys, *path, option.opts[-1], "1", option.opts[-1], "2"),
            f"{flag_of(option)} is given more than once: 1, 2",
        )


def test_an_empty_value_is_refused(capsys):
    for path, option in SINGLE:
        refused(call(capsys, *path, option.opts[-1], ""), f"{flag_of(option)} is empty")


def test_numbers_that_are_none_are_refused(capsys):
    kinds = (click.types.FloatParamType, click.types.IntParamType)
    numeric = [(path, option) for path, option in SINGLE if isinstance(option.type, kinds)]
    assert len(numeric) > 40
    for path, option in numeric:
        for value in ("nan", "inf", "five"):
            answer = call(capsys, *path, *_arguments(path), option.opts[-1], value)
            assert answer.status == 2 and option.opts[-1].lstrip("-") in answer.err, (path, option.name, answer.err)


def test_values_out_of_range_and_unknown_choices_are_refused(capsys):
    bounded = [(path, o) for path, o in SINGLE if isinstance(o.type, click.IntRange | click.FloatRange | click.Choice)]
    assert len(bounded) > 80
    for path, option in bounded:
        low = getattr(option.type, "min", None)
        value = "nothing-of-the-kind" if isinstance(option.type, click.Choice) else str(-1 if low is None else low - 1)
        answer = call(capsys, *path, *_arguments(path), f"{option.opts[-1]}={value}")
        assert answer.status == 2 and "invalid value" in answer.err, (path, option.name, answer.err)


def _arguments(path: tuple[str, ...]) -> list[str]:
    """Returns positional arguments and required flags with which a command gets as far as its options."""
    command = dict(commands())[path]
    found = []
    for param in command.params:
        if isinstance(param, click.Argument) and param.required:
            found.append("nothing")
        elif isinstance(param, click.Option) and param.required:
            found += [param.opts[-1], "nothing"]
    return found


def test_every_option_is_read_by_the_code(capsys):
    shared = ("options", "run", "task", "compare", "command", "build", "unpu_bench", "bench_http", "compare_http")
    shared += ("flags", "search_index", "verb")
    names: dict[str, set[str]] = {}
    for file in Path(cli.__file__).parent.glob("*.py"):
        names[file.stem] = _read_names(ast.parse(file.read_text("utf-8")))
    common = set().union(*(names[name] for name in shared))
    for path, command, param in EVERY:
        module = importlib.import_module(command.callback.__module__).__name__.rpartition(".")[2]
        if module == "unpu_bench":
            continue  # its flags come from the options of compilers (tests/cli/unpu_bench)
        known = names[module] | names.get(f"{module}_flags", set()) | common
        assert param.name in known or param.name == "verbose", (path, param.name)


DECLARES = ("click.option", "click.argument", "flag", "argument", "table")


def _read_names(tree: ast.AST) -> set[str]:
    """Returns every name and text of a module outside of the declarations of its flags."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = []
        if isinstance(node, ast.Call) and ast.unparse(node.func) in DECLARES:
            node.args, node.keywords = [], []
        if isinstance(node, ast.ClassDef):  # a field is declared there, not read
            node.body = [each for each in node.body if not isinstance(each, ast.AnnAssign)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def test_a_misspelled_environment_variable_is_said(capsys, monkeypatch):
    monkeypatch.setenv("ANYNPU_BUILD_MIN_SQNRR", "3")
    answer = call(capsys, "build", "--plan", "-m", "zoo:kws", "-t", "null")
    assert "ANYNPU_BUILD_MIN_SQNRR: no such setting (did you mean 'ANYNPU_BUILD_MIN_SQNR'?)" in answer.err


def test_a_bad_environment_variable_is_refused_by_its_name(capsys, monkeypatch):
    monkeypatch.setenv("ANYNPU_BUILD_LIMIT", "many")
    refused(call(capsys, "build", "--plan", "-m", "zoo:kws", "-t", "null"), "(from ANYNPU_BUILD_LIMIT)")


@pytest.mark.parametrize("verb", ["build", "sweep"])
def test_every_target_is_built(capsys, verb):
    answer = call(capsys, verb, "--plan", "-m", "zoo:kws", "-t", "cpu", "-t", "null,cpu", "-f", "json", "-o", "out")
    record = json.loads(answer.out)
    chips = {row["chip"] for row in record.get("steps") or record["cells"]}
    assert {"cpu", "null"} <= chips
    assert "cpu is named 2 times: it is taken once" in answer.err


def test_check_asks_for_every_target(capsys):
    answer = call(capsys, "check", "-m", "net.onnx", "-t", "null", "-t", "cpu", "-f", "json", "-q")
    assert [row["chip"] for row in json.loads(answer.out)["chips"]] == ["null", "cpu"]


BUILD = ("build", "-m", "net.onnx", "-t", "cpu", "-o", "out")
DATA = ("--data", "x.npz")
UNUSED = [
    pytest.param([*BUILD, *DATA, "--ckpt", "a.pth"], "not with an ONNX file", id="ckpt-onnx"),
    pytest.param([*BUILD, *DATA, "--arg", "a=1"], "not with an ONNX file", id="arg-onnx"),
    pytest.param([*BUILD, *DATA, "--dtype", "x=int64"], "--dtype goes with a PyTorch model", id="dtype-onnx"),
    pytest.param([*BUILD, *DATA, "--output-names", "a"], "--output-names goes with a PyTorch", id="output-names-onnx"),
    pytest.param([*BUILD, *DATA, "--fix", "q=1"], "the model has no input q", id="fix-no-input"),
    pytest.param([*BUILD, *DATA, "--end-at", "q"], "q: is not one of the model's", id="end-at-no-tensor"),
    pytest.param(
        ["build", "-m", "zoo:kws", "-t", "cpu", "-o", "out", "--end-at", "q"],
        "--end-at goes with an ONNX or a TFLite file",
        id="end-at-zoo",
    ),
    pytest.param([*BUILD, *DATA, "--trust-checkpoint"], "no effect without --ckpt", id="trust-without-ckpt"),
    pytest.param(
        ["build", "-m", "zoo:kws", "-t", "cpu", "-o", "out", "--ckpt", "a.pth"], "a model of the zoo", id="ckpt-zoo"
    ),
    pytest.param(
        ["build", "-m", "zoo:kws", "-t", "cpu", "-o", "out", "-P", "mean=1"], "-P has no effect", id="preprocess-zoo"
    ),
    pytest.param([*BUILD, *DATA, "-P", "mean=0.5"], "-P has no effect: x.npz", id="preprocess-npz"),
    pytest.param([*BUILD, "--data", "x.npy", "-P", "mean=0.5"], "-P has no effect: x.npy", id="preprocess-npy"),
    pytest.param([*BUILD, "--data", "random:8", "-P", "mean=1"], "-P has no effect: random:8", id="preprocess-random"),
    pytest.param([*BUILD, *DATA, "--channels", "x=QQQ"], "--channels x=QQQ: no such order", id="channels-unknown"),
    pytest.param([*BUILD, *DATA, "--channels", "x=RGB"], "has not 3 channels", id="channels-of-a-vector"),
    pytest.param([*BUILD, *DATA, "--channels", "q=RGB"], "the model has no tensor q", id="channels-no-tensor"),
    pytest.param([*BUILD, *DATA, "--layout", "x=XY"], "--layout x=XY: no such layout", id="layout-unknown"),
    pytest.param([*BUILD, *DATA, "--layout", "x=NN"], "--layout x=NN: names an axis twice", id="layout-twice"),
    pytest.param([*BUILD, *DATA, "--layout", "x=NCHW"], "2 axes", id="layout-rank"),
    pytest.param([*BUILD, *DATA, "--shape", "q=1,3"], "no input 'q'", id="shape-no-input"),
    pytest.param([*BUILD, *DATA, "--tokenizer", "t"], "--tokenizer goes with --task", id="tokenizer-without-task"),
    pytest.param([*BUILD, *DATA, "-O", "zeal=9"], "-O zeal: no such option", id="option-unknown"),
    pytest.param([*BUILD, *DATA, "-O", "vela.optimise=size"], "no such option", id="option-of-another-chip"),
    pytest.param([*BUILD, *DATA, "-O", "method=mse", "-O", "method=minmax"], "given twice", id="option-twice"),
    pytest.param(
        [*BUILD, *DATA, "-O", "method=mse", "-O", "cpu.method=minmax"], "given another value too", id="option-two-ways"
    ),
    pytest.param([*BUILD, *DATA, "--require-npu", "150%"], "a share such as 95%", id="require-npu-150"),
    pytest.param([*BUILD, "--data", "random:8,0..9"], "the model has none", id="range-without-integers"),
    pytest.param([*BUILD, "--data", "random:8,q=0..9"], "no input q", id="range-no-input"),
    pytest.param([*BUILD, "--data", "random:8,9..0"], "9..0 is not a range", id="range-backwards"),
    pytest.param(["check", *BUILD[1:5], "--test", "x.npz"], "--test has no effect here", id="check-test"),
    pytest.param(["show", "net.onnx", "-m", "zoo:kws"], "--model has no effect here", id="show-two-models"),
    pytest.param(["show", ".", "--ckpt", "a.pth"], "--ckpt has no effect here", id="show-folder-ckpt"),
    pytest.param(["show", "--layers", "-m", "zoo:kws"], "--model has no effect here", id="show-layers-model"),
    pytest.param(["run", "out", "-i", "x.npy", "--overwrite"], "--overwrite has no effect here", id="run-overwrite"),
    pytest.param(["eval", "out", *DATA, "--overwrite"], "--overwrite has no effect here", id="eval-overwrite"),
    pytest.param(["bench", "out", "--overwrite"], "--overwrite has no effect here", id="bench-overwrite"),
    pytest.param(["embed", "out", "--text", "a", "--overwrite"], "there is no -o", id="embed-overwrite"),
    pytest.param(["detect", "out", "photo.png", "--overwrite"], "there is no -o", id="detect-overwrite"),
    pytest.param(["eval", "out", *DATA, "--level", "0.1"], "there is no --against", id="eval-level"),
    pytest.param(["eval", "out", *DATA, "--template", "a {}"], "there is no --text-model", id="eval-template"),
    pytest.param(["compare", "a", "b", "--time", "--limit", "3"], "there is no --data", id="compare-limit"),
    pytest.param(["compare", "a", "b", "--time", "--metric", "top1"], "there is no --data", id="compare-metric"),
    pytest.param(["compare", "a", "b", "--time", "--min-sqnr", "3"], "there is no --data", id="compare-min-sqnr"),
    pytest.param(["compare", "a", "b", *DATA, "--launches", "9"], "there is no --time", id="compare-launches"),
    pytest.param(["compare", "x.npz", "x.npy", "--on", "ort"], "two records were given", id="compare-on-records"),
    pytest.param(["bench", "out", "--seed", "1"], "the scenario is single-stream", id="bench-seed"),
    pytest.param(["bench", "out", "--streams", "2"], "the scenario is single-stream", id="bench-streams"),
    pytest.param(["bench", "out", "--percentile", "90"], "there is no --bound", id="bench-percentile"),
    pytest.param(["bench", "out", "--body", "x.json"], "it is for the URL of a server", id="bench-body"),
    pytest.param(["bench", "out", "-n", "5", "--min-time", "9"], "an exact number of runs", id="bench-runs-and-time"),
    pytest.param(["bench", "http://a", "--scope", "infer"], "a server is measured", id="bench-http-scope"),
    pytest.param(
        ["sweep", "-m", "zoo:kws", "-t", "cpu", "-o", "s", "--cluster", "tcp://a:1", "-j", "2"],
        "--jobs",
        id="sweep-jobs",
    ),
    pytest.param(["classify", "out", "photo.png", "--template", "a {}"], "no --labels", id="classify-template"),
    pytest.param(["detect", "out", "photo.png", "--frames", "3"], "no video and no camera", id="detect-frames"),
    pytest.param(["firmware", "out"], "for which board is out?", id="firmware-without-board"),
    pytest.param(["firmware", "--overwrite"], "--overwrite has no effect here", id="firmware-list-overwrite"),
    pytest.param(["report", "--schema", "build", "--as", "junit"], "--as has no effect here", id="report-schema-as"),
    pytest.param(["deploy", ".", "--via", "volume:/m", "--chip", "RP2040"], "--chip has no effect", id="deploy-volume"),
]


@pytest.mark.parametrize(("arguments", "words"), UNUSED)
def test_a_flag_without_effect_is_refused(capsys, arguments, words):
    refused(call(capsys, *arguments), words)


def test_devices_that_there_are_not_and_flags_for_boards_are_refused(capsys):
    assert call(capsys, *BUILD[:3], "-t", "null", "-o", "out", *DATA, "-q").status == 0
    for words in (["run", "out/null", "-i", "x.npy"], ["bench", "out/null"], ["eval", "out/null", *DATA]):
        answer = call(capsys, *words, "--on", "nosuch")
        assert answer.status in (2, 4) and "nosuch" in answer.err, answer.err
        np.save("one.npy", np.zeros((1, 3), np.float32))
        words = [word.replace("x.npy", "one.npy") for word in words]
        refused(call(capsys, *words, "--timeout", "3"), "--timeout has no effect here: nothing runs on a board")
    refused(call(capsys, "embed", "out/null", "--tokenizer", "t", "--text", "a"), "--tokenizer goes with --task")


def test_samples_that_the_limit_leaves_out_are_said(capsys):
    answer = call(capsys, *BUILD[:3], "-t", "null", "-o", "out", "--data", "random:600", "-q")
    assert answer.status == 0 and "512 of 600 samples are taken; --limit is for more" in answer.out


def test_a_table_of_the_file_keeps_what_no_flag_names(capsys, folder):
    (folder / "b.toml").write_text('model = "net.onnx"\ntarget = ["cpu"]\n[option]\nmethod = "mse"\nzeal = "9"\n')
    refused(call(capsys, "build", "-c", "b.toml", *DATA, "-o", "out", "-O", "weights=per-tensor"), "-O zeal")


def test_unpu_bench_takes_every_format_and_says_what_it_has_no_use_for(capsys):
    words = ["unpu-bench", "--model", "net.onnx", "--model_name", "a", "--out_dir", "out", "--data_sample", "x.npz"]
    formats = ["--target_format", "onnx", "--target_format", "vela"]
    answer = call(capsys, *words, *formats, "--target_hardware", "cortex-m4")
    refused(answer, "format vela does not build for cortex-m4")
    answer = call(capsys, *words, "--target_format", "onnx", "--input_names", "a", "a")
    refused(answer, "--input_names a: is given twice")


def _embedder(rows: int) -> onnx.ModelProto:
    """Returns a model that looks `ids` up in a table and multiplies by a mask."""
    table = np.random.default_rng(0).standard_normal((rows, 4)).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["ids"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "whole"], ["found"]),
        helper.make_node("Cast", ["mask"], ["weight"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["weight", "last"], ["wide"]),
        helper.make_node("Mul", ["found", "wide"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT32, [1, 6]) for name in ("ids", "mask")]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 6, 4])]
    constants = [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.array([2]), "last")]
    graph = helper.make_graph(nodes, "embedder", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_random_integers_reach_the_whole_embedding():
    specs = [TensorSpec(name, (1, 6), "int32") for name in ("ids", "mask")]
    sizes = index_sizes(_embedder(1000))
    assert sizes == {"ids": 1000}
    data = load_data("random:64", specs, index_sizes=sizes)
    assert data.inputs["ids"].min() >= 0 and 900 < data.inputs["ids"].max() < 1000
    assert set(np.unique(data.inputs["mask"])) == {0, 1}


def test_random_integers_take_a_range():
    specs = [TensorSpec("ids", (1, 6), "int64"), TensorSpec("mask", (1, 6), "bool"), TensorSpec("x", (1, 6))]
    data = load_data("random:64:3,5..9,x=0..1", specs)
    assert set(np.unique(data.inputs["ids"])) == {5, 6, 7, 8, 9}
    assert set(np.unique(data.inputs["mask"])) == {False, True}
    assert 0 <= data.inputs["x"].min() < 0.1 and 0.9 < data.inputs["x"].max() <= 1
