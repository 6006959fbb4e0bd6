"""The report of a build."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from anynpu.records.build import FLOAT_MODEL, ArtifactForm, BuildRecord, ChipForm, GateForm, Receipt
from anynpu.records.diagnosis import Cause
from anynpu.report.facts import fidelity_rows, flat
from anynpu.report.figures import (
    calibration_lines,
    candidate_rows,
    chip_row,
    count,
    decibel,
    elsewhere_rows,
    kib,
    percent,
    table_notes,
    tensor_rows,
    timing_rows,
    versions_text,
)
from anynpu.report.html.axes import more
from anynpu.report.html.graph import graph_view, node_table
from anynpu.report.html.layers import layer_charts
from anynpu.report.html.markup import Child, Markup, el, join, table
from anynpu.report.html.page import Head, Section, copied, figure, meter, notes, pill, with_commands
from anynpu.report.memory import memory_of
from anynpu.schema import to_dict

NUMERIC = ("SQNR dB", "float", "here", "on NPU", "est. ms", "SRAM KiB", "flash KiB", "s")

JUDGED = (
    "The gate of {:g} dB is for the column SQNR dB. Of what varies (the two columns after it) the gate asks that it is "
    "followed, not that it reaches the same figure."
)


def mood(chip: ChipForm) -> str:
    """Returns how a chip's result looks: good, warn or bad; nothing is good that only a lowered gate lets pass."""
    flash = chip.estimates.flash_bytes if chip.estimates else None
    sizes = ((chip.sram_bytes, chip.memory.sram_kib), (flash, chip.memory.flash_kib)) if chip.memory else ()
    overfull = any(used is not None and limit and used > 1024 * limit for used, limit in sizes)
    if chip.status == "ok" and (chip.by_gate_only or overfull):
        return "warn"
    return {"ok": "good", "fallback": "warn", "not executed": "warn"}.get(chip.status, "bad")


def status(chip: ChipForm) -> str:
    """Returns the status of a chip as the page says it."""
    return f"{chip.status} by a lowered gate only" if chip.by_gate_only else chip.result


def head(record: BuildRecord) -> Head:
    """Returns the top of the report: the verdict over all chips."""
    moods = [mood(chip) for chip in record.chips]
    worst = next((m for m in ("bad", "warn") if m in moods), "good" if moods else "none")
    estimates = record.model.estimates if record.model else None
    facts = [
        f"{count(estimates.macs)} MACs" if estimates and estimates.macs else "",
        f"{count(estimates.parameters)} parameters" if estimates and estimates.parameters else "",
        f"anynpu {record.anynpu or '?'}",
        record.at,
    ]
    title = record.request.source.model or "build"
    if len(record.chips) == 1:
        verdict = f"{record.chips[0].chip}: {status(record.chips[0])}"
    else:
        others = [f"{chip.chip}: {status(chip)}" for chip, m in zip(record.chips, moods, strict=True) if m != "good"]
        verdict = "; ".join([f"{moods.count('good')} of {len(moods)} chips ok", *others[:6]])
    return Head("build", title, verdict, worst, [fact for fact in facts if fact])


def sections(record: BuildRecord) -> list[Section]:
    """Returns the parts of the report."""
    chips = record.chips
    gate = record.request.gate or GateForm()
    # At most four cards in a row, and as even rows as there can be
    columns = len(chips) if len(chips) < 4 else min((4, 3), key=lambda each: -len(chips) % each)
    cards = el("div", *(_card(chip, gate) for chip in chips), class_=f"cards in-{columns}")
    rows = table((chip_row(chip) for chip in chips), "All chips", NUMERIC, class_="sortable")
    same = more("The same as a table", rows) if len(chips) > 1 else None
    model = record.model or ArtifactForm(digest="")
    operators = model.details.rest.get("operators")
    listed = sorted(operators.items(), key=lambda item: -item[1]) if isinstance(operators, Mapping) else ()
    kinds = (
        el("ul", *(el("li", el("b", number), " ", kind) for kind, number in listed), class_="chipset")
        if listed
        else None
    )
    tables = [
        table(
            [{"data": role, **dict(flat(to_dict(about), ("role", "digest"))), "digest": copied(about.digest)}],
            f"{role} data",
        )
        for role, about in record.data.items()
        if about
    ]
    return [
        Section("summary", "Summary", join((cards, same, notes([*record.notes, *table_notes(chips)])))),
        Section("chips", "Chips", _chips(record)),
        Section("model", "Model and data", join((table(tensor_rows(model), "Inputs and outputs"), kinds, *tables))),
        Section("provenance", "Provenance", provenance(record)),
    ]


def _card(chip: ChipForm, gate: GateForm) -> Markup:
    verdict = (chip.error.message if chip.error else "") or chip.verdict or chip.not_verified
    verdict = verdict or (f"by the default gate: {chip.by_gate_only}" if chip.by_gate_only else "")
    hints = [chip.error.hint] if chip.error and chip.error.hint else []
    hints += [f"{cause.cause} at {cause.tensor}: {cause.repair}" for cause in causes(chip)]
    fixes = (el("p", with_commands(hint)) for hint in hints)
    return el(
        "article",
        el("header", el("h3", chip.chip), pill(mood(chip), status(chip))),
        el("p", chip.title, class_="muted"),
        el("p", verdict, class_=f"said {mood(chip)}") if verdict else None,
        el("div", el("b", "To fix it"), *fixes, class_="fix") if hints else None,
        el("dl", *_figures(chip, gate)),
        class_=f"card {mood(chip)}",
    )


def causes(chip: ChipForm) -> tuple[Cause, ...]:
    """Returns why a chip that failed the gate loses accuracy, as far as that is known."""
    return chip.diagnosis.causes if chip.diagnosis and chip.error else ()


def _figures(chip: ChipForm, gate: GateForm) -> Iterator[Markup]:
    proof, estimates, memory, receipt = chip.verification, chip.estimates, chip.memory, chip.receipt
    least, drop = gate.min_sqnr_db, gate.max_drop_points
    if proof and proof.sqnr_db is not None:
        exact = decibel(proof.sqnr_db)
        asked = "" if least is None else f"; gate {least:g} dB"
        below = "bad" if least is not None and proof.sqnr_db < least else ""
        value = exact if exact == "exact" else f"{exact} dB"
        yield figure("SQNR", value, f"against {proof.reference or FLOAT_MODEL}{asked}", mood=below)
    if proof and proof.score is not None:
        lost = 100 * ((proof.score_float or 0.0) - proof.score)
        asked = "" if drop is None else f"; gate {drop:g} points less"
        below = "bad" if drop is not None and lost > drop else ""
        note = f"float {percent(proof.score_float)}{asked}"
        yield figure(proof.metric or "score", percent(proof.score), note, mood=below)
    if receipt:
        bar = meter(receipt.share, "good" if receipt.share >= 1 and proof else "warn")
        where = f"{receipt.on_npu} of {receipt.operators} operators{receipt.said_by}"
        yield figure("on the NPU", join((percent(receipt.share), bar)), where)
    if estimates and estimates.latency_ms is not None:
        yield figure("latency", f"{estimates.latency_ms:.3f} ms", estimates.source, "estimate")
    yield from _memory("SRAM", chip.sram_bytes, memory.sram_kib if memory else None)
    yield from _memory("flash", estimates.flash_bytes if estimates else None, memory.flash_kib if memory else None)


def _memory(name: str, used: int | None, limit_kib: float | None) -> Iterator[Markup]:
    if used is None:
        return
    value: Child = f"{kib(used)} KiB"
    if limit_kib:
        share = used / 1024 / limit_kib
        value = join((value, meter(share, "bad" if share > 1 else "")))
    yield figure(name, value, f"of {limit_kib:,} KiB" if limit_kib else None)


def _chips(record: BuildRecord) -> Markup:
    chips = record.chips
    least = record.request.gate.min_sqnr_db if record.request.gate else None
    tabs = [
        el(
            "button",
            el("span", chip.chip),
            type="button",
            role="tab",
            id=f"tab-{i}",
            aria_controls=f"chip-{i}",
            class_=mood(chip),
        )
        for i, chip in enumerate(chips)
    ]
    panels = [
        el("div", _panel(chip, i, least), id=f"chip-{i}", role="tabpanel", aria_labelledby=f"tab-{i}", class_="panel")
        for i, chip in enumerate(chips)
    ]
    return join(
        (el("div", *tabs, role="tablist", aria_label="Chips", class_="tabs") if len(chips) > 1 else None, *panels)
    )


def _panel(chip: ChipForm, number: int, least: float | None) -> Markup:
    graph = chip.graph
    drawn = graph is not None and bool(graph.nodes)
    parts: list[Child] = [el("h3", chip.chip, " ", pill(mood(chip), status(chip)))]
    if error := chip.error:
        parts.append(
            el(
                "div",
                el("p", el("strong", error.message or error.kind or "error")),
                el("p", with_commands(error.hint)) if error.hint else None,
                notes(with_commands(f"{c.cause} at {c.tensor}: {c.evidence}; {c.repair}") for c in causes(chip)),
                notes(map(str, error.findings or ())),
                el("pre", "\n".join(error.last_lines), tabindex=0) if error.last_lines else None,
                class_="problem",
            )
        )
    parts.append(el("p", chip.verdict, class_="said warn") if chip.verdict else None)
    if graph and drawn:
        parts += [
            el("h4", "Graph"),
            _receipt_line(chip.receipt) if chip.receipt else None,
            graph_view(chip, graph, number),
            node_table(chip, graph),
            layer_charts(chip, graph, least),
        ]
    if graph:
        parts.append(notes(graph.notes))
    parts += [_receipt(chip.receipt, drawn) if chip.receipt else None, _proof(chip, least)]
    if rows := candidate_rows(chip.details):
        parts += [el("h4", "Compiled more than one way (estimates)"), table(rows, "Candidates", tuple(rows[0])[1:])]
    sentences, areas = memory_of(chip.details)
    if areas:
        parts += [el("h4", "Memory"), *(el("p", sentence) for sentence in sentences)]
        parts.append(table(areas, "Memory", ("flash", "RAM")))
    return join([*parts, notes(dict.fromkeys(note for artifact in chip.chain for note in artifact.notes))])


def _receipt_line(receipt: Receipt) -> Markup:
    share = f" and {percent(receipt.mac_share)} of the MACs" if receipt.mac_share is not None else ""
    where = f"{receipt.on_npu} of {receipt.operators} operators{share}"
    return el("p", f"{where} on the {receipt.npu or 'NPU'}{receipt.said_by}.")


def _receipt(receipt: Receipt, drawn: bool) -> Markup:
    rows = elsewhere_rows(receipt)
    line = None if drawn else _receipt_line(receipt)
    if not rows:
        return Markup("") if drawn else join((el("h4", "Placement"), line))
    return join((el("h4", "Not on the NPU"), line, table(rows, "Operators elsewhere", ("MACs",))))


def _proof(chip: ChipForm, least: float | None) -> Markup:
    proof = chip.verification
    if not proof:
        why = chip.not_verified or "the build did not get that far"
        return join((el("h4", "Proof"), el("p", f"Not executed: {why}.", class_="said warn")))
    where = "held-out samples" if proof.held_out else "of the calibration samples"
    stands = " (the model before the last compiler)" if proof.stands_for else ""
    executed = f"Executed by {proof.executed}{versions_text(proof.versions)}{stands} on {proof.samples} {where}."
    rows = fidelity_rows(proof.outputs)
    numeric = [name for name in rows[0] if name != "output"] if rows else ()
    return join(
        (
            el("h4", "Proof"),
            el("p", executed),
            table(rows, f"Outputs against {proof.reference or FLOAT_MODEL}", numeric),
            el("p", JUDGED.format(least), class_="muted") if rows and least is not None else None,
            notes(proof.notes),
            notes(calibration_lines(chip)),
            notes([f"warning: {text}" for text in proof.warnings], "notes warn"),
            notes([sentence for each in proof.outputs.values() for sentence in each.lost]),
        )
    )


def provenance(record: BuildRecord) -> Markup:
    """Returns digests, tools, versions and the time of each step."""
    steps: list[dict[str, Child]] = []
    tools: dict[str, str] = {}
    compiled: dict[str, tuple[str, ArtifactForm]] = {}
    for chip in record.chips:
        for artifact in chip.chain:
            compiled.setdefault(artifact.digest, (chip.chip, artifact))
    for owner, artifact in (*((("all", record.model),) if record.model else ()), *compiled.values()):
        step = artifact.step
        tools |= step.tools if step else {}
        sources = step.inputs.items() if step else ()
        steps.append(
            {
                "for": owner,
                "step": (step.name if step else "") or "-",
                "format": artifact.format or "-",
                "artifact": copied(artifact.digest),
                "made from": join(part for name, digest in sources for part in (name, " ", copied(digest), " ")),
                "at": (artifact.made.at if artifact.made else "") or "-",
            }
        )
    versions = [{"tool": name, "version": version} for name, version in sorted(tools.items())]
    request = [{"setting": name, "value": value} for name, value in flat(to_dict(record.request))]
    fingerprint = el("p", "Model fingerprint ", copied(record.model.fingerprint)) if record.model else None
    timings = table(timing_rows(record.timings), "Time of each step", ("s",))
    return join(
        (
            fingerprint,
            table(steps, "Artifacts and what made them"),
            el("div", table(versions, "Tools"), timings, class_="side-by-side"),
            more("The whole request", table(request, "Request", class_="pairs")) if request else None,
        )
    )
