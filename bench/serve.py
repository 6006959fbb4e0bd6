"""What `anynpu serve` costs beside the raw loop on the same cores, paired in one run; infinity_emb beside both.

    python bench/serve.py --one out/cpu
    python bench/serve.py --one out/cpu --beside http://127.0.0.1:7997/embeddings -o serve.json

`--one` is MiniLM built for one text of 12 tokens (scripts/models.sh fetches the weights):

    anynpu build -m anynpu.source.bert:minilm --ckpt .models/minilm.safetensors --task minilm -t cpu \\
        --tokenizer .models/minilm-tokenizer.json -O activations=float32 --data random:4 -o out \\
        --shape input_ids=1,12 --dtype input_ids=int64 --shape attention_mask=1,12 --dtype attention_mask=int64

The raw loop is tokenizers and onnxruntime with as many threads as the server (one): none of our code. Rounds of raw,
server, raw batch and server follow each other, so that what the machine does hits all of them; a ratio is the median of
those of the rounds. On a busy machine look at the processor time for one text, which others do not change.

HTTP work is the processor time of all threads of the server, as the kernel counts it and without the client's,
divided by the answers, for a model that answers at once: sockets, parsing, route, JSON both ways, metrics, writing.
Bare ASGI and bare httptools that only read and write the same JSON are measured in the same rounds. With a model that
does next to nothing, less what its raw loop takes, one sees what queue and device thread add.

Latency at one connection is that of a client that does nothing but write and read a socket, from before it writes
until it has the last byte, in blocks of 0.12 s (0.25 s for the NPU) between blocks of the raw loop: the machine's
mood changes within a second. Of each block the median; of those less the mean of the raw medians around them, the
median and the quartiles. The way through the kernel and the waking of the client are therefore counted as the
server's, and so they are for what it is compared with: a blocking socket with the model in the same thread, without
HTTP and without any other client, is the least that an answer over a connection takes on this machine. On a fake
libnoe with a job of 15 ms both sides do the same work: quantise, run and dequantise for real numbers, the run alone
for stored ones.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kit"))

TEXTS = (
    "how do i reset the old password of my account",
    "the river rose two metres in just one single night",
    "cheap flights from lisbon to oslo in very late october",
    "the big pump has lost pressure twice since last monday",
)
"""Twelve tokens each, with the two at the ends (checked)."""
LENGTH, JOB_MS = 12, 15


def raw_model(folder: Path, threads: int) -> tuple[Callable[[list[str]], np.ndarray], list[int]]:
    """tokenizers and onnxruntime, and the nanoseconds of every run of the model alone."""
    import onnxruntime
    from tokenizers import Tokenizer

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, ["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(next((folder / "assets").glob("*tokenizer.json"))))
    tokenizer.no_padding()
    lengths = {len(tokenizer.encode(text).ids) for text in TEXTS}
    assert lengths == {session.get_inputs()[0].shape[1]}, f"texts of {lengths} tokens"
    name = session.get_outputs()[0].name
    runs: list[int] = []

    def embed(texts: list[str]) -> np.ndarray:
        encoded = tokenizer.encode_batch(texts)
        ids = np.array([each.ids for each in encoded], np.int64)
        mask = np.array([each.attention_mask for each in encoded], np.int64)
        began = time.perf_counter_ns()
        (states,) = session.run([name], {"input_ids": ids, "attention_mask": mask})
        runs.append(time.perf_counter_ns() - began)
        if states.ndim == 2:  # the model pools and normalises by itself
            return states
        weights = mask[..., None].astype(np.float32)
        pooled = (states * weights).sum(1) / weights.sum(1)
        return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)

    return embed, runs


def raw_loop(folder: Path, rows: int, threads: int) -> None:
    """The child: reads seconds from stdin, loops so long, and prints what it did as a line of JSON."""
    embed, runs = raw_model(folder, threads)
    turn = itertools.count()

    def call() -> np.ndarray:
        first = next(turn)
        return embed([TEXTS[(first + at) % len(TEXTS)] for at in range(rows)])

    loop(call, rows, runs)


def socket_server(folder: Path, threads: int) -> None:
    """The child: a socket, the model and nothing else in one thread; no server in Python does less for an answer."""
    import socket

    import orjson

    embed, runs = raw_model(folder, threads)
    embed([TEXTS[0]])
    listener = socket.create_server(("127.0.0.1", 0))
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while request := connection.recv(65536):
        (vector,) = embed([orjson.loads(request.partition(b"\r\n\r\n")[2])["input"]])
        body = orjson.dumps({"data": [{"embedding": vector}]}, option=orjson.OPT_SERIALIZE_NUMPY)
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nserver-timing: run;dur=%.3f, \r\n\r\n"
        connection.sendall(head % (len(body), runs[-1] / 1e6) + body)


def loop(call: Callable[[], object], rows: int, runs: list[int] | None = None) -> None:
    """`runs` is where the call notes the nanoseconds of the model alone."""
    for _ in range(20):
        call()
    print(json.dumps({"rss": resident(os.getpid())}), flush=True)
    for line in sys.stdin:
        if runs:
            runs.clear()
        times, began, cpu = [], time.perf_counter(), time.process_time()
        while time.perf_counter() - began < float(line):
            start = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - start)
        wall, spent = time.perf_counter() - began, time.process_time() - cpu
        done = len(times) * rows
        record = {"per_s": done / wall, "cpu_us": 1e6 * spent / done, "p50_ms": statistics.median(times) / 1e6}
        if runs:
            record["run_ms"] = statistics.median(runs) / 1e6
        print(json.dumps(record), flush=True)


def resident(pid: int) -> int:
    """Bytes of a process that are in memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def processor_ns(pid: int) -> tuple[int, int]:
    """The processor time of a process's first thread, which is the one of the event loop, and of all of them."""
    times = {
        task.name: int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()
    }
    return times[str(pid)], sum(times.values())


class Child:
    """A program that is told seconds and answers with a line of JSON."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        argv = [sys.executable, __file__, *arguments]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        self.first = self.answer()

    def answer(self) -> dict[str, float]:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args} ended")
        return json.loads(line)

    def run(self, seconds: float) -> dict[str, float]:
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return self.answer()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def serving(*arguments: str, **environment: str):
    """Gives the URL of `anynpu serve`, its process, and the seconds until it was ready."""
    argv = [sys.executable, "-m", "anynpu", "serve", *arguments, "--port", "0", "--access-log", "none", "-f", "json"]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={**clean, **environment})
    try:
        if not select.select([process.stdout], [], [], 120)[0]:
            raise SystemExit("the server was not ready in 120 s")
        url = json.loads(process.stdout.readline())["url"]
        yield url, process, time.perf_counter() - began
    finally:
        process.terminate()
        process.wait(60)


class Caller:
    """One connection and nothing else: writes a request, reads the answer."""

    def __init__(self, url: str, path: str, body: bytes, kind: str = "application/json") -> None:
        import socket

        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n"
        head += f"content-length: {len(body)}\r\n\r\n"
        self.request = head.encode() + body
        self.connection = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self) -> int:
        """Asks once and returns the nanoseconds until the answer is there; reading what it says is not the server's."""
        start = time.perf_counter_ns()
        self.connection.sendall(self.request)
        answer = self.connection.recv(65536)
        took = time.perf_counter_ns() - start
        head, _, body = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise SystemExit(answer.decode(errors="replace"))
        self.run_ms = float(head.partition(b"run;dur=")[2].partition(b",")[0] or "nan")
        missing = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]) - len(body)
        while missing > 0:
            missing -= len(self.connection.recv(65536))
            took = time.perf_counter_ns() - start
        return took

    def p50_ms(self, seconds: float, pause_s: float = 0.0) -> float:
        """The median of calls; `runs_ms` then has what the server said of the model alone."""
        times, end, self.runs_ms = [], time.perf_counter() + seconds, []
        while time.perf_counter() < end:
            if pause_s:
                time.sleep(pause_s)
            times.append(self.call())
            self.runs_ms.append(self.run_ms)
        return statistics.median(times) / 1e6


def beyond(raw: Child, caller: Caller, blocks: int, seconds: float = 0.12) -> dict[str, float]:
    """What a call through HTTP takes beyond the same work in a loop, in blocks that follow each other.

    The same run of the model takes longer in one block than in the next. "without the model" is what is left when each
    side's own run is taken off: tokens, queue, threads and HTTP there, tokens and pooling here.
    """
    caller.p50_ms(1.0)
    apart, alone, own = [], [], []
    for _ in range(blocks):
        before, through, after = raw.run(seconds), caller.p50_ms(seconds), raw.run(seconds)
        alone.append((before["p50_ms"] + after["p50_ms"]) / 2)
        apart.append(through - alone[-1])
        if "run_ms" in before:
            around = alone[-1] - (before["run_ms"] + after["run_ms"]) / 2
            own.append(through - statistics.median(caller.runs_ms) - around)
    low, middle, high = statistics.quantiles(apart, n=4)
    record = {"median": middle, "quartiles": [low, high], "raw": statistics.median(alone), "blocks": blocks}
    return record | ({"without the model": statistics.quantiles(own, n=4)} if own else {})


class Client:
    """The load generator on one route, in a closed loop."""

    def __init__(self, url: str, source: Path, pid: int | None = None) -> None:
        from anynpu.measure.web.address import Address
        from anynpu.measure.web.bench import WebBench
        from anynpu.measure.web.forms import read_inputs
        from anynpu.measure.web.process import find_server
        from anynpu.measure.web.target import open_target

        address = Address.parse(url)
        target = open_target(address, read_inputs(source), timeout_s=60)
        self.bench = WebBench(target, *find_server(address, pid), 60)

    def run(self, connections: int, seconds: float, qps: float | None = None) -> dict[str, float]:
        from anynpu.measure.load import SERVER, SINGLE, Settings, WarmUp

        scenario = SINGLE if qps is None else SERVER
        settings = Settings(scenario, min_time_s=seconds, min_count=1, max_time_s=max(60.0, seconds), qps=qps)
        pid = self.bench.process.pids[0]
        before = processor_ns(pid)
        found = self.bench.run(settings, connections, WarmUp(0, 0.0, None))
        if found.checked.failed:
            raise SystemExit(f"failed: {found.checked.outcomes}")
        trace, answers = found.result.trace, len(found.checked.good)
        first, every = (after - at for after, at in zip(processor_ns(pid), before, strict=True))
        return {
            "loop_us": first / 1000 / answers,
            "per_s": answers / trace.wall_s(),
            "cpu_us": every / 1000 / answers,
            "p50_ms": statistics.median(trace.samples_ms()),
            "rss": found.server.rss_bytes,
        }


def middle(rounds: list[dict[str, dict[str, float]]], name: str, figure: str) -> float:
    return statistics.median(each[name][figure] for each in rounds)


def ratio(rounds: list[dict[str, dict[str, float]]], over: str, under: str, figure: str) -> dict[str, float]:
    """The median of the rounds' ratios, with the least and the greatest."""
    values = [each[over][figure] / each[under][figure] for each in rounds]
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def batched(options: argparse.Namespace, folder: Path) -> Path:
    """The same model for 32 texts at once, exported by torch: what the raw loop runs in batches."""
    import shutil

    import torch
    from safetensors.torch import load_file

    from anynpu.source.bert import minilm as network

    if options.many:
        return options.many
    place = folder / "many"
    shutil.copytree(options.one / "assets", place / "assets")
    model = network()
    model.load_state_dict(load_file(options.weights), strict=False)
    sample = torch.ones((32, LENGTH), dtype=torch.int64)
    names = ["input_ids", "attention_mask"]
    torch.onnx.export(model.eval(), (sample, sample), str(place / "model.onnx"), input_names=names, dynamo=True)
    return place


def minilm(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """The server on MiniLM beside the raw loops, in rounds."""
    texts = folder / "texts.txt"
    texts.write_text("\n".join(TEXTS) + "\n")
    with ExitStack() as stack:
        url, process, ready_s = stack.enter_context(serving(f"minilm={options.one}", "--threads", str(options.threads)))
        fresh = resident(process.pid)
        raw, batch = (
            stack.enter_context(Child("--raw", str(path), "--rows", rows, "--threads", str(options.threads)))
            for path, rows in ((options.one, "1"), (batched(options, folder), "32"))
        )
        server = Client(f"{url}/v1/embeddings", texts)
        beside = Client(options.beside, texts) if options.beside else None
        for connections in (1, 8, 64):
            server.run(connections, 1.0)
        question = json.dumps({"model": "minilm", "input": TEXTS[0]}).encode()
        bare = stack.enter_context(Child("--socket", str(options.one), "--threads", str(options.threads)))
        floor = beyond(raw, Caller(f":{bare.first['port']}", "/", question), options.blocks)
        alone = beyond(raw, Caller(url, "/v1/embeddings", question), options.blocks)
        rounds = []
        for number in range(options.rounds):
            found = {"raw": raw.run(options.seconds), "one": server.run(1, options.seconds)}
            found |= {"eight": server.run(8, options.seconds), "raw again": raw.run(options.seconds)}
            found |= {"raw 32": batch.run(options.seconds), "sixty-four": server.run(64, options.seconds)}
            if beside is not None:
                found |= {f"beside {n}": beside.run(n, options.seconds) for n in (1, 8, 64)}
            rounds.append(found)
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        record = {
            "ready_s": ready_s,
            "resident_bytes": {
                "fresh": fresh,
                "loaded": resident(process.pid),
                "bare session": raw.first["rss"],
                "bare batches": batch.first["rss"],
            },
            "throughput at 8 over raw": ratio(rounds, "eight", "raw", "per_s"),
            "throughput at 64 over raw batch 32": ratio(rounds, "sixty-four", "raw 32", "per_s"),
            "CPU of raw over that at 8": ratio(rounds, "raw", "eight", "cpu_us"),
            "CPU of raw batch 32 over that at 64": ratio(rounds, "raw 32", "sixty-four", "cpu_us"),
            "CPU us a request beyond raw batch 32 at 64": statistics.median(
                each["sixty-four"]["cpu_us"] - each["raw 32"]["cpu_us"] for each in rounds
            ),
            "p50 at 1 minus raw, ms": alone,
            "a socket and the model in one thread, p50 minus raw, ms": floor,
            "p50 at 1 minus raw, load generator, ms": statistics.median(
                r["one"]["p50_ms"] - r["raw"]["p50_ms"] for r in rounds
            ),
            "rounds": rounds,
        }
        for connections, name in ((1, "one"), (8, "eight"), (64, "sixty-four")) if beside else ():
            record[f"throughput at {connections} over {options.beside}"] = ratio(
                rounds, name, f"beside {connections}", "per_s"
            )
    return record


def http_work(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """The processor time of a request to a model that does next to nothing, of its raw loop, and of bare ASGI."""
    import text_model

    text_model.WIDTH = 384
    artifact = text_model.text_artifact(folder / "small" / "text")
    texts = folder / "small.txt"
    texts.write_text("\n".join(" ".join(text_model.WORDS[at : at + 6]) for at in range(4)) + "\n")
    with ExitStack() as stack:
        url, _, _ = stack.enter_context(serving(f"small={artifact.path}", "--threads", "1"))
        raw = stack.enter_context(Child("--small", str(artifact.path), "--texts", str(texts)))
        children = [stack.enter_context(Child(name)) for name in ("--fixed", "--bare", "--plain")]
        places = [url, *(f"http://127.0.0.1:{child.first['port']}" for child in children)]
        names = ("server", "web", "bare", "plain")
        clients = {name: Client(f"{at}/v1/embeddings", texts) for name, at in zip(names, places, strict=True)}
        for client in clients.values():
            client.run(8, 0.5)
        rounds = []
        for number in range(options.rounds):
            found = {"raw": raw.run(1.0)}
            for name, client in list(clients.items())[:: 1 if number % 2 else -1]:
                found |= {f"{name} {n}": client.run(n, options.seconds) for n in (8, 64)}
            rounds.append(found)
    record: dict[str, object] = {"CPU us of the model itself": middle(rounds, "raw", "cpu_us")}
    for count in (8, 64):
        name = f"server {count}"
        record |= {
            f"HTTP work, CPU us at {count}": middle(rounds, f"web {count}", "cpu_us"),
            f"bare ASGI on uvicorn, CPU us at {count}": middle(rounds, f"bare {count}", "cpu_us"),
            f"bare httptools on uvloop, CPU us at {count}": middle(rounds, f"plain {count}", "cpu_us"),
            f"HTTP work over bare ASGI at {count}": ratio(rounds, f"web {count}", f"bare {count}", "cpu_us"),
            f"event loop, CPU us at {count}": middle(rounds, name, "loop_us"),
            f"all threads, CPU us at {count}": middle(rounds, name, "cpu_us"),
            f"all threads beyond the model's raw loop, CPU us at {count}": statistics.median(
                each[name]["cpu_us"] - each["raw"]["cpu_us"] for each in rounds
            ),
        }
    return record | {"rounds": rounds}


def bare_server() -> None:
    """The child: one fixed answer of 384 floats from plain ASGI on uvicorn."""
    import socket

    import orjson
    import uvicorn

    vector = np.random.default_rng(0).normal(size=384).astype(np.float32)
    data = {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": vector}], "model": "m"}

    async def app(scope: dict, receive: Callable, send: Callable) -> None:
        orjson.loads((await receive())["body"] or b"{}")
        body = orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    config = uvicorn.Config(app, log_level="error", http="httptools", loop="uvloop", access_log=False, lifespan="off")
    uvicorn.Server(config).run(sockets=[listener])


def plain_server() -> None:
    """The child: the same answer from httptools on uvloop and nothing else; no server in Python does less."""
    import asyncio

    import httptools
    import orjson
    import uvloop

    vector = np.random.default_rng(0).normal(size=384).astype(np.float32)
    data = {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": vector}], "model": "m"}

    class Plain(asyncio.Protocol):
        body = b"{}"

        def connection_made(self, transport: asyncio.Transport) -> None:
            self.transport, self.parser = transport, httptools.HttpRequestParser(self)

        def data_received(self, data: bytes) -> None:
            self.parser.feed_data(data)

        def on_body(self, body: bytes) -> None:
            self.body = body

        def on_message_complete(self) -> None:
            orjson.loads(self.body)
            body = orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY)
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
            self.transport.write(head + body)

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(Plain, "127.0.0.1", 0, backlog=512)
        print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
        await server.serve_forever()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


def fixed_server() -> None:
    """The child: our own routes over a model that answers at once."""
    from anynpu.apps.serve.base import Answer, Health, Info, Limits, Request, Then
    from anynpu.apps.serve.desk import Desk
    from anynpu.apps.serve.site import build_app
    from anynpu.apps.web.server import Life, bind, run

    class Fixed:
        name, kind, limits = "m", "embed-text", Limits()
        stages = dict.fromkeys(("queue", "prepare", "run", "finish"), 0.001)
        vectors = np.random.default_rng(0).normal(size=(1, 384)).astype(np.float32)

        def ask(self, request: Request, then: Then, early: object = None) -> None:
            then(Answer(self.name, "0" * 64, "none", self.vectors, tokens=8, stages=self.stages))

        def info(self) -> Info:
            return Info(self.name, self.kind, "0" * 64, {}, "none", "none", "nothing", (), (), self.limits, width=384)

        def health(self) -> Health:
            return Health("ready")

    class Fleet:
        models = {"m": Fixed()}  # noqa: RUF012

    listener = bind("127.0.0.1", 0)
    desk = Desk(Fleet())
    desk.started = True
    ready = Life(ready=lambda: print(json.dumps({"port": listener.getsockname()[1]}), flush=True))
    run(build_app(desk), [listener], ready)


def small_loop(folder: Path, texts: Path) -> None:
    """The child: the small model by tokenizers and onnxruntime alone."""
    import onnxruntime
    from tokenizers import Tokenizer

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), settings, ["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(next((folder / "assets").glob("*tokenizer.json"))))
    tokenizer.enable_padding(length=session.get_inputs()[0].shape[1])
    lines = texts.read_text().splitlines()

    def embed() -> np.ndarray:
        encoded = tokenizer.encode(lines[0])
        ids, mask = np.array([encoded.ids], np.int64), np.array([encoded.attention_mask], np.int64)
        (states,) = session.run(None, {"input_ids": ids, "attention_mask": mask})
        pooled = (states * mask[..., None]).sum(1) / mask.sum()
        return pooled / np.linalg.norm(pooled)

    loop(embed, 1)


def npu(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """The server over the fake libnoe, whose job takes 15 ms, beside the pipeline alone."""
    from anynpu.tensors import Quantization, TensorSpec
    from anynpu.testing import noe

    spec_in = TensorSpec("x", (1, 308), "int8", quantization=Quantization((0.5,), (3,)))
    spec_out = TensorSpec("y", (1, 512), "int8", quantization=Quantization((0.25,), (-2,)))
    artifact = noe.model(folder / "noe", [spec_in], [spec_out])
    library = noe.build_fake(folder)
    environment = noe.environment(library, DELAY_US=1000 * JOB_MS)
    sample = folder / "x.npy"
    np.save(sample, np.arange(308, dtype=np.int8).reshape(1, 308))
    kind, stored = "application/octet-stream", np.load(sample)
    with ExitStack() as stack:
        url, _, _ = stack.enter_context(serving(f"npu={artifact.path}", **environment))
        raw, run = (
            stack.enter_context(Child(name, str(artifact.path), **environment)) for name in ("--pipeline", "--run")
        )
        bare = Caller(f":{stack.enter_context(Child('--bare')).first['port']}", "/", b"{}")
        floor = bare.p50_ms(2.0, JOB_MS / 1000)
        real = Caller(url, "/infer?stored=false", spec_in.to_real(stored).tobytes(), kind)
        alone = beyond(raw, real, options.blocks, 0.25)
        bytes_alone = beyond(run, Caller(url, "/infer", stored.tobytes(), kind), options.blocks, 0.25)
        server = Client(f"{url}/infer", sample)
        rounds = [
            {"run": run.run(options.seconds), "server": server.run(1, options.seconds)} for _ in range(options.rounds)
        ]
    apart = [each["server"]["p50_ms"] - each["run"]["p50_ms"] for each in rounds]
    return {
        "real numbers, end to end minus pipeline, ms": alone,
        "stored numbers, end to end minus session.run, ms": bytes_alone,
        "bare ASGI on uvicorn that does nothing, asked every 15 ms, p50 ms": floor,
        "stored numbers, end to end minus session.run, load generator, ms": statistics.median(apart),
        "rounds": rounds,
    }


def npu_loop(folder: Path, whole: bool) -> None:
    """The child: quantise, run, dequantise, in one process; or the run alone."""
    from anynpu.measure.subject import Pipeline
    from anynpu.runtime.base import open_artifact, open_session

    session = open_session(open_artifact(folder))
    inputs = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in session.inputs}
    loop(Pipeline(session, inputs).call if whole else lambda: session.run(inputs), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", type=Path, help="the artifact for one text")
    parser.add_argument("--many", type=Path, help="a folder with the same model for 32 texts; exported if not given")
    parser.add_argument("--weights", type=Path, default=Path(".models/minilm.safetensors"))
    parser.add_argument("--beside", help="URL of another server's OpenAI embeddings, measured in the same rounds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--blocks", type=int, default=40, help="short blocks of raw, server, raw at one connection")
    parser.add_argument("--threads", type=int, default=1, help="of the server and of the raw loops")
    parser.add_argument("--only", choices=("minilm", "http", "npu"))
    parser.add_argument("-o", "--output", type=Path)
    for name in ("raw", "socket", "small", "texts", "pipeline", "run"):
        parser.add_argument(f"--{name}", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    for name in ("bare", "plain", "fixed"):
        parser.add_argument(f"--{name}", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.raw:
        return raw_loop(options.raw, options.rows, options.threads)
    if options.socket:
        return socket_server(options.socket, options.threads)
    if options.small:
        return small_loop(options.small, options.texts)
    if options.pipeline or options.run:
        return npu_loop(options.pipeline or options.run, options.pipeline is not None)
    if options.bare:
        return bare_server()
    if options.plain:
        return plain_server()
    if options.fixed:
        return fixed_server()
    record = {}
    with tempfile.TemporaryDirectory(prefix="anynpu-serve-") as scratch:
        for name, part in (("minilm", minilm), ("http", http_work), ("npu", npu)):
            if options.only in (None, name):
                record[name] = part(options, Path(scratch))
    text = json.dumps(record, indent=1)
    if options.output:
        options.output.write_text(text + "\n")
    shown = {name: {k: v for k, v in part.items() if k != "rounds"} for name, part in record.items()}
    print(json.dumps(shown, indent=1))
    return None


if __name__ == "__main__":
    main()
