"""How time and memory grow with depth: `python -m tests.bench --depth`.

A Pre-LN model (d = 32, 32 tokens, batch 4) of 1 to 1,000 blocks, each depth in a process of its
own on one core. Time is the CPU's, for a forward and a backward pass. Memory is what the two hold
at most beyond the parameters and their gradients, as Python's tracemalloc counts it. Plain, and
with `tr.checkpoint` round groups of about sqrt(blocks) blocks.
"""

from __future__ import annotations

import math
import statistics
import time
import tracemalloc
from typing import Any

import numpy as np

import tinyres as tr
from tests.bench.processes import alone

DEPTHS = (1, 3, 10, 30, 100, 300, 1000)
Row = dict[str, Any]


def model_of(blocks: int, dropout: float = 0.0) -> tr.nn.TransformerLM:
    """The model that is measured."""
    return tr.nn.TransformerLM(96, 32, 2, blocks, 32, dropout=dropout, rng=0)


def loss_of(model: tr.nn.TransformerLM, group: int | None) -> tr.Tensor:
    """Its loss on one batch, with a checkpoint round each `group` of blocks if there is one."""
    text = np.random.default_rng(0).integers(0, 96, (4, 33))
    x = model.embed(text[:, :-1])
    blocks = model.stack.blocks
    for start in range(0, len(blocks), group or 1):
        some = tr.nn.Sequential(*blocks[start : start + (group or 1)])
        x = tr.checkpoint(some, x) if group else some(x)
    return tr.cross_entropy(model.head(model.stack.final_norm(x)), text[:, 1:])


def measure(blocks: int, group: int | None) -> dict[str, float]:
    """Seconds of a forward and a backward pass, and MiB that they hold at most."""
    model = model_of(blocks)
    times = []
    for _ in range(max(7, 300 // blocks)):
        model.zero_grad()
        start = time.process_time()
        loss_of(model, group).backward()
        times.append(time.process_time() - start)
    model.zero_grad()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    loss_of(model, group).backward()
    peak = tracemalloc.get_traced_memory()[1] - before
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    return {"seconds": statistics.median(times[1:]), "mib": (peak - gradients) / 2**20}


def report() -> list[Row]:
    """Print a line a depth."""
    print("blocks  ms/block    MiB  checkpointed: ms/block    MiB  time / plain  memory / plain")
    rows = []
    for blocks in DEPTHS:
        group = math.isqrt(blocks)
        plain, saved = (alone("depth", f"measure({blocks}, {g})") for g in (None, group))
        rows.append({"blocks": blocks, "group": group, "plain": plain, "checkpointed": saved})
        print(
            f"{blocks:>6}{1e3 * plain['seconds'] / blocks:>10.3f}{plain['mib']:>7.1f}"
            f"{1e3 * saved['seconds'] / blocks:>24.3f}{saved['mib']:>7.1f}"
            f"{saved['seconds'] / plain['seconds']:>14.2f}{saved['mib'] / plain['mib']:>16.3f}",
            flush=True,
        )
    a_block = {row["blocks"]: row["plain"]["seconds"] / row["blocks"] for row in rows}
    print(f"time a block, 1,000 over 100 blocks: {a_block[1000] / a_block[100]:.2f}")
    return rows
