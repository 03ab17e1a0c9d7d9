"""Every op of the package: its gradient, and the rules that all of them keep."""

from __future__ import annotations

import math
import weakref

import numpy as np
import pytest
from conftest import gradients, no_garbage_collector
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from op_cases import CASES, OPS, all_cases, case_id

import tinyres as tr

each_case = pytest.mark.parametrize("name, case", list(all_cases()), ids=case_id)

# How an array reaches the op: (what the leaf holds, how the op's input is made from the leaf).
LAYOUTS = {
    "as it is": (lambda a: a, lambda t: t),
    "F-ordered": (lambda a: a.transpose(), lambda t: t.transpose()),
    "strided and backwards": (
        lambda a: np.repeat(a, 2, -1)[..., ::-1] if a.ndim else a,
        lambda t: t[..., ::-2] if t.ndim else t,
    ),
}


def test_every_op_has_a_case():
    assert sorted(OPS) == sorted(CASES), (
        "an op is without a case in op_cases.py, or a case without an op"
    )


# What NumPy calls the ops that have no twin in primitive ops to be compared with.
ORACLES = {
    **{n: getattr(np, n) for n in ("exp", "log", "sqrt", "tanh", "power", "maximum", "where")},
    **{n: getattr(np, n) for n in ("sum", "mean", "var", "max", "matmul", "transpose")},
    "reshape": lambda x, shape: np.reshape(x, shape),
    "add": np.add,
    "residual": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "shift": lambda x, by: np.add(x, by),
    "scale": lambda x, by: np.multiply(x, by),
    "raise_to": lambda x, exponent: np.power(x, exponent),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "relu": lambda x: np.where(x > 0, x, 0),
    "normal_cdf": np.vectorize(lambda x: math.erfc(-x / 2**0.5) / 2, otypes=[float]),
    "norm": lambda x, **axes: np.sqrt(np.sum(x**2, **axes)),
    "getitem": lambda x, index: x[index],
    "concatenate": lambda *xs, axis: np.concatenate(xs, axis),
    "stack": lambda *xs, axis: np.stack(xs, axis),
    "mse": lambda x, y: np.mean((x - y) ** 2),
    "dropout": lambda x, keep: np.multiply(x, keep),
}


def test_every_op_has_something_to_be_compared_with():
    assert set(ORACLES) == {name for name in OPS if OPS[name].spelled_out is None}


@pytest.mark.parametrize(
    "name, case", [(n, c) for n, c in all_cases() if n in ORACLES], ids=case_id
)
def test_value(name, case):
    arrays = case.arrays()
    expected = case.call(ORACLES[name], *arrays)
    got = case.call(OPS[name], *map(tr.Tensor, arrays)).data
    assert got.shape == np.shape(expected)
    np.testing.assert_allclose(got, expected, rtol=1e-13, atol=1e-13)


@each_case
def test_gradient(name, case):
    for stored, reaches in LAYOUTS.values():

        def fn(*leaves, reaches=reaches):
            return case.call(OPS[name], *map(reaches, leaves)).transpose()

        assert tr.gradcheck(fn, [stored(a) for a in case.arrays()], atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize(
    "name, case",
    [(n, c) for n, c in all_cases() if len(c.shapes) > 1 and len(set(c.shapes)) == 1],
    ids=case_id,
)
def test_an_operand_given_twice_gets_the_sum(name, case):
    first = case.arrays()[0]
    _, (grad,) = gradients(lambda x: case.call(OPS[name], *[x] * len(case.shapes)), first)
    _, each = gradients(lambda *xs: case.call(OPS[name], *xs), *[first] * len(case.shapes))
    np.testing.assert_allclose(grad, sum(each), rtol=1e-12, atol=1e-14)


@each_case
def test_float32_stays_float32(name, case):
    value, grads = gradients(lambda *xs: case.call(OPS[name], *xs), *case.arrays("float32"))
    as_double = [a.astype("float64") for a in case.arrays("float32")]
    exact, expected = gradients(lambda *xs: case.call(OPS[name], *xs), *as_double)
    for got, want in zip([value, *grads], [exact, *expected], strict=True):
        assert got.dtype == np.float32 and want.dtype == np.float64
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@each_case
def test_pullback_writes_into_nothing(name, case):
    arrays = case.arrays()
    for a in arrays:
        a.flags.writeable = False
    before = [np.asarray(a) for a in case.before]
    value, pullback = OPS[name].__wrapped__(*before, *arrays, **case.attrs)
    g = np.random.default_rng(1).uniform(-1, 1, np.shape(value))
    g.flags.writeable = False
    first = [None if h is None else np.array(h) for h in pullback(g)]
    for once, again in zip(first, pullback(g), strict=True):
        assert (once is None and again is None) or np.array_equal(once, again)


@each_case
def test_no_reference_cycle(name, case):
    with no_garbage_collector():
        inputs = [tr.Tensor(a, requires_grad=True) for a in case.arrays()]
        held = [weakref.ref(t.data) for t in inputs]
        out = case.call(OPS[name], *inputs)
        assert out.requires_grad
        del inputs, out
        assert [r() for r in held] == [None] * len(held)


# ---------------------------------------------------------------- any shape, any index


def assert_adjoint(fn, shape):
    """A linear f and its pullback f* satisfy <g, f(v)> = <f*(g), v> for all g and v."""
    rng = np.random.default_rng(0)
    x = tr.Tensor(rng.normal(size=shape), requires_grad=True)
    y = fn(x)
    g, v = rng.normal(size=y.shape), rng.normal(size=shape)
    y.backward(g)
    np.testing.assert_allclose((g * fn(tr.Tensor(v)).data).sum(), (x.grad * v).sum(), atol=1e-10)


few_examples = settings(max_examples=60, deadline=None, derandomize=True, database=None)
shapes = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@few_examples
@given(st.data(), arrays.mutually_broadcastable_shapes(num_shapes=2, min_side=0, max_side=3))
def test_any_broadcast(data, both):
    name = data.draw(st.sampled_from(["add", "mul", "sub", "where"]))
    shape, other = both.input_shapes
    b = np.random.default_rng(1).normal(size=other)
    if name == "where":
        assert_adjoint(lambda x: tr.where(b > 0, x, 0.0), shape)
    else:
        assert_adjoint(lambda x: OPS[name](x, b if name == "mul" else 0 * b), shape)


@few_examples
@given(st.data(), shapes)
def test_any_index(data, shape):
    kinds = [arrays.basic_indices(shape, allow_newaxis=True)]
    if shape and 0 not in shape:
        kinds.append(arrays.integer_array_indices(shape))
        kinds.append(arrays.arrays(bool, shape))
    index = data.draw(st.one_of(kinds))
    assert_adjoint(lambda x: x[index], shape)


@few_examples
@given(st.data(), shapes)
def test_any_axes(data, shape):
    axis = data.draw(st.none() | arrays.valid_tuple_axes(len(shape)))
    keepdims = data.draw(st.booleans())
    assert_adjoint(lambda x: x.sum(axis, keepdims), shape)
    order = data.draw(st.permutations(range(len(shape))))
    assert_adjoint(lambda x: x.transpose(tuple(order)), shape)
    assert_adjoint(lambda x: x.reshape(-1), shape)


def test_integer_tensors_never_widen_a_float32():
    i, f = tr.Tensor(np.arange(3)), tr.Tensor([1.0, 2.0, 3.0])
    for y in (i * f, f - i, i * 0.5, i / 2.0, tr.Tensor([True]) * 0.5, f**i):
        assert y.dtype == np.float32
    for y in (i * 2, i + 1, i**2):
        assert y.dtype == np.int64
    assert tr.Tensor([np.ones(2)]).dtype == np.float64


def test_an_attribute_is_given_once():
    x = tr.Tensor([1.0, 2.0])
    assert tr.softmax(x, 0).data.sum() == 1
    with pytest.raises(TypeError, match="axis was given twice"):
        tr.softmax(x, 0, axis=0)
    with pytest.raises(TypeError, match="arguments too many"):
        tr.softmax(x, 0, 1)


@pytest.mark.parametrize("fn", [tr.normal_cdf, lambda x: tr.attention(x, x, x)])
def test_float16_does_not_overflow(fn):
    x = np.linspace(-7, 7, 12).reshape(3, 4)
    y = fn(tr.Tensor(x.astype(np.float16)))
    assert y.dtype == np.float16
    np.testing.assert_allclose(y.data, fn(tr.Tensor(x)).data, atol=0.02)
