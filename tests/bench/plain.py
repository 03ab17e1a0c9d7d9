"""The model in the words of NumPy, which JAX, autograd and MyGrad speak, too: `xp` is any of them.

With `xp = numpy` it is the reference for the loss: no fused function, no clever order of things.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.bench.models import Workload

# Numbers of this kind keep float32 arrays float32 in all of them.
f32 = np.float32


def layer_norm(xp: Any, x: Any, gamma: Any, beta: Any) -> Any:
    """gamma * (x - mean) / sqrt(variance + 1e-5) + beta over the last axis."""
    x = x - xp.mean(x, axis=-1, keepdims=True)
    return x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + f32(1e-5)) * gamma + beta


def softmax(xp: Any, x: Any) -> Any:
    """exp(x) / sum(exp(x)) over the last axis."""
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


def gelu(xp: Any, x: Any) -> Any:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x ** 3)))."""
    inner = f32(np.sqrt(2 / np.pi)) * (x + f32(0.044715) * x * x * x)
    return f32(0.5) * x * (f32(1) + xp.tanh(inner))


def attention(xp: Any, w: Workload, qkv: Any) -> Any:
    """Causal self-attention of all heads, from (B, T, 3 d) to (B, T, d)."""
    b, t, d = qkv.shape[0], w.tokens, w.d_model
    split = xp.reshape(qkv, (b, t, 3, w.heads, d // w.heads))
    q, k, v = (xp.swapaxes(split[:, :, i], 1, 2) for i in range(3))
    scores = xp.matmul(q, xp.swapaxes(k, -1, -2)) * f32((d // w.heads) ** -0.5)
    future = np.triu(np.full((t, t), -1e9, f32), 1)
    y = xp.matmul(softmax(xp, scores + future), v)
    return xp.reshape(xp.swapaxes(y, 1, 2), (b, t, d))


def block(xp: Any, w: Workload, x: Any, p: Any) -> Any:
    """A Pre-LN block with the weights p."""
    y = layer_norm(xp, x, p["norm1.weight"], p["norm1.bias"])
    y = attention(xp, w, xp.matmul(y, p["qkv.weight"]) + p["qkv.bias"])
    x = x + xp.matmul(y, p["out.weight"]) + p["out.bias"]
    y = layer_norm(xp, x, p["norm2.weight"], p["norm2.bias"])
    y = xp.matmul(y, p["up.weight"]) + p["up.bias"]
    y = gelu(xp, y) if w.activation == "gelu" else xp.maximum(y, f32(0))
    return x + xp.matmul(y, p["down.weight"]) + p["down.bias"]


def cross_entropy(xp: Any, logits: Any, targets: Any) -> Any:
    """Mean of -log softmax(logits)[target]."""
    rows = xp.reshape(logits, (targets.size, logits.shape[-1]))
    rows = rows - xp.max(rows, axis=-1, keepdims=True)
    picked = rows[np.arange(targets.size), targets.reshape(-1)]
    return xp.mean(xp.log(xp.sum(xp.exp(rows), axis=-1)) - picked)


def loss(
    xp: Any, w: Workload, through_blocks: Callable[[Any], Any], p: Any, tokens: Any, targets: Any
) -> Any:
    """The loss of a batch; `through_blocks` runs the stack, p are the weights around it."""
    x = through_blocks(p["token.weight"][tokens] + p["position.weight"])
    x = layer_norm(xp, x, p["norm.weight"], p["norm.bias"])
    return cross_entropy(xp, xp.matmul(x, p["head.weight"]) + p["head.bias"], targets)


def eager_loss(xp: Any, w: Workload, blocks: Any, around: Any, tokens: Any, targets: Any) -> Any:
    """The same, one block after the other."""

    def through_blocks(x: Any) -> Any:
        for p in blocks:
            x = block(xp, w, x, p)
        return x

    return loss(xp, w, through_blocks, around, tokens, targets)


def adam(p: Any, g: Any, m: Any, v: Any, step: Any, lr: float = 1e-3) -> tuple[Any, Any, Any]:
    """One update of Adam of one array, out of place: the new p, m and v."""
    m = f32(0.9) * m + f32(0.1) * g
    v = f32(0.999) * v + f32(0.001) * g * g
    m_hat, v_hat = m / (1 - f32(0.9) ** step), v / (1 - f32(0.999) ** step)
    return p - f32(lr) * m_hat / (v_hat ** f32(0.5) + f32(1e-8)), m, v
