"""C12, C13, C15, C16, C23: which stacks train, and how far."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tinyres as tr
from demos import plots, toys
from demos.claims.claim import Between, Claim, Near, Numbers
from demos.claims.lab import CHANCE, Job, Lab, entropies, guesses
from demos.claims.zoo import observed
from demos.training import Setting

TOUR = Setting()  # 6 blocks, d_ff = 256, lr 3e-3, no warm-up, 300 steps
BASE = Setting(blocks=12, d_ff=128, steps=250)
REVERSE = BASE.but(task="reverse", steps=300)
COPY = BASE.but(task="copy", blocks=8, steps=400)
SETUP = (
    "character model on Python's standard library, d = 64, 4 heads, 32 characters, batch 16, "
    "Adam (0.9, 0.98)"
)
SIX = f"{SETUP}; 6 blocks, d_ff = 256"
TWELVE = f"{SETUP}; 12 blocks, d_ff = 128"
RECALL = "16 random symbols of 16 kinds, then the same symbols"
FINAL = "final = mean training loss of the last 20 steps, in nats"
STUCK = 0.12  # a stack that is no further than this below the unigram guess is stuck


def seeds(setting: Setting, count: int, watch: str = "") -> list[Job]:
    """The same training with several seeds."""
    return [Job(setting.but(seed=seed), watch) for seed in range(count)]


def jobs_of(*tables: dict[str, list[Job]]) -> list[Job]:
    """All jobs of some tables."""
    return [job for table in tables for jobs in table.values() for job in jobs]


def runs_of(lab: Lab, table: dict[str, list[Job]]) -> Numbers:
    """Of each entry of a table: final losses, loss curves, and how the losses compare to guesses.

    "name - unigram" is the final loss less what the unigram guess loses on the same batches.
    """
    n: Numbers = {}
    for name, jobs in table.items():
        n[name] = np.array(lab.finals(jobs))
        n[f"runs {name}"] = [lab.result(job)["losses"] for job in jobs]
        if jobs[0].setting.task == "chars":
            unigram, bigram = np.array([guesses(job.setting) for job in jobs]).T
            n[f"{name} - unigram"], n[f"{name} - bigram"] = n[name] - unigram, n[name] - bigram
    return n


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


def _each(*names: str) -> Any:
    return lambda n: [n[name] for name in names]


# ---------------------------------------------------------------- C12

POST_INIT = {rule: seeds(BASE.but(placement=rule), 3) for rule in ("post", "post_init", "pre")}


def post_init(lab: Lab) -> Numbers:
    n = runs_of(lab, POST_INIT)
    return n | {f"w2 {rule}": observed("w2", rule, 12, 5) for rule in ("post", "post_init")}


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
    f"{TWELVE}, lr 3e-3, no warm-up, 250 steps, 3 seeds; {FINAL}; gradients at initialisation: "
    "random tokens, d = 128, 5 seeds",
    post_init,
    [
        Near("gradient of the last W2 at initialisation (Post-LN-init, Post-LN)",
             lambda n: [n["w2 post_init"][-1], n["w2 post"][-1]], [0.78, 0.89], rel=0.1),
        Near("gradient of the first W2, Post-LN-init", lambda n: n["w2 post_init"][0], 0.09,
             rel=0.1),
        Between("final loss over the unigram guess, Post-LN", lambda n: n["post - unigram"],
                -STUCK, STUCK),
        Between("final loss over the bigram guess, Post-LN-init", lambda n: n["post_init - bigram"],
                high=0.0),
        Between("final loss over Pre-LN's, Post-LN-init, mean of the seeds",
                lambda n: np.mean(n["post_init"] - n["pre"]), high=0.0),
    ],
    draw_post_init,
    jobs=jobs_of(POST_INIT),
)  # fmt: skip

# ---------------------------------------------------------------- C13, C16

WARM = {
    "post": seeds(TOUR.but(placement="post"), 5),
    "post warm": seeds(TOUR.but(placement="post", warmup=100), 5),
    "pre": seeds(TOUR.but(placement="pre"), 5),
}
WARM_REVERSE = {
    f"reverse {name}": seeds(REVERSE.but(blocks=6, **changes), 3)
    for name, changes in {
        "post": {"placement": "post"},
        "post warm": {"placement": "post", "warmup": 100},
        "pre": {"placement": "pre"},
    }.items()
}


def draw_warm(n: Numbers, out: Path) -> list[plots.Picture]:
    def curves(prefix: str) -> dict[str, tuple[str, str, Any]]:
        return {
            "Post-LN": ("post", "-", n[f"runs {prefix}post"]),
            "Pre-LN": ("pre", "-", n[f"runs {prefix}pre"]),
            "Post-LN, warm-up": ("warm", "--", n[f"runs {prefix}post warm"]),
        }

    return [
        losses_picture(out, "C13-text", curves(""), title="Loss on text, 6 blocks",
                       words="Post-LN needs warm-up, Pre-LN does not",
                       levels=text_levels(), y_range=(1.5, 4.5)),
        losses_picture(out, "C13-reverse", curves("reverse "), levels=[("chance", CHANCE)],
                       title="Loss when reversing 16 symbols, 6 blocks", y_range=(0, 4),
                       words="Warm-up makes all the difference to Post-LN"),
    ]  # fmt: skip


C13 = Claim(
    "C13",
    "Warm-up",
    "Post-LN needs warm-up, Pre-LN does not",
    "Xiong et al. 2020, sec. 3.2 and 4",
    f"{SIX}, lr 3e-3, 300 steps, warm-up of 100 or none, 5 seeds; {RECALL} backwards, "
    f"d_ff = 128, 3 seeds; {FINAL}",
    lambda lab: runs_of(lab, WARM) | runs_of(lab, WARM_REVERSE),
    [
        Between("text, Post-LN without warm-up, over the unigram guess on the same batches, median",
                lambda n: np.median(n["post - unigram"]), -STUCK, STUCK),
        Between("text, Post-LN with warm-up, median", lambda n: np.median(n["post warm"]),
                high=2.5),
        Between("text, Post-LN, without less with warm-up", lambda n: n["post"] - n["post warm"],
                low=0.3),
        Between("text, Pre-LN without warm-up", lambda n: n["pre"], high=2.25),
        Near("reversing, Post-LN without warm-up, median: chance",
             lambda n: np.median(n["reverse post"]), CHANCE, within=0.05),
        Between("reversing, Post-LN with warm-up", lambda n: n["reverse post warm"], high=0.5),
        Between("reversing, Pre-LN without warm-up", lambda n: n["reverse pre"], high=0.001),
    ],
    draw_warm,
    note="A stack that can't tell tokens apart can do no better than the unigram guess, 3.07 nats "
    "on this text; the bigram guess has 2.39. On a text of 35,000 characters, the GNU GPL, three "
    "of three seeds of Post-LN stick there. On this one 6 blocks are few enough that some seeds "
    "begin to leave the plateau within 300 steps, 0.1 nats below it; which ones do, the last bit "
    "of the arithmetic decides. So it is the median of the seeds that is held to the plateau.",
    jobs=jobs_of(WARM, WARM_REVERSE),
)  # fmt: skip

SMALL = {"3e-3": WARM["post"][:1], "3e-4": seeds(TOUR.but(placement="post", lr=3e-4), 1)}

C16 = Claim(
    "C16",
    "A smaller learning rate",
    "A small fixed learning rate rescues a shallow Post-LN without warm-up",
    "Xiong et al. 2020, App. H",
    f"{SIX}, no warm-up, 300 steps, one seed; {FINAL}",
    lambda lab: runs_of(lab, SMALL),
    [
        Between("lr 3e-4", lambda n: n["3e-4"], high=2.8),
        Between("lr 3e-3, over lr 3e-4", lambda n: n["3e-3"] - n["3e-4"], low=0.2),
    ],
    lambda n, out: [
        losses_picture(
            out, "C16", {"lr 3e-3": ("post", "-", n["runs 3e-3"]),
                         "lr 3e-4": ("warm", "-", n["runs 3e-4"])},
            title="Training loss of Post-LN, 6 blocks", words="A smaller rate trains",
            levels=text_levels(), y_range=(1.5, 4.5),
        )
    ],
    jobs=jobs_of(SMALL),
)  # fmt: skip


# ---------------------------------------------------------------- C15

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
EDGE = "post 12 0.001 100"
BACKWARDS = {rule: seeds(REVERSE.but(placement=rule), 3) for rule in ("post", "pre")}
COPYING = {
    f"copy {rule}": seeds(COPY.but(placement=rule), 3) for rule in ("post", "pre", "deepnorm")
}


def depth(lab: Lab) -> Numbers:
    n = runs_of(lab, BACKWARDS) | runs_of(lab, COPYING)
    found = {name: lab.finals(jobs)[0] for name, jobs in DEEP.items()}
    for rule in ("post", "pre"):
        cells = [v for name, v in found.items() if name.startswith(rule) and name != EDGE]
        n[f"text {rule}"] = np.array(cells)
    n["edge"], n["pre at the edge"] = found[EDGE], found["pre 12 0.001 0"]
    return n


def draw_depth(n: Numbers, out: Path) -> list[plots.Picture]:
    curves = {"Post-LN": ("post", "-", n["runs post"]), "Pre-LN": ("pre", "-", n["runs pre"])}
    return [
        losses_picture(out, "C15", curves, title="Loss when reversing 16 symbols, 12 blocks",
                       words="Pre-LN learns it, Post-LN stays at chance",
                       levels=[("chance", CHANCE)], y_range=(0, 4)),
        copying_picture(n, out, "C15-copying"),
    ]  # fmt: skip


def copying_picture(n: Numbers, out: Path, name: str) -> plots.Picture:
    """Loss by step of the copy task."""
    curves = {"Post-LN": ("post", "-", n["runs copy post"]),
              "Pre-LN": ("pre", "-", n["runs copy pre"]),
              "DeepNorm": ("other", "--", n["runs copy deepnorm"])}  # fmt: skip
    return losses_picture(
        out, name, curves, title="Loss when copying 16 random symbols, 8 blocks",
        words="Pre-LN and DeepNorm learn it to the last symbol; Post-LN keeps guessing",
        levels=[("chance", CHANCE)], y_range=(0, 4),
    )  # fmt: skip


C15 = Claim(
    "C15",
    "Depth",
    "A deep Post-LN does not train at rates at which Pre-LN does, with or without a short warm-up",
    "Wang et al. 2019, Learning deep Transformer models; Xiong et al. 2020; PyTorch issue 55270",
    f"{SETUP}, d_ff = 128; 12 and 18 blocks, lr 1e-3 and 3e-3, warm-up 0 and 100, 250 steps, one "
    f"seed; {RECALL}, backwards (12 blocks, 300 steps) or once more (8 blocks, 400 steps), "
    f"lr 3e-3, no warm-up, 3 seeds; {FINAL}",
    depth,
    [
        Between("text, Post-LN, 5 cells (unigram 3.07)", lambda n: n["text post"], 3.0, 3.2),
        Between("text, Post-LN, 12 blocks at 1e-3 with warm-up: over Pre-LN at that rate",
                lambda n: n["edge"] - n["pre at the edge"], low=0.3),
        Between("text, Pre-LN, 3 cells (bigram 2.39)", lambda n: n["text pre"], high=2.45),
        Near("reversing, Post-LN: chance", lambda n: n["post"], CHANCE, within=0.05),
        Between("reversing, Pre-LN", lambda n: n["pre"], high=0.001),
        Near("copying, Post-LN: chance", lambda n: n["copy post"], CHANCE, within=0.05),
        Between("copying, Pre-LN and DeepNorm", _each("copy pre", "copy deepnorm"), high=0.001),
    ],
    draw_depth,
    note="12 blocks at 1e-3 with warm-up stand at the edge of what Post-LN can do: on this text "
    "they leave the plateau late, and get a third of the way to Pre-LN. On a text of 35,000 "
    "characters, the GNU GPL, they stay on it, too (3.14 to 3.18, unigram 3.17).",
    jobs=jobs_of(DEEP, BACKWARDS, COPYING),
)  # fmt: skip


# ---------------------------------------------------------------- C23

ZERO = {rule: seeds(BASE.but(placement=rule), 3) for rule in ("rezero", "pre")}


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
    f"{TWELVE}, lr 3e-3, no warm-up, 250 steps, 3 seeds; {FINAL}",
    rezero,
    [
        Near("gradient of every weight in the blocks at step 0", lambda n: n["others"], 0.0),
        Between("gradient of every gate at step 0", lambda n: n["gates"], low=1e-6),
        Between("final loss over the bigram guess", lambda n: n["rezero - bigram"], high=0),
        Between("final loss over Pre-LN's, mean of the seeds",
                lambda n: np.mean(n["rezero"] - n["pre"]), high=0),
    ],
    lambda n, out: [
        losses_picture(out, "C23", {"ReZero": ("warm", "-", n["runs rezero"]),
                                    "Pre-LN": ("pre", "-", n["runs pre"])},
                       title="Training loss, 12 blocks", words="ReZero trains as Pre-LN does",
                       levels=text_levels(), y_range=(1.5, 4.5))
    ],
    jobs=jobs_of(ZERO),
)  # fmt: skip

CLAIMS = [C12, C13, C15, C16, C23]
