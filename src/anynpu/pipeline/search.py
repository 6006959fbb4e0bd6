"""Search under a time budget: build after build, a step away from the best so far, promising and cheap steps first."""

from __future__ import annotations

import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

from anynpu import plugins, schema, tool
from anynpu.errors import AnyNpuError, ConfigError, ToolFailed, Unsupported
from anynpu.files import write_whole, writing
from anynpu.pipeline.build import platforms
from anynpu.pipeline.diagnosis.builds import diagnose_build
from anynpu.pipeline.ladder import FEWEST
from anynpu.pipeline.planner import Link, check_options, plan, source_format
from anynpu.pipeline.preview import Silent
from anynpu.pipeline.request import Request
from anynpu.pipeline.sweep import (
    CELL_S,
    CELLS,
    Answer,
    Cell,
    Runner,
    Sweep,
    keep_record,
    kept_answer,
    plain,
    row,
    with_front,
)
from anynpu.records.parts import as_json
from anynpu.records.shared import ErrorForm
from anynpu.records.sweep import SearchForm, SweepRecord, SweepRow
from anynpu.store import Store
from anynpu.targets.base import Move, moves_of

Groups = Sequence[Sequence[str]]
"""Tensors that are lifted together, those with the largest errors first."""
Heard = Callable[[SweepRow, int, float], None]
"""Hears of each build: its row, how many there are now, and the seconds since the search began."""
Ended = Literal["nothing left to try", "out of time", "unfinished"]
UNTRIED_NAMED = 20
_TRAINING = Move()
_OPTIMISTIC = (
    "the best was chosen by the samples that it is judged with, so its figure is slightly optimistic; "
    "`anynpu eval` on other samples tells"
)


@dataclass(frozen=True)
class Search:
    """What is searched: the options of a sweep are where it starts (their first values) and what they may be; all
    others are free."""

    sweep: Sweep
    minutes: float
    jobs: int = 1
    train: bool = False
    """Whether training is tried too."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.minutes) and self.minutes > 0):
            raise ConfigError(f"--search {self.minutes:g}: more than 0 minutes were expected")

    def places(self) -> tuple[Place, ...]:
        """Returns each model on each chip."""
        base = self.sweep.base
        return tuple(
            Place(replace(base, source=replace(base.source, model=model), chips=(chip.name,)), self)
            for model, chip in itertools.product(self.sweep.models, platforms(base.chips))
        )

    def first_steps(self) -> list[Cell]:
        """Returns the start of each place and what lies a step from it, as far as that can be told without a build."""
        places = self.places()
        return [cell for place in places for cell in (Cell(place.start), *place.steps(place.start))]

    def request_of(self, line: SweepRow) -> Request:
        """Returns the request of a build that was tried."""
        base, options = self.sweep.base, {name: str(value) for name, value in (line.options or {}).items()}
        source = replace(base.source, model=line.model)
        return replace(base, source=source, chips=(line.chip,), options=options, qat=line.qat)

    def best_of(self, record: SweepRecord) -> dict[str, Request]:
        """Returns the best builds by the name of their folder: the chip, behind the model's number where there are
        several."""
        models = self.sweep.models
        best = [line for line in record.rows if line.best]
        names = [f"{models.index(line.model) + 1}-{line.chip}" if len(models) > 1 else line.chip for line in best]
        return dict(zip(names, map(self.request_of, best), strict=True))


@dataclass
class Place:
    """One model on one chip: what was tried, and what is next."""

    request: Request
    search: Search
    tried: dict[str, SweepRow | None] = field(default_factory=dict)
    """By what the compilers are to do; None while it is built."""
    worst: Mapping[str, Groups] | None = None
    """The tensors for each option that takes names of them; None until the best build is diagnosed."""
    origins: dict[str, tuple[str, Move]] = field(default_factory=dict)
    """From which build a step led to each, and which step."""
    gains_db: dict[str, float] = field(default_factory=dict)
    """What each step gained the last time."""

    def __post_init__(self) -> None:
        self._keys: dict[tuple[object, ...], str] = {}
        stated = self.search.sweep.options
        self.platform = plugins.platform(self.request.chips[0])
        self.format = source_format(self.request.source)
        self.named = {name.rpartition(".")[2] for name in stated}
        self.start = replace(self.request, options={name: values[0] for name, values in stated.items()})
        check_options([self.platform], self.start.options, self.format)
        try:
            links: tuple[Link, ...] = plan(self.platform, self.start.options, self.format)
        except (ToolFailed, Unsupported):  # its build says why
            links = ()
        alternatives = (Move({name: value}) for name, values in stated.items() for value in values)
        self.moves = (*alternatives, *(move for link in links for move in moves_of(link.target)))
        options = (each for link in links for each in fields(link.target.Options))
        self.defaults = {
            each.name: (str(each.default).lower() if isinstance(each.default, bool) else str(each.default))
            for each in options
        }

    @property
    def rows(self) -> list[SweepRow]:
        return [each for each in self.tried.values() if each is not None]

    def best(self) -> SweepRow | None:
        """Returns the most accurate build that passes the gate."""
        good = (each for each in self.rows if each.accuracy is not None and not each.exit_status)
        return max(good, key=_standing, default=None)

    def next(self) -> Cell | None:
        """Returns what to build next: the start, then a step from the best build that has one left."""
        if not self.tried:
            return Cell(self.start)
        return next(self.untried(), None)

    def untried(self) -> Iterator[Cell]:
        """Yields what lies a step from a good build and was not tried, the next one first; some more than once."""
        return (cell for base in self._bases() for cell in self.steps(base))

    def steps(self, base: Request) -> Iterator[Cell]:
        """Yields what lies a step from a build and was not tried: what costs the chip nothing, training, the rest.
        Steps that lost elsewhere come after those that gained or that nobody has tried."""
        back = (Move(without=(name,)) for name in base.options if name not in self.start.options)
        moves = (*(m for m in self.moves if not m.costly), *back, _TRAINING, *(m for m in self.moves if m.costly))

        def last(move: Move) -> tuple[bool, bool, float]:
            return move.costly, move is _TRAINING, -self.gains_db.get(str(move), 0.0)

        for move in sorted(moves, key=last):
            yield from self._fresh(base, move)

    def undiagnosed(self) -> Request | None:
        """Returns the build whose tensors the next step is about, where nobody has asked yet which are the worst."""
        if self.worst is not None or not any(move.worst for move in self.moves):
            return None
        base = next(self._bases(), None)
        free = (move for move in self.moves if not move.costly)
        return None if base is None or any(True for move in free for _ in self._fresh(base, move)) else base

    def begin(self, cell: Cell) -> None:
        self.tried[self._key(cell.request)] = None

    def take(self, cell: Cell, answer: Answer) -> SweepRow:
        """Takes what a build came to, and returns its row; tensors that a chip has no kernel for are left out later."""
        key = self._key(cell.request)
        line = self.tried[key] = row(cell, answer)
        if key in self.origins:
            before, move = self.origins[key]
            parent = self.tried.get(before)
            if parent is None or parent.sqnr_db is None or line.sqnr_db is None:
                self.gains_db[str(move)] = -math.inf
            else:
                self.gains_db[str(move)] = line.sqnr_db - parent.sqnr_db
        error = answer if isinstance(answer, ErrorForm) else answer.chips[0].error
        refused = {each.where for each in error.findings or ()} if error is not None else set()
        if self.worst is not None:
            self.worst = {
                option: [group for group in groups if refused.isdisjoint(group)]
                for option, groups in self.worst.items()
            }
        return line

    def _bases(self) -> Iterator[Request]:
        """Yields the builds to go on from: those on the front, the most accurate first, or the best of those that miss
        the gate; and the start."""
        front = [each for each in with_front(self.rows) if each.on_front and not each.exit_status]
        missed = [each for each in self.rows if each.sqnr_db is not None]
        lines = sorted(front, key=_standing, reverse=True) or sorted(missed, key=_standing)[-1:]
        yield from map(self.search.request_of, lines)
        if self.rows:
            yield self.start

    def _fresh(self, base: Request, move: Move) -> Iterator[Cell]:
        """Yields the builds that a step leads to, except those that were tried or that the compilers do not take."""
        for request in self._moved(base, move):
            key = self._key(request)
            if key and key not in self.tried:
                self.origins[key] = (self._key(base), move)
                yield Cell(request)

    def _moved(self, base: Request, move: Move) -> Iterator[Request]:
        options = {n: v for n, v in base.options.items() if n not in move.without or n in self.start.options}
        if move is _TRAINING:
            if self.search.train and not base.qat:
                yield replace(base, qat=True)
        elif not move.worst:
            stated = self.search.sweep.options
            allowed = {  # where the user has left the option open, or named this value
                name: value
                for name, value in move.settings.items()
                if (value in stated[name] if name in stated else name not in self.named)
            }
            if [*allowed][:1] != [*move.settings][:1]:  # the first setting is what it is about, others go with it
                return
            options |= allowed
            changed = {n: v for n, v in options.items() if n in self.start.options or v != self.defaults.get(n)}
            yield replace(base, options=changed)
        elif move.worst not in self.named:
            groups = (self.worst or {}).get(move.worst, ())
            most = (len(groups) + 1) // 2
            counts = [count for n in range(most.bit_length()) if (count := 1 << n) < most]
            for count in (*counts, most) if most else ():
                names = ",".join(name for group in groups[:count] for name in group)
                yield replace(base, options={**options, move.worst: names})

    def _key(self, request: Request) -> str:
        """Returns what the compilers are asked for; "" for options that they do not take together."""
        asked = (request.qat, *sorted(request.options.items()))
        if asked not in self._keys:
            try:
                links = plan(self.platform, request.options, self.format)
                self._keys[asked] = schema.digest([request.qat, *(schema.to_dict(link.options) for link in links)])
            except (ConfigError, ToolFailed, Unsupported):
                self._keys[asked] = ""
        return self._keys[asked]


def _standing(line: SweepRow) -> tuple[float, ...]:
    """Returns what the better of two builds has more of: score, SQNR, and then lower costs."""
    costs = (line.latency_ms, line.sram_bytes, line.flash_bytes)
    gains = (line.score, line.sqnr_db, *(None if cost is None else -cost for cost in costs))
    return tuple(-math.inf if gain is None else float(gain) for gain in gains)


def worst_tensors(request: object, cache: str) -> dict[str, list[list[str]]]:
    """Returns the tensors of a build for each option that takes names of them, those with the largest errors first
    (runs in a child process)."""
    wanted = replace(schema.from_dict(Request, request, "search"), repair=False)
    (chip,) = diagnose_build(wanted, Store(Path(cache) if cache else None), Silent())
    if chip.diagnosis is None:
        return {}
    orders = {option: (repair, repair.order(chip.diagnosis)) for option, repair in FEWEST.items()}
    return {option: [list(repair.names(loss)) for loss in order] for option, (repair, order) in orders.items()}


def search(
    wanted: Search,
    out: Path,
    store: Store,
    runner: Runner,
    heard: Heard,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[SweepRecord]:
    """Yields the record of all that was tried, again whenever a build has ended; the last one is the whole.

    What `out` holds from earlier runs is taken from there and costs no time.
    """
    run = _Run(wanted, out, store, runner, heard, clock)
    while batch := run.batch():
        run.build(batch)
        yield run.record("unfinished")
    yield run.record("out of time" if any(place.next() for place in run.places) else "nothing left to try")


class _Run:
    """One run of a search: its clock, and the places that take turns."""

    def __init__(
        self, wanted: Search, out: Path, store: Store, runner: Runner, heard: Heard, clock: Callable[[], float]
    ) -> None:
        self.wanted, self.out, self.store, self.runner, self.heard, self.clock = (
            wanted,
            out,
            store,
            runner,
            heard,
            clock,
        )
        self.folder, self.places = out / CELLS, wanted.places()
        self.turns = itertools.cycle(self.places)
        self.started = clock()
        self.taken_s: list[float] = []
        self.notes: list[str] = []
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def seconds(self) -> float:
        return self.clock() - self.started

    def late(self) -> bool:
        """Whether the next build would end after the budget, if it took as long as others have. (The first one does
        not count: it imports the model, reads the samples and computes the float answers for all.)"""
        expected_s = statistics.median(self.taken_s[1:] or [0.0])
        return self.seconds + expected_s > 60 * self.wanted.minutes

    def batch(self) -> list[tuple[Place, Cell]]:
        """Returns the next builds, as many as run at once, from one place after the other."""
        cells: list[tuple[Place, Cell]] = []
        idle = 0
        # A batch that is begun is begun whole: nothing is put aside when diagnosing has taken the last seconds.
        while len(cells) < self.wanted.jobs and idle < len(self.places) and not self.late():
            place = next(self.turns)
            cell = self._next(place)
            idle = idle + 1 if cell is None else 0
            if cell is not None:
                place.begin(cell)
                cells.append((place, cell))
        return cells

    def _next(self, place: Place) -> Cell | None:
        """Returns the next build of a place that no earlier run has made."""
        while True:
            base = place.undiagnosed()
            if base is not None:
                place.worst = self._diagnosed(base)
            cell = None if base is not None and self.late() else place.next()
            answer = None if cell is None else kept_answer(self.folder, cell)
            if cell is None or answer is None:
                return cell
            place.take(cell, answer)

    def _diagnosed(self, request: Request) -> Mapping[str, Groups]:
        arguments = {"request": schema.to_dict(request), "cache": str(self.store.cache)}
        with tempfile.TemporaryDirectory(prefix="anynpu-search-") as scratch:
            folder = Path(scratch)
            function = "anynpu.pipeline.search:worst_tensors"
            try:
                answer = tool.call(function, arguments, scratch=folder, log=folder / "log", timeout_s=CELL_S)
            except AnyNpuError as error:
                self.notes.append(f"{request.chips[0]}: single tensors were not tried: {error.message}")
                return {}
        orders: Mapping[str, Groups] = schema.read_as(dict[str, list[list[str]]], answer, function)
        return orders

    def build(self, batch: Sequence[tuple[Place, Cell]]) -> None:
        """Builds them, and keeps what each came to."""
        begun, place_of = self.seconds, {cell.address: place for place, cell in batch}
        for cell, answer in self.runner([cell for _, cell in batch], self.store):
            write_whole(self.folder / f"{cell.address}.json", as_json(plain(answer)))
            line = place_of[cell.address].take(cell, answer)
            self.heard(line, sum(len(place.rows) for place in self.places), self.seconds)
        self.taken_s.append(self.seconds - begun)

    def record(self, ended: Ended) -> SweepRecord:
        """Returns the record of what was tried so far, and writes it."""
        rows: list[SweepRow] = []
        status = 0
        for place in self.places:
            place.tried = {key: line for key, line in place.tried.items() if line is not None}
            best = place.best()
            rows += [replace(line, best=line is best) for line in place.rows]
            if best is None:
                status = status or next((line.exit_status for line in place.rows if line.exit_status), 0)
        ahead = itertools.chain(*(itertools.islice(place.untried(), UNTRIED_NAMED) for place in self.places))
        untried = dict.fromkeys(row(cell).title for cell in ahead)
        form = SearchForm(
            minutes=self.wanted.minutes,
            seconds=round(self.seconds, 1),
            tried=len(rows),
            ended=ended,
            untried=tuple(untried)[:UNTRIED_NAMED],
        )
        spent = f"{self.seconds / 60:.1f} of {self.wanted.minutes:g} minutes"
        notes = [f"searched for {spent}, {len(rows)} builds in all: {ended}", *dict.fromkeys(self.notes)]
        notes += [_OPTIMISTIC] if any(line.best for line in rows) else ["nothing that was tried passes the gate"]
        return keep_record(self.out, with_front(rows), self.wanted.sweep.base, status, form, notes)
