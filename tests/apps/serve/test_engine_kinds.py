"""Texts, pictures and tensors through the engine, beside the task code that the command line uses."""

from __future__ import annotations

import asyncio
import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from engine_models import running, settings_of, sync
from text_model import LENGTH, WIDTH, expected, text_artifact

from anynpu.apps.serve.base import FleetSettings, Limits, Options, Request, TooLarge
from anynpu.artifact import Artifact, Manifest, Step, seal
from anynpu.errors import ConfigError, IntegrityError
from anynpu.schema import to_dict
from anynpu.tasks.card import Card
from anynpu.tasks.detect import Threshold
from anynpu.tasks.images import Preprocess
from anynpu.tasks.space import Space
from anynpu.tensors import TensorSpec
from anynpu.testing import noe
from anynpu.testing.models import NOW

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("tokenizers")
TEXTS = ("a cat sits", "the red bus runs in the rain", "dog", "blue or red", "not the mat and the dog or the cat")
SIZE = 32


def picture(value, size=(40, 30), format="PNG") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, value).save(stream, format)
    return stream.getvalue()


def ask(settings, *requests, fleet_settings=None, **given):
    """Answers to several requests that were sent at once, and what is said of the model."""

    async def main():
        limits = fleet_settings or FleetSettings(canary_s=0)
        async with running(settings, settings=limits, **given) as fleet:
            model = fleet.models["m"]
            outcomes = await asyncio.gather(*(model.answer(r) for r in requests), return_exceptions=True)
            return outcomes, model.info()

    return sync(main())


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return text_artifact(tmp_path_factory.mktemp("text") / "artifact")


@pytest.mark.parametrize("most_batch", [1, 32], ids=["as built", "any number of rows"])
def test_texts_become_the_vectors_of_their_words(text, most_batch):
    requests = [Request((line,)) for line in TEXTS] + [Request(TEXTS)]
    answers, info = ask(settings_of(text, most_batch=most_batch), *requests)
    for line, answer in zip(TEXTS, answers, strict=False):
        assert np.allclose(answer.vectors, expected(line)[None], atol=1e-5)
        assert answer.tokens == len(line.split()) + 2 and answer.truncated == 0
    assert np.allclose(answers[-1].vectors, [expected(line) for line in TEXTS], atol=1e-5)
    assert (info.kind, info.width, info.length, info.batch) == ("embed-text", WIDTH, LENGTH, most_batch)
    batches = {answer.batch for answer in answers}
    assert batches == {1} if most_batch == 1 else max(batches) > 1, "what waited ran together"


def test_tokens_are_taken_with_and_without_their_marks_and_texts_are_cut_or_refused(text):
    words = [6, 7, 9]  # cat, dog ... of the tiny vocabulary
    long = " ".join(["cat"] * 40)
    requests = [
        Request((tuple(words),)),
        Request(((2, *words, 3),)),
        Request(((99,),)),
        Request((long,)),
        Request((long,), Options(truncate=False)),
        Request(("x" * 101,)),
        Request((b"picture",)),
        Request((" ",)),
        Request(("a cat",), Options(normalize=False)),
    ]
    fleet_settings = FleetSettings(limits=Limits(characters=300), canary_s=0)
    requests[5] = Request(("x" * 301,))
    answers, _ = ask(settings_of(text), *requests, fleet_settings=fleet_settings)
    assert np.array_equal(answers[0].vectors, answers[1].vectors) and answers[0].tokens == 5
    assert isinstance(answers[2], ConfigError) and "no token 99" in answers[2].message
    assert answers[3].truncated == 1 and answers[3].tokens == LENGTH
    assert isinstance(answers[4], TooLarge) and "42 tokens" in answers[4].message
    assert isinstance(answers[5], TooLarge) and "301 characters" in answers[5].message
    assert isinstance(answers[6], ConfigError)
    assert answers[7].tokens == 2
    assert np.linalg.norm(answers[0].vectors) == pytest.approx(1, abs=1e-5)
    assert np.linalg.norm(answers[8].vectors) != pytest.approx(1, abs=1e-3)


def test_counting_tokens_runs_nothing(text):
    async def main():
        async with running(settings_of(text)) as fleet:
            return await fleet.models["m"].tokens((*TEXTS, (6, 7)))

    assert sync(main()) == (*(len(line.split()) + 2 for line in TEXTS), 4)


def pooling_net(folder, card, classes=False) -> Artifact:
    """The mean of every channel, times ten: vectors or logits."""
    from onnx import TensorProto, helper, numpy_helper

    from anynpu.testing.models import save

    folder.mkdir()
    nodes = [
        helper.make_node("GlobalAveragePool", ["images"], ["means"], "pool"),
        helper.make_node("Flatten", ["means"], ["flat"], "flat"),
        helper.make_node("Mul", ["flat", "ten"], ["out"], "ten"),
    ]
    graph = helper.make_graph(
        nodes,
        "pool",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 3])],
        [numpy_helper.from_array(np.float32(10), "ten")],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "model.onnx")
    inputs = (TensorSpec("images", (1, 3, SIZE, SIZE), layout="NCHW", channels="RGB"),)
    manifest = Manifest("onnx", "model.onnx", inputs, (TensorSpec("out", (1, 3)),), task=to_dict(card))
    return seal(folder, manifest, Step("import"), NOW)


def test_pictures_become_vectors_and_classes(tmp_path):
    preprocess = Preprocess(resize="stretch")
    vectors = pooling_net(tmp_path / "v", Card("embed-image", preprocess=preprocess, space=Space("rgb", 3)))
    classes = pooling_net(tmp_path / "c", Card("classify", preprocess=preprocess, labels=("red", "green", "blue")))
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0)]
    requests = [Request((picture(colour),)) for colour in colours] + [Request(tuple(map(picture, colours)))]
    answers, info = ask(settings_of(vectors), *requests)
    wanted = np.array(colours) / np.linalg.norm(colours, axis=1, keepdims=True)
    assert np.allclose(answers[-1].vectors, wanted, atol=1e-3) and info.width == 3
    assert all(np.allclose(a.vectors[0], row, atol=1e-3) for a, row in zip(answers, wanted, strict=False))
    assert answers[0].sizes == ((40, 30),)
    answers, info = ask(settings_of(classes), *requests[:3], Request((picture((9, 9, 9)),), Options(top=0)))
    assert [answer.classes[0][0].label for answer in answers[:3]] == ["red", "green", "blue"] == list(info.labels)
    assert len(answers[3].classes[0]) == 3 and sum(c.score for c in answers[3].classes[0]) == pytest.approx(1)


def test_pictures_that_are_damaged_or_too_large_are_refused(tmp_path):
    card = Card("classify", preprocess=Preprocess(resize="stretch"))
    artifact = pooling_net(tmp_path / "c", card)
    requests = [
        Request((b"not a picture",)),
        Request((picture((1, 2, 3), (2000, 2000)),)),
        Request((b"x" * 200_001,)),
        Request(("a text",)),
        Request((picture((1, 2, 3), format="JPEG"),)),
    ]
    limits = Limits(pixels=1_000_000, image_bytes=200_000)
    answers, _ = ask(settings_of(artifact), *requests, fleet_settings=FleetSettings(limits=limits, canary_s=0))
    kinds = [type(answer).__name__ for answer in answers]
    assert kinds == ["IntegrityError", "TooLarge", "TooLarge", "ConfigError", "Answer"]
    assert isinstance(answers[0], IntegrityError) and "not a readable image" in answers[0].message


def test_boxes_are_those_of_the_command_line(tmp_path):
    from blocks import artifact as blocks

    made = blocks(tmp_path / "blocks")
    image = Image.new("RGB", (64, 64))
    image.paste((255, 0, 0), (8, 8, 16, 16))
    image.paste((0, 0, 255), (40, 40, 48, 48))
    stream = io.BytesIO()
    image.save(stream, "PNG")
    path = made if isinstance(made, Path) else made.path
    requests = [
        Request((stream.getvalue(),)),
        Request((stream.getvalue(),), Options(threshold=Threshold(0.25, most=1))),
    ]
    answers, _ = ask(settings_of(path), *requests)
    found = answers[0].detections[0]
    assert sorted(map(int, found.classes)) == [0, 1] and len(answers[1].detections[0]) == 1
    assert answers[0].sizes == ((64, 64),)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (package gcc)")
def test_a_text_tower_at_several_lengths_on_the_npu(tmp_path):
    """Static shapes: every text runs on the shortest model that holds it, and raw tensors still fit the first."""
    short, long = (TensorSpec("tokens", (1, length), "int32") for length in (8, 77))
    tokenizer = tmp_path / "bpe.txt"
    import clip_vocabulary_maker as maker

    maker.write_merges(tokenizer)
    card = tmp_path / "card.toml"
    card.write_text(
        'kind = "embed-text"\n[space]\nname = "s"\nwidth = 512\n[text]\nform = "clip"\ntokenizer = "bpe.txt"\n'
        f"vocabulary = {len(maker.TOKENS)}\n"
    )
    library = noe.build_fake(tmp_path)
    models = [noe.model(tmp_path / spec.name / str(spec.shape[1]), [spec], [noe.EMBEDDING], "clip-text")
              for spec in (short, long)]  # fmt: skip
    with noe.switches(library):
        settings = settings_of(*models, task=str(card))
        answers, info = ask(settings, Request(("a cat",)), Request(("a " * 30,)), Request(("a cat", "a " * 30)))
    assert info.length == 77 and len(info.artifacts) == 2
    assert answers[0].tokens < 8 < answers[1].tokens
    assert np.array_equal(answers[2].vectors, np.concatenate([answers[0].vectors, answers[1].vectors]))
