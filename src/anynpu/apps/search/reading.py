"""Files as they are found and read: which there are, whether one changed, its content, and a small picture of it."""

from __future__ import annotations

import calendar
import hashlib
import io
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from anynpu.apps.search import documents
from anynpu.apps.search.ledger import State
from anynpu.errors import ConfigError, IntegrityError
from anynpu.tasks import images
from anynpu.tasks.picture import Picture

Kind = Literal["image", "document"]
MOST_IMAGE_BYTES = 512 << 20
THUMB_SIDE, THUMB_QUALITY = 256, 80
EXIF_PART, EXIF_TAKEN, EXIF_CHANGED = 0x8769, 0x9003, 0x0132


@dataclass(frozen=True)
class Content:
    """A file's bytes, and its state when they were read."""

    data: bytes
    hash: str
    state: State


def kind_of(path: str) -> Kind | None:
    """Returns what a file is by its name, or None where search has nothing to do with it."""
    suffix = os.path.splitext(path)[1].lower()  # noqa: PTH122  (a million names: Path is ten times slower)
    if suffix in images.SUFFIXES:
        return "image"
    return "document" if suffix in documents.SUFFIXES else None


def walk(root: Path, without: Path) -> Iterator[tuple[str, Kind]]:
    """Yields the files below a folder in sorted order; hidden ones, links and the folder `without` are left out."""
    own = os.path.realpath(without)
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and os.path.realpath(f"{folder}/{name}") != own
        )
        for name in sorted(names):
            kind = None if name.startswith(".") else kind_of(name)
            path = os.path.join(folder, name)  # noqa: PTH118
            if kind is not None and not os.path.islink(path):  # noqa: PTH114
                yield path, kind


def state_of(path: str) -> State:
    """Returns how a file looks; OSError if it is gone."""
    status = os.stat(path)  # noqa: PTH116
    return State(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def read(path: str, kind: Kind) -> Content:
    """Returns a file's content, if it held still while it was read and is not too large; OSError if it is gone."""
    most = MOST_IMAGE_BYTES if kind == "image" else documents.MOST_BYTES
    before = state_of(path)
    if before.size > most:
        raise ConfigError(f"{path}: {before.size >> 20} MiB are more than the {most >> 20} that are read")
    with Path(path).open("rb") as stream:
        data = stream.read(most + 1)
    if state_of(path) != before or len(data) != before.size:
        raise ConfigError(f"{path}: it changed while it was read", "index again when it is finished")
    return Content(data, hashlib.sha256(data).hexdigest(), before)


def thumbnail(picture: Picture) -> bytes:
    """Returns a small JPEG of a picture."""
    from PIL import Image

    image = Image.fromarray(picture.pixels)
    image.thumbnail((THUMB_SIDE, THUMB_SIDE))
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=THUMB_QUALITY)
    return stream.getvalue()


def taken_at(content: Content, kind: Kind) -> float:
    """Returns when a picture was taken, by its EXIF data, or else when the file was last written (seconds, UTC)."""
    written = content.state.mtime_ns / 1e9
    if kind != "image":
        return written
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content.data)) as image:
            exif = image.getexif()
            text = exif.get_ifd(EXIF_PART).get(EXIF_TAKEN) or exif.get(EXIF_CHANGED)
        moment = time.strptime(str(text).strip("\0 "), "%Y:%m:%d %H:%M:%S")
        return float(calendar.timegm(moment))
    except (OSError, ValueError, SyntaxError, LookupError, ArithmeticError, TypeError, AttributeError, MemoryError):
        return written  # nothing there, or nothing that can be read


def decode(content: Content, path: str) -> Picture:
    """Returns the picture in a file's content; what is wrong with it is one sentence."""
    return images.read_image(content.data, path)


def plain_path(path: str) -> str:
    """Returns a path if it is Unicode; a name that is not cannot be kept."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        shown = path.encode("utf-8", "backslashreplace").decode()
        raise IntegrityError(f"{shown}: its name is not Unicode") from None
    return path
