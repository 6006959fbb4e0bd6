"""Any record as JUnit XML, which continuous-integration servers read: one test case a verdict."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from xml.etree import ElementTree

from anynpu.errors import visible
from anynpu.report import facts
from anynpu.report.figures import by_gate_only

Record = Mapping[str, Any]
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


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
    name, cases = SUITES[record["kind"]](record)
    counts = {result: sum(case.result == result for case in cases) for result in ("failure", "error", "skipped")}
    figures = {
        "tests": str(len(cases)),
        "failures": str(counts["failure"]),
        "errors": str(counts["error"]),
        "skipped": str(counts["skipped"]),
        "time": f"{sum(case.seconds for case in cases):.3f}",
    }
    suites = ElementTree.Element("testsuites", figures)
    about = {"name": _clean(name), **figures, **({"timestamp": _clean(record["at"])} if record.get("at") else {})}
    suite = ElementTree.SubElement(suites, "testsuite", about)
    changed = facts.gate_lines(record)
    if changed:
        properties = ElementTree.SubElement(suite, "properties")
        for line in changed:
            ElementTree.SubElement(properties, "property", {"name": "gate", "value": _clean(line)})
    for case in cases:
        _add(suite, _clean(name), replace(case, said="\n".join(filter(None, (case.said, *changed)))))
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _add(suite: ElementTree.Element, name: str, case: Case) -> None:
    attributes = {"classname": name, "name": _clean(case.name), "time": f"{case.seconds:.3f}"}
    item = ElementTree.SubElement(suite, "testcase", attributes)
    if case.result:
        told = {"message": _clean(case.message), **({"type": _clean(case.kind)} if case.kind else {})}
        ElementTree.SubElement(item, case.result, told).text = _clean(case.text) or None
    if case.said:
        ElementTree.SubElement(item, "system-out").text = _clean(case.said)


def _clean(text: object) -> str:
    """Returns text in which what XML cannot hold, and what a terminal would obey, is written as an escape."""
    return NOT_XML.sub(lambda match: f"\\u{ord(match[0]):04x}", visible(str(text)))


def _build(record: Record) -> tuple[str, list[Case]]:
    model = f"{record['request']['source']['model']}"
    return model, [_chip(chip) for chip in record["chips"]]


def _chip(chip: Record) -> Case:
    error, proof = chip["error"], chip["verification"] or {}
    figures = {"SQNR dB": proof.get("sqnr_db"), proof.get("metric") or "score": proof.get("score")}
    told = [f"{name}: {facts.short(value)}" for name, value in figures.items() if value is not None]
    warnings = [f"warning: {text}" for text in proof.get("warnings") or ()]
    said = "\n".join([*told, *by_gate_only(chip), *warnings])
    name, seconds = chip["chip"], float(chip["seconds"])
    if error:
        result = "failure" if error["kind"] in ("AccuracyError", "Unsupported") else "error"
        return Case(name, result, error["message"], error["kind"], _lines(error), seconds, said)
    if chip["verdict"]:
        elsewhere = (chip["receipt"] or {}).get("elsewhere") or ()
        text = "\n".join(f"{op['kind']} {op['name']}: {op.get('reason') or ''}" for op in elsewhere)
        return Case(name, "failure", chip["verdict"], str(chip["status"]), text, seconds, said)
    if not proof:
        return Case(name, "skipped", f"built, not executed: {chip.get('not_verified') or '?'}", seconds=seconds)
    return Case(name, seconds=seconds, said=said)


def _lines(error: Record) -> str:
    findings = [f"{f.get('where') or ''}: {f['message']}".removeprefix(": ") for f in error.get("findings") or ()]
    return "\n".join([*([error["hint"]] if error.get("hint") else ()), *findings, *(error.get("last_lines") or ())])


def _bench(record: Record) -> tuple[str, list[Case]]:
    said, mood = facts.bench_verdict(record)
    name = str(record.get("executed") or record.get("board") or "bench")
    text = "\n".join(record.get("warnings") or ())
    return name, [
        Case(str(record.get("scenario") or "bench"), "error" if mood == "bad" else "", said, "", text, 0.0, said)
    ]


def _compare(record: Record) -> tuple[str, list[Case]]:
    said, mood = facts.compare_verdict(record)
    a, b = (row["name"] for row in facts.side_rows(record))
    broken = bool(record.get("partial") or record.get("failure"))
    result = "error" if broken else {"bad": "failure", "warn": "skipped"}.get(mood, "")
    text = "\n".join(record.get("notes") or ())
    return f"{b} against {a}", [Case("verdict", result, said, str(record.get("verdict") or ""), text, 0.0, said)]


def _sweep(record: Record) -> tuple[str, list[Case]]:
    return "sweep", [_sweep_row(row) for row in record["rows"]]


def _sweep_row(row: Record) -> Case:
    options = " ".join(f"{name}={value}" for name, value in (row.get("options") or {}).items())
    name = " ".join(part for part in (row["model"], row["chip"], options) if part)
    result = {
        "ok": "",
        "not executed": "skipped",
        "fallback": "failure",
        "AccuracyError": "failure",
        "Unsupported": "failure",
    }
    seconds = row.get("seconds")
    found = result.get(row["status"], "error")
    return Case(name, found, row.get("error") or row["status"], row["status"], "", float(seconds or 0.0))


def _eval(record: Record) -> tuple[str, list[Case]]:
    said, mood = facts.eval_verdict(record)
    name = str(record.get("executed") or record.get("model") or "eval")
    metric = str(record.get("metric") or "score")
    return name, [Case(metric, "error" if mood == "none" else "", "there is no score", said=said)]


SUITES: Mapping[str, Callable[[Record], tuple[str, list[Case]]]] = {
    "build": _build,
    "bench": _bench,
    "compare": _compare,
    "sweep": _sweep,
    "eval": _eval,
}
