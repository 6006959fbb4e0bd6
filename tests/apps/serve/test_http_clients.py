"""Clients that others wrote, unchanged, against a server on a real socket."""

from __future__ import annotations

import numpy as np
import pytest
from desks import desk_of, site
from plain_fleet import WIDTH, PlainModel, vector

openai = pytest.importorskip("openai")
hub = pytest.importorskip("huggingface_hub")


@pytest.fixture(scope="module")
def text_server():
    with site(desk_of(PlainModel("text", "embed-text"))) as client:
        yield f"http://127.0.0.1:{client.port}"


@pytest.fixture(scope="module")
def client(text_server):
    with openai.OpenAI(base_url=f"{text_server}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_openai_embeddings(client):
    made = client.embeddings.create(model="text", input=["hello world", "good bye"])  # asks for base64 by itself
    assert [row.index for row in made.data] == [0, 1]
    assert np.allclose(made.data[0].embedding, vector("hello world"), atol=1e-7)
    assert made.usage.prompt_tokens == 8 and made.model == "text"
    plain = client.embeddings.create(model="text", input="hello world", encoding_format="float", dimensions=WIDTH)
    assert np.allclose(plain.data[0].embedding, vector("hello world"))
    tokens = client.embeddings.create(model="text", input=[[1, 2], [3]])
    assert np.allclose(tokens.data[1].embedding, vector((3,)), atol=1e-7)


def test_openai_models(client):
    assert [model.id for model in client.models.list()] == ["text"]
    assert client.models.retrieve("text").owned_by == "anynpu"


def test_openai_errors_are_its_own_classes(client):
    with pytest.raises(openai.NotFoundError, match="is not served here") as caught:
        client.embeddings.create(model="text-embedding-3-small", input="a")
    assert caught.value.code == "model_not_found" and caught.value.param == "model"
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.embeddings.create(model="text", input="a", dimensions=3)
    assert caught.value.param == "dimensions"
    raw = client.embeddings.with_raw_response.create(model="text", input="a")
    assert len(raw.headers["x-model-version"]) == 64 and raw.headers["x-request-id"]


def test_openai_retries_when_the_queue_is_full():
    model = PlainModel("text", "embed-text", queue=0)
    with (
        site(desk_of(model)) as http,
        openai.OpenAI(base_url=f"http://127.0.0.1:{http.port}/v1", api_key="none", max_retries=0) as client,
    ):
        with pytest.raises(openai.RateLimitError) as caught:
            client.embeddings.create(model="text", input="a")
        assert caught.value.response.headers["retry-after"] == "2"


def test_hugging_face_feature_extraction(text_server):
    for url in (text_server, f"{text_server}/embed"):
        client = hub.InferenceClient(model=url, token="none")
        assert np.allclose(client.feature_extraction("hello"), [vector("hello")])
        both = client.feature_extraction(
            ["hello", "there"], normalize=True, truncate=True, truncation_direction="right"
        )
        assert both.shape == (2, WIDTH) and both.dtype == np.float32


def test_hugging_face_similarity(text_server):
    client = hub.InferenceClient(model=text_server, token="none")
    scores = client.sentence_similarity("a b", ["a b", "c"])
    assert scores == pytest.approx([1, float(vector("a b") @ vector("c"))], abs=1e-6)


def test_hugging_face_pictures(png):
    with site(desk_of(PlainModel("finder", "detect"))) as http:
        client = hub.InferenceClient(model=f"http://127.0.0.1:{http.port}", token="none")
        (found,) = client.object_detection(png)
        assert (found.label, found.box.xmax, found.box.ymax) == ("bright", 30, 20)
        assert client.object_detection(png, threshold=0.99) == []
    with site(desk_of(PlainModel("judge", "classify"))) as http:
        client = hub.InferenceClient(model=f"http://127.0.0.1:{http.port}", token="none")
        assert [c.label for c in client.image_classification(png, top_k=1)] == ["bright"]


def test_the_body_that_langchain_sends(text_server):
    """HuggingFaceEndpointEmbeddings replaces ends of lines and calls feature_extraction."""
    client = hub.InferenceClient(model=text_server, token="none")
    assert client.feature_extraction(text=[text.replace("\n", " ") for text in ("a\nb", "c")]).shape == (2, WIDTH)
