"""Three pictures: where the gradient travels, how tokens collapse, and which rules train.

    python -m demos.papers pictures --out demos/gallery

They are drawn from the numbers of the claims (`demos/claims/`), measured in the same run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

import tinyres as tr
from demos import laws, plots
from demos.claims import feed_forward, inside, training, zoo
from demos.claims.lab import CHANCE, Job, Lab

CONTRAST = {rule: training.seeds(training.BASE.but(placement=rule), 3) for rule in tr.nn.PLACEMENTS}
COPYING = {
    rule: training.seeds(training.REVERSE.but(placement=rule), 3)
    for rule in ("post", "pre", "deepnorm")
}
NAMES = {"post": "Post-LN", "pre": "Pre-LN", "deepnorm": "DeepNorm", "residual": "no norm"}
COLOURS = {"post": "post", "pre": "pre", "deepnorm": "other", "residual": "plain"}


def jobs() -> list[Job]:
    """The trainings that the pictures need."""
    tables = [*CONTRAST.values(), *COPYING.values()]
    return [job for table in tables for job in table] + list(inside.MECHANISM.values())


def all_three(lab: Lab, out: Path) -> list[plots.Picture]:
    """Measure what is not measured yet, and draw."""
    return [
        gradient_travel(feed_forward.journey(lab), out),
        token_collapse(lab, out),
        training_contrast(lab, out),
        copying(lab, out),
    ]


def panels(widths: Sequence[float], height: float, gap: float = 0.9) -> tuple[Figure, list[Axes]]:
    """A figure with axes side by side, in the style of the plots; all in inches."""
    figure = Figure(figsize=(sum(widths) + gap * len(widths), height))
    total = figure.get_figwidth()
    axes, left = [], 0.65
    for width in widths:
        axes.append(
            figure.add_axes((left / total, 0.55 / height, width / total, 1 - 1.25 / height))
        )
        left += width + gap
    for ax in axes:
        ax.grid(axis="y")
        ax.set_axisbelow(True)
    return figure, axes


def ink(colour: str) -> str:
    """A colour of the plots on a light page; the page makes it the dark one where it has to."""
    return plots.COLOURS[colour][0]


# ---------------------------------------------------------------- 1


def gradient_travel(n: dict[str, Any], out: Path) -> plots.Picture:
    """How many branches the gradient crossed on its way down, and what came by skips alone."""
    title = "Where does the gradient travel?"
    blocks = n["blocks"]
    with matplotlib.rc_context(plots.STYLE):
        figure, (ways, skips) = panels((4.6, 2.3), 3.6)
        figure.text(0.07, 0.94, title, fontsize=13, color=ink("ink"))
        figure.text(0.07, 0.885, f"{blocks} blocks before training. Lines and ticks: the law. "
                    "Dots: measured.", color=ink("muted"))  # fmt: skip
        x = np.arange(18)
        for place in ("post", "residual", "pre"):
            colour = ink(COLOURS[place])
            law, seen = n[place]["law"][x], n[place]["lengths"][x]
            if place != "residual":
                ways.plot(x, law, color=colour)
            look = {"marker": "s", "markersize": 6.5, "markerfacecolor": "none"}
            look = look if place == "residual" else {"marker": "o", "markersize": 4}
            ways.plot(x, seen, linestyle="", color=colour, **look)
        ways.set_xticks(range(0, 18, 3))
        ways.annotate("Pre-LN", (3.2, 0.24), color=ink("pre"))
        ways.annotate("Post-LN", (9.6, 0.155), color=ink("post"))
        ways.annotate("and no norm", (9.6, 0.138), color=ink("plain"))
        ways.set_xlabel("branches crossed on the way down")
        ways.set_ylabel("share of the gradient's power")
        _skip_panel(skips, n)
        share = {place: n[place]["lengths"][0] for place in NAMES if place in n}
        words = (
            f"Share of the gradient's power by the number of branches that it crossed in {blocks} "
            f"blocks. By the skips alone came {share['pre']:.1%} in Pre-LN and "
            f"{share['post']:.1g} of all in Post-LN."
        )
        return plots.saved(figure, out, "gradient-travel", title=title, words=words)


def _skip_panel(ax: Axes, n: dict[str, Any]) -> None:
    for i, place in enumerate(("pre", "post", "residual")):
        colour, seen = ink(COLOURS[place]), n[place]["lengths"][0]
        law = laws.skip_share(place, n["blocks"])
        ax.plot([i - 0.25, i + 0.25], [law, law], color=colour)
        ax.plot([i], [seen], marker="o", color=colour, markersize=5)
        label = f"{100 * seen:.1f} %" if seen > 0.01 else f"{100 * seen:.2g} %"
        ax.annotate(label, (i, seen), xytext=(0, 9), textcoords="offset points", ha="center",
                    color=colour)  # fmt: skip
    ax.set_yscale("log")
    ax.set_ylim(1e-5, 1)
    ax.set_xlim(-0.6, 2.6)
    ax.set_xticks(range(3), ["Pre-LN", "Post-LN", "no norm"])
    ax.set_yticks([1, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5], ["1", "0.1", "0.01", "10⁻³", "10⁻⁴", "10⁻⁵"])
    ax.minorticks_off()
    ax.set_title("came by the skips alone", fontsize=9.5, loc="left", color=ink("muted"))


# ---------------------------------------------------------------- 2


def token_collapse(lab: Lab, out: Path, blocks: int = 24) -> plots.Picture:
    """1 - cosine of two tokens: by block before training, and at the top by step."""
    title = "Token collapse: how different are two tokens of a sequence?"
    course = inside.mechanism(lab)
    with matplotlib.rc_context(plots.STYLE):
        figure, (depth, steps) = panels((3.2, 3.2), 3.6, gap=1.6)
        figure.text(0.07, 0.94, title, fontsize=13, color=ink("ink"))
        figure.text(0.07, 0.885, "1 - cosine, averaged; 0 is all tokens the same.",
                    color=ink("muted"))  # fmt: skip
        for place in ("pre", "post", "deepnorm"):
            colour = ink(COLOURS[place])
            apart = 1 - zoo.observed("cosine", place, blocks)
            depth.plot(range(blocks + 1), apart, color=colour)
            _name(depth, blocks, apart[-1], NAMES[place], colour)
        for run in ("pre", "post", "deepnorm", "post warm"):
            colour = ink("warm") if run == "post warm" else ink(COLOURS[run])
            apart, step = 1 - course[run]["cosine"], 1 + course[run]["step"]
            steps.plot(step, apart, color=colour, marker="o", markersize=3,
                       linestyle="--" if run == "post warm" else "-")  # fmt: skip
            name = "with warm-up" if run == "post warm" else NAMES[run]
            # Pre-LN and DeepNorm end at nearly the same place.
            shift = {"deepnorm": 5, "pre": -5}.get(run, 0)
            _name(steps, step[-1], apart[-1], name, colour, shift)
        depth.set_xlabel(f"block, of {blocks}; before training")
        steps.set_xlabel("step of training, from 1; at the top of 8 blocks")
        steps.set_xscale("log")
        steps.set_xticks([1, 2, 5, 11, 41, 251], ["1", "2", "5", "11", "41", "251"])
        for ax in (depth, steps):
            ax.set_yscale("log")
            ax.minorticks_off()
            ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: plots.power_of_ten(y)))
        words = (
            "Before training Post-LN's tokens become the same with depth. In training the first "
            "steps bring all stacks there; Pre-LN and DeepNorm come out again."
        )
        return plots.saved(figure, out, "token-collapse", title=title, words=words)


def _name(ax: Axes, x: float, y: float, label: str, colour: str, shift: float = 0) -> None:
    ax.annotate(label, (x, y), xytext=(7, shift), textcoords="offset points", va="center",
                fontsize=8.5, color=colour, annotation_clip=False)  # fmt: skip


# ---------------------------------------------------------------- 3


def training_contrast(lab: Lab, out: Path) -> plots.Picture:
    """The final loss of every placement, all trained in the same way."""
    title = "Twelve blocks, one learning rate, no warm-up: which rules train?"
    finals = {rule: np.array(lab.finals(table)) for rule, table in CONTRAST.items()}
    order = sorted(finals, key=lambda rule: float(np.median(finals[rule])), reverse=True)
    levels = training.text_levels()
    unigram = levels[0][1]
    worst = unigram + 0.3
    with matplotlib.rc_context(plots.STYLE):
        height = 1.5 + 0.2 * len(order)
        figure = Figure(figsize=(7.2, height))
        ax = figure.add_axes((0.23, 0.55 / height, 0.73, 1 - 1.5 / height))
        figure.text(0.03, 1 - 0.32 / height, title, fontsize=13, color=ink("ink"))
        setting = CONTRAST["pre"][0].setting
        figure.text(0.03, 1 - 0.56 / height, f"Identical rate for all ({setting.lr:g}), not tuned: "
                    "this shows what survives it, not which rule is best.",
                    color=ink("muted"))  # fmt: skip
        for row, rule in enumerate(order):
            colour = ink(_colour(rule, finals[rule], unigram))
            inside = np.minimum(finals[rule], worst)
            ax.plot([inside.min(), inside.max()], [row, row], color=colour, linewidth=1)
            for seen, at in zip(finals[rule], inside):
                ax.plot([at], [row], color=colour, marker="o" if seen < worst else ">",
                        markersize=4.5)  # fmt: skip
        ax.set_yticks(range(len(order)), order)
        for label, level in levels:
            ax.axvline(level, color=ink("ink"), linewidth=1, linestyle=(0, (2, 2)))
            ax.annotate(label, (level, len(order) - 0.3), ha="center", va="bottom", fontsize=8.5,
                        color=ink("ink"), annotation_clip=False)  # fmt: skip
        ax.grid(axis="x")
        ax.set_axisbelow(True)
        ax.set_ylim(-0.7, len(order) - 0.4)
        ax.set_xlabel(f"loss of the last 20 of {setting.steps} steps, in nats; a dot a seed")
        stuck = [rule for rule in order if np.median(finals[rule]) > unigram - 0.15]
        words = f"Final loss by placement, the lowest at the top. Stuck: {', '.join(stuck)}."
        return plots.saved(figure, out, "training-contrast", title=title, words=words)


def _colour(rule: str, finals: Any, unigram: float) -> str:
    if rule in COLOURS:
        return COLOURS[rule]
    return "plain" if np.median(finals) > unigram - 0.15 else "warm"


def copying(lab: Lab, out: Path) -> plots.Picture:
    """The loss by step on reversing a random sequence."""
    curves = {
        NAMES[rule]: (COLOURS[rule], "-", [lab.result(job)["losses"] for job in table])
        for rule, table in COPYING.items()
    }
    return training.losses_picture(
        out, "reversing", curves, title="Saying 16 random symbols backwards, 12 blocks",
        words="Pre-LN and DeepNorm learn it to the last symbol; Post-LN keeps guessing",
        levels=[("chance", CHANCE)], y_range=(0, 4),
    )  # fmt: skip
