"""CLIP's tokens beside a plain encoder, on any text; vocabularies that are not whole."""

from __future__ import annotations

import gzip
import json
import tracemalloc

import clip_vocabulary_maker as maker
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anynpu.errors import ConfigError, IntegrityError
from anynpu.tasks import clip_tokens
from anynpu.tasks.clip_tokens import ClipTokens
from anynpu.tasks.clip_vocabulary import read_vocabulary

for _package in ("ftfy", "regex", "tokenizers"):
    pytest.importorskip(_package)

PIECES = (
    *maker.WORDS, " ", "\n", "\x1b[31m", "&amp;", "&lt;", "&#39;", "'S", "'ſ", "É", "e\u0301", "ﬁ", "â€œ", "Ã©", "½",
    "Ⅷ", "👩‍👧", "\u202e", "שלום", "\x1c", "\x85", "ͅ", "<start_of_text>", "<END_of_text>", "the" * 90,
    "\U00031350", "ẞ", "İ",
)  # fmt: skip
TEXT = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.text("thecatdog' ,1&;\t"))


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return ClipTokens.read(maker.write_merges(tmp_path_factory.mktemp("v") / "v.txt.gz"), maker.SIZE)


@settings(max_examples=300, deadline=None)
@given(TEXT)
@example("")
@example("a photo of a cat's 2024 mat!!!")
@example("&amp;amp;lt; <start_of_text>")
def test_any_text_gives_the_tokens_of_the_plain_encoder(tokens, text):
    assert tokens.encode(text) == maker.plain_encode(text)


@settings(max_examples=200, deadline=None)
@given(st.text("".join(map(chr, range(9, 127))), max_size=60))
def test_the_short_way_of_clean_text_gives_what_the_long_way_gives(text):
    import html

    import ftfy

    cleaned = " ".join(html.unescape(html.unescape(ftfy.fix_text(text))).split()).lower()
    assert list(clip_tokens._words(text)) == clip_tokens._pattern().findall(cleaned)


def test_a_row_is_start_tokens_end_zeros(tokens):
    rows = tokens(["the cat", ""])
    assert rows.shape == (2, 77) and rows.dtype == np.int32
    assert rows[0, :4].tolist() == [tokens.start, *tokens.encode("the cat"), tokens.end] and not rows[0, 4:].any()
    assert rows[1, :2].tolist() == [tokens.start, tokens.end] and not rows[1, 2:].any()


@pytest.mark.parametrize("words", [74, 75, 76, 200])
def test_a_long_text_keeps_its_end(tokens, words):
    row = tokens(["the " * words])[0]
    assert row[min(words, 75) + 1] == tokens.end and (row == tokens.end).sum() == 1


def test_a_lone_surrogate_is_a_character_that_cannot_be_read(tokens):
    assert tokens.encode("a\ud800b") == tokens.encode("a\ufffdb")


def test_words_that_never_come_back_do_not_fill_the_memory(tokens, monkeypatch):
    monkeypatch.setattr(clip_tokens, "MOST_CACHED", 50)
    for number in range(500):
        tokens.encode("".join(chr(97 + int(digit)) for digit in str(number)))
    assert len(tokens._known) <= 50
    assert tokens.encode("<start_of_text>") == [tokens.start]


def test_packed_lines_plain_lines_and_json_are_one_vocabulary(tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text(maker.tokenizer_json())
    named = [maker.write_merges(tmp_path / name) for name in ("v.txt.gz", "v.txt")]
    first, *others = [read_vocabulary(path, maker.SIZE) for path in (*named, file)]
    assert all(other == first for other in others)
    assert [first.start, first.end] == [maker.SIZE - 2, maker.SIZE - 1]
    assert first.ids == {token: number for number, token in enumerate(maker.TOKENS)}


def small_json(**changes):
    return maker.tokenizer_json(**changes).encode()


VOCAB = {token: number for number, token in enumerate(maker.TOKENS)}
WHOLE = gzip.compress("\n".join(maker.lines()).encode())
SPECIAL, AA = "<end_of_text>", ["a a"] * 99
DAMAGED = {
    "cut": WHOLE[:-20],
    "flipped": WHOLE[:40] + bytes([WHOLE[40] ^ 255]) + WHOLE[41:],
    "empty": b"",
    "no gzip": b"\x1f\x8bnothing",
    "binary": bytes(range(128, 256)),
    "too few merges": "\n".join(maker.lines()[:-1]).encode(),
    "three symbols": "\n".join([*maker.lines()[:5], "a b c", *maker.lines()[6:]]).encode(),
    "one symbol": "\n".join([*maker.lines()[:5], "a", *maker.lines()[6:]]).encode(),
    "unknown symbol": "\n".join([*maker.lines()[:5], "xyz q", *maker.lines()[6:]]).encode(),
    "symbols that double": "\n".join(["", *(f"{'a' * 2**n} {'a' * 2**n}" for n in range(12))] + ["a a"] * 99).encode(),
    "an end from a merge": "\n".join(["", *(f"{SPECIAL[:n]} {SPECIAL[n]}" for n in range(1, 13)), *AA]).encode(),
    "no json": b"{",
    "deep json": b'{"a":' * 100_000,
    "another model": small_json(type="WordPiece"),
    "another suffix": small_json(end_of_word_suffix=""),
    "vocab is a list": small_json(vocab=[1]),
    "merges are numbers": small_json(merges=[1, 2]),
    "merges hold numbers": small_json(merges=[[1, 2]]),
    "a gap": small_json(vocab=VOCAB | {"extra": 10**9}),
    "numbers that are truths": small_json(vocab=VOCAB | {maker.TOKENS[0]: False}),
    "a byte without token": small_json(vocab={f"t{n}": n for n in range(maker.SIZE)}, merges=[]),
    "no start": small_json(vocab={t if n != maker.SIZE - 2 else "other": n for t, n in VOCAB.items()}),
    "another size": small_json(vocab=VOCAB | {"more": len(VOCAB)}),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_vocabulary_that_is_not_whole_is_refused(name, tmp_path):
    path = tmp_path / "vocabulary"
    path.write_bytes(DAMAGED[name])
    with pytest.raises(IntegrityError) as caught:
        ClipTokens.read(path, maker.SIZE)
    assert str(path) in caught.value.message


def test_a_bomb_is_refused_in_bounded_memory(tmp_path):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(1 << 26), 1))
    tracemalloc.start()
    try:
        with pytest.raises(IntegrityError, match="holds more than"):
            read_vocabulary(path)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def test_a_file_that_is_not_there_and_a_size_of_none(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_vocabulary(tmp_path / "none")
    with pytest.raises(ConfigError, match="not one of CLIP"):
        read_vocabulary(maker.write_merges(tmp_path / "v.txt"), 300)


def test_a_published_vocabulary_has_its_49408_tokens(test_data):
    found = read_vocabulary(test_data / "clip_tokenizer" / "bpe_simple_vocab_16e6.txt.gz")
    assert (len(found.ids), found.start, found.end) == (49408, 49406, 49407)
    assert json.dumps(found.merges[0]) == '["i", "n"]'
