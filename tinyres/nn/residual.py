"""Where the norm stands: one small class a placement, and its rule is the one line of `forward`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from tinyres.nn.module import Module
from tinyres.tensor import Tensor


class Residual(Module):
    """A sublayer F (attention or feed-forward) with what stands round it.

    A placement of your own is a subclass that writes `forward` with `self.sublayer` and
    `self.norm`. `norm` makes a norm: call it again where the rule needs a second one. `index` is
    the number l of this sublayer in the stack, from 1, and `total` how many there are: the
    constants of many published rules depend on them.

    >>> class Halved(Residual):
    ...     def forward(self, x):
    ...         return x + 0.5 * self.sublayer(self.norm(x))
    """

    level = -1
    final_norm: ClassVar[bool] = False  # whether the stack ends in one more norm

    def __init__(self, branch: Any, norm: Callable[[], Module], *, index: int = 1, total: int = 1):
        self.norm = norm()
        self.branch = branch

    def sublayer(self, x: Tensor) -> Tensor:
        """F(x), which must have the shape of x, or the addition could not be a residual one."""
        fx: Tensor = self.branch(x)
        if fx.shape != x.shape:
            raise ValueError(
                f"residual: F(x) has shape {fx.shape} but x has {x.shape}: "
                "the branch must return what it was given"
            )
        return fx


class PreLN(Residual):
    """y = x + F(norm(x)): the stream is added to and never touched (Xiong et al. 2020, Table 1)."""

    final_norm = True

    def forward(self, x: Tensor) -> Tensor:
        return x + self.sublayer(self.norm(x))


class PostLN(Residual):
    """y = norm(x + F(x)): every sum is normalised (Vaswani et al. 2017, sec. 3.1)."""

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.sublayer(x))


class WithoutNorm(Residual):
    """A placement that has no norm at all."""

    def __init__(self, branch: Any, norm: Callable[[], Module], **_: int):
        self.branch = branch


class OnlyResidual(WithoutNorm):
    """y = x + F(x): a residual stream without a norm (He et al. 2016, eq. 1)."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.sublayer(x)


class Plain(WithoutNorm):
    """y = F(x): neither residual nor norm, what deep networks were before 2015."""

    def forward(self, x: Tensor) -> Tensor:
        return self.sublayer(x)


PLACEMENTS: dict[str, type[Residual]] = {
    "pre": PreLN,
    "post": PostLN,
    "residual": OnlyResidual,
    "plain": Plain,
}
