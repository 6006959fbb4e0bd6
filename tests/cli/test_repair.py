"""--repair: where the gate does not hold, repairs are tried one by one, and each says what it gained."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import anynpu
from anynpu.errors import AccuracyError


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Two layers whose inner values have long tails, so that cutting them off ruins the result."""
    folder = tmp_path_factory.mktemp("net")
    draw = np.random.default_rng(0)
    stored = {"w": draw.normal(size=(6, 16)), "b": draw.normal(size=16), "v": draw.normal(size=(16, 4))}
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, [1, 6])],
        [value("y", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in stored.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "net.onnx")
    np.save(folder / "x.npy", draw.standard_t(3, (60, 6)).astype(np.float32))
    return folder


def built(cli, small, *flags):
    out = small / "out"
    arguments = ["-m", str(small / "net.onnx"), "--data", str(small / "x.npy"), "-o", str(out), "--overwrite"]
    done = cli("build", *arguments, *flags)
    return done, json.loads((out / "report.json").read_text("utf-8"))["chips"]


def test_the_cheapest_repair_that_holds_the_gate_is_kept(cli, small):
    sabotage = ("-O", "method=percentile", "-O", "percentile=60", "-O", "bias_correction=false")
    done, chips = built(cli, small, "-t", "cpu", "--min-sqnr", "25", "--repair", *sabotage)
    assert done.returncode == 0, done.stdout
    repairs = chips[0]["repairs"]
    assert [each["repair"] for each in repairs] == ["bias correction", "ranges by the error behind functions"]
    assert repairs[0]["before_db"] < 25 < repairs[1]["after_db"]
    assert repairs[1]["holds"]
    assert "holds" not in repairs[0]
    assert "cpu: repair ranges by the error behind functions (-O method=auto): " in done.stdout
    assert "the gate holds" in done.stdout
    assert chips[0]["chain"][-1]["step"]["options"]["method"] == "auto"
    assert chips[0]["status"] == "ok"


def test_a_gate_that_cannot_be_met_says_the_best_reached(cli, small):
    done, chips = built(cli, small, "-t", "tflite", "--min-sqnr", "190", "--repair")
    assert done.returncode == 7, done.stdout
    repairs = chips[0]["repairs"]
    names = [each["options"].partition("=")[0] for each in repairs]
    assert names == ["-O equalize", "-O method", "-O rounding", "-O wide_tensors", "-O activations", "-O float_tensors"]
    reached = max(each["after_db"] for each in repairs)
    assert reached > repairs[0]["before_db"] + 20
    assert f"the best reached is {reached:.1f} dB; most is lost at " in done.stdout
    hint = next(line for line in done.stdout.splitlines() if "calibration data may help" in line)
    assert "--repair" not in hint and "--qat" in hint
    assert chips[0]["verification"]["sqnr_db"] == pytest.approx(reached)
    assert chips[0]["diagnosis"] is not None


def test_16_bits_go_to_the_fewest_tensors_that_hold_the_gate(small, tmp_path):
    inputs = (small / "net.onnx", "tflite", str(small / "x.npy"))
    built = anynpu.build(*inputs, min_sqnr=40, repair=True, cache_dir=tmp_path)
    repair = built.record.chips[0].repairs[-1]
    assert repair.repair == "16 bits for the fewest tensors"
    assert repair.after_db > 40 > repair.before_db
    assert next(each.options for each in built.record.chips[0].repairs if each.kept) == "-O equalize=false"
    assert repair.activation_bytes == sum({"x": 6, "r": 16, "y": 4}[name] for name in repair.tensors)
    kept = [each.options.removeprefix("-O ").partition("=") for each in built.record.chips[0].repairs if each.kept]
    options = {name: value for name, _, value in kept}
    by_hand = anynpu.build(*inputs, option=options, cache_dir=tmp_path)
    assert by_hand["tflite"].verification.sqnr_db == pytest.approx(repair.after_db)
    options["wide_tensors"] = ",".join(repair.tensors[:-1])
    fewer = anynpu.build(*inputs, option=options, cache_dir=tmp_path)
    assert fewer["tflite"].verification.sqnr_db < 40


def test_what_there_is_no_time_for_is_named():
    """Builds that take 200 of 480 seconds: two repairs fit, and none of the others is begun."""
    from anynpu.pipeline.planner import Link
    from anynpu.pipeline.repair import Attempt, Proved, repaired
    from anynpu.quantize.plan import QuantPlan
    from anynpu.records.build import Verification
    from anynpu.records.shared import Fidelity
    from anynpu.targets.cpu import Cpu

    now = 0.0
    proof = Verification("here", "cpu", "", 1, True, {"y": Fidelity(1.0, 20.0, 20.0, 0.0, None, 1)})
    missed = AccuracyError("too low", "sqnr_db", 20.0, 60.0)

    def make(links):
        nonlocal now
        now += 200.0
        return Attempt(links, proved=Proved(proof), error=missed)

    first = Attempt((Link(Cpu(), QuantPlan()),), proved=Proved(proof), error=missed)
    best, repairs = repaired(first, make, lambda best: pytest.fail("diagnosed without time"), lambda: now)
    assert best is first
    assert [each.skipped for each in repairs] == [False, False, True, True, True, True]
    assert repairs[2].sentence == (
        "repair weights fitted to their inputs (-O rounding=fitted): "
        "not tried: 6.7 of 8 minutes are over, and the longest repair took 3.3"
    )
    assert [each.options for each in repairs[3:]] == [
        "-O wide_tensors=...",
        "-O activations=int16",
        "-O float_tensors=...",
    ]


def test_a_tensor_that_is_not_there_is_named(small, tmp_path):
    samples = str(small / "x.npy")
    built = anynpu.build(small / "net.onnx", "cpu,tflite", samples, wide_tensors=["hh"], cache_dir=tmp_path)
    for chip in ("cpu", "tflite"):
        assert built[chip].error.exit_status == 2
        assert built[chip].error.message.startswith("wide_tensors=hh: the model has no such tensor")


@pytest.mark.parametrize("kept", [True, False])
def test_a_result_that_misses_the_gate_is_kept_only_when_asked_for_and_apart(small, tmp_path, kept):
    out = tmp_path / "out"
    inputs = (small / "net.onnx", "cpu", str(small / "x.npy"))
    built = anynpu.build(*inputs, min_sqnr=190, keep_failed=kept, output=out, cache_dir=small / "cache")
    assert built["cpu"].status == "AccuracyError"
    assert not (out / "cpu").exists()
    assert (out / "failed").exists() == kept
    if kept:
        assert "190 dB is asked for" in (out / "failed" / "cpu" / "FAILED.txt").read_text("utf-8")
        record = anynpu.bisect("float", out / "failed" / "cpu", str(small / "x.npy"), cache_dir=small / "cache")
        assert record.agree
    else:
        with pytest.raises(anynpu.errors.ConfigError) as caught:
            anynpu.bisect("float", out / "cpu", str(small / "x.npy"), cache_dir=small / "cache")
        assert "--keep-failed keeps a result" in caught.value.hint
