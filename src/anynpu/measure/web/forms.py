"""What is asked of a server and what a right answer looks like, by route.

    .../embeddings              OpenAI: {"input": [...], "model": ...} -> {"data": [{"index", "embedding"}]}
    .../api/embed               Ollama: {"input": [...], "model": ...} -> {"embeddings": [[...]]}
    .../embed                   TEI: {"inputs": [...]} -> [[...]]
    .../v2/models/NAME/infer    KServe v2 (Open Inference Protocol): tensors in JSON
    .../infer                   anynpu: the bytes of the only input
    .../detect, .../classify    anynpu: an encoded picture -> JSON

Any other route takes the body of a JSON file, and any JSON is a right answer.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anynpu.arrays import read_npy, read_npz
from anynpu.errors import ConfigError
from anynpu.tasks.text import read_text
from anynpu.tensors import Array

JSON, BYTES = "application/json", "application/octet-stream"
EMBEDDINGS, OLLAMA, TEI, KSERVE, INFER, DETECT, CLASSIFY, OTHER = (
    *("embeddings", "ollama", "tei", "kserve-v2", "infer", "detect", "classify"), "other",
)  # fmt: skip
TEXT_FORMS, PICTURE_FORMS, TENSOR_FORMS = (EMBEDDINGS, OLLAMA, TEI), (DETECT, CLASSIFY), (KSERVE, INFER)
ENDINGS = {
    "/embeddings": EMBEDDINGS,
    "/api/embed": OLLAMA,
    "/embed": TEI,
    "/detect": DETECT,
    "/classify": CLASSIFY,
    "/infer": INFER,
}
PICTURES = {
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
    ".bmp": "image/bmp",
    ".gif": "image/gif",
}
KSERVE_TYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "int8": "INT8",
    "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16", "float32": "FP32", "float64": "FP64",
}  # fmt: skip
MOST_PAYLOADS = 256
TEXTS = (
    "A cat sits on the mat.",
    "How do I reset the password of my account?",
    "The committee will meet again on Thursday to discuss the budget for the coming year.",
    "Stock prices fell sharply after the announcement.",
    "cheap flights from Lisbon to Oslo in October",
    "The pump on line three has lost pressure twice since the filter was replaced.",
    "Preheat the oven to 180 degrees and grease a round tin.",
    "Error: connection to the database timed out after 30 seconds.",
    "Who wrote the first book that was printed with movable type?",
    "She plays the violin in an orchestra and teaches physics.",
    "The parcel was delivered to a neighbour while nobody was at home.",
    "A quick way to find similar sentences is to compare their vectors.",
    "running shoes, size 42, waterproof",
    "The river rose two metres in one night, and the lower bridge had to be closed to traffic.",
    "Is it safe to drink water from this tap?",
    "The children built a house of snow behind the school.",
)


class WrongAnswer(ValueError):
    """An answer with a good status that is not what was asked for; the text says in what."""


@dataclass(frozen=True)
class Payload:
    """One body to send and how many items it holds."""

    body: bytes
    content_type: str
    items: int = 1


@dataclass(frozen=True)
class Inputs:
    """What the payloads are made of, one of texts, pictures, tensors and a whole body."""

    source: str
    texts: tuple[str, ...] = ()
    pictures: tuple[Path, ...] = ()
    tensors: Mapping[str, Array] | None = None
    body: bytes | None = None

    @property
    def kind(self) -> str:
        return "texts" if self.texts else "pictures" if self.pictures else "body" if self.body else "tensors"


def read_inputs(source: Path | None) -> Inputs:
    """Returns what a file holds: lines of text, a picture or a folder of them, arrays, or a JSON body."""
    if source is None:
        return Inputs(f"{len(TEXTS)} texts of ours", TEXTS)
    suffix = source.suffix.lower()
    if source.is_dir():
        pictures = tuple(sorted(path for path in source.iterdir() if path.suffix.lower() in PICTURES))
        if not pictures:
            raise ConfigError(f"{source}: no picture in this folder", "it takes " + ", ".join(PICTURES))
        return Inputs(f"{len(pictures[:MOST_PAYLOADS])} pictures of {source}", pictures=pictures[:MOST_PAYLOADS])
    if suffix in PICTURES:
        if not source.is_file():
            raise ConfigError(f"{source}: no such file")
        return Inputs(str(source), pictures=(source,))
    if suffix == ".npy":
        return Inputs(str(source), tensors={"": read_npy(source)})
    if suffix == ".npz":
        return Inputs(str(source), tensors=read_npz(source))
    if suffix == ".json":
        return Inputs(str(source), body=read_body(source))
    lines = tuple(line for line in read_text(source).splitlines() if line.strip())
    if not lines:
        raise ConfigError(f"{source}: no line of text in it")
    return Inputs(f"{len(lines[:MOST_PAYLOADS])} texts of {source}", lines[:MOST_PAYLOADS])


def read_body(path: Path) -> bytes:
    """Returns the bytes of a JSON file."""
    try:
        data = path.read_bytes()
        json.loads(data)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from None
    return data


def form_of(path: str) -> str:
    """Returns the form that a route takes."""
    plain = path.partition("?")[0].rstrip("/")
    if plain.endswith("/infer") and "/v2/models/" in plain:
        return KSERVE
    return next((form for ending, form in ENDINGS.items() if plain.endswith(ending)), OTHER)


def payloads(form: str, path: str, inputs: Inputs, model: str, batch: int = 1) -> list[Payload]:
    """Returns the bodies to send to a route, in turn; inputs that do not fit it raise ConfigError."""
    if inputs.body is not None:
        return [Payload(inputs.body, JSON, 0)]
    if form in TEXT_FORMS and inputs.texts:
        groups = [inputs.texts[at : at + batch] for at in range(0, len(inputs.texts), batch)]
        while len(groups[-1]) < batch:  # every request has the same number of texts
            groups[-1] = (*groups[-1], *inputs.texts)[:batch]
        bodies = [{"inputs": list(g)} if form == TEI else {"input": list(g), "model": model} for g in groups]
        return [Payload(json.dumps(body).encode(), JSON, batch) for body in bodies]
    if form in PICTURE_FORMS and inputs.pictures:
        return [Payload(_picture(path), PICTURES[path.suffix.lower()]) for path in inputs.pictures]
    if form in TENSOR_FORMS and inputs.tensors is not None:
        if form == INFER:
            if len(inputs.tensors) != 1:
                raise ConfigError("/infer takes the bytes of one input", "send several to /v2/models/NAME/infer")
            return [Payload(np.ascontiguousarray(next(iter(inputs.tensors.values()))).tobytes(), BYTES)]
        tensors = [
            {
                "name": name or "input",
                "shape": list(array.shape),
                "datatype": KSERVE_TYPES.get(str(array.dtype), str(array.dtype)),
                "data": array.ravel().tolist(),
            }
            for name, array in inputs.tensors.items()
        ]
        return [Payload(json.dumps({"inputs": tensors}).encode(), JSON)]
    wanted = {
        **dict.fromkeys(TEXT_FORMS, "texts: a file with a text a line"),
        **dict.fromkeys(PICTURE_FORMS, "pictures: a file or a folder"),
        **dict.fromkeys(TENSOR_FORMS, "tensors: an .npy or .npz file"),
        OTHER: "a JSON file, for a route that is not known",
    }[form]
    raise ConfigError(f"{path or '/'}: {inputs.kind} do not go there", f"give {wanted}")


def _picture(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def read_answer(form: str, body: bytes, items: int) -> Array | None:
    """Returns the vectors of an answer [items, width], None where it has none; WrongAnswer says what is wrong."""
    if form == INFER:
        if not body:
            raise WrongAnswer("empty")
        return None
    try:
        data = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise WrongAnswer(str(error) if isinstance(error, WrongAnswer) else "not valid JSON") from None
    if form not in TEXT_FORMS:
        stack = [data]
        while stack:
            value = stack.pop()
            if isinstance(value, float) and not math.isfinite(value):  # 1e999 is valid JSON
                raise WrongAnswer("a number beyond the range of floats")
            stack.extend(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
        if form == KSERVE and not (isinstance(data, Mapping) and isinstance(data.get("outputs"), list)):
            raise WrongAnswer("no outputs")
        return None
    if form == TEI:
        rows = data
    elif form == OLLAMA:
        rows = data.get("embeddings") if isinstance(data, Mapping) else None
    else:
        entries = data.get("data") if isinstance(data, Mapping) else None
        if not isinstance(entries, list) or not all(isinstance(each, Mapping) for each in entries):
            raise WrongAnswer('no list "data"')
        order = [each.get("index", at) for at, each in enumerate(entries)]
        if sorted(order, key=str) != sorted(range(len(entries)), key=str):
            raise WrongAnswer("indices that are not those of the texts")
        rows = [each.get("embedding") for _, each in sorted(zip(order, entries, strict=True), key=lambda pair: pair[0])]
    if not isinstance(rows, list):
        raise WrongAnswer("no list of vectors")
    if items and len(rows) != items:
        raise WrongAnswer(f"{len(rows)} vectors for {items} texts")
    vectors = [_vector(row) for row in rows]
    if len({len(vector) for vector in vectors}) != 1:
        raise WrongAnswer("no vector" if not vectors else "vectors of different widths")
    stacked = np.stack(vectors)
    if not np.isfinite(stacked).all():
        raise WrongAnswer("NaN or infinity in a vector")
    return stacked


def _refuse_constant(name: str) -> float:
    raise WrongAnswer(f"{name}, which JSON does not have")


def _vector(row: Any) -> Array:
    if isinstance(row, str):
        try:
            return np.frombuffer(base64.b64decode(row, validate=True), "<f4").astype(np.float64)
        except (binascii.Error, ValueError):
            raise WrongAnswer("a vector that is not base64 of floats") from None
    if not isinstance(row, list) or not row or not all(type(value) in (int, float) for value in row):
        raise WrongAnswer("a vector that is not a list of numbers")
    return np.asarray(row, np.float64)
