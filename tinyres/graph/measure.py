"""A backward pass that notes how large the gradient was on every edge that it crossed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinyres import tensor as engine
from tinyres.arrays import Array
from tinyres.graph.size import length
from tinyres.graph.skip import find_skips, ways_from_fork
from tinyres.graph.trace import Edge, Graph, Share, described, tape
from tinyres.signatures import ArrayLike
from tinyres.tensor import Tensor, walk_back


def trace_backward(
    loss: Tensor,
    grad: Tensor | ArrayLike | None = None,
    *,
    retain_graph: bool = False,
    names: Mapping[str, Tensor] | None = None,
) -> Graph:
    """Run `loss.backward(grad)` and return its graph with the gradient measured on every edge.

    Each edge gets the norm of the cotangent that crossed it, each residual addition `x + F(x)` its
    `Share`: how much of the gradient reached x by the skip, how much through the branch, and the
    cosine between the two. With 12 blocks of width 64 on 16 times 64 tokens it took a tenth longer
    than a plain backward, which itself pays nothing.

    >>> import tinyres as tr
    >>> x = tr.Tensor([3.0, 4.0], requires_grad=True)
    >>> [edge.gradient for edge in tr.trace_backward((x * 2).sum()).edges]
    [2.8284271247461903, 1.4142135623730951]
    """
    nodes = tape(loss)
    graph = described(nodes, loss, names)
    seed = loss._seed(grad)
    meter = _Meter(graph, nodes)
    walk_back(loss._differentiable(), seed, retain_graph, meter.watch)
    graph.seed = length(seed)
    return graph


class _Sum:
    """The sum of the cotangents of a few edges, and how many of them are still to come."""

    def __init__(self, edges: list[Edge]):
        self.missing = len(edges)
        self._total: Array | None = None

    def add(self, cotangent: Array) -> bool:
        """Whether that was the last one."""
        self._total = cotangent if self._total is None else self._total + cotangent
        self.missing -= 1
        return self.missing == 0

    def take(self) -> Array:
        """The sum, which is not kept any longer."""
        total, self._total = self._total, None
        assert total is not None
        return total


class _Meter:
    """What `walk_back` tells about each edge goes here."""

    def __init__(self, graph: Graph, nodes: list[engine.Node]):
        self.graph = graph
        self.edges = {(nodes[e.target], e.slot): e for e in graph.edges}
        self.sums: dict[int, list[tuple[_Sum, Any]]] = {}  # by id() of an edge, with what to do
        learned = [n.kind == "op" or n.learned for n in graph.nodes]
        self._group_by_scope(learned)
        self._group_by_skip(learned)

    def watch(self, node: engine.Node, slot: int, cotangent: Array) -> None:
        edge = self.edges[node, slot]
        edge.gradient = length(cotangent)
        for total, finish in self.sums.get(id(edge), ()):
            if total.add(cotangent):
                finish()

    def _sum(self, edges: list[Edge], finish: Any) -> _Sum:
        total = _Sum(edges)
        for edge in edges:
            self.sums.setdefault(id(edge), []).append((total, finish))
        return total

    def _group_by_scope(self, learned: list[bool]) -> None:
        """A value that a module uses more than once gets one gradient from the module."""
        graph = self.graph
        for source, edges in zip(graph.nodes, graph.outputs()):
            if len(edges) < 2 or source.kind == "parameter" or not learned[source.id]:
                continue
            own = set(graph.chain(source.scope))
            groups: dict[int, list[Edge]] = {}
            for edge in edges:
                for scope in graph.chain(graph.nodes[edge.target].scope):
                    if scope not in own:
                        groups.setdefault(scope, []).append(edge)
            for scope, inside in groups.items():
                if len(inside) > 1:
                    self._note_entering(source.id, scope, inside)

    def _note_entering(self, node: int, scope: int, edges: list[Edge]) -> None:
        def finish() -> None:
            self.graph.entering[node, scope] = length(total.take())

        total = self._sum(edges, finish)

    def _group_by_skip(self, learned: list[bool]) -> None:
        for add, skip in find_skips(self.graph).items():
            by_skip, into_branch = ways_from_fork(self.graph, skip)
            if by_skip and into_branch and learned[skip.fork]:
                self._note_share(add, by_skip, into_branch)

    def _note_share(self, add: int, by_skip: list[Edge], into_branch: list[Edge]) -> None:
        def finish() -> None:
            if skip.missing or branch.missing:
                return
            ways = skip.take().reshape(-1), branch.take().reshape(-1)
            lengths = length(ways[0]), length(ways[1])
            cosine = 0.0
            if all(lengths):  # divided first: the product of two small vectors would be 0
                cosine = float((ways[0] / lengths[0]) @ (ways[1] / lengths[1]))
            self.graph.shares[add] = Share(*lengths, cosine)

        skip, branch = self._sum(by_skip, finish), self._sum(into_branch, finish)
