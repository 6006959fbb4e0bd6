"""all-MiniLM-L6-v2 as published, against a plain implementation."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.models
FOLDER = Path(os.environ.get("ANYNPU_MODELS_DIR", Path(__file__).parents[3] / ".models"))
TEXTS = ("A cat sits on the mat", "a feline is resting on a rug", "stock prices fell sharply on Tuesday")


@pytest.fixture(scope="module")
def files():
    needed = [FOLDER / name for name in ("minilm.safetensors", "minilm-tokenizer.json")]
    if not all(file.is_file() for file in needed):
        pytest.skip("scripts/models.sh fetches the model")
    pytest.importorskip("torch")
    return needed


def plain(weights, ids):
    """BERT in numpy, one text without padding."""
    w = weights
    dense = lambda x, name: x @ w[f"{name}.weight"].T + w[f"{name}.bias"]  # noqa: E731

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * w[f"{name}.weight"] + w[f"{name}.bias"]

    from math import erf

    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for layer in range(6):
        at = f"encoder.layer.{layer}"
        q, k, v = (
            dense(x, f"{at}.attention.self.{n}").reshape(len(ids), 12, 32).transpose(1, 0, 2)
            for n in ("query", "key", "value")
        )
        scores = np.exp(q @ k.transpose(0, 2, 1) / np.sqrt(32))
        mixed = (scores / scores.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(len(ids), 384)
        x = norm(x + dense(mixed, f"{at}.attention.output.dense"), f"{at}.attention.output.LayerNorm")
        h = dense(x, f"{at}.intermediate.dense")
        h = 0.5 * h * (1 + np.vectorize(erf)(h / np.sqrt(2)))
        x = norm(x + dense(h, f"{at}.output.dense"), f"{at}.output.LayerNorm")
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


def test_vectors_equal_a_plain_implementation(cli, tmp_path, files):
    import json

    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    checkpoint, tokenizer = files
    shapes = [p for n in ("input_ids", "attention_mask") for p in ("--shape", f"{n}=1,32", "--dtype", f"{n}=int64")]
    done = cli(
        *("build", "-m", "anynpu.source.bert:minilm", "--ckpt", str(checkpoint), "--task", "minilm"),
        *("--tokenizer", str(tokenizer), "-t", "cpu", "-O", "activations=float32", "--data", "random:8"),
        *("-o", "out", *shapes),
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    texts = [part for text in TEXTS for part in ("--text", text)]
    done = cli("embed", "out/cpu", *texts, "-f", "json", timeout=300)
    rows = np.asarray([item["vector"] for item in json.loads(done.stdout)["items"]])
    weights = {name: value.astype(np.float64) for name, value in load_file(checkpoint).items()}
    encode = Tokenizer.from_file(str(tokenizer))
    encode.no_padding()
    expected = np.stack([plain(weights, encode.encode(text).ids) for text in TEXTS])
    assert np.allclose(rows, expected, atol=1e-5)
    assert rows[0] @ rows[1] > 0.5 > 0.3 > rows[0] @ rows[2]
