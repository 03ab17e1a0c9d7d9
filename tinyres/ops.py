"""The primitive ops: each a NumPy function that returns its value and its pullback.

A pullback takes the cotangent `g` of the value and returns that of each input. It need not undo
broadcasting, and it never writes into `g` or into what it captured: others hold those arrays too.
"""

from __future__ import annotations

import builtins
import copy
from collections.abc import Iterable
from typing import Any

import numpy as np

from tinyres.arrays import Array
from tinyres.signatures import ArrayLike, Axis, Cotangents, ValueAndPullback
from tinyres.tensor import Tensor, op

# ---------------------------------------------------------------- elementwise, two inputs


@op
def add(a: Array, b: Array) -> ValueAndPullback:
    """Sum a + b, elementwise."""
    return a + b, lambda g: (g, g)


@op
def sub(a: Array, b: Array) -> ValueAndPullback:
    """Difference a - b, elementwise."""
    return a - b, lambda g: (g, -g)


@op
def mul(a: Array, b: Array) -> ValueAndPullback:
    """Product a * b, elementwise."""
    return a * b, lambda g: (g * b, g * a)


@op
def div(a: Array, b: Array) -> ValueAndPullback:
    """Quotient a / b, elementwise."""
    value = a / b
    return value, lambda g: (g / b, -g * value / b)


@op
def power(a: Array, b: Array) -> ValueAndPullback:
    """a ** b, elementwise; the gradient of b is 0 where a <= 0."""
    value = a**b
    a, b = a.astype(value.dtype, copy=False), b.astype(value.dtype, copy=False)

    def pullback(g: Array) -> Cotangents:
        gb = np.where(a > 0, value * np.log(np.where(a > 0, a, 1)), 0)
        return g * b * a ** np.where(b == 0, 1, b - 1), g * gb

    return value, pullback


@op
def maximum(a: Array, b: Array) -> ValueAndPullback:
    """The larger of a and b, elementwise; equal ones share the gradient."""
    share_a = (a > b) + (a == b) * np.result_type(a, b).type(0.5)
    return np.maximum(a, b), lambda g: (g * share_a, g * (1 - share_a))


@op
def where(condition: Array, a: Array, b: Array) -> ValueAndPullback:
    """a where the condition holds, b elsewhere."""
    zero = np.zeros((), a.dtype)

    def pullback(g: Array) -> Cotangents:
        return None, np.where(condition, g, zero), np.where(condition, zero, g)

    return np.where(condition, a, b), pullback


# ---------------------------------------------------------------- elementwise, one input


@op
def shift(x: Array, *, by: float) -> ValueAndPullback:
    """x + a number."""
    return x + by, lambda g: (g,)


@op
def scale(x: Array, *, by: float) -> ValueAndPullback:
    """x * a number."""
    return x * by, lambda g: (g * by,)


@op
def raise_to(x: Array, *, exponent: float) -> ValueAndPullback:
    """x ** a number. At 0 the gradient of x ** 0 is 0, and that of a root is infinite."""
    return x**exponent, lambda g: (g * (exponent * x ** (exponent - 1 if exponent else 0)),)


@op
def exp(x: Array) -> ValueAndPullback:
    """e ** x."""
    value = np.exp(x)
    return value, lambda g: (g * value,)


@op
def log(x: Array) -> ValueAndPullback:
    """Natural logarithm."""
    return np.log(x), lambda g: (g / x,)


@op
def sqrt(x: Array) -> ValueAndPullback:
    """Square root; its gradient at 0 is infinite."""
    value = np.sqrt(x)
    return value, lambda g: (g / (2 * value),)


@op
def tanh(x: Array) -> ValueAndPullback:
    """Hyperbolic tangent."""
    value = np.tanh(x)
    return value, lambda g: (g * (1 - value * value),)


@op
def sigmoid(x: Array) -> ValueAndPullback:
    """1 / (1 + exp(-x)), by way of tanh, which does not overflow."""
    value = 0.5 * np.tanh(0.5 * x) + 0.5
    return value, lambda g: (g * value * (1 - value),)


@op
def relu(x: Array) -> ValueAndPullback:
    """max(x, 0); its gradient at 0 is 0."""
    value = np.maximum(x, np.zeros(x.shape[-1:], x.dtype))  # twice as fast as with a number
    return value, lambda g: (g * (value > 0).astype(g.dtype),)  # a bool factor takes longer


# ---------------------------------------------------------------- along axes


def _spread(reduced: Array, x_shape: tuple[int, ...], axis: Axis, keepdims: bool) -> Array:
    """A reduced array, repeated along the axes over which it was reduced."""
    if not keepdims:
        axes = tuple(range(len(x_shape))) if axis is None else axis
        reduced = np.expand_dims(reduced, axes)
    return np.broadcast_to(reduced, x_shape)


@op
def sum(x: Array, *, axis: Axis = None, keepdims: bool = False) -> ValueAndPullback:
    """Sum over `axis`, over all by default."""
    shape = x.shape
    value = x.sum(axis=axis, keepdims=keepdims)
    return value, lambda g: (_spread(g, shape, axis, keepdims),)


@op
def mean(x: Array, *, axis: Axis = None, keepdims: bool = False) -> ValueAndPullback:
    """Mean over `axis`."""
    value, shape = x.mean(axis=axis, keepdims=keepdims), x.shape
    count = x.size / builtins.max(np.size(value), 1)
    return value, lambda g: (_spread(g / count, shape, axis, keepdims),)


@op
def var(x: Array, *, axis: Axis = None, keepdims: bool = False) -> ValueAndPullback:
    """Biased variance over `axis`: the mean of (x - mean) ** 2."""
    value = x.var(axis=axis, keepdims=keepdims)
    centred = x - x.mean(axis=axis, keepdims=True)
    count = x.size / builtins.max(np.size(value), 1)
    return value, lambda g: (_spread(g * 2 / count, x.shape, axis, keepdims) * centred,)


@op
def max(x: Array, *, axis: Axis = None, keepdims: bool = False) -> ValueAndPullback:
    """Largest value over `axis`; equal ones share the gradient."""
    value = x.max(axis=axis, keepdims=keepdims)
    ties = x == x.max(axis=axis, keepdims=True)
    share = ties / ties.sum(axis=axis, keepdims=True, dtype=x.dtype)
    return value, lambda g: (_spread(g, x.shape, axis, keepdims) * share,)


@op
def norm(x: Array, *, axis: Axis = None, keepdims: bool = False) -> ValueAndPullback:
    """Length sqrt(sum(x ** 2)) over `axis`; the gradient of the zero vector is 0."""
    value = np.sqrt((x * x).sum(axis=axis, keepdims=keepdims))

    def pullback(g: Array) -> Cotangents:
        length = _spread(value, x.shape, axis, keepdims)
        unit = x / np.where(length == 0, 1, length)
        return (_spread(g, x.shape, axis, keepdims) * unit,)

    return value, pullback


@op
def matmul(a: Array, b: Array) -> ValueAndPullback:
    """Matrix product a @ b; 1-D operands are a row on the left and a column on the right."""

    def pullback(g: Array) -> Cotangents:
        if a.ndim == b.ndim == 1:
            return g * b, g * a
        rows, columns = np.atleast_2d(a), b[:, None] if b.ndim == 1 else b
        if a.ndim == 1:
            g = np.expand_dims(g, -2)
        if b.ndim == 1:
            g = np.expand_dims(g, -1)
        ga, gb = g @ columns.swapaxes(-1, -2), rows.swapaxes(-1, -2) @ g
        return ga[..., 0, :] if a.ndim == 1 else ga, gb[..., 0] if b.ndim == 1 else gb

    return a @ b, pullback


@op
def reshape(x: Array, *, shape: tuple[int, ...]) -> ValueAndPullback:
    """The same elements in another shape."""
    before = x.shape
    return x.reshape(shape), lambda g: (g.reshape(before),)


@op
def transpose(x: Array, *, axes: tuple[int, ...] | None = None) -> ValueAndPullback:
    """The axes in another order, reversed by default."""
    value = x.transpose(axes)
    back = None if axes is None else tuple(np.argsort([a % x.ndim for a in axes]))
    return value, lambda g: (g.transpose(back),)


@op
def getitem(x: Array, *, index: Any) -> ValueAndPullback:
    """x[index]; an element taken twice gets both gradients."""
    shape, dtype = x.shape, x.dtype
    parts = index if isinstance(index, tuple) else (index,)
    once = all(p is None or p is Ellipsis or isinstance(p, int | slice) for p in parts)
    kept = index if once else copy.deepcopy(index)  # its owner may change an array

    def pullback(g: Array) -> Cotangents:
        out = np.zeros(shape, dtype, like=g)
        if once:
            out[kept] = g
        else:
            np.add.at(out, kept, g)
        return (out,)

    return x[index], pullback


@op
def concatenate_(*arrays: Array, axis: int) -> ValueAndPullback:
    """Arrays joined along an axis that they have."""
    ends = np.cumsum([a.shape[axis] for a in arrays])[:-1]
    return np.concatenate(arrays, axis), lambda g: np.split(g, ends, axis)


@op
def stack_(*arrays: Array, axis: int) -> ValueAndPullback:
    """Arrays of one shape joined along a new axis."""
    return np.stack(arrays, axis), lambda g: tuple(np.moveaxis(g, axis, 0))


def concatenate(tensors: Iterable[Tensor | ArrayLike], axis: int = 0) -> Tensor:
    """Join tensors along an axis that they have.

    >>> concatenate([Tensor([1.0]), Tensor([2.0, 3.0])])
    Tensor([1. 2. 3.])
    """
    return concatenate_(*tensors, axis=axis)


def stack(tensors: Iterable[Tensor | ArrayLike], axis: int = 0) -> Tensor:
    """Join tensors of one shape along a new axis.

    >>> stack([Tensor([1.0, 2.0]), Tensor([3.0, 4.0])]).shape
    (2, 2)
    """
    return stack_(*tensors, axis=axis)
