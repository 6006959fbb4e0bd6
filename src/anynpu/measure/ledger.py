"""A ledger of results: one JSON line a figure, only ever appended, safe with several writers and a torn last line."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from anynpu import schema
from anynpu.artifact import Artifact
from anynpu.errors import AnyNpuError, ConfigError, IntegrityError
from anynpu.files import writing
from anynpu.measure.stats import TIME_UNITS, quantity
from anynpu.records.ledger import Row
from anynpu.records.parts import now
from anynpu.seals import SEAL, check_seal

MOST_SAMPLES = 50_000
"""Beyond this many samples a row keeps their digest and their median only."""
ESTIMATES = {"latency_ms": "ms", "cycles": "cycles", "sram_bytes": "B", "flash_bytes": "B"}
SIDES = ("a", "b")


def default_path() -> Path:
    """Returns the ledger: ANYNPU_LEDGER, or ledger.jsonl under the user's data folder."""
    if chosen := os.environ.get("ANYNPU_LEDGER"):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_DATA_HOME") or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else "")
    return Path(base or Path.home() / ".local" / "share") / "anynpu" / "ledger.jsonl"


def append(path: Path, rows: Iterable[Row]) -> int:
    """Appends rows of records that are not in the ledger yet, in one write, and returns how many those are."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", poll_interval=0.005):
            earlier = read(path).rows if path.exists() else []
            known = {row.record for row in earlier if row.record}
            after = earlier[-1].seal if earlier else ""
            fresh = []
            for row in (row for row in rows if row.record not in known):
                row = replace(row, after=after)
                row = schema.from_dict(Row, json.loads(schema.canonical_json(row)), "the ledger")  # as it will be read
                fresh.append(replace(row, seal=row.digest))
                after = fresh[-1].seal
            text = "".join(schema.canonical_json(row) + "\n" for row in fresh)
            with path.open("a+b", buffering=0) as stream:
                if end := stream.seek(0, os.SEEK_END):
                    stream.seek(-1, os.SEEK_END)
                    # A writer that was killed left a torn line: it stays, alone on its line.
                    text = text if stream.read(1) == b"\n" else "\n" + text
                try:
                    left = text.encode()
                    while left:
                        left = left[stream.write(left) :]
                    os.fsync(stream.fileno())
                except OSError:
                    os.ftruncate(stream.fileno(), end)  # a full disk: the ledger is as it was
                    raise
    return len(fresh)


@dataclass(frozen=True)
class Ledger:
    """The rows of a ledger, the oldest first, and what is wrong with the file."""

    rows: list[Row]
    damaged: int = 0
    """Lines that are not rows: torn by a writer that was killed. They are left out."""
    gaps: int = 0
    """Rows whose predecessor is not there any more."""
    unsealed: int = 0
    """Rows of a version that did not seal them."""


def read(path: Path) -> Ledger:
    """Returns the rows of a ledger; a row that has changed since it was added raises."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such ledger", "`anynpu regress --add report.json` starts one") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    rows: list[Row] = []
    damaged, gaps = 0, 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = schema.from_dict(Row, schema.parse_json(line.decode("utf-8")), str(path))
        except (ValueError, RecursionError, AnyNpuError):
            damaged += 1
            continue
        if row.seal and row.seal != row.digest:
            hint = "restore the line, or take it out and add its record again"
            raise IntegrityError(f"{path}: line {number}: has changed since it was added", hint)
        gaps += bool(row.seal) and row.after != (rows[-1].seal if rows else "")
        rows.append(row)
    if damaged and not rows:
        raise IntegrityError(f"{path}: is not a ledger: none of its lines is a row")
    return Ledger(rows, damaged, gaps, sum(not row.seal for row in rows))


def rows_of(record: Any, place: str) -> list[Row]:
    """Returns the rows of a record of any kind that holds results; what holds none raises."""
    if not isinstance(record, Mapping) or "kind" not in record:
        raise ConfigError(f"{place}: not a record of anynpu", "`-f json` of build, bench, compare and eval prints one")
    check_seal(record, place)
    make = READERS.get(str(record["kind"]))
    if make is None:
        raise ConfigError(
            f"{place}: a record of kind {record['kind']} holds no results", "known: " + ", ".join(READERS)
        )
    if record.get("partial") or record.get("complete") is False:
        raise ConfigError(f"{place}: this measurement broke off; the ledger keeps whole ones only")
    version, at = str(record.get("anynpu") or ""), str(record.get("at") or now())
    try:
        digest = schema.digest({k: v for k, v in record.items() if k != SEAL})
    except ValueError:
        raise ConfigError(f"{place}: the record holds NaN or infinite values") from None
    try:
        rows = [replace(row, anynpu=version, at=at, record=digest) for row in make(record)]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise IntegrityError(f"{place}: a {record['kind']} record without what it should hold ({error})") from None
    for row in rows:
        if not isinstance(row.fingerprint, str) or not row.fingerprint:
            raise ConfigError(f"{place}: names no network (fingerprint), so nothing can be compared with it")
        if not math.isfinite(row.value):
            raise ConfigError(f"{place}: {row.metric} is not a finite number")
    if not rows:
        raise ConfigError(f"{place}: there is no result in this record")
    return rows


def _of_build(record: Mapping[str, Any]) -> Iterator[Row]:
    for chip in record["chips"]:
        if not chip.get("chain"):
            continue
        steps = [link["step"] for link in chip["chain"]]
        base = Row(
            metric="",
            value=math.nan,
            unit="",
            fingerprint=record["model"]["fingerprint"],
            chip=chip["chip"],
            tools={k: v for step in steps for k, v in step["tools"].items() if k != "anynpu"},
            options={k: v for step in steps for k, v in (step.get("options") or {}).items()},
        )
        estimates = chip.get("estimates") or {}
        for name, unit in ESTIMATES.items():
            if estimates.get(name) is not None:
                yield replace(base, metric=f"estimated {name}", value=float(estimates[name]), unit=unit)
        checked = chip.get("verification") or {}
        if checked.get("sqnr_db") is not None:
            yield replace(base, metric="SQNR", value=checked["sqnr_db"], unit="dB", better="higher")
        if checked.get("score") is not None:
            yield replace(base, metric=checked["metric"], value=checked["score"], better="higher")


def launches_of(record: Mapping[str, Any]) -> tuple[list[list[float]], str]:
    """Returns the samples of a bench record by launch, and their unit."""
    latency = record.get("latency") or record.get("counts") or {}
    samples = latency.get("samples")
    if samples is None:
        stages = record.get("stages") or {}
        stage = stages.get("inference") or (next(iter(stages.values())) if len(stages) == 1 else {})
        samples = stage.get("samples")
    launches = latency.get("launches") or [samples or []]
    if not all(isinstance(launch, list) and launch for launch in launches):
        raise ConfigError("a bench record without samples holds nothing to compare")
    times = [value for launch in launches for value in launch]
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in times)
    if not numbers or not all(math.isfinite(value) and value > 0 for value in times):
        raise ConfigError("the samples of a bench have to be positive, finite numbers")
    return launches, str(latency.get("unit") or record.get("unit") or "ms")


def _timed(row: Row, launches: list[list[float]], host: str) -> Row:
    """Returns a row of times: the median over all samples, and the samples unless there are too many.

    A time is of the host that the record names, or else of this one; a count of instructions is of no host.
    """
    pooled = sorted(value for launch in launches for value in launch)
    return replace(
        row,
        value=float(pooled[(len(pooled) + 1) // 2 - 1]),
        samples_digest=schema.digest(launches),
        launches=tuple(map(tuple, launches)) if len(pooled) <= MOST_SAMPLES else (),
        host=(host or f"{platform.node()} {platform.machine()}") if row.unit in TIME_UNITS else "",
    )


def _of_bench(record: Mapping[str, Any]) -> Iterator[Row]:
    record = with_artifact(record) if record.get("path") else record
    launches, unit = launches_of(record)
    conditions = ", ".join(str(record[name]) for name in ("scenario", "scope") if record.get(name))
    row = Row(
        metric=f"{quantity(unit)} ({conditions})" if conditions else quantity(unit),
        value=math.nan,
        unit=unit,
        fingerprint=record["fingerprint"],
        chip=str(record.get("chip") or record.get("board") or record["executed"]),
        tools=_tools(record),
        options=record.get("options") or {},
    )
    yield _timed(row, launches, _host(record))


def _host(record: Mapping[str, Any]) -> str:
    return str((record.get("host") or {}).get("name") or "")


def _tools(holder: Mapping[str, Any]) -> dict[str, str]:
    return {k: str(v) for k, v in (holder.get("tools") or {}).items() if k != "anynpu"}


def _of_compare(record: Mapping[str, Any]) -> Iterator[Row]:
    for name in SIDES:
        side = record[name]
        base = Row(
            metric="",
            value=math.nan,
            unit="",
            fingerprint=side["fingerprint"],
            chip=side["chip"] or side["executed"],
            tools=_tools(side),
            options=side.get("options") or {},
        )
        if timed := record.get("latency") or record.get("counts"):
            row = replace(base, metric=quantity(timed["unit"]), unit=timed["unit"])
            yield _timed(row, timed["launches"][name], _host(record))
        if scored := record.get("accuracy"):
            better = "higher" if scored["higher_is_better"] else "lower"
            yield replace(base, metric=scored["metric"], value=scored[name], better=better)


def _of_eval(record: Mapping[str, Any]) -> Iterator[Row]:
    figures = record.get("metrics") or {record["metric"]: record.get("value", record.get("score"))}
    for name, figure in figures.items():
        value = figure["value"] if isinstance(figure, Mapping) else figure
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield Row(
                metric=name,
                value=float(value),
                unit="",
                fingerprint=record["fingerprint"],
                chip=record.get("chip") or record.get("executed", ""),
                tools=_tools(record),
                options=record.get("options") or {},
                better="lower" if name in ("mse", "mae", "rmse") else "higher",
            )


READERS: Mapping[str, Callable[[Mapping[str, Any]], Iterator[Row]]] = {
    "build": _of_build,
    "bench": _of_bench,
    "compare": _of_compare,
    "eval": _of_eval,
}


def with_artifact(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a record with what the manifest of its artifact adds (chip, tools, options), if that is still there."""
    added: dict[str, object] = {}
    with suppress(AnyNpuError, TypeError):
        artifact = Artifact.open(Path(record["path"]))
        step = artifact.manifest.step
        if step is not None and artifact.digest == record.get("artifact"):
            added = {"chip": step.platform or step.name, "tools": dict(step.tools), "options": dict(step.options)}
    return {**added, **record}
