"""One peer in a process of its own: reads how many steps to do, and in how many seconds;
answers with their times and losses."""

from __future__ import annotations

import json
import os
import resource
import sys
import time


def hold_to(cores: int) -> None:
    """Let this process run on so many cores only: JAX takes all that it may, and heeds no setting.

    Before anything is imported that makes threads. Only Linux can do this.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def main() -> None:
    """`python -m tests.bench.worker PEER WORKLOAD THREADS`; BLAS has its threads by environment."""
    peer, workload, threads = sys.argv[1:]
    hold_to(int(threads))
    from tests.bench.models import Workload
    from tests.bench.peers import PEERS

    if peer.startswith("PyTorch"):
        import torch

        torch.set_num_threads(int(threads))
    step = PEERS[peer](Workload(*json.loads(workload)))
    for line in sys.stdin:
        steps, seconds = map(float, line.split())
        times: list[float] = []
        losses = []
        while len(times) < steps and sum(times) < seconds:
            start = time.perf_counter()
            losses.append(step())
            times.append(time.perf_counter() - start)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"times": times, "losses": losses, "peak": peak}), flush=True)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        print(json.dumps({"failure": f"{type(error).__name__}: {error}"}))
