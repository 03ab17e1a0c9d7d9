"""What comes back through a stack: gradients of the stream and of the weights, and their way."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tinyres import cotangents, expect
from tinyres.arrays import CLOCK, Array
from tinyres.context import Scope
from tinyres.nn.module import Module
from tinyres.nn.transformer import TransformerLM
from tinyres.probe.stream import (
    Batch,
    copied,
    given,
    loss_from,
    states,
    states_from,
    stream_rms,
    tokens_and_targets,
)
from tinyres.signatures import ArrayLike
from tinyres.tensor import Node, Tensor


def stream_gradient(model: TransformerLM, batch: Batch) -> Array:
    """||dLoss/dx_l|| over the whole batch; axes (place,).

    NaN where the placement's stream is not one tensor that the loss depends on. In Post-LN it
    would fall as (2/3)^((L-l)/2) on its way down, if branches gave nothing back (Xiong et al. 2020,
    App. F); they do.
    """
    return np.array([_norm(g) for g in _of_stream(model, batch)])


def token_gradient(model: TransformerLM, batch: Batch) -> Array:
    """||dLoss/dx_l|| of each token; axes (place, sequence, token).

    The squares of all tokens add up to that of `stream_gradient`, which says where there is none.
    """
    gradients = _of_stream(model, batch)
    nowhere = np.full(np.shape(batch[0]), np.nan)
    return np.array([nowhere if g is None else _norm(g, axis=-1) for g in gradients])


def conserved_product(model: TransformerLM, batch: Batch) -> Array:
    """q_l s_l, relative to the top's; axes (place,).

    s_l is the mean square of the stream, q_l that of its gradient. 1 everywhere in a stack of
    ReLU feed-forward branches, in expectation and in the limit of great width: what the stream
    gains on its way up, the gradient gains on its way down (derivation: `demos/laws.py`, L1).
    """
    product = (stream_rms(model, batch) * stream_gradient(model, batch)) ** 2
    return np.asarray(product / product[-1])


def _of_stream(model: TransformerLM, batch: Batch) -> list[Array | None]:
    model, tokens, targets = given(model, batch)
    values = states(model, tokens)
    seen = [model.stack.placement.seen(state) for state in values]
    for x in seen:
        x.retain_grad()
    loss_from(model, values[-1], targets).backward()
    return [x.grad for x in seen]


def _norm(gradient: Array | None, axis: int | None = None) -> Any:
    """In double precision: a float32 has no square if it is below 1e-23 or above 2e19."""
    if gradient is None:
        return np.nan
    return np.linalg.norm(gradient.astype(np.float64), axis=axis)


def weight_gradients(model: TransformerLM, batch: Batch) -> dict[str, float]:
    """||dLoss/dW||, the root of the sum of squares, of each parameter by its path.

    NaN where there is no gradient (Xiong et al. 2020, Thm. 1, on the last W_2).
    """
    return mean_gradients(model, [batch])


def mean_gradients(model: TransformerLM, batches: Iterable[Batch]) -> dict[str, float]:
    """||mean over batches of dLoss/dW|| of each parameter, by its path.

    It estimates the norm of the expected gradient, which Xiong et al. 2020 plot (Fig. 3).
    """
    expect.instance("mean_gradients: batches", batches, Iterable, "a list of (tokens, targets)")
    model, pairs = copied(model), [tokens_and_targets(batch) for batch in batches]
    if not pairs:
        raise ValueError("mean_gradients: expected at least one batch, got none")
    for tokens, targets in pairs:
        loss_from(model, states(model, tokens)[-1], targets).backward()
    return {name: float(_norm(p.grad)) / len(pairs) for name, p in model.named_parameters()}


# ---------------------------------------------------------------- by which way it came


def gradient_by_path_length(model: TransformerLM, batch: Batch) -> Array:
    """Power of the parts of dLoss/dx_0 that crossed k branches; axes (k,), k = 0 ... sublayers.

    A gradient is a sum over paths, which take the skip or the branch at each sublayer (Veit et
    al. 2016, sec. 3). Its part of length k is exact: the walk back keeps the parts apart. Entry k
    is that part's sum of squares; divided by the sum of all it is a share.
    """
    model, tokens, targets = given(model, batch)
    branches = [s.branch for block in model.stack.blocks for s in block.sublayers()]
    x_0 = model.embed(tokens)
    top = states_from(model, x_0)[-1]
    parts = by_crossings(loss_from(model, top, targets), x_0, branches)
    return np.array([np.sum(np.square(part, dtype=np.float64)) for part in parts])


def skip_share(model: TransformerLM, batch: Batch) -> float:
    """Share of the gradient's power that reached x_0 by skips alone: p_0 / (p_0 + ... + p_n).

    p_k are those of `gradient_by_path_length`. It is the power of the term 1 in the sum that He et
    al. 2016 (Identity mappings, eq. 5) make of the gradient.
    """
    power = gradient_by_path_length(model, batch)
    return float(power[0] / power.sum())


def by_crossings(
    output: Tensor,
    source: Tensor,
    branches: Sequence[Module],
    grad: Tensor | ArrayLike | None = None,
) -> list[Array]:
    """The cotangent of `source` in parts that add up to it: part k crossed k of the branches.

    `grad` is the cotangent of `output`, as in `backward`. A pullback is linear, so that the parts
    can be carried through it one by one. A part becomes one longer where it steps from outside
    into a branch's output. That takes up to len(branches) + 1 times as long as a backward.

    >>> from tinyres.nn import Sequential
    >>> x, double = Tensor([1.0], requires_grad=True), Sequential(lambda x: x * 2)
    >>> by_crossings(x + double(x), x, [double])
    [array([1.], dtype=float32), array([2.], dtype=float32)]
    """
    for what, value in (("output", output), ("source", source)):
        expect.instance(f"by_crossings: {what}", value, Tensor, "a tensor")
    expect.instance("by_crossings: branches", branches, Sequence, "a list of modules")
    if output._node is None or source._node is None:
        raise ValueError("by_crossings: output and source must be values that were recorded")
    known = {id(branch) for branch in branches}
    seed = output._seed(grad)
    root, goal = output._node, source._node
    of: dict[Node, dict[int, Array]] = {root: {0: seed}}
    waiting = [(-root.number, root)]
    parts: dict[int, Array] = {}
    while waiting:
        node = heapq.heappop(waiting)[1]
        parts = of.pop(node)
        if node is goal:
            break
        if node.pullback is None:
            continue  # a leaf that is not the source: no way leads on from here
        CLOCK.check_unwritten(node.op, node.number, node.pullback)
        for k, g in parts.items():
            returned = cotangents.one_each(node.op, node.pullback(g), len(node.inputs))
            for slot, (h, before) in enumerate(zip(returned, node.inputs)):
                # What is older than the source, such as a parameter, can't lead to it.
                if before is None or not before.requires_grad or before.number < goal.number:
                    continue
                h = cotangents.fit(h, before.shape, before.dtype, g, node.op, slot)
                if before not in of:
                    of[before] = {}
                    heapq.heappush(waiting, (-before.number, before))
                length = k + _steps_in(node, before, known)
                found = of[before].get(length)
                of[before][length] = h if found is None else found + h
    else:
        raise ValueError("by_crossings: output does not depend on source")
    zero = np.zeros(source.shape, source.dtype)
    return [parts.get(k, zero) for k in range(len(branches) + 1)]


def _steps_in(node: Node, before: Node, known: set[int]) -> bool:
    inside = _call_of(before.scope, known)
    return inside is not None and inside is not _call_of(node.scope, known)


def _call_of(scope: Scope | None, known: set[int]) -> Scope | None:
    """The call of one of the known modules in which something was computed, if any."""
    while scope is not None:
        if scope.owner is not None and id(scope.owner()) in known:
            return scope
        scope = scope.parent
    return None
