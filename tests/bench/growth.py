"""The picture of how time and memory grow with depth: `python -m tests.bench --plot FILE`.

It needs matplotlib, of the extra `demos`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from demos import plots

# colour, marker, and how far the name stands above the end: in the plot of time these are close
LOOKS = {"plain": ("pre", "o", -4), "checkpointed": ("warm", "s", 4)}


def draw(rows: list[dict[str, Any]], file: Path) -> plots.Picture:
    """Memory and time against the number of blocks, log-log, with slopes to compare."""
    deepest = rows[-1]
    of_memory = deepest["checkpointed"]["mib"] / deepest["plain"]["mib"]
    of_time = deepest["checkpointed"]["seconds"] / deepest["plain"]["seconds"]
    title = "A thousand blocks: what one forward and backward pass costs"
    words = (
        f"{deepest['blocks']:,} blocks with checkpoints round groups of {deepest['group']}: "
        f"{of_memory:.0%} of the memory, {of_time:.2f} times the time."
    )
    with matplotlib.rc_context(plots.STYLE):
        figure = Figure(figsize=(8.4, 3.6))
        memory = figure.add_axes((0.075, 0.145, 0.32, 0.63))
        time = figure.add_axes((0.56, 0.145, 0.32, 0.63))
        figure.text(0.03, 0.94, title, fontsize=13, color=_ink("ink"))
        figure.text(0.03, 0.885, words, color=_ink("muted"))
        _panel(memory, rows, "mib", 1, "MiB beside the parameters")
        _panel(time, rows, "seconds", 1e3, "milliseconds")
        _slope(memory, rows, "plain", "mib", 1, 1.0)
        _slope(memory, rows, "checkpointed", "mib", 1, 0.5)
        _slope(time, rows, "plain", "seconds", 1e3, 1.0)
        return plots.saved(figure, file.parent, file.stem, title=title, words=words)


def _panel(ax: Axes, rows: list[dict[str, Any]], key: str, unit: float, label: str) -> None:
    blocks = [row["blocks"] for row in rows]
    ax.set_xscale("log")
    ax.set_yscale("log")
    for name, (colour, marker, shift) in LOOKS.items():
        y = [unit * row[name][key] for row in rows]
        ax.plot(blocks, y, color=_ink(colour), marker=marker, markersize=4.5)
        _write(ax, name, (blocks[-1], y[-1]), (8, shift), colour, ha="left", va="center")
    ax.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("blocks")
    ax.set_title(label, fontsize=9.5, loc="left", color=_ink("muted"))


def _slope(
    ax: Axes, rows: list[dict[str, Any]], name: str, key: str, unit: float, power: float
) -> None:
    """A dashed line of this slope, below the end of a curve."""
    end = rows[-1]
    blocks = end["blocks"] * 10 ** np.array([-1.5, -0.75, 0.0])
    y = 0.55 * unit * end[name][key] * (blocks / end["blocks"]) ** power
    ax.plot(blocks, y, color=_ink("muted"), linewidth=1, linestyle=(0, (3, 2)))
    label = "in proportion" if power == 1 else "square root"
    _write(ax, label, (blocks[1], y[1]), (6, -3), "muted", ha="left", va="top")


def _write(
    ax: Axes, text: str, at: tuple[float, float], shift: tuple[int, int], colour: str, **align: Any
) -> None:
    ax.annotate(text, at, xytext=shift, textcoords="offset points", fontsize=8.5,
                color=_ink(colour), annotation_clip=False, **align)  # fmt: skip


def _ink(colour: str) -> str:
    """A colour of the plots on a light page; the page makes it the dark one where it has to."""
    return plots.COLOURS[colour][0]
