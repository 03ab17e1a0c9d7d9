"""What Post-LN does before any training: the deeper the stack, the more alike its tokens.

What passes a Post-LN stack at initialisation is large enough, but it says less and less. Attention
mixes the tokens of a sequence, so each block makes them a little more alike. The norm after every
addition shrinks what stood there before, and what tells the tokens apart fades from block to block.
In Pre-LN nothing ever scales the stream, and the embedding of each token is still in the sum at
the top.

The measure is 1 - cosine between two tokens of a sequence: about 1 for unrelated vectors, 0 for
vectors that point the same way. Where all tokens are the same, attention has nothing to choose
between.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import tinyres as tr
from demos import command, plots, text
from demos.report import BOTH, Figure, Finding, Part, Section, Table, told
from demos.training import Setting, Trainer, make_task

SETTING = Setting(d_model=32, d_ff=128, batch=8)
DEPTHS = (6, 12, 24, 48)


def look(trainer: Trainer, batch: Any) -> dict[str, Any]:
    """Token collapse and gradients on a batch, as the model stands."""
    weights = tr.probe.weight_gradients(trainer.model, batch)
    blocks = trainer.setting.blocks
    return {
        "placement": trainer.setting.placement,
        "blocks": blocks,
        "step": trainer.done,
        "collapse": 1 - tr.probe.token_cosine(trainer.model, batch),
        "stream gradient": tr.probe.stream_gradient(trainer.model, batch),
        "embedding gradient": weights["token.weight"],
        "top gradient": weights[f"stack.blocks.{blocks - 1}.feed_forward.branch.down.weight"],
    }


def by_depth(source: text.Text, seed: int) -> list[dict[str, Any]]:
    """Both placements at several depths."""
    measured = []
    for placement, blocks in itertools.product(BOTH, DEPTHS):
        setting = SETTING.but(placement=placement, blocks=blocks, seed=seed)
        trainer = Trainer(setting, make_task(setting, source))
        measured.append(look(trainer, trainer.task.batch(trainer.rng)))
    return measured


def finding(stacks: dict[tuple[str, int], dict[str, Any]]) -> Finding:
    """A condition on the deepest stacks."""
    ends = {
        name: [float(stacks[name, blocks]["collapse"][-1]) for blocks in (DEPTHS[0], DEPTHS[-1])]
        for name in BOTH
    }
    (pre, deep_pre), (post, deep_post) = ends["pre"], ends["post"]
    return Finding(
        "Before training, deep Post-LN makes all tokens alike",
        f"1 - cosine at the top of {DEPTHS[0]} and {DEPTHS[-1]} blocks: Post-LN {post:.2g} and "
        f"{deep_post:.2g}, Pre-LN {pre:.2g} and {deep_pre:.2g}",
        deep_post < 1e-4 and deep_pre > 0.03,
        f"below 1e-4 in {DEPTHS[-1]} blocks of Post-LN, above 0.03 in as many of Pre-LN",
    )


def lesson(source: text.Text, out: Path, seed: int = 0) -> Section:
    """Measure, draw and explain."""
    depths = by_depth(source, seed)
    stacks = {(m["placement"], m["blocks"]): m for m in depths}
    curves = [
        plots.Line(name, [stacks[p, b]["collapse"][-1] for b in DEPTHS], p, x=DEPTHS, marker="o")
        for p, name in BOTH.items()
    ]
    picture = plots.lines(
        out, "collapse-by-depth", curves, title="Before training: 1 - cosine at the top",
        words="How different two tokens still are at the top of the stack, by its depth",
        x_label="blocks in the stack", log=True,
    )  # fmt: skip
    head = ["blocks", "1 - cosine, Pre-LN", "Post-LN", "top gradient, Pre-LN", "Post-LN"]
    rows = [
        [str(blocks)]
        + [f"{stacks[p, blocks]['collapse'][-1]:.2g}" for p in BOTH]
        + [f"{stacks[p, blocks]['top gradient']:.2g}" for p in BOTH]
        for blocks in DEPTHS
    ]
    parts: list[Part] = [
        told(__doc__, 0),
        Figure([picture], "Near 0 all tokens of a sequence point the same way."),
        Table(head, rows, "Top gradient: norm of the gradient of the last feed-forward matrix. "
              "It does not shrink with the depth of Post-LN. What goes wrong first is not the "
              "size of the gradient: the tokens become alike."),
    ]  # fmt: skip
    title = "Why it matters where the norm stands"
    return Section("token_collapse", title, parts, [finding(stacks)], depths)


def main(argv: list[str] | None = None) -> int:
    known = command.options("token_collapse", __doc__, seed=0, text="")
    return command.run(known, argv, lambda a: lesson(text.load(a.text), a.out, a.seed))


if __name__ == "__main__":
    raise SystemExit(main())
