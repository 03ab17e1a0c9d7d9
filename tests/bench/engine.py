"""What the engine adds to NumPy: `python -m tests.bench --engine`.

Chains of 1,000 ops on small arrays, forward and backward, beside the same NumPy calls written by
hand: what is left is the price of recording an op and of walking back over it. And the memory that
a training holds after many steps beside that after a few.
"""

from __future__ import annotations

import resource
import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import tinyres as tr
from tests.bench.processes import alone

OPS = 1000  # in a chain
Array = Any


class Op(NamedTuple):
    """An op three times: recorded, as a NumPy call, and as what its pullback has to compute.

    `w` is the other operand, whose gradient is summed into `gw`; x and y are the input and output.
    """

    recorded: Callable[[tr.Tensor, tr.Tensor], tr.Tensor]
    forward: Callable[[Array, Array], Array]
    backward: Callable[[Array, Array, Array, Array, Array], Array]


def _mul_back(g: Array, x: Array, y: Array, w: Array, gw: Array) -> Array:
    gw += g * x
    return g * w


def _add_back(g: Array, x: Array, y: Array, w: Array, gw: Array) -> Array:
    gw += g
    return g


CHAIN = {
    "x * w": Op(lambda x, w: x * w, lambda x, w: x * w, _mul_back),
    "x + w": Op(lambda x, w: x + w, lambda x, w: x + w, _add_back),
    "x * 0.5": Op(lambda x, w: x * 0.5, lambda x, w: x * 0.5, lambda g, x, y, w, gw: g * 0.5),
    "x + 1": Op(lambda x, w: x + 1, lambda x, w: x + 1, lambda g, x, y, w, gw: g),
    "tanh": Op(
        lambda x, w: x.tanh(), lambda x, w: np.tanh(x), lambda g, x, y, w, gw: g * (1 - y * y)
    ),
    "sqrt": Op(lambda x, w: x.sqrt(), lambda x, w: np.sqrt(x), lambda g, x, y, w, gw: g / (2 * y)),
}


def recorded_chain(op: Op, x: Array, w: Array) -> tuple[float, float]:
    """CPU seconds of a forward and of a backward pass through a chain of one op."""
    y, weight = tr.Tensor(x, requires_grad=True), tr.Tensor(w, requires_grad=True)
    seed = np.zeros_like(x)
    start = time.process_time()
    for _ in range(OPS):
        y = op.recorded(y, weight)
    middle = time.process_time()
    y.backward(seed)
    return middle - start, time.process_time() - middle


def bare_chain(op: Op, x: Array, w: Array) -> tuple[float, float]:
    """The same by hand: the values are kept in a list, and read from its end."""
    kept, g, gw = [x], np.zeros_like(x), np.zeros_like(w)
    start = time.process_time()
    for _ in range(OPS):
        x = op.forward(x, w)
        kept.append(x)
    middle = time.process_time()
    while len(kept) > 1:
        y = kept.pop()
        g = op.backward(g, kept[-1], y, w, gw)
    return middle - start, time.process_time() - middle


def per_op(shape: tuple[int, ...], repeats: int = 25) -> dict[str, dict[str, float]]:
    """Microseconds an op, forward and backward: recorded, and by hand."""
    # Ones stay finite under all of these, and NumPy is as fast on them as on other numbers.
    x, w = np.ones(shape, np.float32), np.ones(shape, np.float32)
    found = {}
    for name, op in CHAIN.items():
        times = [(*recorded_chain(op, x, w), *bare_chain(op, x, w)) for _ in range(repeats)]
        medians = [1e6 * statistics.median(column) / OPS for column in zip(*times)]
        found[name] = dict(zip(["forward", "backward", "numpy forward", "numpy backward"], medians))
    return found


def memory(early: int = 10, late: int = 1000) -> dict[str, dict[str, float]]:
    """What a training of two blocks holds after few and after many steps, in KiB: Python's and
    NumPy's objects, and the most that the whole process had so far."""
    tracemalloc.start()
    model = tr.nn.TransformerLM(96, 16, 2, 2, 16, dropout=0.1, rng=0)
    optimizer = tr.optim.Adam(model.parameters())
    text = np.random.default_rng(0).integers(0, 96, (4, 17))
    found = {}
    for step in range(1, late + 1):
        optimizer.zero_grad()
        model.loss(text[:, :-1], text[:, 1:]).backward()
        optimizer.step()
        if step in (early, late):
            objects = tracemalloc.get_traced_memory()[0] / 1024
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            found[f"{step} steps"] = {"objects": objects, "process": peak}
    return found


def report() -> dict[str, Any]:
    """Print what was measured, and return it."""
    arrays, scalars = (alone("engine", f"per_op({shape})") for shape in ("(16,)", "()"))
    print("The engine alone, microseconds an op on 16 numbers, and what remains without NumPy")
    print(f"{'':<10}{'forward':>9} - NumPy{'backward':>20} - NumPy")
    for name, t in arrays.items():
        sides = [
            f"{t[side]:>9.2f} - {t[f'numpy {side}']:.2f} = {t[side] - t[f'numpy {side}']:.2f}"
            for side in ("forward", "backward")
        ]
        print(f"  {name:<8}{'     '.join(sides)}")
    node = {s: statistics.mean(t[s] for t in scalars.values()) for s in ("forward", "backward")}
    print(f"A node on scalars: {node['forward']:.2f} forward, {node['backward']:.2f} backward")
    held = alone("engine", "memory()")
    for steps, kib in held.items():
        print(f"Memory after {steps}: objects {kib['objects']:.0f} KiB, ", end="")
        print(f"the process at most {kib['process'] / 1024:.1f} MiB")
    return {"arrays of 16": arrays, "scalars": scalars, "memory_kib": held}
