"""A second way to a derivative, which shares nothing with the package: dual numbers.

A dual number is a value and how fast it changes when the inputs move in one direction. Each
function here has the name and the arguments of one in `tinyres` and carries both along, forwards:
no tape, no pullback, no broadcasting to undo. `kink` is how near the values came to a place where a
function has no derivative; there, differences say nothing.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

INF = math.inf


class Dual(NamedTuple):
    """A value, its rate of change, and the distance to the nearest kink on the way to it."""

    value: np.ndarray
    rate: np.ndarray
    kink: float = INF

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape


def constant(value: Any) -> Dual:
    value = np.asarray(value, float)
    return Dual(value, np.zeros_like(value))


def _dual(value: Any, rate: Any, *inputs: Dual, kink: float = INF) -> Dual:
    value = np.asarray(value)
    rate = np.broadcast_to(rate, value.shape)
    return Dual(value, rate, min([kink, *[d.kink for d in inputs]]))


def _by_slope(x: Dual, value: Any, slope: Any, kink: float = INF) -> Dual:
    return _dual(value, slope * x.rate, x, kink=kink)


def _smallest(distance: np.ndarray) -> float:
    return float(np.abs(distance).min(initial=INF))


# ---------------------------------------------------------------- elementwise


def add(a: Dual, b: Dual) -> Dual:
    return _dual(a.value + b.value, a.rate + b.rate, a, b)


def sub(a: Dual, b: Dual) -> Dual:
    return add(a, scale(b, by=-1))


def mul(a: Dual, b: Dual) -> Dual:
    return _dual(a.value * b.value, a.rate * b.value + a.value * b.rate, a, b)


def div(a: Dual, b: Dual) -> Dual:
    return mul(a, _by_slope(b, b.value**-1.0, -(b.value**-2.0)))


def power(a: Dual, b: Dual) -> Dual:
    return exp(mul(b, log(a)))


def maximum(a: Dual, b: Dual) -> Dual:
    first = a.value > b.value
    kink = _smallest(a.value - b.value)
    return _dual(
        np.where(first, a.value, b.value), np.where(first, a.rate, b.rate), a, b, kink=kink
    )


def where(condition: Any, a: Dual, b: Dual) -> Dual:
    return _dual(
        np.choose(condition, [b.value, a.value]), np.choose(condition, [b.rate, a.rate]), a, b
    )


def shift(x: Dual, *, by: float) -> Dual:
    return _dual(x.value + by, x.rate, x)


def scale(x: Dual, *, by: float) -> Dual:
    return _dual(x.value * by, x.rate * by, x)


def raise_to(x: Dual, *, exponent: float) -> Dual:
    return _by_slope(x, np.power(x.value, exponent), exponent * np.power(x.value, exponent - 1))


def exp(x: Dual) -> Dual:
    return _by_slope(x, np.exp(x.value), np.exp(x.value))


def log(x: Dual) -> Dual:
    return _by_slope(x, np.log(x.value), 1 / x.value)


def sqrt(x: Dual) -> Dual:
    return raise_to(x, exponent=0.5)


def tanh(x: Dual) -> Dual:
    return _by_slope(x, np.tanh(x.value), np.cosh(x.value) ** -2.0)


def sigmoid(x: Dual) -> Dual:
    return _by_slope(x, 1 / (1 + np.exp(-x.value)), 0.25 * np.cosh(x.value / 2) ** -2.0)


def relu(x: Dual) -> Dual:
    return _by_slope(x, x.value.clip(0), np.heaviside(x.value, 0), kink=_smallest(x.value))


def gelu(x: Dual) -> Dual:
    cube = mul(x, mul(x, x))
    inner = scale(add(x, scale(cube, by=0.044715)), by=math.sqrt(8 / math.pi))
    return mul(x, sigmoid(inner))  # (1 + tanh z) / 2 = sigmoid(2 z)


# ---------------------------------------------------------------- along axes


def _linear_map(x: Dual, f: Any) -> Dual:
    return _dual(f(x.value), f(x.rate), x)


def sum(x: Dual, *, axis: Any = None, keepdims: bool = False) -> Dual:
    return _linear_map(x, lambda a: np.sum(a, axis=axis, keepdims=keepdims))


def mean(x: Dual, *, axis: Any = None, keepdims: bool = False) -> Dual:
    return _linear_map(x, lambda a: np.mean(a, axis=axis, keepdims=keepdims))


def var(x: Dual, *, axis: Any = None, keepdims: bool = False) -> Dual:
    square_of_mean = mul(*[mean(x, axis=axis, keepdims=keepdims)] * 2)
    return sub(mean(mul(x, x), axis=axis, keepdims=keepdims), square_of_mean)


def norm(x: Dual, *, axis: Any = None, keepdims: bool = False) -> Dual:
    return sqrt(sum(mul(x, x), axis=axis, keepdims=keepdims))


def max(x: Dual, *, axis: Any = None, keepdims: bool = False) -> Dual:
    top = np.max(x.value, axis=axis, keepdims=True)
    among = x.value == top
    rate = np.sum(np.where(among, x.rate, 0), axis=axis, keepdims=True)
    rate = rate / np.sum(among, axis=axis, keepdims=True)
    kink = _smallest(np.where(among, INF, top - x.value))
    kink = 0.0 if among.sum() > top.size else kink
    shape = np.max(x.value, axis=axis, keepdims=keepdims).shape
    return _dual(top.reshape(shape), rate.reshape(shape), x, kink=kink)


def matmul(a: Dual, b: Dual) -> Dual:
    return _dual(a.value @ b.value, a.rate @ b.value + a.value @ b.rate, a, b)


# ---------------------------------------------------------------- shape


def reshape(x: Dual, *, shape: Any) -> Dual:
    return _linear_map(x, lambda a: np.reshape(a, shape))


def transpose(x: Dual, *, axes: Any = None) -> Dual:
    return _linear_map(x, lambda a: np.transpose(a, axes))


def getitem(x: Dual, *, index: Any) -> Dual:
    return _linear_map(x, lambda a: a[index])


def concatenate(parts: list[Dual], axis: int = 0) -> Dual:
    return _dual(*[np.concatenate([p[i] for p in parts], axis) for i in (0, 1)], *parts)


def stack(parts: list[Dual], axis: int = 0) -> Dual:
    return _dual(*[np.stack([p[i] for p in parts], axis) for i in (0, 1)], *parts)


# ---------------------------------------------------------------- the functions of layers


def softmax(x: Dual, *, axis: int = -1) -> Dual:
    e = exp(sub(x, constant(x.value.max(axis, keepdims=True))))  # a constant: it changes nothing
    return div(e, sum(e, axis=axis, keepdims=True))


def log_softmax(x: Dual, *, axis: int = -1) -> Dual:
    return log(softmax(x, axis=axis))


def layer_norm(x: Dual, gamma: Dual, beta: Dual, *, eps: float = 1e-5) -> Dual:
    centred = sub(x, mean(x, axis=-1, keepdims=True))
    return add(mul(rms_norm(centred, gamma, eps=eps), constant(1.0)), beta)


def rms_norm(x: Dual, gamma: Dual, *, eps: float = 1e-5) -> Dual:
    size = mean(mul(x, x), axis=-1, keepdims=True)
    return mul(mul(x, raise_to(shift(size, by=eps), exponent=-0.5)), gamma)


def linear(x: Dual, weight: Dual, bias: Dual) -> Dual:
    products = mul(getitem(x, index=(..., None)), weight)  # (..., in, out)
    return add(sum(products, axis=-2), bias)


def attention(q: Dual, k: Dual, v: Dual, *, causal: bool = False) -> Dual:
    pairs = mul(getitem(q, index=(..., slice(None), None, slice(None))),
                getitem(k, index=(..., None, slice(None), slice(None))))  # fmt: skip
    weights = exp(scale(sum(pairs, axis=-1), by=1 / math.sqrt(q.shape[-1])))
    if causal:
        weights = mul(weights, constant(np.tri(*weights.shape[-2:])))
    weights = div(weights, sum(weights, axis=-1, keepdims=True))
    return matmul(weights, v)


def cross_entropy(logits: Dual, targets: Any) -> Dual:
    picked = np.eye(logits.shape[-1])[targets]
    return scale(mean(sum(mul(log_softmax(logits), constant(picked)), axis=-1)), by=-1)


def mse(a: Dual, b: Dual) -> Dual:
    return mean(mul(sub(a, b), sub(a, b)))


def residual(x: Dual, fx: Dual) -> Dual:
    return add(x, fx)
