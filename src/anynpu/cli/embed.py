"""anynpu embed, similar and classify: texts and pictures to vectors, cosines and classes."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np

from anynpu import schema
from anynpu.cli import flags, task
from anynpu.cli.command import Command, refuse_unused
from anynpu.cli.table import print_table
from anynpu.errors import AnyNpuError, ConfigError, IntegrityError, on_one_line
from anynpu.files import check_free, write_whole
from anynpu.records.parts import as_json
from anynpu.tasks.classify import Classifier
from anynpu.tasks.embed import Buckets, ImageTower, TextTower, ZeroShot, tower
from anynpu.tasks.images import Picture, images_in, read_image
from anynpu.tasks.matrix import draw
from anynpu.tasks.model import Model
from anynpu.tasks.space import cosines, joint
from anynpu.tasks.text import MOST_BYTES, read_lines, split_lines
from anynpu.tensors import Array

MOST_SHOWN = 60
STDIN = "-"
TOWERS = ("embed-text", "embed-image")
FILES = click.argument("files", nargs=-1, metavar="[IMAGE|FOLDER]...", type=click.Path(path_type=Path))
TEXTS = (
    click.option("--text", "texts", multiple=True, metavar="TEXT", help="A text; repeat for more."),
    click.option("--file", "lines", type=click.Path(path_type=Path), help="A file with one text a line; - is stdin."),
)


@dataclass
class Given:
    """What the user named: texts, image files, and the images that could not be read."""

    texts: list[str]
    files: list[Path]
    failed: dict[str, AnyNpuError] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    notes: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def pictures(self) -> Iterator[tuple[str, Picture]]:
        """Yields the images that can be read; the others are kept aside with what is wrong with them."""
        for file in self.files:
            try:
                picture = read_image(file)
            except (ConfigError, IntegrityError) as error:
                self.failed[str(file)] = error
                continue
            self.names.append(str(file))
            self.notes[str(file)] = picture.notes
            yield str(file), picture

    def embedded(self, by: TextTower | ImageTower | Buckets) -> tuple[list[str], Array]:
        """Returns what the tower takes, by name, and its vectors."""
        if not isinstance(by, ImageTower):
            if not self.texts:
                raise ConfigError("no text is given", "give --text or --file")
            return self.texts, by.embed(self.texts)
        if not self.files:
            raise ConfigError("no image is given", "name images or a folder of them")
        self.names.clear()
        vectors = by.embed(self.pictures())
        self.require(vectors)
        return list(self.names), vectors

    def require(self, found: Array) -> None:
        """Raises what is wrong with the first image if none could be read."""
        if not len(found):
            raise next(iter(self.failed.values()))

    def tell(self, quiet: bool) -> int:
        """Says on stderr what was done to images and which could not be read; returns the exit status."""
        for name, note in () if quiet else ((name, note) for name, notes in self.notes.items() for note in notes):
            click.echo(on_one_line(f"{name}: {note}"), err=True)
        for error in self.failed.values():
            click.echo(on_one_line(f"anynpu: {error.message}"), err=True)
        return 1 if self.failed else 0

    def record(self) -> list[dict[str, str]]:
        return [{"input": name, "message": error.message} for name, error in self.failed.items()]


def gather(files: Sequence[Path], texts: Sequence[str] = (), lines: Path | None = None) -> Given:
    """Returns the inputs that the arguments name, folders opened; every line of a file is a text."""
    found: list[Path] = []
    for path in files:
        found += images_in(path) if path.is_dir() else [path]
    return Given([*texts, *(_lines(lines) if lines is not None else ())], found)


def _lines(path: Path) -> list[str]:
    """Returns the texts in a file, or on stdin for -, one a line."""
    if str(path) != STDIN:
        return read_lines(path)
    data = sys.stdin.buffer.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ConfigError(f"stdin gives more than {MOST_BYTES >> 20} MiB", "give it in parts")
    return split_lines(data, "stdin")


def _refuse_unused(model: Model, given: Given) -> None:
    """Raises if something is given that the one model does not take."""
    if model.card.kind == "embed-text" and given.files:
        raise ConfigError(f"{given.files[0]}: this model reads text, not images", "give --text or --file")
    if model.card.kind != "embed-text" and given.texts:
        raise ConfigError("this model reads images, not text", "name images or a folder of them")


@click.command(cls=Command)
@click.argument("artifact", type=click.Path(path_type=Path))
@FILES
@flags.apply(TEXTS)
@click.option(
    "--bucket",
    "buckets",
    multiple=True,
    metavar="ARTIFACT",
    type=click.Path(path_type=Path),
    help="The same text model at another length; every text goes to the shortest that holds it. Repeat for more.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the vectors: x.npz or x.jsonl.")
@flags.OVERWRITE
@flags.apply(task.FLAGS, flags.COMMON)
@click.pass_context
def embed(
    ctx: click.Context,
    /,
    artifact: Path,
    files: tuple[Path, ...],
    texts: tuple[str, ...],
    lines: Path | None,
    buckets: tuple[Path, ...],
    output: Path | None,
    **given: Any,
) -> int:
    """Turn texts or images into vectors of the model's space.

    The artifact's card says what the model reads and how (`anynpu build --task clip-image`). Vectors have length 1 if
    the space is normalised. An image that cannot be read is named, the others go on, and the status is 1.

    \b
    anynpu embed out/cpu --text "a photo of a cat" -o text.npz
    anynpu embed out/cpu photos/ -o photos.jsonl
    anynpu embed short/cpu --bucket long/cpu --file sentences.txt -o sentences.npz
    grep -i error app.log | anynpu embed out/cpu --file - -o errors.jsonl
    """
    if output is not None and output.suffix not in (".npz", ".jsonl"):
        raise ConfigError(f"{output}: vectors are written as .npz or .jsonl")
    if output is not None:
        check_free(output, given["overwrite"], (*files, lines, given["tokenizer"]))
    else:
        refuse_unused(ctx, "there is no -o", "overwrite")
    inputs = gather(files, texts, lines)
    with ExitStack() as open_models:
        model = open_models.enter_context(task.opened(artifact, TOWERS, given))
        _refuse_unused(model, inputs)
        by: TextTower | ImageTower | Buckets = tower(model)
        if buckets:
            more = [open_models.enter_context(task.opened(path, "embed-text", given)) for path in buckets]
            by = _buckets(by, more)
        names, vectors = inputs.embedded(by)
    space = schema.to_dict(by.space, whole=True) | {"width": by.width}
    if output is not None:
        _write_vectors(output, names, vectors, space)
    if given["format"] == "json":
        items = [{"input": name, "vector": row.tolist()} for name, row in zip(names, vectors, strict=True)]
        _echo("embed", {"space": space, "items": items, "failed": inputs.record()})
    else:
        print_table([_vector_row(_short(name), row) for name, row in zip(names, vectors, strict=True)], by.space.name)
    return inputs.tell(given["quiet"])


def _buckets(first: TextTower | ImageTower | Buckets, more: Sequence[Model]) -> Buckets:
    if not isinstance(first, TextTower):
        raise ConfigError("--bucket goes with a text model", "images have one size")
    return Buckets.of([first, *(TextTower(model) for model in more)])


def _vector_row(name: str, row: Array) -> dict[str, str]:
    start = " ".join(f"{value:+.4f}" for value in row[:4])
    return {"input": name, "width": str(len(row)), "length": f"{np.linalg.norm(row):.4f}", "begins": start}


def _write_vectors(path: Path, names: Sequence[str], vectors: Array, space: Mapping[str, Any]) -> None:
    stream = io.BytesIO()
    if path.suffix == ".npz":
        np.savez(stream, vectors=vectors, names=np.asarray(names, np.str_), space=schema.canonical_json(space))
    else:
        for name, row in zip(names, vectors, strict=True):
            record = {"input": name, "space": space["name"], "vector": row.tolist()}
            stream.write(schema.canonical_json(record).encode() + b"\n")
    write_whole(path, stream.getvalue())


def _echo(kind: str, record: Mapping[str, Any]) -> None:
    click.echo(as_json({"schema_version": 1, "kind": kind, **record}), nl=False)


@click.command(cls=Command)
@click.argument("artifact", type=click.Path(path_type=Path))
@FILES
@click.option("--with", "other", metavar="ARTIFACT", type=click.Path(path_type=Path), help="The other tower.")
@flags.apply(TEXTS)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Draw the matrix: x.png or x.svg.")
@flags.OVERWRITE
@flags.apply(task.FLAGS, flags.COMMON)
@click.pass_context
def similar(
    ctx: click.Context,
    /,
    artifact: Path,
    files: tuple[Path, ...],
    other: Path | None,
    texts: tuple[str, ...],
    lines: Path | None,
    output: Path | None,
    **given: Any,
) -> int:
    """Show how similar inputs are: the cosine of every one with every other.

    One artifact compares its inputs with each other. With a second one, the rows are what the first reads and the
    columns what the second reads: texts by images, or the same images through a float and an 8-bit model. Both must
    have one space by their cards (name, width, normalisation); anything else is refused.

    \b
    anynpu similar out/image orange.png blue.png bus.jpg -o matrix.png
    anynpu similar out/text --with out/image --text "a bus" --text "a cat" photos/
    """
    if output is not None and output.suffix not in (".png", ".svg"):
        raise ConfigError(f"{output}: the matrix is drawn as .png or .svg")
    if output is not None:
        check_free(output, given["overwrite"], (*files, lines, given["tokenizer"]))
    else:
        refuse_unused(ctx, "there is no -o", "overwrite")
    inputs = gather(files, texts, lines)
    if other is None:
        with task.opened(artifact, TOWERS, given) as model:
            _refuse_unused(model, inputs)
            rows, left = inputs.embedded(tower(model))
            columns, right = rows, left
    else:
        rows, left, columns, right = _two_towers(artifact, other, inputs, given)
    values = cosines(left, right)
    rows, columns = _labels(rows, inputs), _labels(columns, inputs)
    if output is not None:
        picture = draw(output, [_short(name) for name in rows], [_short(name) for name in columns], values)
        write_whole(output, picture)
    if given["format"] == "json":
        record = {"rows": rows, "columns": columns, "cosines": values.tolist(), "failed": inputs.record()}
        _echo("similar", record)
    else:
        _print_matrix([_short(name) for name in rows], [_short(name) for name in columns], values)
    return inputs.tell(given["quiet"])


def _two_towers(
    first: Path, second: Path, inputs: Given, given: Mapping[str, Any]
) -> tuple[list[str], Array, list[str], Array]:
    with (
        task.opened(first, TOWERS, given) as a,
        task.opened(second, TOWERS, _second(given)) as b,
    ):
        towers = tower(a), tower(b)
        joint(towers[0].space, towers[0].width, towers[1].space, towers[1].width)
        kinds = {a.card.kind, b.card.kind}
        if "embed-text" not in kinds and inputs.texts:
            raise ConfigError("both models read images, not text")
        if "embed-image" not in kinds and inputs.files:
            raise ConfigError("both models read text, not images")
        return *inputs.embedded(towers[0]), *inputs.embedded(towers[1])


def _second(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flags for the second model: --task, --tokenizer and --on speak of the first."""
    return {**given, "task": "", "tokenizer": "", "device": None}


def _short(name: str) -> str:
    """Returns a text as one cell of a table: a line of at most 60 characters, and never nothing."""
    line = " ".join(name[: 10 * MOST_SHOWN].split()) or "(empty)"
    return line if len(line) <= MOST_SHOWN else line[: MOST_SHOWN - 3] + "..."


def _labels(names: Sequence[str], inputs: Given) -> list[str]:
    """Returns file names without folder and ending where that still tells them apart; texts as they are."""
    files = {str(file) for file in inputs.files}
    stems = [Path(name).stem if name in files else name for name in names]
    return stems if len(set(stems)) == len(stems) else list(names)


def _print_matrix(rows: Sequence[str], columns: Sequence[str], values: Array) -> None:
    """Prints one line a row; names that occur twice are numbered, so that every column stays."""
    heads = [name if columns.index(name) == at else f"{name} ({at})" for at, name in enumerate(columns)]
    cells = [[f"{value:.3f}" for value in row] for row in values]
    print_table([{"": name, **dict(zip(heads, line, strict=True))} for name, line in zip(rows, cells, strict=True)])


@click.command(cls=Command)
@click.argument("artifact", type=click.Path(path_type=Path))
@click.argument("files", nargs=-1, required=True, metavar="IMAGE|FOLDER...", type=click.Path(path_type=Path))
@click.option("--labels", metavar="A,B", help="Zero-shot: the classes to tell apart, in words.")
@click.option("--labels-file", type=click.Path(path_type=Path), help="The same, one a line; - is stdin.")
@click.option("--text-model", metavar="ARTIFACT", type=click.Path(path_type=Path), help="Zero-shot: the text tower.")
@click.option("--template", default="a photo of a {}", show_default=True, help="Zero-shot: the text around a label.")
@click.option("--top", type=click.IntRange(1), default=5, show_default=True, help="How many classes to show.")
@flags.apply(task.FLAGS, flags.COMMON)
@click.pass_context
def classify(
    ctx: click.Context, /, artifact: Path, files: tuple[Path, ...], text_model: Path | None, top: int, **given: Any
) -> int:
    """Say what is in images: by the classes of a classifier's card, or zero-shot by labels in words.

    Zero-shot needs two towers of one space: the artifact reads the images, --text-model the labels. Probabilities are
    the softmax of the cosines times the space's logit scale.

    \b
    anynpu classify out/mobilenet photos/ --top 3
    anynpu classify out/image bus.jpg --labels "cat,dog,bus" --text-model out/text
    """
    inputs = gather(files)
    labels = _zero_shot_labels(given)
    if not labels:
        refuse_unused(ctx, "there are no --labels", "template")
    with task.opened(artifact, ("embed-image",) if labels else ("classify", "embed-image"), given) as model:
        if labels:
            judge: Callable[[Iterable[tuple[str, Picture]]], Array] = _zero_shot(model, text_model, labels, given)
        elif model.card.kind == "embed-image" or text_model is not None:
            raise ConfigError(f"{artifact}: zero-shot needs labels", 'give --labels "a cat,a dog" and --text-model')
        else:
            judge = classifier = Classifier(model)
            labels = classifier.labels
        found = judge(inputs.pictures())
    inputs.require(found)
    best = [_best(row, labels, top) for row in found]
    if given["format"] == "json":
        items = [{"input": name, "classes": each} for name, each in zip(inputs.names, best, strict=True)]
        _echo("classify", {"items": items, "failed": inputs.record()})
    else:
        print_table(
            [
                {"input": name, "class": each["label"], "probability": f"{each['probability']:.4f}"}
                for name, classes in zip(inputs.names, best, strict=True)
                for each in classes
            ]
        )
    return inputs.tell(given["quiet"])


def _zero_shot_labels(given: Mapping[str, Any]) -> tuple[str, ...]:
    if given["labels"] is not None and given["labels_file"] is not None:
        raise ConfigError("--labels and --labels-file say the same thing twice")
    if given["labels"] is None and given["labels_file"] is None:
        return ()
    listed = given["labels"].split(",") if given["labels"] is not None else _lines(given["labels_file"])
    labels = tuple(label.strip() for label in listed if label.strip())
    if len(labels) < 2 or len(set(labels)) != len(labels):
        raise ConfigError("zero-shot needs at least two labels, all different", 'such as --labels "a cat,a dog"')
    return labels


def _zero_shot(model: Model, text_model: Path | None, labels: tuple[str, ...], given: Mapping[str, Any]) -> ZeroShot:
    if text_model is None:
        raise ConfigError("labels in words need the text tower", "give --text-model ARTIFACT")
    with task.opened(text_model, "embed-text", _second(given)) as texts:
        return ZeroShot.of(ImageTower(model), TextTower(texts), labels, given["template"])


def _best(row: Array, labels: Sequence[str], top: int) -> list[dict[str, Any]]:
    order = np.argsort(-row, kind="stable")[:top]
    return [{"label": labels[index], "index": int(index), "probability": float(row[index])} for index in order]
