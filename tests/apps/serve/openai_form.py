"""A small server in OpenAI's form that knows nothing of anynpu: plain ASGI under uvicorn, well or badly behaved.

The first part of the path says how it behaves: /ok, /slow, /slower, /stall-ANYTHING (the 40th request stops everything
for 0.6 s), /dies-N (the process ends at the Nth request), /errors (every third is 503), /nan, /text, /width, /short,
/moved, /never, /closing, /base64, /secret, /rotated. /seen counts them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import struct
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STALL_S, STALL_AT, WIDTH = 0.6, 40, 24
SLOW_S = {"slow": 0.01, "slower": 0.05, "dies": 0.01}
seen: Counter[str] = Counter()


def vector(text: str, behaviour: str) -> list[float]:
    drawn = random.Random(text)
    values = [drawn.gauss(0, 1) for _ in range(WIDTH)]
    if behaviour == "rotated":  # other coordinates of the same points, and one coordinate more: another width
        return [*values[5:], *values[:5], 0.0]
    if behaviour == "noisy":
        return [value + 0.02 * drawn.gauss(0, 1) for value in values]
    if behaviour == "other":
        unlike = random.Random("other" + text)
        return [unlike.gauss(0, 1) for _ in range(WIDTH + 8)]
    if behaviour == "nan":
        values[3] = float("nan")
    return values[:3] if behaviour == "width" and seen["width"] % 2 else values


def embeddings(question: dict[str, Any], behaviour: str) -> dict[str, Any]:
    texts = question["input"] if isinstance(question["input"], list) else [question["input"]]
    data = []
    for index, text in enumerate(texts[:1] if behaviour == "short" else texts):
        values: Any = vector(text, behaviour)
        if behaviour == "base64" or question.get("encoding_format") == "base64":
            values = base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()
        data.append({"object": "embedding", "index": index, "embedding": values})
    usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
    return {"object": "list", "data": data[::-1], "model": question["model"], "usage": usage}


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)

    async def reply(status: int, data: Any, **headers: str) -> None:
        content = data if isinstance(data, bytes) else json.dumps(data).encode()
        named = {"content-type": "application/json", "content-length": str(len(content)), **headers}
        pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": content})

    path, headers = scope["path"], dict(scope["headers"])
    behaviour = path.split("/")[1]
    seen[behaviour] += 1
    number = seen[behaviour]  # others may come before this one goes on
    if behaviour.startswith("dies-") and number == int(behaviour[5:]):
        os._exit(1)
    if path == "/seen":
        await reply(200, seen)
    elif path == "/v1/models":
        await reply(200, {"object": "list", "data": [{"id": "points", "object": "model", "owned_by": "tests"}]})
    elif behaviour == "never":
        await asyncio.sleep(3600)
    elif behaviour == "moved":
        await reply(307, {}, location="/ok/v1/embeddings")
    elif behaviour == "secret" and headers.get(b"authorization") != b"Bearer open sesame":
        await reply(401, {"error": {"message": "no token"}})
    elif behaviour == "errors" and number % 3 == 0:
        await reply(503, {"error": {"message": "the device is busy"}}, retry_after="1")
    elif behaviour == "text":
        await reply(200, b"<html>welcome</html>")
    elif path.endswith("/embeddings"):
        await asyncio.sleep(SLOW_S.get(behaviour.partition("-")[0], 0))
        if behaviour.startswith("stall") and number == STALL_AT:
            time.sleep(STALL_S)
        closing = {"connection": "close"} if behaviour == "closing" else {}
        await reply(200, embeddings(json.loads(body), behaviour), **closing)
    elif path.endswith("/embed"):
        await reply(200, [vector(text, behaviour) for text in json.loads(body)["inputs"]])
    elif path.endswith("/infer") and "/v2/" in path:
        await reply(200, {"model_name": "points", "outputs": json.loads(body)["inputs"]})
    elif path.endswith("/infer"):
        await reply(200, body, content_type="application/octet-stream")
    elif path.endswith("/detect"):
        await reply(200, {"size": len(body), "type": headers[b"content-type"].decode(), "detections": []})
    else:
        await reply(404, {"error": {"message": f"no route {path}"}})


class Running:
    """The server's process and address."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url

    def seen(self, behaviour: str) -> int:
        """How many requests of a behaviour have come."""
        with urllib.request.urlopen(f"{self.url}/seen", timeout=60) as answer:
            return json.load(answer).get(behaviour, 0)


@contextmanager
def running() -> Iterator[Running]:
    """Starts the server in a process of its own; uvicorn picks the port."""
    program = (
        "import socket, sys, uvicorn; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(512);"
        "print(s.getsockname()[1], flush=True);"
        "uvicorn.Server(uvicorn.Config('openai_form:app', log_level='warning', fd=None)).run(sockets=[s])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        with urllib.request.urlopen(f"{url}/v1/models", timeout=60):
            yield Running(process, url)
    finally:
        process.kill()  # a graceful end would wait for /never
        process.wait(30)
