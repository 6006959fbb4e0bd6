"""The index that a command of `anynpu search` works on, opened with the models it needs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from anynpu.apps.search.index import Index, read_record
from anynpu.apps.search.models import Models, PictureModel, TextModel, picture_model, text_model
from anynpu.cli.run import open_on
from anynpu.runtime import task
from anynpu.tasks.embed import ImageTower, TextTower

OPENED = {"device": None, "timeout": 10.0}
"""Every model runs on its format's reference device."""


def default_index() -> Path:
    """Returns where the index is if nobody says otherwise."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "anynpu" / "search"


def folder_of(given: Mapping[str, Any]) -> Path:
    chosen = given.get("folder") or os.environ.get("ANYNPU_SEARCH_INDEX")
    return Path(chosen).expanduser().absolute() if chosen else default_index()


@contextmanager
def opened_index(given: Mapping[str, Any], wanted: Sequence[str], new: bool = False) -> Iterator[Index]:
    """Gives the index with those of its models that a command needs: the ones given, or else the ones it remembers."""
    folder = folder_of(given)
    paths: dict[str, Path | None] = {
        "image": given.get("image_model"),
        "question": given.get("question_model"),
        "text": given.get("text_model"),
    }
    if not new or (folder / "index.json").exists():
        record = read_record(folder)
        kept = {"image": record.image_model, "question": record.question_model, "text": record.text_model}
        paths = {name: path or (Path(kept[name]) if kept[name] else None) for name, path in paths.items()}
    with ExitStack() as stack:
        pictures: PictureModel | None = None
        texts: dict[str, TextModel] = {}
        for name in wanted:
            path = paths[name]
            if path is None:
                continue
            subject = task.read_subject(path.absolute(), ("embed-image" if name == "image" else "embed-text",))
            session = stack.enter_context(open_on(subject.artifact, OPENED))
            model = task.model_of(subject, session.runtime)
            if name == "image":
                pictures = picture_model(subject.artifact, ImageTower(model))
            else:
                texts[name] = text_model(subject.artifact, TextTower(model))
        models = Models(pictures, texts.get("question"), texts.get("text"))
        index = stack.enter_context(Index(folder, models, given.get("store") or "", given.get("token") or ""))
        yield index
