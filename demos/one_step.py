"""What one training step is made of: NumPy calls, what Python does between them, and memory.

A step of a deep, narrow stack is thousands of short NumPy calls. Between them Python makes tensors,
nodes and pullbacks, and walks back over them, which takes about as long as the calls. But it is the
same in every step. `tr.Replay` writes the calls of one step down and then only makes them again, on
the same arrays: the same numbers to the last bit, without a tensor. This is what a framework gains
that compiles or captures a step, and it needs nothing but a loop over a list.

The list also says when each array is written first and read last. So arrays that are not needed at
the same time can lie in the same memory. In the pictures time goes to the right, one call after the
other, and each array is a bar from its first call to its last. On the way up, what the gradient
will need piles up block by block. On the way back it is used up, and the gradients of the weights
are left. That hill is why training needs so much more memory than a forward pass, whose
arrays are the short bars. A checkpoint keeps only what goes into a part of the stack, and computes
the rest once more when the gradient comes by: more calls, and a much lower hill.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import path
from matplotlib.patches import PathPatch

import tinyres as tr
from demos import command, plots
from demos.pictures import ink, panels
from demos.report import Figure, Finding, Picture, Section, Table, told
from tinyres.replay import Program
from tinyres.reuse import Place

DEPTHS = (4, 16, 64)
SOON = 30  # calls
KEPT = f"kept for over {SOON} calls"
COLOURS = {KEPT: "pre", "gradient of a weight": "warm", "used soon": "plain"}


def model_of(blocks: int, seed: int, d_model: int = 16) -> tr.nn.TransformerLM:
    """A narrow Pre-LN stack."""
    return tr.nn.TransformerLM(96, d_model, 2, blocks, context=16, rng=seed)


def batch_of(seed: int, rows: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Random tokens, and those that follow."""
    text = np.random.default_rng(seed).integers(0, 96, (rows, 17))
    return text[:, :-1], text[:, 1:]


def both_ways(blocks: int, steps: int, seed: int) -> dict[str, Any]:
    """Train twice, computed and played back, in turns: milliseconds a step, and every loss."""
    times: dict[str, list[float]] = {"computed": [], "replayed": []}
    losses: dict[str, list[float]] = {"computed": [], "replayed": []}
    ways: dict[str, Callable[..., float]] = {}
    optimizers = {}
    for way in times:
        model = model_of(blocks, seed)
        optimizers[way] = tr.optim.Adam(model.parameters(), lr=1e-3)
        replay = tr.Replay(model.loss, model.parameters())
        ways[way] = replay.backward if way == "replayed" else computed(model)
    for step in range(steps):
        for way, backward in ways.items():
            start = time.perf_counter()
            optimizers[way].zero_grad()
            losses[way].append(backward(*batch_of(step)))
            optimizers[way].step()
            times[way].append(1e3 * (time.perf_counter() - start))
    names = Counter(replay.program.names)
    medians = {way: statistics.median(seen[3:] or seen) for way, seen in times.items()}
    first = times["replayed"][0]  # the step that is recorded
    return {"blocks": blocks, **medians, "recording": first, "losses": losses, "calls": names}


def computed(model: tr.nn.TransformerLM) -> Callable[..., float]:
    """A step as ever."""

    def backward(*batch: np.ndarray) -> float:
        loss = model.loss(*batch)
        loss.backward()
        return loss.item()

    return backward


def recorded(blocks: int, seed: int, group: int = 0) -> Program:
    """One step, written down; with a checkpoint round every `group` blocks if that is not 0."""
    model = model_of(blocks, seed, d_model=32)
    parts = [
        tr.nn.Sequential(*model.stack.blocks[i : i + group])
        for i in range(0, blocks if group else 0, group or 1)
    ]

    def loss(tokens: np.ndarray, targets: np.ndarray) -> tr.Tensor:
        x = model.embed(tokens)
        for part in parts:
            x = tr.checkpoint(part, x)
        return tr.cross_entropy(model.head(model.stack.final_norm(x)), targets)

    replay = tr.Replay(loss if group else model.loss, model.parameters())
    replay.backward(*batch_of(0, 16))
    return replay.program


def kind_of(place: Place, program: Program) -> str:
    """What an array is for, to tell from when it is needed."""
    if place.last == len(program.calls):
        return "gradient of a weight"
    return KEPT if place.last - place.first > SOON else "used soon"


def mib(program: Program) -> float:
    """Memory of all arrays."""
    return max(place.offset + place.size for place in program.places) / 2**20


def bars(places: list[Place]) -> path.Path:
    """A rectangle for each array, all of them in one path."""
    corners = [
        [(p.first, low), (p.last + 1, low), (p.last + 1, high), (p.first, high), (p.first, low)]
        for p in places
        for low, high in [(p.offset / 2**20, (p.offset + p.size) / 2**20)]
    ]
    one = [path.Path.MOVETO, *3 * [path.Path.LINETO], path.Path.CLOSEPOLY]
    return path.Path(np.reshape(corners, (-1, 2)), one * len(places))


def picture(programs: dict[str, Program], out: Path) -> Picture:
    """Each array as a bar: from its first call to its last, and where it lies."""
    title = "The memory of one training step"
    words = "A bar is an array: from the NumPy call that writes it to the last one that reads it."
    with matplotlib.rc_context(plots.STYLE):
        figure, axes = panels(title, words, (4.6, 4.6), 4.4)
        top = 1.02 * max(map(mib, programs.values()))
        for ax, (name, program) in zip(axes, programs.items()):
            for kind, colour in COLOURS.items():
                some = [p for p in program.places if kind_of(p, program) == kind]
                patch = PathPatch(bars(some), facecolor=ink(colour), linewidth=0, label=kind)
                ax.add_patch(patch)
            ax.axvline(program.turn, color=ink("ink"), linewidth=0.8, linestyle=(0, (3, 2)))
            ax.annotate("the loss", (program.turn, top), ha="right", va="top", xytext=(-4, -2),
                        textcoords="offset points", color=ink("ink"))  # fmt: skip
            ax.set_xlim(0, len(program.calls) + 1)
            ax.set_ylim(0, top)
            ax.set_title(f"{name}: {mib(program):.1f} MiB", loc="left", color=ink("muted"))
            ax.set_xlabel("NumPy calls, in their order")
        axes[0].set_ylabel("MiB")
        axes[-1].legend(loc="upper right", frameon=False, labelcolor=ink("muted"))
        sizes = ", ".join(f"{name}: {mib(p):.1f} MiB" for name, p in programs.items())
        return plots.saved(figure, out, "memory", title=title, words=f"{words} {sizes}.")


def findings(runs: list[dict[str, Any]], programs: dict[str, Program]) -> list[Finding]:
    """Conditions on the losses, the times and the memory."""
    deepest = runs[-1]
    same = all(run["losses"]["computed"] == run["losses"]["replayed"] for run in runs)
    ratio = deepest["replayed"] / deepest["computed"]
    plain, saved = (mib(p) for p in programs.values())
    steps = len(deepest["losses"]["computed"])
    return [
        Finding(
            f"Played back, {steps} steps of Adam give the losses that they give when computed",
            f"{sum(len(run['losses']['computed']) for run in runs)} losses compared, bit by bit",
            same,
            "all of them equal",
        ),
        Finding(
            f"Without Python in between, {deepest['blocks']} narrow blocks take less time",
            f"{deepest['computed']:.1f} ms a step computed, {deepest['replayed']:.1f} replayed",
            ratio < 0.85,
            "less than 0.85 of it",
        ),
        Finding(
            "With checkpoints a step needs less memory and more calls",
            f"{saved:.1f} instead of {plain:.1f} MiB, "
            + " instead of ".join(f"{len(p.calls):,}" for p in reversed(programs.values()))
            + " calls",
            saved < 0.6 * plain,
            "less than 0.6 of the memory",
        ),
    ]


def lesson(args: argparse.Namespace) -> Section:
    """Measure, draw and explain."""
    runs = [both_ways(blocks, args.steps, args.seed) for blocks in DEPTHS]
    group = math.isqrt(args.blocks)
    programs = {
        f"{args.blocks} blocks": recorded(args.blocks, args.seed),
        f"a checkpoint round every {group}": recorded(args.blocks, args.seed, group),
    }
    rows = [
        (str(run["blocks"]), f"{run['calls'].total():,}", f"{run['computed']:.2f}",
         f"{run['replayed']:.2f}", f"{run['replayed'] / run['computed']:.2f}",
         f"{run['recording']:.0f}")
        for run in runs
    ]  # fmt: skip
    most = ", ".join(f"{name} {count:,}" for name, count in runs[-1]["calls"].most_common(7))
    head = ("blocks of width 16", "NumPy calls", "ms, computed", "ms, replayed", "ratio",
            "ms, the step that is recorded")  # fmt: skip
    parts = [
        told(__doc__, 0, 1),
        Table(head, rows, f"The most frequent calls of {DEPTHS[-1]} blocks: {most}."),
        told(__doc__, 1),
        Figure([picture(programs, args.out)], "Width 32, 16 sequences of 16 tokens."),
    ]
    records = [{**run, "calls": dict(run["calls"])} for run in runs]
    return Section("one_step", "What one step is made of", parts, findings(runs, programs), records)


def main(argv: list[str] | None = None) -> int:
    return command.run(
        command.options("one_step", __doc__, seed=0, blocks=12, steps=25), argv, lesson
    )


if __name__ == "__main__":
    raise SystemExit(main())
