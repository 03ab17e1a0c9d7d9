"""Published placements with one stream and one rule for each sublayer.

The docstrings have one form, from which `python -m demos.placements` makes its table: the rule and
what it does; constants and initial values, if there are any; the source in parentheses. x is the
stream, F the sublayer, l its number in the stack from 1, N the number of blocks. Where a paper
counts blocks, a block is taken to have two sublayers.
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
from tinyres.nn.module import Module, Parameter
from tinyres.nn.residual import OnlyResidual, PostLN, PreLN, Residual
from tinyres.tensor import Tensor

Norm = Callable[[], Module]


def block_of(index: int) -> int:
    """The number of the block that sublayer `index` belongs to; both from 1."""
    return (index + 1) // 2


# ---------------------------------------------------------------- Pre-LN and its scalings


class ScaledInit(PreLN):
    """y = x + F(norm(x)): Pre-LN whose branches start small.

    W_O and W_2 start 1/sqrt(2N) times as large, so that the sum of all branches does not grow
    with depth.

    (Radford et al. 2019, GPT-2, sec. 2.3)
    """

    def __init__(self, branch: Any, norm: Norm, *, index: int = 1, total: int = 1):
        super().__init__(branch, norm)
        self.scale_matrices(total**-0.5, "out", "down")


class LayerNormScaling(PreLN):
    """y = x + F(norm(x) / sqrt(b)): deep blocks see less, so that the stream grows as log(depth).

    b is the number of the block, the same for both of its sublayers.

    (Sun et al. 2025, The curse of depth in large language models, and code)
    """

    def __init__(self, branch: Any, norm: Norm, *, index: int = 1, total: int = 1):
        super().__init__(branch, norm)
        self.scale = block_of(index) ** -0.5

    def forward(self, x: Tensor) -> Tensor:
        return x + self.sublayer(self.scale * self.norm(x))


class DepthMuP(PreLN):
    """y = x + (N/N_0)^(-1/2) F(norm(x)): the sum of all branches keeps its size at any depth.

    N_0 = 1 (`base_blocks`): the depth whose learning rate is to be kept.

    (Yang et al. 2023, depth-muP; 2nd-hand, after code)
    """

    base_blocks: ClassVar[float] = 1
    exponent: ClassVar[float] = -0.5

    def __init__(self, branch: Any, norm: Norm, *, index: int = 1, total: int = 1):
        super().__init__(branch, norm)
        self.scale = (total / 2 / self.base_blocks) ** self.exponent

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.sublayer(self.norm(x))


class CompleteP(DepthMuP):
    """y = x + (N_0/N) F(norm(x)): a step of an ordinary differential equation.

    N_0 = 1 (`base_blocks`): the depth whose learning rate is to be kept.

    (Dey et al. 2025, CompleteP; 2nd-hand, after code)
    """

    exponent = -1


class LayerScale(PreLN):
    """y = x + lambda * F(norm(x)): each feature learns how much of the branch it takes.

    lambda starts at 0.1 up to 18 blocks, 1e-5 up to 24, 1e-6 beyond.

    (Touvron et al. 2021, CaiT; from memory)
    """

    def __init__(self, branch: Any, norm: Norm, *, index: int = 1, total: int = 1):
        super().__init__(branch, norm)
        start = 0.1 if total <= 2 * 18 else 1e-5 if total <= 2 * 24 else 1e-6
        self.gain = Parameter(np.full(self.norm.d_model, start, np.float32))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gain * self.sublayer(self.norm(x))


class DyT(PreLN):
    """y = x + F(gamma * tanh(a x) + beta): Pre-LN with a squashing function instead of a norm.

    a starts at 0.5, a number that is learned; the final norm is such a function, too.

    (Zhu et al. 2025, Transformers without normalization, code)
    """

    norm_class = DynamicTanh


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

    def __init__(self, branch: Any, norm: Norm, *, index: int = 1, total: int = 1):
        super().__init__(branch, norm)
        self.output_norm = norm()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.output_norm(self.sublayer(self.norm(x)))


class PeriLN(Sandwich):
    """y = x + norm(F(norm(x))): as Sandwich, and the stream starts normalised, too.

    (Kim et al. 2025, Peri-LN; Gemma 2; 2nd-hand)
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

    constants: ClassVar[tuple[float, float] | None] = None

    def __init__(self, branch: Any, norm: Norm, *, index: int = 1, total: int = 1):
        super().__init__(branch, norm)
        # With `total` = 2N or, with cross-attention, 3M sublayers these are the paper's.
        alpha, beta = self.constants or (total**0.25, (4 * total) ** -0.25)
        self.alpha: float = alpha
        self.scale_matrices(beta, "value", "out", "up", "down")

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.alpha * x + self.sublayer(x))

    @classmethod
    def for_encoder_decoder(
        cls, blocks: int, decoder_blocks: int
    ) -> tuple[type[Residual], type[Residual]]:
        depth = (blocks**4 * decoder_blocks) ** (1 / 16)
        return type("DeepNorm", (cls,), {"constants": (0.81 * depth, 0.87 / depth)}), cls


class PostLNInit(PostLN):
    """y = norm(x + F(x)): Post-LN with smaller initial matrices in the lower blocks.

    The matrices of block b start 1/(N - b + 1) times as large.

    (Wang et al. 2022, DeepNet: Post-LN-init)
    """

    def __init__(self, branch: Any, norm: Norm, *, index: int = 1, total: int = 1):
        super().__init__(branch, norm)
        self.scale_matrices(1 / (block_of(total) - block_of(index) + 1))


class Admin(Residual):
    """y = norm(omega * x + F(x)): at first each branch has the share that it has in Pre-LN.

    omega_1 = 1, omega_(l+1)^2 = Var[omega_l x] + Var[F_l(x)] on one batch (`stack.profile(x)`;
    1 before that); one number a feature, learned from there.

    (Liu et al. 2020, Admin, code)
    """

    def __init__(self, branch: Any, norm: Norm, *, index: int = 1, total: int = 1):
        super().__init__(branch, norm)
        self.omega = Parameter(np.ones(self.norm.d_model, np.float32))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.omega * x + self.sublayer(x))

    @classmethod
    @no_grad()
    def profile(cls, sublayers: Iterable[Admin], x: Tensor) -> None:
        omega = 1.0
        for layer in sublayers:
            layer.omega.data[...] = omega
            variances = (omega * x).data.var(), layer.sublayer(x).data.var()
            omega = math.sqrt(sum(variances))
            x = layer(x)


class AdminTorch(Residual):
    """y = norm(omega x + F(x)): Admin without a batch, for an output change of O(log n).

    omega = sqrt((n+1)/ln(n+1) - 1), n = 2N, not learned.

    (Liu et al. 2020, code of admin-torch)
    """

    def __init__(self, branch: Any, norm: Norm, *, index: int = 1, total: int = 1):
        super().__init__(branch, norm)
        self.omega = self.constant(total)

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
    the second has alpha.

    (Chen and Wei 2026, Keel)
    """

    def __init__(self, branch: Any, norm: Norm, *, index: int = 1, total: int = 1):
        super().__init__(branch, norm)
        self.alpha = total if index > 2 else 1
        self.outer_norm = norm() if index > 1 else _unchanged

    def forward(self, x: Tensor) -> Tensor:
        return self.outer_norm(self.alpha * x + self.sublayer(self.norm(x)))


def _unchanged(x: Tensor) -> Tensor:
    return x


class MixLN(Residual):
    """y = norm(x + F(x)) in the lower blocks, y = x + F(norm(x)) above: Post-LN, then Pre-LN.

    The lowest quarter of the blocks is Post-LN (`post_share`).

    (Li et al. 2024, Mix-LN, code)
    """

    final_norm = True
    post_share: ClassVar[float] = 0.25

    def __init__(self, branch: Any, norm: Norm, *, index: int = 1, total: int = 1):
        super().__init__(branch, norm)
        self.rule = PostLN if block_of(index) <= self.post_share * block_of(total) else PreLN

    def forward(self, x: Tensor) -> Tensor:
        return self.rule.forward(self, x)  # type: ignore[arg-type]


class NGPT(Residual):
    """y = n(x + |a| * (n(F(x)) - x)): a step along the sphere towards what F proposes.

    n divides by the length and multiplies by sqrt(d): the sphere has that radius here, 1 in the
    paper. a starts at 0.05, one number a feature. The paper's normalised matrices are not part of
    the rule.

    (Loshchilov et al. 2024, nGPT; 2nd-hand, after code)
    """

    first_norm = True
    norm_class = functools.partial(RMSNorm, affine=False)

    def __init__(self, branch: Any, norm: Norm, *, index: int = 1, total: int = 1):
        super().__init__(branch, norm)
        self.step = Parameter(np.full(self.norm.d_model, 0.05, np.float32))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + _absolute(self.step) * (self.norm(self.sublayer(x)) - x))


def _absolute(a: Tensor) -> Tensor:
    return ops.maximum(a, -a)


# ---------------------------------------------------------------- without a norm


class TFixup(OnlyResidual):
    """y = x + F(x): no norm and no warm-up, but small initial matrices.

    W_V, W_O, W_1, W_2 start 0.67 N^(-1/4) times as large, in the M blocks of a decoder with
    cross-attention (9M)^(-1/4) times; the embeddings (9N)^(-1/4) times.

    (Huang et al. 2020, T-Fixup, code)
    """

    gain: ClassVar[float | None] = None

    def __init__(self, branch: Any, norm: Norm, *, index: int = 1, total: int = 1):
        super().__init__(branch, norm)
        gain = self.gain or 0.67 * block_of(total) ** -0.25
        self.scale_matrices(gain, "value", "out", "up", "down")

    @classmethod
    def embedding_gain(cls, blocks: int) -> float:
        return (9 * blocks) ** -0.25

    @classmethod
    def for_encoder_decoder(
        cls, blocks: int, decoder_blocks: int
    ) -> tuple[type[Residual], type[Residual]]:
        return cls, type("TFixup", (cls,), {"gain": (9 * decoder_blocks) ** -0.25})
