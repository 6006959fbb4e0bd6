"""The Zhouyi compiler against a cixbuild of our own: what it is told, what becomes of what it makes or says."""

from __future__ import annotations

import configparser
import json
import shutil
import subprocess

import numpy as np
import onnx
import pytest
from cix_tool import write_tool
from onnx import TensorProto, helper, numpy_helper

from anynpu import plugins
from anynpu.artifact import Manifest, Step, seal
from anynpu.errors import AccuracyError, ConfigError, IntegrityError, ToolFailed, ToolMissing, Unsupported
from anynpu.measure.samples import FILE, SampleSet, write_samples
from anynpu.runtime.noe.cix import read_cix
from anynpu.runtime.noe.session import NoeSession
from anynpu.targets.zhouyi import Zhouyi
from anynpu.testing import conformance, models, noe

CHIP = plugins.platform("zhouyi-z3")
WIDTH = 16
PLUGIN = """
#include <stdint.h>
#include <string.h>
typedef struct { const char *name; void *data; uint32_t bytes; } tensor_t;
static int8_t in[%(width)d], out[%(width)d];
static tensor_t given = {"in", in, sizeof in}, made = {"out", out, sizeof out};
int anynpu_init(void) { return 0; }
const tensor_t *anynpu_input(int i) { (void)i; return &given; }
const tensor_t *anynpu_output(int i) { (void)i; return &made; }
int anynpu_invoke(void) { for (int i = 0; i < %(width)d; i++) out[i] = %(value)s; return 0; }
"""


def graph(nodes, weights, inputs, outputs, name="net"):
    values = [
        [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in part.items()]
        for part in (inputs, outputs)
    ]
    stored = [numpy_helper.from_array(array, n) for n, array in weights.items()]
    made = helper.make_graph(nodes, name, *values, stored)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def reversing():
    """A model that turns its input round: eight bits can compute it without any loss."""
    weights = {"w": np.fliplr(np.eye(WIDTH, dtype=np.float32))}
    node = helper.make_node("MatMul", ["features", "w"], ["turned"], "turn")
    kind = (TensorProto.FLOAT, (1, WIDTH))
    return graph([node], weights, {"features": kind}, {"turned": kind}, "turn round")


def two_inputs():
    """The model's order (zebra, apple) is not that of the alphabet."""
    wide = (TensorProto.FLOAT, (1, 4))
    nodes = [
        helper.make_node("Gather", ["table", "apple"], ["rows"], "look_up"),
        helper.make_node("ReduceMean", ["rows"], ["mean"], "mean", axes=[1], keepdims=0),
        helper.make_node("Sub", ["mean", "zebra"], ["out"], "minus"),
    ]
    table = np.random.default_rng(0).normal(0, 1, (10, 4)).astype(np.float32)
    inputs = {"zebra": wide, "apple": (TensorProto.INT64, (1, 3))}
    return graph(nodes, {"table": table}, inputs, {"out": wide})


def two_artifacts(folder, most):
    """Returns that model and samples of it as artifacts; zebra goes up to `most`."""
    model, data = models.onnx_artifact(two_inputs(), folder / "model"), folder / "data"
    data.mkdir()
    zebra = np.linspace(-most, most, 32, dtype=np.float32).reshape(8, 4)
    write_samples(data, SampleSet({"zebra": zebra, "apple": np.arange(24).reshape(8, 3) % 10}))
    return model, seal(data, Manifest("dataset", FILE, model.manifest.inputs), Step("data"), models.NOW)


@pytest.fixture(scope="module")
def turn(tmp_path_factory):
    return models.artifacts(reversing(), tmp_path_factory.mktemp("turn"))


@pytest.fixture
def compile_with(tmp_path, monkeypatch):
    """Compiles with a cixbuild that follows a plan."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ANYNPU_LIBNOE", raising=False)

    def compiled(model, data, options=None, **plan):
        monkeypatch.setenv("CIXBUILD_PATH", str(write_tool(tmp_path / "tool", **plan).parent))
        return models.compiled(Zhouyi(), model, data, CHIP, options or Zhouyi.Options(), tmp_path)

    return compiled


TURNED = [["turned", [1, WIDTH], "int8", 0.03, 0]]


def test_the_cfg_says_what_was_asked_for(turn, compile_with, tmp_path):
    options = Zhouyi.Options(weight_bits=16, float_nodes="tu.*", tiling="none")
    made = compile_with(*turn, options, outputs=[["turned", [1, WIDTH], "float16", 0, 0]])
    cfg = configparser.ConfigParser()
    cfg.read(made.path / "build.cfg")
    assert {s: dict(cfg[s]) for s in cfg.sections()} == {
        "Common": {"mode": "build"},
        "Parser": {
            "model_type": "ONNX",
            "model_name": "turn_round",
            "input_model": "./model.onnx",
            "input": "features",
            "input_shape": "[1, 16]",
            "output_dir": "./",
        },
        "Optimizer": {
            "dataset": "numpydataset",
            "calibration_data": "./calibration.npy",
            "calibration_batch_size": "1",
            "output_dir": "./",
            "quantize_method_for_activation": "per_tensor_asymmetric",
            "quantize_method_for_weight": "per_channel_symmetric_restricted_range",
            "weight_bits": "16",
            "activation_bits": "8",
            "bias_bits": "48",
            "trigger_float_op": "disable & <{tu.*}:float16_preferred!>",
        },
        "GBuilder": {"target": "X2_1204MP3", "outputs": "./model.cix"},
    }
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["environment"]["CUDA_VISIBLE_DEVICES"] == ""
    assert sorted(p.name for p in made.path.iterdir()) == ["build.cfg", "manifest.json", "model.cix"]


def test_inputs_go_in_the_order_of_the_alphabet_and_come_back_in_the_models(tmp_path, compile_with):
    made = compile_with(*two_artifacts(tmp_path, 100), outputs=[["out", [1, 4], "int8", 0.8, 0]], suffix="_0")
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["most"] == {"apple": 9.0, "zebra": 100.0}
    assert [t.name for t in read_cix(made.main).inputs] == ["apple_0", "zebra_0"]
    first, second = made.manifest.inputs
    assert (first.name, first.dtype, second.name, second.dtype) == ("zebra", "int8", "apple", "int32")
    assert first.quantization.scale[0] == pytest.approx(100 / 127, rel=1e-5)
    assert made.manifest.details["names"]["inputs"] == {"zebra": "zebra_0", "apple": "apple_0"}
    assert any("Sub became Add" in note for note in made.manifest.notes)


def test_the_kit_finds_nothing_wrong(turn, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CIXBUILD_PATH", str(write_tool(tmp_path / "tool", outputs=TURNED)))
    conformance.check_target(Zhouyi(), turn[0], CHIP, tmp_path / "kit", data=turn[1])


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("[E] [GB]: Unsupport node type: Convolution", "the target has no Convolution"),
        ("ld.lld: error: duplicate symbol: kernel_x", "--allow-multiple-definition"),
        ("[E] Unknown option: output_dir", "no setting output_dir"),
        ("/lib/libc.so.6: version `GLIBC_2.38' not found (required by x)", "want GLIBC_2.38"),
        ("[W] [Parser]: Meet unsupported op type Scan in Node(a)!", "no operator Scan"),
        ("ImportError: libaipu_simulator_x2.so: cannot open shared object file", "simulator-lib"),
        ("License check failed", "licence"),
        ("ModuleNotFoundError: No module named 'tensorflow'", "install tensorflow"),
        ("something nobody has seen", "own words"),
    ],
)
def test_what_it_says_becomes_a_hint(turn, compile_with, line, hint):
    with pytest.raises(ToolFailed) as failure:
        compile_with(*turn, says=[line, *["more"] * 30], status=1, outputs=TURNED)
    assert hint in failure.value.hint
    assert failure.value.message == "cixbuild failed with status 1"
    assert failure.value.exit_status == 5


def test_an_earlier_build_in_the_same_log_gives_no_hint(turn, compile_with):
    with pytest.raises(ToolFailed):
        compile_with(*turn, says=["Unsupport node type: Convolution"], status=1, outputs=TURNED)
    with pytest.raises(ToolFailed) as failure:
        compile_with(*turn, says=["no idea"], status=1, outputs=TURNED)
    assert "own words" in failure.value.hint


def test_a_crash_a_hang_and_silence_are_failures(turn, compile_with):
    with pytest.raises(ToolFailed, match="SIGSEGV"):
        compile_with(*turn, crash=True, outputs=TURNED)
    with pytest.raises(ToolFailed, match="did not finish within 2 s"):
        compile_with(*turn, Zhouyi.Options(time_limit_s=2), hang=True, outputs=TURNED)
    with pytest.raises(ToolFailed, match=r"ended well but wrote no model\.cix"):
        compile_with(*turn, nothing=True, outputs=TURNED)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"content": b"version https://git-lfs.github.com/spec/v1\n".hex()}, "git-lfs"),
        ({"content": bytes(200).hex()}, "zeros"),
        ({"content": ""}, "empty"),
        ({"content": bytes(range(256)).hex()}, r"model\.cix: "),
        ({"outputs": TURNED, "device": 5 << 16 | 1304}, "asked for X2_1204MP3 and wrote a model for X2_1304"),
        ({"outputs": TURNED * 2}, "the same name twice"),
        ({"outputs": [["turned", [1, 8], "int8", 0.1, 0]]}, r"has shape \[1, 8\], the float model's has \[1, 16\]"),
        ({"outputs": [["turned", [1, WIDTH], "float16", 0, 0]]}, "holds float16; these options allow int8, uint8"),
        ({"outputs": [["turned", [1, WIDTH], "int16", 0.1, 0]]}, "holds int16"),
        ({"outputs": [["a", [1, WIDTH], "int8", 1, 0], ["b", [1, 2], "int8", 1, 0]]}, "has 2 outputs"),
    ],
)
def test_a_file_that_is_not_what_was_asked_for_is_refused(turn, compile_with, plan, words):
    with pytest.raises(IntegrityError, match=words):
        compile_with(*turn, **plan)


def test_nothing_is_left_of_a_failed_build(turn, compile_with, tmp_path):
    with pytest.raises(ToolFailed):
        compile_with(*turn, status=3, outputs=TURNED)
    assert list((tmp_path / "artifact").iterdir()) == []


def test_refused_operators_reach_cixbuild_only_when_it_is_trusted(tmp_path, compile_with):
    nodes = [
        helper.make_node("Greater", ["x", "zero"], ["positive"], "is_positive"),
        helper.make_node("Where", ["positive", "x", "zero"], ["y"], "choose"),
    ]
    kind = (TensorProto.FLOAT, (1, WIDTH))
    net = graph(nodes, {"zero": np.zeros(1, np.float32)}, {"x": kind}, {"y": kind})
    model, data = models.artifacts(net, tmp_path)
    plan = {"outputs": [["y", [1, WIDTH], "int8", 0.03, 0]]}
    with pytest.raises(Unsupported) as refused:
        compile_with(model, data, **plan)
    assert {f.rule for f in refused.value.findings} == {"no_comparison", "no_where"}
    assert compile_with(model, data, Zhouyi.Options(trust_compiler=True), **plan).manifest.format == "cix"


def test_a_wrong_target_and_a_regex_without_a_node_are_refused(turn, compile_with):
    with pytest.raises(ConfigError, match="no Convolution for the Z3 names"):
        compile_with(*turn, Zhouyi.Options(target="Z3_1204"), outputs=TURNED)
    with pytest.raises(ConfigError, match="did you mean 'X2_1204'"):
        compile_with(*turn, Zhouyi.Options(target="X2_1205"), outputs=TURNED)
    with pytest.raises(ConfigError, match="no node has such a name"):
        compile_with(*turn, Zhouyi.Options(float_nodes="embedding"), outputs=TURNED)


def test_a_missing_tool_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CIXBUILD_PATH", raising=False)
    with pytest.raises(ToolMissing) as missing:
        Zhouyi().tools()
    assert "Python 3.10" in missing.value.hint
    monkeypatch.setenv("CIXBUILD_PATH", str(tmp_path / "nowhere"))
    with pytest.raises(ToolMissing, match="there is no program cixbuild"):
        Zhouyi().tools()


@pytest.fixture(scope="module")
def libnoe(tmp_path_factory):
    if shutil.which("cc") is None:
        pytest.skip("install gcc")
    return noe.build_fake(tmp_path_factory.mktemp("libnoe"))


def plugin(folder, value):
    source, made = folder / "plugin.c", folder / "plugin.so"
    source.write_text(PLUGIN % {"width": WIDTH, "value": value})
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", str(source), "-o", str(made)], check=True)
    return str(made)


def test_the_session_finds_tensors_that_were_moved_and_renamed(tmp_path, compile_with, libnoe):
    made = compile_with(*two_artifacts(tmp_path, 1), outputs=[["out", [1, 4], "int8", 0.8, 0]], suffix="_0")
    given = {"zebra": np.array([[1, 2, 3, 4]], np.int8), "apple": np.array([[7, 8, 9]], np.int32)}
    with noe.switches(libnoe):
        session = NoeSession(made)
        got = session.run(given)
        session.close()
    (wanted,) = noe.expect_mix([given["apple"], given["zebra"]], made.manifest.outputs)
    assert np.array_equal(got["out"], wanted)


def build(cli, tmp_path, libnoe, value, **more):
    """Calls `anynpu build` with our cixbuild, whose model the fake libnoe computes by a line of C."""
    onnx.save(reversing(), tmp_path / "turn.onnx")
    draw = np.random.default_rng(1).normal(0, 1, (50, WIDTH)).astype(np.float32)
    draw[0, 0] = 4.0
    np.save(tmp_path / "data.npy", draw)
    plan = {"outputs": [["turned", [1, WIDTH], "int8", 4 / 127, 0]], "executor": plugin(tmp_path, value)}
    tool = write_tool(tmp_path / "tool", **plan)
    environment = {"CIXBUILD_PATH": str(tool), "HOME": str(tmp_path), "ANYNPU_LIBNOE": str(libnoe)}
    command = ("build", "-m", "turn.onnx", "-t", "zhouyi-z3", "--data", "data.npy", "-o", "out", "-f", "json")
    return cli(*command, **{**environment, **more})


def test_a_build_is_executed_and_proven(cli, tmp_path, libnoe):
    done = build(cli, tmp_path, libnoe, f"in[{WIDTH - 1} - i]")
    assert done.returncode == 0, done.stderr
    (chip,) = json.loads(done.stdout)["chips"]
    assert chip["verification"]["device"] == "noe"
    assert chip["verification"]["outputs"]["turned"]["sqnr_db"] > 30
    shown = cli("show", "out/zhouyi-z3")
    assert shown.returncode == 0
    assert "MatMul" in shown.stdout or "cix" in shown.stdout


def test_successful_garbage_is_an_accuracy_error(cli, tmp_path, libnoe):
    done = build(cli, tmp_path, libnoe, "(int8_t)(i + 1)")
    assert done.returncode == AccuracyError.exit_status
    assert "gives the same turned for samples" in done.stdout
    assert "float_nodes" in done.stdout


def test_a_build_from_before_the_hardware_came_is_not_taken_for_a_proven_one(cli, tmp_path, libnoe):
    assert build(cli, tmp_path, libnoe, "(int8_t)(i + 2)", ANYNPU_LIBNOE="").returncode == 0
    assert build(cli, tmp_path, libnoe, "(int8_t)(i + 2)").returncode == AccuracyError.exit_status


def test_without_hardware_the_build_says_that_nothing_was_executed(cli, tmp_path, libnoe):
    done = build(cli, tmp_path, libnoe, "in[i]", ANYNPU_LIBNOE="")
    assert done.returncode == 0, done.stderr
    (chip,) = json.loads(done.stdout)["chips"]
    assert "nothing on this machine executes cix" in json.dumps(chip)
    assert (chip["status"], chip["verification"]) == ("not executed", None)
    assert "claim" in chip["receipt"]["source"]
    page = (tmp_path / "out" / "report.md").read_text("utf-8")
    assert "100.0 % claimed" in page and "| ok |" not in page
