"""What flows through a stack: the size of the stream, its gradient, how alike its vectors are.

Each probe takes a `TransformerLM` and a batch `(tokens, targets)` and returns a plain array with
one entry a place of the residual stream: 0 is what the embedding gives, l what block l returns.
No probe changes the model or the gradients in it.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from tinyres import expect, fused
from tinyres.arrays import Array
from tinyres.context import no_grad
from tinyres.nn.layers import MultiHeadAttention
from tinyres.nn.residual import Residual
from tinyres.nn.transformer import TransformerLM
from tinyres.tensor import Tensor

Batch: TypeAlias = tuple[Any, Any]


def _pair(batch: Any) -> Batch:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise TypeError(f"probe: batch must be (tokens, targets), got {expect.shown(batch)}")
    return batch[0], batch[1]


def stream(model: TransformerLM, tokens: Any) -> list[Tensor]:
    """The residual stream x_0 ... x_L, each (B, T, d_model)."""
    expect.instance("probe: model", model, TransformerLM, "a TransformerLM")
    values = [model.embed(tokens)]
    for block in model.stack.blocks:
        values.append(block(values[-1]))
    return values


@no_grad()
def stream_rms(model: TransformerLM, batch: Batch) -> Array:
    """sqrt(mean(x_l ** 2)), shape (blocks + 1,)."""
    return np.array([np.sqrt(np.mean(x.data**2)) for x in stream(model, _pair(batch)[0])])


@no_grad()
def token_cosine(model: TransformerLM, batch: Batch) -> Array:
    """Mean cosine between two tokens of one sequence, shape (blocks + 1,).

    Near 1 all tokens have become the same vector: attention can't tell them apart any more, and
    no gradient reaches queries and keys (Dong et al. 2021, sec. 2).
    """
    return np.array([_mean_cosine(x.data) for x in stream(model, _pair(batch)[0])])


def _mean_cosine(x: Array) -> float:
    unit = x.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=-1, keepdims=True) + 1e-300
    t = x.shape[1]
    if t < 2:
        return float("nan")  # a token alone has nobody to be compared with
    pairs = (unit.sum(1) ** 2).sum(-1) - t  # of each sequence: all ordered pairs of two tokens
    return float(pairs.mean() / (t * (t - 1)))


@no_grad()
def neighbour_cosine(model: TransformerLM, batch: Batch) -> Array:
    """Mean cosine between x_(l-1) and x_l, shape (blocks,): 1 where a block does little."""
    values = [x.data.astype(np.float64) for x in stream(model, _pair(batch)[0])]
    return np.array([
        np.mean(np.vecdot(a, b) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)))
        for a, b in itertools.pairwise(values)
    ])  # fmt: skip


def stream_gradient(model: TransformerLM, batch: Batch) -> Array:
    """Norm of dLoss/dx_l over the whole batch, shape (blocks + 1,)."""
    return _gradients(model, batch)[0]


def weight_gradients(model: TransformerLM, batch: Batch) -> dict[str, float]:
    """Norm of the gradient of each parameter, by its path."""
    return _gradients(model, batch)[1]


def _gradients(model: TransformerLM, batch: Batch) -> tuple[Array, dict[str, float]]:
    expect.instance("probe: model", model, TransformerLM, "a TransformerLM")
    kept = [(p, p.grad) for p in model.parameters()]
    model.zero_grad()
    try:
        values = stream(model, _pair(batch)[0])
        for x in values:
            x.retain_grad()
        top = values[-1] if model.stack.final_norm is None else model.stack.final_norm(values[-1])
        fused.cross_entropy(model.head(top), _pair(batch)[1]).backward()
        of_stream = np.array([float(np.linalg.norm(x.grad)) for x in values])  # type: ignore[arg-type]
        of_weights = {
            name: float("nan") if p.grad is None else float(np.linalg.norm(p.grad))
            for name, p in model.named_parameters()
        }
    finally:
        for p, grad in kept:
            p.grad = None
            if grad is not None and p._node is not None:
                p._node.grad = grad
    return of_stream, of_weights


def update_ratio(before: dict[str, Array], after: dict[str, Array]) -> dict[str, float]:
    """||W_after - W_before|| / ||W_before|| of each parameter, from two state dicts.

    >>> update_ratio({"w": np.array([3.0, 4.0])}, {"w": np.array([3.0, 4.5])})
    {'w': 0.1}
    """
    for which, state in (("before", before), ("after", after)):
        expect.instance(f"update_ratio: {which}", state, Mapping, "a state dict")
    if before.keys() != after.keys():
        raise KeyError(
            "update_ratio: both states must have the same names, but before has "
            f"{sorted(before)} and after {sorted(after)}"
        )
    return {
        name: float(np.linalg.norm(after[name] - w) / max(float(np.linalg.norm(w)), 1e-30))
        for name, w in before.items()
    }


@no_grad()
def attention_entropy(model: TransformerLM, batch: Batch) -> Array:
    """Mean entropy of the attention weights over log(number of keys seen), shape (blocks, heads).

    1 where a head averages over everything that it may see, 0 where it looks at one token.
    """
    expect.instance("probe: model", model, TransformerLM, "a TransformerLM")
    rows = []
    x = model.embed(_pair(batch)[0])
    for block in model.stack.blocks:
        rows.append(_entropies(block.attention, x))
        x = block(x)
    return np.array(rows)


def _entropies(placed: Residual, x: Tensor) -> Array:
    """Entropy of each head's weights, for what the placement gives its attention to see."""
    attention = next(m for m in placed.modules() if isinstance(m, MultiHeadAttention))
    weights: list[Array] = []
    listening = copy.copy(placed)

    def branch(x: Tensor) -> Tensor:
        weights.append(attention.weights(x).astype(np.float64))  # (B, h, T, T)
        return placed.branch(x)

    listening.branch = branch
    listening(x)
    p = weights[0]
    entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(-1)  # (B, h, T)
    keys = (p > 0).sum(-1)
    choice = keys > 1  # a token that sees only itself has none
    share = entropy / np.log(np.maximum(keys, 2))
    return np.sum(share, axis=(0, 2), where=choice) / np.maximum(choice.sum((0, 2)), 1)


def report(model: TransformerLM, batch: Batch) -> dict[str, Array]:
    """All the probes with one entry a place or a block, by name."""
    probes = (stream_rms, token_cosine, neighbour_cosine, stream_gradient, attention_entropy)
    return {probe.__name__: probe(model, batch) for probe in probes}
