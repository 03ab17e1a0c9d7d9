"""Blocks, stacks of blocks, and the language model on top."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from tinyres import checked, expect, fused
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
from tinyres.nn.placements import placement_class
from tinyres.nn.residual import BlockRule, Branch, NormLayer, Place, Placement
from tinyres.signatures import ArrayLike
from tinyres.tensor import Tensor

NORMS: dict[str, Callable[..., NormLayer]] = {"layer": LayerNorm, "rms": RMSNorm}


class TransformerBlock(Module):
    """Attention, then feed-forward, each with its norm and its addition.

    `placement` is a name in `PLACEMENTS` or a class; it is told that this is block `block` of
    `blocks`, and of an encoder also the `decoder_blocks` beside it. With `cross` it is the block
    of a decoder, `block(x, memory)`: between the two stands attention to the memory
    (B, S, d_model). `block(x, mask=mask)` keeps tokens from attending to others (`attention`).

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
        placement: str | type[Placement] = "pre",
        activation: str = "relu",
        causal: bool = False,
        cross: bool = False,
        norm: str = "layer",
        eps: float = 1e-5,
        dropout: float = 0.0,
        rng: Seed = None,
        block: int = 1,
        blocks: int = 1,
        decoder_blocks: int = 0,
    ):
        rng = expect.generator("TransformerBlock", rng)
        d_model = expect.size("TransformerBlock: d_model", d_model)
        d_ff = 4 * d_model if d_ff is None else expect.size("TransformerBlock: d_ff", d_ff)
        dropout = expect.number("TransformerBlock: dropout", dropout, 0, 1)
        rule: Any = placement_class(placement)
        by_block = issubclass(rule, BlockRule)
        if by_block and cross:
            raise ValueError(
                f"TransformerBlock: {rule.__name__} is the rule of a block of two sublayers, but "
                "with cross-attention there are three: choose a placement that is a Residual"
            )
        norm_of = norm_factory(rule, norm, eps)
        make_norm = functools.partial(norm_of, d_model)
        each = 3 if cross else 2
        place: dict[str, Any] = dict(block=block, blocks=blocks, decoder_blocks=decoder_blocks)
        index = itertools.count(each * (Place(**place).block - 1) + 1)

        def placed(branch: Module, cross: bool = False) -> Module:
            branch = WithDropout(branch, Dropout(dropout, rng=rng)) if dropout else branch
            if by_block:
                return Branch(branch)
            where = {**place, "index": next(index), "total": each * blocks, "cross": cross}
            sublayer: Module = rule(branch, make_norm, **where)
            return sublayer

        def attention(causal: bool, cross: bool = False) -> Module:
            options = {"norm": norm_of, "rng": rng, **rule.in_attention}
            return placed(MultiHeadAttention(d_model, heads, causal=causal, **options), cross)

        options = {"norm": norm_of, "rng": rng, **rule.in_feed_forward}
        self.attention: Any = attention(causal)
        self.cross_attention: Any = attention(causal=False, cross=True) if cross else None
        self.feed_forward: Any = placed(
            FeedForward(d_model, d_ff, activation=activation, **options)
        )
        self.rule = rule(make_norm, **place) if by_block else None

    def forward(
        self,
        stream: Any,
        memory: Tensor | ArrayLike | None = None,
        mask: Tensor | ArrayLike | None = None,
    ) -> Any:
        if (memory is None) != (self.cross_attention is None):
            given, cure = ("no memory", "give one") if memory is None else ("a memory", "leave it")
            raise ValueError(
                f"TransformerBlock: got {given}, but was made with "
                f"cross={self.cross_attention is not None}: {cure}, or make it otherwise"
            )
        if self.rule is not None and mask is None:
            return self.rule(stream, self.attention, self.feed_forward)
        if self.rule is not None:
            raise ValueError(f"TransformerBlock: {type(self.rule).__name__} hands no mask on")
        stream = self.attention(stream, mask=mask)
        if self.cross_attention is not None:
            stream = self.cross_attention(stream, memory)
        return self.feed_forward(stream)

    def sublayers(self) -> list[Any]:
        """Attention, cross-attention if there is one, feed-forward; each with what is round it."""
        found = (self.attention, self.cross_attention, self.feed_forward)
        return [sublayer for sublayer in found if sublayer is not None]


class WithDropout(Sequential):
    """A sublayer, then dropout; what the sublayer gets beside x is handed on to it."""

    def forward(self, x: Tensor | ArrayLike, *beside: Any) -> Tensor:
        sublayer, dropout = self.layers
        y: Tensor = dropout(sublayer(x, *beside))
        return y


class TransformerStack(Module):
    """`blocks` blocks on top of each other, and a final norm where the placement asks for one.

    x (B, T, d_model) -> (B, T, d_model). Further arguments are those of TransformerBlock, also of
    the call: `stack(x, memory, mask)`. The stack is `end(block(... block(begin(x))))`; what runs
    from block to block is x or, for some placements, several tensors.

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
        placement: str | type[Placement] = "pre",
        rng: Seed = None,
        **options: Any,
    ):
        blocks = expect.size("TransformerStack: blocks", blocks)
        rng = expect.generator("TransformerStack", rng)
        options = dict(options, placement=placement, rng=rng, blocks=blocks)
        self.placement = placement_class(placement)
        self.blocks = [
            TransformerBlock(d_model, heads, d_ff, block=i + 1, **options) for i in range(blocks)
        ]
        norm = norm_factory(self.placement, options.get("norm", "layer"), options.get("eps", 1e-5))
        self.first_norm = norm(d_model) if self.placement.first_norm else None
        self.final_norm = norm(d_model) if self.placement.final_norm else None

    def forward(
        self,
        x: Tensor | ArrayLike,
        memory: Tensor | ArrayLike | None = None,
        mask: Tensor | ArrayLike | None = None,
    ) -> Tensor:
        stream = self.begin(x)
        for block in self.blocks:
            stream = block(stream, memory, mask)
        return self.end(stream)

    def begin(self, x: Tensor | ArrayLike) -> Any:
        """The stream below the first block."""
        return self.placement.begin(x if isinstance(x, Tensor) else Tensor(x), self.first_norm)

    def end(self, stream: Any) -> Tensor:
        """What the stack returns, from the stream above the last block."""
        return self.placement.end(stream, self.final_norm)

    def profile(self, x: Tensor, memory: Tensor | None = None) -> None:
        """Set the constants that a placement measures on a batch (Admin); most have none."""
        self.placement.profile([s for block in self.blocks for s in block.sublayers()], x, memory)

    def extra(self) -> str:
        return f"{len(self.blocks)} blocks"


def norm_factory(rule: type[Placement], norm: str, eps: float) -> Callable[[int], NormLayer]:
    """What makes a norm of a given width: the rule's own kind, or the one of this name."""
    eps = expect.number("norm: eps", eps, 0)
    return rule.norm_of(expect.one_of("norm", norm, NORMS), eps)


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

    def forward(self, x: Tensor | ArrayLike) -> Tensor:
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
        expect.size("TransformerLM: vocab", vocab)
        self.context = expect.size("TransformerLM: context", context)
        self.token = Embedding(vocab, d_model, rng=rng)
        self.position = Embedding(context, d_model, rng=rng)
        self.stack = TransformerStack(d_model, heads, blocks, d_ff, rng=rng, **options)
        gain = self.stack.placement.embedding_gain(blocks)
        for table in (self.token, self.position):
            table.weight.data *= gain
        self.head: Module = TiedHead(self.token.weight) if tied else Linear(d_model, vocab, rng=rng)

    def forward(self, tokens: Tensor | ArrayLike) -> Tensor:
        return self.head(self.stack(self.embed(tokens)))

    @scope("embed", level=2)
    def embed(self, tokens: Tensor | ArrayLike) -> Tensor:
        """The first value of the residual stream: what the token is, plus where it stands."""
        tokens = checked.integers("TransformerLM: tokens", tokens)
        if tokens.ndim != 2 or tokens.shape[1] > self.context:
            raise ValueError(
                f"TransformerLM: tokens must be (batch, at most {self.context}), got {tokens.shape}"
            )
        return self.token(tokens) + self.position(np.arange(tokens.shape[1]))

    def loss(self, tokens: Tensor | ArrayLike, targets: Tensor | ArrayLike) -> Tensor:
        """Mean cross-entropy in nats of the next tokens, `targets` (B, T)."""
        return fused.cross_entropy(self(tokens), targets)

    @no_grad()
    def generate(
        self,
        prompt: Tensor | ArrayLike,
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
        prompt = checked.integers("generate: prompt", prompt)
        if prompt.ndim != 1 or not prompt.size:
            raise ValueError(
                f"generate: prompt must be one sequence of at least one token, got {prompt.shape}"
            )
        tokens = prompt.tolist()
        with self.evaluating():
            for _ in range(count):
                logits = self([tokens[-self.context :]]).data[0, -1].astype(np.float64)
                tokens.append(_sample(logits, temperature, top_k, rng))
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
    with np.errstate(over="ignore"):  # at a tiny temperature only the likeliest stays at 0
        logits = (logits - logits.max()) / temperature
    # Noise of this form added to logits makes the argmax a sample from their softmax.
    return int((logits + rng.gumbel(size=logits.shape)).argmax())
