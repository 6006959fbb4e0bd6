"""anynpu bench http://...: honest figures of servers that others wrote, well and badly behaved."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import uuid

import jsonschema
import numpy as np
import openai
import openai_form
import pytest
from desks import desk_of, site
from plain_fleet import PlainModel
from running import until

from anynpu.cli.main import main
from anynpu.measure.web.exchange import NotHttpError, Parser
from anynpu.records.load import load, published

QUICK = ("--min-time", "0.2", "--min-count", "20", "--warmup", "3", "-q", "-f", "json")


@pytest.fixture(scope="module")
def foreign():
    with openai_form.running() as found:
        yield found


@pytest.fixture
def bench(capsys):
    def call(*words):
        status = main(["bench", *map(str, words)])
        return status, *capsys.readouterr()

    return call


def measured(bench, *words, status=0):
    got, out, err = bench(*words)
    assert got == status, err
    return json.loads(out)


def test_the_server_speaks_openais_form(foreign):
    """The judge of the form is the client that OpenAI publishes."""
    with openai.OpenAI(api_key="x", base_url=f"{foreign.url}/ok/v1") as client:
        answer = client.embeddings.create(model="points", input=["a", "b"])
        plain = client.embeddings.create(model="points", input=["a", "b"], encoding_format="float")
    rows = [each.embedding for each in sorted(answer.data, key=lambda each: each.index)]
    assert np.allclose(rows, [openai_form.vector("a", "ok"), openai_form.vector("b", "ok")], atol=1e-5)
    assert len(plain.data) == 2


def test_a_closed_loop_and_its_record(bench, foreign, tmp_path):
    record = measured(bench, f"{foreign.url}/slow/v1/embeddings", *QUICK, "--connections", 4, "-o", tmp_path / "r.json")
    assert record == json.loads((tmp_path / "r.json").read_text())
    load(record, "the record")
    jsonschema.validate(record, published("bench"))
    web = record["http"]
    assert (record["scope"], web["loop"], web["label"]) == ("http", "closed", "client-side latency")
    assert web["connections"] == {"limit": 4, "opened": 4, "most_busy": 4} and web["model"] == "points"
    assert record["latency"]["summary"]["min"] >= 9 and record["runs"] == web["requests"] >= 20
    assert web["outcomes"] == {"200": record["runs"]} and web["failed"] == 0
    assert record["outputs"]["checked"] == record["runs"] and record["outputs"]["width"] == openai_form.WIDTH
    process = web["server"]["process"]
    assert foreign.process.pid in process["pids"] and process["rss_bytes"] > 1e6
    assert web["client"]["no_op"]["median_ms"] > 0 and web["server"]["software"] == "uvicorn"


def test_an_open_loop_counts_from_the_arrival(bench, foreign):
    record = measured(bench, f"{foreign.url}/slow/v1/embeddings", *QUICK, "--qps", 80, "--connections", 1)
    # one connection answers less than 100 a second: what arrives meanwhile waits, and the waiting is latency
    assert record["http"]["loop"] == "open" and record["queue"]["unanswered"] == 0
    assert list(record["stages"]) == ["queue", "wait", "receive"] and record["stages"]["queue"]["max"] > 5
    assert abs(record["reconciled"]["unexplained"]) < 1e-6


def test_a_stall_is_seen_by_all_that_arrive_meanwhile(bench, foreign):
    words = ("--min-time", 1.5, "--min-count", 100, "--warmup", 0, "-q", "-f", "json")
    loops = []
    for _ in range(5):  # a machine that stalls by itself adds to both: then once more
        routes = [f"{foreign.url}/stall-{uuid.uuid4().hex}/v1/embeddings" for _ in range(2)]
        records = [measured(bench, routes[0], "--qps", 100, *words), measured(bench, routes[1], *words)]
        loops.append([sum(ms > 150 for ms in record["latency"]["samples"]) for record in records])
        assert all(max(record["latency"]["samples"]) > 500 for record in records)
        # 0.6 s at 100 a second: some 45 requests met more than 150 ms of it; a closed loop has one request under way
        if loops[-1][0] >= 20 and loops[-1][0] > 5 * loops[-1][1]:
            return
    raise AssertionError(f"stalled requests of the open and the closed loop: {loops}")


def test_failures_are_counted_by_status(bench, foreign):
    record = measured(
        bench, f"{foreign.url}/errors/v1/embeddings", "-n", 60, "--warmup", 0, "-q", "-f", "json", status=1
    )
    web = record["http"]
    assert web["outcomes"]["503"] == web["failed"] == 20 and web["outcomes"]["200"] == record["runs"] == 40
    assert "the device is busy" in web["example"] and any("20 of 60 requests failed" in w for w in record["warnings"])
    status, out, _ = bench(f"{foreign.url}/errors/v1/embeddings", "-n", 60, "--warmup", 0, "-q")
    assert status == 1 and "20 x 503" in out


def test_a_width_that_changes_is_a_failure(bench, foreign):
    record = measured(
        bench, f"{foreign.url}/width/v1/embeddings", "-n", 20, "--warmup", 0, "-q", "-f", "json", status=1
    )
    assert record["http"]["failed"] == 10 and any(", width " in name for name in record["http"]["outcomes"])


@pytest.mark.parametrize(
    ("route", "said", "hint"),
    [
        ("/nan/v1/embeddings", "NaN", ""),
        ("/text/v1/embeddings", "not valid JSON", ""),
        ("/moved/v1/embeddings", "redirects to /ok/v1/embeddings (HTTP 307)", "hint: name /ok/v1/embeddings"),
        ("/secret/v1/embeddings", "HTTP 401", "hint: give --token"),
        ("/gone/v2/embeddings/no", "do not go there", ""),
        ("/ok/embeddings/../none/embed/x/embeddings2", "do not go there", "a JSON file"),
    ],
)
def test_what_cannot_be_measured_is_said_at_the_first_request(bench, foreign, route, said, hint):
    status, out, err = bench(foreign.url + route, *QUICK[:-2])
    assert status in (2, 6) and said in err and hint in err and "latency" not in out, err


def test_too_few_vectors(bench, foreign):
    status, _, err = bench(f"{foreign.url}/short/v1/embeddings", "--batch", 2, *QUICK)
    assert status == 6 and "1 vectors for 2 texts" in err


def test_a_token_opens_the_door(bench, foreign):
    measured(bench, f"{foreign.url}/secret/v1/embeddings", "--token", "open sesame", *QUICK)


def test_no_answer_in_time(bench, foreign):
    status, _, err = bench(f"{foreign.url}/never/v1/embeddings", "--timeout", 0.3, *QUICK)
    assert status == 6 and "timed out" in err and "--timeout" in err


def test_nobody_listens(bench):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        status, _, err = bench(f"http://127.0.0.1:{free.getsockname()[1]}", *QUICK)
    assert status == 6 and "http://127.0.0.1" in err and "not there" in err


def test_something_else_listens(bench):
    listener = socket.create_server(("127.0.0.1", 0))

    def greet():
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            peer.sendall(b"SSH-2.0-OpenSSH_9.6\r\n" * 2)
            peer.close()

    threading.Thread(target=greet, daemon=True).start()
    status, _, err = bench(f"http://127.0.0.1:{listener.getsockname()[1]}/v1/embeddings", *QUICK)
    listener.close()
    assert status == 6 and ("not HTTP" in err or "connection closed" in err)


def test_connections_that_are_closed_after_each_answer(bench, foreign):
    record = measured(bench, f"{foreign.url}/closing/v1/embeddings", "-n", 30, "--warmup", 0, "-q", "-f", "json")
    assert record["http"]["connections"]["opened"] >= 30 and record["http"]["failed"] == 0


def test_base64_and_the_other_forms(bench, foreign, tmp_path):
    assert measured(bench, f"{foreign.url}/base64/v1/embeddings", *QUICK)["outputs"]["width"] == openai_form.WIDTH
    record = measured(bench, f"{foreign.url}/ok/embed", "--batch", 5, *QUICK)
    assert (record["http"]["route"], record["http"]["batch"]) == ("tei", 5)
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.float32))
    assert (
        measured(bench, f"{foreign.url}/v2/models/points/infer", "-i", tmp_path / "x.npy", *QUICK)["http"]["failed"]
        == 0
    )
    record = measured(bench, f"{foreign.url}/infer", "-i", tmp_path / "x.npy", *QUICK)
    assert record["http"]["route"] == "infer"
    (tmp_path / "p.png").write_bytes(b"\x89PNG not really")
    assert measured(bench, foreign.url, "-i", tmp_path / "p.png", *QUICK)["http"]["url"].endswith("/detect")
    (tmp_path / "b.json").write_text('{"input": "x", "model": "y"}')
    assert measured(bench, f"{foreign.url}/ok/v1/embeddings", "--body", tmp_path / "b.json", *QUICK)["runs"] >= 20


def test_texts_of_the_user_are_sent(bench, foreign, tmp_path):
    (tmp_path / "texts.txt").write_text("één\n\ntwee\n")
    record = measured(bench, f"{foreign.url}/ok/v1/embeddings", "-i", tmp_path / "texts.txt", *QUICK)
    assert record["input"] == f"2 texts of {tmp_path / 'texts.txt'}" and record["outputs"]["distinct"] == 2


def test_the_limit_lies_where_the_server_saturates(bench, foreign):
    words = ("--limit", "--min-time", "0.3", "--min-count", "10", "--connections", 2, "--warmup", 3, "-q", "-f", "json")
    record = measured(bench, f"{foreign.url}/slow/v1/embeddings", *words)
    limit = record["http"]["limit"]
    jsonschema.validate(record, published("bench"))
    assert 0 < limit["closed_per_s"] <= 200  # two connections, 10 ms an answer
    assert limit["kept_per_s"] is None or limit["kept_per_s"] <= 220
    assert {step["rate_per_s"] is None for step in limit["steps"]} == {True, False}


def test_a_server_that_dies_leaves_what_was_measured(bench):
    with openai_form.running() as mortal:
        words = ("--qps", 50, "--min-time", 20, "--warmup", 0, "-q", "-f", "json")
        status, out, err = bench(f"{mortal.url}/dies-60/v1/embeddings", *words)
    record = json.loads(out)
    assert status == 6 and not record["complete"] and record["runs"] > 0 and "not there, or it went away" in err
    assert record["http"]["server"]["why"] == "its process ended while it was measured"


def test_a_server_that_dies_ends_the_search_for_its_limit(bench):
    with openai_form.running() as mortal:
        # The first step is at most 30 requests, and all of them together are many more than 70.
        words = ("--limit", "--min-time", 0.3, "--min-count", 20, "--warmup", 0, "-q", "-f", "json")
        status, out, _ = bench(f"{mortal.url}/dies-70/v1/embeddings", *words)
    record = json.loads(out)
    assert status == 6 and not record["complete"] and record["http"]["limit"]["steps"]
    jsonschema.validate(record, published("bench"))


def test_an_interruption_leaves_what_was_measured(foreign):
    argv = [
        sys.executable,
        "-m",
        "anynpu",
        "bench",
        f"{foreign.url}/interrupted/v1/embeddings",
        "--min-time",
        "600",
        "--warmup",
        "3",
        "-f",
        "json",
    ]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: foreign.seen("interrupted") > 50)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    record = json.loads(out)
    assert process.returncode == 130 and record["runs"] > 5 and not record["complete"] and "interrupted" in err


@pytest.mark.parametrize(
    "url", ["http://", "http://x:port/", "http://a b/", "http://u:p@x/", "http://x:0/", "https://[::1"]
)
def test_urls_that_are_none(bench, url):
    status, _, err = bench(url, *QUICK)
    assert status == 2 and url in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--on", "ort"], "--on has no effect here: a server is measured"),
        (["--scope", "infer"], "--scope has no effect"),
        (["--energy-csv", "x.csv"], "--energy-csv has no effect"),
        (["--scenario", "offline"], "offline is for artifacts"),
        (["--limit", "--qps", "3"], "--limit finds the rate itself"),
        (["--pid", "4194304"], "no such process"),
        (["-i", "none.txt"], "none.txt"),
        (["--bound", "5"], "--bound belongs to the scenario server"),
        (["--token", "ü"], "printable ASCII"),
    ],
)
def test_flags_that_have_no_use(bench, foreign, words, said):
    status, out, err = bench(f"{foreign.url}/ok/v1/embeddings", *words, "-q")
    assert status == 2 and out == "" and said in err, err


def test_flags_of_servers_have_no_use_for_artifacts(bench):
    status, _, err = bench("out/cpu", "--batch", 3)
    assert status == 2 and "--batch has no effect here" in err


def test_a_server_that_is_still_loading(bench):
    desk = desk_of(PlainModel("text", "embed-text"))
    desk.started = False
    with site(desk) as client:
        status, _, err = bench(f"http://127.0.0.1:{client.port}", *QUICK)
    assert status == 6 and "not ready" in err


def test_our_own_server_with_several_models(bench, server, png, tmp_path):
    """A bare URL finds the model and the route that fit what is sent; `server` is ours, with five models."""
    url = f"http://127.0.0.1:{server.port}"
    record = measured(bench, url, *QUICK)
    assert record["http"]["model"] == "text" and record["outputs"]["width"] == 16
    assert record["http"]["server"]["info"]["server"] == "anynpu" and record["http"]["server"]["info_digest"]
    (tmp_path / "p.png").write_bytes(png)
    record = measured(bench, url, "-i", tmp_path / "p.png", *QUICK)
    assert (record["http"]["model"], record["http"]["route"]) == ("finder", "detect")
    assert measured(bench, f"{url}/classify", "-i", tmp_path / "p.png", *QUICK)["http"]["model"] == "judge"
    assert measured(bench, url, "-i", tmp_path / "p.png", "--model", "judge", *QUICK)["http"]["route"] == "classify"
    status, _, err = bench(url, "--model", "nobody", *QUICK)
    assert status == 6 and "HTTP 404" in err and "nobody" in err


@pytest.mark.parametrize("size", [1, 3, 7, 10**6])
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nTrailer: x\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 No\r\ncontent-length:5\r\nConnection: close\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nServer: old\r\n\r\nhello",
        b"HTTP/1.1 204 No Content\r\nX: y\r\n\r\n",
    ],
)
def test_answers_are_read_as_pythons_own_client_reads_them(answer, size):
    parser, found = Parser(), None
    for at in range(0, len(answer), size):
        found = parser.feed(answer[at : at + size]) or found
    found = found or parser.end()
    left, right = socket.socketpair()
    with left, right:
        right.sendall(answer)
        right.shutdown(socket.SHUT_WR)
        judge = http.client.HTTPResponse(left, method="POST")
        judge.begin()
        assert found is not None and (found[0], found[2]) == (judge.status, judge.read())
        assert parser.keeps == (not judge.will_close)


@pytest.mark.parametrize("data", [b"SSH-2.0-x\r\n\r\n", b"HTTP/2 200\r\n\r\n", b"x" * 100_000, b"HTTP/1.1 abc\r\n\r\n"])
def test_what_is_not_http(data):
    with pytest.raises(NotHttpError):
        Parser().feed(data)
