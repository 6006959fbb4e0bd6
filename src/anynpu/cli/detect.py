"""anynpu detect: what is in pictures, videos and in front of a camera."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import click

from anynpu.cli.table import print_json
from anynpu.cli.task import TaskFlags, opened
from anynpu.cli.verb import argument, flag, verb
from anynpu.errors import AnyNpuError, ConfigError, IntegrityError, on_one_line
from anynpu.files import check_free, write_whole
from anynpu.records.parts import error_record
from anynpu.tasks import draw, video
from anynpu.tasks.detect import Detections, Detector, Threshold, Timing, class_numbers
from anynpu.tasks.images import SUFFIXES
from anynpu.tasks.picture import Picture, read_image

CAMERA = "camera:"


@dataclass(frozen=True, kw_only=True)
class Detect(TaskFlags):
    """What is looked at, and which of the boxes count."""

    artifact: Path = argument()
    sources: tuple[str, ...] = argument(metavar="IMAGE|FOLDER|VIDEO|camera:N...")
    output: Path | None = flag("Write pictures with the boxes to this folder.", None, "-o")
    overwrite: bool = flag("Replace existing pictures in the folder of -o.", False)
    conf: float = flag("Minimum score.", Threshold.confidence, minimum=0, maximum=1, shown=True)
    iou: float = flag("Maximum overlap within a class.", Threshold.iou, minimum=0, maximum=1, shown=True)
    classes: str | None = flag("Only these classes, by name or number.", None, metavar="NAME,...")
    frames: int | None = flag("Maximum number of frames of a video or camera.", None, minimum=1)


@verb(Detect)
def detect(asked: Detect) -> int:
    """Find objects in images, folders, videos or a camera's pictures with a YOLO model.

    Each line is a class, its score and its box (left, top, right, bottom) in pixels of the picture. An image that
    cannot be read does not stop the others; the exit status is then 1.

    \b
    anynpu detect out/cpu bus.jpg
    anynpu detect out/cpu photos/ -o found --conf 0.4 --classes person,bus
    anynpu detect out/zhouyi-z3 camera:0 --frames 100 -f json
    """
    items: list[Item] = []
    seen: Counter[str] = Counter()
    for item in _items(asked):  # two folders may each hold an a.jpg
        seen[item.name] += 1
        count = seen[item.name]
        items.append(item if count == 1 else replace(item, name=f"{count}-{item.name}"))
    if not any(item.moves for item in items):
        asked.refuse_unused("there is no video and no camera", "frames")
    if asked.output is None:
        asked.refuse_unused("there is no -o", "overwrite")
    _check_output(asked.output, items, asked.overwrite)
    with opened(asked.artifact, "detect", asked) as model:
        wanted = class_numbers(asked.classes, model.card.labels) if asked.classes is not None else ()
        detector = Detector(model, Threshold(asked.conf, asked.iou, classes=wanted))
        detector.layout  # noqa: B018  # a model that is not a detector is refused before anything is read
        tally = _Tally([])
        for item in items:
            for shot in _shots(detector, item, len(items) == 1):
                tally = _shown(shot, detector, asked, tally)
    if asked.json:
        threshold = {"confidence": asked.conf, "iou": asked.iou}
        images = {"images": tally.records, "failed": tally.failed}
        print_json("detect", {"executed": detector.model.what, **threshold, **images})
    if tally.pictures > 1 and not asked.quiet:
        failed = f", {tally.failed} of them could not be read" if tally.failed else ""
        click.echo(f"{tally.pictures} pictures{failed}; {tally.detections} detections", err=True)
    return 1 if tally.failed else 0


@dataclass(frozen=True)
class _Tally:
    """What was seen so far; `records` stay empty unless JSON is wanted: a camera does not end."""

    records: list[dict[str, object]]
    pictures: int = 0
    detections: int = 0
    failed: int = 0


@dataclass(frozen=True)
class Item:
    """One thing to look at: an image file, a video, or a camera by number."""

    name: str
    path: Path | None = None
    camera: int = 0
    frames: int | None = None

    @property
    def moves(self) -> bool:
        return self.path is None or video.is_video(self.path)

    def pictures(self) -> Iterator[tuple[str, Picture]]:
        if self.path is not None and not self.moves:
            yield self.name, read_image(self.path)
            return
        source = video.camera(self.camera) if self.path is None else video.frames(self.path)
        for number, picture in enumerate(islice(source, self.frames)):
            yield f"{self.name} frame {number}", picture


@dataclass(frozen=True)
class Shot:
    """One picture and what was found in it, or why it could not be read."""

    name: str
    picture: Picture | None = None
    found: Detections | None = None
    timing: Timing | None = None
    error: AnyNpuError | None = None


def _items(asked: Detect) -> Iterator[Item]:
    """Yields what the arguments name, folders opened up; what is missing is reported before anything runs."""
    for source in asked.sources:
        if source.startswith(CAMERA):
            number = source.removeprefix(CAMERA)
            if not number.isdecimal():
                raise ConfigError(f"{source}: a camera has a number", "camera:0 is the first")
            if asked.json and asked.frames is None:
                raise ConfigError("a camera does not end, and JSON is written at the end", "give --frames N")
            yield Item(f"camera-{number}", camera=int(number), frames=asked.frames)
            continue
        path = Path(source)
        if path.is_dir():
            known = (*SUFFIXES, *video.SUFFIXES)
            files = sorted(p for p in path.rglob("*") if p.is_file() and p.suffix.lower() in known)
            if not files:
                raise ConfigError(f"{path} holds no images or videos", "known: " + " ".join(known))
            yield from (Item(p.relative_to(path).as_posix(), p, frames=asked.frames) for p in files)
        elif path.is_file():
            yield Item(path.name, path, frames=asked.frames)
        else:
            raise ConfigError(f"{source}: no such file or folder", "give images, folders, videos or camera:N")


def _check_output(folder: Path | None, items: list[Item], overwrite: bool) -> None:
    """Makes the output folder; it must not be one that pictures are read from, nor hold the pictures to be written."""
    if folder is None:
        return
    if any(item.path is not None and item.path.parent.resolve() == folder.resolve() for item in items):
        raise ConfigError(f"{folder} holds pictures that are read; results would replace them", "choose another -o")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made ({error.strerror})") from error
    for item in items:
        check_free(_file(folder, f"{item.name} frame 0" if item.moves else item.name), overwrite)


def _shots(detector: Detector, item: Item, alone: bool) -> Iterator[Shot]:
    """Yields the pictures of one item, looked at; of an item that fails among others only the error."""
    try:
        for name, picture in item.pictures():
            detections, timing = detector.detect(picture.pixels)
            yield Shot(name, picture, detections, timing)
    except AnyNpuError as error:
        # A device or a model that fails would fail for every picture; a file speaks for itself alone.
        if alone or not isinstance(error, ConfigError | IntegrityError):
            raise
        yield Shot(item.name, error=error)


def _shown(shot: Shot, detector: Detector, asked: Detect, tally: _Tally) -> _Tally:
    """Shows a shot, writes its picture and returns the tally with it."""
    if not asked.quiet:
        for note in shot.picture.notes if shot.picture else ():
            click.echo(on_one_line(f"{shot.name}: {note}"), err=True)
    if shot.error is not None:
        click.echo(on_one_line(f"anynpu: {shot.error.message}"), err=True)
    elif not asked.json:
        assert shot.found is not None and shot.timing is not None
        count = len(shot.found)
        click.echo(
            on_one_line(f"{shot.name} ({shot.timing.model_ms:.1f}ms): {count} detection{'' if count == 1 else 's'}")
        )
        for box, score, number in zip(shot.found.boxes, shot.found.scores, shot.found.classes, strict=True):
            sides = ", ".join(f"{round(float(side)):4d}" for side in box)
            click.echo(on_one_line(f"  {detector.name(int(number)):<15} {score:.2f}  [{sides}]"))
    if asked.output is not None and shot.picture is not None and shot.found is not None:
        names = [detector.name(int(number)) for number in shot.found.classes]
        path = _file(asked.output, shot.name)
        check_free(path, asked.overwrite)  # of a video, how many there are shows as it goes
        write_whole(path, draw.jpeg(draw.annotated(shot.picture.pixels, shot.found, names)))
    if asked.json:
        tally.records.append(_image(shot, detector))
    detections = tally.detections + (0 if shot.found is None else len(shot.found))
    return _Tally(tally.records, tally.pictures + 1, detections, tally.failed + (shot.error is not None))


def _file(folder: Path, name: str) -> Path:
    plain = name.replace("/", "-").replace(" ", "-")
    return folder / (plain if plain.lower().endswith((".jpg", ".jpeg")) else plain + ".jpg")


def _image(shot: Shot, detector: Detector) -> dict[str, object]:
    if shot.error is not None:
        return {"name": shot.name, "error": error_record(shot.error)}
    assert shot.found is not None and shot.timing is not None and shot.picture is not None
    rows = zip(shot.found.boxes, shot.found.scores, shot.found.classes, strict=True)
    return {
        "name": shot.name,
        "width": shot.picture.pixels.shape[1],
        "height": shot.picture.pixels.shape[0],
        "notes": list(shot.picture.notes),
        "before_ms": shot.timing.before_ms,
        "model_ms": shot.timing.model_ms,
        "after_ms": shot.timing.after_ms,
        "detections": [
            {
                "class": int(number),
                "name": detector.name(int(number)),
                "score": round(float(score), 6),
                "box": [round(float(side), 3) for side in box],
            }
            for box, score, number in rows
        ],
    }
