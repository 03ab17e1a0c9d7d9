"""What a pullback returns must fit the inputs of its op: the one place where that is seen to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinyres.arrays import Array, plain_array
from tinyres.expect import shown


def fit(
    h: Any,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    g: Array,
    op: str,
    slot: int,
) -> Array:
    """Cotangent `h` of input `slot`, made of the cotangent g of the output of `op`, in the shape
    and dtype of that input.

    Axes along which the input was broadcast are summed. None stands for zeros. What doesn't fit
    otherwise is an error that names the op.

    >>> f32 = np.dtype("f4")
    >>> fit(np.ones((2, 3), "f4"), (3,), f32, np.ones((2, 3), "f4"), "add", 1)
    array([2., 2., 2.], dtype=float32)
    """
    given: Array = np.zeros(shape, dtype, like=g) if h is None else plain_array(h)
    h = given
    if h.shape != shape:
        h = unbroadcast(h, shape)
    if h.shape != shape:
        raise ValueError(
            f"{op}: its pullback returned a cotangent of shape {given.shape} for input {slot}, "
            f"which has shape {shape}: each input's cotangent must have its shape"
        )
    # Beside a float64 operand an op promotes a float32 one; by itself a pullback may not widen.
    if h.dtype not in (dtype, g.dtype):
        raise TypeError(
            f"{op}: its pullback returned a cotangent of dtype {h.dtype} for input {slot}, which "
            f"has dtype {dtype}: compute in the dtype of the inputs"
        )
    fitted: Array = h.astype(dtype, copy=False)
    return fitted


def unbroadcast(g: Array, shape: tuple[int, ...]) -> Array:
    """Sum `g` over the axes along which an array of `shape` was repeated to fit.

    >>> unbroadcast(np.ones((2, 3)), (2, 1))
    array([[3.], [3.]])
    """
    g = g.sum(axis=tuple(range(g.ndim - len(shape))))
    repeated = tuple(i for i, n in enumerate(g.shape[: len(shape)]) if shape[i] == 1 != n)
    return plain_array(g.sum(axis=repeated, keepdims=True))


def one_each(op: str, returned: Any, inputs: int) -> Sequence[Any]:
    """What a pullback returned: a tuple or list with a cotangent for each input.

    There may be more of them, for arrays that the op can take and was not given.

    >>> one_each("scale", np.ones(3), 1)
    Traceback (most recent call last):
    ...
    TypeError: scale: its pullback must return a tuple of one cotangent, (dx,) with the comma, got \
(3,) float64
    """
    if returned.__class__ in (tuple, list) and len(returned) >= inputs:
        return returned
    wanted = f"{inputs} cotangents, one for each input (None where there is none)"
    wanted = "one cotangent, (dx,) with the comma" if inputs == 1 else wanted
    given = f"{len(returned)} of them" if isinstance(returned, tuple | list) else shown(returned)
    raise TypeError(f"{op}: its pullback must return a tuple of {wanted}, got {given}")
