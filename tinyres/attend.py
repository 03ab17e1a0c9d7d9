"""The kernel of attention: softmax(q k^T / sqrt(d)) v and its way back, on plain arrays.

What makes it fast in NumPy:

- The scores stand transposed, keys along axis -2: NumPy reduces over an axis that is not the last
  one several times faster.
- The weights are never divided by their sum; the rows of the result are, which are shorter.
- The right factor of a small product is made contiguous: BLAS gains more by it than a copy costs.
- A causal query needs no later key. So the queries are taken in chunks, each with the keys up to
  its last one: a quarter of the work is saved at two chunks, and near a half at many.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tinyres.arrays import Array, filled

Back = Callable[[Array, Array, Array, Array], None]

CHUNK = 64  # queries at a time: shorter ones spend more on calls than they save
# exp(88) is the end of float32. Only where a score comes near it, the largest of each row is taken
# off first: that changes no weight, but costs two of five passes over the scores.
SAFE_SCORE = {2: 3.0, 4: 30.0, 8: 30.0}  # by the bytes of a number


def attend(q: Array, k: Array, v: Array, y: Array, *, allowed: Array | None, causal: bool) -> Back:
    """Write softmax(q k^T / sqrt(d)) v into y; return what takes the cotangents back.

    q (..., T_q, d), k (..., T_k, d), v (..., T_k, d_v), y (..., T_q, d_v); `allowed` is bool and
    broadcasts to (..., T_q, T_k). The function that is returned takes the cotangent of y and
    writes those of q, k and v into the three arrays that it is given.
    """
    queries, keys = q.shape[-2], k.shape[-2]
    if allowed is not None:
        allowed = np.broadcast_to(allowed, (*q.shape[:-1], keys)).swapaxes(-1, -2)
    size = CHUNK if causal else max(queries, 1)
    starts = range(0, max(queries, 1), size)
    ends = [min(start + size, queries) for start in starts]
    # The last chunk takes all keys, the others those up to their last query.
    seen = [keys if end == queries else min(end, keys) for end in ends]
    backs = []
    for start, end, some in zip(starts, ends, seen):
        part = slice(start, end)
        bias = _causal_bias(start, end, some, q.dtype) if causal else None
        may = None if allowed is None else allowed[..., :some, part]
        pieces = q[..., part, :], k[..., :some, :], v[..., :some, :], y[..., part, :]
        backs.append(_attend_chunk(*pieces, bias, may))

    def back(g: Array, gq: Array, gk: Array, gv: Array) -> None:
        for i in reversed(range(len(ends))):  # the last one first: it writes all of gk and gv
            part, some = slice(starts[i], ends[i]), seen[i]
            into = gq[..., part, :], gk[..., :some, :], gv[..., :some, :]
            backs[i](g[..., part, :], *into, i < len(ends) - 1)

    return back


def _attend_chunk(
    q: Array, k: Array, v: Array, y: Array, bias: Array | None, allowed: Array | None
) -> Callable[..., None]:
    scale = q.shape[-1] ** -0.5
    qT = np.multiply(q.swapaxes(-1, -2), scale, order="C")  # (..., d, T_q)
    e = k @ qT  # (..., T_k, T_q)
    safe = SAFE_SCORE[e.itemsize]
    small = e.max(initial=0) <= safe and e.min(initial=0) >= -safe  # not so where one is NaN
    if bias is not None:
        e += bias
    if allowed is not None:
        e = np.where(allowed, e, -np.inf)
    if not small:
        top = e.max(axis=-2, keepdims=True)
        top[np.isneginf(top)] = 0  # a row that may attend to nothing
        e -= top
    np.exp(e, out=e)
    total = filled(e.shape[-2], 1, e.dtype)[None] @ e  # (..., 1, T_q)
    if allowed is not None or not e.shape[-2]:
        total[total == 0] = 1  # a row that may attend to nothing, or no key at all
    mixed = v.swapaxes(-1, -2) @ e  # (..., d_v, T_q)
    np.divide(mixed, total, out=y.swapaxes(-1, -2))

    def back(g: Array, gq: Array, gk: Array, gv: Array, add: bool) -> None:
        gT = np.divide(g.swapaxes(-1, -2), total, order="C")  # (..., d_v, T_q)
        _product(e, gT.swapaxes(-1, -2).copy(), gv, add)
        gT *= scale  # here, where it has the fewest numbers to change
        ones = filled(v.shape[-1], 1, e.dtype)[None]
        gs = v @ gT  # of the weights, then of the scores: (..., T_k, T_q)
        gs -= (ones @ (gT * mixed)) / total  # (..., 1, T_q): gT times y, summed over d_v
        gs *= e
        _product(gs, q.copy(), gk, add)
        np.matmul(gs.swapaxes(-1, -2), k, out=gq)

    return back


def _product(a: Array, b: Array, out: Array, add: bool) -> None:
    if add:
        out += a @ b
    else:
        np.matmul(a, b, out=out)


@functools.lru_cache(maxsize=64)
def _causal_bias(start: int, end: int, keys: int, dtype: Any) -> Array:
    """What to add to the scores (keys, end - start): 0 where key <= query, else minus infinity."""
    late = np.arange(keys)[:, None] > np.arange(start, end)
    bias = np.where(late, -np.inf, 0).astype(dtype)
    bias.flags.writeable = False
    return bias
