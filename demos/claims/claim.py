"""What a claim is: a sentence, its source, a function that measures, and conditions on the numbers.

Nothing here says that a claim holds. Its checks compare what was measured in this run with what a
law or a paper says, and the claim holds if all of them do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from demos.claims.lab import Job, Lab
from demos.plots import Picture

Numbers: TypeAlias = dict[str, Any]
Value: TypeAlias = "Callable[[Numbers], Any] | float"


class Verdict(NamedTuple):
    """A check, applied to numbers."""

    what: str
    measured: Any
    expected: Any
    tolerance: str
    holds: bool

    def line(self) -> str:
        """Measured against expected, in words."""
        return f"{shown(self.measured)}, expected {shown(self.expected)} ({self.tolerance})"


@dataclass(frozen=True)
class Near:
    """Measured is near expected: |m - e| <= rel |e| + within, or e / factor <= m <= e factor."""

    what: str
    measured: Value
    expected: Value
    rel: float = 0.0
    within: float = 0.0
    factor: float = 0.0

    def judge(self, numbers: Numbers) -> Verdict:
        measured, expected = _of(self.measured, numbers), _of(self.expected, numbers)
        m, e = np.asarray(measured, float), np.asarray(expected, float)
        if self.factor:
            holds = bool(np.all((m <= e * self.factor) & (m >= e / self.factor)))
            tolerance = f"within a factor of {self.factor:g}"
        else:
            # Written so that a value which is not a number does not hold.
            holds = bool(np.all(abs(m - e) <= self.rel * abs(e) + self.within))
            parts = [f"{100 * self.rel:g}\N{NO-BREAK SPACE}%"] if self.rel else []
            parts += [f"{self.within:g}"] if self.within else []
            tolerance = "within " + " + ".join(parts) if parts else "exactly"
        return Verdict(self.what, measured, expected, tolerance, holds)


@dataclass(frozen=True)
class Between:
    """All of what was measured lies from `low` to `high`; each may depend on the numbers."""

    what: str
    measured: Value
    low: Value = -np.inf
    high: Value = np.inf

    def judge(self, numbers: Numbers) -> Verdict:
        measured = _of(self.measured, numbers)
        low, high = _of(self.low, numbers), _of(self.high, numbers)
        values = np.asarray(measured, float)
        holds = bool(np.all((values >= low) & (values <= high)))
        if np.all(np.isneginf(low)):
            words: Any = f"at most {shown(high)}"
        elif np.all(np.isposinf(high)):
            words = f"at least {shown(low)}"
        else:
            words = f"from {shown(low)} to {shown(high)}"
        return Verdict(self.what, measured, words, "each value", holds)


def _of(value: Value, numbers: Numbers) -> Any:
    return value(numbers) if callable(value) else value


def shown(value: Any) -> str:
    """A number or a few, short.

    >>> shown(0.123456), shown([1.0, 20000.0]), shown(np.arange(20.0))
    ('0.1235', '1 2e+04', '0 1 2 ... 17 18 19')
    """
    if isinstance(value, str):
        return value
    flat = [f"{v:.4g}" for v in np.asarray(value, float).reshape(-1)]
    return " ".join(flat if len(flat) <= 9 else [*flat[:3], "...", *flat[-3:]])


@dataclass(frozen=True)
class Claim:
    """A sentence from a paper or a law, and how to find out whether it holds here."""

    id: str
    title: str
    text: str
    source: str
    setup: str
    measure: Callable[[Lab], Numbers]
    checks: Sequence[Near | Between]
    draw: Callable[[Numbers, Path], list[Picture]]
    jobs: Sequence[Job] = ()  # the trainings that it needs
    training: bool = False  # whether it trains without jobs
    note: str = ""  # what to keep in mind when reading the numbers

    @property
    def trains(self) -> bool:
        """Whether it needs training, and so more than seconds."""
        return self.training or bool(self.jobs)


def judge(claim: Claim, numbers: Numbers) -> list[Verdict]:
    """Apply all checks of a claim to numbers."""
    return [check.judge(numbers) for check in claim.checks]
