"""Labels: which class of the model a label of the data means. Every verb that scores reads them here.

A label is a number, a name or the sub-folder that an image lies in. What it means is never guessed: names go by the
labels of the model's card, numbers are class numbers, and what fits no class is an error before anything runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anynpu.errors import ConfigError
from anynpu.measure.metrics import MEAN_CLASSES
from anynpu.schema import near
from anynpu.tensors import Array, TensorSpec

CLASS_METRICS = ("top1", "top5", "mean_top1")
ANOMALY = "auc_reconstruction"
BOXES = "map50"
SHOWN = 12
SYNSET = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class Labels:
    """Labels as a metric takes them, and notes on how they were read."""

    values: Array
    notes: tuple[str, ...] = ()


def require_metric(metric: str, known: Iterable[str]) -> None:
    """Raises for a metric that there is not."""
    if metric and metric not in known:
        raise ConfigError(f"--metric {metric}: no such metric{near(metric, known)}", "known: " + ", ".join(known))


def require_fit(metric: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Raises, before anything is converted or run, for a metric that the model's outputs cannot be scored by."""
    shown = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in outputs)
    if len(outputs) != 1:
        raise ConfigError(f"--metric {metric} scores one output; the model has {shown}")
    shape = outputs[0].shape
    if metric in ("top1", "top5") and class_count(metric, outputs) < 2:
        raise ConfigError(f"--metric {metric} needs at least two classes; the model gives {shown}")
    if metric == "mean_top1" and (len(shape) != 4 or shape[1] < MEAN_CLASSES):
        raise ConfigError(f"--metric mean_top1 needs maps [N, {MEAN_CLASSES} or more, H, W]; the model gives {shown}")
    if metric == ANOMALY and (len(inputs) != 1 or inputs[0].shape[1:] != shape[1:]):
        raise ConfigError(f"--metric {metric} compares the output with the input; the model gives {shown}")


def class_count(metric: str, outputs: Sequence[TensorSpec]) -> int:
    """Returns how many classes a metric tells apart."""
    if metric == "mean_top1":
        return MEAN_CLASSES
    return 2 if metric == ANOMALY else outputs[0].size // outputs[0].shape[0]


def read_labels(
    metric: str,
    labels: Array,
    folders: Sequence[str],
    outputs: Sequence[TensorSpec],
    names: Sequence[str],
    origin: str,
    rename: Mapping[str, str] | None = None,
) -> Labels:
    """Returns labels as `metric` takes them; `folders` are the sub-folders that they number, `names` the card's."""
    if metric == BOXES:
        if labels.ndim != 3 or labels.shape[2] != 5:
            raise ConfigError(
                f"{origin}: {BOXES} needs labels [N, boxes, 5], not {list(labels.shape)}",
                "a box is (class, x0, y0, x1, y1); class -1 fills up",
            )
        return Labels(_finite(labels, origin))
    if metric not in (*CLASS_METRICS, ANOMALY):
        return Labels(_finite(labels, origin))
    count = class_count(metric, outputs)
    known = tuple(names) if len(names) == count else tuple(map(str, range(count)))
    if names and len(names) != count and metric != ANOMALY:
        raise ConfigError(f"the card names {len(names)} labels, the model has {count} classes")
    if labels.dtype.kind in "US":
        texts, labels = np.unique(labels.astype(str), return_inverse=True)
        folders, labels = tuple(map(str, texts)), labels.reshape(-1)
    if len(folders):
        numbers, note = folder_classes(folders, known, rename or {}, in_order=metric != ANOMALY, named=bool(names))
        return Labels(np.asarray(numbers, np.int64)[labels], (note,))
    values, notes = _numbers(labels, count, origin)
    if metric == ANOMALY and len({*values.tolist()} & {0, 1}) < 2:
        raise ConfigError(f"{origin}: {metric} needs labels of both kinds, 0 and 1 (an anomaly)")
    if values.size and (values.min() < 0 or values.max() >= count):
        raise ConfigError(
            f"{origin}: labels from {values.min()} to {values.max()} for {count} classes, which are 0 to {count - 1}"
        )
    return Labels(values, notes)


def _finite(labels: Array, origin: str) -> Array:
    if labels.dtype.kind not in "biuf":
        raise ConfigError(f"{origin}: labels of type {labels.dtype}: numbers were expected")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ConfigError(f"{origin}: labels hold NaN or infinity")
    return labels


def _numbers(labels: Array, count: int, origin: str) -> tuple[Array, tuple[str, ...]]:
    """Returns class numbers: whole, one a sample; one-hot rows are taken as what they say."""
    values = _finite(labels, origin)
    if values.dtype.kind == "f" and not (values == np.floor(values)).all():
        raise ConfigError(
            f"{origin}: labels such as {values[values != np.floor(values)].flat[0]} are not class numbers"
        )
    whole = values.astype(np.int64)
    if whole.size == len(whole):
        return whole.reshape(len(whole)), ()
    if whole.shape == (len(whole), count) and ((whole == 0) | (whole == 1)).all() and (whole.sum(axis=1) == 1).all():
        return whole.argmax(axis=1), (f"{origin}: one-hot labels, taken as class numbers",)
    shape = list(labels.shape[1:])  # without the count, which may be that of the held-out samples
    raise ConfigError(f"{origin}: labels of shape {shape} for each sample: one class number was expected")


def folder_classes(
    folders: Sequence[str], names: Sequence[str], rename: Mapping[str, str], in_order: bool = True, named: bool = True
) -> tuple[list[int], str]:
    """Returns the class number of every sub-folder, and the mapping as a sentence.

    `names` are those of the card, or numbers where it has none (`named` says which); `in_order` lets folders that name
    no class be taken in sorted order where there are as many as classes.
    """
    if not rename and all(folder.isdecimal() for folder in folders) and not set(folders) <= set(names):
        numbers, count, how = [*map(int, folders)], len(names), "classes by the number of their folder"
        if len(set(numbers)) != len(numbers):
            raise ConfigError(f"two sub-folders have one number among {', '.join(folders[:SHOWN])}")
        if min(numbers) == 1 and len(numbers) == max(numbers) == count:
            numbers = [number - 1 for number in numbers]  # all of them, counted from 1
        elif max(numbers) >= count:
            raise ConfigError(
                f"sub-folder {folders[numbers.index(max(numbers))]}: the model has {count} classes, 0 to {count - 1}"
            )
    else:
        if len(folders) > len(names):
            raise ConfigError(
                f"{len(folders)} sub-folders for {len(names)} classes",
                "one sub-folder is one class; take the others out",
            )
        if not named and not rename and not in_order:
            raise ConfigError(f"folder {folders[0]} says no class", "name the sub-folders by class number: 0, 1")
        if not named and len(folders) != len(names) and not set(folders) & set(names):
            raise ConfigError(
                f"which of the {len(names)} classes is {folders[0]}? the model's classes have no names",
                "name the sub-folders by class number, or give a card with labels by --task",
            )
        numbers, note = class_numbers(folders, names, rename, merge=True)
        how = note or "classes by name"
        if note and not named:
            how = "the classes have no names; the sub-folders are taken for them in sorted order"
    shown = ", ".join(f"{folder} = {number}" for folder, number in list(zip(folders, numbers, strict=True))[:SHOWN])
    more = f", ... ({len(folders)} in all)" if len(folders) > SHOWN else ""
    return numbers, f"{how}: {shown}{more}"


def class_numbers(
    names: Sequence[str], labels: Sequence[str], rename: Mapping[str, str], merge: bool = False
) -> tuple[list[int], str]:
    """Returns the model's number of every class of the data, by name or else in order, and notes on it;
    `merge` lets `rename` give two classes of the data one label."""
    for name in rename:
        if name not in names:
            raise ConfigError(f"--rename {name}: the data has no such class{near(name, names)}")
    wanted = [rename.get(name, name) for name in names]
    numbers = [_number_of(name, labels) for name in wanted]
    unknown = [name for name, number in zip(wanted, numbers, strict=True) if number is None]
    if not unknown:
        named = [number for number in numbers if number is not None]
        if len(set(named)) != len(named) and not (merge and rename):
            twice = next(name for name, number in zip(names, named, strict=True) if named.count(number) > 1)
            raise ConfigError(f"{twice} and another class of the data are one label of the card")
        return named, ""
    if len(unknown) == len(names) == len(labels) and not rename:
        return list(range(len(names))), (
            f"no class of the data has the name of a label: taken in order, {names[0]} as {labels[0]} to "
            f"{names[-1]} as {labels[-1]}"
        )
    raise ConfigError(
        f"the card has no label {unknown[0]}{near(unknown[0], labels)}",
        "rename the class, or say --rename NAME=LABEL; the labels: " + ", ".join(list(labels)[:SHOWN]),
    )


def _number_of(name: str, labels: Sequence[str]) -> int | None:
    """Returns the number of a label: by its whole name, by its synset, or apart from case, hyphens and underscores."""
    if name in labels:
        return list(labels).index(name)
    if SYNSET.fullmatch(name):
        matches = [at for at, label in enumerate(labels) if label.split(" ")[0].rstrip(",:") == name]
    else:
        matches = [at for at, label in enumerate(labels) if _plain(label) == _plain(name)]
    return matches[0] if len(matches) == 1 else None


def _plain(name: str) -> str:
    return " ".join(name.casefold().replace("_", " ").replace("-", " ").split())
