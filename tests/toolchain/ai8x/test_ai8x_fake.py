"""The ai8x compiler against a tool of our own: what it is told, and what becomes of each way to fail."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from fake_ai8x import write_tool
from small_nets import Net, residual, sequential, shifted, softmax, sqnr, strided, wide

from anynpu import plugins
from anynpu.capsules.capsule import find
from anynpu.cli.tool import show
from anynpu.errors import AccuracyError, ConfigError, IntegrityError, ToolFailed, ToolMissing, Unsupported
from anynpu.runtime.ai8x import read_network
from anynpu.targets.ai8x import Ai8x, bits
from anynpu.targets.ai8x.graph import cut
from anynpu.testing import models

CHIP = plugins.platform("max78000")


def one_layer():
    return Net((1, 8)).linear(8, 4).model()


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Gives a function that installs a fake tool, which fails as it is told."""

    def install(mode="ok"):
        checkout, environment = write_tool(tmp_path / "tool", mode)
        monkeypatch.setenv("AI8X_SYNTHESIS_PATH", str(checkout))
        monkeypatch.setenv("AI8X_PYTHON_PATH", str(environment))
        return checkout

    return install


@pytest.fixture(scope="session")
def net(tmp_path_factory):
    """Gives a function that makes the artifacts of a model and of samples, once."""
    made = {}

    def artifacts(function):
        if function not in made:
            made[function] = models.artifacts(function(), tmp_path_factory.mktemp(function.__name__))
        return made[function]

    return artifacts


@pytest.fixture
def build(net, tmp_path):
    """Gives a function that compiles a net and returns the artifact."""

    folders = itertools.count()

    def compile(function=sequential, chip=CHIP, **options):
        chosen = Ai8x.Options(**options)
        (folder := tmp_path / str(next(folders))).mkdir()
        return models.compiled(Ai8x(), *net(function), chip, chosen, folder)

    return compile


def near(model, made) -> float:
    return sqnr(model, made, models.draw_samples(model.manifest.inputs, 16, seed=5))


@pytest.mark.parametrize(
    ("function", "floor"), [(sequential, 26), (strided, 26), (residual, 26), (softmax, 26), (shifted, 30)]
)
def test_the_twin_equals_the_tools_answer_and_is_near_to_float(tool, build, net, function, floor):
    tool()
    made = build(function)
    assert near(net(function)[0], made) > floor


def test_more_channels_than_processors_take_several_passes(tool, net, tmp_path):
    from anynpu.targets.ai8x import memory

    assert (memory.passes(130), memory.width_of(130), memory.width_of(70), memory.width_of(640)) == (3, 44, 36, 64)
    assert memory.data_bytes((130, 3, 3)) == 3 * 3 * 3 * 4
    assert not Ai8x().check(net(wide)[0], CHIP, Ai8x.Options())


def test_the_manifest_says_what_the_log_says(tool, build):
    tool()
    made = build()
    estimates, placement = made.manifest.estimates, made.manifest.placement
    assert (estimates.macs, estimates.cycles, estimates.flash_bytes) == (8192, 5000, 1044)
    assert estimates.latency_ms == pytest.approx(0.1)
    assert "estimates" in estimates.source
    assert placement.npu == "MAX78000 CNN"
    assert placement.share == 1.0
    assert [op.kind for op in placement.operators] == ["conv2d", "conv2d", "passthrough", "linear", "linear"]
    assert any(note.startswith("the project is for the board EvKit_V1") for note in made.manifest.notes)
    assert any("written for ab4f4c0, this is sha256:" in note for note in made.manifest.notes)
    assert str(made.path) not in (made.path / "project" / "cnn.c").read_text()


def test_softmax_stays_on_the_processor(tool, build):
    tool()
    made = build(softmax)
    (host,) = made.manifest.placement.elsewhere()
    assert (host.kind, host.device) == ("Softmax", "cpu")
    assert "no softmax" in host.reason
    assert made.manifest.outputs[0].dtype == "float32"


def test_a_constant_behind_the_last_relu_is_the_zero_point(tool, build):
    tool()
    made = build(shifted)
    (output,) = made.manifest.outputs
    scale, zero = output.quantization.scale[0], output.quantization.zero_point[0]
    assert -zero * scale == pytest.approx(1.0, abs=1e-12)
    assert any("zero point" in note for note in made.manifest.notes)


def test_the_tool_is_told_what_the_user_asked_for(tool, build):
    checkout = tool()
    build(fifo=True, compact_weights=True, no_wfi=True, zero_sram=True, board_name="FTHR_RevA")
    told = (checkout / "argv").read_text()
    assert "--device MAX78000" in told
    assert "--board-name FTHR_RevA" in told
    assert told.endswith("--no-progress --fifo --compact-weights --no-wfi --zero-sram")


def test_fewer_bits_are_stored_and_computed_alike(tool, build, net):
    tool()
    made = build(bit_width=4)
    assert near(net(sequential)[0], made) > 8
    with np.load(made.path / "weights.npz") as stored:
        assert max(np.abs(stored[name].astype(int)).max() for name in stored.files if "weight" in name) <= 8


def test_two_bits_leave_no_layer_without_weights(tool, build):
    """By the expected error alone, most layers of this net would be zeros."""
    tool()
    with np.load(build(residual, bit_width=2).path / "weights.npz") as stored:
        assert all(stored[name].any() for name in stored.files if "weight" in name)


def test_every_layer_may_have_bits_of_its_own(tool, build, net):
    """The tool's simulation reads the bits of each layer from the checkpoint; the twin must give the same answer."""
    tool()
    made = build(weight_bits="8,4,2,8")
    network, stored = read_network(made.path)
    assert [layer.bits for layer in network.layers if layer.operation != "passthrough"] == [8, 4, 2, 8]
    tops = [int(np.abs(values.astype(int)).max()) for name, values in stored.items() if "weight" in name]
    assert tops[0] > 8 and tops[1] <= 8 and tops[2] <= 2 and tops[3] > 8
    assert any(note.startswith("bits of weights by layer: ") for note in made.manifest.notes)
    assert near(net(sequential)[0], made) > 10


def test_bits_are_chosen_under_a_budget(tool, build, net):
    tool()
    model, _ = net(residual)
    whole = build(residual, weight_bits="auto")
    sizes = [f for f in whole.manifest.details["layers"] if f["bits"] == 8]
    assert len(sizes) == len(whole.manifest.details["layers"]), "what fits keeps eight bits"
    blocks, _ = cut(onnx.load(model.main))
    count = sum(block.weight.size for block in blocks.blocks if block.weight is not None)
    made = build(residual, weight_bits="auto", weight_bytes=count // 2)
    widths = [layer["bits"] for layer in made.manifest.details["layers"]]
    assert bits.weight_bytes(blocks, widths) <= count // 2 and {*widths} <= {2, 4, 8} and len({*widths}) > 1
    assert near(model, made) > near(model, build(residual, bit_width=4))
    with pytest.raises(Unsupported) as caught:
        build(residual, weight_bits="auto", weight_bytes=count // 5)
    assert f"{count // 5} are allowed" in caught.value.findings[0].message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weight_bits": "8,4"}, "the network has 4 layers with weights, not 2"),
        ({"weight_bits": "8,3,8,8"}, "widths of 1, 2, 4 or 8 bits were expected"),
        ({"weight_bits": "4,4,4,4", "bit_width": 4}, "bit_width is for all layers"),
        ({"weight_bytes": 100}, "weight_bytes is for weight_bits=auto"),
        ({"weight_bits": "auto", "weight_bytes": -1}, "a number of bytes was expected"),
    ],
)
def test_bits_that_cannot_be_meant_are_refused(tool, build, options, words):
    tool()
    with pytest.raises(ConfigError, match=words):
        build(**options)


def test_a_layer_of_zeros_is_found_before_the_tool_runs(tool, build, tmp_path):
    checkout = tool()
    with pytest.raises(AccuracyError, match="gives nothing but zeros") as caught:
        build(bit_width=1)
    assert "bit_width=8" in caught.value.hint
    assert not (checkout / "argv").exists()


def test_what_no_simulation_models_is_said(tool, build):
    tool()
    made = build(one_layer, bit_width=1, simple1b=True)
    assert any(note.startswith("simple1b: neither") for note in made.manifest.notes)


def test_the_users_own_yaml_is_used(tool, build, tmp_path):
    tool()
    text = (build(strided).path / "project" / "network.yaml").read_text().replace("arch: anynpu", "arch: mine")
    (tmp_path / "mine.yaml").write_text(text)
    (tmp_path / "0" / "artifact").rename(tmp_path / "first")
    made = build(strided, config_file=tmp_path / "mine.yaml")
    assert (made.path / "project" / "network.yaml").read_text() == text


def test_a_yaml_of_another_network_is_found_out(tool, build, tmp_path):
    tool()
    text = (build(strided).path / "project" / "network.yaml").read_text().replace("activate: relu", "activate: None")
    (tmp_path / "other.yaml").write_text(text)
    (tmp_path / "0" / "artifact").rename(tmp_path / "first")
    with pytest.raises(AccuracyError, match="agree in"):
        build(strided, config_file=tmp_path / "other.yaml")


@pytest.mark.parametrize("text", ["", "layers:\n", "arch: x\n"])
def test_a_file_that_is_no_network_is_refused(tool, build, tmp_path, text):
    tool()
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"bad\.yaml"):
        build(config_file=tmp_path / "bad.yaml")


@pytest.mark.parametrize(
    ("mode", "error", "words"),
    [
        ("exit", ToolFailed, r"^ai8xize\.py failed with status 1"),
        ("crash", ToolFailed, r"^ai8xize\.py failed with signal SIGSEGV"),
        ("hang", ToolFailed, r"^ai8xize\.py did not finish within 5 s"),
        ("missing", ToolFailed, "wrote no sampleoutput.h"),
        ("zero", ToolFailed, "every output of its sample to be zero"),
        ("truncated", IntegrityError, "sampleoutput.h"),
        ("garbage", AccuracyError, "known answer and the integer twin agree in"),
    ],
)
def test_each_failure_has_its_error_and_leaves_nothing(tool, build, tmp_path, mode, error, words):
    tool(mode)
    with pytest.raises(error, match=words) as caught:
        build(time_limit_s=5)
    if error is ToolFailed:
        assert Path(caught.value.log).read_text()
    assert {p.name for p in (tmp_path / "0" / "artifact").iterdir()} <= {"model.json", "weights.npz"}


def test_a_known_line_becomes_a_hint(tool, build):
    tool("exit")
    with pytest.raises(ToolFailed) as caught:
        build()
    assert "bias memory" in caught.value.hint


def test_a_failed_build_leaves_the_store_clean(tool, net, cli, tmp_path):
    tool("garbage")
    model, _ = net(strided)
    cache = tmp_path / "cache"
    arguments = ("build", "-m", str(model.main), "-t", "max78000", "--data", "random:16", "-o", "out", "-q")
    done = cli(*arguments, ANYNPU_CACHE_DIR=str(cache))
    assert done.returncode == 7, done.stdout + done.stderr
    assert "known answer" in done.stdout
    assert not list((cache / "scratch").glob("*"))
    assert not list(cache.rglob("sampleoutput.h"))


def test_a_build_runs_through_the_command_line(tool, net, cli, tmp_path):
    tool()
    model, _ = net(strided)
    done = cli("build", "-m", str(model.main), "-t", "max78000", "--data", "random:40", "-o", "out", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "integer twin" in done.stdout
    assert (tmp_path / "out" / "max78000" / "project" / "cnn.c").is_file()


def test_what_is_in_the_users_yaml_counts(tool, net, cli, tmp_path):
    tool()
    model, _ = net(strided)
    build = ("build", "-m", str(model.main), "-t", "max78000", "--data", "random:16", "-o", "out", "--overwrite", "-q")
    own = ("-O", "config_file=mine.yaml")
    missing = cli(*build, *own)
    assert missing.returncode == 2 and "mine.yaml: no such file" in missing.stdout, missing.stdout + missing.stderr
    assert cli(*build).returncode == 0
    made = tmp_path / "out" / "max78000" / "project" / "network.yaml"
    text = made.read_text()
    for more in ("# one\n", "# two\n"):
        (tmp_path / "mine.yaml").write_text(text + more)
        done = cli(*build, *own)
        assert done.returncode == 0, done.stdout + done.stderr
        assert made.read_text() == text + more


def test_a_constant_that_is_no_whole_number_of_steps_is_said_to_be_rounded(tool, build):
    tool()

    def pooled():
        net = Net((1, 3, 6, 6)).conv(3, 8).op("Relu").op("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
        return net.op("Add", net.const(1.0)).model()

    (note,) = [note for note in build(pooled).manifest.notes if "the constant 1 " in note]
    assert "rounded" in note and "exact" not in note


def test_what_is_missing_is_named(tool, monkeypatch, tmp_path):
    checkout = tool()
    assert Ai8x().tools()["torch for ai8x"] == "2.13.0"
    (checkout / "ai8xize.py").rename(checkout / "other.py")
    with pytest.raises(ToolMissing, match=r"there is no ai8xize\.py"):
        Ai8x().tools()
    monkeypatch.delenv("AI8X_SYNTHESIS_PATH")
    with pytest.raises(ToolMissing, match="AI8X_SYNTHESIS_PATH names no checkout") as caught:
        Ai8x().tools()
    assert "git clone" in caught.value.hint
    monkeypatch.delenv("AI8X_PYTHON_PATH")
    with pytest.raises(ToolMissing, match="not installed") as caught:
        find("ai8x", tmp_path)
    assert caught.value.hint == "anynpu tool install ai8x"


def test_the_tool_is_ready_only_with_its_clone(tool, monkeypatch):
    checkout = tool()

    def shown():
        return json.loads(CliRunner().invoke(show, ["ai8x", "-f", "json"]).stdout)

    assert shown()["state"] == "ready" and str(checkout) in shown()["detail"]
    monkeypatch.setenv("AI8X_SYNTHESIS_PATH", str(checkout / "nowhere"))
    assert shown()["state"] == "missing" and "there is no ai8xize.py" in shown()["detail"]


def test_an_edited_checkout_is_another_version(tool):
    checkout = tool()
    before = Ai8x().tools()
    (checkout / "izer").mkdir()
    (checkout / "izer" / "extra.py").write_text("pass\n")
    assert Ai8x().tools() != before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"q_scale": 0.0}, "q_scale=0"),
        ({"qat_policy": "policies/qat.yaml"}, "after the training"),
        ({"simple1b": True}, "1-bit weights"),
        ({"softmax": True, "output_width": "8"}, "32-bit"),
        ({"time_limit_s": 0}, "time_limit_s"),
        ({"board_name": "../EvKit V1"}, "board_name"),
        ({"board_name": ""}, "board_name"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        Ai8x.Options(**options)


def test_32_bit_outputs_need_a_bare_last_layer(tool, build):
    tool()
    with pytest.raises(ConfigError, match="without an activation"):
        build(shifted, output_width="32")


def test_max_speed_is_for_the_larger_chip(tool, build):
    tool()
    with pytest.raises(Unsupported) as caught:
        build(max_speed=True)
    assert [f.rule for f in caught.value.findings] == ["max_speed"]
