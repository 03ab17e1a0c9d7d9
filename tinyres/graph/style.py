"""Colours and line widths, light and dark.

Each light colour has one dark counterpart, so that a stylesheet can exchange them in an SVG.
Contrasts: strokes at least 3:1 against their ground (WCAG 2.1, 1.4.11).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# role -> (stroke, fill)
LIGHT = {
    "ground": ("#FFFFFF", "#FFFFFF"),
    "text": ("#1F2328", "#1F2328"),
    "muted": ("#656D76", "#656D76"),
    "box": ("#6E7781", "#FFFFFE"),
    "arrow": ("#818B98", "#818B98"),
    "skip": ("#D55E00", "#FFE8D9"),
    "norm": ("#A03070", "#F9E8F1"),
    "attention": ("#1F78C8", "#EAF3FC"),
    "feed-forward": ("#117733", "#E8F4EB"),
    "block": ("#AFB8C1", "#FDFDFD"),
    "leaf": ("#6E7782", "#F6F8FA"),
}
DARK = {
    "ground": ("#0D1117", "#0D1117"),
    "text": ("#E6EDF3", "#E6EDF3"),
    "muted": ("#9198A1", "#9198A1"),
    "box": ("#8B949E", "#161B22"),
    "arrow": ("#7D8590", "#7D8590"),
    "skip": ("#FF8A3D", "#4A2710"),
    "norm": ("#FF9BCB", "#3D1F30"),
    "attention": ("#58A6FF", "#0F2440"),
    "feed-forward": ("#7EE787", "#10291A"),
    "block": ("#57606A", "#0D1118"),
    "leaf": ("#8B949F", "#1C2128"),
}
# The gradient's size against that at the top of the stack: vanishing .. unchanged .. exploding.
RAMP = ("#08519C", "#2F7FC1", "#5795D0", "#767676", "#C67A2B", "#B85208", "#8F2D00")
DARK_RAMP = ("#388BFD", "#6CB0FF", "#A5D0FF", "#A0A7AE", "#F2C491", "#FF9A4D", "#FF6A33")


@dataclass(frozen=True)
class Theme:
    """The colours of a picture by role."""

    colours: dict[str, tuple[str, str]]
    ramp: tuple[str, ...]

    def stroke(self, role: str) -> str:
        return self.colours.get(role, self.colours["box"])[0]

    def fill(self, role: str) -> str:
        return self.colours.get(role, self.colours["box"])[1]


THEMES = {
    "light": Theme(LIGHT, RAMP),
    "dark": Theme(DARK, DARK_RAMP),
    "auto": Theme(LIGHT, RAMP),
}


def dark_counterparts() -> dict[str, str]:
    """Each light colour with the dark one that takes its place."""
    pairs = dict(zip(RAMP, DARK_RAMP))
    for role, colours in LIGHT.items():
        pairs.update(zip(colours, DARK[role]))
    return pairs


@dataclass(frozen=True)
class GradientScale:
    """How the gradient on an edge becomes a colour and a width.

    `top` is the gradient at the top of the stack; ratios from 10 ** -decades to 10 ** decades
    spread over the ramp, what is beyond gets its ends.
    """

    top: float
    decades: float = 3.0

    def place(self, gradient: float) -> float:
        """From 0 (vanishing) by 1/2 (as at the top) to 1 (exploding)."""
        if gradient <= 0 or self.top <= 0:
            return 0.0 if gradient <= 0 else 1.0
        t = (math.log10(gradient / self.top) / self.decades + 1) / 2
        return min(max(t, 0.0), 1.0)

    def step(self, gradient: float) -> int:
        """Which colour of the ramp."""
        return round(self.place(gradient) * (len(RAMP) - 1))

    def width(self, gradient: float, on_spine: bool) -> float:
        t = self.place(gradient)
        return 1.5 + 8.5 * t if on_spine else 1 + 4.5 * t


def ratio_text(ratio: float) -> str:
    """Two digits: 0.84, 12, 3.1e-4."""
    if ratio == 0 or 0.01 <= ratio < 1000:
        return f"{ratio:.2g}" if ratio < 100 else f"{ratio:.0f}"
    digits, exponent = f"{ratio:.1e}".split("e")
    return f"{digits}e{int(exponent)}"


@dataclass(frozen=True)
class Look:
    """How a picture is drawn."""

    rankdir: str = "BT"
    theme: str = "auto"
    gradient: bool = False  # whether edges carry the measured gradient
    decades: float = 3.0  # of the gradient's scale, on either side of the top's
    legend: bool = True


def defaults(rankdir: str, theme: Theme) -> dict[str, dict[str, str]]:
    """The attributes of graph, nodes and edges where nothing else is said."""
    return {
        "graph": {
            "rankdir": rankdir, "newrank": "true", "splines": "spline", "nodesep": "0.25",
            "ranksep": "0.30", "pad": "0.15", "outputorder": "edgesfirst", "fontname": "Helvetica",
            "fontsize": "13", "labelloc": "b", "bgcolor": theme.stroke("ground"),
            "fontcolor": theme.stroke("text"),
        },
        "node": {
            "shape": "box", "style": "rounded,filled", "fillcolor": theme.fill("box"),
            "color": theme.stroke("box"), "fontname": "Helvetica", "fontsize": "11",
            "height": "0.28", "margin": "0.13,0.05", "penwidth": "1",
            "fontcolor": theme.stroke("text"),
        },
        "edge": {
            "color": theme.stroke("arrow"), "penwidth": "1.2", "arrowsize": "0.6",
            "fontname": "Helvetica", "fontsize": "9", "fontcolor": theme.stroke("muted"),
        },
    }  # fmt: skip
