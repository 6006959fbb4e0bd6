"""Nets of the third sample, written before any rule was: one function each, as in `bench/reach_nets.py`.

They were written in one go, to see what a list by somebody else would do, and none was changed after its first build.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from reach_models import images, waves, words
from reach_nets import Made, Written, block, noise, rows
from torch import nn

NETS: dict[str, Callable[[], Made]] = {}


def net(make: Callable[[], Made]) -> Callable[[], Made]:
    """Lists a net by the name of its function."""
    NETS[make.__name__] = make
    return make


class SsdHead(nn.Module):
    """Two feature maps, a class and a box head on each, and boxes decoded against fixed priors."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(block(3, 12, 2), block(12, 16, 2))
        self.down = block(16, 24, 2)
        self.classes = nn.ModuleList([nn.Conv2d(16, 3 * 4, 3, padding=1), nn.Conv2d(24, 3 * 4, 3, padding=1)])
        self.boxes = nn.ModuleList([nn.Conv2d(16, 3 * 4, 3, padding=1), nn.Conv2d(24, 3 * 4, 3, padding=1)])
        centres = []
        for side in (12, 6):
            y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
            xy = (torch.stack([x, y], -1).reshape(-1, 1, 2) + 0.5) / side
            sizes = torch.tensor([[0.1, 0.1], [0.2, 0.1], [0.1, 0.2]]) * 12 / side
            centres.append(torch.cat([xy.expand(-1, 3, 2), sizes.expand(side * side, 3, 2)], -1).reshape(-1, 4))
        self.register_buffer("priors", torch.cat(centres))

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        small = self.stem(image)
        features, scores, boxes = [small, self.down(small)], [], []
        for feature, head, box in zip(features, self.classes, self.boxes, strict=True):
            scores.append(head(feature).permute(0, 2, 3, 1).reshape(image.size(0), -1, 4))
            boxes.append(box(feature).permute(0, 2, 3, 1).reshape(image.size(0), -1, 4))
        raw = torch.cat(boxes, 1)
        centre = self.priors[:, :2] + raw[..., :2] * 0.1 * self.priors[:, 2:]
        size = self.priors[:, 2:] * torch.exp(raw[..., 2:] * 0.2)
        return torch.cat(scores, 1).softmax(-1), torch.cat([centre - size / 2, centre + size / 2], -1)


@net
def ssd_anchors() -> Made:
    return SsdHead(), {"image": images(48)}


@net
def centre_net_peaks() -> Made:
    def body(m: Any, x: Any) -> Any:
        heat = torch.sigmoid(m.heat(m.net(x)))
        kept = heat * (F.max_pool2d(heat, 3, 1, 1) == heat).float()
        scores, places = kept.flatten(1).topk(10)
        return scores, places.div(144, rounding_mode="floor"), places % 12

    return Written(body, net=nn.Sequential(block(3, 8, 2), block(8, 8, 2)), heat=nn.Conv2d(8, 2, 1)), {"x": images(48)}


@net
def fcos_decode() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = m.net(x)
        ltrb = F.relu(m.box(y)) * 8
        sy, sx = torch.meshgrid(torch.arange(4, 48, 8.0), torch.arange(4, 48, 8.0), indexing="ij")
        box = torch.stack([sx - ltrb[:, 0], sy - ltrb[:, 1], sx + ltrb[:, 2], sy + ltrb[:, 3]], 1).clamp(0, 48)
        score = (m.score(y).sigmoid() * m.centre(y).sigmoid()).sqrt()
        return box.flatten(2).mT, score.flatten(2).max(1).values

    inner = nn.Sequential(block(3, 8, 2), block(8, 12, 2), block(12, 16, 2))
    heads = {"box": nn.Conv2d(16, 4, 1), "score": nn.Conv2d(16, 5, 1), "centre": nn.Conv2d(16, 1, 1)}
    return Written(body, net=inner, **heads), {"x": images(48)}


@net
def rnnt_joint() -> Made:
    def body(m: Any, sound: Any, word: Any) -> Any:
        joined = torch.tanh(m.sound(sound).unsqueeze(2) + m.word(word).unsqueeze(1))
        return F.log_softmax(m.out(joined), -1)

    parts = {"sound": nn.Linear(24, 32), "word": nn.Linear(16, 32), "out": nn.Linear(32, 29)}
    return Written(body, **parts), {"sound": rows(10, 24), "word": noise(4, 16)}


@net
def rnnt_predictor_step() -> Made:
    def body(m: Any, token: Any, h: Any, c: Any) -> Any:
        y, (h, c) = m.rnn(m.table(token), (h.transpose(0, 1), c.transpose(0, 1)))
        return m.out(y), h.transpose(0, 1), c.transpose(0, 1)

    parts = {"table": nn.Embedding(50, 12), "rnn": nn.LSTM(12, 16, 2, batch_first=True), "out": nn.Linear(16, 20)}
    return Written(body, **parts), {"token": words(1) % 50, "h": noise(2, 16, scale=0.3), "c": noise(2, 16, scale=0.3)}


class AttentionGate(nn.Module):
    def __init__(self, gate: int, skip: int, inner: int) -> None:
        super().__init__()
        self.gate, self.skip = nn.Conv2d(gate, inner, 1), nn.Conv2d(skip, inner, 1, stride=2)
        self.psi = nn.Conv2d(inner, 1, 1)

    def forward(self, gate: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        mask = torch.sigmoid(self.psi(F.relu(self.gate(gate) + self.skip(skip))))
        return skip * F.interpolate(mask, size=skip.shape[-2:], mode="bilinear", align_corners=True)


class AttentionUnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = block(1, 8), block(8, 16), block(16, 24)
        self.gate = AttentionGate(24, 16, 8)
        self.up = nn.ConvTranspose2d(24, 16, 2, 2)
        self.last = nn.Sequential(block(32, 16), nn.Upsample(scale_factor=2), nn.Conv2d(16, 2, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.one(x)
        two = self.two(F.max_pool2d(one, 2))
        three = self.three(F.max_pool2d(two, 2))
        return self.last(torch.cat([self.up(three), self.gate(three, two)], 1)).softmax(1)


@net
def attention_unet() -> Made:
    return AttentionUnet(), {"x": images(32, 1)}


@net
def graph_attention() -> Made:
    def body(m: Any, x: Any, links: Any) -> Any:
        y = m.lin(x).view(x.size(0), 12, 2, 8)
        left, right = (y * m.a.weight).sum(-1), (y * m.b.weight).sum(-1)
        scores = F.leaky_relu(left.unsqueeze(2) + right.unsqueeze(1), 0.2)
        scores = scores.masked_fill(links.unsqueeze(-1) < 0.5, float("-1e9")).softmax(2)
        return F.elu(torch.einsum("bijh,bjhd->bihd", scores, y).flatten(2))

    links = (np.random.default_rng(5).random((32, 12, 12)) > 0.6).astype(np.float32) + np.eye(12, dtype=np.float32)
    parts = {"lin": nn.Linear(6, 16), "a": nn.Embedding(2, 8), "b": nn.Embedding(2, 8)}
    return Written(body, **parts), {"x": noise(12, 6), "links": links.clip(0, 1)}


@net
def message_passing() -> Made:
    def body(m: Any, x: Any) -> Any:
        source, target = torch.tensor([0, 1, 2, 3, 4, 5, 1, 3]), torch.tensor([1, 2, 3, 4, 5, 0, 4, 0])
        for _ in range(2):
            message = m.edge(torch.cat([x[:, source], x[:, target]], -1)).relu()
            x = m.node(torch.cat([x, torch.zeros_like(x).index_add(1, target, message)], -1))
        return x.amax(1)

    return Written(body, edge=nn.Linear(16, 8), node=nn.Linear(16, 8)), {"x": noise(6, 8)}


class DiagonalSsm(nn.Module):
    """A state space layer in the form of S4D: the kernel is made of exponentials, the scan is a loop."""

    def __init__(self, width: int, states: int) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.log(torch.rand(width, states) * 0.5 + 0.1))
        self.b, self.c = nn.Parameter(torch.randn(width, states)), nn.Parameter(torch.randn(width, states))
        self.skip = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        decay = torch.exp(-torch.exp(self.rate))
        state = x.new_zeros(x.size(0), *self.b.shape)
        seen = []
        for step in range(x.size(1)):
            state = state * decay + self.b * x[:, step, :, None]
            seen.append((state * self.c).sum(-1))
        return torch.stack(seen, 1) + x * self.skip


@net
def state_space() -> Made:
    return nn.Sequential(nn.Linear(4, 8), DiagonalSsm(8, 4), nn.GELU(), nn.Linear(8, 3)), {"x": rows(16, 4)}


class TimeBlock(nn.Module):
    def __init__(self, before: int, after: int, time: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(4, before), nn.Conv2d(before, after, 3, padding=1)
        self.time, self.skip = nn.Linear(time, 2 * after), nn.Conv2d(before, after, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        scale, shift = self.time(F.silu(time))[:, :, None, None].chunk(2, 1)
        return self.skip(x) + self.conv(F.silu(self.norm(x))) * (1 + scale) + shift


class DiffusionStep(nn.Module):
    """One step of a diffusion U-Net: the embedding of time, residual blocks, attention at the bottom."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.stem, self.one = nn.Conv2d(3, 8, 3, padding=1), TimeBlock(8, 8, 32)
        self.down, self.two = nn.Conv2d(8, 16, 3, 2, 1), TimeBlock(16, 16, 32)
        self.attend, self.norm = nn.MultiheadAttention(16, 2, batch_first=True), nn.GroupNorm(4, 16)
        self.up, self.three, self.out = nn.Conv2d(16, 8, 3, padding=1), TimeBlock(16, 8, 32), nn.Conv2d(8, 3, 3, 1, 1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(-math.log(10000) * torch.arange(8) / 8)
        angle = t[:, None].float() * rates[None]
        time = self.time(torch.cat([angle.sin(), angle.cos()], -1))
        one = self.one(self.stem(x), time)
        two = self.two(self.down(one), time)
        flat = self.norm(two).flatten(2).transpose(1, 2)
        two = two + self.attend(flat, flat, flat, need_weights=False)[0].transpose(1, 2).view_as(two)
        up = self.up(F.interpolate(two, scale_factor=2.0, mode="nearest"))
        return self.out(self.three(torch.cat([up, one], 1), time))


@net
def diffusion_step() -> Made:
    times = np.random.default_rng(6).integers(0, 1000, (32,)).astype(np.float32)
    return DiffusionStep(), {"x": images(16), "t": times}


@net
def siren() -> Made:
    class Sine(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(8.0 * x)

    layers = [nn.Linear(2, 32), Sine(), nn.Linear(32, 32), Sine(), nn.Linear(32, 3)]
    return nn.Sequential(*layers), {"xy": np.random.default_rng(0).uniform(-1, 1, (32, 64, 2)).astype(np.float32)}


@net
def perceiver() -> Made:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.latents = nn.Parameter(torch.randn(1, 6, 16))
            self.embed, self.read = nn.Linear(3, 16), nn.MultiheadAttention(16, 2, batch_first=True)
            self.think = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True, activation="gelu")
            self.head = nn.Linear(16, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen = self.embed(x.flatten(2).transpose(1, 2))
            latents = self.latents.expand(x.shape[0], -1, -1)
            latents = latents + self.read(latents, seen, seen)[0]
            return self.head(self.think(latents).mean(dim=1))

    return Reader(), {"x": images(12)}


@net
def mlp_mixer() -> Made:
    class Mix(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.LayerNorm(24), nn.LayerNorm(24)
            self.tokens = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
            self.channels = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.tokens(self.one(x).mT).mT
            return x + self.channels(self.two(x))

    patch = nn.Sequential(nn.Conv2d(3, 24, 8, 8), nn.Flatten(2))
    return Written(lambda m, x: m.head(m.mix(m.patch(x).mT).mean(1)), patch=patch, mix=Mix(), head=nn.Linear(24, 5)), {
        "x": images(32)
    }


@net
def capsules() -> Made:
    def squash(x: Any) -> Any:
        square = (x**2).sum(-1, keepdim=True)
        return square / (1 + square) * x / torch.sqrt(square + 1e-8)

    class Routing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(0.1 * torch.randn(1, 18, 5, 8, 4))

        def forward(self, low: torch.Tensor) -> torch.Tensor:
            votes = (low[:, :, None, None] @ self.weight).squeeze(3)
            b = torch.zeros(low.size(0), 18, 5, 1)
            for step in range(3):
                high = squash((b.softmax(2) * votes).sum(1, keepdim=True))
                if step < 2:
                    b = b + (votes * high).sum(-1, keepdim=True)
            return high.squeeze(1).norm(dim=-1)

    def body(m: Any, x: Any) -> Any:
        return m.route(squash(m.conv(x).view(x.size(0), -1, 8)))

    conv = nn.Sequential(nn.Conv2d(1, 8, 5, 2), nn.ReLU(), nn.Conv2d(8, 16, 5, 2))
    return Written(body, conv=conv, route=Routing()), {"x": images(24, 1)[:, :, :23, :23].copy()}


@net
def deformable_sampling() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = m.stem(x)
        moves = torch.tanh(m.offset(y)).permute(0, 2, 3, 1) * 0.2
        line = torch.linspace(-1, 1, 16)
        grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)[None]
        return m.head(F.grid_sample(y, grid + moves, align_corners=True, padding_mode="border"))

    parts = {"stem": block(3, 8, 2), "offset": nn.Conv2d(8, 2, 3, padding=1), "head": nn.Conv2d(8, 4, 1)}
    return Written(body, **parts), {"x": images(32)}


@net
def coupling_flow() -> Made:
    def body(m: Any, x: Any) -> Any:
        total = torch.zeros(x.shape[0])
        for inner in (m.one, m.two, m.three):
            left, right = x.chunk(2, dim=1)
            scale, shift = inner(left).chunk(2, dim=1)
            scale = torch.tanh(scale)
            x = torch.cat([right * scale.exp() + shift, left], dim=1)
            total = total + scale.sum(1)
        log = -0.5 * (x**2 + math.log(2 * math.pi)).sum(1) + total
        return x, log

    made = {name: nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 8)) for name in ("one", "two", "three")}
    return Written(body, **made), {"x": noise(8)}


@net
def leaky_spikes() -> Made:
    def body(m: Any, x: Any) -> Any:
        level, count = torch.zeros(x.shape[0], 16), torch.zeros(x.shape[0], 16)
        for step in range(x.shape[1]):
            level = 0.9 * level + m.one(x[:, step])
            spike = (level > 0.5).to(x.dtype)
            level = level - spike * 0.5
            count = count + spike
        return m.two(count / x.shape[1])

    return Written(body, one=nn.Linear(8, 16), two=nn.Linear(16, 4)), {"x": rows(10, 8)}


@net
def involution() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = m.stem(x)
        kernel = m.span(F.relu(m.reduce(y))).view(-1, 2, 9, 12, 12).unsqueeze(2)
        near = F.unfold(y, 3, padding=1).view(-1, 2, 4, 9, 12, 12)
        return m.head((kernel * near).sum(3).reshape(-1, 8, 12, 12))

    parts = {"reduce": nn.Conv2d(8, 4, 1), "span": nn.Conv2d(4, 18, 1), "head": nn.Conv2d(8, 3, 1)}
    return Written(body, stem=block(3, 8, 2), **parts), {"x": images(24)}


@net
def fourier_layer() -> Made:
    """A layer of a Fourier neural operator, its transform written as products by matrices for ONNX."""

    def body(m: Any, x: Any) -> Any:
        n = 32
        turns = 2 * math.pi * torch.arange(n)[:, None] * torch.arange(8)[None] / n
        y = m.lift(x)
        real, unreal = y.mT @ turns.cos(), -(y.mT @ turns.sin())
        a, b = m.a.weight.view(8, 8, 8), m.b.weight.view(8, 8, 8)
        r = torch.einsum("bik,iok->bok", real, a) - torch.einsum("bik,iok->bok", unreal, b)
        u = torch.einsum("bik,iok->bok", real, b) + torch.einsum("bik,iok->bok", unreal, a)
        back = (r @ turns.cos().T - u @ turns.sin().T) * (2 / n)
        return m.out(F.gelu(back.mT + m.skip(y)))

    parts = {"lift": nn.Linear(2, 8), "skip": nn.Linear(8, 8), "out": nn.Linear(8, 1)}
    return Written(body, a=nn.Embedding(8, 64), b=nn.Embedding(8, 64), **parts), {"x": rows(32, 2)}


@net
def fft_mixer() -> Made:
    def body(m: Any, x: Any) -> Any:
        mixed = torch.fft.fft2(x, norm="ortho").real
        return m.out(m.norm(x + mixed))

    return Written(body, norm=nn.LayerNorm(16), out=nn.Linear(16, 4)), {"x": rows(8, 16)}


@net
def soft_argmax_keypoints() -> Made:
    def body(m: Any, x: Any) -> Any:
        heat = m.net(x)
        share = F.softmax(heat.view(x.shape[0], 5, -1) * 4, dim=-1).view_as(heat)
        line = torch.linspace(0, 1, heat.shape[-1])
        px, py = (share.sum(2) * line).sum(-1), (share.sum(3) * line).sum(-1)
        return torch.stack((px, py), -1), heat.amax((2, 3))

    return Written(body, net=nn.Sequential(block(3, 8, 2), block(8, 8), nn.Conv2d(8, 5, 1))), {"x": images(32)}


@net
def crnn_ctc() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = m.conv(x).squeeze(2).permute(2, 0, 1)
        y, _ = m.rnn(y)
        return F.log_softmax(m.out(y), dim=2)

    layers = [block(1, 8), nn.MaxPool2d(2), block(8, 16), nn.MaxPool2d((2, 1)), nn.Conv2d(16, 24, (8, 1)), nn.ReLU()]
    parts = {"rnn": nn.GRU(24, 16, bidirectional=True), "out": nn.Linear(32, 37)}
    return Written(body, conv=nn.Sequential(*layers), **parts), {"x": images(64, 1)[:, :, :32].copy()}


@net
def kalman_filter() -> Made:
    def body(m: Any, x: Any) -> Any:
        a = torch.tensor([[1.0, 0.1], [0.0, 1.0]])
        q, spread = 0.01 * torch.eye(2), torch.eye(2).expand(x.size(0), 2, 2)
        state = torch.zeros(x.size(0), 2, 1)
        seen = []
        for step in range(x.size(1)):
            state, spread = a @ state, a @ spread @ a.T + q
            gain = spread[:, :, :1] / (spread[:, :1, :1] + 0.1)
            state = state + gain * (x[:, step].view(-1, 1, 1) - state[:, :1])
            spread = spread - gain @ spread[:, :1]
            seen.append(state.squeeze(-1))
        return torch.stack(seen, 1)

    return Written(body), {"x": np.cumsum(noise(12, scale=0.3), 1).astype(np.float32)}


@net
def low_rank_adapted() -> Made:
    class Adapted(nn.Module):
        def __init__(self, inside: int, outside: int) -> None:
            super().__init__()
            self.base = nn.Linear(inside, outside)
            self.a, self.b = nn.Parameter(torch.randn(4, inside) * 0.1), nn.Parameter(torch.randn(outside, 4) * 0.1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.base(x) + (x @ self.a.T @ self.b.T) * 2.0

    return nn.Sequential(Adapted(12, 32), nn.GELU(), Adapted(32, 12), nn.LayerNorm(12), Adapted(12, 4)), {
        "x": rows(8, 12)
    }


@net
def complex_valued() -> Made:
    def body(m: Any, x: Any) -> Any:
        real, unreal = x[..., 0], x[..., 1]
        a = m.wr(real) - m.wi(unreal), m.wr(unreal) + m.wi(real)
        size = torch.sqrt(a[0] ** 2 + a[1] ** 2 + 1e-6)
        gate = F.relu(size - 0.1) / size
        b = m.vr(a[0] * gate) - m.vi(a[1] * gate), m.vr(a[1] * gate) + m.vi(a[0] * gate)
        return torch.stack(b, -1), torch.atan2(b[1], b[0] + 3)

    parts = {name: nn.Linear(*size, bias=False) for name, size in (("wr", (8, 12)), ("wi", (8, 12)))}
    return Written(body, **parts, vr=nn.Linear(12, 4, bias=False), vi=nn.Linear(12, 4, bias=False)), {"x": noise(8, 2)}


@net
def quaternions() -> Made:
    class Hamilton(nn.Module):
        def __init__(self, inside: int, outside: int) -> None:
            super().__init__()
            self.w = nn.Parameter(0.3 * torch.randn(4, inside, outside))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            r, i, j, k = self.w.unbind(0)
            rows_of = [torch.cat(each, 1) for each in ((r, i, j, k), (-i, r, -k, j), (-j, k, r, -i), (-k, -j, i, r))]
            return x @ torch.cat(rows_of, 0)

    return nn.Sequential(Hamilton(3, 6), nn.Hardtanh(), Hamilton(6, 2), nn.Softsign()), {"x": noise(10, 12)}


@net
def masked_autoencoder() -> Made:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch, self.place = nn.Conv2d(3, 16, 8, 8), nn.Parameter(torch.randn(1, 16, 16) * 0.02)
            self.encode = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
            self.decode = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
            self.hidden, self.out = nn.Parameter(torch.randn(1, 1, 16)), nn.Linear(16, 192)
            order = torch.randperm(16)
            self.register_buffer("kept", order[:6])
            self.register_buffer("back", torch.argsort(order))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.patch(x).flatten(2).transpose(1, 2) + self.place
            y = self.encode(torch.index_select(y, 1, self.kept))
            y = torch.cat([y, self.hidden.repeat(x.shape[0], 10, 1)], 1)
            y = torch.gather(y, 1, self.back[None, :, None].expand(x.shape[0], -1, 16))
            y = self.out(self.decode(y + self.place)).view(-1, 4, 4, 8, 8, 3)
            return torch.einsum("nhwpqc->nchpwq", y).reshape(-1, 3, 32, 32)

    return Masked(), {"x": images(32)}


@net
def dense_experts_top_two() -> Made:
    def body(m: Any, x: Any) -> Any:
        share, which = m.gate(x).softmax(-1).topk(2, -1)
        share = share / share.sum(-1, keepdim=True)
        full = torch.zeros(*x.shape[:-1], 4).scatter(-1, which, share)
        each = torch.stack([expert(x) for expert in m.experts], -2)
        return (full.unsqueeze(-1) * each).sum(-2)

    experts = [nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)) for _ in range(4)]
    return Written(body, gate=nn.Linear(8, 4), experts=nn.ModuleList(experts)), {"x": rows(6, 8)}


@net
def cache_step() -> Made:
    def body(m: Any, word: Any, keys: Any, values: Any, place: Any) -> Any:
        y = m.norm(m.table(word) + m.places(place))
        q, k, v = (each.view(-1, 1, 2, 8).transpose(1, 2) for each in m.qkv(y).chunk(3, -1))
        keys, values = torch.cat([keys[:, :, 1:], k], 2), torch.cat([values[:, :, 1:], v], 2)
        seen = (torch.arange(10) >= 9 - place).view(-1, 1, 1, 10)
        mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
        return m.out(mixed.transpose(1, 2).flatten(2)), keys, values

    parts = {"table": nn.Embedding(60, 16), "places": nn.Embedding(10, 16), "norm": nn.LayerNorm(16)}
    parts |= {"qkv": nn.Linear(16, 48), "out": nn.Linear(16, 60)}
    data = {"word": words(1) % 60, "keys": noise(2, 10, 8), "values": noise(2, 10, 8), "place": words(1) % 10}
    return Written(body, **parts), data


@net
def beam_scores() -> Made:
    def body(m: Any, hidden: Any, scores: Any) -> Any:
        log = F.log_softmax(m.out(hidden), -1) + scores.unsqueeze(-1)
        best, places = log.flatten(1).topk(4)
        return best, places // 30, places % 30

    return Written(body, out=nn.Linear(16, 30)), {"hidden": noise(4, 16), "scores": -np.abs(noise(4))}


@net
def token_merging() -> Made:
    def body(m: Any, x: Any) -> Any:
        a, b = F.normalize(x[:, ::2], dim=-1), F.normalize(x[:, 1::2], dim=-1)
        best, which = (a @ b.transpose(-1, -2)).max(-1)
        pick = F.one_hot(which, 8).to(x.dtype) * torch.sigmoid(4 * best).unsqueeze(-1)
        merged = x[:, 1::2] + pick.transpose(-1, -2) @ x[:, ::2]
        return m.out(merged / (1 + pick.sum(1).unsqueeze(-1)))

    return Written(body, out=nn.Linear(12, 6)), {"x": rows(16, 12)}


@net
def gated_pixel_cnn() -> Made:
    class Masked(nn.Conv2d):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            mask = torch.ones_like(self.weight)
            mask[:, :, 2, 2:] = 0
            mask[:, :, 3:] = 0
            self.register_buffer("mask", mask)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self._conv_forward(x, self.weight * self.mask, self.bias)

    def body(m: Any, x: Any) -> Any:
        y = m.first(x)
        for conv in m.convs:
            value, gate = conv(y).chunk(2, 1)
            y = y + torch.tanh(value) * torch.sigmoid(gate)
        return m.out(F.relu(y)).view(-1, 4, 1, 16, 16)

    convs = nn.ModuleList([Masked(8, 16, 5, padding=2) for _ in range(2)])
    return Written(body, first=Masked(1, 8, 5, padding=2), convs=convs, out=nn.Conv2d(8, 4, 1)), {"x": images(16, 1)}


@net
def conformer_block() -> Made:
    class Conformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))
            self.attend, self.norm = nn.MultiheadAttention(16, 4, batch_first=True), nn.LayerNorm(16)
            self.enter, self.deep = nn.Conv1d(16, 32, 1), nn.Conv1d(16, 16, 7, padding=3, groups=16)
            self.bn, self.leave, self.last = nn.BatchNorm1d(16), nn.Conv1d(16, 16, 1), nn.LayerNorm(16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + 0.5 * self.one(x)
            y = self.norm(x)
            x = x + self.attend(y, y, y)[0]
            y = F.glu(self.enter(x.transpose(1, 2)), dim=1)
            return self.last(x + self.leave(F.silu(self.bn(self.deep(y)))).transpose(1, 2))

    return Conformer(), {"x": rows(20, 16)}


@net
def tcn_causal_dilated() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = x.transpose(1, 2)
        for n, conv in enumerate(m.convs):
            y = y + F.relu(conv(F.pad(y, (2 * 2**n, 0))))
        return m.out(y[..., -1])

    convs = nn.ModuleList([nn.Conv1d(6, 6, 3, dilation=2**n) for n in range(4)])
    return Written(body, convs=convs, out=nn.Linear(6, 3)), {"x": rows(40, 6)}


@net
def style_modulated() -> Made:
    def body(m: Any, x: Any, style: Any) -> Any:
        gain = m.gain(style)
        weight = m.conv.weight[None] * gain[:, None, :, None, None]
        weight = weight * torch.rsqrt(weight.pow(2).sum((2, 3, 4), keepdim=True) + 1e-8)
        return F.leaky_relu(F.conv2d(x.reshape(1, -1, 12, 12), weight[0], padding=1), 0.2) + m.noise.bias[0]

    parts = {"gain": nn.Linear(8, 6), "conv": nn.Conv2d(6, 8, 3), "noise": nn.Linear(1, 1)}
    return Written(body, **parts), {"x": noise(6, 12, 12), "style": noise(8)}


@net
def ghost_and_shuffle() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = m.stem(x)
        y = torch.cat([y, m.cheap(y)], 1)
        y = F.channel_shuffle(y, 4)
        left, right = torch.split(y, [8, 8], dim=1)
        return m.head(F.adaptive_avg_pool2d(torch.cat([left * right.sigmoid(), left], 1), (3, 2)).flatten(1))

    parts = {"cheap": nn.Conv2d(8, 8, 3, padding=1, groups=8), "head": nn.Linear(96, 5)}
    return Written(body, stem=block(3, 8, 2), **parts), {"x": images(36)[:, :, :24].copy()}


@net
def prototype_distances() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = F.normalize(m.net(x).flatten(1), dim=1)
        far = torch.cdist(y, m.table.weight)
        return F.softmin(far, -1), far.argmin(-1)

    inner = nn.Sequential(block(1, 8, 2), nn.AdaptiveAvgPool2d(2))
    return Written(body, net=inner, table=nn.Embedding(6, 32)), {"x": images(24, 1)}


@net
def mixture_density() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = m.trunk(x)
        share, mean, spread = F.softmax(m.share(y), 1), m.mean(y).view(-1, 5, 2), F.elu(m.spread(y)) + 1 + 1e-6
        return share, mean, spread, (share.unsqueeze(-1) * mean).sum(1), torch.logsumexp(share.log() - spread, 1)

    trunk = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Dropout(0.5), nn.Linear(32, 32), nn.Tanh())
    return Written(body, trunk=trunk, share=nn.Linear(32, 5), mean=nn.Linear(32, 10), spread=nn.Linear(32, 5)), {
        "x": noise(6)
    }


@net
def stacked_hourglass() -> Made:
    class Hourglass(nn.Module):
        def __init__(self, depth: int) -> None:
            super().__init__()
            self.up, self.low = block(8, 8), nn.Sequential(nn.MaxPool2d(2), block(8, 8))
            self.inner = Hourglass(depth - 1) if depth > 1 else block(8, 8)
            self.last = block(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            low = self.last(self.inner(self.low(x)))
            return self.up(x) + F.interpolate(low, scale_factor=2, mode="nearest")

    layers = [nn.Conv2d(3, 8, 7, 2, 3), nn.PReLU(8), Hourglass(3), Hourglass(3), nn.Conv2d(8, 6, 1)]
    return nn.Sequential(*layers), {"x": images(64)}


@net
def depth_to_point_cloud() -> Made:
    def body(m: Any, x: Any) -> Any:
        depth = 1 / (0.1 + 9.9 * torch.sigmoid(m.net(x)))
        v, u = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
        points = torch.stack([(u - 8) / 20, (v - 8) / 20, torch.ones_like(u)])[None] * depth
        normal = torch.cross(
            points[:, :, 1:, :-1] - points[:, :, :-1, :-1], points[:, :, :-1, 1:] - points[:, :, :-1, :-1], 1
        )
        return points, F.normalize(normal, dim=1, eps=1e-6)

    return Written(body, net=nn.Sequential(block(3, 8, 2), nn.Conv2d(8, 1, 3, padding=1))), {"x": images(32)}


@net
def rotation_six_d() -> Made:
    def body(m: Any, x: Any) -> Any:
        a, b = m.net(x).view(-1, 2, 3).unbind(1)
        one = F.normalize(a, dim=-1)
        two = F.normalize(b - (one * b).sum(-1, keepdim=True) * one, dim=-1)
        frame = torch.stack([one, two, torch.linalg.cross(one, two)], -1)
        trace = frame.diagonal(dim1=-2, dim2=-1).sum(-1)
        return frame, torch.acos(((trace - 1) / 2).clamp(-0.999, 0.999))

    return Written(body, net=nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 6))), {"x": noise(10)}


@net
def factorised_rank() -> Made:
    def body(m: Any, users: Any, items: Any, age: Any) -> Any:
        u, i = m.users(users), m.items(items)
        wide = m.bias_u(users).squeeze(-1) + m.bias_i(items).squeeze(-1)
        cross = torch.cat([u, i, u * i, torch.log1p(age)], -1)
        return torch.sigmoid((u * i).sum(-1) + wide + m.deep(cross).squeeze(-1))

    parts = {"users": nn.Embedding(40, 8), "items": nn.Embedding(70, 8), "bias_u": nn.Embedding(40, 1)}
    parts |= {"bias_i": nn.Embedding(70, 1), "deep": nn.Sequential(nn.Linear(25, 16), nn.Mish(), nn.Linear(16, 1))}
    rng = np.random.default_rng(7)
    tables = {name: rng.integers(0, top, (32,)).astype(np.int64) for name, top in (("users", 40), ("items", 70))}
    return Written(body, **parts), tables | {"age": np.abs(noise(1)) * 20}


@net
def echo_state() -> Made:
    def body(m: Any, x: Any) -> Any:
        state = torch.zeros(x.shape[0], 24)
        for step in torch.unbind(x, 1):
            state = 0.7 * state + 0.3 * torch.tanh(m.inside(step) + m.loop(state))
        return m.out(torch.cat([state, state.square()], -1))

    parts = {"inside": nn.Linear(3, 24, bias=False), "loop": nn.Linear(24, 24, bias=False), "out": nn.Linear(48, 2)}
    return Written(body, **parts), {"x": rows(15, 3)}


@net
def wavelet_bands() -> Made:
    def body(m: Any, x: Any) -> Any:
        bands = []
        for _ in range(3):
            even, odd = x[..., ::2], x[..., 1::2]
            bands.append(((even - odd) / 2**0.5).abs().mean(-1))
            x = (even + odd) / 2**0.5
        return m.out(torch.log(torch.cat(bands, -1) + 1e-3))

    return Written(body, out=nn.Linear(3, 4)), {"x": 8 * waves(256)[:, None]}


@net
def linear_attention() -> Made:
    def body(m: Any, x: Any) -> Any:
        q, k, v = (each.unflatten(-1, (2, 8)) for each in m.qkv(m.norm(x)).tensor_split(3, -1))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = torch.cumsum(torch.einsum("bthd,bthe->bthde", k, v), 1)
        scale = torch.einsum("bthd,bthd->bth", q, k.cumsum(1)).clamp_min(1e-6)
        return m.out((torch.einsum("bthd,bthde->bthe", q, state) / scale[..., None]).flatten(2))

    return Written(body, norm=nn.LayerNorm(16), qkv=nn.Linear(16, 48), out=nn.Linear(16, 16)), {"x": rows(10, 16)}


@net
def local_attention_windows() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = m.embed(x)
        b, c, h, w = y.shape
        tokens = y.view(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(-1, 16, c)
        mixed = m.attend(tokens, tokens, tokens, need_weights=False)[0]
        back = mixed.reshape(b, h // 4, w // 4, 4, 4, c).permute(0, 5, 1, 3, 2, 4).reshape(b, c, h, w)
        return m.head(F.relu6(back + y))

    parts = {"embed": nn.Conv2d(3, 12, 3, 2, 1), "head": nn.Conv2d(12, 3, 1)}
    return Written(body, attend=nn.MultiheadAttention(12, 3, batch_first=True), **parts), {"x": images(32)}


@net
def image_quality() -> Made:
    """Preparing and finishing inside of the net: bytes in, grey, borders, a histogram's moments, a clipped score."""

    def body(m: Any, x: Any) -> Any:
        y = x.permute(0, 3, 1, 2).float().div(255.0)
        y = (y - torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)) / torch.tensor([0.229, 0.224, 0.225]).view(
            1, 3, 1, 1
        )
        grey = (y * torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(1, keepdim=True)
        edges = F.conv2d(
            F.pad(grey, (1, 1, 1, 1), mode="reflect"), torch.tensor([[[[0.0, 1, 0], [1, -4, 1], [0, 1, 0]]]])
        )
        told = torch.cat([edges.var((2, 3)), edges.abs().amax((2, 3)), y.mean((2, 3)), y.std((2, 3))], 1)
        return torch.clamp(m.score(told) * 100, 0, 100)

    pictures = np.clip(images(40) * 50 + 128, 0, 255).astype(np.uint8).transpose(0, 2, 3, 1).copy()
    return Written(body, score=nn.Linear(8, 1)), {"x": pictures}
