"""The same training step in tinyres and in its peers: forward, backward, Adam update.

`build(workload)` of each peer returns a function that runs one step and returns the loss.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Workload(NamedTuple):
    """A decoder-only Pre-LN model with FFN 4 d and a final norm, and the size of a batch."""

    d_model: int
    heads: int
    blocks: int
    tokens: int
    batch: int
    activation: str
    vocab: int = 96


WORKLOADS = {
    "tiny": Workload(16, 1, 100, 16, 4, "relu"),
    "deep": Workload(32, 2, 48, 32, 8, "relu"),
    "class": Workload(64, 4, 12, 64, 16, "relu"),
    "class-gelu": Workload(64, 4, 12, 64, 16, "gelu"),
    "wide": Workload(256, 8, 6, 128, 16, "gelu"),
}


def batch_of(w: Workload) -> tuple[np.ndarray, np.ndarray]:
    """Random tokens and the tokens that follow them."""
    text = np.random.default_rng(0).integers(0, w.vocab, (w.batch, w.tokens + 1))
    return text[:, :-1], text[:, 1:]


def build_tinyres(w: Workload, parts: int = 1) -> Callable[[], float]:
    """A step of tinyres, its batch in `parts` threads."""
    import tinyres as tr

    model = tr.nn.TransformerLM(
        w.vocab, w.d_model, w.heads, w.blocks, w.tokens, activation=w.activation, rng=0
    )
    optimizer = tr.optim.Adam(model.parameters(), lr=1e-3)
    tokens, targets = batch_of(w)

    def step() -> float:
        optimizer.zero_grad()
        if parts > 1:
            loss = tr.data_parallel(model.loss, tokens, targets, threads=parts)
        else:
            mean = model.loss(tokens, targets)
            mean.backward()
            loss = mean.item()
        optimizer.step()
        return loss

    return step


def build_torch(w: Workload) -> Callable[[], float]:
    """A step of PyTorch, eager, written as its users write it for speed."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(w.d_model), nn.LayerNorm(w.d_model)
            self.qkv = nn.Linear(w.d_model, 3 * w.d_model)
            self.out = nn.Linear(w.d_model, w.d_model)
            self.up = nn.Linear(w.d_model, 4 * w.d_model)
            self.down = nn.Linear(4 * w.d_model, w.d_model)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, t, d = x.shape
            qkv = self.qkv(self.norm1(x)).view(b, t, 3, w.heads, d // w.heads)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
            h = self.up(self.norm2(x))
            h = F.relu(h) if w.activation == "relu" else F.gelu(h, approximate="tanh")
            return x + self.down(h)

    token, position = nn.Embedding(w.vocab, w.d_model), nn.Embedding(w.tokens, w.d_model)
    blocks = nn.Sequential(*[Block() for _ in range(w.blocks)])
    norm, head = nn.LayerNorm(w.d_model), nn.Linear(w.d_model, w.vocab)
    parts = nn.ModuleList([token, position, blocks, norm, head])
    optimizer = torch.optim.Adam(parts.parameters(), lr=1e-3, foreach=True)
    tokens, targets = (torch.from_numpy(a) for a in batch_of(w))
    places = torch.arange(w.tokens)

    def step() -> float:
        optimizer.zero_grad()
        logits = head(norm(blocks(token(tokens) + position(places))))
        loss = F.cross_entropy(logits.view(-1, w.vocab), targets.reshape(-1))
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def build_bare_matmuls(w: Workload) -> Callable[[], float]:
    """Only the matrix products of that step, in NumPy: the limit for anything built on it."""
    from tinyres.memory import keep_pages

    keep_pages()
    rng = np.random.default_rng(0)
    n, d = w.batch * w.tokens, w.d_model

    def array(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    linears = [(array(n, i), array(i, o), array(n, o)) for i, o in
               [(d, 3 * d), (d, d), (d, 4 * d), (4 * d, d)]]  # fmt: skip
    q, g = (array(w.batch, w.heads, w.tokens, d // w.heads) for _ in range(2))
    scores = array(w.batch, w.heads, w.tokens, w.tokens)
    head = array(n, d), array(d, w.vocab), array(n, w.vocab)

    def linear(x: np.ndarray, weight: np.ndarray, gy: np.ndarray) -> None:
        _ = x @ weight, gy @ weight.T, x.T @ gy

    def step() -> float:
        for _ in range(w.blocks):
            for parts in linears:
                linear(*parts)
            _ = q @ q.swapaxes(-1, -2), g @ q.swapaxes(-1, -2)
            _ = scores @ q, scores.swapaxes(-1, -2) @ g, scores @ g, scores.swapaxes(-1, -2) @ q
        linear(*head)
        return 0.0

    return step


PEERS: dict[str, Callable[[Workload], Callable[[], float]]] = {
    "tinyres": build_tinyres,
    "tinyres in 2 parts": functools.partial(build_tinyres, parts=2),
    "PyTorch": build_torch,
    "bare products": build_bare_matmuls,
}
