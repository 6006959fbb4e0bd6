"""The contract of every route: what it takes, what it gives, and what it refuses."""

from __future__ import annotations

import base64
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from desks import desk_of, site
from plain_fleet import WIDTH, PlainModel, vector
from running import until

from anynpu.apps.serve.base import Canary, Limits, Stopped
from anynpu.apps.serve.site import build_app
from anynpu.apps.serve.tensors import from_bytes, joined
from anynpu.apps.web.files import PackageFile
from anynpu.errors import AccuracyError, DeviceError, IntegrityError

DIGEST = 64


def test_openai_embeddings(server):
    reply = server("POST", "/v1/embeddings", {"model": "text", "input": ["hello world", "good bye"]})
    record = reply.json()
    assert (reply.status, record["object"], record["model"]) == (200, "list", "text")
    assert [row["index"] for row in record["data"]] == [0, 1]
    assert record["data"][1]["embedding"] == pytest.approx(vector("good bye").tolist())
    assert record["usage"] == {"prompt_tokens": 8, "total_tokens": 8}
    assert len(reply.headers["x-model-version"]) == DIGEST and reply.headers["x-model"] == "text"
    assert reply.headers["server-timing"].startswith("queue;dur=")


@pytest.mark.parametrize(
    ("given", "item"), [("one", ["one"]), ([1, 2], [(1, 2)]), ([[1, 2], [3.0]], [(1, 2), (3,)]), (["é\n\t"], ["é\n\t"])]
)
def test_openai_forms_of_input(server, given, item):
    reply = server("POST", "/v1/embeddings", {"model": "text", "input": given, "encoding_format": "base64"})
    rows = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in reply.json()["data"]]
    assert np.allclose(rows, [vector(each) for each in item])


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("input", None, 422), ("input", "", 422), ("input", [], 422), ("input", [""], 422), ("input", 5, 422),
        ("input", {}, 422), ("input", [None], 422), ("input", ["a", 1], 422), ("input", [1, "a"], 422),
        ("input", [1.5], 422), ("input", [True], 422), ("input", [[]], 422), ("input", [[1], "a"], 422),
        ("input", [-1], 422), ("input", [2**40], 422), ("input", ["a"] * 9, 413),
        ("input", "a" * 1001, 413), ("encoding_format", "int8", 422), ("encoding_format", 1, 422),
        ("dimensions", 8, 422), ("dimensions", 0, 422), ("dimensions", "16", 422), ("dimensions", True, 422),
        ("model", "", 404),
        ("model", "nope", 404), ("model", 5, 422), ("model", "judge", 422), ("user", 5, 422), ("inptu", "x", 422),
    ],
)  # fmt: skip
def test_openai_refusals(server, field, value, status):
    reply = server("POST", "/v1/embeddings", {"model": "text", "input": "a", field: value})
    error = reply.json()["error"]
    assert reply.status == status, error
    assert set(error) == {"message", "type", "param", "code"} and error["message"]


def test_a_near_name_is_suggested(server):
    assert "did you mean 'text'?" in server("POST", "/v1/embeddings", {"model": "txet", "input": "a"}).body.decode()
    assert "did you mean 'input'?" in server("POST", "/v1/embeddings", {"model": "text", "inptu": "a"}).body.decode()


def test_dimensions_that_the_model_has_are_taken(server):
    assert server("POST", "/v1/embeddings", {"model": "text", "input": "a", "dimensions": WIDTH}).status == 200


def test_a_model_is_named_by_query_or_header_or_must_be(server):
    assert server("POST", "/v1/embeddings", {"input": "a"}).status == 422  # text and photo would do
    assert server("POST", "/v1/embeddings?model=text", {"input": "a"}).status == 200
    assert server("POST", "/v1/embeddings", {"input": "a"}, x_model="text").status == 200


def test_openai_models(server):
    record = server("GET", "/v1/models").json()
    assert [model["id"] for model in record["data"]] == ["text", "photo", "finder", "judge", "a/b c"]
    one = server("GET", "/v1/models/a%2Fb%20c").json()
    assert (one["id"], one["kind"], len(one["version"])) == ("a/b c", "tensors", DIGEST)
    missing = server("GET", "/v1/models/none")
    assert (missing.status, missing.json()["error"]["code"]) == (404, "model_not_found")


def test_pictures_in_openai_form(server, png):
    url = "data:image/png;base64," + base64.b64encode(png).decode()
    reply = server("POST", "/v1/embeddings", {"model": "photo", "input": [url, url]})
    assert len(reply.json()["data"][1]["embedding"]) == WIDTH
    assert server("POST", "/v1/embeddings", {"model": "photo", "input": "https://x/y.png"}).status == 422
    assert server("POST", "/embed?model=photo", png, content_type="image/png").json()[0] == pytest.approx(
        reply.json()["data"][0]["embedding"]
    )


def test_tei_embed(server):
    body = {"inputs": "hello", "truncate": True, "normalize": True, "truncation_direction": "Right", "model": "text"}
    assert np.allclose(server("POST", "/embed", body).json(), [vector("hello")])
    assert np.allclose(server("POST", "/?model=text", {"inputs": ["a", "b"]}).json(), [vector("a"), vector("b")])
    assert server("POST", "/embed?model=text", {"inputs": "x " * 30}).headers["x-truncated"] == "1"
    assert server("POST", "/embed?model=text", {"inputs": "x " * 30, "truncate": False}).status == 413
    for wrong in ({"prompt_name": "query"}, {"truncation_direction": "Left"}, {"normalize": 1}, {"dimensions": 3}):
        reply = server("POST", "/embed?model=text", {"inputs": "a", **wrong})
        assert reply.status == 422 and isinstance(reply.json()["error"], str) and reply.json()["error_type"]
    assert server("POST", "/embed_all", {"inputs": "a"}).status == 404


def test_the_short_forms(server):
    one = server("POST", "/embed?model=text", {"text": "hello"}).json()
    assert one["dims"] == WIDTH and np.allclose(one["embedding"], vector("hello"))
    assert np.allclose(server("POST", "/embed?model=text", {"texts": ["a", "b"]}).json()["embeddings"][1], vector("b"))
    assert server("POST", "/embed?model=text", {"text": ["a"]}).status == 422
    assert server("POST", "/embed?model=text", {"text": "a", "inputs": "a"}).status == 422
    rows = server("POST", "/embedding", {"content": "hello"}).json()
    assert np.allclose(rows[0]["embedding"][0], vector("hello"))


def test_rerank_is_a_cosine_and_says_so(server):
    texts = ["something else", "hello world", "hello there"]
    reply = server("POST", "/rerank", {"query": "hello world", "texts": texts, "return_text": True})
    ranks = reply.json()
    assert (ranks[0]["index"], ranks[0]["text"], reply.headers["x-score"]) == (1, "hello world", "cosine")
    assert ranks[0]["score"] == pytest.approx(1, abs=1e-6)
    assert [rank["score"] for rank in ranks] == sorted((rank["score"] for rank in ranks), reverse=True)
    assert server("POST", "/rerank", {"query": "a", "texts": texts}).json()[0].keys() == {"index", "score"}
    assert server("POST", "/rerank", {"query": "a", "texts": texts, "raw_scores": True}).status == 422
    assert server("POST", "/rerank", {"query": "a", "texts": []}).status == 422
    assert server("POST", "/rerank", {"texts": ["a"]}).status == 422


def test_similarity(server):
    body = {"inputs": {"source_sentence": "a b", "sentences": ["a b", "c"]}}
    assert server("POST", "/similarity", body).json() == pytest.approx(
        [1, float(vector("a b") @ vector("c"))], abs=1e-6
    )
    assert server("POST", "/", body).json()[0] == pytest.approx(1)
    assert server("POST", "/similarity", {"inputs": {"sentences": ["a"]}}).status == 422
    for wrong in ("", 0, [], False, "x"):
        assert server("POST", "/similarity", {**body, "parameters": wrong}).status == 422


def test_detect(server, png):
    raw = server("POST", "/detect?confidence=0.5", png, content_type="image/png").json()
    (found,) = raw["images"]
    assert (found["width"], found["height"]) == (30, 20)
    assert found["detections"][0]["label"] == "bright" and found["detections"][0]["box"] == [0, 0, 30, 20]
    text = base64.b64encode(png).decode()
    many = server("POST", "/detect", {"images": [text, text], "confidence": 0.9}).json()
    assert [image["detections"] for image in many["images"]] == [[], []]
    assert server("POST", "/detect", {"image": text, "classes": ["dark"]}).json()["images"][0]["detections"] == []
    assert len(
        server("POST", "/detect?classes=bright", png, content_type="image/png").json()["images"][0]["detections"]
    )
    for wrong in ({"confidence": 2}, {"iou": "x"}, {"most": 0}, {"classes": ["cat"]}, {"classes": []}, {"top": 1}):
        assert server("POST", "/detect", {"image": text, **wrong}).status == 422
    assert server("POST", "/detect?confidence=high", png, content_type="image/png").status == 422
    assert server("POST", "/detect", {"image": text, "images": [text]}).status == 422


def test_classify(server, png):
    reply = server("POST", "/classify?top=1", png, content_type="image/jpeg")
    assert [c["label"] for c in reply.json()["images"][0]["classes"]] == ["bright"]
    both = server("POST", "/classify", {"image": base64.b64encode(png).decode()}).json()
    assert sum(c["score"] for c in both["images"][0]["classes"]) == pytest.approx(1)


@pytest.mark.parametrize("body", [b"", b"not a picture", b"\x89PNG\r\n\x1a\n", b"GIF89a" + bytes(100)])
def test_what_is_not_a_picture_is_refused(server, body):
    assert server("POST", "/detect", body, content_type="image/png").status == 422


def test_infer_json(server):
    body = {"model": "a/b c", "inputs": {"x": [[[1, 2, 3], [4, 5, 6.5]]]}}
    reply = server("POST", "/infer", body)
    assert reply.json()["outputs"]["y"] == {"shape": [1, 2, 3], "dtype": "float32", "data": [[[2, 4, 6], [8, 10, 13]]]}
    assert reply.headers["x-model"] == "a/b c"
    stored = {**body, "inputs": [1, 2, 3, 4, 5, 6], "stored": True}
    assert server("POST", "/infer", stored).json()["outputs"]["y"]["data"] == [[[2, 4, 6], [8, 10, 12]]]
    for wrong in (
        [[1, 2], [3]],
        [[["a", 1, 2], [3, 4, 5]]],
        [1, 2],
        None,
        "x",
        [[[None, 1, 2], [3, 4, 5]]],
        [1e300] * 6,
    ):
        assert server("POST", "/infer", {**body, "inputs": {"x": wrong}}).status == 422, wrong
    assert server("POST", "/infer", {**stored, "inputs": [200] * 6}).status == 422
    assert server("POST", "/infer", {**stored, "inputs": [1.5] * 6}).status == 422
    assert server("POST", "/infer", {**body, "inputs": {"z": [1]}}).status == 422
    assert server("POST", "/infer", {**body, "inputs": {}}).status == 422
    assert server("POST", "/infer", {**body, "outputs": ["z"]}).status == 422
    assert server("POST", "/infer", {**body, "outputs": "y"}).status == 422


def test_infer_bytes(server):
    x = np.array([1, 2, 3, -4, 5, 6], np.int8).tobytes()
    reply = server("POST", "/infer?model=a/b%20c", x, content_type="application/octet-stream")
    assert np.frombuffer(reply.body, np.int8).tolist() == [2, 4, 6, -8, 10, 12]
    assert (reply.headers["x-tensors"], reply.headers["content-type"]) == ("y:int8:1x2x3", "application/octet-stream")
    real = np.arange(6, dtype="<f4").tobytes()
    shown = server("POST", "/infer?model=a/b%20c&stored=false", real, content_type="application/octet-stream",
                   accept="application/json")  # fmt: skip
    assert shown.json()["outputs"]["y"]["data"] == [[[0, 2, 4], [6, 8, 10]]]
    nan = np.full(6, np.nan, "<f4").tobytes()
    for body, query in ((x[:-1], ""), (b"", ""), (x * 2, ""), (nan, "&stored=false"), (x, "&stored=maybe")):
        path = f"/infer?model=a/b%20c{query}"
        assert server("POST", path, body, content_type="application/octet-stream").status == 422


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int64", "float32", "float64", "bool"])
def test_tensors_cross_as_little_endian_bytes_whatever_their_order_in_memory(dtype):
    array = (np.arange(24) % 2 * 5).astype(dtype).reshape(2, 3, 4)
    wanted = array.astype(array.dtype.newbyteorder("<")).tobytes()
    for other in (array, np.asfortranarray(array), array.astype(array.dtype.newbyteorder(">"))):
        assert joined({"y": other})[0] == wanted
    assert joined({"y": array, "z": array[:0]}) == (wanted, f"y:{dtype}:2x3x4, z:{dtype}:0x3x4".encode())
    back = from_bytes("y", memoryview(wanted), dtype, [2, 3, 4])
    assert np.array_equal(back, array) and back.dtype == array.dtype and back.flags.writeable
    assert from_bytes("y", b"", dtype, (0, 3)).shape == (0, 3)


def kserve_body(**more):
    return {"inputs": [{"name": "x", "shape": [1, 2, 3], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6]}], **more}


def test_kserve(server):
    assert server("GET", "/v2").json()["extensions"] == ["binary_tensor_data"]
    assert server("GET", "/v2/health/live").json() == {"live": True}
    assert server("GET", "/v2/health/ready").json() == {"ready": True}
    metadata = server("GET", "/v2/models/a%2Fb%20c").json()
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [1, 2, 3]}]
    assert server("GET", "/v2/models/a%2Fb%20c/ready").json() == {"name": "a/b c", "ready": True}
    (version,) = metadata["versions"]
    record = server("POST", f"/v2/models/a%2Fb%20c/versions/{version}/infer", kserve_body(id="7")).json()
    assert (record["id"], record["model_version"]) == ("7", version)
    output = {"name": "y", "shape": [1, 2, 3], "datatype": "FP32", "data": [2, 4, 6, 8, 10, 12]}
    assert record["outputs"] == [output]
    assert server("POST", "/v2/models/a%2Fb%20c/versions/1/infer", kserve_body()).status == 404
    assert isinstance(server("GET", "/v2/models/none").json()["error"], str)


def test_kserve_binary(server):
    data = np.arange(6, dtype="<f4").tobytes()
    tensor = {"name": "x", "shape": [1, 2, 3], "datatype": "FP32", "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [tensor], "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}).encode()
    path = "/v2/models/a%2Fb%20c/infer"
    reply = server("POST", path, head + data, inference_header_content_length=str(len(head)),
                   content_type="application/octet-stream")  # fmt: skip
    at = int(reply.headers["inference-header-content-length"])
    (output,) = json.loads(reply.body[:at])["outputs"]
    assert output["parameters"] == {"binary_data_size": 24}
    assert np.frombuffer(reply.body[at:], "<f4").tolist() == [0, 2, 4, 6, 8, 10]
    nan = np.full(6, np.nan, "<f4").tobytes()
    for body, length in ((head + data[:-1], len(head)), (head + data + b"x", len(head)), (head + nan, len(head))):
        assert server("POST", path, body, inference_header_content_length=str(length)).status == 422
    for length in ("999999", "-1", "x", ""):
        assert server("POST", path, head + data, inference_header_content_length=length).status == 400


@pytest.mark.parametrize(
    "change",
    [
        {"datatype": "FP64"}, {"datatype": "BYTES"}, {"datatype": 5}, {"shape": [6, -1]}, {"shape": [7]},
        {"shape": "6"},
        {"shape": [2**40, 2**40]}, {"shape": [True] * 6}, {"data": "abcdef"}, {"data": [1, 2]}, {"data": [None] * 6},
        {"name": "z"}, {"name": None}, {"more": 1}, {"data": [[1], [2, 3]]}, {"shape": [3, 2, 1]},
    ],
)  # fmt: skip
def test_kserve_refusals(server, change):
    body = kserve_body()
    body["inputs"][0] |= change
    reply = server("POST", "/v2/models/a%2Fb%20c/infer", body)
    assert reply.status in (413, 422) and isinstance(reply.json()["error"], str)


def test_state(server):
    assert server("GET", "/health").json()["status"] == "ok"
    assert server("GET", "/ready").json() == {"ready": True}
    info = server("GET", "/info").json()
    assert (info["model_id"], len(info["model_sha"]), info["max_input_length"]) == ("text", DIGEST, 20)
    assert info["models"]["text"]["verification"]["y"] == {"sqnr_db": 40.0, "cosine": 1.0}
    assert server("POST", "/admin/check", {"model": "text"}).json()["canary"]["ok"] is True


def test_a_reload_changes_the_version_that_answers_name():
    with site(desk_of(PlainModel("m", "embed-text"), admin=True)) as client:
        before = client("POST", "/embed", {"inputs": "a"}).headers["x-model-version"]
        record = client("POST", "/admin/reload", {}).json()
        assert record["before"] == before != record["version"]
        assert client("POST", "/embed", {"inputs": "a"}).headers["x-model-version"] == record["version"]


def test_admin_routes_are_closed_unless_asked_for():
    with site(desk_of(PlainModel("m", "embed-text"))) as client:
        assert client("POST", "/admin/reload", {}).status == 404


def test_degraded_and_failed_models_are_told():
    good, bad = PlainModel("good", "embed-text"), PlainModel("bad", "classify")
    with site(desk_of(good, bad)) as client:
        bad.state, bad.truth = "degraded", Canary("test", 1, 2, 1, False, "y is off by 3 dB", 1.0)
        assert client("GET", "/health").status == 200
        assert client("GET", "/health").json()["status"] == "degraded"
        assert client("GET", "/health").json()["models"]["bad"]["canary"]["reason"] == "y is off by 3 dB"
        reply = client("GET", "/ready")
        assert (reply.status, reply.json()["reason"][:15]) == (503, "bad is degraded")
        assert client("GET", "/v2/models/bad/ready").status == 503
        assert client("GET", "/v2/models/good/ready").status == 200
        bad.fallback = True
        assert client("GET", "/ready").status == 200
        good.state, bad.state, bad.fallback = "failed", "failed", False
        assert client("GET", "/health").status == 503


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (DeviceError("the device hung", cause="driver"), 503, "device_error"),
        (Stopped("stopping"), 503, "stopping"),
        (AccuracyError("NaN", "finite", 0, 1), 500, "bad_result"),
        (IntegrityError("not a picture"), 422, "unreadable"),
        (RuntimeError("secret"), 500, "internal_error"),
    ],
)
def test_errors_of_the_model_have_one_table(error, status, code):
    model = PlainModel("m", "embed-text")
    model.error = error
    with site(desk_of(model)) as client:
        reply = client("POST", "/v1/embeddings", {"input": "a"})
        assert (reply.status, reply.json()["error"]["code"]) == (status, code)
        assert (reply.headers.get("retry-after") == "1") == (status == 503)
        assert b"secret" not in reply.body


def test_a_deadline_that_passes_in_the_queue_is_504_and_costs_nothing():
    model = PlainModel("m", "embed-text")
    model.free.clear()
    with site(desk_of(model)) as client, ThreadPoolExecutor() as pool:
        patient = pool.submit(client, "POST", "/embed", {"inputs": "a"})
        hasty = [
            pool.submit(client, "POST", "/embed", {"inputs": "a"}, x_request_timeout="0.05"),
            pool.submit(client, "POST", "/embed?timeout=0.05", {"inputs": "a"}),
        ]
        until(lambda: model.waiting == 3)
        time.sleep(0.06)
        model.free.set()
        assert patient.result().status == 200 and [each.result().status for each in hasty] == [504, 504]
        assert model.computed == 1
        for wrong in ("0", "-1", "nan", "soon", "inf"):
            assert client("POST", "/embed", {"inputs": "a"}, x_request_timeout=wrong).status == 422


def test_retry_after_is_a_whole_number():
    model = PlainModel("m", "embed-text", queue=0)
    with site(desk_of(model)) as client:
        reply = client("POST", "/v1/embeddings", {"input": "a"})
        assert (reply.status, reply.headers["retry-after"], reply.json()["error"]["type"]) == (
            429,
            "2",
            "rate_limit_error",
        )


def test_a_request_whose_client_left_is_not_computed():
    model = PlainModel("m", "embed-text")
    model.free.clear()
    body = b'{"inputs":"left"}'
    with site(desk_of(model)) as client:
        with socket.create_connection(("127.0.0.1", client.port)) as gone:
            gone.sendall(b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
            until(lambda: model.waiting == 1)
        assert client("GET", "/health").status == 200  # so the server has seen that the other connection is closed
        model.free.set()
        until(lambda: model.waiting == 0)
    assert model.computed == 0


def test_before_the_models_are_loaded_nothing_is_served():
    desk = desk_of(PlainModel("m", "embed-text"))
    desk.started = False
    with site(desk) as client:
        assert client("GET", "/health").json()["status"] == "starting"
        assert client("GET", "/ready").status == 503
        reply = client("POST", "/embed", {"inputs": "a"})
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")


def test_metrics_are_read_by_a_parser(server):
    server("POST", "/rerank", {"query": "a", "texts": ["b"]})
    reply = server("GET", "/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    seen = {}
    for line in reply.body.decode().splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            assert name not in seen, f"{name} is there twice"
            seen[name] = float(value)
    assert seen['anynpu_http_request_seconds_count{method="POST",route="/rerank",status="200"}'] >= 1
    assert seen['anynpu_model_state{model="text",state="ready"}'] == 1
    assert seen["anynpu_ready"] == 1 and seen['anynpu_canary_ok{model="a/b c"}'] == 1


def test_every_route_is_in_the_openapi_document(server):
    document = server("GET", "/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    listed = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    desk = desk_of(PlainModel("t", "embed-text"), PlainModel("d", "detect"), PlainModel("c", "classify"), admin=True)
    routes = build_app(desk).routes()
    asked = {
        r.path for r in routes if not isinstance(r.function, PackageFile)
    }  # with a page at /, which also takes POST
    assert {f"{r.method} {r.path}" for r in routes if r.path in asked} == listed


def test_the_docs_page_loads_nothing_from_elsewhere(server):
    page = server("GET", "/docs")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    for path in ("/docs", "/docs.js", "/docs.css"):
        reply = server("GET", path)
        assert reply.status == 200 and b"http" not in reply.body.replace(b"httpx", b"")
    assert server("GET", "/docs", if_none_match=page.headers["etag"]).status == 304


def test_limits_of_one_model_are_its_own():
    small = PlainModel("small", "embed-text", Limits(items=2, characters=5))
    with site(desk_of(small)) as client:
        assert client("POST", "/embed", {"inputs": ["a", "b", "c"]}).status == 413
        assert client("POST", "/embed", {"inputs": "abcdef"}).status == 413
        assert client("POST", "/embed", {"inputs": ["abcde", "f"]}).status == 200
