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

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tinyres as tr
from demos import plots, text
from demos.report import Figure, Finding, Part, Section, finish, options, told
from demos.training import Setting, Trainer, make_task

BLOCKS, WIDTH = 40, 64
GAINS = (0.9, 1.1)
RULES: dict[str, Callable[[Any, tr.Tensor], tr.Tensor]] = {
    "F(x)": lambda F, x: F(x),
    "x + F(x)": lambda F, x: x + F(x),
    "x + F(norm(x))": lambda F, x: x + F(tr.layer_norm(x)),
}
STACKS = {"plain": "plain", "post": "Post-LN", "pre": "Pre-LN"}


def scalings(rule: str, gain: float, seed: int) -> dict[str, Any]:
    """Forty blocks whose F turns a vector at random and scales it by exactly `gain`."""
    rng = np.random.default_rng(seed)
    x = tr.Tensor(rng.standard_normal((8, WIDTH)), requires_grad=True)
    stream = [x]
    for _ in range(BLOCKS):
        turn, _ = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))
        stream.append(RULES[rule](lambda x, m=gain * turn: x @ m, stream[-1]))
    for value in stream:
        value.retain_grad()
    stream[-1].backward(rng.standard_normal(x.shape))
    signal = np.array([np.linalg.norm(value.data) for value in stream])
    gradient = np.array([np.linalg.norm(value.grad) for value in stream])
    return {
        "rule": rule, "gain": gain,
        "signal": signal / signal[0], "gradient": gradient / gradient[-1],
        "unchanged": bool(np.array_equal(x.grad, stream[-1].grad)),
    }  # fmt: skip


def real_stacks(source: text.Text, blocks: int, seed: int) -> list[dict[str, Any]]:
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


def findings(toys: list[dict[str, Any]], zero: dict[str, Any], real: list[Any]) -> list[Finding]:
    """Conditions on the numbers of `scalings` and `real_stacks`."""
    toy = {(t["rule"], t["gain"]): t for t in toys}
    low, high = (toy["F(x)", gain] for gain in GAINS)
    lowest = min(t["signal"].min() for t in toys if t["rule"] == "x + F(x)")
    summed, normed = (toy[rule, GAINS[0]]["signal"][-1] for rule in list(RULES)[1:])
    stack = {r["placement"]: r for r in real}
    kept = {p: r["gradient"][0] / r["gradient"][-1] for p, r in stack.items()}
    blocks = real[0]["blocks"]
    return [
        Finding(
            f"{BLOCKS} scalings by {GAINS[0]} or {GAINS[1]} destroy signal and gradient alike",
            f"of the signal {low['signal'][-1]:.3g} or {high['signal'][-1]:.3g} times is left, "
            f"of the gradient {low['gradient'][0]:.3g} or {high['gradient'][0]:.3g} times",
            all(
                np.allclose([t["signal"][-1], t["gradient"][0]], t["gain"] ** BLOCKS)
                for t in (low, high)
            ),
        ),
        Finding(
            "x + F(x) keeps both alive, but it grows; with a norm in the branch only a little",
            f"F = 0 returns the gradient {'unchanged' if zero['unchanged'] else 'CHANGED'}; "
            f"F = {GAINS[0]} turns ends at {summed:.3g} times, with norm at {normed:.3g} times",
            bool(zero["unchanged"] and lowest >= 1 and normed < 0.01 * summed),
        ),
        Finding(
            f"In {blocks} real blocks the gradient reaches the bottom only with the addition",
            f"bottom / top: plain {kept['plain']:.1e}, Post-LN {kept['post']:.2g}, "
            f"Pre-LN {kept['pre']:.2g}",
            bool(kept["plain"] < 1e-3 and min(kept["post"], kept["pre"]) > 0.1),
        ),
    ]


def toy_pictures(toys: list[dict[str, Any]], out: Path) -> list[plots.Picture]:
    """One picture a rule, all with the same axis."""
    pictures = []
    for number, rule in enumerate(RULES, 1):
        curves = []
        for t in (t for t in toys if t["rule"] == rule):
            colour = "warm" if t["gain"] < 1 else "post"
            curves.append(plots.Line(f"F scales by {t['gain']}", t["signal"], colour))
            curves.append(plots.Line("", t["gradient"], colour, dash=":"))
        words = f"Signal and gradient in {BLOCKS} blocks that compute {rule}, on a log scale"
        pictures.append(plots.lines(
            out, f"scalings-{number}", curves, title=f"{rule}: size, relative to where it starts",
            words=words, x_label="block", log=True, y_range=(3e-3, 1e7),
        ))  # fmt: skip
    return pictures


def real_pictures(real: list[dict[str, Any]], out: Path) -> list[plots.Picture]:
    """The stream on the way up, and its gradient on the way back."""
    titles = {"rms": "Forward: RMS of the stream", "gradient": "Back: gradient norm of the stream"}
    return [
        plots.lines(
            out, f"stream-{what}",
            [plots.Line(STACKS[r["placement"]], r[what], r["placement"],
                        dash=":" if r["placement"] == "plain" else "-") for r in real],
            title=title, words=f"{title} at each block of three stacks, on a log scale",
            x_label="block", log=True,
        )
        for what, title in titles.items()
    ]  # fmt: skip


def lesson(source: text.Text, out: Path, seed: int = 0, blocks: int = 24) -> Section:
    """Measure, draw and explain."""
    toys = [scalings(rule, gain, seed) for rule in RULES for gain in GAINS]
    zero = scalings("x + F(x)", 0.0, seed)
    real = real_stacks(source, blocks, seed)
    parts: list[Part] = [
        told(__doc__, 0, 2),
        Figure(toy_pictures(toys, out), "Solid: the signal, from block 0 up. Dotted: the gradient, "
               f"on its way back from block {BLOCKS} to block 0."),
        told(__doc__, 2),
        Figure(real_pictures(real, out), f"{blocks} blocks, on one batch of text."),
    ]  # fmt: skip
    records = [*toys, zero, *real]
    title = "Why depth needs the addition"
    return Section("vanishing_signal", title, parts, findings(toys, zero, real), records)


def main(argv: list[str] | None = None) -> int:
    args = options("vanishing_signal", __doc__, seed=0, blocks=24, text="").parse_args(argv)
    return finish(lesson(text.load(args.text or None), args.out, args.seed, args.blocks), args.out)


if __name__ == "__main__":
    raise SystemExit(main())
