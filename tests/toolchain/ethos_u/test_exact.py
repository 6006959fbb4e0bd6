"""What Vela wrote, executed by the twin: every value is TFLite-Micro's."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ethosu.vela", reason="pip install 'anynpu[build]'")
pytest.importorskip("tflite_micro", reason="pip install 'anynpu[build]'")


import flatbuffers
from ai_edge_litert import schema_py_generated as schema
from compiled import CHIPS, Refused, compare, compile_model, lite, operator_by_operator
from emulated import explained
from excuses import excuse, excused_refusal
from random_graphs import Drawer, draw
from tflite_builder import Builder
from vela_graphs import MORE, single
from yolo_graph import draw_yolo

from anynpu.errors import DeviceError, IntegrityError
from anynpu.runtime.ethos_u.model import read_model
from anynpu.runtime.ethos_u.twin import Twin

pytestmark = pytest.mark.build
GRAPHS = int(os.environ.get("ANYNPU_TEST_STREAMS", "4"))
"""How many graphs for each chip; 200 for a thorough run."""
MODELS = (
    *("mlperf_tiny/ad01_int8", "mlperf_tiny/kws_ref_model", "mlperf_tiny/pretrainedResnet_quant"),
    *("mlperf_tiny/vww_96_int8", "mlperf_tiny/str_ww_ref_model"),
    *("tflite_micro/person_detect", "tflite_micro/micro_speech_quantized"),
)
MOBILENET = "tflite_micro/mobilenet_v2_quantized_1x3x224x224"
WHOLE = ("ethos-u55-128", "ethos-u85-512")
"""Where it runs at 224 x 224; `run_models.py` is for the others."""
SMALLER = {224: 96, 112: 48, 56: 24, 28: 12, 14: 6, 7: 3}


def shrunk(model: Path, out: Path) -> Path:
    """Writes MobileNetV2 for pictures of 96 x 96: every layer and weight, a fifth of the positions."""
    net = schema.ModelT.InitFromObj(schema.Model.GetRootAs(model.read_bytes(), 0))
    sides = SMALLER | {side + 2: small + 2 for side, small in SMALLER.items()}  # with the padding of one around it
    for tensor in net.subgraphs[0].tensors:
        if net.buffers[tensor.buffer].data is None:
            channels = 1 if tensor.shape[1] == 3 else len(tensor.shape) - 1
            tensor.shape = [n if axis == channels else sides.get(int(n), n) for axis, n in enumerate(tensor.shape)]
    builder = flatbuffers.Builder(1024)
    builder.Finish(net.Pack(builder), b"TFL3")
    out.write_bytes(builder.Output())
    return out


@pytest.mark.parametrize("chip", CHIPS)
def test_random_graphs_give_the_values_of_tflite_micro(chip, tmp_path):
    wrong, executed = {}, 0
    first = 1000 * CHIPS.index(chip)
    for seed in range(first, first + GRAPHS):
        model, kinds = draw(seed, tmp_path / f"{seed}.tflite")
        try:
            comparison = compare(model, chip, tmp_path)
        except Refused:
            continue
        except IntegrityError as error:
            if not excused_refusal(model, chip):
                wrong[f"seed {seed} {kinds}"] = error.message
            continue
        executed += comparison.on_npu
        if comparison.differing and not (explained(model, chip, comparison) or excuse(model, chip)):
            wrong[f"seed {seed} {kinds}"] = f"{comparison.differing} of {comparison.values}, by {comparison.worst}"
    assert wrong == {}
    assert executed > GRAPHS // 2


@pytest.mark.parametrize("name", dict.fromkeys(MORE))
@pytest.mark.parametrize("chip", ["ethos-u55-128", "ethos-u85-256"])
def test_the_other_operators_of_velas_tables(chip, name, tmp_path):
    """LSTM, comparisons, selections: LiteRT's values where TFLite-Micro lacks the operator."""
    executed = 0
    for seed in range(3):
        model = single(name, seed, tmp_path / f"{seed}.tflite")
        try:
            comparison = compare(model, chip, tmp_path, count=4)
        except (Refused, DeviceError):
            assert "u55" in chip  # its table lacks the operator
            continue
        why = comparison.differing and (explained(model, chip, comparison) or excuse(model, chip))
        assert comparison.differing == 0 or why, (seed, comparison.differing)
        executed += comparison.on_npu
    assert executed or "u55" in chip


@pytest.mark.parametrize("chip", ["ethos-u55-128", "ethos-u85-2048"])
def test_rounding_is_tflite_micros_beside_an_operator_that_it_lacks(chip, tmp_path):
    """1032 times 1197600727 / 2^38 is 4.4963: TFLite-Micro and the NPU round to 4.5, then to 5; LiteRT rounds to 4."""
    d = Drawer(np.random.default_rng(1638))
    x = d.input((1, 1), "int8", 0.023992564529180527, 0)
    weights = d.tensor((1, 1), "int8", 0.014413034543395042, 0, [[1]])
    bias = d.tensor((1,), "int32", 0.00034580565989017487, 0, [1000])
    dense, out = (d.new(shape, "int8", 0.0793706402182579, -128) for shape in ((1, 1), (1, 2)))
    d.operator("FULLY_CONNECTED", [x.number, weights, bias], [dense.number], "FullyConnectedOptions")
    d.operator("TILE", [dense.number, d.ints([1, 2])], [out.number])
    source = d.write(tmp_path / "net.tflite")
    model = read_model(compile_model(source, chip, tmp_path))
    inputs = [np.full((1, 1, 1), 32, np.int8)]
    assert [value.tolist() for value in Twin(model).run_batch(inputs)] == [[[[5 - 128] * 2]]]
    assert [value.tolist() for value in operator_by_operator(source, inputs)] == [[[[5 - 128] * 2]]]
    assert [value.tolist() for value in lite(source.read_bytes(), inputs, 1)] == [[[[4 - 128] * 2]]]


@pytest.mark.parametrize("chip", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("kind", ["LOGISTIC", "TANH"])
def test_the_curves_of_the_hardware_for_16_bits(kind, chip, tmp_path):
    for scale in (1 / 4096, 0.001):
        d = Drawer(np.random.default_rng(1))
        x = d.input((1, 4, 4, 16), "int16", scale, 0)
        out = d.new(x.shape, "int16", 1 / 32768, 0)
        d.operator(kind, [x.number], [out.number])
        comparison = compare(d.write(tmp_path / "net.tflite"), chip, tmp_path, count=8)
        assert comparison.on_npu and comparison.differing == 0, comparison


@pytest.mark.parametrize(
    ("chip", "dtype"), [("ethos-u55-128", "int8"), ("ethos-u65-512", "int16"), ("ethos-u85-512", "int8")]
)
def test_a_detector_of_yolos_structure_runs_whole_on_the_npu(chip, dtype, tmp_path):
    comparison = compare(draw_yolo(tmp_path / "yolo.tflite", dtype), chip, tmp_path, count=2)
    assert len(comparison.model.calls) == 1 and comparison.on_npu and comparison.differing == 0, comparison.differing


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("chip", CHIPS)
def test_real_models_give_the_values_of_tflite_micro(name, chip, test_data, tmp_path):
    comparison = compare(test_data / f"{name}.tflite", chip, tmp_path, count=2)
    assert comparison.on_npu and comparison.differing == 0, comparison


@pytest.mark.parametrize("chip", CHIPS)
def test_mobilenet_gives_the_values_of_tflite_micro(chip, test_data, tmp_path):
    model = test_data / f"{MOBILENET}.tflite"
    if chip not in WHOLE:
        model = shrunk(model, tmp_path / "mobilenet_v2_96.tflite")
    comparison = compare(model, chip, tmp_path, count=2)
    assert comparison.on_npu and comparison.differing == 0, comparison


MODES = {
    "ethos-u55-128": ("Shared_Sram", "Sram_Only"),
    "ethos-u65-512": ("Dedicated_Sram_384KB", "Dedicated_Sram_512KB", "Shared_Sram", "Sram_Only"),
    "ethos-u85-512": ("Dedicated_Sram_384KB", "Dedicated_Sram_512KB", "Shared_Sram", "Sram_Only"),
}
"""The first is the chip's own, which `test_real_models_...` has for Performance."""


@pytest.mark.parametrize(
    ("chip", "mode", "goal"),
    [
        (chip, mode, goal)
        for chip, modes in MODES.items()
        for mode in modes
        for goal in ("Performance", "Size")
        if (mode, goal) != (modes[0], "Performance")
    ],
)
def test_every_memory_mode_and_both_goals_give_the_same_values(chip, mode, goal, test_data, tmp_path):
    for name in MODELS:
        comparison = compare(test_data / f"{name}.tflite", chip, tmp_path, count=2, goal=goal, mode=mode)
        assert comparison.differing == 0, (name, comparison)


def test_a_number_without_axes_passes_between_operators_on_the_cpu(tmp_path):
    b = Builder()
    x = b.input((1, 4, 4, 8))
    largest = b.tensor("largest", ())
    axes = b.constant("axes", [0, 1, 2, 3])
    b.operator("REDUCE_MAX", [x, axes], [largest], options="ReducerOptions", keepDims=False)
    y = b.operator("SUB", [x, largest], [b.tensor("y", (1, 4, 4, 8), scale=0.1)], options="SubOptions")
    comparison = compare(b.write(tmp_path / "m.tflite", [y]), "ethos-u55-256", tmp_path)
    assert comparison.values == 3 * 4 * 4 * 8 and not comparison.differing
