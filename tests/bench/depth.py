"""How time and memory grow with depth: `python -m tests.bench --depth`.

A Pre-LN model (d = 32, 32 tokens, batch 4) of 1 to 1,000 blocks, each depth in a process of its
own. Memory is what a forward and a backward pass hold at most beyond the parameters and their
gradients, as Python's tracemalloc counts it. Plain, and with `tr.checkpoint` round groups of
about sqrt(blocks) blocks.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np

import tinyres as tr

DEPTHS = (1, 10, 100, 1000)


def model_of(blocks: int) -> tr.nn.TransformerLM:
    """The model that is measured."""
    return tr.nn.TransformerLM(96, 32, 2, blocks, 32, rng=0)


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
    for _ in range(5):
        model.zero_grad()
        start = time.perf_counter()
        loss_of(model, group).backward()
        times.append(time.perf_counter() - start)
    model.zero_grad()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    loss_of(model, group).backward()
    peak = tracemalloc.get_traced_memory()[1] - before
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    return {"seconds": statistics.median(times[1:]), "mib": (peak - gradients) / 2**20}


def in_own_process(blocks: int, group: int | None) -> dict[str, float]:
    """The same in a new process with one thread for BLAS."""
    code = f"from tests.bench import depth; depth.print_measure({blocks}, {group})"
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True)
    return json.loads(done.stdout)


def print_measure(blocks: int, group: int | None) -> None:
    """What `in_own_process` reads."""
    print(json.dumps(measure(blocks, group)))


def report(file: Path | None) -> list[dict[str, float]]:
    """Print a table, a line a depth."""
    print("blocks  ms/block  MiB  checkpointed: ms/block  MiB  time / plain  memory / plain")
    rows = []
    for blocks in DEPTHS:
        group = math.isqrt(blocks)
        plain, saved = in_own_process(blocks, None), in_own_process(blocks, group)
        rows.append({"blocks": blocks, "group": group, "plain": plain, "checkpointed": saved})
        print(
            f"{blocks:>6}  {1e3 * plain['seconds'] / blocks:>8.3f}  {plain['mib']:>5.1f}  "
            f"{1e3 * saved['seconds'] / blocks:>8.3f}  {saved['mib']:>6.1f}  "
            f"{saved['seconds'] / plain['seconds']:>5.2f}  {saved['mib'] / plain['mib']:>6.3f}",
            flush=True,
        )
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(rows, indent=1))
    return rows
