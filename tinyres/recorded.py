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
Function = Callable[..., Any]

# All their inputs have one dtype, so that a Python number among them can be an array of it.
OF_ONE_DTYPE = {
    np.add, np.subtract, np.multiply, np.divide, np.maximum, np.minimum, np.equal, np.not_equal,
    np.less, np.less_equal, np.greater, np.greater_equal,
}  # fmt: skip
OUT_BY_NAME = {np.maximum, np.minimum}  # NumPy warns of a third argument by position
# Functions, not ufuncs, that write their result where `out` says, and need not copy it there.
WITH_OUT = {np.concatenate, np.stack, np.einsum}
# What they return, a view perhaps, does not depend on the numbers in what they are given.
OF_NO_NUMBERS = {
    operator.getitem, np.asarray, np.asanyarray, np.atleast_1d, np.atleast_2d, np.atleast_3d,
    np.ndarray.astype, np.ndarray.reshape, np.ndarray.ravel, np.reshape, np.ravel, np.transpose,
    np.swapaxes, np.moveaxis, np.expand_dims, np.squeeze, np.broadcast_to, np.flip, np.empty,
    np.empty_like, np.shape, np.ndim, np.size, np.may_share_memory, np.shares_memory,
}  # fmt: skip


class Call(NamedTuple):
    """A call that writes: `function(*args, **options)`."""

    function: Function
    args: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """What NumPy calls the function: "add", or "add.reduce"."""
        function = self.args[0] if self.function in WRAPPERS else self.function
        whose = getattr(function, "__self__", None)
        of = f"{whose.__name__}." if isinstance(whose, np.ufunc) else ""
        return of + str(function.__name__).strip("_")


class Recording:
    """The calls in their order, and the arrays that were made for their results."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.made: list[Array] = []  # with what they look at, if they are views
        self.turn = 0  # how many calls there were when the way back began
        self._errors = np.geterr()

    def made_for(self, function: Function, *arrays: Array) -> None:
        """Say that these arrays are new."""
        if any(array.dtype.hasobject for array in arrays):
            raise TypeError(
                f"Replay: {function.__name__} makes an array of Python objects, which can't be "
                "recorded: use functions of NumPy that make numbers"
            )
        self.made += map(owner, arrays)

    def note(self, function: Function, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Add a call; one that was made under `np.errstate` is played under it, too."""
        if np.geterr() != self._errors:
            function, args, options = _under, (function, args, options, np.geterr()), {}
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
        recording = RECORDING.get()
        if recording is not None and not all(isinstance(a, Recorded | None) for a in out):
            raise TypeError(
                f"Replay: {ufunc.__name__} writes into an array that is not made of the batch or "
                "the parameters: make it like one that is, as in np.zeros(shape, like=x)"
            )
        function = ufunc if method == "__call__" else getattr(ufunc, method)
        inputs, options = bare(inputs), bare(options)
        returned = function(*inputs, **options, **({"out": bare(out)} if out else {}))
        if recording is None:
            return returned
        if returned is None:  # ufunc.at writes into its first input
            return recording.note(function, inputs, options)
        into = tuple(map(np.asarray, _each(returned)))
        results = []
        for array, given in zip(into, out or len(into) * (None,)):
            if given is None:
                recording.made_for(function, array)
            results.append(array.view(Recorded) if given is None else given)
        _note_ufunc(recording, function, inputs, options, into)
        return results[0] if len(results) == 1 else tuple(results)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if not all(issubclass(kind, np.ndarray) for kind in types):
            return NotImplemented
        return noted(function, args, options)

    def __pow__(self, exponent: Any, modulo: None = None) -> Any:
        if self.ndim == 0:  # in NumPy a scalar, whose power may differ in its last bit
            return noted(_power_of_scalar, (self, exponent), {})
        return super().__pow__(exponent)

    def __getitem__(self, index: Any) -> Any:
        return noted(operator.getitem, (self, index), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        noted(operator.setitem, (self, index, value), {})

    def __copy__(self) -> Any:
        return self.copy()

    def __deepcopy__(self, _: Any) -> Any:
        return self.copy()

    @property
    def flat(self) -> Any:
        _refuse_to_record("flat")
        return bare(self).flat

    def __bool__(self) -> bool:
        truth, recording = bool(bare(self)), RECORDING.get()
        if recording is not None:
            recording.note(_decide, (bare(self), truth), {})
        return truth


# ---------------------------------------------------------------- values with arrays in them


def mapped(function: Callable[[Array], Any], value: Any) -> Any:
    """A value with function(array) for each array in it, also in tuples, lists and dicts."""
    if isinstance(value, np.ndarray):
        return function(value)
    if isinstance(value, tuple | list):
        return _like(value, [mapped(function, item) for item in value])
    if isinstance(value, dict):
        return {key: mapped(function, item) for key, item in value.items()}
    return value


def _like(value: Any, items: list[Any]) -> Any:
    """The items as a tuple, list or named tuple, as `value` is one; or the one item alone."""
    if not isinstance(value, tuple | list):
        return items[0]
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def _each(returned: Any) -> Any:
    """What a function returned as several values, of which there may be one."""
    return returned if isinstance(returned, tuple | list) else (returned,)


def bare(value: Any) -> Any:
    """A value with plain arrays for recorded ones."""
    return mapped(lambda a: a.view(np.ndarray) if isinstance(a, Recorded) else a, value)


def arrays_in(value: Any) -> Iterator[Array]:
    """The arrays in a value."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, tuple | list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from arrays_in(item)


def owner(array: Array) -> Array:
    """The array whose memory this one looks at: itself, if it is no view."""
    base = array.base
    while base is not None:  # as_strided puts an object that is no array in between
        array = base if isinstance(base, np.ndarray) else array
        base = getattr(base, "base", None)
    return array


# ---------------------------------------------------------------- what is noted


def noted(function: Function, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """What a function of arrays returns, noted unless it is only a view of what it was given."""
    args, options = bare(args), bare(options)
    recording = RECORDING.get()
    if recording is None:
        return function(*args, **options)
    try:
        returned = function(*args, **options)
    except Exception:  # and somebody may go on without it
        recording.note(_fail_again, (function, args, options), {})
        raise
    of_numpy = [isinstance(value, np.ndarray | np.generic) for value in _each(returned)]
    if any(of_numpy) and not all(of_numpy):
        raise TypeError(f"Replay: can't record {function.__name__}, of which a part is no array")
    if all(of_numpy):
        arrays = [np.asarray(value) for value in _each(returned)]
        _note_function(recording, function, args, options, arrays)
        return _like(returned, [a.view(Recorded) for a in arrays])
    if function not in OF_NO_NUMBERS:  # also those that return None, and write into what is given
        recording.note(_return_the_same, (function, args, options, returned), {})
    return returned


def _note_function(
    recording: Recording,
    function: Function,
    args: tuple[Any, ...],
    options: dict[str, Any],
    returned: list[Array],
) -> None:
    given = [*arrays_in(args), *arrays_in(options)]
    if any(a is other for a in returned for other in given):  # such as np.sum(x, out=y)
        if function not in OF_NO_NUMBERS:
            recording.note(function, args, options)
        return
    known = {id(owner(a)) for a in given}
    made = [owner(a) for a in returned if id(owner(a)) not in known]
    recording.made_for(function, *made)
    if function in (np.ndarray.copy, np.ndarray.astype):
        recording.note(np.copyto, (returned[0], args[0], "unsafe"), {})
    elif function in WITH_OUT and not options.keys() & {"dtype", "casting"}:
        recording.note(function, args, {**options, "out": returned[0]})
    elif made and function not in (np.empty, np.empty_like):
        recording.note(_write, (function, args, options, returned), {})
    elif function not in OF_NO_NUMBERS:  # such as np.split(x, places)
        recording.note(_look_at_the_same, (function, args, options, returned), {})


def _note_ufunc(
    recording: Recording,
    function: Any,
    inputs: tuple[Any, ...],
    options: dict[str, Any],
    into: tuple[Array, ...],
) -> None:
    """Note it in the way in which NumPy is called fastest."""
    options.pop("order", None)  # played back, the result has its place
    if function in OF_ONE_DTYPE:
        inputs = _numbers_as_arrays(inputs)
    if function is np.matmul and not options and _fit_dot(*inputs, *into):
        recording.note(np.ndarray.dot, (*inputs, *into), {})
    elif isinstance(function, np.ufunc) and not options and function not in OUT_BY_NAME:
        recording.note(function, (*inputs, *into), {})
    else:
        recording.note(function, inputs, {**options, "out": into})


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


def _power_of_scalar(x: Array, exponent: Any) -> Any:
    return x[()] ** exponent


# ---------------------------------------------------------------- what is played for it


def _write(function: Function, args: Any, options: Any, into: list[Array]) -> None:
    for array, value in zip(into, _each(function(*args, **options))):
        if array.shape != np.shape(value):  # np.unique and the like, on other numbers
            raise Diverged
        array[...] = value


def _decide(array: Array, truth: bool) -> None:
    if bool(array) is not truth:
        raise Diverged


def _return_the_same(function: Function, args: Any, options: Any, returned: Any) -> None:
    if function(*args, **options) != returned:
        raise Diverged


def _look_at_the_same(function: Function, args: Any, options: Any, views: list[Array]) -> None:
    for a, b in zip(_each(function(*args, **options)), views):
        if a.ctypes.data != b.ctypes.data or (a.shape, a.strides) != (b.shape, b.strides):
            raise Diverged


def _fail_again(function: Function, args: Any, options: Any) -> None:
    try:
        function(*args, **options)
    except Exception:
        return
    raise Diverged


def _under(function: Function, args: Any, options: Any, errors: Any) -> None:
    with np.errstate(**errors):
        function(*args, **options)


WRAPPERS = (_write, _return_the_same, _look_at_the_same, _fail_again, _under)

# ---------------------------------------------------------------- methods of the array


def _noted_method(name: str) -> Function:
    function = getattr(np.ndarray, name)
    return lambda self, *args, **options: noted(function, (self, *args), options)


def _refused_method(name: str) -> Function:
    def call(self: Recorded, *args: Any) -> Any:
        _refuse_to_record(name.strip("_"))
        return getattr(bare(self), name)(*args)

    return call


def _refuse_to_record(name: str) -> None:
    if RECORDING.get() is not None:
        raise TypeError(
            f"Replay: {name} takes numbers out of an array. Played back, they would stay what they "
            "were when it was recorded: compute with the array itself, or np.stack of several; "
            "print what backward(*batch) returns"
        )


# Those that neither a ufunc nor __array_function__ gets to see.
METHODS = (
    "argmax", "argmin", "argpartition", "argsort", "astype", "choose", "compress", "copy",
    "cumprod", "cumsum", "dot", "fill", "flatten", "mean", "nonzero", "partition", "put", "ravel",
    "repeat", "reshape", "round", "searchsorted", "sort", "take", "trace",
)  # fmt: skip
NUMBERS = ("__float__", "__int__", "__index__", "__complex__", "item", "tolist", "tobytes")
for _name in METHODS:
    setattr(Recorded, _name, _noted_method(_name))
for _name in NUMBERS:
    setattr(Recorded, _name, _refused_method(_name))
