"""Repairs: where the gate does not hold, they are tried one by one, and each says what it gained."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from sick import joined_scales
from tflite_builder import Builder

import anynpu
from anynpu.artifact import Artifact, Manifest
from anynpu.errors import AccuracyError, Finding, Unsupported
from anynpu.measure.verify import Gate
from anynpu.pipeline.ladder import LADDER, Fewest
from anynpu.pipeline.planner import Link
from anynpu.pipeline.repair import Attempt, Bounds, Experience, Proved, bounds, repaired
from anynpu.pipeline.request import Request
from anynpu.quantize.plan import QuantPlan
from anynpu.records.build import Verification
from anynpu.records.diagnosis import Diagnosis, TensorLoss
from anynpu.records.shared import Fidelity
from anynpu.source.load import ModelSource
from anynpu.targets.cpu import Cpu


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


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """Pixels and scores under one scale: in 8 bits nothing of the scores is left, in 16 bits enough."""
    home = tmp_path_factory.mktemp("joined")
    np.save(home / "x.npy", next(iter(joined_scales(home).values())))
    return home


def test_what_misses_the_default_gate_is_repaired_unasked(cli, joined):
    done, chips = built(cli, joined, "-t", "tflite,tflm", "--keep-outputs")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("ok, repaired") == 2
    assert "tflite: repaired: as it was asked for, it misses the gate; --no-repair builds no more" in done.stdout
    first, second = (chip["repairs"] for chip in chips)
    assert first[-1]["holds"] and first[-1]["tensors"] and first[-1]["activation_bytes"] > 0
    assert [each["repair"] for each in second] == ["as for tflite"]
    assert chips[1]["chain"][-1]["step"]["options"]["wide_tensors"] == first[-1]["tensors"]


def test_an_import_leaves_no_need_for_it(cli, joined):
    done, chips = built(cli, joined, "-t", "tflite")
    assert done.returncode == 0 and not chips[0]["repairs"], done.stdout
    assert "joined_0 (places 0..3, to " in done.stdout and "joined_1 (places 4..11, to 1)" in done.stdout
    assert set(chips[0]["verification"]["outputs"]) == {"joined_0", "joined_1"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--no-repair",), "make parts of different range outputs of their own"),
        (("--max-drop", "5", "--keep-outputs"), "make parts of different range outputs of their own"),
        (
            ("-O", "activations=int8", "--keep-outputs"),
            "not tried: -O activations was chosen for this build; --repair may change it",
        ),
    ],
)
def test_a_wish_of_the_user_is_not_repaired_away(cli, joined, flags, words):
    done, chips = built(cli, joined, "-t", "tflite", *flags)
    assert done.returncode == 7, done.stdout
    assert words in done.stdout
    assert not any(each.get("kept") for each in chips[0]["repairs"])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, Bounds(300.0, {}, asked=False)),
        ({"repair": True, "gate": Gate(30.0), "options": {"method": "mse"}}, Bounds()),
        ({"options": {"tflite.method": "mse"}}, Bounds(300.0, {"method": "method"}, asked=False)),
        ({"repair": False}, None),
        ({"qat": True}, None),
        ({"gate": Gate(30.0)}, None),
        ({"origins": {"min_sqnr": "--min-sqnr"}}, None),
        ({"options": {"cpu.quantisation": "edited.json"}}, None),
    ],
)
def test_how_far_repairs_go(settings, expected):
    assert bounds(Request(ModelSource("net.onnx"), ("cpu",), **settings)) == expected


class Bench:
    """Builds that hold the gate with some settings alone, and count themselves."""

    proof = Verification("here", "cpu", "", 1, True, {"y": Fidelity(1.0, 20.0, 20.0, 0.0, None, 1)})

    def __init__(self, **holds):
        self.holds, self.count, self.now = holds, 0, 0.0

    def make(self, links):
        self.count += 1
        self.now += 200.0
        held = self.holds and all(getattr(links[0].options, name) == value for name, value in self.holds.items())
        error = None if held else AccuracyError("too low", "sqnr_db", 20.0, 60.0)
        return Attempt(links, proved=Proved(self.proof), error=error, seconds=200.0)

    def repaired(self, chip, known, bounds):
        first = self.make((Link(Cpu(), QuantPlan()),))
        best, repairs = repaired(first, self.make, lambda best: None, bounds, known, clock=lambda: self.now)
        known.learn(chip, first, best, repairs)
        return repairs


def test_floating_point_goes_to_what_a_logarithm_reads_nearest_first():
    """A spectrogram: nothing looks bad before the logarithm, which makes the quiet bins visible."""

    def loss(tensor, operator, sqnr, inherited):
        return TensorLoss(
            tensor=tensor, operator=operator, sqnr_db=sqnr, made_db=60.0, inherited_db=inherited, low=0.0, high=1.0,
            stored="int8", elements=8,
        )  # fmt: skip

    tensors = (loss("x", "input", 50, 200), loss("power", "Mul", 40, 45), loss("mel", "MatMul", 38, 39))
    repair = next(each for each in LADDER if isinstance(each, Fewest) and each.before)
    for inherited, expected in ((3.0, ["mel", "power"]), (30.0, [])):
        diagnosis = Diagnosis(
            worst_output="y", sqnr_db=inherited, samples=4, healthy=False,
            tensors=(*tensors, loss("y", "Log", inherited, inherited)),
        )  # fmt: skip
        assert [each.tensor for each in repair.order(diagnosis)] == expected
    assert repair.rung(tensors[1:2], held=("stft",)).settings == {"float_tensors": ("stft", "power")}


def test_fewer_tensors_are_tried_where_a_chip_refuses_many():
    """More than two tensors of 16 bits are refused, and the chip does not say which; two are enough for the gate."""
    tried = []

    def make(links):
        count = len(links[0].options.wide_tensors)
        tried.append(count)
        attempt = Bench().make(links)
        error = attempt.error if count < 2 else Unsupported("no room", []) if count > 2 else None
        return replace(attempt, error=error)

    losses = [
        TensorLoss(
            tensor=f"t{at}", operator="Conv", sqnr_db=9, made_db=at, inherited_db=9, low=0, high=1, stored="int8"
        )
        for at in range(16)
    ]
    diagnosis = Diagnosis(worst_output="y", sqnr_db=9, samples=4, healthy=False, tensors=tuple(losses))
    first = Bench().make((Link(Cpu(), QuantPlan()),))
    best, repairs = repaired(first, make, lambda best: diagnosis, Bounds(asked=False), clock=lambda: 0.0)
    assert best.links[0].options.wide_tensors == ("t0", "t1") and repairs[-1].holds
    assert tried[-4:] == [8, 4, 2, 1]


def test_what_a_refused_operator_reads_keeps_its_type(tmp_path):
    """The chip has no product of 16 bits and names it; what it reads is wide, behind a change of scale."""
    b = Builder()
    left = b.unary("TANH", b.input((1, 4, 4)), "t1", (1, 4, 4), "int16")
    scaled = b.operator("QUANTIZE", [left], [b.tensor("t1/9", (1, 4, 4), "int16", scale=0.1)])
    b.binary("BATCH_MATMUL", scaled, scaled, "product", (1, 4, 4), "int16")
    b.write(tmp_path / "model.tflite")
    file = Artifact(tmp_path, Manifest(format="tflite", main="model.tflite"))

    def make(links):
        wide = {*links[0].options.wide_tensors}
        error = Unsupported("no kernel", [Finding("kernel", "no int16", "product")]) if "t1" in wide else None
        attempt = Bench().make(links)
        return replace(attempt, artifacts=[file], error=error if {"t0", "t2"} <= wide else attempt.error)

    losses = [
        TensorLoss(
            tensor=f"t{at}", operator="Conv", sqnr_db=9, made_db=at, inherited_db=9, low=0, high=1, stored="int8"
        )
        for at in range(6)
    ]
    diagnosis = Diagnosis(worst_output="y", sqnr_db=9, samples=4, healthy=False, tensors=tuple(losses))
    first = Bench().make((Link(Cpu(), QuantPlan()),))
    best, repairs = repaired(first, make, lambda best: diagnosis, Bounds(asked=False), clock=lambda: 0.0)
    assert best.links[0].options.wide_tensors == ("t0", "t2") and repairs[-1].holds


def test_what_held_on_one_chip_is_tried_first_on_the_next():
    known, bench = Experience(), Bench(method="mse")
    assert [each.holds for each in bench.repaired("one", known, Bounds(1e9))] == [False, True]
    bench.count = 0
    (repair,) = bench.repaired("two", known, Bounds(1e9))
    assert (repair.repair, repair.options, bench.count) == ("as for one", "-O method=mse", 2)


def test_what_failed_on_one_chip_is_not_tried_unasked_on_the_next():
    known, bench = Experience(), Bench()
    tried = {each.repair for each in bench.repaired("one", known, Bounds(1e9, asked=False))}
    bench.count = 0
    repairs = bench.repaired("two", known, Bounds(1e9, asked=False))
    assert bench.count == 1 and {each.repair for each in repairs} >= tried
    assert repairs[0].sentence.endswith("not tried: it did not reach the gate on one")
    assert len(bench.repaired("three", known, Bounds(1e9))) == len(tried) + 1  # and the slow one
    assert bench.count > 2


@pytest.mark.parametrize("known", [False, True])
def test_what_there_is_no_time_for_is_named(known):
    """Builds that take 200 of 480 seconds, the first one too or out of the cache: two repairs fit, one that takes as
    long as two builds does not, and none of the others is begun."""
    bench = Bench()
    first = bench.make((Link(Cpu(), QuantPlan()),))
    begun = bench.now
    first.seconds = 0.0 if known else begun
    diagnose = lambda best: pytest.fail("diagnosed without time")  # noqa: E731
    best, repairs = repaired(first, bench.make, diagnose, Bounds(), clock=lambda: bench.now - begun)
    assert best is first
    assert [each.skipped for each in repairs] == [False, True, False, True, True, True, True]
    assert repairs[1].sentence == (
        "repair range search by least squares (-O method=mse): not tried: 3.3 of 8 minutes are over, and this takes 6.7"
    )
    assert repairs[3].sentence.endswith("not tried: 6.7 of 8 minutes are over, and a build takes 3.3")
    assert [each.options for each in repairs[3:]] == [
        "-O float_tensors=...",
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
