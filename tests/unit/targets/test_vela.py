"""Reading what Vela says, choosing a candidate, memory bounds and single rules; nothing here runs Vela."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest

from anynpu.errors import ConfigError, ToolFailed, Unsupported
from anynpu.platform import Memory, Platform
from anynpu.schema import from_dict
from anynpu.targets.flatbuffer import TfliteOperator, TfliteTensor
from anynpu.targets.memory_fit import require_fit
from anynpu.targets.vela import Vela, command, fit, receipt
from anynpu.targets.vela.command import Compiled, Figures, VelaFacts, VelaOptions
from anynpu.targets.vela.constraints import family, miscompiled
from anynpu.targets.vela.rules import RULES, key
from anynpu.targets.vela.target import choose

OUTPUT = """
Warning (supported operators) operator: GELU, ofm: 'g'
Reason: Unsupported IFM type: Int16
IFM and OFM datatypes must match, and must be Int8 or UInt8
Warning (supported operators) operator: CONV_2D, ofm: 'c_act'
Reason: Weights tensor with precision: Int16

Network summary for model
CPU operators = 2 (66.7%)
NPU operators = 1 (33.3%)
"""


def tensor(name="t", shape=(1, 8, 8, 4), dtype="int8", data=None, scale=(0.1,), zero_point=(0,)):
    return TfliteTensor(name, dtype, shape, scale, zero_point, data=data)


def operator(index, kind, name, inputs=None, macs=0, custom="", **output):
    return TfliteOperator(index, kind, name, inputs or (tensor(),), (tensor(name, **output),), macs, custom)


MODEL = (operator(0, "CONV_2D", "c", macs=10), operator(1, "GELU", "g"), operator(2, "CONV_2D", "d", macs=30))
COMPILED = (operator(0, "CONV_2D", "c"), operator(1, "GELU", "g"), operator(2, "CUSTOM", "d", custom="ethos-u"))
CHIP = Platform("chip", "Chip", "Maker", "vela", npu="Ethos-U55-64", memory=Memory(sram_kib=2, flash_kib=4))


def test_refusals_keep_velas_words_and_end_where_the_next_begins():
    first, second = receipt.refusals(OUTPUT)
    assert (first.kind, first.name) == ("GELU", "g")
    assert first.reason == "Unsupported IFM type: Int16; IFM and OFM datatypes must match, and must be Int8 or UInt8"
    assert (second.name, second.reason) == ("c_act", "Weights tensor with precision: Int16")


def test_the_receipt_names_every_operator_of_the_model():
    made = receipt.placement("npu", MODEL, COMPILED, OUTPUT)
    assert [op.device for op in made.operators] == ["cpu", "cpu", "npu"]
    assert [bool(op.reason) for op in made.operators] == [True, True, False]
    assert made.mac_share == 0.75


@pytest.mark.parametrize(
    ("compiled", "output", "message"),
    [
        (COMPILED, "nothing", "did not say"),
        (COMPILED, OUTPUT.replace("= 2", "= 1"), "says 1 operators run on the CPU, but its file holds 2"),
        ((*COMPILED[1:], operator(3, "COS", "strange")), OUTPUT, "strange on the CPU"),
        ((*COMPILED[:2], operator(3, "COS", "x")), OUTPUT.replace("= 2", "= 3"), "x on the CPU"),
        (COMPILED[1:], OUTPUT.replace("= 2", "= 1"), "refuses CONV_2D c_act"),
    ],
)
def test_a_receipt_that_does_not_agree_with_the_file_raises(compiled, output, message):
    with pytest.raises(ToolFailed, match=message):
        receipt.placement("npu", MODEL, (*compiled, *COMPILED[2:]) if "= 3" in output else compiled, output)


def test_a_tensor_that_vela_names_anew_is_known_by_its_operator():
    """What a GATHER on the U85 reads is called `indices` there."""
    model = (*MODEL, operator(3, "FLOOR_MOD", "places", shape=(1, 10), dtype="int32"))
    renamed = operator(3, "FLOOR_MOD", "indices", shape=(1, 10), dtype="int32")
    made = receipt.placement("npu", model, (*COMPILED, renamed), OUTPUT.replace("= 2", "= 3"))
    assert [op.name for op in made.elsewhere()] == ["c", "g", "places"]


def test_an_activation_that_comes_back_alone_counts_for_the_operator_it_was_fused_into():
    compiled = (operator(0, "RELU", "c"), operator(1, "CUSTOM", "d", custom="ethos-u"))
    output = "Warning (supported operators) operator: RELU, ofm: 'c'\nReason: no\n\nCPU operators = 1 (50%)\n"
    made = receipt.placement("npu", MODEL, compiled, output)
    assert [(op.device, op.reason) for op in made.operators] == [("cpu", "no"), ("npu", ""), ("npu", "")]


def test_nothing_on_the_npu_is_unsupported_with_a_finding_per_kind():
    made = receipt.placement("npu", MODEL[:2], COMPILED[:2], OUTPUT)
    with pytest.raises(Unsupported, match="none of this model would run on the npu") as caught:
        receipt.require_npu(made, MODEL[:2])
    assert [f.where for f in caught.value.findings] == ["CONV_2D (1 times)", "GELU (1 times)"]


def compiled(folder: Path, goal: str, latency: float, sram: int, size: int = 1024) -> Compiled:
    file = folder / f"{goal}.tflite"
    file.write_bytes(bytes(size))
    return Compiled(goal, file, file, file, Figures(latency, int(latency * 1000), sram, 0, size), "")


def test_each_goal_gets_its_better_candidate(tmp_path):
    fast, small = compiled(tmp_path, "performance", 1.0, 2000), compiled(tmp_path, "size", 2.0, 1000)
    assert choose([fast, small], CHIP, "best-latency") is fast
    assert choose([fast, small], CHIP, "best-size") is small
    quick_and_small = compiled(tmp_path, "size", 0.9, 1000)
    assert choose([fast, quick_and_small], CHIP, "best-latency") is quick_and_small


def test_a_candidate_that_fits_beats_a_faster_one_that_does_not(tmp_path):
    fast, small = compiled(tmp_path, "performance", 1.0, 4000), compiled(tmp_path, "size", 2.0, 1000)
    assert choose([fast, small], CHIP, "best-latency") is small
    with pytest.raises(Unsupported, match="does not fit chip") as caught:
        large = compiled(tmp_path, "performance", 1.0, 4000, 5000)
        require_fit(CHIP, fit.after(large.figures, large.model, CHIP), "use a smaller one")
    assert [f.rule for f in caught.value.findings] == ["fits-sram", "fits-flash"]


def test_memory_bounds_count_what_no_compiler_can_avoid():
    wide = np.random.default_rng(0).integers(-128, 128, 8192).astype("int8")
    model = [
        TfliteOperator(
            0,
            "FULLY_CONNECTED",
            "y",
            (
                tensor("x", (1, 3000)),
                tensor("w", (8192,), data=wide),
                tensor("zeros", (9000,), data=np.zeros(9000, "int8")),
            ),
            (tensor("y", (1, 10)),),
        )
    ]
    assert fit.arena_bound(model) == 3000
    assert 7900 < fit.weights_bound(model) <= 8192
    facts = VelaFacts("ethos-u55-64", "hxwe2.ini", "Himax_WE2", "Himax_WE2_Shared_Sram")
    assert [f.rule for f in fit.before(model, CHIP, facts, VelaOptions())] == ["fits-sram", "fits-flash"]
    roomy = dataclasses.replace(CHIP, memory=Memory())
    assert fit.before(model, roomy, facts, VelaOptions()) == ()


def test_weights_that_the_memory_mode_keeps_in_sram_count_there(tmp_path):
    facts = VelaFacts("ethos-u55-64", "hxwe2.ini", "Himax_WE2", "Himax_WE2_Sram_Only")
    assert fit.memory_areas(facts, VelaOptions()) == fit.MemoryAreas(arena_elsewhere=False, weights_in_sram=True)
    flash = fit.memory_areas(facts, VelaOptions(memory_mode="Himax_WE2_Shared_Sram"))
    assert flash == fit.MemoryAreas(arena_elsewhere=False, weights_in_sram=False)
    inherited = VelaFacts("ethos-u55-256", "ra8p1.ini", "RA8P1", "RA8P1_Sram_Only")
    assert fit.memory_areas(inherited, VelaOptions()).weights_in_sram

    weights = np.random.default_rng(0).integers(-128, 128, 2000).astype("int8")
    operands = (tensor("x", (1, 1500)), tensor("w", (2000,), data=weights))
    model = [TfliteOperator(0, "FULLY_CONNECTED", "y", operands, (tensor("y", (1, 10)),))]
    chip = dataclasses.replace(CHIP, memory=Memory(sram_kib=2))
    [finding] = fit.before(model, chip, facts, VelaOptions())
    assert finding.rule == "fits-sram" and "the weights" in finding.message
    assert fit.before(model, chip, facts, VelaOptions(memory_mode="Himax_WE2_Shared_Sram")) == ()

    candidate = compiled(tmp_path, "size", 1.0, 1500, 1000)
    assert fit.after(candidate.figures, candidate.model, chip) == ()
    findings = fit.after(candidate.figures, candidate.model, chip, weights_in_sram=True)
    assert [f.rule for f in findings] == ["fits-sram"]


def test_vela_is_always_told_the_whole_configuration(tmp_path):
    facts = VelaFacts("ethos-u55-64", "hxwe2.ini", "Himax_WE2", "Himax_WE2_Shared_Sram")
    options = VelaOptions(arena_cache_size=1000, memory_mode="Himax_WE2_Sram_Only", force_symmetric_int_weights=True)
    argv = command.arguments(tmp_path / "m.tflite", facts, options, "size", "there")
    said = dict(itertools.pairwise(argv))
    assert said["--config"].endswith("hxwe2.ini") and said["--system-config"] == "Himax_WE2"
    assert said["--memory-mode"] == "Himax_WE2_Sram_Only" and said["--accelerator-config"] == "ethos-u55-64"
    assert said["--optimise"] == "Size" and said["--arena-cache-size"] == "1000"
    assert argv[-1] == "--force-symmetric-int-weights"
    with pytest.raises(ConfigError, match=r"hxwe2\.ini: no System_Config Himax_WE") as caught:
        command.arguments(tmp_path / "m.tflite", facts, VelaOptions(system_config="Himax_WE"), "size", "there")
    assert caught.value.hint == "it has Himax_WE2"


def test_options_are_read_strictly():
    assert from_dict(Vela.Options, {"optimise": "size", "arena_cache_size": 4096}, "-O").arena_cache_size == 4096
    with pytest.raises(ConfigError):
        from_dict(Vela.Options, {"optimise": "fast"}, "-O")
    assert all(f.metadata["help"] for f in dataclasses.fields(Vela.Options))


def test_a_summary_that_is_not_one_is_a_failure_of_the_tool(tmp_path):
    (tmp_path / "s.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ToolFailed, match=r"s\.csv is not as expected"):
        command._figures(tmp_path / "s.csv")


def test_families():
    assert [family(a) for a in ("ethos-u55-32", "ethos-u65-512", "ethos-u85-2048")] == [
        "EthosU55",
        "EthosU65",
        "EthosU85",
    ]


SAME_AND_INT8 = "IFM and OFM datatypes must match, and must be Int8 or UInt8"
AVERAGE = next(s for s in RULES if s.startswith("Kernel constraints"))


class Pool:
    padding, strideH, strideW, filterHeight, filterWidth = 0, 1, 1, 9, 9


@pytest.mark.parametrize(
    ("sentence", "op", "holds"),
    [
        (SAME_AND_INT8, operator(0, "GELU", "g"), True),
        (SAME_AND_INT8, operator(0, "GELU", "g", dtype="int16"), False),
        ("64-bit feature-maps are not supported.", operator(0, "ADD", "a", dtype="int64"), False),
        ("Per-axis quantization is not supported.", operator(0, "ADD", "a", scale=(1.0, 2.0)), False),
        ("Quantization scale of any tensor must be positive.", operator(0, "ADD", "a", scale=(0.0,)), False),
        (AVERAGE, dataclasses.replace(operator(0, "AVERAGE_POOL_2D", "p"), options=Pool), False),
        (AVERAGE, dataclasses.replace(operator(0, "AVERAGE_POOL_2D", "p", shape=(1, 0, 0, 4)), options=Pool), True),
        ("Batch must be 1.", operator(0, "MEAN", "m", (tensor(shape=(2, 8, 8, 4)),)), False),
        ("Parameter tensors must be constant", operator(0, "PAD", "p", (tensor(), tensor("pads"))), False),
    ],
)
def test_rules_hold_or_not(sentence, op, holds):
    assert RULES[key(sentence)](op) is holds


class Corners:
    alignCorners, halfPixelCenters = True, False


class Centres:
    alignCorners, halfPixelCenters = False, True


class Neither:
    alignCorners, halfPixelCenters = False, False


def nearest(before, after, options):
    made = operator(0, "RESIZE_NEAREST_NEIGHBOR", "r", (tensor(shape=(1, *before, 4)),), shape=(1, *after, 4))
    return dataclasses.replace(made, options=options)


@pytest.mark.parametrize(
    ("before", "after", "options", "elsewhere"),
    [
        ((3, 3), (5, 5), Neither, True),
        ((3, 4), (6, 5), Neither, True),
        ((6, 6), (3, 3), Neither, True),
        ((20, 20), (40, 60), Neither, False),
        ((1, 1), (5, 7), Neither, False),
        ((3, 3), (5, 5), Centres, False),
        ((3, 3), (5, 5), Corners, False),
    ],
)
def test_a_u85_takes_other_pixels_than_tflite(before, after, options, elsewhere):
    model = (nearest(before, after, options),)
    assert bool(miscompiled(model, "ethos-u85-256")) is elsewhere
    assert not miscompiled(model, "ethos-u55-256")
