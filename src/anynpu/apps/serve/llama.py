"""The form of llama-server, which the guide to the Zhouyi NPU measures its own server against: /embedding."""

from __future__ import annotations

import orjson

from anynpu.apps.serve.desk import Desk, answered
from anynpu.apps.serve.fields import Fields, texts_or_tokens
from anynpu.apps.web.app import Route
from anynpu.apps.web.message import HttpAnswer, HttpRequest

EMBEDDING = ("content", "model")


def routes(desk: Desk) -> list[Route]:
    """Returns /embedding and its other name."""

    async def embedding(request: HttpRequest) -> HttpAnswer:
        fields = Fields(request.json(), EMBEDDING)
        model = desk.choose(request, fields.model(), "embed-text")
        answer = await desk.ask(request, model, texts_or_tokens("content", fields.value("content"), model.limits.items))
        rows = [{"index": i, "embedding": [row]} for i, row in enumerate(answer.vectors)]
        return answered(orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY), answer)

    return [Route("POST", "/embedding", embedding), Route("POST", "/embeddings", embedding)]
