"""Published placements with one stream and one rule for each sublayer.

The docstrings have one form, from which `python -m demos.placements` makes its table: the rule and
what it does; constants and initial values, if there are any; the source in parentheses. x is the
stream, F the sublayer, l its number in the stack from 1, N the number of blocks. 2N is the number
of sublayers: with cross-attention it is 3N.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np

from tinyres import ops
from tinyres.context import no_grad
from tinyres.nn.layers import DynamicTanh, RMSNorm
from tinyres.nn.module import Parameter
from tinyres.nn.residual import Norm, NormLayer, OnlyResidual, PostLN, PreLN, Residual, Sublayer
from tinyres.tensor import Tensor

# ---------------------------------------------------------------- Pre-LN and its scalings


class ScaledInit(PreLN):
    """y = x + F(norm(x)): Pre-LN whose branches start small.

    W_O and W_2 start 1/sqrt(2N) times as large, so that the sum of all branches does not grow
    with depth.

    (Radford et al. 2019, GPT-2, sec. 2.3)
    """

    def __init__(self, branch: Sublayer, norm: Norm, **place: Any):
        super().__init__(branch, norm, **place)
        self.scale_matrices(self.place.total**-0.5, "out", "down")


class LayerNormScaling(PreLN):
    """y = x + F(norm(x) / sqrt(b)): deep blocks see less, so that the stream grows slowly.

    Its variance grows as log(depth). b is the number of the block, for all of its sublayers.

    (Sun et al. 2025, The curse of depth in large language models, and code)
    """

    def __init__(self, branch: Sublayer, norm: Norm, **place: Any):
        super().__init__(branch, norm, **place)
        self.scale = self.place.block**-0.5

    def forward(self, x: Tensor) -> Tensor:
        return x + self.sublayer(self.scale * self.norm(x))


class DepthMuP(PreLN):
    """y = x + (N/N_0)^(-1/2) F(norm(x)): the sum of all branches keeps its size at any depth.

    N_0 = 1 (`base_blocks`): the depth whose learning rate is to be kept.

    (Yang et al. 2023, depth-muP; rule as quoted by others; not read in the paper)
    """

    base_blocks: ClassVar[float] = 1
    exponent: ClassVar[float] = -0.5

    def __init__(self, branch: Sublayer, norm: Norm, **place: Any):
        super().__init__(branch, norm, **place)
        self.scale: float = (self.place.blocks / self.base_blocks) ** self.exponent

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.sublayer(self.norm(x))


class CompleteP(DepthMuP):
    """y = x + (N_0/N) F(norm(x)): a step of an ordinary differential equation.

    N_0 = 1 (`base_blocks`): the depth whose learning rate is to be kept.

    (Dey et al. 2025, CompleteP; rule as quoted by others; not read in the paper)
    """

    exponent = -1


class LayerScale(PreLN):
    """y = x + lambda * F(norm(x)): each feature learns how much of the branch it takes.

    lambda starts at 0.1 up to 18 blocks, 1e-5 up to 24, 1e-6 beyond.

    (Touvron et al. 2021, CaiT: LayerScale; rule as quoted by others; not read in the paper)
    """

    def __init__(self, branch: Sublayer, norm: Norm, **place: Any):
        super().__init__(branch, norm, **place)
        blocks = self.place.blocks
        start = 0.1 if blocks <= 18 else 1e-5 if blocks <= 24 else 1e-6
        self.gain = Parameter(np.full(self.norm.d_model, start, np.float32))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gain * self.sublayer(self.norm(x))


class DyT(PreLN):
    """y = x + F(gamma * tanh(a x) + beta): Pre-LN with a squashing function instead of a norm.

    a starts at 0.5, a number that is learned; the final norm is such a function, too.

    (Zhu et al. 2025, Transformers without normalization, code)
    """

    @classmethod
    def norm_of(cls, kind: Callable[..., NormLayer], eps: float) -> Callable[[int], NormLayer]:
        return DynamicTanh  # which has no eps: nothing is divided


class OutputNorm(Residual):
    """y = x + norm(F(x)): what is added has a fixed size, but F sees the stream as it is.

    (Liu et al. 2022, Swin Transformer V2)
    """

    final_norm = True

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.sublayer(x))


class OLMo2(OutputNorm):
    """y = x + norm(F(x)): with queries and keys normalised, for else their products explode.

    One norm over all heads together.

    (OLMo team 2025, OLMo 2, code)
    """

    in_attention = {"normed": "qk"}  # noqa: RUF012


class Sandwich(Residual):
    """y = x + norm(F(norm(x))): a norm on either side of the sublayer.

    (Ding et al. 2021, CogView, code)
    """

    final_norm = True

    def __init__(self, branch: Sublayer, norm: Norm, **place: Any):
        super().__init__(branch, norm, **place)
        self.output_norm = norm()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.output_norm(self.sublayer(self.norm(x)))


class PeriLN(Sandwich):
    """y = x + norm(F(norm(x))): as Sandwich, and the stream starts normalised, too.

    (Kim et al. 2025, Peri-LN; Gemma 2; rule as quoted by others; not read in the paper)
    """

    first_norm = True


# ---------------------------------------------------------------- Post-LN and its cures


class DeepNorm(Residual):
    """y = norm(alpha x + F(x)): a Post-LN that changes little at first, however deep.

    alpha = (2N)^(1/4); W_V, W_O, W_1, W_2 start (8N)^(-1/4) times as large, W_Q and W_K as ever.
    Beside a decoder of M blocks an encoder has 0.81 (N^4 M)^(1/16) and 0.87 (N^4 M)^(-1/16), and
    the decoder (3M)^(1/4) and (12M)^(-1/4).

    (Wang et al. 2022, DeepNet)
    """

    def __init__(self, branch: Sublayer, norm: Norm, **place: Any):
        super().__init__(branch, norm, **place)
        n, m, total = self.place.blocks, self.place.decoder_blocks, self.place.total
        self.alpha, beta = total**0.25, (4 * total) ** -0.25
        if m:  # total is 2N, in a decoder 3M; only an encoder has to know both
            self.alpha, beta = 0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16)
        self.scale_matrices(beta, "value", "out", "up", "down")

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.alpha * x + self.sublayer(x))


class PostLNInit(PostLN):
    """y = norm(x + F(x)): Post-LN with smaller initial matrices in the lower blocks.

    The matrices of block b start 1/(N - b + 1) times as large.

    (Wang et al. 2022, DeepNet: Post-LN-init)
    """

    def __init__(self, branch: Sublayer, norm: Norm, **place: Any):
        super().__init__(branch, norm, **place)
        self.scale_matrices(1 / (self.place.blocks - self.place.block + 1))


class Admin(Residual):
    """y = norm(omega * x + F(x)): at first each branch has the share that it has in Pre-LN.

    omega_1 = 1, omega_(l+1)^2 = Var[omega_l x] + Var[F_l(x)] on one batch (`stack.profile(x)`;
    1 before that); one number a feature, learned from there.

    (Liu et al. 2020, Admin, code)
    """

    def __init__(self, branch: Sublayer, norm: Norm, **place: Any):
        super().__init__(branch, norm, **place)
        self.omega = Parameter(np.ones(self.norm.d_model, np.float32))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.omega * x + self.sublayer(x))

    @classmethod
    @no_grad()
    def profile(cls, sublayers: Iterable[Admin], x: Tensor, memory: Tensor | None = None) -> None:
        omega = 1.0
        for layer in sublayers:
            beside = (memory,) if layer.place.cross else ()
            layer.omega.data = np.full_like(layer.omega.data, omega)
            y = layer(x, *beside)
            parts = omega * x, layer.branch(x, *beside)
            omega = math.sqrt(sum(part.data.var(dtype=np.float64) for part in parts))
            x = y


class AdminTorch(Residual):
    """y = norm(omega x + F(x)): Admin without a batch, for an output change of O(log n).

    omega = sqrt((n+1)/ln(n+1) - 1), n = 2N, not learned.

    (Liu et al. 2020, code of admin-torch)
    """

    def __init__(self, branch: Sublayer, norm: Norm, **place: Any):
        super().__init__(branch, norm, **place)
        self.omega = self.constant(self.place.total)

    @staticmethod
    def constant(n: int) -> float:
        return math.sqrt((n + 1) / math.log(n + 1) - 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.omega * x + self.sublayer(x))


class AdminTorchConstant(AdminTorch):
    """y = norm(omega x + F(x)): Admin without a batch, for an output change of O(1).

    omega = sqrt(n), n = 2N, not learned.

    (Liu et al. 2020, code of admin-torch)
    """

    @staticmethod
    def constant(n: int) -> float:
        return math.sqrt(n)


class Keel(Residual):
    """y = norm(alpha x + F(norm(x))): a Post-LN whose skip path hardly shrinks what it carries.

    alpha = 2N, the number of sublayers. The first sublayer has no outer norm, and neither it nor
    the second has alpha. In the paper norms have gains only; here they are those of the stack.

    (Chen and Wei 2026, Keel)
    """

    def __init__(self, branch: Sublayer, norm: Norm, **place: Any):
        super().__init__(branch, norm, **place)
        self.alpha = self.place.total if self.place.index > 2 else None
        self.outer_norm = norm() if self.place.index > 1 else _unchanged

    def forward(self, x: Tensor) -> Tensor:
        skip = x if self.alpha is None else self.alpha * x
        return self.outer_norm(skip + self.sublayer(self.norm(x)))


def _unchanged(x: Tensor) -> Tensor:
    return x


class MixLN(Residual):
    """y = norm(x + F(x)) in the lower blocks, y = x + F(norm(x)) above: Post-LN, then Pre-LN.

    The lowest quarter of the blocks is Post-LN (`post_share`).

    (Li et al. 2024, Mix-LN, code)
    """

    final_norm = True
    post_share: ClassVar[float] = 0.25

    def __init__(self, branch: Sublayer, norm: Norm, **place: Any):
        super().__init__(branch, norm, **place)
        self.post = self.place.block <= self.post_share * self.place.blocks

    def forward(self, x: Tensor) -> Tensor:
        if self.post:
            return self.norm(x + self.sublayer(x))
        return x + self.sublayer(self.norm(x))


class NGPT(Residual):
    """y = n(x + |a| * (n(F(x)) - x)): a step along the sphere towards what F proposes.

    n divides by the length and multiplies by sqrt(d): the sphere has that radius here, 1 in the
    paper. a starts at 0.05, one number a feature. The paper's normalised matrices are not part of
    the rule.

    (Loshchilov et al. 2024, nGPT; rule as quoted by others; not read in the paper)
    """

    first_norm = True

    def __init__(self, branch: Sublayer, norm: Norm, **place: Any):
        super().__init__(branch, norm, **place)
        self.step = Parameter(np.full(self.norm.d_model, 0.05, np.float32))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + _absolute(self.step) * (self.norm(self.sublayer(x)) - x))

    @classmethod
    def norm_of(cls, kind: Callable[..., NormLayer], eps: float) -> Callable[[int], NormLayer]:
        return functools.partial(RMSNorm, eps=eps, affine=False)


def _absolute(a: Tensor) -> Tensor:
    return ops.maximum(a, -a)


# ---------------------------------------------------------------- without a norm


class TFixup(OnlyResidual):
    """y = x + F(x): no norm and no warm-up, but small initial matrices.

    W_V, W_O, W_1, W_2 start 0.67 N^(-1/4) times as large, in the M blocks of a decoder with
    cross-attention (9M)^(-1/4) times; the embeddings (9N)^(-1/4) times.

    (Huang et al. 2020, T-Fixup, code)
    """

    def __init__(self, branch: Sublayer, norm: Norm, **place: Any):
        super().__init__(branch, norm, **place)
        blocks, total = self.place.blocks, self.place.total
        in_decoder = total > 2 * blocks
        gain = (9 * blocks) ** -0.25 if in_decoder else 0.67 * blocks**-0.25
        self.scale_matrices(gain, "value", "out", "up", "down")

    @classmethod
    def embedding_gain(cls, blocks: int) -> float:
        return float((9 * blocks) ** -0.25)
