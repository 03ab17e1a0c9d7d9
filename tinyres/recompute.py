"""Gradient checkpointing: forget what a part computed, and compute it again on the way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinyres import expect
from tinyres.arrays import Array
from tinyres.context import DRAWN, MODE, no_grad, note_draws, switched
from tinyres.recorded import RECORDING
from tinyres.signatures import ArrayLike, Arrived, Cotangents
from tinyres.tensor import DELIVER, Node, Tensor, walk_back


def checkpoint(fn: Callable[..., Tensor], *inputs: Tensor | ArrayLike) -> Tensor:
    """fn(*inputs), without keeping what its gradient needs: backward runs `fn` once more.

    That frees the memory of all values inside `fn`, for a second forward pass (Chen et al. 2016).
    The gradients are the same to the last bit; dropout draws the same again. If `fn` gives other
    values the second time, because a parameter changed, that is a RuntimeError.

    >>> x = Tensor([1.0, 2.0], requires_grad=True)
    >>> checkpoint(lambda x: (x * x).sum(), x).backward(); x.grad
    array([2., 4.], dtype=float32)
    """
    expect.function("checkpoint: fn", fn)
    tensors = [x if isinstance(x, Tensor) else Tensor(x) for x in inputs]
    out, drawn = _run_and_forget(fn, tensors)
    if drawn and RECORDING.get() is not None:
        raise RuntimeError(
            "checkpoint: fn drew from a random generator, and tr.Replay can't make it draw the "
            "same again: use one of the two, or a model without dropout"
        )
    mode = MODE.get()
    if not mode.recording:
        return out
    value, arrays = out.data, [t.data for t in tensors]
    differentiable = [t.requires_grad for t in tensors]

    def pullback(g: Array) -> Cotangents:
        copies = [Tensor._of(a) for a in arrays]
        for copy, requires_grad in zip(copies, differentiable):
            copy.requires_grad = requires_grad
        with switched(recording=True, spelled_out=mode.spelled_out):
            y = _run_again(fn, copies, drawn)
        if not np.array_equal(y.data, value, equal_nan=True):
            raise RuntimeError(
                "checkpoint: fn gave other values when it ran again for the gradient: a parameter "
                "or an input was changed since the forward pass, or fn draws from a generator "
                "that tr.dropout doesn't know"
            )
        return _cotangents(y, g, copies)

    # Parameters inside fn get their gradients within the pullback: so the node is on the way of
    # a gradient even where none of its inputs is.
    sources = tuple(t._node or t._constant() for t in tensors)
    out._node = Node("checkpoint", value, True, sources, pullback, {})
    return out


def _cotangents(y: Tensor, g: Array, copies: list[Tensor]) -> Cotangents:
    """Walk back from y; what arrives at the copies is returned, the rest goes where the walk
    around this one collects."""
    arrived: Arrived = []
    if y.requires_grad:
        token = DELIVER.set(arrived.extend)
        try:
            walk_back(y._differentiable(), g)
        finally:
            DELIVER.reset(token)
    own: dict[Node | None, Array] = {}
    own |= {copy._node: g for copy in copies for node, g, _ in arrived if node is copy._node}
    DELIVER.get()([entry for entry in arrived if entry[0] not in own])
    return [own.get(copy._node) for copy in copies]


def _run_and_forget(fn: Callable[..., Tensor], tensors: list[Tensor]) -> tuple[Tensor, Any]:
    """fn's value, and the state that each generator had before fn drew from it."""
    drawn: dict[np.random.Generator, Any] = {}
    token = DRAWN.set(drawn)
    try:
        with no_grad():
            out = fn(*tensors)
            out = expect.instance("checkpoint: what fn returns", out, Tensor, "a tensor").detach()
    finally:
        DRAWN.reset(token)
    note_draws(drawn)  # this checkpoint may stand inside another one
    return out, drawn


def _run_again(fn: Callable[..., Tensor], tensors: list[Tensor], drawn: Any) -> Tensor:
    now = {rng: rng.bit_generator.state for rng in drawn}
    try:
        for rng, state in drawn.items():
            rng.bit_generator.state = state
        return fn(*tensors)
    finally:
        for rng, state in now.items():
            rng.bit_generator.state = state
