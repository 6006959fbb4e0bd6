"""Numbers as people read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from anynpu.records.build import FLOAT_MODEL, ArtifactForm, ChipForm, DetailsForm, Receipt, StageTiming, Verification
from anynpu.report.memory import sections

SHOWN = 5
"""How many tensors and samples of a calibration are listed; the record has them all."""
UNKNOWN = "which says nothing about how far that is from the model it was quantised from"


def kib(count: float | None) -> str:
    """Returns bytes as KiB."""
    return "-" if count is None else f"{count / 1024:.1f}"


def count(number: float | None) -> str:
    """Returns 12.5 M for 12,501,632."""
    if number is None:
        return "-"
    for limit, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= limit:
            return f"{number / limit:.2f} {unit}"
    return str(number)


def amount(value: float | None) -> str:
    """Returns a time or a count: whole from a thousand on, with commas, and five digits of what is less."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.5g}"


def percent(share: float | None, digits: int = 1) -> str:
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def decibel(value: float | None) -> str:
    if value is None:
        return "-"
    return "exact" if value >= 200 else f"{value:.1f}"


def versions_text(versions: Mapping[str, str] | None) -> str:
    """Returns the versions of driver, firmware and runtime in parentheses, or nothing."""
    text = ", ".join(f"{name} {version}" for name, version in (versions or {}).items())
    return f" ({text})" if text else ""


def chip_row(chip: ChipForm) -> dict[str, str]:
    """Returns the line of the closing table for one chip of a build record."""
    proof, estimates = chip.verification, chip.estimates
    latency = estimates.latency_ms if estimates else None
    share = "?" if chip.npu else "-"
    if chip.receipt:  # of a file that was never executed it is a claim
        share = percent(chip.receipt.share) + (" claimed" if chip.status == "not executed" else "")
    return {
        "chip": chip.chip,
        "result": chip.result,
        "SQNR dB": decibel(proof.sqnr_db if proof else None),
        "float": percent(proof.score_float if proof else None),
        "here": percent(proof.score if proof else None),
        "on NPU": share,
        "est. ms": "-" if latency is None else f"{latency:.3f}",
        "SRAM KiB": kib(chip.sram_bytes),
        "flash KiB": kib(estimates.flash_bytes if estimates else None),
        "s": f"{chip.seconds:.1f}",
    }


def by_gate_only(chip: ChipForm) -> list[str]:
    """Returns a sentence where the default gate would not let a chip's result pass."""
    missed = chip.by_gate_only
    return [f"{chip.chip} is ok by the gate in force only; by the default one: {missed}"] if missed else []


def table_notes(chips: Sequence[ChipForm]) -> list[str]:
    """Returns the sentences under the closing table: what the columns are, and where they are estimates."""
    proofs = [chip.verification for chip in chips if chip.verification]
    against = sorted({proof.reference for proof in proofs})
    notes = [f"SQNR: against {name}, {UNKNOWN}" for name in against if name != FLOAT_MODEL]
    if metrics := {proof.metric for proof in proofs if proof.metric}:
        whose = f"{', '.join(sorted(metrics))} of {', '.join(against)} and of this build"
        notes.append(f"float, here: {whose} on the same samples")
    estimates = [chip.estimates for chip in chips if chip.estimates]
    if sources := {each.source for each in estimates if each.latency_ms is not None}:
        notes.append(f"est. ms is an estimate, not a measurement ({', '.join(sorted(sources))})")
    for chip in chips:
        if chip.receipt and chip.receipt.source:
            notes.append(f"on NPU, {chip.chip}: {chip.receipt.source}")
    if in_dram := [chip.chip for chip in chips if chip.details.rest.get("dram_bytes")]:
        notes.append(f"no flash is counted for {', '.join(in_dram)}: weights and arena lie in DRAM there")
    if bare := [chip.chip for chip in chips if _flash_without_code(chip)]:
        notes.append(f"flash is the model alone, without the code that runs it: {', '.join(bare)}")
    in_float: dict[str, list[str]] = {}
    for chip in chips:
        if kinds := kinds_in_float(chip):
            in_float.setdefault(kinds, []).append(chip.chip)
    notes += [f"in floating point, {', '.join(names)}: {kinds}" for kinds, names in in_float.items()]
    notes += [line for chip in chips for line in by_gate_only(chip)]
    for chip in chips:
        if chip.status == "not executed":
            notes.append(f"not executed, {chip.chip}: {chip.not_verified or 'no runtime'}; nothing is proved")
    # Each warning once; where not every chip is concerned, with the chips' names
    concerned: dict[str, list[str]] = {}
    proven = {chip.chip: chip.verification for chip in chips if chip.verification}
    for name, proof in proven.items():
        for text in proof.warnings:
            concerned.setdefault(text, []).append(name)
    return [
        *notes,
        *sorted({_executed(proof) for proof in proofs}),
        *[
            f"warning: {text}" + (f" ({', '.join(names)})" if len(names) < len(proven) else "")
            for text, names in concerned.items()
        ],
    ]


def kinds_in_float(chip: ChipForm) -> str:
    """Returns how many operators of which kinds a quantised model leaves in floating point, the most frequent first."""
    plans = [each.details.rest.get("quantisation") for each in chip.chain]
    listed = [plan.get("float_operators") or () for plan in plans if isinstance(plan, Mapping)]
    kinds = Counter(str(each["operator"]) for operators in listed for each in operators)
    shown = [f"{number} {kind}" for kind, number in sorted(kinds.items(), key=lambda item: (-item[1], item[0]))]
    return ", ".join(shown[:SHOWN] + [f"{len(shown) - SHOWN} other kinds"] * (len(shown) > SHOWN))


def _flash_without_code(chip: ChipForm) -> bool:
    """Whether the flash of a chip holds weights and tables only: all but generated C that was compiled for the chip."""
    if not chip.chain or not (chip.estimates and chip.estimates.flash_bytes):
        return False
    if chip.chain[-1].format == "onnx-ort":  # a computer's disk
        return False
    return not any(section.name.startswith(".text") for section in sections(chip.details))


def _executed(proof: Verification) -> str:
    text = f"executed: {proof.executed}, {proof.samples} sample{'s' * (proof.samples != 1)}"
    if proof.stands_for:
        text += "; it ran the model before the last compiler"
        if proof.stands_for != "tflite-vela":  # that can be executed; a note says why this one was not
            text += f", since nothing here executes {proof.stands_for}"
    return "; ".join([text, *proof.notes])


def tensor_rows(model: ArtifactForm) -> list[dict[str, str]]:
    """Returns the inputs and outputs of a model."""
    return [
        {
            "": side,
            "name": tensor.name,
            "shape": " × ".join(map(str, tensor.shape)),
            "type": tensor.dtype,
            "layout": tensor.layout or "not stated",
        }
        for side, tensors in (("input", model.inputs), ("output", model.outputs))
        for tensor in tensors
    ]


def elsewhere_rows(receipt: Receipt) -> list[dict[str, str]]:
    """Returns the operators that are not on the NPU, each with its reason."""
    return [
        {"operator": op.name, "kind": op.kind, "MACs": count(op.macs), "why not": op.reason} for op in receipt.elsewhere
    ]


def candidate_rows(details: DetailsForm) -> list[dict[str, str]]:
    """Returns the ways in which a model was compiled, where there is more than one."""
    rows = [
        {
            "compiled for": goal + (" (kept)" if goal == details.chosen else ""),
            "est. ms": "-" if figures.latency_ms is None else f"{figures.latency_ms:.3f}",
            "SRAM KiB": kib(figures.sram_bytes),
            "flash KiB": kib(figures.flash_bytes),
            "DRAM KiB": kib(figures.dram_bytes),
        }
        for goal, figures in (details.candidates or {}).items()
    ]
    return rows if len(rows) > 1 else []


def timing_rows(timings: Sequence[StageTiming]) -> list[dict[str, str]]:
    """Returns how long each stage of a build took."""
    return [
        {
            "chip": stage.chip or "all",
            "stage": stage.stage,
            "s": f"{stage.seconds:.2f}",
            "from cache": "yes" if stage.cached else "no",
        }
        for stage in timings
    ]


def calibration_lines(chip: ChipForm) -> list[str]:
    """Returns notes on a chip's repairs and calibration: gains, whether samples are enough, what moves."""
    calibration = chip.calibration
    lines = [repair.sentence for repair in chip.repairs]
    if calibration is None:
        return lines
    lines.append(calibration.sentence)
    moving, outside = calibration.moving[:SHOWN], calibration.outside[:SHOWN]
    lines += [f"moves: {each.tensor}, {each.growth:.0%} wider with twice as many" for each in moving]
    lines += [
        f"outside: verification sample {each.sample} at {each.tensor}, by {each.excess:.0%} of its width"
        for each in outside
    ]
    proof = chip.verification
    if proof is not None and proof.expected_sqnr_db is not None:
        low, high = proof.expected_sqnr_db
        lines.append(f"new samples like these are expected at {low:.1f} to {high:.1f} dB (90 %)")
    return lines
