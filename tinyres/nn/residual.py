"""Where the norm stands: one small class a placement, and its rule is the line of `forward`.

Here are the classes to build on and the four rules of the lesson. The others that were published
are in `sublayer_rules.py` and `block_rules.py`, and `placements.py` lists all by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, ClassVar

from tinyres import expect
from tinyres.nn.module import Module
from tinyres.tensor import Tensor

# What the branch that is running gets beside x: the memory that cross-attention attends to.
BESIDE: ContextVar[tuple[Any, ...]] = ContextVar("tinyres_beside", default=())


class Placement(Module):
    """What a stack has to know of a rule; `Residual` is the class to derive from.

    The *stream* is what runs from block to block: one tensor, or whatever `begin` makes of it.
    """

    level = -1
    streams: ClassVar[int | str] = 1
    first_norm: ClassVar[bool] = False  # whether the stack begins with a norm
    final_norm: ClassVar[bool] = False  # whether it ends in one
    norm_class: ClassVar[Callable[..., Module] | None] = None  # in place of the stack's norm
    in_attention: ClassVar[Mapping[str, Any]] = {}  # options of MultiHeadAttention
    in_feed_forward: ClassVar[Mapping[str, Any]] = {}  # options of FeedForward

    @classmethod
    def begin(cls, x: Tensor, norm: Any) -> Any:
        """The stream before the first block; `norm` is the first norm or None."""
        return x if norm is None else norm(x)

    @classmethod
    def end(cls, stream: Any, norm: Any) -> Tensor:
        """What the stack returns; `norm` is the final norm or None."""
        return stream if norm is None else norm(stream)

    @classmethod
    def seen(cls, stream: Any) -> Tensor:
        """The one tensor to look at, where the stream is more than one."""
        return stream

    @classmethod
    def profile(cls, sublayers: Iterable[Any], x: Tensor) -> None:
        """Set the constants that are measured on a batch; most rules have none."""

    @classmethod
    def for_encoder_decoder(
        cls, blocks: int, decoder_blocks: int
    ) -> tuple[type[Placement], type[Placement]]:
        """The rules of an encoder and of the decoder beside it; most are the same in both."""
        return cls, cls

    @classmethod
    def embedding_gain(cls, blocks: int) -> float:
        """What the initial embeddings are multiplied by."""
        return 1.0


class Residual(Placement):
    """A sublayer F (attention or feed-forward) with what stands round it.

    A placement of your own is a subclass that writes `forward` with `self.sublayer` and
    `self.norm`. `norm` makes a norm: call it again where the rule needs a second one. `index` is
    the number l of this sublayer in the stack, from 1, and `total` how many there are: the
    constants of many published rules depend on them.

    >>> class Halved(Residual):
    ...     def forward(self, x):
    ...         return x + 0.5 * self.sublayer(self.norm(x))
    """

    def __init__(self, branch: Any, norm: Callable[[], Module], *, index: int = 1, total: int = 1):
        self.norm: Any = expect.function("Residual: norm", norm)()
        self.branch = expect.function("Residual: branch", branch)

    def __call__(self, stream: Any, *beside: Any) -> Any:
        token = BESIDE.set(beside)
        try:
            return super().__call__(stream)
        finally:
            BESIDE.reset(token)

    def sublayer(self, x: Tensor) -> Tensor:
        """F(x), which must have the shape of x, or the addition could not be a residual one."""
        return checked(self.branch, x, *BESIDE.get())

    def scale_matrices(self, factor: float, *names: str) -> None:
        """Multiply initial matrices of F: those named ("value", "out", "up", "down"), or all."""
        for module in self.branch.modules() if isinstance(self.branch, Module) else ():
            for name, matrix in getattr(module, "matrices", dict)().items():
                if not names or name in names:
                    matrix *= factor


class BlockRule(Placement):
    """A placement whose rule is that of a whole block: `forward(stream, attention, feed_forward)`.

    `index` is the number of the block, from 1, and `total` how many there are.
    """

    def __init__(self, norm: Callable[[], Module], *, index: int = 1, total: int = 1):
        self.norm: Any = expect.function("BlockRule: norm", norm)()


class Branch(Module):
    """A sublayer F without anything round it, for a `BlockRule` to use."""

    level = -1

    def __init__(self, branch: Any):
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        return checked(self.branch, x)


def checked(branch: Any, x: Tensor, *beside: Any) -> Tensor:
    """branch(x), which must have the shape of x."""
    fx: Tensor = branch(x, *beside)
    if fx.shape != x.shape:
        raise ValueError(
            f"residual: F(x) has shape {fx.shape} but x has {x.shape}: "
            "the branch must return what it was given"
        )
    return fx


class WithoutNorm(Residual):
    """A placement that has no norm at all."""

    def __init__(self, branch: Any, norm: Callable[[], Module], **_: int):
        self.branch = expect.function("Residual: branch", branch)


class Plain(WithoutNorm):
    """y = F(x): neither residual nor norm, what deep networks were before 2015.

    (He et al. 2016, sec. 3.3: plain networks)
    """

    def forward(self, x: Tensor) -> Tensor:
        return self.sublayer(x)


class OnlyResidual(WithoutNorm):
    """y = x + F(x): a residual stream without a norm.

    (He et al. 2016, eq. 1)
    """

    def forward(self, x: Tensor) -> Tensor:
        return x + self.sublayer(x)


class PostLN(Residual):
    """y = norm(x + F(x)): every sum is normalised.

    (Vaswani et al. 2017, sec. 3.1)
    """

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.sublayer(x))


class PreLN(Residual):
    """y = x + F(norm(x)): the stream is added to and never touched.

    (Xiong et al. 2020, Table 1)
    """

    final_norm = True

    def forward(self, x: Tensor) -> Tensor:
        return x + self.sublayer(self.norm(x))
