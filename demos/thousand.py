"""A thousand blocks: Pre-LN learns to predict text, Post-LN of the same depth never begins.

Both have 2,000 sublayers and 12.7 million weights. They are trained at the same time, each on a
core of its own, on the same batches of real text, with the same learning rate and warm-up: some
minutes, and 2 GB of memory. One thing is special about such a depth. Each sublayer adds to the
stream a vector about as long as the embedding of a token, so that at the top the token would be one
voice among two thousand. Here its embedding starts sqrt(blocks) times as long. In Pre-LN that is
the same as multiplying every branch and the positions by 1 / sqrt(blocks), for its norms see
directions only. In Post-LN the first norm undoes it.

A gradient that goes down Post-LN passes 2,000 norms, and the blocks there give all tokens the same
vector. Down Pre-LN's stream there is nothing but additions. The right picture shows what arrives at
each block, before training and after it. Numbers below 1e-45 do not exist in float32: where the
gradient would be smaller it is 0, and nothing learns.

Ctrl-C finishes the step, saves and stops. The same command goes on from there, also after a crash,
and ends with the same bits. To see what the thousand blocks have learned to write:

    python -m demos.generate out/thousand/pre/checkpoint.npz
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

import tinyres as tr
from demos import command, plots, text
from demos.report import BOTH, Figure, Finding, Picture, Section, Table, told
from demos.saved_run import SavedRun, begin
from demos.side_by_side import Job, train_side_by_side
from demos.training import Setting, Trainer

SETTING = Setting(
    blocks=1000, d_model=32, d_ff=128, batch=8, schedule="cosine", warmup=30, steps=250
)
EVERY = 50  # steps from one save to the next: a checkpoint of 1,000 blocks has 160 MB
MOMENTS = {"start": "before", "end": "after"}  # training
Runs = dict[str, dict[str, Any]]  # of each placement, what `at_the_end` measured


def new(setting: Setting, out: Path) -> SavedRun:
    """A run before its first step."""
    run = begin(setting, out)
    run.every = EVERY
    run.trainer.model.token.weight.data[...] *= math.sqrt(setting.blocks)
    return run


def at_the_end(run: SavedRun) -> dict[str, Any]:
    """The loss on text that was not trained on, and a look inside before training and after it."""
    first = new(run.trainer.setting, run.out)
    return run.trainer.evaluate() | {"start": look(first.trainer), "end": look(run.trainer)}


def look(trainer: Trainer) -> dict[str, list[float]]:
    """What is at each place of the stream, from the embedding to the top."""
    tokens, targets = trainer.task.held_out()
    batch = tokens[::64], targets[::64]
    return {
        "gradient": tr.probe.stream_gradient(trainer.model, batch).tolist(),
        "apart": (1 - tr.probe.token_cosine(trainer.model, batch)).tolist(),
        "rms": tr.probe.stream_rms(trainer.model, batch).tolist(),
    }


def findings(runs: Runs, unigram: float, bigram: float) -> list[Finding]:
    """Conditions on the losses, and on the gradients before training."""
    pre, post = (runs[placement]["val_loss"] for placement in BOTH)
    left = {placement: bottom_to_top(run["start"]) for placement, run in runs.items()}
    nothing = {placement: unreached(run["end"]) for placement, run in runs.items()}
    blocks = f"{len(runs['pre']['start']['gradient']) - 1:,} blocks"
    return [
        Finding(
            f"Pre-LN learns through {blocks}: its loss comes to the bigram entropy",
            f"{pre:.3f} against {bigram:.3f}",
            pre < bigram + 0.1,
            "at most 0.1 above it",
        ),
        Finding(
            f"Post-LN of {blocks} comes to the unigram entropy and stays there",
            f"{post:.3f} against {unigram:.3f}",
            abs(post - unigram) < 0.05,
            "less than 0.05 from each other",
        ),
        Finding(
            "Before training the gradient comes whole to the bottom of Pre-LN, not of Post-LN",
            f"it has there {left['pre']:.2g} times, {left['post']:.2g} times its norm at the top",
            left["pre"] > 0.5 and left["post"] < 1e-6,
            "above 0.5 in Pre-LN, below a millionth in Post-LN",
        ),
        Finding(
            "After training Post-LN's lower blocks get no gradient at all, Pre-LN's get one",
            f"the lowest one that it reaches is {nothing['post']} in Post-LN, {nothing['pre']} "
            "(the embedding) in Pre-LN",
            nothing["pre"] == 0 < nothing["post"],
            "above 0 in Post-LN, 0 in Pre-LN",
        ),
    ]


def bottom_to_top(seen: dict[str, list[float]]) -> float:
    """The gradient's norm below the first block, divided by that above the last."""
    return seen["gradient"][0] / seen["gradient"][-1]


def unreached(seen: dict[str, list[float]]) -> int:
    """The lowest place of the stream that a gradient reaches: what is below has none."""
    return int(np.flatnonzero(seen["gradient"])[0])


def picture(
    losses: dict[str, list[float]], runs: Runs, levels: list[tuple[str, float]], out: Path
) -> Picture:
    """The loss by step, and the gradient by block."""
    from demos.pictures import ink, panels  # the processes that train have no use for them

    by_step = [
        plots.Line(BOTH[p], plots.running_mean(seen), p, faint=seen, x=range(1, len(seen) + 1))
        for p, seen in losses.items()
    ]
    by_block = [
        plots.Line(
            name, np.where(seen := np.array(run[key]["gradient"]), seen, np.nan), p, dash=dash
        )
        for p, run in runs.items()
        for key, name, dash in (("start", "", "--"), ("end", BOTH[p], "-"))
    ]
    title = f"Pre-LN and Post-LN with {len(runs['pre']['start']['gradient']) - 1:,} blocks"
    with matplotlib.rc_context(plots.STYLE):
        subtitle = "The same text, batches, learning rate and warm-up for both."
        figure, (left, right) = panels(title, subtitle, (3.3, 3.3), 3.9, gap=1.2)
        (_, unigram), (_, bigram) = levels
        y_range = 0.9 * bigram, 1.5 * unigram
        plots.name_ends(left, plots.draw_lines(left, by_step, levels=levels, y_range=y_range))
        plots.name_ends(right, plots.draw_lines(right, by_block, log=True))
        if block := unreached(runs["post"]["end"]):
            right.annotate(
                f"0 below block {block}", (block, right.get_ylim()[0]), ha="right",
                xytext=(-5, 3), textcoords="offset points", color=ink("post"),
            )  # fmt: skip
        for ax, what, x_label in (
            (left, "loss of each batch, in nats", "step"),
            (right, "gradient of the stream; dashed: before training", "block"),
        ):
            ax.set_title(what, loc="left", fontsize=9.5, color=ink("muted"))
            ax.set_xlabel(x_label)
        last = {p: plots.running_mean(seen)[-1] for p, seen in losses.items()}
        kept = {p: bottom_to_top(run["start"]) for p, run in runs.items()}
        words = (
            f"Loss of the last batches: Pre-LN {last['pre']:.2f}, Post-LN {last['post']:.2f}. "
            "Gradient of the stream before training, bottom over top: Pre-LN "
            f"{kept['pre']:.2g}, Post-LN {kept['post']:.2g}."
        )
        return plots.saved(figure, out, "thousand", title=title, words=words)


def lesson(args: argparse.Namespace) -> Section:
    """Train both, or what is left of them, and show what was measured."""
    source = text.load(args.text or None)
    source.check_context(SETTING.context)
    s = SETTING.but(blocks=args.blocks, steps=args.steps, seed=args.seed, text=args.text or None)
    jobs = [Job(BOTH[p], s.but(placement=p), args.out / p, new, at_the_end) for p in BOTH]
    if not train_side_by_side(jobs):
        print("stopped and saved: the same command goes on")
        raise SystemExit(130)
    measured = {}
    for p in BOTH:
        lines = (args.out / p / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        measured[p] = [json.loads(line) for line in lines]
    losses = {p: [record["loss"] for record in steps] for p, (*steps, _) in measured.items()}
    runs = {p: last for p, (*_, last) in measured.items()}
    unigram, bigram = source.unigram_entropy(s.context), source.bigram_entropy(s.context)
    drawn = picture(losses, runs, [("unigram", unigram), ("bigram", bigram)], args.out)
    rows = [
        (f"{name}, {when} training", f"{runs[p][key]['rms'][-1]:.3g}",
         f"{runs[p][key]['apart'][-1]:.2g}", f"{bottom_to_top(runs[p][key]):.2g}")
        for p, name in BOTH.items() for key, when in MOMENTS.items()
    ]  # fmt: skip
    head = ("at the top of the stack", "RMS of the stream", "1 - cosine of two tokens",
            "gradient at the bottom / top")  # fmt: skip
    parts = [
        told(__doc__, 0, 2),
        Figure([drawn], f"{s.steps} steps of {s.batch} windows of {source.name}. Faint: each "
               "batch. Thick: the mean of the last 15."),
        Table(head, rows, f"Loss on text that was not trained on: Pre-LN "
              f"{runs['pre']['val_loss']:.3f}, Post-LN {runs['post']['val_loss']:.3f}."),
    ]  # fmt: skip
    records = [{"placement": p, **run} for p, run in runs.items()]
    return Section("thousand", "A thousand blocks", parts, findings(runs, unigram, bigram), records)


def main(argv: list[str] | None = None) -> int:
    numbers = {"blocks": SETTING.blocks, "steps": SETTING.steps, "seed": SETTING.seed}
    return command.run(command.options("thousand", __doc__, **numbers, text=""), argv, lesson)


if __name__ == "__main__":
    raise SystemExit(main())
