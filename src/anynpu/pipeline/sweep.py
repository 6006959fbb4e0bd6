"""Models x chips x options: every combination built and proved, side by side or on a cluster, and the best of them.

The record of a sweep (`sweep.json`):

    kind "sweep", schema_version, anynpu, at, axes (what is compared, and which way is better), gate, notes,
    exit_status,
    rows: one for each combination, with model, chip, options, status, error, metric, score, score_float, sqnr_db,
          accuracy (what the front is drawn by), latency_ms and latency_source (an estimate), sram_bytes, flash_bytes,
          dram_bytes, on_npu, seconds, fingerprint, digest, group (rows of one group are comparable), on_front, report
"""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

from anynpu import schema, tool
from anynpu.errors import AnyNpuError, ConfigError, IntegrityError, ToolMissing
from anynpu.files import write_whole, writing
from anynpu.measure.threshold import sentences
from anynpu.pipeline.build import build
from anynpu.pipeline.preview import Silent
from anynpu.pipeline.record import record
from anynpu.pipeline.request import Request
from anynpu.quantize.calibration import source_digest
from anynpu.records.parts import as_json, error_record, own_version
from anynpu.source.load import identify
from anynpu.store import Store

SCHEMA_VERSION = 1
CELLS, RECORD = "cells", "sweep.json"
CELL_S = 6 * 3600.0
AXES: Mapping[str, str] = {"accuracy": "higher", "latency_ms": "lower", "memory_bytes": "lower"}


@dataclass(frozen=True)
class Cell:
    """One combination: a request for one model on one chip, with one value for each option."""

    request: Request

    @property
    def chip(self) -> str:
        return self.request.chips[0]

    @functools.cached_property
    def address(self) -> str:
        """The name of the result: the same while the model's files, the data, the options and this program are."""
        files = [source_digest(source) for source in (self.request.data, self.request.test) if source]
        asked = replace(self.request, origins={})  # a flag and a file that say the same ask for the same
        what = [schema.to_dict(asked), identify(self.request.source), files, own_version()]
        return schema.digest(what)[:16]


@dataclass(frozen=True)
class Sweep:
    """What is to be built: the first request's settings with each model, chip and combination of options."""

    base: Request
    models: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def cells(self) -> tuple[Cell, ...]:
        """Returns every combination once, in the order given."""
        names = list(self.options)
        found = {}
        for model, chip in itertools.product(self.models, self.base.chips):
            for values in itertools.product(*(self.options[name] for name in names)):
                source = replace(self.base.source, model=model)
                options = dict(zip(names, values, strict=True))
                cell = Cell(replace(self.base, source=source, chips=(chip,), options=options))
                found[schema.digest(schema.to_dict(cell.request))] = cell
        return tuple(found.values())


def build_cell(request: dict[str, Any], cache: str) -> dict[str, Any]:
    """Returns the record of one build, or the error that stopped it (runs in a child process or on a cluster)."""
    wanted = schema.from_dict(Request, request, "sweep")
    try:
        return record(build(wanted, Store(Path(cache) if cache else None), Silent()))
    except AnyNpuError as error:
        return {"kind": "build", "error": error_record(error)}


Runner = Callable[[Sequence[Cell], Store], Iterator[tuple[Cell, dict[str, Any]]]]


def local(jobs: int) -> Runner:
    """Returns a runner that builds in `jobs` processes of this machine."""

    def one(cell: Cell, store: Store) -> tuple[Cell, dict[str, Any]]:
        with tempfile.TemporaryDirectory(prefix="anynpu-sweep-") as scratch:
            folder = Path(scratch)
            arguments = {"request": schema.to_dict(cell.request), "cache": str(store.cache)}
            try:
                answer = tool.call(
                    "anynpu.pipeline.sweep:build_cell",
                    arguments,
                    scratch=folder,
                    log=folder / "log",
                    timeout_s=CELL_S,
                )
            except AnyNpuError as error:
                # Its log goes with the scratch folder; what it said at the end is in the record.
                answer = {"kind": "build", "error": {**error_record(error), "log": ""}}
            return cell, answer

    def run(cells: Sequence[Cell], store: Store) -> Iterator[tuple[Cell, dict[str, Any]]]:
        # Threads that wait for processes: an interrupt ends this process, and a child ends when its parent does.
        with ThreadPool(max(1, min(jobs, len(cells)))) as pool:
            yield from pool.imap_unordered(lambda cell: one(cell, store), cells)

    return run


def on_cluster(address: str) -> Runner:
    """Returns a runner that builds on the workers of the Dask cluster at `address`, each with its own store."""

    def run(cells: Sequence[Cell], store: Store) -> Iterator[tuple[Cell, dict[str, Any]]]:
        try:
            from distributed import Client, as_completed
        except ImportError as error:
            raise ToolMissing("Dask is not installed", "pip install 'anynpu[cluster]'") from error
        try:
            client = Client(address, timeout=20, set_as_default=False)  # type: ignore[no-untyped-call]
        except (OSError, ValueError) as error:
            raise ConfigError(f"--cluster {address}: no Dask scheduler answers there ({error})") from error
        with client, client.as_current():
            waiting = {
                client.submit(build_cell, schema.to_dict(cell.request), "", pure=False, retries=1): cell
                for cell in cells
            }
            for done in as_completed(waiting):  # type: ignore[no-untyped-call]
                failure = done.exception()
                if failure is None:
                    yield waiting[done], done.result()
                else:
                    told = AnyNpuError(f"the worker failed: {type(failure).__name__}: {failure}")
                    yield waiting[done], {"kind": "build", "error": error_record(told)}

    return run


def sweep(
    wanted: Sweep, out: Path, store: Store, runner: Runner, heard: Callable[[dict[str, Any], int, int], None]
) -> dict[str, Any]:
    """Builds every combination that `out` does not hold yet and returns the record of all; an interrupted sweep goes on
    where it stopped. `heard` gets each row, how many are done, and how many there are."""
    cells = wanted.cells()
    folder = out / CELLS
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    done = {cell.address: kept for cell in cells if (kept := _kept(folder, cell)) is not None}
    missing = [cell for cell in cells if cell.address not in done]
    for cell, answer in runner(missing, store) if missing else ():
        _keep(folder, cell, answer)
        done[cell.address] = answer
        heard(row(cell, answer), len(done), len(cells))
    rows = with_front([row(cell, done[cell.address]) for cell in cells])
    data = {
        "schema_version": SCHEMA_VERSION,
        "kind": "sweep",
        "anynpu": own_version(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "axes": dict(AXES),
        "gate": schema.to_dict(wanted.base.thresholds, whole=True),
        "rows": rows,
        "notes": [*sentences(wanted.base.thresholds), *_notes(rows)],
        "exit_status": next((r["exit_status"] for r in rows if r["exit_status"]), 0),
    }
    found = schema.sealed(data)
    write_whole(out / RECORD, as_json(found))
    return found


def _kept(folder: Path, cell: Cell) -> dict[str, Any] | None:
    """Returns the result of an earlier run; one that an error ended is tried again, a tool may be there now."""
    path = folder / f"{cell.address}.json"
    if not path.is_file():
        return None
    try:
        answer: dict[str, Any] = schema.parse_json(path.read_text("utf-8"))
        schema.check_seal(answer, str(path))
        failed = "error" in answer or any(chip["error"] for chip in answer["chips"])
    except IntegrityError as error:
        raise IntegrityError(error.message, "remove it to build it again") from None
    except (ValueError, RecursionError, KeyError, TypeError, OSError) as error:
        raise IntegrityError(f"{path}: not a result of a sweep ({error})", "remove it to build it again") from error
    return None if failed else answer


def _keep(folder: Path, cell: Cell, answer: Mapping[str, Any]) -> None:
    write_whole(folder / f"{cell.address}.json", as_json(answer))


def row(cell: Cell, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Returns one line of the sweep from the record of its build."""
    chip = answer["chips"][0] if answer.get("chips") else {}
    error = answer.get("error") or chip.get("error")
    proof, estimates, receipt = (chip.get(name) or {} for name in ("verification", "estimates", "receipt"))
    score = proof.get("score")
    return {
        "model": cell.request.source.model,
        "chip": cell.chip,
        "options": dict(cell.request.options),
        "status": error["kind"] if error else chip["status"],
        "error": error["message"] if error else "",
        "exit_status": error["exit_status"] if error else chip["exit_status"],
        "metric": proof.get("metric", ""),
        "score": score,
        "score_float": proof.get("score_float"),
        "sqnr_db": proof.get("sqnr_db"),
        "accuracy": None if error else (proof.get("sqnr_db") if score is None else score),
        "latency_ms": estimates.get("latency_ms"),
        "latency_source": estimates.get("source", "") if estimates.get("latency_ms") is not None else "",
        "sram_bytes": estimates.get("sram_bytes") or proof.get("arena_bytes"),
        "flash_bytes": estimates.get("flash_bytes"),
        "dram_bytes": chip["chain"][-1].get("details", {}).get("dram_bytes") if chip.get("chain") else None,
        "on_npu": receipt.get("share"),
        "seconds": chip.get("seconds"),
        "fingerprint": (answer.get("model") or {}).get("fingerprint", ""),
        "digest": chip["chain"][-1]["digest"] if chip.get("chain") else "",
        "group": _group(answer, proof),
        "report": f"{CELLS}/{cell.address}.json",
    }


def _group(answer: Mapping[str, Any], proof: Mapping[str, Any]) -> str:
    """Returns what makes accuracies comparable: the same metric on the same samples, or else the same network."""
    if proof.get("score") is None:
        return str((answer.get("model") or {}).get("fingerprint", ""))[:12]
    data = (answer.get("data") or {}).get("test") or {}
    return f"{proof['metric']} on {data.get('content', '')[:12]}"


def with_front(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the rows with `on_front`: nothing of the same group is at least as good in all and better in one."""
    told = [{**r, "on_front": False} for r in rows]
    for mine in told:
        rivals = [r for r in told if r["group"] == mine["group"] and r["accuracy"] is not None]
        mine["on_front"] = mine["accuracy"] is not None and not any(_beats(_point(r), _point(mine)) for r in rivals)
    return told


def _point(row: Mapping[str, Any]) -> tuple[float, float, float]:
    """Returns a row as costs; a figure that nobody knows is the worst there is: it never makes a row look good."""
    known = [row[name] for name in ("sram_bytes", "flash_bytes", "dram_bytes") if row[name]]
    # Working memory and a place for the weights, or it is not the whole.
    whole = row["sram_bytes"] is not None and (row["flash_bytes"] or row["dram_bytes"])
    memory = float(sum(known)) if whole else float("inf")
    latency = float("inf") if row["latency_ms"] is None else float(row["latency_ms"])
    return (-float(row["accuracy"]), latency, memory)


def _beats(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True)) and a != b


def _notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    notes = []
    good = [r for r in rows if r["accuracy"] is not None]
    if any(r["score"] is None for r in good):
        notes.append("accuracy is the SQNR against the float model (dB) where there are no labels to score with")
    if any(r["latency_ms"] is not None for r in good):
        sources = sorted({r["latency_source"] for r in good if r["latency_source"]})
        notes.append(f"latency is an estimate, not a measurement ({', '.join(sources)})")
    if any(r["latency_ms"] is None for r in good):
        notes.append("a row without a latency estimate counts as the slowest when the front is drawn")
    if len({r["group"] for r in good}) > 1:
        notes.append("each group (one metric on one set of samples) has a front of its own")
    return notes
