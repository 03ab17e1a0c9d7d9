"""C9, C10, C17, C19, C20, C24: placements before any training, in whole Transformers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tinyres as tr
from demos import plots, toys
from demos.claims.claim import Between, Claim, Near, Numbers
from demos.claims.lab import Lab

SETUP = "causal decoder, d = 128, 4 heads, d_ff = 512, 32 random tokens, power 1 at the bottom"


LOOKS: dict[str, Callable[..., Any]] = {
    "power": lambda model, batch: tr.probe.stream_rms(model, batch) ** 2,
    "cosine": tr.probe.token_cosine,
    "w2": toys.w2_gradients,
    "gradient": lambda model, batch: tr.probe.stream_gradient(model, batch),
    "shift": lambda model, batch: tr.probe.output_shift(model, batch, rng=0),
}


@functools.cache
def observed(what: str, placement: str, blocks: int, seeds: int = 3) -> Any:
    """One of LOOKS, as a mean over seeds."""
    return np.mean(
        [LOOKS[what](*toys.zoo_model(placement, blocks, s)) for s in range(seeds)], axis=0
    )


def _ratio(values: np.ndarray) -> float:
    """The first over the last."""
    return float(values[0] / values[-1])


def by_block(out: Path, name: str, curves: dict[str, tuple[str, Any]], **how: Any) -> plots.Picture:
    """One line for each (label: (colour, values))."""
    drawn = [plots.Line(label, y, colour) for label, (colour, y) in curves.items()]
    return plots.lines(out, name, drawn, x_label="block", **how)


# ---------------------------------------------------------------- C9


def admin(lab: Lab, blocks: int = 12, seeds: int = 5) -> Numbers:
    looks = ("w2", "cosine", "shift")
    return {
        rule: {what: observed(what, rule, blocks, seeds) for what in looks}
        for rule in ("admin", "pre")
    }


def draw_admin(n: Numbers, out: Path) -> list[plots.Picture]:
    drawn = [
        plots.Line("Pre-LN", n["pre"]["cosine"], "pre"),
        plots.Line("Admin", n["admin"]["cosine"], "other", dash="", marker="o"),
    ]
    return [plots.lines(out, "C9", drawn, title="Token cosine by block", x_label="block",
                        words="Admin and Pre-LN before training: the same curve")]  # fmt: skip


C9 = Claim(
    "C9",
    "Admin starts as Pre-LN",
    "Admin's initialisation makes a Post-LN do what a Pre-LN does",
    "Liu et al. 2020, sec. 4; law L4",
    f"{SETUP}; 12 blocks, 5 seeds",
    admin,
    [
        Near("gradient of the last W2", lambda n: n["admin"]["w2"][-1],
             lambda n: n["pre"]["w2"][-1], rel=0.08),
        Near("token cosine at the top", lambda n: n["admin"]["cosine"][-1],
             lambda n: n["pre"]["cosine"][-1], rel=0.08),
        Near("output shift", lambda n: n["admin"]["shift"], lambda n: n["pre"]["shift"], rel=0.08),
    ],
    draw_admin,
)  # fmt: skip


# ---------------------------------------------------------------- C10


def hyper(lab: Lab, blocks: int = 6) -> Numbers:
    models = {}
    for rule in ("hyper", "pre"):
        model, (tokens, labels) = toys.zoo_model(rule, blocks, 0)
        logits = model.astype("float64")(tokens)
        loss = tr.cross_entropy(logits, labels)
        loss.backward()
        weights = {name: p.grad for name, p in model.named_parameters() if name.endswith("weight")}
        models[rule] = loss.item(), {"logits": logits.data, **weights}
    (loss, found), (pre_loss, expected) = models.values()
    return {"hyper": loss, "pre": pre_loss} | {
        what: [_difference(found[name], expected[name]) for name in names]
        for what, names in (("logits", ["logits"]), ("gradients", weights))
    }


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    """The largest, relative to the largest entry."""
    return float(abs(a - b).max() / abs(b).max())


C10 = Claim(
    "C10",
    "Hyper-Connections start as Pre-LN",
    "Static Hyper-Connections start as Pre-LN: same loss, logits and gradients",
    "Zhu et al. 2024, Hyper-connections, eq. 14",
    f"{SETUP}; 6 blocks, 4 streams, equal weights, in double precision",
    hyper,
    [
        Near("loss", lambda n: n["hyper"], lambda n: n["pre"], rel=1e-6),
        Between("logits, largest difference / largest logit", lambda n: n["logits"], high=1e-6),
        Between("gradient of each weight, largest difference / largest entry",
                lambda n: n["gradients"], high=1e-6),
    ],
    lambda n, out: [],
    note="Equal but for the order of summation, and for the eps of the final norm, which counts "
    "16 times less beside the sum of four streams than beside one.",
)  # fmt: skip


# ---------------------------------------------------------------- C17

COLLAPSE = {"post": ("Post-LN", "post"), "pre": ("Pre-LN", "pre"),
            "deepnorm": ("DeepNorm", "other"), "rezero": ("ReZero", "warm")}  # fmt: skip


def collapse(lab: Lab, depths: tuple[int, ...] = (24, 48)) -> Numbers:
    return {(rule, L): observed("cosine", rule, L) for rule in COLLAPSE for L in depths}


def draw_collapse(n: Numbers, out: Path) -> list[plots.Picture]:
    curves = {name: (colour, n[rule, 48]) for rule, (name, colour) in COLLAPSE.items()}
    return [by_block(out, "C17", curves, title="Token cosine by block, 48 blocks",
                     words="1 when all tokens are the same")]  # fmt: skip


def _top(rule: str) -> Any:
    return lambda n: [n[rule, L][-1] for L in (24, 48)]


C17 = Claim(
    "C17",
    "Token collapse",
    "Before training, a deep Post-LN has made all tokens of a sequence the same; Pre-LN has not, "
    "DeepNorm and ReZero leave them as they are",
    "Dong et al. 2021, Attention is not all you need (rank collapse); Noci et al. 2022",
    f"{SETUP}; 24 and 48 blocks, 3 seeds",
    collapse,
    [
        Near("token cosine at the top, Post-LN", _top("post"), 1.0, within=0.02),
        Near("Pre-LN", _top("pre"), [0.82, 0.87], within=0.02),
        Near("DeepNorm", _top("deepnorm"), 0.0, within=0.02),
        Near("ReZero", _top("rezero"), 0.0, within=0.02),
    ],
    draw_collapse,
)


# ---------------------------------------------------------------- C19


def scaling(lab: Lab, depths: tuple[int, ...] = (12, 48)) -> Numbers:
    return {(rule, L): observed("power", rule, L) for rule in ("lns", "pre") for L in depths}


def draw_scaling(n: Numbers, out: Path) -> list[plots.Picture]:
    curves = {"Pre-LN": ("pre", n["pre", 48]), "LN scaling": ("other", n["lns", 48])}
    return [by_block(out, "C19", curves, title="Power of the stream, 48 blocks",
                     words="Linear in Pre-LN, logarithmic when scaled", log=True)]  # fmt: skip


C19 = Claim(
    "C19",
    "LayerNorm Scaling",
    "LayerNorm Scaling lets the stream grow as log(depth) where Pre-LN lets it grow as depth",
    "Sun et al. 2025, The curse of depth in large language models, sec. 4",
    f"{SETUP}; 12 and 48 blocks, 3 seeds",
    scaling,
    [
        Near("power at the top, LayerNorm Scaling",
             lambda n: [n["lns", L][-1] for L in (12, 48)], [2.92, 3.99], rel=0.1),
        Near("Pre-LN", lambda n: [n["pre", L][-1] for L in (12, 48)], [11.0, 51.8], rel=0.1),
    ],
    draw_scaling,
)  # fmt: skip


# ---------------------------------------------------------------- C20


def olmo(lab: Lab, depths: tuple[int, ...] = (12, 48)) -> Numbers:
    seeds = {"output": 16, "olmo2": 5, "peri": 5}  # without QK-norm they differ most
    return {(rule, L): observed("w2", rule, L, seeds[rule]) for rule in seeds for L in depths}


def draw_olmo(n: Numbers, out: Path) -> list[plots.Picture]:
    names = {"output": ("no QK-norm", "post"), "olmo2": ("QK-norm", "other"),
             "peri": ("Peri-LN", "plain")}  # fmt: skip
    drawn = [
        plots.Line(label, (w2 := n[rule, 48]) / w2[-1], colour, x=range(1, 49))
        for rule, (label, colour) in names.items()
    ]
    return [plots.lines(out, "C20", drawn, title="Gradient of each W2 / that of the last",
                        words="Norms on the outputs, with and without QK-norm, 48 blocks",
                        x_label="block", log=True)]  # fmt: skip


C20 = Claim(
    "C20",
    "Output norms need QK-norm",
    "A norm on each sublayer's output alone lets gradients explode with depth; with norms on "
    "queries and keys it does not",
    "OLMo team 2025, 2 OLMo 2 Furious, sec. 3.1 (both are adopted there together)",
    f"{SETUP}; 12 and 48 blocks, 5 seeds (16 without QK-norm)",
    olmo,
    [
        Near("W2 gradient, first / last, 12 and 48 blocks, with QK-norm",
             lambda n: [_ratio(n["olmo2", L]) for L in (12, 48)], [3.1, 5.8], rel=0.3),
        Near("the same without it", lambda n: [_ratio(n["output", L]) for L in (12, 48)],
             [16.3, 2145], rel=0.3),
        Near("with QK-norm against Peri-LN, 48 blocks", lambda n: _ratio(n["olmo2", 48]),
             lambda n: _ratio(n["peri", 48]), rel=0.3),
    ],
    draw_olmo,
    note="The input of attention is not normalised, so that its scores grow with the stream. One "
    "seed says little: without QK-norm, 24 of them gave between 10 and 22 at 12 blocks and between "
    "500 and 5,900 at 48, a standard deviation of three quarters of the mean. The mean of 16 is "
    "known to a fifth, that of 3 would not be known to 30 %.",
)  # fmt: skip


# ---------------------------------------------------------------- C24


def equation(lab: Lab, depths: tuple[int, ...] = (6, 12, 24, 48)) -> Numbers:
    n: Numbers = {"depths": depths}
    for rule in ("completep", "depth_mup"):
        n[f"{rule} shift"] = np.array([observed("shift", rule, L) for L in depths])
    n["gradient"] = np.array([_ratio(observed("gradient", "completep", L)[1:]) for L in depths])
    n["cosine"] = np.array([observed("cosine", "completep", L)[-1] for L in depths])
    n["power"] = np.array([observed("power", "depth_mup", L)[-1] for L in depths])
    return n


def draw_equation(n: Numbers, out: Path) -> list[plots.Picture]:
    names = {"depth_mup": ("1/sqrt(L)", "other"), "completep": ("1/L", "pre")}
    drawn = [plots.Line(label, n[f"{rule} shift"], colour, x=n["depths"], marker="o")
             for rule, (label, colour) in names.items()]  # fmt: skip
    return [plots.lines(out, "C24", drawn, title="Output shift by depth, branches scaled",
                        words="Constant for 1/sqrt(L), proportional to 1/L for 1/L",
                        x_label="blocks", log=True, log_x=True)]  # fmt: skip


C24 = Claim(
    "C24",
    "Residuals as a differential equation",
    "x + (1/L) f(x) is a step of a differential equation: the deeper, the less each weight "
    "matters; with 1/sqrt(L) the weights together matter equally at any depth",
    "Dey et al. 2025, CompleteP; Yang et al. 2023, depth-muP; Chen et al. 2018, Neural ODEs",
    f"{SETUP}; 6 to 48 blocks, 3 seeds",
    equation,
    [
        Near("1/L: shift by depth", lambda n: n["completep shift"], [0.211, 0.106, 0.0524, 0.0264],
             rel=0.1),
        Near("1/L: stream gradient, bottom / top, from 12 blocks on",
             lambda n: n["gradient"][1:], [1.03, 1.02, 1.01], rel=0.01),
        Near("1/L: token cosine at the top, 12 and 48 blocks",
             lambda n: n["cosine"][[1, 3]], [0.013, 0.003], within=0.01),
        Near("1/sqrt(L): shift by depth", lambda n: n["depth_mup shift"], 1.21, rel=0.1),
        Near("1/sqrt(L): power at the top", lambda n: n["power"], 1.59, rel=0.1),
    ],
    draw_equation,
)  # fmt: skip

CLAIMS = [C9, C10, C17, C19, C20, C24]
