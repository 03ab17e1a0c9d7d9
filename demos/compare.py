"""Pre-LN, Post-LN, and Post-LN with warm-up learn to predict real text, all else equal.

Three models predict the next character, with the same seed, the same batches and the same learning
rate of Adam. What differs is where the norm stands, and in the third that the learning rate rises
from 0 over the first 100 steps (warm-up). That is how the first Transformers, which were Post-LN,
were made to train: the first steps are too small to push the stack into the collapse.

The dotted lines are numbers of the text itself. A guess that knows how frequent each character is
reaches the unigram entropy. A stack whose tokens point almost the same way (1 - cosine near 0, see
demos.token_collapse) comes out near it, for little is left to tell them apart by. A guess that also
sees the character before reaches the bigram entropy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tinyres as tr
from demos import command, plots, text
from demos.generate import sample
from demos.report import Figure, Finding, Part, Sample, Section, Table, told
from demos.training import Run, Setting, train_all

SETTINGS = {
    "pre": ("Pre-LN", Setting(placement="pre")),
    "post": ("Post-LN", Setting(placement="post")),
    "warm": ("Post-LN, warm-up", Setting(placement="post", warmup=100)),
}


def loss_picture(
    out: Path, name: str, runs: dict[str, Run], levels: list[tuple[str, float]], lowest: float
) -> plots.Picture:
    """Loss by step: the mean of the last 15 batches, and faintly each batch."""
    curves = [
        plots.Line(run.label, plots.running_mean(run.losses), key, faint=run.losses,
                   dash="--" if key == "warm" else "-", x=range(1, len(run.losses) + 1))
        for key, run in runs.items()
    ]  # fmt: skip
    highest = 1.45 * max(level for _, level in levels)
    return plots.lines(
        out, name, curves, title="Loss (nats) of each batch", words="Training loss by step",
        x_label="step", levels=levels, y_range=(lowest, highest),
    )  # fmt: skip


def findings(loss: dict[str, float], unigram: float, bigram: float) -> list[Finding]:
    """Conditions on the losses on text that was not seen."""
    return [
        Finding(
            "Pre-LN learns: its loss is below the bigram entropy",
            f"{loss['pre']:.3f} against {bigram:.3f}",
            loss["pre"] < bigram,
            "the first number below the second",
        ),
        Finding(
            "Post-LN sticks near the unigram entropy, and warm-up rescues it",
            f"{loss['post']:.3f} against {unigram:.3f}; {loss['warm']:.3f} with warm-up",
            loss["post"] > unigram - 0.2 and loss["warm"] < loss["post"] - 0.3,
            "at most 0.2 below the unigram entropy, and at least 0.3 better with warm-up",
        ),
    ]


def tokens_alike(run: Run, windows: int) -> float:
    """Cosine of two tokens of a window at the top of the stack."""
    tokens, targets = run.trainer.task.held_out()
    batch = tokens[:windows], targets[:windows]
    return float(tr.probe.token_cosine(run.trainer.model, batch)[-1])


def lesson(source: text.Text, out: Path, seed: int = 0, **changes: Any) -> Section:
    """Train, draw, write a sample and explain."""
    runs = train_all(SETTINGS, source, seed=seed, **changes)
    s = runs["pre"].trainer.setting
    unigram, bigram = source.unigram_entropy(s.context), source.bigram_entropy(s.context)
    loss = {name: run.result["val_loss"] for name, run in runs.items()}
    levels = [("unigram", unigram), ("bigram", bigram)]
    apart = {name: 1 - tokens_alike(run, 64) for name, run in runs.items()}
    rows = [
        (run.label, f"{loss[name]:.3f}", f"{run.result['val_accuracy']:.1%}", f"{apart[name]:.2g}")
        for name, run in runs.items()
    ]
    prompt = text.decode(source.symbols, source.val[: s.context])
    written = {
        name: sample(run.trainer.model, source.symbols, prompt, 300, temperature=0.8, rng=seed)
        for name, run in runs.items()
    }  # fmt: skip
    size = len(source.train) + len(source.val)
    parts: list[Part] = [
        told(__doc__, 0),
        Figure([loss_picture(out, "text-loss", runs, levels, 0.75 * bigram)],
               f"{s.blocks} blocks, learning rate {s.lr:g}, on {source.name} ({size:,} "
               "characters). Thick: the mean of the last 15 batches. Faint: each batch."),
        Table(("model", "loss on text it has not seen", "characters right", "1 - cosine"), rows,
              f"After {s.steps} steps, on {text.WINDOWS} windows of the last tenth of the text, "
              f"where the unigram entropy is {unigram:.3f} and the bigram entropy {bigram:.3f}. "
              "1 - cosine: of two tokens of a window, at the top of the stack."),
        Sample(written["pre"], f"The first {s.context} characters are the text's, the others the "
               f"Pre-LN model's, after {s.steps} batches (temperature 0.8)."),
        Sample(written["post"], "The same from Post-LN without warm-up."),
    ]  # fmt: skip
    records: list[dict[str, Any]] = [{"unigram entropy": unigram, "bigram entropy": bigram}]
    records += [record for run in runs.values() for record in run.records()]
    found = findings(loss, unigram, bigram)
    return Section("compare", "Training on real text", parts, found, records)


def main(argv: list[str] | None = None) -> int:
    known = command.options("compare", __doc__, seed=0, steps=300, text="")
    return command.run(
        known, argv, lambda a: lesson(text.load(a.text), a.out, a.seed, steps=a.steps)
    )


if __name__ == "__main__":
    raise SystemExit(main())
