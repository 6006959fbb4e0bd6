"""The rknn compiler and simulator over a toolkit of our own: what it is told, and what becomes of what it does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_rknn import write_toolkit

from anynpu import plugins
from anynpu.artifact import Step
from anynpu.errors import ConfigError, DeviceError, IntegrityError, ToolFailed, ToolMissing, Unsupported
from anynpu.pipeline.result import fallback
from anynpu.runtime.base import run_real
from anynpu.runtime.rknn import RknnSession
from anynpu.store import Store
from anynpu.targets.base import Work
from anynpu.targets.rknn import Rknn
from anynpu.tensors import by_name
from anynpu.testing import conformance, models

CHIP = plugins.platform("rk3588")


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    return models.artifacts(models.conv_net(), tmp_path_factory.mktemp("rknn-net"))


@pytest.fixture
def toolkit(tmp_path, monkeypatch):
    """Puts a toolkit that fails in some way where ours is looked for."""

    def put(mode="", version="2.5.0"):
        root = write_toolkit(tmp_path / f"toolkit-{mode}-{version}", mode, version)
        monkeypatch.setenv("RKNN_TOOLKIT2_PATH", str(root))

    put()
    return put


@pytest.fixture
def compiled(net, tmp_path):
    """Compiles the small net as a build does: in a step of an empty store."""
    store = Store(tmp_path / "own")

    def run(chip=CHIP, **options):
        target, chosen = Rknn(), Rknn.Options(**options)

        def make(out, log):
            return target.compile(net[0], net[1], chip, chosen, out, Work(log, lambda done, total: None))

        return store.build(Step("rknn", {"n": str(len(list(store.entries())))}), make).artifact

    run.store = store
    return run


def clean(store: Store) -> bool:
    """Whether a failed build left only its log."""
    return not list(store.entries()) and not list((store.cache / "scratch").glob("*/*"))


def test_the_contract_of_a_target_and_of_a_session(toolkit, net, tmp_path):
    made = conformance.check_target(Rknn(), net[0], CHIP, tmp_path / "target", data=net[1])
    conformance.check_session(RknnSession, made, tmp_path / "session", reference=net[0])


def test_the_manifest_says_where_layers_run_and_what_they_cost(toolkit, compiled):
    made = compiled(samples=5, algorithm="normal").manifest
    (layer,) = made.placement.operators
    assert (layer.name, layer.kind, layer.device, layer.macs) == ("conv1", "ConvRelu", "npu", 8 * 64 * 27)
    assert (made.estimates.cycles, made.estimates.sram_bytes) == (9216, 99 * 1024)
    assert made.estimates.flash_bytes == next(f.size for f in made.files if f.path == "model.rknn")
    assert any("calibrated with 5 samples" in note for note in made.notes)
    assert any("gives scores as [1, 4, 1, 1]" in note for note in made.notes)
    assert any("not evidence" in note for note in made.notes)


def test_a_layer_on_the_cpu_is_told_and_counts_against_the_npu(toolkit, compiled):
    toolkit("fallback")
    made = compiled()
    (away,) = made.manifest.placement.elsewhere()
    assert away.name == "soft" and "Softmax (FLOAT) on the chip's CPU" in away.reason
    assert "1 of 2 operators run on the CPU" in fallback(made, CHIP, 1.0)


def test_without_a_table_there_is_no_receipt_and_the_verdict_is_negative(toolkit, compiled):
    toolkit("silent")
    made = compiled()
    assert made.manifest.placement is None and "no receipt" in fallback(made, CHIP, 1.0)


def test_samples_and_settings_reach_the_toolkit(toolkit, compiled, net):
    made = compiled(plugins.platform("rv1106"), samples=3, algorithm="mmse", method="layer")
    recipe = json.loads((made.path / "rebuild/recipe.json").read_text())
    assert recipe["config"]["target_platform"] == "rv1106" and recipe["config"]["quantized_dtype"] == "w8a8"
    assert (recipe["config"]["quantized_algorithm"], recipe["config"]["quantized_method"]) == ("mmse", "layer")
    with np.load(made.path / "rebuild/samples.npz") as kept:
        assert kept["input:image"].shape == (3, 3, 8, 8)
    assert not (compiled(quantize="fp16").path / "rebuild/samples.npz").exists()
    assert not Rknn().needs_data(Rknn.Options(quantize="fp16"))


def test_fp16_computes_what_the_float_model_does(toolkit, compiled, net):
    session = RknnSession(compiled(quantize="fp16"))
    sample = next(iter(models.draw_samples(net[0].manifest.inputs, 1)))
    like = by_name((*net[0].manifest.inputs, *net[0].manifest.outputs))
    reference = plugins.load("sessions", "ort")(net[0])
    np.testing.assert_allclose(
        run_real(session, sample, like)["scores"], run_real(reference, sample, like)["scores"], rtol=1e-5
    )
    session.close()


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("config", "no such platform!"),
        ("code", "build returned -1 (build: Catch exception when building!)"),
        ("crash", "SIGSEGV"),
        ("missing", "wrote no model.rknn"),
        ("truncated", "wrote no whole model.rknn"),
        ("dies", "status 3"),
        ("few", "inference gave 0 outputs, not 1"),
    ],
)
def test_what_goes_wrong_in_a_build_is_tool_failed_with_the_log(toolkit, compiled, mode, words):
    toolkit(mode)
    with pytest.raises(ToolFailed) as failure:
        compiled()
    assert words in failure.value.message
    assert Path(failure.value.log).is_file() and failure.value.hint
    assert clean(compiled.store)


def test_a_build_that_hangs_is_ended(toolkit, compiled):
    toolkit("hang")
    with pytest.raises(ToolFailed, match="did not finish within 6 s"):
        compiled(time_limit_s=6)
    assert clean(compiled.store)


def test_what_the_toolkit_refuses_is_unsupported_in_its_own_words(toolkit, compiled):
    toolkit("refuses")
    with pytest.raises(Unsupported) as refused:
        compiled()
    (finding,) = refused.value.findings
    assert finding.where == "If('y')" and "dynamic graph" in finding.message
    assert clean(compiled.store)


def test_another_version_is_used_and_noted(toolkit, compiled):
    toolkit(version="2.4.1")
    assert any("written for RKNN-Toolkit2 2.5.0, this is 2.4.1" in note for note in compiled().manifest.notes)


def test_no_toolkit_is_tool_missing(monkeypatch, tmp_path):
    monkeypatch.delenv("RKNN_TOOLKIT2_PATH", raising=False)
    monkeypatch.setenv("ANYNPU_CACHE_DIR", str(tmp_path))
    with pytest.raises(ToolMissing) as missing:
        Rknn().tools()
    assert "anynpu tool install rknn" in missing.value.hint
    assert "anynpu tool install rknn" in RknnSession.missing()


def test_a_rebuilt_file_may_differ_where_the_answers_do_not(toolkit, compiled):
    session = RknnSession(compiled())
    assert "other bytes" not in session.what
    session.close()
    toolkit("restless")
    session = RknnSession(compiled())
    assert "came out in other bytes" in session.what
    session.close()
    toolkit("other")
    with pytest.raises(IntegrityError, match="builds another model"):
        RknnSession(compiled())


def test_other_bytes_of_another_version_are_another_model(toolkit, compiled):
    toolkit("restless")
    made = compiled()
    toolkit("restless", "2.5.1")
    with pytest.raises(IntegrityError, match=r"2\.5\.1 builds another model"):
        RknnSession(made)


def test_a_folder_may_be_called_anything(tmp_path, monkeypatch, compiled):
    monkeypatch.setenv("RKNN_TOOLKIT2_PATH", str(write_toolkit(tmp_path / 'a "$HOME" `b` ü')))
    RknnSession(compiled()).close()


def test_what_was_changed_since_it_was_made_does_not_run(toolkit, compiled):
    made = compiled(algorithm="normal")
    with np.load(made.path / "rebuild/samples.npz") as kept:
        other = {name: values * 2 for name, values in kept.items()}
    np.savez_compressed(made.path / "rebuild/samples.npz", **other)
    with pytest.raises(IntegrityError, match="has changed"):
        RknnSession(made)


def test_a_simulator_that_ends_is_told_with_a_log_that_stays(toolkit, compiled):
    session = RknnSession(compiled())
    sample = next(iter(models.draw_samples(session.inputs, 1)))
    session._simulator._worker._process.kill()
    with pytest.raises(ToolFailed) as failure:
        session.run(sample)
    session.close()
    assert Path(failure.value.log).is_file()


def test_an_output_of_another_size_is_a_device_error(toolkit, compiled):
    session = RknnSession(compiled())
    session._simulator._outputs = (replace(session.outputs[0], shape=(1, 5)),)
    with pytest.raises(DeviceError, match=r"shape \[1, 4, 1, 1\], not \[1, 5\]"):
        session.run(next(iter(models.draw_samples(session.inputs, 1))))
    session.close()


@pytest.mark.parametrize(
    ("chip", "options", "words"),
    [
        ("rv1106", {"quantize": "fp16"}, "builds no fp16 for rv1106"),
        ("rk3588", {"quantize": "w4a16"}, "builds no w4a16 for rk3588"),
        ("rv1106", {"auto_hybrid": True}, "fp16, which rv1106 does not have"),
    ],
)
def test_numbers_that_a_chip_does_not_have_are_refused_before_the_build(net, chip, options, words):
    with pytest.raises(ConfigError, match=words):
        Rknn().check(net[0], plugins.platform(chip), Rknn.Options(**options))


@pytest.mark.parametrize("options", [{"samples": 0}, {"time_limit_s": 0}, {"method": "group32"}])
def test_options_are_checked(options):
    with pytest.raises(ConfigError):
        Rknn.Options(**options)


def test_every_chip_of_the_issue_has_its_own_name_at_the_compiler():
    for name in ("rk3588", "rk3576", "rk3568", "rk3566", "rk3562", "rv1103", "rv1106"):
        chip = plugins.platform(name)
        assert chip.facts_as(Rknn.Facts).target_platform == name and chip.npu
    assert plugins.platform("rk3588s").name == "rk3588"


def test_the_command_line_builds_and_runs(toolkit, cli, tmp_path):
    models.save(models.conv_net(), tmp_path / "net.onnx")
    np.save(tmp_path / "data.npy", np.random.default_rng(0).normal(0, 1, (20, 3, 8, 8)).astype(np.float32))
    build = cli("build", "-m", "net.onnx", "-t", "rk3588", "--data", "data.npy", "-o", "out", "-f", "json")
    assert build.returncode == 0, build.stderr
    assert "not evidence for one chip" in build.stdout
    np.save(tmp_path / "one.npy", np.load(tmp_path / "data.npy")[:1])
    run = cli("run", "out/rk3588", "-i", "one.npy", "-f", "json")
    assert run.returncode == 0, run.stderr


def test_garbage_is_an_accuracy_error(toolkit, cli, tmp_path):
    toolkit("garbage")
    models.save(models.conv_net(), tmp_path / "net.onnx")
    np.save(tmp_path / "data.npy", np.random.default_rng(0).normal(0, 1, (20, 3, 8, 8)).astype(np.float32))
    own = {"ANYNPU_CACHE_DIR": str(tmp_path / "cache")}  # a sound toolkit of this version may have built it already
    build = cli("build", "-m", "net.onnx", "-t", "rk3588", "--data", "data.npy", "-o", "out", **own)
    assert build.returncode == 7, build.stderr
    assert "SQNR from the float model" in build.stderr + build.stdout
