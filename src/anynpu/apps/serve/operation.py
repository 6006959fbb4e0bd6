"""One operation of the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from anynpu.schema import Json

Schema = Mapping[str, Json]
MODEL_STATUSES = (404, 408, 413, 415, 422, 429, 500, 503, 504)


@dataclass(frozen=True)
class Operation:
    """One method of one path, in words and schemas."""

    summary: str
    tag: str
    answer: Schema = field(default_factory=dict)
    bodies: Mapping[str, Schema] = field(default_factory=dict)
    kind: str = "application/json"
    statuses: Sequence[int] = ()
    parameters: Sequence[Schema] = ()
