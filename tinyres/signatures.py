"""What ops take and return, in types: for the reader, the editor and the type checker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy.typing as npt

from tinyres.arrays import Array

if TYPE_CHECKING:
    from tinyres.tensor import Node, Tensor

ArrayLike: TypeAlias = npt.ArrayLike  # what may become an array: numbers, lists of them
Axis: TypeAlias = "int | tuple[int, ...] | None"  # None: all of them

# The function of an op returns the value and its pullback. That takes the cotangent of the value
# and returns one for each array which the function was given; None stands for zeros.
Cotangents: TypeAlias = "Sequence[Array | None]"
Pullback: TypeAlias = Callable[[Array], Cotangents]
ValueAndPullback: TypeAlias = tuple[Array, Pullback]

# Gradients on their way to leaves: the node, its gradient, whether nobody else has that array.
Arrived: TypeAlias = "list[tuple[Node, Array, bool]]"

# Sees each cotangent that crosses an edge: the node it came from, which of its inputs, what.
Watch: TypeAlias = "Callable[[Node, int, Array], None]"
# The same mathematics as an op's, in primitive ops (`tinyres.composed`).
Twin: TypeAlias = "Callable[..., Tensor] | None"


class TensorFunction(Protocol):
    """A function of tensors, and of what can become one."""

    def __call__(self, *arrays: Tensor | ArrayLike | None, **attributes: Any) -> Tensor: ...


class Op(TensorFunction, Protocol):
    """What `op` makes of a function of arrays."""

    spelled_out: Twin
