"""The same mathematics as in `tinyres.composed`, each function one node with its own pullback.

This is what the layers run. One node instead of ten spares the interpreter, and a pullback that is
derived by hand needs fewer passes over memory; in NumPy these passes are what costs time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tinyres import checked, composed, expect
from tinyres.arrays import Array, filled
from tinyres.attend import attend
from tinyres.context import note_draw
from tinyres.recorded import whole
from tinyres.signatures import ArrayLike, Cotangents, ValueAndPullback
from tinyres.tensor import Tensor, op

# Sums over the first or the last axis are written as products with a vector of ones: BLAS does
# them several times faster than `.sum`.


@op(spelled_out=composed.linear)
def linear(x: Array, weight: Array, bias: Array | None = None) -> ValueAndPullback:
    """x W + b.

    x (..., in), weight (in, out), bias (out,) or None.

    >>> linear(Tensor([[1.0, 2.0]]), Tensor([[1.0], [10.0]]), Tensor([0.5]))
    Tensor([[21.5]])
    """
    if weight.ndim != 2 or x.shape[-1:] != weight.shape[:1]:
        raise ValueError(
            f"linear: weight must be (in, out) with in = {x.shape[-1:]}, the last length of x, "
            f"but it is {weight.shape}"
        )
    rows = x.reshape(-1, x.shape[-1])
    y = rows @ weight
    if bias is not None:
        y += bias
    shape = x.shape

    def pullback(g: Array) -> Cotangents:
        g = g.reshape(len(rows), g.shape[-1])
        gx = (g @ weight.T).reshape(shape)
        return gx, rows.T @ g, None if bias is None else filled(len(g), 1, g.dtype) @ g

    return y.reshape(*shape[:-1], weight.shape[1]), pullback


@op(spelled_out=composed.softmax)
def softmax(x: Array, *, axis: int = -1) -> ValueAndPullback:
    """exp(x) / sum(exp(x)) over `axis`.

    >>> softmax(Tensor([0.0, 0.0]))
    Tensor([0.5 0.5])
    """
    y = np.exp(x - x.max(axis=axis, keepdims=True))
    y /= y.sum(axis=axis, keepdims=True)
    return y, lambda g: (y * (g - (g * y).sum(axis=axis, keepdims=True)),)


@op(spelled_out=composed.log_softmax)
def log_softmax(x: Array, *, axis: int = -1) -> ValueAndPullback:
    """x - log(sum(exp(x))) over `axis`.

    >>> log_softmax(Tensor([0.0, 0.0]))
    Tensor([-0.6931 -0.6931])
    """
    y = x - x.max(axis=axis, keepdims=True)
    y -= np.log(np.exp(y).sum(axis=axis, keepdims=True))
    return y, lambda g: (g - np.exp(y) * g.sum(axis=axis, keepdims=True),)


@op(spelled_out=composed.layer_norm)
def layer_norm(
    x: Array, gamma: Array | None = None, beta: Array | None = None, *, eps: float = 1e-5
) -> ValueAndPullback:
    """gamma * (x - mean) / sqrt(variance + eps) + beta over the last axis (Ba et al. 2016, eq. 4).

    x (..., d), gamma and beta (d,) or None; the variance is the biased one.

    >>> layer_norm(Tensor([2.0, 4.0, 6.0]))
    Tensor([-1.2247  0.      1.2247])
    """
    d = _checked_width("layer_norm", x, eps, gamma, beta)
    rows = x.reshape(-1, d)
    mean_of = filled(d, 1 / d, x.dtype)
    # Less its first value, a row of numbers near 1e6 keeps its digits when the mean is taken.
    x_hat = rows - rows[:, :1]
    x_hat -= (x_hat @ mean_of)[:, None]
    scale = 1 / np.sqrt((x_hat * x_hat) @ mean_of + float(eps))
    x_hat *= scale[:, None]
    y = x_hat * gamma if gamma is not None else x_hat.copy()
    if beta is not None:
        y += beta

    def pullback(g: Array) -> Cotangents:
        g = g.reshape(rows.shape)
        weighted_mean = mean_of if gamma is None else gamma / d
        g_x_hat = g * x_hat
        # The mean and the part along x_hat can't pass: the output doesn't change with either.
        gx = g.copy() if gamma is None else g * gamma
        gx -= (g @ weighted_mean)[:, None]
        gx -= x_hat * (g_x_hat @ weighted_mean)[:, None]
        gx *= scale[:, None]
        ones = filled(len(g), 1, g.dtype)
        return gx.reshape(x.shape), ones @ g_x_hat, ones @ g

    return y.reshape(x.shape), pullback


@op(spelled_out=composed.rms_norm)
def rms_norm(x: Array, gamma: Array | None = None, *, eps: float = 1e-5) -> ValueAndPullback:
    """gamma * x / sqrt(mean(x ** 2) + eps) over the last axis (Zhang and Sennrich 2019, eq. 4).

    x (..., d), gamma (d,) or None.

    >>> rms_norm(Tensor([3.0, 4.0]), eps=0.0)
    Tensor([0.8485 1.1314])
    """
    d = _checked_width("rms_norm", x, eps, gamma)
    rows = x.reshape(-1, d)
    scale = 1 / np.sqrt(np.vecdot(rows, rows) / d + float(eps))
    x_hat = rows * scale[:, None]
    y = x_hat * gamma if gamma is not None else x_hat
    weights = filled(d, 1 / d, x.dtype) if gamma is None else gamma / d

    def pullback(g: Array) -> Cotangents:
        g = g.reshape(rows.shape)
        g_x_hat = g * x_hat
        gx = x_hat * -(g_x_hat @ weights)[:, None]
        gx += g if gamma is None else g * gamma
        gx *= scale[:, None]
        return gx.reshape(x.shape), filled(len(g), 1, g.dtype) @ g_x_hat

    return y.reshape(x.shape), pullback


def _checked_width(name: str, x: Array, eps: float, *vectors: Array | None) -> int:
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"{name}: x must be (..., d) with features to take the mean of")
    if not eps >= 0:
        raise ValueError(f"{name}: eps must be a number >= 0")
    d = int(x.shape[-1])
    for vector in vectors:
        if vector is not None and vector.shape != (d,):
            raise ValueError(
                f"{name}: gamma and beta must have shape ({d},), one number a feature, "
                f"but one has {vector.shape}"
            )
    return d


@op(spelled_out=composed.gelu)
def gelu(x: Array) -> ValueAndPullback:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x ** 3))) (Hendrycks and Gimpel 2016, sec. 2).

    >>> gelu(Tensor([-1.0, 0.0, 1.0]))
    Tensor([-0.1588  0.      0.8412])
    """
    c = math.sqrt(2 / math.pi)
    half = np.asanyarray(x * x)  # an array even without dimensions, for out= below
    half *= c * 0.044715
    half += c
    half *= x
    np.tanh(half, out=half)
    half *= 0.5
    half += 0.5  # (1 + tanh) / 2

    def pullback(g: Array) -> Cotangents:
        # d/dx = half + x/2 (1 - tanh^2) c (1 + 3 * 0.044715 x^2); 1 - tanh^2 = 4 half (1 - half).
        # Kept is one array: to compute x * x again is faster than to fetch it from far away.
        slope = np.asanyarray(x * x)
        slope *= 6 * c * 0.044715
        slope += 2 * c
        slope *= x
        slope *= half
        slope *= 1 - half
        slope += half
        slope *= g
        return (slope,)

    return x * half, pullback


# ---------------------------------------------------------------- attention


@op(spelled_out=composed.attention)
def attention(
    q: Array, k: Array, v: Array, *, mask: Tensor | ArrayLike | None = None, causal: bool = False
) -> ValueAndPullback:
    """softmax(q k^T / sqrt(d)) v (Vaswani et al. 2017, eq. 1).

    q (..., T_q, d), k (..., T_k, d), v (..., T_k, d_v). `mask` is bool, True = may attend, and
    broadcasts to (..., T_q, T_k). A row that may attend to nothing gives zeros.

    >>> one = Tensor([[1.0], [1.0]])
    >>> attention(one, one, Tensor([[0.0], [4.0]]), causal=True)
    Tensor([[0.]
            [2.]])
    """
    too_few = min(q.ndim, k.ndim, v.ndim) < 2 or q.shape[-1] == 0
    if too_few or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(
            "attention: expected q (..., T_q, d), k (..., T_k, d) and v (..., T_k, d_v), d >= 1, "
            f"got {q.shape}, {k.shape} and {v.shape}"
        )
    batch = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    q, k, v = (np.broadcast_to(a, batch + a.shape[-2:]) for a in (q, k, v))
    y = np.empty((*q.shape[:-1], v.shape[-1]), np.result_type(q, k, v), like=q)
    back = attend(q, k, v, y, allowed=checked.checked_mask(mask), causal=causal)

    def pullback(g: Array) -> Cotangents:
        gradients = [np.empty(a.shape, g.dtype, like=g) for a in (q, k, v)]
        back(g, *gradients)
        return gradients

    return y, pullback


@op(spelled_out=composed.self_attention)
def self_attention(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    heads: int,
    mask: Tensor | ArrayLike | None = None,
    causal: bool = False,
) -> ValueAndPullback:
    """Multi-head self-attention up to the output projection (Vaswani et al. 2017, sec. 3.2.2).

    x (..., T, d), weight (d, 3 d) for queries, keys and values, bias (3 d,) or None; `mask`
    broadcasts to (..., heads, T, T). Head i has features i d/h to (i + 1) d/h.

    >>> x = Tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> self_attention(x, Tensor(np.zeros((2, 6), "f4")), heads=2).shape
    (2, 2)
    """
    if x.ndim < 2:
        raise ValueError(f"self_attention: x must be (..., T, d), but is {x.shape}")
    d = x.shape[-1]
    heads = checked.checked_heads(d, heads)
    if weight.shape != (d, 3 * d):
        raise ValueError(f"self_attention: weight must be ({d}, {3 * d}), but is {weight.shape}")
    rows = x.reshape(-1, d)
    qkv = rows @ weight
    if bias is not None:
        qkv += bias
    split = (*x.shape[:-1], 3, heads, d // heads)

    def by_head(packed: Array) -> list[Array]:
        """q, k and v as views (..., h, T, d/h) into an array (N, 3 d): nothing is copied."""
        return [packed.reshape(split)[..., i, :, :].swapaxes(-2, -3) for i in range(3)]

    y = np.empty_like(x, order="C")
    y_heads = y.reshape(*x.shape[:-1], heads, d // heads).swapaxes(-2, -3)
    allowed = checked.checked_mask(mask)
    q, k, v = by_head(qkv)
    back = attend(q, k, v, y_heads, allowed=allowed, causal=causal)

    def pullback(g: Array) -> Cotangents:
        g_heads = g.reshape(*x.shape[:-1], heads, d // heads).swapaxes(-2, -3)
        g_qkv = np.empty_like(qkv)
        back(g_heads, *by_head(g_qkv))
        g_bias = None if bias is None else filled(len(rows), 1, g.dtype) @ g_qkv
        return (g_qkv @ weight.T).reshape(x.shape), rows.T @ g_qkv, g_bias

    return y, pullback


# ---------------------------------------------------------------- tables, losses, dropout


@op(spelled_out=composed.embedding)
def embedding(weight: Array, *, index: Tensor | ArrayLike) -> ValueAndPullback:
    """Row `index` of a table, for each index.

    weight (n, d), index an integer array (...); the result is (..., d).

    >>> embedding(Tensor([[1.0], [2.0]]), [1, 1, 0])
    Tensor([[2.]
            [2.]
            [1.]])
    """
    if weight.ndim != 2:
        raise ValueError(f"embedding: weight must be (n, d), one vector a row, not {weight.shape}")
    index = checked.checked_index("embedding: index", index, len(weight))
    shape, dtype = weight.shape, weight.dtype

    def pullback(g: Array) -> Cotangents:
        return (_summed_rows(g, index, shape, dtype),)

    return weight[index], pullback


@whole
def _summed_rows(g: Array, index: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """The sum of those vectors of g that belong to each row of the table."""
    # Equal indices next to each other, so that each row of the table is one sum.
    order = np.argsort(index, axis=None, kind="stable")
    rows, starts = np.unique(index.reshape(-1)[order], return_index=True)
    out = np.zeros(shape, dtype)
    if rows.size:
        out[rows] = np.add.reduceat(g.reshape(index.size, *shape[1:])[order], starts, axis=0)
    return out


@op(spelled_out=composed.cross_entropy)
def cross_entropy(
    logits: Array, *, targets: Tensor | ArrayLike, ignore_index: int | None = None
) -> ValueAndPullback:
    """Mean of -log softmax(logits)[target] over the targets that count, in nats.

    logits (..., classes), targets integers (...). Targets equal to `ignore_index` do not count;
    if none counts, the loss is 0. A target that is no class is an IndexError.

    >>> cross_entropy(Tensor([[0.0, 0.0]]), [1])
    Tensor(0.6931)
    """
    targets = checked.checked_targets(logits.shape, targets, ignore_index)
    classes = logits.shape[-1]
    rows, flat = logits.reshape(-1, classes), targets.reshape(-1)
    counted = np.arange(flat.size) if ignore_index is None else np.flatnonzero(flat != ignore_index)
    picked = counted, flat[counted]
    count = max(counted.size, 1)
    shifted = rows - rows.max(axis=-1, keepdims=True)
    e = np.exp(shifted)
    total = e.sum(axis=-1, keepdims=True)
    loss = (np.log(total[counted, 0]) - shifted[picked]).sum() / count

    def pullback(g: Array) -> Cotangents:
        weight = np.zeros((len(rows), 1), rows.dtype, like=g)
        weight[counted] = g / count
        out = e * (weight / total)
        out[picked] -= weight[counted, 0]
        return (out.reshape(logits.shape),)

    return loss, pullback


@op
def residual(x: Array, fx: Array) -> ValueAndPullback:
    """x + F(x): an addition that is marked as a residual one, and does not broadcast.

    >>> residual(Tensor([2.0, 4.0, 6.0]), Tensor([0.5, -1.0, 0.5]))
    Tensor([2.5 3.  6.5])
    """
    same_shape(x, fx)
    return x + fx, lambda g: (g, g)


def same_shape(x: Tensor | Array, fx: Tensor | Array) -> None:
    """Refuse a branch that returns another shape: added to x it would broadcast."""
    if x.shape != fx.shape:
        raise ValueError(
            f"residual: F(x) has shape {fx.shape} but x has {x.shape}: "
            "the branch must return what it was given"
        )


@op
def mse(prediction: Array, target: Array) -> ValueAndPullback:
    """Mean of (prediction - target) ** 2; both of one shape.

    >>> mse(Tensor([1.0, 2.0]), Tensor([1.0, 4.0]))
    Tensor(2.)
    """
    if prediction.shape != target.shape:
        raise ValueError(
            f"mse: prediction has shape {prediction.shape} but target has {target.shape}: "
            "reshape one of them; broadcasting would compare each with all"
        )
    error = prediction - target
    slope = 2 / max(error.size, 1)
    return (error * error).mean(), lambda g: ((g * slope) * error, (g * -slope) * error)


@op
def dropout_(x: Array, *, keep: Array) -> ValueAndPullback:
    """x times the given mask, which holds 0 or 1 / (1 - p)."""
    return x * keep, lambda g: (g * keep,)


def dropout(
    x: Tensor | ArrayLike, p: float, rng: np.random.Generator, *, training: bool = True
) -> Tensor:
    """Each element 0 with probability p, else x / (1 - p) (Srivastava et al. 2014).

    >>> dropout(Tensor([1.0, 1.0]), 1.0, np.random.default_rng(0))
    Tensor([0. 0.])
    """
    p = expect.number("dropout: p", p, 0, 1)
    x = x if isinstance(x, Tensor) else Tensor(x)
    if not training or p == 0:
        return x
    expect.instance("dropout: rng", rng, np.random.Generator, "a numpy random Generator")
    note_draw(rng)
    kept = _uniform(rng, x.shape) >= p
    keep = kept.astype(x.dtype) / max(1 - p, 1e-30)
    return dropout_(x, keep=keep)


@whole
def _uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.random(shape, dtype=np.float32)
