"""C5, C8, C21, C22: stacks of feed-forward branches, where everything can be calculated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import tinyres as tr
from demos import laws, plots, toys
from demos.claims.claim import Claim, Near, Numbers
from demos.claims.lab import Lab
from demos.claims.xiong import law_and_dots

PLACES = {"post": "Post-LN", "pre": "Pre-LN", "residual": "no norm"}
COLOURS = {"post": "post", "pre": "pre", "residual": "plain"}

# ---------------------------------------------------------------- C5


def journey(lab: Lab, d: int = 256, blocks: int = 24, seeds: int = 16, tokens: int = 16) -> Numbers:
    """Powers of stream and gradient by depth, and the gradient's parts by path length."""
    n: Numbers = {"blocks": blocks}
    for place in PLACES:
        looks, parts = [], []
        for seed in range(seeds):
            toy = toys.feed_forward_stack(place, blocks, d, seed=seed)
            x = toys.gaussian((tokens, 1, d), seed)
            looks.append(toys.look(toy, x, seed))
            parts.append(toys.by_path_length(toy, x, seed))
        s, q = np.mean(looks, axis=0)
        n[place] = {
            "conserved": q * s / (q[-1] * s[-1]),
            "gradient": q / q[-1],
            "lengths": (shares := np.mean(parts, axis=0) / np.sum(np.mean(parts, axis=0))),
            "mean length": float(shares @ np.arange(blocks + 1)),
            "law": laws.path_lengths(place, blocks),
        }
    return n


def draw_journey(n: Numbers, out: Path) -> list[plots.Picture]:
    return [draw_path_lengths(n, out, "C5-paths"), draw_conserved(n, out)]


def draw_path_lengths(n: Numbers, out: Path, name: str) -> plots.Picture:
    """Where does the gradient travel? Post-LN and no norm share a law."""
    most = int(np.ceil(n["blocks"] * 0.7))
    x = np.arange(most + 1)
    curves = [
        plots.Line("Post-LN, no norm", n["post"]["law"][x], "post"),
        plots.Line("Pre-LN", n["pre"]["law"][x], "pre"),
    ]
    marks = {"post": "o", "pre": "o", "residual": "s"}
    for place in PLACES:
        curves.append(
            plots.Line("", n[place]["lengths"][x], COLOURS[place], dash="", marker=marks[place])
        )
    share = {place: n[place]["lengths"][0] for place in PLACES}
    words = (
        f"Share of the gradient's power that crossed k branches on its way down {n['blocks']} "
        f"blocks. By the skips alone came {share['pre']:.1%} in Pre-LN, {share['post']:.2g} of it "
        f"in Post-LN and {share['residual']:.2g} without a norm."
    )
    return plots.lines(out, name, curves, title="Where does the gradient travel?", words=words,
                       x_label="branches crossed; lines the law, dots measured")  # fmt: skip


def draw_conserved(n: Numbers, out: Path) -> plots.Picture:
    depth = np.arange(n["blocks"] + 1)
    curves = [
        (PLACES[p], COLOURS[p], depth, n[p]["gradient"], laws.gradient_power(p, n["blocks"]))
        for p in PLACES
    ]
    return law_and_dots(out, "C5-gradient", curves, title="Power of the gradient by depth",
                        words="dLoss/dx by block relative to the top, dots measured, lines law L1",
                        x_label="block", log=True)  # fmt: skip


def _each(what: str) -> Any:
    return lambda n: [n[place][what] for place in PLACES]


def _of_law(law: Any) -> Any:
    return lambda n: [law(place, n["blocks"]) for place in PLACES]


C5 = Claim(
    "C5",
    "Where the gradient travels",
    "What the stream gains on its way up, the gradient gains on its way down; in Pre-LN most of "
    "it crosses few branches, in Post-LN a third of them",
    "laws L1 and L2; paths after Veit et al. 2016, Residual networks behave like ensembles",
    "24 feed-forward branches, d = 256; Post-LN, Pre-LN and no norm; 16 seeds",
    journey,
    [
        Near("q_l s_l relative to the top, Pre-LN and no norm",
             lambda n: [n[p]["conserved"] for p in ("pre", "residual")], 1.0, rel=0.1),
        Near("q_l relative to the top, Post-LN", lambda n: n["post"]["gradient"], 1.0, rel=0.1),
        Near("mean number of branches crossed (Post-LN, Pre-LN, no norm)", _each("mean length"),
             _of_law(lambda p, L: laws.path_lengths(p, L) @ np.arange(L + 1)), rel=0.02),
        Near("pure-skip share, Pre-LN", lambda n: n["pre"]["lengths"][0],
             lambda n: laws.skip_share("pre", n["blocks"]), rel=0.1),
        Near("pure-skip share, Post-LN", lambda n: n["post"]["lengths"][0],
             lambda n: laws.skip_share("post", n["blocks"]), rel=0.1),
        Near("share of each path length", _each("lengths"), _of_law(laws.path_lengths),
             within=0.01),
    ],
    draw_journey,
    note="Post-LN's gradient does not vanish here: the branches bring back what the norm takes.",
)  # fmt: skip


# ---------------------------------------------------------------- C8

RULES = ("post", "pre", "admin", "peri", "deepnorm", "keel")
DEPTHS = (1, 2, 4, 8, 16, 32, 64)


def shifts(lab: Lab, d: int = 256, depths: tuple[int, ...] = DEPTHS, seeds: int = 8) -> Numbers:
    n: Numbers = {"depths": depths}
    for rule in RULES:
        n[rule] = np.array([
            np.mean([toys.shift(rule, depth, d, s) for s in range(seeds if rule == "post" else 4)])
            for depth in depths
        ])  # fmt: skip
        n[f"law {rule}"] = np.array([laws.output_shift(rule, depth) for depth in depths])
    return n


def draw_shifts(n: Numbers, out: Path) -> list[plots.Picture]:
    names = {"post": ("Post-LN", "post"), "pre": ("Pre-LN", "pre"), "keel": ("Keel", "warm"),
             "deepnorm": ("DeepNorm", "other")}  # fmt: skip
    curves = [
        (label, colour, n["depths"], n[rule], n[f"law {rule}"])
        for rule, (label, colour) in names.items()
    ]
    return [law_and_dots(out, "C8", curves, title="Output shift when all weights get noise",
                         words="Shift by depth, dots measured, lines law L4",
                         x_label="sublayers", log=True, log_x=True)]  # fmt: skip


def _shallow(n: Numbers) -> Any:
    return np.array(n["depths"]) <= 16


def _shift_checks(rule: str, name: str) -> list[Near]:
    return [
        Near(f"{name}, up to 16 sublayers", lambda n: n[rule][_shallow(n)],
             lambda n: n[f"law {rule}"][_shallow(n)], rel=0.1),
        Near(f"{name}, beyond", lambda n: n[rule][~_shallow(n)],
             lambda n: n[f"law {rule}"][~_shallow(n)], rel=0.3),
    ]  # fmt: skip


C8 = Claim(
    "C8",
    "Noise on all weights",
    "Noise on all weights moves a Post-LN's output by O(N), that of Pre-LN and Admin by O(log N)",
    "Liu et al. 2020, Understanding the difficulty of training Transformers, sec. 4.2; law L4",
    "1 to 64 feed-forward branches, d = 256, noise of 1 % of each weight's deviation, 8 seeds",
    shifts,
    [
        *_shift_checks("post", "Post-LN"),
        *_shift_checks("pre", "Pre-LN"),
        Near("Admin against Pre-LN, measured", lambda n: n["admin"], lambda n: n["pre"], rel=0.1),
        *_shift_checks("peri", "Peri-LN"),
        *_shift_checks("deepnorm", "DeepNorm"),
        *_shift_checks("keel", "Keel"),
    ],
    draw_shifts,
    note="The paper shows 165 and 76 at 20, 2150 and 165 at 200 in units of its own.",
)


# ---------------------------------------------------------------- C21

SHATTER = {"plain": (4, 12), "residual": (4, 12), "pre": (4, 12, 24, 48)}


def shattering(lab: Lab, d: int = 256, seeds: int = 12) -> Numbers:
    return {
        place: {
            "depths": depths,
            "cosine": np.array([
                np.mean([toys.gradient_cosine(place, depth, d, seed) for seed in range(seeds)])
                for depth in depths
            ]),
            "law": np.array([laws.gradient_cosine(place, depth) for depth in depths]),
        }
        for place, depths in SHATTER.items()
    }  # fmt: skip


def draw_shattering(n: Numbers, out: Path) -> list[plots.Picture]:
    curves = []
    names = {
        "pre": ("Pre-LN", "pre"),
        "residual": ("residual", "other"),
        "plain": ("none", "plain"),
    }
    for place, (label, colour) in names.items():
        x = np.arange(1, 49)
        curves.append(plots.Line(label, [laws.gradient_cosine(place, L) for L in x], colour, x=x))
        curves.append(plots.Line("", n[place]["cosine"], colour, x=n[place]["depths"],
                                 dash="", marker="o"))  # fmt: skip
    return [plots.lines(out, "C21", curves, title="Cosine of the gradients of two inputs",
                        words="Dots measured, lines the law", x_label="blocks")]  # fmt: skip


C21 = Claim(
    "C21",
    "Shattered gradients",
    "Gradients of two unrelated inputs lose their likeness as 2^-L in a plain network, as (3/4)^L "
    "with skips, and only as about 1/sqrt(L) with normalised branches",
    "Balduzzi et al. 2017, The shattered gradients problem; law: gradient_cosine()",
    "ReLU branches of gain 1, d = 256, 16 inputs in pairs, 12 seeds",
    shattering,
    [
        Near(f"cosine, {name}", lambda n, p=place: n[p]["cosine"], lambda n, p=place: n[p]["law"],
             within=0.03)
        for place, name in {
            "plain": "no skip, 4 and 12 layers", "residual": "x + f(x), 4 and 12 blocks",
            "pre": "Pre-LN, 4 to 48 blocks",
        }.items()
    ],
    draw_shattering,
    note="The rates are those of inputs that stay unrelated. ReLU makes them more alike, which the "
    "law here follows: 4 plain layers leave 0.14, not 1/16.",
)  # fmt: skip


# ---------------------------------------------------------------- C22

SHORTCUTS = ((0.9, 48), (0.5, 12), (1.1, 48))


def shortcuts(lab: Lab, d: int = 16) -> Numbers:
    kept = []
    for factor, blocks in SHORTCUTS:
        rule = type("Scaled", (tr.nn.PreLN,), {
            "forward": lambda self, x, by=factor: by * x + self.sublayer(self.norm(x)),
        })  # fmt: skip
        toy = toys.Toy(rule, d, [toys.Nothing] * blocks)
        x = toys.gaussian((1, 2, d), 0)
        toy.stream(x)[-1].sum().backward()
        kept.append(float(np.mean(x.grad)))
    return {"kept": np.array(kept), "law": np.array([f**blocks for f, blocks in SHORTCUTS])}


def draw_shortcuts(n: Numbers, out: Path) -> list[plots.Picture]:
    x = np.arange(49)
    curves = []
    for (factor, blocks), kept, colour in zip(SHORTCUTS, n["kept"], ("post", "plain", "pre")):
        curves.append(
            plots.Line(f"{factor:g}", factor ** x[: blocks + 1], colour, x=x[: blocks + 1])
        )
        curves.append(plots.Line("", [kept], colour, x=[blocks], dash="", marker="o"))
    return [plots.lines(out, "C22", curves, title="What a scaled shortcut keeps of the gradient",
                        words="lambda^L as lines, measured at the end as dots", x_label="blocks",
                        log=True)]  # fmt: skip


C22 = Claim(
    "C22",
    "Scaled shortcuts",
    "A shortcut multiplied by lambda multiplies the gradient's skip path by lambda^L",
    "He et al. 2016, Identity mappings in deep residual networks, sec. 3",
    "x <- lambda x + f(norm(x)) with f = 0; lambda = 0.9, 0.5, 1.1 over 48, 12, 48 blocks",
    shortcuts,
    [Near("gradient at the bottom / top", lambda n: n["kept"], lambda n: n["law"], rel=1e-5)],
    draw_shortcuts,
)

CLAIMS = [C5, C8, C21, C22]
