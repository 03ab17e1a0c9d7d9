"""What goes wrong in Post-LN, step by step: the tokens become alike, and then the gradient dies.

At initialisation the weight gradients of a Post-LN stack do not vanish. What one sees there is
token collapse. Attention mixes the tokens of a sequence, and each block makes them a little more
alike. In Post-LN the norm after every addition shrinks what was there before, so that what tells
the tokens apart fades block by block. In Pre-LN the embedding stays in the sum unscaled.

The measure is 1 - cosine between two tokens of a sequence, averaged: about 1 for unrelated vectors,
0 for equal directions. Where all tokens are the same, attention can't choose between them.

The first steps of Adam, each as large as the learning rate whatever the gradient's size, push a
Pre-LN stack into the same corner. It comes out again; Post-LN does not. That depends on depth,
learning rate and initialisation together: a lower rate, a slow start or smaller weights save it.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import tinyres as tr
from demos import plots, text
from demos.report import Figure, Finding, Section, Table, finish, options
from demos.training import Setting, Trainer, make_task, progress

NAMES = {"pre": "Pre-LN", "post": "Post-LN"}
SETTING = Setting(blocks=12, d_model=32, d_ff=128, batch=8, lr=1e-3, beta2=0.999, steps=200)
MOMENTS = (0, 5, 200)
DEPTHS = (6, 12, 24, 48)


def look(trainer: Trainer, batch: Any) -> dict[str, Any]:
    """Token collapse and gradients on a batch, as the model stands."""
    weights = tr.probe.weight_gradients(trainer.model, batch)
    return {
        "placement": trainer.setting.placement, "blocks": trainer.setting.blocks,
        "step": trainer.done,
        "collapse": 1 - tr.probe.token_cosine(trainer.model, batch),
        "stream gradient": tr.probe.stream_gradient(trainer.model, batch),
        "embedding gradient": weights["token.weight"],
        "top feed-forward gradient": max(
            value for name, value in weights.items() if name.startswith(top_matrix(trainer))
        ),
    }  # fmt: skip


def top_matrix(trainer: Trainer) -> str:
    """The path of the last matrix of the stack."""
    return f"stack.blocks.{trainer.setting.blocks - 1}.feed_forward.branch.down.weight"


def by_depth(source: text.Text, seed: int) -> list[dict[str, Any]]:
    """Both placements at several depths, before any training."""
    measured = []
    for placement, blocks in itertools.product(NAMES, DEPTHS):
        setting = SETTING.but(placement=placement, blocks=blocks, seed=seed)
        trainer = Trainer(setting, make_task(setting, source))
        measured.append(look(trainer, trainer.task.batch(trainer.rng)))
    return measured


def in_training(source: text.Text, setting: Setting) -> list[dict[str, Any]]:
    """Both placements before training, and after as many steps as MOMENTS says."""
    measured = []
    for placement, name in NAMES.items():
        trainer = Trainer(setting.but(placement=placement), make_task(setting, source))
        batch = trainer.task.held_out()
        batch = batch[0][:64], batch[1][:64]
        measured.append(look(trainer, batch))
        for record in progress(trainer, f"{name}, looking inside"):
            if record["step"] in MOMENTS:
                measured.append(look(trainer, batch))
    return measured


def findings(depths: list[dict[str, Any]], moments: list[dict[str, Any]]) -> list[Finding]:
    """Conditions on what was measured."""
    top = {(m["placement"], m["blocks"]): m["collapse"][-1] for m in depths}
    seen = {(m["placement"], m["step"]): m for m in moments}
    first, early, late = MOMENTS
    collapse = {key: m["collapse"][-1] for key, m in seen.items()}
    left = {
        p: seen[p, late]["embedding gradient"] / seen[p, first]["embedding gradient"] for p in NAMES
    }

    def course(placement: str) -> str:
        return ", ".join(f"{collapse[placement, step]:.1g}" for step in MOMENTS)

    shallow, deep = DEPTHS[0], DEPTHS[-1]
    return [
        Finding(
            "Before training, deep Post-LN makes all tokens alike (1 - cosine at the top)",
            f"{shallow} and {deep} blocks: Post-LN {top['post', shallow]:.2g} and "
            f"{top['post', deep]:.1g}, Pre-LN {top['pre', shallow]:.2g} and {top['pre', deep]:.2g}",
            top["post", deep] < 1e-4 and top["pre", deep] > 0.03,
        ),
        Finding(
            "In training Post-LN's tokens stay alike and its gradient dies; Pre-LN recovers",
            f"1 - cosine at steps {', '.join(map(str, MOMENTS))}: Post-LN {course('post')}, "
            f"Pre-LN {course('pre')}; the embedding's gradient falls to {left['post']:.2g} "
            f"and {left['pre']:.2g} of its first size",
            collapse["post", late] < 0.1 * collapse["post", first]
            and collapse["pre", late] > collapse["pre", early]
            and left["post"] < 0.1 < left["pre"],
        ),
    ]


def pictures(
    depths: list[dict[str, Any]], moments: list[dict[str, Any]], out: Path
) -> list[Figure]:
    """By depth at initialisation; then by block at three moments of the training."""
    curves = [
        plots.Line(name, [m["collapse"][-1] for m in depths if m["placement"] == p], p,
                   x=DEPTHS, marker="o")
        for p, name in NAMES.items()
    ]  # fmt: skip
    depth = plots.lines(
        out, "collapse-by-depth", curves, title="Before training: 1 - cosine at the top",
        words="How different two tokens still are at the top of the stack, by its depth",
        x_label="blocks in the stack", log=True,
    )  # fmt: skip
    dashes = dict(zip(MOMENTS, ("-", "--", ":")))
    panels = []
    for what, title in {"collapse": "1 - cosine", "stream gradient": "gradient norm"}.items():
        low = min(m[what].min() for m in moments)
        high = max(m[what].max() for m in moments)
        panels += [
            plots.lines(
                out, f"{what.replace(' ', '-')}-{p}",
                [plots.Line(f"step {m['step']}", m[what], p, dash=dashes[m["step"]])
                 for m in moments if m["placement"] == p],
                title=f"{name}: {title} of the stream",
                words=f"{title} at each block of {name} before, early in and after training",
                x_label="block", log=True, y_range=(low / 2, high * 2),
            )
            for p, name in NAMES.items()
        ]  # fmt: skip
    return [
        Figure([depth], "Near 0 all tokens of a sequence point the same way."),
        Figure(panels, "The same two stacks before training (solid), after a few steps of Adam "
               "(dashed) and at the end (dotted). Each row has one scale."),
    ]  # fmt: skip


def lesson(source: text.Text, out: Path, seed: int = 0, setting: Setting = SETTING) -> Section:
    """Measure, draw and explain."""
    depths = by_depth(source, seed)
    moments = in_training(source, setting.but(seed=seed))
    first, second = pictures(depths, moments, out)
    stacks = {(m["placement"], m["blocks"]): m for m in depths}
    rows = [
        [str(blocks)]
        + [f"{stacks[p, blocks]['collapse'][-1]:.2g}" for p in NAMES]
        + [f"{stacks[p, blocks]['top feed-forward gradient']:.2g}" for p in NAMES]
        for blocks in DEPTHS
    ]
    head = ["blocks"] + [f"{what}, {name}" for what in ("1 - cosine", "top gradient")
                         for name in NAMES.values()]  # fmt: skip
    parts = [
        """
        What passes a Post-LN stack at initialisation is large enough, but it says less and less.
        Attention mixes the tokens of a sequence, so each block makes them a little more alike. The
        norm after every addition shrinks what stood there before, and what tells the tokens apart
        fades from block to block. In Pre-LN nothing ever scales the stream, and the embedding of
        each token is still in the sum at the top.

        The measure is 1 - cosine between two tokens of a sequence: about 1 for unrelated vectors,
        0 for vectors that point the same way. Where all tokens are the same, attention has nothing
        to choose between.
        """,
        first,
        Table(head, rows, "At initialisation. Top gradient: norm of the gradient of the last "
              "feed-forward matrix. It does not vanish in Post-LN, at no depth. What goes wrong "
              "first is that the tokens become alike."),
        f"""
        Then training begins. Adam moves every weight by about the learning rate, however small its
        gradient is. The first steps drive both stacks towards the collapse. Pre-LN comes
        out again. Post-LN ({setting.blocks} blocks, learning rate {setting.lr:g}) does not, and
        the gradient that could lead it out has vanished.
        """,
        second,
        """
        This does not mean that Post-LN always fails. It depends on depth, learning rate and
        initialisation together, and the next part shows one of the cures.
        """,
    ]  # fmt: skip
    title = "Why it matters where the norm stands"
    records = [*depths, *moments]
    return Section("gradient_flow", title, parts, findings(depths, moments), records)


def main(argv: list[str] | None = None) -> int:
    args = options("gradient_flow", __doc__, seed=0, text="").parse_args(argv)
    return finish(lesson(text.load(args.text or None), args.out, args.seed), args.out)


if __name__ == "__main__":
    raise SystemExit(main())
