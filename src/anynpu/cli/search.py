"""anynpu search: the user's own pictures and documents."""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from dataclasses import MISSING, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from anynpu import schema
from anynpu.apps.search.intake import Summary
from anynpu.apps.search.models import picture_model
from anynpu.apps.search.query import Search, Where
from anynpu.cli.command import Group
from anynpu.cli.flags import read_tokens
from anynpu.cli.run import OnDevice, open_on
from anynpu.cli.search_index import IndexFlags, IndexModels, opened_index
from anynpu.cli.show_search import show_answer, show_summary, teller
from anynpu.cli.table import print_json, print_table
from anynpu.cli.verb import argument, flag, verb
from anynpu.errors import ConfigError, on_one_line
from anynpu.runtime import task
from anynpu.tasks.embed import ImageTower
from anynpu.tasks.images import read_image

INTERRUPTED = 130
MOST_TEXT_BYTES = 32 << 20


@dataclass(frozen=True, kw_only=True)
class IndexAsked(IndexModels, IndexFlags):
    """Folders to index."""

    folders: tuple[Path, ...] = argument(metavar="FOLDER...")


@dataclass(frozen=True, kw_only=True)
class Question(IndexFlags):
    """A question, and which files may answer it."""

    words: tuple[str, ...] = argument(())
    image: Path | None = flag("Search by a picture.", None)
    text_file: Path | None = flag("Search by what a text is about.", None)
    like: str | None = flag("Search by an entry of the index: the id that a result shows.", None, metavar="ID")
    top: int = flag("Results of each kind.", 10, minimum=1, maximum=1000, shown=True)
    below: str = flag("Only files below this folder.", "", "--folder", metavar="FOLDER")
    since: str | None = flag("Only files taken or written on this day or later: 2024-05-01.", None, metavar="DATE")
    until: str | None = flag("Only files taken or written on this day or earlier.", None, metavar="DATE")


@dataclass(frozen=True, kw_only=True)
class State(IndexFlags):
    """What is shown of an index."""

    problems: bool = flag("List every file that could not be read, and why.", False)


@dataclass(frozen=True, kw_only=True)
class Forget(IndexFlags):
    """A folder that leaves the index."""

    folder_gone: Path = argument(metavar="FOLDER")


@dataclass(frozen=True, kw_only=True)
class Recall(IndexFlags):
    """The model that the index is compared with, and on how many pictures."""

    other: Path = flag(
        "The same image model in the other form: the float one of an index made with 8 bits, or the reverse.",
        MISSING,
        "--with",
        metavar="ARTIFACT",
    )
    samples: int = flag("Pictures to draw.", 500, minimum=20, maximum=20_000, shown=True)


@dataclass(frozen=True, kw_only=True)
class PageAsked(IndexFlags):
    """Where the page is served."""

    host: str = flag("Address to listen on.", "127.0.0.1", shown=True)
    port: int = flag("Port; 0 takes a free one.", 8091, minimum=0, maximum=65535, shown=True)
    token_file: Path | None = flag("Require one of the tokens in this file, one per line.", None)


class Questions(Group):
    """A group whose first argument is a question unless it is one of its commands."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name if cmd_name in self.commands else "find")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        return super().resolve_command(ctx, args if args and args[0] in self.commands else ["find", *args])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # `anynpu search --image x.jpg`: flags of `find`, which the group does not know.
        if args and args[0].startswith("-") and args[0] not in ("-h", "--help"):
            args = ["find", *args]
        return super().parse_args(ctx, args)


@click.group(cls=Questions)
def search() -> None:
    """Search your own pictures and documents: by words, by a picture, by a text.

    \b
    anynpu search index ~/Pictures --image-model clip/image --question-model clip/text
    anynpu search "a dog on a beach"
    anynpu search --image x.jpg --folder ~/Pictures/2024
    anynpu search page

    Everything stays on this computer. An index follows its folders: run `index` again after changes.
    """


@verb(IndexAsked, group=search)
def index(asked: IndexAsked) -> int:
    """Index folders, or bring their index up to date.

    Files with the same content are computed once; a run that is interrupted continues where it stopped. Files that are
    gone leave the index. Pictures: BMP, GIF, JPEG, PNG, PPM, TIFF, WebP; documents: .txt, .md,
    .rst and their like, paragraph by paragraph. Files that cannot be read are listed, and the status is 1.
    The models are remembered; later runs need no flags.

    \b
    anynpu search index ~/Pictures --image-model clip/image --question-model clip/text
    anynpu search index ~/notes --text-model minilm/cpu
    anynpu search index ~/Pictures ~/notes
    """
    if asked.store_ and not asked.store_.startswith(("http://", "https://")):
        raise ConfigError(
            f"--store takes the URL of a Qdrant server, not {asked.store_!r}",
            "write it as http://HOST:6333; for vectors in a folder choose the index's with --index",
        )
    status = 0
    summaries: list[tuple[Path, Summary]] = []
    with opened_index(asked, ("image", "question", "text"), asked, new=True) as opened:
        if opened.models.pictures is None and opened.models.documents is None:
            raise ConfigError(
                "an index needs a model",
                "give --image-model for pictures, --text-model for documents, or both; docs/search.md says where from",
            )
        for folder in asked.folders:
            summary = opened.update(folder, teller(asked.quiet))
            summaries.append((folder, summary))
            status = max(status, 1 if summary.problems else 0)
    if asked.json:
        records = [{"folder": str(folder), **schema.to_dict(summary, whole=True)} for folder, summary in summaries]
        print_json("search-index", {"folders": records})
        return status
    for folder, summary in summaries:
        show_summary(folder, summary)
    return status


@verb(Question, group=search)
def find(asked: Question) -> int:
    """Find pictures and documents. `anynpu search "words"` is short for it.

    Scores are cosines. Those of pictures and of documents come from different models: compare them within a list only.
    Files with the same content are one result with several paths.

    \b
    anynpu search "a dog on a beach"
    anynpu search --image x.jpg --top 5
    anynpu search --text-file letter.txt --since 2024-01-01
    """
    ways = [bool(asked.words), asked.image is not None, asked.text_file is not None, asked.like is not None]
    if sum(ways) != 1:
        raise ConfigError(
            "one question at a time: words, --image, --text-file or --like" if sum(ways) else "no question is given",
            'such as: anynpu search "a dog on a beach"',
        )
    where = where_of(asked)
    needed: tuple[str, ...] = ("question", "text")
    if asked.image is not None:
        needed = ("image",)
    if asked.like is not None:
        needed = ()
    probe = read_image(asked.image) if asked.image is not None else None
    text = ""
    if asked.text_file is not None:
        from anynpu.apps.search.documents import read_text

        try:
            with asked.text_file.open("rb") as stream:
                text = read_text(stream.read(MOST_TEXT_BYTES), str(asked.text_file))
        except OSError as error:
            raise ConfigError(f"{asked.text_file}: cannot be read ({error.strerror})") from None
    with opened_index(asked, needed) as opened:
        ask, top = Search(opened), asked.top
        if probe is not None:
            answer = ask.by_picture(str(asked.image), probe, top, where)
        elif asked.text_file is not None:
            answer = ask.by_text(text, top, where)
        elif asked.like is not None:
            answer = ask.like(asked.like, top, where)
        else:
            answer = ask.by_words(" ".join(asked.words), top, where)
    show_answer(answer, asked.format)
    return 0 if answer.pictures or answer.documents else 1


def where_of(asked: Question) -> Where:
    """Returns the filter that the flags make; --until includes its day."""
    since, until = _day(asked.since, "since"), _day(asked.until, "until")
    if since is not None and until is not None and until < since:
        raise ConfigError("--until is before --since")
    end = None if until is None else (until + timedelta(days=1)).timestamp()
    return Where(asked.below, None if since is None else since.timestamp(), end)


def _day(text: str | None, flag: str) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise ConfigError(f"--{flag} {text}: a day was expected", "such as 2024-05-01") from None


@verb(State, group=search)
def state(asked: State) -> int:
    """Show what is indexed: folders, files, vectors, models, and what could not be read."""
    with opened_index(asked, ()) as opened:
        roots = [{"folder": root, "files": count, "unreadable": bad} for root, count, bad in opened.ledger.roots()]
        bad_rows = [row for row in opened.ledger.rows().values() if row.problem]
        collections = {}
        for name in ("images", "documents"):
            collection = opened.collection(name)
            if collection is not None:
                info, space = collection.info(), collection.spec.space
                collections[name] = {**vars(info), "space": space.name, "precision": space.precision}
        record = schema.to_dict(opened.record, whole=True)
    if asked.json:
        listed = [{"path": row.path, "problem": row.problem} for row in bad_rows]
        whole = {"roots": roots, "collections": collections, "index": record, "unreadable": listed}
        print_json("search-state", whole)
        return 0
    print_table([{key: str(value) for key, value in row.items()} for row in roots])
    print_table(
        [
            {"vectors": name, **{key: str(value) for key, value in collection.items()}}
            for name, collection in collections.items()
        ]
    )
    for row in bad_rows if asked.problems else ():
        click.echo(on_one_line(row.problem))
    return 0


@verb(Forget, group=search)
def forget(asked: Forget) -> int:
    """Drop a folder from the index, whether it still exists or not. No file is touched."""
    with opened_index(asked, ()) as opened:
        count = opened.forget(asked.folder_gone)
    if asked.json:
        print_json("search-forget", {"folder": str(asked.folder_gone), "files": count})
    else:
        click.echo(on_one_line(f"{asked.folder_gone}: {count:,} files forgotten"))
    return 0


@verb(Recall, group=search)
def recall(asked: Recall) -> int:
    """Measure what 8 bits cost on your own pictures: how many of the 10 nearest neighbours stay the same.

    \b
    anynpu search recall --with clip/float
    """
    from anynpu.apps.search.recall import recall as measure

    with ExitStack() as stack:
        opened = stack.enter_context(opened_index(asked, ()))
        subject = task.read_subject(asked.other, ("embed-image",))
        session = stack.enter_context(open_on(subject.artifact, OnDevice()))
        model = picture_model(subject.artifact, ImageTower(task.model_of(subject, session.runtime)))
        result = measure(opened, model, asked.samples)
    if asked.json:
        print_json("search-recall", schema.to_dict(result, whole=True))
        return 0
    click.echo(
        f"recall@{result.neighbours}: {result.recall:.4f} (95 %: {result.low:.4f} to {result.high:.4f}) over "
        f"{result.pictures:,} pictures; chance {result.chance:.4f}; mean cosine of the two vectors of a picture "
        f"{result.cosine:.4f}"
    )
    if result.unreadable:
        click.echo(f"{result.unreadable:,} drawn pictures could not be read any more", err=True)
    return 0


@verb(PageAsked, group=search)
def page(asked: PageAsked) -> int:
    """Serve a page to search on: results as you type, a picture dropped on it, folder and dates, similar results.

    Only this computer reaches it unless --host says otherwise; then it needs --token-file, since whoever reaches it
    sees the pictures.

    \b
    anynpu search page
    anynpu search page --host 0.0.0.0 --port 8091 --token-file token
    """
    from anynpu.apps.search.page.routes import Page
    from anynpu.apps.web.app import Policy
    from anynpu.apps.web.server import Life, bind, is_loopback, run, url_of

    tokens = read_tokens(None, asked.token_file)
    listener = bind(asked.host, asked.port)
    with listener:
        local = is_loopback(listener)
        if not local and not tokens:
            raise ConfigError(
                f"--host {asked.host}: whoever reaches this computer would see the pictures", "give --token-file"
            )
        with opened_index(asked, ("image", "question", "text")) as opened:
            shown = Page(Search(opened), local)

            def ready() -> None:
                url = url_of(listener)
                if asked.json:
                    print_json("search-page", {"url": url})
                else:
                    click.echo(f"ready: {url}")
                sys.stdout.flush()

            try:
                ended_by = run(shown.app(Policy.of(tokens)), [listener], Life(ready=ready))
            finally:
                shown.close()
    return INTERRUPTED if ended_by == signal.SIGINT else 0
