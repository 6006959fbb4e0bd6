"""The cvi compiler against a TPU-MLIR of our own: what it is told, what becomes of what it makes or says."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_tpu_mlir import seen, write_tool
from onnx import TensorProto, helper

from anynpu import plugins
from anynpu.errors import AccuracyError, ConfigError, DeviceError, IntegrityError, ToolFailed, ToolMissing, Unsupported
from anynpu.runtime.base import run_real
from anynpu.runtime.cvi import CviSession
from anynpu.runtime.ort import OrtSession
from anynpu.targets.cvi import Cvi
from anynpu.tensors import by_name
from anynpu.testing import conformance, models

CV, BM = plugins.platform("cv180x"), plugins.platform("bm1684x")


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    return models.artifacts(models.conv_net(), tmp_path_factory.mktemp("net"))


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Gives a function that installs a fake TPU-MLIR."""

    def install(version="1.30.2", **plan):
        root = write_tool(tmp_path / "tpu-mlir", version, **plan)
        monkeypatch.setenv("TPU_MLIR_PATH", str(root))
        return root

    return install


@pytest.fixture
def build(net, tmp_path):
    """Gives a function that compiles the small net."""

    def compile(chip=CV, **options):
        return models.compiled(Cvi(), *net, chip, Cvi.Options(**options), tmp_path)

    return compile


def test_the_real_worker_runs_what_was_made(tool, build, net):
    root = tool()
    made = build()
    assert made.manifest.main == "model.cvimodel"
    (image,), (scores,) = made.manifest.inputs, made.manifest.outputs
    assert (image.dtype, scores.dtype) == ("int8", "int8")
    assert scores.quantization.scale == (0.05,)
    assert made.manifest.details["names"]["outputs"] == {"scores": "scores_Gemm"}
    quantised = {"quantisation.json", "calibrated_ranges.json"}
    assert {f.path for f in made.manifest.files} == {"model.cvimodel", "calibration_table", *quantised}
    assert "time" not in (made.path / "calibration_table").read_text()
    session = CviSession(made)
    like = by_name((*net[0].manifest.inputs, *net[0].manifest.outputs))
    given = np.random.default_rng(3).uniform(-1, 1, (1, 3, 8, 8)).astype(np.float32)
    got = run_real(session, {"image": given}, like)["scores"]
    session.close()
    wanted = OrtSession(net[0]).run({"image": given})["scores"]
    assert np.abs(got - wanted).max() < 0.06
    assert "--quant_input --quant_output" in seen(root, "deploy")


def test_programs_are_told_what_the_user_asked_for(tool, build):
    root = tool()
    build(
        tolerance=0.95,
        excepts="c1_Conv",
        pixel_format="rgb",
        resize_dims="8,8",
        keep_aspect_ratio=True,
        calibration_method="mse",
        tuning_samples=0,
    )
    told = seen(root, "transform")
    assert "--pixel_format rgb --resize_dims 8,8 --keep_aspect_ratio" in told
    assert "--input_shapes [[1,3,8,8]]" in told
    assert "--excepts c1_Conv" in told
    assert "--cali_method mse --tune_num 0" in seen(root, "calibration")
    told = seen(root, "deploy")
    assert "--quantize INT8 --processor cv180x --calibration_table calibration_table" in told
    assert "--tolerance 0.95,0 --excepts c1_Conv" in told


def test_bm_chips_keep_floats_and_tell_the_compilers_estimate(tool, build):
    root = tool()
    made = build(BM, quantize="f16", dynamic=True)
    assert made.manifest.main == "model.bmodel"
    assert made.manifest.inputs[0].dtype == "float32"
    assert (made.manifest.estimates.cycles, made.manifest.estimates.latency_ms) == (9454, 0.009454)
    assert "estimate" in made.manifest.estimates.source
    told = seen(root, "deploy")
    assert "--quant_input" not in told
    assert "--dynamic" in told
    assert not (root / "seen" / "calibration.txt").exists()


def test_a_dynamic_model_in_int8_gives_integers(tool, build):
    root = tool()
    made = build(BM, dynamic=True)
    assert "--quant_output" in seen(root, "deploy")
    assert "--quant_input" not in seen(root, "deploy")
    assert (made.manifest.inputs[0].dtype, made.manifest.outputs[0].dtype) == ("float32", "int8")


def test_a_users_tables_are_used(tool, build, tmp_path):
    root = tool()
    (tmp_path / "ranges").write_text("image 2.0 -2.0 2.0\nscores_Gemm 1.0 -1.0 1.0\n")
    (tmp_path / "formats").write_text("# mine\nscores_Gemm bf16\n")
    made = build(calibration_table=tmp_path / "ranges", quantize_table=tmp_path / "formats")
    assert not (root / "seen" / "calibration.txt").exists()
    assert made.manifest.details["mixed"] == {"scores_Gemm": "BF16"}
    # Both borders would be bfloat16: it is compiled once more, with floats there.
    assert len((root / "seen" / "deploy.txt").read_text().splitlines()) == 2
    assert made.manifest.outputs[0].dtype == "float32"


def test_a_search_makes_the_table_of_formats(tool, build):
    root = tool()
    made = build(search="mixed", search_cosine=0.995)
    assert "--search search_qtable --expected_cos 0.995" in seen(root, "calibration")
    assert made.manifest.details["mixed"] == {"scores_Gemm": "BF16"}
    assert (made.path / "quantize_table").read_text() == "scores_Gemm BF16\n"


def test_a_search_for_ranges_makes_no_table_of_formats(tool, build):
    root = tool()
    made = build(search="threshold")
    assert "--search search_threshold" in seen(root, "calibration")
    assert made.manifest.details["mixed"] == {}
    assert "--quantize_table" not in seen(root, "deploy")


def test_the_receipt_names_what_runs_on_the_cpu(tool, build):
    tool(deploy={"cpu": "GlobalAveragePool"})
    (mean,) = build().manifest.placement.elsewhere()
    assert (mean.kind, mean.device) == ("GlobalAveragePool", "cpu")
    assert "has no soft" in mean.reason


@pytest.mark.parametrize("program", ["transform", "calibration", "deploy"])
@pytest.mark.parametrize(
    ("plan", "words"),
    [({"status": 3}, "status 3"), ({"crash": True}, "SIGSEGV"), ({"nothing": True}, "ended well but wrote no")],
)
def test_a_failing_program_is_told_with_its_log(tool, build, tmp_path, program, plan, words):
    tool(**{program: plan})
    with pytest.raises(ToolFailed, match=words) as failure:
        build(calibration_method="kl" if program == "calibration" else "anynpu")
    assert failure.value.log == str(tmp_path / "log.txt")
    assert list((tmp_path / "artifact").iterdir()) == []


def test_a_hang_ends_at_the_limit_of_all_programs_together(tool, build, tmp_path):
    tool(deploy={"hang": True})
    with pytest.raises(ToolFailed, match="did not finish within 8 s"):
        build(time_limit_s=8)
    assert list((tmp_path / "artifact").iterdir()) == []


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"truncated": True}, "cut short or damaged"),
        ({"other": True}, "not a cvimodel"),
        ({"chip": "cv183x"}, "for cv183x, not cv180x"),
        ({"no_final": True}, "no final .mlir"),
        ({"no_stored": True}, "no _tpu.mlir"),
        ({"odd": "f64"}, "holds f64"),
    ],
)
def test_a_file_that_is_not_what_was_asked_for_is_a_failure(tool, build, tmp_path, plan, words):
    tool(deploy=plan)
    with pytest.raises(ToolFailed, match=words) as failure:
        build()
    assert failure.value.log == str(tmp_path / "log.txt")
    assert list((tmp_path / "artifact").iterdir()) == []


def test_its_own_comparison_falling_short_is_an_accuracy_error(tool, build):
    says = ["min_similarity = (0.8123, 0.4, 7.1)", "npz compare FAILED."]
    tool(deploy={"says": says, "status": 1})
    with pytest.raises(AccuracyError, match=r"0\.8123; 0\.99 is asked for") as short:
        build()
    assert "calibration_method" in short.value.hint


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("RuntimeError: Op not support:{'Selu'}", "Selu"),
        ("/lib/libc.so.6: version `GLIBC_2.36' not found", "GLIBC_2.36"),
        ("UNREACHABLE executed at /w/lib/Conversion/TopToTpu/TopToTpuPass.cpp:1921!", "anynpu check"),
        ("something nobody has seen", "own words"),
    ],
)
def test_what_it_says_becomes_a_hint(tool, build, line, hint):
    tool(transform={"says": [line, *["more"] * 30], "status": 1})
    with pytest.raises(ToolFailed) as failure:
        build()
    assert hint in failure.value.hint


def test_another_version_is_used_and_noted(tool, build):
    tool(version="1.31.0")
    assert Cvi().tools() == {"tpu-mlir": "1.31.0"}
    (note,) = build().manifest.notes
    assert "written for TPU-MLIR 1.30.2, this is 1.31.0" in note


@pytest.mark.parametrize(
    ("chip", "options", "words"),
    [
        (CV, {"quantize": "f16"}, "cv180x computes in int8, bf16"),
        (CV, {"dynamic": True}, "dynamic: cv180x has no such thing"),
        (CV, {"quantize": "bf16", "search": "mixed"}, "search=mixed is for quantize=int8"),
        (CV, {"tolerance": 1.5}, "tolerance=1.5"),
        (CV, {"resize_dims": "96x96"}, "height,width"),
        (BM, {"dynamic": True, "quant_output": "float"}, "negative outputs wrongly"),
        (CV, {"quantize": "bf16", "quant_input": "integer"}, "quant_input=integer is for quantize=int8"),
        (CV, {"search": "mixed", "quantize_table": Path("a")}, "not both"),
        (CV, {"search": "threshold", "calibration_table": Path("a")}, "not both"),
    ],
)
def test_what_a_chip_does_not_admit_is_refused(build, chip, options, words):
    with pytest.raises(ConfigError, match=words):
        build(chip, **options)


@pytest.mark.parametrize("text", ["scores_Gemm INT9\n", "scores_Gemm\n", "# nothing\n", "nobody_Gemm BF16\n"])
def test_a_bad_table_of_formats_is_refused(tool, build, tmp_path, text):
    tool()
    (tmp_path / "formats").write_text(text)
    with pytest.raises(ConfigError, match="formats"):
        build(quantize_table=tmp_path / "formats")


def one_operator(kind):
    value = (TensorProto.FLOAT, [1, 8])
    border = [[helper.make_tensor_value_info(name, *value)] for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node(kind, ["x"], ["y"], "it")], "net", *border)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("kind", "chip", "rule"), [("Selu", BM, "is_read"), ("Sin", CV, "chip_has_it")])
def test_refused_operators_are_findings_and_never_reach_the_tool(tool, tmp_path, kind, chip, rule):
    root = tool()
    model, data = models.artifacts(one_operator(kind), tmp_path)
    (finding,) = Cvi().check(model, chip, Cvi.Options())
    assert (finding.rule, finding.where) == (rule, "it")
    with pytest.raises(Unsupported) as refused:
        models.compiled(Cvi(), model, data, chip, Cvi.Options(), tmp_path)
    assert refused.value.findings == (finding,)
    assert not (root / "seen").exists()


def test_bm_chips_have_the_sine(tmp_path):
    model = models.onnx_artifact(one_operator("Sin"), tmp_path / "model")
    assert Cvi().check(model, BM, Cvi.Options()) == ()


def test_a_missing_tool_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.delenv("TPU_MLIR_PATH", raising=False)
    monkeypatch.setenv("ANYNPU_CACHE_DIR", str(tmp_path))
    with pytest.raises(ToolMissing) as missing:
        Cvi().tools()
    assert missing.value.hint == "anynpu tool install cvi"
    assert "anynpu tool install cvi" in CviSession.missing()


def test_the_kit_finds_nothing_wrong(tool, net, tmp_path):
    tool()
    made = conformance.check_target(Cvi(), net[0], CV, tmp_path / "kit", data=net[1])
    conformance.check_session(CviSession, made, tmp_path / "session", reference=net[0])


def test_a_simulator_that_ends_is_a_failure_with_a_log(tool, build):
    root = tool()
    made = build()
    (runtime,) = root.glob("lib/*/site-packages/tpu_mlir/python/pyruntime_cvi.py")
    runtime.write_text("import os\nos.abort()\n")
    with pytest.raises(ToolFailed, match="SIGABRT") as failure:
        CviSession(made)
    assert "open_model" in failure.value.message
    assert "cvi_worker" in Path(failure.value.log).read_text()


def gelu(parts):
    """Returns erf alone, or as a GELU has it: erf(x / sqrt 2) + 1."""
    value = (TensorProto.FLOAT, [1, 8])
    nodes = [helper.make_node("Erf", ["a" if parts else "x"], ["b" if parts else "y"], "erf")]
    if parts:
        nodes = [
            helper.make_node("Mul", ["x", "k"], ["a"], "scale"),
            *nodes,
            helper.make_node("Add", ["b", "k"], ["y"]),
        ]
    border = [[helper.make_tensor_value_info(name, *value)] for name in ("x", "y")]
    held = [helper.make_tensor("k", TensorProto.FLOAT, [1], [0.7071])]
    graph = helper.make_graph(nodes, "net", *border, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("parts", "rules"), [(False, ["erf_is_part_of_gelu"]), (True, [])])
def test_erf_goes_to_old_chips_as_part_of_gelu_alone(tmp_path, parts, rules):
    model = models.onnx_artifact(gelu(parts), tmp_path / "model")
    assert [finding.rule for finding in Cvi().check(model, CV, Cvi.Options())] == rules
    assert Cvi().check(model, BM, Cvi.Options()) == ()


@pytest.mark.parametrize(("held", "rules"), [(["e"], []), ([], ["power_is_a_number"])])
def test_powers_of_data_are_refused_for_old_chips(tmp_path, held, rules):
    value = (TensorProto.FLOAT, [1, 8])
    inputs = [helper.make_tensor_value_info(n, *value) for n in ("x", "e") if n not in held]
    weights = [helper.make_tensor(n, TensorProto.FLOAT, [1], [2.0]) for n in held]
    node = helper.make_node("Pow", ["x", "e"], ["y"], "power")
    graph = helper.make_graph([node], "net", inputs, [helper.make_tensor_value_info("y", *value)], weights)
    net = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = models.onnx_artifact(net, tmp_path / "model")
    assert [finding.rule for finding in Cvi().check(model, CV, Cvi.Options())] == rules


@pytest.mark.parametrize(
    ("details", "words"),
    [
        ({"simulator": "../../../lib/libother.so"}, "is not a simulator"),
        ({"names": {"inputs": {}}}, "calls its tensors"),
    ],
)
def test_a_manifest_that_names_other_things_is_refused(tool, build, details, words):
    tool()
    made = build(BM)
    manifest = replace(made.manifest, details={**made.manifest.details, **details})
    with pytest.raises(IntegrityError, match=words):
        CviSession(replace(made, manifest=manifest))


def test_a_session_that_does_not_open_leaves_no_folder(tool, build, tmp_path, monkeypatch):
    tool()
    made = build()
    room = tmp_path / "temporary"
    room.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(room))
    monkeypatch.setattr("anynpu.runtime.cvi.Simulator", _fails)
    with pytest.raises(DeviceError):
        CviSession(made)
    assert list(room.iterdir()) == []


def _fails(*arguments, **named):
    raise DeviceError("no", "open")
