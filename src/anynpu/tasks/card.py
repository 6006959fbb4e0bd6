"""A task card: what a model is for, how files become its inputs, and what its outputs mean.

A card is a TOML file, one of ours (data/models) or the user's. A build puts it into every manifest it makes, and the
files it names (a vocabulary) into the folder `assets` of every artifact: an artifact says by itself how it is used.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Literal, get_args

from anynpu import schema
from anynpu.artifact import Artifact, hash_file
from anynpu.errors import ConfigError, IntegrityError
from anynpu.files import cards_in
from anynpu.schema import JsonObject
from anynpu.tasks.images import Preprocess
from anynpu.tasks.space import Space
from anynpu.tasks.text import TextInput
from anynpu.tasks.yolo import Head

Kind = Literal["detect", "classify", "embed-image", "embed-text"]
FOLDER = "assets"
PACKAGE = "anynpu.data.models"
MOST_ASSET_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True)
class Card:
    """What a model is for. `assets` are its files by name, with the sha256 they had when the artifact was made."""

    kind: Kind
    title: str = ""
    preprocess: Preprocess | None = None
    labels: tuple[str, ...] = ()
    yolo: Head | None = None
    text: TextInput | None = None
    space: Space | None = None
    assets: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ConfigError(f"no such kind of task: {self.kind}", "known: " + ", ".join(get_args(Kind)))
        wanted = {
            "detect": ("yolo", "preprocess"),
            "classify": ("preprocess",),
            "embed-image": ("space", "preprocess"),
            "embed-text": ("space", "text"),
        }[self.kind]
        for name in wanted:
            if getattr(self, name) is None:
                raise ConfigError(f"a card of kind {self.kind} needs a table [{name}]")


@dataclass(frozen=True)
class Chosen:
    """A card and where the files it names lie now."""

    card: Card
    files: Mapping[str, Path] = field(default_factory=dict)

    def task(self) -> JsonObject:
        """Returns the card as a manifest holds it, with the digests of its files."""
        data: JsonObject = schema.to_dict(replace(self.card, assets=self.digests()))
        return data

    def unnamed(self) -> JsonObject:
        """Returns the card for artifacts that do not have its words yet: classes have their numbers for names."""
        numbers = tuple(map(str, range(len(self.card.labels))))
        return Chosen(replace(self.card, title="", labels=numbers), self.files).task()

    def digests(self) -> dict[str, str]:
        """Returns the hashes of its files by their names."""
        return {name: hash_file(path) for name, path in sorted(self.files.items())}

    def copy_to(self, folder: Path) -> None:
        """Puts the card's files into an artifact that is being made."""
        for name, path in self.files.items():
            (folder / FOLDER).mkdir(exist_ok=True)
            shutil.copyfile(path, folder / FOLDER / name)


def names() -> tuple[str, ...]:
    """Returns the names of the cards that ship with anynpu."""
    return cards_in(PACKAGE)


def choose(task: str, tokenizer: str = "") -> Chosen:
    """Returns the card that `task` names, one of ours or a file, with the tokenizer file it is to use."""
    path = Path(task)
    if path.suffix == ".toml":
        if not path.is_file():
            raise ConfigError(f"{path}: no such card")
        data, place = schema.read_toml(path), path.parent
    else:
        if task not in names():
            raise ConfigError(f"no such task: {task}{schema.near(task, names())}", "known: " + ", ".join(names()))
        with resources.as_file(resources.files(PACKAGE) / f"{task}.toml") as file:
            data, place = schema.read_toml(file), Path()
    if data.pop("assets", None):
        raise ConfigError(f"{task}: assets: is filled in by a build", "name the file in [text] tokenizer")
    card = schema.from_dict(Card, data, task)
    if card.text is None:
        if tokenizer:
            raise ConfigError("--tokenizer goes with a task that reads text")
        return Chosen(card)
    path = Path(tokenizer) if tokenizer else place / card.text.tokenizer
    if not (tokenizer or card.text.tokenizer):
        raise ConfigError("this task needs the model's tokenizer", "give --tokenizer FILE")
    if not path.is_file():
        raise ConfigError(f"{path}: no such tokenizer", "give --tokenizer FILE")
    if path.stat().st_size > MOST_ASSET_BYTES:
        raise ConfigError(f"{path}: larger than {MOST_ASSET_BYTES >> 20} MiB, that is not a tokenizer")
    return Chosen(replace(card, text=replace(card.text, tokenizer=path.name)), {path.name: path})


def of(artifact: Artifact, task: str = "", tokenizer: str = "") -> Chosen:
    """Returns the card of an artifact, or the one that the user names in its place; its files must be unchanged."""
    if task:
        return choose(task, tokenizer)
    if tokenizer:
        raise ConfigError("--tokenizer goes with --task: the artifact brings its own", "leave it out, or give --task")
    if not artifact.manifest.task:
        raise ConfigError(
            f"{artifact.path}: its manifest does not say what the model is for",
            "give --task CARD here, or build it with --task: " + ", ".join(names()),
        )
    try:
        card = schema.from_dict(Card, dict(artifact.manifest.task), f"{artifact.path}: task")
    except ConfigError as error:
        raise IntegrityError(error.message, error.hint) from None
    files = {}
    for name, digest in card.assets.items():
        path = artifact.file(f"{FOLDER}/{name}")
        if not path.is_file() or hash_file(path) != digest:
            raise IntegrityError(f"{path}: is missing or not the file the model was built with")
        files[name] = path
    if card.text is not None and card.text.tokenizer not in files:
        raise IntegrityError(f"{artifact.path}: its manifest names no file {card.text.tokenizer}")
    return Chosen(card, files)


def names_of(artifact: Artifact) -> tuple[str, ...]:
    """Returns the names of an artifact's classes by its card, or nothing where it has none."""
    return of(artifact).card.labels if artifact.manifest.task else ()
