"""Recall and latency of the embedded store, across the border of its process, at rest and while it indexes.

    python bench/vectors.py --points 100000 --width 384 [--store FOLDER] [--json OUT]

Vectors are drawn around 2,000 centres and normalised, as embeddings of real things are; queries come from the same
distribution. The truth is every point compared with numpy. `border` is the round trip of an empty request, `inside` the
same queries asked in the store's own process, without a border. Queries of a client that pauses for 2 ms find sleeping
cores: `paced` is what they take at rest, which those while indexing are compared with.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import threading
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
    from anynpu.vectors.edge.server import rows_frame
    from anynpu.vectors.edge.wire import encode

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


def while_indexing(things, queries: np.ndarray, more: np.ndarray, first: int, rate: float) -> tuple[list[float], int]:
    """Returns the latencies of queries while points come in at a rate and are indexed."""
    written = [0]
    stop = threading.Event()

    def feed() -> None:
        began = time.perf_counter()
        for at, row in enumerate(more):
            if stop.is_set():
                return
            things.upsert([Point(first + at, row, {"number": at})])
            written[0] += 1
            time.sleep(max(0.0, began + (at + 1) / rate - time.perf_counter()))

    feeder = threading.Thread(target=feed)
    feeder.start()
    latencies: list[float] = []
    at = 0
    while feeder.is_alive():
        latencies += paced(things.query, [queries[at % len(queries)]])
        at += 1
    stop.set()
    feeder.join()
    return latencies, written[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=400.0, help="points a second that come in while indexing")
    parser.add_argument("--more", type=int, default=8000, help="points that come in while indexing")
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
        timed(things.query, warm)
        record["border"] = spread(timed(lambda _: store.process_id(), queries))
        record["at_rest"] = spread(timed(things.query, queries))
        record["paced"] = spread(paced(things.query, queries))
        record["border_cpu"] = cpu_us(store, lambda _: store.process_id(), queries)
        record["query_cpu"] = cpu_us(store, things.query, queries)
        record["recall_at_10"] = recall(things, rows, queries[:500])
        if given.more:
            more = drawn(given.more, given.width, 3)
            latencies, written = while_indexing(things, queries, more, given.points, given.rate)
            record["while_indexing"] = spread(latencies) | {"points_written": written}
            record["at_rest_again"] = spread(timed(things.query, queries))
            record["p95_ratio"] = round(record["while_indexing"]["p95_ms"] / record["paced"]["p95_ms"], 2)
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
