"""A build record as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from anynpu.errors import visible
from anynpu.report.facts import fidelity_rows
from anynpu.report.figures import chip_row, count, kib, percent, said_by, table_notes, versions_of
from anynpu.report.memory import memory

MARKUP = re.compile(r"\\(?=[!-/:-@\[-`{-~])|[`|*\[\]<]|&(?=#|\w+;)|__|~~")
"""What Markdown would take for a sign of its own inside a line."""


def render(record: dict[str, Any]) -> str:
    """Returns the report of a build."""
    parts = [
        f"# {plain(record['request']['source']['model'])}",
        *_warnings(record["notes"]),
        table([chip_row(chip) for chip in record["chips"]]),
        *(f"- {plain(note)}" for note in table_notes(record["chips"])),
        *_model(record),
    ]
    for chip in record["chips"]:
        parts += _chip(chip)
    parts += _provenance(record)
    return "\n".join(parts) + "\n"


def _warnings(notes: Iterable[str]) -> list[str]:
    return [f"> **{plain(note)}**\n" for note in notes]


def plain(text: object) -> str:
    """Returns text that stays on its line and is no markup: no link, image, code, tag, table or escape in it."""
    return MARKUP.sub(_escaped, " ".join(visible(str(text)).split()))


def _escaped(match: re.Match[str]) -> str:
    return {"<": "&lt;", "&": "&amp;"}.get(match[0], "\\" + match[0])


def fenced(lines: Iterable[str]) -> list[str]:
    """Returns lines as a block that none of them can end."""
    shown = [visible(line) for line in lines]
    longest = max((len(run[0]) for line in shown for run in re.finditer("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence, *shown, fence]


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Returns rows of equal keys as a table."""
    if not rows:
        return ""
    head = list(rows[0])
    lines = [[plain(name) for name in head], ["---"] * len(head), *([plain(row[n]) for n in head] for row in rows)]
    return "\n" + "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def _model(record: dict[str, Any]) -> list[str]:
    model = record["model"]
    estimates = model.get("estimates", {})
    tensors = [
        {
            "": kind,
            "name": t["name"],
            "shape": " x ".join(map(str, t["shape"])),
            "type": t.get("dtype", "float32"),
            "layout": t.get("layout", "") or "not stated",
        }
        for kind in ("inputs", "outputs")
        for t in model.get(kind, ())
    ]
    return [
        "\n## Model\n",
        f"Fingerprint `{plain(model['fingerprint'])}`, {count(estimates.get('macs'))} MACs, "
        f"{count(estimates.get('parameters'))} parameters (counted from the graph).",
        table(tensors),
    ]


def _chip(chip: dict[str, Any]) -> list[str]:
    parts = [f"\n## {plain(chip['chip'])}: {plain(chip['status'])}\n", plain(chip["title"]) + ".\n"]
    if chip["error"]:
        error = chip["error"]
        hint = f" ({plain(error['hint'])})" if error.get("hint") else ""
        parts.append(f"**{plain(error['message'])}**{hint}\n")
        parts += [f"- {plain(_finding(f))}" for f in error.get("findings", ())]
        parts += fenced(error["last_lines"]) if error.get("last_lines") else []
    if chip["verdict"]:
        parts.append(f"**{plain(chip['verdict'])}**\n")
    parts += _proof(chip) + _receipt(chip) + _candidates(chip) + _sections(chip)
    notes = [note for artifact in chip["chain"] for note in artifact.get("notes", ())]
    return parts + [f"- {plain(note)}" for note in dict.fromkeys(notes)]


def _finding(finding: dict[str, str]) -> str:
    where = finding.get("where", "")
    return f"{where}: {finding['message']}" if where else finding["message"]


def _proof(chip: dict[str, Any]) -> list[str]:
    proof = chip["verification"]
    if not proof:
        return [f"Not executed: {plain(chip['not_verified'] or 'the build did not get that far')}.\n"]
    where = "held-out samples" if proof["held_out"] else "of the calibration samples"
    stands = " (the model before the last compiler)" if proof.get("stands_for") else ""
    rows = fidelity_rows(proof["outputs"])
    notes = [f"- {plain(note)}" for note in proof.get("notes", ())]
    notes += [f"- **warning: {plain(text)}**" for text in proof.get("warnings", ())]
    notes += [f"- {plain(sentence)}" for f in proof["outputs"].values() for sentence in f.get("lost", ())]
    by = plain(f"{proof['executed']}{versions_of(proof)}")
    against = plain(f", compared with {proof['reference']}") if proof.get("reference") else ""
    return [f"Executed by {by}{stands} on {proof['samples']} {where}{against}:", table(rows), *notes]


def _receipt(chip: dict[str, Any]) -> list[str]:
    receipt = chip["receipt"]
    if not receipt:
        return []
    lines = [
        f"Placement receipt: {receipt['on_npu']} of {receipt['operators']} operators on the {plain(receipt['npu'])}, "
        f"{percent(receipt['mac_share'])} of the MACs{said_by(receipt)}.\n"
    ]
    rows = [
        {"operator": op["name"], "kind": op["kind"], "why not": op.get("reason", "")} for op in receipt["elsewhere"]
    ]
    return [*lines, table(rows)] if rows else lines


def _candidates(chip: dict[str, Any]) -> list[str]:
    details = chip["chain"][-1].get("details", {}) if chip["chain"] else {}
    rows = [
        {
            "compiled for": goal + (" (kept)" if goal == details["chosen"] else ""),
            "est. ms": f"{figures['latency_ms']:.3f}",
            "SRAM KiB": kib(figures["sram_bytes"]),
            "flash KiB": kib(figures["flash_bytes"]),
            "DRAM KiB": kib(figures["dram_bytes"]),
        }
        for goal, figures in details.get("candidates", {}).items()
    ]
    return ["Compiled both ways (estimates):", table(rows)] if len(rows) > 1 else []


def _sections(chip: dict[str, Any]) -> list[str]:
    notes, rows = memory(chip["chain"][-1].get("details", {}) if chip["chain"] else {})
    return ["", *map(plain, notes), table(rows)] if rows else []  # a paragraph of its own, even after a list


def _provenance(record: dict[str, Any]) -> list[str]:
    tools: dict[str, str] = {}
    for chip in record["chips"]:
        for artifact in chip["chain"]:
            tools |= artifact.get("step", {}).get("tools", {})
    lines = ["\n## Provenance\n", f"anynpu {plain(record['anynpu'])}, {plain(record['at'])}.\n"]
    lines += [f"- {plain(name)} {plain(version)}" for name, version in sorted(tools.items()) if name != "anynpu"]
    rows = [
        {
            "chip": stage["chip"] or "all",
            "stage": stage["stage"],
            "s": f"{stage['seconds']:.2f}",
            "from cache": "yes" if stage["cached"] else "no",
        }
        for stage in record["timings"]
    ]
    return [*lines, table(rows)]
