"""What happens inside the blocks: norms, attention, and which sublayer a vector is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyres.arrays import Array
from tinyres.context import no_grad
from tinyres.nn.layers import MultiHeadAttention
from tinyres.nn.module import Module
from tinyres.nn.transformer import TransformerLM
from tinyres.probe.stream import Batch, copied, given, states, states_from
from tinyres.tensor import Tensor


class StandIn(Module):
    """Stands for a module in a copy of the model: act(module, ...) is what comes of its calls."""

    def __init__(self, module: Module, act: Callable[..., Any]):
        self.module = module
        self.act = act

    def forward(self, *args: Any) -> Any:
        return self.act(self.module, *args)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["module"], name)  # a rule may ask for the gain of its norm, say


def acting(model: TransformerLM, *parts: tuple[Sequence[Module], Any]) -> TransformerLM:
    """A copy of the model in which, for each (modules, act), stand-ins act for the modules."""
    others = {module: StandIn(module, act) for modules, act in parts for module in modules}
    return copied(model, others)


@no_grad()
def norm_input_rms(model: TransformerLM, batch: Batch) -> Array:
    """RMS of what each norm gets, sqrt(mean(x ** 2)); axes (call of a norm,), in their order.

    In Post-LN it says how much a norm has to shrink the stream (Wang et al. 2022, Fig. 4).
    """
    model, tokens, _ = given(model, batch)
    inputs: list[float] = []

    def listen(norm: Module, x: Any) -> Any:
        values = x.data if isinstance(x, Tensor) else np.asarray(x)
        inputs.append(float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))))
        return norm(x)

    norms = [m for m in model.stack.modules() if m.role == "norm"]
    heard = acting(model, (norms, listen))
    heard.stack(heard.embed(tokens))
    return np.array(inputs)


@no_grad()
def attention_entropy(model: TransformerLM, batch: Batch) -> Array:
    """Mean of -sum(a ln a) / ln n over tokens that see n keys with weights a; axes (block, head).

    1 where a head averages over everything that it may see, 0 where it looks at one token
    (collapse of the entropy: Zhai et al. 2023, sec. 3).
    """
    model, tokens, _ = given(model, batch)
    rows: list[Array] = []

    def listen(attention: Any, x: Tensor) -> Any:
        rows.append(_entropies(attention.weights(x), attention.causal))
        return attention(x)

    heads = [m for m in model.stack.modules() if isinstance(m, MultiHeadAttention)]
    states(acting(model, (heads, listen)), tokens)
    return np.array(rows)


def _entropies(weights: Array, causal: bool) -> Array:
    """Entropy of each head's weights (B, h, T, T), relative to that of a uniform choice."""
    p = weights.astype(np.float64)
    entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(-1)  # (B, h, T)
    # Not the weights above 0: one that underflowed belongs to a key that could have been chosen.
    keys = np.arange(1, p.shape[-2] + 1) if causal else np.full(p.shape[-2], p.shape[-1])
    choice = keys > 1  # a token that sees only itself has none
    share: Array = (entropy / np.log(np.maximum(keys, 2))).mean(0)  # (h, T)
    return np.asarray(share @ choice / max(choice.sum(), 1))


@no_grad()
def dependency(model: TransformerLM, batch: Batch) -> Array:
    """Share of each sublayer in what each block returns; axes (place, source).

    Source 0 is the embedding, source j what sublayer j adds. With norms held at the scale that
    they have on this batch, x_i is a sum of one vector from each source; entry (i, j) is the root
    of the share of source j in the sum of their squares. So the squares of a row add up to 1.
    It is the matrix beta of Admin (Liu et al. 2020, sec. 3.2), measured.
    """
    model, tokens, _ = given(model, batch)
    placement = model.stack.placement
    branches = [s.branch for block in model.stack.blocks for s in block.sublayers()]
    inside = {id(m) for branch in branches for m in branch.modules()}
    norms = [m for m in model.stack.modules() if m.role == "norm" and id(m) not in inside]
    slopes: list[Array] = []
    outputs: list[Tensor] = []

    def remember_slope(norm: Module, x: Tensor) -> Any:
        slopes.append(_slope(norm, x.data))
        return norm(x)

    def remember_output(branch: Module, x: Tensor) -> Any:
        outputs.append(branch(x))
        return outputs[-1]

    x_0 = model.embed(tokens)
    states_from(acting(model, (norms, remember_slope), (branches, remember_output)), x_0)
    left_slopes, added = iter(slopes), iter(outputs)  # of each run below
    linear = acting(
        model,
        (norms, lambda norm, x: _scaled(norm, x, next(left_slopes))),
        (branches, lambda *_: next(added)),
    )
    powers = []
    for source in range(len(branches) + 1):
        left_slopes = iter(slopes)
        added = iter([Tensor(y.data * (j == source)) for j, y in enumerate(outputs, 1)])
        run = states_from(linear, x_0 if source == 0 else x_0 * 0.0)
        seen = [placement.seen(state).data.astype(np.float64) for state in run]
        powers.append([np.sum(x**2) for x in seen])
    shares = np.array(powers).T
    return np.asarray(np.sqrt(shares / shares.sum(1, keepdims=True)))


def _slope(norm: Module, x: Array) -> Array:
    """One over the scale by which a norm divides each token's vector."""
    if not hasattr(norm, "eps") or not hasattr(norm, "gamma"):
        raise ValueError(
            f"dependency: {type(norm).__name__} does not divide by a scale, so that x is no sum "
            "of what the sublayers add"
        )
    variance: Array = np.mean(_centred(norm, x) ** 2, -1, keepdims=True)
    return np.asarray(1 / np.sqrt(variance + norm.eps))


def _scaled(norm: Any, x: Tensor, slope: Array) -> Tensor:
    """What a norm does to x, with the scale of another input."""
    y: Tensor = _centred(norm, x) * slope
    return y if norm.gamma is None else y * norm.gamma


def _centred(norm: Module, x: Any) -> Any:
    """x less the mean of each token's vector, where the norm takes that off."""
    if not hasattr(norm, "beta"):
        return x
    x = x - x[..., :1]  # a vector far from 0 keeps its digits when the mean is taken
    return x - x.mean(-1, keepdims=True)
