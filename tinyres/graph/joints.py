"""Where branches leave a spine and come back to it, and which points therefore stand level.

A branch that leaves in more than one arrow *forks* behind its tap; one that is a single box comes
back from an *exit* above it. Tap and first box, last box and plus share a rank, so that the arrows
between them meet the spine at right angles.
"""

from __future__ import annotations

from tinyres.graph.layout import Layout


class Joints:
    """Names of the points (t: tap, f: fork, e: exit, n: box), and which of them stand level."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self.forks: dict[int, str] = {}
        self.exits: dict[int, str] = {}
        self._plan()
        self._tied: set[str] = set()  # what shares the rank of a spine point already
        self.level: list[list[str]] = []
        self._ranks()

    def _plan(self) -> None:
        layout = self.layout
        firsts: set[int] = set()
        for source, branch in layout.taps.items():
            targets = [a.target for a in branch]
            if len(targets) == 1 and layout.starts_here(targets[0], source):
                firsts.add(targets[0])
            else:
                self.forks[source] = f"f{source}"
        for box in sorted(layout.additions):
            last = self.last(box)
            if last is not None and last in firsts:
                firsts.discard(last)  # to a second plus it has an arrow without a corner
                self.exits[box] = f"e{box}"

    def last(self, addition: int) -> int | None:
        """The box from which a branch comes back, where it is not on a spine itself."""
        for arrow in self.layout.into[addition]:
            if not arrow.skip and arrow.source not in self.layout.next_on_spine:
                return arrow.source
        return None

    # ---- ranks

    def _ranks(self) -> None:
        for source, branch in self.layout.taps.items():
            if source in self.forks:
                self._same([tap_of(source), self.forks[source]])
                firsts = {a.target for a in branch if self._only_from(a.target, source)}
                self._same([name_of(t) for t in sorted(firsts)])
            else:
                self._same([tap_of(source), name_of(branch[0].target)])
        for addition in sorted(self.layout.additions):
            last = self.last(addition)
            if addition in self.exits:
                self._same([self.exits[addition], name_of(addition)])
            elif last is not None and not self.layout.is_main(last) and not self._escapes(last):
                self._same([name_of(last), name_of(addition)])
        self._loops()
        for box in range(len(self.layout.view.boxes)):
            if box not in self.layout.taps and len(self.layout.out[box]) > 2:
                targets = {a.target for a in self.layout.out[box] if not self.layout.on_spine(a)}
                self._same([name_of(t) for t in sorted(targets) if self._only_from(t, box)])

    def _escapes(self, last: int) -> bool:
        """Whether a value in a branch is used beyond it, so that the way back may be crossed."""
        layout = self.layout
        behind = layout.ancestors[last]
        inside = [b for b in range(last) if behind >> b & 1 and b not in layout.spine_of]
        return any(
            not (behind | 1 << last) >> arrow.target & 1 for b in inside for arrow in layout.out[b]
        )

    def _loops(self) -> None:
        """What hangs on the spine without a skip, such as a norm's statistics, hangs level, too."""
        layout = self.layout
        hanging: dict[int, list[int]] = {}
        joints = layout.spine_of.keys() - layout.additions
        for arrow in layout.view.arrows:
            source, target = arrow.source, arrow.target
            if source in layout.next_on_spine and target not in layout.spine_of:
                if source not in layout.taps and self._only_from(target, source):
                    hanging.setdefault(source, []).append(target)
            elif source not in layout.spine_of and target in joints:
                hanging.setdefault(target, []).append(source)
        for box, beside in hanging.items():
            self._same(
                [name_of(box), *[name_of(b) for b in beside if name_of(b) not in self._tied][:1]]
            )

    def _only_from(self, box: int, source: int) -> bool:
        return {a.source for a in self.layout.into[box]} == {source}

    def _same(self, names: list[str]) -> None:
        """Put names on one rank; a name that has a rank by another rule keeps that one."""
        free = [n for n in names if n not in self._tied]
        if len(free) > 1:
            self._tied.update(free)
            self.level.append(free)


def name_of(box: int) -> str:
    """What a box is called in the DOT text."""
    return f"n{box}"


def tap_of(box: int) -> str:
    """What the tap of a box is called."""
    return f"t{box}"
