"""Bad input: one sentence, a hint, the right exit status, no traceback, nothing half-written."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from small_net import write_net

Refuse = Callable[..., object]
TO = ("-t", "null", "-o", "out")
RANDOM = ("--data", "random:8")


def test_a_missing_model_names_the_nearest(net: Path, refuse: Refuse) -> None:
    refuse(2, "nett.onnx: no such model (did you mean 'net.onnx'?)", "build", "-m", "nett.onnx", *TO, hint="zoo:NAME")


def test_a_folder_is_no_model(tmp_path: Path, refuse: Refuse) -> None:
    (tmp_path / "folder").mkdir()
    refuse(2, "folder: is a folder, not a model", "build", "-m", "folder", *TO)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123456\n"


@pytest.mark.parametrize(
    ("content", "words", "hint"),
    [
        (b"", "the file is empty", "again"),
        (LFS, "is a git-lfs pointer", "git lfs pull"),
        (b"<!doctype html><title>404</title>", "it looks like an HTML page", "again"),
        (b"\x89PNG\r\n\x1a\n" + b"0" * 99, "it looks like a PNG image", "again"),
        (b"\x1c\x00\x00\x00TFL3" + b"0" * 99, "it looks like a TensorFlow Lite model", ".tflite"),
        (bytes(range(256)) * 4, "not a whole ONNX model", "again"),
    ],
    ids=["empty", "lfs", "html", "png", "tflite", "noise"],
)
def test_files_that_are_no_onnx(tmp_path: Path, refuse: Refuse, content: bytes, words: str, hint: str) -> None:
    (tmp_path / "bad.onnx").write_bytes(content)
    refuse(8, words, "build", "-m", "bad.onnx", *TO, hint=hint)


@pytest.mark.parametrize("share", [0.3, 0.99])
def test_a_truncated_model(net: Path, refuse: Refuse, share: float) -> None:
    data = net.read_bytes()
    net.write_bytes(data[: int(len(data) * share)])
    refuse(8, "net.onnx", "build", "-m", "net.onnx", *TO)


def test_dynamic_dimensions_ask_for_a_shape(tmp_path: Path, refuse: Refuse) -> None:
    model = onnx.load(write_net(tmp_path / "net.onnx"))
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    onnx.save(model, str(tmp_path / "net.onnx"))
    refuse(2, "height", "build", "-m", "net.onnx", *TO, hint="--shape")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers(tmp_path: Path, refuse: Refuse, value: float) -> None:
    write_net(tmp_path / "net.onnx", poison=value)
    refuse(8, "tensor 'm'", "build", "-m", "net.onnx", *TO)


@pytest.mark.parametrize(
    ("array", "status", "words", "hint"),
    [
        (np.zeros((8, 3, 9, 8), np.float32), 2, "needs shape [N, 3, 8, 8], got [8, 3, 9, 8]", ""),
        (np.zeros((8, 8, 8, 3), np.float32), 2, "got [8, 8, 8, 3]", "another order"),
        (np.zeros((8, 3, 8, 8), np.uint8), 2, "holds float32, the data uint8", ""),
        (np.full((8, 3, 8, 8), np.nan, np.float32), 8, "holds NaN or infinity at sample 0", ""),
        (np.full((8, 3, 8, 8), np.inf, np.float32), 8, "holds NaN or infinity at sample 0", ""),
        (np.zeros((0, 3, 8, 8), np.float32), 2, "no samples", ""),
        (np.full((8, 3, 8, 8), None), 2, "Python objects, which are never unpickled", "plain number arrays"),
    ],
    ids=["shape", "layout", "dtype", "nan", "inf", "none", "objects"],
)
def test_samples_that_do_not_fit(
    tmp_path: Path, net: Path, refuse: Refuse, array: np.ndarray, status: int, words: str, hint: str
) -> None:
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    refuse(status, words, "build", "-m", "net.onnx", "-t", "cpu", "-o", "out", "--data", "x.npy", hint=hint)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("none.npy", "none.npy: no such file or folder"),
        ("net.onnx", "no such kind of calibration data"),
        ("random:x", "not of the form random:COUNT[:SEED]"),
        ("data.py:gen", "data.py"),
    ],
)
def test_sources_of_samples_that_are_none(net: Path, refuse: Refuse, data: str, words: str) -> None:
    refuse(2, words, "build", "-m", "net.onnx", "-t", "cpu", "-o", "out", "--data", data)


@pytest.mark.parametrize("flag", ["--data", "--test"])
def test_samples_that_are_not_there_are_told_of_before_the_model_is_read(
    tmp_path: Path, refuse: Refuse, flag: str
) -> None:
    (tmp_path / "damaged.onnx").write_bytes(b"no model")
    refuse(2, "none.npy: no such", "build", "-m", "damaged.onnx", "-t", "cpu", "-o", "out", flag, "none.npy")


def test_a_generator_that_fails(tmp_path: Path, net: Path, refuse: Refuse) -> None:
    (tmp_path / "data.py").write_text("def gen():\n    raise KeyError('no photos')\n    yield\n")
    refuse(2, "KeyError: 'no photos'", "build", "-m", "net.onnx", "-t", "cpu", "-o", "out", "--data", "data.py:gen")


def test_damaged_samples(tmp_path: Path, net: Path, refuse: Refuse) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((8, 3, 8, 8), np.float32))
    (tmp_path / "x.npz").write_bytes((tmp_path / "x.npz").read_bytes()[:900])
    refuse(8, "x.npz", "build", "-m", "net.onnx", "-t", "cpu", "-o", "out", "--data", "x.npz")


@pytest.mark.parametrize(
    ("flags", "words", "hint"),
    [
        (("-t", "ethos-u65-257"), "no such chip: ethos-u65-257 (did you mean 'ethos-u65-256'?)", "anynpu targets"),
        (("-t", ","), "no chip is named", "anynpu targets"),
        (("-t", "cpu", "-O", "metod=mse"), "-O metod: no such option (did you mean 'method'?)", "options:"),
        (("-t", "null", "-O", "method=mse"), "-O method: no such option", "none for these chips"),
        (("-t", "cpu", "-O", "method=mes"), "no such range method: mes", ""),
        (("-t", "cpu", "-O", "percentile=nan"), "percentile: a finite number was expected", ""),
        (("-t", "cpu", "-O", "percentile=high"), "-O percentile: a number was expected", ""),
        (("-t", "cpu", "-O", "method=mse", "-O", "method=minmax"), "-O method=minmax: method is given twice", ""),
        (("-t", "cpu", "-O", "method"), "-O method: NAME=VALUE was expected", ""),
        (("-t", "null", "--require-npu", "lots"), "--require-npu lots: a share such as 95% was expected", ""),
        (("-t", "null", "--require-npu", "120%"), "--require-npu 120%: a share such as 95% was expected", ""),
        (("-t", "null", "--min-sqnr", "nan"), "--min-sqnr nan: a finite number was expected", ""),
        (("-t", "null", "--shape", "x=1,3,a"), "--shape x=1,3,a: whole numbers above zero were expected", ""),
        (("-t", "null", "--shape", "x=1,0,8,8"), "--shape x=1,0,8,8: whole numbers above zero", ""),
        (("-t", "null", "--shape", "1,3,8,8"), "NAME=VALUE was expected", ""),
        (("-t", "null", "--ckpt", "x.pth"), "--ckpt and --arg go with a PyTorch model", ""),
        (("-t", "null", "--limit", "0"), "0 is not in the range", "--help"),
        (("-t", "null", "--colour"), "no such option", "anynpu build --help"),
        (("-t", "null", "-c", "none.toml"), "none.toml: no such file", ""),
        (("-t", "null", "-c", "."), ".: cannot be read", ""),
    ],
)
def test_flags_that_make_no_sense(net: Path, refuse: Refuse, flags: tuple[str, ...], words: str, hint: str) -> None:
    refuse(2, words, "build", "-m", "net.onnx", "-o", "out", *flags, hint=hint)


def test_what_is_missing_is_asked_for(net: Path, refuse: Refuse) -> None:
    refuse(2, "no output folder is named", "build", "-m", "net.onnx", "-t", "null", hint="-o FOLDER")
    refuse(2, "no model is named", "build", *TO, hint="-m net.onnx")
    refuse(2, "no chip is named", "build", "-m", "net.onnx", "-o", "out", hint="-t CHIP")


def test_an_unknown_verb_names_the_nearest(refuse: Refuse) -> None:
    refuse(2, "no such verb: biuld (did you mean 'build'?)", "biuld", hint="anynpu --help")


def test_stated_tensors_must_be_there(net: Path, refuse: Refuse) -> None:
    refuse(2, "the model has no tensor xx", "build", "-m", "net.onnx", *TO, "--layout", "xx=NCHW")
    refuse(2, "the model's own operators say NCHW", "build", "-m", "net.onnx", *TO, "--layout", "x=NHWC")
    refuse(2, "names an axis twice", "build", "-m", "net.onnx", *TO, "--layout", "y=NN")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("modle = 'net.onnx'", "c.toml: modle: no such setting (did you mean 'model'?)"),
        ("limit = true", "c.toml: limit: a whole number was expected, not True"),
        ("limit = 0", "a limit of 0 samples leaves none"),
        ("shape = { x = [1, 0] }", "--shape x=(1, 0): whole numbers above zero were expected"),
        ("min_sqnr = nan", "c.toml: min_sqnr: a finite number was expected"),
        ("[preprocess]\nsize = [8, 8]\nresze = 'stretch'", "c.toml: preprocess.resze: no such setting"),
        ("model = ", "c.toml: not valid TOML"),
    ],
)
def test_configuration_files_are_read_strictly(
    tmp_path: Path, net: Path, refuse: Refuse, text: str, words: str
) -> None:
    (tmp_path / "c.toml").write_text(text)
    refuse(2, words, "build", "-c", "c.toml", "-m", "net.onnx", *TO)


def test_places_for_the_output(tmp_path: Path, net: Path, refuse: Refuse) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("mine")
    build = ("build", "-m", "net.onnx", "-t", "null")
    refuse(2, "file: is a file, not a folder", *build, "-o", "file")
    refuse(2, "cannot be a folder here", *build, "-o", "file/out")
    refuse(2, "was not made by anynpu", *build, "-o", "photos", "--overwrite")
    refuse(2, "cannot be replaced while it is in use", *build, "-o", ".")
    assert (tmp_path / "photos" / "a.jpg").read_text() == "mine"


def test_a_quantised_build_without_samples(tmp_path: Path, net: Path, cli: Callable) -> None:
    done = cli("build", "-m", "net.onnx", "-t", "cpu", "-o", "out")
    assert done.returncode == 2 and "cpu needs calibration data" in done.stdout + done.stderr
    assert "--data" in done.stdout + done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "cpu").exists()


def test_artifacts_that_are_none(tmp_path: Path, net: Path, refuse: Refuse) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 8, 8), np.float32))
    (tmp_path / "garbled").mkdir()
    (tmp_path / "garbled" / "manifest.json").write_text("{")
    refuse(2, "none: no such folder", "run", "none", "-i", "x.npy")
    refuse(8, "not valid JSON", "run", "garbled", "-i", "x.npy")
    refuse(2, "no manifest.json in it", "show", ".")


@pytest.mark.parametrize(
    ("arguments", "status", "kind"),
    [
        (("build", "-m", "none.onnx", *TO), 2, "ConfigError"),
        (("build", "-m", "net.onnx", "-o", "out", "-t", "cpuu"), 2, "ConfigError"),
        (("build", "--colour"), 2, "ConfigError"),
        (("build", "-m", "empty.onnx", *TO), 8, "IntegrityError"),
        (("show", "zoo:resnet9"), 2, "ConfigError"),
    ],
)
def test_with_f_json_the_error_is_data(
    tmp_path: Path, net: Path, refuse: Callable, arguments: tuple[str, ...], status: int, kind: str
) -> None:
    (tmp_path / "empty.onnx").write_bytes(b"")
    error = json.loads(refuse(status, "", *arguments, "-f", "json").stdout)["error"]
    assert (error["kind"], error["exit_status"]) == (kind, status) and error["message"]


def test_f_json_from_the_environment_counts(tmp_path: Path, cli: Callable) -> None:
    done = cli("build", "-m", "none.onnx", *TO, ANYNPU_BUILD_FORMAT="json")
    assert json.loads(done.stdout)["error"]["exit_status"] == done.returncode == 2


@pytest.mark.parametrize("body", ["import sys; sys.exit(3)\n", "def gen():\n    raise SystemExit(3)\n    yield\n"])
def test_samples_whose_code_ends_the_program(tmp_path: Path, net: Path, refuse: Refuse, body: str) -> None:
    (tmp_path / "data.py").write_text(body)
    refuse(2, "sys.exit(3)", "build", "-m", "net.onnx", "-t", "cpu", "-o", "out", "--data", "data.py:gen")


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.full((1, 3, 8, 8), np.nan, np.float32), "input x holds NaN or infinite values"),
        (np.zeros((1, 3, 8, 8), np.uint8), "input x holds uint8"),
        (np.zeros((10, 3, 8, 9), np.float32), "has shape [1, 3, 8, 8]"),
    ],
)
def test_inputs_that_do_not_fit_an_artifact(
    tmp_path: Path, net: Path, cli: Callable, refuse: Refuse, array: np.ndarray, words: str
) -> None:
    assert cli("build", "-m", "net.onnx", "-t", "null", "-o", "out").returncode == 0
    np.save(tmp_path / "x.npy", array)
    refuse(2, words, "run", "out/float", "-i", "x.npy")


def test_a_reader_of_the_progress_that_goes_away_does_not_end_the_work(tmp_path: Path, net: Path):
    command = f"{sys.executable} -m anynpu build -m net.onnx -t cpu --data random:16 -o out 2>&1 >/dev/null | head -n 1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("model") and done.stdout.count("\n") == 1
    assert (tmp_path / "out" / "cpu" / "manifest.json").is_file()


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    command = f"{sys.executable} -m anynpu targets -f json | head -c 10"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
