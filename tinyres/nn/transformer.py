"""Blocks, stacks of blocks, and the language model on top."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tinyres import composed, expect, fused
from tinyres.arrays import Array
from tinyres.context import no_grad, scope
from tinyres.nn.layers import (
    Dropout,
    Embedding,
    FeedForward,
    LayerNorm,
    Linear,
    MultiHeadAttention,
    RMSNorm,
    Seed,
)  # fmt: skip
from tinyres.nn.module import Module, Parameter, Sequential
from tinyres.nn.residual import PLACEMENTS, Residual
from tinyres.tensor import Tensor

NORMS: dict[str, Any] = {"layer": LayerNorm, "rms": RMSNorm}


class TransformerBlock(Module):
    """Attention, then feed-forward, each with its norm and its addition.

    `placement` is a name in `PLACEMENTS` or a subclass of `Residual`; `first` and `total` count
    the sublayers of the stack.

    >>> TransformerBlock(8, heads=2, rng=0)(Tensor(np.ones((1, 5, 8)), dtype="f4")).shape
    (1, 5, 8)
    """

    level = 0

    def __init__(
        self,
        d_model: int,
        heads: int,
        d_ff: int | None = None,
        *,
        placement: str | type[Residual] = "pre",
        activation: str = "relu",
        causal: bool = False,
        norm: str = "layer",
        eps: float = 1e-5,
        dropout: float = 0.0,
        rng: Seed = None,
        first: int = 1,
        total: int = 2,
    ):
        rng = expect.generator("TransformerBlock", rng)
        d_model = expect.size("TransformerBlock: d_model", d_model)
        d_ff = 4 * d_model if d_ff is None else d_ff
        dropout = expect.number("TransformerBlock: dropout", dropout, 0, 1)
        rule = placement_class(placement)
        make_norm = functools.partial(expect.one_of("norm", norm, NORMS), d_model, eps=eps)

        def placed(branch: Module, index: int) -> Residual:
            branch = Sequential(branch, Dropout(dropout, rng=rng)) if dropout else branch
            return rule(branch, make_norm, index=index, total=total)

        attention = MultiHeadAttention(d_model, heads, causal=causal, rng=rng)
        feed_forward = FeedForward(d_model, d_ff, activation=activation, rng=rng)
        self.attention = placed(attention, first)
        self.feed_forward = placed(feed_forward, first + 1)

    def forward(self, x: Any) -> Tensor:
        return self.feed_forward(self.attention(x))


class TransformerStack(Module):
    """`blocks` blocks on top of each other, and a final norm where the placement asks for one.

    x (B, T, d_model) -> (B, T, d_model). Further arguments are those of TransformerBlock.

    >>> stack = TransformerStack(8, heads=2, blocks=3, placement="post", rng=0)
    >>> stack(np.ones((1, 5, 8), np.float32)).shape
    (1, 5, 8)
    """

    level = -1

    def __init__(
        self,
        d_model: int,
        heads: int,
        blocks: int,
        d_ff: int | None = None,
        *,
        placement: str | type[Residual] = "pre",
        rng: Seed = None,
        **options: Any,
    ):
        blocks = expect.size("TransformerStack: blocks", blocks)
        rng = expect.generator("TransformerStack", rng)
        options = dict(options, placement=placement, rng=rng, total=2 * blocks)
        self.blocks = [
            TransformerBlock(d_model, heads, d_ff, first=2 * i + 1, **options)
            for i in range(blocks)
        ]
        norm = NORMS[options.get("norm", "layer")]
        ends_in_norm = placement_class(placement).final_norm
        self.final_norm = norm(d_model, eps=options.get("eps", 1e-5)) if ends_in_norm else None

    def forward(self, x: Any) -> Tensor:
        x = x if isinstance(x, Tensor) else Tensor(x)
        for block in self.blocks:
            x = block(x)
        return x if self.final_norm is None else self.final_norm(x)

    def extra(self) -> str:
        return f"{len(self.blocks)} blocks"


class TiedHead(Module):
    """x W^T with the table W of an embedding: a word is likely where x points along its vector.

    Press and Wolf 2017, sec. 1.

    >>> table = Embedding(10, 4, rng=0).weight
    >>> TiedHead(table)(np.ones((1, 3, 4), np.float32)).shape
    (1, 3, 10)
    """

    level = 2

    def __init__(self, table: Parameter):
        self.weight = expect.instance("TiedHead: table", table, Parameter, "a Parameter")

    def forward(self, x: Any) -> Tensor:
        return fused.linear(x, self.weight.T)


class TransformerLM(Module):
    """A causal language model: embeddings, a stack, and a linear map to the logits.

    tokens (B, T) integers -> logits (B, T, vocab), T <= context. Positions are learned. `tied`
    uses the token table as the head's weight. Further arguments are those of TransformerStack.

    >>> model = TransformerLM(vocab=10, d_model=8, heads=2, blocks=2, context=5, rng=0)
    >>> model([[1, 2, 3]]).shape
    (1, 3, 10)
    """

    level = -1

    def __init__(
        self,
        vocab: int,
        d_model: int,
        heads: int,
        blocks: int,
        context: int,
        d_ff: int | None = None,
        *,
        tied: bool = False,
        rng: Seed = None,
        **options: Any,
    ):
        rng = expect.generator("TransformerLM", rng)
        options.setdefault("causal", True)
        self.context = expect.size("TransformerLM: context", context)
        self.token = Embedding(vocab, d_model, rng=rng)
        self.position = Embedding(context, d_model, rng=rng)
        self.stack = TransformerStack(d_model, heads, blocks, d_ff, rng=rng, **options)
        self.head: Module = TiedHead(self.token.weight) if tied else Linear(d_model, vocab, rng=rng)

    def forward(self, tokens: Any) -> Tensor:
        return self.head(self.stack(self.embed(tokens)))

    @scope("embed", level=2)
    def embed(self, tokens: Any) -> Tensor:
        """The first value of the residual stream: what the token is, plus where it stands."""
        tokens = composed.integers("TransformerLM: tokens", tokens)
        if tokens.ndim != 2 or tokens.shape[1] > self.context:
            raise ValueError(
                f"TransformerLM: tokens must be (batch, at most {self.context}), got {tokens.shape}"
            )
        return self.token(tokens) + self.position(np.arange(tokens.shape[1]))

    def loss(self, tokens: Any, targets: Any) -> Tensor:
        """Mean cross-entropy in nats of the next tokens, `targets` (B, T)."""
        return fused.cross_entropy(self(tokens), targets)

    @no_grad()
    def generate(
        self,
        prompt: Any,
        count: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        rng: Seed = None,
    ) -> Array:
        """`prompt` (T,) continued by `count` tokens, sampled from softmax(logits / temperature).

        `temperature=0` takes the likeliest token; `top_k` samples among the k likeliest.
        """
        count = expect.size("generate: count", count, least=0)
        temperature = expect.number("generate: temperature", temperature, 0)
        top_k = None if top_k is None else expect.size("generate: top_k", top_k)
        rng = expect.generator("generate", rng)
        tokens = composed.integers("generate: prompt", prompt).reshape(-1).tolist()
        if not tokens:
            raise ValueError("generate: the prompt is empty: give it at least one token")
        was_training = self.training
        self.eval()
        try:
            for _ in range(count):
                logits = self([tokens[-self.context :]]).data[0, -1].astype(np.float64)
                tokens.append(_sample(logits, temperature, top_k, rng))
        finally:
            self.train(was_training)
        return np.array(tokens)


def _sample(logits: Array, temperature: float, top_k: int | None, rng: np.random.Generator) -> int:
    if not np.isfinite(logits).all():
        raise FloatingPointError(
            "generate: the model gives logits that are not finite, so no token is likelier than "
            "another: tr.detect_anomaly() finds the op they come from"
        )
    if temperature == 0:
        return int(logits.argmax())
    if top_k is not None and top_k < logits.size:
        logits = np.where(logits >= np.partition(logits, -top_k)[-top_k], logits, -np.inf)
    # Noise of this form added to logits makes the argmax a sample from their softmax.
    return int((logits / temperature + rng.gumbel(size=logits.shape)).argmax())


def placement_class(placement: str | type[Residual]) -> type[Residual]:
    """The class that a placement's name stands for; a class stands for itself."""
    if isinstance(placement, type) and issubclass(placement, Residual):
        return placement
    rule: type[Residual] = expect.one_of("placement", placement, PLACEMENTS)
    return rule
