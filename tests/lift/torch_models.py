"""torch models written as well-known repositories write theirs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class GPT(nn.Module):
    """As nanoGPT: fused projections, flash attention, scaled last weights, tied or not."""

    def __init__(self, width: int, *, tied: bool = False, flash: bool = True, depth: int = 2):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(40, width), nn.Embedding(16, width)
        self.h = nn.ModuleList(GPTBlock(width, flash) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, 40, bias=False)
        if tied:
            self.lm_head.weight = self.wte.weight
        self.apply(self.draw)
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, std=0.2 / math.sqrt(2 * depth))

    def draw(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.2)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        t = idx.size(1)
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x)[:, [-1], :])


class GPTBlock(nn.Module):
    def __init__(self, width: int, flash: bool):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = GPTAttention(width, flash)
        self.c_fc, self.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(new_gelu(self.c_fc(self.ln_2(x))))


def new_gelu(x: torch.Tensor) -> torch.Tensor:
    """As minGPT writes it."""
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


class GPTAttention(nn.Module):
    def __init__(self, width: int, flash: bool):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.n_head, self.flash = 4, flash
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("bias", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(c, dim=2)
        q, k, v = (a.view(b, t, self.n_head, c // self.n_head).transpose(1, 2) for a in (q, k, v))
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
            y = self.dropout(F.softmax(att, dim=-1)) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class LlamaLike(nn.Module):
    """As the reference code of Llama: rotations, RMSNorm and SwiGLU by hand, grouped keys."""

    def __init__(self, width: int):
        super().__init__()
        self.tok = nn.Embedding(40, width)
        self.wq, self.wk = linear(width, width), linear(width, width // 2)
        self.wv, self.wo = linear(width, width // 2), linear(width, width)
        self.w1, self.w3 = linear(width, 2 * width), linear(width, 2 * width)
        self.w2 = linear(2 * width, width)
        self.gain = nn.Parameter(torch.ones(width))
        self.output = nn.Linear(width, 5, bias=False)

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * self.gain

    def turn(self, x: torch.Tensor) -> torch.Tensor:
        d, t = x.shape[-1], x.shape[1]
        freqs = 1.0 / (10000.0 ** (torch.arange(0, d, 2).float() / d))
        angles = torch.outer(torch.arange(t).float(), freqs)[None, :, None, :]
        one, two = x[..., ::2], x[..., 1::2]
        cos, sin = angles.cos(), angles.sin()
        return torch.stack([one * cos - two * sin, one * sin + two * cos], dim=-1).flatten(3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.tok(tokens)
        x = self.norm(h)
        b, t, n = x.shape
        q = self.wq(x).view(b, t, 4, -1)
        k, v = (w(x).view(b, t, 2, -1) for w in (self.wk, self.wv))
        q, k = self.turn(q), self.turn(k)
        k, v = (torch.repeat_interleave(a, 2, dim=2) for a in (k, v))
        q, k, v = (a.transpose(1, 2) for a in (q, k, v))
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(n // 4)
        scores = scores + torch.triu(torch.full((t, t), float("-inf")), diagonal=1)
        y = torch.matmul(F.softmax(scores.float(), dim=-1).type_as(q), v)
        h = h + self.wo(y.transpose(1, 2).contiguous().view(b, t, -1))
        x = self.norm(h)
        h = h + self.w2(F.silu(self.w1(x)) * self.w3(x))
        return self.output(self.norm(h)[:, -1])


class EinsumBlock(nn.Module):
    """Attention by einsum, queries, keys and values interleaved, LayerNorm by hand."""

    def __init__(self, width: int):
        super().__init__()
        self.into = nn.Linear(3, width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.head = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.into(x)
        mean = x.mean(dim=-1, keepdim=True)
        var = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
        h = (x - mean) / torch.sqrt(var + 1e-5)
        q, k, v = self.qkv(h).unflatten(-1, (4, -1, 3)).permute(4, 0, 2, 1, 3)
        sim = torch.einsum("b h i d, b h j d -> b h i j", q, k) * q.shape[-1] ** -0.5
        y = torch.einsum("b h i j, b h j d -> b h i d", sim.softmax(dim=-1), v)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return self.head(x.mean(dim=1))


class Mixer(nn.Module):
    """Weights across positions: refused, as positions are not a width."""

    def __init__(self, width: int):
        super().__init__()
        self.into, self.head = nn.Linear(3, width), nn.Linear(width, 4)
        self.tokens = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.into(x)
        return self.head((x + self.tokens(x.transpose(1, 2)).transpose(1, 2)).mean(1))


class PostNorm(nn.Module):
    """torch.nn's own encoder, as tutorials use it."""

    def __init__(self, width: int, **options: Any):
        super().__init__()
        self.embed = nn.Embedding(40, width)
        given = {"batch_first": True, "dim_feedforward": 2 * width} | options
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 4, **given) for _ in range(2))
        self.head = nn.Linear(width, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(dim=1))


class Residual(nn.Module):
    """A small residual network with BatchNorm."""

    def __init__(self, width: int, pool: type[nn.Module] = nn.AvgPool2d):
        super().__init__()
        first = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.stem = nn.Sequential(first, nn.BatchNorm2d(width))
        self.block = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip
        self.pool, self.fc = pool(2), nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        x = self.pool(F.relu(x + self.block(x)))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Positional(nn.Module):
    """Sines and cosines, as in torch's tutorial."""

    def __init__(self, width: int, table: torch.Tensor | None = None):
        super().__init__()
        place = torch.arange(16)[:, None] * torch.exp(
            torch.arange(0, width, 2) * (-math.log(10000.0) / width)
        )
        sines = torch.stack([place.sin(), place.cos()], -1).flatten(1)
        self.register_buffer("pe", sines if table is None else table)
        self.embed, self.head = nn.Embedding(40, width), nn.Linear(width, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head((self.embed(ids) + self.pe[: ids.shape[1]]).mean(1))


def mlp(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(192, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, 10),
    )  # fmt: skip


def lenet(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(9 * width, width), nn.Tanh(), nn.Linear(width, 4),
    )  # fmt: skip
