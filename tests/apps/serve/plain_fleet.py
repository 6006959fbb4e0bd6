"""Models that need no files: each computes its answers with numpy, and obeys the contract of `apps.serve.base`."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np

from anynpu.apps.serve.base import (
    Answer,
    Canary,
    ClassScore,
    Early,
    Expired,
    Figures,
    Health,
    Info,
    Item,
    Kind,
    Limits,
    Overloaded,
    Request,
    Stopped,
    Then,
    TooLarge,
)
from anynpu.errors import ConfigError
from anynpu.tasks.detect import Detections
from anynpu.tasks.picture import read_image
from anynpu.tensors import Array, Quantization, TensorSpec

WIDTH = 16
LABELS = ("dark", "bright")


class PlainModel:
    """One model; `delay_s` is how long its device takes, `queue` how many may wait for it."""

    def __init__(
        self, name: str, kind: Kind, limits: Limits | None = None, delay_s: float = 0.0, queue: int = 8
    ) -> None:
        self.name, self.kind, self.limits = name, kind, limits or Limits(items=8, characters=1000)
        self.version = hashlib.sha256(name.encode()).hexdigest()
        self.delay_s, self.queue, self.waiting, self.computed = delay_s, queue, 0, 0
        self.device = asyncio.Lock()
        self.free = threading.Event()
        """While it is not set, the device is busy with something else."""
        self.free.set()
        self.error: Exception | None = None
        self.sends_early = False
        """Answers are sent off in another thread, as the owner of a device does."""
        self.state, self.fallback, self.truth = "ready", False, Canary("test", 1, 1, 0, True, "", 1.0)

    async def answer(self, request: Request) -> Answer:
        for item in request.items:
            self.check(item, request)
        if len(request.items) > self.limits.items:
            raise TooLarge(f"{len(request.items)} items, at most {self.limits.items}")
        if self.waiting >= self.queue:
            raise Overloaded(f"{self.waiting} requests wait for {self.name}", 1.5, "try later")
        began = time.monotonic()
        self.waiting += 1
        try:
            async with self.device:
                while not self.free.is_set():
                    await asyncio.sleep(0.005)
                if time.monotonic() > request.deadline or request.gone():
                    raise Expired("the deadline passed before the request was computed")
                queued = time.monotonic() - began
                await asyncio.sleep(self.delay_s)
                if self.error is not None:
                    raise self.error
                self.computed += 1
                return self.compute(request, queued)
        finally:
            self.waiting -= 1

    def ask(self, request: Request, then: Then, early: Early | None = None) -> asyncio.Task[Answer]:
        def done(task: asyncio.Task[Answer]) -> None:
            outcome = asyncio.CancelledError() if task.cancelled() else task.exception() or task.result()
            if self.sends_early and early is not None and isinstance(outcome, Answer):
                owner = threading.Thread(target=early, args=(outcome,))
                owner.start()
                owner.join()
            then(outcome)

        task = asyncio.get_running_loop().create_task(self.answer(request))
        task.add_done_callback(done)
        return task

    def check(self, item: Item, request: Request) -> None:
        if isinstance(item, str) and len(item) > self.limits.characters:
            raise TooLarge(f"a text of {len(item)} characters, at most {self.limits.characters}")
        if isinstance(item, str) and not request.options.truncate and len(item.split()) > 20:
            raise TooLarge("the text is longer than the model")

    def compute(self, request: Request, queued: float) -> Answer:
        found: dict[str, object] = {"tokens": sum(map(_tokens, request.items))}
        if isinstance(request.items[0], Mapping):
            found["tensors"] = tuple(self.tensors(item, request) for item in request.items)
        elif self.kind == "embed-text":
            found["vectors"] = np.stack([vector(item) for item in request.items])
            found["truncated"] = sum(isinstance(i, str) and len(i.split()) > 20 for i in request.items)
        else:
            pixels = [read_image(item).pixels for item in request.items]
            found["sizes"] = tuple((p.shape[1], p.shape[0]) for p in pixels)
            if any(p.shape[0] * p.shape[1] > self.limits.pixels for p in pixels):
                raise TooLarge("too many pixels")
            found |= self.look(pixels, request)
        stages = {"queue": queued, "run": self.delay_s}
        return Answer(self.name, self.version, "plain", stages=stages, fallback=self.fallback, **found)

    def look(self, pixels: list[Array], request: Request) -> dict[str, object]:
        if self.kind == "embed-image":
            return {"vectors": np.stack([unit(np.resize(p.mean((0, 1)), WIDTH)) for p in pixels])}
        bright = [float(p.mean()) / 255 for p in pixels]
        if self.kind == "classify":
            rows = [(ClassScore(1, "bright", b), ClassScore(0, "dark", 1 - b)) for b in bright]
            return {"classes": tuple(row[: request.options.top or None] for row in rows)}
        threshold = request.options.threshold
        found = []
        for p, score in zip(pixels, bright, strict=True):
            keep = score >= threshold.confidence and (not threshold.classes or 1 in threshold.classes)
            box = np.array([[0, 0, p.shape[1], p.shape[0]]], np.float32)[: int(keep)]
            found.append(Detections(box, np.array([score])[: int(keep)], np.array([1])[: int(keep)]))
        return {"detections": tuple(found)}

    def tensors(self, item: Mapping[str, Array], request: Request) -> dict[str, Array]:
        """Doubles x; both are stored as int8 in steps of 0.5."""
        info = self.info()
        if set(item) != {spec.name for spec in info.inputs}:
            raise ConfigError("the inputs of the model are missing")
        (spec,) = info.inputs
        stored = item[spec.name] if request.options.stored else spec.to_stored(item[spec.name])
        spec.check(stored)
        doubled = np.clip(stored.astype(np.int32) * 2, -128, 127).astype(np.int8)
        outputs = {"y": doubled if request.options.stored else info.outputs[0].to_real(doubled)}
        for name in request.options.outputs:
            if name not in outputs:
                raise ConfigError(f"the model has no output {name}")
        return outputs

    async def tokens(self, items: Sequence[Item]) -> tuple[int, ...]:
        return tuple(map(_tokens, items))

    def info(self) -> Info:
        half = Quantization((0.5,), (0,))
        x = TensorSpec("x", (1, 2, 3), "int8", quantization=half)
        y = TensorSpec("y", (1, 2, 3), "int8", quantization=half)
        return Info(
            self.name, self.kind, self.version, {"out/plain": self.version}, "plain", "plain", "numpy", (x,), (y,),
            self.limits, width=WIDTH if self.kind.startswith("embed") else 0, length=20,
            labels=LABELS if self.kind in ("detect", "classify") else (), verification={"y": Figures(40.0, 1.0)},
        )  # fmt: skip

    def health(self) -> Health:
        return Health(self.state, "", self.truth, self.fallback, self.waiting, self.computed)


class PlainFleet:
    """A fleet of such models."""

    def __init__(self, *models: PlainModel) -> None:
        self.models = {model.name: model for model in models}
        self.stopped = False

    async def start(self) -> None:
        return None

    async def reload(self, name: str) -> Info:
        model = self.models[name]
        model.version = hashlib.sha256(model.version.encode()).hexdigest()
        return model.info()

    async def check(self, name: str) -> Canary:
        return self.models[name].truth

    async def drain(self) -> None:
        for model in self.models.values():
            model.error = Stopped("the server is stopping")

    def close(self) -> None:
        self.stopped = True


def unit(values: Array) -> Array:
    return (values / max(float(np.linalg.norm(values)), 1e-9)).astype(np.float32)


def vector(item: Item) -> Array:
    """Returns a vector in which each word or token counts."""
    words = item.lower().split() or [item] if isinstance(item, str) else [f"#{token}" for token in item]
    total = np.zeros(WIDTH)
    for word in words:
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "little")
        total += np.random.default_rng(seed).normal(size=WIDTH)
    return unit(total)


def _tokens(item: Item) -> int:
    return len(item.split()) + 2 if isinstance(item, str) else len(item) if isinstance(item, tuple) else 0
