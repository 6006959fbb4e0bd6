"""The sentences under the closing table."""

from __future__ import annotations

from typing import Any

from anynpu.records.build import ArtifactForm, ChipForm, DetailsForm, EstimatesForm
from anynpu.report.figures import table_notes

NOTE = "flash is the model alone, without the code that runs it: "


def chip(name: str, flash_bytes: int | None, **details: Any) -> ChipForm:
    estimates = EstimatesForm(source="counted", flash_bytes=flash_bytes)
    chain = (ArtifactForm(digest="", details=DetailsForm(rest=details)),)
    nothing = {"verification": None, "receipt": None, "error": None, "verdict": "", "seconds": 1.0}
    return ChipForm(chip=name, npu="", status="ok", estimates=estimates, chain=chain, **nothing)


def test_flash_without_code_is_labelled() -> None:
    code = {"memory": {"sections": [{"name": ".rodata weights"}, {"name": ".text kernels"}]}}
    constants = {"memory": {"sections": [{"name": ".rodata weights"}]}}
    chips = [chip("tflm", 10), chip("cortex-m4", 20, **code), chip("riscv32", 20, **constants), chip("null", None)]
    assert [note for note in table_notes(chips) if note.startswith(NOTE)] == [f"{NOTE}tflm, riscv32"]
    assert not [note for note in table_notes(chips[1:2]) if NOTE in note]


def test_what_stays_in_floating_point_is_counted() -> None:
    kinds = ["LSTM", *["Softmax"] * 3, *"ABCDE"]
    mixed = {"quantisation": {"float_operators": [{"operator": kind, "tensor": "y"} for kind in kinds]}}
    chips = [chip("cpu", None, **mixed), chip("tflite", None, **mixed), chip("tflm", None, quantisation={})]
    told = [note for note in table_notes(chips) if "floating point" in note]
    assert told == ["in floating point, cpu, tflite: 3 Softmax, 1 A, 1 B, 1 C, 1 D, 2 other kinds"]
