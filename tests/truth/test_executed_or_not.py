"""What was executed, by what, and what was not: one file has one verdict, and nothing unexecuted is called ok."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from anynpu import plugins
from anynpu.artifact import Artifact, Made, Manifest, OperatorPlacement, Placement, Step, seal
from anynpu.errors import Unsupported
from anynpu.measure.fidelity import compare_arrays
from anynpu.measure.samples import SampleSet, write_samples
from anynpu.measure.verify import Verification, verify
from anynpu.pipeline.record import record
from anynpu.pipeline.request import Request
from anynpu.pipeline.result import BuildResult, ChipResult
from anynpu.records.build import BuildRecord, ChipForm
from anynpu.report import junit, markdown
from anynpu.report.figures import chip_row, table_notes
from anynpu.report.html import render
from anynpu.source.load import ModelSource
from anynpu.tensors import Quantization, TensorSpec

pytest.importorskip("ai_edge_litert")
pytest.importorskip("tflite_micro")

from tflite_builder import Builder

SHAPE = (1, 4)


def sealed(folder: Path, manifest: Manifest) -> Artifact:
    return seal(folder, manifest, Step(folder.name), Made("2026-01-01T00:00:00+00:00", 0.0))


class Division:
    """x / d as a float ONNX model and as an int8 TFLite file whose d has a zero point of -128: 0 and more."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("float", "int8", "data"):
            (folder / name).mkdir()
        floats = tuple(TensorSpec(name, SHAPE) for name in "xdy")
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in "xdy"]
        graph = helper.make_graph([helper.make_node("Div", ["x", "d"], ["y"])], "g", ends[:2], ends[2:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, folder / "float" / "m.onnx")
        self.truth = sealed(folder / "float", Manifest("onnx", "m.onnx", floats[:2], floats[2:]))
        builder = Builder()
        x, d = builder.input(SHAPE, name="x"), builder.input(SHAPE, name="d", zero_point=-128)
        builder.binary("DIV", x, d, "y", SHAPE)
        builder.write(folder / "int8" / "m.tflite")
        stored = tuple(
            TensorSpec(name, SHAPE, "int8", quantization=Quantization((0.05,), (zero,)))
            for name, zero in (("x", 0), ("d", -128), ("y", 0))
        )
        self.subject = sealed(folder / "int8", Manifest("tflite", "m.tflite", stored[:2], stored[2:]))

    def verdict(self, runtime: str, divisors: list[float]) -> dict:
        """Returns what a chip with this runtime is told, for one sample with each divisor; TFLite-Micro comes first."""
        count = len(divisors)
        x = np.linspace(0.5, 2, count * 4, dtype=np.float32).reshape(count, 4)
        d = np.repeat(np.array(divisors, np.float32)[:, None], 4, axis=1)
        write_samples(self.folder / "data", SampleSet({"x": x, "d": d}))
        paths = (str(self.subject.path), str(self.truth.path), str(self.folder / "data"))
        return verify(*paths, str(self.folder / "answers.npz"), device=None if runtime == "tflm" else runtime)


@pytest.fixture
def division(tmp_path: Path) -> Division:
    return Division(tmp_path)


@pytest.mark.parametrize("runtime", ["litert", "tflm"])
def test_division_by_a_quantised_zero_is_refused_on_every_runtime(division, runtime):
    with pytest.raises(Unsupported, match=r"refused by LiteRT .*: a divisor is zero once it is quantised") as told:
        division.verdict(runtime, [1.0, 2.0, 0.01])
    assert "DIV" in str(told.value.findings[0]) and told.value.exit_status == 3 and told.value.hint


@pytest.mark.parametrize("at", [0, 7, 39])
def test_one_zero_among_many_samples_is_found(division, at):
    divisors = [1.0 + i / 20 for i in range(40)]
    divisors[at] = 0.001
    with pytest.raises(Unsupported, match="a divisor is zero"):
        division.verdict("tflm", divisors)


@pytest.mark.parametrize("runtime", ["litert", "tflm"])
def test_division_by_what_is_not_zero_is_no_alarm(division, runtime):
    result = division.verdict(runtime, [1.0, 2.0, 3.0])
    assert result.device == runtime and not result.notes


def changed(division: Division, builder: Builder) -> None:
    """Puts another file in the place of the division."""
    builder.write(division.folder / "int8" / "m.tflite")
    division.subject = sealed(division.folder / "int8", replace(division.subject.manifest, files=()))


@pytest.mark.parametrize("runtime", ["litert", "tflm"])
def test_shapes_that_do_not_fit_are_refused_on_every_runtime(division, runtime):
    builder = Builder()
    x, d = builder.input(SHAPE, name="x"), builder.input(SHAPE, name="d", zero_point=-128)
    three = builder.tensor("three", [1, 3], data=np.ones((1, 3)))
    total = builder.binary("ADD", x, three, "sum", SHAPE)
    builder.binary("ADD", total, d, "y", SHAPE)
    changed(division, builder)
    with pytest.raises(Unsupported, match="shapes do not fit together"):
        division.verdict(runtime, [1.0])


@pytest.mark.parametrize("runtime", ["litert", "tflm"])
def test_an_index_beyond_its_table_is_refused_on_every_runtime(division, runtime):
    builder = Builder()
    x, d = builder.input(SHAPE, name="x"), builder.input(SHAPE, name="d", zero_point=-128)
    index = builder.constant("index", [9, 0, 1, 2])
    taken = builder.tensor("taken", SHAPE)
    builder.operator("GATHER", [x, index], [taken], options="GatherOptions", axis=1)
    builder.binary("ADD", taken, d, "y", SHAPE)
    changed(division, builder)
    with pytest.raises(Unsupported, match="an index is beyond its table"):
        division.verdict(runtime, [1.0])


def test_what_only_one_runtime_lacks_is_a_note(division):
    builder = Builder()
    x, d = builder.input(SHAPE, name="x"), builder.input(SHAPE, name="d", zero_point=-128)
    difference = builder.binary("SUB", x, d, "difference", SHAPE)
    builder.unary("LOG", difference, "y", SHAPE)
    changed(division, builder)
    result = division.verdict("litert", [1.0, 9.0])
    assert any("TFLite-Micro" in note and "does not run this model" in note for note in result.notes)


def compiled(tmp_path: Path, verification: Verification | None, source: str = "") -> BuildRecord:
    """The record of a build for an NPU whose compiler says that all of it runs there."""
    placement = Placement("Zhouyi Z3", (OperatorPlacement("conv", "Conv", "npu"),), source)
    (tmp_path / "model.cix").write_bytes(b"program")
    made = sealed(tmp_path, Manifest("cix", "model.cix", placement=placement, fingerprint="f"))
    reason = "" if verification else "nothing on this machine executes cix"
    chip = ChipResult("zhouyi-z3", plugins.platform("zhouyi-z3"), (made,), verification, not_verified=reason)
    return record(BuildResult(Request(ModelSource("net.onnx"), ("zhouyi-z3",)), made, chips=[chip]))


def test_a_file_that_nothing_executed_is_not_ok_anywhere(tmp_path):
    data = compiled(tmp_path, None)
    (chip,) = data.chips
    row = chip_row(chip)
    assert (chip.status, row["result"], chip.exit_status) == ("not executed", "not executed", 0)
    assert "nothing on this machine executes cix" in " ".join(table_notes([chip]))
    assert "## zhouyi-z3: not executed" in markdown.render(data)
    page = render(data)
    assert "zhouyi-z3: not executed" in page and "1 of 1 chips ok" not in page
    xml = junit.render(data)
    assert "<skipped" in xml and "not executed" in xml and 'skipped="1"' in xml


def test_the_share_of_an_npu_that_did_not_run_is_the_compilers_claim(tmp_path):
    (chip,) = compiled(tmp_path, None).chips
    assert chip_row(chip)["on NPU"] == "100.0 % claimed"
    assert chip.receipt.source.startswith("the compiler's claim")
    assert any("the compiler's claim" in note for note in table_notes([chip]))


def executed(tmp_path: Path, stands_for: str) -> ChipForm:
    """The chip of such a build that something executed: the NPU's file, or one before it."""
    same = compare_arrays("y", np.ones(SHAPE), np.ones(SHAPE))
    proof = Verification("an interpreter", "tflm", stands_for, 8, True, {"y": same})
    return compiled(tmp_path, proof).chips[0]


def test_a_share_stays_a_claim_where_an_earlier_file_stands_for_the_npus(tmp_path):
    chip = executed(tmp_path, stands_for="tflite-vela")
    assert chip.status == "ok" and chip.receipt.source.startswith("the compiler's claim")


def test_a_share_of_an_executed_file_is_no_claim(tmp_path):
    chip = executed(tmp_path, stands_for="")
    assert chip.status == "ok" and not chip.receipt.source and chip_row(chip)["on NPU"] == "100.0 %"
