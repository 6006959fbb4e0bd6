"""Raw tensors for any artifact: /infer, as JSON or as the bytes that the model stores."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import orjson

from anynpu.apps.serve.base import Answer, Deployment, Options
from anynpu.apps.serve.desk import Asked, Desk, answered
from anynpu.apps.serve.fields import Fields, described
from anynpu.apps.serve.tensors import dtype_of, from_lists, joined, split
from anynpu.apps.web.app import Route
from anynpu.apps.web.message import BINARY, JSON, HttpAnswer, HttpRequest, Refusal, parsed_query
from anynpu.schema import near
from anynpu.tensors import Array

INFER = ("inputs", "outputs", "stored", "model")
AS_STORED = Options(stored=True)
TRUTHS = {"true": True, "1": True, "false": False, "0": False}


def routes(desk: Desk) -> list[Route]:
    """Returns the route of raw tensors."""

    def infer(request: HttpRequest) -> Asked:
        if request.kind == BINARY:
            options, name = _options(request.query_string) if request.query_string else (AS_STORED, "")
            model = desk.choose(request, name)
            info = model.info()
            arrays = split(request.body(), info.inputs, options.stored, info.dynamic)
            as_json = JSON.decode() in request.header(b"accept")
            return desk.later(request, model, [arrays], _as_json if as_json else _as_bytes, options)
        fields = Fields(request.json(), INFER)
        stored = bool(fields.flag("stored"))
        model = desk.choose(request, fields.model())
        names = fields.data.get("outputs")
        if names is not None and (not isinstance(names, list) or not all(isinstance(n, str) for n in names)):
            raise Refusal(422, "outputs: a list of names was expected", parameter="outputs")
        options = Options(stored=stored, outputs=tuple(dict.fromkeys(names or ())))
        arrays = _arrays(fields.value("inputs"), model, stored)
        return desk.later(request, model, [arrays], _as_json, options)

    return [Route("POST", "/infer", infer)]


def _arrays(inputs: Any, model: Deployment, stored: bool) -> dict[str, Array]:
    """Returns the inputs by name; a model of one input takes the bare lists too."""
    specs = model.info().inputs
    if isinstance(inputs, list) and len(specs) == 1:
        inputs = {specs[0].name: inputs}
    if not isinstance(inputs, dict):
        raise Refusal(422, f"inputs: lists by name were expected, not {described(inputs)}", parameter="inputs")
    names = [spec.name for spec in specs]
    for name in inputs:
        if name not in names:
            message = f"the model has no input {str(name)[:100]!r}{near(str(name), names)}"
            raise Refusal(422, message, "its inputs: " + ", ".join(names), parameter="inputs")
    arrays = {}
    for spec in specs:
        if spec.name not in inputs:
            raise Refusal(422, f"inputs: {spec.name} is missing", parameter="inputs")
        value = inputs[spec.name]
        flat = isinstance(value, list) and len(spec.shape) > 1 and not any(isinstance(v, list) for v in value)
        shape = spec.shape if flat or not spec.shape else None
        arrays[spec.name] = from_lists(spec.name, value, dtype_of(spec, stored), shape)
    return arrays


@functools.lru_cache(64)
def _options(query_string: bytes) -> tuple[Options, str]:
    """Returns what a query asks for, and the model that it names."""
    query = Fields(parsed_query(query_string), ("model", "stored", "timeout", "outputs"), "the query")
    stored = TRUTHS.get(query.text("stored", "true").lower())
    if stored is None:
        raise Refusal(422, "stored: true or false was expected", parameter="stored")
    names = tuple(filter(None, query.text("outputs").split(",")))
    return Options(stored=stored, outputs=names), query.model()


def _as_bytes(answer: Answer) -> HttpAnswer:
    body, description = joined(answer.tensors[0])
    return answered(body, answer, BINARY, [(b"x-tensors", description)])


def _as_json(answer: Answer) -> HttpAnswer:
    outputs = {
        name: {"shape": list(array.shape), "dtype": array.dtype.name, "data": np.ascontiguousarray(array)}
        for name, array in answer.tensors[0].items()
    }
    record = {"model": answer.model, "version": answer.version, "device": answer.device, "outputs": outputs}
    return answered(orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY), answer)
