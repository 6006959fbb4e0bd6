"""Records out of JSON: the published JSON Schema of every kind, and the one place that reads a record."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anynpu.errors import ConfigError, IntegrityError
from anynpu.records.bench import BenchRecord
from anynpu.records.bisect import BisectRecord
from anynpu.records.build import BuildRecord
from anynpu.records.check import CheckRecord
from anynpu.records.compare import CompareRecord
from anynpu.records.doctor import DoctorRecord
from anynpu.records.eval import EvalRecord
from anynpu.records.faults import faults
from anynpu.records.ledger import RegressRecord, Row
from anynpu.records.sweep import SweepRecord
from anynpu.schema import JsonObject, from_json, json_schema, near, read_json
from anynpu.seals import check_seal

Record = BuildRecord | BenchRecord | CompareRecord | SweepRecord | EvalRecord
KINDS: Mapping[str, type[Record]] = {
    "build": BuildRecord,
    "bench": BenchRecord,
    "compare": CompareRecord,
    "sweep": SweepRecord,
    "eval": EvalRecord,
}
FORMS: Mapping[str, type[Any]] = {
    **KINDS,
    "check": CheckRecord,
    "doctor": DoctorRecord,
    "bisect": BisectRecord,
    "regress": RegressRecord,
    "ledger": Row,
}
"""The kinds whose JSON Schema is published; reports are made of the first five. A line of a ledger is a row."""
NEWEST = {"build": 1, "bench": 2, "compare": 1, "sweep": 1, "eval": 1}
"""The version of every kind that this program writes; older ones are read too."""
HINT = "a record is what -f json prints, or report.json of a build's output folder; kinds: " + ", ".join(KINDS)


@functools.cache
def published(kind: str) -> JsonObject:
    """Returns the JSON Schema of a kind of record."""
    if kind not in FORMS:
        raise ConfigError(f"no such kind of record: {kind}{near(kind, FORMS)}", "known: " + ", ".join(FORMS))
    title = (FORMS[kind].__doc__ or "").removesuffix(".")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"anynpu/{kind}", "title": title}
    return {**head, **json_schema(FORMS[kind])}


def read(path: Path) -> tuple[Record, str]:
    """Returns the record in a file, of a kind that reports are made of, and a note if it has no seal."""
    if path.is_dir() and not (path / "report.json").is_file():
        raise ConfigError(f"{path}: no report.json in it", "name a record, or the output folder of a build")
    try:
        data = read_json(path / "report.json" if path.is_dir() else path)
    except IntegrityError as error:
        raise IntegrityError(error.message, HINT) from None
    return load(data, str(path)), check_seal(data, str(path))


def load(data: Any, place: str) -> Record:
    """Returns JSON as the record it is; ConfigError names the first thing that is not as it should be."""
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        called = f"a record of kind {kind!r}" if isinstance(kind, str) else "not a record of anynpu"
        raise ConfigError(f"{place}: {called}; no report is made of it", HINT)
    version = data.get("schema_version")
    if isinstance(version, int) and version > NEWEST[kind]:
        raise ConfigError(
            f"{place}: a {kind} record of version {version}, this anynpu reads {NEWEST[kind]} and older",
            "use the anynpu that wrote it, or a newer one",
        )
    for where, what in faults(data, published(kind)):
        raise ConfigError(
            f"{place}: {where or 'the record'}: {what}", f"`anynpu report --schema {kind}` shows the form"
        )
    return from_json(KINDS[kind], data)
