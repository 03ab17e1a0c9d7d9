"""C6, C7: encoder and decoder. What vanishes in a Post-LN decoder does so by cross-attention."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

import tinyres as tr
from demos import laws, plots, toys
from demos.claims.claim import Between, Claim, Near, Numbers
from demos.claims.lab import Lab, source
from demos.claims.zoo import observed

LENGTH, BATCH, BATCHES = 32, 16, 4
NAMES = {"post": "Post-LN", "pre": "Pre-LN"}
SETUP = (
    "encoder-decoder on characters, the target is the reversed source; d = 128, 4 heads, "
    "d_ff = 256, tied embeddings, gradient averaged over 4 batches of 16"
)


def reversed_text(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Source, decoder input, and target of one batch; the input starts with a symbol of its own."""
    text = source(None)
    tokens, _ = text.batch(rng, BATCH, LENGTH)
    target = tokens[:, ::-1]
    start = np.full((BATCH, 1), len(text.symbols))
    return tokens, np.hstack([start, target[:, :-1]]), target


def loss(logits: tr.Tensor, target: np.ndarray, smoothing: float = 0.1) -> tr.Tensor:
    """Cross-entropy against 0.9 for the target and 0.1 spread over all symbols, as in the paper."""
    spread = -tr.log_softmax(logits).mean()
    return (1 - smoothing) * tr.cross_entropy(logits, target) + smoothing * spread


@functools.cache
def w2_gradients(placement: str, blocks: int, seeds: int) -> dict[str, np.ndarray]:
    """Norm of the mean gradient of each W2, averaged over seeds, of encoder and decoder."""
    found = []
    for seed in range(seeds):
        rng = np.random.default_rng([seed, blocks])
        model = tr.nn.TransformerEncoderDecoder(
            len(source(None).symbols) + 1, 128, 4, blocks, LENGTH, 256,
            placement=placement, tied=True, rng=rng,
        )  # fmt: skip
        for _ in range(BATCHES):
            tokens, before, target = reversed_text(rng)
            loss(model(tokens, before), target).backward()
        found.append({
            part: [
                np.linalg.norm(block.feed_forward.branch.down.weight.grad) / BATCHES
                for block in getattr(model, part).blocks
            ]
            for part in ("encoder", "decoder")
        })  # fmt: skip
    return {part: np.mean([f[part] for f in found], axis=0) for part in ("encoder", "decoder")}


# ---------------------------------------------------------------- C6


def figure_3(lab: Lab, seeds: int = 3, depths: tuple[int, ...] = (6, 10, 14)) -> Numbers:
    n: Numbers = {"depths": depths}
    for place in NAMES:
        n[place] = w2_gradients(place, depths[0], seeds)
        n[f"last {place}"] = np.array([
            w2_gradients(place, blocks, seeds)["decoder"][-1] for blocks in depths
        ])  # fmt: skip
    return n


def draw_figure_3(n: Numbers, out: Path) -> list[plots.Picture]:
    x = range(1, n["depths"][0] + 1)
    by_block = []
    for place, name in NAMES.items():
        by_block.append(plots.Line(f"{name}, decoder", n[place]["decoder"], place, x=x, marker="o"))
        by_block.append(plots.Line("encoder", n[place]["encoder"], place, x=x, dash="--"))
    last = [plots.Line(name, n[f"last {p}"], p, x=n["depths"], marker="o")
            for p, name in NAMES.items()]  # fmt: skip
    return [
        plots.lines(out, "C6-blocks", by_block, title="Expected gradient of each W2, 6-6",
                    words="By block: encoder dashed, decoder solid", x_label="block"),
        plots.lines(out, "C6-depth", last, title="The decoder's last W2, by depth",
                    words="Level in Post-LN, falling in Pre-LN", x_label="blocks",
                    y_range=(0, 2.6)),
    ]  # fmt: skip


def _fall(values: np.ndarray) -> float:
    """First over last."""
    return float(values[0] / values[-1])


C6 = Claim(
    "C6",
    "Encoder and decoder before training",
    "In a 6-6 encoder-decoder the expected gradient of the decoder's W2 rises several times from "
    "bottom to top in Post-LN; the last one is level over depth in Post-LN and falls in Pre-LN",
    "Xiong et al. 2020, Fig. 3",
    f"{SETUP}; 3 seeds",
    figure_3,
    [
        Between("Post-LN decoder, last / first", lambda n: 1 / _fall(n["post"]["decoder"]),
                5, 12),
        Between("Post-LN encoder, largest / smallest",
                lambda n: n["post"]["encoder"].max() / n["post"]["encoder"].min(), high=1.5),
        Near("Pre-LN decoder, first / last", lambda n: _fall(n["pre"]["decoder"]), 1.55,
             factor=1.5),
        Near("last W2 by depth, Post-LN, against the paper's around 1.6",
             lambda n: n["last post"], 1.6, factor=1.5),
        Between("exponent of that over depth", lambda n: laws.slope(n["depths"], n["last post"]),
                -0.25, 0.25),
        Between("exponent over depth, Pre-LN", lambda n: laws.slope(n["depths"], n["last pre"]),
                high=-0.1),
    ],
    draw_figure_3,
    note="How large the last one is depends on the text: 2.3 on this one, 1.74 on the GNU GPL, a "
    "text of 35,000 characters (6-6, 6 seeds).",
)  # fmt: skip


# ---------------------------------------------------------------- C7

VARIANCES = (0.5, 1.0)


def frozen_factor(variance: float, blocks: int = 8, d: int = 512, tokens: int = 64) -> float:
    """By what one norm(x + c) changes the gradient's norm, with a c that no gradient goes to."""
    rng = np.random.default_rng(0)

    class Independent(tr.nn.Module):
        def forward(self, x: tr.Tensor) -> tr.Tensor:
            return x * 0.0 + rng.normal(0, variance**0.5, x.shape).astype(np.float32)

    toy = toys.Toy("post", d, [Independent] * blocks)
    _, gradient = toys.look(toy, toys.gaussian((1, tokens, d), 1), 1)
    return (gradient[0] / gradient[-1]) ** (0.5 / blocks)


def crossing(lab: Lab, blocks: int = 18, seeds: int = 3) -> Numbers:
    decoder = w2_gradients("post", blocks, seeds)["decoder"]
    return {
        "law": np.array([laws.frozen_branch(v) for v in VARIANCES]),
        "frozen": np.array([frozen_factor(v) for v in VARIANCES]),
        "decoder": decoder,
        "per block": (decoder[0] / decoder[-1]) ** (1 / (blocks - 1)),
        "alone": observed("w2", "post", blocks, 5),
        "encoder": w2_gradients("post", blocks, seeds)["encoder"],
    }


def draw_crossing(n: Numbers, out: Path) -> list[plots.Picture]:
    x = range(1, len(n["decoder"]) + 1)
    drawn = [
        plots.Line("cross-attention", n["decoder"] / n["decoder"][-1], "post", x=x, marker="o"),
        plots.Line("decoder only", n["alone"] / n["alone"][-1], "post", x=x, dash="--"),
        plots.Line("encoder", n["encoder"] / n["encoder"][-1], "plain", x=x),
    ]
    return [plots.lines(out, "C7", drawn, title="Post-LN, 18 blocks: W2 gradient / the last one's",
                        words="It vanishes only where there is cross-attention", x_label="block",
                        log=True)]  # fmt: skip


C7 = Claim(
    "C7",
    "Vanishing needs cross-attention",
    "Gradients vanish in Post-LN decoders, and only there: cross-attention adds what no gradient "
    "comes back through",
    "Liu et al. 2020, sec. 3.1; law L5",
    f"{SETUP}; 18-18, 3 seeds; against a decoder alone (d_ff = 512) of 18 blocks, 5 seeds",
    crossing,
    [
        Near("frozen branch of variance 0.5 and 1: factor a sublayer", lambda n: n["frozen"],
             lambda n: n["law"], rel=0.02),
        Near("18-18 decoder, last / first", lambda n: 1 / _fall(n["decoder"]), 390,
             factor=2),
        Between("decoder alone, first / last", lambda n: _fall(n["alone"]), 0.7, 1.1),
        Near("encoder, first / last: level", lambda n: _fall(n["encoder"]), 1.0, factor=1.5),
    ],
    draw_crossing,
    note="One seed's decoder ratio lies between 200 and 1,100 (8 seeds, of which the means have "
    "420), one seed's encoder ratio between 0.36 and 1.1.",
)  # fmt: skip

CLAIMS = [C6, C7]
