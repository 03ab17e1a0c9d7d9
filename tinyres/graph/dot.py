"""A view as DOT text, laid out so that the skip edge is what one sees.

The rules: the spine lies in no frame and has one `group`; a branch leaves at a tap and comes back
at a plus, both at right angles because tap and first box, last box and plus share a rank.
"""

from __future__ import annotations

from typing import Any

import graphviz

from tinyres.graph.frames import Frames
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
from tinyres.graph.style import THEMES, GradientScale, Look, defaults, ratio_text
from tinyres.graph.trace import shape_text


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
        self.tied: set[str] = set()  # what shares the rank of a spine point already
        self.occurring: dict[str, str] = {}  # what the legend has to explain
        self.forks: dict[int, str] = {}
        self.exits: dict[int, str] = {}
        self.dot = graphviz.Digraph("tinyres")

    def text(self, title: str) -> str:
        for kind, attributes in defaults(self.look.rankdir, self.theme).items():
            self.dot.attr(kind, **attributes)
        self._plan_points()
        self._boxes()
        self._ranks()
        self._arrows()
        measured = self.graph.has_gradient
        below = legend(title, self.look, self.theme, self.occurring, measured)
        if below:
            self.dot.attr(label=below)
        return str(self.dot.source)

    # ---- points: taps, forks and exits

    def _plan_points(self) -> None:
        """Where a branch leaves in more than one arrow it forks; where it is one box, it exits."""
        layout = self.layout
        firsts: set[int] = set()
        for source, branch in layout.taps.items():
            targets = [a.target for a in branch]
            if len(targets) == 1 and layout.starts_here(targets[0], source):
                firsts.add(targets[0])
            else:
                self.forks[source] = f"f{source}"
        for box in sorted(layout.additions):
            last = self._last(box)
            if last is not None and last in firsts:
                firsts.discard(last)  # to a second plus it has an arrow without a corner
                self.exits[box] = f"e{box}"

    def _last(self, addition: int) -> int | None:
        """The box from which a branch comes back, where it is not on a spine itself."""
        for arrow in self.layout.into[addition]:
            if not arrow.skip and arrow.source not in self.layout.next_on_spine:
                return arrow.source
        return None

    # ---- boxes

    def _boxes(self) -> None:
        todo: dict[tuple[int, ...], list[tuple[str, dict[str, Any]]]] = {}
        for i, box in enumerate(self.view.boxes):
            path = self.frames.path(i)
            entries = [(_n(i), self._box_attributes(i, box))]
            if i in self.layout.taps:
                entries.append((_tap(i), self._point("skip", 0.12, "tap", group=self._group(i))))
            todo.setdefault(path, []).extend(entries)
            if i in self.forks:
                inner = self.frames.common([a.target for a in self.layout.taps[i]])
                role = self.frames.role_of(inner[-1]) if inner and inner[-1] >= 0 else ""
                todo.setdefault(inner, []).append(
                    (self.forks[i], self._point(role or "arrow", 0.06, "fork"))
                )
            if i in self.exits:
                last = self._last(i)
                assert last is not None
                role = self.frames.role(last) or "arrow"
                todo.setdefault(self.frames.path(last), []).append(
                    (self.exits[i], self._point(role, 0.05, "fork", group=f"g{last}"))
                )
        for name, attributes in todo.pop((), []):
            self.dot.node(name, **attributes)
        self._frame(self.dot, (), todo)

    def _frame(self, dot: Any, path: tuple[int, ...], todo: dict[Any, Any]) -> None:
        depth = len(path)
        inner = {p[: depth + 1] for p in todo if p[:depth] == path and len(p) > depth}
        for child in sorted(inner, reverse=not path):
            number = child[-1]
            name = f"cluster_s{number}" if number >= 0 else f"cluster_side{-number}"
            with dot.subgraph(name=name) as frame:
                frame.attr(**self._frame_attributes(number))
                for name, attributes in todo.get(child, []):
                    frame.node(name, **attributes)
                self._frame(frame, child, todo)

    def _frame_attributes(self, number: int) -> dict[str, str]:
        if number < 0:
            return {"style": "invis", "label": "", "margin": "0"}
        scope = self.graph.scopes[number]
        role = self.frames.role_of(number)
        label = self.labels.frame(scope, role)
        common = {
            "label": quoted(label), "tooltip": quoted(self.graph.path(number)), "fontsize": "11",
            "labelloc": "t", "labeljust": "l" if self.look.rankdir == "LR" else "r",
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
        elif any(last == i for last in map(self._last, self.exits)):
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
        if box.kind == "parameter":
            return {"shape": "note", "style": "filled", "fontsize": "9", "class": "parameter",
                    **self._colours("leaf")}  # fmt: skip
        if box.kind == "fold":
            stroke = self.theme.stroke("skip" if on_spine else "box")
            return {"style": "rounded,filled,dashed", "penwidth": "1.5", "class": "fold",
                    "color": stroke, "fillcolor": self.theme.fill("leaf")}  # fmt: skip
        if self.frames.is_norm(i) and (on_spine or box.kind == "module" or self._unframed(i)):
            self._note_norm(box)
            look = {**self._colours("norm"), "class": "norm"}
            return {**look, "penwidth": "2.5"} if self._cuts(i) else look
        if box.kind == "input" or self._is_source(i):
            look = {"class": "input", "penwidth": "2"}
            return {**look, **self._colours("skip")} if on_spine else look
        return {"class": box.kind}

    def _colours(self, role: str) -> dict[str, str]:
        return {"color": self.theme.stroke(role), "fillcolor": self.theme.fill(role)}

    def _plus(self, i: int) -> dict[str, str]:
        self.occurring["skip"] = "skip (identity) path"
        found = {"label": "+", "shape": "circle", "fixedsize": "true", "width": "0.30",
                 "height": "0.30", "margin": "0", "fontsize": "18", "penwidth": "2.5",
                 "class": "add", **self._colours("skip")}  # fmt: skip
        gradient = gradient_at(self.layout, i)
        if self.scale is not None and gradient is not None:
            ratio = ratio_text(gradient / self.scale.top) if self.scale.top else "0"
            found["xlabel"] = f'<<FONT POINT-SIZE="10">{ratio}</FONT>>'
        return found

    def _is_source(self, i: int) -> bool:
        """Whether the stream begins here."""
        return i in self.layout.spine_of and not self.layout.into[i]

    def _unframed(self, i: int) -> bool:
        """Whether a norm's op has no frame that says that it is one."""
        return not any(s >= 0 and self.frames.role_of(s) == "norm" for s in self.frames.path(i))

    def _note_norm(self, box: Box) -> None:
        """For the legend: which norm it is, if all are of one kind."""
        kinds = [self.graph.scopes[s].kind for s in (*box.around, box.scope)
                 if s is not None and self.graph.scopes[s].role == "norm"]  # fmt: skip
        kind = kinds[0] if kinds else self.graph.nodes[box.node].op
        name = NAMES.get(kind, kind)
        known = self.occurring.setdefault("norm", name)
        self.occurring["norm"] = name if known == name else "normalisation"

    def _cuts(self, i: int) -> bool:
        """Whether a norm stands on the stream itself, as in Post-LN, and is not the final one."""
        if i not in self.layout.spine_of or not self.frames.is_norm(i):
            return False
        spine = self.layout.spines[self.layout.spine_of[i]]
        here = spine.index(i)
        added = any(b in self.layout.additions for b in spine[:here])
        later = any(b in self.layout.additions for b in spine[here:])
        inside = any(self.graph.scopes[s].residual for s in self.view.boxes[i].around)
        return added and (later or inside)

    # ---- arrows

    def _arrows(self) -> None:
        for arrow in self.view.arrows:
            target_box = self.view.boxes[arrow.target]
            source, target = _n(arrow.source), _n(arrow.target)
            if self.view.boxes[arrow.source].kind == "parameter":
                self._parameter_arrow(arrow)
                continue
            if self.layout.on_spine(arrow):
                self._spine_arrow(arrow)
                continue
            look = self._branch_look(arrow)
            if arrow.source in self.layout.taps:
                tap, fork = _tap(arrow.source), self.forks.get(arrow.source)
                source = tap if fork is None or arrow.skip else fork
            if not arrow.skip and arrow.target in self.exits and target_box.kind == "op":
                exit_ = self.exits[arrow.target]
                self.dot.edge(source, exit_, **{**look, "arrowhead": "none"})
                source = exit_
            self.dot.edge(source, target, **look)
        for box, fork in self.forks.items():
            self.dot.edge(_tap(box), fork, **self._fork_look(box))

    def _parameter_arrow(self, arrow: Arrow) -> None:
        look = {"tooltip": quoted(arrow_tooltip(self.graph, arrow)), "style": "dashed",
                "color": self.theme.stroke("leaf"), "class": "parameter"}  # fmt: skip
        self.dot.edge(_n(arrow.source), _n(arrow.target), **look)

    def _spine_arrow(self, arrow: Arrow) -> None:
        look = self._spine_look(arrow)
        source, target = _n(arrow.source), _n(arrow.target)
        if arrow.source in self.layout.taps:
            tap = _tap(arrow.source)
            self.dot.edge(source, tap, **{**look, "arrowhead": "none", "headclip": "false"})
            source, look = tap, {**look, "tailclip": "false"}
        if look.get("arrowhead") == "none":
            look = {**look, "headclip": "false"}  # or a line this thick would end in a gap
        self.dot.edge(source, target, **look)

    def _spine_look(self, arrow: Arrow) -> dict[str, str]:
        role = self._spine_role(arrow)
        stream = role in ("skip", "norm")
        goes_on = arrow.skip or self.view.boxes[arrow.target].kind == "fold"
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
        layout = self.layout
        if arrow.skip:
            return "skip"
        if arrow.source in layout.additions or self.view.boxes[arrow.source].kind == "fold":
            return "norm" if self._cuts(arrow.target) else "skip"
        return "norm" if self._cuts(arrow.source) else ""

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

    # ---- ranks

    def _ranks(self) -> None:
        for source, branch in self.layout.taps.items():
            if source in self.forks:
                self._same([_tap(source), self.forks[source]])
                firsts = {a.target for a in branch if self._only_from(a.target, source)}
                self._same([_n(t) for t in sorted(firsts)])
            else:
                self._same([_tap(source), _n(branch[0].target)])
        for addition in sorted(self.layout.additions):
            last = self._last(addition)
            if addition in self.exits:
                self._same([self.exits[addition], _n(addition)])
            elif last is not None and not self.layout.is_main(last):
                self._same([_n(last), _n(addition)])
        self._loops()
        for box in range(len(self.view.boxes)):
            if box not in self.layout.taps and len(self.layout.out[box]) > 2:
                targets = {a.target for a in self.layout.out[box] if not self.layout.on_spine(a)}
                self._same([_n(t) for t in sorted(targets) if self._only_from(t, box)])

    def _loops(self) -> None:
        """What hangs on the spine without a skip, such as a norm's statistics, hangs level, too."""
        layout = self.layout
        hanging: dict[int, list[int]] = {}
        joints = layout.spine_of.keys() - layout.additions
        for arrow in self.view.arrows:
            source, target = arrow.source, arrow.target
            if source in layout.next_on_spine and target not in layout.spine_of:
                if source not in layout.taps and self._only_from(target, source):
                    hanging.setdefault(source, []).append(target)
            elif source not in layout.spine_of and target in joints:
                hanging.setdefault(target, []).append(source)
        for box, beside in hanging.items():
            self._same([_n(box), *[_n(b) for b in beside if _n(b) not in self.tied][:1]])

    def _only_from(self, box: int, source: int) -> bool:
        return {a.source for a in self.layout.into[box]} == {source}

    def _same(self, names: list[str]) -> None:
        """Put names on one rank; a name that has a rank by another rule keeps that one."""
        free = [name for name in names if name not in self.tied]
        if len(free) > 1:
            self.tied.update(n for n in free)
            with self.dot.subgraph() as rank:
                rank.attr(rank="same")
                for name in free:
                    rank.node(name)


def _n(box: int) -> str:
    return f"n{box}"


def _tap(box: int) -> str:
    return f"t{box}"
