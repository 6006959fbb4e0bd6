"""Sentences to inputs, pooled to vectors, through models of several lengths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anynpu.errors import ConfigError, IntegrityError
from anynpu.tasks.card import Card
from anynpu.tasks.embed import Buckets, TextTower, pool
from anynpu.tasks.minilm import BertInput, read_tokenizer
from anynpu.tasks.model import Model
from anynpu.tasks.space import Space
from anynpu.tasks.text import TextInput
from anynpu.tensors import TensorSpec

pytest.importorskip("tokenizers")
from tiny_bert import write_tokenizer

CLS, SEP, CAT, UNK = 2, 3, 6, 1


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "tokenizer.json")


def inputs(length: int, *names: str, batch: int = 1) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, (batch, length), "int64") for name in names or ("input_ids", "attention_mask"))


def test_a_text_is_framed_and_padded(tokenizer):
    got = BertInput.of(tokenizer, inputs(8, "input_ids", "attention_mask", "token_type_ids"))(["The cat, Elephant"])
    assert got["input_ids"].tolist() == [[CLS, 5, CAT, UNK, UNK, SEP, 0, 0]]
    assert got["attention_mask"].tolist() == [[1] * 6 + [0] * 2]
    assert got["token_type_ids"].tolist() == [[0] * 8]
    assert all(array.dtype == np.int64 for array in got.values())


def test_a_long_text_keeps_its_end(tokenizer):
    bound = BertInput.of(tokenizer, inputs(5))
    got = bound(["cat " * 50])
    assert got["input_ids"].tolist() == [[CLS, CAT, CAT, CAT, SEP]]
    assert bound.count("cat " * 50) == 52  # the file's own truncation to six is not ours


def test_empty_text_and_half_a_character_are_texts(tokenizer):
    got = BertInput.of(tokenizer, inputs(4, batch=2))(["", "\ud800"])
    assert got["input_ids"][0].tolist() == [CLS, SEP, 0, 0]
    assert got["attention_mask"][1, :2].tolist() == [1, 1]


def test_rows_past_the_texts_are_filled(tokenizer):
    got = BertInput.of(tokenizer, inputs(4, batch=3))(["cat"])
    assert got["input_ids"].tolist() == [[CLS, CAT, SEP, 0]] * 3


@pytest.mark.parametrize(
    "specs",
    [
        (TensorSpec("image", (1, 3, 8, 8)),),
        (TensorSpec("input_ids", (1, 8)),),
        (TensorSpec("input_ids", (1, 8), "int64"), TensorSpec("attention_mask", (1, 9), "int64")),
        (*inputs(8), TensorSpec("more", (1, 8), "int64")),
    ],
)
def test_inputs_of_another_model_are_refused(tokenizer, specs):
    with pytest.raises(ConfigError, match="sentences fit"):
        BertInput.of(tokenizer, specs)


@pytest.mark.parametrize("text", ["", "{}", "not json", '{"version": "1.0", "model": {"type": "nonsense"}}'])
def test_a_damaged_tokenizer_is_told(tmp_path, text):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(IntegrityError, match=r"not a tokenizer\.json"):
        read_tokenizer(tmp_path / "t.json")


def tower(tokenizer: Path, length: int, pooling: str, seen: list) -> TextTower:
    """A model whose token vectors are (token, place, 1), or their sum over what is no padding."""

    def run(given):
        ids, mask = given["input_ids"], given["attention_mask"]
        seen.append(length)
        places = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
        states = np.stack([ids, places, np.ones(ids.shape)], axis=2).astype(np.float32)
        return {"y": states if pooling != "model" else (states * mask[:, :, None]).sum(1)}

    shape = (1, length, 3) if pooling != "model" else (1, 3)
    card = Card("embed-text", text=TextInput("bert", "tokenizer.json", pooling=pooling), space=Space("toy", 3))
    files = {"tokenizer.json": tokenizer}
    return TextTower(Model(card, files, inputs(length), (TensorSpec("y", shape),), run))


def test_the_mean_leaves_out_padding(tokenizer):
    (row,) = tower(tokenizer, 8, "mean", []).embed(["cat"])
    mean = np.asarray([(CLS + CAT + SEP) / 3, 1.0, 1.0])
    assert np.allclose(row, mean / np.linalg.norm(mean))


def test_the_first_token_can_stand_for_all(tokenizer):
    (row,) = tower(tokenizer, 8, "first", []).embed(["cat"])
    assert np.allclose(row, np.asarray([CLS, 0.0, 1.0]) / np.sqrt(CLS**2 + 1))


def test_a_mean_without_a_mask_is_refused():
    with pytest.raises(ConfigError, match="which of them are padding"):
        pool("mean", np.zeros((1, 4, 3)), {"input_ids": np.zeros((1, 4))})


def test_every_text_goes_to_the_shortest_model_that_holds_it(tokenizer):
    seen: list[int] = []
    towers = [tower(tokenizer, length, "mean", seen) for length in (16, 4, 8)]
    texts = ["cat", "cat " * 5, "cat " * 12, "cat " * 40, "dog"]
    rows = Buckets.of(towers).embed(texts)
    assert seen == [4, 4, 8, 16, 16]
    alone = np.concatenate([towers[0].embed([text]) for text in texts])
    assert np.allclose(rows[[0, 1, 2, 4]], alone[[0, 1, 2, 4]], atol=1e-6)


def test_buckets_of_two_spaces_are_refused(tokenizer):
    from dataclasses import replace

    first = tower(tokenizer, 8, "mean", [])
    other = TextTower(replace(first.model, card=replace(first.model.card, space=Space("other", 3))))
    with pytest.raises(ConfigError, match="no space in common"):
        Buckets.of([first, other])
