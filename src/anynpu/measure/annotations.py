"""What is in the pictures of a data set: COCO's JSON and Pascal VOC's XML, read as files that nobody vouches for."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from anynpu.errors import ConfigError, IntegrityError
from anynpu.measure.coco import Truth
from anynpu.tasks.text import read_bounded

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

MOST_JSON_BYTES = 512 << 20
MOST_XML_BYTES = 4 << 20
PARTS = "give the annotations in parts"


@dataclass(frozen=True)
class Annotated:
    """One picture by its file name: its size (height, width) where that is stated, and what is in it."""

    file: str
    size: tuple[int, int] | None
    truth: Truth


@dataclass(frozen=True)
class Annotations:
    """All pictures of a data set; the class numbers of their boxes count in `names`."""

    names: tuple[str, ...]
    images: tuple[Annotated, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Box:
    """One object: its class by number, box (left, top, width, height), area, and whether it counts."""

    number: int
    box: tuple[float, float, float, float]
    area: float
    crowd: bool = False
    ignored: bool = False

    def reaches_out(self, size: tuple[int, int] | None) -> bool:
        """Whether the box lies partly outside of the picture; half a pixel is rounding."""
        left, top, width, height = self.box
        if size is None:
            return min(left, top) < -0.5
        return min(left, top) < -0.5 or left + width > size[1] + 0.5 or top + height > size[0] + 0.5


def read_annotations(path: Path) -> Annotations:
    """Returns the annotations in a COCO JSON file, a VOC XML file or a folder of those."""
    if path.is_dir():
        return _voc(path, sorted(p for p in path.iterdir() if p.suffix.lower() == ".xml" and p.is_file()))
    if not path.exists():
        raise ConfigError(f"{path}: no such file or folder", "give COCO's .json, or VOC's .xml or a folder of them")
    if path.suffix.lower() == ".json":
        return _coco(path)
    if path.suffix.lower() == ".xml":
        return _voc(path.parent, [path])
    raise ConfigError(f"{path}: no such kind of annotations", "give COCO's .json, or VOC's .xml or a folder of them")


def _truth(boxes: Sequence[Box]) -> Truth:
    return Truth(
        np.array([b.box for b in boxes], np.float64).reshape(-1, 4),
        np.array([b.number for b in boxes], np.int64),
        np.array([b.area for b in boxes], np.float64),
        np.array([b.crowd for b in boxes], np.bool_),
        np.array([b.ignored for b in boxes], np.bool_),
    )


def _notes(by_file: Mapping[str, Sequence[Box]], sizes: Mapping[str, tuple[int, int] | None]) -> tuple[str, ...]:
    """Returns what is odd about the boxes but no reason to refuse them; they count as pycocotools counts them."""
    out = sum(b.reaches_out(sizes[name]) for name, boxes in by_file.items() for b in boxes)
    flat = sum(min(b.box[2:]) == 0 for boxes in by_file.values() for b in boxes)
    notes = []
    if out:
        notes.append(f"{out} true boxes reach out of their picture; they are taken as they are")
    if flat:
        notes.append(f"{flat} true boxes have no area; nothing can find them")
    return tuple(notes)


def _is_name(name: Any) -> bool:
    if not isinstance(name, str) or not name or "\0" in name:
        return False
    path = PurePosixPath(name.replace("\\", "/"))
    return not path.is_absolute() and ".." not in path.parts


def _coco(path: Path) -> Annotations:
    """Returns what a COCO file says; images and classes in the order of their ids, as pycocotools takes them."""
    try:
        data = json.loads(read_bounded(path, MOST_JSON_BYTES, PARTS))
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(data, Mapping) or not all(
        isinstance(data.get(key), list) for key in ("images", "annotations", "categories")
    ):
        raise IntegrityError(f"{path}: not COCO's form: the lists images, annotations and categories were expected")
    categories = _by_id(path, "categories", data["categories"])
    listed = _by_id(path, "images", data["images"])
    names = tuple(str(entry.get("name") or "") for _, entry in sorted(categories.items()))
    for identity, each in sorted(categories.items()):
        if not isinstance(each.get("name"), str) or not each["name"]:
            raise IntegrityError(f"{path}: category {identity} has no name")
    if len(set(names)) != len(names):
        raise IntegrityError(f"{path}: categories: two have one name")
    numbers = {identity: number for number, identity in enumerate(sorted(categories))}
    boxes: dict[int, list[Box]] = {identity: [] for identity in sorted(listed)}
    for at, entry in enumerate(data["annotations"]):
        where = f"{path}: annotations[{at}]"
        if not isinstance(entry, Mapping) or not isinstance(entry.get("image_id"), int):
            raise IntegrityError(f"{where}: names no image")
        category = entry.get("category_id")
        if not isinstance(category, int) or category not in numbers:
            raise IntegrityError(f"{where}: category {category} is not listed")
        values = entry.get("bbox")
        if not isinstance(values, list) or len(values) != 4 or not all(map(_is_number, values)):
            raise IntegrityError(f"{where}: bbox {str(values)[:60]} is not [left, top, width, height]")
        left, top, width, height = map(float, values)
        if min(width, height) < 0:
            raise IntegrityError(f"{where}: bbox {values} has a negative size")
        area = entry.get("area", width * height)
        if not _is_number(area) or area < 0:
            raise IntegrityError(f"{where}: area {area!r} is not an area")
        if entry["image_id"] not in boxes:
            raise IntegrityError(f"{where}: it is of image {entry['image_id']}, which is not listed")
        box = Box(numbers[category], (left, top, width, height), float(area), bool(entry.get("iscrowd", 0)))
        boxes[entry["image_id"]].append(box)
    files = {identity: str(listed[identity].get("file_name")) for identity in boxes}
    for identity in boxes:
        if not _is_name(name := listed[identity].get("file_name")):
            raise IntegrityError(f"{path}: image {identity}: file_name {name!r} names no file of the folder")
    if len(set(files.values())) != len(files):
        raise IntegrityError(f"{path}: images: two have one file_name")
    sizes = {files[identity]: _size(path, listed[identity]) for identity in boxes}
    images = tuple(Annotated(files[i], sizes[files[i]], _truth(own)) for i, own in boxes.items())
    return Annotations(names, images, _notes({files[i]: own for i, own in boxes.items()}, sizes))


def _by_id(path: Path, key: str, entries: Sequence[Any]) -> dict[int, Mapping[str, object]]:
    by_id: dict[int, Mapping[str, object]] = {}
    for at, entry in enumerate(entries):
        identity = entry.get("id") if isinstance(entry, Mapping) else None
        if not isinstance(identity, int) or isinstance(identity, bool):
            raise IntegrityError(f"{path}: {key}[{at}]: has no id that is a whole number")
        if identity in by_id:
            raise IntegrityError(f"{path}: {key}: id {identity} is there twice")
        by_id[identity] = entry
    if not by_id:
        raise ConfigError(f"{path}: lists no {key}")
    return by_id


def _size(path: Path, entry: Mapping[str, object]) -> tuple[int, int] | None:
    height, width = entry.get("height"), entry.get("width")
    if height is None and width is None:
        return None
    if not isinstance(height, int) or not isinstance(width, int) or min(height, width) <= 0:
        raise IntegrityError(f"{path}: image {entry['id']}: {width} x {height} is not a size of a picture")
    return int(height), int(width)


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number of 400 digits
        return False


def _voc(folder: Path, files: Sequence[Path]) -> Annotations:
    """Returns what VOC files say, one a picture; classes in the order of their names."""
    if not files:
        raise ConfigError(f"{folder} holds no .xml files", "give COCO's .json, or a folder of VOC's .xml files")
    roots = {path: _parsed(path) for path in files}
    named = {path: [_text(path, each, "name") for each in root.findall("object")] for path, root in roots.items()}
    names = tuple(sorted({name for each in named.values() for name in each}))
    by_file: dict[str, list[Box]] = {}
    sizes: dict[str, tuple[int, int] | None] = {}
    for path, root in roots.items():
        file = (root.findtext("filename") or "").strip() or f"{path.stem}.jpg"
        if not _is_name(file):
            raise IntegrityError(f"{path}: filename {file!r} names no file of the folder")
        if file in by_file:
            raise IntegrityError(f"{path}: {file} is annotated twice")
        objects = zip(root.findall("object"), named[path], strict=True)
        by_file[file] = [_voc_box(path, each, names.index(name)) for each, name in objects]
        size, sizes[file] = root.find("size"), None
        texts = ["0", "0"] if size is None else [(size.findtext(side) or "").strip() for side in ("height", "width")]
        if texts != ["0", "0"]:
            if not all(text.isdecimal() and len(text) < 7 and int(text) for text in texts):
                raise IntegrityError(f"{path}: {texts[1]} x {texts[0]} is not a size of a picture")
            sizes[file] = int(texts[0]), int(texts[1])
    images = tuple(Annotated(file, sizes[file], _truth(boxes)) for file, boxes in by_file.items())
    return Annotations(names, images, _notes(by_file, sizes))


def _parsed(path: Path) -> Element:
    """Returns the root of an XML file; one that declares a document type, and so could declare entities, is refused."""
    from xml.etree import ElementTree
    from xml.parsers import expat

    data = read_bounded(path, MOST_XML_BYTES, PARTS)

    def refuse(*_: object) -> None:
        raise IntegrityError(f"{path}: declares a document type, which no annotation needs")

    guard = expat.ParserCreate()
    guard.StartDoctypeDeclHandler = refuse
    try:
        guard.Parse(data, True)
        root = ElementTree.fromstring(data)
    except (expat.ExpatError, ElementTree.ParseError, ValueError, LookupError) as error:
        raise IntegrityError(f"{path}: not valid XML: {error}") from None
    if root.tag != "annotation":
        raise IntegrityError(f"{path}: <{root.tag[:40]}> is not a VOC annotation")
    return root


def _text(path: Path, element: Element, name: str) -> str:
    text = (element.findtext(name) or "").strip()
    if not text:
        raise IntegrityError(f"{path}: an object has no <{name}>")
    return text


def _voc_box(path: Path, element: Element, number: int) -> Box:
    """Returns one object; VOC counts pixels from 1 and its last pixel belongs to the box."""
    box = element.find("bndbox")
    if box is None:
        raise IntegrityError(f"{path}: an object has no <bndbox>")
    try:
        left, top, right, bottom = (float(_text(path, box, name)) for name in ("xmin", "ymin", "xmax", "ymax"))
    except ValueError:
        raise IntegrityError(f"{path}: a <bndbox> holds what is not a number") from None
    if not all(map(math.isfinite, (left, top, right, bottom))) or right < left or bottom < top:
        raise IntegrityError(f"{path}: the box {left:g} {top:g} {right:g} {bottom:g} has no size")
    width, height = right - left + 1, bottom - top + 1
    difficult = (element.findtext("difficult") or "0").strip() not in ("0", "")
    return Box(number, (left - 1, top - 1, width, height), width * height, ignored=difficult)
