"""Processes of their own for what is measured, each held to a number of cores and threads."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
from typing import Any

from tests.bench.models import Workload


def environment(blas_threads: int) -> dict[str, str]:
    """The environment of a process whose BLAS shall have so many threads."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(names, str(blas_threads))}


def alone(module: str, call: str) -> Any:
    """What `module.call` returns in a new process with one core and one thread."""
    code = (
        f"import json; from tests.bench import worker; worker.hold_to(1); "
        f"from tests.bench import {module}; print(json.dumps({module}.{call}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(1), check=True, stdout=subprocess.PIPE
    )
    return json.loads(done.stdout)


class Worker:
    """A running `tests.bench.worker`, and what it has reported; `failure` says why it ended."""

    def __init__(self, peer: str, workload: Workload, threads: int, blas_threads: int):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.worker", peer, json.dumps(workload), str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(blas_threads),
        )  # fmt: skip
        self.times: list[float] = []
        self.losses: list[float] = []  # of the first steps
        self.peak = 0.0
        self.failure = ""

    def warm_up(self, steps: int = 3) -> None:
        """Let it do its first steps, in which libraries compile; only their losses count."""
        self.losses = self._ask(steps, math.inf).get("losses", [])

    def run(self, steps: int, seconds: float = 2) -> None:
        """Let it do some steps, fewer if they take longer than that, but at least one."""
        self.times += self._ask(steps, seconds).get("times", [])

    def _ask(self, steps: int, seconds: float) -> dict[str, Any]:
        if self.failure:
            return {}
        assert self.process.stdin and self.process.stdout
        with contextlib.suppress(OSError):  # it has ended: its last words are read below
            print(steps, seconds, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            line = json.dumps({"failure": f"its process ended with code {self.process.wait()}"})
        answer: dict[str, Any] = json.loads(line)
        self.failure = answer.get("failure", "")
        self.peak = answer.get("peak", self.peak)
        return answer

    def close(self) -> None:
        """End the process."""
        self.process.communicate()
