"""From the tape to plain data: what was computed from what, in which module, and how large.

A `Graph` holds no array and no tensor, so it can be kept, compared and changed at will, and the
backward pass does not notice that it was made.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tinyres import expect
from tinyres import tensor as engine
from tinyres.context import Scope as LiveScope
from tinyres.graph.size import rms
from tinyres.nn.residual import Placement
from tinyres.tensor import Tensor


@dataclass(slots=True)
class Node:
    """One value: the op that made it, or a parameter or an input."""

    id: int  # counts in topological order: a node's inputs have smaller ids
    op: str
    kind: str  # "op", "parameter" or "input"
    shape: tuple[int, ...]
    dtype: str
    attrs: dict[str, Any]
    scope: int | None
    name: str  # of a parameter: its path in the model; of an input: as given to trace
    learned: bool  # a leaf that requires a gradient
    rms: float | None = None  # of the value, where its tensor was at hand


@dataclass(slots=True)
class Edge:
    """The value of node `source` is argument number `slot` of node `target`."""

    source: int
    target: int
    slot: int
    gradient: float | None = None  # norm of the cotangent that crossed it in backward


@dataclass(slots=True)
class Scope:
    """One call of a module, or one `with tr.scope(name)`."""

    id: int
    parent: int | None
    name: str  # the attribute of the module around it: "blocks.0"
    kind: str  # the class, or the name given to tr.scope
    role: str
    level: int  # the depth up to which a drawing shows it as one node, -1: never
    extra: str
    module: int | None  # the same number for each call of one module
    residual: bool  # a placement: it adds what its sublayer returns


@dataclass(slots=True)
class Share:
    """How the gradient came back to x at `x + F(x)`, measured where the two ways meet at x."""

    skip: float  # norm of what came by the skip
    branch: float  # norm of what came through F
    cosine: float  # between the two; 0 where one of them is zero


@dataclass
class Graph:
    """A computation as plain data (`tinyres.trace`)."""

    nodes: list[Node]
    edges: list[Edge]
    scopes: list[Scope]
    output: int
    # Filled by trace_backward: the norm of all cotangents together that a value got from within
    # one scope, as {(node, scope): norm} where that is more than one edge; and the shares of each
    # residual addition as {node: Share}.
    entering: dict[tuple[int, int], float] = field(default_factory=dict)
    shares: dict[int, Share] = field(default_factory=dict)
    seed: float | None = None  # norm of the cotangent that backward started from

    @property
    def has_gradient(self) -> bool:
        """Whether a backward pass was measured."""
        return self.seed is not None

    def inputs(self) -> list[list[Edge]]:
        """For each node the edges that end at it, by slot."""
        found: list[list[Edge]] = [[] for _ in self.nodes]
        for edge in self.edges:
            found[edge.target].append(edge)
        return found

    def outputs(self) -> list[list[Edge]]:
        """For each node the edges that start at it."""
        found: list[list[Edge]] = [[] for _ in self.nodes]
        for edge in self.edges:
            found[edge.source].append(edge)
        return found

    def chain(self, scope: int | None) -> list[int]:
        """The scopes around and including `scope`, the outermost first."""
        found: list[int] = []
        while scope is not None:
            found.append(scope)
            scope = self.scopes[scope].parent
        return found[::-1]

    def path(self, scope: int | None) -> str:
        """Where a scope is in the model, as "stack.blocks.0.attention"."""
        names = [self.scopes[s].name or self.scopes[s].kind for s in self.chain(scope)]
        return ".".join(names[1:] or names)

    def __repr__(self) -> str:
        kinds = [node.kind for node in self.nodes]
        return (
            f"<Graph: {kinds.count('op')} ops, {kinds.count('parameter')} parameters, "
            f"{kinds.count('input')} inputs, {len(self.edges)} edges, {len(self.scopes)} scopes"
            f"{', with gradients' if self.has_gradient else ''}>"
        )


class ArrayText(str):
    """What is kept of an array in an attribute: its dtype and shape."""


def trace(output: Tensor, *, names: Mapping[str, Tensor] | None = None) -> Graph:
    """How `output` was computed, as plain data; the tape stays as it is.

    `names` says what inputs are called that belong to no module: `{"x": x}`. The tape holds no
    values, so a node has an RMS only where its tensor is at hand: the output, the parameters of
    modules, and whatever is in `names`. Raises RuntimeError for a tensor that no op made and for a
    graph that a backward has freed.

    >>> import tinyres as tr
    >>> tr.trace(tr.Tensor([1.0], requires_grad=True).exp())
    <Graph: 1 ops, 0 parameters, 1 inputs, 1 edges, 0 scopes>
    """
    return described(tape(output), output, names)


def tape(output: Any) -> list[engine.Node]:
    """The engine's nodes behind a tensor, in topological order."""
    return _reached(_root(output))


def _root(output: Any) -> engine.Node:
    if not isinstance(output, Tensor):
        raise TypeError(f"trace: expected a Tensor, got {type(output).__name__}")
    node = output._node
    if node is None or node.pullback is None:
        raise RuntimeError(
            "trace: no op is on record for this tensor: it is a leaf, or nothing that it was made "
            "from requires a gradient, or it was made under no_grad: give an input "
            "requires_grad=True"
        )
    return node


def _reached(root: engine.Node) -> list[engine.Node]:
    """All nodes behind `root`: first parameters and inputs, then the ops as they were run."""
    seen = {root}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.pullback is engine._freed:
            raise RuntimeError(
                f"trace: a backward has freed this graph (at {node.op}). Trace or draw before "
                "backward(), or call backward(retain_graph=True)"
            )
        for source in node.inputs:
            if source is not None and source not in seen:
                seen.add(source)
                waiting.append(source)
    leaves = [node for node in seen if node.pullback is None]
    ops = [node for node in seen if node.pullback is not None]
    return sorted(leaves, key=_number) + sorted(ops, key=_number)


_number = operator.attrgetter("number")


def described(
    tape: list[engine.Node], output: Tensor, names: Mapping[str, Tensor] | None = None
) -> Graph:
    """Plain data of the engine's nodes."""
    ids = {node: i for i, node in enumerate(tape)}
    scopes = _Scopes(tape)
    named = _named(names)
    given = {t._node: name for name, t in named.items() if t._node is not None}
    at_hand = {t._node: t for t in (*scopes.parameters, *named.values(), output)}
    dtypes = {dtype: str(dtype) for dtype in {node.dtype for node in tape}}
    nodes: list[Node] = []
    edges: list[Edge] = []
    for i, node in enumerate(tape):
        kind, name = "op", ""
        if node.pullback is None:
            name = scopes.names.get(node, "")
            # A parameter whose module is gone has lost its name, but not what it is.
            learns = bool(name) or node.op == "parameter"
            kind, name = ("parameter", name) if learns else ("input", given.get(node, ""))
        attrs = {k: _plain(v) for k, v in node.attrs.items()} if node.attrs else {}
        scope = scopes.ids.get(node.scope)
        learned = kind != "op" and node.requires_grad
        dtype = dtypes[node.dtype]
        size = rms(at_hand[node].data) if node in at_hand and node.dtype.kind == "f" else None
        nodes.append(Node(i, node.op, kind, node.shape, dtype, attrs, scope, name, learned, size))
        for slot, source in enumerate(node.inputs):
            if source is not None:
                edges.append(Edge(ids[source], i, slot))
    return Graph(nodes, edges, scopes.found, output=len(nodes) - 1)


NAMES = "a dict of tensors by name"


def _named(names: Any) -> Mapping[str, Tensor]:
    if names is None:
        return {}
    found: Mapping[str, Tensor] = expect.instance("trace: names", names, Mapping, NAMES)
    if not all(isinstance(name, str) and isinstance(t, Tensor) for name, t in found.items()):
        raise TypeError(f"trace: names must be {NAMES}, got {expect.shown(names)}")
    return found


def _plain(value: Any) -> Any:
    """An attribute without arrays: those are told by shape and dtype."""
    if isinstance(value, tuple | list):
        return tuple(_plain(v) for v in value)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        text = ArrayText(f"{value.dtype} array {shape_text(value.shape)}")
        return text if value.shape else value.item()
    return value if isinstance(value, int | float | str | slice | None | type(...)) else repr(value)


def shape_text(shape: Iterable[int]) -> str:
    """(2,16,64), without the spaces that widen a label."""
    return f"({','.join(map(str, shape))})"


class _Scopes:
    """The scopes that occur on a tape, with their names looked up in the modules around them."""

    def __init__(self, tape: list[engine.Node]):
        self.ids: dict[LiveScope | None, int] = {}
        self.found: list[Scope] = []
        self.names: dict[engine.Node, str] = {}
        self.parameters: list[Tensor] = []
        self._members: dict[int, dict[int, str]] = {}
        self._modules: dict[int, int] = {}
        for node in tape:
            if node.pullback is not None and node.scope is not None and node.scope not in self.ids:
                self._add(node.scope)
        everywhere = all(n.pullback is None or n.scope is not None for n in tape)
        self._resolve_levels(everywhere)

    def _resolve_levels(self, everywhere: bool) -> None:
        """Levels that nobody gave: one below the scope around.

        A single module around all is what the drawing is of, and no box in it.
        """
        roots = [scope for scope in self.found if scope.parent is None]
        container = len(roots) == 1 and (everywhere or roots[0].module is not None)
        for scope in self.found:
            if scope.level is None:
                outer = (
                    (-2 if container else -1)
                    if scope.parent is None
                    else self.found[scope.parent].level
                )
                scope.level = outer + 1

    def _add(self, live: LiveScope) -> None:
        chain = []
        scope: LiveScope | None = live
        while scope is not None and scope not in self.ids:
            chain.append(scope)
            scope = scope.parent
        for scope in reversed(chain):
            self.ids[scope] = len(self.found)
            self.found.append(self._describe(scope))

    def _describe(self, live: LiveScope) -> Scope:
        module = live.owner() if live.owner is not None else None
        parent = self.ids[live.parent] if live.parent is not None else None
        name = "" if module is None else self._name(module, live.parent)
        number = (
            None if module is None else self._modules.setdefault(id(module), len(self._modules))
        )
        if module is not None and not _inside_a_module(live.parent):
            self._name_parameters(module)
        return Scope(
            len(self.found), parent, name, live.name, getattr(module, "role", ""), live.level,  # type: ignore[arg-type]
            module.extra() if module is not None else "", number, isinstance(module, Placement),
        )  # fmt: skip

    def _name(self, module: Any, around: LiveScope | None) -> str:
        """What the nearest module around calls this one."""
        while around is not None:
            owner = around.owner() if around.owner is not None else None
            if owner is not None:
                if id(owner) not in self._members:
                    self._members[id(owner)] = {id(m): name for name, m in owner.members()}
                if id(module) in self._members[id(owner)]:
                    return self._members[id(owner)][id(module)]
            around = around.parent
        return ""

    def _name_parameters(self, root: Any) -> None:
        for path, parameter in root.named_parameters():
            if parameter._node is not None:
                self.names.setdefault(parameter._node, path)
                self.parameters.append(parameter)


def _inside_a_module(scope: LiveScope | None) -> bool:
    while scope is not None and scope.owner is None:
        scope = scope.parent
    return scope is not None
