"""Mistakes that frameworks of this kind have made, each by its kind: the engine and NumPy."""

from __future__ import annotations

import copy
import weakref

import numpy as np
import pytest
from conftest import leaf, no_garbage_collector

import tinyres as tr
from tinyres import nn, optim


def grad_of(fn, *data, dtype="float64"):
    x = leaf(*data, dtype=dtype)
    with np.errstate(all="ignore"):
        fn(x).sum().backward()
    return x.grad.tolist()


# ---------------------------------------------------------------- walking the graph


def test_recursion_on_a_deep_graph():
    x = leaf(1.0)
    y = x
    for _ in range(100_000):
        y = y + 1.0
    y.backward()
    assert x.grad.tolist() == [1]


def test_recursion_when_a_deep_graph_is_freed():
    with no_garbage_collector():
        x = leaf(1.0)
        held, y = weakref.ref(x.data), x
        for _ in range(100_000):
            y = y * x
        del x, y
        assert held() is None


def test_a_value_used_twice():
    assert grad_of(lambda x: x * x + x, 3.0) == [7]
    assert grad_of(lambda x: x - x, 3.0) == [0]
    y = leaf(2.0)
    z = y * 3
    tr.concatenate([z, z, z * z]).sum().backward()
    assert y.grad.tolist() == [3 + 3 + 36]


def test_60_doublings_take_time_linear_in_the_edges():
    x = leaf(1.0)
    z = x
    for _ in range(60):
        z = z + z
    z.backward()
    assert x.grad.tolist() == [2.0**60] == z.data.tolist()


def test_order_of_a_diamond_with_arms_of_unequal_length():
    x = leaf(2.0)
    y = x * x
    (y * (y.exp().log() + x) * y).sum().backward()  # x^6 + x^5
    np.testing.assert_allclose(x.grad, [6 * 2**5 + 5 * 2**4])


def test_gradients_shared_between_leaves():
    a, b, c = leaf(1.0, 2.0), leaf(1.0, 2.0), leaf(1.0, 2.0)
    (tr.residual(a + b, c)).sum().backward()
    a.grad += 5
    assert b.grad.tolist() == c.grad.tolist() == [1, 1]
    seed = np.ones(2)
    (a * 1).backward(seed)
    a.grad += 5
    assert seed.tolist() == [1, 1]


def test_a_gradient_that_is_a_read_only_broadcast():
    for fn in (lambda x: x.sum(), lambda x: x.mean(), lambda x: x.T.reshape(-1).sum()):
        x = leaf([1.0, 2.0], [3.0, 4.0])
        fn(x).backward()
        x.grad *= 0.5
        assert x.grad.flags.writeable and x.grad.flags.owndata
        fn(x).backward()


def test_second_backward():
    x = leaf(6.0)
    y = x * x
    z = y * 3
    z.backward(retain_graph=True)
    assert x.grad.tolist() == [36]
    z.backward()
    assert x.grad.tolist() == [72]
    for again in (z, y, y * 2):
        with pytest.raises(RuntimeError, match="retain_graph=True"):
            again.backward()
    assert x.grad.tolist() == [72]


def test_a_second_loss_through_a_freed_part():
    x = leaf(1.0)
    shared = x.exp()
    first, second = shared * 2, shared * 3
    first.backward()
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        second.backward()


def test_backward_of_what_is_no_scalar():
    x = leaf(1.0, 2.0)
    with pytest.raises(ValueError, match=r"shape \(2,\).*\.sum\(\)"):
        (x * 2).backward()
    (x[:1] * 2).backward()
    assert x.grad.tolist() == [2, 0]


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1), (1, 2)])
def test_seed_of_the_wrong_shape(shape):
    x = leaf(1.0, 2.0)
    with pytest.raises(ValueError, match=r"grad has shape .*the tensor \(2,\)"):
        (x * 2).backward(np.ones(shape))
    assert x.grad is None


# ---------------------------------------------------------------- NumPy beside tensors


ARRAY = np.array([[1.0, 2.0], [3.0, 4.0]])
OPERATORS = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "/": lambda a, b: a / b, "**": lambda a, b: a**b, "@": lambda a, b: a @ b,
}  # fmt: skip


@pytest.mark.parametrize("symbol", OPERATORS)
@pytest.mark.parametrize(
    "other",
    [ARRAY, ARRAY[0], np.float64(1.5), np.float32(1.5), np.int64(2), 1.5, 2, True],
    ids=repr,
)
def test_an_array_or_scalar_on_either_side(symbol, other):
    fn, t = OPERATORS[symbol], tr.Tensor(ARRAY + 1, requires_grad=True)
    for left in (True, False):
        if symbol == "@" and np.ndim(other) == 0:
            with pytest.raises((TypeError, ValueError)):
                fn(other, t) if left else fn(t, other)
            continue
        got = fn(other, t) if left else fn(t, other)
        want = fn(other, t.data) if left else fn(t.data, other)
        assert isinstance(got, tr.Tensor) and got.requires_grad
        np.testing.assert_allclose(got.data, want, rtol=1e-14)
        assert tr.gradcheck(lambda x: fn(other, x) if left else fn(x, other), [ARRAY + 1])  # noqa: B023


STAYS_FLOAT32 = {
    "root of a number": lambda x: x * np.sqrt(64),
    "scalar on the left": lambda x: np.float64(2) * x,
    "sum of scalars": lambda x: np.float64(1) + x - np.float64(2),
    "quotients": lambda x: np.float64(1) / (x / np.float64(3)),
    "powers": lambda x: (x ** np.float64(2)) * (np.float64(2) ** x) * x**3 * 2**x,
    "integers": lambda x: (x * np.int64(3) + 1) / 2 - np.int64(4),
    "unsigned": lambda x: x - np.uint8(1),
    "where": lambda x: tr.where(x.data > 1, x, np.float64(0)),
    "maximum": lambda x: tr.maximum(np.float64(0), x),
    "mask": lambda x: (x > 1) * x,
    "integer array": lambda x: np.array([1, 2]) * x + np.array([1, 2]) ** x,
    "integer array as a divisor": lambda x: x / np.array([1, 2]),
    "list": lambda x: x * [1.5, 2.0],
    "concatenate": lambda x: tr.concatenate([x, [1.0], np.float32([2])]),
    "mean and var": lambda x: x.mean() + x.var() + tr.norm(x),
    "fused": lambda x: tr.layer_norm(x, eps=np.float64(1e-5)).gelu().softmax(),
    "losses": lambda x: tr.cross_entropy(x, np.array(1)) + tr.mse(x, x * 2),
    "dropout": lambda x: tr.dropout(x, np.float64(0.5), np.random.default_rng(0)),
}


@pytest.mark.parametrize("how", STAYS_FLOAT32)
def test_float64_leaking_in(how):
    x = leaf(1.5, 2.5, dtype="float32")
    y = STAYS_FLOAT32[how](x)
    y.sum().backward()
    assert y.dtype == np.float32 and x.grad.dtype == np.float32
    double = STAYS_FLOAT32[how](leaf(1.5, 2.5)).data
    np.testing.assert_allclose(y.data, double, rtol=1e-5)


def test_numbers_beside_a_float64_tensor_keep_their_digits():
    x = leaf(1.0, 1.0)
    assert (x * [0.1, 0.2]).data.tolist() == [0.1, 0.2]
    assert (x * 0.1).data[0] == (0.1 * x).data[0] == tr.maximum(x * 0, 0.1).data[0] == 0.1


def test_float64_leaking_into_a_training_step():
    model = nn.TransformerLM(vocab=7, d_model=8, heads=2, blocks=2, context=5, dropout=0.1, rng=0)
    optimizer = optim.Adam(model.parameters(), lr=np.float64(1e-3), weight_decay=np.float64(0.1))
    for step in range(3):
        optimizer.lr = optim.warmup_cosine(np.float64(1e-3), 2, 10)(step)
        loss = model.loss(np.array([[1, 2, 3]]), np.array([[2, 3, 4]]))
        loss.backward()
        assert loss.dtype == np.float32
        optim.clip_grad_norm(model.parameters(), np.float64(0.1))
        assert {p.grad.dtype for p in model.parameters()} == {np.dtype("float32")}
        optimizer.step()
        optimizer.zero_grad()
    assert {p.dtype for p in model.parameters()} == {np.dtype("float32")}
    state = optimizer.state_dict()["slots"]
    assert {slot.dtype for slots in state for slot in slots} == {np.dtype("float32")}


@pytest.mark.parametrize("data", [np.arange(3), np.array([True]), True, np.int64(3)], ids=repr)
def test_integers_requiring_gradients(data):
    with pytest.raises(TypeError, match=r"has no gradient; .*float"):
        tr.Tensor(data, requires_grad=True)
    with pytest.raises(TypeError, match="has no gradient"):
        tr.Tensor(data).requires_grad = True


SQUARE = [[1.0, 2.0], [3.0, 4.0]]
ALIASES = {
    "operand": (lambda x, a: x * a, np.array(SQUARE)),
    "data": (lambda x, a: tr.Tensor(a) * x, np.array(SQUARE)),
    "condition": (lambda x, a: tr.where(a, x, 0.0), np.array(SQUARE) > 2),
    "array index": (lambda x, a: x[a], np.array([1, 1])),
    "boolean index": (lambda x, a: x[a], np.array([False, True])),
    "index in a tuple": (lambda x, a: x[a, 0], np.array([0, 1])),
    "index in a list": (lambda x, a: x[a], [1, 1]),
    "embedding": (lambda x, a: tr.embedding(x, a), np.array([1, 1])),
    "targets": (lambda x, a: tr.cross_entropy(x, a), np.array([1, 1])),
    "mask": (lambda x, a: tr.attention(x, x, x, mask=a), np.eye(2) > 0),
}


@pytest.mark.parametrize("how", ALIASES)
def test_the_users_array_aliased(how):
    fn, array = ALIASES[how]

    def run(change):
        x, mine = leaf(*SQUARE), copy.copy(array)
        y = fn(x, mine)
        if change:
            mine[:] = [0] * len(mine)
        y.sum().backward()
        return y.data.tolist(), x.grad.tolist()

    assert run(change=True) == run(change=False)


def test_what_is_handed_out_is_a_copy():
    model = nn.Linear(2, 2, rng=0)
    state, before = model.state_dict(), model.weight.data.copy()
    state["weight"][...] = 0
    model.weight.detach().numpy()[...] = 0
    np.asarray(model.weight.detach())[...] = 0
    assert np.array_equal(model.weight.data, before)


# ---------------------------------------------------------------- changed in place


def _assign(p, optimizer):
    p.data = p.data * 2


def _subtract(p, optimizer):
    p.data -= 0.5


def _load(p, optimizer):
    holder = nn.Module()
    holder.p = p
    holder.load_state_dict({"p": np.zeros(p.shape)})


def _step(p, optimizer):
    p.grad = np.ones(p.shape)
    optimizer.step()


NEEDS_P = {
    "product": lambda p: p * p,
    "matmul of a view": lambda p: leaf([1.0, 2.0]) @ p.reshape(2, 1),
    "linear": lambda p: tr.linear(leaf([1.0, 2.0]), p.reshape(2, 1)),
    "a slice": lambda p: p[1:] * leaf(2.0),
    "layer_norm": lambda p: tr.layer_norm(leaf([1.0, 2.0]), p),
    "attention": lambda p: tr.attention(leaf([2.0]), p.reshape(2, 1), leaf([1.0], [2.0])),
}  # fmt: skip


@pytest.mark.parametrize("change", [_assign, _subtract, _load, _step])
@pytest.mark.parametrize("how", NEEDS_P)
def test_parameters_changed_between_forward_and_backward(how, change):
    p = nn.Parameter(np.array([1.0, 3.0]))
    optimizer = optim.SGD([p], lr=0.1)
    loss = NEEDS_P[how](p).sum()
    change(p, optimizer)
    with pytest.raises(RuntimeError, match="changed since the forward pass"):
        loss.backward()


def _in_a_tuple(a):
    saved = (None, [a])
    return a * a, lambda g: (2 * saved[1][0] * g,)


def _in_a_function(a):
    def twice(g):
        return 2 * a * g

    return a * a, lambda g: (twice(g),)


@pytest.mark.parametrize("square", [_in_a_tuple, _in_a_function])
def test_a_change_of_what_an_own_op_keeps_out_of_sight(square):
    p = nn.Parameter([1.0, 3.0])
    loss = tr.op(square)(p).sum()
    p.data -= 1
    with pytest.raises(RuntimeError, match="changed since the forward pass"):
        loss.backward()


@pytest.mark.parametrize("change", [_assign, _subtract, _load, _step])
def test_a_change_that_no_pullback_minds(change):
    p, q = nn.Parameter(np.array([1.0, 3.0])), leaf(2.0, 5.0)
    optimizer = optim.SGD([p], lr=0.1)
    loss = (p + q.exp() * 3).sum()
    change(p, optimizer)
    p.grad = None
    loss.backward()
    assert p.grad.tolist() == [1, 1]


def test_a_step_that_leaves_other_parameters_alone():
    p, q = nn.Parameter([1.0, 2.0]), nn.Parameter([3.0, 4.0])
    optimizer = optim.Adam([p, q], lr=0.1)
    first, second = (p * p).sum(), (q * q).sum()
    first.backward()
    optimizer.step()
    second.backward()
    assert q.grad.tolist() == [6, 8]
