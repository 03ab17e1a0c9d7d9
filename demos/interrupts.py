"""Ctrl-C that lets what has begun come to its end."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def asked_to_stop() -> Iterator[list[bool]]:
    """Ctrl-C makes the list non-empty, for a loop that looks; a second one stops at once."""
    asked: list[bool] = []
    before = signal.getsignal(signal.SIGINT)

    def ask(*_: Any) -> None:
        asked.append(True)
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def leave_interrupts() -> None:
    """For worker processes: Ctrl-C is for the one that gives them work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
