"""Whether the residual stream runs through a module that is drawn as one box.

It does if one can go back from what the module returns to what it was given by nothing but residual
additions, scalings and norms, and passes an addition on the way.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tinyres.graph.skip import Finder
from tinyres.graph.trace import Edge, Graph, Node


@dataclass(frozen=True, slots=True)
class Stream:
    """The way of the stream through a box."""

    enters: int  # the value that comes from outside
    addition: int  # the last residual addition inside
    norm: int | None  # the norm that it passes after that, if there is one


def stream_through(found: Finder, inside: Collection[int], output: int) -> Stream | None:
    """The stream through the nodes `inside`, the last of which is `output`; None if there is none.

    >>> import tinyres as tr
    >>> x, w = (tr.Tensor([[2.0]], requires_grad=True) for _ in range(2))
    >>> found = Finder(tr.trace(x + x @ w))
    >>> stream_through(found, {2, 3}, 3)
    Stream(enters=0, addition=3, norm=None)
    """
    graph, node = found.graph, output
    dominators: dict[int, int | None] | None = None
    addition: int | None = None
    norm: int | None = None
    while node in inside:
        before = found.before[node]
        if node in found.skips:
            addition = node if addition is None else addition
        elif before is None:
            if not is_norm(graph, graph.nodes[node]):
                return None
            dominators = dominators or _dominators(found, inside)
            before = dominators[node]
            if addition is None and norm is None:
                norm = node
        if before is None:
            return None
        node = before
    return None if addition is None else Stream(node, addition, norm)


def is_norm(graph: Graph, node: Node) -> bool:
    """Whether an op is a norm or a step of one."""
    roles = (graph.scopes[scope].role for scope in graph.chain(node.scope))
    return node.op in ("layer_norm", "rms_norm") or "norm" in roles


def _dominators(found: Finder, inside: Collection[int]) -> dict[int, int | None]:
    """For each node the nearest value that every path to it passes, weights left aside."""
    nearest: dict[int, int | None] = {}
    for node in sorted(inside):
        common: int | None = None
        for source in _data(found, found.inputs[node]):
            common = source if common is None else _meet(nearest, common, source)
            if common is None:
                break
        nearest[node] = common
    return nearest


def _data(found: Finder, edges: list[Edge]) -> list[int]:
    """What an op computes on: no parameters and no constants, unless there is nothing else."""
    sources = [edge.source for edge in edges]
    nodes = found.graph.nodes
    computed = [s for s in sources if nodes[s].kind == "op" and not found.weight[s]]
    return computed or [s for s in sources if nodes[s].kind != "parameter"]


def _meet(nearest: dict[int, int | None], a: int | None, b: int | None) -> int | None:
    while a != b and a is not None and b is not None:
        if a > b:
            a = nearest.get(a)
        else:
            b = nearest.get(b)
    return a if a == b else None
