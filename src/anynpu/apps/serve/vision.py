"""Pictures: /detect and /classify, as JSON with base64 or as the picture itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import orjson

from anynpu.apps.serve.base import Answer, Deployment, Options
from anynpu.apps.serve.desk import Desk, answered
from anynpu.apps.serve.fields import Fields, pictures, wrong
from anynpu.apps.web.app import Route
from anynpu.apps.web.message import BINARY, HttpAnswer, HttpRequest, Refusal
from anynpu.schema import JsonObject
from anynpu.tasks.detect import Threshold, class_numbers

DETECT = ("image", "images", "confidence", "iou", "most", "classes", "model")
CLASSIFY = ("image", "images", "top", "model")
HUGGING_FACE = ("inputs", "parameters", "model")
MOST_DETECTIONS = 3000
MOST_CLASSES = 100_000
FIRST_BYTES = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM", b"II*\x00", b"MM\x00*")
NUMBERS = {"confidence": float, "iou": float, "most": int, "top": int}


def is_picture(request: HttpRequest) -> bool:
    """Says whether the body is a picture itself; where its type is not stated, its first bytes tell."""
    if not request.kind:
        return request.body().startswith(FIRST_BYTES)
    return request.kind.startswith(b"image/") or request.kind == BINARY


def routes(desk: Desk) -> list[Route]:
    """Returns the routes of pictures."""

    async def detect(request: HttpRequest) -> HttpAnswer:
        fields, images, model = await _read(desk, request, DETECT, "detect")
        answer = await desk.ask(request, model, images, Options(threshold=threshold(fields, model)))
        return answered(_named(answer, model, _boxes(answer, model)), answer)

    async def classify(request: HttpRequest) -> HttpAnswer:
        fields, images, model = await _read(desk, request, CLASSIFY, "classify")
        top = fields.whole("top", 0, MOST_CLASSES)
        answer = await desk.ask(request, model, images, Options(top=5 if top is None else top))
        classes = [
            {"classes": [{"label": c.label, "number": c.number, "score": c.score} for c in row]}
            for row in answer.classes
        ]
        return answered(_named(answer, model, classes), answer)

    return [Route("POST", "/detect", detect), Route("POST", "/classify", classify)]


async def _read(
    desk: Desk, request: HttpRequest, known: tuple[str, ...], kind: Any
) -> tuple[Fields, tuple[bytes, ...], Deployment]:
    """Returns the settings, the pictures and the model of a request in either form."""
    if is_picture(request):
        query = request.query()
        typed: JsonObject = {**query}  # as JSON would have it
        for name in NUMBERS.keys() & query.keys():
            try:
                typed[name] = NUMBERS[name](query[name])
            except ValueError:
                raise wrong(name, "a number", query[name]) from None
        if "classes" in query:
            typed["classes"] = [part.strip() for part in query["classes"].split(",")]
        fields = Fields(typed, tuple(name for name in (*known, "timeout") if name[:5] != "image"))
        model = desk.choose(request, fields.model(), kind)
        body = request.body(model.limits.image_bytes)
        if not body:
            raise Refusal(422, "the body is empty, a picture was expected")
        return fields, (body,), model
    fields = Fields(request.json(), known)
    model = desk.choose(request, fields.model(), kind)
    names = [name for name in ("image", "images") if name in fields.data]
    if len(names) != 1:
        raise Refusal(422, "one of image and images was expected", "or send the picture itself as image/jpeg")
    value = fields.data[names[0]]
    if isinstance(value, list) != (names[0] == "images"):
        raise wrong(names[0], "a list" if names[0] == "images" else "one picture in base64", value)
    return fields, pictures(names[0], value, model.limits.items), model


def threshold(fields: Fields, model: Deployment) -> Threshold:
    """Returns what counts as a detection."""
    classes = fields.data.get("classes")
    if classes is not None and (
        not isinstance(classes, list) or not all(isinstance(c, str) or type(c) is int for c in classes) or not classes
    ):
        raise wrong("classes", "a list of names or numbers of classes", classes)
    usual = Threshold()
    confidence, iou = fields.share("confidence"), fields.share("iou")
    return Threshold(
        confidence=usual.confidence if confidence is None else confidence,
        iou=usual.iou if iou is None else iou,
        most=fields.whole("most", 1, MOST_DETECTIONS) or usual.most,
        classes=class_numbers(",".join(map(str, classes)), model.info().labels) if classes else (),
    )


class Detected(TypedDict):
    """One detection as JSON has it."""

    label: str
    number: int
    score: float
    box: list[float]


def _boxes(answer: Answer, model: Deployment) -> list[dict[str, list[Detected]]]:
    labels = model.info().labels
    return [
        {
            "detections": [
                {
                    "label": labels[int(number)] if number < len(labels) else str(int(number)),
                    "number": int(number),
                    "score": float(score),
                    "box": box.tolist(),
                }
                for box, score, number in zip(detected.boxes, detected.scores, detected.classes, strict=True)
            ]
        }
        for detected in answer.detections
    ]


def _named(answer: Answer, model: Deployment, rows: Sequence[Mapping[str, object]]) -> bytes:
    sizes = [{"width": width, "height": height} for width, height in answer.sizes] or [{} for _ in rows]
    images = [{**size, **row} for size, row in zip(sizes, rows, strict=True)]
    record = {"model": answer.model, "version": answer.version, "device": answer.device, "images": images}
    return orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY)


async def hugging_face(desk: Desk, request: HttpRequest, body: Any) -> HttpAnswer:
    """Answers object_detection and image_classification of huggingface_hub's InferenceClient."""
    fields = Fields(body if body is not None else {}, HUGGING_FACE)
    model = desk.choose(request, fields.model(), "detect", "classify")
    if body is None:
        images: tuple[bytes, ...] = (request.body(model.limits.image_bytes),)
    else:
        images = pictures("inputs", fields.value("inputs"), 1)
    names = ("threshold",) if model.kind == "detect" else ("top_k", "function_to_apply")
    parameters = fields.inner("parameters", names)
    if model.kind == "detect":
        confidence = parameters.share("threshold")
        usual = Threshold() if confidence is None else Threshold(confidence=confidence)
        answer = await desk.ask(request, model, images, Options(threshold=usual))
        corners = ("xmin", "ymin", "xmax", "ymax")
        rows = [
            {"label": d["label"], "score": d["score"], "box": dict(zip(corners, map(round, d["box"]), strict=True))}
            for d in _boxes(answer, model)[0]["detections"]
        ]
    else:
        parameters.unsupported("function_to_apply", "softmax")
        top = parameters.whole("top_k", 1, MOST_CLASSES)
        answer = await desk.ask(request, model, images, Options(top=top or 5))
        rows = [{"label": c.label, "score": c.score} for c in answer.classes[0]]
    return answered(orjson.dumps(rows), answer)
