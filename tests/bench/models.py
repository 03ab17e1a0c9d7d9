"""What every peer trains: the workloads, the batch, the first weights, and tinyres' own step.

`build(workload)` of each peer returns a function that runs one training step (forward, backward,
Adam update) and returns its loss. All begin with the same weights and see the same batch, so the
losses of their first steps have to be the same: each run of the benchmark compares them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

Step: TypeAlias = Callable[[], float]
Weights: TypeAlias = dict[str, np.ndarray]


class Workload(NamedTuple):
    """A decoder-only Pre-LN model with FFN 4 d and a final norm, and the size of a batch."""

    d_model: int
    heads: int
    blocks: int
    tokens: int
    batch: int
    activation: str  # gelu is the tanh form everywhere
    vocab: int = 96


WORKLOADS = {
    "tiny": Workload(16, 1, 100, 16, 4, "relu"),
    "deep": Workload(32, 2, 48, 32, 8, "relu"),
    "class": Workload(64, 4, 12, 64, 16, "relu"),
    "class-gelu": Workload(64, 4, 12, 64, 16, "gelu"),
    "wide": Workload(256, 8, 6, 128, 16, "gelu"),
}
# How tinyres calls the weights of a block.
OURS = {
    "norm1.weight": "attention.norm.gamma", "norm1.bias": "attention.norm.beta",
    "qkv.weight": "attention.branch.qkv.weight", "qkv.bias": "attention.branch.qkv.bias",
    "out.weight": "attention.branch.out.weight", "out.bias": "attention.branch.out.bias",
    "norm2.weight": "feed_forward.norm.gamma", "norm2.bias": "feed_forward.norm.beta",
    "up.weight": "feed_forward.branch.up.weight", "up.bias": "feed_forward.branch.up.bias",
    "down.weight": "feed_forward.branch.down.weight", "down.bias": "feed_forward.branch.down.bias",
}  # fmt: skip


def batch_of(w: Workload) -> tuple[np.ndarray, np.ndarray]:
    """Random tokens and the tokens that follow them."""
    text = np.random.default_rng(0).integers(0, w.vocab, (w.batch, w.tokens + 1))
    return text[:, :-1], text[:, 1:]


def weights_of(w: Workload) -> tuple[list[Weights], Weights]:
    """The weights of each block, and those around the blocks; matrices are for `x @ W + b`."""
    rng = np.random.default_rng(1)
    d = w.d_model

    def normal(deviation: float, *shape: int) -> np.ndarray:
        return (deviation * rng.standard_normal(shape)).astype(np.float32)

    def linear(name: str, n_in: int, n_out: int) -> Weights:
        shapes = {"weight": (n_in, n_out), "bias": (n_out,)}
        return {f"{name}.{k}": normal(0.5 * n_in**-0.5, *s) for k, s in shapes.items()}

    def norm(name: str) -> Weights:
        return {f"{name}.weight": 1 + normal(0.1, d), f"{name}.bias": normal(0.1, d)}

    blocks = [
        {**norm("norm1"), **linear("qkv", d, 3 * d), **linear("out", d, d),
         **norm("norm2"), **linear("up", d, 4 * d), **linear("down", 4 * d, d)}
        for _ in range(w.blocks)
    ]  # fmt: skip
    tables = {"token.weight": normal(0.1, w.vocab, d), "position.weight": normal(0.1, w.tokens, d)}
    return blocks, {**tables, **norm("norm"), **linear("head", d, w.vocab)}


def build_tinyres(w: Workload, way: str = "one batch") -> Step:
    """A step of tinyres, "replayed" or not; in two "threads" or "processes" of half a batch."""
    import tinyres as tr

    model = tr.nn.TransformerLM(
        w.vocab, w.d_model, w.heads, w.blocks, w.tokens, activation=w.activation, rng=0
    )
    blocks, around = weights_of(w)
    norm = {"norm.weight": "stack.final_norm.gamma", "norm.bias": "stack.final_norm.beta"}
    own = {norm.get(name, name): array for name, array in around.items()}
    for i, block in enumerate(blocks):
        own |= {f"stack.blocks.{i}.{OURS[name]}": array for name, array in block.items()}
    model.load_state_dict(own)
    optimizer = tr.optim.Adam(model.parameters(), lr=1e-3)
    tokens, targets = batch_of(w)

    def one_batch(*batch: np.ndarray) -> float:
        loss = model.loss(*batch)
        loss.backward()
        return loss.item()

    if way == "replayed":
        loss_and_gradients = tr.Replay(model.loss, model.parameters()).backward
    elif way.endswith("processes"):
        replay = way.startswith("replayed")
        loss_and_gradients = tr.Processes(model.loss, model.parameters(), replay=replay).backward
    else:
        in_threads = functools.partial(tr.data_parallel, model.loss, threads=2)
        loss_and_gradients = in_threads if way == "threads" else one_batch

    def step() -> float:
        optimizer.zero_grad()
        loss = loss_and_gradients(tokens, targets)
        optimizer.step()
        return loss

    return step


def build_bare_products(w: Workload) -> Step:
    """Only the matrix products of that step, in NumPy: the limit for anything built on it."""
    from tinyres.memory import keep_pages

    keep_pages()
    rng = np.random.default_rng(0)
    n, d = w.batch * w.tokens, w.d_model

    def array(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    linears = [(array(n, i), array(i, o), array(n, o)) for i, o in
               [(d, 3 * d), (d, d), (d, 4 * d), (4 * d, d)]]  # fmt: skip
    q, g = (array(w.batch, w.heads, w.tokens, d // w.heads) for _ in range(2))
    scores = array(w.batch, w.heads, w.tokens, w.tokens)
    head = array(n, d), array(d, w.vocab), array(n, w.vocab)

    def linear(x: np.ndarray, weight: np.ndarray, gy: np.ndarray) -> None:
        _ = x @ weight, gy @ weight.T, x.T @ gy

    def step() -> float:
        for _ in range(w.blocks):
            for parts in linears:
                linear(*parts)
            _ = q @ q.swapaxes(-1, -2), g @ q.swapaxes(-1, -2)
            _ = scores @ q, scores.swapaxes(-1, -2) @ g, scores @ g, scores.swapaxes(-1, -2) @ q
        linear(*head)
        return float("nan")

    return step
