"""Line plots in one style, as SVG that follows the reader's light or dark mode, and as PNG.

The colours are those of the drawn graphs: orange for Pre-LN, whose stream is the unbroken orange
line, the colour of LayerNorm for Post-LN, whose stream is cut by one after every addition. Each
line carries its name, so that nothing depends on telling colours apart.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from demos.report import Picture

# name -> (on a light page, on a dark page)
COLOURS = {
    "ink": ("#1f2328", "#e6edf3"),
    "muted": ("#57606a", "#9da7b3"),
    "grid": ("#d8dee4", "#30363d"),
    "pre": ("#d55e00", "#ff8a3d"),
    "post": ("#a03070", "#ff9bcb"),
    "warm": ("#1f78c8", "#58a6ff"),
    "other": ("#117733", "#7ee787"),
    "plain": ("#6e7781", "#8b949e"),
}
STYLE = {
    "svg.fonttype": "none",  # text stays text: it can be searched, read aloud and copied
    "svg.hashsalt": "tinyres",
    "font.size": 9.5,
    "axes.edgecolor": COLOURS["muted"][0],
    "axes.labelcolor": COLOURS["muted"][0],
    "axes.titlecolor": COLOURS["ink"][0],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": COLOURS["muted"][0],
    "ytick.color": COLOURS["muted"][0],
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "grid.color": COLOURS["grid"][0],
    "grid.linewidth": 0.7,
    "lines.linewidth": 2,
    "lines.solid_capstyle": "round",
}
WIDE = 6.5  # inches: a picture that is wider gets more of the page, and is scrolled on a phone
NAME_AT = 1.02  # where curves' names stand, in widths of the axes
SANS = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


@dataclass(frozen=True)
class Line:
    """One curve. `faint` is drawn behind it: the single values that it is the mean of."""

    label: str
    y: npt.ArrayLike
    colour: str
    x: npt.ArrayLike | None = None
    dash: str = "-"
    faint: npt.ArrayLike | None = None
    marker: str = ""


def lines(
    out: Path,
    name: str,
    curves: Sequence[Line],
    *,
    title: str,
    words: str,
    x_label: str = "",
    log: bool = False,
    log_x: bool = False,
    levels: Sequence[tuple[str, float]] = (),
    y_range: tuple[float, float] | None = None,
    size: tuple[float, float] = (5.0, 3.2),
) -> Picture:
    """Draw curves into out/name.svg and out/name.png; `levels` are horizontal lines with a name.

    With `log_x` the ticks of the x axis stand at the values of the first curve. `size` is in
    inches; where a page has several in a row, smaller ones have larger words.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size)
        canvas = FigureCanvasAgg(figure)
        ax = figure.add_axes((0.1, 0.15, 0.66, 0.73))
        ax.set_title(title, loc="left", fontsize=10, pad=8)
        ax.set_xlabel(x_label)
        ax.grid(axis="y")
        ax.set_axisbelow(True)
        ends = draw_lines(ax, curves, log=log, log_x=log_x, levels=levels, y_range=y_range)
        canvas.draw()
        name_ends(ax, ends)
        _make_room(ax)
        return saved(figure, out, name, title=title, words=words)


def draw_lines(
    ax: Axes,
    curves: Sequence[Line],
    *,
    log: bool = False,
    log_x: bool = False,
    levels: Sequence[tuple[str, float]] = (),
    y_range: tuple[float, float] | None = None,
) -> list[tuple[str, float, str]]:
    """Draw curves and levels on the axes; what `name_ends` then writes beside them."""
    ends = []
    for label, level in levels:
        ax.axhline(level, color=COLOURS["ink"][0], linewidth=1, linestyle=(0, (2, 2)))
        ends.append((label, level, "ink"))
    for curve in curves:
        end = _draw(ax, curve)
        if curve.label:
            ends.append((curve.label, end, curve.colour))
    if log_x and curves[0].x is not None:
        ax.set_xscale("log")
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xticks(ticks := np.asarray(curves[0].x), [f"{tick:g}" for tick in ticks])
    else:
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if y_range is not None:
        ax.set_ylim(y_range)
    if log:
        _log_axis(ax)
    return ends


def by_block(out: Path, name: str, curves: Sequence[Line], title: str, **how: Any) -> Picture:
    """One quantity at each block of a stack, or of several, on a log scale."""
    words = f"{title}, at each block, on a log scale"
    return lines(out, name, curves, title=title, words=words, x_label="block", log=True, **how)


def saved(figure: Figure, out: Path, name: str, *, title: str, words: str) -> Picture:
    """Write a figure drawn in STYLE to out/name.png and, fit for a page, to out/name.svg."""
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / f"{name}.png", dpi=200)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    kind = "plot wide" if figure.get_figwidth() > WIDE else "plot"
    svg = _for_the_page(buffer.getvalue(), name, title, words, kind)
    (out / f"{name}.svg").write_text(svg, encoding="utf-8")
    return Picture(name, svg, words)


def running_mean(values: npt.ArrayLike, width: int = 15) -> npt.NDArray[np.float64]:
    """Mean of the last `width` values, of fewer at the start.

    >>> running_mean([1.0, 3.0, 5.0], 2).tolist()
    [1.0, 2.0, 4.0]
    """
    sums = np.cumsum(np.asarray(values, dtype=np.float64))
    before = np.concatenate([np.zeros(width), sums])[: len(sums)]
    return (sums - before) / np.minimum(np.arange(1, len(sums) + 1), width)


def _draw(ax: Axes, curve: Line) -> float:
    """Draw one curve and say where it ends."""
    y = np.asarray(curve.y, dtype=np.float64)
    x = np.arange(len(y)) if curve.x is None else np.asarray(curve.x)
    colour = COLOURS[curve.colour][0]
    if curve.faint is not None:
        ax.plot(x, curve.faint, color=colour, linewidth=0.8, alpha=0.3)
    ax.plot(
        x,
        y,
        color=colour,
        linestyle=curve.dash,
        marker=curve.marker,
        markersize=5,
        markeredgewidth=0,
    )
    return float(y[-1])


def _log_axis(ax: Axes) -> None:
    """Powers of ten on the y axis, seven at most; 1, 2 and 5 times them where they are few."""
    ax.set_yscale("log")
    low, high = np.log10(ax.get_ylim())
    step = max(1, int(np.ceil((high - low) / 7)))
    exponents = range(int(np.floor(low)), int(np.floor(high)) + 1)
    factors = (1.0, 2.0, 5.0) if high - low < 2 else (1.0,)
    ticks = [f * 10.0**e for e in exponents if e % step == 0 for f in factors]
    ax.set_yticks([tick for tick in ticks if low <= np.log10(tick) <= high])
    ax.set_ylim(10**low, 10**high)
    ax.yaxis.set_minor_locator(NullLocator())
    name = power_of_ten if len(factors) == 1 else "{:g}".format
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: name(value)))


def power_of_ten(value: float) -> str:
    """A power of ten as it is written.

    >>> power_of_ten(0.001), power_of_ten(10)
    ('10⁻³', '10')
    """
    exponent = round(float(np.log10(value)))
    if exponent in (0, 1):
        return str(10**exponent)
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def name_ends(ax: Axes, ends: list[tuple[str, float, str]]) -> None:
    """Write each curve's name right of its end, and push names apart that would touch."""
    gap = 0.062
    low, high = ax.get_ylim()
    to_axes = ax.transScale + ax.transLimits
    placed: list[tuple[float, str, str]] = []
    for label, y, colour in ends:
        height = to_axes.transform((0, float(np.clip(y, low, high))))[1]
        placed.append((height, label, colour))
    placed.sort()
    heights = np.array([p[0] for p in placed])
    steps = gap * np.arange(len(placed))
    # The nearest heights that are `gap` apart: a running maximum of height - steps, from below,
    # and the mirror image from above, halfway between the two.
    up = np.maximum.accumulate(heights - steps) + steps
    down = np.minimum.accumulate((heights - steps)[::-1])[::-1] + steps
    for height, (_, label, colour) in zip((up + down) / 2, placed):
        ax.annotate(
            label, (NAME_AT, height), xycoords="axes fraction", va="center", fontsize=8.5,
            color=COLOURS[colour][0], annotation_clip=False,
        )  # fmt: skip


def _make_room(ax: Axes) -> None:
    """Narrow the axes where numbers on its left or names on its right would be cut off."""
    page = ax.figure.bbox.width
    box = ax.get_position()
    numbers = ax.yaxis.get_tightbbox()
    left = box.x0 + (max(0.0, 4 - numbers.x0) / page if numbers is not None else 0.0)
    names = max((text.get_window_extent().width for text in ax.texts), default=0.0) / page
    width = min(box.x1 - left, (0.995 - names - left) / NAME_AT)
    ax.set_position((left, box.y0, width, box.height))


def _for_the_page(svg: str, name: str, title: str, words: str, kind: str) -> str:
    """The svg element alone: named for readers, ids that are unique in a page, dark mode."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", rf"font: \1px {SANS}", svg)
    svg = re.sub(r"font-family: [^;\"]*", f"font-family: {SANS}", svg)
    svg = svg.replace("*{stroke", f"#{name} *{{stroke")  # or it would hold for the whole page
    rules = "".join(
        f"#{name} [style*='{kind}: {light}'] {{ {kind}: {dark} !important }}\n"
        for light, dark in COLOURS.values()
        for kind in ("stroke", "fill")
    )
    head = (
        f"<title>{escape(title)}</title><desc>{escape(words)}</desc>"
        f"<style>@media (prefers-color-scheme: dark) {{\n{rules}}}</style>"
    )
    start, rest = svg.split(">", 1)
    return f'{start} id="{name}" class="{kind}" role="img">{head}{rest}'
