"""The forms of text-embeddings-inference and of Hugging Face's clients: /embed, /rerank, /similarity and POST /."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson

from anynpu.apps.serve.base import Answer, Item, Options
from anynpu.apps.serve.desk import Desk, answered
from anynpu.apps.serve.fields import Fields, described, texts_or_tokens
from anynpu.apps.serve.openai import check_dimensions, items_of
from anynpu.apps.serve.vision import hugging_face, is_picture
from anynpu.apps.web.app import Route
from anynpu.apps.web.message import Header, HttpAnswer, HttpRequest, Refusal
from anynpu.tensors import Array

EMBED = (
    "inputs",
    "truncate",
    "normalize",
    "truncation_direction",
    "prompt_name",
    "dimensions",
    "model",
    "text",
    "texts",
)
RERANK = ("query", "texts", "raw_scores", "return_text", "truncate", "truncation_direction", "model")
SIMILARITY = ("inputs", "parameters", "model")
COSINE: tuple[Header, ...] = ((b"x-score", b"cosine"),)
"""An embedding model judges by the cosine of two vectors; a cross-encoder's score would be another thing."""


def routes(desk: Desk) -> list[Route]:
    """Returns the routes of TEI's form."""

    async def embed(request: HttpRequest) -> HttpAnswer:
        if is_picture(request):
            model = desk.choose(request, "", "embed-image")
            answer = await desk.ask(request, model, [request.body(model.limits.image_bytes)])
            return answered(_rows(answer), answer)
        return await _embed(desk, request, request.json())

    async def rerank(request: HttpRequest) -> HttpAnswer:
        fields = Fields(request.json(), RERANK)
        options = _options(fields)
        if fields.flag("raw_scores"):
            raise Refusal(
                422, "raw_scores: true is not supported: the scores are cosines", "leave it out", parameter="raw_scores"
            )
        with_text = fields.flag("return_text")
        model = desk.choose(request, fields.model(), "embed-text")
        texts = fields.texts("texts", model.limits.items - 1)
        query = texts_or_tokens("query", fields.value("query"), 1)
        answer = await desk.ask(request, model, [*query, *texts], options)
        scores = _cosines(answer.vectors)
        ranks = [
            {"index": int(i), **({"text": texts[i]} if with_text else {}), "score": float(scores[i])}
            for i in np.argsort(-scores, kind="stable")
        ]
        return answered(orjson.dumps(ranks), answer, headers=COSINE)

    async def similarity(request: HttpRequest) -> HttpAnswer:
        return await _similarity(desk, request, request.json())

    async def root(request: HttpRequest) -> HttpAnswer:
        if is_picture(request):
            return await hugging_face(desk, request, None)
        body = request.json()
        inputs = body.get("inputs") if isinstance(body, dict) else None
        if isinstance(inputs, dict):
            return await _similarity(desk, request, body)
        if isinstance(body, dict) and "parameters" in body:
            return await hugging_face(desk, request, body)
        return await _embed(desk, request, body)

    return [
        Route("POST", "/embed", embed, errors="tei"),
        Route("POST", "/rerank", rerank, errors="tei"),
        Route("POST", "/similarity", similarity, errors="tei"),
        Route("POST", "/", root, errors="tei"),
    ]


async def _embed(desk: Desk, request: HttpRequest, body: Any) -> HttpAnswer:
    """TEI's `inputs`; `text` and `texts` are the short form for scripts, answered with the model's name and width."""
    fields = Fields(body, EMBED)
    options = _options(fields)
    fields.unsupported("prompt_name")
    names = [name for name in ("inputs", "text", "texts") if name in fields.data]
    if len(names) != 1:
        raise Refusal(422, "one of inputs, text and texts was expected", parameter="inputs")
    model = desk.choose(request, fields.model(), "embed-text", "embed-image")
    check_dimensions(fields, model)
    items: tuple[Item, ...] = items_of(fields, names[0], model)
    if names[0] == "text" and not isinstance(fields.data["text"], str):
        raise Refusal(422, f"text: one text was expected, not {described(fields.data['text'])}", parameter="text")
    answer = await desk.ask(request, model, items, options)
    if names[0] == "inputs":
        return answered(_rows(answer), answer)
    named: dict[str, object] = {"model": answer.model, "version": answer.version, "dims": answer.vectors.shape[1]}
    named |= {"embedding": answer.vectors[0]} if names[0] == "text" else {"embeddings": answer.vectors}
    return answered(orjson.dumps(named, option=orjson.OPT_SERIALIZE_NUMPY), answer)


async def _similarity(desk: Desk, request: HttpRequest, body: Any) -> HttpAnswer:
    fields = Fields(body, SIMILARITY)
    inputs = Fields(fields.value("inputs"), ("source_sentence", "sentences"), "inputs")
    options = _options(fields.inner("parameters", ("truncate", "truncation_direction", "prompt_name")))
    model = desk.choose(request, fields.model(), "embed-text")
    source = texts_or_tokens("source_sentence", inputs.value("source_sentence"), 1)
    answer = await desk.ask(request, model, [*source, *inputs.texts("sentences", model.limits.items - 1)], options)
    return answered(orjson.dumps([float(score) for score in _cosines(answer.vectors)]), answer, headers=COSINE)


def _options(fields: Fields) -> Options:
    fields.unsupported("truncation_direction", "right", "Right")
    truncate, normalize = fields.flag("truncate"), fields.flag("normalize")
    return Options(truncate=truncate is not False, normalize=normalize)


def _rows(answer: Answer) -> bytes:
    return orjson.dumps(answer.vectors, option=orjson.OPT_SERIALIZE_NUMPY)


def _cosines(vectors: Array) -> Array:
    """Returns the cosine of the first vector with every other one."""
    wide = vectors.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1)
    return np.asarray(np.clip((wide[1:] @ wide[0]) / np.maximum(lengths[1:] * lengths[0], 1e-30), -1, 1))
