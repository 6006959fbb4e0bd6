"""Many simulated agents against one real collector that is killed while they send.

    python bench/watch_scale.py [--agents 1000] [--seconds 300] [--interval 30] [--kills 2]

Every agent sends a sample of 12 metrics an interval, at its own moment, and again whatever was not acknowledged. The
collector is killed with SIGKILL in between and started again. At the end: was every sample acknowledged and kept, once;
how far behind was the detector; memory per host; CPU. Writes bench/results/watch-scale.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sqlite3
import sys
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "kit"))
from collector import TOKEN, Collector  # noqa: E402

METRICS = [f"metric_{n}_percent" for n in range(12)]


class SimulatedAgent:
    """Samples in memory until they are acknowledged."""

    def __init__(self, number: int, port: int) -> None:
        self.host, self.port, self.number = f"sim{number:04d}", port, 0
        self.waiting: dict[str, dict[str, object]] = {}
        self.acknowledged: set[str] = set()
        self.refused, self.latencies_s = 0, []

    async def run(self, interval_s: float, until: float) -> None:
        await asyncio.sleep(random.uniform(0, interval_s))
        while time.monotonic() < until:
            began = time.monotonic()
            self.number += 1
            metrics = {name: round(random.gauss(40, 3), 2) for name in METRICS}
            id = f"{self.host}-{self.number}"
            self.waiting[id] = {"id": id, "boot": "b", "time": time.time(), "uptime": began, "metrics": metrics}
            await self.send()
            await asyncio.sleep(max(0, began + interval_s - time.monotonic()))

    async def send(self) -> None:
        if not self.waiting:
            return
        ids, now = list(self.waiting), time.monotonic()
        batch = {"version": 1, "host": self.host, "boot": "b", "time": time.time(), "uptime": now}
        body = json.dumps({**batch, "samples": [self.waiting[id] for id in ids]}).encode()
        head = f"POST /v1/samples HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\nconnection: close\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        try:
            async with asyncio.timeout(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(head.encode() + body)
                status = (await reader.readline()).split()
                await reader.read()
                writer.close()
        except (OSError, TimeoutError):
            return
        if status[1:2] == [b"200"]:
            self.latencies_s.append(time.monotonic() - now)
            self.acknowledged.update(ids)
            for id in ids:
                self.waiting.pop(id, None)
        else:
            self.refused += 1


async def campaign(hub: Collector, agents: list[SimulatedAgent], seconds: float, interval_s: float, kills: int) -> dict:
    until = time.monotonic() + seconds
    tasks = [asyncio.create_task(agent.run(interval_s, until)) for agent in agents]
    watched = asyncio.create_task(watch_behind(hub, until))
    for number in range(kills):
        await asyncio.sleep(seconds / (kills + 1))
        hub.process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(hub.process.wait)
        await asyncio.to_thread(hub.start)
        print(f"killed and started again ({number + 1} of {kills})", flush=True)
    await asyncio.gather(*tasks)
    for _ in range(10):
        await asyncio.gather(*(agent.send() for agent in agents))
    return await watched


async def watch_behind(hub: Collector, until: float) -> dict:
    """Returns for how long samples that were kept had not been looked at, at most and usually, as /health says."""
    lags = []
    while time.monotonic() < until:
        await asyncio.sleep(0.5)
        try:
            lags.append((await asyncio.to_thread(hub.call, "/health"))[1]["behind_s"])
        except (OSError, KeyError, TypeError):
            continue
    lags.sort()
    return {"detector_lag_s_median": lags[len(lags) // 2], "detector_lag_s_max": lags[-1], "readings": len(lags)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--interval", type=float, default=30)
    parser.add_argument("--kills", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        hub = Collector(Path(folder))
        empty = psutil.Process(hub.process.pid).memory_info().rss
        agents = [SimulatedAgent(number, hub.port) for number in range(given.agents)]
        lag = asyncio.run(campaign(hub, agents, given.seconds, given.interval, given.kills))
        hub.until(lambda: hub.call("/health")[1]["behind"] == 0)
        process = psutil.Process(hub.process.pid)
        memory, cpu = process.memory_info().rss, sum(process.cpu_times()[:2])
        hub.stop()
        with sqlite3.connect(hub.store) as connection:
            rows = connection.execute("SELECT id FROM samples").fetchall()
        sent = sum(agent.number for agent in agents)
        acknowledged = set().union(*(agent.acknowledged for agent in agents))
        latencies = sorted(value for agent in agents for value in agent.latencies_s)
        found = {
            **vars(given),
            **lag,
            "samples_taken": sent,
            "acknowledged": len(acknowledged),
            "kept": len(rows),
            "kept_twice": len(rows) - len({id for (id,) in rows}),
            "acknowledged_and_lost": len(acknowledged - {id for (id,) in rows}),
            "never_acknowledged": sum(len(agent.waiting) for agent in agents),
            "refused_for_now": sum(agent.refused for agent in agents),
            "answer_s_p50": latencies[len(latencies) // 2],
            "answer_s_p99": latencies[int(len(latencies) * 0.99)],
            "collector_mib": memory / 2**20,
            "kib_per_host": (memory - empty) / 1024 / given.agents,
            "collector_cpu_s_since_last_start": cpu,
        }
    print(json.dumps(found, indent=1))
    (ROOT / "bench" / "results").mkdir(exist_ok=True)
    (ROOT / "bench" / "results" / "watch-scale.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
