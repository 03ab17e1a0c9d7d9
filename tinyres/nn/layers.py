"""The layers of a Transformer: linear maps, norms, attention, feed-forward."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from tinyres import expect, fused, normal, ops
from tinyres.arrays import Array
from tinyres.context import no_grad, scope
from tinyres.nn.module import Module, Parameter
from tinyres.signatures import ArrayLike
from tinyres.tensor import Tensor

Seed: TypeAlias = "np.random.Generator | int | None"
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": ops.relu,
    "gelu": fused.gelu,
    "gelu_exact": normal.gelu_exact,
    "tanh": ops.tanh,
}


def xavier(rng: np.random.Generator, n_in: int, n_out: int) -> Array:
    """Uniform in +-sqrt(6 / (n_in + n_out)), so that signal and gradient keep their size.

    float32, of shape (n_in, n_out) (Glorot and Bengio 2010, eq. 16).

    >>> bool(abs(xavier(np.random.default_rng(0), 3, 3)).max() <= 1)
    True
    """
    n_in, n_out = expect.size("xavier: n_in", n_in), expect.size("xavier: n_out", n_out)
    limit = math.sqrt(6 / (n_in + n_out))
    rng = expect.generator("xavier", rng)
    return rng.uniform(-limit, limit, (n_in, n_out)).astype(np.float32)


class Linear(Module):
    """x W + b; W is (n_in, n_out) and starts Xavier-uniform, b starts at 0.

    >>> Linear(2, 3, rng=0)(np.ones((4, 2), np.float32)).shape
    (4, 3)
    """

    level = 2

    def __init__(
        self, n_in: int, n_out: int, *, bias: bool = True, rng: Seed = None, parts: int = 1
    ):
        n_in, n_out = expect.size("Linear: n_in", n_in), expect.size("Linear: n_out", n_out)
        if n_out % expect.size("Linear: parts", parts):
            raise ValueError(f"Linear: parts={parts} maps can't share n_out={n_out} features")
        rng = expect.generator("Linear", rng)
        # `parts` maps side by side, such as those of q, k and v, start as if they stood alone.
        weights = [xavier(rng, n_in, n_out // parts) for _ in range(parts)]
        self.weight = Parameter(np.hstack(weights))
        self.bias = Parameter(np.zeros(n_out, np.float32)) if bias else None

    def forward(self, x: Tensor | ArrayLike) -> Tensor:
        return fused.linear(x, self.weight, self.bias)

    def extra(self) -> str:
        return f"{self.weight.shape[0]} > {self.weight.shape[1]}"


class Embedding(Module):
    """A table of `count` learned vectors, which start as N(0, 1).

    >>> Embedding(10, 4, rng=0)([[1, 2, 3]]).shape
    (1, 3, 4)
    """

    level = 2

    def __init__(self, count: int, d_model: int, *, rng: Seed = None):
        shape = expect.size("Embedding: count", count), expect.size("Embedding: d_model", d_model)
        rng = expect.generator("Embedding", rng)
        table = rng.standard_normal(shape, dtype=np.float32)
        self.weight = Parameter(table)

    def forward(self, index: Tensor | ArrayLike) -> Tensor:
        return fused.embedding(self.weight, index)

    def extra(self) -> str:
        return f"{self.weight.shape[0]} > {self.weight.shape[1]}"


class LayerNorm(Module):
    """gamma * (x - mean) / sqrt(variance + eps) + beta, each vector of features on its own.

    `affine=False` leaves gamma and beta away.

    >>> LayerNorm(3)(Tensor([2.0, 4.0, 6.0])).detach()
    Tensor([-1.2247  0.      1.2247])
    """

    level = 2
    role = "norm"

    def __init__(self, d_model: int, *, eps: float = 1e-5, affine: bool = True):
        self.d_model = d_model = expect.size("LayerNorm: d_model", d_model)
        self.eps = expect.number("LayerNorm: eps", eps, 0)
        self.gamma = Parameter(np.ones(d_model, np.float32)) if affine else None
        self.beta = Parameter(np.zeros(d_model, np.float32)) if affine else None

    def forward(self, x: Tensor | ArrayLike) -> Tensor:
        return fused.layer_norm(x, self.gamma, self.beta, eps=self.eps)


class RMSNorm(Module):
    """gamma * x / sqrt(mean(x ** 2) + eps): LayerNorm that leaves the mean alone.

    >>> RMSNorm(2, eps=0.0)(Tensor([3.0, 4.0])).detach()
    Tensor([0.8485 1.1314])
    """

    level = 2
    role = "norm"

    def __init__(self, d_model: int, *, eps: float = 1e-5, affine: bool = True):
        self.d_model = d_model = expect.size("RMSNorm: d_model", d_model)
        self.eps = expect.number("RMSNorm: eps", eps, 0)
        self.gamma = Parameter(np.ones(d_model, np.float32)) if affine else None

    def forward(self, x: Tensor | ArrayLike) -> Tensor:
        return fused.rms_norm(x, self.gamma, eps=self.eps)


class DynamicTanh(Module):
    """gamma * tanh(a x) + beta: in the place of a norm, without a mean or a variance.

    a is one number, learned from `alpha` on (Zhu et al. 2025, Transformers without normalization).

    >>> DynamicTanh(2)(Tensor([0.0, 2.0])).detach()
    Tensor([0.     0.7616])
    """

    level = 2
    role = "norm"

    def __init__(self, d_model: int, *, alpha: float = 0.5):
        self.d_model = d_model = expect.size("DynamicTanh: d_model", d_model)
        alpha = expect.number("DynamicTanh: alpha", alpha)
        self.alpha = Parameter(np.full(1, alpha, np.float32))
        self.gamma = Parameter(np.ones(d_model, np.float32))
        self.beta = Parameter(np.zeros(d_model, np.float32))

    def forward(self, x: Tensor | ArrayLike) -> Tensor:
        return self.gamma * ops.tanh(self.alpha * x) + self.beta


class Dropout(Module):
    """Each element 0 with probability p while training, the others divided by 1 - p.

    >>> Dropout(0.5).eval()(Tensor([1.0, 2.0]))
    Tensor([1. 2.])
    """

    level = 2

    def __init__(self, p: float, *, rng: Seed = None):
        self.p = expect.number("Dropout: p", p, 0, 1)
        self.rng = expect.generator("Dropout", rng)

    def forward(self, x: Tensor | ArrayLike) -> Tensor:
        return fused.dropout(x, self.p, self.rng, training=self.training)

    def extra(self) -> str:
        return f"p = {self.p}"


class MultiHeadAttention(Module):
    """Each token gathers from the others, in `heads` subspaces (Vaswani et al. 2017, sec. 3.2).

    x (B, T, d_model) -> (B, T, d_model). With a `memory` (B, S, d_model) it is cross-attention:
    keys and values come from there. `qkv` holds the three projections side by side, each
    Xavier-uniform on its own. `causal`: a token sees itself and what came before it.

    For placements that ask for it: a `norm` of those of queries, keys and values that `normed`
    names ("qk"), over all heads together or `per_head`, and a learned gain a head (`head_scale`).

    >>> MultiHeadAttention(8, heads=2, rng=0)(np.ones((1, 5, 8), np.float32)).shape
    (1, 5, 8)
    """

    level = 1
    role = "attention"

    def __init__(
        self,
        d_model: int,
        heads: int,
        *,
        causal: bool = False,
        bias: bool = True,
        normed: str = "",
        per_head: bool = False,
        head_scale: bool = False,
        norm: Callable[[int], Module] = LayerNorm,
        rng: Seed = None,
    ):
        d_model = expect.size("MultiHeadAttention: d_model", d_model)
        if d_model % expect.size("MultiHeadAttention: heads", heads):
            raise ValueError(
                f"MultiHeadAttention: d_model={d_model} can't be split among heads={heads}: "
                "choose a number of heads that divides it"
            )
        if not set(expect.instance("MultiHeadAttention: normed", normed, str, "a text")) <= set(
            "qkv"
        ):
            raise ValueError(
                f"MultiHeadAttention: normed must be some of the letters of 'qkv', got {normed!r}"
            )
        expect.function("MultiHeadAttention: norm", norm)
        rng = expect.generator("MultiHeadAttention", rng)
        self.heads = heads
        self.causal = causal
        self.qkv = Linear(d_model, 3 * d_model, bias=bias, rng=rng, parts=3)
        self.out = Linear(d_model, d_model, bias=bias, rng=rng)
        self.per_head = per_head
        self.norms = {name: norm(d_model // heads if per_head else d_model) for name in normed}
        self.head_scale = Parameter(np.ones((heads, 1, 1), np.float32)) if head_scale else None

    def forward(
        self,
        x: Tensor | ArrayLike,
        memory: Tensor | ArrayLike | None = None,
        mask: Tensor | ArrayLike | None = None,
    ) -> Tensor:
        if memory is None and not self.norms and self.head_scale is None:
            weight, bias = self.qkv.weight, self.qkv.bias
            heads, causal = self.heads, self.causal
            return self.out(
                fused.self_attention(x, weight, bias, heads=heads, mask=mask, causal=causal)
            )
        q, k, v = self.by_head(x, memory)
        y = fused.attention(q, k, v, mask=mask, causal=self.causal)  # (B, h, T, d/h)
        if self.head_scale is not None:
            y = self.head_scale * y
        with scope("join heads", level=2):
            y = y.swapaxes(-2, -3)  # (B, T, h, d/h)
            y = y.reshape(*y.shape[:-2], self.out.weight.shape[0])
        return self.out(y)

    def by_head(
        self, x: Tensor | ArrayLike, memory: Tensor | ArrayLike | None = None
    ) -> list[Tensor]:
        """The queries of x, and the keys and values of memory (or x), each (B, h, T, d/h)."""
        other = x if memory is None else memory
        return [self._projected(name, source) for name, source in zip("qkv", (x, other, other))]

    def _projected(self, name: str, x: Tensor | ArrayLike) -> Tensor:
        part, bias = self._part(name), self.qkv.bias
        with scope(f"Linear {name}", level=2):
            y = fused.linear(x, self.qkv.weight[:, part], None if bias is None else bias[part])
        if name in self.norms and not self.per_head:
            y = self.norms[name](y)
        y = y.reshape(*y.shape[:-1], self.heads, y.shape[-1] // self.heads)  # (B, T, h, d/h)
        if name in self.norms and self.per_head:
            y = self.norms[name](y)
        return y.swapaxes(-2, -3)

    def _part(self, name: str) -> slice:
        """Where the projection `name` is in `qkv`."""
        d, i = self.qkv.weight.shape[0], "qkv".index(name)
        return slice(i * d, (i + 1) * d)

    def matrices(self) -> dict[str, Array]:
        """The four matrices by what they make, to scale them before training."""
        qkv = self.qkv.weight.data
        parts = {"query": "q", "key": "k", "value": "v"}
        found = {name: qkv[:, self._part(part)] for name, part in parts.items()}
        return {**found, "out": self.out.weight.data}

    def weights(self, x: Tensor | ArrayLike, memory: Tensor | ArrayLike | None = None) -> Array:
        """Who attends to whom, (B, heads, T, S), each row summing to 1: to look at."""
        with no_grad():
            q, k, _ = self.by_head(x, memory)
            # With the unit matrix as values, what comes out are the weights.
            return fused.attention(
                q, k, np.eye(k.shape[-2], dtype=k.dtype), causal=self.causal
            ).data

    def extra(self) -> str:
        return f"{self.heads} heads" + (", causal" if self.causal else "")


class FeedForward(Module):
    """activation(x W1 + b1) W2 + b2, for each token on its own (Vaswani et al. 2017, eq. 2).

    `inner_norm`: a `norm` of what W2 gets.

    >>> FeedForward(8, 32, rng=0)(np.ones((1, 5, 8), np.float32)).shape
    (1, 5, 8)
    """

    level = 1
    role = "feed-forward"

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: str = "relu",
        inner_norm: bool = False,
        norm: Callable[[int], Module] = LayerNorm,
        rng: Seed = None,
    ):
        expect.one_of("FeedForward: activation", activation, ACTIVATIONS)
        expect.size("FeedForward: d_model", d_model)
        expect.size("FeedForward: d_ff", d_ff)
        expect.function("FeedForward: norm", norm)
        rng = expect.generator("FeedForward", rng)
        self.up = Linear(d_model, d_ff, rng=rng)
        self.activation = activation
        self.down = Linear(d_ff, d_model, rng=rng)
        self.inner_norm = norm(d_ff) if inner_norm else None

    def forward(self, x: Tensor | ArrayLike) -> Tensor:
        h = ACTIVATIONS[self.activation](self.up(x))
        return self.down(h if self.inner_norm is None else self.inner_norm(h))

    def matrices(self) -> dict[str, Array]:
        """The two matrices, to scale them before training."""
        return {"up": self.up.weight.data, "down": self.down.weight.data}

    def extra(self) -> str:
        return f"{self.up.extra()}, {self.activation}"
