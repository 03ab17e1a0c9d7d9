"""One batch, several processes: `parallel.py` without an interpreter that all have to share.

The threads of `data_parallel` wait for each other whenever Python itself has something to do, and
a deep stack of narrow blocks is little else. Processes don't wait; but each has a model of its
own, so the parameters have to get there and the gradients back. They lie in shared memory.
"""

from __future__ import annotations

import contextvars
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from typing import Any

import numpy as np

from tinyres import checked, expect
from tinyres.arrays import Array
from tinyres.context import DRAWN, MODE, Mode
from tinyres.parallel import Part, one_part, split_rows
from tinyres.replay import Replay
from tinyres.tensor import Tensor, add_to_leaves


class Processes:
    """`backward(*batch)`: the rows of the batch shared among `count` processes, this one included.

    `loss` is a mean over the first axis of the arrays in a batch, such as `model.loss`, and
    `params` are the parameters that it uses. The other processes start with a copy of `loss`, so
    it must be one that pickle can copy (no lambda); before each step they get the values that
    `params` have then, and which of them require grad. Nothing else of the model gets there later,
    such as a call of eval(). Use it below `if __name__ == "__main__":`, since they import your
    script. With `replay` each of them records its part and plays it back (`tr.Replay`).

    The gradients are those of the whole batch to rounding, and the same bits on every run.

    >>> from tinyres import nn
    >>> model = nn.TransformerLM(vocab=9, d_model=8, heads=2, blocks=1, context=4, rng=0)
    >>> with Processes(model.loss, model.parameters()) as processes:
    ...     loss = processes.backward([[1, 2], [3, 4]], [[2, 3], [4, 5]])
    >>> round(loss, 4) == round(model.loss([[1, 2], [3, 4]], [[2, 3], [4, 5]]).item(), 4)
    True
    """

    def __init__(
        self,
        loss: Callable[..., Tensor],
        params: Iterable[Tensor],
        count: int = 2,
        *,
        replay: bool = False,
    ):
        self._loss = _picklable(expect.function("Processes: loss", loss))
        self._params = list(dict.fromkeys(checked.tensors("Processes", params)))
        if not any(p.requires_grad for p in self._params):
            raise ValueError("Processes: no tensor among params requires grad")
        others = expect.size("Processes: count", count, least=2) - 1
        self._replay = Replay(self._loss, self._params) if replay else None
        values = _shared(self._params)
        gradients = [_shared(self._params) for _ in range(others)]
        self._values = _views(self._params, values)
        self._gradients = [_views(self._params, memory) for memory in gradients]
        self._running: list[Future[tuple[float, list[int], bool]]] = []
        # Not forked: a fork copies no threads, but the locks that they hold.
        self._pool = ProcessPoolExecutor(
            others,
            multiprocessing.get_context("spawn"),
            initializer=_begin,
            initargs=(self._loss, self._params, values, gradients, replay),
        )

    def backward(self, *batch: Any) -> float:
        """Do `loss(*batch).backward()`, and return the loss as a number."""
        first, *rest = split_rows("Processes", batch, 1 + len(self._gradients), "processes")
        wait(self._running)  # of a step that Ctrl-C has ended, perhaps
        for value, p in zip(self._values, self._params):
            if value.dtype != p.dtype:
                raise RuntimeError(
                    f"Processes: a parameter had dtype {value.dtype} when they began and has "
                    f"{p.dtype} now: start new ones after astype()"
                )
            value[...] = p.data
        how = MODE.get(), [p.requires_grad for p in self._params]
        self._running = [
            self._pool.submit(_one_part, i, *how, *part) for i, part in enumerate(rest)
        ]
        try:
            share, arrived, drawn = _checked_part(self._replay or self._loss, self._params, *first)
        finally:
            wait(self._running)
        done = [future.result() for future in self._running]
        if drawn or any(theirs for _, _, theirs in done):
            raise RuntimeError(
                "Processes: loss drew from a random generator, and each process has a copy of it "
                "that draws the same: use a model without dropout, or call eval() on it before"
            )
        add_to_leaves(arrived)
        for (_, there, _), gradients in zip(done, self._gradients):  # in the order of the parts
            add_to_leaves([(self._params[i]._differentiable(), gradients[i], False) for i in there])
        return share + sum(theirs for theirs, _, _ in done)

    def close(self) -> None:
        """End the other processes."""
        self._pool.shutdown()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _picklable(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    try:
        pickle.dumps(loss)
    except Exception as error:
        raise TypeError(
            "Processes: loss must be one that pickle can copy, such as model.loss, got "
            f"{expect.shown(loss)}: {error}"
        ) from error
    return loss


def _shared(params: Sequence[Tensor]) -> Any:
    """Memory for an array beside each parameter, which several processes can have."""
    return multiprocessing.RawArray("b", sum(p.data.nbytes for p in params))


def _views(params: Sequence[Tensor], memory: Any) -> list[Array]:
    """That memory as arrays of the parameters' shapes."""
    ends = np.cumsum([p.data.nbytes for p in params])
    return [
        np.frombuffer(memory, p.dtype, p.size, end - p.data.nbytes).reshape(p.shape)
        for p, end in zip(params, ends)
    ]


def _checked_part(
    loss: Callable[..., Tensor] | Replay,
    params: Sequence[Tensor],
    part: tuple[Array, ...],
    weight: float,
) -> Part:
    """`one_part` in a context of its own; all gradients must be those of `params`."""
    run: Callable[..., Part] = _replayed_part if isinstance(loss, Replay) else one_part
    share, arrived, drawn = contextvars.copy_context().run(run, loss, part, weight)
    leaves = {node for node, _, _ in arrived if node.pullback is None}
    if not leaves <= {p._node for p in params}:
        raise RuntimeError(
            "Processes: loss has a gradient for a tensor that is not among params, so it would "
            "get that of a part of the batch only: give all tensors that loss uses, and let loss "
            "hold them, as a method of a model does, and not look them up in a script"
        )
    return share, arrived, drawn


def _replayed_part(replay: Replay, part: tuple[Array, ...], weight: float) -> Part:
    drawn: dict[np.random.Generator, Any] = {}
    DRAWN.set(drawn)
    loss, arrived = replay.step(list(part))
    return weight * loss, [(node, np.asarray(g * weight), True) for node, g, _ in arrived], drawn


# ---------------------------------------------------------------- in the other processes

# What `_begin` leaves for the steps: the loss, its parameters, where their gradients go.
_here: tuple[Callable[..., Tensor] | Replay, list[Tensor], list[list[Array]]]


def _begin(
    loss: Callable[..., Tensor], params: list[Tensor], values: Any, gradients: Any, replay: bool
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the first process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _take_over(Replay(loss, params) if replay else loss, params, values, gradients)


def _end_with_parent() -> None:
    """A first process that was killed can't tell the others to end."""
    parent: Any = multiprocessing.parent_process()
    parent.join()
    os._exit(1)


def _take_over(
    loss: Callable[..., Tensor] | Replay, params: list[Tensor], values: Any, gradients: Any
) -> None:
    global _here
    for p, value in zip(params, _views(params, values)):
        p._data = value  # from now on what the first process writes is seen here
        p._node = None  # until a step says that it requires grad
    _here = loss, params, [_views(params, memory) for memory in gradients]


def _one_part(
    i: int, mode: Mode, learned: list[bool], part: tuple[Array, ...], weight: float
) -> tuple[float, list[int], bool]:
    """The share in the loss, which parameters got a gradient, whether anything was random."""
    loss, params, gradients = _here
    for p, requires_grad in zip(params, learned):
        p.requires_grad = requires_grad
        p.grad = None
    MODE.set(mode)
    share, arrived, drawn = _checked_part(loss, params, part, weight)
    add_to_leaves(arrived)
    there = [k for k, p in enumerate(params) if p.grad is not None]
    for k in there:
        gradients[i][k][...] = params[k].grad
    return share, there, bool(drawn)
