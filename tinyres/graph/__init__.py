"""Graphs: tracing a computation into plain data, and drawing it."""

from tinyres.graph.draw import draw, draw_pair
from tinyres.graph.levels import view
from tinyres.graph.measure import trace_backward
from tinyres.graph.render import Drawing
from tinyres.graph.skip import Skip, find_skips
from tinyres.graph.trace import Edge, Graph, Node, Scope, Share, trace

__all__ = [
    "Drawing", "Edge", "Graph", "Node", "Scope", "Share", "Skip", "draw", "draw_pair", "find_skips",
    "trace", "trace_backward", "view",
]  # fmt: skip
