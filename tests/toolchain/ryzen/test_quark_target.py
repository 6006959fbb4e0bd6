"""The Ryzen AI target on a fake Quark: what it is told, and what becomes of what it makes, says and breaks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fake_quark import write_quark
from onnx import helper, numpy_helper

from anynpu import plugins
from anynpu.artifact import Artifact
from anynpu.errors import ConfigError, IntegrityError, ToolFailed, ToolMissing, Unsupported
from anynpu.graph.opset import opset_of
from anynpu.runtime.quark import QuarkSession
from anynpu.targets.vitisai import VitisAi
from anynpu.targets.vitisai.form import check_made
from anynpu.targets.vitisai.options import VitisOptions
from anynpu.targets.vitisai.placement import SOURCE, placement, without_pairs
from anynpu.targets.vitisai.prepare import in_opset, in_order
from anynpu.targets.vitisai.rules import broken, operators, unlisted
from anynpu.tensors import TensorSpec
from anynpu.testing import conformance, models

STX, PHX = plugins.platform("ryzen-ai-stx"), plugins.platform("ryzen-ai-phx")
Compile = Callable[..., Artifact]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifact, Artifact]:
    return models.artifacts(models.conv_net(), tmp_path_factory.mktemp("given"))


@pytest.fixture
def compile_with(given: tuple[Artifact, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compile:
    def compiled(options: VitisOptions | None = None, version: str = "0.13", **plan: object) -> Artifact:
        monkeypatch.setenv("QUARK_PATH", str(write_quark(tmp_path / "quark", version, **plan)))
        return models.compiled(VitisAi(), *given, STX, options or VitisOptions(), tmp_path / "made")

    return compiled


def sqnr(model: Artifact, made: Artifact) -> float:
    import onnxruntime

    samples = list(models.draw_samples(model.manifest.inputs, 16, seed=5))
    session = QuarkSession(made)
    truth = onnxruntime.InferenceSession(str(model.main), providers=["CPUExecutionProvider"])
    pairs = [(truth.run(None, dict(s))[0], session.run(s)["scores"]) for s in samples]
    want, got = (np.concatenate(part) for part in zip(*pairs, strict=True))
    return float(10 * np.log10((want**2).sum() / ((want - got) ** 2).sum()))


@pytest.mark.parametrize(("precision", "least"), [("xint8", 18), ("a8w8", 22), ("a16w8", 30), ("bf16", 40)])
def test_every_precision_is_made_checked_and_runs(
    given: tuple[Artifact, Artifact], compile_with: Compile, precision: str, least: float
) -> None:
    made = compile_with(VitisOptions(precision=precision))
    assert made.manifest.details == {"precision": precision, "adaround": False, "quark": "0.13", "opset": 17}
    assert made.manifest.inputs == given[0].manifest.inputs and made.manifest.outputs == given[0].manifest.outputs
    told = [] if precision == "bf16" else ["calibrated_ranges.json", "quantisation.json"]
    assert sorted(p.name for p in made.path.iterdir()) == sorted(["manifest.json", "model.onnx", *told])
    assert sqnr(given[0], made) > least
    file = onnx.load(made.main)
    wanted = {""} if precision in ("xint8", "bf16") else {"", "com.microsoft"}
    assert {o.domain for o in file.opset_import} == wanted, "opsets that nothing uses are left out"


def test_the_receipt_counts_operators_and_says_that_it_is_a_prediction(compile_with: Compile) -> None:
    receipt = compile_with().manifest.placement
    assert receipt is not None and receipt.source == SOURCE and receipt.npu == STX.npu
    assert [op.kind for op in receipt.operators] == [
        "Conv", "Relu", "Conv", "Relu", "GlobalAveragePool", "Flatten", "Gemm",
    ]  # fmt: skip
    assert receipt.share == 1.0 and receipt.operators[0].macs == 8 * 3 * 9 * 64


def test_what_amds_list_lacks_is_placed_on_the_cpu_with_the_reason(compile_with: Compile) -> None:
    receipt = compile_with(VitisOptions(precision="bf16")).manifest.placement
    assert receipt is not None
    assert {op.kind for op in receipt.elsewhere()} == {"Relu"}
    assert "no Relu in bf16" in receipt.elsewhere()[0].reason


def test_quark_gets_the_users_samples_and_what_was_asked_for(
    given: tuple[Artifact, Artifact], compile_with: Compile, tmp_path: Path
) -> None:
    compile_with(VitisOptions(calibration="non_overflow", cle=True, adaround=True, adaround_iterations=7))
    log = (tmp_path / "made" / "log.txt").read_text()
    assert "XINT8 PowerOfTwoMethod.NonOverflow" in log and "CLEConfig" in log
    assert "'num_iterations': 7" in log
    with np.load(given[1].main) as stored:
        values = stored["input:image"]
    told = log.partition("samples ")[2].splitlines()[0]
    assert told.startswith(f"{len(values)} ") and json.loads(told.partition(" ")[2]) == {
        "image": pytest.approx(float(np.abs(values).max()))
    }


def test_the_kit_finds_nothing_wrong(
    given: tuple[Artifact, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUARK_PATH", str(write_quark(tmp_path / "quark")))
    conformance.check_target(VitisAi(), given[0], STX, tmp_path / "kit", data=given[1])


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"raises": "no such thing"}, "quantise: ValueError: no such thing"),
        ({"crash": True}, "SIGSEGV"),
        ({"nothing": True}, "ended well but wrote no model"),
        ({"truncated": True}, "ended well but its file: not a whole ONNX model"),
        ({"skipped": True}, "not a model in xint8: nothing in it is quantised"),
        ({"odd_scale": True}, "is not a power of two"),
        ({"signed": True}, "an activation is int8 with zero point 0, not uint8 with 128"),
        ({"per_channel": True}, "scales, not one for the tensor"),
        ({"custom_domain": "com.amd.quark"}, "operators of com.amd.quark"),
        ({"renamed": True}, "has other outputs: other float32"),
    ],
)
def test_each_failure_says_what_it_was_and_leaves_nothing(
    compile_with: Compile, tmp_path: Path, plan: dict[str, object], words: str
) -> None:
    with pytest.raises(ToolFailed, match=words) as failure:
        compile_with(**plan)
    assert failure.value.log == str(tmp_path / "made" / "log.txt")
    assert "[QUARK-INFO]" in Path(failure.value.log).read_text()
    assert not list((tmp_path / "made" / "artifact").iterdir()), "a scratch folder is left"


def test_a_hang_ends_at_the_limit(compile_with: Compile, tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match="did not finish within 5 s"):
        compile_with(VitisOptions(time_limit_s=5), hang=True)
    assert not list((tmp_path / "made" / "artifact").iterdir())


def test_without_a_compiler_the_hint_names_it(compile_with: Compile) -> None:
    with pytest.raises(ToolFailed, match="g\\+\\+: not found") as failure:
        compile_with(no_compiler=True)
    assert "install g++" in failure.value.hint


def test_a_model_that_was_skipped_has_the_hint_of_what_quark_said(compile_with: Compile) -> None:
    with pytest.raises(ToolFailed, match="nothing in it is quantised") as failure:
        compile_with(skipped=True, says=["No quantizable ops in this model, quantization is skipped."])
    assert "nothing to quantise" in failure.value.hint


def test_another_version_is_used_and_said(compile_with: Compile) -> None:
    made = compile_with(version="0.14")
    assert made.manifest.notes == ("written for quark 0.13, this is 0.14",)
    assert made.manifest.details["quark"] == "0.14"


def test_a_quark_that_is_not_there_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("QUARK_PATH", raising=False)
    monkeypatch.setenv("ANYNPU_CACHE_DIR", str(tmp_path))
    with pytest.raises(ToolMissing) as missing:
        VitisAi().tools()
    assert missing.value.hint == "anynpu tool install quark"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"calibration": "percentile"}, "not for xint8"),
        ({"precision": "a8w8", "calibration": "min_mse"}, "not for a8w8"),
        ({"precision": "bf16", "adaround": True}, "neither cle nor adaround"),
        ({"opset": 9}, "13 to 21 was expected"),
        ({"adaround_iterations": 0}, "one or more"),
        ({"time_limit_s": 0}, "a second or more"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        VitisOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", ["a8w8", "a16w8", "bf16"])
def test_phoenix_takes_xint8_only(given: tuple[Artifact, Artifact], precision: str) -> None:
    with pytest.raises(ConfigError, match=f"ryzen-ai-phx does not run {precision} models") as refused:
        VitisAi().check(given[0], PHX, VitisOptions(precision=precision))  # type: ignore[arg-type]
    assert "precision=xint8" in refused.value.hint
    assert VitisAi().check(given[0], PHX, VitisOptions()) == ()


def changed(**change: object) -> onnx.ModelProto:
    model = models.conv_net()
    if "batch" in change:
        for value in (model.graph.input[0], model.graph.output[0]):
            value.type.tensor_type.shape.dim[0].dim_value = change["batch"]  # type: ignore[assignment]
    if "free" in change:
        model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    if "pair" in change:
        stored = {"s": np.float32(0.5), "z": np.uint8(128)}
        model.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), n) for n, v in stored.items())
        model.graph.node[0].input[0] = "d"
        pair = [("QuantizeLinear", "image", "q"), ("DequantizeLinear", "q", "d")]
        rest = list(model.graph.node)
        del model.graph.node[:]
        model.graph.node.extend([*(helper.make_node(k, [i, "s", "z"], [o]) for k, i, o in pair), *rest])
    if "kind" in change:
        model.graph.node[1].op_type = str(change["kind"])
    if "domain" in change:
        model.graph.node[1].domain = str(change["domain"])
        model.opset_import.append(helper.make_opsetid(str(change["domain"]), 1))
    if "elem" in change:
        model.graph.input[0].type.tensor_type.elem_type = change["elem"]  # type: ignore[assignment]
    return model


@pytest.mark.parametrize(
    ("change", "rule", "words"),
    [
        ({"batch": 4}, "batch_is_one", "batch size must be 1"),
        ({"free": True}, "static_shapes_only", "Every dimension must be fixed"),
        ({"pair": True}, "is_float", "quantised already"),
        ({"domain": "my.own"}, "standard_operators", "none of ONNX's own"),
        ({"elem": 9}, "border_types", "float32, int32 or int64"),
    ],
)
def test_each_rule_finds_what_breaks_it(change: dict[str, object], rule: str, words: str) -> None:
    found = {finding.rule: finding.message for finding in broken(changed(**change))}
    assert words in found[rule]
    assert broken(models.conv_net()) == ()


def test_a_model_that_breaks_a_rule_is_refused_before_quark_starts(
    given: tuple[Artifact, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUARK_PATH", str(write_quark(tmp_path / "quark", crash=True)))
    model = models.onnx_artifact(changed(batch=4), tmp_path / "four")
    with pytest.raises(Unsupported, match="batch size must be 1") as refused:
        models.compiled(VitisAi(), model, given[1], STX, VitisOptions(), tmp_path / "made")
    assert refused.value.findings[0].where == "image"


def test_an_operator_off_the_list_is_a_finding_and_no_refusal() -> None:
    found = unlisted(changed(kind="Erf"), "a8w8")
    assert [(f.where, f.rule) for f in found] == [("relu1", "operator_listed")]
    assert unlisted(changed(kind="Erf"), "xint8") == ()


def test_the_list_holds_what_amd_documents() -> None:
    counts = {name: len(operators().of(name)) for name in ("xint8", "a8w8", "a16w8", "bf16")}  # type: ignore[arg-type]
    assert counts == {"xint8": 82, "a8w8": 49, "a16w8": 50, "bf16": 77}
    assert all("Conv" in operators().of(name) for name in ("xint8", "a8w8", "a16w8", "bf16"))  # type: ignore[arg-type]


def test_the_opset_is_converted_both_ways_and_what_cannot_be_is_kept() -> None:
    model = models.conv_net()
    newer, reason = in_opset(model, 18)
    assert opset_of(newer) == 18 and not reason
    older, reason = in_opset(newer, 17)
    assert opset_of(older) == 17 and not reason
    kept, reason = in_opset(newer, 13)  # Relu of opset 14 has no way back
    assert kept is newer and "Relu" in reason


def test_nodes_are_put_in_order_and_a_circle_is_left() -> None:
    model = models.conv_net()
    mixed = onnx.ModelProto.FromString(model.SerializeToString())
    del mixed.graph.node[:]
    mixed.graph.node.extend(reversed(model.graph.node))
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(mixed)
    onnx.checker.check_model(in_order(mixed))
    mixed.graph.node[-1].input[0] = "scores"
    assert in_order(mixed) is mixed


def test_pairs_fold_and_the_last_ones_name_goes_to_its_producer() -> None:
    model = models.dense_net()
    step, zero = numpy_helper.from_array(np.float32(0.5), "s"), numpy_helper.from_array(np.uint8(128), "z")
    model.graph.initializer.extend([step, zero])
    model.graph.node[-1].output[0] = "raw"
    model.graph.node.extend(
        [
            helper.make_node("QuantizeLinear", ["raw", "s", "z"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["scores"]),
        ]
    )
    plain = without_pairs(model)
    assert [n.op_type for n in plain.graph.node] == ["Gemm", "Relu", "Gemm"]
    assert plain.graph.node[-1].output[0] == "scores"
    assert [op.macs for op in placement(model, "x", "xint8").operators] == [192, 0, 96]


def test_a_model_of_another_precision_is_not_taken_for_the_one(compile_with: Compile) -> None:
    made = compile_with(VitisOptions(precision="a8w8"))
    with pytest.raises(IntegrityError, match="not a model in xint8"):
        check_made(onnx.load(made.main), "xint8", made.manifest.inputs, made.manifest.outputs)
    with pytest.raises(IntegrityError, match="nothing in it is cast to bfloat16"):
        check_made(onnx.load(made.main), "bf16", made.manifest.inputs, made.manifest.outputs)


def build(cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, **plan: object) -> dict[str, Any]:
    """Builds through the command line with a Quark that follows a plan, and returns the chip's record."""
    models.save(models.conv_net(), tmp_path / "net.onnx")
    root = write_quark(tmp_path / "quark", **plan)
    done = cli(
        "build", "-m", "net.onnx", "-t", "ryzen-ai-stx", "--data", "random:40", "-o", "out", "-q", "-f", "json",
        QUARK_PATH=str(root), ANYNPU_CACHE_DIR=str(tmp_path / "cache"),
    )  # fmt: skip
    (record,) = json.loads(done.stdout)["chips"]
    return {**record, "exit": done.returncode}


def test_a_build_ends_with_figures_and_the_receipt(cli: Any, tmp_path: Path) -> None:
    record = build(cli, tmp_path)
    assert record["exit"] == 0 and record["verification"]["sqnr_db"] > 18
    assert record["verification"]["device"] == "quark"
    assert record["receipt"]["source"] == SOURCE


def test_garbage_is_an_accuracy_error(cli: Any, tmp_path: Path) -> None:
    record = build(cli, tmp_path, garbage=True)
    assert record["exit"] == 7 and record["error"]["kind"] == "AccuracyError"


@pytest.mark.parametrize("plan", [{"crash": True}, {"truncated": True}])
def test_a_failed_build_leaves_no_artifact_in_the_store(cli: Any, tmp_path: Path, plan: dict[str, object]) -> None:
    record = build(cli, tmp_path, **plan)
    assert record["exit"] == 5 and record["error"]["kind"] == "ToolFailed"
    assert Path(record["error"]["log"]).is_file()
    manifests = [json.loads(path.read_text()) for path in (tmp_path / "cache").rglob("manifest.json")]
    assert {m["format"] for m in manifests} == {"onnx", "dataset", "proof"}
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.name in ("quark", "float.onnx")]


def embedding(zero: int, dtype: str) -> onnx.ModelProto:
    """A table of int8 rows, looked up, and a pair on the row that is found."""
    stored = {
        "table": np.zeros((9, 4), np.int8), "s": np.float32(0.5), "z": np.int8(0), "zz": np.array(zero, dtype),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["table", "s", "z"], ["rows"]),
        helper.make_node("Gather", ["rows", "ids"], ["row"]),
        helper.make_node("QuantizeLinear", ["row", "s", "zz"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "zz"], ["out"]),
    ]
    borders = [("ids", onnx.TensorProto.INT64, (1,)), ("out", onnx.TensorProto.FLOAT, (1, 4))]
    values = [helper.make_tensor_value_info(*border) for border in borders]
    tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in stored.items()]
    graph = helper.make_graph(nodes, "embedding", values[:1], values[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_row_of_a_table_may_keep_the_form_of_its_weights() -> None:
    inputs, outputs = (TensorSpec("ids", (1,), "int64"),), (TensorSpec("out", (1, 4)),)
    check_made(embedding(0, "int8"), "xint8", inputs, outputs)
    check_made(embedding(128, "uint8"), "xint8", inputs, outputs)
    with pytest.raises(IntegrityError, match="an activation is int8 with zero point 3"):
        check_made(embedding(3, "int8"), "xint8", inputs, outputs)
