"""Reload through HTTP under load: no request is lost, and each answer is of the version that its header names."""

from __future__ import annotations

import asyncio
import os

import numpy as np
import pytest
from engine_models import linear, until
from kept import Kept
from process import served

pytest.importorskip("onnxruntime")
X = np.arange(8, dtype=np.float32)[None] + 1
RELOADS = int(os.environ.get("ANYNPU_RELOADS", "4"))
CLIENTS = 8
TOKEN = "for-this-test-only-1234567890"
BEARER = f"Bearer {TOKEN}"


def test_reloads_lose_nothing_and_every_answer_names_its_version(tmp_path):
    versions = [linear(tmp_path / f"v{factor}", factor) for factor in (2.0, 3.0)]
    factors = {versions[0].digest: 2.0, versions[1].digest: 3.0}
    seen = dict.fromkeys(factors, 0)

    def put(number: int) -> str:
        fresh = tmp_path / "fresh"
        fresh.symlink_to(versions[number % 2].path)
        fresh.rename(tmp_path / "model")
        return versions[number % 2].digest

    async def client(server: Kept, number: int, stop: asyncio.Event) -> None:
        while not stop.is_set():
            number += CLIENTS
            body = (X * number).tobytes()
            reply = await server.ask(
                "POST", "/infer", body, content_type="application/octet-stream", authorization=BEARER
            )
            assert reply.status == 200, reply
            version = reply.headers["x-model-version"]
            assert np.array_equal(np.frombuffer(reply.content, np.float32), (X * number * factors[version])[0])
            seen[version] += 1

    async def main(server: Kept) -> None:
        stop = asyncio.Event()
        clients = [asyncio.create_task(client(server, number, stop)) for number in range(CLIENTS)]
        for number in range(1, RELOADS + 1):
            digest = put(number)
            reply = await server.ask(
                "POST", "/admin/reload", b"{}", content_type="application/json", authorization=BEARER
            )
            assert (reply.status, reply.json()["version"]) == (200, digest), reply
            before = seen[digest]
            await until(lambda digest=digest, before=before: seen[digest] > before + CLIENTS)
        stop.set()
        await asyncio.gather(*clients)
        health = (await server.ask("GET", "/health")).json()["models"]["m"]
        assert (health["state"], health["reloads"], health["refused"]) == ("ready", RELOADS, {})
        assert health["answered"] == sum(seen.values())

    put(0)
    flags = ("--admin", "--max-batch", "1", "--access-log", "none")
    with served(tmp_path, "m=model", *flags, ANYNPU_SERVE_TOKEN=TOKEN) as running:
        asyncio.run(main(Kept(running.client.port)))
        assert running.stop() == 0
