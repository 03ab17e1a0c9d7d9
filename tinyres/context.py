"""What holds here and now: whether ops are recorded, in which named part of the model, and which
random generators were drawn from.

It lives in context variables, so each thread and each asyncio task has its own.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from tinyres import expect


class Mode(NamedTuple):
    """How ops run."""

    recording: bool = True  # no_grad switches it off
    spelled_out: bool = False  # fused ops run as their twins in primitive ops
    # detect_anomaly looks at every value and every cotangent
    check: Callable[[str, Any, str, Scope | None], None] | None = None


class Scope:
    """A named part of the computation: one call of a module, or a `with scope("name")`.

    `level` is the depth up to which a drawing shows the part as one node (`tinyres.draw`).
    """

    __slots__ = ("level", "name", "owner", "parent")

    def __init__(self, name: str, level: int | None = None, owner: Any = None):
        self.name = name
        self.level = level
        self.parent: Scope | None = SCOPE.get()
        # Weak, so that a module which keeps one of its activations makes no reference cycle.
        self.owner = None if owner is None else weakref.ref(owner)


# Modules that are not in training mode.
EVALUATED: weakref.WeakSet[Any] = weakref.WeakSet()
MODE: ContextVar[Mode] = ContextVar("tinyres_mode", default=Mode())  # noqa: B039
SCOPE: ContextVar[Scope | None] = ContextVar("tinyres_scope", default=None)


@contextlib.contextmanager
def switched(**changes: Any) -> Iterator[None]:
    """Run a block of code in another mode."""
    token = MODE.set(MODE.get()._replace(**changes))
    try:
        yield
    finally:
        MODE.reset(token)


def no_grad() -> contextlib._GeneratorContextManager[None]:
    """Run without recording, as a context or as a decorator (`@no_grad()`).

    >>> import tinyres as tr
    >>> with tr.no_grad():
    ...     tr.Tensor([1.0], requires_grad=True).exp().requires_grad
    False
    """
    return switched(recording=False)


def spelled_out() -> contextlib._GeneratorContextManager[None]:
    """Run every fused op as its twin in `tinyres.composed`: slower, but each step is an op.

    >>> import tinyres as tr
    >>> x = tr.Tensor([[0.0, 1.0]], requires_grad=True)
    >>> with tr.spelled_out():
    ...     len(tr.trace(tr.softmax(x)).nodes), len(tr.trace(x.exp()).nodes)
    (6, 2)
    """
    return switched(spelled_out=True)


@contextlib.contextmanager
def scope(name: str, *, level: int | None = None) -> Iterator[None]:
    """Give the ops inside a name of their own in a drawn graph; a context or a decorator.

    >>> import tinyres as tr
    >>> with tr.scope("my part"):
    ...     y = tr.Tensor([1.0], requires_grad=True).exp()
    """
    expect.instance("scope: name", name, str, "a string")
    token = SCOPE.set(
        Scope(name, None if level is None else expect.size("scope: level", level, -1))
    )
    try:
        yield
    finally:
        SCOPE.reset(token)


# While a part of a step runs on its own (checkpointed, recorded, of a part of the batch): the
# generators it drew from, each with its state before that.
DRAWN: ContextVar[dict[np.random.Generator, Any] | None] = ContextVar("tinyres_drawn", default=None)


def note_draw(rng: np.random.Generator) -> None:
    """Say that `rng` is about to be drawn from, so that `checkpoint` can draw the same again."""
    if DRAWN.get() is not None:  # to ask for the state takes time
        note_draws({rng: rng.bit_generator.state})


def note_draws(states: dict[np.random.Generator, Any]) -> None:
    """Say of several generators that they were drawn from, and what state they had before."""
    drawn = DRAWN.get()
    if drawn is not None:
        drawn |= {**states, **drawn}  # the first state of each counts
