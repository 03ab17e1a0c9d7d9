"""The spine of a picture and its branches: what makes the skip edge a straight line.

A *spine* runs through residual additions, from each back along its skip, and through modules that
are drawn as one box and have such additions inside. Between them and at both
ends it takes in what every path has to pass, such as the norm of a Post-LN. Everything else hangs
on it: a branch leaves at a *tap* and comes back at a plus.
"""

from __future__ import annotations

import functools
import itertools

from tinyres.graph.levels import Arrow, View
from tinyres.graph.trace import Edge


class Layout:
    """Which boxes lie on a spine, and how branches leave and rejoin it."""

    def __init__(self, view: View):
        self.view = view
        self.additions = set(view.additions)
        # The boxes that the stream runs through: additions, and modules with additions inside.
        self.carrying = self.additions | {i for i, b in enumerate(view.boxes) if b.stream}
        n = len(view.boxes)
        self.into: list[list[Arrow]] = [[] for _ in range(n)]
        self.out: list[list[Arrow]] = [[] for _ in range(n)]
        for arrow in view.arrows:
            if view.boxes[arrow.source].kind != "parameter":
                self.into[arrow.target].append(arrow)
                self.out[arrow.source].append(arrow)
        self.ancestors = self._ancestors()
        self._carrying_bits = sum(1 << box for box in self.carrying)
        self.dominator = self._dominators()
        self.spines: list[list[int]] = []
        self.spine_of: dict[int, int] = {}
        self._find_spines()
        self.next_on_spine = {a: b for spine in self.spines for a, b in itertools.pairwise(spine)}
        self.taps = self._find_taps()

    @functools.cached_property
    def traced(self) -> list[list[Edge]]:
        """The edges of the whole graph into each of its nodes."""
        return self.view.graph.inputs()

    # ---- spines

    def _ancestors(self) -> list[int]:
        """For each box the boxes behind it, as the bits of a number."""
        found: list[int] = []
        for arrows in self.into:
            bits = 0
            for arrow in arrows:
                bits |= found[arrow.source] | 1 << arrow.source
            found.append(bits)
        return found

    def _dominators(self) -> list[int]:
        """For each box the nearest one that every path to it passes, -1 if there is none."""
        found: list[int] = []
        for arrows in self.into:
            common = arrows[0].source if arrows else -1
            for arrow in arrows[1:]:
                other = arrow.source
                while common != other:
                    if common > other:
                        common = found[common]
                    else:
                        other = found[other]
            found.append(common)
        return found

    def back(self, box: int) -> int | None:
        """The box before this one, if it lies on a spine."""
        sources = {a.source for a in self.into[box]}
        for arrow in self.into[box]:
            if self._by_skip(arrow):
                return arrow.source
        if len(sources) == 1 or self.dominator[box] in sources:
            return self.dominator[box]
        carrying = [s for s in sources if self._comes_from_stream(s)]
        if not carrying and self.into[box]:
            return self.into[box][0].source  # of a token and its position, the token
        return carrying[0] if len(carrying) == 1 else None

    def _by_skip(self, arrow: Arrow) -> bool:
        """Whether an arrow is the one on which the stream comes into a box."""
        stream = self.view.boxes[arrow.target].stream
        return arrow.skip or (stream is not None and arrow.value == stream.enters)

    def _comes_from_stream(self, box: int) -> bool:
        return bool((self.ancestors[box] | 1 << box) & self._carrying_bits)

    def _find_spines(self) -> None:
        for box in sorted(self.carrying, reverse=True):
            if box in self.spine_of:
                continue
            spine = [box]
            before = self.back(box)
            while before is not None and before not in self.spine_of:
                spine.insert(0, before)
                before = self.back(before)
            after = self._after(box)
            while after is not None:
                spine.append(after)
                after = self._after(after)
            self.spine_of.update(dict.fromkeys(spine, len(self.spines)))
            self.spines.append(spine)

    def _after(self, box: int) -> int | None:
        going_on = [a.target for a in self.out[box] if self.back(a.target) == box]
        return max((t for t in going_on if t not in self.spine_of), default=None)

    def is_nested(self, spine: int) -> bool:
        """Whether a spine lies within a branch of another one."""
        first, last = self.spines[spine][0], self.spines[spine][-1]
        return bool(self.into[first]) and any(a.target in self.spine_of for a in self.out[last])

    def is_main(self, box: int) -> bool:
        """Whether a box lies on a spine that is in no branch."""
        return box in self.spine_of and not self.is_nested(self.spine_of[box])

    # ---- branches

    def _find_taps(self) -> dict[int, list[Arrow]]:
        """For each box on a spine where a skip begins, the arrows that leave for a branch."""
        taps = {}
        for box in self.spine_of:
            if any(a.skip for a in self.out[box]):
                branch = [a for a in self.out[box] if not self.on_spine(a) and not a.skip]
                if branch:
                    taps[box] = branch
        return taps

    def on_spine(self, arrow: Arrow) -> bool:
        """Whether an arrow is part of a spine."""
        if self.next_on_spine.get(arrow.source) != arrow.target:
            return False
        if self._by_skip(arrow) or arrow.target in self.carrying:
            return self._by_skip(arrow)
        same = (a for a in self.into[arrow.target] if a.source == arrow.source)
        return next(same) is arrow  # of x * x, one

    def starts_here(self, box: int, source: int) -> bool:
        """Whether `box` needs nothing that comes later than `source`, and can stand beside it."""
        return all(
            a.source == source or not self.ancestors[a.source] >> source & 1
            for a in self.into[box]
        )  # fmt: skip


def gradient_at(layout: Layout, box: int) -> float | None:
    """The gradient of a sum: both its operands get it. In a module it is that of its last sum."""
    stream = layout.view.boxes[box].stream
    ways: list[Arrow] | list[Edge] = layout.into[box]
    if stream is not None:
        ways = layout.traced[stream.addition]
    return next((way.gradient for way in ways if way.gradient is not None), None)


def top_gradient(layout: Layout) -> float:
    """The gradient at the top of the stack: at the last residual addition, or near the output."""
    top = max(layout.carrying, default=None)
    gradient = None if top is None else gradient_at(layout, top)
    if gradient is not None:
        return gradient
    view = layout.view
    inner = [a.gradient for a in view.arrows if view.boxes[a.target].kind != "output"]
    return next((g for g in reversed(inner) if g is not None), view.graph.seed or 0.0)
