"""Where does Post-LN stop training? One run answers one question; this draws the map.

Depth stands on one axis, the learning rate on the other, one panel a placement, without warm-up and
with it: each cell is the loss after a short training, the mean over the seeds. A second table says
at which depth each placement stops training. The defaults are 300 small runs, of 4 to 64 blocks:
about 40 minutes of one core, less in proportion to the cores there are.

A sweep is a list of independent runs that is given to an executor of Python's concurrent.futures:
processes on this machine, or, with --dask ADDRESS, a cluster of several. For these, in a copy of
this repository on each machine (pip install -e '.[demos,sweep]'):

    PYTHONPATH=. dask scheduler                                    on one: it prints its ADDRESS
    PYTHONPATH=. dask worker ADDRESS --nworkers=-1 --nthreads 1    on each: a worker a core
    python -m demos.sweep --dask ADDRESS                           where the results shall be

Each finished run is a line in results.jsonl at once. A sweep that was stopped (Ctrl-C finishes the
runs that are on their way) goes on where it was when the same command is given again, and one with
more depths or rates trains what is missing. A run that diverges is a result; one that failed or
lost its worker is noted with the reason, and tried again the next time.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import functools
import itertools
import json
import math
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

import tinyres as tr
from demos import text
from demos.folder import alone_in
from demos.interrupts import asked_to_stop, leave_interrupts
from demos.training import TASKS, Characters, Recall, Setting, Task, Trainer, make_task

DEPTHS, RATES = (4, 8, 16, 32, 64), (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
SMALL = Setting(d_model=32, d_ff=128, batch=8)
OPTIONS = ("task", "text", "d_model", "heads", "d_ff", "context", "batch", "steps")
AXES = ("placement", "blocks", "lr", "warmup", "seed")  # what differs between the runs
Row = dict[str, Any]
Pool = Callable[[int], contextlib.AbstractContextManager[Executor]]


# ---------------------------------------------------------------- one run


def train_one(setting: Setting) -> Row:
    """Train and evaluate; whatever happens is a row."""
    start = time.perf_counter()
    row: Row = {"setting": asdict(setting), "status": "finished", "loss": None, "reason": ""}
    try:
        trainer = Trainer(setting, task_of(setting))
        for _ in range(setting.steps):
            trainer.step()
        row["loss"] = trainer.evaluate()["val_loss"]
        if not math.isfinite(row["loss"]):
            raise FloatingPointError(f"the loss after the last step is {row['loss']}")
    except FloatingPointError as error:
        row |= {"status": "diverged", "loss": None, "reason": str(error)}
    except Exception as error:
        row |= failure(error)
    row["seconds"] = round(time.perf_counter() - start, 3)
    row["worker"] = f"{platform.node()} {os.getpid()}"
    return row


def failure(error: Exception) -> Row:
    """What a row says of a run that could not be finished."""
    return {"status": "failed", "reason": f"{type(error).__name__}: {error}"}


def task_of(setting: Setting) -> Task:
    """The task; a worker reads the text once."""
    return make_task(setting, _text(setting.text) if setting.task == "chars" else None)


_text = functools.lru_cache(maxsize=1)(text.load)


def guess(task: Task) -> float:
    """The loss of one who knows only how frequent each symbol is."""
    if isinstance(task, Characters):
        return task.text.unigram_entropy(task.context)
    return task.chance if isinstance(task, Recall) else math.log(task.vocab)


# ---------------------------------------------------------------- many runs


@contextlib.contextmanager
def local(workers: int) -> Iterator[Executor]:
    """Processes on this machine, each with one thread for BLAS: the runs are what is parallel."""
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    before = dict(os.environ)
    os.environ.update(threads)
    context = multiprocessing.get_context("spawn")  # the library counts its threads when it loads
    try:
        with ProcessPoolExecutor(workers, context, initializer=leave_interrupts) as pool:
            yield pool
    finally:
        os.environ.clear()
        os.environ.update(before)


def on_dask(address: str) -> Pool:
    """The workers of a Dask cluster, which gives the runs of a lost worker to others by itself."""

    @contextlib.contextmanager
    def pool(_: int) -> Iterator[Executor]:
        try:
            from distributed import Client
        except ImportError as error:
            raise ValueError("--dask needs dask: pip install -e '.[sweep]'") from error
        with Client(address, timeout=30) as client:
            try:
                client.wait_for_workers(1, timeout=60)
                client.submit(failure, RuntimeError(), pure=False).result(timeout=60)
            except Exception as error:
                raise ValueError(
                    f"--dask: {address} has no worker that can run demos.sweep: start scheduler "
                    f"and workers in a copy of this repository, with PYTHONPATH=. ({error})"
                ) from error
            yield client.get_executor(pure=False)

    return pool


def run_all(
    settings: Iterable[Setting],
    pool: Pool,
    workers: int,
    record: Callable[[Row], None],
    asked_to_stop: list[bool],
    train: Callable[[Setting], Row] = train_one,
) -> None:
    """Have every run trained, in whatever order they finish.

    A pool of processes breaks when one of them dies. Then a new one takes the runs that are left.
    If it breaks before any is finished, the first run is tried alone, so that one which kills its
    worker each time is found and the others are trained.
    """
    waiting = list(settings)
    alone = False
    while waiting and not asked_to_stop:
        before = len(waiting)
        try:
            with pool(1 if alone else workers) as executor:
                now = waiting[:1] if alone else list(waiting)
                for setting, row in completed(executor, train, now, asked_to_stop):
                    record(row)
                    waiting.remove(setting)
            alone = False
        except BrokenExecutor as error:
            if alone:
                record({"setting": asdict(waiting.pop(0)), "loss": None, **failure(error)})
            alone = len(waiting) == before


def completed(
    executor: Executor,
    train: Callable[[Setting], Row],
    settings: list[Setting],
    asked_to_stop: list[bool],
) -> Iterator[tuple[Setting, Row]]:
    """Each run with its row, as they finish; when asked to stop, only those that have begun."""
    futures = {executor.submit(train, setting): setting for setting in settings}
    for future in as_completed(futures):
        if future.cancelled():
            continue
        try:
            row = future.result()
        except BrokenExecutor:
            raise
        except Exception as error:  # the cluster gave the run up
            row = {"setting": asdict(futures[future]), "loss": None, **failure(error)}
        yield futures[future], row
        if asked_to_stop:
            for other in futures:
                other.cancel()


# ---------------------------------------------------------------- the results file


def key(setting: Row) -> str:
    """The same for equal settings."""
    return json.dumps(setting, sort_keys=True)


def read_results(path: Path) -> dict[str, Row]:
    """All rows, the last of each setting; half a line at the end, of a write that was cut off, is
    removed."""
    if not path.exists():
        return {}
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
    try:
        rows = [json.loads(line) for line in content[:whole].splitlines()]
        return {key(row["setting"]): row for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} has a line that is no result: remove it, or give another --out"
        ) from error


@contextlib.contextmanager
def recorder(path: Path, results: dict[str, Row]) -> Iterator[Callable[[Row], None]]:
    """A function that appends a row to the file, and returns when it is on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:

        def record(row: Row) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
            results[key(row["setting"])] = row

        yield record


def write_csv(path: Path, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """A table, whole or not at all."""
    aside = path.with_suffix(".part")
    with open(aside, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([list(header), *map(list, rows)])
    os.replace(aside, path)


def sweep(settings: list[Setting], out: Path, pool: Pool, workers: int) -> tuple[list[Row], bool]:
    """The rows of all settings, trained or found in out/results.jsonl; and whether all are there.

    Writes out/runs.csv, sorted, without what differs from one execution to the next.
    """
    path = out / "results.jsonl"
    results = read_results(path)
    keys = [key(asdict(setting)) for setting in settings]
    # A run that failed may have failed for its worker's sake.
    done = {k for k in keys if k in results and results[k]["status"] != "failed"}
    missing = [setting for setting, k in zip(settings, keys) if k not in done]
    bar = tqdm(total=len(keys), initial=len(done), desc="sweep", unit="run", disable=None)
    with bar, recorder(path, results) as record, asked_to_stop() as asked:

        def note(row: Row) -> None:
            record(row)
            bar.update()
            shown = row["status"] if row["loss"] is None else f"loss {row['loss']:.3f}"
            bar.set_postfix_str(f"{row['setting']['blocks']} blocks: {shown}")

        run_all(missing, pool, workers, note, asked)
    rows = [results[k] for k in keys if k in results]
    rows.sort(key=lambda row: [row["setting"][axis] for axis in AXES])
    write_csv(
        out / "runs.csv",
        (*AXES, "status", "loss", "reason"),
        ([*(r["setting"][a] for a in AXES), r["status"], r["loss"], r["reason"]] for r in rows),
    )
    return rows, len(rows) == len(keys)


# ---------------------------------------------------------------- the command


def arguments() -> argparse.ArgumentParser:
    """The axes of the map, what all runs share, and where they are run."""
    parser = argparse.ArgumentParser(
        prog="python -m demos.sweep",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = functools.partial(parser.add_argument, nargs="+", metavar="X")
    add("--placements", choices=tuple(tr.nn.PLACEMENTS), default=["pre", "post"])
    add("--depths", type=int, default=DEPTHS, help="numbers of blocks")
    add("--rates", type=float, default=RATES, help="learning rates")
    add("--warmups", type=int, default=[0, 100], help="steps of warm-up, one row of panels each")
    parser.add_argument("--seeds", type=int, default=3, help="how many runs a cell is the mean of")
    for option in OPTIONS:
        value = getattr(SMALL, option)
        kind = str if option in ("task", "text") else int
        choices = TASKS if option == "task" else None
        name, words = f"--{option.replace('_', '-')}", f"default: {value}"
        parser.add_argument(name, type=kind, default=value, choices=choices, help=words)
    parser.add_argument(
        "--margin", type=float, default=0.2, help="a run trains if it beats a guess by this (nats)"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="local processes")
    parser.add_argument("--dask", metavar="ADDRESS", help="run on this Dask cluster instead")
    parser.add_argument("--out", type=Path, default=Path("out/sweep"))
    return parser


def settings_of(args: argparse.Namespace) -> list[Setting]:
    """The runs, the longest first: a worker that begins a long one last would be waited for."""
    shared = SMALL.but(**{option: getattr(args, option) for option in OPTIONS})
    axes = (args.placements, args.depths, args.rates, args.warmups, range(args.seeds))
    runs = [shared.but(**dict(zip(AXES, values))) for values in itertools.product(*axes)]
    return sorted(dict.fromkeys(runs), key=lambda setting: -setting.blocks)


def main(argv: list[str] | None = None) -> int:
    from demos import sweep_map  # draws; a worker has no use for it

    parser = arguments()
    args = parser.parse_args(argv)
    pool = on_dask(args.dask) if args.dask else local
    settings = settings_of(args)
    try:
        if min(*args.depths, args.seeds, args.workers) < 1:
            raise ValueError("--depths, --seeds and --workers must be at least 1")
        chance = guess(task_of(settings[0]))
        with alone_in(args.out):
            rows, whole = sweep(settings, args.out, pool, args.workers)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print(f"stopped at once; what was finished is in {args.out}: the same command goes on")
        return 130
    limits = sweep_map.limits(rows, chance - args.margin)
    write_csv(args.out / "limits.csv", sweep_map.LIMIT_COLUMNS, limits)
    sweep_map.draw(rows, limits, args.out, chance)
    print(sweep_map.limits_table(limits, chance, args.margin))
    failed = [row for row in rows if row["status"] == "failed"]
    for row in failed:
        print("failed:", *(f"{a} {row['setting'][a]}" for a in AXES), row["reason"])
    print(f"runs.csv, limits.csv, map.svg and map.png are in {args.out}")
    if not whole or failed:
        print("not all runs are there: the same command goes on with the rest")
    return 0 if whole and not failed else 1


if __name__ == "__main__":
    from demos import sweep as importable  # workers look functions up by the module's name

    raise SystemExit(importable.main())
