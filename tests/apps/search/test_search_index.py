"""An index follows its folder, computes every content once, and survives what happens to files, disks and processes."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_models import Counted, picture

from anynpu.apps.search import intake as module
from anynpu.apps.search import reading
from anynpu.apps.search.documents import paragraphs, read_text
from anynpu.apps.search.index import Index
from anynpu.apps.search.models import Models, PictureModel, TextModel
from anynpu.apps.search.query import Search, Where
from anynpu.errors import AnyNpuError, ConfigError, IntegrityError
from anynpu.tasks.picture import read_image
from anynpu.vectors.base import VectorSpace


def names(results):
    return [[Path(path).name for path in each.paths] for each in results]


def test_words_find_pictures_and_paragraphs(index, photos, counted):
    summary = index.update(photos)
    assert (summary.files, summary.computed, summary.problems) == (4, 4, [])
    answer = Search(index).by_words("blue", 2)
    assert names(answer.pictures)[0] == ["blue.png"]
    assert answer.documents[0].text == "Sun, sun and a blue sky."
    assert answer.documents[0].line == 6
    assert answer.pictures[0].score > 0.99
    assert not answer.pictures[0].gone
    assert Search(index).by_words("dog rain").documents[0].line == 4


def test_a_long_document_does_not_crowd_out_the_others(index, photos):
    (photos / "long.txt").write_text("dog\n\n" * 60)
    (photos / "last.txt").write_text("a dog and the sun and rain")
    index.update(photos)
    found = Search(index).by_words("dog", 3).documents
    assert [Path(each.paths[0]).name for each in found] == ["long.txt", "notes.txt", "last.txt"]


def test_a_picture_finds_pictures_and_one_of_the_index_its_like(index, photos, tmp_path):
    index.update(photos)
    probe = read_image(picture(tmp_path / "probe.png", "#ee1111"))
    found = Search(index).by_picture("probe", probe, 3).pictures
    assert names(found)[0] == ["red.png"]
    like = Search(index).like(found[0].id, 5).pictures
    assert len(like) == 2
    assert ["red.png"] not in names(like)
    with pytest.raises(ConfigError, match="nothing under this id"):
        Search(index).like("00000000-0000-0000-0000-000000000000")


def test_folders_and_dates_limit_what_counts(index, photos):
    os.utime(photos / "a" / "red.png", (1000, 1000))
    index.update(photos)
    search = Search(index)
    assert names(search.by_words("red", 9, Where(str(photos / "a"))).pictures) == [["red.png"], ["green.png"]]
    assert names(search.by_words("red", 9, Where(str(photos / "a" / "b"))).pictures) == [["green.png"]]
    assert search.by_words("red", 9, Where(str(photos / "none"))).pictures == ()
    assert names(search.by_words("red", 9, Where(until=2000.0)).pictures) == [["red.png"]]
    assert ["red.png"] not in names(search.by_words("red", 9, Where(since=2000.0)).pictures)


def test_a_second_run_computes_nothing(index, photos, counted):
    index.update(photos)
    before = len(counted.pictures), len(counted.texts)
    summary = index.update(photos)
    assert (summary.unchanged, summary.computed, summary.removed) == (4, 0, 0)
    os.utime(photos / "a" / "red.png", (5000, 5000))  # touched: read again, but its content is known
    summary = index.update(photos)
    assert (summary.known, summary.computed) == (1, 0)
    assert (len(counted.pictures), len(counted.texts)) == before


def test_copies_are_computed_once_and_shown_once(index, photos, counted):
    shutil.copy(photos / "a" / "red.png", photos / "c" / "copy.png")
    summary = index.update(photos)
    assert (summary.computed, summary.known) == (4, 1)
    found = Search(index).by_words("red", 9).pictures
    assert names(found)[0] == ["red.png", "copy.png"]
    assert len(found) == 3
    assert names(Search(index).by_words("red", 9, Where(str(photos / "c"))).pictures)[0] == ["red.png", "copy.png"]
    shutil.copy(photos / "a" / "red.png", photos / "third.png")
    assert index.update(photos).known == 1
    assert len(Search(index).by_words("red", 9).pictures[0].paths) == 3
    (photos / "a" / "red.png").unlink()
    assert index.update(photos).removed == 1
    assert names(Search(index).by_words("red", 9).pictures)[0] == ["copy.png", "third.png"]
    assert len(counted.pictures) == 3


def test_copies_that_are_read_at_the_same_time_are_computed_once(index, tmp_path, counted, monkeypatch):
    monkeypatch.setattr(module, "BATCH", 1)
    first = picture(tmp_path / "photos" / "0.png", "red")
    for at in range(1, 6):
        shutil.copy(first, tmp_path / "photos" / f"{at}.png")
    summary = index.update(tmp_path / "photos")
    assert (summary.computed, summary.known, len(counted.pictures)) == (1, 5, 1)
    assert len(Search(index).by_words("red", 1).pictures[0].paths) == 6


def test_what_is_removed_moved_and_changed_is_followed(index, photos, counted):
    index.update(photos)
    (photos / "a" / "b" / "green.png").rename(photos / "moved.png")
    (photos / "c" / "blue.png").unlink()
    (photos / "notes.txt").write_text("Only a dog.\n")
    picture(photos / "a" / "red.png", "#00ffff")
    summary = index.update(photos)
    assert (summary.known, summary.computed, summary.removed) == (1, 2, 2)
    found = Search(index).by_words("green", 9)
    assert names(found.pictures)[0] == ["moved.png"]
    assert [each.text for each in found.documents] == ["Only a dog."]
    assert index.collection("images").count() == 2
    assert index.collection("documents").count() == 1


def test_a_changed_file_leaves_no_trace_of_what_it_was(index, photos):
    index.update(photos)
    hash_before = index.ledger.row(str(photos / "a" / "red.png")).hash
    picture(photos / "a" / "red.png", "#102030")
    index.update(photos)
    assert index.ledger.with_hash(hash_before) == []
    assert index.collection("images").count() == 3, "the old content has gone with its only file"


def test_unreadable_files_are_listed_and_the_others_go_on(index, photos):
    (photos / "broken.jpg").write_bytes(b"\xff\xd8 not a picture")
    (photos / "empty.png").write_bytes(b"")
    (photos / "binary.txt").write_bytes(b"\0\1\2")
    summary = index.update(photos)
    assert sorted(Path(path).name for path, _ in summary.problems) == ["binary.txt", "broken.jpg", "empty.png"]
    assert all(reason for _, reason in summary.problems)
    again = index.update(photos)
    assert again.unchanged == 7
    assert len(again.problems) == 3, "they are listed again, though not read again"
    picture(photos / "broken.jpg", "red")
    assert len(index.update(photos).problems) == 2


def test_a_file_that_may_not_be_read(index, photos, monkeypatch):
    def refuse(path, kind):
        if path.endswith("red.png"):
            raise PermissionError(13, "Permission denied", path)
        return real(path, kind)

    real = reading.read
    monkeypatch.setattr(reading, "read", refuse)
    assert [reason for _, reason in index.update(photos).problems] == [
        f"{photos}/a/red.png: cannot be read (Permission denied)"
    ]
    monkeypatch.undo()
    assert index.update(photos).computed == 1, "it is tried again"


def test_a_folder_that_changes_while_it_is_indexed(index, photos):
    """Files come, go and change all the time; at the end one more run brings everything in order."""
    stop = threading.Event()

    def stir():
        at = 0
        while not stop.is_set():
            at += 1
            path = photos / "x" / f"{at % 7}.png"
            if at % 3:
                picture(path, (at * 37 % 255, at * 91 % 255, 10))
            else:
                shutil.rmtree(photos / "x", ignore_errors=True)
            (photos / "notes.txt").write_text(f"dog {at}\n\n" * 20)

    (photos / "x").mkdir()
    stirring = threading.Thread(target=stir)
    stirring.start()
    try:
        for _ in range(6):
            for _, reason in index.update(photos).problems:
                assert "changed while" in reason or "not a readable image" in reason or "no such" in reason
    finally:
        stop.set()
        stirring.join()
    assert index.update(photos).problems == []
    held = {path for row in index.collection("images").scroll(limit=1000).rows for path in row.payload["paths"]}
    assert held == {path for path, kind in reading.walk(photos, index.folder) if kind == "image"}
    texts = {row.payload["text"] for row in index.collection("documents").scroll(limit=1000).rows}
    assert texts == {"dog " + (photos / "notes.txt").read_text().split()[1]}


def test_exif_turns_the_picture_and_says_when_it_was_taken(index, tmp_path):
    image = Image.new("RGB", (40, 20), "red")
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x8769] = {0x9003: "2001:02:03 04:05:06"}
    folder = tmp_path / "photos"
    folder.mkdir()
    image.save(folder / "x.jpg", exif=exif)
    index.update(folder)
    row = index.collection("images").scroll().rows[0]
    assert (row.payload["height"], row.payload["width"]) == (40, 20)
    assert time.gmtime(row.payload["taken"])[:6] == (2001, 2, 3, 4, 5, 6)
    thumb = read_image(index.ledger.thumb(row.payload["hash"]))
    assert thumb.pixels.shape[:2] == (40, 20)


def test_a_picture_that_the_model_makes_nothing_of(tmp_path, photos, counted):
    def picky(named):
        if any(name.endswith("red.png") for name, _ in named):
            raise AnyNpuError("the model gives a vector of zeros")
        return counted.colours(named)

    models = Models(PictureModel(VectorSpace("colours", "a" * 64, 3), picky))
    with Index(tmp_path / "index", models) as index:
        summary = index.update(photos)
        assert [reason for _, reason in summary.problems] == ["the model gives a vector of zeros"]
        assert (summary.computed, summary.skipped) == (2, 1)
        assert index.collection("images").count() == 2


def test_a_run_that_dies_is_resumed_and_computes_nothing_twice(tmp_path, counted, monkeypatch):
    folder = tmp_path / "photos"
    for at in range(40):
        picture(folder / f"{at}.png", (at * 6, 255 - at * 6, 30), size=(8, 8))
    monkeypatch.setattr(module, "BATCH", 5)

    class Killed(BaseException):
        pass

    def die(progress):
        if progress.done >= 20:
            raise Killed

    with Index(tmp_path / "index", counted.models()) as index, pytest.raises(Killed):
        index.update(folder, die)
    with Index(tmp_path / "index", counted.models()) as index:
        # The store has the points of a batch whose files are not noted: what a death between the two leaves.
        index.ledger.remove([str(folder / "0.png")])
        summary = index.update(folder)
        assert (summary.unchanged, summary.computed, summary.known) == (19, 20, 1)
        assert index.collection("images").count() == 40
    assert sorted(counted.pictures) == sorted(set(counted.pictures))


def test_a_folder_that_is_gone_or_empty_takes_nothing_with_it(index, photos, tmp_path):
    index.update(photos)
    photos.rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="no such folder"):
        index.update(photos)
    photos.mkdir()
    with pytest.raises(ConfigError, match="is empty, and 4 files of it are indexed"):
        index.update(photos)
    assert index.collection("images").count() == 3
    assert Search(index).by_words("red", 1).pictures[0].gone
    assert index.forget(photos) == 4
    assert index.collection("images").count() == index.collection("documents").count() == 0
    with pytest.raises(ConfigError, match="nothing of it is indexed"):
        index.forget(photos)


def test_two_folders_in_one_index(index, photos, tmp_path):
    picture(tmp_path / "more" / "yellow.png", "yellow")
    index.update(photos)
    index.update(tmp_path / "more")
    assert index.collection("images").count() == 4
    index.forget(tmp_path / "more")
    assert index.collection("images").count() == 3


def test_the_index_itself_is_not_indexed(photos, counted):
    with Index(photos / "index", counted.models()) as index:
        index.update(photos)
        assert index.update(photos).files == 4


def test_another_model_is_refused(index, photos, tmp_path, counted):
    index.update(photos)
    other = Models(PictureModel(VectorSpace("colours", "z" * 64, 3), counted.colours))
    with pytest.raises(ConfigError, match="another space: fingerprint"):
        Index(tmp_path / "index", other)
    words = Models(questions=TextModel(VectorSpace("words", "c" * 64, 8), counted.words))
    with pytest.raises(ConfigError, match="no space in common: name colours and words"):
        Index(tmp_path / "index", words)


def test_words_without_a_model_for_them(index, photos, tmp_path, counted):
    index.update(photos)
    only = Models(pictures=counted.models().pictures)
    with Index(tmp_path / "index", only) as reopened:
        answer = Search(reopened).by_words("red")
        assert answer.pictures == ()
        assert "no --question-model" in answer.notes[0]
    with pytest.raises(ConfigError, match="empty"):
        Search(index).by_words("  ")


def test_one_index_is_written_by_one_process(index, photos):
    with index._alone(), pytest.raises(ConfigError, match="another command is indexing"):
        index.update(photos)


def test_an_index_of_another_version(index, photos, tmp_path, counted):
    index.update(photos)
    (tmp_path / "index" / "index.json").write_text(json.dumps({"format": 2}))
    with pytest.raises(IntegrityError, match="has format 2"):
        Index(tmp_path / "index", counted.models())


def test_a_damaged_ledger(tmp_path, counted):
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "files.sqlite").write_bytes(b"not a data base, but long enough to look like one" * 50)
    with pytest.raises(IntegrityError, match="is damaged"):
        Index(tmp_path / "index", counted.models())


def test_a_text_searches_by_what_it_is_about(index, photos):
    index.update(photos)
    answer = Search(index).by_text("dog dog\n\nrain and a dog", 1)
    assert answer.documents[0].text == "A dog in the rain."
    with pytest.raises(ConfigError, match="no words"):
        Search(index).by_text("\n \n")


def test_names_that_are_not_unicode(index, photos):
    bad = os.fsencode(str(photos)) + b"/\xff\xfe.txt"
    try:
        os.close(os.open(bad, os.O_WRONLY | os.O_CREAT))
    except OSError:
        pytest.skip("this file system takes Unicode names only")
    summary = index.update(photos)
    assert len(summary.problems) == 1
    assert "not Unicode" in summary.problems[0][1]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("é".encode(), "é"),
        (b"\xef\xbb\xbfabc", "abc"),
        ("abc".encode("utf-16"), "abc"),
        (b"caf\xe9", "café"),
    ],
)
def test_texts_in_the_usual_encodings(data, text):
    assert read_text(data, "x") == text


def test_paragraphs_know_their_lines_and_are_never_too_long():
    found = paragraphs("\n\none\ntwo\r\n\r\nthree\n   \n" + "word " * 900)
    assert [(each.text, each.line) for each in found[:2]] == [("one two", 3), ("three", 6)]
    assert max(len(each.text) for each in found) <= 1000
    assert " ".join(each.text for each in found[2:]).split() == ["word"] * 900
    assert [len(each.text) for each in paragraphs("x" * 2500)] == [1000, 1000, 500]


def test_the_vectors_of_an_index_are_those_of_its_model(index, photos):
    index.update(photos)
    for row in index.collection("images").scroll(with_vector=True).rows:
        image = read_image(photos.parent / row.payload["paths"][0])
        assert np.allclose(row.vector, Counted().colours([("x", image)])[0], atol=1e-5)
