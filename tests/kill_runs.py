"""Start runs of train_stacks in processes of their own and kill them, until enough were killed.

    python tests/kill_runs.py FOLDER KILLS OPTION...

The runs go to FOLDER/whole (never killed), FOLDER/run0, FOLDER/run1, ...: each is killed at a
random moment and resumed, again and again, until it comes to its end. A fork costs no imports, so
that dozens of them take seconds. Prints in which moments they died, as JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from demos import train_stacks
from tinyres import state


def start(argv: list[str], before: Callable[[], None]) -> int:
    """The id of a new process that trains."""
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        before()
        code = train_stacks.main(argv)
    finally:
        os._exit(code)


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def half_a_file(file: Any, _: Any) -> None:
    file.write(b"PK" * 1000)
    file.flush()
    die()


def on_call(module: Any, name: str, count: int, act: Callable[..., Any]) -> Callable[[], None]:
    """Put `act` in place of the count-th call of a function."""
    real, calls = getattr(module, name), iter(range(1, 10**9))

    def counted(*args: Any, **kwargs: Any) -> Any:
        return (act if next(calls) == count else real)(*args, **kwargs)

    return lambda: setattr(module, name, counted)


def replace_then_die(source: Any, target: Any) -> None:
    os.rename(source, target)
    die()


def moments(rng: random.Random, length: float) -> dict[str, tuple[Callable[[], None], float]]:
    """How to die: what to prepare in the process, and after how many seconds it is killed."""
    n, late = rng.randint(1, 3), 10.0
    return {
        "half a checkpoint": (on_call(state, "_write", n, half_a_file), late),
        "before it is flushed": (on_call(os, "fsync", 2 * n, die), late),
        "metrics without a checkpoint": (on_call(os, "fsync", 2 * n + 1, die), late),
        "before it is renamed": (on_call(os, "replace", n, die), late),
        "after it is renamed": (on_call(os, "replace", n, replace_then_die), late),
        **{f"at some time {i}": (lambda: None, rng.uniform(0, length)) for i in range(10)},
    }


def main(folder: Path, kills: int, options: list[str]) -> dict[str, int]:
    rng = random.Random(0)
    begin = time.monotonic()
    os.waitpid(start([*options, "--out", str(folder / "whole")], lambda: None), 0)
    length = 0.6 * (time.monotonic() - begin)
    died: dict[str, int] = {}
    number = 0
    while True:
        out = folder / f"run{number}"
        resume = ["--resume"] if (out / "checkpoint.npz").exists() else []
        how = rng.choice(list(moments(rng, length)))
        before, delay = moments(rng, length)[how]
        if sum(died.values()) >= kills:
            before, delay = (lambda: None), 10.0
        pid = start([*options, *resume, "--out", str(out)], before)
        end = time.monotonic() + delay
        while not (done := os.waitpid(pid, os.WNOHANG))[0]:
            if time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
                done = os.waitpid(pid, 0)
                break
            time.sleep(0.0005)
        if os.WIFSIGNALED(done[1]):
            died[how.rstrip(" 0123456789")] = died.get(how.rstrip(" 0123456789"), 0) + 1
        elif os.WEXITSTATUS(done[1]):
            raise SystemExit(f"{out} ended with {os.WEXITSTATUS(done[1])}")
        elif sum(died.values()) >= kills:
            return died
        else:
            number += 1  # this one came to its end: the next kills are for another run


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])))
