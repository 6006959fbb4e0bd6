"""Requests and output folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anynpu.errors import ConfigError
from anynpu.measure.verify import Gate
from anynpu.pipeline.output import check_output, write_output
from anynpu.pipeline.request import Request, parse_share
from anynpu.pipeline.result import BuildResult
from anynpu.records.parts import REPORT
from anynpu.source.load import ModelSource

SOURCE = ModelSource("net.onnx")


@given(st.floats(0, 100))
def test_a_share_is_read_with_and_without_the_sign(share: float) -> None:
    assert parse_share(f"{share!r}%") == share / 100
    assert parse_share(repr(share / 100)) == share / 100


@pytest.mark.parametrize("text", ["", "%", "abc", "101%", "-1%", "1.01", "nan", "nan%", "inf", "95 percent"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--require-npu .*a share such as 95% was expected"):
        parse_share(text)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"chips": ()}, "no chip is named"),
        ({"require_npu": 1.5}, "a share from 0% to 100%"),
        ({"limit": 0}, "a limit of 0 samples leaves none"),
        ({"gate": Gate(min_sqnr_db=float("nan"))}, "--min-sqnr nan"),
        ({"gate": Gate(max_drop_points=float("inf"))}, "--max-drop inf"),
    ],
)
def test_impossible_requests_are_refused(fields: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Request(**{"source": SOURCE, "chips": ("cpu",), **fields})


def result() -> BuildResult:
    return BuildResult(Request(SOURCE, ("cpu",)))


def test_a_new_folder_appears_whole(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    check_output(out, False)
    assert not any(tmp_path.iterdir())
    assert write_output(result(), out, False, {REPORT: "{}"}) is None
    assert [p.name for p in out.iterdir()] == [REPORT]
    assert [p.name for p in out.parent.iterdir()] == ["out"]


def test_an_earlier_folder_is_kept_under_another_name(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for text in ("1", "2", "3"):
        kept = write_output(result(), out, False, {REPORT: text})
    assert (out / REPORT).read_text() == "3"
    assert kept is not None and (kept / REPORT).read_text() == "2"
    assert len(list(tmp_path.iterdir())) == 3


def test_overwrite_replaces_what_is_ours(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_output(result(), out, False, {REPORT: "1", "old": ""})
    check_output(out, True)
    assert write_output(result(), out, True, {REPORT: "2"}) is None
    assert [p.name for p in out.iterdir()] == [REPORT] and [p.name for p in tmp_path.iterdir()] == ["out"]


def test_overwrite_spares_what_is_not_ours(tmp_path: Path) -> None:
    out = tmp_path / "photos"
    out.mkdir()
    (out / "holiday.jpg").write_text("x")
    with pytest.raises(ConfigError, match="was not made by anynpu, so --overwrite leaves it alone"):
        check_output(out, True)
    check_output(out, False)  # it would be kept under another name


def test_places_that_cannot_be_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file, not a folder"):
        check_output(tmp_path / "file", False)
    with pytest.raises(ConfigError, match="cannot be a folder here"):
        check_output(tmp_path / "file" / "out", False)
    with pytest.raises(ConfigError, match="cannot be a folder here"):
        check_output(tmp_path / ("x" * 300), False)
    monkeypatch.chdir(tmp_path)
    for place in (".", "..", "/"):
        with pytest.raises(ConfigError, match="cannot be replaced while it is in use"):
            check_output(Path(place), False)


def test_a_failure_while_writing_leaves_the_earlier_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_output(result(), out, False, {REPORT: "1"})
    with pytest.raises(ConfigError, match="no space left"):
        write_output(result(), out, False, _Failing())  # type: ignore[arg-type]
    assert [p.name for p in tmp_path.iterdir()] == ["out"] and (out / REPORT).read_text() == "1"


class _Failing(dict):
    def items(self):  # type: ignore[no-untyped-def]
        yield REPORT, "2"
        raise OSError(28, os.strerror(28))
