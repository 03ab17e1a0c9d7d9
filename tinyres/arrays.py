"""Plain arrays: what may become one, and whether one was changed in place since an op took it."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tinyres import expect
from tinyres.operators import SCALAR, Operators

Array: TypeAlias = npt.NDArray[Any]


def as_array(data: Any, dtype: npt.DTypeLike | None = None, what: str = "Tensor") -> Array:
    """A C-contiguous copy of `data`; Python numbers become float32, arrays keep their dtype.

    `what` begins the message of the TypeError or ValueError for anything else.

    >>> as_array([1, 2]).dtype, as_array(np.arange(2)).dtype
    (dtype('float32'), dtype('int64'))
    """
    data = data._data if isinstance(data, Operators) else data
    try:
        array = copied(data)
    except (TypeError, ValueError):
        raise ValueError(
            f"{what}: expected numbers in rows of one length, got {expect.shown(data)}"
        ) from None
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"{what}: expected float, int or bool, got {type(data).__name__} of {array.dtype}: "
            f"{expect.shown(data)}"
        )
    # Only now to the wanted dtype: NumPy would make a number of None and of a text on the way.
    if dtype is not None:
        return array.astype(expect.dtype(what, dtype), copy=False)
    while isinstance(data, list | tuple) and data:
        data = data[0]
    python_numbers = not isinstance(data, np.ndarray | np.generic | Operators)
    return array.astype(np.float32) if python_numbers and array.dtype.kind in "iuf" else array


def copied(data: Any) -> Array:
    """A C-contiguous copy; of an array which is recorded (`tinyres.recorded`) a recorded one.

    >>> copied([1, 2])
    array([1, 2])
    """
    if isinstance(data, np.ndarray):
        return np.array(data, order="C", like=data)
    return np.array(data, order="C")


def plain_array(value: Any) -> Array:
    """What an op returned, as an array of NumPy's own class; a recorded one stays recorded.

    >>> plain_array(np.ma.array([1.0])), plain_array(np.float32(1.0))
    (array([1.]), array(1., dtype=float32))
    """
    return np.asarray(value, like=value) if isinstance(value, np.ndarray) else np.asarray(value)


@functools.lru_cache(maxsize=32)
def filled(length: int, value: float, dtype: np.dtype[Any]) -> Array:
    """A read-only vector of equal numbers, kept for the next op that asks for it.

    >>> filled(2, 0.5, np.dtype("f4"))
    array([0.5, 0.5], dtype=float32)
    """
    vector = np.full(length, value, dtype)
    vector.flags.writeable = False
    return vector


def operand_dtype(operands: Sequence[Any]) -> np.dtype[Any]:
    """The dtype of an op's tensors and arrays; integers never widen a float32 beside them."""
    dtypes = [a.dtype for a in operands if isinstance(a, Operators | np.ndarray)]
    dtypes = [d for d in dtypes if d.kind == "f"] or dtypes
    dtype = np.result_type(*dtypes) if dtypes else np.dtype(np.float32)
    if dtype.kind != "f" and any(isinstance(a, float | np.floating) for a in operands):
        return np.dtype(np.float32)
    return dtype


def stays(operand: Any, dtype: np.dtype[Any], optional: bool) -> bool:
    """Whether an operand needs no conversion: a tensor of a fitting dtype, or an optional None."""
    if isinstance(operand, Operators):
        return dtype.kind != "f" or operand._data.dtype.kind in "fb"
    return operand is None and optional


def as_operand(data: Any, dtype: np.dtype[Any], what: str) -> Array:
    """What stands beside a tensor as an array: scalars, lists and integers in its dtype."""
    if isinstance(data, SCALAR):
        return np.asarray(data, dtype)
    keeps = dtype.kind != "f" or (isinstance(data, np.ndarray) and data.dtype.kind in "fb")
    return as_array(data, None if keeps else dtype, what)


class Clock:
    """Numbers nodes, writes and changes of modules in the order in which they happen.

    An optimizer writes into parameters in place. A pullback that captured one before would then
    compute with the new values: a wrong gradient that looks like a right one. So whoever writes
    into an array says so here, and the walk back asks.
    """

    def __init__(self) -> None:
        self.next_number = itertools.count(1).__next__
        self.last_write = self.last_module_change = 0
        self._writes: dict[int, tuple[int, weakref.ref[Array]]] = {}

    def note_write(self, array: Array) -> None:
        """Say that the values of `array` were changed just now."""
        key, self.last_write = id(array), self.next_number()
        forget = weakref.ref(array, lambda _: self._writes.pop(key, None))
        self._writes[key] = self.last_write, forget

    def note_module_change(self) -> None:
        """Say that a module is another one now: what `Replay` recorded of it is out of date."""
        self.last_module_change = self.next_number()

    def check_unwritten(self, op: str, number: int, pullback: Any) -> None:
        """Refuse a pullback that captured an array which was written after `number`."""
        written = [ref() for when, ref in list(self._writes.values()) if when > number]
        for array in captured(pullback):
            if any(other is not None and np.may_share_memory(array, other) for other in written):
                raise RuntimeError(
                    f"backward: {op} needs an array of shape {array.shape} that was changed since "
                    "the forward pass, by an optimizer's step or an assignment to .data: call "
                    "backward() before that, or run the forward pass again"
                )


def captured(function: Any) -> list[Array]:
    """The arrays in a function's closure, also those in lists and functions in there."""
    held, seen = [function], set()
    for value in held:  # which grows on the way
        if id(value) not in seen:
            seen.add(id(value))
            held += value if isinstance(value, list | tuple) else ()
            held += [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
    return [value for value in held if isinstance(value, np.ndarray)]


CLOCK = Clock()
note_write = CLOCK.note_write
