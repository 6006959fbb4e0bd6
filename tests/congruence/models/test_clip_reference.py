"""CLIP's tokens beside the tokenizer of open_clip itself, on text of every kind."""

from __future__ import annotations

import importlib.util
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from anynpu.tasks.clip_tokens import ClipTokens

pytestmark = pytest.mark.models

MODELS = Path(os.environ.get("ANYNPU_MODELS_DIR", Path(__file__).parents[3] / ".models"))
STRINGS = 100_000
BLOCKS = (
    (0x20, 0x7F), (0xA0, 0x180), (0x300, 0x370), (0x370, 0x400), (0x400, 0x530), (0x590, 0x600), (0x600, 0x700),
    (0x900, 0xE00), (0xE00, 0xE80), (0x1100, 0x1200), (0x1E00, 0x2000), (0x2000, 0x2070), (0x20A0, 0x2200),
    (0x2150, 0x2190), (0x2460, 0x2500), (0x2E80, 0x3100), (0x4E00, 0xA000), (0xAC00, 0xD7A4), (0xFB00, 0xFE00),
    (0xFE00, 0x10000), (0x10000, 0x11000), (0x1D400, 0x1D800), (0x1F000, 0x1FB00), (0x20000, 0x323B0),
    (0xE0000, 0xE0200), (0xF0000, 0x110000), (0, 0x20), (0x7F, 0xA1),
)  # fmt: skip
PIECES = (
    "'s", "'S", "'ſ", "'re", "'LL", "n't", "’s", "&amp;", "&lt;b&gt;", "&amp;amp;", "&#39;", "&#x1F600;", "&eacute",
    "&nbsp;", "&bogus;", "<start_of_text>", "<END_OF_TEXT>", "<ſtart_of_text>", "</w>", "<|endoftext|>", "1,234.5",
    "👩‍👩‍👧‍👦", "🏳️‍🌈", "e\u0301", "ﬁ", "Ｆｕｌｌ", "İstanbul", "ẞ", "ͅ", "ª²½Ⅷ", "\u202eabc\u202c", "שלום", "مرحبا",
    "नमस्ते", "\x1b[31mred\x1b[0m", "\r\n", "\x85", "\u2028", "\x1c", "\u200b", "\ufeff", "…", "“quoted”", "http://a.b/?c=d&e",
)  # fmt: skip
WORDS = (
    "a photo of",
    "Dog",
    "bicycle",
    "naïve",
    "CAFÉ",
    "straße",
    "Москва",
    "東京",
    "ไทย",
    "2024",
    "!!!",
    "--",
    "_x_",
    "don't",
)


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """The tokenizer module of the real package; the rest of the package is not loaded."""
    pytest.importorskip("torch")
    for package in ("ftfy", "regex", "tokenizers"):
        pytest.importorskip(package)
    file = MODELS / "open_clip_tokenizer.py"
    if not file.is_file():
        pytest.skip("scripts/models.sh fetches the tokenizer of open_clip_torch 3.3.0")
    spec = importlib.util.spec_from_file_location("open_clip_tokenizer", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def ours(reference: ModuleType) -> ClipTokens:
    return ClipTokens.read(Path(reference.default_bpe()))


def characters(rng: random.Random, low: int, high: int, most: int) -> str:
    codes = (rng.randrange(low, high) for _ in range(rng.randint(1, most)))
    return "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)


def mojibake(rng: random.Random) -> str:
    text = rng.choice(WORDS) + rng.choice(PIECES) + characters(rng, *rng.choice(BLOCKS), 6)
    for _ in range(rng.randint(1, 2)):
        text = text.encode("utf-8").decode(rng.choice(("latin-1", "cp1252", "cp1251", "macroman")), "replace")
    return text


def fragment(rng: random.Random) -> str:
    makers: tuple[Callable[[], str], ...] = (
        lambda: rng.choice(WORDS),
        lambda: rng.choice(PIECES),
        lambda: characters(rng, *rng.choice(BLOCKS), 12),
        lambda: characters(rng, 0, 0x110000, 12),
        lambda: mojibake(rng),
        lambda: characters(rng, *rng.choice(BLOCKS), 3) * rng.choice((1, 2, 3, 40)),
    )
    return rng.choice(makers)()


def texts(count: int, seed: int) -> Iterator[str]:
    """Yields text of mixed scripts, entities, mojibake, control characters, emoji and words without end."""
    rng = random.Random(seed)
    for _ in range(count):
        yield rng.choice(("", " ", "\t", "  ")).join(fragment(rng) for _ in range(rng.randint(0, 8)))


@pytest.mark.timeout(1800)
def test_a_hundred_thousand_texts_give_the_tokens_of_open_clip(reference, ours):
    for text in texts(STRINGS, 20):
        assert ours([text])[0].tolist() == reference.tokenize(text)[0].tolist(), ascii(text)


@pytest.mark.timeout(1800)
def test_every_character_is_cut_and_merged_as_open_clip_does(reference, ours):
    for low in range(0, 0x110000, 16):
        if 0xD800 <= low < 0xE000:
            continue
        text = "".join(f"x{chr(code)}1{chr(code)}'{chr(code)}" for code in range(low, low + 16))
        assert ours.encode(text) == reference._tokenizer.encode(text), ascii(text)
        alone = " ".join(map(chr, range(low, low + 16)))
        assert ours.encode(alone) == reference._tokenizer.encode(alone), ascii(alone)


def test_a_text_that_is_too_long_keeps_the_end(reference, ours):
    for words in range(70, 80):
        row = ours(["cat " * words])[0]
        assert row.tolist() == reference.tokenize("cat " * words)[0].tolist()
        assert row[min(words + 1, 76)] == ours.end
