"""Gradient checkpointing: the same bits for less memory."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from conftest import leaf

import tinyres as tr
from tinyres import nn, optim


def stack(**options):
    return nn.TransformerStack(8, 2, 2, causal=True, rng=0, **options)


def stream(seed=1):
    return tr.Tensor(
        np.random.default_rng(seed).normal(size=(2, 3, 8)).astype("f4"), requires_grad=True
    )


def through(model, checkpointed):
    """Value, gradient of the stream, gradients of all parameters, and what rng draws next."""
    x = stream()
    h = x * 2
    for block in model.blocks:
        h = tr.checkpoint(block, h) if checkpointed else block(h)
    (h * np.arange(8, dtype="f4")).sum().backward()
    drawn = [m.rng.random() for m in model.modules() if isinstance(m, nn.Dropout)]
    return [h.data, x.grad, *[p.grad for p in model.parameters() if p.grad is not None], drawn]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_same_gradients_to_the_last_bit(dropout):
    plain, again = (through(stack(dropout=dropout), way) for way in (False, True))
    assert len(plain) == len(again) > 20
    assert all(np.array_equal(a, b) for a, b in zip(plain, again, strict=True))


def test_checkpoints_inside_checkpoints():
    def part(x):
        return tr.dropout(x.exp(), 0.5, rng)

    def inner(x):
        return tr.checkpoint(part, x) * x

    def run(fn):
        x = leaf(0.1, 0.2, 0.3, 0.4)
        y = fn(x)
        y.sum().backward()
        return y.data.tolist(), x.grad.tolist(), rng.random()

    rng = np.random.default_rng(0)
    nested = run(lambda x: tr.checkpoint(inner, x))
    rng = np.random.default_rng(0)
    assert nested == run(lambda x: part(x) * x)


def test_values_inside_are_forgotten():
    inside = []

    def fn(x):
        h = x.exp()
        inside.append(weakref.ref(h.data))
        return h.tanh()

    x = leaf(1.0, 2.0)
    y = tr.checkpoint(fn, x)
    assert inside[0]() is None
    y.sum().backward()
    assert len(inside) == 2 and inside[1]() is None


def test_gradients_of_several_inputs_and_of_constants():
    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    tr.checkpoint(lambda a, b, c: a * b * c, a, b, np.array([2.0, 2.0])).sum().backward()
    assert a.grad.tolist() == [6, 8] and b.grad.tolist() == [2, 4]
    tr.checkpoint(lambda t: t * t, a * 2).sum().backward(None)
    assert a.grad.tolist() == [6 + 8, 8 + 16]
    tr.checkpoint(lambda a, b: a * 2, a, b).sum().backward()
    assert b.grad.tolist() == [2, 4]


def test_parameters_get_their_gradient_where_no_input_asks_for_one():
    layer = nn.Linear(2, 1, rng=0)
    tr.checkpoint(layer, np.ones((3, 2), "f4")).sum().backward()
    assert layer.weight.grad.tolist() == [[3], [3]]


def test_without_recording_nothing_is_remembered():
    with tr.no_grad():
        assert not tr.checkpoint(nn.Linear(2, 1, rng=0), np.ones((3, 2), "f4")).requires_grad


def test_a_parameter_that_changed_in_between_is_an_error():
    layer = nn.Linear(2, 2, rng=0)
    x = leaf([1.0, 2.0], dtype="f4")
    y = tr.checkpoint(layer, x).sum()
    layer.weight.grad = np.ones((2, 2))
    optim.SGD([layer.weight], lr=0.1).step()
    with pytest.raises(RuntimeError, match="changed since the forward pass"):
        y.backward()
    assert x.grad is None


def test_a_generator_that_dropout_does_not_know_is_an_error():
    rng = np.random.default_rng(0)
    y = tr.checkpoint(lambda x: x * rng.random(2), leaf(1.0, 2.0))
    with pytest.raises(RuntimeError, match="fn gave other values"):
        y.sum().backward()


def test_checkpoint_where_gradients_are_collected_by_others():
    w = tr.Tensor([1.0, 2.0], requires_grad=True)

    def loss(x):
        return tr.checkpoint(lambda x: (x @ w).exp(), x).mean()

    x = np.eye(2, dtype="f4")
    loss(x).backward()
    whole, w.grad = w.grad, None
    tr.data_parallel(loss, x)
    np.testing.assert_allclose(w.grad, whole, rtol=1e-6)
    assert tr.gradcheck(lambda x: tr.checkpoint(lambda x: (x * x).sum(), x), [np.ones(3)])


def test_checkpoint_runs_again_as_it_ran_first():
    x = tr.Tensor([1.0, 2.0], requires_grad=True)
    y = tr.checkpoint(lambda x: (x * x).sum(), x)
    with tr.no_grad():
        y.backward()
    assert x.grad.tolist() == [2.0, 4.0]
    with tr.spelled_out():
        y = tr.checkpoint(lambda x: tr.softmax(x)[0], x)
    y.backward()


def test_a_pullback_that_fails_leaves_the_gradients_inside_a_checkpoint_alone():
    @tr.op
    def fails(x):
        return x * 1, lambda g: 1 / 0

    w, x = (tr.Tensor([1.0], requires_grad=True) for _ in "wx")
    y = tr.checkpoint(lambda x: w * x, fails(x)).sum()
    with pytest.raises(ZeroDivisionError):
        y.backward()
    assert w.grad is None and x.grad is None


def test_a_checkpoint_inside_another_adds_to_a_shared_parameter():
    w = tr.Tensor([3.0], requires_grad=True)

    def inner(x):
        return tr.checkpoint(lambda x: w * x, x)

    tr.checkpoint(lambda x: inner(x) + w * x, tr.Tensor([5.0])).sum().backward()
    assert w.grad.tolist() == [10.0]
