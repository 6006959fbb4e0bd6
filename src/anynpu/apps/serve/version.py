"""One version of a model: its artifacts read once, the sessions that run them, and their known answers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anynpu import schema
from anynpu.apps.serve.base import Info, Kind, Limits, ModelSettings
from anynpu.apps.serve.known import Evidence, Judge, evidence_of
from anynpu.apps.serve.pictures import Pictures
from anynpu.apps.serve.program import Program, Tensors, Texts
from anynpu.artifact import Artifact, Placement
from anynpu.errors import AnyNpuError, ConfigError, DeviceError, first_line
from anynpu.memory import give_back
from anynpu.runtime import trial
from anynpu.runtime.abilities import EndsJobs, free_axes, placement_of
from anynpu.runtime.base import Session, choose, open_artifact, open_session
from anynpu.runtime.loose import open_loose
from anynpu.runtime.ort import OrtSession
from anynpu.runtime.task import Subject, model_of, read_subject
from anynpu.runtime.versions import versions_of
from anynpu.runtime.watch import watch
from anynpu.tasks import card as cards
from anynpu.tasks.embed import Buckets

Opener = Callable[[Artifact, ModelSettings], Session]
KINDS = ("embed-text", "embed-image", "detect", "classify")
WARM_RUNS = 2


def open_here(artifact: Artifact, settings: ModelSettings) -> Session:
    """Returns a session of this machine for an artifact, after a child process has survived it once.

    On this computer's CPU it takes any number of rows where the model is known to allow that; where nobody has tried
    it yet, it is a BuiltSession.
    """
    trial.require(artifact, settings.device)
    kind, threads = choose(artifact.manifest.format, settings.device), settings.threads or own_threads()
    session: Any
    if kind is OrtSession:
        alone = settings.most_batch == 1
        session = OrtSession(artifact, threads, spin=False) if alone else open_loose(artifact, threads, wait=False)
        watch(session)
        opened: Session = session
        return opened
    return open_session(artifact, settings.device)


def own_threads() -> int:
    """Returns how many threads a model on the CPU gets by default: half of what there is, the rest is for others."""
    return max(1, len(os.sched_getaffinity(0)) // 2)


@dataclass(frozen=True)
class Source:
    """The artifacts of a version as they were when it was read, and what came with them."""

    settings: ModelSettings
    kind: Kind
    artifacts: tuple[Artifact, ...]
    subjects: tuple[Subject, ...]
    """Artifacts with their cards; nothing where the model is served as tensors."""
    evidence: tuple[Evidence | None, ...]

    @property
    def digest(self) -> str:
        """The digest of the one artifact, or of all of them together."""
        digests = [artifact.digest for artifact in self.artifacts]
        return digests[0] if len(digests) == 1 else schema.digest(sorted(digests))


def read_source(settings: ModelSettings) -> Source:
    """Reads the artifacts of a model, verified; what cannot be served together raises."""
    if not settings.paths:
        raise ConfigError(f"model {settings.name} names no artifact")
    first = open_artifact(settings.paths[0], settings.strict)
    if not (settings.task or first.manifest.task):
        if len(settings.paths) > 1:
            raise ConfigError(
                f"{settings.paths[0]}: several artifacts under one name are one text model at several lengths",
                "say what it is for with --task, or give each artifact a name of its own",
            )
        return Source(settings, "tensors", (first,), (), (evidence_of(first),))
    kinds = KINDS if len(settings.paths) == 1 else ("embed-text",)
    subjects = tuple(
        read_subject(
            path,
            kinds,
            task=settings.task,
            tokenizer=settings.tokenizer,
            channels=settings.channels,
            strict=settings.strict,
        )
        for path in settings.paths
    )
    artifacts = tuple(subject.artifact for subject in subjects)
    kind: Kind = subjects[0].chosen.card.kind
    return Source(settings, kind, artifacts, subjects, tuple(evidence_of(artifact) for artifact in artifacts))


def card_of(source: Source) -> cards.Card | None:
    return source.subjects[0].chosen.card if source.subjects else None


@dataclass(frozen=True)
class Loaded:
    """A version's sessions, ready to run."""

    source: Source
    program: Program
    raw: Tensors
    judges: tuple[Judge, ...]

    @property
    def sessions(self) -> Sequence[Session]:
        return self.program.sessions

    def device(self) -> str:
        return self.sessions[0].name

    def settle(self, earlier: Loaded | None = None) -> None:
        """Warms every session up and raises AccuracyError unless each gives its known answers."""
        for index, session in enumerate(self.sessions):
            inputs = self.program.samples(index)[0]
            took = []
            for _ in range(WARM_RUNS):
                began = time.perf_counter()
                session.run(inputs)
                took.append(time.perf_counter() - began)
            self.program.run_s[index] = min(took)
            # Another graph adds in another order: only the same one has to repeat the earlier answers.
            same = earlier is not None and free_axes(session) == free_axes(earlier.sessions[index])
            self.judges[index].settle(earlier.judges[index] if earlier is not None and same else None)

    def check(self, most: int | None = None) -> None:
        """Raises AccuracyError, which names the output, unless every session still gives its known answers."""
        for judge in self.judges:
            judge.check(most)

    def cases(self) -> int:
        return sum(len(judge.cases) for judge in self.judges)

    def close(self) -> None:
        for session in self.sessions:
            with suppress(AnyNpuError, OSError):
                session.close()
        give_back()


def load(source: Source, opener: Opener = open_here, run_limit_s: float = 30.0) -> Loaded:
    """Opens sessions for the artifacts of a version; blocks."""
    settings, sessions = source.settings, []
    try:
        for artifact in source.artifacts:
            session = opener(artifact, settings)
            sessions.append(session)
            if isinstance(session, EndsJobs):
                session.timeout_ms = max(1, int(run_limit_s * 1000))
        if source.kind == "tensors":
            program: Program = Tensors(sessions[0], settings.most_batch)
        else:
            models = [model_of(subject, session) for subject, session in zip(source.subjects, sessions, strict=True)]
            if source.kind == "embed-text":
                program = texts = Texts(models, sessions, settings.most_batch)
                Buckets.of(texts.towers)  # of one space, or an error says why not
            else:
                program = Pictures(models[0], sessions[0], settings.most_batch)
        order = [sessions.index(session) for session in program.sessions]
        judges = tuple(
            Judge.of(session, source.evidence[order[place]], program.samples(place))
            for place, session in enumerate(program.sessions)
        )
        vocabulary = program.tokens.vocabulary if isinstance(program, Texts) else {}
        return Loaded(source, program, Tensors(program.sessions[0], settings.most_batch, vocabulary), judges)
    except BaseException as error:
        for session in sessions:
            with suppress(AnyNpuError, OSError):
                session.close()
        if isinstance(error, Exception) and not isinstance(error, AnyNpuError | OSError):
            raise DeviceError(f"{settings.name} cannot be opened: {first_line(error)}", "open") from error
        raise


def describe(name: str, loaded: Loaded, limits: Limits, loaded_at: float, twin: Path | None) -> Info:
    """Returns what is served under a name."""
    source, session = loaded.source, loaded.sessions[0]
    manifest, card = source.artifacts[0].manifest, card_of(source)
    evidence = source.evidence[0]
    placement = placement_of(session)
    info = Info(
        name,
        source.kind,
        source.digest,
        {str(artifact.path): artifact.digest for artifact in source.artifacts},
        manifest.format,
        session.name,
        session.what,
        session.inputs,
        session.outputs,
        limits,
        versions_of(session),
        placement if isinstance(placement, Placement) else manifest.placement,
        evidence.figures if evidence is not None else {},
        f"{evidence.executed}, {evidence.samples} samples" if evidence is not None else "",
        title=card.title if card is not None else "",
        made_at=manifest.made.at if manifest.made is not None else "",
        loaded_at=loaded_at,
        fallback="" if twin is None else str(twin),
        free=tuple(sorted(free_axes(session))),
    )
    return loaded.program.describe(loaded.raw.describe(info))
