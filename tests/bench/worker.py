"""One peer in a process of its own: reads a number of steps a line, answers with their times."""

from __future__ import annotations

import json
import resource
import sys
import time

from tests.bench.models import PEERS, WORKLOADS


def main() -> None:
    """`python -m tests.bench.worker PEER WORKLOAD THREADS`; BLAS has its threads by environment."""
    peer, workload, threads = sys.argv[1:]
    if peer == "PyTorch":
        import torch

        torch.set_num_threads(int(threads))
    step = PEERS[peer](WORKLOADS[workload])
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"times": times, "peak": peak}), flush=True)


if __name__ == "__main__":
    main()
