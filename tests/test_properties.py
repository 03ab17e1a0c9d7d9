"""Random graphs of random ops: three ways to a derivative must agree, and so must both forms.

Hypothesis draws small programs. Each runs in `tinyres`, backwards; in dual numbers (`dual.py`),
forwards; and twice more for a central difference. `--hypothesis-profile=ci` and `=long` draw more
(`conftest.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dual
import numpy as np
from conftest import both_ways
from hypothesis import given
from hypothesis import strategies as st
from op_cases import OPS

import tinyres as tr

# ---------------------------------------------------------------- random graphs


def fitting(m: Any, a: Any, b: Any) -> Any:
    """b if it broadcasts with a, else one number made of it."""
    try:
        np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        return m.mean(b)
    return b


def rows(m: Any, x: Any) -> Any:
    """x as (..., d), with at least one axis."""
    return x if x.shape else m.reshape(x, shape=(1,))


def matrix(m: Any, x: Any) -> Any:
    """x as (..., n, d)."""
    return x if len(x.shape) > 1 else m.reshape(x, shape=(-1, 1))


def square(m: Any, x: Any) -> Any:
    return m.mul(x, x)


def turned(m: Any, x: Any) -> Any:
    """The last two axes exchanged."""
    n = len(x.shape)
    return m.transpose(x, axes=(*range(n - 2), n - 1, n - 2))


def along(x: Any, k: int) -> dict[str, Any]:
    """Some axis of x, or none, or two."""
    axes = [None, *range(len(x.shape)), *([(-1, 0)] if len(x.shape) > 1 else [])]
    return {"axis": axes[k % len(axes)], "keepdims": bool(k // 7 % 2)}


def last_axes(m: Any, x: Any) -> tuple[Any, Any]:
    """Two vectors as long as the last axis of x, made of it."""
    d = x.shape[-1]
    first = m.reshape(x, shape=(-1, d))
    return m.mean(first, axis=0), m.max(first, axis=0)


# Each takes the functions m (those of tinyres, or those of dual), two values, and a number.
# Squares and tanh keep arguments where the function has a value, and values from growing.
Step = Callable[[Any, Any, Any, int], Any]
STEPS: dict[str, Step] = {
    "add": lambda m, a, b, k: m.add(a, fitting(m, a, b)),
    "sub": lambda m, a, b, k: m.sub(fitting(m, a, b), a),
    "mul": lambda m, a, b, k: m.tanh(m.mul(a, fitting(m, a, b))),
    "div": lambda m, a, b, k: m.div(a, m.shift(square(m, fitting(m, a, b)), by=1.0)),
    "power": lambda m, a, b, k: (
        m.power(m.shift(square(m, m.tanh(a)), by=0.5), m.tanh(b))
        if a.shape == b.shape
        else m.power(m.shift(square(m, m.tanh(a)), by=0.5), m.tanh(m.mean(b)))
    ),
    "maximum": lambda m, a, b, k: m.maximum(a, fitting(m, a, b)),
    "where": lambda m, a, b, k: m.where(pattern(a.shape, k), a, fitting_down(m, a, b)),
    "shift": lambda m, a, b, k: m.shift(a, by=k % 5 - 2.0),
    "scale": lambda m, a, b, k: m.scale(a, by=k % 5 / 2 - 1.0),
    "raise_to": lambda m, a, b, k: m.raise_to(m.tanh(a), exponent=k % 3 + 1),
    "root": lambda m, a, b, k: m.raise_to(m.shift(square(m, a), by=0.5), exponent=-0.5),
    "exp": lambda m, a, b, k: m.exp(m.tanh(a)),
    "log": lambda m, a, b, k: m.log(m.shift(square(m, a), by=0.5)),
    "sqrt": lambda m, a, b, k: m.sqrt(m.shift(square(m, a), by=0.5)),
    "tanh": lambda m, a, b, k: m.tanh(a),
    "sigmoid": lambda m, a, b, k: m.sigmoid(a),
    "relu": lambda m, a, b, k: m.relu(a),
    "gelu": lambda m, a, b, k: m.gelu(a),
    "sum": lambda m, a, b, k: m.tanh(m.sum(a, **along(a, k))),
    "mean": lambda m, a, b, k: m.mean(a, **along(a, k)),
    "var": lambda m, a, b, k: m.var(a, **along(a, k)),
    "max": lambda m, a, b, k: m.max(a, **along(a, k)),
    "norm": lambda m, a, b, k: m.norm(m.shift(square(m, a), by=0.1), **along(a, k)),
    "matmul": lambda m, a, b, k: m.tanh(m.matmul(matrix(m, a), turned(m, m.sigmoid(matrix(m, a))))),
    "dot": lambda m, a, b, k: m.tanh(m.matmul(rows(m, a), last_axes(m, rows(m, a))[k % 2])),
    "reshape": lambda m, a, b, k: m.reshape(a, shape=[(-1,), (1, -1), (-1, 1, 1)][k % 3]),
    "transpose": lambda m, a, b, k: m.transpose(a, axes=[None, rolled(a, k)][k % 2]),
    "slice": lambda m, a, b, k: m.getitem(rows(m, a), index=[slice(None, None, 2), -1, ...][k % 3]),
    "gather": lambda m, a, b, k: m.getitem(rows(m, a), index=np.array([0, -1, 0])),
    "concatenate": lambda m, a, b, k: m.concatenate([rows(m, a)] * 2, -1),
    "stack": lambda m, a, b, k: m.stack([a, m.tanh(a)], k % 2 - 1),
    "softmax": lambda m, a, b, k: m.softmax(rows(m, a), axis=-(k % 2) if len(a.shape) > 1 else -1),
    "log_softmax": lambda m, a, b, k: m.log_softmax(m.tanh(rows(m, a)), axis=-1),
    "layer_norm": lambda m, a, b, k: m.layer_norm(
        rows(m, a), *last_axes(m, rows(m, a)), eps=[0.1, 0.3][k % 2]
    ),
    "rms_norm": lambda m, a, b, k: m.rms_norm(rows(m, a), last_axes(m, rows(m, a))[0], eps=0.1),
    "linear": lambda m, a, b, k: m.tanh(
        m.linear(rows(m, a), *weights_of(m, last_axes(m, rows(m, a))))
    ),
    "attention": lambda m, a, b, k: m.attention(
        m.tanh(matrix(m, a)), m.sigmoid(matrix(m, a)), matrix(m, a), causal=bool(k % 2)
    ),
    "cross_entropy": lambda m, a, b, k: m.cross_entropy(
        m.tanh(rows(m, a)), some_targets(rows(m, a).shape, k)
    ),
    "mse": lambda m, a, b, k: m.mse(a, m.tanh(a)),
    "residual": lambda m, a, b, k: m.residual(a, m.sigmoid(a)),
}


def pattern(shape: tuple[int, ...], k: int) -> np.ndarray:
    return np.random.default_rng(k).random(shape) < 0.5


def fitting_down(m: Any, a: Any, b: Any) -> Any:
    """b if it broadcasts to the shape of a, else one number made of it."""
    try:
        return b if np.broadcast_shapes(a.shape, b.shape) == a.shape else m.mean(b)
    except ValueError:
        return m.mean(b)


def rolled(x: Any, k: int) -> tuple[int, ...]:
    return tuple(np.roll(np.arange(len(x.shape)), k))


def weights_of(m: Any, vectors: tuple[Any, Any]) -> tuple[Any, Any]:
    """(d, 2) and (2,) from two vectors (d,)."""
    return m.stack(vectors, -1), m.stack([m.mean(v) for v in vectors], 0)


def some_targets(shape: tuple[int, ...], k: int) -> np.ndarray:
    return np.random.default_rng(k).integers(0, shape[-1], shape[:-1])


SHAPES = [(), (1,), (3,), (2, 3), (3, 1), (1, 3), (2, 1, 3), (1, 1, 1), (2, 2, 2)]
numbers = st.integers(0, 41)
programs = st.lists(
    st.tuples(st.sampled_from(sorted(STEPS)), numbers, numbers, numbers), min_size=1, max_size=8
)


def run(m: Any, leaves: list[Any], program: list[tuple[str, int, int, int]]) -> Any:
    """One number: the mean of the last two values, each squashed."""
    values = list(leaves)
    for name, i, j, k in program:
        # The latest values are likelier operands, so that graphs get deep.
        values.append(STEPS[name](m, values[-1 - i % len(values) % 4], values[j % len(values)], k))
        if np.prod(values[-1].shape) > 300:
            values[-1] = m.mean(values[-1], axis=-1)
    return m.add(m.mean(m.tanh(values[-1])), m.mean(m.tanh(values[-1 - len(values) // 3])))


@given(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3), programs, st.integers(0, 10**6))
def test_three_ways_to_a_derivative_agree(shapes, program, seed):
    rng = np.random.default_rng(seed)
    arrays = [rng.uniform(-2, 2, shape) for shape in shapes]
    directions = [rng.uniform(-1, 1, shape) for shape in shapes]
    leaves = [tr.Tensor(a, requires_grad=True) for a in arrays]
    out = run(tr, leaves, program)
    out.backward()
    found = sum(
        float((t.grad * d).sum())
        for t, d in zip(leaves, directions, strict=True)
        if t.grad is not None
    )

    expected = run(dual, [dual.Dual(a, d) for a, d in zip(arrays, directions)], program)
    np.testing.assert_allclose(out.data, expected.value, rtol=1e-8, atol=1e-10)
    if expected.kink < 1e-4:
        return  # a corner within reach of the differences, where dual numbers may choose otherwise
    np.testing.assert_allclose(found, expected.rate, rtol=1e-6, atol=1e-8)

    h = 1e-6
    with tr.no_grad():
        above, below = (
            run(tr, [tr.Tensor(a + s * d) for a, d in zip(arrays, directions)], program).item()
            for s in (h, -h)
        )
    np.testing.assert_allclose(found, (above - below) / (2 * h), rtol=1e-4, atol=1e-7)

    again = [tr.Tensor(a, requires_grad=True) for a in arrays]
    with tr.spelled_out():
        run(tr, again, program).backward()
    for t, twin in zip(leaves, again, strict=True):
        assert (t.grad is None) == (twin.grad is None)
        if t.grad is not None:
            np.testing.assert_allclose(t.grad, twin.grad, rtol=1e-7, atol=1e-9)


def test_the_programs_reach_every_op():
    """Every op, that is, which has a derivative and no other test of this kind."""
    reached = {"embedding", "self_attention", "dropout", "normal_cdf"}
    for name, step in STEPS.items():
        with tr.no_grad():
            step(tr, tr.Tensor(np.ones((2, 3))), tr.Tensor(np.ones((2, 3))), 1)
        reached |= set(step.__code__.co_names) & OPS.keys() | {name} & OPS.keys()
    assert reached == OPS.keys()


# ---------------------------------------------------------------- fused and spelled out


LENGTHS = st.sampled_from([0, 1, 1, 2, 3, 5, 8])
TWINS = sorted(name for name in OPS if OPS[name].spelled_out is not None)


@st.composite
def fused_calls(draw: Any) -> tuple[str, list[tuple[int, ...]], dict[str, Any], float]:
    """A fused op, the shapes of its inputs, its attributes, and what to add to its first input."""
    name = draw(st.sampled_from(TWINS))
    offset = draw(st.sampled_from([0.0, 1.0, -1e3, 1e6]))
    n, t, s = draw(LENGTHS), draw(LENGTHS), draw(LENGTHS)
    d = draw(LENGTHS) or 1
    batch = draw(st.sampled_from([(), (n,), (2, n), (1, n)]))
    flag = draw(st.booleans())
    x = (*batch, d)
    return name, *{
        "linear": ([x, (d, t), (t,)][: 2 + flag], {}, offset),
        "softmax": ([x], {"axis": draw(st.integers(-len(x), len(x) - 1))}, offset),
        "log_softmax": ([x], {"axis": -1}, offset),
        "layer_norm": ([x, (d,), (d,)][: draw(st.integers(1, 3))], {}, offset),
        "rms_norm": ([x, (d,)][: 1 + flag], {}, offset),
        "gelu": ([x], {}, offset),
        "attention": (
            [(*batch, t, d), (*batch, s, d), (*batch, s, n)],
            {"causal": flag, "mask": draw(st.sampled_from([None, pattern((t, s), n)]))},
            min(abs(offset), 10.0),
        ),
        "self_attention": (
            [(*batch, t, 2 * d), (2 * d, 6 * d), (6 * d,)][: 2 + flag],
            {
                "heads": 2,
                "causal": not flag,
                "mask": draw(st.sampled_from([None, pattern((t, t), s)])),
            },
            0.0,
        ),
        "embedding": ([(d, t)], {"index": pattern((n, s), t).astype(int) * (d - 1)}, offset),
        "cross_entropy": (
            [x],
            {"targets": some_targets(x, s), "ignore_index": draw(st.sampled_from([None, 0]))},
            offset,
        ),
    }[name]


def nothing_to_reduce(name: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any]) -> bool:
    """The largest of no numbers: NumPy's error, in both forms."""
    return name == "softmax" and shapes[0][attrs["axis"]] == 0


@given(fused_calls(), st.sampled_from(["float32", "float64"]), st.integers(0, 10**6))
def test_fused_equals_spelled_out(call, dtype, seed):
    name, shapes, attrs, offset = call
    if nothing_to_reduce(name, shapes, attrs):
        return
    rng = np.random.default_rng(seed)
    arrays = [rng.uniform(-2, 2, shape) for shape in shapes]
    arrays[0] += offset
    arrays = [a.astype(dtype) for a in arrays]
    # Spelled out in float64, from the same rounded inputs: what is right to the last digit.
    (value, grads), _ = both_ways(lambda *xs: OPS[name](*xs, **attrs), *arrays)
    _, (exact, exact_grads) = both_ways(
        lambda *xs: OPS[name](*xs, **attrs), *[a.astype("float64") for a in arrays]
    )
    tolerance = 3e-4 if dtype == "float32" else 1e-7
    for found, right in zip([value, *grads], [exact, *exact_grads], strict=True):
        assert found.dtype == dtype and found.shape == right.shape
        size = 1 + np.abs(right).max(initial=0)
        np.testing.assert_allclose(found, right, rtol=tolerance, atol=tolerance * size)
