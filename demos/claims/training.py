"""C12, C13, C15, C16, C23: which stacks train, and how far."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tinyres as tr
from demos import plots, toys
from demos.claims.claim import Between, Claim, Near, Numbers
from demos.claims.lab import CHANCE, Job, Lab, entropies
from demos.claims.zoo import observed
from demos.training import Setting

BASE = Setting(blocks=12, d_ff=128, steps=250)  # d = 64, lr 3e-3, no warm-up
TOUR = BASE.but(blocks=6)
REVERSE = BASE.but(task="reverse", steps=300)
SETUP = (
    "character model on Python's standard library, d = 64, 4 heads, d_ff = 128, 32 characters, "
    "batch 16, Adam (0.9, 0.98)"
)
FINAL = "final = mean training loss of the last 20 steps, in nats"


def seeds(setting: Setting, count: int, watch: str = "") -> list[Job]:
    """The same training with several seeds."""
    return [Job(setting.but(seed=seed), watch) for seed in range(count)]


def losses_picture(
    out: Path, name: str, curves: dict[str, tuple[str, str, Sequence[Any]]], **how: Any
) -> plots.Picture:
    """Loss by step of each (label: (colour, dash, losses of each seed)), seeds faintly."""
    drawn = []
    for label, (colour, dash, runs) in curves.items():
        smooth = [plots.running_mean(run) for run in runs]
        shortest = min(map(len, smooth))
        mean = np.mean([run[:shortest] for run in smooth], axis=0)
        faint = np.array([run[:shortest] for run in smooth]).T
        drawn.append(plots.Line(label, mean, colour, dash=dash, faint=faint,
                                x=range(1, shortest + 1)))  # fmt: skip
    return plots.lines(out, name, drawn, x_label="step", **how)


def text_levels() -> list[tuple[str, float]]:
    unigram, bigram = entropies(BASE)
    return [("unigram", unigram), ("bigram", bigram)]


# ---------------------------------------------------------------- C12, C13

POST_INIT = {rule: seeds(BASE.but(placement=rule), 3) for rule in ("post", "post_init", "pre")}


def post_init(lab: Lab) -> Numbers:
    n: Numbers = {rule: observed("w2", rule, 12, 5) for rule in ("post", "post_init")}
    for rule, jobs in POST_INIT.items():
        n[f"final {rule}"] = lab.finals(jobs)
        n[f"runs {rule}"] = [lab.result(job)["losses"] for job in jobs]
    n["unigram"], n["bigram"] = entropies(BASE)
    return n


def draw_post_init(n: Numbers, out: Path) -> list[plots.Picture]:
    curves = {"Post-LN": ("post", "-", n["runs post"]), "Pre-LN": ("pre", "-", n["runs pre"]),
              "Post-LN-init": ("post", "--", n["runs post_init"])}  # fmt: skip
    return [losses_picture(out, "C12", curves, title="Training loss, 12 blocks",
                           words="Post-LN-init trains where Post-LN sticks",
                           levels=text_levels(), y_range=(1.5, 4.5))]  # fmt: skip


C12 = Claim(
    "C12",
    "Post-LN with smaller lower matrices",
    "Post-LN with smaller lower matrices trains where Post-LN sticks, although its last gradient "
    "is as large: exploding gradients are not the root of the trouble",
    "Wang et al. 2022, DeepNet, Fig. 3",
    f"{SETUP}; 12 blocks, lr 3e-3, no warm-up, 250 steps, 3 seeds; {FINAL}",
    post_init,
    [
        Near("gradient of the last W2 at initialisation (Post-LN-init, Post-LN)",
             lambda n: [n["post_init"][-1], n["post"][-1]], [0.78, 0.89], rel=0.15),
        Between("final loss over the unigram entropy, Post-LN",
                lambda n: np.array(n["final post"]) - n["unigram"], -0.15, 0.3),
        Between("final loss over the bigram entropy, Post-LN-init",
                lambda n: np.array(n["final post_init"]) - n["bigram"], high=0.0),
    ],
    draw_post_init,
    jobs=[job for jobs in POST_INIT.values() for job in jobs],
)  # fmt: skip

WARM = {
    "post": seeds(TOUR.but(placement="post"), 5),
    "post warm": seeds(TOUR.but(placement="post", warmup=100), 5),
    "pre": seeds(TOUR.but(placement="pre"), 5),
}


def runs_of(lab: Lab, table: dict[str, list[Job]]) -> Numbers:
    """Final losses and loss curves of each entry of a table of jobs."""
    n: Numbers = {}
    for name, jobs in table.items():
        n[name] = np.array(lab.finals(jobs))
        n[f"runs {name}"] = [lab.result(job)["losses"] for job in jobs]
    n["unigram"], n["bigram"] = entropies(BASE)
    return n


def way(n: Numbers, name: str) -> Any:
    """How far a loss has come on the way from the unigram (0) to the bigram entropy (1)."""
    return (n["unigram"] - n[name]) / (n["unigram"] - n["bigram"])


def draw_warm(n: Numbers, out: Path) -> list[plots.Picture]:
    curves = {"Post-LN": ("post", "-", n["runs post"]), "Pre-LN": ("pre", "-", n["runs pre"]),
              "Post-LN, warm-up": ("warm", "--", n["runs post warm"])}  # fmt: skip
    return [losses_picture(out, "C13", curves, title="Training loss, 6 blocks",
                           words="Post-LN needs warm-up, Pre-LN does not",
                           levels=text_levels(), y_range=(1.5, 4.5))]  # fmt: skip


C13 = Claim(
    "C13",
    "Warm-up",
    "Post-LN needs warm-up, Pre-LN does not",
    "Xiong et al. 2020, sec. 3.2 and 4",
    f"{SETUP}; 6 blocks, lr 3e-3, 250 steps, warm-up of 100 or none, 5 seeds; {FINAL}",
    lambda lab: runs_of(lab, WARM),
    [
        Between("Post-LN without warm-up: of the way from unigram to bigram entropy",
                lambda n: way(n, "post"), high=0.5),
        Between("Post-LN with warm-up", lambda n: way(n, "post warm"), low=0.5),
        Between("Pre-LN without warm-up", lambda n: way(n, "pre"), low=1.0),
    ],
    draw_warm,
    note="0 is the unigram entropy, where a stack sticks that can't tell tokens apart; 1 the "
    "bigram entropy. With 6 blocks some seeds of Post-LN begin to leave the plateau.",
    jobs=[job for jobs in WARM.values() for job in jobs],
)  # fmt: skip


# ---------------------------------------------------------------- C15, C16

DEEP = {
    f"{rule} {blocks} {lr:g} {warmup}": [
        Job(BASE.but(placement=rule, blocks=blocks, lr=lr, warmup=warmup))
    ]
    for rule, blocks, lr, warmup in (
        ("post", 12, 3e-3, 0), ("post", 12, 3e-3, 100), ("post", 12, 1e-3, 0),
        ("post", 12, 1e-3, 100), ("post", 18, 3e-3, 0), ("post", 18, 1e-3, 100),
        ("pre", 12, 3e-3, 0), ("pre", 12, 1e-3, 0), ("pre", 18, 3e-3, 0),
    )
}  # fmt: skip
MARGINAL = ("post 12 0.001 0", "post 12 0.001 100")
BACKWARDS = {rule: seeds(REVERSE.but(placement=rule), 3) for rule in ("post", "pre")}


def depth(lab: Lab) -> Numbers:
    n = runs_of(lab, BACKWARDS)
    found = {name: lab.finals(jobs)[0] for name, jobs in DEEP.items()}
    n["text pre"] = np.array([v for name, v in found.items() if name.startswith("pre")])
    n["marginal"] = np.array([found[name] for name in MARGINAL])
    n["text post"] = np.array([
        v for name, v in found.items() if name.startswith("post") and name not in MARGINAL
    ])  # fmt: skip
    return n


def draw_depth(n: Numbers, out: Path) -> list[plots.Picture]:
    curves = {"Post-LN": ("post", "-", n["runs post"]), "Pre-LN": ("pre", "-", n["runs pre"])}
    return [losses_picture(out, "C15", curves, title="Reversing 16 symbols, 12 blocks",
                           words="Pre-LN learns it, Post-LN stays at chance",
                           levels=[("chance", CHANCE)], y_range=(0, 4))]  # fmt: skip


C15 = Claim(
    "C15",
    "Depth",
    "A deep Post-LN does not train at rates at which Pre-LN does, with or without a short warm-up",
    "Wang et al. 2019, Learning deep Transformer models; Xiong et al. 2020; PyTorch issue 55270",
    f"{SETUP}; 12 and 18 blocks, lr 1e-3 and 3e-3, warm-up 0 and 100, 250 steps; and reversing a "
    f"random sequence, 12 blocks, 300 steps, 3 seeds; {FINAL}",
    depth,
    [
        Between("text, Post-LN at 3e-3 or with 18 blocks, over the unigram entropy",
                lambda n: n["text post"] - n["unigram"], -0.15, 0.3),
        Between("text, Post-LN at 1e-3 with 12 blocks: of the way from unigram to bigram",
                lambda n: way(n, "marginal"),
                high=0.5),
        Between("text, Pre-LN in 3 cells, over the bigram entropy",
                lambda n: n["text pre"] - n["bigram"], high=0.15),
        Near("reversing, Post-LN: chance", lambda n: n["post"], CHANCE, within=0.05),
        Between("reversing, Pre-LN", lambda n: n["pre"], high=0.05),
    ],
    draw_depth,
    note="12 blocks at 1e-3 are marginal: with warm-up Post-LN leaves the plateau on this text.",
    jobs=[job for table in (DEEP, BACKWARDS) for jobs in table.values() for job in jobs],
)  # fmt: skip

SMALL = {"3e-3": WARM["post"][:1], "3e-4": seeds(TOUR.but(placement="post", lr=3e-4), 1)}

C16 = Claim(
    "C16",
    "A smaller learning rate",
    "A small fixed learning rate rescues a shallow Post-LN without warm-up",
    "Xiong et al. 2020, App. H",
    f"{SETUP}; 6 blocks, no warm-up, 250 steps, one seed; {FINAL}",
    lambda lab: runs_of(lab, SMALL),
    [
        Between("lr 3e-4, against the unigram entropy", lambda n: n["3e-4"] - n["unigram"],
                high=-0.2),
        Between("lr 3e-3, against the same", lambda n: n["3e-3"] - n["unigram"], -0.15, 0.3),
    ],
    lambda n, out: [
        losses_picture(
            out, "C16", {"lr 3e-3": ("post", "-", n["runs 3e-3"]),
                         "lr 3e-4": ("warm", "-", n["runs 3e-4"])},
            title="Training loss of Post-LN, 6 blocks", words="A smaller rate trains",
            levels=text_levels(), y_range=(1.5, 4.5),
        )
    ],
    jobs=[job for jobs in SMALL.values() for job in jobs],
)  # fmt: skip


# ---------------------------------------------------------------- C23

ZERO = {"rezero": seeds(BASE.but(placement="rezero"), 3)}


def rezero(lab: Lab) -> Numbers:
    n = runs_of(lab, ZERO)
    model, batch = toys.zoo_model("rezero", 6, 0)
    found = tr.probe.weight_gradients(model, batch)
    of_stack = {name: g for name, g in found.items() if name.startswith("stack")}
    n["gates"] = np.array([g for name, g in of_stack.items() if name.endswith("gain")])
    n["others"] = np.array([g for name, g in of_stack.items() if not name.endswith("gain")])
    return n


C23 = Claim(
    "C23",
    "ReZero",
    "ReZero starts with gradients for its gates alone, and trains a deep stack without a norm",
    "Bachlechner et al. 2020, ReZero is all you need",
    f"{SETUP}; 12 blocks, lr 3e-3, no warm-up, 250 steps, 3 seeds; {FINAL}",
    rezero,
    [
        Near("gradient of every weight in the blocks at step 0", lambda n: n["others"], 0.0),
        Between("gradient of every gate at step 0", lambda n: n["gates"], low=1e-6),
        Between("final loss over the bigram entropy", lambda n: n["rezero"] - n["bigram"], high=0),
    ],
    lambda n, out: [
        losses_picture(out, "C23", {"ReZero": ("warm", "-", n["runs rezero"])},
                       title="Training loss of ReZero, 12 blocks", words="It trains",
                       levels=text_levels(), y_range=(1.5, 4.5))
    ],
    jobs=ZERO["rezero"],
)  # fmt: skip

CLAIMS = [C12, C13, C15, C16, C23]
