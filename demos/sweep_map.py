"""The map of a sweep: loss over depth and learning rate, and where training stops."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse

from demos import plots
from demos.report import BOTH
from demos.results_file import Row
from demos.sweep_limits import Limit, Panel, cells, order, panel_title, warmup_words

INK, MUTED, GREY = (plots.COLOURS[name][0] for name in ("ink", "muted", "grid"))
# From pale where a run only just trains to dark where it does best; grey is for what does not.
TRAINS = LinearSegmentedColormap.from_list(
    "trains", ["#fdf0c8", "#f9cf8a", "#93cbb0", "#3d93a8", "#1f4e7c"]
)
CELL = 0.64, 0.46  # inches
TITLE = "Where training stops"


@dataclass(frozen=True)
class Scale:
    """What losses mean: `low` is the best of the map, trained is what is under `trains_below`."""

    low: float
    trains_below: float

    def colour(self, loss: float) -> str:
        """The fill of a cell."""
        if loss >= self.trains_below:
            return GREY
        share = (self.trains_below - loss) / max(self.trains_below - self.low, 1e-9)
        return matplotlib.colors.to_hex(TRAINS(share))

    def ink(self, loss: float) -> str:
        """A colour that can be read on that fill."""
        if loss >= self.trains_below:
            return MUTED
        red, green, blue = matplotlib.colors.to_rgb(self.colour(loss))
        return "#000000" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.52 else "#fefefe"


def draw(
    rows: list[Row], found: list[Limit], out: Path, chance: float, margin: float
) -> plots.Picture:
    """Write out/map.svg and out/map.png: a column of panels a placement, a row a warm-up."""
    words = " ".join(
        f"{panel_title((p, w))}, rate {lr:g}: "
        + (f"no training from {depth} blocks on." if depth else "trains at the greatest depth.")
        for p, w, lr, depth in found
    )
    with matplotlib.rc_context(plots.STYLE):
        figure = make_figure(rows, found, chance, margin)
        return plots.saved(figure, out, "map", title=TITLE, words=words)


def make_figure(rows: list[Row], found: list[Limit], chance: float, margin: float) -> Figure:
    """The panels and, below them, what their signs mean."""
    panels = cells(rows)
    placements = sorted({placement for placement, _ in panels}, key=order)
    warmups = sorted({warmup for _, warmup in panels})
    depths = sorted({depth for losses in panels.values() for depth, _ in losses})
    rates = sorted({rate for losses in panels.values() for _, rate in losses})
    medians = [median(each) for losses in panels.values() for each in losses.values()]
    scale = Scale(min(medians), chance - margin)

    longest = max(len(BOTH.get(p, p)) for p in placements)
    width = max(CELL[0] * len(rates), 0.095 * longest, 1.35)
    height = CELL[1] * len(depths)
    across = max(0.75 + len(placements) * (width + 0.3), 4.8)
    down = 0.55 + len(warmups) * (height + 0.95) + 1.15
    figure = Figure(figsize=(across, down))
    FigureCanvasAgg(figure)
    steps = rows[0]["setting"]["steps"]
    figure.text(0.12 / across, 1 - 0.27 / down, TITLE, fontsize=11.5, weight="bold", color=INK)
    figure.text(0.12 / across, 1 - 0.47 / down, f"Loss after {steps} steps, by depth and learning "
                "rate", fontsize=8.5, color=MUTED)  # fmt: skip
    for i, warmup in enumerate(warmups):
        for j, placement in enumerate(placements):
            left = 0.75 + j * (width + 0.3)
            bottom = down - 0.55 - (i + 1) * (height + 0.95) + 0.42
            ax = figure.add_axes((left / across, bottom / down, width / across, height / down))
            stops = {lr: d for p, w, lr, d in found if (p, w) == (placement, warmup)}
            _panel(ax, panels.get((placement, warmup), {}), depths, rates, scale, stops)
            _head(ax, (placement, warmup), height)
            if j == 0:
                ax.set_ylabel("blocks")
            else:
                ax.set_yticklabels([])
            if i == len(warmups) - 1:
                ax.set_xlabel("learning rate")
    _legend(figure, scale, chance, margin)
    return figure


def _head(ax: Axes, panel: Panel, height: float) -> None:
    """Placement and warm-up above a panel, in two lines, so that they have room on small maps."""
    placement, warmup = panel
    above = {"xycoords": "axes fraction", "annotation_clip": False}
    ax.annotate(BOTH.get(placement, placement), (0, 1 + 0.24 / height), fontsize=10, weight="bold",
                color=INK, **above)  # fmt: skip
    ax.annotate(warmup_words(warmup), (0, 1 + 0.08 / height), fontsize=8.5, color=MUTED, **above)


def _panel(
    ax: Axes,
    losses: dict[tuple[int, float], list[float]],
    depths: list[int],
    rates: list[float],
    scale: Scale,
    stops: dict[float, str],
) -> None:
    """One cell for each depth and rate; the line is where training stops."""
    ax.set_xlim(0, len(rates))
    ax.set_ylim(0, len(depths))
    for x, rate in enumerate(rates):
        for y, depth in enumerate(depths):
            if losses.get((depth, rate)):
                _cell(ax, x, y, sorted(losses[depth, rate]), scale)
    _edge(ax, [depths.index(int(stops[r])) if stops.get(r) else len(depths) for r in rates])
    ax.set_xticks(np.arange(len(rates)) + 0.5, [f"{rate:g}" for rate in rates])
    ax.set_yticks(np.arange(len(depths)) + 0.5, [str(depth) for depth in depths])
    ax.tick_params(length=0)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)


def _edge(ax: Axes, heights: list[int]) -> None:
    """The line above which nothing trains; none along the top, where the deepest does."""
    top = ax.get_ylim()[1]
    for x, height in enumerate(heights):
        level = [([x, x + 1], [height, height])] if height < top else []
        rise = [([x, x], [heights[x - 1], height])] if x and heights[x - 1] != height else []
        for xs, ys in level + rise:
            ax.plot(xs, ys, color=INK, linewidth=2.5, clip_on=False, solid_capstyle="projecting")


def _cell(ax: Axes, x: int, y: int, each: list[float], scale: Scale) -> None:
    """The median loss, and below it a dot a seed."""
    loss = median(each)
    left, right, low, high = x + 0.02, x + 0.98, y + 0.03, y + 0.97
    ax.fill([left, right, right, left], [low, low, high, high], color=scale.colour(loss), lw=0)
    shown = f"{loss:.2f}" if math.isfinite(loss) else "div."
    ink = scale.ink(loss)
    ax.text(x + 0.5, y + 0.6, shown, ha="center", va="center", fontsize=8.5, color=ink)
    for i, one in enumerate(each):
        place = x + 0.5 + 0.13 * (i - (len(each) - 1) / 2), y + 0.23
        _dot(ax, place, one, scale, ink)


def _dot(ax: Axes, place: tuple[float, float], loss: float, scale: Scale, ink: str) -> None:
    """A seed: full if it trains, hollow if not, a cross if it diverged."""
    x, y = place
    # Drawn as a path of its own: a marker's outline would not follow the reader's dark mode.
    inches = ax.transData - ax.figure.dpi_scale_trans
    (w, h) = 0.042 / (inches.transform((1, 1)) - inches.transform((0, 0)))
    if math.isinf(loss):
        for slope in (-1, 1):
            ends = [x - w / 2, x + w / 2], [y - slope * h / 2, y + slope * h / 2]
            ax.plot(*ends, color=ink, linewidth=0.9, solid_capstyle="butt")
    else:
        full = ink if loss < scale.trains_below else "none"
        ax.add_patch(Ellipse(place, w, h, facecolor=full, edgecolor=ink, linewidth=0.8))


def _legend(figure: Figure, scale: Scale, chance: float, margin: float) -> None:
    """What colours, dots and the line mean, a row each."""
    across, down = figure.get_size_inches()
    ax = figure.add_axes((0.12 / across, 0.1 / down, (across - 0.24) / across, 0.92 / down))
    ax.set_xlim(0, across - 0.24)  # in inches
    ax.set_ylim(0, 0.92)
    ax.set_axis_off()
    rows = (0.80, 0.57, 0.34, 0.11)
    for i in range(40):  # each as far as the right end, so that no seam shows
        loss = scale.trains_below + (scale.low - scale.trains_below) * (i + 0.5) / 40
        ax.fill_between([i * 0.015, 0.6], rows[0] - 0.07, rows[0] + 0.07,
                        color=scale.colour(loss), lw=0)  # fmt: skip
    ax.fill_between([0, 0.6], rows[1] - 0.07, rows[1] + 0.07, color=GREY, lw=0)
    for i, loss in enumerate((scale.low, math.nextafter(math.inf, 0), math.inf)):
        _dot(ax, (0.12 + 0.18 * i, rows[2]), loss, scale, MUTED)
    ax.plot([0, 0.6], [rows[3]] * 2, color=INK, linewidth=2.5, solid_capstyle="butt")
    words = (
        f"trains: nats, median of the seeds, {scale.trains_below:.2f} to {scale.low:.2f}",
        f"does not: stuck, or too slow to get {margin:g} below a guess, {chance:.2f}",
        "a seed that trains, that does not, that diverged",
        "above it nothing trains",
    )
    for row, text in zip(rows, words):
        ax.text(0.72, row, text, va="center", fontsize=8.5, color=MUTED)
