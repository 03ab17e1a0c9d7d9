"""Many independent training runs, given to an executor: processes here, or a Dask cluster.

An executor is what Python's concurrent.futures calls one: it takes functions with their arguments,
and hands back futures. That is all that the two have to have in common.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from demos.interrupts import asked_to_stop, leave_interrupts
from demos.results_file import Row, key, read_results, recorder
from demos.training import Setting

Pool = Callable[[int], contextlib.AbstractContextManager[Executor]]


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


def failure(error: Exception) -> Row:
    """What a row says of a run that could not be finished."""
    return {"status": "failed", "reason": f"{type(error).__name__}: {error}"}


def train_missing(
    settings: list[Setting], path: Path, pool: Pool, workers: int, train: Callable[[Setting], Row]
) -> list[Row]:
    """The rows of all settings: those that the file has, and those that are trained now."""
    results = read_results(path)
    keys = {key(asdict(setting)): setting for setting in settings}
    # A run that failed may have failed for its worker's sake.
    done = {k for k in keys if k in results and results[k]["status"] != "failed"}
    missing = [setting for k, setting in keys.items() if k not in done]
    bar = tqdm(total=len(keys), initial=len(done), desc="sweep", unit="run", disable=None)
    with bar, recorder(path, results) as record, asked_to_stop() as asked:

        def note(row: Row) -> None:
            record(row)
            bar.update()
            shown = row["status"] if row["loss"] is None else f"loss {row['loss']:.3f}"
            bar.set_postfix_str(f"{row['setting']['blocks']} blocks: {shown}")

        run_all(missing, pool, workers, note, asked, train)
    return [results[k] for k in keys if k in results]


def run_all(
    settings: Iterable[Setting],
    pool: Pool,
    workers: int,
    record: Callable[[Row], None],
    stop: list[bool],
    train: Callable[[Setting], Row],
) -> None:
    """Have every run trained, in whatever order they finish, until there is something in `stop`.

    A pool of processes breaks when one of them dies. Then a new one takes the runs that are left.
    If it breaks before any is finished, the first run is tried alone, so that one which kills its
    worker each time is found and the others are trained.
    """
    waiting = list(settings)
    alone = False
    while waiting and not stop:
        before = len(waiting)
        try:
            with pool(1 if alone else workers) as executor:
                now = waiting[:1] if alone else list(waiting)
                for setting, row in completed(executor, train, now, stop):
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
    stop: list[bool],
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
        if stop:
            for other in futures:
                other.cancel()
