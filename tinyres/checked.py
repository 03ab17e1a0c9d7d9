"""What is given to a layer beside its arrays: masks, indices and targets, looked at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tinyres import expect
from tinyres.arrays import Array, as_array, copied
from tinyres.signatures import TensorFunction
from tinyres.tensor import Tensor


def of_tensors(count: int) -> Callable[[Callable[..., Tensor]], TensorFunction]:
    """Let a function take lists, numbers and arrays for the first `count` of its arguments.

    What goes wrong in it is explained as the errors of ops are.
    """

    def decorate(function: Callable[..., Tensor]) -> TensorFunction:
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


def allowed_pairs(shape: tuple[int, ...], mask: Any, causal: bool) -> Array | None:
    """Which query may attend to which key, of shape (..., T_q, T_k); None where all may."""
    allowed = checked_mask(mask)
    if not causal:
        return allowed
    lower = np.tri(shape[-2], shape[-1]).astype(bool)
    return lower if allowed is None else lower & allowed


def checked_mask(mask: Any) -> Array | None:
    """The mask as a bool array."""
    if mask is None:
        return None
    allowed = np.asanyarray(mask._data if isinstance(mask, Tensor) else mask)
    if allowed.dtype != bool:
        raise TypeError(f"attention: mask must be bool (True = may attend), got {allowed.dtype}")
    return allowed


def checked_heads(width: int, heads: Any) -> int:
    """A number of heads among which the features of one token can be split."""
    number = expect.size("self_attention: heads", heads)
    if width % number or width == 0:
        raise ValueError(f"self_attention: width {width} can't be split among {number} heads")
    return number


def integers(what: str, value: Any) -> Array:
    """A copy of `value`, which must hold integers or nothing."""
    try:
        array = copied(value._data if isinstance(value, Tensor) else value)
    except ValueError:
        raise ValueError(
            f"{what} must be integers in rows of one length, got {expect.shown(value)}"
        ) from None
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"{what} must hold integers, got {array.dtype}: {expect.shown(value)}")
    return array if array.dtype.kind in "iu" else array.astype(np.int64)


def checked_index(what: str, index: Any, size: int, ignore: int | None = None) -> Array:
    """A copy of integers from 0 to size - 1, where they are not to be ignored."""
    numbers = integers(what, index)
    outside = (numbers < 0) | (numbers >= size)
    if ignore is not None:
        given = expect.shown(ignore)
        wanted = f"{what}: ignore_index must be an integer or None, got {given}"
        outside &= numbers != expect.integer(ignore, wanted)
    if outside.any():
        raise IndexError(f"{what} has {numbers[outside][0]}, but it must be from 0 to {size - 1}")
    return numbers


def checked_targets(shape: tuple[int, ...], targets: Any, ignore_index: Any) -> Array:
    """A copy of the targets of logits of this shape: one a row, and each one of the classes."""
    if not shape or shape[-1] == 0:
        raise ValueError("cross_entropy: logits must be (..., classes), with a class or more")
    classes = checked_index("cross_entropy: targets", targets, shape[-1], ignore_index)
    if classes.shape != shape[:-1]:
        raise ValueError(
            f"cross_entropy: targets must have shape {shape[:-1]}, one a row of logits, "
            f"but have {classes.shape}"
        )
    return classes


def tensors(what: str, params: Any) -> list[Tensor]:
    """A list of the tensors in `params`."""
    if not isinstance(params, Iterable):
        raise TypeError(f"{what}: params must be a list of tensors, got {expect.shown(params)}")
    return [expect.instance(f"{what}: each of params", p, Tensor, "a tensor") for p in params]
