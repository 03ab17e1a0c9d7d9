"""C1 to C4: what Xiong et al. 2020 prove about a stack at initialisation, and what it comes to."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from demos import laws, plots, toys
from demos.claims.claim import Between, Claim, Near, Numbers
from demos.claims.lab import Lab

PAPER = "Xiong et al. 2020, On layer normalization in the Transformer architecture"
TOKENS, SEQUENCES = 16, 8
NAMES = {"post": "Post-LN", "pre": "Pre-LN"}
SETUP = "attention as a mean over 16 tokens, feed-forward d x d, Xavier, 8 sequences, random labels"


@functools.cache
def observed(place: str, blocks: int, d: int, seeds: int = 8) -> dict[str, np.ndarray]:
    """Mean over seeds of stream power, stream gradient and W2 gradient."""
    looks = []
    for seed in range(seeds):
        x = toys.gaussian((SEQUENCES, TOKENS, d), seed)
        looks.append(toys.look_at_xiong(toys.xiong_stack(place, blocks, d, seed), x, seed))
    return {key: np.mean([look[key] for look in looks], axis=0) for key in looks[0]}


def foretold(place: str, blocks: int, d: int) -> laws.Course:
    """The law's three curves, the last for this width and batch."""
    course = laws.theory(place, blocks, TOKENS)
    return course._replace(w2_gradient=course.w2_gradient * (d / SEQUENCES) ** 0.5)


def law_and_dots(
    out: Path, name: str, curves: list[tuple[str, str, Any, Any, Any]], **how: Any
) -> plots.Picture:
    """Each of (label, colour, x, measured, law): the law as a line, what was measured as dots."""
    drawn = []
    for label, colour, x, measured, law in curves:
        drawn.append(plots.Line(label, law, colour, x=x))
        drawn.append(plots.Line("", measured, colour, x=x, dash="", marker="o"))
    return plots.lines(out, name, drawn, **how)


# ---------------------------------------------------------------- C1


def lemmas(lab: Lab, d: int = 128, blocks: int = 12, seeds: int = 8) -> Numbers:
    normal = np.random.default_rng(0).standard_normal((4096, d))
    one_token = []
    for seed in range(seeds):
        x = toys.gaussian((SEQUENCES * TOKENS, 1, d), seed)
        one_token.append(toys.power(toys.xiong_stack("pre", blocks, d, seed).stream(x)[-1].data))
    inputs = [
        toys.post_norm_inputs(
            toys.xiong_stack("post", blocks, d, seed), toys.gaussian((SEQUENCES, TOKENS, d), seed)
        )
        for seed in range(seeds)
    ]
    return {
        "relu": toys.power(np.maximum(normal, 0)),
        "norm inputs": np.mean(inputs, axis=0),
        "stream": observed("pre", blocks, d, seeds)["stream"],
        "law": foretold("pre", blocks, d).stream,
        "one token": np.mean(one_token),
        "blocks": blocks,
    }


def draw_lemmas(n: Numbers, out: Path) -> list[plots.Picture]:
    depth = np.arange(n["blocks"] + 1)
    drawn = [
        plots.Line("1 + 3l/2", 1 + 1.5 * depth, "muted", dash="--"),
        plots.Line("theory, 16 tokens", n["law"], "pre"),
        plots.Line("", n["stream"], "pre", dash="", marker="o"),
        plots.Line("1 + l/2", 1 + 0.5 * depth, "muted", dash=":"),
    ]
    words = "Power of the Pre-LN stream by block: measured, theory, and Lemma 2's two bounds"
    return [plots.lines(out, "C1", drawn, title="Power of the Pre-LN stream", words=words,
                        x_label="block")]  # fmt: skip


C1 = Claim(
    "C1",
    "How the stream grows",
    "ReLU halves power; a Post-LN norm sees 3/2; the Pre-LN stream grows between 1 + l/2 and "
    "1 + 3l/2",
    f"{PAPER}, Lemmas 1 and 2",
    f"{SETUP}; d = 128, 12 blocks, 8 seeds",
    lemmas,
    [
        Near("E ReLU(x)^2 for normal x", lambda n: n["relu"], 0.5, rel=0.02),
        Near("power at Post-LN's norm after the feed-forward, mean over blocks",
             lambda n: n["norm inputs"].mean(), 1.5, rel=0.05),
        Near("power of the Pre-LN stream by block", lambda n: n["stream"], lambda n: n["law"],
             rel=0.06),
        Between("the same against Lemma 2's bounds", lambda n: n["stream"][1:],
                lambda n: 1 + 0.5 * np.arange(1, n["blocks"] + 1),
                lambda n: 1 + 1.5 * np.arange(1, n["blocks"] + 1)),
        Near("one token alone attains the upper bound", lambda n: n["one token"],
             lambda n: 1 + 1.5 * n["blocks"], rel=0.06),
    ],
    draw_lemmas,
    note="16 tokens start near the lower bound, and leave it as attention makes them alike.",
)  # fmt: skip


# ---------------------------------------------------------------- C2, C3


def by_depth(lab: Lab, d: int = 256, depths: tuple[int, ...] = (6, 12, 24, 48)) -> Numbers:
    n: Numbers = {"depths": depths}
    for place in NAMES:
        n[place] = np.array([observed(place, L, d)["w2 gradient"][-1] for L in depths])
        n[f"law {place}"] = np.array([foretold(place, L, d).w2_gradient[-1] for L in depths])
        n[f"slope {place}"] = laws.slope(depths, n[place])
        n[f"law slope {place}"] = laws.slope(depths, n[f"law {place}"])
    n["ratio"] = n["post"] / n["pre"]
    n["law ratio"] = np.sqrt(2 / 3 * np.array([foretold("pre", L, d).stream[-1] for L in depths]))
    return n


def draw_by(what: str, name: str, label: str) -> Any:
    title = "Gradient of the last W2"

    def draw(n: Numbers, out: Path) -> list[plots.Picture]:
        curves = [(NAMES[p], p, n[what], n[p], n[f"law {p}"]) for p in NAMES]
        return [law_and_dots(out, name, curves, title=title, x_label=label, log=True, log_x=True,
                             words=f"{title}: dots measured, lines the law")]  # fmt: skip

    return draw


C2 = Claim(
    "C2",
    "The last gradient, by depth",
    "The last feed-forward matrix's gradient does not depend on depth in Post-LN and falls as "
    "1/sqrt(L) in Pre-LN",
    f"{PAPER}, Theorem 1",
    f"{SETUP}; d = 256, 6 to 48 blocks, 8 seeds",
    by_depth,
    [
        Near("exponent over depth, Post-LN", lambda n: n["slope post"], 0.0, within=0.06),
        Near("exponent over depth, Pre-LN", lambda n: n["slope pre"],
             lambda n: n["law slope pre"], within=0.06),
        Near("ratio Post-LN / Pre-LN by depth", lambda n: n["ratio"], lambda n: n["law ratio"],
             rel=0.1),
    ],
    draw_by("depths", "C2", "blocks"),
    note="-1/2 is the limit of great depth; between 6 and 48 blocks the law itself gives -0.56.",
)  # fmt: skip


def by_width(lab: Lab, blocks: int = 12, widths: tuple[int, ...] = (64, 128, 256, 512)) -> Numbers:
    n: Numbers = {"widths": widths}
    for place in NAMES:
        n[place] = np.array([observed(place, blocks, d)["w2 gradient"][-1] for d in widths])
        n[f"law {place}"] = np.array([foretold(place, blocks, d).w2_gradient[-1] for d in widths])
        n[f"slope {place}"] = laws.slope(widths, n[place])
    bound = np.array(widths) * np.sqrt(np.log(widths))
    n["bound slope"] = laws.slope(widths, bound)
    return n


C3 = Claim(
    "C3",
    "The last gradient, by width",
    "Over width that gradient grows as sqrt(d): Theorem 1's d sqrt(ln d) is a bound that is not "
    "reached",
    f"law L3, against {PAPER}, Theorem 1",
    f"{SETUP}; 12 blocks, d = 64 to 512, 8 seeds",
    by_width,
    [
        Near("exponent over width, Post-LN", lambda n: n["slope post"], 0.5, within=0.05),
        Near("exponent over width, Pre-LN", lambda n: n["slope pre"], 0.5, within=0.05),
        Between("exponent of the theorem's bound over the same widths",
                lambda n: n["bound slope"], low=1.05),
    ],
    draw_by("widths", "C3", "width d"),
)  # fmt: skip


# ---------------------------------------------------------------- C4


def by_block(lab: Lab, d: int = 256, blocks: int = 12, seeds: int = 8, deep: int = 48) -> Numbers:
    n: Numbers = {"blocks": blocks}
    for place in NAMES:
        seen, law = observed(place, blocks, d, seeds), foretold(place, blocks, d)
        n[place], n[f"law {place}"] = seen["stream gradient"], law.stream_gradient
        n[f"w2 {place}"], n[f"law w2 {place}"] = seen["w2 gradient"], law.w2_gradient
        n[f"ratio {place}"] = seen["w2 gradient"][0] / seen["w2 gradient"][-1]
    w2 = observed("pre", deep, d, seeds)["w2 gradient"]
    n["deep ratio"] = w2[0] / w2[-1]
    law = foretold("pre", deep, d).w2_gradient
    n["law deep ratio"] = law[0] / law[-1]
    return n


def draw_by_block(n: Numbers, out: Path) -> list[plots.Picture]:
    depth = np.arange(n["blocks"] + 1)
    stream = [(NAMES[p], p, depth, n[p], n[f"law {p}"]) for p in NAMES]
    w2 = [(NAMES[p], p, depth[1:], n[f"w2 {p}"], n[f"law w2 {p}"]) for p in NAMES]
    return [
        law_and_dots(out, "C4-stream", stream, title="Gradient of the stream, per token",
                     words="Norm of dLoss/dx by block, dots measured, lines theory",
                     x_label="block", y_range=(0, 1.1)),
        law_and_dots(out, "C4-w2", w2, title="Gradient of each W2",
                     words="Norm of W2's gradient by block, dots measured, lines theory",
                     x_label="block", y_range=(0, 1.2)),
    ]  # fmt: skip


C4 = Claim(
    "C4",
    "Gradients, block by block",
    "Block by block: Pre-LN's gradients fall towards the top, Post-LN's W2 gradients stay level",
    f"{PAPER}, Fig. 3 and App. F; law: theory()",
    f"{SETUP}; d = 256, 12 blocks, 8 seeds",
    by_block,
    [
        Near("stream gradient by block, Pre-LN", lambda n: n["pre"], lambda n: n["law pre"],
             rel=0.1),
        Near("stream gradient by block, Post-LN", lambda n: n["post"], lambda n: n["law post"],
             rel=0.1),
        Near("W2 gradient by block, Pre-LN", lambda n: n["w2 pre"], lambda n: n["law w2 pre"],
             rel=0.15),
        Near("W2 gradient by block, Post-LN", lambda n: n["w2 post"], lambda n: n["law w2 post"],
             rel=0.15),
        Near("first / last W2 gradient, Pre-LN, 12 blocks", lambda n: n["ratio pre"], 3.2,
             rel=0.15),
        Near("first / last W2 gradient, Pre-LN, 48 blocks", lambda n: n["deep ratio"],
             lambda n: n["law deep ratio"], rel=0.15),
        Between("first / last W2 gradient, Post-LN, 12 blocks", lambda n: n["ratio post"],
                0.8, 1.25),
    ],
    draw_by_block,
    note="The paper's text calls Pre-LN's gradients almost the same in all layers (Fig. 3b). They "
    "are not: they fall as the stream grows, in its own model, too.",
)  # fmt: skip


# ---------------------------------------------------------------- what does not reproduce


def decay(lab: Lab, d: int = 256, blocks: int = 24) -> Numbers:
    seen = observed("post", blocks, d)
    pre = observed("pre", 12, d)["w2 gradient"]
    return {
        "kept": seen["stream gradient"][0] / seen["stream gradient"][-1],
        "foretold": (2 / 3) ** (blocks / 2),
        "w2 pre": pre,
    }


def draw_decay(n: Numbers, out: Path) -> list[plots.Picture]:
    seen = observed("post", 24, 256)["stream gradient"]
    depth = np.arange(25)
    law = foretold("post", 24, 256).stream_gradient
    drawn = [
        plots.Line("theory()", law, "post"),
        plots.Line("", seen, "post", dash="", marker="o"),
        plots.Line("(2/3)^((L-l)/2)", (2 / 3) ** ((24 - depth) / 2), "muted", dash="--"),
    ]
    return [plots.lines(out, "X1", drawn, title="Gradient of the Post-LN stream", log=True,
                        words="Measured, theory, and the decay that the paper gives",
                        x_label="block")]  # fmt: skip


X1 = Claim(
    "X1",
    "Exponential decay in an encoder",
    "Post-LN's gradient decays as (2/3)^((L-l)/2) on its way down an encoder",
    f"{PAPER}, App. F",
    f"{SETUP}; d = 256, 24 blocks, 8 seeds",
    decay,
    [Near("stream gradient, bottom / top", lambda n: n["kept"], lambda n: n["foretold"], factor=3)],
    draw_decay,
    note="The factor leaves out what the branches bring back, which makes up for it (law L1).",
)

X2 = Claim(
    "X2",
    "Level gradients in Pre-LN",
    "Pre-LN's gradients are almost the same in all layers",
    f"{PAPER}, Fig. 3b",
    f"{SETUP}; d = 256, 12 blocks, 8 seeds",
    decay,
    [Between("W2 gradient by block, over that of the last", lambda n: n["w2 pre"] / n["w2 pre"][-1],
             0.67, 1.5)],
    lambda n, out: [],
    note="It is 3.2 times as large in the first block as in the last; C4 has the curve.",
)  # fmt: skip

CLAIMS = [C1, C2, C3, C4]
NOT_HERE = [X1, X2]
