"""Nets as users write them with torch.nn and nothing else: each is a function that returns the module and its data.

`bench/reach_unseen.py` writes them as ONNX; its list says by which exporter and at which opset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from reach_models import SAMPLES, images, waves, words
from torch import nn

Made = tuple[nn.Module, dict[str, np.ndarray]]
NETS: dict[str, Callable[[], Made]] = {}
Body = Callable[..., Any]


class Written(nn.Module):
    """A module of named parts whose forward is a function of them and the inputs."""

    def __init__(self, body: Body, **parts: nn.Module) -> None:
        super().__init__()
        self.body = body
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *given: Any) -> Any:
        return self.body(self, *given)


def net(make: Callable[[], Made]) -> Callable[[], Made]:
    """Lists a net by the name of its function."""
    NETS[make.__name__] = make
    return make


def rows(length: int, width: int) -> np.ndarray:
    """Returns sequences of vectors."""
    return np.ascontiguousarray(images(max(length, width))[:, 0, :length, :width])


def noise(*shape: int, scale: float = 1.0) -> np.ndarray:
    """Returns normal numbers."""
    return (scale * np.random.default_rng(4).normal(size=(SAMPLES, *shape))).astype(np.float32)


def block(before: int, after: int, stride: int = 1) -> nn.Sequential:
    """Returns a convolution with its norm and activation."""
    return nn.Sequential(nn.Conv2d(before, after, 3, stride, 1), nn.BatchNorm2d(after), nn.ReLU())


@net
def lstm_last_state() -> Made:
    parts = {"rnn": nn.LSTM(16, 24, batch_first=True), "head": nn.Linear(24, 5)}
    return Written(lambda m, x: m.head(m.rnn(x)[1][0][-1]), **parts), {"x": rows(20, 16)}


@net
def lstm_states_in_and_out() -> Made:
    net = Written(lambda m, x, h, c: (lambda y, s: (m.head(y), *s))(*m.rnn(x, (h, c))))
    net.rnn, net.head = nn.LSTM(8, 12), nn.Linear(12, 3)
    return net, {"x": noise(1, 8), "h": noise(1, 12), "c": noise(1, 12)}


@net
def gru_seq2seq() -> Made:
    def body(m: Any, x: Any) -> Any:
        memory, state = m.encoder(x)
        out, _ = m.decoder(memory[:, -4:], state)
        return m.head(out)

    parts = {"encoder": nn.GRU(12, 16, batch_first=True), "decoder": nn.GRU(16, 16, batch_first=True)}
    return Written(body, **parts, head=nn.Linear(16, 6)), {"x": rows(16, 12)}


@net
def lstm_projected() -> Made:
    return Written(lambda m, x: m.rnn(x)[0], rnn=nn.LSTM(12, 24, proj_size=8, batch_first=True)), {"x": rows(12, 12)}


@net
def lstm_cell_loop() -> Made:
    def body(m: Any, x: Any) -> Any:
        h, c = x.new_zeros(x.shape[0], 16), x.new_zeros(x.shape[0], 16)
        for step in range(6):
            h, c = m.cell(x[:, step], (h, c))
        return m.head(h)

    return Written(body, cell=nn.LSTMCell(10, 16), head=nn.Linear(16, 4)), {"x": rows(6, 10)}


@net
def gru_cell_loop() -> Made:
    def body(m: Any, x: Any) -> Any:
        h = torch.zeros(x.shape[0], 16)
        for step in range(6):
            h = m.cell(x[:, step], h)
        return m.head(h)

    return Written(body, cell=nn.GRUCell(10, 16), head=nn.Linear(16, 4)), {"x": rows(6, 10)}


@net
def bilstm_crf_scores() -> Made:
    parts = {"table": nn.Embedding(1000, 24), "rnn": nn.LSTM(24, 16, 2, batch_first=True, bidirectional=True)}
    return Written(lambda m, x: m.head(m.rnn(m.table(x))[0]), **parts, head=nn.Linear(32, 9)), {"x": words(24)}


@net
def attention_pooled_gru() -> Made:
    def body(m: Any, x: Any) -> Any:
        y, _ = m.rnn(x)
        weights = torch.softmax(m.score(torch.tanh(m.query(y))), 1)
        return m.head((weights * y).sum(1))

    parts = {"rnn": nn.GRU(16, 16, batch_first=True, bidirectional=True), "query": nn.Linear(32, 16)}
    return Written(body, **parts, score=nn.Linear(16, 1), head=nn.Linear(32, 5)), {"x": rows(20, 16)}


@net
def conv_lstm() -> Made:
    def body(m: Any, x: Any) -> Any:
        h = c = x.new_zeros(x.shape[0], 8, 12, 12)
        for step in range(4):
            i, f, o, g = torch.chunk(m.gates(torch.cat([x[:, step], h], 1)), 4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return m.head(h)

    frames = np.ascontiguousarray(images(12, 12).reshape(SAMPLES, 4, 3, 12, 12))
    return Written(body, gates=nn.Conv2d(11, 32, 3, padding=1), head=nn.Conv2d(8, 1, 1)), {"x": frames}


@net
def tcn() -> Made:
    def body(m: Any, x: Any) -> Any:
        for layer in m.layers:
            x = F.relu(layer(F.pad(x, (2 * layer.dilation[0], 0)))) + x
        return m.head(x[..., -1])

    layers = nn.ModuleList(nn.Conv1d(12, 12, 3, dilation=2**n) for n in range(4))
    return Written(body, layers=layers, head=nn.Linear(12, 4)), {"x": rows(12, 40)}


@net
def weight_normed_tcn() -> Made:
    norm = torch.nn.utils.parametrizations.weight_norm
    layers = [norm(nn.Conv1d(12, 16, 5, padding=2)), nn.ELU(), norm(nn.Conv1d(16, 16, 5, padding=4, dilation=2))]
    return nn.Sequential(*layers, nn.ELU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 4)), {
        "x": rows(12, 40)
    }


@net
def wave_net() -> Made:
    def body(m: Any, x: Any) -> Any:
        x, skips = m.first(x), 0
        for gate, out in zip(m.gates, m.outs, strict=True):
            y = gate(x)
            a, b = y.chunk(2, 1)
            y = out(torch.tanh(a) * torch.sigmoid(b))
            skips, x = skips + y, x + y
        return m.head(F.relu(skips))

    gates = nn.ModuleList(nn.Conv1d(12, 24, 3, padding=2**n, dilation=2**n) for n in range(4))
    outs = nn.ModuleList(nn.Conv1d(12, 12, 1) for _ in range(4))
    parts = {"first": nn.Conv1d(1, 12, 1), "gates": gates, "outs": outs, "head": nn.Conv1d(12, 4, 1)}
    return Written(body, **parts), {"x": waves(256)[:, None]}


@net
def unet() -> Made:
    def body(m: Any, x: Any) -> Any:
        a = m.a(x)
        b = m.b(F.max_pool2d(a, 2))
        c = m.c(F.max_pool2d(b, 2))
        b = m.d(torch.cat([m.up1(c), b], 1))
        return m.head(m.e(torch.cat([m.up2(b), a], 1)))

    parts = {"a": block(3, 8), "b": block(8, 16), "c": block(16, 32), "d": block(32, 16), "e": block(16, 8)}
    ups = {"up1": nn.ConvTranspose2d(32, 16, 2, 2), "up2": nn.ConvTranspose2d(16, 8, 2, 2)}
    return Written(body, **parts, **ups, head=nn.Conv2d(8, 2, 1)), {"x": images(48)}


@net
def unet_odd_size() -> Made:
    def body(m: Any, x: Any) -> Any:
        a = m.a(x)
        b = m.b(F.max_pool2d(a, 2, ceil_mode=True))
        up = F.interpolate(b, size=a.shape[-2:], mode="bilinear", align_corners=True)
        return m.head(torch.cat([up, a], 1))

    return Written(body, a=block(3, 8), b=block(8, 16), head=nn.Conv2d(24, 2, 1)), {"x": images(45)}


@net
def unet_groups() -> Made:
    def conv(before: int, after: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.SiLU())

    def body(m: Any, x: Any, t: Any) -> Any:
        waves = t[:, None] * torch.exp(torch.arange(8, device=x.device) * -0.5)
        step = m.time(torch.cat([waves.sin(), waves.cos()], 1))
        a = m.a(x)
        b = m.b(m.down(a) + step[:, :, None, None])
        return m.head(torch.cat([F.interpolate(b, scale_factor=2.0), a], 1))

    parts = {"a": conv(3, 16), "b": conv(16, 16), "down": nn.Conv2d(16, 16, 3, 2, 1), "time": nn.Linear(16, 16)}
    steps = np.random.default_rng(5).uniform(0, 10, SAMPLES).astype(np.float32)
    return Written(body, **parts, head=nn.Conv2d(32, 3, 1)), {"x": images(32), "t": steps}


@net
def autoencoder() -> Made:
    down = [nn.Conv2d(1, 8, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 16, 3, 2, 1), nn.LeakyReLU(0.2), nn.Flatten()]
    up = [
        nn.Linear(8, 784),
        nn.Unflatten(1, (16, 7, 7)),
        nn.ConvTranspose2d(16, 8, 3, 2, 1, output_padding=1),
        nn.ReLU(),
    ]
    last = [nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Sigmoid()]
    return nn.Sequential(*down, nn.Linear(784, 8), *up, *last), {"x": images(28, 1)}


@net
def vae() -> Made:
    def body(m: Any, x: Any) -> Any:
        mean, spread = m.encode(x).chunk(2, -1)
        return m.decode(mean + torch.exp(0.5 * spread) * 0.1), mean, spread

    encode = nn.Sequential(nn.Flatten(), nn.Linear(256, 64), nn.GELU(), nn.Linear(64, 16))
    return Written(body, encode=encode, decode=nn.Sequential(nn.Linear(8, 64), nn.Softplus(), nn.Linear(64, 256))), {
        "x": images(16, 1)
    }


@net
def vq_codes() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = m.conv(x).permute(0, 2, 3, 1)
        away = (y**2).sum(-1, keepdim=True) - 2 * y @ m.codes.weight.T + (m.codes.weight**2).sum(1)
        return m.back(m.codes(away.argmin(-1)).permute(0, 3, 1, 2))

    parts = {"conv": nn.Conv2d(3, 8, 4, 4), "codes": nn.Embedding(32, 8), "back": nn.ConvTranspose2d(8, 3, 4, 4)}
    return Written(body, **parts), {"x": images(32)}


@net
def conv3d() -> Made:
    layers = [nn.Conv3d(1, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(8, 16, 3, 2, 1)]
    tail = [nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(16, 4)]
    return nn.Sequential(*layers, *tail), {"x": noise(1, 8, 16, 16)}


@net
def conv3d_up() -> Made:
    layers = [nn.Conv3d(2, 8, 3, padding=1), nn.ReLU(), nn.ConvTranspose3d(8, 4, 2, 2), nn.InstanceNorm3d(4)]
    return nn.Sequential(*layers, nn.Conv3d(4, 1, 1)), {"x": noise(2, 4, 8, 8)}


@net
def r2plus1d() -> Made:
    layers = [
        nn.Conv3d(3, 12, (1, 3, 3), padding=(0, 1, 1)),
        nn.ReLU(),
        nn.Conv3d(12, 16, (3, 1, 1), padding=(1, 0, 0)),
    ]
    tail = [nn.BatchNorm3d(16), nn.ReLU(), nn.AvgPool3d((2, 4, 4)), nn.Flatten(), nn.Linear(512, 5)]
    return nn.Sequential(*layers, *tail), {"x": noise(3, 4, 16, 16) * 0.5}


@net
def trilinear_up() -> Made:
    return nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.Upsample(scale_factor=2, mode="trilinear")), {
        "x": noise(1, 4, 6, 6)
    }


@net
def instance_norm_style() -> Made:
    layers = [nn.ReflectionPad2d(4), nn.Conv2d(3, 8, 9), nn.InstanceNorm2d(8, affine=True), nn.ReLU()]
    more = [nn.ReflectionPad2d(1), nn.Conv2d(8, 16, 3, 2), nn.InstanceNorm2d(16, affine=True), nn.ReLU()]
    back = [nn.Upsample(scale_factor=2), nn.ReflectionPad2d(1), nn.Conv2d(16, 3, 3), nn.Tanh()]
    return nn.Sequential(*layers, *more, *back), {"x": images(40)}


@net
def padded_every_way() -> Made:
    layers = [nn.Conv2d(3, 6, 3, padding=1, padding_mode="replicate"), nn.ReLU()]
    more = [nn.Conv2d(6, 6, 3, padding=2, padding_mode="circular"), nn.ReLU(), nn.ZeroPad2d((1, 2, 0, 3))]
    return nn.Sequential(*layers, *more, nn.ConstantPad2d(1, 0.5), nn.Conv2d(6, 4, 3)), {"x": images(20)}


@net
def super_resolution() -> Made:
    layers = [nn.Conv2d(1, 16, 5, padding=2), nn.Tanh(), nn.Conv2d(16, 9, 3, padding=1), nn.PixelShuffle(3)]
    return nn.Sequential(*layers), {"x": images(24, 1)}


@net
def pixel_unshuffle() -> Made:
    layers = [
        nn.PixelUnshuffle(2),
        nn.Conv2d(12, 16, 3, padding=1),
        nn.PReLU(16),
        nn.Conv2d(16, 12, 1),
        nn.PixelShuffle(2),
    ]
    return nn.Sequential(*layers), {"x": images(32)}


@net
def channel_shuffle() -> Made:
    layers = [nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU6(), nn.ChannelShuffle(4), nn.Conv2d(16, 16, 3, groups=4)]
    return nn.Sequential(*layers, nn.Hardswish(), nn.AdaptiveAvgPool2d((2, 3)), nn.Flatten(), nn.Linear(96, 5)), {
        "x": images(32)
    }


@net
def interpolations() -> Made:
    def body(m: Any, x: Any) -> Any:
        x = m.conv(x)
        a = F.interpolate(x, scale_factor=1.5, mode="nearest")
        b = F.interpolate(x, size=(30, 30), mode="bilinear", align_corners=False)
        c = F.interpolate(x, size=(30, 30), mode="bicubic", align_corners=False)
        d = F.interpolate(x, size=(30, 30), mode="area")
        return a + b + c + d

    return Written(body, conv=nn.Conv2d(3, 4, 3, padding=1)), {"x": images(20)}


@net
def antialiased() -> Made:
    def body(m: Any, x: Any) -> Any:
        return F.interpolate(m.conv(x), size=(14, 14), mode="bilinear", antialias=True)

    return Written(body, conv=nn.Conv2d(3, 4, 3, padding=1)), {"x": images(32)}


@net
def linear_1d_up() -> Made:
    return nn.Sequential(
        nn.Conv1d(8, 8, 3, padding=1), nn.Upsample(scale_factor=4, mode="linear"), nn.Conv1d(8, 2, 1)
    ), {"x": rows(8, 32)}


@net
def transposed_1d() -> Made:
    layers = [nn.Conv1d(1, 8, 16, 8, 4), nn.PReLU(), nn.ConvTranspose1d(8, 1, 16, 8, 4)]
    return nn.Sequential(*layers), {"x": waves(256)[:, None]}


@net
def transposed_groups() -> Made:
    layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(8, 8, 4, 2, 1, groups=8, bias=False)]
    return nn.Sequential(*layers, nn.ConvTranspose2d(8, 4, 3, 1, 1, dilation=1), nn.Softmax2d()), {"x": images(24)}


@net
def demucs_like() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = F.glu(m.mix(F.relu(m.down(x))), 1)
        z = m.rnn(y.permute(2, 0, 1))[0].permute(1, 2, 0)
        return m.up(y + m.shrink(z)), z.mean(-1)

    parts = {"down": nn.Conv1d(1, 8, 8, 4, 2), "mix": nn.Conv1d(8, 16, 1), "rnn": nn.LSTM(8, 8, bidirectional=True)}
    return Written(body, **parts, shrink=nn.Conv1d(16, 8, 1), up=nn.ConvTranspose1d(8, 1, 8, 4, 2)), {
        "x": waves(96)[:, None]
    }


@net
def squeeze_excite() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = m.conv(x)
        return m.head((y * m.gate(y.mean((2, 3)))[..., None, None]).amax((2, 3)))

    gate = nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 16), nn.Hardsigmoid())
    return Written(body, conv=block(3, 16, 2), gate=gate, head=nn.Linear(16, 5)), {"x": images(32)}


@net
def cbam() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = m.conv(x)
        y = y * torch.sigmoid(m.mlp(y.mean((2, 3), keepdim=True)) + m.mlp(y.amax((2, 3), keepdim=True)))
        both = torch.cat([y.mean(1, keepdim=True), y.max(1, keepdim=True)[0]], 1)
        return m.head((y * torch.sigmoid(m.place(both))).flatten(1))

    mlp = nn.Sequential(nn.Conv2d(8, 2, 1), nn.ReLU(), nn.Conv2d(2, 8, 1))
    parts = {"conv": block(3, 8, 2), "mlp": mlp, "place": nn.Conv2d(2, 1, 7, padding=3), "head": nn.Linear(2048, 5)}
    return Written(body, **parts), {"x": images(32)}


@net
def multihead_attention() -> Made:
    parts = {"attend": nn.MultiheadAttention(24, 4, batch_first=True), "head": nn.Linear(24, 5)}

    def body(m: Any, x: Any) -> Any:
        y, weights = m.attend(x, x, x)
        return m.head(y), weights

    return Written(body, **parts), {"x": rows(16, 24)}


@net
def causal_attention() -> Made:
    def body(m: Any, x: Any) -> Any:
        q, k, v = (each.reshape(-1, 16, 4, 6).transpose(1, 2) for each in m.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return m.out(y.transpose(1, 2).reshape(-1, 16, 24))

    return Written(body, qkv=nn.Linear(24, 72), out=nn.Linear(24, 24)), {"x": rows(16, 24)}


@net
def transformer_seq2seq() -> Made:
    def body(m: Any, x: Any, y: Any) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(8)
        return m.head(m.net(m.table(x), m.table(y), tgt_mask=mask))

    parts = {"table": nn.Embedding(1000, 24), "head": nn.Linear(24, 40)}
    return Written(body, **parts, net=nn.Transformer(24, 4, 1, 1, 48, batch_first=True)), {
        "x": words(12),
        "y": words(8),
    }


@net
def tiny_gpt() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = m.table(x) + m.places(torch.arange(16, device=x.device))
        mask = torch.triu(torch.full((16, 16), float("-inf")), 1)
        return m.head(m.blocks(y, mask=mask, is_causal=True))

    layer = nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", batch_first=True, norm_first=True)
    blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    parts = {"table": nn.Embedding(200, 32), "places": nn.Embedding(16, 32), "blocks": blocks}
    return Written(body, **parts, head=nn.Linear(32, 200)), {"x": words(16) % 200}


@net
def masked_words() -> Made:
    def body(m: Any, x: Any, mask: Any) -> Any:
        y = m.table(x)
        y = m.layer(y, src_key_padding_mask=mask == 0)
        kept = mask.unsqueeze(-1).to(y.dtype)
        return F.normalize((y * kept).sum(1) / kept.sum(1).clamp(min=1e-9), dim=-1)

    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    lengths = np.random.default_rng(6).integers(4, 17, (SAMPLES, 1))
    mask = (np.arange(16)[None] < lengths).astype(np.int64)
    return Written(body, table=nn.Embedding(1000, 32), layer=layer), {"x": words(16), "mask": mask}


@net
def embedding_bag() -> Made:
    parts = {"table": nn.EmbeddingBag(1000, 16, mode="mean"), "head": nn.Linear(16, 4)}
    return Written(lambda m, x: m.head(m.table(x)), **parts), {"x": words(12)}


@net
def text_cnn() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = m.table(x).transpose(1, 2)
        return m.head(torch.cat([F.relu(conv(y)).max(-1).values for conv in m.convs], 1))

    convs = nn.ModuleList(nn.Conv1d(24, 8, size) for size in (3, 4, 5))
    return Written(body, table=nn.Embedding(1000, 24, padding_idx=0), convs=convs, head=nn.Linear(24, 3)), {
        "x": words(20)
    }


@net
def recommender() -> Made:
    def body(m: Any, user: Any, item: Any, numbers: Any) -> Any:
        u, i = m.users(user).squeeze(1), m.items(item).squeeze(1)
        return torch.sigmoid(m.deep(torch.cat([u, i, numbers], 1)) + (u * i).sum(1, keepdim=True))

    deep = nn.Sequential(nn.Linear(36, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
    data = {"user": words(1), "item": words(1) % 300, "numbers": noise(4)}
    return Written(body, users=nn.Embedding(1000, 16), items=nn.Embedding(300, 16), deep=deep), data


@net
def tabular_mlp() -> Made:
    layers = [
        nn.BatchNorm1d(20),
        nn.Linear(20, 64),
        nn.SELU(),
        nn.Linear(64, 64),
        nn.Mish(),
        nn.LayerNorm(64),
        nn.Tanhshrink(),
    ]
    return nn.Sequential(*layers, nn.Linear(64, 3), nn.LogSoftmax(-1)), {"x": noise(20)}


@net
def activations_known() -> Made:
    kinds = [
        nn.CELU(0.7),
        nn.Softsign(),
        nn.Hardtanh(-0.6, 0.9),
        nn.LogSigmoid(),
        nn.Softshrink(0.2),
        nn.Hardshrink(0.2),
    ]
    kinds += [nn.Threshold(0.1, -0.2), nn.RReLU(), nn.Softmin(-1), nn.GELU("tanh"), nn.Softplus(2, 5)]
    layers = [part for kind in kinds for part in (kind, nn.Linear(16, 16))]
    return nn.Sequential(nn.Linear(16, 16), *layers), {"x": noise(16)}


@net
def angles() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = torch.tanh(m.inner(x)) * 0.9
        parts = [torch.asin(y), torch.acos(y), torch.atan(y), torch.atan2(y, y + 2), torch.sinh(y), torch.erf(y)]
        return m.head(torch.cat([*parts, torch.log1p(y.abs()), torch.expm1(y)], -1))

    return Written(body, inner=nn.Linear(8, 8), head=nn.Linear(64, 4)), {"x": noise(8)}


@net
def norms_of_rows() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = m.inner(x)
        parts = [
            y.norm(p=1, dim=-1),
            y.norm(dim=-1),
            y.logsumexp(-1),
            y.std(-1),
            y.var(-1),
            y.prod(-1) * 10,
            y.abs().sum(-1),
        ]
        return m.head(torch.stack(parts, -1))

    return Written(body, inner=nn.Linear(6, 6), head=nn.Linear(7, 4)), {"x": noise(5, 6)}


@net
def cosine_prototypes() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = F.normalize(m.inner(x), dim=-1)
        return 10 * y @ F.normalize(m.table.weight, dim=-1).T, torch.cdist(y, m.table.weight[None].squeeze(0))

    return Written(body, inner=nn.Linear(16, 8), table=nn.Embedding(6, 8)), {"x": noise(16)}


@net
def einsum_mixer() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = torch.einsum("btc,ts->bsc", x, m.mix.weight)
        return torch.einsum("bsc,bkc->bsk", y, y) / 8, torch.einsum("bsc,dc->bsd", y, m.out.weight)

    return Written(body, mix=nn.Linear(12, 12), out=nn.Linear(16, 5)), {"x": rows(12, 16)}


@net
def unfold_and_fold() -> Made:
    def body(m: Any, x: Any) -> Any:
        pieces = F.unfold(x, 4, stride=4)
        return F.fold(m.mix(pieces.transpose(1, 2)).transpose(1, 2), (24, 24), 4, stride=4)

    return Written(body, mix=nn.Linear(48, 48)), {"x": images(24)}


@net
def overlapping_fold() -> Made:
    def body(m: Any, x: Any) -> Any:
        pieces = F.unfold(x, 3, padding=1, stride=2)
        return F.fold(m.mix(pieces.transpose(1, 2)).transpose(1, 2), (16, 16), 3, padding=1, stride=2)

    return Written(body, mix=nn.Linear(27, 27)), {"x": images(16)}


@net
def tensor_unfold() -> Made:
    def body(m: Any, x: Any) -> Any:
        return m.head(x.unfold(1, 32, 16) * torch.hann_window(32)).mean(1)

    return Written(body, head=nn.Linear(32, 6)), {"x": waves(256)}


@net
def running_sums() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = torch.sigmoid(m.inner(x))
        return m.head(torch.cumsum(y, 1) / torch.arange(1, 13)[None, :, None])

    return Written(body, inner=nn.Linear(8, 8), head=nn.Linear(8, 3)), {"x": rows(12, 8)}


@net
def running_products() -> Made:
    def body(m: Any, x: Any) -> Any:
        return m.head(torch.cumprod(0.5 + 0.5 * torch.sigmoid(m.inner(x)), 1))

    return Written(body, inner=nn.Linear(8, 8), head=nn.Linear(8, 3)), {"x": rows(6, 8)}


@net
def scattered_words() -> Made:
    def body(m: Any, x: Any) -> Any:
        counts = torch.zeros(x.shape[0], 50).scatter_add(1, x, torch.ones(x.shape[0], 12))
        return m.head(counts)

    return Written(body, head=nn.Linear(50, 4)), {"x": words(12) % 50}


@net
def one_hot_words() -> Made:
    def body(m: Any, x: Any) -> Any:
        return m.rnn(F.one_hot(x, 30).float())[0][:, -1]

    return Written(body, rnn=nn.GRU(30, 12, batch_first=True)), {"x": words(10) % 30}


@net
def top_scores() -> Made:
    def body(m: Any, x: Any) -> Any:
        values, places = torch.softmax(m.head(m.conv(x).mean((2, 3))), -1).topk(5)
        return values, places

    return Written(body, conv=block(3, 16, 2), head=nn.Linear(16, 40)), {"x": images(32)}


@net
def top_boxes() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = m.conv(x).flatten(2).transpose(1, 2)
        _, places = y[..., 4].topk(10, 1)
        return torch.gather(y, 1, places[..., None].expand(-1, -1, 6))

    return Written(body, conv=nn.Sequential(block(3, 8, 2), nn.Conv2d(8, 6, 3, 2, 1))), {"x": images(32)}


@net
def k_max_pool() -> Made:
    def body(m: Any, x: Any) -> Any:
        return m.head(m.conv(x).topk(3, dim=-1).values.flatten(1))

    return Written(body, conv=nn.Conv1d(8, 12, 3), head=nn.Linear(36, 4)), {"x": rows(8, 24)}


@net
def sorted_features() -> Made:
    def body(m: Any, x: Any) -> Any:
        return m.head(torch.sort(m.inner(x), -1).values)

    return Written(body, inner=nn.Linear(12, 12), head=nn.Linear(12, 4)), {"x": noise(12)}


@net
def class_map() -> Made:
    def body(m: Any, x: Any) -> Any:
        return m.conv(x).argmax(1)

    return Written(body, conv=nn.Sequential(block(3, 8), nn.Conv2d(8, 5, 1))), {"x": images(24)}


@net
def greedy_choice() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = m.first(m.table(x)).mean(1)
        return m.second(m.table(y.argmax(-1)))

    parts = {"table": nn.Embedding(40, 16), "first": nn.Linear(16, 40), "second": nn.Linear(16, 5)}
    return Written(body, **parts), {"x": words(8) % 40}


@net
def spatial_transformer() -> Made:
    def body(m: Any, x: Any) -> Any:
        theta = m.turn(x).view(-1, 2, 3) * 0.1 + torch.tensor([[1.0, 0, 0], [0, 1, 0]])
        grid = F.affine_grid(theta, [1, 1, 28, 28], align_corners=False)
        return m.net(F.grid_sample(x, grid, align_corners=False))

    turn = nn.Sequential(nn.Conv2d(1, 4, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(576, 6), nn.Tanh())
    return Written(
        body, turn=turn, net=nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(5408, 10))
    ), {"x": images(28, 1)}


@net
def optical_flow_warp() -> Made:
    def body(m: Any, x: Any, y: Any) -> Any:
        flow = torch.tanh(m.flow(torch.cat([x, y], 1))) * 0.2
        line = torch.linspace(-1, 1, 16)
        base = torch.stack(torch.meshgrid(line, line, indexing="xy"), 0)[None]
        grid = (base + flow).permute(0, 2, 3, 1)
        return F.grid_sample(y, grid, mode="bilinear", padding_mode="border", align_corners=True) - x

    return Written(body, flow=nn.Conv2d(6, 2, 3, padding=1)), {"x": images(16), "y": images(16)[::-1].copy()}


@net
def nearest_warp() -> Made:
    def body(m: Any, x: Any) -> Any:
        grid = torch.tanh(m.place(x)).permute(0, 2, 3, 1)
        return F.grid_sample(x, grid, mode="nearest", padding_mode="zeros", align_corners=False)

    return Written(body, place=nn.Conv2d(3, 2, 3, 2, 1)), {"x": images(16)}


@net
def constant_grid() -> Made:
    def body(m: Any, x: Any) -> Any:
        line = torch.linspace(-0.8, 0.8, 12)
        grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)[None]
        return F.grid_sample(m.conv(x), grid + 0.05, align_corners=False)

    return Written(body, conv=nn.Conv2d(3, 4, 3, padding=1)), {"x": images(16)}


@net
def image_in_bytes() -> Made:
    def body(m: Any, x: Any) -> Any:
        return m.net((x.permute(0, 3, 1, 2).float() / 255 - 0.45) / 0.22)

    pictures = np.clip(images(32).transpose(0, 2, 3, 1) * 60 + 128, 0, 255).astype(np.uint8)
    tail = nn.Sequential(block(3, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    return Written(body, net=tail), {"x": np.ascontiguousarray(pictures)}


@net
def maxout_branches() -> Made:
    def body(m: Any, x: Any) -> Any:
        a, b, c = m.a(x), m.b(x), m.c(x)
        chosen = torch.where(a > b, torch.maximum(a, c), torch.minimum(b, c))
        return m.head(chosen.clamp(-1, 2).masked_fill(c < -1, 0.0))

    parts = {name: nn.Linear(12, 12) for name in "abc"}
    return Written(body, **parts, head=nn.Linear(12, 4)), {"x": noise(12)}


@net
def mixture_of_experts() -> Made:
    def body(m: Any, x: Any) -> Any:
        weights = torch.softmax(m.gate(x), -1)
        values, places = weights.topk(2, -1)
        kept = torch.zeros_like(weights).scatter(-1, places, values)
        out = torch.stack([expert(x) for expert in m.experts], 1)
        return (kept[..., None] * out).sum(1)

    experts = nn.ModuleList(nn.Sequential(nn.Linear(12, 16), nn.SiLU(), nn.Linear(16, 6)) for _ in range(4))
    return Written(body, gate=nn.Linear(12, 4), experts=experts), {"x": noise(12)}


@net
def kolmogorov_arnold() -> Made:
    def body(m: Any, x: Any) -> Any:
        basis = torch.exp(-(((x[..., None] - torch.linspace(-2, 2, 6)) / 0.8) ** 2))
        return m.head(F.silu(m.base(x)) + m.mix(basis.flatten(1)))

    return Written(body, base=nn.Linear(8, 16), mix=nn.Linear(48, 16), head=nn.Linear(16, 3)), {"x": noise(8)}


@net
def neural_ode() -> Made:
    def body(m: Any, x: Any) -> Any:
        for _ in range(4):
            x = x + 0.25 * m.slope(x)
        return x

    return Written(body, slope=nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 6))), {"x": noise(6)}


@net
def fourier_features() -> Made:
    def body(m: Any, x: Any) -> Any:
        angle = 2 * torch.pi * x @ m.table.weight.T
        return m.head(torch.cat([angle.sin(), angle.cos()], -1))

    head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3), nn.Sigmoid())
    return Written(body, table=nn.Linear(2, 16), head=head), {"x": noise(2, scale=0.5)}


@net
def spectrogram_net() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = torch.stft(x, 64, 32, window=torch.hann_window(64), return_complex=True, center=False)
        power = torch.view_as_real(y).pow(2).sum(-1)
        return m.net(torch.sqrt(power + 1e-6)[:, None])

    tail = nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    return Written(body, net=tail), {"x": waves(512)}


@net
def graph_convolution() -> Made:
    def body(m: Any, x: Any, links: Any) -> Any:
        degree = links.sum(-1, keepdim=True).clamp(min=1)
        x = F.relu(m.first(links @ x / degree))
        return m.second(links @ x / degree).mean(1)

    links = (np.random.default_rng(7).uniform(size=(SAMPLES, 10, 10)) < 0.3).astype(np.float32) + np.eye(
        10, dtype=np.float32
    )
    return Written(body, first=nn.Linear(8, 16), second=nn.Linear(16, 3)), {"x": noise(10, 8), "links": links}


@net
def point_net() -> Made:
    def body(m: Any, x: Any) -> Any:
        return m.head(m.shared(x.transpose(1, 2)).max(2)[0])

    shared = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 1))
    return Written(body, shared=shared, head=nn.Linear(32, 5)), {"x": noise(64, 3)}


@net
def edge_conv() -> Made:
    def body(m: Any, x: Any) -> Any:
        near = (-torch.cdist(x, x)).topk(4, -1).indices
        around = torch.gather(x[:, None].expand(-1, 16, -1, -1), 2, near[..., None].expand(-1, -1, -1, 3))
        edges = torch.cat([around - x[:, :, None], x[:, :, None].expand(-1, -1, 4, -1)], -1)
        return m.head(m.mlp(edges).amax((1, 2)))

    return Written(body, mlp=nn.Sequential(nn.Linear(6, 16), nn.ReLU()), head=nn.Linear(16, 4)), {"x": noise(16, 3)}


@net
def siamese() -> Made:
    def body(m: Any, x: Any, y: Any) -> Any:
        return F.cosine_similarity(m.net(x), m.net(y))

    inner = nn.Sequential(block(1, 8, 2), nn.Flatten(), nn.Linear(2048, 16))
    return Written(body, net=inner), {"x": images(32, 1), "y": images(32, 1)[::-1].copy()}


@net
def yolo_head() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = m.net(x).view(-1, 3, 7, 8, 8).permute(0, 1, 3, 4, 2)
        line = torch.arange(8.0)
        grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)
        centre = (y[..., :2].sigmoid() * 2 - 0.5 + grid) * 4
        size = (y[..., 2:4].sigmoid() * 2) ** 2 * torch.tensor([[10.0, 13], [16, 30], [33, 23]]).view(1, 3, 1, 1, 2)
        return torch.cat([centre, size, y[..., 4:].sigmoid()], -1).view(-1, 192, 7)

    return Written(body, net=nn.Sequential(block(3, 12, 2), nn.Conv2d(12, 21, 3, 2, 1))), {"x": images(32)}


@net
def actor_critic() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = m.trunk(x)
        return torch.tanh(m.mean(y)) * 2, m.spread(y).clamp(-5, 2).exp(), m.value(y).squeeze(-1)

    trunk = nn.Sequential(nn.Linear(17, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    return Written(body, trunk=trunk, mean=nn.Linear(64, 6), spread=nn.Linear(64, 6), value=nn.Linear(64, 1)), {
        "x": noise(17)
    }


@net
def dueling_dqn() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = m.trunk(x / 255.0)
        gain = m.gain(y)
        return m.value(y) + gain - gain.mean(1, keepdim=True)

    trunk = nn.Sequential(
        nn.Conv2d(4, 8, 8, 4), nn.ReLU(), nn.Conv2d(8, 16, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(400, 32)
    )
    pictures = np.clip(images(52, 4) * 60 + 128, 0, 255).astype(np.float32)
    return Written(body, trunk=trunk, gain=nn.Linear(32, 5), value=nn.Linear(32, 1)), {"x": pictures}


@net
def complex_pools() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = F.relu(m.conv(x))
        parts = [F.lp_pool2d(y, 2, 2), F.avg_pool2d(y, 3, 2, 1, count_include_pad=False), F.max_pool2d(y, 3, 2, 1)]
        return m.head(torch.cat([*parts, F.avg_pool2d(y, 2, 2, ceil_mode=True)], 1))

    return Written(body, conv=nn.Conv2d(3, 6, 3, padding=1), head=nn.Conv2d(24, 4, 1)), {"x": images(24)}


@net
def local_response_norm() -> Made:
    layers = [nn.Conv2d(3, 16, 5, 2), nn.ReLU(), nn.LocalResponseNorm(5, 1e-2), nn.MaxPool2d(3, 2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(16 * 6 * 6, 5)), {"x": images(32)}


@net
def unpooled() -> Made:
    def body(m: Any, x: Any) -> Any:
        y, places = F.max_pool2d(m.conv(x), 2, return_indices=True)
        return m.head(F.max_unpool2d(m.mid(y), places, 2))

    parts = {"conv": nn.Conv2d(3, 6, 3, padding=1), "mid": nn.Conv2d(6, 6, 3, padding=1), "head": nn.Conv2d(6, 3, 1)}
    return Written(body, **parts), {"x": images(24)}


@net
def dilated_context() -> Made:
    layers = [
        nn.Conv2d(3, 8, 3, padding=2**n, dilation=2**n) if n == 0 else nn.Conv2d(8, 8, 3, padding=2**n, dilation=2**n)
        for n in range(5)
    ]
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU()))), {"x": images(40)}


@net
def bilinear_fusion() -> Made:
    return Written(lambda m, x, y: m.fuse(x, y), fuse=nn.Bilinear(8, 6, 5)), {"x": noise(8), "y": noise(6)}


@net
def rotary_decoder() -> Made:
    def body(m: Any, x: Any) -> Any:
        q, k, v = (each.reshape(-1, 12, 2, 8).transpose(1, 2) for each in m.qkv(m.norm(m.table(x))).split(16, -1))
        angle = torch.arange(12.0)[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.001])
        c, s = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
        q, k = (each * c + torch.cat([-each[..., 4:], each[..., :4]], -1) * s for each in (q, k))
        scores = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(
            ~torch.tril(torch.ones(12, 12, dtype=torch.bool)), -torch.inf
        )
        return m.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    parts = {
        "table": nn.Embedding(100, 16),
        "norm": nn.RMSNorm(16),
        "qkv": nn.Linear(16, 48),
        "out": nn.Linear(16, 100),
    }
    return Written(body, **parts), {"x": words(12) % 100}


@net
def time_series_forecast() -> Made:
    def body(m: Any, x: Any) -> Any:
        mean, spread = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-5
        y = (x - mean) / spread
        trend = F.avg_pool1d(F.pad(y.transpose(1, 2), (12, 12), mode="replicate"), 25, 1)
        out = m.trend(trend) + m.season(y.transpose(1, 2) - trend)
        return out.transpose(1, 2) * spread + mean

    return Written(body, trend=nn.Linear(48, 12), season=nn.Linear(48, 12)), {"x": rows(48, 4) + 3}


@net
def rolled_windows() -> Made:
    def body(m: Any, x: Any) -> Any:
        y = torch.roll(m.conv(x), (2, 2), (2, 3)).flip(3)
        return m.head(torch.rot90(y, 1, (2, 3)).repeat(1, 2, 1, 1).narrow(2, 1, 8)), y.transpose(2, 3).triu()

    return Written(body, conv=nn.Conv2d(3, 4, 3, 2, 1), head=nn.Conv2d(8, 2, 1)), {"x": images(20)}


@net
def depthwise_speech() -> Made:
    layers = [nn.Conv2d(1, 16, (10, 4), (2, 2), (5, 1)), nn.BatchNorm2d(16), nn.ReLU()]
    for _ in range(2):
        layers += [nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 1)]
        layers += [nn.BatchNorm2d(16), nn.ReLU()]
    tail = [nn.AvgPool2d((25, 5)), nn.Flatten(), nn.Linear(16, 12)]
    return nn.Sequential(*layers, *tail), {"x": images(49, 1)[..., :10].copy()}
