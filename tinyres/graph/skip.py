"""Which edges are skips: the additions x + F(x), found in any graph.

The *straight path* behind a value u is u itself and what it came from by residual additions and by
scaling with a constant alone. An edge u -> a is a skip when a adds two operands of one shape, and
a value on the straight path behind u is an ancestor of the other operand by a path that meets a
parameter. So `alpha * x + F(x)` has one, and `x + tanh(x)`, `F(x) + G(x)` and a bias have none.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinyres.graph.trace import ArrayText, Edge, Graph, Node

ADDITIONS = ("add", "residual")
SCALINGS = ("scale",)  # by a number
PRODUCTS = ("mul", "div")  # by a constant tensor of one element


@dataclass(slots=True)
class Skip:
    """The skip edge of one residual addition."""

    add: int  # the node that adds
    slot: int  # which of its operands came by the skip
    source: int  # that operand
    branch: int  # the other operand, F(x)
    fork: int  # x, the value on the straight path from which the branch starts
    path: tuple[int, ...]  # from x to the addition, both included: what the skip passes

    @property
    def after_fork(self) -> int:
        """The first node after x on the skip."""
        return self.path[1]


def find_skips(graph: Graph) -> dict[int, Skip]:
    """The skip of every residual addition, by the number of the node that adds.

    >>> import tinyres as tr
    >>> x = tr.Tensor([[1.0]], requires_grad=True)
    >>> w = tr.Tensor([[2.0]], requires_grad=True)
    >>> len(find_skips(tr.trace(x + x @ w))), len(find_skips(tr.trace(x + x.tanh())))
    (1, 0)
    """
    return Finder(graph).skips


class Finder:
    """The skips of a graph, and for each node one step back on the straight path behind it."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.inputs = graph.inputs()
        self.weight: list[bool] = []  # a parameter, or computed from parameters alone
        self.before: list[int | None] = []  # one step back on the straight path
        self.skips: dict[int, Skip] = {}
        for node, edges in zip(graph.nodes, self.inputs):
            self.weight.append(self._is_weight(node, edges))
            self.before.append(self._scaled(node, edges))
            if node.op in ADDITIONS and len({graph.nodes[e.source].shape for e in edges}) == 1:
                skip = self._skip(node, edges)
                if skip is not None:
                    self.skips[node.id] = skip
                    self.before[node.id] = skip.source

    def _is_weight(self, node: Node, edges: list[Edge]) -> bool:
        if node.kind != "op":
            return node.kind == "parameter" or node.learned
        if _holds_array(node.attrs):  # rows of a table that the data chose
            return False
        sources = [self.graph.nodes[e.source] for e in edges]
        weights = [s for s in sources if self.weight[s.id]]
        # A constant may mask or scale a weight; multiplied from the left it would be data.
        masks = all(s.kind == "input" for s in sources if not self.weight[s.id])
        return bool(weights) and masks and (
            len(weights) == len(sources) or any(w.shape == node.shape for w in weights)
        )  # fmt: skip

    def _scaled(self, node: Node, edges: list[Edge]) -> int | None:
        """What this value is a multiple of."""
        if node.op in SCALINGS:
            return edges[0].source
        if node.op in PRODUCTS and len(edges) == 2:
            in_placement = node.scope is not None and self.graph.scopes[node.scope].residual
            for x, by in (edges, edges[::-1]):
                factor = self.graph.nodes[by.source]
                constant = (
                    factor.kind == "input" and not factor.learned and factor.shape in ((), (1,))
                )
                # A placement may learn the scale of its skip: it says itself that it is one.
                if constant or (in_placement and factor.kind == "parameter"):
                    return x.source
        return None

    def _skip(self, node: Node, edges: list[Edge]) -> Skip | None:
        first, second = edges
        if first.source == second.source:
            return None
        if node.op == "residual":
            return self._made(node, first, second, marked=True)
        older, newer = sorted(edges, key=lambda e: e.source)
        ancestors = _Ancestors(self.inputs, newer.source)
        if ancestors.has(older.source):
            if self._meets_parameter(older.source, newer.source, ancestors):
                return self._found(node, older, newer)
            return None
        return self._made(node, first, second) or self._made(node, second, first)

    def _made(self, node: Node, u: Edge, v: Edge, marked: bool = False) -> Skip | None:
        """The skip by way of u, if the branch v starts from the straight path behind u."""
        ancestors = _Ancestors(self.inputs, v.source)
        path = [u.source, node.id]
        while not (
            ancestors.has(path[0])
            and (marked or self._meets_parameter(path[0], v.source, ancestors))
        ):
            before = self.before[path[0]]
            if before is None:
                return self._found(node, u, v) if marked else None
            path.insert(0, before)
        return self._found(node, u, v, path)

    def _found(self, node: Node, u: Edge, v: Edge, path: Sequence[int] = ()) -> Skip:
        path = tuple(path) or (u.source, node.id)
        return Skip(node.id, u.slot, u.source, v.source, path[0], path)

    def _meets_parameter(self, start: int, end: int, ancestors: _Ancestors) -> bool:
        """Whether a path from `start` to `end` passes an op that takes a parameter, too."""
        reached = {start: False}
        for node in sorted(n for n in ancestors.seen if n > start):
            sources = [e.source for e in self.inputs[node]]
            ways = [reached[s] for s in sources if s in reached]
            if ways:
                beside = any(self.weight[s] for s in sources if s not in reached)
                reached[node] = beside or any(ways)
        return reached.get(end, False)


class _Ancestors:
    """A value and what it was computed from, collected only as far back as was asked."""

    def __init__(self, inputs: list[list[Edge]], node: int):
        self.inputs = inputs
        self.seen = {node}
        self.waiting = [-node]

    def has(self, node: int) -> bool:
        while self.waiting and -self.waiting[0] > node:
            for edge in self.inputs[-heapq.heappop(self.waiting)]:
                if edge.source not in self.seen:
                    self.seen.add(edge.source)
                    heapq.heappush(self.waiting, -edge.source)
        return node in self.seen


def ways_from_fork(graph: Graph, skip: Skip) -> tuple[list[Edge], list[Edge]]:
    """The edges on which x leaves: by the skip, and into the branch."""
    ancestors = _Ancestors(graph.inputs(), skip.branch)
    ancestors.has(skip.fork)
    leaving = [edge for edge in graph.edges if edge.source == skip.fork]
    by_skip = [e for e in leaving if e.target == skip.after_fork
               and (e.target != skip.add or e.slot == skip.slot)]  # fmt: skip
    return by_skip, [e for e in leaving if e not in by_skip and e.target in ancestors.seen]


def _holds_array(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_holds_array(v) for v in value.values())
    if isinstance(value, tuple):
        return any(_holds_array(v) for v in value)
    return isinstance(value, ArrayText)
