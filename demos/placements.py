"""The published placements: each one's rule, constants and source, and a picture of any of them.

Where do the norms of a Transformer stand, and what is multiplied by what? A placement is a class of
tinyres/nn/residual.py, sublayer_rules.py or block_rules.py, and its rule is the line of `forward`.
x is the stream, F a sublayer (A attention, F the feed-forward, where a rule is that of a block),
N the number of blocks. --draw NAME draws a stack of that placement.
"""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import tinyres as tr
from demos import command

MARGIN = 22  # the width of the column of names


@dataclass
class Entry:
    """What the table says of one placement."""

    name: str
    title: str  # the class
    rule: str
    effect: str
    constants: str
    paper: str
    norms: int  # in a block
    first_norm: bool
    final_norm: bool
    streams: int | str

    def text(self, width: int = 100) -> str:
        counts = [
            f"{self.norms} norms a block",
            "first norm" if self.first_norm else "",
            "final norm" if self.final_norm else "no final norm",
            f"{self.streams} streams" if self.streams != 1 else "1 stream",
        ]
        rest = [self.effect, self.constants, ", ".join(filter(None, counts)), f"[{self.paper}]"]
        lines = [
            line for part in rest
            for line in textwrap.wrap(part, width - MARGIN, break_on_hyphens=False)
        ]  # fmt: skip
        return "\n".join([f"{self.name:<{MARGIN}}{self.rule}", *(" " * MARGIN + x for x in lines)])


def entry(name: str) -> Entry:
    """What a placement's class and docstring say: rule and effect, constants, source."""
    rule = tr.nn.PLACEMENTS[name]
    paragraphs = (inspect.getdoc(rule) or "").split("\n\n")
    first, *constants, source = [" ".join(paragraph.split()) for paragraph in paragraphs]
    formula, effect = first.split(": ", 1)
    if not (source.startswith("(") and source.endswith(")") and len(constants) <= 1):
        raise ValueError(f"{rule.__name__}: the docstring must be rule, constants, (source)")
    block = tr.nn.TransformerStack(8, heads=2, blocks=2, placement=name, rng=0).blocks[1]
    norms = sum(module.role == "norm" for module in block.modules())
    return Entry(
        name, rule.__name__, formula, effect, constants[0] if constants else "", source[1:-1],
        norms, rule.first_norm, rule.final_norm, "b + 1" if rule.remembers else rule.streams,
    )  # fmt: skip


def draw(name: str, blocks: int = 2, depth: int = 1) -> tr.graph.Drawing:
    """A small language model of this placement."""
    model = tr.nn.TransformerLM(
        vocab=65, d_model=16, heads=2, blocks=blocks, context=8, placement=name, rng=0
    )
    tokens = np.random.default_rng(0).integers(0, 65, (1, 8))
    found = entry(name)
    return tr.draw(model(tokens), depth=depth, title=f"{found.title}: {found.rule}")


def main(argv: list[str] | None = None) -> int:
    known = command.parser("placements", __doc__)
    add, least = known.add_argument, command.whole_number
    add("--draw", metavar="NAME", choices=tr.nn.PLACEMENTS, help="draw this one")
    add("--blocks", type=least(1), default=2, help="how many blocks; default: 2")
    add("--depth", type=least(0), default=1, help="0 block, 1 sublayer, 2 layer, 3 op; default: 1")
    add("--out", type=Path, default=Path("out/placements"), help="the picture's folder")
    args = known.parse_args(argv)
    if args.draw is None:
        print("\n\n".join(entry(name).text() for name in tr.nn.PLACEMENTS))
        return 0
    print(entry(args.draw).text())
    with command.refusals(known):
        picture = draw(args.draw, args.blocks, args.depth).render(args.out / f"{args.draw}.svg")
    print(f"\npicture: {picture}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
