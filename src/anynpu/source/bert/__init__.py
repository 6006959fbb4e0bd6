"""BERT encoders that make sentence vectors, built so that an NPU can take them: static shapes, a mild mask, one output.

    anynpu build -m anynpu.source.bert:minilm --ckpt model.safetensors --shape input_ids=1,128 \
        --shape attention_mask=1,128 --dtype input_ids=int64 --dtype attention_mask=int64 ...

The names of the parameters are those of published checkpoints, so these load as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anynpu.source.bert.net import SentenceEncoder


def minilm() -> SentenceEncoder:
    """Returns all-MiniLM-L6-v2 without its weights."""
    return encoder(layers=6, hidden=384, heads=12, inner=1536)


def encoder(
    layers: int,
    hidden: int,
    heads: int,
    inner: int,
    vocabulary: int = 30522,
    positions: int = 512,
    position_ids: bool = True,
    pooler: bool = True,
) -> SentenceEncoder:
    """Returns an encoder of these sizes. Checkpoints differ in what else they hold: `position_ids` and
    `pooler` say whether those are in yours; neither is part of the model."""
    from anynpu.errors import ConfigError
    from anynpu.source.bert.net import SentenceEncoder

    if min(layers, hidden, heads, inner, vocabulary, positions) < 1 or hidden % heads:
        raise ConfigError(f"no encoder has {layers} layers of {heads} heads in {hidden} channels")
    return SentenceEncoder(layers, hidden, heads, inner, vocabulary, positions, position_ids, pooler)
