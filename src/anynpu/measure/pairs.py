"""Pairs of sentences with a score from people (STS), and how well a model's cosines follow those scores."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anynpu.errors import ConfigError, IntegrityError
from anynpu.measure.metrics import ranks
from anynpu.tasks.text import read_text
from anynpu.tensors import Array

MOST_BYTES = 256 << 20
NAMES = (
    ("sentence1", "sentence_1", "sent1", "text1"),
    ("sentence2", "sentence_2", "sent2", "text2"),
    ("score", "similarity_score", "similarity", "label"),
)
FORM = (
    "three columns are expected: two sentences and a score, or a first line that names sentence1, sentence2 and score"
)


@dataclass(frozen=True)
class Pairs:
    """Two sentences and a score each."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    scores: Array

    def __len__(self) -> int:
        return len(self.first)


def read_pairs(path: Path, limit: int | None = None) -> Pairs:
    """Returns the pairs in a .csv or .tsv file; a .tsv has no quotes, as STS files have none."""
    kind = path.suffix.lower()
    if kind not in (".csv", ".tsv"):
        raise ConfigError(f"{path}: pairs of sentences are a .csv or .tsv file", FORM)
    text = read_text(path, MOST_BYTES)
    if kind == ".csv":
        rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    else:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter="\t", quoting=csv.QUOTE_NONE)
    lines: list[tuple[int, list[str]]] = []
    try:
        for row in rows:
            if any(cell.strip() for cell in row):
                lines.append((rows.line_num, row))
    except csv.Error as error:
        raise IntegrityError(f"{path}: line {rows.line_num}: {error}") from None
    if not lines:
        raise ConfigError(f"{path} holds no pairs", FORM)
    # Where sentences and score stand: as the first line says, or in three columns
    head = [cell.strip().lower() for cell in lines[0][1]]
    columns = [next((head.index(name) for name in names if name in head), -1) for names in NAMES]
    titled = min(columns) >= 0
    if not titled and len(head) != 3:
        raise ConfigError(f"{path}: line {lines[0][0]} has {len(head)} columns", FORM)
    if not titled:
        columns, titled = [0, 1, 2], _number(head[2]) is None
    if not (body := (lines[1:] if titled else lines)[:limit]):
        raise ConfigError(f"{path} holds no pairs", FORM)
    pairs: list[tuple[str, str, float]] = []
    for number, row in body:
        if len(row) <= max(columns):
            raise IntegrityError(f"{path}: line {number} has {len(row)} columns", FORM)
        score = _number(row[columns[2]])
        if score is None:
            raise IntegrityError(f"{path}: line {number}: {row[columns[2]][:40]!r} is not a score")
        pairs.append((row[columns[0]], row[columns[1]], score))
    first, second, scores = zip(*pairs, strict=True)
    return Pairs(first, second, np.asarray(scores, np.float64))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def pearson(a: Array, b: Array) -> float:
    """Returns the correlation of two rows of numbers; NaN where one of them does not vary."""
    sides = []
    for values in (np.asarray(x, np.float64) for x in (a, b)):
        centred = values - values.mean()
        length = float(np.linalg.norm(centred))
        # What rounding leaves of equal numbers is not variation.
        if length <= 1e-13 * float(np.linalg.norm(values)):
            return math.nan
        sides.append(centred / length)
    return float(np.clip(sides[0] @ sides[1], -1.0, 1.0))


def spearman(a: Array, b: Array) -> float:
    """Returns the correlation of ranks, equal values sharing the mean of theirs; NaN where one does not vary."""
    return pearson(ranks(np.asarray(a, np.float64)), ranks(np.asarray(b, np.float64)))
