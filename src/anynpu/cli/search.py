"""anynpu search: the user's own pictures and documents."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from anynpu import schema
from anynpu.apps.search.intake import Summary
from anynpu.apps.search.models import picture_model
from anynpu.apps.search.query import Search, Where
from anynpu.cli import flags
from anynpu.cli.command import Group
from anynpu.cli.run import open_on
from anynpu.cli.search_index import OPENED, opened_index
from anynpu.cli.show_search import show_answer, show_summary, teller
from anynpu.cli.table import print_table
from anynpu.errors import ConfigError, on_one_line
from anynpu.records.parts import as_json
from anynpu.runtime import task
from anynpu.tasks.embed import ImageTower
from anynpu.tasks.images import read_image

INTERRUPTED = 130
MOST_TEXT_BYTES = 32 << 20
INDEX = click.option(
    "--index",
    "folder",
    type=click.Path(path_type=Path),
    help="Folder of the index [ANYNPU_SEARCH_INDEX]. By default anynpu/search in the user's data folder.",
)
MODELS = (
    click.option("--image-model", metavar="ARTIFACT", type=click.Path(path_type=Path), help="Pictures to vectors."),
    click.option(
        "--question-model",
        metavar="ARTIFACT",
        type=click.Path(path_type=Path),
        help="Words to vectors of the pictures' space: the text tower that was trained with the image model.",
    ),
    click.option(
        "--text-model", metavar="ARTIFACT", type=click.Path(path_type=Path), help="Sentences to vectors, for documents."
    ),
)
WHERE = (
    click.option("--folder", "below", metavar="FOLDER", default="", help="Only files below this folder."),
    click.option("--since", metavar="DATE", help="Only files taken or written on this day or later: 2024-05-01."),
    click.option("--until", metavar="DATE", help="Only files taken or written on this day or earlier."),
)


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


@search.command()
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...", type=click.Path(path_type=Path))
@INDEX
@flags.apply(MODELS)
@click.option("--store", metavar="URL", help="Keep the vectors in this Qdrant server, not in the index's folder.")
@click.option("--token", metavar="TOKEN", envvar="ANYNPU_SEARCH_TOKEN", help="API key of --store.")
@flags.apply(flags.COMMON)
def index(folders: tuple[Path, ...], **given: Any) -> int:
    """Index folders, or bring their index up to date.

    Every content is computed once, whatever it is called and wherever it lies; a run that is interrupted goes on where
    it was. Files that are gone leave the index. Pictures: BMP, GIF, JPEG, PNG, PPM, TIFF, WebP; documents: .txt, .md,
    .rst and their like, paragraph by paragraph. Files that cannot be read are listed, and the status is 1.
    The models are remembered; later runs need no flags.

    \b
    anynpu search index ~/Pictures --image-model clip/image --question-model clip/text
    anynpu search index ~/notes --text-model minilm/cpu
    anynpu search index ~/Pictures ~/notes
    """
    status = 0
    summaries: list[tuple[Path, Summary]] = []
    with opened_index(given, ("image", "question", "text"), new=True) as opened:
        if opened.models.pictures is None and opened.models.documents is None:
            raise ConfigError(
                "an index needs a model",
                "give --image-model for pictures, --text-model for documents, or both; docs/search.md says where from",
            )
        for folder in folders:
            summary = opened.update(folder, teller(given["quiet"]))
            summaries.append((folder, summary))
            status = max(status, 1 if summary.problems else 0)
    if given["format"] == "json":
        records = [{"folder": str(folder), **schema.to_dict(summary, whole=True)} for folder, summary in summaries]
        click.echo(as_json({"schema_version": 1, "kind": "search-index", "folders": records}), nl=False)
        return status
    for folder, summary in summaries:
        show_summary(folder, summary)
    return status


@search.command()
@click.argument("words", nargs=-1)
@click.option("--image", type=click.Path(path_type=Path), help="Search by a picture.")
@click.option("--text-file", type=click.Path(path_type=Path), help="Search by what a text is about.")
@click.option("--like", metavar="ID", help="Search by something of the index: an id that a result shows.")
@click.option("--top", type=click.IntRange(1, 1000), default=10, show_default=True, help="Results of each kind.")
@flags.apply(WHERE)
@INDEX
@flags.apply(flags.COMMON)
@click.pass_context
def find(ctx: click.Context, /, words: tuple[str, ...], **given: Any) -> int:
    """Find pictures and documents. `anynpu search "words"` is short for it.

    Scores are cosines. Those of pictures and of documents come from different models: compare them within a list only.
    A content that several files hold is one result with several paths.

    \b
    anynpu search "a dog on a beach"
    anynpu search --image x.jpg --top 5
    anynpu search --text-file letter.txt --since 2024-01-01
    """
    ways = [bool(words), given["image"] is not None, given["text_file"] is not None, given["like"] is not None]
    if sum(ways) != 1:
        raise ConfigError(
            "one question at a time: words, --image, --text-file or --like" if sum(ways) else "no question is given",
            'such as: anynpu search "a dog on a beach"',
        )
    where = where_of(given)
    needed: tuple[str, ...] = ("question", "text")
    if given["image"] is not None:
        needed = ("image",)
    if given["like"] is not None:
        needed = ()
    probe = read_image(given["image"]) if given["image"] is not None else None
    text = _read_text_file(given["text_file"]) if given["text_file"] is not None else ""
    with opened_index(given, needed) as opened:
        ask, top = Search(opened), given["top"]
        if probe is not None:
            answer = ask.by_picture(str(given["image"]), probe, top, where)
        elif given["text_file"] is not None:
            answer = ask.by_text(text, top, where)
        elif given["like"] is not None:
            answer = ask.like(given["like"], top, where)
        else:
            answer = ask.by_words(" ".join(words), top, where)
    show_answer(answer, given["format"])
    return 0 if answer.pictures or answer.documents else 1


def _read_text_file(path: Path) -> str:
    from anynpu.apps.search.documents import read_text

    try:
        with path.open("rb") as stream:
            return read_text(stream.read(MOST_TEXT_BYTES), str(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None


def where_of(given: Mapping[str, Any]) -> Where:
    """Returns the filter that the flags make; --until includes its day."""
    since, until = (_day(given[name], name) for name in ("since", "until"))
    if since is not None and until is not None and until < since:
        raise ConfigError("--until is before --since")
    end = None if until is None else (until + timedelta(days=1)).timestamp()
    return Where(given["below"], None if since is None else since.timestamp(), end)


def _day(text: str | None, flag: str) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise ConfigError(f"--{flag} {text}: a day was expected", "such as 2024-05-01") from None


@search.command()
@INDEX
@click.option("--problems", is_flag=True, help="List every file that could not be read, and why.")
@flags.apply(flags.COMMON)
def state(**given: Any) -> int:
    """Show what is indexed: folders, files, vectors, models, and what could not be read."""
    with opened_index(given, ()) as opened:
        roots = [{"folder": root, "files": count, "unreadable": bad} for root, count, bad in opened.ledger.roots()]
        bad_rows = [row for row in opened.ledger.rows().values() if row.problem]
        collections = {}
        for name in ("images", "documents"):
            collection = opened.collection(name)
            if collection is not None:
                info, space = collection.info(), collection.spec.space
                collections[name] = {**vars(info), "space": space.name, "precision": space.precision}
        record = schema.to_dict(opened.record, whole=True)
    if given["format"] == "json":
        listed = [{"path": row.path, "problem": row.problem} for row in bad_rows]
        whole = {"roots": roots, "collections": collections, "index": record, "unreadable": listed}
        click.echo(as_json({"schema_version": 1, "kind": "search-state", **whole}), nl=False)
        return 0
    print_table([{key: str(value) for key, value in row.items()} for row in roots])
    print_table(
        [
            {"vectors": name, **{key: str(value) for key, value in collection.items()}}
            for name, collection in collections.items()
        ]
    )
    for row in bad_rows if given["problems"] else ():
        click.echo(on_one_line(row.problem))
    return 0


@search.command()
@click.argument("folder_gone", metavar="FOLDER", type=click.Path(path_type=Path))
@INDEX
@flags.apply(flags.COMMON)
def forget(folder_gone: Path, **given: Any) -> int:
    """Drop what was indexed of a folder, whether it is still there or not. No file is touched."""
    with opened_index(given, ()) as opened:
        count = opened.forget(folder_gone)
    if given["format"] == "json":
        record = {"schema_version": 1, "kind": "search-forget", "folder": str(folder_gone), "files": count}
        click.echo(as_json(record), nl=False)
    else:
        click.echo(on_one_line(f"{folder_gone}: {count:,} files forgotten"))
    return 0


@search.command()
@click.option(
    "--with",
    "other",
    required=True,
    metavar="ARTIFACT",
    type=click.Path(path_type=Path),
    help="The same image model in the other form: the float one of an index made with 8 bits, or the reverse.",
)
@click.option("--samples", type=click.IntRange(20, 20_000), default=500, show_default=True, help="Pictures to draw.")
@INDEX
@flags.apply(flags.COMMON)
@click.pass_context
def recall(ctx: click.Context, /, other: Path, **given: Any) -> int:
    """Measure what 8 bits cost on your own pictures: how many of the 10 nearest neighbours stay the same.

    \b
    anynpu search recall --with clip/float
    """
    from anynpu.apps.search.recall import recall as measure

    with ExitStack() as stack:
        opened = stack.enter_context(opened_index(given, ()))
        subject = task.read_subject(other, ("embed-image",))
        session = stack.enter_context(open_on(subject.artifact, OPENED))
        model = picture_model(subject.artifact, ImageTower(task.model_of(subject, session.runtime)))
        result = measure(opened, model, given["samples"])
    if given["format"] == "json":
        record = {"schema_version": 1, "kind": "search-recall", **schema.to_dict(result, whole=True)}
        click.echo(as_json(record), nl=False)
        return 0
    click.echo(
        f"recall@{result.neighbours}: {result.recall:.4f} (95 %: {result.low:.4f} to {result.high:.4f}) over "
        f"{result.pictures:,} pictures; chance {result.chance:.4f}; mean cosine of the two vectors of a picture "
        f"{result.cosine:.4f}"
    )
    if result.unreadable:
        click.echo(f"{result.unreadable:,} drawn pictures could not be read any more", err=True)
    return 0


@search.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8091, show_default=True, help="Port; 0 takes a free one."
)
@click.option("--token-file", type=click.Path(path_type=Path), help="Ask for the token in this file; one a line.")
@INDEX
@flags.apply(flags.COMMON)
def page(host: str, port: int, token_file: Path | None, **given: Any) -> int:
    """Serve a page to search on: results as you type, a picture dropped on it, folder and dates, what is like this.

    Only this computer reaches it unless --host says otherwise; then it needs --token-file, since whoever reaches it
    sees the pictures.

    \b
    anynpu search page
    anynpu search page --host 0.0.0.0 --port 8091 --token-file token
    """
    from anynpu.apps.search.page.routes import Page
    from anynpu.apps.web.app import Policy
    from anynpu.apps.web.server import Life, bind, is_loopback, run, url_of

    tokens = _tokens(token_file) if token_file is not None else ()
    listener = bind(host, port)
    with listener:
        local = is_loopback(listener)
        if not local and not tokens:
            raise ConfigError(
                f"--host {host}: whoever reaches this computer would see the pictures", "give --token-file"
            )
        with opened_index(given, ("image", "question", "text")) as opened:
            shown = Page(Search(opened), local)

            def ready() -> None:
                url = url_of(listener)
                if given["format"] == "json":
                    click.echo(as_json({"schema_version": 1, "kind": "search-page", "url": url}), nl=False)
                else:
                    click.echo(f"ready: {url}")
                sys.stdout.flush()

            try:
                ended_by = run(shown.app(Policy.of(tokens)), [listener], Life(ready=ready))
            finally:
                shown.close()
    return INTERRUPTED if ended_by == signal.SIGINT else 0


def _tokens(path: Path) -> tuple[str, ...]:
    try:
        found = tuple(line.strip() for line in path.read_text("utf-8").splitlines() if line.strip())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    if not found:
        raise ConfigError(f"{path}: holds no token")
    return found
