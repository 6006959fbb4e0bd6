"""What good clients of `anynpu serve` feel while others attack it: latency alone, then under each attack.

    python bench/serve_hostile.py out/cpu --idle 10000

Every attack runs for a few seconds from a process of its own, beside one good client on one connection that asks
/v1/embeddings, or /v2/health/live for a model of another kind. The time of the good client alone is measured before and
after each attack; p99 under attack should stay within twice of it. Attacks come from an address of their own. A storm
of new connections is held off by a limit of an address, which other computers have by default:

    python bench/serve_hostile.py out/cpu --only storm --flags='--max-connect-rate 50'
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import random
import resource
import socket
import subprocess
import sys
import time
import zlib
from multiprocessing.synchronize import Event
from pathlib import Path

ATTACKER = "127.0.0.2"


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def good(port: int, path: str, body: bytes | None, seconds: float) -> list[float]:
    """Returns the milliseconds of every request of one good client."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        connection.request("POST" if body else "GET", path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
        times.append((time.perf_counter() - began) * 1e3)
        time.sleep(0.005)
    return times


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 30, (ATTACKER, 0))


def idle(port: int, many: int, set_up: Event) -> None:
    """Opens connections and says nothing."""
    held = []
    for _ in range(many):
        with contextlib.suppress(OSError):
            held.append(connect(port))
    print(f"  {len(held)} idle connections are open", flush=True)
    set_up.set()
    time.sleep(600)


def loris(port: int, many: int, set_up: Event) -> None:
    """Keeps 500 requests open by sending one header of each a second; those that are closed are opened again."""
    begun = b"POST /embed HTTP/1.1\r\nhost: x\r\n"
    held: list[socket.socket] = []
    for _ in range(min(many, 500)):
        held.append(connect(port))
        held[-1].sendall(begun)
    set_up.set()
    while True:
        for number, connection in enumerate(held):
            try:
                connection.sendall(b"x-a: b\r\n")
            except OSError:
                held[number] = connect(port)
                held[number].sendall(begun)
            time.sleep(0.002)


def sent(port: int, data: bytes) -> None:
    with contextlib.suppress(OSError), connect(port) as connection:
        connection.sendall(data)
        connection.settimeout(5)
        connection.recv(65536)


def headers(port: int, many: int, set_up: Event) -> None:
    """Floods with headers."""
    set_up.set()
    while True:
        sent(port, b"GET / HTTP/1.1\r\n" + b"".join(b"h%d: %s\r\n" % (i, b"x" * 100) for i in range(2000)) + b"\r\n")
        time.sleep(0.02)


def bodies(port: int, many: int, set_up: Event) -> None:
    """Sends bodies that are too large, do not end, or are no JSON."""
    set_up.set()
    big = b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 900000000\r\n\r\n" + bytes(200_000)
    junk = b"[" * 100_000
    wrong = b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
    bomb = zlib.compress(bytes(10_000_000))
    packed = b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n%s"
    while True:
        for data in (big, wrong % (len(junk), junk), packed % (len(bomb), bomb)):
            sent(port, data)
            time.sleep(0.02)


def noise(port: int, many: int, set_up: Event) -> None:
    """Sends random bytes and paths that lead out."""
    chance = random.Random(0)
    set_up.set()
    while True:
        sent(port, bytes(chance.randrange(256) for _ in range(200)) + b"\r\n\r\n")
        sent(port, b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        time.sleep(0.01)


def storm(port: int, many: int, set_up: Event) -> None:
    """Opens connections as fast as it can, each for one request."""
    set_up.set()
    request = b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
    while True:
        with contextlib.suppress(OSError), connect(port) as one:
            one.sendall(request)
            one.recv(65536)


ATTACKS = (idle, loris, headers, bodies, noise, storm)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact")
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--flags", default="", help="more for the server, as --flags='--max-connect-rate 50'")
    parser.add_argument("--only", choices=[attack.__name__ for attack in ATTACKS])
    given = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = subprocess.Popen(
        [sys.executable, "-m", "anynpu", "serve", f"m={given.artifact}", "--port", "0", "-f", "json",
         "--access-log", "none", "--max-connections", str(given.idle + 1000), *given.flags.split()],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        record = json.loads(server.stdout.readline())
        port = int(record["url"].rpartition(":")[2])
        text = record["models"][0]["kind"] == "embed-text"
        path = "/v1/embeddings" if text else "/v2/health/live"
        body = json.dumps({"input": "a sentence"}).encode() if text else None
        good(port, path, body, 2)
        for attack in (a for a in ATTACKS if given.only in (None, a.__name__)):
            before = good(port, path, body, given.seconds)
            set_up = multiprocessing.Event()
            process = multiprocessing.Process(target=attack, args=(port, given.idle, set_up), daemon=True)
            process.start()
            set_up.wait(120)
            under = good(port, path, body, given.seconds)
            process.kill()
            process.join()
            after = good(port, path, body, given.seconds)
            alone = [*before, *after]
            ratios = [percentile(under, share) / percentile(alone, share) for share in (0.5, 0.99)]
            files = len(list(Path(f"/proc/{server.pid}/fd").iterdir()))
            print(
                f"{attack.__name__:<8} alone p50 {percentile(alone, 0.5):.2f} p99 {percentile(alone, 0.99):.2f} ms, "
                f"under attack p50 {percentile(under, 0.5):.2f} p99 {percentile(under, 0.99):.2f} ms "
                f"({ratios[0]:.2f}x, {ratios[1]:.2f}x), {files} files open afterwards",
                flush=True,
            )
    finally:
        server.terminate()
        print("exit status", server.wait(60))


if __name__ == "__main__":
    main()
