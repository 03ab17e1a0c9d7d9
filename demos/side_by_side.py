"""Saved training runs at the same time, each in a process of its own.

A process sends what each step measured through a pipe, and stops after the step at which nobody
listens any more. So it saves and ends when Ctrl-C comes, and also when the command has died.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from tqdm import tqdm

from demos.folder import alone_in
from demos.interrupts import asked_to_stop, leave_interrupts
from demos.saved_run import SavedRun, take_up
from demos.training import Setting


@dataclass(frozen=True)
class Job:
    """A run in a folder: how it begins, and what is measured after its last step."""

    name: str
    setting: Setting
    out: Path
    begin: Callable[[Setting, Path], SavedRun]
    at_the_end: Callable[[SavedRun], dict[str, Any]]


def train_side_by_side(jobs: Sequence[Job]) -> bool:
    """Take the steps that are left of each; False if they were stopped before the end."""
    spawn = multiprocessing.get_context("spawn")
    processes, bars = [], {}
    with asked_to_stop() as asked:
        for place, job in enumerate(jobs):
            ours, theirs = spawn.Pipe(duplex=False)
            process = spawn.Process(target=work, args=(theirs, job), name=job.name, daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            # disable=None: no bar where the output is not a terminal
            bars[ours] = tqdm(total=job.setting.steps, desc=job.name, unit="step", position=place,
                              disable=None)  # fmt: skip
        try:
            while bars and not asked:
                for pipe in wait(list(bars), timeout=0.2):
                    listen(pipe, bars)
        finally:
            for pipe, bar in bars.items():
                pipe.close()
                bar.close()
            for process in processes:
                process.join()
    for process in processes:
        if process.exitcode:
            raise OSError(
                f"{process.name}: its process ended with status {process.exitcode}: the same "
                "command goes on from its last checkpoint"
            )
    return not asked


def listen(pipe: Any, bars: dict[Any, Any]) -> None:
    """Show a message of a process; when it has ended, forget its pipe."""
    try:
        message = pipe.recv()
    except EOFError:
        bars.pop(pipe).close()
        return
    if isinstance(message, Exception):
        raise message
    bar = bars[pipe]
    if "loss" in message:
        bar.set_postfix_str(f"loss {message['loss']:.3f}", refresh=False)
        bar.update()
    else:
        bar.initial = bar.n = message["step"]


# ---------------------------------------------------------------- in the other process


def work(pipe: Any, job: Job) -> None:
    """Train while somebody listens."""

    def heard(message: Any) -> bool:
        try:
            pipe.send(message)
        except OSError:  # the other end is closed
            return False
        return True

    leave_interrupts()
    try:
        with alone_in(job.out):
            train(saved_or_new(job), heard, job.at_the_end)
    except (ValueError, OSError, FloatingPointError) as error:
        if not heard(ValueError(str(error))):
            raise SystemExit(f"{job.name}: {error}") from None


def saved_or_new(job: Job) -> SavedRun:
    """The run that is in the folder, or a new one."""
    if not (job.out / "checkpoint.npz").exists():
        return job.begin(job.setting, job.out)
    run = take_up(job.out, {})
    saved = run.trainer.setting
    if saved != job.setting:
        differs = {k: v for k, v in vars(saved).items() if v != getattr(job.setting, k)}
        raise ValueError(
            f"{job.out} holds a run with other options ({differs}): give them again to go on with "
            "it, or choose another folder with --out"
        )
    return run


def train(
    run: SavedRun,
    heard: Callable[[dict[str, float]], bool],
    at_the_end: Callable[[SavedRun], dict[str, Any]],
) -> None:
    """Take the steps that are left; save now and then, at the end, and when nobody hears."""
    trainer, steps = run.trainer, run.trainer.setting.steps
    on = heard({"step": trainer.done})
    with run.metrics() as note:
        while on and trainer.done < steps:
            record = trainer.step()
            on = heard(record)
            last = trainer.done == steps
            measured = [record, at_the_end(run)] if last else [record]
            note(*measured, save=last or not on or trainer.done % run.every == 0)
