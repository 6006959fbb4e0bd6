"""The sentences under the closing table."""

from __future__ import annotations

from typing import Any

from anynpu.report.figures import table_notes

NOTE = "flash is the model alone, without the code that runs it: "


def chip(name: str, flash_bytes: int | None, **details: Any) -> dict[str, Any]:
    estimates = {"source": "counted", "flash_bytes": flash_bytes}
    common = {"verification": None, "receipt": None, "status": "ok", "npu": ""}
    return {"chip": name, "estimates": estimates, "chain": [{"details": details}], **common}


def test_flash_without_code_is_labelled() -> None:
    code = {"memory": {"sections": [{"name": ".rodata weights"}, {"name": ".text kernels"}]}}
    constants = {"memory": {"sections": [{"name": ".rodata weights"}]}}
    chips = [chip("tflm", 10), chip("cortex-m4", 20, **code), chip("riscv32", 20, **constants), chip("null", None)]
    assert [note for note in table_notes(chips) if note.startswith(NOTE)] == [f"{NOTE}tflm, riscv32"]
    assert not [note for note in table_notes(chips[1:2]) if NOTE in note]
