"""Which scopes are drawn as frames, and which box stands in which."""

from __future__ import annotations

from tinyres.graph.layout import Layout
from tinyres.graph.levels import Arrow, View, common_start, sole_ops

ROLES = ("attention", "feed-forward")


class Frames:
    """Which scopes are drawn as frames, and which box is in which."""

    def __init__(self, view: View, layout: Layout):
        self.view, self.graph, self.layout = view, view.graph, layout
        self.roles = self._placement_roles()
        self.sole = sole_ops(self.graph)
        self.around = self._around()
        self.members: dict[int, set[int]] = {}
        for i, around in enumerate(self.around):
            if i not in layout.spine_of:
                for scope in around:
                    self.members.setdefault(scope, set()).add(i)
        self.drawn = {scope for scope in self.members if self._is_drawn(scope)}
        self.paths = self._paths()

    def _around(self) -> list[tuple[int, ...]]:
        """The scopes around each box; a placement is only round what comes before its last plus."""
        behind: dict[int, int] = {}
        for addition in self.layout.additions:
            for scope in self.view.boxes[addition].around:
                behind[scope] = behind.get(scope, 0) | self.layout.ancestors[addition]
        users: dict[int, list[int]] = {}  # of a parameter, which the layout leaves out
        for arrow in self.view.arrows:
            if self.view.boxes[arrow.source].kind == "parameter":
                users.setdefault(arrow.source, []).append(arrow.target)

        def is_around(scope: int, box: int) -> bool:
            if not self.graph.scopes[scope].residual or scope not in behind:
                return True
            return any(behind[scope] >> b & 1 for b in users.get(box, [box]))

        return [
            tuple(scope for scope in box.around if is_around(scope, i))
            for i, box in enumerate(self.view.boxes)
        ]

    def _placement_roles(self) -> dict[int, str]:
        """A placement has the colour of its sublayer; that of a whole block has none."""
        roles: dict[int, set[str]] = {}
        for scope in self.graph.scopes:
            if scope.role in ROLES:
                for outer in self.graph.chain(scope.id)[::-1]:
                    if self.graph.scopes[outer].residual:
                        roles.setdefault(outer, set()).add(scope.role)
                        break
        return {scope: found.pop() for scope, found in roles.items() if len(found) == 1}

    def role_of(self, scope: int) -> str:
        return self.roles.get(scope) or self.graph.scopes[scope].role

    def _is_drawn(self, number: int) -> bool:
        scope = self.graph.scopes[number]
        if scope.level < 0 and not scope.residual:
            return False
        boxes = [self.view.boxes[box] for box in self.members[number]]
        ops = [box for box in boxes if box.kind not in ("parameter", "input")]
        if not ops or (len(ops) == 1 and ops[0].kind == "op" and ops[0].node in self.sole):
            return False
        for outer in self.graph.chain(scope.parent)[::-1]:
            if outer in self.members and (self._is_drawn(outer)):
                same = self.members[outer] == self.members[number]
                return not same and not (outer in self.roles and scope.role in ROLES)
        return True

    def path(self, box: int) -> tuple[int, ...]:
        """The frames around a box, the outermost first; none for what lies on a main spine.

        The first is no scope but a side, numbered from -1 down: an unseen frame round all that
        hangs on one spine, which so stays on one side of it. Where there are more main spines than
        one, each has another unseen frame round itself and its side.
        """
        return self.paths[box]

    def _paths(self) -> list[tuple[int, ...]]:
        inner = [self._scopes(box) for box in range(len(self.view.boxes))]
        sides = self._sides()
        first: dict[int, int] = {}  # of each outermost frame, the box that stands for it
        for box, scopes in enumerate(inner):
            if scopes and box in sides:
                first.setdefault(scopes[0], box)
        spines = len(self.layout.spines)
        several = len({s for s in range(spines) if not self.layout.is_nested(s)}) > 1
        paths: list[tuple[int, ...]] = []
        for box, scopes in enumerate(inner):
            side = sides.get(first.get(scopes[0], box) if scopes else box)
            outer = () if side is None or not several else (side - spines,)
            if several and self.layout.is_main(box):
                outer = (-1 - self.layout.spine_of[box] - spines,)
            paths.append((*outer, *scopes) if side is None else (*outer, side, *scopes))
        return paths

    def _scopes(self, box: int) -> tuple[int, ...]:
        spine = self.layout.spine_of.get(box)
        if spine is None:
            return tuple(s for s in self.around[box] if s in self.drawn)
        if not self.layout.is_nested(spine):
            return ()
        chains = [[s for s in self.around[b] if s in self.drawn] for b in self.layout.spines[spine]]
        return common_start(chains)

    def _sides(self) -> dict[int, int]:
        """For each box off the main spines, the one that it hangs on (or that it feeds)."""
        layout = self.layout
        main = {b: s for b, s in layout.spine_of.items() if layout.is_main(b)}
        bits = sum(1 << b for b in main)
        sides: dict[int, int] = {}
        feeds: dict[int, int] = {}
        for arrow in self.view.arrows:
            feeds.setdefault(arrow.source, arrow.target)
        for box in reversed(range(len(self.view.boxes))):
            behind = layout.ancestors[box] & bits
            if box not in main:
                nearest = behind.bit_length() - 1 if behind else feeds.get(box, -1)
                if behind and behind & ~layout.ancestors[nearest] & ~(1 << nearest):
                    continue  # two streams meet here: it belongs to neither
                if nearest in main:
                    sides[box] = -1 - main[nearest]
                elif nearest in sides:
                    sides[box] = sides[nearest]
        return sides

    def common(self, boxes: list[int]) -> tuple[int, ...]:
        """The frames that all of some boxes are in."""
        return common_start([list(self.paths[box]) for box in boxes])

    def role(self, box: int) -> str:
        """The role of the nearest part around a box that has one; its own if it is a module."""
        for scope in reversed((*self.around[box], *self._own(box))):
            if self.role_of(scope) in ROLES:
                return self.role_of(scope)
        return ""

    def is_norm(self, box: int) -> bool:
        """Whether a box is a norm or a step of one."""
        scopes = (*self.around[box], *self._own(box))
        op = self.graph.nodes[self.view.boxes[box].node].op
        is_op = self.view.boxes[box].kind == "op" and op in ("layer_norm", "rms_norm")
        return is_op or any(self.graph.scopes[s].role == "norm" for s in scopes)

    def _own(self, box: int) -> tuple[int, ...]:
        b = self.view.boxes[box]
        return (b.scope,) if b.kind == "module" and b.scope is not None else ()

    def shape_before(self, arrow: Arrow) -> tuple[int, ...]:
        """The shape with which this branch left the spine; without a spine, one box before."""
        box = arrow.source
        while box not in self.layout.spine_of and self.layout.into[box]:
            box = self.layout.into[box][0].source
            if not self.layout.spines:
                break
        return self.graph.nodes[self.view.boxes[box].node].shape
