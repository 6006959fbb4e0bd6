"""The index that a command of `anynpu search` works on, opened with the models it needs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from anynpu.apps.search.index import Index, read_record
from anynpu.apps.search.models import Models, PictureModel, TextModel, picture_model, text_model
from anynpu.cli.run import OnDevice, open_on
from anynpu.cli.verb import Common, flag
from anynpu.runtime import task
from anynpu.tasks.embed import ImageTower, TextTower


@dataclass(frozen=True, kw_only=True)
class IndexFlags(Common):
    """The index that a command works on."""

    folder: Path | None = flag(
        "Folder of the index [ANYNPU_SEARCH_INDEX]. By default anynpu/search in the user's data folder.",
        None,
        "--index",
    )


@dataclass(frozen=True, kw_only=True)
class IndexModels:
    """The models of an index and where its vectors are; where none is named, the index remembers its own."""

    image_model: Path | None = flag("Pictures to vectors.", None, metavar="ARTIFACT")
    question_model: Path | None = flag(
        "Words to vectors of the pictures' space: the text tower that was trained with the image model.",
        None,
        metavar="ARTIFACT",
    )
    text_model: Path | None = flag("Sentences to vectors, for documents.", None, metavar="ARTIFACT")
    store_: str = flag(
        "Keep the vectors in the Qdrant server at this URL, not in the index's folder.", "", "--store", metavar="URL"
    )
    token: str = flag("API key of --store.", "", metavar="TOKEN", envvar="ANYNPU_SEARCH_TOKEN")


def default_index() -> Path:
    """Returns where the index is by default."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "anynpu" / "search"


@contextmanager
def opened_index(
    asked: IndexFlags, wanted: Sequence[str], models: IndexModels | None = None, new: bool = False
) -> Iterator[Index]:
    """Gives the index with those of its models that a command needs: the ones given, or else the ones it remembers."""
    chosen = asked.folder or os.environ.get("ANYNPU_SEARCH_INDEX")
    folder = Path(chosen).expanduser().absolute() if chosen else default_index()
    models = models or IndexModels()
    paths = {"image": models.image_model, "question": models.question_model, "text": models.text_model}
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
            session = stack.enter_context(open_on(subject.artifact, OnDevice()))
            model = task.model_of(subject, session.runtime)
            if name == "image":
                pictures = picture_model(subject.artifact, ImageTower(model))
            else:
                texts[name] = text_model(subject.artifact, TextTower(model))
        opened = Models(pictures, texts.get("question"), texts.get("text"))
        yield stack.enter_context(Index(folder, opened, models.store_, models.token))
