"""How much of a graph is shown: modules as one box each down to a depth, equal blocks folded.

A traced `Graph` has every op. A `View` of it has boxes and arrows, and is what gets drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tinyres.graph.skip import Finder, Skip
from tinyres.graph.stream import Stream, stream_through
from tinyres.graph.trace import Edge, Graph, Node

READABLE = 150  # boxes in a picture that one still reads
FEWEST_TO_FOLD = 4  # blocks; of three, folding would hide only one
FINEST = 3


@dataclass(slots=True)
class Box:
    """One shape of the drawing."""

    # "op", "module", "input" (computed on), "parameter" (and other leaves), "fold" or "output"
    kind: str
    node: int  # the traced node whose value leaves the box
    scope: int | None  # of a module: itself; of an op: the scope that it is in
    around: tuple[int, ...]  # the scopes around it, the outermost first
    count: int = 0  # of a fold: how many blocks it stands for
    stream: Stream | None = None  # of a module: the residual stream, if it runs through it


@dataclass(slots=True)
class Arrow:
    """A value on its way from box to box."""

    source: int
    target: int
    value: int  # the traced node
    slot: int
    skip: bool = False
    gradient: float | None = None


@dataclass(slots=True)
class View:
    """What is drawn of a graph; boxes are in topological order."""

    graph: Graph
    skips: dict[int, Skip]
    depth: int
    boxes: list[Box]
    arrows: list[Arrow]

    @property
    def additions(self) -> list[int]:
        """The boxes that are residual additions."""
        return [
            i for i, box in enumerate(self.boxes) if box.kind == "op" and box.node in self.skips
        ]


def view(
    graph: Graph, depth: int | None = None, fold: bool = True, parameters: bool | None = None
) -> View:
    """The graph at a depth; by default the finest at which it can still be read."""
    found = Finder(graph)
    if depth is not None:
        return _at(found, depth, fold, parameters)
    for depth in range(FINEST, -1, -1):
        shown = _at(found, depth, fold, parameters)
        if len(shown.boxes) < READABLE:
            break
    return shown


def _at(found: Finder, depth: int, fold: bool, parameters: bool | None) -> View:
    shown = _Collapse(found, depth, parameters).view()
    return _Fold(shown).view() if fold else shown


# ---------------------------------------------------------------- depth


class _Collapse:
    """Every op goes into the box of the outermost scope that the depth shows as one."""

    def __init__(self, found: Finder, depth: int, parameters: bool | None):
        graph = found.graph
        self.found, self.graph, self.skips = found, graph, found.skips
        self.depth, self.parameters = depth, parameters
        self.inputs, self.outputs = found.inputs, graph.outputs()
        self.straight = self._straight()
        self.sole = sole_ops(graph)
        self.closed: list[int | None] = []  # for each scope the one whose box it is part of
        for scope in graph.scopes:
            outer = None if scope.parent is None else self.closed[scope.parent]
            own = scope.id if scope.level >= depth else None
            self.closed.append(own if outer is None else outer)

    def _straight(self) -> set[tuple[int, int, int]]:
        """The edges of all skips: those into a plus, and those by which a skip is scaled."""
        found = {(skip.source, skip.add, skip.slot) for skip in self.skips.values()}
        for skip in self.skips.values():
            for a, b in itertools.pairwise(skip.path[:-1]):
                if b not in self.skips:
                    slot = next(e.slot for e in self.inputs[b] if e.source == a)
                    found.add((a, b, slot))
        return found

    def view(self) -> View:
        graph = self.graph
        members: dict[tuple[str, int], list[int]] = {}
        for node in graph.nodes:
            if node.kind == "op":
                closed = None if node.scope is None else self.closed[node.scope]
                key = ("op", node.id) if closed is None else ("module", closed)
                members.setdefault(key, []).append(node.id)
        boxes: list[Box] = []
        box_of: dict[int, int] = {}
        arrows: list[Arrow] = []
        for (kind, number), nodes in sorted(members.items(), key=lambda item: item[1][-1]):
            scope = number if kind == "module" else graph.nodes[number].scope
            chain = graph.chain(scope)
            around = tuple(chain[:-1] if kind == "module" else chain)
            inside = set(nodes)
            edges = [e for n in nodes for e in self.inputs[n] if e.source not in inside]
            for edge in edges:
                if edge.source not in box_of and self._shown(edge.source, kind, number):
                    box_of[edge.source] = len(boxes)
                    boxes.append(self._leaf(edge.source))
            box_of.update(dict.fromkeys(nodes, len(boxes)))
            stream = stream_through(self.found, inside, nodes[-1]) if kind == "module" else None
            boxes.append(Box(kind, nodes[-1], scope, around, stream=stream))
            for edge, gradient in self._entering(kind, number, edges):
                if edge.source in box_of:
                    marked = kind == "op" and (edge.source, edge.target, edge.slot) in self.straight
                    arrows.append(Arrow(box_of[edge.source], box_of[edge.target], edge.source,
                                        edge.slot, marked, gradient))  # fmt: skip
        boxes.append(Box("output", graph.output, None, ()))
        end = Arrow(box_of[graph.output], len(boxes) - 1, graph.output, 0, False, graph.seed)
        return View(graph, self.skips, self.depth, boxes, [*arrows, end])

    def _entering(
        self, kind: str, number: int, edges: list[Edge]
    ) -> Iterable[tuple[Edge, float | None]]:
        """An op has an arrow for each argument, a module one for each value that it is given."""
        if kind == "op":
            return [(edge, edge.gradient) for edge in edges]
        by_source: dict[int, list[Edge]] = {}
        for edge in edges:
            by_source.setdefault(edge.source, []).append(edge)
        return [
            (same[0], self.graph.entering.get((source, number), same[0].gradient))
            for source, same in by_source.items()
        ]

    def _leaf(self, node: int) -> Box:
        chains = [self.graph.chain(self.graph.nodes[e.target].scope) for e in self.outputs[node]]
        closed = [[s for s in chain if self.closed[s] is None] for chain in chains]
        around = common_start(closed)
        leaf = self.graph.nodes[node]
        kind = "input" if leaf.kind == "input" and self._is_data(leaf) else "parameter"
        return Box(kind, node, around[-1] if around else None, around)

    def _shown(self, node: int, consumer: str, number: int) -> bool:
        leaf = self.graph.nodes[node]
        if leaf.kind == "input" and (leaf.learned or self._is_data(leaf)):
            return True
        if self.parameters is not None or consumer != "op" or leaf.shape == ():
            return bool(self.parameters) and consumer == "op"
        if number in self.sole:  # "Linear 64 > 256" says it all
            return False
        return self.depth >= FINEST or self.graph.nodes[number].scope is None

    def _is_data(self, leaf: Node) -> bool:
        """Whether a constant is what is computed on, and no mask, factor or table of positions."""
        for edge in self.outputs[leaf.id]:
            others = [e.source for e in self.inputs[edge.target] if e.slot != edge.slot]
            if edge.slot == 0 and all(self.graph.nodes[o].kind != "op" for o in others):
                return True
            same_shape = leaf.shape == self.graph.nodes[edge.target].shape
            if same_shape and len(leaf.shape) > 1 and leaf.dtype.startswith("float"):
                return True
        return False


def sole_ops(graph: Graph) -> dict[int, int]:
    """Ops that are all that a layer or function does: they are called as it is, without a frame."""
    inside: dict[int, list[int]] = {}
    for node in graph.nodes:
        if node.kind == "op":
            for scope in graph.chain(node.scope):
                inside.setdefault(scope, []).append(node.id)
    return {
        ops[0]: scope
        for scope, ops in inside.items()
        if len(ops) == 1 and graph.scopes[scope].level >= 0
    }


def common_start(chains: list[list[int]]) -> tuple[int, ...]:
    """What all chains begin with."""
    found = []
    for here in zip(*chains):
        if len(set(here)) > 1:
            break
        found.append(here[0])
    return tuple(found)


# ---------------------------------------------------------------- folding


class _Fold:
    """Runs of equal sibling scopes, each fed by the one before, become first, fold, last."""

    def __init__(self, shown: View):
        self.shown = shown
        self.graph = shown.graph
        self.into: list[list[Arrow]] = [[] for _ in shown.boxes]
        for arrow in shown.arrows:
            self.into[arrow.target].append(arrow)
        self.members: dict[int, list[int]] = {}
        for i, box in enumerate(shown.boxes):
            own = [box.scope] if box.kind == "module" and box.scope is not None else []
            for scope in (*box.around, *own):
                self.members.setdefault(scope, []).append(i)

    def view(self) -> View:
        children: dict[int | None, list[int]] = {}
        for scope in sorted(self.members, key=lambda s: self.members[s][0]):
            children.setdefault(self.graph.scopes[scope].parent, []).append(scope)
        runs = []
        waiting: list[int | None] = [None]
        while waiting:
            siblings = children.get(waiting.pop(), [])
            hidden: set[int] = set()
            for run in self._runs(siblings):
                runs.append(run)
                hidden.update(run[1:-1])
            waiting += [s for s in siblings if s not in hidden]
        return self._without(runs) if runs else self.shown

    def _runs(self, siblings: list[int]) -> list[list[int]]:
        """Siblings that continue each other, each the one before it.

        So none takes a value from further back in its run: all between, and the one that makes
        that value, would have to take it from the same box, too.
        """
        runs: list[list[int]] = []
        for scope in siblings:
            if runs and self._continues(runs[-1], scope):
                runs[-1].append(scope)
            else:
                runs.append([scope])
        return [run for run in runs if len(run) >= FEWEST_TO_FOLD]

    def _continues(self, run: list[int], scope: int) -> bool:
        if self.graph.scopes[scope].kind != self.graph.scopes[run[-1]].kind:
            return False
        inner, outer = self._signature(run[-1]), self._signature(scope)
        if inner[0] != outer[0]:
            return False
        sources = self._sources(run[-1], scope, outer[1])
        if not any(kind == "before" for kind, _ in sources):
            return False
        if len(run) == 1:
            return True
        return sources == self._sources(run[-2], run[-1], inner[1])

    def _signature(self, scope: int) -> tuple[list[object], list[tuple[int, int]]]:
        """What a scope looks like from inside, and the (box, value) that come from outside."""
        inside = {box: i for i, box in enumerate(self.members[scope])}
        outside: list[tuple[int, int]] = []
        looks: list[object] = []
        for box in inside:
            arrows = []
            for a in self.into[box]:
                key = (a.source, a.value)
                if a.source not in inside and key not in outside:
                    outside.append(key)
                place = inside[a.source] if a.source in inside else -1 - outside.index(key)
                arrows.append((a.slot, a.skip, place, self.graph.nodes[a.value].shape))
            looks.append((self._kind(box), arrows))
        return looks, outside

    def _kind(self, box: int) -> tuple[object, ...]:
        b = self.shown.boxes[box]
        node = self.graph.nodes[b.node]
        scope = self.graph.scopes[b.scope] if b.kind == "module" and b.scope is not None else None
        what = (scope.kind, scope.extra) if scope else (node.op, str(node.attrs))
        return (b.kind, *what, node.shape, node.dtype)

    def _sources(
        self, before: int, scope: int, outside: list[tuple[int, int]]
    ) -> list[tuple[str, int]]:
        """Where its inputs come from: which box of the scope before it, or which one elsewhere."""
        places = {box: i for i, box in enumerate(self.members[before])}
        return [("before", places[b]) if b in places else ("elsewhere", b) for b, _ in outside]

    def _without(self, runs: list[list[int]]) -> View:
        fold_of: dict[int, int] = {}
        boxes: list[Box | None] = list(self.shown.boxes)
        for number, run in enumerate(runs):
            hidden = [box for scope in run[1:-1] for box in self.members[scope]]
            fold_of.update(dict.fromkeys(hidden, number))
            for box in hidden:
                boxes[box] = None
            parent = self.graph.scopes[run[0]].parent
            last = self.shown.boxes[hidden[-1]]
            around, stream = tuple(self.graph.chain(parent)), self._stream(hidden)
            # In the place of the last hidden box, so that the order stays topological.
            boxes[hidden[-1]] = Box("fold", last.node, run[0], around, len(run) - 2, stream)
        place = {number: box for box, number in fold_of.items()}
        kept = [i for i, box in enumerate(boxes) if box is not None]
        renumbered = {old: new for new, old in enumerate(kept)}
        arrows: dict[tuple[int, ...], Arrow] = {}
        for a in self.shown.arrows:
            source, target = fold_of.get(a.source), fold_of.get(a.target)
            if source is not None and source == target:
                continue
            new = replace(a)
            new.source = renumbered[a.source if source is None else place[source]]
            new.target = renumbered[a.target if target is None else place[target]]
            if target is not None:
                new.slot, new.gradient = 0, self._gradient(runs[target][1], a)
                key: tuple[int, ...] = (new.source, new.target, a.value)
            elif source is not None and a.target not in self._after(runs[source]):
                key = (new.source, new.target)
            else:
                key = (new.source, new.target, a.value, a.slot)
            if key in arrows:
                arrows[key].skip |= new.skip
            else:
                arrows[key] = new
        shown = self.shown
        shown_boxes = [box for box in boxes if box is not None]
        return View(self.graph, shown.skips, shown.depth, shown_boxes, [*arrows.values()])

    def _stream(self, hidden: list[int]) -> Stream | None:
        """The stream through boxes that all have it, from the first to the last."""
        streams = [self.shown.boxes[box].stream for box in hidden]
        first, last = streams[0], streams[-1]
        if first is None or last is None or not all(streams):
            return None
        return replace(last, enters=first.enters)

    def _gradient(self, scope: int, arrow: Arrow) -> float | None:
        return self.graph.entering.get((arrow.value, scope), arrow.gradient)

    def _after(self, run: list[int]) -> set[int]:
        return set(self.members[run[-1]])
