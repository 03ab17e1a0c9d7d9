"""tinyres beside its peers: `python -m tests.bench`. One training step, same model, same batch.

A step is forward, backward and the update of Adam. Each peer runs in a process of its own, on as
many cores as it may have threads, and they take turns, a few steps each, so that a machine whose
speed drifts is equally unfair to all; the median counts. All begin with the same weights, and
their first losses are compared. A peer that is not installed is left out by name; for all of them
`pip install torch jax mygrad autograd`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import statistics
from pathlib import Path
from typing import Any

from tests.bench import depth, engine
from tests.bench.models import WORKLOADS, Workload
from tests.bench.peers import IN_HALVES, MODULES, ONE_BATCH, OURS, PEERS, PRODUCTS
from tests.bench.processes import Worker

Result = dict[str, dict[str, Any]]


def measure(workload: Workload, threads: int, rounds: int, steps: int, peers: list[str]) -> Result:
    """Median milliseconds a step, peak memory and first losses of each peer, measured in turns."""
    workers = {
        peer: Worker(peer, workload, threads, blas_threads=1 if peer in IN_HALVES else threads)
        for peer in peers
        if threads > 1 or peer not in IN_HALVES
    }
    try:
        for worker in workers.values():
            worker.warm_up()
        for _ in range(rounds):
            for worker in workers.values():
                worker.run(steps)
    finally:
        for worker in workers.values():
            worker.close()
    result: Result = {}
    for peer, w in workers.items():
        failure = w.failure
        if peer != PRODUCTS and not failure:
            failure = other_losses(w.losses, workers[ONE_BATCH].losses)
        ms = 1e3 * statistics.median(w.times) if w.times else math.nan
        result[peer] = {"failure": failure, "ms": ms, "peak_mib": w.peak, "losses": w.losses}
    return result


def other_losses(losses: list[float], ours: list[float]) -> str:
    """What to say of a peer whose first losses are not those of tinyres; "" if they are.

    The first is that of the same weights; the others come after updates, and roundings grow.
    """
    same = [abs(a - b) <= 1e-4 * abs(b) for a, b in zip(losses, ours)]
    return "" if all(same) else f"it computes other losses: {losses} instead of {ours}"


def fastest(result: Result) -> str:
    """Which way of running tinyres was the fastest one."""
    ways = [peer for peer in OURS if peer in result]
    return min(ways, key=lambda peer: result[peer]["ms"])


def show(name: str, threads: int, result: Result) -> None:
    """Print a line a peer."""
    w = WORKLOADS[name]
    print(
        f"\n{name}, {threads} thread{'s' * (threads > 1)}: d = {w.d_model}, heads {w.heads}, "
        f"blocks {w.blocks}, tokens {w.tokens}, batch {w.batch}, {w.activation}\n"
        f"{'':34}{'ms a step':>12}{'tinyres / it':>15}{'peak MiB':>11}"
    )
    ours = result[fastest(result)]["ms"]
    for peer, r in result.items():
        line = f"{r['ms']:>12.1f}{ours / r['ms']:>15.2f}{r['peak_mib']:>11.0f}"
        print(f"  {peer:<32}", f"  left out: {r['failure']}" if r["failure"] else line, sep="")


def show_losses(name: str, threads: int, result: Result) -> None:
    """Print whether all peers compute the same."""
    for peer, r in result.items():
        shown = r["failure"] or " ".join(f"{loss:.6f}" for loss in r["losses"])
        print(f"{name:<12}{threads:>2}  {peer:<32}", shown if peer != PRODUCTS else "", flush=True)


def markdown(rows: list[dict[str, Any]], peers: list[str]) -> str:
    """The table for a README: milliseconds, and in brackets tinyres' time over the peer's."""
    others = [p for p in peers if p not in OURS]
    lines = [f"| {' | '.join(['workload', 'threads', 'tinyres', *others, 'what ran'])} |"]
    lines.append("|---" * (len(others) + 4) + "|")
    for row in rows:
        result = row["peers"]
        way = fastest(result)
        ours = result[way]["ms"]
        cells = [row["workload"], str(row["threads"]), f"{ours:.1f}"]
        for peer in others:
            r = result[peer]
            cells.append("-" if r["failure"] else f"{r['ms']:.1f} ({ours / r['ms']:.2f})")
        lines.append(f"| {' | '.join([*cells, way.removeprefix('tinyres, ')])} |")
    return "\n".join(lines)


def versions() -> dict[str, str]:
    """What is measured here, and on what."""
    found = {"Python": platform.python_version(), "NumPy": importlib.metadata.version("numpy")}
    for peer, module in MODULES.items():
        if importlib.util.find_spec(module) and "," not in peer:
            found[peer] = importlib.metadata.version(module)
    return found


def run_steps(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all workloads, print as they are done, and return them as plain data."""
    here = [p for p in args.peers if importlib.util.find_spec(MODULES.get(p, "numpy"))]
    here = [ONE_BATCH, *[p for p in here if p != ONE_BATCH]]  # the others are compared with it
    print(", ".join(f"{name} {version}" for name, version in versions().items()))
    busy = os.getloadavg()[0]
    print(f"the machine is busy, load {busy:.1f}: these times mean little\n" * (busy > 0.5), end="")
    missing = [p for p in args.peers if p not in here]
    print(f"left out, not installed: {'; '.join(missing)}" if missing else "all peers are here")
    rows = []
    for name in args.workload:
        for threads in args.threads:
            rounds = 0 if args.check else args.rounds
            result = measure(WORKLOADS[name], threads, rounds, args.steps, here)
            (show_losses if args.check else show)(name, threads, result)
            rows.append({"workload": name, "threads": threads, "peers": result})
    if not args.check:
        print(f"\n{markdown(rows, here)}\n")
    return rows


def main(argv: list[str] | None = None) -> int:
    """Print what was measured; 1 if a peer failed or computes something else, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--workload", choices=WORKLOADS, nargs="+", default=list(WORKLOADS))
    add("--threads", type=int, nargs="+", default=[1, 2])
    add("--peers", choices=PEERS, nargs="+", default=list(PEERS))
    add("--rounds", type=int, default=6)
    add("--steps", type=int, default=5, help="steps of each peer in a round")
    add("--check", action="store_true", help="only compare the losses of the first three steps")
    add("--engine", action="store_true", help="only what the engine adds to NumPy, and memory")
    add("--depth", action="store_true", help="only the growth with the number of blocks")
    add("--plot", type=Path, metavar="FILE", help="draw the growth: writes FILE as .svg and .png")
    add("--json", type=Path, metavar="FILE", help="also write the measurements to this file")
    args = parser.parse_args(argv)
    found: dict[str, Any] = {"versions": versions()}
    failed = False
    if args.depth or args.plot:
        found["depth"] = depth.report()
    elif not args.engine:
        found["steps"] = run_steps(args)
        failed = any(r["failure"] for row in found["steps"] for r in row["peers"].values())
    if not (args.check or args.depth or args.plot):
        found["engine"] = engine.report()
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(found, indent=1))
    if args.plot:
        from tests.bench import growth  # needs matplotlib, the rest does not

        growth.draw(found["depth"], args.plot)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
