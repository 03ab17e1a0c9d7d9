"""The engine: a tensor, the tape that remembers how it was made, and the walk back over it.

An op's inputs exist before its output. So nodes that are numbered as they are made stand in
topological order, and the walk back needs no search and no recursion: it takes the node with the
highest number that still waits, asks its pullback for the cotangents of its inputs, and goes on.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from contextvars import ContextVar
from heapq import heappop, heappush
from typing import Any, NoReturn, overload

import numpy as np
import numpy.typing as npt

from tinyres import arrays, cotangents, expect
from tinyres.arrays import CLOCK, Array, as_array, as_operand, note_write, operand_dtype, stays
from tinyres.context import MODE, SCOPE
from tinyres.operators import Operators
from tinyres.signatures import ArrayLike, Arrived, Op, Pullback, Twin, ValueAndPullback, Watch


class Node:
    """What the tape remembers of one value: the op that made it, from what, and the way back.

    A node holds no value: its pullback captured the arrays that it needs. A leaf (a parameter, an
    input) has no pullback; gradients end there.
    """

    __slots__ = ("attrs", "dtype", "grad", "inputs", "keeps_grad", "number", "op", "pullback",
                 "requires_grad", "scope", "shape")  # fmt: skip

    def __init__(self, op: str, value: Array, requires_grad: bool,
                 inputs: tuple[Node | None, ...] = (), pullback: Pullback | None = None,
                 attrs: dict[str, Any] | None = None):  # fmt: skip
        self.number = CLOCK.next_number()
        self.op = op
        self.shape = value.shape
        self.dtype = value.dtype
        self.requires_grad = requires_grad
        self.keeps_grad = requires_grad and pullback is None
        self.grad: Array | None = None
        self.inputs = inputs
        self.pullback = pullback
        self.attrs = attrs
        self.scope = SCOPE.get()


def walk_back(root: Node, seed: Array, retain: bool = False, watch: Watch | None = None) -> None:
    """Carry `seed`, the cotangent of `root`, back to every leaf; `watch` sees each edge crossed."""
    arrived: Arrived = []
    token = DELIVER.set(arrived.extend)  # a walk inside a pullback hands over what it finds
    try:
        _walk(root, seed, retain, watch, arrived)
    finally:
        DELIVER.reset(token)
    DELIVER.get()(arrived)  # only now: a pullback that fails leaves every gradient as it was


def _walk(root: Node, seed: Array, retain: bool, watch: Watch | None, arrived: Arrived) -> None:
    check = MODE.get().check
    of = {root: seed}  # the cotangent of each node that waits
    summed = set()  # nodes whose cotangent is a sum made here: nobody else holds that array
    waiting = [(-root.number, root)]
    while waiting:
        node = heappop(waiting)[1]
        g = of.pop(node)
        if node.keeps_grad:
            arrived.append((node, g, node in summed))
        if node.pullback is None:
            continue
        if node.number < CLOCK.last_write:
            CLOCK.check_unwritten(node.op, node.number, node.pullback)
        returned = cotangents.one_each(node.op, node.pullback(g), len(node.inputs))
        for slot, (h, source) in enumerate(zip(returned, node.inputs)):
            if source is None or not source.requires_grad:
                continue
            if type(h) is not np.ndarray or h.shape != source.shape or h.dtype is not source.dtype:
                h = cotangents.fit(h, source.shape, source.dtype, g, node.op, slot)
            if check is not None:
                check(node.op, h, f"cotangent of input {slot}", node.scope)
            if watch is not None:
                watch(node, slot, h)
            if source not in of:
                of[source] = h
                heappush(waiting, (-source.number, source))
            elif source in summed:
                np.add(of[source], h, out=of[source])
            else:
                of[source] = np.asanyarray(of[source] + h)
                summed.add(source)
        if not retain:
            node.pullback, node.inputs, node.attrs, node.scope = _freed, (), None, None


def add_to_leaves(arrived: Arrived) -> None:
    """Where gradients go in the end; what runs a part of a step sends them elsewhere first."""
    arrived.reverse()
    while arrived:  # so that an array is let go as soon as its copy is made
        node, g, ours = arrived.pop()
        own = g if ours or node.grad is not None else g.copy()
        node.grad = own if node.grad is None else np.add(node.grad, own, out=node.grad)


DELIVER: ContextVar[Callable[..., None]] = ContextVar("tinyres_deliver", default=add_to_leaves)


def _freed(_: Array) -> NoReturn:
    raise RuntimeError("backward: this graph has been walked already, and was freed on the way: "
                       "pass retain_graph=True to the first backward to walk it again")  # fmt: skip


@overload
def op(function: Callable[..., ValueAndPullback]) -> Op: ...
@overload
def op(*, spelled_out: Twin = None) -> Callable[[Callable[..., ValueAndPullback]], Op]: ...
def op(function: Any = None, *, spelled_out: Twin = None) -> Any:
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
    name = expect.function("op: function", function).__name__.rstrip("_")
    expect.function("op: spelled_out", function if spelled_out is None else spelled_out)
    signature = inspect.signature(function).parameters.values()
    names = [p.name for p in signature if p.kind is p.POSITIONAL_OR_KEYWORD]
    attributes = [p.name for p in signature if p.kind is p.KEYWORD_ONLY]
    most = len(names) if names else sys.maxsize  # an op of *arrays takes any number
    required = sum(p.default is p.empty for p in signature if p.name in names) or most

    @functools.wraps(function)
    def apply(*args: Any, **attrs: Any) -> Tensor:
        mode = MODE.get()
        try:
            if len(args) != most:  # softmax(x, -1) means softmax(x, axis=-1)
                args, attrs = expect.by_kind(name, names, attributes, args, attrs)
            values, nodes = [], []
            for arg in args:
                if not isinstance(arg, Tensor) or arg._data.dtype.kind != "f":
                    args = _as_tensors(name, args, required)
                    values = [t if t is None else t._data for t in args]
                    nodes = [t if t is None else t._node for t in args]
                    break
                values.append(arg._data)
                nodes.append(arg._node)
            if spelled_out is not None and mode.spelled_out:
                return spelled_out(*args, **attrs)
            value, pullback = expect.value_and_pullback(name, function(*values, **attrs))
        except expect.EXPLAINED as error:
            raise expect.explained(name, error, args, attrs) from error
        out = Tensor._of(value)
        if mode.recording:
            for node in nodes:
                if node is not None and node.requires_grad:
                    if None in nodes:
                        nodes = [t if t is None else t._node or t._constant() for t in args]
                    out._node = Node(name, out._data, True, tuple(nodes), pullback, attrs)
                    break
        if mode.check is not None:
            mode.check(name, out._data, "value", SCOPE.get())
        return out

    apply.spelled_out = spelled_out  # type: ignore[attr-defined]
    return apply


def _as_tensors(name: str, args: tuple[Any, ...], required: int) -> tuple[Any, ...]:
    """Operands as tensors; scalars, lists and integer arrays take the dtype of those beside."""
    dtype = operand_dtype(args)
    return tuple(
        a if stays(a, dtype, i >= required) else Tensor._of(as_operand(a, dtype, name))
        for i, a in enumerate(args)
    )


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
    _kind = "leaf"  # how a graph calls it

    def __init__(
        self, data: Tensor | ArrayLike, *, requires_grad: bool = False,
        dtype: npt.DTypeLike | None = None
    ):  # fmt: skip
        self._data = as_array(data, dtype)
        self._node = None
        self.requires_grad = requires_grad

    @staticmethod
    def _of(value: Any) -> Tensor:
        """A tensor around an array that is ours already; a scalar is NumPy's array of no axes."""
        out = Tensor.__new__(Tensor)
        out._data = value if value.__class__ is np.ndarray else arrays.plain_array(value)
        out._node = None
        return out

    def _constant(self) -> Node:
        """A node for a tensor without gradient, so that a drawn graph shows where it is used."""
        self._node = Node("input", self._data, requires_grad=False)
        return self._node

    @property
    def data(self) -> Array:
        """The array itself. Assigning (`t.data -= step`, too) writes into it, and backward knows;
        writing into a part of it (`t.data[0] = 5`) is not noticed."""
        return self._data

    @data.setter
    def data(self, value: Tensor | ArrayLike) -> None:
        if value is not self._data:  # `t.data -= step` has written already
            value = as_array(value, self.dtype, "data")
            if value.shape != self.shape:
                raise ValueError(f"data: expected shape {self.shape}, got {value.shape}")
            self._data[...] = value
        note_write(self._data)

    @property
    def grad(self) -> Array | None:
        """The gradient that backward left here; None before."""
        return None if self._node is None else self._node.grad

    @grad.setter
    def grad(self, value: Tensor | ArrayLike | None) -> None:
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
            raise TypeError(f"requires_grad: a tensor of dtype {self._data.dtype} has no gradient; "
                            "give it a float dtype: Tensor(data, dtype='float32')")  # fmt: skip
        if value != self.requires_grad:
            self._node = Node(self._kind, self._data, requires_grad=True) if value else None

    @property
    def is_leaf(self) -> bool:
        """Whether no op made it: gradients end at leaves."""
        return self._node is None or self._node.pullback is None

    def backward(
        self, grad: Tensor | ArrayLike | None = None, *, retain_graph: bool = False,
        create_graph: bool = False
    ) -> None:  # fmt: skip
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

    def _seed(self, grad: Tensor | ArrayLike | None) -> Array:
        if grad is None and self.size != 1:
            raise ValueError(
                f"backward: it starts at one number, but this tensor has shape {self.shape}: "
                "call .sum() or .mean() first, or pass grad= of that shape"
            )
        seed = as_array(1.0 if grad is None else grad, self.dtype, "grad")
        seed = seed.reshape(self.shape) if grad is None else seed
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
