"""What the page asks for: results, small pictures, originals."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from anynpu import schema
from anynpu.apps.search.points import DOCUMENTS, IMAGES
from anynpu.apps.search.query import Answer, Search, Where
from anynpu.apps.web.app import App, Policy, Route
from anynpu.apps.web.files import PackageFile
from anynpu.apps.web.limits import Limits
from anynpu.apps.web.message import HttpAnswer, HttpRequest, Refusal, json_answer
from anynpu.errors import AnyNpuError, ConfigError, IntegrityError
from anynpu.tasks.images import read_image

PACKAGE = "anynpu.apps.search.page"
TOP, MOST_TOP = 40, 200
MOST_PICTURE_BYTES = 32 << 20
MOST_FILE_BYTES = 128 << 20
MOST_WAITING = 32
MOST_FOLDERS = 500
HASH = re.compile(r"[0-9a-f]{64}")
SHOWN = {
    ".jpg": b"image/jpeg",
    ".jpeg": b"image/jpeg",
    ".png": b"image/png",
    ".gif": b"image/gif",
    ".webp": b"image/webp",
}
LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
ALONE = (b"content-security-policy", b"default-src 'none'; sandbox")
"""A picture that is opened by itself runs nothing."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Question:
    """What `POST /api/search` takes."""

    words: str = ""
    like: str = ""
    folder: str = ""
    since: str = ""
    until: str = ""
    top: int = TOP


class Page:
    """The page's routes over one index; one thread asks it, one question after the other."""

    def __init__(self, search: Search, local: bool) -> None:
        self.search, self._local = search, local
        self._thread = ThreadPoolExecutor(1, "search")
        self._waiting = 0

    def app(self, policy: Policy | None = None) -> App:
        """Returns the page as an application."""
        files = [
            Route("GET", path, self._guarded(PackageFile(PACKAGE, name)), public=True)
            for path, name in (("/", "search.html"), ("/search.css", "search.css"), ("/search.js", "search.js"))
        ]
        routes = [
            Route("GET", "/api/state", self._guarded(self.state)),
            Route("POST", "/api/search", self._guarded(self.ask)),
            Route("POST", "/api/picture", self._guarded(self.ask_by_picture)),
            Route("GET", "/thumb/{hash}", self._guarded(self.thumb)),
            Route("GET", "/file/{id}", self._guarded(self.file)),
        ]
        return App([*files, *routes], Limits(body_bytes=MOST_PICTURE_BYTES), policy, refusal_of=refusal_of)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _guarded(self, function: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
        """Refuses requests for another host: a page elsewhere could point a name of its own at this computer."""

        async def checked(request: HttpRequest) -> HttpAnswer:
            name = request.header(b"host")
            name = name[: name.rfind(":")] if re.search(r":\d+$", name) else name
            if self._local and name not in LOCAL_NAMES:
                raise Refusal(421, f"this page is not served as {name[:100]!r}", "use http://127.0.0.1")
            answer: HttpAnswer = await function(request)
            return answer

        return checked

    async def _asked(self, function: Callable[[], Result]) -> Result:
        if self._waiting >= MOST_WAITING:
            raise Refusal(
                429, "too many questions are waiting", "ask again in a moment", headers=((b"retry-after", b"1"),)
            )
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, function)
        finally:
            self._waiting -= 1

    async def state(self, request: HttpRequest) -> HttpAnswer:
        return json_answer(await self._asked(self._state))

    def _state(self) -> dict[str, object]:
        index = self.search.index
        counts = {}
        for name in (IMAGES, DOCUMENTS):
            collection = index.collection(name)
            counts[name] = collection.count() if collection is not None else 0
        note = ""
        if counts[IMAGES] and index.models.questions is None:
            note = "words find documents only: the index has no --question-model"
        roots = [root for root, _, _ in index.ledger.roots()]
        # The indexed folders and those just below them
        folders = set(roots)
        for row in self.search.index.ledger.rows().values():
            parts = Path(row.path).relative_to(row.root).parts if row.path.startswith(row.root) else ()
            if len(parts) > 1:
                folders.add(f"{row.root}/{parts[0]}")
        return {
            "pictures": counts[IMAGES],
            "paragraphs": counts[DOCUMENTS],
            "folders": sorted(folders)[:MOST_FOLDERS],
            "note": note,
        }

    async def ask(self, request: HttpRequest) -> HttpAnswer:
        question = schema.from_dict(Question, request.json(1 << 20), "the question")
        where, top = where_of(question), min(max(question.top, 1), MOST_TOP)
        if question.like:
            return answered(await self._asked(lambda: self.search.like(question.like, top, where)))
        return answered(await self._asked(lambda: self.search.by_words(question.words, top, where)))

    async def ask_by_picture(self, request: HttpRequest) -> HttpAnswer:
        filters = {key: value for key, value in request.query().items() if key in ("folder", "since", "until")}
        where = where_of(schema.from_dict(Question, filters, "the question"))
        data = request.body(MOST_PICTURE_BYTES)

        def work() -> Answer:
            return self.search.by_picture("the picture", read_image(data, "the picture"), TOP, where)

        return answered(await self._asked(work))

    async def thumb(self, request: HttpRequest) -> HttpAnswer:
        hash = request.parameters["hash"]
        data = self.search.index.ledger.thumb(hash) if HASH.fullmatch(hash) else None
        if data is None:
            raise Refusal(404, "there is no such picture")
        return HttpAnswer(data, kind=b"image/jpeg", headers=[ALONE, (b"cache-control", b"private, max-age=86400")])

    async def file(self, request: HttpRequest) -> HttpAnswer:
        """Returns a picture's own file: one that is in the index, and no other."""
        id = request.parameters["id"]
        path = await self._asked(lambda: self._path_of(id))
        kind = SHOWN.get(path.suffix.lower())
        if kind is None:
            raise Refusal(415, f"browsers do not show {path.suffix} files", f"open {path} yourself")

        def read() -> bytes:
            with path.open("rb") as stream:
                return stream.read(MOST_FILE_BYTES + 1)

        try:
            data = await asyncio.to_thread(read)
        except OSError:
            raise Refusal(404, "the file is gone", "index again") from None
        if len(data) > MOST_FILE_BYTES:
            raise Refusal(413, "the file is too large to show", f"open {path} yourself")
        return HttpAnswer(data, kind=kind, headers=[ALONE])

    def _path_of(self, id: str) -> Path:
        collection = self.search.index.collection(IMAGES)
        rows = collection.retrieve([id]) if collection is not None else []
        listed = rows[0].payload.get("paths") if rows else None
        for path in listed if isinstance(listed, list | tuple) else ():
            row = self.search.index.ledger.row(str(path))
            # A link that took the file's place since could lead anywhere.
            if row is not None and Path(row.path).is_file() and not Path(row.path).is_symlink():
                return Path(row.path)
        raise Refusal(404, "there is no such picture, or its file is gone", "index again")


def answered(answer: Answer) -> HttpAnswer:
    return json_answer(schema.to_dict(answer, whole=True))


def where_of(question: Question) -> Where:
    """Returns the filter of a question; both days are included."""
    days = []
    for text in (question.since, question.until):
        try:
            days.append(datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC) if text else None)
        except ValueError:
            raise ConfigError(f"{text[:20]!r} is not a day", "such as 2024-05-01") from None
    since, until = days
    end = None if until is None else (until + timedelta(days=1)).timestamp()
    return Where(question.folder, None if since is None else since.timestamp(), end)


def refusal_of(error: Exception) -> Refusal | None:
    """Returns how an error is reported to the page, or None for one that is a defect of ours."""
    if isinstance(error, ConfigError | IntegrityError):
        return Refusal(422, error.message, error.hint)
    return Refusal(503, error.message, error.hint) if isinstance(error, AnyNpuError) else None
