"""What is written on a box, and what is told where the mouse rests."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from tinyres.graph.levels import Arrow, Box, View, sole_ops
from tinyres.graph.trace import ArrayText, Graph, Node, Scope, shape_text

NAMES = {
    "layer_norm": "LayerNorm", "rms_norm": "RMSNorm", "gelu": "GELU", "relu": "ReLU",
    "self_attention": "self-attention", "cross_entropy": "cross-entropy",
    "log_softmax": "log-softmax", "embedding": "Embedding", "linear": "Linear", "mse": "MSE",
    "sub": "-", "mul": "*", "div": "/", "matmul": "@", "power": "**", "add": "+", "residual": "+",
    "neg": "negative",
}  # fmt: skip
BY_A_NUMBER = {"shift": ("+", "by"), "scale": ("*", "by"), "raise_to": ("**", "exponent")}
OPERATORS = ("+", "-", "*", "/", "@", "**")
LONGEST = 44  # characters of a name


def printable(text: str) -> str:
    """Without line breaks and control characters, which XML does not allow."""
    return "".join(c if unicodedata.category(c)[0] != "C" else " " for c in text)


def shortened(text: str, longest: int = LONGEST) -> str:
    """One line of readable length: the middle of a long name is left out."""
    text = printable(text)
    if len(text) > longest:
        half = (longest - 3) // 2
        text = f"{text[:half]}...{text[-half:]}"
    return text


def short_name(path: str) -> str:
    """The last part of a path, with its index: weights[1] of rule.weights.1."""
    return re.search(r"[^.]*(\[\d+\])*$", indexed(path))[0]  # type: ignore[index]


def indexed(name: str) -> str:
    """blocks.0 as Python writes it: blocks[0]."""
    return re.sub(r"\.(\d+)", r"[\1]", name)


class Labels:
    """The texts of one picture."""

    def __init__(self, view: View):
        self.view = view
        self.graph = view.graph
        self.inputs = view.graph.inputs()
        self.calls: dict[int, list[int]] = {}  # of each module, by scope
        self.kinds: dict[tuple[int | None, str], set[int | None]] = {}
        for scope in self.graph.scopes:
            if scope.module is not None:
                self.calls.setdefault(scope.module, []).append(scope.id)
            self.kinds.setdefault((scope.parent, scope.kind), set()).add(scope.module)
        self.sole = sole_ops(view.graph)

    def box(self, box: Box) -> list[str]:
        """The lines on a box."""
        node = self.graph.nodes[box.node]
        shape = shape_text(node.shape)
        if box.kind == "fold":
            return [shortened(self._fold(box))]
        if box.kind == "output":
            return ["output", shape if node.shape else "one number"]
        if box.kind == "input":
            return [shortened(node.name or "input"), shape]
        if box.kind == "parameter":
            unnamed = "leaf" if node.learned else "constant"
            return [f"{shortened(short_name(node.name) or unnamed)} {shape}"]
        if box.kind == "module" and box.scope is not None:
            return [shortened(self.scope(self.graph.scopes[box.scope]))]
        return [shortened(self._op(node))]

    def _fold(self, box: Box) -> str:
        kind = self.graph.scopes[box.scope].kind if box.scope is not None else "block"
        if "block" not in kind.lower():
            return f"+ {box.count} more {kind}"
        return f"+ {box.count} more block{'s' if box.count > 1 else ''}"

    def scope(self, scope: Scope) -> str:
        """A module by its class and what tells it from its like: sizes, or its name."""
        kind = NAMES.get(scope.kind, scope.kind)
        sizes = scope.extra.split(" > ")
        if len(sizes) == 2 and sizes[0] == sizes[1] and scope.name and not scope.name[-1].isdigit():
            kind += f" {scope.name}"
        elif scope.extra and scope.level >= 2:
            kind += f" {scope.extra}"
        elif scope.name.startswith("final"):
            kind = f"final {kind}"
        elif scope.name and scope.role != "norm" and len(self.kinds[scope.parent, scope.kind]) > 1:
            kind += f" {indexed(scope.name)}"
        return kind + self._call(scope)

    def _call(self, scope: Scope) -> str:
        """Which call of a module that is called more than once."""
        calls = self._calls(scope.id)
        repeated = any(len(self._calls(s)) > 1 for s in self.graph.chain(scope.parent))
        return f" (call {calls.index(scope.id) + 1})" if len(calls) > 1 and not repeated else ""

    def _calls(self, number: int) -> list[int]:
        module = self.graph.scopes[number].module
        return [] if module is None else self.calls[module]

    def frame(self, scope: Scope, role: str) -> str:
        """The name of a part that is drawn as a frame with its inside."""
        if scope.residual and role:
            return role
        if scope.name and scope.name[-1].isdigit():
            return shortened(indexed(scope.name) + self._call(scope))
        if scope.name and not scope.extra and scope.role != "norm":
            return shortened(scope.name + self._call(scope))
        return shortened(self.scope(scope))

    def _op(self, node: Node) -> str:
        """An op by its sign where it has one, with the operand that is no value of the flow."""
        if self.sole.get(node.id) is not None:
            return self.scope(self.graph.scopes[self.sole[node.id]])
        if node.op in BY_A_NUMBER:
            sign, attribute = BY_A_NUMBER[node.op]
            return f"{sign} {node.attrs.get(attribute):.4g}"
        name = NAMES.get(node.op, node.op)
        if name in OPERATORS:
            return self._operator(name, [self.graph.nodes[e.source] for e in self.inputs[node.id]])
        return f"[{_index(node.attrs.get('index'))}]" if node.op == "getitem" else name

    def _operator(self, sign: str, sources: list[Node]) -> str:
        if len(sources) != 2:
            return sign
        left, right = sources
        if left is right:
            return "square" if sign == "*" else sign
        named = [s for s in (right, left) if s.kind == "parameter" and s.name]
        if named:
            return f"{sign} {short_name(named[0].name)}"
        if sign not in ("+", "*") and _is_constant(left):
            return f"{left.name or 'constant'} {sign}"
        if sign in ("-", "/") and right.op in ("mean", "max", "sum", "sqrt", "norm"):
            return f"{sign} {right.op}"
        return f"{sign} {right.name or 'constant'}" if _is_constant(right) else sign


def _is_constant(node: Node) -> bool:
    return node.kind == "input" and not node.learned


def _index(index: Any) -> str:
    if isinstance(index, tuple):
        return ", ".join(map(_index, index))
    if isinstance(index, slice):
        parts = ["" if p is None else str(p) for p in (index.start, index.stop, index.step)]
        return ":".join(parts if index.step is not None else parts[:2])
    if isinstance(index, ArrayText):
        return f"index {index.rsplit(' ', 1)[-1]}"
    return "..." if index is ... else str(index)


def box_tooltip(graph: Graph, box: Box) -> str:
    """Op, module path, shape, dtype, and the RMS where it is known."""
    node = graph.nodes[box.node]
    value = _value(node)
    if box.kind == "fold":
        return f"{box.count} equal parts, folded; gives {value}"
    if box.kind in ("input", "parameter", "output"):
        return f"{box.kind} {node.name}".rstrip() + f": {value}"
    attrs = "".join(f", {k}={v}" for k, v in node.attrs.items() if v is not None)
    path = graph.path(box.scope) if box.scope is not None else ""
    what = f"{node.op}{attrs}"
    if box.kind == "module" and box.scope is not None:
        scope = graph.scopes[box.scope]
        what = f"{scope.kind} {scope.extra}".rstrip()
    text = f"{what}{' in ' + indexed(path) if path else ''}: {value}"
    share = graph.shares.get(box.node) if box.kind == "op" else None
    if share is not None:
        text += (
            f", |gradient| that reached x by the skip {share.skip:.3g}, through the branch "
            f"{share.branch:.3g}, cosine {share.cosine:.2f}"
        )
    return text


def _value(node: Node) -> str:
    size = "" if node.rms is None else f", RMS {node.rms:.3g}"
    return f"{shape_text(node.shape)} {node.dtype}{size}"


def arrow_tooltip(graph: Graph, arrow: Arrow) -> str:
    """Which value crosses an arrow, and how large the gradient was on its way back."""
    node = graph.nodes[arrow.value]
    text = f"{'skip: ' if arrow.skip else ''}{_value(node)}"
    if arrow.gradient is not None:
        text += f", |gradient| = {arrow.gradient:.3g}"
    elif graph.has_gradient:
        text += ", no gradient computed"
    return text


def width_of(text: str, size: float) -> float:
    """Inches that a line takes at a font size; letters of East Asian scripts are a full em wide."""
    ems = sum(1.0 if unicodedata.east_asian_width(c) in "WF" else 0.56 for c in text)
    return ems * size / 72
