"""All or nothing: twelve blocks learn to reverse a sequence with Pre-LN, and not with Post-LN.

The model gets random symbols and a separator, and has to continue with the same symbols backwards.
No frequency helps here, since all symbols are equally likely. Each token has to look at one certain
other token, and a stack in which all tokens have become the same can only guess.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from demos import command, plots
from demos.compare import loss_picture
from demos.report import Figure, Finding, Part, Section, told
from demos.training import Reverse, Setting, train_all

SETTINGS = {
    name: (label, Setting(task="reverse", placement=name, blocks=12, d_ff=128))
    for name, label in {"pre": "Pre-LN", "post": "Post-LN"}.items()
}


def finding(results: dict[str, dict[str, float]], task: Reverse, blocks: int) -> Finding:
    """A condition on the accuracy on sequences that were held back."""
    pre, post = results["pre"], results["post"]
    by_chance = 1 / task.symbols
    return Finding(
        f"{blocks} blocks learn to reverse a sequence with Pre-LN, and not with Post-LN",
        f"Pre-LN {pre['val_accuracy']:.1%} right (loss {pre['val_loss']:.4f}), "
        f"Post-LN {post['val_accuracy']:.1%} (loss {post['val_loss']:.3f}), "
        f"guessing {by_chance:.1%} ({task.chance:.3f})",
        pre["val_accuracy"] > 0.99 and post["val_accuracy"] < 2 * by_chance,
        f"above 99% with Pre-LN, below {2 * by_chance:.1%}, twice a guess, with Post-LN",
    )


def lesson(out: Path, seed: int = 0, **changes: Any) -> Section:
    """Train, draw and explain."""
    runs = train_all(SETTINGS, seed=seed, **changes)
    s, task = runs["pre"].trainer.setting, runs["pre"].trainer.task
    assert isinstance(task, Reverse)
    curves = [
        plots.Line(run.label, plots.running_mean([r["accuracy"] for r in run.history]), name,
                   x=range(1, len(run.history) + 1))
        for name, run in runs.items()
    ]  # fmt: skip
    right = plots.lines(
        out, "reverse-accuracy", curves, title="Share of symbols right", x_label="step",
        words="Accuracy on the reversed half by step", levels=[("guess", 1 / task.symbols)],
        y_range=(0, 1.05),
    )  # fmt: skip
    loss = loss_picture(out, "reverse-loss", runs, [("guess", task.chance)], 0.0)
    parts: list[Part] = [
        told(__doc__, 0),
        Figure([loss, right], f"{s.blocks} blocks, sequences of {s.context // 2} symbols of "
               f"{task.symbols} kinds, learning rate {s.lr:g}, no warm-up. Thick: the mean "
               "of the last 15 batches."),
    ]  # fmt: skip
    results = {name: run.result for name, run in runs.items()}
    records = [record for run in runs.values() for record in run.records()]
    title = "All or nothing: reversing a sequence"
    return Section("reverse", title, parts, [finding(results, task, s.blocks)], records)


def main(argv: list[str] | None = None) -> int:
    known = command.options("reverse", __doc__, seed=0, steps=300, blocks=12)
    return command.run(known, argv, lambda a: lesson(a.out, a.seed, steps=a.steps, blocks=a.blocks))


if __name__ == "__main__":
    raise SystemExit(main())
