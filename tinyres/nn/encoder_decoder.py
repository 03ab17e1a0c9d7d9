"""The Transformer of 2017: an encoder reads the source, a decoder writes the target beside it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tinyres import checked, expect, fused
from tinyres.context import scope
from tinyres.nn.layers import Embedding, Linear, Seed
from tinyres.nn.module import Module
from tinyres.nn.placements import placement_class
from tinyres.nn.residual import Placement
from tinyres.nn.transformer import TiedHead, TransformerStack
from tinyres.signatures import ArrayLike
from tinyres.tensor import Tensor


class TransformerEncoderDecoder(Module):
    """Encoder, decoder with cross-attention to what the encoder returns, and a map to the logits.

    source (B, S) and target (B, T) integers -> logits (B, T, vocab). Both share one token table,
    which starts as N(0, 1/d_model) and is multiplied by sqrt(d_model); `tied` makes it the head's
    weight, too (Vaswani et al. 2017, sec. 3.4). Positions are learned. Each block of the decoder
    has three sublayers, so its placement must be a `Residual`.

    >>> model = TransformerEncoderDecoder(vocab=10, d_model=8, heads=2, blocks=2, context=5, rng=0)
    >>> model([[1, 2, 3]], [[4, 5]]).shape
    (1, 2, 10)
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
        decoder_blocks: int | None = None,
        placement: str | type[Placement] = "pre",
        tied: bool = False,
        rng: Seed = None,
        **options: Any,
    ):
        rng = expect.generator("TransformerEncoderDecoder", rng)
        self.context = expect.size("TransformerEncoderDecoder: context", context)
        expect.size("TransformerEncoderDecoder: vocab", vocab)
        expect.size("TransformerEncoderDecoder: blocks", blocks)
        above = blocks if decoder_blocks is None else decoder_blocks
        expect.size("TransformerEncoderDecoder: decoder_blocks", above)
        gain = placement_class(placement).embedding_gain(blocks)
        self.token = Embedding(vocab, d_model, rng=rng)
        self.position = Embedding(context, d_model, rng=rng)
        self.token.weight.data *= d_model**-0.5
        for table in (self.token, self.position):
            table.weight.data *= gain
        shape, options = (d_model, heads), {**options, "placement": placement, "rng": rng}
        self.encoder = TransformerStack(*shape, blocks, d_ff, decoder_blocks=above, **options)
        self.decoder = TransformerStack(*shape, above, d_ff, causal=True, cross=True, **options)
        self.head: Module = TiedHead(self.token.weight) if tied else Linear(d_model, vocab, rng=rng)

    def forward(self, source: Tensor | ArrayLike, target: Tensor | ArrayLike) -> Tensor:
        memory, x = self.encoder(self.embed(source)), self.embed(target)
        if len(memory) != len(x):
            raise ValueError(
                "TransformerEncoderDecoder: expected one source a target, got "
                f"{expect.shown(source)} and {expect.shown(target)}"
            )
        return self.head(self.decoder(x, memory))

    @scope("embed", level=2)
    def embed(self, tokens: Tensor | ArrayLike) -> Tensor:
        """What the token is, plus where it stands."""
        tokens = checked.integers("TransformerEncoderDecoder: tokens", tokens)
        if tokens.ndim != 2 or tokens.shape[1] > self.context:
            raise ValueError(
                "TransformerEncoderDecoder: tokens must be (batch, at most "
                f"{self.context}), got {tokens.shape}"
            )
        unit = math.sqrt(self.token.weight.shape[1])
        return unit * self.token(tokens) + self.position(np.arange(tokens.shape[1]))

    def loss(
        self, source: Tensor | ArrayLike, tokens: Tensor | ArrayLike, targets: Tensor | ArrayLike
    ) -> Tensor:
        """Mean cross-entropy in nats of `targets` (B, T), each the token that follows `tokens`."""
        return fused.cross_entropy(self(source, tokens), targets)
