"""Models x chips x options: every combination built and proved, side by side or on a cluster, and the best of them."""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from anynpu.records.build import BuildRecord
from anynpu.records.load import load
from anynpu.records.parts import as_json, error_form, now, own_version
from anynpu.records.shared import ErrorForm
from anynpu.records.sweep import SearchForm, SweepRecord, SweepRow
from anynpu.seals import check_seal, with_seal
from anynpu.source.load import identify
from anynpu.store import Store

SCHEMA_VERSION = 1
CELLS, RECORD = "cells", "sweep.json"
CELL_S = 6 * 3600.0
AXES: Mapping[str, str] = {
    "accuracy": "higher",
    "latency_ms": "lower",
    "sram_bytes": "lower",
    "storage_bytes": "lower",
}


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
        cells = {}
        for model, chip in itertools.product(self.models, self.base.chips):
            for values in itertools.product(*(self.options[name] for name in names)):
                source = replace(self.base.source, model=model)
                options = dict(zip(names, values, strict=True))
                cell = Cell(replace(self.base, source=source, chips=(chip,), options=options))
                cells[schema.digest(schema.to_dict(cell.request))] = cell
        return tuple(cells.values())


Answer = BuildRecord | ErrorForm
"""What a cell came to: the record of its build, or the error that stopped it."""
Runner = Callable[[Sequence[Cell], Store], Iterator[tuple[Cell, Answer]]]


def build_cell(request: object, cache: str) -> object:
    """Returns what one build came to, as JSON (runs in a child process or on a cluster)."""
    # A row of the table stands for its own options, and for no others.
    wanted = replace(schema.from_dict(Request, request, "sweep"), repair=False)
    try:
        return plain(record(build(wanted, Store(Path(cache) if cache else None), Silent())))
    except AnyNpuError as error:
        return plain(error_form(error))


def plain(answer: Answer) -> object:
    """Returns an answer as JSON, which processes and files hold."""
    data = schema.to_dict(answer)
    return data if isinstance(answer, BuildRecord) else {"kind": "build", "error": data}


def _answer(data: Any, place: str) -> Answer:
    """Returns JSON as the answer it is."""
    if isinstance(data, dict) and "error" in data:
        return schema.from_json(ErrorForm, data["error"])
    answer = load(data, place)
    if not isinstance(answer, BuildRecord):
        raise IntegrityError(f"{place}: not a result of a sweep (a record of kind {answer.kind})")
    return answer


def local(jobs: int) -> Runner:
    """Returns a runner that builds in `jobs` processes of this machine."""

    def one(cell: Cell, store: Store) -> tuple[Cell, Answer]:
        with tempfile.TemporaryDirectory(prefix="anynpu-sweep-") as scratch:
            folder = Path(scratch)
            arguments = {"request": schema.to_dict(cell.request), "cache": str(store.cache)}
            try:
                data = tool.call(
                    "anynpu.pipeline.sweep:build_cell",
                    arguments,
                    scratch=folder,
                    log=folder / "log",
                    timeout_s=CELL_S,
                )
                return cell, _answer(data, "a build of the sweep")
            except AnyNpuError as error:
                # Its log goes with the scratch folder; what it said at the end is in the record.
                form = error_form(error)
                return cell, replace(form, rest={**form.rest, "log": ""})

    def run(cells: Sequence[Cell], store: Store) -> Iterator[tuple[Cell, Answer]]:
        # Threads that wait for processes: an interrupt ends this process, and a child ends when its parent does.
        with ThreadPool(max(1, min(jobs, len(cells)))) as pool:
            yield from pool.imap_unordered(lambda cell: one(cell, store), cells)

    return run


def on_cluster(address: str) -> Runner:
    """Returns a runner that builds on the workers of the Dask cluster at `address`, each with its own store."""

    def run(cells: Sequence[Cell], store: Store) -> Iterator[tuple[Cell, Answer]]:
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
                    yield waiting[done], _answer(done.result(), "a build of the sweep")
                else:
                    message = f"the worker failed: {type(failure).__name__}: {failure}"
                    yield waiting[done], error_form(AnyNpuError(message))

    return run


def sweep(
    wanted: Sweep, out: Path, store: Store, runner: Runner, heard: Callable[[SweepRow, int, int], None]
) -> SweepRecord:
    """Builds every combination that `out` does not hold yet and returns the record of all; an interrupted sweep goes on
    where it stopped. `heard` gets each row, how many are done, and how many there are."""
    cells = wanted.cells()
    folder = out / CELLS
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    done: dict[str, Answer] = {cell.address: kept for cell in cells if (kept := kept_answer(folder, cell)) is not None}
    missing = [cell for cell in cells if cell.address not in done]
    for cell, answer in runner(missing, store) if missing else ():
        write_whole(folder / f"{cell.address}.json", as_json(plain(answer)))
        done[cell.address] = answer
        heard(row(cell, answer), len(done), len(cells))
    rows = with_front([row(cell, done[cell.address]) for cell in cells])
    status = next((each.exit_status for each in rows if each.exit_status), 0)
    return keep_record(out, rows, wanted.base, status)


def keep_record(
    out: Path,
    rows: tuple[SweepRow, ...],
    base: Request,
    exit_status: int,
    search: SearchForm | None = None,
    more_notes: Sequence[str] = (),
) -> SweepRecord:
    """Writes the record of these rows into the folder and returns it."""
    notes = []
    good = [row for row in rows if row.accuracy is not None]
    if any(row.score is None for row in good):
        notes.append("accuracy is the SQNR against the float model (dB) where there are no labels to score with")
    if any(row.latency_ms is not None for row in good):
        sources = sorted({row.latency_source for row in good if row.latency_source})
        notes.append(f"latency is an estimate, not a measurement ({', '.join(sources)})")
    if any(row.latency_ms is None for row in good):
        notes.append("a row without a latency estimate counts as the slowest when the front is drawn")
    if len({row.group for row in good}) > 1:
        notes.append("each group (one metric on one set of samples) has a front of its own")
    result = with_seal(
        SweepRecord(
            schema_version=SCHEMA_VERSION,
            kind="sweep",
            anynpu=own_version(),
            at=now(),
            axes=dict(AXES),
            gate=base.thresholds,
            rows=rows,
            search=search,
            notes=(*sentences(base.thresholds), *notes, *more_notes),
            exit_status=exit_status,
        )
    )
    write_whole(out / RECORD, as_json(schema.to_dict(result)))
    return result


def kept_answer(folder: Path, cell: Cell) -> BuildRecord | None:
    """Returns the result of an earlier run; one that an error ended is tried again, a tool may be there now."""
    path = folder / f"{cell.address}.json"
    if not path.is_file():
        return None
    try:
        data = schema.parse_json(path.read_text("utf-8"))
        check_seal(data, str(path))
        answer = _answer(data, str(path))
    except (IntegrityError, ConfigError) as error:
        raise IntegrityError(error.message, "remove it to build it again") from None
    except (ValueError, RecursionError, TypeError, OSError) as error:
        raise IntegrityError(f"{path}: not a result of a sweep ({error})", "remove it to build it again") from error
    return None if isinstance(answer, ErrorForm) or any(chip.error for chip in answer.chips) else answer


def row(cell: Cell, answer: Answer | None = None) -> SweepRow:
    """Returns one line of the sweep from what its build came to; without that, of a build to come."""
    line = SweepRow(
        model=cell.request.source.model,
        chip=cell.chip,
        options=dict(cell.request.options),
        qat=cell.request.qat,
        status="",
    )
    if answer is None:
        return line
    line = replace(line, report=f"{CELLS}/{cell.address}.json")
    error = answer if isinstance(answer, ErrorForm) else answer.chips[0].error
    if error:
        line = replace(line, status=error.kind, error=error.message, exit_status=error.exit_status)
    if isinstance(answer, ErrorForm):
        return line
    chip, fingerprint = answer.chips[0], answer.model.fingerprint if answer.model else ""
    line = replace(line, seconds=chip.seconds, fingerprint=fingerprint, sram_bytes=chip.sram_bytes)
    if not error:
        line = replace(line, status=chip.status, exit_status=chip.exit_status)
    if chip.chain:
        dram = chip.details.rest.get("dram_bytes")
        line = replace(line, digest=chip.chain[-1].digest, dram_bytes=dram if isinstance(dram, int | float) else None)
    if chip.receipt:
        line = replace(line, on_npu=chip.receipt.share)
    if (estimates := chip.estimates) is not None:
        source = estimates.source if estimates.latency_ms is not None else ""
        line = replace(line, latency_ms=estimates.latency_ms, latency_source=source, flash_bytes=estimates.flash_bytes)
    if (proof := chip.verification) is not None:
        accuracy = proof.sqnr_db if proof.score is None else proof.score
        line = replace(
            line,
            metric=proof.metric,
            score=proof.score,
            score_float=proof.score_float,
            sqnr_db=proof.sqnr_db,
            accuracy=None if error else accuracy,
        )
    # What makes accuracies comparable: the same metric on the same samples, or else the same network
    data = answer.data.get("test")
    samples = f"{line.metric} on {data.content[:12] if data else ''}"
    return replace(line, group=line.fingerprint[:12] if line.score is None else samples)


def with_front(rows: Iterable[SweepRow]) -> tuple[SweepRow, ...]:
    """Returns the rows with `on_front`: nothing of the same group is at least as good in all and better in one."""
    lines = tuple(rows)
    points = {}
    for each in lines:
        if each.accuracy is not None:
            # A row as costs; a figure that nobody knows is the worst there is: it never makes a row
            # look good
            storage = [size for size in (each.flash_bytes, each.dram_bytes) if size]
            costs = (each.latency_ms, each.sram_bytes, sum(storage) if storage else None)
            points[id(each)] = (
                -float(each.accuracy or 0.0),
                *(float("inf") if cost is None else float(cost) for cost in costs),
            )

    def beaten(mine: SweepRow) -> bool:
        rivals = [each for each in lines if each.group == mine.group and id(each) in points]
        own = points[id(mine)]
        others = [points[id(each)] for each in rivals]
        return any(other != own and all(x <= y for x, y in zip(other, own, strict=True)) for other in others)

    return tuple(replace(each, on_front=id(each) in points and not beaten(each)) for each in lines)
