"""Why depth kills a signal, and what the residual addition changes.

Take 40 blocks, each of which turns its input at random and scales it by 0.9. The factors multiply,
and 0.9^40 of the signal is left at the top. On the way back the gradient passes the same factors,
so the blocks at the bottom, where it arrives last, learn next to nothing. With 1.1 both grow
instead. A plain stack works only where all factors are 1 to a hair.

Now add instead of replacing: `x + F(x)`. The derivative of that is 1 + F'(x), and however little F
does, the 1 stays. With F = 0 the gradient comes back unchanged to the last bit. But sums grow, and
where F is as large as its input, each block adds a larger piece than the last. That is why there
must be a norm, too. If F sees `norm(x)` instead of x, every piece has the same size and the growth
is mild.

The same in real Transformers before any training: `plain` has neither addition nor norm, Post-LN
computes `norm(x + F(x))`, Pre-LN `x + F(norm(x))`. In the plain stack signal and gradient are lost.
In both others they pass. Post-LN holds the stream, the vector that goes from block to block, at one
size (RMS: the root of the mean square of its numbers). In Pre-LN it is a sum that grows.

So far nothing speaks against Post-LN: its gradient arrives as well. The difference shows in what
arrives (demos.token_collapse), and in what training does to it (demos.gradient_flow).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tinyres as tr
from demos import command, plots, scalings, text
from demos.report import Figure, Finding, Part, Section, told
from demos.training import Setting, Trainer, make_task

STACKS = {"plain": "plain", "post": "Post-LN", "pre": "Pre-LN"}


def untrained(source: text.Text, blocks: int, seed: int) -> list[dict[str, Any]]:
    """RMS of the stream and norm of its gradient at each block, at initialisation."""
    measured = []
    for placement in STACKS:
        setting = Setting(placement=placement, blocks=blocks, seed=seed)
        trainer = Trainer(setting, make_task(setting, source))
        batch = trainer.task.batch(trainer.rng)
        measured.append({
            "placement": placement, "blocks": blocks,
            "rms": tr.probe.stream_rms(trainer.model, batch),
            "gradient": tr.probe.stream_gradient(trainer.model, batch),
        })  # fmt: skip
    return measured


def finding(stacks: list[dict[str, Any]]) -> Finding:
    """A condition on the gradients of the three stacks."""
    kept = {r["placement"]: r["gradient"][0] / r["gradient"][-1] for r in stacks}
    return Finding(
        f"In {stacks[0]['blocks']} real blocks the gradient reaches the bottom only with the "
        "addition",
        f"bottom / top: plain {kept['plain']:.1e}, Post-LN {kept['post']:.2g}, "
        f"Pre-LN {kept['pre']:.2g}",
        bool(kept["plain"] < 1e-3 and min(kept["post"], kept["pre"]) > 0.1),
        "plain below 1e-3, the others above 0.1",
    )


def pictures(stacks: list[dict[str, Any]], out: Path) -> list[plots.Picture]:
    """The stream on the way up, and its gradient on the way back."""
    titles = {"rms": "Forward: RMS of the stream", "gradient": "Back: gradient norm of the stream"}
    dashes = {"plain": ":", "post": "-", "pre": "-"}
    return [
        plots.by_block(
            out, f"stream-{what}",
            [plots.Line(name, s[what], s["placement"], dash=dashes[s["placement"]])
             for s, name in zip(stacks, STACKS.values())],
            title,
        )
        for what, title in titles.items()
    ]  # fmt: skip


def lesson(source: text.Text, out: Path, seed: int = 0, blocks: int = 24) -> Section:
    """Measure, draw and explain."""
    toys = [scalings.measure(rule, g, seed) for rule in scalings.RULES for g in scalings.GAINS]
    zero = scalings.measure("x + F(x)", 0.0, seed)
    stacks = untrained(source, blocks, seed)
    parts: list[Part] = [
        told(__doc__, 0, 2),
        Figure(scalings.pictures(toys, out), "Solid: the signal, from block 0 up. Dotted: the "
               f"gradient, from block {scalings.BLOCKS} down."),
        told(__doc__, 2),
        Figure(pictures(stacks, out), f"{blocks} blocks, on one batch of text."),
    ]  # fmt: skip
    findings = [*scalings.findings(toys, zero), finding(stacks)]
    title = "Why depth needs the addition"
    return Section("vanishing_signal", title, parts, findings, [*toys, zero, *stacks])


def main(argv: list[str] | None = None) -> int:
    known = command.options("vanishing_signal", __doc__, seed=0, blocks=24, text="")
    return command.run(known, argv, lambda a: lesson(text.load(a.text), a.out, a.seed, a.blocks))


if __name__ == "__main__":
    raise SystemExit(main())
