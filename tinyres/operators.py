"""What lets a tensor be used like a NumPy array: `x + y`, `x.sum()`, `x[1:]`, `float(x)`, ...

Nothing is computed here. Each method is short for the function of the package that does it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from tinyres import expect
from tinyres.context import MODE

if TYPE_CHECKING:
    from tinyres.signatures import ArrayLike, Axis
    from tinyres.tensor import Tensor

SCALAR = (bool, int, float, np.integer, np.floating, np.bool_)
# NumPy's name of an operator -> the method when the tensor stands on the left, on the right
UFUNCS = {
    "add": ("__add__", "__radd__"),
    "subtract": ("__sub__", "__rsub__"),
    "multiply": ("__mul__", "__rmul__"),
    "divide": ("__truediv__", "__rtruediv__"),
    "power": ("__pow__", "__rpow__"),
    "matmul": ("__matmul__", "__rmatmul__"),
    "less": ("__lt__", "__gt__"),
    "less_equal": ("__le__", "__ge__"),
    "greater": ("__gt__", "__lt__"),
    "greater_equal": ("__ge__", "__le__"),
}


class _Package:
    """The package's functions build on Tensor, so they can be looked up only when called."""

    def __getattr__(self, name: str) -> Callable[..., Tensor]:
        found: Callable[..., Tensor] = getattr(importlib.import_module("tinyres"), name)
        self.__dict__[name] = found  # from now on without a search
        return found


tr = _Package()


def _array(value: Any) -> Any:
    return value._data if isinstance(value, Operators) else value


def _compared(ufunc: np.ufunc, left: Any, right: Any) -> Any:
    try:
        return ufunc(_array(left), _array(right))
    except (OverflowError, TypeError, ValueError) as error:
        raise expect.explained(ufunc.__name__, error, (left, right), {}) from error


def _unpacked(args: tuple[Any, ...]) -> tuple[int, ...]:
    """`reshape(2, 3)` and `reshape((2, 3))` mean the same."""
    return tuple(args[0]) if len(args) == 1 and isinstance(args[0], tuple | list) else args


class Operators:
    """Base of Tensor: Python's operators and NumPy's methods."""

    __slots__ = ()
    _data: npt.NDArray[Any]
    _node: Any
    data: Any
    grad: Any
    is_leaf: Any
    requires_grad: Any

    # A number beside a tensor is an attribute of the op and not an input: there is no gradient to
    # compute for it, and a drawn graph says "* 0.5".

    def _takes(self, other: Any) -> bool:
        """Whether `other` is a number that leaves the dtype as it is."""
        if not isinstance(other, SCALAR):
            return False
        return self._data.dtype.kind == "f" or not isinstance(other, float | np.floating)

    def __add__(self, other: Tensor | ArrayLike) -> Tensor:
        if self._takes(other):
            return tr.shift(self, by=_number(other))
        return tr.add(self, other)

    def __mul__(self, other: Tensor | ArrayLike) -> Tensor:
        if self._takes(other):
            return tr.scale(self, by=_number(other))
        return tr.mul(self, other)

    def __sub__(self, other: Tensor | ArrayLike) -> Tensor:
        return self + -_number(other) if self._takes(other) else tr.sub(self, other)

    def __pow__(self, other: Tensor | ArrayLike) -> Tensor:
        if self._takes(other):
            return tr.raise_to(self, exponent=_number(other))
        return tr.power(self, other)

    __radd__ = __add__
    __rmul__ = __mul__

    # `x += y` makes a new tensor of the name x. Only a parameter is changed itself.

    def __iadd__(self, other: Tensor | ArrayLike) -> Tensor:
        return self._becomes(self + other)

    def __isub__(self, other: Tensor | ArrayLike) -> Tensor:
        return self._becomes(self - other)

    def __imul__(self, other: Tensor | ArrayLike) -> Tensor:
        return self._becomes(self * other)

    def __itruediv__(self, other: Tensor | ArrayLike) -> Tensor:
        return self._becomes(self / other)

    def _becomes(self, result: Tensor) -> Tensor:
        if not (self.requires_grad and self.is_leaf):
            return result
        if MODE.get().recording:
            raise RuntimeError(
                "a leaf that requires grad can be changed in place under no_grad() only: write "
                "x = x + y for a new tensor, or use tr.optim"
            )
        self.data = result
        return cast("Tensor", self)

    def __neg__(self) -> Tensor:
        return self * -1

    def __rsub__(self, other: Tensor | ArrayLike) -> Tensor:
        return tr.sub(other, self)

    def __truediv__(self, other: Tensor | ArrayLike) -> Tensor:
        return tr.div(self, other)

    def __rtruediv__(self, other: Tensor | ArrayLike) -> Tensor:
        return tr.div(other, self)

    def __rpow__(self, other: Tensor | ArrayLike) -> Tensor:
        return tr.power(other, self)

    def __matmul__(self, other: Tensor | ArrayLike) -> Tensor:
        return tr.matmul(self, other)

    def __rmatmul__(self, other: Tensor | ArrayLike) -> Tensor:
        return tr.matmul(other, self)

    def __getitem__(self, index: Any) -> Tensor:
        index = tuple(map(_array, index)) if isinstance(index, tuple) else _array(index)
        return tr.getitem(self, index=index)

    # Comparisons give bool arrays. `==` stays identity, so that tensors can be keys of a dict.

    def __lt__(self, other: Tensor | ArrayLike) -> Any:
        return _compared(np.less, self, other)

    def __le__(self, other: Tensor | ArrayLike) -> Any:
        return _compared(np.less_equal, self, other)

    def __gt__(self, other: Tensor | ArrayLike) -> Any:
        return _compared(np.greater, self, other)

    def __ge__(self, other: Tensor | ArrayLike) -> Any:
        return _compared(np.greater_equal, self, other)

    def __contains__(self, value: Tensor | ArrayLike) -> bool:
        return bool(_compared(np.equal, self, value).any())

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("len: a tensor of no dimensions has no length")
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Tensor]:
        return iter([self[i] for i in range(len(self))])

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    if not TYPE_CHECKING:  # which would believe that every name is there

        def __getattr__(self, name):
            raise expect.no_attribute(type(self).__name__, name)

    # ---- what NumPy asks for

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self._data.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._data.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._data.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self._data.dtype

    def item(self) -> Any:
        """The only element, as a Python number."""
        if self.size != 1:
            raise ValueError(f"item: expected a tensor of one element, got shape {self.shape}")
        return self._data.item()

    def numpy(self) -> npt.NDArray[Any]:
        """A copy as a NumPy array; refused where a gradient would be lost without a word."""
        if self.requires_grad:
            raise RuntimeError(
                "numpy: this tensor requires a gradient, which an array can't carry: "
                "use tensor.detach().numpy()"
            )
        return self._data.copy()

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("np.asarray: a tensor is always copied: leave copy=False away")
        return np.asarray(self.numpy(), dtype=dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """`array * tensor` arrives here; anything else of NumPy's knows nothing of gradients."""
        if method == "__call__" and not kwargs and ufunc.__name__ in UFUNCS:
            left, right = inputs
            on_left, on_right = UFUNCS[ufunc.__name__]
            if isinstance(left, Operators):
                return getattr(left, on_left)(right)
            return getattr(right, on_right)(left)
        known = method == "__call__" and "out" not in kwargs and hasattr(tr, ufunc.__name__)
        cure = f"tr.{ufunc.__name__}" if known else "tensor.detach().numpy()"
        raise TypeError(
            f"np.{ufunc.__name__}: NumPy would lose the gradient of a tensor: use {cure}"
        )

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """np.sum and the like: done on tensors without gradient, refused on the others."""
        if _requires_grad([args, kwargs]):
            known = hasattr(tr, func.__name__)
            cure = f"tr.{func.__name__}" if known else "tensor.detach().numpy()"
            raise TypeError(
                f"np.{func.__name__}: NumPy would lose the gradient of a tensor: use {cure}"
            )
        return func(*_arrays(args), **_arrays(kwargs))

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.is_leaf:
            raise RuntimeError("copy: only leaves can be copied or pickled: detach() it first")
        return _copied, (type(self), self._data, self.requires_grad, self.grad)

    def __repr__(self) -> str:
        name, few = type(self).__name__, 60  # numbers, above which most are left out
        text = np.array2string(self._data, prefix=f"{name}(", threshold=few, precision=4)
        extra = "" if 0 < self.size <= few else f", shape={self.shape}"
        extra += "" if self.dtype == np.float32 else f", dtype={self.dtype}"
        if self.requires_grad:
            extra += ", requires_grad=True" if self.is_leaf else f", op={self._node.op!r}"
        return f"{name}({text}{extra})"

    # ---- methods

    @expect.in_our_words
    def sum(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Sum over `axis`, over all by default."""
        return tr.sum(self, axis=axis, keepdims=keepdims)

    @expect.in_our_words
    def mean(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Mean over `axis`."""
        return tr.mean(self, axis=axis, keepdims=keepdims)

    @expect.in_our_words
    def var(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Biased variance over `axis`, as NumPy's and LayerNorm's."""
        return tr.var(self, axis=axis, keepdims=keepdims)

    @expect.in_our_words
    def max(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Largest value over `axis`; equal ones share the gradient."""
        return tr.max(self, axis=axis, keepdims=keepdims)

    @expect.in_our_words
    def min(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Smallest value over `axis`; equal ones share the gradient."""
        return -(-self).max(axis, keepdims)

    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in another shape; one length may be -1."""
        return tr.reshape(self, shape=_unpacked(shape))

    def transpose(self, *axes: Any) -> Tensor:
        """The axes in another order, reversed by default."""
        return tr.transpose(self, axes=_unpacked(axes) or None)

    @property
    def T(self) -> Tensor:
        """The axes reversed."""
        return self.transpose()

    def swapaxes(self, a: int, b: int) -> Tensor:
        """Two axes exchanged."""
        axes = list(range(self.ndim))
        a, b = (expect.axis("swapaxes", i, self.ndim) for i in (a, b))
        axes[a], axes[b] = axes[b], axes[a]
        return tr.transpose(self, axes=tuple(axes))

    @expect.in_our_words
    def softmax(self, axis: int = -1) -> Tensor:
        """exp(x) / sum(exp(x)) over `axis`."""
        return tr.softmax(self, axis=axis)

    @expect.in_our_words
    def log_softmax(self, axis: int = -1) -> Tensor:
        """x - log(sum(exp(x))) over `axis`."""
        return tr.log_softmax(self, axis=axis)

    def exp(self) -> Tensor:
        """e ** x."""
        return tr.exp(self)

    def log(self) -> Tensor:
        """Natural logarithm."""
        return tr.log(self)

    def sqrt(self) -> Tensor:
        """Square root."""
        return tr.sqrt(self)

    def tanh(self) -> Tensor:
        """Hyperbolic tangent."""
        return tr.tanh(self)

    def sigmoid(self) -> Tensor:
        """1 / (1 + exp(-x))."""
        return tr.sigmoid(self)

    def relu(self) -> Tensor:
        """max(x, 0)."""
        return tr.relu(self)

    def gelu(self) -> Tensor:
        """x times the probability that a normal variable is below x, in its tanh form."""
        return tr.gelu(self)


def _copied(cls: Any, data: npt.NDArray[Any], requires_grad: bool, grad: Any) -> Any:
    out = cls.__new__(cls)
    out._data, out._node = data.copy(), None
    out.requires_grad, out.grad = requires_grad, grad
    return out


def _requires_grad(value: Any) -> bool:
    """Whether a tensor that requires grad is somewhere in lists, tuples and dicts."""
    if isinstance(value, Operators):
        return bool(value.requires_grad)
    parts = value.values() if isinstance(value, dict) else value
    return isinstance(value, list | tuple | dict) and any(map(_requires_grad, parts))


def _arrays(value: Any) -> Any:
    """The same lists, tuples and dicts with arrays in place of tensors."""
    if isinstance(value, dict):
        return {key: _arrays(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_arrays, value))
    return value._data if isinstance(value, Operators) else value


def _number(value: Any) -> Any:
    """NumPy's scalars would widen a float32 tensor, Python's numbers do not."""
    return value.item() if isinstance(value, np.generic) else value
