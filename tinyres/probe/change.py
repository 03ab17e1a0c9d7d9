"""What changes when weights do: by training, by noise, by leaving a block out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tinyres import expect
from tinyres.arrays import Array
from tinyres.context import no_grad
from tinyres.nn.layers import Seed
from tinyres.nn.transformer import TransformerLM
from tinyres.probe.stream import Batch, given, loss_from, states


def update_ratio(before: dict[str, Array], after: dict[str, Array]) -> dict[str, float]:
    """||W_after - W_before|| / ||W_before|| of each parameter, from two state dicts.

    About 1e-3 a step is a healthy size (Karpathy, CS231n notes, Neural networks 3).

    >>> update_ratio({"w": np.array([3.0, 4.0])}, {"w": np.array([3.0, 4.5])})
    {'w': 0.1}
    """
    for which, state in (("before", before), ("after", after)):
        expect.instance(f"update_ratio: {which}", state, Mapping, "a state dict")
    if before.keys() != after.keys():
        raise KeyError(
            "update_ratio: both states must have the same names, but before has "
            f"{sorted(before)} and after {sorted(after)}"
        )
    return {
        name: float(np.linalg.norm(after[name] - w) / max(float(np.linalg.norm(w)), 1e-30))
        for name, w in before.items()
    }


@no_grad()
def model_update(model: TransformerLM, batch: Batch, before: dict[str, Array]) -> float:
    """RMS of F(x, theta) - F(x, theta_before), F being what the stack returns.

    `before` is a state dict of this model. Where F ends in a norm, its RMS is 1, and that of the
    change at most 2 (Wang et al. 2022, DeepNet, Fig. 4 and 5).
    """
    model, tokens, _ = given(model, batch)
    now = _top(model, tokens)
    model.load_state_dict(before)
    change = now - _top(model, tokens)
    return float(np.sqrt(np.mean(change**2)))


@no_grad()
def output_shift(
    model: TransformerLM, batch: Batch, *, eps: float = 0.02, rng: Seed = None
) -> float:
    """E|F(x, W + noise) - F(x, W)|^2 / (|F|^2 eps^2), F being what the stack returns.

    Each matrix of attention and feed-forward gets noise of eps times its own standard deviation
    (Liu et al. 2020, Admin, sec. 4.2).
    """
    model, tokens, _ = given(model, batch)
    if expect.number("output_shift: eps", eps, 0) == 0:
        raise ValueError("output_shift: eps must be above 0, got 0")
    rng = expect.generator("output_shift", rng)
    before = _top(model, tokens)
    for module in model.stack.modules():
        for matrix in getattr(module, "matrices", dict)().values():
            noise = rng.standard_normal(matrix.shape, dtype=np.float32)
            matrix += (eps * matrix.std()) * noise
    after = _top(model, tokens)
    return float(np.sum((after - before) ** 2) / np.sum(before**2) / eps**2)


@no_grad()
def ablation(model: TransformerLM, batch: Batch) -> Array:
    """By how much the loss grows when one block is left out; axes (block,).

    The stream passes by the block unchanged (Veit et al. 2016, sec. 4.1).
    """
    model, tokens, targets = given(model, batch)
    if model.stack.placement.remembers:
        raise ValueError(
            f"ablation: in {model.stack.placement.__name__} each block needs what all before it "
            "returned, so that none can be left out"
        )
    places = states(model, tokens)
    whole = loss_from(model, places[-1], targets).item()
    rises = []
    for i in range(len(model.stack.blocks)):
        state = places[i]
        for block in model.stack.blocks[i + 1 :]:
            state = block(state)
        rises.append(loss_from(model, state, targets).item() - whole)
    return np.array(rises)


def _top(model: TransformerLM, tokens: Array) -> Array:
    """What the stack returns, in double precision."""
    return model.stack(model.embed(tokens)).data.astype(np.float64)
