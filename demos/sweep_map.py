"""The map of a sweep: loss over depth and learning rate, and where training stops."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from demos import plots

Row = dict[str, Any]
Panel = tuple[str, int]  # placement, steps of warm-up
Limit = tuple[str, int, float, str]
LIMIT_COLUMNS = ("placement", "warmup", "lr", "stops_at")
TITLES = {"pre": "Pre-LN", "post": "Post-LN"}
CAPTION = (
    "Loss in nats after training, mean of the seeds; one who guesses by frequency has {:.2f}.\n"
    "The orange line stands below the smallest depth that no longer trains."
)


def order(placement: str) -> tuple[int, str]:
    """Pre-LN, Post-LN, then all others."""
    return list(TITLES).index(placement) if placement in TITLES else len(TITLES), placement


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
    """For each placement, warm-up and rate the smallest depth at which the median run of the
    seeds does not train; "" if it trains at every depth."""
    found: list[Limit] = []
    panels = cells(rows)
    for placement, warmup in sorted(panels, key=lambda panel: (order(panel[0]), panel[1])):
        losses = panels[placement, warmup]
        for lr in sorted({rate for _, rate in losses}):
            stops = [
                depth
                for (depth, rate), each in losses.items()
                if rate == lr and median(each) >= trains_below
            ]
            found.append((placement, warmup, lr, str(min(stops)) if stops else ""))
    return found


def limits_table(found: list[Limit], chance: float, margin: float) -> str:
    """The limits as text: one line a placement and warm-up, one column a rate."""
    rates = sorted({lr for _, _, lr, _ in found})
    lines = [
        f"Smallest depth that does not train (median loss not {margin:g} nats below a guess, "
        f"{chance:.3f}); - where all do:",
        f"{'learning rate':<28}" + "".join(f"{rate:>9g}" for rate in rates),
    ]
    stops = {(placement, warmup, lr): depth or "-" for placement, warmup, lr, depth in found}
    for placement, warmup in dict.fromkeys((p, w) for p, w, _, _ in found):
        values = (stops.get((placement, warmup, rate), "?") for rate in rates)
        lines.append(f"{panel_title((placement, warmup)):<28}" + "".join(f"{v:>9}" for v in values))
    return "\n".join(lines)


def panel_title(panel: Panel) -> str:
    """What stands above a panel."""
    placement, warmup = panel
    name = TITLES.get(placement, placement)
    return f"{name}, warm-up {warmup} steps" if warmup else f"{name}, no warm-up"


def draw(rows: list[Row], found: list[Limit], out: Path, chance: float) -> plots.Picture:
    """Write out/map.svg and out/map.png: a column of panels a placement, a row a warm-up."""
    panels = cells(rows)
    placements = sorted({row["setting"]["placement"] for row in rows}, key=order)
    warmups = sorted({row["setting"]["warmup"] for row in rows})
    depths = sorted({row["setting"]["blocks"] for row in rows})
    rates = sorted({row["setting"]["lr"] for row in rows})
    finite = [x for losses in panels.values() for each in losses.values() for x in each]
    low = min([x for x in finite if math.isfinite(x)], default=0.0)
    width, height = 0.62 * len(rates), 0.42 * len(depths)  # of a panel, in inches
    with matplotlib.rc_context(plots.STYLE):
        figure = Figure(figsize=(
            0.75 + len(placements) * (width + 0.35), 1.1 + len(warmups) * (height + 0.62)
        ))  # fmt: skip
        FigureCanvasAgg(figure)
        grid = figure.subplots(len(warmups), len(placements), squeeze=False)
        for i, warmup in enumerate(warmups):
            for j, placement in enumerate(placements):
                stops = {lr: d for p, w, lr, d in found if (p, w) == (placement, warmup)}
                panel = grid[i, j]
                _panel(panel, panels[placement, warmup], depths, rates, low, chance, stops)
                panel.set_title(panel_title((placement, warmup)), loc="left", fontsize=10)
                if j == 0:
                    panel.set_ylabel("blocks")
                if i == len(warmups) - 1:
                    panel.set_xlabel("learning rate")
        figure.text(0.01, 0.01, CAPTION.format(chance), fontsize=8.5, color=plots.COLOURS["ink"][0])
        figure.tight_layout(rect=(0, 0.42 / figure.get_figheight(), 1, 1))
        words = " ".join(
            f"{panel_title((p, w))}, rate {lr:g}: "
            + (f"no training from {depth} blocks on." if depth else "trains at every depth.")
            for p, w, lr, depth in found
        )
        title = "Loss after training, by depth and learning rate"
        return plots.saved(figure, out, "map", title=title, words=words)


def _panel(
    ax: Axes,
    losses: dict[tuple[int, float], list[float]],
    depths: list[int],
    rates: list[float],
    low: float,
    chance: float,
    stops: dict[float, str],
) -> None:
    """One cell for each depth and rate, with its mean loss; the line is where training stops."""
    colours = matplotlib.colormaps["cividis"]
    for x, rate in enumerate(rates):
        for y, depth in enumerate(depths):
            each = losses.get((depth, rate))
            if not each:
                continue
            loss = float(np.mean(each))
            share = np.clip((chance - loss) / max(chance - low, 1e-9), 0, 1)  # 1 is the best
            colour = colours(share) if math.isfinite(loss) else "#b8b8b8"
            ax.fill([x, x + 1, x + 1, x], [y, y, y + 1, y + 1], color=colour, linewidth=0)
            shown = f"{loss:.2f}" if math.isfinite(loss) else "div."
            ink = "#ffffff" if share < 0.5 and math.isfinite(loss) else "#000000"
            ax.text(x + 0.5, y + 0.5, shown, ha="center", va="center", fontsize=8, color=ink)
    heights = [depths.index(int(stops[r])) if stops.get(r) else len(depths) for r in rates]
    edge = np.repeat(heights, 2)
    corners = np.repeat(np.arange(len(rates) + 1), 2)[1:-1]
    ax.plot(corners, edge, color=plots.COLOURS["pre"][0], linewidth=2.5, clip_on=False)
    ax.set_xlim(0, len(rates))
    ax.set_ylim(0, len(depths))
    ax.set_xticks(np.arange(len(rates)) + 0.5, [f"{rate:g}" for rate in rates])
    ax.set_yticks(np.arange(len(depths)) + 0.5, [str(depth) for depth in depths])
    ax.tick_params(length=0)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
