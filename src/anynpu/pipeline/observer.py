"""Who hears what a build does, and how long each stage takes."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from anynpu.records.build import StageTiming


class Observer(Protocol):
    """Hears what a build does; one that also hears words is `HearsWords`."""

    def started(self, chip: str, stage: str) -> None: ...

    def progress(self, done: int, total: int) -> None: ...

    def finished(self, chip: str, stage: str, seconds: float, hit: bool) -> None: ...


@runtime_checkable
class HearsWords(Protocol):
    """Hears what a long stage says while it works."""

    def said(self, chip: str, stage: str, words: str) -> None: ...


class Timed:
    """An observer that passes everything on and remembers the stages."""

    def __init__(self, inner: Observer) -> None:
        self.inner = inner
        self.stages: list[StageTiming] = []

    def started(self, chip: str, stage: str) -> None:
        self.inner.started(chip, stage)

    def progress(self, done: int, total: int) -> None:
        self.inner.progress(done, total)

    def said(self, chip: str, stage: str, words: str) -> None:
        if isinstance(self.inner, HearsWords):
            self.inner.said(chip, stage, words)

    def finished(self, chip: str, stage: str, seconds: float, hit: bool) -> None:
        self.stages.append(StageTiming(chip=chip, stage=stage, seconds=round(seconds, 3), cached=hit))
        self.inner.finished(chip, stage, seconds, hit)

    def of(self, chip: str) -> tuple[StageTiming, ...]:
        return tuple(stage for stage in self.stages if stage.chip == chip)
