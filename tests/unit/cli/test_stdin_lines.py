"""--file - of embed and similar, and --labels-file - of classify, read stdin."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from anynpu.cli import embed
from anynpu.errors import ConfigError, IntegrityError


def give(monkeypatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))


def test_texts_are_read_from_stdin_as_from_a_file(tmp_path: Path, monkeypatch) -> None:
    data = "the dog\r\n\nGrüße\n".encode()
    (tmp_path / "lines.txt").write_bytes(data)
    give(monkeypatch, data)
    found = embed.gather((), ("first",), Path("-")).texts
    assert found == ["first", "the dog", "", "Grüße"]
    assert found[1:] == embed.gather((), (), tmp_path / "lines.txt").texts


def test_labels_are_read_from_stdin(monkeypatch) -> None:
    give(monkeypatch, b"a cat\na dog\n")
    assert embed.zero_shot_labels(None, Path("-")) == ("a cat", "a dog")


def test_stdin_that_is_no_text_or_too_much(monkeypatch) -> None:
    give(monkeypatch, b"\xff\xfe\x00")
    with pytest.raises(IntegrityError, match="stdin: not text in UTF-8"):
        embed.gather((), (), Path("-"))
    monkeypatch.setattr(embed, "MOST_BYTES", 4)
    give(monkeypatch, b"12345")
    with pytest.raises(ConfigError, match="stdin gives more than"):
        embed.gather((), (), Path("-"))
