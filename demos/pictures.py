"""Three pictures: where the gradient travels, how tokens collapse, and which rules train.

    python -m demos.papers pictures --out demos/gallery

They are drawn from the numbers of the claims (`demos/claims/`), measured in the same run. The third
has a second part, the copy task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

import tinyres as tr
from demos import laws, plots
from demos.claims import CLAIMS, inside, training
from demos.claims.claim import Numbers
from demos.claims.lab import Job, Lab, guesses

CONTRAST = {rule: training.seeds(training.BASE.but(placement=rule), 3) for rule in tr.nn.PLACEMENTS}
NAMES = {"post": "Post-LN", "pre": "Pre-LN", "deepnorm": "DeepNorm", "residual": "no norm",
         "post warm": "with warm-up"}  # fmt: skip
COLOURS = {"post": "post", "pre": "pre", "deepnorm": "other", "residual": "plain",
           "post warm": "warm"}  # fmt: skip


def jobs() -> list[Job]:
    """The trainings that the pictures need."""
    return training.jobs_of(CONTRAST, training.COPYING) + list(inside.MECHANISM.values())


def all_three(lab: Lab, known: Mapping[str, Numbers], out: Path) -> list[plots.Picture]:
    """Draw, with the numbers of the claims that are known, and measure the others."""

    def numbers(claim_id: str) -> Numbers:
        return known[claim_id] if claim_id in known else CLAIMS[claim_id].measure(lab)

    copied = training.runs_of(lab, training.COPYING)
    return [
        gradient_travel(numbers("C5"), out),
        token_collapse(numbers("C17"), numbers("C14"), out),
        training_contrast(lab, out),
        training.copying_picture(copied, out, "copying"),
    ]


def panels(
    title: str, subtitle: str, widths: Sequence[float], height: float, gap: float = 0.9
) -> tuple[Figure, list[Axes]]:
    """A figure with a head and axes side by side, in the style of the plots; all in inches."""
    figure = Figure(figsize=(sum(widths) + gap * len(widths), height))
    total, start = figure.get_figwidth(), 0.65
    figure.text(start / total, 1 - 0.3 / height, title, fontsize=13, color=ink("ink"))
    figure.text(start / total, 1 - 0.53 / height, subtitle, color=ink("muted"))
    axes = []
    for width in widths:
        box = (start / total, 0.55 / height, width / total, 1 - 1.5 / height)
        axes.append(figure.add_axes(box))
        start += width + gap
    for ax in axes:
        ax.grid(axis="y")
        ax.set_axisbelow(True)
    return figure, axes


def ink(colour: str) -> str:
    """A colour of the plots on a light page; the page makes it the dark one where it has to."""
    return plots.COLOURS[colour][0]


# ---------------------------------------------------------------- 1


def gradient_travel(n: Numbers, out: Path) -> plots.Picture:
    """How many branches the gradient crossed on its way down, and what came by skips alone."""
    title, blocks = "Where does the gradient travel?", n["blocks"]
    subtitle = f"{blocks} blocks before training. Lines: the law. Marks: measured."
    with matplotlib.rc_context(plots.STYLE):
        figure, (ways, skips) = panels(title, subtitle, (4.6, 2.2), 3.9, gap=1.0)
        x = np.arange(18)
        for place in ("post", "residual", "pre"):
            colour = ink(COLOURS[place])
            law, seen = n[place]["law"][x], n[place]["lengths"][x]
            look = {"marker": "s", "markersize": 7, "markerfacecolor": "none"}
            if place != "residual":
                ways.fill_between(x, law, color=colour, alpha=0.13, linewidth=0)
                ways.plot(x, law, color=colour)
                look = {"marker": "o", "markersize": 4}
            ways.plot(x, seen, linestyle="", color=colour, **look)
        for place, at, height in (("pre", 3.2, 0.245), ("post", 9.5, 0.16)):
            ways.annotate(f"{NAMES[place]}, {n[place]['mean length']:.1f} on average",
                          (at, height), color=ink(place))  # fmt: skip
        ways.annotate("no norm (squares), same law", (9.5, 0.141), color=ink("plain"))
        ways.set_xticks(range(0, 18, 3))
        ways.set_yticks([0, 0.1, 0.2, 0.3], ["0", "10 %", "20 %", "30 %"])
        ways.set_ylim(0, 0.3)
        ways.set_xlabel("branches crossed on the way down")
        ways.set_title("share of the gradient's power", loc="left", fontsize=9.5,
                       color=ink("muted"))  # fmt: skip
        _skip_panel(skips, n)
        share = {place: n[place]["lengths"][0] for place in ("pre", "post")}
        words = (
            f"Share of the gradient's power by the number of branches that it crossed in {blocks} "
            f"blocks. By the skips alone came {100 * share['pre']:.1f} % in Pre-LN and "
            f"{100 * share['post']:.1g} % in Post-LN."
        )
        return plots.saved(figure, out, "gradient-travel", title=title, words=words)


def _skip_panel(ax: Axes, n: Numbers) -> None:
    for i, place in enumerate(("pre", "post", "residual")):
        colour, seen = ink(COLOURS[place]), n[place]["lengths"][0]
        law = laws.skip_share(place, n["blocks"])
        ax.plot([i - 0.25, i + 0.25], [law, law], color=colour)
        ax.plot([i], [seen], marker="o", color=colour, markersize=5)
        label = f"{100 * seen:.1f} %" if seen > 0.01 else f"{100 * seen:.1g} %"
        ax.annotate(label, (i, seen), xytext=(0, 9), textcoords="offset points", ha="center",
                    color=colour)  # fmt: skip
    ax.set_yscale("log")
    ax.set_ylim(1e-5, 1)
    ax.set_xlim(-0.6, 2.6)
    ax.set_xticks(range(3), ["Pre-LN", "Post-LN", "no norm"])
    ticks = 10.0 ** np.arange(-5, 1)
    ax.set_yticks(ticks, [f"{100 * tick:g} %" for tick in ticks])
    ax.minorticks_off()
    ax.set_title("came by the skips alone", fontsize=9.5, loc="left", color=ink("muted"))


# ---------------------------------------------------------------- 2


def token_collapse(depths: Numbers, course: Numbers, out: Path, blocks: int = 24) -> plots.Picture:
    """1 - cosine of two tokens: by block before training, and at the top by step."""
    title = "Token collapse: how different are two tokens of a sequence?"
    subtitle = (
        "1 - cosine, the mean over pairs. At 1 they have nothing in common, at 0 all are one."
    )
    runs = ("pre", "post", "deepnorm", "post warm")
    steps = course["post"]["step"]
    with matplotlib.rc_context(plots.STYLE):
        figure, (by_block, by_step) = panels(title, subtitle, (3.3, 3.3), 3.9, gap=1.7)
        for place in runs[:3]:
            by_block.plot(1 - depths[place, blocks], color=ink(COLOURS[place]))
        for run in runs:
            by_step.plot(1 + steps, 1 - course[run]["cosine"], color=ink(COLOURS[run]), marker="o",
                         markersize=3, linestyle="--" if run == "post warm" else "-")  # fmt: skip
        by_block.set_title(f"before training, {blocks} blocks", loc="left", fontsize=9.5,
                           color=ink("muted"))  # fmt: skip
        by_step.set_title("in training, at the top of 8 blocks", loc="left", fontsize=9.5,
                          color=ink("muted"))  # fmt: skip
        by_block.set_xlabel("block")
        by_step.set_xlabel("step")
        by_step.set_xscale("log")
        shown = [step for step in steps if step in (0, 1, 2, 5, 10, 20, 60, steps[-1])]
        by_step.set_xticks([1 + step for step in shown], [f"{step:g}" for step in shown])
        for ax in (by_block, by_step):
            ax.set_yscale("log")
            ax.minorticks_off()
            ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: plots.power_of_ten(y)))
        plots.name_ends(by_block, [(NAMES[p], 1 - depths[p, blocks][-1], COLOURS[p])
                                   for p in runs[:3]])  # fmt: skip
        plots.name_ends(by_step, [(NAMES[r], 1 - course[r]["cosine"][-1], COLOURS[r])
                                  for r in runs])  # fmt: skip
        words = (
            "Before training Post-LN's tokens become the same with depth. In training the first "
            "steps make it worse and Post-LN freezes there; Pre-LN and DeepNorm recover."
        )
        return plots.saved(figure, out, "token-collapse", title=title, words=words)


# ---------------------------------------------------------------- 3


def training_contrast(lab: Lab, out: Path) -> plots.Picture:
    """The final loss of every placement, all trained in the same way."""
    title = "Twelve blocks, one learning rate, no warm-up: which rules train?"
    setting = CONTRAST["pre"][0].setting
    subtitle = (
        f"Identical rate for all ({setting.lr:g}), not tuned: this shows what survives it, not "
        "which rule is best."
    )
    guessed = np.array([guesses(job.setting) for job in CONTRAST["pre"]])  # the same for all rules
    over = {rule: np.array(lab.finals(table)) - guessed[:, 0] for rule, table in CONTRAST.items()}
    order = sorted(over, key=lambda rule: float(np.median(over[rule])), reverse=True)
    unigram, bigram = guessed.mean(0)
    levels = ((0.0, f"unigram {unigram:.2f}"), (bigram - unigram, f"bigram {bigram:.2f}"))
    with matplotlib.rc_context(plots.STYLE):
        height = 1.75 + 0.2 * len(order)
        figure = Figure(figsize=(7.2, height))
        ax = figure.add_axes((0.235, 0.75 / height, 0.725, 1 - 1.7 / height))
        figure.text(0.03, 1 - 0.32 / height, title, fontsize=13, color=ink("ink"))
        figure.text(0.03, 1 - 0.56 / height, subtitle, color=ink("muted"))
        for row, rule in enumerate(order):
            _dots(ax, row, over[rule], ink(_colour(rule, over[rule])))
        ax.set_yticks(range(len(order)), order)
        for label, rule in zip(ax.get_yticklabels(), order):
            if rule in COLOURS:
                label.set_color(ink(COLOURS[rule]))
        for level, label in levels:
            ax.axvline(level, color=ink("ink"), linewidth=1, linestyle=(0, (2, 2)), zorder=1)
            ax.annotate(label, (level, len(order) - 0.3), ha="center", va="bottom", fontsize=8.5,
                        color=ink("ink"), annotation_clip=False)  # fmt: skip
        ax.grid(axis="x")
        ax.set_axisbelow(True)
        ax.set_xlim(right=WORST + 0.06)
        ax.set_ylim(-0.7, len(order) - 0.4)
        ax.set_xlabel(f"loss of the last 20 of {setting.steps} steps in nats, less that of the "
                      "unigram guess\non the same batches; a dot a seed")  # fmt: skip
        stuck = [rule for rule in order if _is_stuck(over[rule])]
        words = f"Final loss by placement, lowest at the top. Stuck or worse: {', '.join(stuck)}."
        return plots.saved(figure, out, "training-contrast", title=title, words=words)


WORST = 0.3  # what is worse stands there, with its value


def _dots(ax: Axes, row: int, over: Any, colour: str) -> None:
    inside = np.minimum(over, WORST)
    ax.plot([inside.min(), inside.max()], [row, row], color=colour, linewidth=1)
    if _is_stuck(over) and inside.max() < WORST:
        ax.annotate("stuck", (inside.max(), row), xytext=(8, 0), textcoords="offset points",
                    va="center", fontsize=8, color=colour)  # fmt: skip
    for seen, at in zip(over, inside):
        ax.plot([at], [row], color=colour, marker="o" if seen < WORST else ">", markersize=4.5)
    if (beyond := over[over >= WORST]).size:
        finite = np.isfinite(over).all()
        values = f"+{beyond.min():.1f} to +{beyond.max():.1f}" if finite else "diverged"
        ax.annotate(values, (WORST, row), xytext=(-8, 0), textcoords="offset points", ha="right",
                    va="center", fontsize=8, color=colour)  # fmt: skip


def _is_stuck(over: Any) -> bool:
    return bool(np.median(over) > -training.STUCK)


def _colour(rule: str, over: Any) -> str:
    if rule in COLOURS:
        return COLOURS[rule]
    return "plain" if _is_stuck(over) else "warm"
