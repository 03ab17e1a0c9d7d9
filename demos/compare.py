"""The contrast in training: Pre-LN, Post-LN, and Post-LN with warm-up, all else equal.

Three models of six blocks learn to predict the next character of real text, with the same seed,
the same batches and the same learning rate. Two numbers of the text itself say what a loss is
worth: the unigram entropy is reached by knowing how frequent each character is, the bigram entropy
by also looking at the character before. A stack whose tokens have collapsed into one vector can do
no better than the first.

Warm-up starts with tiny learning rates, so that the first steps of Adam do not push the stack into
the collapse. It is how the first Transformers, which were Post-LN, were made to train at all.

The second task is to reverse a random sequence. There is nothing to guess from frequencies: each
token has to look at one certain other token. Here the contrast is all or nothing.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from demos import plots, text
from demos.generate import opening, sample
from demos.report import Figure, Finding, Sample, Section, Table, finish, options
from demos.training import Reverse, Run, Setting, make_task, train

ON_TEXT = {
    "pre": ("Pre-LN", Setting(placement="pre")),
    "post": ("Post-LN", Setting(placement="post")),
    "warm": ("Post-LN, warm-up", Setting(placement="post", warmup=100)),
}
ON_REVERSE = {
    name: (label, Setting(task="reverse", placement=name, blocks=12, d_ff=128))
    for name, label in {"pre": "Pre-LN", "post": "Post-LN"}.items()
}


def run_all(settings: dict[str, Any], source: text.Text | None, **changes: Any) -> dict[str, Run]:
    """Train each of the settings, with the same changes to all."""
    runs = {}
    for name, (label, setting) in settings.items():
        setting = setting.but(**changes)
        start = time.perf_counter()
        runs[name] = train(setting, make_task(setting, source), label)
        runs[name].result["seconds"] = time.perf_counter() - start
    return runs


def records(runs: dict[str, Run]) -> list[dict[str, Any]]:
    """Every step and every result as plain data."""
    out = []
    for run in runs.values():
        out += [{"run": run.label, **record} for record in run.history]
        out.append({"run": run.label, **run.result})
    return out


def loss_picture(
    out: Path,
    name: str,
    what: str,
    runs: dict[str, Run],
    levels: list[tuple[str, float]],
    lowest: float,
) -> plots.Picture:
    """Loss by step: the mean of the last 15 batches, and faintly each batch."""
    curves = [
        plots.Line(run.label, plots.running_mean(run.losses), key, faint=run.losses,
                   dash="--" if key == "warm" else "-", x=range(1, len(run.losses) + 1))
        for key, run in runs.items()
    ]  # fmt: skip
    top = max(level for _, level in levels) * 1.45
    return plots.lines(
        out, name, curves, title=f"Loss in nats, {what}", words=f"Training loss by step, {what}",
        x_label="step", levels=levels, y_range=(lowest, top),
    )  # fmt: skip


def on_text(source: text.Text, out: Path, seed: int = 0, **changes: Any) -> Section:
    """Language modelling on real text."""
    runs = run_all(ON_TEXT, source, seed=seed, **changes)
    setting = runs["pre"].trainer.setting
    unigram = source.unigram_entropy(setting.context)
    bigram = source.bigram_entropy(setting.context)
    loss = {name: run.result["val_loss"] for name, run in runs.items()}
    levels = [("unigram", unigram), ("bigram", bigram)]
    rows = [
        (run.label, f"{loss[name]:.3f}", f"{run.result['val_accuracy']:.1%}")
        for name, run in runs.items()
    ]  # fmt: skip
    prompt = opening(source.symbols)
    written = {
        name: sample(run.trainer.model, source.symbols, prompt, 300, temperature=0.8, rng=seed)
        for name, run in runs.items()
    }
    parts = [
        f"""
        Three models of {setting.blocks} blocks predict the next character of {source.name}
        ({len(source.train) + len(source.val):,} characters). Seed, batches and learning rate
        ({setting.lr:g}, Adam) are the same. What differs is where the norm stands, and in the third
        that the learning rate rises from 0 over the first {runs["warm"].trainer.setting.warmup}
        steps.

        The dotted lines are numbers of the text itself. A guess that knows how frequent each
        character is reaches the unigram entropy, {unigram:.2f} nats. One that also sees the
        character before reaches the bigram entropy, {bigram:.2f}.
        """,
        Figure([loss_picture(out, "text-loss", "predicting text", runs, levels, 0.75 * bigram)],
               "Thick: the mean of the last 15 batches. Faint: each batch."),
        Table(("model", "loss on text it has not seen", "characters right"), rows,
              f"After {setting.steps} steps, on {text.WINDOWS} windows of the last tenth."),
        Sample(written["pre"].strip("\n"), "Written by the Pre-LN model, one character at a time "
               f"(temperature 0.8, after {setting.steps} steps)."),
        Sample(written["post"].strip("\n"), "The same from Post-LN without warm-up."),
    ]  # fmt: skip
    found = [
        Finding("Pre-LN learns: its loss is below the bigram entropy",
                f"{loss['pre']:.3f} against {bigram:.3f}", loss["pre"] < bigram),
        Finding("Post-LN sticks near the unigram entropy, and warm-up rescues it",
                f"{loss['post']:.3f} against {unigram:.3f}; {loss['warm']:.3f} with warm-up",
                loss["post"] > unigram - 0.2 and loss["warm"] < loss["post"] - 0.3),
    ]  # fmt: skip
    entropies = {"unigram entropy": unigram, "bigram entropy": bigram, "text": source.name}
    title = "Training on real text"
    return Section("on_text", title, parts, found, [entropies, *records(runs)])


def on_reverse(out: Path, seed: int = 0, **changes: Any) -> Section:
    """Reversing a random sequence."""
    runs = run_all(ON_REVERSE, None, seed=seed, **changes)
    task = runs["pre"].trainer.task
    assert isinstance(task, Reverse)
    pre, post = runs["pre"].result, runs["post"].result
    setting = runs["pre"].trainer.setting
    curves = [
        plots.Line(run.label, plots.running_mean([r["accuracy"] for r in run.history]), name,
                   x=range(1, len(run.history) + 1))
        for name, run in runs.items()
    ]  # fmt: skip
    right = plots.lines(out, "reverse-accuracy", curves, title="Share of symbols right",
                        words="Accuracy on the reversed half by step", x_label="step",
                        levels=[("chance", 1 / task.symbols)], y_range=(0, 1.05))  # fmt: skip
    loss = loss_picture(out, "reverse-loss", "reversing", runs, [("chance", task.chance)], 0.0)
    parts = [
        f"""
        {setting.context // 2} random symbols, a separator, and then the same symbols backwards:
        the model has to predict the second half. No frequency helps here, since all
        {task.symbols} symbols are equally likely. Each token has to look at one certain other
        token, and a stack in which all tokens are the same can only guess. The models have
        {setting.blocks} blocks and get no warm-up.
        """,
        Figure([loss, right], f"Mean of the last 15 batches. Guessing gives a loss of ln "
               f"{task.symbols} = {task.chance:.3f} and {1 / task.symbols:.1%} of the symbols."),
    ]  # fmt: skip
    found = Finding(
        f"{setting.blocks} blocks learn to reverse a sequence with Pre-LN, and not with Post-LN",
        f"Pre-LN {pre['val_accuracy']:.1%} right (loss {pre['val_loss']:.4f}), "
        f"Post-LN {post['val_accuracy']:.1%} (loss {post['val_loss']:.3f}; chance "
        f"{1 / task.symbols:.1%}, {task.chance:.3f})",
        pre["val_accuracy"] > 0.99 and post["val_accuracy"] < 2 / task.symbols,
    )
    title = "All or nothing: reversing a sequence"
    return Section("on_reverse", title, parts, [found], records(runs))


def main(argv: list[str] | None = None) -> int:
    parser = options("compare", __doc__, seed=0, steps=300, text="")
    parser.add_argument("--task", choices=("chars", "reverse"), default="chars")
    args = parser.parse_args(argv)
    if args.task == "reverse":
        return finish(on_reverse(args.out, args.seed, steps=args.steps), args.out)
    source = text.load(args.text or None)
    return finish(on_text(source, args.out, args.seed, steps=args.steps), args.out)


if __name__ == "__main__":
    raise SystemExit(main())
