"""The same training step in other libraries, each written as its users write it for speed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.bench import plain
from tests.bench.models import (
    Step,
    Workload,
    batch_of,
    build_bare_products,
    build_tinyres,
    weights_of,
)


def build_torch(w: Workload, adam: str = "foreach") -> Step:
    """PyTorch, eager: fused attention and LayerNorm, and Adam over lists of tensors."""
    import torch
    from torch import nn
    from torch.nn import functional as F

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
    parts = nn.ModuleDict(
        {"token": token, "position": position, "blocks": blocks, "norm": norm, "head": head}
    )
    of_blocks, state = weights_of(w)
    for i, block in enumerate(of_blocks):
        state |= {f"blocks.{i}.{name}": array for name, array in block.items()}
    tables = {"token.weight", "position.weight"}  # nn.Linear computes x @ W.T
    parts.load_state_dict(
        {k: torch.from_numpy(a if k in tables else a.T.copy()) for k, a in state.items()}
    )
    optimizer = torch.optim.Adam(parts.parameters(), lr=1e-3, **{adam: True})
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


def build_jax(w: Workload) -> Step:
    """JAX: the whole step compiled, `lax.scan` over the blocks, buffers given back to it."""
    import jax
    from jax import lax
    from jax import numpy as jnp

    blocks, around = weights_of(w)
    stacked = {name: np.stack([block[name] for block in blocks]) for name in blocks[0]}
    params = jax.tree.map(jnp.asarray, (stacked, around))
    tokens, targets = batch_of(w)

    def loss(params: Any, tokens: Any, targets: Any) -> Any:
        stacked, around = params

        def through_blocks(x: Any) -> Any:
            return lax.scan(lambda x, p: (plain.block(jnp, w, x, p), None), x, stacked)[0]

        return plain.loss(jnp, w, through_blocks, around, tokens, targets)

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def update(params: Any, m: Any, v: Any, step: Any, tokens: Any, targets: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, tokens, targets)
        each = jax.tree.map(lambda *arrays: plain.adam(*arrays, step), params, grads, m, v)
        return value, *jax.tree.transpose(jax.tree.structure(params), None, each)

    m, v = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
    state, count = (params, m, v), 0

    def step() -> float:
        nonlocal state, count
        count += 1
        value, *new = update(*state, np.float32(count), tokens, targets)
        state = tuple(new)
        return float(value)

    return step


def update_in_place(params: list[Any], state: list[Any], step: int, grads: list[Any]) -> None:
    """Adam for the peers whose parameters are NumPy arrays."""
    for i, (p, g) in enumerate(zip(params, grads)):
        p[...], *state[i] = plain.adam(p, g, *state[i], np.float32(step))


def build_autograd(w: Workload) -> Step:
    """HIPS autograd."""
    import autograd
    from autograd import numpy as anp

    blocks, around = weights_of(w)
    tokens, targets = batch_of(w)
    dicts = [*blocks, around]
    params = [array for d in dicts for array in d.values()]
    state: list[Any] = [[np.zeros_like(p), np.zeros_like(p)] for p in params]
    count = 0

    def loss(dicts: Any) -> Any:
        return plain.eager_loss(anp, w, dicts[:-1], dicts[-1], tokens, targets)

    def step() -> float:
        nonlocal count
        count += 1
        value, grads = autograd.value_and_grad(loss)(dicts)
        update_in_place(params, state, count, [g for d in grads for g in d.values()])
        return float(value)

    return step


def build_mygrad(w: Workload) -> Step:
    """MyGrad, without its guard against writing into arrays, which costs time."""
    import mygrad as mg

    mg.turn_memory_guarding_off()
    blocks, around = weights_of(w)
    tokens, targets = batch_of(w)
    dicts = [{name: mg.tensor(a) for name, a in d.items()} for d in [*blocks, around]]
    params = [p for d in dicts for p in d.values()]
    state: list[Any] = [[np.zeros_like(p.data), np.zeros_like(p.data)] for p in params]
    count = 0

    def step() -> float:
        nonlocal count
        count += 1
        loss = plain.eager_loss(mg, w, dicts[:-1], dicts[-1], tokens, targets)
        loss.backward()
        update_in_place([p.data for p in params], state, count, [p.grad for p in params])
        return loss.item()

    return step


ONE_BATCH, REPLAYED = "tinyres, one batch", "tinyres, replayed"
# The halves of the batch in two threads or in two processes, each with one thread for BLAS.
IN_THREADS, IN_PROCESSES = "tinyres, 2 threads", "tinyres, 2 processes"
REPLAYED_IN_PROCESSES = "tinyres, replayed in 2 processes"
IN_HALVES = (IN_THREADS, IN_PROCESSES, REPLAYED_IN_PROCESSES)
OURS = (ONE_BATCH, REPLAYED, *IN_HALVES)
PRODUCTS = "bare products"
PEERS: dict[str, Callable[[Workload], Step]] = {
    ONE_BATCH: build_tinyres,
    REPLAYED: functools.partial(build_tinyres, way="replayed"),
    IN_THREADS: functools.partial(build_tinyres, way="threads"),
    IN_PROCESSES: functools.partial(build_tinyres, way="processes"),
    REPLAYED_IN_PROCESSES: functools.partial(build_tinyres, way="replayed processes"),
    "PyTorch": build_torch,
    "PyTorch, fused Adam": functools.partial(build_torch, adam="fused"),
    "JAX": build_jax,
    "MyGrad": build_mygrad,
    "autograd": build_autograd,
    PRODUCTS: build_bare_products,
}
# What has to be installed for a peer to run.
MODULES = {
    "PyTorch": "torch", "PyTorch, fused Adam": "torch", "JAX": "jax", "MyGrad": "mygrad",
    "autograd": "autograd",
}  # fmt: skip
