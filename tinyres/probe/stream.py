"""What runs through a stack: its size, and how alike its vectors are."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from tinyres import checked, expect, fused
from tinyres.arrays import Array
from tinyres.context import no_grad
from tinyres.nn.module import Module
from tinyres.nn.transformer import TransformerLM
from tinyres.signatures import ArrayLike
from tinyres.tensor import Tensor

Batch: TypeAlias = "tuple[Tensor | ArrayLike, Tensor | ArrayLike]"  # tokens and targets
IGNORED = -1  # a target that does not count


def given(model: TransformerLM, batch: Batch) -> tuple[TransformerLM, Array, Array]:
    """What a probe works with: a copy of the model, tokens and targets."""
    return (copied(model), *tokens_and_targets(batch))


def copied(model: TransformerLM, others: Mapping[Module, Module] | None = None) -> TransformerLM:
    """The model once more, in eval mode and without gradients.

    Whatever is done to it, the model stays as it is. `others` stand in it for some of the modules.
    """
    expect.instance("probe: model", model, TransformerLM, "a TransformerLM")
    known: dict[int, Any] = {id(module): other for module, other in (others or {}).items()}
    for module in model.modules():  # what one keeps of its last call can't be copied
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                known[id(value)] = value
    other = copy.deepcopy(model, known)  # takes what is known already as it is
    other.eval()
    other.zero_grad()
    return other


def tokens_and_targets(batch: Batch) -> tuple[Array, Array]:
    """Both as arrays of integers."""
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise TypeError(f"probe: batch must be (tokens, targets), got {expect.shown(batch)}")
    tokens = checked.integers("probe: batch: tokens", batch[0])
    return tokens, checked.integers("probe: batch: targets", batch[1])


def states(model: TransformerLM, tokens: Tensor | ArrayLike) -> list[Any]:
    """What runs from block to block, for some placements several tensors, (blocks + 1) of them."""
    expect.instance("probe: model", model, TransformerLM, "a TransformerLM")
    with model.evaluating():
        return states_from(model, model.embed(tokens))


def states_from(model: TransformerLM, x_0: Tensor) -> list[Any]:
    """The same, given what the embedding returned."""
    values = [model.stack.begin(x_0)]
    for block in model.stack.blocks:
        values.append(block(values[-1]))
    return values


def stream(model: TransformerLM, tokens: Tensor | ArrayLike) -> list[Tensor]:
    """The residual stream x_0 ... x_L, each (batch, tokens, features).

    It is recorded: a loss made of it can be walked back into the model's own parameters.

    >>> import tinyres as tr
    >>> model = tr.nn.TransformerLM(vocab=5, d_model=8, heads=2, blocks=1, context=4, rng=0)
    >>> [x.shape for x in stream(model, [[1, 2, 3]])]
    [(1, 3, 8), (1, 3, 8)]
    """
    return [model.stack.placement.seen(state) for state in states(model, tokens)]


def loss_from(model: TransformerLM, state: Any, targets: Tensor | ArrayLike) -> Tensor:
    """The loss, given what the last block returned."""
    logits = model.head(model.stack.end(state))
    return fused.cross_entropy(logits, targets, ignore_index=IGNORED)


@no_grad()
def stream_rms(model: TransformerLM, batch: Batch) -> Array:
    """Root mean square of the stream, sqrt(mean(x_l ** 2)); axes (place,).

    In Pre-LN it grows like sqrt(depth) before training (Xiong et al. 2020, Lemma 2).
    """
    return np.array([np.sqrt(np.mean(_wide(x) ** 2)) for x in _stream_of(model, batch)])


@no_grad()
def token_cosine(model: TransformerLM, batch: Batch) -> Array:
    """Mean cosine between two tokens of one sequence, x_i . x_j / (|x_i| |x_j|); axes (place,).

    Near 1 all tokens have become the same vector: attention can't tell them apart any more, and
    no gradient reaches queries and keys (Dong et al. 2021, sec. 2).
    """
    return np.array([_mean_cosine(x) for x in _stream_of(model, batch)])


def _mean_cosine(x: Tensor) -> float:
    unit = _wide(x)
    unit /= np.linalg.norm(unit, axis=-1, keepdims=True) + 1e-300
    t = x.shape[1]
    if t < 2:
        return float("nan")  # a token alone has nobody to be compared with
    pairs = (unit.sum(1) ** 2).sum(-1) - t  # of each sequence: all ordered pairs of two tokens
    return float(pairs.mean() / (t * (t - 1)))


@no_grad()
def neighbour_cosine(model: TransformerLM, batch: Batch) -> Array:
    """Mean of x_(l-1) . x_l / (|x_(l-1)| |x_l|) over tokens; axes (block,).

    1 where a block does little; 1 minus it is the Block Influence (Men et al. 2024, eq. 1).
    """
    return np.array([c.mean() for c in _neighbours(model, batch)])


@no_grad()
def neighbour_angle(model: TransformerLM, batch: Batch) -> Array:
    """Mean of acos(cosine of x_(l-1) and x_l) / pi; axes (block,).

    0 for the same direction, 1/2 for a right angle (Gromov et al. 2024, eq. 6).
    """
    return np.array(
        [np.mean(np.arccos(np.clip(c, -1, 1))) / np.pi for c in _neighbours(model, batch)]
    )


def _neighbours(model: TransformerLM, batch: Batch) -> list[Array]:
    """The cosine of each token's vector before and after each block."""
    values = [_wide(x) for x in _stream_of(model, batch)]
    return [
        np.vecdot(a, b) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1))
        for a, b in itertools.pairwise(values)
    ]


def _stream_of(model: TransformerLM, batch: Batch) -> list[Tensor]:
    other, tokens, _ = given(model, batch)
    return stream(other, tokens)


def _wide(x: Tensor) -> Array:
    return x.data.astype(np.float64)
