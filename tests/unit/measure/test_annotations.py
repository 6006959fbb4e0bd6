"""COCO and VOC annotations: what they say, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anynpu.errors import AnyNpuError, ConfigError, IntegrityError
from anynpu.measure import annotations
from anynpu.measure.annotations import read_annotations

VOC = """<annotation><filename>{file}</filename><size><width>100</width><height>80</height><depth>3</depth></size>
<object><name>dog</name><difficult>{hard}</difficult><bndbox><xmin>1</xmin><ymin>11</ymin><xmax>20</xmax><ymax>40</ymax>
</bndbox></object></annotation>"""


def coco(**changes):
    data = {
        "images": [{"id": 7, "file_name": "b.jpg", "height": 80, "width": 100}, {"id": 3, "file_name": "a.jpg"}],
        "categories": [{"id": 18, "name": "dog"}, {"id": 2, "name": "cat"}],
        "annotations": [
            {"image_id": 7, "category_id": 18, "bbox": [10, 20, 30, 40], "area": 900.5},
            {"image_id": 3, "category_id": 2, "bbox": [0, 0, 5.5, 6], "iscrowd": 1},
        ],
    }
    return data | changes


@pytest.fixture
def written(tmp_path):
    def write(data, name="a.json"):
        path = tmp_path / name
        path.write_bytes(
            data if isinstance(data, bytes) else (data if name[-3:] == "xml" else json.dumps(data)).encode()
        )
        return path

    return write


def test_coco_is_read_in_the_order_of_ids(written):
    found = read_annotations(written(coco()))
    assert found.names == ("cat", "dog") and [image.file for image in found.images] == ["a.jpg", "b.jpg"]
    first, second = (image.truth for image in found.images)
    assert first.crowd.tolist() == [True] and first.areas.tolist() == [33.0] and first.classes.tolist() == [0]
    assert second.boxes.tolist() == [[10, 20, 30, 40]] and second.areas.tolist() == [900.5]
    assert [image.size for image in found.images] == [None, (80, 100)] and found.notes == ()


def test_an_image_without_objects_is_kept(written):
    found = read_annotations(written(coco(annotations=[])))
    assert [len(image.truth) for image in found.images] == [0, 0]


def test_boxes_out_of_the_picture_and_without_area_are_kept_and_told(written):
    boxes = [{"image_id": 7, "category_id": 2, "bbox": b} for b in ([90, 0, 30, 10], [-5, 0, 9, 9], [1, 1, 0, 4])]
    found = read_annotations(written(coco(annotations=boxes)))
    assert len(found.images[1].truth) == 3
    assert [note[:7] for note in found.notes] == ["2 true ", "1 true "]


BAD = {
    "an image that is not listed": coco(annotations=[{"image_id": 99, "category_id": 2, "bbox": [0, 0, 1, 1]}]),
    "a category that is not listed": coco(annotations=[{"image_id": 7, "category_id": 1, "bbox": [0, 0, 1, 1]}]),
    "three numbers": coco(annotations=[{"image_id": 7, "category_id": 2, "bbox": [0, 0, 1]}]),
    "no number": coco(annotations=[{"image_id": 7, "category_id": 2, "bbox": [0, 0, 1, float("nan")]}]),
    "a number without end": coco(annotations=[{"image_id": 7, "category_id": 2, "bbox": [0, 0, 1, 10**400]}]),
    "a negative size": coco(annotations=[{"image_id": 7, "category_id": 2, "bbox": [0, 0, -1, 1]}]),
    "a negative area": coco(annotations=[{"image_id": 7, "category_id": 2, "bbox": [0, 0, 1, 1], "area": -1}]),
    "an id twice": coco(images=[{"id": 7, "file_name": "a.jpg"}, {"id": 7, "file_name": "b.jpg"}]),
    "a file twice": coco(images=[{"id": 7, "file_name": "a.jpg"}, {"id": 3, "file_name": "a.jpg"}]),
    "a file out of the folder": coco(images=[{"id": 7, "file_name": "../../etc/x.jpg"}, {"id": 3, "file_name": "b"}]),
    "a file from the root": coco(images=[{"id": 7, "file_name": "/etc/x.jpg"}, {"id": 3, "file_name": "b"}]),
    "a name twice": coco(categories=[{"id": 18, "name": "dog"}, {"id": 2, "name": "dog"}]),
    "not a size of a picture": coco(
        images=[{"id": 7, "file_name": "a", "height": 0, "width": 9}, {"id": 3, "file_name": "b"}]
    ),
    "not a mapping": [1, 2],
    "no lists": {"images": {}},
    "an annotation that is a number": coco(annotations=[5]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_coco_is_refused(written, case):
    with pytest.raises(IntegrityError, match=r"a\.json: "):
        read_annotations(written(BAD[case]))


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b"\xff\xfe\x00", b'{"images": [1'])
def test_what_is_no_json_is_refused(written, data):
    with pytest.raises(IntegrityError, match="not valid JSON"):
        read_annotations(written(data))


def test_a_huge_file_is_refused_before_it_is_parsed(written, monkeypatch):
    path = written(coco())
    monkeypatch.setattr(annotations, "MOST_JSON_BYTES", 100)
    with pytest.raises(ConfigError, match="larger than"):
        read_annotations(path)


def test_voc_counts_pixels_from_one_and_difficult_objects_do_not_count(written, tmp_path):
    written(VOC.format(file="x.png", hard=0), "x.xml")
    written(VOC.format(file="y.png", hard=1), "y.xml")
    found = read_annotations(tmp_path)
    assert found.names == ("dog",) and [image.file for image in found.images] == ["x.png", "y.png"]
    first, second = (image.truth for image in found.images)
    assert first.boxes.tolist() == [[0, 10, 20, 30]] and first.areas.tolist() == [600.0]
    assert not first.ignored.any() and second.ignored.all() and not second.crowd.any()
    assert found.images[0].size == (80, 100)
    assert len(read_annotations(tmp_path / "x.xml").images) == 1


BOMB = '<!DOCTYPE annotation [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>'
OUTSIDE = '<!DOCTYPE annotation [<!ENTITY x SYSTEM "file:///etc/passwd">]>'


@pytest.mark.parametrize("head", [BOMB, OUTSIDE, '<!DOCTYPE annotation SYSTEM "http://example.org/x.dtd">'])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_document_type_is_refused_in_any_encoding(written, head, encoding):
    text = f'<?xml version="1.0" encoding="{encoding}"?>{head}' + VOC.format(file="&b;", hard=0)
    with pytest.raises(IntegrityError, match="document type"):
        read_annotations(written(text.encode(encoding), "x.xml"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("<xmin>1</xmin>", "<xmin>one</xmin>"),
        ("<xmin>1</xmin>", "<xmin>inf</xmin>"),
        ("<xmin>1</xmin>", ""),
        ("<xmin>1</xmin>", "<xmin>30</xmin>"),
        ("<name>dog</name>", "<name> </name>"),
        ("<filename>x.png", "<filename>../x.png"),
        ("<width>100", "<width>-1"),
        ("</annotation>", ""),
        ("annotation>", "other>"),
        ("<bndbox>", "<box>"),
    ],
)
def test_bad_voc_is_refused(written, old, new):
    with pytest.raises(IntegrityError, match=r"x\.xml: "):
        read_annotations(written(VOC.format(file="x.png", hard=0).replace(old, new), "x.xml"))


def test_one_picture_annotated_twice_is_refused(written, tmp_path):
    written(VOC.format(file="x.png", hard=0), "x.xml")
    written(VOC.format(file="x.png", hard=0), "y.xml")
    with pytest.raises(IntegrityError, match="twice"):
        read_annotations(tmp_path)


def test_what_is_no_annotation_is_said(tmp_path):
    (tmp_path / "x.txt").write_text("")
    for path in (tmp_path, tmp_path / "x.txt", tmp_path / "none.json"):
        with pytest.raises(ConfigError):
            read_annotations(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["id", "name", "file_name", "bbox", "image_id", "category_id", "area", "height", "width"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(images=st.lists(JSON, max_size=3), categories=st.lists(JSON, max_size=3), rows=st.lists(JSON, max_size=3))
def test_any_json_is_read_or_refused(tmp_path_factory, images, categories, rows):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps({"images": images, "categories": categories, "annotations": rows}))
    try:
        found = read_annotations(path)
    except AnyNpuError:
        return
    assert all(np.isfinite(image.truth.boxes).all() for image in found.images)
