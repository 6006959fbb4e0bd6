"""anynpu embed, similar and classify: texts and pictures to vectors, cosines and classes."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np

from anynpu import schema
from anynpu.cli.table import print_json, print_table
from anynpu.cli.task import TaskFlags, opened, second_model
from anynpu.cli.verb import Writes, argument, flag, verb
from anynpu.errors import AnyNpuError, ConfigError, IntegrityError, on_one_line
from anynpu.files import write_whole
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
TEMPLATE = "a photo of a {}"


@dataclass(frozen=True, kw_only=True)
class Towers(TaskFlags):
    """A model that reads texts or images, and what it reads."""

    artifact: Path = argument()
    files: tuple[Path, ...] = argument((), metavar="[IMAGE|FOLDER]...")
    texts: tuple[str, ...] = flag("A text; repeat for more.", (), "--text", metavar="TEXT")
    lines: Path | None = flag("A file with one text per line; - is stdin.", None, "--file")


@dataclass
class Inputs:
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

    def require(self, results: Array) -> None:
        """Raises what is wrong with the first image if none could be read."""
        if not len(results):
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


def gather(files: Sequence[Path], texts: Sequence[str] = (), lines: Path | None = None) -> Inputs:
    """Returns the inputs that the arguments name, folders opened; every line of a file is a text."""
    images = [file for path in files for file in (images_in(path) if path.is_dir() else [path])]
    return Inputs([*texts, *(_lines(lines) if lines is not None else ())], images)


def _lines(path: Path) -> list[str]:
    """Returns the texts in a file, or on stdin for -, one per line."""
    if str(path) != STDIN:
        return read_lines(path)
    data = sys.stdin.buffer.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ConfigError(f"stdin gives more than {MOST_BYTES >> 20} MiB", "give it in parts")
    return split_lines(data, "stdin")


def _refuse_unused(model: Model, inputs: Inputs) -> None:
    """Raises if something is given that the one model does not take."""
    if model.card.kind == "embed-text" and inputs.files:
        raise ConfigError(f"{inputs.files[0]}: this model reads text, not images", "give --text or --file")
    if model.card.kind != "embed-text" and inputs.texts:
        raise ConfigError("this model reads images, not text", "name images or a folder of them")


@dataclass(frozen=True, kw_only=True)
class Embed(Towers, Writes):
    """Texts or images that become vectors."""

    buckets: tuple[Path, ...] = flag(
        "The same text model at another length; every text goes to the shortest that holds it. Repeat for more.",
        (),
        "--bucket",
        metavar="ARTIFACT",
    )
    output: Path | None = flag("Write the vectors: x.npz or x.jsonl.", None, "-o")


@verb(Embed)
def embed(asked: Embed) -> int:
    """Turn texts or images into vectors of the model's space.

    The artifact's card says what the model reads and how (`anynpu build --task clip-image`). Vectors have length 1 if
    the space is normalised. An image that cannot be read is named, the others go on, and the status is 1.

    \b
    anynpu embed out/cpu --text "a photo of a cat" -o text.npz
    anynpu embed out/cpu photos/ -o photos.jsonl
    anynpu embed short/cpu --bucket long/cpu --file sentences.txt -o sentences.npz
    grep -i error app.log | anynpu embed out/cpu --file - -o errors.jsonl
    """
    if asked.output is not None and asked.output.suffix not in (".npz", ".jsonl"):
        raise ConfigError(f"{asked.output}: vectors are written as .npz or .jsonl")
    asked.require_free(*asked.files, asked.lines, asked.tokenizer)
    inputs = gather(asked.files, asked.texts, asked.lines)
    with ExitStack() as open_models:
        model = open_models.enter_context(opened(asked.artifact, TOWERS, asked))
        _refuse_unused(model, inputs)
        by: TextTower | ImageTower | Buckets = tower(model)
        if asked.buckets:
            if not isinstance(by, TextTower):
                raise ConfigError("--bucket goes with a text model", "images have one size")
            more = [open_models.enter_context(opened(path, "embed-text", asked)) for path in asked.buckets]
            by = Buckets.of([by, *(TextTower(model) for model in more)])
        names, vectors = inputs.embedded(by)
    space = schema.to_dict(by.space, whole=True) | {"width": by.width}
    if asked.output is not None:
        stream = io.BytesIO()
        if asked.output.suffix == ".npz":
            np.savez(stream, vectors=vectors, names=np.asarray(names, np.str_), space=schema.canonical_json(space))
        else:
            for name, row in zip(names, vectors, strict=True):
                record = {"input": name, "space": space["name"], "vector": row.tolist()}
                stream.write(schema.canonical_json(record).encode() + b"\n")
        write_whole(asked.output, stream.getvalue())
    if asked.json:
        items = [{"input": name, "vector": row.tolist()} for name, row in zip(names, vectors, strict=True)]
        print_json("embed", {"space": space, "items": items, "failed": inputs.record()})
    else:
        rows = [
            {
                "input": _short(name),
                "width": str(len(row)),
                "length": f"{np.linalg.norm(row):.4f}",
                "begins": " ".join(f"{value:+.4f}" for value in row[:4]),
            }
            for name, row in zip(names, vectors, strict=True)
        ]
        print_table(rows, by.space.name)
    return inputs.tell(asked.quiet)


@dataclass(frozen=True, kw_only=True)
class Similar(Towers, Writes):
    """What is compared with what."""

    other: Path | None = flag("The other tower.", None, "--with", metavar="ARTIFACT")
    output: Path | None = flag("Draw the matrix: x.png or x.svg.", None, "-o")


@verb(Similar)
def similar(asked: Similar) -> int:
    """Show how similar inputs are: the cosine of every one with every other.

    One artifact compares its inputs with each other. With a second one, the rows are what the first reads and the
    columns what the second reads: texts by images, or the same images through a float and an 8-bit model. Both must
    have one space by their cards (name, width, normalisation); anything else is refused.

    \b
    anynpu similar out/image orange.png blue.png bus.jpg -o matrix.png
    anynpu similar out/text --with out/image --text "a bus" --text "a cat" photos/
    """
    if asked.output is not None and asked.output.suffix not in (".png", ".svg"):
        raise ConfigError(f"{asked.output}: the matrix is drawn as .png or .svg")
    asked.require_free(*asked.files, asked.lines, asked.tokenizer)
    inputs = gather(asked.files, asked.texts, asked.lines)
    if asked.other is None:
        with opened(asked.artifact, TOWERS, asked) as model:
            _refuse_unused(model, inputs)
            rows, row_vectors = inputs.embedded(tower(model))
            columns, column_vectors = rows, row_vectors
    else:
        second = second_model(asked)
        with opened(asked.artifact, TOWERS, asked) as a, opened(asked.other, TOWERS, second) as b:
            one, other = tower(a), tower(b)
            joint(one.space, one.width, other.space, other.width)
            kinds = {a.card.kind, b.card.kind}
            if "embed-text" not in kinds and inputs.texts:
                raise ConfigError("both models read images, not text")
            if "embed-image" not in kinds and inputs.files:
                raise ConfigError("both models read text, not images")
            (rows, row_vectors), (columns, column_vectors) = inputs.embedded(one), inputs.embedded(other)
    values = cosines(row_vectors, column_vectors)
    rows, columns = _labels(rows, inputs), _labels(columns, inputs)
    if asked.output is not None:
        picture = draw(asked.output, [_short(name) for name in rows], [_short(name) for name in columns], values)
        write_whole(asked.output, picture)
    if asked.json:
        cells = {"rows": rows, "columns": columns, "cosines": values.tolist()}
        print_json("similar", {**cells, "failed": inputs.record()})
    else:
        short = [_short(name) for name in columns]  # a name that occurs twice is numbered, so that every column stays
        heads = [name if short.index(name) == at else f"{name} ({at})" for at, name in enumerate(short)]
        print_table(
            [
                {"": _short(name), **{head: f"{value:.3f}" for head, value in zip(heads, line, strict=True)}}
                for name, line in zip(rows, values, strict=True)
            ]
        )
    return inputs.tell(asked.quiet)


def _short(name: str) -> str:
    """Returns a text as one cell of a table: a line of at most 60 characters, and never nothing."""
    line = " ".join(name[: 10 * MOST_SHOWN].split()) or "(empty)"
    return line if len(line) <= MOST_SHOWN else line[: MOST_SHOWN - 3] + "..."


def _labels(names: Sequence[str], inputs: Inputs) -> list[str]:
    """Returns file names without folder and ending where that still tells them apart; texts as they are."""
    files = {str(file) for file in inputs.files}
    stems = [Path(name).stem if name in files else name for name in names]
    return stems if len(set(stems)) == len(stems) else list(names)


@dataclass(frozen=True, kw_only=True)
class Classify(TaskFlags):
    """Images to classify, and the labels of a zero-shot classifier."""

    artifact: Path = argument()
    files: tuple[Path, ...] = argument(metavar="IMAGE|FOLDER...")
    labels: str | None = flag("Zero-shot: the classes to tell apart, in words.", None, metavar="A,B")
    labels_file: Path | None = flag("The same, one per line; - is stdin.", None)
    text_model: Path | None = flag("Zero-shot: the text tower.", None, metavar="ARTIFACT")
    template: str = flag("Zero-shot: the text around a label.", TEMPLATE, shown=True)
    top: int = flag("How many classes to show.", 5, minimum=1, shown=True)


@verb(Classify)
def classify(asked: Classify) -> int:
    """Say what is in images: by the classes of a classifier's card, or zero-shot by labels in words.

    Zero-shot needs two towers of one space: the artifact reads the images, --text-model the labels. Probabilities are
    the softmax of the cosines times the space's logit scale.

    \b
    anynpu classify out/mobilenet photos/ --top 3
    anynpu classify out/image bus.jpg --labels "cat,dog,bus" --text-model out/text
    """
    inputs = gather(asked.files)
    labels = zero_shot_labels(asked.labels, asked.labels_file)
    if not labels:
        asked.refuse_unused("there are no --labels", "template")
    with opened(asked.artifact, ("embed-image",) if labels else ("classify", "embed-image"), asked) as model:
        judge: Callable[[Iterable[tuple[str, Picture]]], Array]
        if labels:
            if asked.text_model is None:
                raise ConfigError("labels in words need the text tower", "give --text-model ARTIFACT")
            with opened(asked.text_model, "embed-text", second_model(asked)) as texts:
                judge = ZeroShot.of(ImageTower(model), TextTower(texts), labels, asked.template)
        elif model.card.kind == "embed-image" or asked.text_model is not None:
            raise ConfigError(
                f"{asked.artifact}: zero-shot needs labels", 'give --labels "a cat,a dog" and --text-model'
            )
        else:
            judge = classifier = Classifier(model)
            labels = classifier.labels
        scores = judge(inputs.pictures())
    inputs.require(scores)
    rows = list(zip(inputs.names, scores, np.argsort(-scores, kind="stable")[:, : asked.top], strict=True))
    if asked.json:
        items = [
            {
                "input": name,
                "classes": [{"label": labels[n], "index": int(n), "probability": float(row[n])} for n in best],
            }
            for name, row, best in rows
        ]
        print_json("classify", {"items": items, "failed": inputs.record()})
    else:
        print_table(
            [
                {"input": name, "class": labels[n], "probability": f"{row[n]:.4f}"}
                for name, row, best in rows
                for n in best
            ]
        )
    return inputs.tell(asked.quiet)


def zero_shot_labels(words: str | None, file: Path | None) -> tuple[str, ...]:
    """Returns the labels that --labels or --labels-file names, or none."""
    if words is not None and file is not None:
        raise ConfigError("--labels and --labels-file say the same thing twice")
    if words is not None:
        listed = words.split(",")
    elif file is not None:
        listed = _lines(file)
    else:
        return ()
    labels = tuple(label.strip() for label in listed if label.strip())
    if len(labels) < 2 or len(set(labels)) != len(labels):
        raise ConfigError("zero-shot needs at least two labels, all different", 'such as --labels "a cat,a dog"')
    return labels
