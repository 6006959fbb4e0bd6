"""The report of a build."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from anynpu.report.facts import fidelity_rows, flat
from anynpu.report.figures import chip_row, count, decibel, kib, percent, said_by, table_notes, versions_of
from anynpu.report.html.axes import more
from anynpu.report.html.graph import graph_view, node_table
from anynpu.report.html.layers import layer_charts
from anynpu.report.html.markup import Child, Markup, el, join, table
from anynpu.report.html.page import Head, Section, copied, figure, meter, notes, pill
from anynpu.report.memory import memory

Record = Mapping[str, Any]
NUMERIC = ("SQNR dB", "float", "here", "on NPU", "est. ms", "SRAM KiB", "flash KiB", "s")


def mood(chip: Record) -> str:
    """Returns how a chip's result looks: good, warn or bad."""
    return {"ok": "good", "fallback": "warn", "not executed": "warn"}.get(str(chip["status"]), "bad")


def head(record: Record) -> Head:
    """Returns the top of the report: the verdict over all chips."""
    chips = record["chips"]
    moods = [mood(chip) for chip in chips]
    worst = next((m for m in ("bad", "warn") if m in moods), "good" if moods else "none")
    model = record.get("model") or {}
    estimates = model.get("estimates") or {}
    facts = [
        f"{count(estimates.get('macs'))} MACs" if estimates.get("macs") else "",
        f"{count(estimates.get('parameters'))} parameters" if estimates.get("parameters") else "",
        f"anynpu {record.get('anynpu', '?')}",
        str(record.get("at") or ""),
    ]
    return Head("build", _title(record), _sentence(chips, moods), worst, [fact for fact in facts if fact])


def _title(record: Record) -> str:
    return str(((record.get("request") or {}).get("source") or {}).get("model") or "build")


def _sentence(chips: Sequence[Record], moods: Sequence[str]) -> str:
    if len(chips) == 1:
        return f"{chips[0]['chip']}: {chips[0]['status']}"
    said = f"{moods.count('good')} of {len(chips)} chips ok"
    others = [f"{chip['chip']}: {chip['status']}" for chip, m in zip(chips, moods, strict=True) if m != "good"]
    return "; ".join([said, *others[:6]])


def sections(record: Record) -> list[Section]:
    """Returns the parts of the report."""
    return [
        Section("summary", "Summary", _summary(record)),
        Section("chips", "Chips", _chips(record)),
        Section("model", "Model and data", _model(record)),
        Section("provenance", "Provenance", provenance(record)),
    ]


def _summary(record: Record) -> Markup:
    chips = record["chips"]
    cards = el("div", *(_card(chip) for chip in chips), class_="cards")
    rows = table((chip_row(dict(chip)) for chip in chips), "All chips", NUMERIC, class_="sortable")
    told = [*(record.get("notes") or ()), *table_notes([dict(chip) for chip in chips])]
    return join((cards, more("The same as a table", rows) if len(chips) > 1 else None, notes(told)))


def _card(chip: Record) -> Markup:
    verdict = (chip.get("error") or {}).get("message") or chip.get("verdict") or chip.get("not_verified")
    return el(
        "article",
        el("header", el("h3", chip["chip"]), pill(mood(chip), str(chip["status"]))),
        el("p", chip.get("title") or "", class_="muted"),
        el("p", verdict, class_=f"said {mood(chip)}") if verdict else None,
        el("dl", *_figures(chip)),
        class_=f"card {mood(chip)}",
    )


def _figures(chip: Record) -> Iterable[Markup]:
    proof, estimates = chip.get("verification") or {}, chip.get("estimates") or {}
    memory, receipt = chip.get("memory") or {}, chip.get("receipt")
    if proof.get("sqnr_db") is not None:
        exact = decibel(proof["sqnr_db"])
        yield figure(
            "SQNR",
            exact if exact == "exact" else f"{exact} dB",
            f"against {proof.get('reference') or 'the float model'}",
        )
    if proof.get("score") is not None:
        yield figure(
            str(proof.get("metric") or "score"), percent(proof["score"]), f"float {percent(proof.get('score_float'))}"
        )
    if receipt and receipt.get("share") is not None:
        share = receipt["share"]
        told = f"{receipt.get('on_npu')} of {receipt.get('operators')} operators"
        told += said_by(receipt)
        yield figure(
            "on the NPU", join((percent(share), meter(share, "good" if share >= 1 and proof else "warn"))), told
        )
    if estimates.get("latency_ms") is not None:
        yield figure("latency", f"{estimates['latency_ms']:.3f} ms", estimates.get("source"), "estimate")
    yield from _memory("SRAM", estimates.get("sram_bytes") or proof.get("arena_bytes"), memory.get("sram_kib"))
    yield from _memory("flash", estimates.get("flash_bytes"), memory.get("flash_kib"))


def _memory(name: str, used: int | None, limit_kib: int | None) -> Iterable[Markup]:
    if used is None:
        return
    value: Child = f"{kib(used)} KiB"
    if limit_kib:
        share = used / 1024 / limit_kib
        value = join((value, meter(share, "bad" if share > 1 else "")))
    yield figure(name, value, f"of {limit_kib:,} KiB" if limit_kib else None)


def _chips(record: Record) -> Markup:
    chips = record["chips"]
    least = ((record.get("request") or {}).get("gate") or {}).get("min_sqnr_db")
    tabs = [
        el(
            "button",
            el("span", chip["chip"]),
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


def _panel(chip: Record, number: int, least: float | None) -> Markup:
    graph = chip.get("graph")
    drawn = bool(graph and graph.get("nodes"))
    parts: list[Child] = [
        el("h3", chip["chip"], " ", pill(mood(chip), str(chip["status"]))),
        _error(chip),
        el("p", chip["verdict"], class_="said warn") if chip.get("verdict") else None,
    ]
    if graph and not drawn:
        parts.append(notes(graph.get("notes") or ()))
    if drawn:
        parts += [
            el("h4", "Graph"),
            _receipt_line(chip),
            graph_view(chip, number),
            node_table(chip),
            layer_charts(chip, least),
        ]
        parts.append(notes((graph or {}).get("notes") or ()))
    parts += [_receipt(chip, drawn), _proof(chip), _candidates(chip), _sections_of_memory(chip), _chain_notes(chip)]
    return join(parts)


def _error(chip: Record) -> Markup | None:
    error = chip.get("error")
    if not error:
        return None
    findings = [
        f"{f['where']}: {f['message']}" if f.get("where") else str(f.get("message", ""))
        for f in error.get("findings") or ()
    ]
    lines = error.get("last_lines")
    return el(
        "div",
        el("p", el("strong", error.get("message") or error.get("kind") or "error")),
        el("p", error["hint"], class_="muted") if error.get("hint") else None,
        notes(findings),
        el("pre", "\n".join(map(str, lines)), tabindex=0) if lines else None,
        class_="problem",
    )


def _receipt_line(chip: Record) -> Markup | None:
    receipt = chip.get("receipt")
    if not receipt:
        return None
    said = f"{receipt.get('on_npu')} of {receipt.get('operators')} operators"
    share = f" and {percent(receipt['mac_share'])} of the MACs" if receipt.get("mac_share") is not None else ""
    return el("p", f"{said}{share} on the {receipt.get('npu') or 'NPU'}{said_by(receipt)}.")


def _receipt(chip: Record, drawn: bool) -> Markup:
    receipt = chip.get("receipt") or {}
    rows = [
        {
            "operator": op.get("name", ""),
            "kind": op.get("kind", ""),
            "MACs": count(op.get("macs")),
            "why not": op.get("reason") or "",
        }
        for op in receipt.get("elsewhere") or ()
    ]
    if not rows:
        return join((el("h4", "Placement"), _receipt_line(chip))) if receipt and not drawn else Markup("")
    return join(
        (
            el("h4", "Not on the NPU"),
            None if drawn else _receipt_line(chip),
            table(rows, "Operators elsewhere", ("MACs",)),
        )
    )


def _proof(chip: Record) -> Markup:
    proof = chip.get("verification")
    if not proof:
        why = chip.get("not_verified") or "the build did not get that far"
        return join((el("h4", "Proof"), el("p", f"Not executed: {why}.", class_="said warn")))
    where = "held-out samples" if proof.get("held_out") else "of the calibration samples"
    stands = " (the model before the last compiler)" if proof.get("stands_for") else ""
    said = f"Executed by {proof.get('executed')}{versions_of(proof)}{stands} on {proof.get('samples')} {where}."
    rows = fidelity_rows(proof.get("outputs") or {})
    numeric = [name for name in rows[0] if name != "output"] if rows else ()
    return join(
        (
            el("h4", "Proof"),
            el("p", said),
            table(rows, f"Outputs against {proof.get('reference') or 'the float model'}", numeric),
            notes(proof.get("notes") or ()),
            notes([f"warning: {text}" for text in proof.get("warnings") or ()], "notes warn"),
            notes([sentence for f in (proof.get("outputs") or {}).values() for sentence in f.get("lost") or ()]),
        )
    )


def _details(chip: Record) -> Record:
    chain = chip.get("chain")
    return (chain[-1].get("details") or {}) if chain else {}


def _candidates(chip: Record) -> Markup:
    details = _details(chip)
    rows = [
        {
            "compiled for": goal + (" (kept)" if goal == details.get("chosen") else ""),
            "est. ms": "-" if f.get("latency_ms") is None else f"{f['latency_ms']:.3f}",
            "SRAM KiB": kib(f.get("sram_bytes")),
            "flash KiB": kib(f.get("flash_bytes")),
            "DRAM KiB": kib(f.get("dram_bytes")),
        }
        for goal, f in (details.get("candidates") or {}).items()
    ]
    if len(rows) < 2:
        return Markup("")
    return join((el("h4", "Compiled more than one way (estimates)"), table(rows, "Candidates", tuple(rows[0])[1:])))


def _sections_of_memory(chip: Record) -> Markup:
    sentences, rows = memory(_details(chip))
    if not rows:
        return Markup("")
    said = join(el("p", sentence) for sentence in sentences)
    return join((el("h4", "Memory"), said, table(rows, "Memory", ("flash", "RAM"))))


def _chain_notes(chip: Record) -> Markup:
    return notes(dict.fromkeys(note for artifact in chip.get("chain") or () for note in artifact.get("notes") or ()))


def _model(record: Record) -> Markup:
    model = record.get("model") or {}
    rows = [
        {
            "": side[:-1],
            "name": t.get("name", ""),
            "shape": " × ".join(map(str, t.get("shape") or ())),
            "type": t.get("dtype") or "float32",
            "layout": t.get("layout") or "not stated",
        }
        for side in ("inputs", "outputs")
        for t in model.get(side) or ()
    ]
    operators = (model.get("details") or {}).get("operators") or {}
    listed = sorted(operators.items(), key=lambda item: -item[1]) if isinstance(operators, Mapping) else ()
    kinds = (
        el("ul", *(el("li", el("b", number), " ", kind) for kind, number in listed), class_="chipset")
        if listed
        else None
    )
    data = [
        {
            "data": role,
            **{k: v for k, v in flat(about, ("role",)) if k != "digest"},
            "digest": copied(str(about.get("digest") or "")),
        }
        for role, about in (record.get("data") or {}).items()
        if about
    ]
    tables = [table([row], f"{row['data']} data") for row in data]
    return join((table(rows, "Inputs and outputs"), kinds, *tables))


def provenance(record: Record) -> Markup:
    """Returns digests, tools, versions and the time of each step."""
    steps: list[dict[str, Child]] = []
    tools: dict[str, str] = {}
    for owner, artifact in _artifacts(record):
        step = artifact.get("step") or {}
        tools.update(step.get("tools") or {})
        steps.append(
            {
                "for": owner,
                "step": step.get("name") or "-",
                "format": artifact.get("format") or "-",
                "artifact": copied(str(artifact.get("digest") or "")),
                "made from": join(
                    part
                    for name, digest in (step.get("inputs") or {}).items()
                    for part in (name, " ", copied(str(digest)), " ")
                ),
                "at": str((artifact.get("made") or {}).get("at") or "-"),
            }
        )
    versions = [{"tool": name, "version": version} for name, version in sorted(tools.items())]
    timings = [
        {
            "chip": t.get("chip") or "all",
            "stage": t.get("stage", ""),
            "s": f"{t.get('seconds') or 0:.2f}",
            "from cache": "yes" if t.get("cached") else "no",
        }
        for t in record.get("timings") or ()
    ]
    request = [{"setting": name, "value": value} for name, value in flat(record.get("request") or {})]
    model = record.get("model") or {}
    fingerprint = el("p", "Model fingerprint ", copied(str(model.get("fingerprint") or ""))) if model else None
    return join(
        (
            fingerprint,
            table(steps, "Artifacts and what made them"),
            el("div", table(versions, "Tools"), table(timings, "Time of each step", ("s",)), class_="side-by-side"),
            more("The whole request", table(request, "Request", class_="pairs")) if request else None,
        )
    )


def _artifacts(record: Record) -> Iterable[tuple[str, Record]]:
    seen = set()
    if record.get("model"):
        yield "all", record["model"]
    for chip in record["chips"]:
        for artifact in chip.get("chain") or ():
            if artifact.get("digest") not in seen:
                seen.add(artifact.get("digest"))
                yield chip["chip"], artifact
