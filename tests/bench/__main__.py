"""tinyres beside PyTorch: `python -m tests.bench`. One training step, same model, same batch.

Each peer runs in a process of its own and they take turns, a few steps each, so that a machine
whose speed drifts is equally unfair to all. The median counts. A peer that is not installed is
left out by name. PyTorch for this: `pip install torch`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from tests.bench import depth
from tests.bench.models import PEERS, WORKLOADS

MODULES = {"PyTorch": "torch"}
IN_PARTS = "tinyres in 2 parts"  # a thread for each half of the batch, and one for BLAS in each


class Worker:
    """A running `tests.bench.worker`, and the times it has reported."""

    def __init__(self, peer: str, workload: str, threads: int):
        names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
        for_blas = 1 if peer == IN_PARTS else threads
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.worker", peer, workload, str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **dict.fromkeys(names, str(for_blas))},
        )  # fmt: skip
        self.times: list[float] = []
        self.peak = 0.0

    def run(self, steps: int, count: bool = True) -> None:
        """Let it do some steps; `count=False` to warm up."""
        assert self.process.stdin and self.process.stdout
        print(steps, file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline())
        self.times += answer["times"] if count else []
        self.peak = answer["peak"]

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def measure(workload: str, threads: int, rounds: int, steps: int) -> dict[str, dict[str, float]]:
    """Median milliseconds a step and peak memory of each peer, measured in turns."""
    there = [p for p in PEERS if importlib.util.find_spec(MODULES.get(p, "numpy"))]
    if threads == 1:
        there.remove(IN_PARTS)
    workers = {peer: Worker(peer, workload, threads) for peer in there}
    try:
        for worker in workers.values():
            worker.run(3, count=False)
        for _ in range(rounds):
            for worker in workers.values():
                worker.run(steps)
    finally:
        for worker in workers.values():
            worker.close()
    return {
        peer: {"ms": 1e3 * statistics.median(w.times), "peak_mib": w.peak}
        for peer, w in workers.items()
    }


def main() -> None:
    """Print a table, a line a workload and number of threads."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--workload", choices=WORKLOADS, nargs="+", default=list(WORKLOADS))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=5, help="steps of each peer in a round")
    parser.add_argument("--depth", action="store_true", help="growth with the number of blocks")
    parser.add_argument("--json", type=Path, help="also write the measurements to this file")
    args = parser.parse_args()
    if args.depth:
        depth.report(args.json)
        return

    missing = [p for p, module in MODULES.items() if not importlib.util.find_spec(module)]
    print(f"left out, not installed: {', '.join(missing)}" if missing else "all peers are here")
    print("workload     threads  tinyres ms  PyTorch ms  ratio  products ms  peak MiB  what ran")
    rows = []
    for workload in args.workload:
        for threads in args.threads:
            result = measure(workload, threads, args.rounds, args.steps)
            rows.append({"workload": workload, "threads": threads, **result})
            ours = min((p for p in result if "tinyres" in p), key=lambda p: result[p]["ms"])
            torch = result.get("PyTorch", {"ms": float("nan")})["ms"]
            print(
                f"{workload:<12} {threads:>7}  {result[ours]['ms']:>10.1f}  {torch:>10.1f}  "
                f"{result[ours]['ms'] / torch:>5.2f}  {result['bare products']['ms']:>11.1f}  "
                f"{result[ours]['peak_mib']:>8.0f}  {ours}",
                flush=True,
            )
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
