"""A record of any kind as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from anynpu.errors import visible
from anynpu.records.build import FLOAT_MODEL, BuildRecord, ChipForm
from anynpu.report.facts import fidelity_rows
from anynpu.report.figures import (
    calibration_lines,
    candidate_rows,
    chip_row,
    count,
    elsewhere_rows,
    percent,
    table_notes,
    tensor_rows,
    timing_rows,
    versions_text,
)
from anynpu.report.memory import memory_of

if TYPE_CHECKING:
    from anynpu.records.load import Record

MARKUP = re.compile(r"\\(?=[!-/:-@\[-`{-~])|[`|*\[\]<]|&(?=#|\w+;)|__|~~")
"""What Markdown would take for a sign of its own inside a line."""


def render(record: Record) -> str:
    """Returns any record as Markdown."""
    if record.kind == "build":
        return _build(record)
    from anynpu.report import measurements

    if record.kind == "bench":
        title, verdict = f"bench: {record.executed or record.board or ''}", measurements.bench_verdict(record)[0]
    elif record.kind == "compare":
        names = [row["name"] for row in measurements.side_rows(record)]
        title, verdict = f"compare: {names[0]} against {names[1]}", measurements.compare_verdict(record)[0]
    elif record.kind == "sweep":
        title, verdict = "sweep", f"{measurements.sweep_verdict(record)[0]}; latencies are estimates"
    else:
        title, verdict = f"eval: {record.executed}", measurements.eval_verdict(record)[0]
    notes = (record.warnings or ()) if record.kind == "bench" else record.notes
    lines = [f"# {plain(title)}", f"\n**{plain(verdict)}**\n", *(f"- {plain(note)}" for note in notes)]
    for each in measurements.tables(record):
        lines += [f"\n## {plain(each.title)}", table(each.rows).rstrip("\n")] if each.rows else []
    return "\n".join(lines) + "\n"


def _build(record: BuildRecord) -> str:
    parts = [
        f"# {plain(record.request.source.model)}",
        *(f"> **{plain(note)}**\n" for note in record.notes),
        table([chip_row(chip) for chip in record.chips]),
        *(f"- {plain(note)}" for note in table_notes(record.chips)),
    ]
    if model := record.model:
        macs, parameters = (model.estimates.macs, model.estimates.parameters) if model.estimates else (None, None)
        parts += [
            "\n## Model\n",
            f"Fingerprint `{plain(model.fingerprint)}`, {count(macs)} MACs, "
            f"{count(parameters)} parameters (counted from the graph).",
            table(tensor_rows(model)),
        ]
    for chip in record.chips:
        parts += _chip(chip)
    tools: dict[str, str] = {}
    for chip in record.chips:
        for artifact in chip.chain:
            tools |= artifact.step.tools if artifact.step else {}
    lines = ["\n## Provenance\n", f"anynpu {plain(record.anynpu)}, {plain(record.at)}.\n"]
    lines += [f"- {plain(name)} {plain(version)}" for name, version in sorted(tools.items()) if name != "anynpu"]
    parts += [*lines, table(timing_rows(record.timings))]
    return "\n".join(parts) + "\n"


def plain(text: object) -> str:
    """Returns text that stays on its line and is not markup: no link, image, code, tag, table or escape in it."""
    escapes = {"<": "&lt;", "&": "&amp;"}
    return MARKUP.sub(lambda match: escapes.get(match[0], "\\" + match[0]), " ".join(visible(str(text)).split()))


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


def _chip(chip: ChipForm) -> list[str]:
    parts = [f"\n## {plain(chip.chip)}: {plain(chip.result)}\n", plain(chip.title) + ".\n"]
    if error := chip.error:
        hint = f" ({plain(error.hint)})" if error.hint else ""
        parts.append(f"**{plain(error.message)}**{hint}\n")
        parts += [f"- {plain(finding)}" for finding in error.findings or ()]
        parts += fenced(error.last_lines) if error.last_lines else []
    if chip.verdict:
        parts.append(f"**{plain(chip.verdict)}**\n")
    if proof := chip.verification:
        samples = "held-out samples" if proof.held_out else "of the calibration samples"
        stands = " (the model before the last compiler)" if proof.stands_for else ""
        by = plain(f"{proof.executed}{versions_text(proof.versions)}")
        against = plain(f", compared with {proof.reference}") if proof.reference != FLOAT_MODEL else ""
        parts.append(f"Executed by {by}{stands} on {proof.samples} {samples}{against}:")
        parts.append(table(fidelity_rows(proof.outputs)))
        parts += [f"- {plain(line)}" for line in (*proof.notes, *calibration_lines(chip))]
        parts += [f"- **warning: {plain(text)}**" for text in proof.warnings]
        parts += [f"- {plain(sentence)}" for each in proof.outputs.values() for sentence in each.lost]
    else:
        parts.append(f"Not executed: {plain(chip.not_verified or 'the build did not get that far')}.\n")
    if receipt := chip.receipt:
        where = f"{receipt.on_npu} of {receipt.operators} operators on the {plain(receipt.npu)}"
        parts.append(f"Placement receipt: {where}, {percent(receipt.mac_share)} of the MACs{receipt.said_by}.\n")
        parts += [table(rows)] if (rows := elsewhere_rows(receipt)) else []
    if rows := candidate_rows(chip.details):
        parts += ["Compiled both ways (estimates):", table(rows)]
    sentences, rows = memory_of(chip.details)
    parts += ["", *map(plain, sentences), table(rows)] if rows else []  # a paragraph of its own, even after a list
    notes = [note for artifact in chip.chain for note in artifact.notes]
    return parts + [f"- {plain(note)}" for note in dict.fromkeys(notes)]
