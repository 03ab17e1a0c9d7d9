"""The engine: a tensor, the tape that remembers how it was made, and the walk back over it.

An op's inputs exist before its output. So nodes that are numbered as they are made stand in
topological order, and the walk back needs no search and no recursion: it takes the node with the
highest number that still waits, asks its pullback for the cotangents of its inputs, and goes on.
"""

from __future__ import annotations

import functools
import heapq
import inspect
import itertools
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tinyres.context import MODE, SCOPE
from tinyres.operators import SCALAR, Operators

Array: TypeAlias = npt.NDArray[Any]
Pullback: TypeAlias = Callable[[Array], Sequence["Array | None"]]

# ---------------------------------------------------------------- the tape


class Node:
    """What the tape remembers of one value: the op that made it, from what, and the way back.

    A node holds no value: its pullback captured the arrays that it needs. A leaf (a parameter, an
    input) has no pullback; gradients end there.
    """

    __slots__ = (
        "attrs", "dtype", "grad", "inputs", "keeps_grad", "number",
        "op", "pullback", "requires_grad", "scope", "shape",
    )  # fmt: skip

    def __init__(self, op: str, value: Array, requires_grad: bool):
        self.number = next(_numbers)
        self.op = op
        self.shape = value.shape
        self.dtype = value.dtype
        self.requires_grad = self.keeps_grad = requires_grad
        self.grad: Array | None = None
        self.inputs: tuple[Node | None, ...] = ()
        self.pullback: Pullback | None = None
        self.attrs: dict[str, Any] | None = None
        self.scope = SCOPE.get()


_numbers = itertools.count(1)


def walk_back(
    root: Node,
    seed: Array,
    retain_graph: bool = False,
    watch: Callable[[Node, int, Array], None] | None = None,
) -> None:
    """Carry `seed`, the cotangent of `root`, back to every leaf; `watch` sees each edge crossed."""
    check = MODE.get().check
    cotangents = {root: seed}
    summed = set()  # nodes whose cotangent is a sum made here: nobody else holds that array
    waiting = [(-root.number, root)]
    arrived = []
    while waiting:
        node = heapq.heappop(waiting)[1]
        g = cotangents.pop(node)
        if node.keeps_grad:
            arrived.append((node, g if node in summed else np.array(g)))
        if node.pullback is None:
            continue
        if node.number < _last_write:
            _check_unwritten(node)
        for slot, (h, source) in enumerate(zip(node.pullback(g), node.inputs)):
            if source is None or not source.requires_grad:
                continue
            if h.__class__ is not np.ndarray or h.shape != source.shape or h.dtype != source.dtype:
                h = _fit(h, source, node, slot)
            if check is not None:
                check(node.op, h, f"cotangent of input {slot}", node.scope)
            if watch is not None:
                watch(node, slot, h)
            if source not in cotangents:
                cotangents[source] = h
                heapq.heappush(waiting, (-source.number, source))
            elif source in summed:
                np.add(cotangents[source], h, out=cotangents[source])
            else:
                cotangents[source] = np.asarray(cotangents[source] + h)
                summed.add(source)
        if not retain_graph:
            node.pullback, node.inputs, node.attrs, node.scope = _freed, (), None, None
    for node, g in arrived:  # only now: a pullback that fails leaves every gradient as it was
        node.grad = g if node.grad is None else np.add(node.grad, g, out=node.grad)


def _freed(_: Array) -> Sequence[Array | None]:
    raise RuntimeError(
        "backward: this graph has been walked already, and what it held was freed on the way. "
        "Pass retain_graph=True to the first backward to walk it again."
    )


def _fit(h: Any, source: Node, node: Node, slot: int) -> Array:
    """A cotangent in its input's own shape and dtype, or an error that names the op."""
    given = h = np.zeros(source.shape, source.dtype) if h is None else np.asarray(h)
    if h.shape != source.shape:
        h = unbroadcast(h, source.shape)
    if h.shape != source.shape:
        raise ValueError(
            f"{node.op}: its pullback returned a cotangent of shape {given.shape} for input "
            f"{slot}, which has shape {source.shape}: each input's cotangent must have its shape"
        )
    # Beside a float64 operand an op promotes a float32 one; by itself a pullback may not widen.
    if h.dtype not in (source.dtype, node.dtype):
        raise TypeError(
            f"{node.op}: its pullback returned a cotangent of dtype {h.dtype} for input {slot}, "
            f"which has dtype {source.dtype}: compute in the dtype of the inputs"
        )
    return h.astype(source.dtype, copy=False)


def unbroadcast(g: Array, shape: tuple[int, ...]) -> Array:
    """Sum `g` over the axes along which an array of `shape` was repeated to fit.

    >>> unbroadcast(np.ones((2, 3)), (3,))
    array([2., 2., 2.])
    """
    g = g.sum(axis=tuple(range(g.ndim - len(shape))))
    repeated = tuple(i for i, n in enumerate(g.shape[: len(shape)]) if shape[i] == 1 != n)
    return np.asarray(g.sum(axis=repeated, keepdims=True))


# An optimizer writes into parameters in place. A pullback that captured one before would compute
# with the new values: a wrong gradient that looks like a right one. So whoever writes says so.
_last_write = 0
_written: dict[int, tuple[int, weakref.ref[Array]]] = {}


def note_write(array: Array) -> None:
    """Say that the values of `array` were changed in place just now."""
    global _last_write
    key, _last_write = id(array), next(_numbers)
    _written[key] = _last_write, weakref.ref(array, lambda _: _written.pop(key, None))


def _check_unwritten(node: Node) -> None:
    cells = getattr(node.pullback, "__closure__", None) or ()
    saved = [cell.cell_contents for cell in cells if isinstance(cell.cell_contents, np.ndarray)]
    for number, ref in list(_written.values()):
        array = ref() if number > node.number else None
        if array is not None and any(np.may_share_memory(array, held) for held in saved):
            raise RuntimeError(
                f"backward: {node.op}, made of shape {node.shape}, needs an array that was changed "
                "since the forward pass, by an optimizer's step or an assignment to .data: call "
                "backward() before that, or run the forward pass again"
            )


# ---------------------------------------------------------------- ops


def op(function: Any = None, *, spelled_out: Callable[..., Tensor] | None = None) -> Any:
    """Make an op on tensors of a function on arrays that returns `(value, pullback)`.

    Its positional parameters are arrays, its keyword-only ones attributes. The pullback takes the
    cotangent of the value and returns that of each array; it need not undo broadcasting.
    `spelled_out` is the same mathematics in primitive ops (`tinyres.composed`).

    >>> @op
    ... def cube(x):
    ...     return x**3, lambda g: (3 * x**2 * g,)
    >>> cube(Tensor([1.0, 2.0]))
    Tensor([1. 8.])
    """
    if function is None:
        return functools.partial(op, spelled_out=spelled_out)
    name = function.__name__.rstrip("_")
    signature = inspect.signature(function).parameters.values()
    arrays = [p.name for p in signature if p.kind is p.POSITIONAL_OR_KEYWORD]
    attributes = [p.name for p in signature if p.kind is p.KEYWORD_ONLY]
    most = len(arrays) if arrays else sys.maxsize  # an op of *arrays takes any number

    @functools.wraps(function)
    def apply(*args: Any, **attrs: Any) -> Tensor:
        mode = MODE.get()
        if spelled_out is not None and mode.spelled_out:
            return spelled_out(*args, **attrs)
        if len(args) > most:  # softmax(x, -1) means softmax(x, axis=-1)
            attrs = {**dict(zip(attributes, args[most:])), **attrs}
            args = args[: max(most, len(args) - len(attributes))]
        if attrs and not attrs.keys().isdisjoint(arrays):
            args = (*args, *[attrs.pop(key, None) for key in arrays[len(args) :]])
        for arg in args:
            if not isinstance(arg, Tensor):
                args = _as_tensors(name, args)
                break
        try:
            value, pullback = function(*[t if t is None else t._data for t in args], **attrs)
        except (IndexError, TypeError, ValueError) as error:
            raise _explained(name, error, args) from error
        out = Tensor._of(value)
        if mode.recording:
            for t in args:
                if t is not None and t._node is not None and t._node.requires_grad:
                    node = out._node = Node(name, out._data, requires_grad=True)
                    node.inputs = tuple(
                        [t if t is None else t._node or t._constant() for t in args]
                    )
                    node.pullback, node.attrs, node.keeps_grad = pullback, attrs, False
                    break
        if mode.check is not None:
            mode.check(name, out._data, "value", SCOPE.get())
        return out

    apply.spelled_out = spelled_out  # type: ignore[attr-defined]
    return apply


def _as_tensors(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Operands as tensors; scalars, lists and integer arrays take the dtype of those beside."""
    dtypes = [a.dtype for a in args if isinstance(a, Tensor | np.ndarray)]
    dtypes = [d for d in dtypes if d.kind == "f"] or dtypes  # integers never widen a float32
    dtype = np.result_type(*dtypes) if dtypes else np.dtype(np.float32)
    if dtype.kind != "f" and any(isinstance(a, float | np.floating) for a in args):
        dtype = np.dtype(np.float32)

    def tensor(a: Any) -> Tensor:
        if isinstance(a, SCALAR):
            return Tensor._of(np.asarray(a, dtype))
        keeps = dtype.kind != "f" or (isinstance(a, np.ndarray) and a.dtype.kind in "fb")
        return Tensor._of(as_array(a, None if keeps else dtype, name))

    return tuple(a if a is None or isinstance(a, Tensor) else tensor(a) for a in args)


def _explained(name: str, error: Exception, args: Sequence[Tensor | None]) -> Exception:
    """The same error in words that name the op and what it was given."""
    given = ", ".join("None" if t is None else f"{t.shape} {t.dtype}" for t in args)
    text = str(error) if str(error).startswith(name) else f"{name}: {error}"
    kind = next(k for k in (ValueError, IndexError, TypeError) if isinstance(error, k))
    return kind(f"{text} (given {given})")


def as_array(data: Any, dtype: npt.DTypeLike | None = None, what: str = "Tensor") -> Array:
    """A C-contiguous copy of `data`; Python numbers become float32, arrays keep their dtype."""
    data = data._data if isinstance(data, Tensor) else data
    try:
        array = np.array(data, dtype=dtype, order="C")
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what}: expected numbers in rows of one length: {error}") from None
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"{what}: expected float, int or bool, got {type(data).__name__} of {array.dtype}"
        )
    python_numbers = dtype is None and not isinstance(data, np.ndarray | np.generic)
    return array.astype(np.float32) if python_numbers and array.dtype.kind in "iuf" else array


# ---------------------------------------------------------------- the tensor


class Tensor(Operators):
    """An array that remembers how it was made, so that gradients find the way back.

    `Tensor(data)` copies. Python numbers become float32; an array keeps its dtype.

    >>> x = Tensor([2.0, 4.0, 6.0], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad
    array([ 4.,  8., 12.], dtype=float32)
    """

    __slots__ = ("__weakref__", "_data", "_node")
    _data: Array
    _node: Node | None

    def __init__(
        self, data: Any, *, requires_grad: bool = False, dtype: npt.DTypeLike | None = None
    ):
        self._data = as_array(data, dtype)
        self._node = None
        self.requires_grad = requires_grad

    @staticmethod
    def _of(value: Any) -> Tensor:
        """A tensor around an array that is ours already, without a copy."""
        out = Tensor.__new__(Tensor)
        # NumPy turns results of no dimensions into scalars.
        out._data = value if value.__class__ is np.ndarray else np.asarray(value)
        out._node = None
        return out

    def _constant(self) -> Node:
        """A node for a tensor without gradient, so that a drawn graph shows where it is used."""
        self._node = Node("input", self._data, requires_grad=False)
        return self._node

    @property
    def data(self) -> Array:
        """The array itself. Assigning writes into it: shape and dtype stay."""
        return self._data

    @data.setter
    def data(self, value: Any) -> None:
        if value is not self._data:  # `t.data -= step` has written already
            value = as_array(value, self.dtype, "data")
            if value.shape != self.shape:
                raise ValueError(
                    f"data: expected an array of shape {self.shape}, got {value.shape}"
                )
            self._data[...] = value
        note_write(self._data)

    @property
    def grad(self) -> Array | None:
        """The gradient that backward left here; None before."""
        return None if self._node is None else self._node.grad

    @grad.setter
    def grad(self, value: Any) -> None:
        if value is not None:
            value = as_array(value, self.dtype, "grad")
            if not self.requires_grad or value.shape != self.shape:
                raise ValueError(f"grad: expected None, or shape {self.shape} on a tensor that "
                                 f"requires_grad, got shape {value.shape}")  # fmt: skip
        if self._node is not None:
            self._node.grad = value

    @property
    def requires_grad(self) -> bool:
        """Whether backward leaves or passes a gradient here."""
        return self._node is not None and self._node.requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if not self.is_leaf:
            raise RuntimeError("requires_grad: only a leaf can change it; detach() this one first")
        if value and self._data.dtype.kind != "f":
            raise TypeError(
                f"requires_grad: a tensor of dtype {self._data.dtype} has no gradient; "
                "give it a float dtype, as in Tensor(data, dtype='float32')"
            )
        if value != self.requires_grad:
            self._node = Node("leaf", self._data, requires_grad=True) if value else None

    @property
    def is_leaf(self) -> bool:
        """Whether no op made it: gradients end at leaves."""
        return self._node is None or self._node.pullback is None

    def backward(
        self, grad: Any = None, *, retain_graph: bool = False, create_graph: bool = False
    ) -> None:
        """Add to every leaf's `.grad` the gradient of this tensor, weighted by `grad`.

        The graph is freed on the way, unless `retain_graph`.
        """
        if create_graph:
            raise RuntimeError("backward: create_graph=True: tinyres has first derivatives only")
        walk_back(self._differentiable(), self._seed(grad), retain_graph)

    def _differentiable(self) -> Node:
        if self._node is None or not self._node.requires_grad:
            raise RuntimeError(
                "backward: nothing that this tensor was made from requires a gradient (or it was "
                "made under no_grad): create an input with requires_grad=True"
            )
        return self._node

    def _seed(self, grad: Any) -> Array:
        if grad is None and self.size != 1:
            raise ValueError(
                f"backward: it starts at one number, but this tensor has shape {self.shape}: "
                "call .sum() or .mean() first, or pass grad= of that shape"
            )
        seed = (
            np.ones(self.shape, self.dtype) if grad is None else as_array(grad, self.dtype, "grad")
        )
        if seed.shape != self.shape:
            raise ValueError(f"backward: grad has shape {seed.shape}, the tensor {self.shape}")
        return seed

    def retain_grad(self) -> None:
        """Keep the gradient of this intermediate value in `.grad`, too."""
        self._differentiable().keeps_grad = True

    def zero_grad(self) -> None:
        """Forget the gradient."""
        self.grad = None

    def detach(self) -> Tensor:
        """The same array without its history."""
        return Tensor._of(self._data)

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.is_leaf:
            raise RuntimeError("copy: only leaves can be copied or pickled: detach() it first")
        return _copied, (type(self), self._data, self.requires_grad, self.grad)

    def __repr__(self) -> str:
        text = np.array2string(self._data, prefix="Tensor(", threshold=60, precision=4)
        extra = "" if self.dtype == np.float32 else f", dtype={self.dtype}"
        if self.requires_grad and self._node is not None:
            extra += ", requires_grad=True" if self.is_leaf else f", op={self._node.op!r}"
        return f"{type(self).__name__}({text}{extra})"


def _copied(cls: type[Tensor], data: Array, requires_grad: bool, grad: Array | None) -> Tensor:
    out = cls.__new__(cls)
    out._data, out._node = data.copy(), None
    out.requires_grad = requires_grad
    out.grad = grad
    return out
