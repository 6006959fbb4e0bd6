"""A small tokenizer and encoder of BERT's form, for tests that fetch nothing."""

from __future__ import annotations

from pathlib import Path

WORDS = [*("a", "the", "cat", "dog", "bus", "sits", "on", "mat", "runs", "red"),
    *("blue", "in", "rain", "and", "or", "not", "is", "was", "to", "of")]  # fmt: skip
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def write_tokenizer(path: Path) -> Path:
    """Writes a tokenizer.json that knows a few words and asks for padding and truncation, as published ones do."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_truncation(6)
    tokenizer.enable_padding(length=6)
    tokenizer.save(str(path))
    return path


def encoder():
    """Returns a small encoder with fixed random weights."""
    import torch

    from anynpu.source.bert import encoder as make

    torch.manual_seed(0)
    return make(layers=2, hidden=16, heads=2, inner=32, vocabulary=len(SPECIAL) + len(WORDS), positions=32)
