"""Recall and latency of the embedded store, across the border of its process, at rest and while it indexes.

    python bench/vectors.py --points 100000 --width 384 [--store FOLDER] [--json OUT]

Vectors are drawn around 2,000 centres and normalised, as embeddings of real things are; queries come from the same
distribution. The truth is every point compared with numpy. `border` is the round trip of an empty request, `inside` the
same queries asked in the store's own process, without a border. While points come in, one by one from a process of its
own, queries follow each other without a pause, which is the harshest case, and then with pauses of 2 ms; each is
compared with the same at rest.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

from anynpu.vectors.base import CollectionSpec, Field, Point, VectorSpace
from anynpu.vectors.edge.client import EdgeStore


def drawn(count: int, width: int, seed: int) -> np.ndarray:
    chance = np.random.default_rng(seed)
    centres = np.random.default_rng(0).standard_normal((2000, width)).astype(np.float32)
    rows = centres[chance.integers(0, len(centres), count)]
    rows += 0.7 * chance.standard_normal((count, width)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def spread(milliseconds: list[float]) -> dict[str, float]:
    p50, p95, p99 = np.percentile(milliseconds, [50, 95, 99])
    return {
        "n": len(milliseconds),
        "p50_ms": round(float(p50), 3),
        "p95_ms": round(float(p95), 3),
        "p99_ms": round(float(p99), 3),
    }


def timed(call, arguments) -> list[float]:
    found = []
    for argument in arguments:
        start = time.perf_counter()
        call(argument)
        found.append((time.perf_counter() - start) * 1e3)
    return found


PAUSE_S = 0.002


def paced(call, arguments) -> list[float]:
    found = []
    for argument in arguments:
        found += timed(call, [argument])
        time.sleep(PAUSE_S)
    return found


def inside(folder: Path, warm: np.ndarray, queries: np.ndarray) -> list[float]:
    """Returns the latencies of queries in the process of the engine, with what the store makes of each answer."""
    from anynpu.vectors.edge.layers import Layers
    from anynpu.vectors.edge.wire import encode, rows_frame

    layers = Layers(folder, 2)

    def query(vector: np.ndarray) -> bytes:
        pairs = layers.query(vector, 10, None, False, False)
        return encode(rows_frame([row for _, row in pairs], {"scores": [score for score, _ in pairs]}))

    timed(query, warm)
    latencies = timed(query, queries)
    layers.close()
    return latencies


def cpu_us(store: EdgeStore, call, arguments) -> dict[str, float]:
    """Returns what a call costs on both sides of the border, which a busy machine changes little."""
    stat = Path(f"/proc/{store.process_id()}/stat")

    def spent() -> float:
        fields = stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    there, here = spent(), time.process_time()
    for argument in arguments:
        call(argument)
    count = len(arguments)
    return {
        "store_us": round((spent() - there) / count * 1e6),
        "client_us": round((time.process_time() - here) / count * 1e6),
    }


def recall(things, rows: np.ndarray, queries: np.ndarray) -> float:
    hits = 0
    for vector in queries:
        scores = rows @ vector
        best = set(np.argpartition(-scores, 10)[:10].tolist())
        hits += len(best & {hit.id for hit in things.query(vector, 10)})
    return hits / (10 * len(queries))


def load(things, rows: np.ndarray, first: int = 0) -> None:
    for start in range(0, len(rows), 256):
        batch = rows[start : start + 256]
        things.upsert([Point(first + start + at, row, {"number": at}) for at, row in enumerate(batch)])


def asked_for(seconds: float, call, queries: np.ndarray, how=timed) -> list[float]:
    """Returns the latencies of queries asked for so long: the machine has its moods."""
    latencies: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        latencies += how(call, queries[:100])
    return latencies


def feed(folder: str, more: np.ndarray, first: int, rate: float) -> None:
    """Writes points at a rate, one by one."""
    with EdgeStore.at(folder) as store:
        things = store.open("bench")
        began = time.perf_counter()
        for at, row in enumerate(more):
            things.upsert([Point(first + at, row, {"number": at})])
            time.sleep(max(0.0, began + (at + 1) / rate - time.perf_counter()))


def while_indexing(folder: Path, things, queries: np.ndarray, more: np.ndarray, rate: float, how) -> dict:
    """Returns the latencies of queries while points come in from another process and are indexed."""
    before = things.count()
    feeder = multiprocessing.get_context("spawn").Process(target=feed, args=(str(folder), more, before, rate))
    feeder.start()
    while things.count() == before:
        time.sleep(0.01)
    latencies: list[float] = []
    began = time.perf_counter()
    while feeder.is_alive():
        latencies += how(things.query, queries[:100])
    written, seconds = things.count() - before, time.perf_counter() - began
    feeder.join()
    return spread(latencies) | {"longest_ms": round(max(latencies), 1), "points_a_second": round(written / seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=400.0, help="points a second that come in while indexing")
    parser.add_argument("--more", type=int, default=8000, help="points that come in while indexing")
    parser.add_argument("--rest", type=float, default=5.0, help="seconds of queries at rest")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-index", action="store_true", help="stop after loading; a later call goes on")
    given = parser.parse_args()
    folder = given.store or Path(tempfile.mkdtemp(prefix="anynpu-bench-")) / "store"
    rows, queries = drawn(given.points, given.width, 1), drawn(given.queries, given.width, 2)
    spec = CollectionSpec("bench", VectorSpace("bench", "0" * 64, given.width), (Field("number", "integer"),))
    record: dict = {"points": given.points, "width": given.width}
    with EdgeStore.at(str(folder)) as store:
        things = store.create(spec)
        start = time.perf_counter()
        held = things.count()
        load(things, rows[held : given.points], held)
        record["upsert_s"] = round(time.perf_counter() - start, 1)
        if given.no_index:
            print(json.dumps(record))
            return
        start = time.perf_counter()
        things.optimize()
        record["index_s"] = round(time.perf_counter() - start, 1)
    warm = drawn(given.queries, given.width, 4)
    record["inside"] = spread(inside(folder / spec.name, warm, queries))
    with EdgeStore.at(str(folder)) as store:
        things = store.open(spec.name)
        os.sync()  # what loading wrote is not to be written while we measure
        timed(things.query, warm)
        record["border"] = spread(timed(lambda _: store.process_id(), queries))
        record["at_rest"] = spread(asked_for(given.rest, things.query, queries))
        record["paced"] = spread(asked_for(given.rest, things.query, queries, paced))
        record["border_cpu"] = cpu_us(store, lambda _: store.process_id(), queries)
        record["query_cpu"] = cpu_us(store, things.query, queries)
        record["recall_at_10"] = recall(things, rows, queries[:500])
        if given.more:
            for name, how, rest, seed in (
                ("indexing", timed, record["at_rest"], 3),
                ("indexing_paced", paced, record["paced"], 5),
            ):
                more = drawn(given.more, given.width, seed)
                record[name] = while_indexing(folder, things, queries, more, given.rate, how)
                record[name]["p95_ratio"] = round(record[name]["p95_ms"] / rest["p95_ms"], 2)
            record["info"] = vars(things.info())
    record["disk_mib"] = sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file()) >> 20
    text = json.dumps(record, indent=1)
    print(text)
    if given.json:
        given.json.write_text(text)
    if given.store is None:
        shutil.rmtree(folder.parent)


if __name__ == "__main__":
    main()
