"""Which scopes are drawn as frames, and which box stands in which."""

from __future__ import annotations

from tinyres.graph.layout import Layout
from tinyres.graph.levels import Arrow, View

ROLES = ("attention", "feed-forward")


class Frames:
    """Which scopes are drawn as frames, and which box is in which."""

    def __init__(self, view: View, layout: Layout):
        self.view, self.graph, self.layout = view, view.graph, layout
        self.roles = self._placement_roles()
        self.around = self._around()
        self.members: dict[int, set[int]] = {}
        for i, around in enumerate(self.around):
            if i not in layout.spine_of:
                for scope in around:
                    self.members.setdefault(scope, set()).add(i)
        self.drawn = {scope for scope in self.members if self._is_drawn(scope)}

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
        """A placement has the colour of its sublayer."""
        roles: dict[int, str] = {}
        for scope in self.graph.scopes:
            if scope.role in ROLES:
                for outer in self.graph.chain(scope.id)[::-1]:
                    if self.graph.scopes[outer].residual:
                        roles.setdefault(outer, scope.role)
                        break
        return roles

    def role_of(self, scope: int) -> str:
        return self.roles.get(scope) or self.graph.scopes[scope].role

    def _is_drawn(self, number: int) -> bool:
        scope = self.graph.scopes[number]
        if scope.level < 0 and not scope.residual:
            return False
        if all(self.view.boxes[box].kind == "parameter" for box in self.members[number]):
            return False
        for outer in self.graph.chain(scope.parent)[::-1]:
            if outer in self.members and (self._is_drawn(outer)):
                same = self.members[outer] == self.members[number]
                return not same and not (self.graph.scopes[outer].residual and scope.role in ROLES)
        return True

    def path(self, box: int) -> tuple[int, ...]:
        """The frames around a box, the outermost first; none for what lies on a spine."""
        around = tuple(s for s in self.around[box] if s in self.drawn)
        spine = self.layout.spine_of.get(box)
        if spine is None:
            return around
        if not self.layout.is_nested(spine):
            return ()
        return self.common(self.layout.spines[spine])

    def common(self, boxes: list[int]) -> tuple[int, ...]:
        """The frames that all of some boxes are in."""
        chains = [[s for s in self.around[b] if s in self.drawn] for b in boxes]
        found = []
        for scopes in zip(*chains):
            if len(set(scopes)) > 1:
                break
            found.append(scopes[0])
        return tuple(found)

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
        """The shape of the value from which the branch of this arrow set out."""
        box = arrow.source
        seen = 0
        while box not in self.layout.spine_of and self.layout.into[box] and seen < 500:
            box, seen = self.layout.into[box][0].source, seen + 1
        return self.graph.nodes[self.view.boxes[box].node].shape
