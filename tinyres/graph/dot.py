"""A view as DOT text, laid out so that the skip edge is what one sees.

The rules: the spine lies in no frame and has one `group`; a branch leaves at a tap and comes back
at a plus, both at right angles because tap and first box, last box and plus share a rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import graphviz

from tinyres.graph.frames import Frames
from tinyres.graph.joints import Joints, name_of, tap_of
from tinyres.graph.labels import (
    NAMES,
    Labels,
    arrow_tooltip,
    box_tooltip,
    printable,
    width_of,
)
from tinyres.graph.layout import Layout, gradient_at, top_gradient
from tinyres.graph.legend import legend
from tinyres.graph.levels import Arrow, Box, View
from tinyres.graph.stream import Stream
from tinyres.graph.style import THEMES, GradientScale, Look, defaults, ratio_text
from tinyres.graph.trace import shape_text

SKIP = "skip (identity) path"


def to_dot(view: View, look: Look, title: str = "") -> str:
    """The DOT text of a view."""
    return _Writer(view, look).text(title)


def quoted(text: str) -> str:
    """Text that means nothing to Graphviz: no escapes, no HTML, no entities."""
    return str(graphviz.escape(printable(text).replace("&", "&amp;")))


class _Writer:
    """Writes one view as DOT: n0, n1, ... are its boxes, t a tap, f a fork, e an exit."""

    def __init__(self, view: View, look: Look):
        self.view, self.graph, self.look = view, view.graph, look
        self.layout = Layout(view)
        self.labels = Labels(view)
        self.frames = Frames(view, self.layout)
        self.theme = THEMES[look.theme]
        top = top_gradient(self.layout) if view.graph.has_gradient else 0.0
        self.scale = GradientScale(top, look.decades) if look.gradient else None
        self.occurring: dict[str, str] = {}  # what the legend has to explain
        joints = Joints(self.layout)
        self.forks, self.exits, self.last = joints.forks, joints.exits, joints.last
        self.level = joints.level
        self.dot = graphviz.Digraph("tinyres")

    def text(self, title: str) -> str:
        for kind, attributes in defaults(self.look.rankdir, self.theme).items():
            self.dot.attr(kind, **attributes)
        self._boxes()
        self._ranks()
        self._arrows()
        measured = self.graph.has_gradient
        below = legend(title, self.look, self.theme, self.occurring, measured)
        if below:
            self.dot.attr(label=below)
        return str(self.dot.source)

    # ---- boxes

    def _boxes(self) -> None:
        todo: dict[tuple[int, ...], list[tuple[str, dict[str, Any]]]] = {}
        for i, box in enumerate(self.view.boxes):
            path = self.frames.path(i)
            entries = [(name_of(i), self._box_attributes(i, box))]
            if i in self.layout.taps:
                entries.append((tap_of(i), self._point("skip", 0.12, "tap", group=self._group(i))))
            todo.setdefault(path, []).extend(entries)
            if i in self.forks:
                inner = self.frames.common([a.target for a in self.layout.taps[i]])
                role = self.frames.role_of(inner[-1]) if inner and inner[-1] >= 0 else ""
                todo.setdefault(inner, []).append(
                    (self.forks[i], self._point(role or "arrow", 0.06, "fork"))
                )
            if i in self.exits:
                last = self.last(i)
                assert last is not None
                role = self.frames.role(last) or "arrow"
                todo.setdefault(self.frames.path(last), []).append(
                    (self.exits[i], self._point(role, 0.05, "fork", group=f"g{last}"))
                )
        for node, attributes in todo.pop((), []):
            self.dot.node(node, **attributes)
        self._frame(self.dot, (), todo)

    def _frame(self, dot: Any, path: tuple[int, ...], todo: dict[Any, Any]) -> None:
        depth = len(path)
        inner = {p[: depth + 1] for p in todo if p[:depth] == path and len(p) > depth}
        for child in sorted(inner, reverse=not path and bool(self.layout.spines)):
            number = child[-1]
            cluster = f"cluster_s{number}" if number >= 0 else f"cluster_side{-number}"
            with dot.subgraph(name=cluster) as frame:
                frame.attr(**self._frame_attributes(number))
                for node, attributes in todo.get(child, []):
                    frame.node(node, **attributes)
                self._frame(frame, child, todo)

    def _frame_attributes(self, number: int) -> dict[str, str]:
        if number < 0:
            return {"style": "invis", "label": "", "margin": "0"}
        scope = self.graph.scopes[number]
        role = self.frames.role_of(number)
        label = self.labels.frame(scope, role)
        common = {
            "label": quoted(label), "tooltip": quoted(self.graph.path(number)), "fontsize": "11",
            # Where no branch crosses the frame on its way: these do it at both ends of a long one.
            "labelloc": "t", "labeljust": "c" if self.look.rankdir in ("LR", "RL") else "r",
        }  # fmt: skip
        if not role:
            colours = {"color": self.theme.stroke("block"), "fontcolor": self.theme.stroke("muted")}
            return {**common, **colours, "class": "block", "style": "rounded", "margin": "9"}
        self.occurring.setdefault(role, scope.kind if role == "norm" else role)
        stroke = self.theme.stroke(role)
        colours = {"color": stroke, "fontcolor": stroke, "fillcolor": self.theme.fill(role)}
        shape = {"style": "rounded,filled", "margin": "8", "penwidth": "1.2"}
        return {**common, **colours, **shape, "class": role}

    def _group(self, box: int) -> str:
        spine = self.layout.spine_of[box]
        return f"spine{spine or ''}"

    def _point(self, role: str, width: float, kind: str, **more: str) -> dict[str, str]:
        colour = self.theme.stroke(role)
        return {"label": "", "shape": "point", "width": str(width), "height": str(width),
                "class": kind, "color": colour, "fillcolor": colour,
                "tooltip": "the branch leaves here" if kind == "tap" else " ", **more}  # fmt: skip

    def _box_attributes(self, i: int, box: Box) -> dict[str, str]:
        lines = self.labels.box(box)
        if self._is_source(i) and box.kind != "input":
            lines.append(shape_text(self.graph.nodes[box.node].shape))
        found = {
            "label": graphviz.nohtml("\\n".join(quoted(line) for line in lines)),
            "tooltip": quoted(box_tooltip(self.graph, box)),
            **self._look(i, box),
        }
        if i in self.layout.spine_of:
            found["group"] = self._group(i)
        elif any(last == i for last in map(self.last, self.exits)):
            found["group"] = f"g{i}"
        if not "".join(lines).isascii():
            size = float(found.get("fontsize", 11))
            found["width"] = f"{max(width_of(line, size) for line in lines) + 0.3:.2f}"
        return found

    def _look(self, i: int, box: Box) -> dict[str, str]:
        """Shape and colours of a box; a plain one has those that the picture sets for all."""
        on_spine = i in self.layout.spine_of
        if i in self.layout.additions:
            return self._plus(i)
        if box.stream is not None and box.kind == "module":
            self._note_stream(box.stream)
            return {"class": "stream", "penwidth": "2", **self._colours("skip"), **self._ratio(i)}
        if box.kind == "parameter":
            return {"shape": "note", "style": "filled", "fontsize": "9", "class": "parameter",
                    **self._colours("leaf")}  # fmt: skip
        if box.kind == "fold":
            stroke = self.theme.stroke("skip" if on_spine else "box")
            return {"style": "rounded,filled,dashed", "penwidth": "1.5", "class": "fold",
                    "color": stroke, "fillcolor": self.theme.fill("leaf")}  # fmt: skip
        if self.frames.is_norm(i) and (on_spine or box.kind == "module" or self._unframed(i)):
            self._note_norm(box.node, (*box.around, box.scope))
            look = {**self._colours("norm"), "class": "norm"}
            return {**look, "penwidth": "2.5"} if self._cuts(i) else look
        if box.kind == "input" or self._is_source(i):
            look = {"class": "input", "penwidth": "2"}
            return {**look, **self._colours("skip")} if on_spine else look
        return {"class": box.kind}

    def _colours(self, role: str) -> dict[str, str]:
        return {"color": self.theme.stroke(role), "fillcolor": self.theme.fill(role)}

    def _plus(self, i: int) -> dict[str, str]:
        self.occurring["skip"] = SKIP
        found = {"label": "+", "shape": "circle", "fixedsize": "true", "width": "0.30",
                 "height": "0.30", "margin": "0", "fontsize": "18", "penwidth": "2.5",
                 "class": "add", **self._colours("skip")}  # fmt: skip
        return found | self._ratio(i)

    def _note_stream(self, stream: Stream) -> None:
        self.occurring["skip"] = SKIP
        if stream.norm is not None:
            self._note_norm(stream.norm, self.graph.chain(self.graph.nodes[stream.norm].scope))

    def _ratio(self, i: int) -> dict[str, str]:
        """The gradient at an addition against that at the top, as a number beside it."""
        gradient = None if self.scale is None else gradient_at(self.layout, i)
        if self.scale is None or gradient is None:
            return {}
        ratio = ratio_text(gradient / self.scale.top) if self.scale.top else "0"
        return {"xlabel": f'<<FONT POINT-SIZE="10">{ratio}</FONT>>'}

    def _is_source(self, i: int) -> bool:
        """Whether the stream begins here."""
        return i in self.layout.spine_of and not self.layout.into[i]

    def _unframed(self, i: int) -> bool:
        """Whether a norm's op has no frame that says that it is one."""
        return not any(s >= 0 and self.frames.role_of(s) == "norm" for s in self.frames.path(i))

    def _note_norm(self, node: int, scopes: Iterable[int | None]) -> None:
        """For the legend: which norm it is, if all are of one kind."""
        kinds = [self.graph.scopes[s].kind for s in scopes
                 if s is not None and self.graph.scopes[s].role == "norm"]  # fmt: skip
        kind = kinds[0] if kinds else self.graph.nodes[node].op
        name = NAMES.get(kind, kind)
        known = self.occurring.setdefault("norm", name)
        self.occurring["norm"] = name if known == name else "normalisation"

    def _cuts(self, i: int) -> bool:
        """Whether a norm stands on the stream itself, as in Post-LN, and is not the final one."""
        if i not in self.layout.spine_of or not self.frames.is_norm(i):
            return False
        spine = self.layout.spines[self.layout.spine_of[i]]
        here = spine.index(i)
        added = any(b in self.layout.carrying for b in spine[:here])
        later = any(b in self.layout.carrying for b in spine[here:])
        inside = any(self.graph.scopes[s].residual for s in self.view.boxes[i].around)
        return added and (later or inside)

    def _ranks(self) -> None:
        for names in self.level:
            with self.dot.subgraph() as rank:
                rank.attr(rank="same")
                for node in names:
                    rank.node(node)

    # ---- arrows

    def _arrows(self) -> None:
        for arrow in self.view.arrows:
            target_box = self.view.boxes[arrow.target]
            source, target = name_of(arrow.source), name_of(arrow.target)
            if self.view.boxes[arrow.source].kind == "parameter":
                self._parameter_arrow(arrow)
                continue
            if self.layout.on_spine(arrow):
                self._spine_arrow(arrow)
                continue
            look = self._branch_look(arrow)
            if arrow.source in self.layout.taps:
                tap, fork = tap_of(arrow.source), self.forks.get(arrow.source)
                source = tap if fork is None or arrow.skip else fork
            if not arrow.skip and arrow.target in self.exits and target_box.kind == "op":
                exit_ = self.exits[arrow.target]
                self.dot.edge(source, exit_, **{**look, "arrowhead": "none"})
                source = exit_
            self.dot.edge(source, target, **look)
        for box, fork in self.forks.items():
            self.dot.edge(tap_of(box), fork, **self._fork_look(box))

    def _parameter_arrow(self, arrow: Arrow) -> None:
        look = {"tooltip": quoted(arrow_tooltip(self.graph, arrow)), "style": "dashed",
                "color": self.theme.stroke("leaf"), "class": "parameter"}  # fmt: skip
        self.dot.edge(name_of(arrow.source), name_of(arrow.target), **look)

    def _spine_arrow(self, arrow: Arrow) -> None:
        look = self._spine_look(arrow)
        source, target = name_of(arrow.source), name_of(arrow.target)
        if arrow.source in self.layout.taps:
            tap = tap_of(arrow.source)
            self.dot.edge(source, tap, **{**look, "arrowhead": "none", "headclip": "false"})
            source, look = tap, {**look, "tailclip": "false"}
        if look.get("arrowhead") == "none":
            look = {**look, "headclip": "false"}  # or a line this thick would end in a gap
        self.dot.edge(source, target, **look)

    def _spine_look(self, arrow: Arrow) -> dict[str, str]:
        role = self._spine_role(arrow)
        stream = role in ("skip", "norm")
        goes_on = arrow.skip or self._carries(arrow.target)
        cut = role == "norm" and self._cuts(arrow.target)
        found = {
            "class": role if stream else "flow", "weight": "100",
            "color": self.theme.stroke(role if stream else "arrow"),
            "penwidth": "6" if stream else "1.5",
            "tooltip": quoted(arrow_tooltip(self.graph, arrow)),
        }  # fmt: skip
        if stream:
            found |= {"arrowsize": "0.45", "arrowhead": "none" if goes_on or cut else "normal"}
        return self._with_gradient(found, arrow.gradient, stream) | self._shape_label(arrow)

    def _spine_role(self, arrow: Arrow) -> str:
        """What of the stream runs here: itself, what a norm made of it, or something else."""
        stream = self.view.boxes[arrow.source].stream
        if arrow.skip:
            return "skip"
        if self._cuts(arrow.source) or (stream is not None and stream.norm is not None):
            return "norm"
        if self._carries(arrow.source):
            return "norm" if self._cuts(arrow.target) else "skip"
        return "skip" if self.view.boxes[arrow.target].stream is not None else ""

    def _carries(self, box: int) -> bool:
        """Whether the stream runs through a box."""
        return box in self.layout.carrying or self.view.boxes[box].kind == "fold"

    def _branch_look(self, arrow: Arrow) -> dict[str, str]:
        if arrow.skip:
            role, width = "skip", "6"
        else:
            role = (
                self.frames.role(arrow.target) if arrow.target not in self.layout.spine_of else ""
            )
            role = role or self.frames.role(arrow.source)
            width = "1.5"
            if role:
                self.occurring.setdefault(role, role)
        found = {
            "class": role or "flow", "color": self.theme.stroke(role or "arrow"),
            "penwidth": width, "tooltip": quoted(arrow_tooltip(self.graph, arrow)),
        }  # fmt: skip
        if arrow.skip:
            found |= {"arrowsize": "0.45"}
        return self._with_gradient(found, arrow.gradient, arrow.skip) | self._shape_label(arrow)

    def _fork_look(self, box: int) -> dict[str, str]:
        arrows = self.layout.taps[box]
        look = self._branch_look(arrows[0]) | {"arrowhead": "none"}
        look.pop("label", None)
        return look

    def _shape_label(self, arrow: Arrow) -> dict[str, str]:
        """The shape, where it is not the one that this part of the picture began with."""
        shape = self.graph.nodes[arrow.value].shape
        ends = self.view.boxes[arrow.target].kind == "output"
        if ends or self.layout.on_spine(arrow) or shape == self.frames.shape_before(arrow):
            return {}
        return {"label": f" {shape_text(shape)} "}

    def _with_gradient(
        self, look: dict[str, str], gradient: float | None, on_spine: bool
    ) -> dict[str, str]:
        if self.scale is None:
            return look
        if gradient is None:
            return {
                **look,
                "color": self.theme.stroke("arrow"),
                "style": "dotted",
                "penwidth": "1.2",
            }
        step = self.scale.step(gradient)
        return {
            **look,
            "class": f"{look['class']} gradient{step}",
            "color": self.theme.ramp[step],
            "penwidth": f"{self.scale.width(gradient, on_spine):.1f}",
        }
