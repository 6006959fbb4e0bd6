"""The method of the first description, exactly: a line of text, its embedding, a vector store, the last 20, an alert.

    host mybox cpu 2.4% ram 25.5% load 0.46 temps [soc 44°C] disks [/ 19.7%]

Every sample becomes such a line, the line a vector. The vector goes into the store, and is compared with the last 20 of
its host by cosine similarity; an alert begins where the mean of the 20 falls below a limit. The description names no
limit: 0.97 is ours. Silence and clocks are looked at as by the other detector.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from anynpu.apps.watch.detector import Anomaly, Detector
from anynpu.apps.watch.registry import Batch, Registry
from anynpu.tensors import Array
from anynpu.vectors.base import Collection, CollectionSpec, Field, Filter, Match, Payload, Point, Range

LAST = 20
LIMIT = 0.97
NAMESPACE = uuid.UUID("5f1d7c1e-6a0f-4c2c-9a55-0d5a6a5b1c2e")
FIELDS = (Field("host", "keyword"), Field("time_s", "float"))
Embed = Callable[[Sequence[str]], Array]


def line(host: str, metrics: Mapping[str, float]) -> str:
    """Returns a sample as text, in the form of the description."""
    parts = [f"host {host}"]
    for name, label, end in (("cpu_percent", "cpu", "%"), ("memory_percent", "ram", "%")):
        if name in metrics:
            parts.append(f"{label} {metrics[name]:.1f}{end}")
    if "load1" in metrics:
        parts.append(f"load {metrics['load1']:.2f}")
    heat = [(name, value) for name, value in metrics.items() if name.endswith("_celsius")]
    if heat:
        named = (
            f"{n.removesuffix('_celsius').replace('temperature_', '').replace('_temperature', '')} {v:.0f}°C"
            for n, v in heat
        )
        parts.append(f"temps [{', '.join(named)}]")
    disks = [(name, value) for name, value in metrics.items() if name.startswith("disk_") and name.endswith("_percent")]
    if disks:
        named = (
            f"{'/' if n == 'disk_root_percent' else n.removeprefix('disk_').removesuffix('_percent')} {v:.1f}%"
            for n, v in disks
        )
        parts.append(f"disks [{', '.join(named)}]")
    if "npu_percent" in metrics:
        parts.append(f"npu {metrics['npu_percent']:.1f}%")
    return " ".join(parts)


def likeness(vectors: Sequence[Array], vector: Array) -> float:
    """Returns the mean cosine between a vector and earlier ones, all of length 1."""
    return float(np.mean(np.asarray(vectors) @ vector)) if len(vectors) else 1.0


class SeedDetector(Detector):
    """The detector of the description. Its store may be None where nothing is to be kept: in a replay."""

    def __init__(
        self,
        registry: Registry,
        embed: Embed,
        collection: Collection | None = None,
        interval_s: float = 30.0,
        limit: float = LIMIT,
    ) -> None:
        super().__init__(registry, interval_s=interval_s)
        self.embed, self.collection, self.limit = embed, collection, limit
        self.recent: dict[int, deque[Array]] = {}

    def update(self, batch: Batch) -> list[Anomaly]:
        """Takes samples. Their vectors are kept before anything is noted: after an error the samples come again."""
        self.grow()
        batch = batch.after(self.seen_s)
        if not len(batch.hosts):
            return []
        lines, places = [], []
        for row, host in enumerate(batch.hosts):
            for column in np.flatnonzero(~np.isnan(batch.times_s[row])):
                of_host = np.flatnonzero((batch.owner == row) & ~np.isnan(batch.values[:, column]))
                metrics = {self.registry.metrics[batch.series[k]]: float(batch.values[k, column]) for k in of_host}
                lines.append(line(self.registry.hosts[host], metrics))
                places.append((int(host), float(batch.times_s[row, column])))
        vectors = self.embed(lines)
        for row, host in enumerate(int(each) for each in batch.hosts):
            if host not in self.recent:
                self.recent[host] = deque(self._kept(host, float(np.nanmin(batch.times_s[row]))), LAST)
        if self.collection is not None:
            points = []
            for (host, time_s), vector, text in zip(places, vectors, lines, strict=True):
                name = self.registry.hosts[host]
                payload: Payload = {"host": name, "time_s": time_s, "text": text}
                points.append(Point(str(uuid.uuid5(NAMESPACE, f"{name} {time_s:.3f}")), vector, payload))
            self.collection.upsert(points)
        self.last[batch.series, 1] = batch.values[:, 0]
        changes = [*self.heard(batch), *self.clocked(batch)]
        for (host, time_s), vector in zip(places, vectors, strict=True):
            recent = self.recent[host]
            like, anomaly = likeness(recent, vector), self.open.get((host, "unlike"))
            if len(recent) == LAST and like < self.limit and anomaly is None:
                score = (1 - like) / (1 - self.limit)
                changes.append(self._begin(host, None, "unlike", time_s, time_s, like, self.limit, score))
            elif anomaly is not None and like >= self.limit:
                changes.append(self._end(anomaly, time_s, "looks like the last 20 again"))
            recent.append(vector)
        return changes

    def _kept(self, host: int, before_s: float) -> list[Array]:
        """Returns the last vectors of a host that the store holds of the time before, oldest first."""
        if self.collection is None:
            return []
        where = Filter(must=(Match("host", self.registry.hosts[host]), Range("time_s", lt=before_s)))
        rows = self.collection.newest("time_s", LAST, where=where, with_vector=True)
        return [row.vector for row in reversed(rows) if row.vector is not None]


def collection_spec(name: str, fingerprint: str, width: int, normalized: bool) -> CollectionSpec:
    """Returns the collection that vectors of a model go into."""
    from anynpu.vectors.base import VectorSpace

    return CollectionSpec("watch", VectorSpace(name, fingerprint, width, normalized), FIELDS)
