"""OpenAI's form: /v1/embeddings and /v1/models."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

import orjson

from anynpu.apps.serve.base import Answer, Deployment, Info, Item
from anynpu.apps.serve.desk import Asked, Desk, answered
from anynpu.apps.serve.fields import Fields, pictures, texts_or_tokens
from anynpu.apps.web.app import Route
from anynpu.apps.web.message import HttpAnswer, HttpRequest, Refusal, json_answer

EMBEDDINGS = ("model", "input", "encoding_format", "dimensions", "user")
USUAL = {"model", "input"}
FORMATS = ("float", "base64")


def routes(desk: Desk) -> list[Route]:
    """Returns the routes of OpenAI's form."""

    def embeddings(request: HttpRequest) -> Asked:
        data = request.json()
        if (usual := _usual(desk, data)) is not None:
            return desk.later(request, *usual, _as_floats)
        fields = Fields(data, EMBEDDINGS)
        as_base64 = "encoding_format" in fields.data and fields.choice("encoding_format", FORMATS) == "base64"
        if "user" in fields.data:
            fields.text("user")
        model = desk.choose(request, fields.model(), "embed-text", "embed-image")
        if "dimensions" in fields.data:
            check_dimensions(fields, model)
        items = items_of(fields, "input", model)
        return desk.later(request, model, items, _as_base64 if as_base64 else _as_floats)

    async def models(request: HttpRequest) -> HttpAnswer:
        served = [desk.open(model) for model in desk.fleet.models.values()]
        return json_answer({"object": "list", "data": [_model(model.info()) for model in served]})

    async def model(request: HttpRequest) -> HttpAnswer:
        return json_answer(_model(desk.choose(request, request.parameters["model"]).info()))

    return [
        Route("POST", "/v1/embeddings", embeddings, errors="openai"),
        Route("GET", "/v1/models", models, errors="openai"),
        Route("GET", "/v1/models/{model}", model, errors="openai"),
    ]


def _usual(desk: Desk, data: Any) -> tuple[Deployment, tuple[str]] | None:
    """Returns the model and the text of what most clients send, in a third of the time; None for anything else."""
    if type(data) is not dict or data.keys() != USUAL or type(name := data["model"]) is not str or not desk.started:
        return None
    model, text = desk.fleet.models.get(name), data["input"]
    if type(text) is list and len(text) == 1:
        text = text[0]
    return (model, (text,)) if type(text) is str and text and model and model.kind == "embed-text" else None


def items_of(fields: Fields, name: str, model: Deployment) -> tuple[Item, ...]:
    """Returns texts or token ids for a model of texts, pictures in base64 for one of pictures."""
    value = fields.value(name)
    if model.kind == "embed-image":
        return pictures(name, value, model.limits.items)
    return texts_or_tokens(name, value, model.limits.items)


def check_dimensions(fields: Fields, model: Deployment) -> None:
    """Refuses shorter vectors: cutting makes no vector of the space that the model's card names."""
    wanted = fields.whole("dimensions", 1, 2**31 - 1)
    if wanted is not None and wanted != model.info().width:
        message = f"dimensions: the card of {model.name} allows only {model.info().width}, not {wanted}"
        raise Refusal(422, message, "leave it out", parameter="dimensions")


def _as_floats(answer: Answer) -> HttpAnswer:
    return _embeddings(answer, answer.vectors)


def _as_base64(answer: Answer) -> HttpAnswer:
    rows = [base64.b64encode(row.astype("<f4", copy=False).tobytes()).decode() for row in answer.vectors]
    return _embeddings(answer, rows)


def _embeddings(answer: Answer, rows: Iterable[Any]) -> HttpAnswer:
    record = {
        "object": "list",
        "data": [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)],
        "model": answer.model,
        "usage": {"prompt_tokens": answer.tokens, "total_tokens": answer.tokens},
    }
    return answered(orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY), answer)


def _model(info: Info) -> dict[str, object]:
    return {
        "id": info.name,
        "object": "model",
        "created": int(info.loaded_at),
        "owned_by": "anynpu",
        "kind": info.kind,
        "version": info.version,
        "device": info.device,
    }
