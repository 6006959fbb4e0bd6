"""The records that no report is made of have a published form too, and what the verbs print keeps to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from anynpu.api.result import Checks
from anynpu.cli.doctor import doctor
from anynpu.cli.regress import regress
from anynpu.cli.report import report
from anynpu.errors import Finding, Unsupported
from anynpu.pipeline.check import ChipCheck
from anynpu.schema import to_dict

jsonschema = pytest.importorskip("jsonschema", reason="pip install jsonschema")


def require_form(record: Any, kind: str) -> None:
    """Fails unless the record keeps to the schema that `report --schema` prints, and a broken one does not."""
    form = json.loads(CliRunner().invoke(report, ["--schema", kind]).output)
    jsonschema.Draft202012Validator.check_schema(form)
    jsonschema.validate(record, form)
    for name in form["required"]:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**record, name: {}}, form)


def test_a_check() -> None:
    found = ChipCheck("hxwe2", (Finding("fit", "too large", "conv1"), Finding("batch", "is 2")))
    record = to_dict(Checks((found, ChipCheck("cpu", error=Unsupported("no such operator")))).record)
    assert record == {
        "schema_version": 1,
        "kind": "check",
        "chips": [
            {
                "chip": "hxwe2",
                "findings": [
                    {"rule": "fit", "message": "too large", "where": "conv1"},
                    {"rule": "batch", "message": "is 2"},
                ],
                "error": None,
            },
            {"chip": "cpu", "findings": [], "error": "no such operator"},
        ],
    }
    require_form(record, "check")


def test_a_machine(tmp_path: Path) -> None:
    record = json.loads(CliRunner().invoke(doctor, ["--root", str(tmp_path), "-f", "json"]).output)
    assert record["kind"] == "doctor" and record["checks"] and record["devices"] == []
    require_form(record, "doctor")


def test_a_ledger_and_its_changes(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    for version, score in (("3.12.0", 0.9), ("4.0.0", 0.7)):
        record = {
            "kind": "eval",
            "at": f"2026-01-0{version[0]}T00:00:00+00:00",
            "fingerprint": "f" * 64,
            "chip": "ethos-u55-128",
            "tools": {"ethos-u-vela": version},
            "metrics": {"top1": {"value": score, "low": 0.6, "high": 1.0}},
        }
        (tmp_path / f"{version}.json").write_text(json.dumps(record))
        added = ["--add", str(tmp_path / f"{version}.json"), "--ledger", str(ledger), "-f", "json"]
        answer = CliRunner().invoke(regress, added, standalone_mode=False)
    shown = json.loads(answer.stdout)
    assert answer.return_value == 1 and shown["verdict"] == "worse"
    assert [(each["before"], each["after"], each["tools"]) for each in shown["changes"]] == [
        (0.9, 0.7, {"ethos-u-vela": ["3.12.0", "4.0.0"]})
    ]
    require_form(shown, "regress")
    for line in ledger.read_text().splitlines():
        require_form(json.loads(line), "ledger")
