"""`draw` and `draw_pair`: a tensor or a traced graph becomes a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tinyres import expect
from tinyres.graph.dot import to_dot
from tinyres.graph.labels import printable
from tinyres.graph.layout import Layout, gradient_at, top_gradient
from tinyres.graph.levels import FINEST, View, view
from tinyres.graph.render import Drawing, Pair
from tinyres.graph.style import THEMES, Look
from tinyres.graph.trace import Graph, trace
from tinyres.tensor import Tensor

MOST_BOXES = 3000
RANKDIRS = ("BT", "TB", "LR", "RL")


def draw(
    output_or_graph: Tensor | Graph,
    *,
    depth: int | None = None,
    fold: bool = True,
    parameters: bool | None = None,
    rankdir: str = "BT",
    title: str | None = None,
    theme: str = "auto",
    gradient: bool | None = None,
    decades: float | None = None,
    legend: bool = True,
    names: Mapping[str, Tensor] | None = None,
) -> Drawing:
    """Draw how a tensor was computed, with its residual stream as one straight line.

    `depth` 0 shows one box a block, 1 one a sublayer, 2 one a layer or function, 3 every op; by
    default the finest that can still be read. `fold` joins four or more equal blocks in a row.
    `parameters` shows or hides them (default: beside single ops only). `gradient` puts the
    gradient that `trace_backward` measured on the edges (default: if the graph has one): colour
    and width are its ratio to that at the top of the stack, `decades` powers of ten either way.
    `names` gives names to inputs, `{"x": x}`. Raises ValueError where there is too much to draw.

    What is computed from constants alone is on no tape: give inputs requires_grad=True to see it
    all. Modules are asked for their names now, so they have to exist still.

    >>> import tinyres as tr
    >>> x = tr.Tensor([[1.0]], requires_grad=True)
    >>> "class=skip" in tr.draw(x + x @ tr.Tensor([[2.0]], requires_grad=True)).source
    True
    """
    _check(rankdir, theme, depth, decades, title)
    graph = _graph(output_or_graph, names)
    shown = _view(graph, depth, fold, parameters)
    with_gradient = graph.has_gradient if gradient is None else gradient
    look = Look(rankdir, theme, with_gradient, 3.0 if decades is None else decades, legend)
    source = to_dot(shown, look, title or "")
    heading = printable(title or _title(graph))
    return Drawing(source, heading, _description(shown, look), theme)


def draw_pair(
    left: Tensor | Graph,
    right: Tensor | Graph,
    *,
    titles: tuple[str, str] = ("", ""),
    decades: float | None = None,
    **options: Any,
) -> Pair:
    """Draw two graphs side by side, with one scale of the gradient for both.

    `titles` names the two, the other options are those of `draw`. Each gradient is compared with
    that at the top of its own stack; the scale widens to what the two need, unless `decades` says.
    """
    two = isinstance(titles, tuple | list) and len(titles) == 2
    if not two or not all(isinstance(title, str) for title in titles):
        raise TypeError(f"draw_pair: titles must be two texts, got {expect.shown(titles)}")
    names = options.pop("names", None)
    graphs = [_graph(given, names) for given in (left, right)]
    if decades is None and all(graph.has_gradient for graph in graphs):
        decades = max(3.0, *(_decades(view(graph, 1)) for graph in graphs))
    first, second = (
        draw(graph, title=title, decades=decades, **options) for graph, title in zip(graphs, titles)
    )
    return Pair(first, second, across=options.get("rankdir", "BT") in ("BT", "TB"))


def _decades(shown: View) -> float:
    """How many powers of ten the gradient along the stream goes away from that at the top."""
    layout = Layout(shown)
    top = top_gradient(layout)
    found = [gradient_at(layout, a) for a in layout.carrying]
    ratios = [g / top for g in found if g and top > 0]
    return min(12.0, max((math.ceil(abs(math.log10(r)) - 0.05) for r in ratios), default=0))


def _check(
    rankdir: str, theme: str, depth: int | None, decades: float | None, title: str | None
) -> None:
    if rankdir not in RANKDIRS:
        raise ValueError(f"draw: rankdir must be one of {', '.join(RANKDIRS)}, got {rankdir!r}")
    if not isinstance(theme, str) or theme not in THEMES:
        raise ValueError(f"draw: theme must be one of {', '.join(sorted(THEMES))}, got {theme!r}")
    if depth is not None:
        expect.size("draw: depth", depth, 0)
    if decades is not None and expect.number("draw: decades", decades, 0) == 0:
        raise ValueError("draw: decades must be above 0, got 0")
    expect.instance("draw: title", title, (str, type(None)), "a text or None")


def _graph(output_or_graph: Tensor | Graph, names: Mapping[str, Tensor] | None) -> Graph:
    if isinstance(output_or_graph, Graph):
        return output_or_graph
    return trace(output_or_graph, names=names)


def _view(graph: Graph, depth: int | None, fold: bool, parameters: bool | None) -> View:
    loose = sum(node.kind == "op" and node.scope is None for node in graph.nodes)
    if loose > MOST_BOXES:  # no depth joins them, so it need not be tried
        raise ValueError(
            f"draw: {loose} ops are in no module and in no tr.scope, too many for one picture (at "
            f"most {MOST_BOXES}): draw the output of an early step, or put scopes round the parts"
        )
    shown = view(graph, depth, fold, parameters)
    if len(shown.boxes) <= MOST_BOXES:
        return shown
    smaller = []
    deepest = min(shown.depth, FINEST)
    for other in range(deepest - 1 if fold else deepest, -1, -1):
        count = len(view(graph, other, True, parameters).boxes)
        if count <= MOST_BOXES:
            smaller.append(f"depth={other} has {count} with fold=True")
    advice = ", ".join(smaller) or "draw a part of it: the output of one block or one step"
    raise ValueError(
        f"draw: {len(shown.boxes)} boxes at depth={shown.depth}, fold={fold} are too many for one "
        f"picture (at most {MOST_BOXES}): {advice}"
    )


def _title(graph: Graph) -> str:
    roots = [scope.kind for scope in graph.scopes if scope.parent is None]
    return roots[0] if len(roots) == 1 else "Computation graph"


def _description(shown: View, look: Look) -> str:
    """The picture in words, for those who don't see it."""
    ways = {
        "BT": "bottom to top",
        "TB": "top to bottom",
        "LR": "left to right",
        "RL": "right to left",
    }
    layout = Layout(shown)
    folded = sum(box.count for box in shown.boxes if box.kind == "fold")
    parts = [f"{len(shown.boxes)} boxes at depth {shown.depth}"]
    if layout.additions:
        parts.append(f"{len(layout.additions)} residual additions on the orange skip path")
    else:
        through = sum(box.stream is not None for box in shown.boxes)
        parts += [f"the residual stream runs through {through} of them"] if through else []
    if folded:
        parts.append(f"{folded} equal blocks folded")
    if look.gradient:
        parts.append("colour and width of an edge show its gradient")
    return f"Computation graph, read from {ways[look.rankdir]}: {', '.join(parts)}."
