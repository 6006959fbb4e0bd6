"""The encoder itself."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

MASKED = -30.0
"""What is added to the score of a padding token. exp(-30) is nothing, and unlike -1e9 it leaves eight bits a scale in
which the other scores still differ."""


class SentenceEncoder(nn.Module):
    """Tokens to one vector: the mean of the last layer over the tokens that are not padding."""

    def __init__(
        self,
        layers: int,
        hidden: int,
        heads: int,
        inner: int,
        vocabulary: int,
        positions: int,
        position_ids: bool,
        pooler: bool,
    ) -> None:
        super().__init__()
        self.embeddings = Embeddings(vocabulary, positions, hidden, position_ids)
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(Layer(hidden, heads, inner) for _ in range(layers))})
        if pooler:
            self.pooler = nn.ModuleDict({"dense": nn.Linear(hidden, hidden)})

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        present = attention_mask.to(torch.float32)
        mask = (present[:, None, None, :] - 1.0) * -MASKED
        states = self.embeddings(input_ids)
        layers = self.encoder["layer"]
        assert isinstance(layers, nn.ModuleList)
        for layer in layers:
            states = layer(states, mask)
        total: Tensor = (states * present[:, :, None]).sum(1)
        count: Tensor = present.sum(1, keepdim=True).clamp(min=1.0)
        return total / count


class Embeddings(nn.Module):
    """Words and positions to vectors; every sentence is the first of its pair."""

    def __init__(self, vocabulary: int, positions: int, hidden: int, position_ids: bool) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, hidden)
        self.position_embeddings = nn.Embedding(positions, hidden)
        self.token_type_embeddings = nn.Embedding(2, hidden)
        self.LayerNorm = nn.LayerNorm(hidden, eps=1e-12)
        if position_ids:
            self.register_buffer("position_ids", torch.arange(positions)[None])

    def forward(self, tokens: Tensor) -> Tensor:
        places = self.position_embeddings.weight[: tokens.shape[1]] + self.token_type_embeddings.weight[0]
        normalized: Tensor = self.LayerNorm(self.word_embeddings(tokens) + places)
        return normalized


class Layer(nn.Module):
    """Attention and two dense layers, each added to what went in."""

    def __init__(self, hidden: int, heads: int, inner: int) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(hidden, inner)})
        self.output = Added(inner, hidden)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        attended = self.attention(states, mask)
        added: Tensor = self.output(nn.functional.gelu(self.intermediate["dense"](attended)), attended)
        return added


class Attention(nn.Module):
    """Every token looks at every other that is not padding."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.self = nn.ModuleDict({name: nn.Linear(hidden, hidden) for name in ("query", "key", "value")})
        self.output = Added(hidden, hidden)
        self.heads = heads

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        batch, length, hidden = states.shape
        split = (batch, length, self.heads, hidden // self.heads)
        query, key, value = (self.self[n](states).reshape(split).transpose(1, 2) for n in ("query", "key", "value"))
        scores = query @ key.transpose(2, 3) / math.sqrt(hidden // self.heads) + mask
        mixed = (torch.softmax(scores, -1) @ value).transpose(1, 2).reshape(batch, length, hidden)
        added: Tensor = self.output(mixed, states)
        return added


class Added(nn.Module):
    """A dense layer whose result is added to what went past it."""

    def __init__(self, inner: int, hidden: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inner, hidden)
        self.LayerNorm = nn.LayerNorm(hidden, eps=1e-12)

    def forward(self, states: Tensor, past: Tensor) -> Tensor:
        normalized: Tensor = self.LayerNorm(self.dense(states) + past)
        return normalized
