"""Towers and classifiers over a model that is a plain function: batches, filling, and outputs that mean nothing."""

from __future__ import annotations

import io

import clip_vocabulary_maker as maker
import numpy as np
import pytest

from anynpu.errors import AccuracyError, ConfigError
from anynpu.tasks.card import Card
from anynpu.tasks.classify import Classifier
from anynpu.tasks.embed import ImageTower, TextTower, ZeroShot
from anynpu.tasks.images import Picture, Preprocess
from anynpu.tasks.matrix import draw
from anynpu.tasks.model import Model
from anynpu.tasks.space import Space
from anynpu.tasks.text import TextInput
from anynpu.tensors import Quantization, TensorSpec

for _package in ("PIL", "ftfy", "regex", "tokenizers"):
    pytest.importorskip(_package)

SPACE = Space("test", 3)
IMAGE = Card("embed-image", preprocess=Preprocess(resize="shortest-crop"), space=SPACE)
TEXT = Card("embed-text", text=TextInput("clip", "v.txt", maker.SIZE), space=SPACE)
PICTURES = [(f"p{n}", Picture(np.full((5, 7, 3), 40 * n, np.uint8) + np.uint8([0, 9, 30]))) for n in range(5)]


def image_model(batch=2, card=IMAGE, change=lambda rows: rows, quantization=None, shape=None):
    """A model whose vector is the mean of each channel."""
    spec = TensorSpec("image", (batch, 4, 4, 3), layout="NHWC")
    dtype = "float32" if quantization is None else "int8"
    out = TensorSpec("vector", shape or (batch, 3), dtype, quantization=quantization)

    def run(inputs):
        spec.check(inputs["image"])
        return {"vector": out.to_stored(change(inputs["image"].mean((1, 2))))}

    return Model(card, {}, (spec,), (out,), run)


def text_model(tmp_path, batch=2, spec=None):
    """A model whose vector counts tokens."""
    spec = spec or TensorSpec("tokens", (batch, 8), "int64")

    def run(inputs):
        spec.check(inputs["tokens"])
        rows = inputs["tokens"]
        return {"v": np.stack([(rows > 0).sum(1), rows[:, 1] % 97, rows[:, 2] % 89], 1).astype(np.float32)}

    files = {"v.txt": maker.write_merges(tmp_path / "v.txt")}
    return Model(TEXT, files, (spec,), (TensorSpec("v", (batch, 3)),), run)


@pytest.mark.parametrize("batch", [1, 2, 3, 8])
def test_the_batch_of_the_model_does_not_change_the_vectors(batch):
    vectors = ImageTower(image_model(batch)).embed(iter(PICTURES))
    assert vectors.shape == (5, 3) and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert np.allclose(vectors, ImageTower(image_model(1)).embed(PICTURES))


def test_stored_outputs_become_real_ones():
    scale = Quantization((0.01,), (-7,))
    found = ImageTower(image_model(quantization=scale)).embed(PICTURES)
    assert np.abs(found - ImageTower(image_model()).embed(PICTURES)).max() < 0.05


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_texts_become_rows_in_order(tmp_path, batch):
    tower = TextTower(text_model(tmp_path, batch))
    texts = ["the cat", "", "a dog sat on the mat", "the cat", "!!!"]
    vectors = tower.embed(texts)
    assert vectors.shape == (5, 3) and np.array_equal(vectors[0], vectors[3])
    assert all(np.allclose(vectors[n], tower.embed([text])[0]) for n, text in enumerate(texts))


@pytest.mark.parametrize("value, words", [(np.nan, "p3: .*NaN"), (np.inf, "p3: .*NaN"), (0.0, "p3: .*zeros")])
def test_a_vector_that_means_nothing_names_its_picture(value, words):
    third = iter(range(9))
    model = image_model(1, change=lambda rows: rows * value if next(third) == 3 else rows)
    with pytest.raises(AccuracyError, match=words):
        ImageTower(model).embed(PICTURES)


def test_a_model_of_another_width_is_refused_before_it_runs():
    with pytest.raises(ConfigError, match="3 numbers a vector, the model gives 2"):
        ImageTower(image_model(shape=(2, 2)))


@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec("tokens", (1, 8), "float32"),
        TensorSpec("tokens", (1, 8, 1), "int32"),
        TensorSpec("tokens", (1, 2), "int32"),
        TensorSpec("tokens", (1, 8), "int8", quantization=Quantization((1.0,), (0,))),
        TensorSpec("tokens", (1, 8), "uint8"),
    ],
)
def test_inputs_that_tokens_do_not_fit_are_refused(tmp_path, spec):
    with pytest.raises(ConfigError, match=r"\[batch, 77\]|too small"):
        TextTower(text_model(tmp_path, 1, spec)).embed(["a"])


def test_zero_shot_is_the_softmax_of_scaled_cosines(tmp_path):
    images, texts = ImageTower(image_model()), TextTower(text_model(tmp_path))
    judge = ZeroShot.of(images, texts, ["cat", "dog", "mat"], "the {} sat")
    found = judge(PICTURES)
    logits = 100 * images.embed(PICTURES).astype(float) @ texts.embed(["the cat sat", "the dog sat", "the mat sat"]).T
    wanted = np.exp(logits - logits.max(1, keepdims=True))
    assert np.allclose(found, wanted / wanted.sum(1, keepdims=True), atol=1e-4)
    with pytest.raises(ConfigError, match="template"):
        ZeroShot.of(images, texts, ["cat", "dog"], "no place")


def test_a_classifier_answers_by_the_labels_of_its_card():
    card = Card("classify", preprocess=Preprocess(resize="shortest-crop"), labels=("red", "green", "blue"))
    judge = Classifier(image_model(card=card))
    rows = judge(PICTURES)
    assert rows.shape == (5, 3) and np.allclose(rows.sum(1), 1) and (rows.argmax(1) == 2).all()
    assert Classifier(image_model(card=Card("classify", preprocess=card.preprocess))).labels == ("0", "1", "2")
    with pytest.raises(ConfigError, match="2 labels, the model has 3 classes"):
        _ = Classifier(image_model(card=Card("classify", preprocess=card.preprocess, labels=("a", "b")))).labels
    with pytest.raises(AccuracyError, match=r"p0: .*NaN"):
        Classifier(image_model(card=card, change=lambda rows: rows * np.nan))(PICTURES)


def test_the_matrix_is_drawn(tmp_path):
    from PIL import Image

    values = np.array([[1.0, 0.2], [0.2, 1.0]])
    drawn = draw(tmp_path / "m.png", ["a", "b<&>"], ["a", "x" * 99], values)
    text = draw(tmp_path / "m.svg", ["a", "b<&>\x00"], ["a", "x" * 99], values).decode()
    with Image.open(io.BytesIO(drawn)) as image:
        colours = image.convert("RGB").getcolors(1 << 20)
    assert {(178, 62, 28), (33, 76, 132)} <= {colour for _, colour in colours}
    assert "b&lt;&amp;&gt;" in text and text.count(">0.200<") == 2 and "\x00" not in text
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        draw(tmp_path / "m.gif", ["a"], ["a"], values[:1, :1])
    with pytest.raises(ConfigError, match="at most"):
        draw(tmp_path / "m.png", ["a"] * 300, ["a"], np.ones((300, 1)))
