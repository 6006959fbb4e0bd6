"""A sentence encoder from PyTorch to vectors, through the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
from tiny_bert import WORDS, encoder, write_tokenizer


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    import torch

    folder = tmp_path_factory.mktemp("bert")
    write_tokenizer(folder / "tokenizer.json")
    torch.save(encoder().state_dict(), folder / "net.pth")
    words = np.random.default_rng(0)
    lines = [" ".join(words.choice(WORDS, words.integers(1, 9))) for _ in range(40)]
    (folder / "texts.txt").write_text("\n".join(lines) + "\n")
    (folder / "card.toml").write_text(
        'kind = "embed-text"\n[text]\nform = "bert"\ntokenizer = "tokenizer.json"\n[space]\nname = "tiny"\nwidth = 16\n'
    )
    return folder


def build(cli, place, length, out):
    sizes = ("layers=2", "hidden=16", "heads=2", "inner=32", "vocabulary=24", "positions=32")
    arguments = [part for size in sizes for part in ("--arg", size)]
    for name in ("input_ids", "attention_mask"):
        arguments += ["--shape", f"{name}=1,{length}", "--dtype", f"{name}=int64"]
    return cli(
        *("build", "-m", "anynpu.source.bert:encoder", "--ckpt", "net.pth", "-t", "cpu", "--task", "card.toml"),
        *("--data", "texts.txt", "-o", out, "-f", "json", *arguments),
        cwd=place,
    )


def reference(place, texts):
    """The encoder in PyTorch, one text at a time and without padding."""
    import torch
    from tokenizers import Tokenizer

    net, tokenizer = encoder().eval(), Tokenizer.from_file(str(place / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    rows = []
    for text in texts:
        ids = torch.tensor([tokenizer.encode(text).ids])
        with torch.no_grad():
            rows.append(net(ids, torch.ones_like(ids))[0].numpy())
    found = np.stack(rows)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def test_texts_calibrate_a_build_and_become_vectors(cli, place):
    done = build(cli, place, 16, "long")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["data"]["calibration"]["samples"] == 32 and not record["data"]["calibration"]["random"]
    assert build(cli, place, 6, "short").returncode == 0
    texts = ["the red cat", "a dog runs in the rain and not on the mat", "blue"]
    arguments = [part for text in texts for part in ("--text", text)]
    done = cli("embed", "short/float", "--bucket", "long/float", *arguments, "-f", "json", cwd=place)
    assert done.returncode == 0, done.stderr
    rows = np.asarray([item["vector"] for item in json.loads(done.stdout)["items"]])
    # Padding to 6 and 16 tokens, and a mask of -30 instead of minus infinity, change nothing that counts.
    assert np.allclose(rows, reference(place, texts), atol=2e-5)
    done = cli("embed", "long/cpu", *arguments, "-f", "json", cwd=place)
    quantised = np.asarray([item["vector"] for item in json.loads(done.stdout)["items"]])
    assert np.all(np.sum(quantised * rows, axis=1) > 0.95)


def test_texts_without_a_task_are_refused(cli, place):
    done = cli("build", "-m", "zoo:hello", "-t", "cpu", "--data", "texts.txt", "-o", "x", cwd=place)
    assert done.returncode == 2 and "needs a task that reads text" in done.stderr
