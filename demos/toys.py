"""Small stacks whose behaviour at initialisation can be calculated: what the laws speak of.

They use the placements of the library as they are (`tr.nn.PLACEMENTS`) and replace what stands in
the branches: only feed-forward layers, or feed-forward and a mean over the tokens. Weights are
Xavier's; biases are 0 and play no part.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tinyres as tr
from tinyres.arrays import Array

Branch = Callable[[], tr.nn.Module]


class TokenMean(tr.nn.Module):
    """Attention without a choice: every token gets the mean of all, times W_V.

    It is what attention does where queries and keys are 0 (Xiong et al. 2020, sec. 3.3).

    >>> TokenMean(4, rng=0)(np.ones((1, 3, 4), np.float32)).shape
    (1, 3, 4)
    """

    def __init__(self, d_model: int, *, rng: Any = None):
        self.values = tr.nn.Linear(d_model, d_model, bias=False, rng=rng)

    def forward(self, x: Any) -> tr.Tensor:
        tokens = x.shape[-2]
        mean = np.full((tokens, tokens), 1 / tokens, np.float32)
        return tr.matmul(mean, self.values(x))


class Nothing(tr.nn.Module):
    """A branch that adds 0, so that only the skip is left."""

    def forward(self, x: tr.Tensor) -> tr.Tensor:
        return x * 0.0


class Toy(tr.nn.Module):
    """Branches of any kind, each in the given placement, and the final norm if it asks for one.

    `each` of them make a block, of which a rule may ask which one it is.

    >>> toy = Toy("pre", 4, [Nothing] * 3)
    >>> [x.shape for x in toy.stream(tr.Tensor(np.ones((1, 2, 4), np.float32)))]
    [(1, 2, 4), (1, 2, 4), (1, 2, 4), (1, 2, 4)]
    """

    def __init__(self, placement: Any, d_model: int, kinds: Sequence[Branch], each: int = 1):
        self.rule = rule = tr.nn.placement_class(placement)
        norm = functools.partial(tr.nn.LayerNorm, d_model, eps=1e-6, affine=False)
        whole = {"total": len(kinds), "blocks": len(kinds) // each}
        self.sublayers = [
            rule(kind(), norm, index=i + 1, block=i // each + 1, **whole)
            for i, kind in enumerate(kinds)
        ]
        self.first_norm = norm() if rule.first_norm else None
        self.final_norm = norm() if rule.final_norm else None

    def stream(self, x: tr.Tensor) -> list[tr.Tensor]:
        """x_0 ... x_L, before the final norm."""
        values = [self.rule.begin(x, self.first_norm)]
        for sublayer in self.sublayers:
            values.append(sublayer(values[-1]))
        return values

    def top(self, x: tr.Tensor) -> tr.Tensor:
        """What the stack returns, given the last value of its stream."""
        return self.rule.end(x, self.final_norm)

    def forward(self, x: Any) -> tr.Tensor:
        return self.top(self.stream(x)[-1])


def feed_forward_stack(
    placement: str, blocks: int, d: int = 256, ratio: float = 1.0, seed: int = 0
) -> Toy:
    """Only feed-forward branches, `ratio` times as wide inside: the stack of laws L1 to L4."""
    rng = np.random.default_rng(seed)
    return Toy(placement, d, [lambda: tr.nn.FeedForward(d, int(ratio * d), rng=rng)] * blocks)


class GainOne(tr.nn.Module):
    """W2 ReLU(W1 x) with He's weights, which keeps the power of x: the branch of law C21."""

    def __init__(self, d: int, *, rng: np.random.Generator):
        self.up = tr.nn.Parameter(rng.normal(0, (2 / d) ** 0.5, (d, d)).astype(np.float32))
        self.down = tr.nn.Parameter(rng.normal(0, (1 / d) ** 0.5, (d, d)).astype(np.float32))

    def forward(self, x: tr.Tensor) -> tr.Tensor:
        return tr.relu(x @ self.up) @ self.down


def xiong_stack(placement: str, blocks: int, d: int, seed: int = 0) -> Toy:
    """Mean over tokens, then feed-forward, `blocks` times (Xiong et al. 2020, sec. 3.3)."""
    rng = np.random.default_rng(seed)
    kinds: list[Branch] = [
        lambda: TokenMean(d, rng=rng),
        lambda: tr.nn.FeedForward(d, d, rng=rng),
    ]
    return Toy(placement, d, kinds * blocks, each=2)


def gaussian(shape: tuple[int, ...], seed: int) -> tr.Tensor:
    """An input of power 1 that asks for its gradient."""
    values = np.random.default_rng([seed, 7]).standard_normal(shape, dtype=np.float32)
    return tr.Tensor(values, requires_grad=True)


def power(x: Array) -> float:
    """Mean square."""
    return float(np.mean(np.square(x, dtype=np.float64)))


def token_norm(g: Array) -> float:
    """Root mean square, over tokens, of the norm of a token's vector."""
    return float(np.sqrt(np.mean(np.square(g, dtype=np.float64).sum(-1))))


def look(toy: Toy, x: tr.Tensor, seed: int) -> tuple[list[float], list[float]]:
    """Power of the stream and of its gradient at every depth, for a random cotangent of the top."""
    values = toy.stream(x)
    for value in values:
        value.retain_grad()
    top = toy.top(values[-1])
    toy.zero_grad()
    top.backward(np.random.default_rng([seed, 8]).standard_normal(top.shape, dtype=np.float32))
    return [power(v.data) for v in values], [power(v.grad) for v in values]


def look_at_xiong(toy: Toy, x: tr.Tensor, seed: int, vocabulary: int = 1000) -> dict[str, Array]:
    """Stream power, token gradients and W2 gradients of the loss that Xiong et al. speak of.

    A linear head of unit vectors and random labels; the loss is a mean over the tokens, whose
    number is taken out again, so that each token gives a gradient of length about 1.
    """
    rng = np.random.default_rng([seed, 9])
    sequences, tokens, d = x.shape
    head = (rng.standard_normal((d, vocabulary)) / d**0.5).astype(np.float32)
    values = toy.stream(x)[::2]
    for value in values:
        value.retain_grad()
    loss = tr.cross_entropy(
        tr.linear(toy.top(values[-1]), head), rng.integers(0, vocabulary, (sequences, tokens))
    )
    toy.zero_grad()
    loss.backward()
    w2 = [s.branch.down.weight.grad for s in toy.sublayers[1::2]]
    return {
        "stream": np.array([power(v.data) for v in values]),
        "stream gradient": sequences * tokens * np.array([token_norm(v.grad) for v in values]),
        "w2 gradient": np.array([np.linalg.norm(g) for g in w2]),
    }


def post_norm_inputs(toy: Toy, x: tr.Tensor) -> Array:
    """Power of x + f(x), the input of each feed-forward norm of Post-LN (Lemma 2), (blocks,)."""
    values = []
    with tr.no_grad():
        for i, sublayer in enumerate(toy.sublayers):
            if i % 2:
                values.append(power((x + sublayer.branch(x)).data))
            x = sublayer(x)
    return np.array(values)


def by_path_length(toy: Toy, x: tr.Tensor, seed: int) -> Array:
    """Power of the parts of the gradient at the bottom that crossed k branches, (branches + 1,)."""
    top = toy.stream(x)[-1]
    grad = np.random.default_rng([seed, 8]).standard_normal(top.shape, dtype=np.float32)
    parts = tr.probe.by_crossings(top, x, [s.branch for s in toy.sublayers], grad)
    return np.array([power(part) for part in parts])


def shift(rule: str, blocks: int, d: int, seed: int, eps: float = 0.01, tokens: int = 16) -> float:
    """E|F(x, W + noise) - F(x, W)|^2 / |F|^2 / eps^2 of a feed-forward stack."""
    toy = feed_forward_stack(rule, blocks, d, seed=seed)
    x = gaussian((tokens, 1, d), seed).detach()
    rng = np.random.default_rng([seed, 10])
    with tr.no_grad():
        toy.rule.profile(toy.sublayers, x)
        before = toy(x).data.astype(np.float64)
        for sublayer in toy.sublayers:
            for matrix in sublayer.branch.matrices().values():
                noise = rng.standard_normal(matrix.shape, dtype=np.float32)
                matrix += (eps * matrix.std()) * noise
        after = toy(x).data.astype(np.float64)
    return power(after - before) / power(before) / eps**2


def gradient_cosine(place: str, blocks: int, d: int, seed: int, inputs: int = 16) -> float:
    """Mean cosine of the gradients of v . x_L at two of some independent inputs."""
    rng = np.random.default_rng([seed, blocks])
    toy = Toy(place, d, [lambda: GainOne(d, rng=rng)] * blocks)
    x = gaussian((1, inputs, d), seed)
    v = rng.standard_normal(d).astype(np.float32)
    (toy.stream(x)[-1] * v).sum().backward()
    unit = x.grad[0].astype(np.float64)
    unit /= np.linalg.norm(unit, axis=-1, keepdims=True)
    return float((np.sum(unit.sum(0) ** 2) - inputs) / (inputs * (inputs - 1)))


# ---------------------------------------------------------------- whole models, before training

ZOO_VOCABULARY = 256


def zoo_model(
    placement: str, blocks: int, seed: int, d: int = 128
) -> tuple[tr.nn.TransformerLM, tuple[Array, Array]]:
    """A decoder of any placement with random weights, and a batch of random tokens and labels.

    Four heads, d_ff = 4 d, 32 tokens, 4 sequences. The input stream has power 1, the head rows of
    length 1, whatever the placement would choose for its embeddings.
    """
    rng = np.random.default_rng([seed, blocks])
    model = tr.nn.TransformerLM(
        ZOO_VOCABULARY, d, 4, blocks, 32, 4 * d, placement=placement, eps=1e-6, rng=rng
    )
    for table in (model.token, model.position):
        table.weight.data[...] = rng.normal(0, 0.5**0.5, table.weight.shape)
    model.head.weight.data[...] = rng.normal(0, d**-0.5, model.head.weight.shape)
    tokens, labels = rng.integers(0, ZOO_VOCABULARY, (2, 4, 32))
    model.stack.profile(model.embed(tokens))
    return model, (tokens, labels)


def w2_gradients(model: tr.nn.TransformerLM, batch: tuple[Array, Array]) -> Array:
    """Norm of the gradient of each block's W2, (blocks,)."""
    found = tr.probe.weight_gradients(model, batch)
    return np.array([g for name, g in found.items() if name.endswith("down.weight")])
