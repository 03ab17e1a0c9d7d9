"""What may be given, and in which words it is refused: argument, what it must be, what came."""

from __future__ import annotations

import functools
import math
import operator
import reprlib
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, TypeVar, cast

import numpy as np

F = TypeVar("F", bound=Callable[..., Any])
LARGEST_SIZE = 2**28  # of an axis: far above any width or vocabulary, and no product overflows


def shown(value: Any) -> str:
    """A value in a few words: an array or a tensor by its shape and dtype.

    >>> shown(np.zeros((2, 3))), shown(None), shown("gelu")
    ('(2, 3) float64', 'None', "'gelu'")
    """
    if isinstance(getattr(value, "shape", None), tuple) and not np.isscalar(value):
        return f"{value.shape} {value.dtype}"
    return reprlib.repr(value)


def integer(value: Any, wanted: str) -> int:
    """A whole number of Python's or NumPy's; True is none, though Python takes it for 1.

    `wanted` is the message of the TypeError for anything else.
    """
    if isinstance(value, bool | np.bool_):
        raise TypeError(wanted)
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(wanted) from None


def size(what: str, value: Any, least: int = 1) -> int:
    """A whole number of things, `least` or more.

    >>> size("Linear: n_in", 0)
    Traceback (most recent call last):
    ...
    ValueError: Linear: n_in must be an integer, at least 1, got 0
    """
    if type(value) is int and least <= value <= LARGEST_SIZE:
        return value  # what usually comes needs no message
    wanted = f"{what} must be an integer, at least {least}, got {shown(value)}"
    number = integer(value, wanted)
    if number < least:
        raise ValueError(wanted)
    if number > LARGEST_SIZE:
        raise ValueError(f"{what} must be at most {LARGEST_SIZE}, got {shown(value)}")
    return number


def by_kind(
    what: str,
    arrays: Sequence[str],
    attributes: Sequence[str],
    given: tuple[Any, ...],
    by_name: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of an op: its arrays by position, its attributes by name; none twice.

    >>> by_kind("softmax", ["x"], ["axis"], (1.0, 0), {})
    ((1.0,), {'axis': 0})
    >>> by_kind("linear", ["x", "weight", "bias"], [], (1.0, 2.0), {"bias": 3.0})
    ((1.0, 2.0, 3.0), {})
    """
    if not arrays:  # an op of *arrays takes any number
        return given, by_name
    names = [*arrays, *attributes]
    if len(given) > len(names):
        raise TypeError(f"{what}: {len(given) - len(names)} arguments too many")
    positional = dict(zip(names, given))
    for name in positional.keys() & by_name.keys():
        raise TypeError(f"{what}: {name} was given twice, by position and by name")
    values = {**positional, **by_name}
    named = [i for i, name in enumerate(arrays) if name in by_name]
    if named:  # None only before one that was given, so that a missing one is called missing
        given = tuple([values.get(name) for name in arrays[: max(len(given), named[-1] + 1)]])
    return given[: len(arrays)], {name: values[name] for name in values if name not in arrays}


def number(
    what: str, value: Any, least: float = -math.inf, most: float = math.inf, finite: bool = True
) -> float:
    """A real number from `least` to `most`; an infinite one only where it need not be `finite`.
    True and False are none.

    >>> number("lr", np.float32(0.5), 0), number("p", 1, 0, 1)
    (0.5, 1.0)
    """
    if type(value) is float and math.isfinite(value) and least <= value <= most:
        return value  # what usually comes needs no message
    bounds = f"from {least:g} to {most:g}" if math.isfinite(most) else "finite"
    if math.isinf(most) and math.isfinite(least):
        bounds = f"a finite number >= {least:g}"
    wanted = f"{what} must be {bounds}, got {shown(value)}"
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(wanted)
    try:
        real = float(value)
    except OverflowError:
        raise ValueError(wanted) from None
    if not least <= real <= most or (finite and math.isinf(real)):
        raise ValueError(wanted)
    return real


def one_of(what: str, name: Any, table: Mapping[str, Any]) -> Any:
    """What a name stands for.

    >>> one_of("norm", "batch", {"layer": 1, "rms": 2})
    Traceback (most recent call last):
    ...
    ValueError: norm must be one of ['layer', 'rms'], got 'batch'
    """
    if not isinstance(name, str) or name not in table:
        kind = ValueError if isinstance(name, str) else TypeError
        raise kind(f"{what} must be one of {sorted(table)}, got {shown(name)}")
    return table[name]


def instance(what: str, value: Any, kinds: type | tuple[type, ...], words: str) -> Any:
    """A value of one of these types, which the message describes in `words`."""
    if not isinstance(value, kinds):
        raise TypeError(f"{what} must be {words}, got {shown(value)}")
    return value


def function(what: str, value: object) -> Callable[..., Any]:
    """Something that can be called."""
    if not callable(value):
        raise TypeError(f"{what} must be a function or a module, got {shown(value)}")
    return value


def value_and_pullback(op: str, returned: Any) -> tuple[Any, Callable[..., Any]]:
    """What the function of an op returned: it must be these two.

    >>> value_and_pullback("double", np.ones(2))
    Traceback (most recent call last):
    ...
    TypeError: double: its function must return (value, pullback), got (2,) float64: the pullback \
takes the gradient g of the value and returns a tuple, as in `return 2 * x, lambda g: (2 * g,)`
    """
    if returned.__class__ is tuple and len(returned) == 2 and callable(returned[1]):
        return returned
    raise TypeError(
        f"{op}: its function must return (value, pullback), got {shown(returned)}: the pullback "
        "takes the gradient g of the value and returns a tuple, as in "
        "`return 2 * x, lambda g: (2 * g,)`"
    )


def generator(what: str, rng: Any) -> np.random.Generator:
    """A random generator: the given one, or a new one from a seed."""
    try:
        if isinstance(rng, bool | np.bool_):
            raise TypeError
        return np.random.default_rng(rng)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"{what}: rng must be a seed (an integer >= 0), a numpy random Generator or None, "
            f"got {shown(rng)}"
        ) from None


def dtype(what: str, value: Any, kinds: str = "biuf") -> np.dtype[Any]:
    """A dtype of one of NumPy's `kinds`."""
    wanted = {"biuf": "a float, int or bool dtype", "f": "a float dtype"}[kinds]
    try:
        found: np.dtype[Any] | None = np.dtype(value) if value is not None else None
    except TypeError:
        found = None
    if found is None or found.kind not in kinds:
        given = shown(value) if found is None else found
        raise TypeError(f"{what}: expected {wanted}, got {given}")
    return found


def axis(what: str, value: Any, ndim: int) -> int:
    """An axis of an array of `ndim` dimensions, counted from 0."""
    wanted = f"{what}: axis must be an integer from {-ndim} to {ndim - 1}, got {shown(value)}"
    number = integer(value, wanted)
    if not -ndim <= number < ndim:
        raise IndexError(wanted)
    return number % ndim


# PyTorch's names of arguments and methods, and what they are here.
ARGUMENTS = {"dim": "axis", "keepdim": "keepdims"}
METHODS = {
    "view": "reshape", "flatten": "reshape", "squeeze": "reshape", "unsqueeze": "reshape",
    "permute": "transpose", "t": "T", "dim": "ndim", "numel": "size", "mm": "a @ b", "bmm": "a @ b",
    "matmul": "a @ b", "pow": "x ** 2", "abs": "tr.maximum(x, -x)", "std": "x.var().sqrt()",
    "requires_grad_": "x.requires_grad = True", "clone": "tr.Tensor(x)", "clamp": "tr.maximum",
    "masked_fill": "tr.where", "argmax": "x.data.argmax()", "float": "tr.Tensor(x, dtype=...)",
    "split": "x[a:b]", "chunk": "x[a:b]", "to": "tr.Tensor(x, dtype=...)",
}  # fmt: skip
# The same for the functions of torch, and the modules of torch.nn.
FUNCTIONS = {
    "from_numpy": "tr.Tensor(array)", "cat": "tr.concatenate",
    "zeros": "tr.Tensor(np.zeros(...))", "ones": "tr.Tensor(np.ones(...))",
    "arange": "np.arange", "randn": "tr.Tensor(rng.standard_normal(...))",
    "rand": "tr.Tensor(rng.random(...))", "mm": "a @ b", "bmm": "a @ b", "compile": "tr.Replay",
    "inference_mode": "tr.no_grad", "clamp": "tr.maximum", "float32": "dtype='float32'",
    "abs": "tr.maximum(x, -x)", "manual_seed": "rng=seed, where a model is made",
}  # fmt: skip
MODULES = {
    "ReLU": "tr.relu", "GELU": "tr.gelu", "Tanh": "tr.tanh", "Sigmoid": "tr.sigmoid",
    "Softmax": "tr.softmax", "CrossEntropyLoss": "tr.cross_entropy", "MSELoss": "tr.mse",
    "MultiheadAttention": "tr.nn.MultiHeadAttention", "functional": "the functions of tr",
    "TransformerEncoderLayer": "tr.nn.TransformerBlock", "Transformer": "tr.nn.TransformerStack",
    "TransformerEncoder": "tr.nn.TransformerStack",
}  # fmt: skip


def no_attribute(kind: str, name: str, cures: Mapping[str, str] = METHODS) -> AttributeError:
    """The error for a name that is not here, with what to use instead.

    >>> no_attribute("Tensor", "view")
    AttributeError('Tensor has no view: use reshape')
    """
    cure = f": use {cures[name]}" if name in cures else ""
    return AttributeError(f"{kind} has no {name}{cure}", name=name)


def in_our_words(method: F) -> F:
    """Have a method's TypeErrors explained as those of ops are."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **names: Any) -> Any:
        try:
            return method(self, *args, **names)
        except TypeError as error:
            raise explained(method.__name__, error, (self, *args), names) from None

    return cast(F, call)


# What goes wrong in NumPy on input that does not fit.
EXPLAINED = (AttributeError, IndexError, OverflowError, TypeError, ValueError, ZeroDivisionError)


def explained(
    name: str, error: Exception, args: Sequence[Any], attrs: Mapping[str, Any]
) -> Exception:
    """The error of an op in words that name the op and all that it was given."""
    if str(error).startswith(f"{name}: ") and "(given " in str(error):
        return error  # the same op said so already, within another one
    given = [shown(a) for a in args] + [f"{key}={shown(value)}" for key, value in attrs.items()]
    text = str(error) if str(error).startswith(f"{name}: ") else f"{name}: {error}"
    for theirs, ours in ARGUMENTS.items():
        if f"unexpected keyword argument '{theirs}'" in text:
            text = f"{name}: there is no argument {theirs}: it is called {ours} here"
    kinds = (ArithmeticError, ValueError, IndexError)
    kind = next((k for k in kinds if isinstance(error, k)), TypeError)
    kind = ValueError if kind is ArithmeticError else kind  # a division by a width of 0, say
    return kind(f"{text} (given {', '.join(given)})")
