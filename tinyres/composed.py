"""The layers' mathematics in primitive ops, one line a step: to read, to draw, to test against.

Each function has a twin of the same name in `tinyres.fused`, which is one node in the graph and
faster. Under `tinyres.spelled_out()` these run in their place.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tinyres import expect, ops
from tinyres.arrays import Array, as_array
from tinyres.context import scope
from tinyres.tensor import Tensor

# A score so low that its weight is exactly 0, yet finite: a row of them is not NaN.
FORBIDDEN = -1e30


def of_tensors(count: int) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Let a function take lists, numbers and arrays for the first `count` of its arguments.

    What goes wrong in it is explained as the errors of ops are.
    """

    def decorate(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        name = function.__name__

        @functools.wraps(function)
        def run(*args: Any, **options: Any) -> Tensor:
            try:
                arrays = [
                    a if a is None or isinstance(a, Tensor) else Tensor(as_array(a, what=name))
                    for a in args[:count]
                ]
                return function(*arrays, *args[count:], **options)
            except expect.EXPLAINED as error:
                raise expect.explained(name, error, args, options) from error

        return run

    return decorate


@of_tensors(3)
def linear(x: Any, weight: Any, bias: Any = None) -> Tensor:
    """x W + b; x (..., in), weight (in, out), bias (out,)."""
    y = x @ weight
    return y if bias is None else y + bias


@of_tensors(1)
@scope("softmax", level=2)
def softmax(x: Any, *, axis: int = -1) -> Tensor:
    """exp(x) / sum(exp(x)). The largest x is taken off first, so that exp can't overflow."""
    e = ops.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@of_tensors(1)
@scope("log_softmax", level=2)
def log_softmax(x: Any, *, axis: int = -1) -> Tensor:
    """x - log(sum(exp(x)))."""
    shifted = x - x.max(axis, keepdims=True)
    return shifted - ops.exp(shifted).sum(axis, keepdims=True).log()


@of_tensors(3)
@scope("layer_norm", level=2)
def layer_norm(x: Any, gamma: Any = None, beta: Any = None, *, eps: float = 1e-5) -> Tensor:
    """gamma * (x - mean) / sqrt(variance + eps) + beta, each vector of features on its own."""
    x = x - x[..., :1]  # a common offset: without it a row near 1e6 keeps its digits
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    x_hat = centred / (variance + eps).sqrt()
    return _affine(x_hat, gamma, beta)


@of_tensors(2)
@scope("rms_norm", level=2)
def rms_norm(x: Any, gamma: Any = None, *, eps: float = 1e-5) -> Tensor:
    """gamma * x / sqrt(mean(x ** 2) + eps)."""
    x_hat = x / ((x * x).mean(-1, keepdims=True) + eps).sqrt()
    return _affine(x_hat, gamma, None)


def _affine(x_hat: Tensor, gamma: Any, beta: Any) -> Tensor:
    y = x_hat if gamma is None else x_hat * gamma
    return y if beta is None else y + beta


@of_tensors(1)
@scope("gelu", level=2)
def gelu(x: Any) -> Tensor:
    """x times the probability that a standard normal variable is below x, in its tanh form."""
    return 0.5 * x * (1 + ops.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@of_tensors(3)
@scope("attention", level=-1)
def attention(q: Any, k: Any, v: Any, *, mask: Any = None, causal: bool = False) -> Tensor:
    """softmax(q k^T / sqrt(d)) v, where the mask or causality allows it."""
    with scope("q @ kT / sqrt(d)", level=2):
        scores = (q * q.shape[-1] ** -0.5) @ k.swapaxes(-1, -2)  # (..., T_q, T_k)
        allowed: Any = allowed_pairs(scores.shape, mask, causal)
        if allowed is not None:
            scores = ops.where(allowed, scores, np.asarray(FORBIDDEN, scores.dtype))
    # (..., T_q, T_k), rows sum to 1; over no keys at all there is nothing to be weighed
    weights: Any = softmax(scores) if scores.shape[-1] else scores
    with scope("@ v", level=2):
        if mask is not None:  # a row that may attend to nothing gives zeros
            weights = weights * allowed.any(-1, keepdims=True).astype(scores.dtype)
        return weights @ v  # (..., T_q, d)


def allowed_pairs(shape: tuple[int, ...], mask: Any, causal: bool) -> Array | None:
    """Which query may attend to which key, of shape (..., T_q, T_k); None where all may."""
    mask = checked_mask(mask)
    if not causal:
        return mask
    lower = np.tri(shape[-2], shape[-1]).astype(bool)
    return lower if mask is None else lower & mask


def checked_mask(mask: Any) -> Array | None:
    """The mask as a bool array."""
    if mask is None:
        return None
    mask = np.asarray(mask._data if isinstance(mask, Tensor) else mask)
    if mask.dtype != bool:
        raise TypeError(f"attention: mask must be bool (True = may attend), got {mask.dtype}")
    return mask


@of_tensors(3)
def self_attention(
    x: Any, weight: Any, bias: Any = None, *, heads: int, mask: Any = None, causal: bool = False
) -> Tensor:
    """Attention of every head of x to x, side by side; weight (d, 3 d) holds q, k and v."""
    width = x.shape[-1]

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


def integers(what: str, value: Any) -> Array:
    """A copy of `value`, which must hold integers or nothing."""
    try:
        array = np.array(value._data if isinstance(value, Tensor) else value)
    except ValueError:
        raise ValueError(
            f"{what} must be integers in rows of one length, got {expect.shown(value)}"
        ) from None
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"{what} must hold integers, got {array.dtype}: {expect.shown(value)}")
    return array if array.dtype.kind in "iu" else array.astype(np.int64)


def checked_index(what: str, index: Any, size: int, ignore: int | None = None) -> Array:
    """A copy of integers from 0 to size - 1, where they are not to be ignored."""
    index = integers(what, index)
    outside = (index < 0) | (index >= size)
    if ignore is not None:
        if not isinstance(ignore, int | np.integer):
            given = expect.shown(ignore)
            raise TypeError(f"{what}: ignore_index must be an integer or None, got {given}")
        outside &= index != ignore
    if outside.any():
        raise IndexError(f"{what} has {index[outside][0]}, but it must be from 0 to {size - 1}")
    return index


def checked_targets(shape: tuple[int, ...], targets: Any, ignore_index: Any) -> Array:
    """A copy of the targets of logits of this shape: one a row, and each one of the classes."""
    if not shape or shape[-1] == 0:
        raise ValueError("cross_entropy: logits must be (..., classes), with a class or more")
    targets = checked_index("cross_entropy: targets", targets, shape[-1], ignore_index)
    if targets.shape != shape[:-1]:
        raise ValueError(
            f"cross_entropy: targets must have shape {shape[:-1]}, one a row of logits, "
            f"but have {targets.shape}"
        )
    return targets


@of_tensors(1)
@scope("embedding", level=2)
def embedding(weight: Any, index: Any) -> Tensor:
    """Row `index` of the table, for each index."""
    return weight[checked_index("embedding: index", index, len(weight))]


@of_tensors(1)
@scope("cross_entropy", level=2)
def cross_entropy(logits: Any, targets: Any, *, ignore_index: int | None = None) -> Tensor:
    """Mean of -log p(target) over the targets that count."""
    targets = checked_targets(logits.shape, targets, ignore_index)
    rows = logits.reshape(-1, logits.shape[-1])
    flat = targets.reshape(-1)
    counted = (
        np.flatnonzero(flat != ignore_index) if ignore_index is not None else np.arange(flat.size)
    )
    log_p = log_softmax(rows)[counted, flat[counted]]
    return -log_p.sum() / max(counted.size, 1)
