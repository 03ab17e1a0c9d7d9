"""Arrays that write down what NumPy does with them: what `tr.Replay` plays back.

NumPy lets a subclass of its array answer for every function that is given one (NEP 13, NEP 18).
This one lets NumPy do the work, and notes each call that wrote something: the function, what it
read, and where its result lies. To make the noted calls again, on the same memory, is the same
computation, without an op, a node or a pullback. A view is no call: it is another name for memory
that is there.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from tinyres.arrays import Array
from tinyres.operators import Operators

F = TypeVar("F", bound=Callable[..., Any])

# They have an argument `out` that need not be given by name; of maximum NumPy wants the name.
NAMED_OUT = (np.maximum, np.minimum)
# Functions, not ufuncs, that write their result where `out` says, and need not copy it there.
WITH_OUT = (np.concatenate, np.stack, np.einsum)
# What these return does not depend on the numbers in the arrays that they are given.
OF_MEMORY = (np.may_share_memory, np.shares_memory)


class Call(NamedTuple):
    """A call that writes: `function(*args, **options)`."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any] = {}  # noqa: RUF012  (nobody writes into it)

    @property
    def name(self) -> str:
        """What NumPy calls the function: "add", or "add.reduce"."""
        function = self.args[1] if self.function is _write else self.function
        whose = getattr(function, "__self__", None)
        of = f"{whose.__name__}." if isinstance(whose, np.ufunc) else ""
        return of + function.__name__.strip("_")


class Recording:
    """The calls in their order, and the arrays that were made for their results."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.made: list[Array] = []
        self.turn = 0  # how many calls there were when the way back began

    def note(self, function: Callable[..., Any], *args: Any, **options: Any) -> None:
        """Add a call."""
        self.calls.append(Call(function, args, options))


RECORDING: ContextVar[Recording | None] = ContextVar("tinyres_recording", default=None)


class Diverged(Exception):
    """Played back, a value on which a decision hung is another one than when it was recorded."""


class Recorded(np.ndarray[Any, Any]):
    """An array whose NumPy calls are written down, while there is a recording."""

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: tuple[Any, ...] = (), **options: Any
    ) -> Any:
        if any(isinstance(a, Operators) for a in inputs):
            return NotImplemented  # a tensor beside an array does the work, and makes an op of it
        function = ufunc if method == "__call__" else getattr(ufunc, method)
        inputs, options, into = bare(inputs), bare(options), bare(out)
        returned = function(*inputs, **options, **({"out": into} if out else {}))
        recording = RECORDING.get()
        if recording is None:
            return returned
        if returned is None:  # ufunc.at writes into its first input
            return recording.note(function, *inputs, **options)
        if not out:
            into = tuple(map(np.asarray, returned if isinstance(returned, tuple) else (returned,)))
            recording.made += map(owner, into)
            out = tuple(a.view(Recorded) for a in into)
        options.pop("order", None)  # played back, the result has its place
        if ufunc is np.matmul and _fit_dot(*inputs, *into):
            recording.note(np.ndarray.dot, *inputs, *into)
        elif method == "__call__" and not options and ufunc not in NAMED_OUT:
            recording.note(function, *_numbers_as_arrays(inputs), *into)
        else:
            recording.note(function, *_numbers_as_arrays(inputs), **options, out=into)
        return out[0] if len(out) == 1 else out

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if not all(issubclass(kind, np.ndarray) for kind in types):
            return NotImplemented
        return noted(function, args, options)

    def __getitem__(self, index: Any) -> Any:
        return noted(operator.getitem, (self, index), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        noted(operator.setitem, (self, index, value), {})

    def __bool__(self) -> bool:
        truth, recording = bool(bare(self)), RECORDING.get()
        if recording is not None:
            recording.note(_still, bare(self), truth)
        return truth

    def __deepcopy__(self, _: Any) -> Any:
        return self.copy()


def bare(value: Any) -> Any:
    """A value with plain arrays for recorded ones, also in tuples, lists and dicts."""
    if isinstance(value, Recorded):
        return value.view(np.ndarray)
    if isinstance(value, tuple | list):
        return type(value)(map(bare, value))
    if isinstance(value, dict):
        return {key: bare(item) for key, item in value.items()}
    return value


def arrays_in(value: Any) -> Iterator[Array]:
    """The arrays in a value, also in tuples, lists and dicts."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, tuple | list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from arrays_in(item)


def owner(array: Array) -> Array:
    """The array whose memory this one looks at: itself, if it is no view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def noted(function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """What a function of arrays returns, noted unless it is only a view of what it was given."""
    args, options = bare(args), bare(options)
    returned = function(*args, **options)
    recording = RECORDING.get()
    if recording is None:
        return returned
    if isinstance(returned, bool) and function not in OF_MEMORY:
        recording.note(_returns_still, function, args, options, returned)
    values = returned if isinstance(returned, tuple | list) else (returned,)
    if not all(isinstance(value, np.ndarray | np.generic) for value in values):
        if returned is None:
            recording.note(function, *args, **options)  # it wrote into one of its arguments
        return returned
    given = [*arrays_in(args), *arrays_in(options)]
    arrays = [np.asarray(value) for value in values]
    made = [a for a in arrays if not any(np.may_share_memory(a, other) for other in given)]
    if made:
        recording.made += map(owner, made)
        _note_writing(recording, function, args, options, arrays)
    wrapped = [a.view(Recorded) for a in arrays]
    return type(returned)(wrapped) if isinstance(returned, tuple | list) else wrapped[0]


def _note_writing(
    recording: Recording,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    options: dict[str, Any],
    into: list[Array],
) -> None:
    if function in (np.ndarray.copy, np.ndarray.astype):
        recording.note(np.copyto, into[0], args[0], "unsafe")
    elif function in WITH_OUT:
        recording.note(function, *args, **options, out=into[0])
    elif function is not np.empty_like and function is not np.empty:
        recording.note(_write, into, function, args, options)


def _write(into: list[Array], function: Callable[..., Any], args: Any, options: Any) -> None:
    returned = function(*args, **options)
    values = returned if isinstance(returned, tuple | list) else (returned,)
    for array, value in zip(into, values):
        if array.shape != np.shape(value):  # np.unique and the like, on other numbers
            raise Diverged
        array[...] = value


def _still(array: Array, truth: bool) -> None:
    if bool(array) is not truth:
        raise Diverged


def _returns_still(function: Callable[..., Any], args: Any, options: Any, truth: bool) -> None:
    if function(*args, **options) is not truth:
        raise Diverged


def _fit_dot(a: Array, b: Array, into: Array) -> bool:
    """Whether `a.dot(b, into)` makes the BLAS call that matmul would, half a microsecond faster."""
    arrays = (a, b, into)
    return into.flags.c_contiguous and all(
        x.ndim in (1, 2) and x.flags.forc and x.dtype == into.dtype and x.size for x in arrays
    )


def _numbers_as_arrays(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Python's numbers beside float arrays as arrays of their dtype: NumPy would make them anew
    in each call, for half a microsecond."""
    dtypes = [a.dtype for a in inputs if isinstance(a, np.ndarray) and a.dtype.kind == "f"]
    if not dtypes:
        return inputs
    dtype = np.result_type(*dtypes)
    with np.errstate(over="ignore"):
        return tuple(np.asarray(a, dtype) if type(a) in (int, float) else a for a in inputs)


def whole(function: F) -> F:
    """Have a recording take a function of arrays as one call, whatever it does inside."""

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        return function(*args) if RECORDING.get() is None else noted(function, args, {})

    return cast(F, run)


def _noted_method(name: str) -> Callable[..., Any]:
    function = getattr(np.ndarray, name)
    return lambda self, *args, **options: noted(function, (self, *args), options)


def _number(name: str) -> Callable[..., Any]:
    def convert(self: Recorded, *args: Any) -> Any:
        if RECORDING.get() is None:
            return getattr(bare(self), name)(*args)
        raise TypeError(
            f"a Python number was made of an array ({name.strip('_')}): played back, it would stay "
            "the same whatever the batch is; keep it an array"
        )

    return convert


# Methods of an array that write without asking a ufunc.
METHODS = (
    "argmax", "argmin", "argpartition", "argsort", "astype", "choose", "compress", "copy",
    "cumprod", "cumsum", "dot", "fill", "flatten", "nonzero", "partition", "put", "ravel",
    "repeat", "reshape", "round", "searchsorted", "sort", "take", "trace",
)  # fmt: skip
NUMBERS = ("__float__", "__int__", "__index__", "__complex__", "item", "tolist")
for _name in METHODS:
    setattr(Recorded, _name, _noted_method(_name))
for _name in NUMBERS:
    setattr(Recorded, _name, _number(_name))
