"""`anynpu serve` as users call it: a real process, real sessions, signals, sockets, tokens, units."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
from engine_models import linear
from process import served
from running import until
from text_model import expected, text_artifact

from anynpu.cli.main import main

pytest.importorskip("onnxruntime")
pytest.importorskip("tokenizers")
openai = pytest.importorskip("openai")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    text_artifact(folder / "text")
    linear(folder / "net")
    return folder


@pytest.fixture(scope="module")
def server(place):
    with served(place, "words=text", "net") as running:
        yield running


def test_the_ready_line_names_url_and_models(server):
    assert server.record["ready"] and server.record["url"].startswith("http://127.0.0.1:")
    assert [(m["name"], m["kind"], m["device"]) for m in server.record["models"]] == [
        ("words", "embed-text", "ort"),
        ("net", "tensors", "ort"),
    ]


def test_the_openai_client_gets_the_vectors_of_the_model(server):
    with openai.OpenAI(base_url=f"{server.record['url']}/v1", api_key="x", max_retries=0) as client:
        made = client.embeddings.create(model="words", input=["the red cat", "a bus"])
        assert np.allclose(made.data[0].embedding, expected("the red cat"), atol=1e-5)
        assert np.allclose(made.data[1].embedding, expected("a bus"), atol=1e-5)
        assert made.usage.prompt_tokens == 9
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model="gpt", input="x")


def test_every_form_gives_the_same_vector(server):
    wanted = expected("the red cat")
    client = server.client
    answers = [
        client("POST", "/v1/embeddings", {"input": "the red cat"}).json()["data"][0]["embedding"],
        client("POST", "/embed", {"inputs": "the red cat"}).json()[0],
        client("POST", "/embed", {"text": "the red cat"}).json()["embedding"],
        client("POST", "/embedding", {"content": "the red cat"}).json()[0]["embedding"][0],
        client("POST", "/v1/embeddings", {"input": [2, 5, 13, 6, 3]}).json()["data"][0]["embedding"],
    ]
    for answer in answers:
        assert np.allclose(answer, wanted, atol=1e-5)
    long = client("POST", "/embed", {"inputs": "cat " * 40})
    assert (long.status, long.headers["x-truncated"]) == (200, "1")
    assert client("POST", "/embed", {"inputs": "cat " * 40, "truncate": False}).status == 413
    assert client("POST", "/v1/embeddings", {"input": [9999]}).status == 422


def test_tensors(server):
    reply = server.client("POST", "/infer", {"model": "net", "inputs": [[0, 1, 2, 3, 4, 5, 6, 7]]})
    assert reply.json()["outputs"]["y"]["data"] == [[0, 2, 4, 6, 8, 10, 12, 14]]
    raw = server.client("POST", "/infer?model=net", np.arange(8, dtype="<f4").tobytes(),
                        content_type="application/octet-stream")  # fmt: skip
    assert np.frombuffer(raw.body, "<f4").tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    body = {"inputs": [{"name": "x", "shape": [1, 8], "datatype": "FP32", "data": list(range(8))}]}
    assert server.client("POST", "/v2/models/net/infer", body).json()["outputs"][0]["data"][3] == 6


def test_a_page_of_another_site_cannot_reach_it(server):
    assert server.client("GET", "/v1/models", host="evil.example").status == 421
    assert server.client("GET", "/v1/models", host="localhost:8000").status == 200


def test_state_and_metrics(server):
    assert server.client("GET", "/health").json()["status"] == "ok"
    assert server.client("GET", "/ready").status == 200
    info = server.client("GET", "/info").json()
    assert set(info["models"]) == {"words", "net"} and info["models"]["net"]["format"] == "onnx"
    server.client("POST", "/embed", {"inputs": "a cat"})
    text = server.client("GET", "/metrics").body.decode()
    assert 'anynpu_stage_seconds_count{model="words",stage="run"}' in text
    assert 'anynpu_batch_rows_count{model="words"' in text and "anynpu_queue_items" in text


def test_an_access_log_line_has_the_model_and_its_stages(server):
    server.client("POST", "/embed", {"inputs": "a cat"}, x_request_id="look-here")
    found = until(lambda: [line for line in server.log() if line.get("id") == "look-here"])
    assert (found[0]["model"], found[0]["status"], found[0]["path"]) == ("words", 200, "/embed")
    assert set(found[0]["stages_ms"]) >= {"queue", "run"}


def test_sigterm_answers_what_is_in_flight_and_ends_well(place, tmp_path):
    with served(place, "words=text") as running:
        statuses = []

        def call():
            for _ in range(200):
                try:
                    statuses.append(running.client("POST", "/embed", {"inputs": "cat"}).status)
                except OSError:
                    return  # the listener is closed

        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        until(lambda: len(statuses) >= 20)
        assert running.stop() == 0
        for thread in threads:
            thread.join()
        assert set(statuses) == {200}


def test_ctrl_c_is_130(place):
    with served(place, "net") as running:
        assert running.stop(signal.SIGINT) == 130


def test_sighup_loads_the_model_again(place, tmp_path):
    folder = tmp_path / "m"
    linear(folder / "net", 2.0)
    with served(folder, "net") as running:
        ask = {"inputs": [[1] * 8]}
        before = running.client("POST", "/infer", ask)
        shutil.rmtree(folder / "net")
        linear(folder / "net", 3.0)
        running.process.send_signal(signal.SIGHUP)
        until(lambda: running.client("POST", "/infer", ask).json()["outputs"]["y"]["data"][0][0] == 3)
        after = running.client("POST", "/infer", ask)
        assert before.headers["x-model-version"] != after.headers["x-model-version"]
        assert running.stop() == 0
        assert [line for line in running.log() if line.get("message", "").startswith("reloaded net")]


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


def test_a_unix_socket_with_admin_routes(place, tmp_path):
    path = str(tmp_path / "s")
    with served(place, "net", "--socket", path, "--admin") as running:
        assert running.record["url"] == f"unix:{path}"
        connection = UnixConnection(path)
        connection.request("POST", "/admin/reload", b"{}", {"content-type": "application/json"})
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["model"]) == (200, "net")
        connection.close()
        assert running.stop() == 0
    assert not Path(path).exists()


def test_a_token_from_a_file_or_the_environment_is_never_shown(place, tmp_path):
    secret = tmp_path / "token"
    secret.write_text("s3cret-1\ns3cret-2\n")
    secret.chmod(0o600)
    with served(place, "net", "--token-file", str(secret), ANYNPU_SERVE_TOKEN="s3cret-3") as running:
        for token, status in (("s3cret-1", 200), ("s3cret-3", 200), ("s3cret", 401), ("", 401)):
            assert running.client("GET", "/v1/models", authorization=f"Bearer {token}").status == status
        assert running.client("GET", "/v1/models").status == 401
        assert running.client("GET", "/health").status == 200
        running.stop()
        assert "s3cret" not in running.errors.read_text() + json.dumps(running.record)


def test_systemd_hears_ready_and_the_watchdog(place, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as box:
        box.bind(str(tmp_path / "n"))
        box.settimeout(60)
        with served(place, "net", NOTIFY_SOCKET=str(tmp_path / "n"), WATCHDOG_USEC="300000") as running:
            seen = [box.recv(4096) for _ in range(3)]
            assert seen[0].startswith(b"READY=1\n") and seen[1:] == [b"WATCHDOG=1"] * 2
            running.process.send_signal(signal.SIGTERM)
            while not (message := box.recv(4096)).startswith(b"STOPPING=1"):
                assert message == b"WATCHDOG=1"
            assert running.process.wait(60) == 0


def test_an_open_address_is_warned_of(place):
    with served(place, "net", "--host", "0.0.0.0") as running:
        assert "whoever reaches this computer can use the models" in running.errors.read_text()


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["nowhere"], 2, "nowhere"),
        ([], 2, "no artifact is named"),
        (["net", "net"], 2, "two models would be called net"),
        (["=net"], 2, "NAME=ARTIFACT was expected"),
        (["net", "--admin"], 2, "anyone could reload models"),
        (["net", "--host", "no.such.host.invalid"], 2, "no such address"),
        (["net", "--port", "99999"], 2, "99999"),
        (["net", "--token-file", "nothing"], 2, "--token-file nothing"),
        (["net", "--token", "a b"], 2, "no header can carry"),
        (["net", "--cors", "example.org"], 2, "an origin was expected"),
        (["net", "--on", "nodevice"], 2, "nodevice"),
        (["net", "--access-log", "no/such/folder/log"], 2, "--access-log"),
        (["net", "--overwrite"], 2, "--overwrite has no effect"),
        (["net", "--token", "t", "--systemd", "-"], 2, "give --token-file"),
        (["net", "--socket", "card.toml"], 2, "not a socket"),
    ],
)
def test_what_cannot_be_served_ends_with_a_sentence(place, monkeypatch, capfd, arguments, status, words):
    monkeypatch.chdir(place)
    assert main(["serve", *arguments]) == status
    errors = capfd.readouterr().err
    assert words in errors and "a b" not in errors


def test_an_artifact_that_has_changed_is_not_served(place, tmp_path, capfd):
    shutil.copytree(place / "net", tmp_path / "net")
    model = tmp_path / "net" / "model.onnx"
    model.write_bytes(model.read_bytes()[:-1] + b"x")
    assert main(["serve", str(tmp_path / "net"), "--port", "0"]) == 8
    assert "has changed since it was made" in capfd.readouterr().err


def test_a_port_in_use_is_found_before_any_model_is_loaded(place, capfd):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        assert main(["serve", "nowhere", "--port", str(busy.getsockname()[1])]) == 2
    assert "in use" in capfd.readouterr().err


def test_the_unit_is_accepted_by_systemd(cli, place, tmp_path):
    (tmp_path / "t").write_text("abc")
    unit = tmp_path / "anynpu.service"
    done = cli("serve", "words=text", "net", "--on", "net=ort", "--port", "8091", "--token-file", str(tmp_path / "t"),
               "--fallback", "cpu", "--systemd", str(unit), cwd=place)  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = unit.read_text()
    assert "Type=notify" in text and f"words={place / 'text'}" in text and "--token-file %d/token" in text
    assert "--on net=ort" in text and "--port 8091" in text and "WatchdogSec=" in text
    assert cli("serve", "net", "--systemd", str(unit), cwd=place).returncode == 2  # it is there already
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    program = text.partition("ExecStart=")[2].split()[0]
    if not Path(program).exists():
        unit.write_text(text.replace(program, shutil.which("true")))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    complaints = [line for line in done.stderr.splitlines() if "anynpu.service" in line]
    assert complaints == [], done.stderr


def test_the_compose_file_holds_what_was_asked(cli, place):
    import yaml

    done = cli("serve", "words=text", "--max-queue", "7", "--docker", "-", cwd=place)
    assert done.returncode == 0, done.stderr
    service = yaml.safe_load(done.stdout)["services"]["anynpu"]
    assert service["command"][:3] == ["anynpu", "serve", f"words={place / 'text'}"]
    limits = ["--max-queue", "7", "--max-per-address", "0", "--max-connect-rate", "0"]
    assert service["command"][3:] == [*limits, "--host", "0.0.0.0", "--port", "8000"]
    assert service["ports"] == ["127.0.0.1:8000:8000"] and service["read_only"] and service["cap_drop"] == ["ALL"]
    assert service["volumes"] == [f"{place / 'text'}:{place / 'text'}:ro"]


def test_the_names_of_the_guides_server_count(place):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with served(place, PORT=str(port), MODEL_PATH=str(place / "net")) as running:
        assert running.record["models"][0]["name"] == "net"
        assert running.record["url"] == f"http://127.0.0.1:{port}"


def test_help_teaches(cli):
    text = cli("serve", "--help").stdout
    for words in ("ANYNPU_SERVE_PORT", "SIGHUP", "anynpu serve out/cpu", "curl", "--token-file"):
        assert words in text
