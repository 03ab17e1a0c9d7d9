"""Where training stops in a sweep: the depth, for each placement, warm-up and learning rate."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from statistics import median
from typing import Any

from demos.report import BOTH
from demos.results_file import Row

Panel = tuple[str, int]  # placement, steps of warm-up
Limit = tuple[str, int, float, str]
LIMIT_COLUMNS = ("placement", "warmup", "lr", "stops_at")


def order(placement: str) -> tuple[int, str]:
    """Pre-LN, Post-LN, then all others."""
    return list(BOTH).index(placement) if placement in BOTH else len(BOTH), placement


def cells(rows: Iterable[Row]) -> dict[Panel, dict[tuple[int, float], list[float]]]:
    """The losses of all seeds, by panel and by depth and rate; inf for a run that diverged."""
    panels: Any = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["status"] != "failed":
            s = row["setting"]
            loss = math.inf if row["loss"] is None else row["loss"]
            panels[s["placement"], s["warmup"]][s["blocks"], s["lr"]].append(loss)
    return panels


def limits(rows: Iterable[Row], trains_below: float) -> list[Limit]:
    """For each placement, warm-up and rate the depth from which on the median run of the seeds
    does not train; "" if it does at the greatest depth.

    A shallow stack that is too slow at a small rate, at which deeper ones train, is not meant.
    """
    found: list[Limit] = []
    panels = cells(rows)
    for placement, warmup in sorted(panels, key=lambda panel: (order(panel[0]), panel[1])):
        losses = panels[placement, warmup]
        for lr in sorted({rate for _, rate in losses}):
            by_depth = {depth: median(x) for (depth, rate), x in losses.items() if rate == lr}
            last = max(
                (depth for depth, loss in by_depth.items() if loss < trains_below), default=0
            )
            beyond = [depth for depth in by_depth if depth > last]
            found.append((placement, warmup, lr, str(min(beyond)) if beyond else ""))
    return found


def limits_table(found: list[Limit], chance: float, margin: float) -> str:
    """The limits as text: one line a placement and warm-up, one column a rate."""
    rates = sorted({lr for _, _, lr, _ in found})
    lines = [
        f"Depth from which on nothing trains (median loss not {margin:g} nats below a guess, "
        f"{chance:.3f}); - where the deepest does:",
        f"{'learning rate':<28}" + "".join(f"{rate:>9g}" for rate in rates),
    ]
    stops = {(placement, warmup, lr): depth or "-" for placement, warmup, lr, depth in found}
    for placement, warmup in dict.fromkeys((p, w) for p, w, _, _ in found):
        values = (stops.get((placement, warmup, rate), "?") for rate in rates)
        lines.append(f"{panel_title((placement, warmup)):<28}" + "".join(f"{v:>9}" for v in values))
    return "\n".join(lines)


def panel_title(panel: Panel) -> str:
    """A placement and its warm-up in words."""
    placement, warmup = panel
    return f"{BOTH.get(placement, placement)}, {warmup_words(warmup)}"


def warmup_words(steps: int) -> str:
    """How long the learning rate rises.

    >>> warmup_words(0), warmup_words(100)
    ('no warm-up', 'warm-up 100 steps')
    """
    return f"warm-up {steps} steps" if steps else "no warm-up"
