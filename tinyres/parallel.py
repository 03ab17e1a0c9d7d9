"""One batch, several threads: each takes a part of the batch, and the gradients are added."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from tinyres import expect
from tinyres.arrays import Array, as_array
from tinyres.context import DRAWN
from tinyres.signatures import ArrayLike, Arrived
from tinyres.tensor import DELIVER, Tensor, add_to_leaves

Part = tuple[float, Arrived, dict[np.random.Generator, Any]]


def data_parallel(
    loss: Callable[..., Tensor], *batch: Tensor | ArrayLike, threads: int = 2
) -> float:
    """Do `loss(*batch).backward()` with the rows of the batch shared among threads.

    Returns the loss as a number and leaves the gradients of the whole batch, which are right to
    rounding and the same bits on every run. `loss` must be a mean over the first axis of the
    arrays in `batch`. NumPy lets other threads run while it computes; that is worth most where
    arrays are long, and with one thread for BLAS: OPENBLAS_NUM_THREADS=1.

    >>> w = Tensor([1.0, 2.0], requires_grad=True)
    >>> data_parallel(lambda x: (x @ w).mean(), np.eye(2, dtype="f4")), w.grad
    (1.5, array([0.5, 0.5], dtype=float32))
    """
    expect.function("data_parallel: loss", loss)
    calls = [_bound(loss, *part) for part in split_rows("data_parallel", batch, threads, "threads")]
    running = [_helpers(threads - 1).submit(call) for call in calls[1:]]
    try:
        first = calls[0]()  # this thread has its part, too
    finally:
        wait(running)
    done = [first, *[future.result() for future in running]]
    _check_generators([drawn for _, _, drawn in done])
    for _, arrived, _ in done:  # in the order of the parts, whichever thread came first
        add_to_leaves(arrived)
    return sum(share for share, _, _ in done)


def split_rows(
    what: str, batch: Sequence[Any], count: int, sharers: str
) -> list[tuple[tuple[Array, ...], float]]:
    """The batch in `count` parts of its rows, each with its weight in the mean."""
    arrays = batch_arrays(what, batch)
    rows = {len(a) for a in arrays if a.ndim}
    if len(rows) != 1 or any(a.ndim == 0 for a in arrays):
        raise ValueError(
            f"{what}: the arrays of a batch must have equally many rows, got shapes "
            f"{[a.shape for a in arrays]}"
        )
    (total,) = rows
    if expect.size(f"{what}: {sharers}", count) > total:
        raise ValueError(
            f"{what}: {count} {sharers} can't share {total} rows: got arrays of shapes "
            f"{[a.shape for a in arrays]}"
        )
    parts = zip(*[np.array_split(a, count) for a in arrays])
    return [(part, len(part[0]) / total) for part in parts]


_OWN = threading.local()


def _helpers(count: int) -> ThreadPoolExecutor:
    """Threads that wait for the next step: each calling thread has its own, so none waits for
    another's. New ones every step would have to ask the system for their memory again."""
    pools: dict[Any, ThreadPoolExecutor] = vars(_OWN)
    if count not in pools:
        pools[count] = ThreadPoolExecutor(count, thread_name_prefix="data_parallel")
    return pools[count]


def batch_arrays(what: str, batch: Sequence[Any]) -> list[Array]:
    """The arrays of a batch: integers stay what they are, Python's numbers become float32."""
    return [_batch_array(what, array) for array in batch]


def _batch_array(what: str, array: Any) -> Array:
    try:
        rows = np.asarray(array)
    except ValueError:
        rows = np.asarray(None)
    if rows.dtype.kind not in "biuf":
        raise TypeError(f"{what}: batch must hold arrays of numbers, got {expect.shown(array)}")
    numbers = isinstance(array, list | tuple | float)
    return as_array(array) if rows.dtype.kind == "f" and numbers else rows


def _bound(
    loss: Callable[..., Tensor], part: tuple[Array, ...], weight: float
) -> Callable[[], Part]:
    context = contextvars.copy_context()  # taken here: spelled_out and the like hold there, too
    return lambda: context.run(one_part, loss, part, weight)


def one_part(loss: Callable[..., Tensor], part: tuple[Array, ...], weight: float) -> Part:
    """The loss of a part times its weight in the mean, and the gradients, delivered to nobody."""
    arrived: Arrived = []
    drawn: dict[np.random.Generator, Any] = {}
    DELIVER.set(arrived.extend)
    DRAWN.set(drawn)
    value = expect.instance("what loss returns", loss(*part), Tensor, "a tensor")
    value.backward(np.full(value.shape, weight, value.dtype))
    return weight * value.item(), arrived, drawn


def _check_generators(drawn: list[dict[np.random.Generator, Any]]) -> None:
    seen: set[np.random.Generator] = set()
    for generators in drawn:
        if seen & generators.keys():
            raise RuntimeError(
                "data_parallel: several threads drew from one random generator, so no run would "
                "be like another: use a model without dropout, or call eval() on it"
            )
        seen |= generators.keys()
