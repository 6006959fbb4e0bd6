"""What the two halves of the server say to each other: requests, answers, errors, and what is observed.

The HTTP half turns bytes into a `Request` and an `Answer` into bytes. The device half is `fleet.open_fleet(models,
settings, observer)`, which returns a `Fleet` of `Deployment`s. All of it is used in the event loop: nothing blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

import numpy as np

from anynpu.artifact import Placement
from anynpu.errors import AnyNpuError
from anynpu.tasks.detect import Detections, Threshold
from anynpu.tensors import Array, TensorSpec

Kind = Literal["embed-text", "embed-image", "detect", "classify", "tensors"]
"""What a model is served as: the kind of its card, or "tensors" where it has none."""
State = Literal["starting", "ready", "degraded", "failed", "stopped"]
"""degraded: the canary found drift, and answers come from the CPU twin or not at all; failed: the device is lost and
being rebuilt, or cannot be opened; stopped: drained and closed."""
Item = str | tuple[int, ...] | bytes | Mapping[str, Array]
"""A text, its token ids, an encoded picture (PNG, JPEG, ...), or every input of the model as an array.

Arrays have the shape of the model's inputs; the first axis may be any number of rows where `Info.dynamic` says so.
"""
Refusal = Literal["overloaded", "expired", "gone", "too large", "invalid", "device", "stopped"]
"""Why a request was not answered."""
NO_VECTORS: Array = np.zeros((0, 0), np.float32)


class Overloaded(AnyNpuError):
    """The queue is full (429); `retry_after_s` is when it should be worth trying again."""

    exit_status = 6

    def __init__(self, message: str, retry_after_s: float, hint: str = "") -> None:
        super().__init__(message, hint)
        self.retry_after_s = retry_after_s


class Expired(AnyNpuError):
    """The deadline passed, or the client left, before the request was computed (504)."""

    exit_status = 6


class TooLarge(AnyNpuError):
    """The request is beyond a limit (413): too many items, too long a text, too many pixels."""

    exit_status = 2


class Stopped(AnyNpuError):
    """The server is draining or closed and takes no more requests (503)."""

    exit_status = 6


@dataclass(frozen=True)
class Options:
    """What a request asks for besides its items; each kind of model looks at its own."""

    threshold: Threshold = field(default_factory=Threshold)
    """Of detections."""
    top: int = 5
    """The number of classes, best first; 0 for all."""
    stored: bool = False
    """Raw tensors are given and returned as the model stores them, not as real numbers."""
    outputs: tuple[str, ...] = ()
    """The outputs wanted of raw tensors; all by default."""
    truncate: bool = True
    """A text longer than the model is cut; otherwise it is refused (TooLarge)."""
    normalize: bool | None = None
    """Vectors of length 1; None is what the model's card says."""


class Request(NamedTuple):
    """Items of one kind for one model. `deadline` is a time of `time.monotonic()`; `gone` says that the client left."""

    items: tuple[Item, ...]
    options: Options = Options()
    deadline: float = math.inf
    gone: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class ClassScore:
    """A class of a picture and its probability."""

    number: int
    label: str
    score: float


class Answer(NamedTuple):
    """What a model said, one row an item, computed by exactly one version of it.

    One of `vectors` [items, width] float32, `detections`, `classes` and `tensors` is filled, by the model's kind and
    what was asked. `version` is the digest of the artifact that computed all of it, `device` the name of the session.
    """

    model: str
    version: str
    device: str
    vectors: Array = NO_VECTORS
    detections: tuple[Detections, ...] = ()
    classes: tuple[tuple[ClassScore, ...], ...] = ()
    tensors: tuple[Mapping[str, Array], ...] = ()
    tokens: int = 0
    """All tokens of all texts, with the marks that begin and end them, as they were computed."""
    truncated: int = 0
    """How many texts were cut."""
    sizes: tuple[tuple[int, int], ...] = ()
    """Width and height of the pictures, upright."""
    batch: int = 1
    """The number of rows that ran together with the request's last one."""
    fallback: bool = False
    """The CPU twin computed it, because the device is not to be trusted now."""
    stages: Mapping[str, float] = MappingProxyType({})
    """Seconds: queue, prepare, run, finish."""


Outcome = Answer | BaseException
"""What becomes of a request: the answer, or why there is none."""
Then = Callable[[Outcome], None]
Early = Callable[[Answer], None]
"""Sends an answer off in the thread that computed it; `Then` is called afterwards all the same."""


class Pending(Protocol):
    """A request that was accepted."""

    def cancel(self) -> object:
        """Gives it up: if it has no outcome yet, that is CancelledError."""
        ...


@dataclass(frozen=True)
class Limits:
    """What one request may hold."""

    items: int = 256
    characters: int = 100_000
    """Of one text."""
    pixels: int = 50_000_000
    """Of one picture."""
    image_bytes: int = 32 << 20


@dataclass(frozen=True)
class Figures:
    """What the artifact's own verification said of one output."""

    sqnr_db: float
    cosine: float


@dataclass(frozen=True)
class Canary:
    """What the last run of the known answers said; `source` is where they are known from."""

    source: str = ""
    cases: int = 0
    runs: int = 0
    failures: int = 0
    ok: bool | None = None
    """None before the first run, or where nothing is known of the model."""
    reason: str = ""
    """The output that drifted and by how much."""
    age_s: float | None = None
    """Seconds since the last run."""
    suspect_answers: int = 0
    """Answers that left the server between the last good run and the one that found the drift, over all drifts."""


@dataclass(frozen=True)
class Info:
    """What is served under one name, for /info and /v1/models."""

    name: str
    kind: Kind
    version: str
    """The digest of the artifact in use now; of several buckets, of all together."""
    artifacts: Mapping[str, str]
    """Path to digest of every artifact in use."""
    format: str
    device: str
    executed: str
    """What executes it, in words."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    limits: Limits
    versions: Mapping[str, str] = field(default_factory=dict)
    placement: Placement | None = None
    verification: Mapping[str, Figures] = field(default_factory=dict)
    """By output; empty where the evidence did not come with the artifact."""
    verified_by: str = ""
    """What executed the verification, and on how many samples."""
    title: str = ""
    space: str = ""
    width: int = 0
    """Of a vector; 0 for other kinds."""
    length: int = 0
    """The most tokens that a text keeps."""
    labels: tuple[str, ...] = ()
    dynamic: bool = False
    """Raw tensors may have any number of rows."""
    batch: int = 1
    """The most rows that run together."""
    made_at: str = ""
    loaded_at: float = 0.0
    """time.time() when this version was switched in."""
    fallback: str = ""
    """The artifact of the CPU twin, if there is one."""
    vocabulary: Mapping[str, int] = field(default_factory=dict)
    """Of a text model: the input that holds tokens, and how many tokens there are."""
    free: tuple[str, ...] = ()
    """The axes that may have any size: "batch", "length"; none where the model runs in the shape it was built for."""


@dataclass(frozen=True)
class Health:
    """How one deployment is."""

    state: State
    reason: str = ""
    canary: Canary = Canary()
    fallback: bool = False
    """Answers come from the CPU twin now."""
    queue: int = 0
    """Items that wait."""
    answered: int = 0
    refused: Mapping[Refusal, int] = field(default_factory=dict)
    restarts: int = 0
    """How often the session was rebuilt after a failure."""
    reloads: int = 0
    loosening: bool = False
    """It runs as it was built, while a form for any number of rows is made and compared with it."""

    @property
    def serving(self) -> bool:
        """Whether requests are answered."""
        return self.state == "ready" or self.fallback


class Deployment(Protocol):
    """One named model."""

    name: str
    kind: Kind
    limits: Limits

    async def answer(self, request: Request) -> Answer:
        """Returns the answer, or raises: Overloaded, Expired, TooLarge, Stopped, ConfigError or IntegrityError (what
        was sent is wrong: 422), DeviceError (503), AccuracyError (the model gave NaN: 500)."""
        ...

    def ask(self, request: Request, then: Then, early: Early | None = None) -> Pending | None:
        """Has `then` called once in the event loop with the answer, or with what `answer` would raise.

        Where that is known at once, `then` is called before this returns.
        """
        ...

    async def tokens(self, items: Sequence[Item]) -> tuple[int, ...]:
        """Returns how many tokens every text has before it is cut, with the marks at its ends."""
        ...

    def info(self) -> Info: ...

    def health(self) -> Health: ...


class Fleet(Protocol):
    """Every model of one server."""

    @property
    def models(self) -> Mapping[str, Deployment]: ...

    async def start(self) -> None:
        """Loads, warms up and checks every model; raises if one cannot be served at all."""
        ...

    async def reload(self, name: str) -> Info:
        """Loads the model's files again beside the session in use, checks the known answers, then switches.

        What is wrong with the new files raises, and the old version goes on.
        """
        ...

    async def check(self, name: str) -> Canary:
        """Runs the known answers of a model now."""
        ...

    async def drain(self) -> None:
        """Takes no more requests and returns once every accepted one is answered."""
        ...

    def close(self) -> None:
        """Gives every device back; what still waits gets `Stopped`."""
        ...


@dataclass(frozen=True)
class ModelSettings:
    """One model to serve. Several `paths` are one text model at several lengths."""

    name: str
    paths: tuple[Path, ...]
    device: str | None = None
    task: str = ""
    tokenizer: str = ""
    channels: str = ""
    strict: bool = False
    threads: int = 0
    """Of a session on this computer's CPU; 0 takes half of the cores."""
    fallback: Literal["", "cpu"] | Path = ""
    """The CPU twin: an artifact's folder, or "cpu" for `cpu` or `float` next to this artifact."""
    most_batch: int = 32
    """The most rows that run together where the model takes any number."""


@dataclass(frozen=True)
class FleetSettings:
    """How every model is served."""

    limits: Limits = Limits()
    queue: int = 512
    """Items that may wait for one model."""
    run_limit_s: float = 30.0
    """One run of a model may take so long; then the device counts as hung."""
    canary_s: float = 300.0
    """Seconds between two runs of the known answers; 0 for none but at start and after a reload."""
    decoders: int = 2
    """Threads that decode pictures."""


class Observer(Protocol):
    """Is told what happens, from any thread; http renders it for Prometheus. Must be quick and never raise."""

    def answered(self, model: str, stages: Mapping[str, float], items: int, tokens: int) -> None:
        """A request was answered; seconds by stage: queue, prepare, run, finish."""
        ...

    def refused(self, model: str, why: Refusal) -> None: ...

    def ran(self, model: str, device: str, rows: int, seconds: float) -> None:
        """A batch ran on a device."""
        ...

    def changed(self, model: str, state: State, reason: str) -> None: ...

    def canary(self, model: str, result: Canary) -> None: ...

    def restarted(self, model: str, reason: str) -> None:
        """A session was given up, and is rebuilt."""
        ...

    def reloaded(self, model: str, version: str) -> None: ...


class Silent:
    """An observer that notes nothing."""

    def answered(self, model: str, stages: Mapping[str, float], items: int, tokens: int) -> None: ...

    def refused(self, model: str, why: Refusal) -> None: ...

    def ran(self, model: str, device: str, rows: int, seconds: float) -> None: ...

    def changed(self, model: str, state: State, reason: str) -> None: ...

    def canary(self, model: str, result: Canary) -> None: ...

    def restarted(self, model: str, reason: str) -> None: ...

    def reloaded(self, model: str, version: str) -> None: ...
