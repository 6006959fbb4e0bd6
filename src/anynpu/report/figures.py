"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FLOAT_MODEL = "the float model"
UNKNOWN = "which says nothing of how far that is from the model it was quantised from"


def kib(count: int | None) -> str:
    """Returns bytes as KiB."""
    return "-" if count is None else f"{count / 1024:.1f}"


def count(number: int | None) -> str:
    """Returns 12.5 M for 12,501,632."""
    if number is None:
        return "-"
    for limit, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= limit:
            return f"{number / limit:.2f} {unit}"
    return str(number)


def percent(share: float | None, digits: int = 1) -> str:
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def decibel(value: float | None) -> str:
    if value is None:
        return "-"
    return "exact" if value >= 200 else f"{value:.1f}"


def versions_of(record: Mapping[str, Any]) -> str:
    """Returns the versions of driver, firmware and runtime in parentheses, or nothing."""
    told = ", ".join(f"{name} {version}" for name, version in (record.get("versions") or {}).items())
    return f" ({told})" if told else ""


def said_by(receipt: Mapping[str, Any]) -> str:
    """Returns " (predicted: ...)", where something other than the compiler says what runs on the NPU."""
    return f" ({receipt['source']})" if receipt.get("source") else ""


def chip_row(chip: dict[str, Any]) -> dict[str, str]:
    """Returns the line of the closing table for one chip of a build record."""
    proof, estimates = chip["verification"] or {}, chip["estimates"] or {}
    sram = estimates.get("sram_bytes") or proof.get("arena_bytes")
    latency = estimates.get("latency_ms")
    return {
        "chip": chip["chip"],
        "result": chip["status"],
        "SQNR dB": decibel(proof.get("sqnr_db")),
        "float": percent(proof.get("score_float")),
        "here": percent(proof.get("score")),
        "on NPU": _share(chip),
        "est. ms": "-" if latency is None else f"{latency:.3f}",
        "SRAM KiB": kib(sram),
        "flash KiB": kib(estimates.get("flash_bytes")),
        "s": f"{chip['seconds']:.1f}",
    }


def by_gate_only(chip: Mapping[str, Any]) -> list[str]:
    """Returns a sentence where the default gate would not let a chip's result pass."""
    missed = chip.get("by_gate_only")
    return [f"{chip['chip']} is ok by the gate in force only; by the default one: {missed}"] if missed else []


def _share(chip: dict[str, Any]) -> str:
    """Returns the share of a chip's NPU; of a file that was never executed it is a claim."""
    if not chip["receipt"]:
        return "?" if chip["npu"] else "-"
    return percent(chip["receipt"]["share"]) + (" claimed" if chip["status"] == "not executed" else "")


def table_notes(chips: list[dict[str, Any]]) -> list[str]:
    """Returns the sentences under the closing table: what the columns are, and where they are estimates."""
    notes = []
    against = sorted({c["verification"].get("reference") or FLOAT_MODEL for c in chips if c["verification"]})
    notes += [f"SQNR: against {name}, {UNKNOWN}" for name in against if name != FLOAT_MODEL]
    metrics = {c["verification"]["metric"] for c in chips if c["verification"] and c["verification"].get("metric")}
    if metrics:
        told = f"{', '.join(sorted(metrics))} of {', '.join(against)} and of this build"
        notes.append(f"float, here: {told} on the same samples")
    sources = {
        c["estimates"]["source"] for c in chips if c["estimates"] and c["estimates"].get("latency_ms") is not None
    }
    if sources:
        notes.append(f"est. ms is an estimate, not a measurement ({', '.join(sorted(sources))})")
    for chip in chips:
        if chip["receipt"] and chip["receipt"].get("source"):
            notes.append(f"on NPU, {chip['chip']}: {chip['receipt']['source']}")
    in_dram = [c["chip"] for c in chips if c["chain"] and c["chain"][-1].get("details", {}).get("dram_bytes")]
    if in_dram:
        notes.append(f"no flash is counted for {', '.join(in_dram)}: weights and arena lie in DRAM there")
    if bare := [c["chip"] for c in chips if _flash_without_code(c)]:
        notes.append(f"flash is the model alone, without the code that runs it: {', '.join(bare)}")
    notes += [line for chip in chips for line in by_gate_only(chip)]
    for chip in chips:
        if chip["status"] == "not executed":
            notes.append(f"not executed, {chip['chip']}: {chip.get('not_verified') or 'no runtime'}; nothing is proved")
    for what in sorted({_executed(c["verification"]) for c in chips if c["verification"]}):
        notes.append(what)
    return [*notes, *_warnings(chips)]


def _flash_without_code(chip: Mapping[str, Any]) -> bool:
    """Whether the flash of a chip holds weights and tables only: all but generated C that was compiled for the chip."""
    if not chip["chain"] or not (chip["estimates"] or {}).get("flash_bytes"):
        return False
    if chip["chain"][-1].get("format") == "onnx-ort":  # a computer's disk
        return False
    memory = (chip["chain"][-1].get("details") or {}).get("memory") or {}
    sections = [section["name"] for section in memory.get("sections", ())]
    return not any(name.startswith(".text") for name in sections)


def _warnings(chips: list[dict[str, Any]]) -> list[str]:
    """Returns what the proofs warn of, each once; where not every chip is concerned, with the chips' names."""
    proven = [chip for chip in chips if chip["verification"]]
    concerned: dict[str, list[str]] = {}
    for chip in proven:
        for text in chip["verification"].get("warnings", ()):
            concerned.setdefault(text, []).append(chip["chip"])
    return [
        f"warning: {text}" + (f" ({', '.join(names)})" if len(names) < len(proven) else "")
        for text, names in concerned.items()
    ]


def _executed(proof: dict[str, Any]) -> str:
    text = f"executed: {proof['executed']}, {proof['samples']} samples"
    if proof.get("stands_for"):
        text += "; it ran the model before the last compiler"
        if proof["stands_for"] != "tflite-vela":  # that can be executed; a note says why this one was not
            text += f", since nothing here executes {proof['stands_for']}"
    return "; ".join([text, *proof.get("notes", ())])
