"""The two towers of CLIP with random weights: the true architecture at any size, ViT-B/32 by default."""

from __future__ import annotations

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, mask: torch.Tensor | None) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mask: torch.Tensor | None
        self.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5
        if self.mask is not None:
            scores = scores + self.mask
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width))


class QuickGelu(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(1.702 * x)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, mask: torch.Tensor | None) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, mask)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), QuickGelu(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class TextTower(nn.Module):
    """(batch, length) tokens to (batch, embed) vectors: the state at the end token, which has the largest number."""

    def __init__(
        self,
        width: int = 512,
        layers: int = 12,
        heads: int = 8,
        embed: int = 512,
        vocabulary: int = 49408,
        length: int = 77,
        spoil: float = 1.0,
    ) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        # A causal mask of large negative numbers: -inf has no place in eight bits.
        mask = torch.full((length, length), -10000.0).triu(1)
        self.blocks = nn.Sequential(*(Block(width, heads, mask) for _ in range(layers)))
        self.last = nn.LayerNorm(width)
        self.project = nn.Parameter(width**-0.5 * torch.randn(width, embed))
        self.spoil = spoil

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.last(self.blocks(self.tokens(text) + self.positions))
        end = nn.functional.one_hot(text.argmax(-1), text.shape[1]).to(x.dtype)
        return (end.unsqueeze(1) @ x).squeeze(1) @ self.project * self.spoil


class ImageTower(nn.Module):
    """(batch, 3, size, size) pictures to (batch, embed) vectors."""

    def __init__(
        self, width: int = 768, layers: int = 12, heads: int = 12, embed: int = 512, size: int = 224, patch: int = 32
    ) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.patches = nn.Conv2d(3, width, patch, patch, bias=False)
        self.token = nn.Parameter(width**-0.5 * torch.randn(1, 1, width))
        self.positions = nn.Parameter(width**-0.5 * torch.randn((size // patch) ** 2 + 1, width))
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.blocks = nn.Sequential(*(Block(width, heads, None) for _ in range(layers)))
        self.project = nn.Parameter(width**-0.5 * torch.randn(width, embed))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.after(self.blocks(self.before(x))[:, 0]) @ self.project
