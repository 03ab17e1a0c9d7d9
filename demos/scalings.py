"""Forty blocks that turn a vector and scale it: what is left of signal and gradient, and where.

The toy of demos.vanishing_signal, which says what it shows. A random turn keeps the length of every
vector, so the gain is all that a block does to the size, on the way up and on the way back.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tinyres as tr
from demos import plots
from demos.report import Finding

BLOCKS, WIDTH = 40, 64
GAINS = (0.9, 1.1)
RULES: dict[str, Callable[[Any, tr.Tensor], tr.Tensor]] = {
    "F(x)": lambda F, x: F(x),
    "x + F(x)": lambda F, x: x + F(x),
    "x + F(norm(x))": lambda F, x: x + F(tr.layer_norm(x)),
}


def measure(rule: str, gain: float, seed: int) -> dict[str, Any]:
    """Forty blocks whose F turns a vector at random and scales it by exactly `gain`."""
    rng = np.random.default_rng(seed)
    x = tr.Tensor(rng.standard_normal((8, WIDTH)), requires_grad=True)
    stream = [x]
    for _ in range(BLOCKS):
        turn, _ = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))
        stream.append(RULES[rule](lambda x, m=gain * turn: x @ m, stream[-1]))
    for value in stream:
        value.retain_grad()
    stream[-1].backward(rng.standard_normal(x.shape))
    signal = np.array([np.linalg.norm(value.data) for value in stream])
    gradient = np.array([np.linalg.norm(value.grad) for value in stream])
    return {
        "rule": rule, "gain": gain,
        "signal": signal / signal[0], "gradient": gradient / gradient[-1],
        "unchanged": bool(np.array_equal(x.grad, stream[-1].grad)),
    }  # fmt: skip


def findings(toys: list[dict[str, Any]], zero: dict[str, Any]) -> list[Finding]:
    """Conditions on the numbers of `scalings`."""
    toy = {(t["rule"], t["gain"]): t for t in toys}
    powers = [gain**BLOCKS for gain in GAINS]
    signal = [toy["F(x)", gain]["signal"][-1] for gain in GAINS]
    gradient = [toy["F(x)", gain]["gradient"][0] for gain in GAINS]
    lowest = min(t["signal"].min() for t in toys if t["rule"] == "x + F(x)")
    summed, normed = (toy[rule, GAINS[0]]["signal"][-1] for rule in list(RULES)[1:])
    return [
        Finding(
            f"{BLOCKS} scalings by {GAINS[0]} or {GAINS[1]} destroy signal and gradient alike",
            "the signal ends at {:.3g} or {:.3g} times its size, the gradient at {:.3g} or {:.3g} "
            "times".format(*signal, *gradient),
            np.allclose([signal, gradient], [powers, powers]),
            f"{GAINS[0]}^{BLOCKS} = {powers[0]:.3g} and {GAINS[1]}^{BLOCKS} = {powers[1]:.3g}",
        ),
        Finding(
            "x + F(x) keeps both alive, but it grows; with a norm in the branch only a little",
            f"F = 0 returns the gradient {'unchanged' if zero['unchanged'] else 'CHANGED'}; with "
            f"turns by {GAINS[0]} the sum ends at {summed:.3g} times, with norm at {normed:.3g}",
            bool(zero["unchanged"] and lowest >= 1 and normed < 0.01 * summed),
            "the same bits; sums that never get smaller; with norm less than a hundredth",
        ),
    ]


def pictures(toys: list[dict[str, Any]], out: Path) -> list[plots.Picture]:
    """Signal and gradient, a picture a rule, all with the same axis."""
    made = []
    for number, rule in enumerate(RULES, 1):
        curves = []
        for t in (t for t in toys if t["rule"] == rule):
            colour = "warm" if t["gain"] < 1 else "other"
            curves.append(plots.Line(f"F scales by {t['gain']}", t["signal"], colour))
            curves.append(plots.Line("", t["gradient"], colour, dash=":"))
        title = f"{rule}: size, relative to its start"
        how = {"y_range": (3e-3, 1e7), "size": (4.2, 3.2)}  # three fit in a row
        made.append(plots.by_block(out, f"scalings-{number}", curves, title, **how))
    return made
