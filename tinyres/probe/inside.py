"""What happens inside the blocks: norms, attention, and which sublayer a vector is made of."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tinyres.arrays import Array
from tinyres.context import no_grad
from tinyres.nn.layers import MultiHeadAttention
from tinyres.nn.module import Module
from tinyres.nn.transformer import TransformerLM
from tinyres.probe.stream import Batch, given, states, states_from
from tinyres.tensor import Tensor


@contextlib.contextmanager
def acting(modules: Sequence[Module], act: Callable[[Module, Any], Any]) -> Iterator[None]:
    """Inside, a call of one of the modules gives act(module, its own forward)(arguments)."""
    unique = {id(module): module for module in modules}.values()
    for module in unique:
        vars(module)["forward"] = act(module, module.forward)
    try:
        yield
    finally:
        for module in unique:
            del vars(module)["forward"]


@no_grad()
def norm_input_rms(model: TransformerLM, batch: Batch) -> Array:
    """RMS of what each norm gets; axes (call of a norm,), in the order of the calls.

    In Post-LN it says how much a norm has to shrink the stream (Wang et al. 2022, Fig. 4).
    """
    inputs: list[float] = []

    def listen(_: Module, forward: Any) -> Any:
        def heard(x: Any) -> Tensor:
            values = x.data if isinstance(x, Tensor) else np.asarray(x)
            inputs.append(float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))))
            return forward(x)

        return heard

    tokens = given(model, batch)[0]
    with acting([m for m in model.stack.modules() if m.role == "norm"], listen):
        model.stack(model.embed(tokens))
    return np.array(inputs)


@no_grad()
def attention_entropy(model: TransformerLM, batch: Batch) -> Array:
    """Mean entropy of the attention weights over log(number of keys seen); axes (block, head).

    1 where a head averages over everything that it may see, 0 where it looks at one token
    (collapse of the entropy: Zhai et al. 2023, sec. 3).
    """
    tokens = given(model, batch)[0]
    rows: list[Array] = []

    def listen(attention: Module, forward: Any) -> Any:
        def heard(x: Tensor, *beside: Any) -> Tensor:
            rows.append(_entropies(attention.weights(x, *beside)))  # type: ignore[attr-defined]
            return forward(x, *beside)

        return heard

    heads = [m for m in model.stack.modules() if isinstance(m, MultiHeadAttention)]
    with acting(heads, listen):
        states(model, tokens)
    return np.array(rows)


def _entropies(weights: Array) -> Array:
    """Entropy of each head's weights (B, h, T, S), relative to that of a uniform choice."""
    p = weights.astype(np.float64)
    entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(-1)  # (B, h, T)
    keys = (p > 0).sum(-1)
    choice = keys > 1  # a token that sees only itself has none
    share = entropy / np.log(np.maximum(keys, 2))
    total: Array = np.sum(share, axis=(0, 2), where=choice) / np.maximum(choice.sum((0, 2)), 1)
    return total


@no_grad()
def dependency(model: TransformerLM, batch: Batch) -> Array:
    """Share of each sublayer in what each block returns; axes (place, source).

    Source 0 is the embedding, source j what sublayer j adds. With norms held at the scale that
    they have on this batch, x_i is a sum of one vector from each source; entry (i, j) is the root
    of the share of source j in the sum of their squares. So the squares of a row add up to 1.
    It is the matrix beta of Admin (Liu et al. 2020, sec. 3.2), measured.
    """
    tokens, placement = given(model, batch)[0], model.stack.placement
    branches = [s.branch for block in model.stack.blocks for s in block.sublayers()]
    inside = {id(m) for branch in branches for m in branch.modules()}
    norms = [m for m in model.stack.modules() if m.role == "norm" and id(m) not in inside]
    slopes: list[Array] = []
    outputs: list[Tensor] = []

    def remember_slope(norm: Module, forward: Any) -> Any:
        def heard(x: Tensor) -> Tensor:
            slopes.append(_slope(norm, x.data))
            return forward(x)

        return heard

    def remember_output(_: Module, forward: Any) -> Any:
        def heard(*args: Any) -> Any:
            outputs.append(forward(*args))
            return outputs[-1]

        return heard

    x_0 = model.embed(tokens)
    with acting(norms, remember_slope), acting(branches, remember_output):
        states_from(model, x_0)
    powers = []
    for source in range(len(branches) + 1):
        left_slopes = iter(slopes)
        added = iter(Tensor(y.data * (j == source)) for j, y in enumerate(outputs, 1))
        with (
            acting(norms, lambda norm, _: lambda x: _scaled(norm, x, next(left_slopes))),  # noqa: B023
            acting(branches, lambda *_: lambda *__: next(added)),  # noqa: B023
        ):
            run = states_from(model, x_0 if source == 0 else x_0 * 0.0)
            seen = [placement.seen(state).data.astype(np.float64) for state in run]
        powers.append([np.sum(x**2) for x in seen])
    shares = np.array(powers).T
    return np.sqrt(shares / shares.sum(1, keepdims=True))


def _slope(norm: Module, x: Array) -> Array:
    """One over the scale by which a norm divides each token's vector."""
    if not hasattr(norm, "eps") or not hasattr(norm, "gamma"):
        raise ValueError(
            f"dependency: {type(norm).__name__} does not divide by a scale, so that x is no sum "
            "of what the sublayers add"
        )
    centred = x - x.mean(-1, keepdims=True) if hasattr(norm, "beta") else x
    return 1 / np.sqrt(np.mean(centred**2, -1, keepdims=True) + norm.eps)


def _scaled(norm: Any, x: Tensor, slope: Array) -> Tensor:
    """What a norm does to x, with the scale of another input."""
    centred = x - x.mean(-1, keepdims=True) if hasattr(norm, "beta") else x
    y = centred * slope
    return y if norm.gamma is None else y * norm.gamma
