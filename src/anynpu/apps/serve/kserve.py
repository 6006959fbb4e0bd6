"""The Open Inference Protocol (KServe v2), with Triton's extension for binary tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from anynpu import __version__
from anynpu.apps.serve.base import Deployment, Options
from anynpu.apps.serve.desk import Desk, answered
from anynpu.apps.serve.fields import Fields, bounded, described
from anynpu.apps.serve.tensors import dtype_of, from_bytes, from_lists, shape_of
from anynpu.apps.web.app import Route
from anynpu.apps.web.message import BINARY, JSON, Header, HttpAnswer, HttpRequest, Refusal, json_answer
from anynpu.schema import Json, JsonObject
from anynpu.tensors import Array, TensorSpec, by_name

TYPES: Mapping[str, str] = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}
LENGTH = b"inference-header-content-length"
MOST_TENSORS = 256
REQUEST = ("id", "parameters", "inputs", "outputs")


def routes(desk: Desk) -> list[Route]:
    """Returns the routes of the protocol; a version is the digest of an artifact."""

    def model_of(request: HttpRequest) -> Deployment:
        model = desk.choose(request, request.parameters["model"])
        version = request.parameters.get("version")
        if version is not None and version != model.info().version:
            raise Refusal(404, f"version {version[:80]} of {model.name} is not served", f"now: {model.info().version}")
        return model

    async def server(request: HttpRequest) -> HttpAnswer:
        return json_answer({"name": "anynpu", "version": __version__, "extensions": ["binary_tensor_data"]})

    async def live(request: HttpRequest) -> HttpAnswer:
        return json_answer({"live": True})

    async def ready(request: HttpRequest) -> HttpAnswer:
        return _ready({}, desk.started and not desk.draining and all(_serving(m) for m in desk.fleet.models.values()))

    async def metadata(request: HttpRequest) -> HttpAnswer:
        info = model_of(request).info()
        record = {
            "name": info.name,
            "versions": [info.version],
            "platform": f"anynpu_{info.format}",
            "inputs": [_described(spec, info.dynamic) for spec in info.inputs],
            "outputs": [_described(spec, info.dynamic) for spec in info.outputs],
        }
        return json_answer(record)

    async def model_ready(request: HttpRequest) -> HttpAnswer:
        model = model_of(request)
        return _ready({"name": model.name}, desk.started and not desk.draining and _serving(model))

    async def infer(request: HttpRequest) -> HttpAnswer:
        return await _infer(desk, request, model_of(request))

    served = [
        Route("GET", "/v2", server, errors="kserve"),
        Route("GET", "/v2/health/live", live, public=True, errors="kserve"),
        Route("GET", "/v2/health/ready", ready, public=True, errors="kserve"),
    ]
    for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        served += [
            Route("GET", path, metadata, errors="kserve"),
            Route("GET", f"{path}/ready", model_ready, errors="kserve"),
            Route("POST", f"{path}/infer", infer, errors="kserve"),
        ]
    return served


def _serving(model: Deployment) -> bool:
    return model.health().serving


def _ready(named: Mapping[str, Json], ready: bool) -> HttpAnswer:
    return json_answer({**named, "ready": ready}, 200 if ready else 503)


def _described(spec: TensorSpec, dynamic: bool) -> JsonObject:
    shape = [-1, *spec.shape[1:]] if dynamic and spec.shape else list(spec.shape)
    return {"name": spec.name, "datatype": TYPES[dtype_of(spec, False)], "shape": shape}


async def _infer(desk: Desk, request: HttpRequest, model: Deployment) -> HttpAnswer:
    head, binary = _parts(request)
    fields = Fields(head, REQUEST)
    parameters = fields.inner("parameters", ("stored", "binary_data_output", "timeout"))
    stored = bool(parameters.flag("stored"))
    specs = by_name(model.info().inputs)
    arrays: dict[str, Array] = {}
    for entry in bounded("inputs", _list(fields.value("inputs"), "inputs"), MOST_TENSORS):
        name, array, binary = _input(entry, specs, stored, binary)
        if name in arrays:
            raise Refusal(422, f"inputs: {name} is given twice", parameter="inputs")
        arrays[name] = array
    if len(binary):
        raise Refusal(422, f"{len(binary):,} bytes follow that no input's binary_data_size counts")
    wanted = _outputs(fields, bool(parameters.flag("binary_data_output")))
    answer = await desk.ask(request, model, [arrays], Options(stored=stored, outputs=tuple(wanted)))
    as_binary = wanted or dict.fromkeys(answer.tensors[0], bool(parameters.flag("binary_data_output")))
    id = fields.text("id")
    outputs, raw = [], []
    for name, array in answer.tensors[0].items():
        output: dict[str, object] = {"name": name, "shape": list(array.shape), "datatype": TYPES[str(array.dtype)]}
        if as_binary.get(name):
            raw.append(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
            output["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            output["data"] = np.ascontiguousarray(array).ravel()
        outputs.append(output)
    head = {"model_name": answer.model, "model_version": answer.version, "outputs": outputs}
    head |= {"id": id} if id else {}
    text = orjson.dumps(head, option=orjson.OPT_SERIALIZE_NUMPY)
    lengths: list[Header] = [(LENGTH, b"%d" % len(text))] if raw else []
    return answered(text + b"".join(raw), answer, BINARY if raw else JSON, lengths)


def _parts(request: HttpRequest) -> tuple[Any, memoryview]:
    """Returns the JSON of a request and the bytes after it, which a header announces."""
    length = request.headers.get(LENGTH)
    if length is None:
        return request.json(), memoryview(b"")
    body = request.body()
    if not length.isdigit() or len(length) > 12 or int(length) > len(body):
        raise Refusal(400, f"Inference-Header-Content-Length is not a number up to {len(body)}")
    try:
        return orjson.loads(body[: int(length)]), memoryview(body)[int(length) :]
    except orjson.JSONDecodeError as error:
        raise Refusal(400, f"the head of the body is not valid JSON: {str(error)[:200]}", code="invalid_json") from None


def _input(
    entry: Any, specs: Mapping[str, TensorSpec], stored: bool, binary: memoryview
) -> tuple[str, Array, memoryview]:
    """Returns one input, and the bytes that belong to the next ones."""
    fields = Fields(entry, ("name", "shape", "datatype", "parameters", "data"), "inputs")
    name = fields.text("name")
    if name not in specs:
        raise Refusal(
            422, f"the model has no input {name[:100]!r}", "its inputs: " + ", ".join(specs), parameter="name"
        )
    dtype = dtype_of(specs[name], stored)
    if fields.value("datatype") != TYPES[dtype]:
        hint = '"parameters": {"stored": true} sends what the model stores' if specs[name].quantization else ""
        raise Refusal(
            422, f"{name}: datatype {TYPES[dtype]} was expected, not {described(fields.value('datatype'))}", hint
        )
    shape = shape_of(name, fields.value("shape"))
    size = fields.inner("parameters", ("binary_data_size",)).whole("binary_data_size", 0, 2**40)
    if size is None:
        data = fields.value("data")
        if not isinstance(data, list):
            raise Refusal(422, f"{name}: data: a list was expected, not {described(data)}", parameter="data")
        return name, from_lists(name, data, dtype, shape), binary
    if size > len(binary) or "data" in fields.data:
        raise Refusal(422, f"{name}: binary_data_size is {size:,}, and {len(binary):,} bytes follow", parameter=name)
    return name, from_bytes(name, binary[:size], dtype, shape), binary[size:]


def _outputs(fields: Fields, default: bool) -> dict[str, bool]:
    """Returns the outputs that are asked for, and whether each is to come as bytes."""
    if fields.data.get("outputs") is None:
        return {}
    wanted: dict[str, bool] = {}
    for entry in bounded("outputs", _list(fields.data["outputs"], "outputs"), MOST_TENSORS):
        output = Fields(entry, ("name", "parameters"), "outputs")
        binary = output.inner("parameters", ("binary_data",)).flag("binary_data")
        name = output.value("name")
        if not isinstance(name, str) or name in wanted:
            raise Refusal(422, f"outputs: {described(name)} is not a name, or given twice", parameter="outputs")
        wanted[name] = default if binary is None else binary
    return wanted


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise Refusal(422, f"{name}: a list was expected, not {described(value)}", parameter=name)
    return value
