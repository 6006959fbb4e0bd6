"""The schemas of requests and answers, made from the models that are served."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from anynpu.apps.serve.base import Info
from anynpu.apps.serve.fields import MOST_TOKEN_ID
from anynpu.apps.serve.kserve import TYPES
from anynpu.apps.serve.operation import MODEL_STATUSES, Operation, Schema
from anynpu.apps.serve.tensors import dtype_of
from anynpu.apps.serve.vision import MOST_CLASSES, MOST_DETECTIONS
from anynpu.schema import JsonObject
from anynpu.tensors import TensorSpec

ABOUT = (
    "Models that anynpu has built, executed and compared with their float originals. Every answer names the digest of "
    "the artifact that computed it (X-Model-Version) and the time of each stage (Server-Timing). X-Request-Timeout is "
    "a deadline in seconds, X-Request-Id is kept, X-Model or ?model= names a model where the body does not."
)


def obj(properties: Mapping[str, Schema], required: Iterable[str] = (), closed: bool = True) -> Schema:
    """Returns the schema of an object."""
    schema: JsonObject = {"type": "object", "properties": dict(properties)}
    schema |= {"required": list(required)} if required else {}
    return {**schema, "additionalProperties": False} if closed else schema


def array(items: Schema, least: int = 0, most: int | None = None) -> Schema:
    """Returns the schema of a list."""
    schema: JsonObject = {"type": "array", "items": items}
    schema |= {"minItems": least} if least else {}
    return {**schema, "maxItems": most} if most is not None else schema


def maybe(schema: Schema) -> Schema:
    """Returns a schema that null fits too."""
    return {"anyOf": [schema, {"type": "null"}]}


def asked(properties: Mapping[str, Schema], required: Iterable[str]) -> Schema:
    """Returns the schema of a request's object: a field that may be left out may be null."""
    needed = tuple(required)
    return obj({name: s if name in needed else maybe(s) for name, s in properties.items()}, needed)


NUMBER: Schema = {"type": "number"}
WHOLE: Schema = {"type": "integer"}
TRUTH: Schema = {"type": "boolean"}
TEXT: Schema = {"type": "string"}
SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
VECTORS = array(array(NUMBER))
PICTURE: Schema = {"type": "string", "minLength": 1, "contentEncoding": "base64", "description": "A picture in base64."}
PICTURES = ("image/jpeg", "image/png", "image/webp", "image/bmp", "image/gif", "image/tiff")
BYTES: Schema = {"type": "string", "format": "binary"}
JSON = "application/json"
_PLAIN = obj(
    {"message": TEXT, "type": TEXT, "param": maybe(TEXT), "code": TEXT, "hint": TEXT, "request_id": TEXT},
    ("message", "type", "code"),
    False,
)
ERRORS: Mapping[str, Schema] = {
    "plain": obj({"error": _PLAIN}, ("error",)),
    "openai": obj({"error": _PLAIN}, ("error",)),
    "tei": obj({"error": TEXT, "error_type": TEXT, "code": TEXT}, ("error", "error_type")),
    "kserve": obj({"error": TEXT}, ("error",)),
}
_READY = obj({"ready": TRUTH, "reason": TEXT, "name": TEXT}, ("ready",), False)
GENERAL: Mapping[str, Operation] = {
    "GET /": Operation("A page to try the models.", "server", TEXT, kind="text/html; charset=utf-8"),
    "GET /health": Operation("How every model is.", "server", obj({"status": TEXT}, ("status",), False)),
    "GET /ready": Operation("Whether requests are answered now.", "server", _READY),
    "GET /info": Operation("Digest, receipt and verification of every model.", "server", obj({}, (), False)),
    "GET /metrics": Operation(
        "Figures for Prometheus.", "server", TEXT, kind="text/plain; version=0.0.4; charset=utf-8"
    ),
    "GET /v1/models": Operation("Every model.", "openai", obj({"object": TEXT, "data": array({})}, ("object", "data"))),
    "GET /v2": Operation("The server.", "kserve", obj({"name": TEXT}, ("name",), False)),
    "GET /v2/health/live": Operation("Whether the process lives.", "kserve", obj({"live": TRUTH}, ("live",))),
    "GET /v2/health/ready": Operation("Whether every model answers.", "kserve", _READY),
    "GET /openapi.json": Operation("This document.", "server", obj({}, (), False)),
}


def operations(models: Mapping[str, Info]) -> dict[str, Operation]:
    """Returns the operations that the served models allow, by "METHOD /path"."""
    infos = list(models.values())
    texts = [info for info in infos if info.kind == "embed-text"]
    images = [info for info in infos if info.kind == "embed-image"]
    operations = _models(infos)
    admin = {JSON: asked({"model": _named(infos)}, _needed(infos))}
    done = obj({"model": TEXT}, ("model",), False)
    for path, sentence in (("reload", "Load a model's files again."), ("check", "Run a model's known answers now.")):
        operations[f"POST /admin/{path}"] = Operation(sentence, "admin", done, admin, statuses=MODEL_STATUSES)
    if texts or images:
        operations |= _embeddings(texts, images)
    if texts:
        operations |= _pairs(texts)
    if detectors := [info for info in infos if info.kind == "detect"]:
        settings: dict[str, Schema] = {"confidence": SHARE, "iou": SHARE, "model": _named(detectors)}
        settings |= {"most": {"type": "integer", "minimum": 1, "maximum": MOST_DETECTIONS}}
        labels = sorted({label for info in detectors for label in info.labels})
        settings |= {"classes": array({"type": "string", "enum": labels}, 1)} if labels else {}
        operations["POST /detect"] = _picture("Objects in pictures.", settings, detectors)
    if classifiers := [info for info in infos if info.kind == "classify"]:
        top: dict[str, Schema] = {
            "top": {"type": "integer", "minimum": 0, "maximum": MOST_CLASSES},
            "model": _named(classifiers),
        }
        operations["POST /classify"] = _picture("Classes of pictures.", top, classifiers)
    return operations


def _named(infos: Iterable[Info]) -> Schema:
    return {"type": "string", "enum": [info.name for info in infos]}


def _needed(infos: list[Info], *names: str) -> tuple[str, ...]:
    """The model must be named where more than one would do."""
    return (*names, "model") if len(infos) > 1 else names


def _embeddings(texts: list[Info], images: list[Info]) -> dict[str, Operation]:
    every = [*texts, *images]
    widths: Schema = {"type": "integer", "enum": sorted({info.width for info in every})}
    inputs: Schema = {"anyOf": [PICTURE, array(PICTURE, 1)]}
    if texts:
        text: Schema = {"type": "string", "minLength": 1, "maxLength": min(info.limits.characters for info in texts)}
        most = min(info.limits.items for info in texts)
        last = min([size - 1 for info in texts for size in info.vocabulary.values()], default=MOST_TOKEN_ID)
        tokens = array({"type": "integer", "minimum": 0, "maximum": last}, 1)
        inputs = {"anyOf": [text, array(text, 1, most), tokens, array(tokens, 1, most)]}
    embedding = obj({"object": TEXT, "index": WHOLE, "embedding": {"anyOf": [array(NUMBER), TEXT]}}, ("embedding",))
    usage = obj({"prompt_tokens": WHOLE, "total_tokens": WHOLE}, ("prompt_tokens", "total_tokens"))
    data = obj({"object": TEXT, "data": array(embedding), "model": TEXT, "usage": usage}, ("data", "model", "usage"))
    openai = {
        "model": _named(every),
        "input": inputs,
        "encoding_format": {"type": "string", "enum": ["float", "base64"]},
        "dimensions": widths,
        "user": TEXT,
    }
    shared = {"model": _named(every), "truncate": TRUTH, "normalize": TRUTH, "dimensions": widths}
    shared |= {"truncation_direction": {"type": "string", "enum": ["Right", "right"]}}
    tei = asked({"inputs": inputs, **shared}, _needed(every, "inputs"))
    bodies: dict[str, Schema] = {JSON: tei}
    if images:
        bodies |= dict.fromkeys(PICTURES, BYTES)
    llama = asked({"content": inputs, "model": _named(every)}, _needed(texts, "content"))
    rows = array(obj({"index": WHOLE, "embedding": VECTORS}, ("index", "embedding")))
    operations = {
        "POST /v1/embeddings": Operation(
            "Vectors, in OpenAI's form.",
            "openai",
            data,
            {JSON: asked(openai, _needed(every, "input"))},
            statuses=MODEL_STATUSES,
        ),
        "POST /embed": Operation("Vectors, in TEI's form.", "embeddings", VECTORS, bodies, statuses=MODEL_STATUSES),
        "POST /": Operation(
            "As /embed, for Hugging Face's clients.", "embeddings", VECTORS, {JSON: tei}, statuses=MODEL_STATUSES
        ),
    }
    if texts:
        for path in ("/embedding", "/embeddings"):
            operations[f"POST {path}"] = Operation(
                "Vectors, in llama-server's form.", "embeddings", rows, {JSON: llama}, statuses=MODEL_STATUSES
            )
    return operations


def _pairs(texts: list[Info]) -> dict[str, Operation]:
    text: Schema = {"type": "string", "minLength": 1, "maxLength": min(info.limits.characters for info in texts)}
    several = array(text, 1, min(info.limits.items for info in texts) - 1)
    rerank = {
        "query": text,
        "texts": several,
        "return_text": TRUTH,
        "raw_scores": {"const": False},
        "truncate": TRUTH,
        "model": _named(texts),
    }
    rank = obj({"index": WHOLE, "score": NUMBER, "text": TEXT}, ("index", "score"))
    pair = obj({"source_sentence": text, "sentences": several}, ("source_sentence", "sentences"))
    parameters = asked({"truncate": TRUTH}, ())
    similar = {"inputs": pair, "parameters": parameters, "model": _named(texts)}
    return {
        "POST /rerank": Operation(
            "Texts by the cosine of their vectors with the query's, best first.",
            "embeddings",
            array(rank),
            {JSON: asked(rerank, _needed(texts, "query", "texts"))},
            statuses=MODEL_STATUSES,
        ),
        "POST /similarity": Operation(
            "The cosine of one sentence with each of the others.",
            "embeddings",
            array(NUMBER),
            {JSON: asked(similar, _needed(texts, "inputs"))},
            statuses=MODEL_STATUSES,
        ),
    }


def _picture(summary: str, settings: Mapping[str, Schema], infos: list[Info]) -> Operation:
    several = array(PICTURE, 1, min(info.limits.items for info in infos))
    one = asked({"image": PICTURE, **settings}, _needed(infos, "image"))
    many = asked({"images": several, **settings}, _needed(infos, "images"))
    answer = obj({"model": TEXT, "version": TEXT, "device": TEXT, "images": array({})}, ("images",))
    bodies: dict[str, Schema] = {JSON: {"anyOf": [one, many]}, **dict.fromkeys(PICTURES, BYTES)}
    return Operation(summary, "pictures", answer, bodies, statuses=MODEL_STATUSES)


def _models(infos: list[Info]) -> dict[str, Operation]:
    model: Schema = {"name": "model", "in": "path", "required": True, "schema": _named(infos)}
    versions: Schema = {"type": "string", "enum": sorted({info.version for info in infos})}
    version: Schema = {"name": "version", "in": "path", "required": True, "schema": versions}
    tensor = obj({"name": TEXT, "datatype": TEXT, "shape": array(WHOLE)}, ("name", "datatype", "shape"), False)
    metadata = obj(
        {"name": TEXT, "inputs": array(tensor), "outputs": array(tensor)}, ("name", "inputs", "outputs"), False
    )
    bodies: dict[str, Schema] = {JSON: {"anyOf": [_infer_v2(info) for info in infos]}}
    output = obj({"outputs": array(tensor), "model_name": TEXT, "model_version": TEXT}, ("outputs",), False)
    tensors = obj({"model": TEXT, "outputs": obj({}, (), False)}, ("model", "outputs"), False)
    forms = []
    for info in infos:
        inputs = {spec.name: array(_bounds(info, spec), spec.size, spec.size) for spec in info.inputs}
        fields = {"inputs": obj(inputs, tuple(inputs)), "model": {"const": info.name}}
        forms.append(asked(fields, ("inputs", "model") if len(infos) > 1 else ("inputs",)))
    raw: dict[str, Schema] = {JSON: {"anyOf": forms}, "application/octet-stream": BYTES}
    operations = {
        "GET /v1/models/{model}": Operation(
            "One model.", "openai", obj({"id": TEXT}, ("id",), False), statuses=(404, 503), parameters=[model]
        ),
        "POST /infer": Operation("Raw tensors.", "tensors", tensors, raw, statuses=MODEL_STATUSES),
    }
    for path, parameters in (
        ("/v2/models/{model}", [model]),
        ("/v2/models/{model}/versions/{version}", [model, version]),
    ):
        operations |= {
            f"GET {path}": Operation(
                "Tensors of a model.", "kserve", metadata, statuses=(404, 503), parameters=parameters
            ),
            f"GET {path}/ready": Operation(
                "Whether a model answers.", "kserve", _READY, statuses=(404,), parameters=parameters
            ),
            f"POST {path}/infer": Operation(
                "Raw tensors.", "kserve", output, bodies, statuses=MODEL_STATUSES, parameters=parameters
            ),
        }
    return operations


def _bounds(info: Info, spec: TensorSpec) -> Schema:
    """Returns the schema of one number of an input."""
    if spec.name in info.vocabulary:
        return {"type": "integer", "minimum": 0, "maximum": info.vocabulary[spec.name] - 1}
    dtype = dtype_of(spec, False)
    if dtype == "bool":
        return TRUTH
    if dtype.startswith("float"):
        most = 60000.0 if dtype == "float16" else 1e30
        return {"type": "number", "minimum": -most, "maximum": most}
    bits, low = int(dtype.lstrip("uint")), 0 if dtype.startswith("u") else -1
    return {"type": "integer", "minimum": low * 2 ** (bits - 1), "maximum": 2 ** (bits + low) - 1}


def _infer_v2(info: Info) -> Schema:
    inputs = []
    for spec in info.inputs:
        data = array(_bounds(info, spec), spec.size, spec.size)
        fixed: JsonObject = {"name": spec.name, "datatype": TYPES[dtype_of(spec, False)], "shape": list(spec.shape)}
        inputs.append(
            obj({**{k: {"const": v} for k, v in fixed.items()}, "data": data}, ("name", "datatype", "shape", "data"))
        )
    tensors: Schema = {"type": "array", "prefixItems": inputs, "minItems": len(inputs), "maxItems": len(inputs)}
    outputs = array(obj({"name": {"enum": [spec.name for spec in info.outputs]}}, ("name",)), 1, 1)
    return asked({"id": TEXT, "inputs": tensors, "outputs": outputs}, ("inputs",))
