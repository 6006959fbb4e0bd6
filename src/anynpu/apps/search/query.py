"""Questions to an index: words, pictures, texts, and what is like something that it holds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anynpu.apps.search.documents import paragraphs
from anynpu.apps.search.index import Index
from anynpu.apps.search.points import DOCUMENTS, IMAGES
from anynpu.errors import ConfigError
from anynpu.tasks.picture import Picture
from anynpu.tensors import Array
from anynpu.vectors.base import Condition, Filter, Match, Range
from anynpu.vectors.checks import MOST_LIMIT

MOST_PARAGRAPHS = 64
"""Of a text that is searched by; more say no more of what it is about."""


@dataclass(frozen=True)
class Result:
    """A picture or a paragraph, with its cosine to the question and every file that holds it."""

    id: str
    kind: str
    score: float
    paths: tuple[str, ...]
    taken: float
    hash: str
    text: str = ""
    line: int = 0
    gone: bool = False
    """None of its files is there any more: index again."""


@dataclass(frozen=True)
class Answer:
    """What was found; scores of pictures and of documents come from different models and are not comparable."""

    pictures: tuple[Result, ...] = ()
    documents: tuple[Result, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Where:
    """Which files count: below a folder, taken in a span of time (seconds, UTC)."""

    folder: str = ""
    since: float | None = None
    until: float | None = None

    def filter(self) -> Filter | None:
        conditions: list[Condition] = []
        if self.folder:
            conditions.append(Match("folders", os.path.abspath(os.path.expanduser(self.folder))))  # noqa: PTH100, PTH111
        if self.since is not None or self.until is not None:
            conditions.append(Range("taken", gte=self.since, lt=self.until))
        return Filter(must=tuple(conditions)) if conditions else None


EVERYWHERE = Where()


class Search:
    """An index that answers."""

    def __init__(self, index: Index) -> None:
        self.index = index

    def by_words(self, words: str, limit: int = 10, where: Where = EVERYWHERE) -> Answer:
        """Returns the pictures and paragraphs that fit some words."""
        if not words.strip():
            raise ConfigError("the question is empty", 'such as: anynpu search "a dog on a beach"')
        models, notes = self.index.models, []
        pictures: tuple[Result, ...] = ()
        documents: tuple[Result, ...] = ()
        if models.questions is not None:
            pictures = self._nearest(IMAGES, models.questions.embed([words])[0], limit, where)
        elif self.index.collection(IMAGES) is not None:
            notes.append("pictures are not searched by words: no --question-model of their space is given")
        if models.documents is not None and self.index.collection(DOCUMENTS) is not None:
            documents = self._nearest(DOCUMENTS, models.documents.embed([words])[0], limit, where)
        return self._checked(Answer(pictures, documents, tuple(notes)))

    def by_text(self, text: str, limit: int = 10, where: Where = EVERYWHERE) -> Answer:
        """Returns the paragraphs, and the pictures where that can be, that are about what a text is about."""
        pieces = [piece.text for piece in paragraphs(text)][:MOST_PARAGRAPHS]
        if not pieces:
            raise ConfigError("the text holds no words")
        models = self.index.models
        pictures: tuple[Result, ...] = ()
        documents: tuple[Result, ...] = ()
        if models.questions is not None:
            pictures = self._nearest(IMAGES, _middle(models.questions.embed(pieces)), limit, where)
        if models.documents is not None and self.index.collection(DOCUMENTS) is not None:
            documents = self._nearest(DOCUMENTS, _middle(models.documents.embed(pieces)), limit, where)
        return self._checked(Answer(pictures, documents))

    def by_picture(self, name: str, picture: Picture, limit: int = 10, where: Where = EVERYWHERE) -> Answer:
        """Returns the pictures that look like one."""
        model = self.index.models.pictures
        if model is None:
            raise ConfigError("this index has no model for pictures", "index with --image-model")
        return self._checked(Answer(self._nearest(IMAGES, model.embed([(name, picture)])[0], limit, where)))

    def like(self, id: str, limit: int = 10, where: Where = EVERYWHERE) -> Answer:
        """Returns what is most like a picture or a paragraph of the index, without it."""
        for name in (IMAGES, DOCUMENTS):
            collection = self.index.collection(name)
            rows = collection.retrieve([id], with_vector=True) if collection is not None else []
            if rows and rows[0].vector is not None:
                others = [each for each in self._nearest(name, rows[0].vector, limit + 1, where) if each.id != id]
                kept = tuple(others[:limit])
                return self._checked(Answer(kept) if name == IMAGES else Answer(documents=kept))
        raise ConfigError(f"{id}: the index holds nothing under this id")

    def _checked(self, answer: Answer) -> Answer:
        if self.index.collection(IMAGES) is None and self.index.collection(DOCUMENTS) is None:
            raise ConfigError(f"{self.index.folder}: nothing is indexed", "anynpu search index FOLDER")
        return answer

    def _nearest(self, name: str, vector: Array, limit: int, where: Where) -> tuple[Result, ...]:
        collection = self.index.collection(name)
        if collection is None:
            return ()
        # Of a document one paragraph is shown, the best: more are asked for until enough documents come together.
        wanted = limit if name == IMAGES else limit * 5
        best: dict[str, Result] = {}
        while True:
            hits = collection.query(vector, min(wanted, MOST_LIMIT), where=where.filter())
            for hit in hits:
                payload = hit.payload
                listed = payload.get("paths")
                paths = tuple(str(path) for path in listed) if isinstance(listed, Sequence) else ()
                taken, line = payload.get("taken"), payload.get("line")
                result = Result(
                    str(hit.id),
                    str(payload.get("kind", "")),
                    float(hit.score),
                    paths,
                    float(taken) if isinstance(taken, int | float) else 0.0,
                    str(payload.get("hash", "")),
                    str(payload.get("text", "")),
                    int(line) if isinstance(line, int) else 0,
                    not any(os.path.exists(path) for path in paths),  # noqa: PTH110
                )
                best.setdefault(result.hash, result)
            if len(best) >= limit or len(hits) < wanted or wanted >= MOST_LIMIT:
                break
            wanted *= 4
        return tuple(best.values())[:limit]


def _middle(vectors: Array) -> Array:
    """Returns the direction of the mean of some directions."""
    mean = vectors.mean(axis=0)
    return np.asarray(mean / np.linalg.norm(mean), np.float32)
