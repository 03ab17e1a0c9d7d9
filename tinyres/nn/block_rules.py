"""Published placements whose rule is that of a whole block, or that run several streams.

The docstrings have the form of those in `sublayer_rules.py`. A is attention, F the feed-forward.
"""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar, TypeAlias

import numpy as np

from tinyres import fused, ops
from tinyres.nn.module import Parameter
from tinyres.nn.residual import BlockRule, Norm, NormLayer, Place, Residual, Sublayer
from tinyres.tensor import Tensor

# What runs from block to block, where it is more than one tensor.
Pair: TypeAlias = tuple[Tensor, Tensor]
History: TypeAlias = tuple[Tensor, tuple[Tensor, ...]]

# ---------------------------------------------------------------- rules of a block


class ReZero(BlockRule):
    """m = x + a A(x), y = m + a F(m): each block starts as the identity, without a norm.

    a = 0 at first, one number a block.

    (Bachlechner et al. 2020, ReZero, code)
    """

    def __init__(self, norm: Norm, **place: Any):
        self.place = Place(**place)
        self.gain = Parameter(np.zeros(1, np.float32))

    def forward(self, x: Tensor, attention: Sublayer, feed_forward: Sublayer) -> Tensor:
        m = x + self.gain * attention(x)
        return m + self.gain * feed_forward(m)


class B2T(BlockRule):
    """m = norm(x + A(x)), y = norm(x + m + F(m)): one more skip, from bottom to top of the block.

    (Takase et al. 2022, B2T connection, code and figure)
    """

    def __init__(self, norm: Norm, **place: Any):
        super().__init__(norm, **place)
        self.top_norm = norm()

    def forward(self, x: Tensor, attention: Sublayer, feed_forward: Sublayer) -> Tensor:
        m = self.norm(x + attention(x))
        return self.top_norm(x + m + feed_forward(m))


class SpanNorm(BlockRule):
    """m = norm(x + A(x)), y = norm(x + F(m)): the skip spans the whole block.

    The first attention of the stack sees norm(x).

    (SpanNorm 2026, eq. 5 to 8; rule as quoted by others; not read in the paper)
    """

    def __init__(self, norm: Norm, **place: Any):
        super().__init__(norm, **place)
        self.top_norm = norm()
        self.input_norm = norm() if self.place.block == 1 else None

    def forward(self, x: Tensor, attention: Sublayer, feed_forward: Sublayer) -> Tensor:
        m = self.norm(x + attention(x if self.input_norm is None else self.input_norm(x)))
        return self.top_norm(x + feed_forward(m))


class HybridNorm(BlockRule):
    """m = norm(x + A(x)), y = m + F(m): queries, keys and values are normalised instead of x.

    One norm each for queries, keys and values, over the features of a head.

    (Zhuo et al. 2025, HybridNorm, code and figure)
    """

    final_norm = True
    in_attention = {"normed": "qkv", "per_head": True}  # noqa: RUF012

    def forward(self, x: Tensor, attention: Sublayer, feed_forward: Sublayer) -> Tensor:
        m = self.norm(x + attention(x))
        return m + feed_forward(m)


class NormFormer(BlockRule):
    """m = x + norm(A(norm(x))), y = lambda * m + F(norm(m)): Pre-LN with three more gains.

    Each head has a gain, F a norm before its second matrix; gains and lambda start at 1.

    (Shleifer et al. 2021, NormFormer, code)
    """

    final_norm = True
    in_attention = {"head_scale": True}  # noqa: RUF012
    in_feed_forward = {"inner_norm": True}  # noqa: RUF012

    def __init__(self, norm: Norm, **place: Any):
        super().__init__(norm, **place)
        self.output_norm, self.feed_forward_norm = norm(), norm()
        self.gain = Parameter(np.ones(self.norm.d_model, np.float32))

    def forward(self, x: Tensor, attention: Sublayer, feed_forward: Sublayer) -> Tensor:
        m = x + self.output_norm(attention(self.norm(x)))
        return self.gain * m + feed_forward(self.feed_forward_norm(m))


# ---------------------------------------------------------------- several streams


class DLCL(BlockRule):
    """x_(b+1) = sum over k <= b of w_k norm(y_k): each block sees all that came before it.

    y_b is Pre-LN's block b of x_b, y_0 the embedding; w_k = 1/(b+1) at first, all w learned.

    (Wang et al. 2019, Learning deep Transformer models for machine translation, code)
    """

    remembers = True
    first_norm = True
    final_norm = True

    def __init__(self, norm: Norm, **place: Any):
        super().__init__(norm, **place)
        self.feed_forward_norm, self.output_norm = norm(), norm()
        count = self.place.block + 1
        self.weights = [Parameter(np.full(1, 1 / count, np.float32)) for _ in range(count)]

    def forward(self, stream: History, attention: Sublayer, feed_forward: Sublayer) -> History:
        x, history = stream
        m = x + attention(self.norm(x))
        y = m + feed_forward(self.feed_forward_norm(m))
        history = (*history, self.output_norm(y))
        return functools.reduce(ops.add, map(ops.mul, self.weights, history)), history

    @classmethod
    def begin(cls, x: Tensor, norm: NormLayer | None) -> History:
        y_0: Tensor = super().begin(x, norm)
        return y_0, (y_0,)

    @classmethod
    def end(cls, stream: History, norm: NormLayer | None) -> Tensor:
        return super().end(stream[0], norm)

    @classmethod
    def seen(cls, stream: History) -> Tensor:
        return stream[0]


class ResiDual(Residual):
    """p' = norm(p + F(p)), q' = q + F(p): a Post-LN, and beside it the plain sum of its branches.

    p and q both start as the embedding; the stack returns p + norm(q).

    (Xie et al. 2023, ResiDual, code)
    """

    streams = 2
    final_norm = True

    def forward(self, stream: Pair) -> Pair:
        p, q = stream
        fp = self.sublayer(p)
        return self.norm(p + fp), q + fp

    @classmethod
    def begin(cls, x: Tensor, norm: NormLayer | None) -> Pair:
        return x, x

    @classmethod
    def end(cls, stream: Pair, norm: NormLayer | None) -> Tensor:
        p, q = stream
        return p + super().end(q, norm)

    @classmethod
    def seen(cls, stream: Pair) -> Tensor:
        return stream[0]


class SiameseNorm(ResiDual):
    """p' = norm(p + o / sqrt(c)), q' = q + o, o = F(norm(p + norm(q))): two streams, one branch.

    c is the number of the block. p and q both start as the embedding; the stack returns
    p + norm(q).

    (Li et al. 2026, SiameseNorm; rule as quoted by others; not read in the paper; in the released
    code c is twice that)
    """

    def __init__(self, branch: Sublayer, norm: Norm, **place: Any):
        super().__init__(branch, norm, **place)
        self.sum_norm, self.input_norm = norm(), norm()
        self.scale = 1 / math.sqrt(self.place.block)

    def forward(self, stream: Pair) -> Pair:
        p, q = stream
        o = self.sublayer(self.input_norm(p + self.sum_norm(q)))
        return self.norm(p + self.scale * o), q + o


class HyperConnections(Residual):
    """h = a H, H' = A H + b F(norm(h)): n streams, and each sublayer learns which it reads.

    H is (..., n, d), n = 4 (`streams`). a_s = 1 for s = l mod n and else 0, A is the unit matrix, b
    all ones: that is Pre-LN. n copies of the embedding start, the stack returns norm(their sum).

    (Zhu et al. 2024, Hyper-connections, static; after the code of lucidrains)
    """

    streams: ClassVar[int] = 4
    final_norm = True

    def __init__(self, branch: Sublayer, norm: Norm, **place: Any):
        super().__init__(branch, norm, **place)
        eye = np.eye(self.streams, dtype=np.float32)
        self.read = Parameter(eye[self.place.index % self.streams])
        self.mix = Parameter(eye)
        self.write = Parameter(np.ones((self.streams, 1), np.float32))

    def forward(self, stream: Tensor) -> Tensor:  # (..., n, d)
        o = self.sublayer(self.norm(self.read @ stream))
        return fused.residual(self.mix @ stream, self.write * o[..., None, :])

    @classmethod
    def begin(cls, x: Tensor, norm: NormLayer | None) -> Tensor:
        return ops.stack([x] * cls.streams, axis=-2)

    @classmethod
    def end(cls, stream: Tensor, norm: NormLayer | None) -> Tensor:
        return super().end(cls.seen(stream), norm)

    @classmethod
    def seen(cls, stream: Tensor) -> Tensor:
        return stream.sum(-2)
