"""The pictures of graphs that the README shows: python -m demos.draw_blocks --gallery DIR."""

from __future__ import annotations

from typing import Any

import tinyres as tr
from demos import text
from demos.draw_blocks import draw_block, draw_stack, make_batch, make_model, measure
from demos.report import BOTH
from demos.training import Setting, Trainer, make_task
from tinyres.graph.render import Pair


def block_pair() -> Pair:
    """A block of each placement, side by side."""
    models = [make_model(placement, 1, activation="gelu") for placement in BOTH]
    tokens, _ = make_batch()
    with tr.spelled_out():
        logits = [model(tokens) for model in models]
    return tr.draw_pair(*logits, titles=tuple(BOTH.values()), depth=2)


def graphs() -> dict[str, Any]:
    """Blocks and stacks, by file name."""
    drawings: dict[str, Any] = {"blocks": block_pair()}
    for placement in BOTH:
        drawings[f"{placement}-block"] = draw_block(placement)
        drawings[f"{placement}-primitives"] = draw_block(placement, depth=3)
        drawings[f"{placement}-stack24"] = draw_stack(placement, 24)
        drawings[f"{placement}-stack6-LR"] = draw_stack(placement, 6, fold=False, rankdir="LR")
    return drawings


def gradients(moments: tuple[int, ...] = (0, 5, 200)) -> dict[str, Pair]:
    """Both placements on real text, before and after steps of Adam without warm-up."""
    setting = Setting(blocks=12, d_model=32, d_ff=128, batch=8, lr=1e-3, beta2=0.999)
    task = make_task(setting, text.load())
    trainers = [Trainer(setting.but(placement=placement), task) for placement in BOTH]
    tokens, targets = task.held_out()
    drawings = {}
    for moment in moments:
        for trainer in trainers:
            while trainer.done < moment:
                trainer.step()
        drawings[f"gradient-step{moment}"] = tr.draw_pair(
            *(measure(trainer.model, (tokens[:16], targets[:16])) for trainer in trainers),
            titles=tuple(f"{name}, step {moment}" for name in BOTH.values()), depth=1, fold=True,
        )  # fmt: skip
    return drawings


def all_of_them() -> dict[str, Any]:
    """All of them, by file name."""
    return {**graphs(), **gradients()}
