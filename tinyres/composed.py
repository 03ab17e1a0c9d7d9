"""The layers' mathematics in primitive ops, one line a step: to read, to draw, to test against.

Each function has a twin of the same name in `tinyres.fused`, which is one node in the graph and
faster. Under `tinyres.spelled_out()` these run in their place.
"""

from __future__ import annotations

import math

import numpy as np

from tinyres import ops
from tinyres.checked import allowed_pairs, checked_heads, checked_index, checked_targets, of_tensors
from tinyres.context import scope
from tinyres.signatures import ArrayLike
from tinyres.tensor import Tensor


@of_tensors(3)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W + b; x (..., in), weight (in, out), bias (out,)."""
    y = x @ weight
    return y if bias is None else y + bias


@of_tensors(1)
@scope("softmax", level=2)
def softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """exp(x) / sum(exp(x)). The largest x is taken off first, so that exp can't overflow."""
    e = ops.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@of_tensors(1)
@scope("log_softmax", level=2)
def log_softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """x - log(sum(exp(x)))."""
    shifted = x - x.max(axis, keepdims=True)
    return shifted - ops.exp(shifted).sum(axis, keepdims=True).log()


@of_tensors(3)
@scope("layer_norm", level=2)
def layer_norm(
    x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, *, eps: float = 1e-5
) -> Tensor:
    """gamma * (x - mean) / sqrt(variance + eps) + beta, each vector of features on its own."""
    x = x - x[..., :1]  # a common offset: without it a row near 1e6 keeps its digits
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    x_hat = centred / (variance + eps).sqrt()
    return _affine(x_hat, gamma, beta)


@of_tensors(2)
@scope("rms_norm", level=2)
def rms_norm(x: Tensor, gamma: Tensor | None = None, *, eps: float = 1e-5) -> Tensor:
    """gamma * x / sqrt(mean(x ** 2) + eps)."""
    x_hat = x / ((x * x).mean(-1, keepdims=True) + eps).sqrt()
    return _affine(x_hat, gamma, None)


def _affine(x_hat: Tensor, gamma: Tensor | None, beta: Tensor | None) -> Tensor:
    y = x_hat if gamma is None else x_hat * gamma
    return y if beta is None else y + beta


@of_tensors(1)
@scope("gelu", level=2)
def gelu(x: Tensor) -> Tensor:
    """x times the probability that a standard normal variable is below x, in its tanh form."""
    return 0.5 * x * (1 + ops.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@of_tensors(3)
@scope("attention", level=-1)
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | ArrayLike | None = None, causal: bool = False
) -> Tensor:
    """softmax(q k^T / sqrt(d)) v, where the mask or causality allows it."""
    with scope("q @ kT / sqrt(d)", level=2):
        scores = (q * q.shape[-1] ** -0.5) @ k.swapaxes(-1, -2)  # (..., T_q, T_k)
        allowed = allowed_pairs(scores.shape, mask, causal)
        if allowed is not None:
            # So low that its weight is exactly 0, yet finite: a row of them is not NaN.
            lowest = np.finfo(scores.dtype).min / 2
            scores = ops.where(allowed, scores, np.asarray(lowest, scores.dtype))
    # (..., T_q, T_k), rows sum to 1; over no keys at all there is nothing to be weighed
    weights = softmax(scores) if scores.shape[-1] else scores
    with scope("@ v", level=2):
        if mask is not None and allowed is not None:  # a row that may attend to nothing gives zeros
            weights = weights * allowed.any(-1, keepdims=True).astype(scores.dtype)
        return weights @ v  # (..., T_q, d)


@of_tensors(3)
def self_attention(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    heads: int,
    mask: Tensor | ArrayLike | None = None,
    causal: bool = False,
) -> Tensor:
    """Attention of every head of x to x, side by side; weight (d, 3 d) holds q, k and v."""
    width = x.shape[-1]
    heads = checked_heads(width, heads)

    def projected(name: str, i: int) -> Tensor:
        part = slice(i * width, (i + 1) * width)
        with scope(f"Linear {name}", level=2):
            y = linear(x, weight[:, part], None if bias is None else bias[part])  # (B, T, d)
            y = y.reshape(*y.shape[:-1], heads, width // heads)  # (B, T, h, d/h)
            return y.swapaxes(-2, -3)  # (B, h, T, d/h)

    q, k, v = (projected(name, i) for i, name in enumerate("qkv"))
    y = attention(q, k, v, mask=mask, causal=causal)  # (B, h, T, d/h)
    with scope("join heads", level=2):
        return y.swapaxes(-2, -3).reshape(x.shape)  # (B, T, d)


@of_tensors(1)
@scope("embedding", level=2)
def embedding(weight: Tensor, index: Tensor | ArrayLike) -> Tensor:
    """Row `index` of the table, for each index."""
    return weight[checked_index("embedding: index", index, len(weight))]


@of_tensors(1)
@scope("cross_entropy", level=2)
def cross_entropy(
    logits: Tensor, targets: Tensor | ArrayLike, *, ignore_index: int | None = None
) -> Tensor:
    """Mean of -log p(target) over the targets that count."""
    targets = checked_targets(logits.shape, targets, ignore_index)
    rows = logits.reshape(-1, logits.shape[-1])
    flat = targets.reshape(-1)
    counted = (
        np.flatnonzero(flat != ignore_index) if ignore_index is not None else np.arange(flat.size)
    )
    log_p = log_softmax(rows)[counted, flat[counted]]
    return -log_p.sum() / max(counted.size, 1)
