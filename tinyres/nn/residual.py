"""Where the norm stands: one small class a placement, and its rule is the line of `forward`.

Here are the classes to build on and the four rules of the lesson. The others that were published
are in `sublayer_rules.py` and `block_rules.py`, and `placements.py` lists all by name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

from tinyres import expect, fused
from tinyres.nn.module import Module
from tinyres.signatures import ArrayLike
from tinyres.tensor import Tensor

Sublayer: TypeAlias = Callable[..., Tensor]  # F: attention, feed-forward, any function


class NormLayer(Protocol):
    """What a norm is to a placement: a function of vectors whose width it knows."""

    d_model: int

    def __call__(self, x: Tensor) -> Tensor: ...


Norm: TypeAlias = Callable[[], NormLayer]  # makes a norm

# What the sublayer that is running gets beside x: the memory that it attends to, and the mask.
# A rule is one line of x and F(x) that knows nothing of either, so they go past `forward`, from
# `__call__` to `sublayer`. They can't be attributes: threads that share a model would mix them up.
BESIDE: ContextVar[tuple[Any, ...]] = ContextVar("tinyres_beside", default=())


@dataclass(frozen=True)
class Place:
    """Where a sublayer stands: number `index` of `total`, in block `block` of `blocks`, from 1.

    `cross`: it attends to a memory, so that blocks have three sublayers instead of two.
    `decoder_blocks`: those of the decoder beside the encoder that it stands in, 0 without one.

    >>> Place(index=4, total=6, block=2, blocks=2).cross
    False
    """

    index: int = 1
    total: int = 1
    block: int = 1
    blocks: int = 1
    cross: bool = False
    decoder_blocks: int = 0

    def __post_init__(self) -> None:
        for name in ("index", "total", "block", "blocks"):
            expect.size(f"Place: {name}", getattr(self, name))
        expect.size("Place: decoder_blocks", self.decoder_blocks, least=0)
        if self.index > self.total or self.block > self.blocks:
            raise ValueError(
                f"Place: expected a sublayer and a block of those that there are, got {self}"
            )


class Placement(Module):
    """What a stack has to know of a rule; `Residual` is the class to derive from.

    The *stream* is what runs from block to block: one tensor, or whatever `begin` makes of it.
    """

    level = -1
    streams: ClassVar[int] = 1
    remembers: ClassVar[bool] = False  # whether a block needs what all blocks below returned
    first_norm: ClassVar[bool] = False  # whether the stack begins with a norm
    final_norm: ClassVar[bool] = False  # whether it ends in one
    in_attention: ClassVar[Mapping[str, Any]] = {}  # options of MultiHeadAttention
    in_feed_forward: ClassVar[Mapping[str, Any]] = {}  # options of FeedForward
    place: Place = Place()

    @classmethod
    def begin(cls, x: Tensor, norm: NormLayer | None) -> Any:
        """The stream before the first block; `norm` is the first norm or None."""
        return x if norm is None else norm(x)

    @classmethod
    def end(cls, stream: Any, norm: NormLayer | None) -> Tensor:
        """What the stack returns; `norm` is the final norm or None."""
        y: Tensor = stream
        return y if norm is None else norm(y)

    @classmethod
    def seen(cls, stream: Any) -> Tensor:
        """The one tensor to look at, where the stream is more than one."""
        x: Tensor = stream
        return x

    @classmethod
    def norm_of(cls, kind: Callable[..., NormLayer], eps: float) -> Callable[[int], NormLayer]:
        """What makes a norm of a given width: of the `kind` asked for, if the rule has none."""
        return functools.partial(kind, eps=eps)

    @classmethod
    def profile(cls, sublayers: Iterable[Any], x: Tensor, memory: Tensor | None = None) -> None:
        """Set the constants that are measured on a batch; most rules have none."""

    @classmethod
    def embedding_gain(cls, blocks: int) -> float:
        """What the initial embeddings are multiplied by."""
        return 1.0


class Residual(Placement):
    """A sublayer F (attention or feed-forward) with what stands round it.

    A placement of your own is a subclass that writes `forward` with `self.sublayer` and
    `self.norm`. `norm` makes a norm: call it again where the rule needs a second one. The
    keywords `place` (of `Place`) say where in the stack it stands; `self.place` has them.

    >>> class Halved(Residual):
    ...     def forward(self, x):
    ...         return x + 0.5 * self.sublayer(self.norm(x))
    """

    def __init__(self, branch: Sublayer, norm: Norm, **place: Any):
        self.norm: NormLayer = expect.function("Residual: norm", norm)()
        self.branch = expect.function("Residual: branch", branch)
        self.place = Place(**place)

    def __call__(
        self,
        stream: Any,
        memory: Tensor | ArrayLike | None = None,
        mask: Tensor | ArrayLike | None = None,
    ) -> Any:
        if self.place.cross and memory is None:
            raise ValueError(
                f"{type(self).__name__}: got no memory, but its sublayer attends to one: give it"
            )
        token = BESIDE.set(() if memory is None and mask is None else (memory, mask))
        try:
            return self._returned(stream, super().__call__(stream))
        finally:
            BESIDE.reset(token)

    def _returned(self, stream: Any, y: Any) -> Any:
        """What `forward` returned, which must be a stream of the shape of that it was given."""
        if isinstance(stream, Tensor) and getattr(y, "shape", None) != stream.shape:
            raise ValueError(
                f"{type(self).__name__}: forward returned {expect.shown(y)}, but the stream it was "
                f"given has shape {stream.shape}: return one of that shape"
            )
        return y

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

    It is told which block of how many it is (`self.place`).

    >>> class Parallel(BlockRule):
    ...     def forward(self, x, attention, feed_forward):
    ...         return x + attention(self.norm(x)) + feed_forward(self.norm(x))
    """

    def __init__(self, norm: Norm, **place: Any):
        self.norm: NormLayer = expect.function("BlockRule: norm", norm)()
        self.place = Place(**place)


class Branch(Module):
    """A sublayer F without anything round it, for a `BlockRule` to use."""

    level = -1

    def __init__(self, branch: Sublayer):
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        return checked(self.branch, x)


def checked(branch: Sublayer, x: Tensor, *beside: Any) -> Tensor:
    """branch(x), which must have the shape of x."""
    fx: Tensor = branch(x, *beside)
    fused.same_shape(x, fx)
    return fx


class WithoutNorm(Residual):
    """A placement that has no norm at all."""

    def __init__(self, branch: Sublayer, norm: Norm, **place: Any):
        self.branch = expect.function("Residual: branch", branch)
        self.place = Place(**place)


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
