"""What Vela wrote, executed by the twin: every value is TFLite-Micro's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ethosu.vela", reason="pip install 'anynpu[build]'")
pytest.importorskip("tflite_micro", reason="pip install 'anynpu[build]'")

sys.path.append(str(Path(__file__).parents[1] / "firmware"))

from compiled import CHIPS, Refused, compare
from excuses import excuse
from random_graphs import Drawer, draw
from vela_graphs import MORE, single
from yolo_graph import draw_yolo

from anynpu.errors import DeviceError, IntegrityError

pytestmark = pytest.mark.build
GRAPHS = int(os.environ.get("ANYNPU_TEST_STREAMS", "4"))
"""How many graphs for each chip; 200 for a thorough run."""
MODELS = (
    *("mlperf_tiny/ad01_int8", "mlperf_tiny/kws_ref_model", "mlperf_tiny/pretrainedResnet_quant"),
    *("mlperf_tiny/vww_96_int8", "mlperf_tiny/str_ww_ref_model"),
    *("tflite_micro/person_detect", "tflite_micro/micro_speech_quantized"),
    "tflite_micro/mobilenet_v2_quantized_1x3x224x224",
)


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
            if not excuse(model, chip):
                wrong[f"seed {seed} {kinds}"] = error.message
            continue
        executed += comparison.on_npu
        if comparison.differing and not excuse(model, chip):
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
        assert comparison.differing == 0 or excuse(model, chip), (seed, comparison.differing)
        executed += comparison.on_npu
    assert executed or "u55" in chip


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


MODES = {
    "ethos-u55-128": ("Sram_Only", "Shared_Sram"),
    "ethos-u65-512": ("Sram_Only", "Shared_Sram", "Dedicated_Sram_384KB", "Dedicated_Sram_512KB"),
    "ethos-u85-512": ("Sram_Only", "Shared_Sram", "Dedicated_Sram_384KB", "Dedicated_Sram_512KB"),
}


@pytest.mark.parametrize("goal", ["Performance", "Size"])
@pytest.mark.parametrize(("chip", "mode"), [(chip, mode) for chip, modes in MODES.items() for mode in modes])
def test_every_memory_mode_and_both_goals_give_the_same_values(chip, mode, goal, test_data, tmp_path):
    for name in MODELS[:-1]:
        comparison = compare(test_data / f"{name}.tflite", chip, tmp_path, count=2, goal=goal, mode=mode)
        assert comparison.differing == 0, (name, comparison)
