"""Any record as JUnit XML, which continuous-integration servers read: one test case a verdict."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from anynpu.errors import visible
from anynpu.records.build import ChipForm
from anynpu.report.facts import gate_lines, short
from anynpu.report.figures import by_gate_only

if TYPE_CHECKING:
    from anynpu.records.load import Record

# The inverse of what XML allows takes Python twenty times as long to compile.
NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]|[\ud800-\udfff]|[\ufffe\uffff]")


@dataclass(frozen=True)
class Case:
    """One verdict. `result` is "" if it is good, "failure" if it is not, "error" if there is none, or "skipped"."""

    name: str
    result: str = ""
    message: str = ""
    kind: str = ""
    text: str = ""
    seconds: float = 0.0
    said: str = ""


def render(record: Record) -> str:
    """Returns the record's verdicts as one JUnit test suite."""
    name, cases = _suite(record)
    counts = {result: sum(case.result == result for case in cases) for result in ("failure", "error", "skipped")}
    figures = {
        "tests": str(len(cases)),
        "failures": str(counts["failure"]),
        "errors": str(counts["error"]),
        "skipped": str(counts["skipped"]),
        "time": f"{sum(case.seconds for case in cases):.3f}",
    }
    suites = ElementTree.Element("testsuites", figures)
    about = {"name": _clean(name), **figures, **({"timestamp": _clean(record.at)} if record.at else {})}
    suite = ElementTree.SubElement(suites, "testsuite", about)
    changed = gate_lines(record)
    if changed:
        properties = ElementTree.SubElement(suite, "properties")
        for line in changed:
            ElementTree.SubElement(properties, "property", {"name": "gate", "value": _clean(line)})
    for case in cases:
        case = replace(case, said="\n".join(filter(None, (case.said, *changed))))
        attributes = {"classname": _clean(name), "name": _clean(case.name), "time": f"{case.seconds:.3f}"}
        item = ElementTree.SubElement(suite, "testcase", attributes)
        if case.result:
            attributes_of = {"message": _clean(case.message), **({"type": _clean(case.kind)} if case.kind else {})}
            ElementTree.SubElement(item, case.result, attributes_of).text = _clean(case.text) or None
        if case.said:
            ElementTree.SubElement(item, "system-out").text = _clean(case.said)
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _clean(text: object) -> str:
    """Returns text in which what XML cannot hold, and what a terminal would obey, is written as an escape."""
    return NOT_XML.sub(lambda match: f"\\u{ord(match[0]):04x}", visible(str(text)))


def _chip(chip: ChipForm) -> Case:
    error, proof = chip.error, chip.verification
    lines = []
    if proof:
        figures = {"SQNR dB": proof.sqnr_db, proof.metric or "score": proof.score}
        lines += [f"{name}: {short(value)}" for name, value in figures.items() if value is not None]
    lines += by_gate_only(chip)
    lines += [f"warning: {text}" for text in proof.warnings] if proof else []
    case = Case(chip.chip, seconds=float(chip.seconds), said="\n".join(lines))
    if error:
        result = "failure" if error.kind in ("AccuracyError", "Unsupported") else "error"
        text = [*filter(None, (error.hint,)), *map(str, error.findings or ()), *(error.last_lines or ())]
        return replace(case, result=result, message=error.message, kind=error.kind, text="\n".join(text))
    if chip.verdict:
        elsewhere = chip.receipt.elsewhere if chip.receipt else ()
        text = [f"{op.kind} {op.name}: {op.reason}" for op in elsewhere]
        return replace(case, result="failure", message=chip.verdict, kind=chip.status, text="\n".join(text))
    if not proof:
        return replace(case, result="skipped", message=f"built, not executed: {chip.not_verified or '?'}", said="")
    return case


SWEPT = {
    "ok": "",
    "not executed": "skipped",
    "fallback": "failure",
    "AccuracyError": "failure",
    "Unsupported": "failure",
}


def _suite(record: Record) -> tuple[str, list[Case]]:
    """Returns the name of a record's suite, and its verdicts."""
    if record.kind == "build":
        return record.request.source.model, [_chip(chip) for chip in record.chips]
    from anynpu.report import measurements

    if record.kind == "bench":
        verdict, mood = measurements.bench_verdict(record)
        result, text = "error" if mood == "bad" else "", "\n".join(record.warnings or ())
        case = Case(record.scenario or "bench", result, verdict, text=text, said=verdict)
        return record.executed or record.board or "bench", [case]
    if record.kind == "compare":
        verdict, mood = measurements.compare_verdict(record)
        a, b = (row["name"] for row in measurements.side_rows(record))
        broken = record.partial or record.failure
        result = "error" if broken else {"bad": "failure", "warn": "skipped"}.get(mood, "")
        case = Case("verdict", result, verdict, record.verdict or "", "\n".join(record.notes), said=verdict)
        return f"{b} against {a}", [case]
    if record.kind == "sweep":
        return "sweep", [
            Case(
                " ".join(part for part in (row.model, row.chip, row.option_text) if part),
                SWEPT.get(row.status, "error"),
                row.error or row.status,
                row.status,
                seconds=float(row.seconds or 0.0),
            )
            for row in record.rows
        ]
    verdict, mood = measurements.eval_verdict(record)
    case = Case(record.metric or "score", "error" if mood == "none" else "", "there is no score", said=verdict)
    return record.executed or "eval", [case]
