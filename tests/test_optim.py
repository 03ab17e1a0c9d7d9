"""Optimizers: what the comparison with PyTorch (test_reference.py) does not reach."""

from __future__ import annotations

import numpy as np
import pytest

import tinyres as tr
from tinyres import optim
from tinyres.nn import Parameter

KINDS = {
    "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "Adam": lambda p: optim.Adam(p, lr=0.1, weight_decay=0.01),
    "AdamW": lambda p: optim.AdamW(p, lr=0.1, weight_decay=0.01),
}
EACH = pytest.mark.parametrize("kind", KINDS)


def steps(optimizer, params, count, start=0):
    """Some steps with gradients that depend on the step and on the values."""
    for step in range(start, start + count):
        for i, p in enumerate(params):
            p.grad = p.data * 0.5 + np.sin(step + i)
        optimizer.step()


def parameters():
    rng = np.random.default_rng(0)
    return [Parameter(rng.normal(size=s), dtype="float32") for s in ((3, 4), (5,), (), (2, 2))]


@EACH
def test_stopped_and_resumed_is_the_same_to_the_last_bit(kind, tmp_path):
    whole = parameters()
    optimizer = KINDS[kind](whole)
    steps(optimizer, whole, 10)

    first = parameters()
    optimizer = KINDS[kind](first)
    optimizer.lr = 0.2
    optimizer.lr = 0.1
    steps(optimizer, first, 4)
    tr.save(tmp_path / "run.npz", optimizer=optimizer.state_dict(), p=[p.data for p in first])
    state = tr.load(tmp_path / "run.npz")
    second = [Parameter(a) for a in state["p"]]
    optimizer = KINDS[kind](second)
    optimizer.load_state_dict(state["optimizer"])
    steps(optimizer, second, 6, start=4)
    assert all(np.array_equal(a.data, b.data) for a, b in zip(whole, second, strict=True))


def test_a_refused_state_changes_nothing():
    params = parameters()
    optimizer = KINDS["Adam"](params)
    steps(optimizer, params, 2)
    before = optimizer.state_dict()
    other = KINDS["Adam"](params[:2]).state_dict()
    for state in (other, {**before, "lr": -1.0, "slots": before["slots"]}):
        with pytest.raises(ValueError, match=r"load_state_dict|lr"):
            optimizer.load_state_dict(state)
    after = optimizer.state_dict()
    assert after["steps"] == before["steps"] and after["lr"] == before["lr"]
    for a, b in zip(after["slots"][0], before["slots"][0], strict=True):
        assert np.array_equal(a, b)


@EACH
def test_a_parameter_without_gradient_is_left_alone(kind):
    params = parameters()
    optimizer = KINDS[kind](params)
    steps(optimizer, params, 2)
    before = params[1].data.copy(), params[0].data.copy()
    params[1].grad = None
    optimizer.step()
    assert np.array_equal(params[1].data, before[0])
    assert not np.array_equal(params[0].data, before[1])
    optimizer.zero_grad()
    before = params[0].data.copy()
    optimizer.step()
    assert np.array_equal(params[0].data, before) and params[0].grad is None


@EACH
def test_each_parameter_counts_its_own_steps(kind):
    together, alone = parameters()[:2], parameters()[1:2]
    one, other = KINDS[kind](together), KINDS[kind](alone)
    for step in range(6):
        together[0].grad = np.ones((3, 4))
        together[1].grad = np.sin(np.arange(5.0) + step) if step % 2 else None
        alone[0].grad = together[1].grad
        one.step()
        other.step()
    np.testing.assert_array_equal(together[1].data, alone[0].data)


@EACH
def test_many_elements_are_updated_like_few(kind):
    n = 2 * optim.CHUNK + 77
    values = np.random.default_rng(0).normal(size=n)
    whole, parts = [Parameter(values)], [Parameter(a) for a in np.array_split(values, 5)]
    for params in (whole, parts):
        optimizer = KINDS[kind](params)
        for step in range(3):
            for p in params:
                p.grad = p.data * 2 - step
            optimizer.step()
    np.testing.assert_allclose(
        whole[0].data, np.concatenate([p.data for p in parts]), rtol=1e-12, atol=1e-14
    )


@EACH
def test_parameters_that_were_given_new_arrays_or_other_optimizers(kind):
    params, expected = parameters(), parameters()
    one, other = KINDS[kind](params), KINDS[kind](expected)
    steps(one, params, 2)
    steps(other, expected, 2)
    KINDS["SGD"](params)  # moves the values into arrays of its own
    for p in params:
        p.data = p.data * 1.0
    steps(one, params, 2, start=2)
    steps(other, expected, 2, start=2)
    assert all(np.array_equal(a.data, b.data) for a, b in zip(params, expected, strict=True))


def test_gradients_are_not_written_into():
    (p,) = parameters()[:1]
    for kind in KINDS.values():
        optimizer = kind([p])
        grad = np.ones((3, 4), "f4")
        p.grad = grad
        optimizer.step()
        assert p.grad.tolist() == np.ones((3, 4)).tolist()


def test_parameters_of_two_dtypes_keep_them():
    params = [Parameter([1.0, 2.0]), Parameter([1.0, 2.0], dtype="float64")]
    optimizer = optim.Adam(params, lr=0.1)
    for p in params:
        p.grad = np.ones(2)
    optimizer.step()
    assert [p.dtype for p in params] == ["float32", "float64"]
    np.testing.assert_allclose(params[0].data, params[1].data, rtol=1e-6)


def test_an_optimizer_of_ones_own():
    class SignDescent(optim.Optimizer):
        def update(self, p, g, step, *state):
            p -= self.lr * np.sign(g) / step

    p = Parameter([1.0, -1.0])
    optimizer = SignDescent([p], lr=0.5)
    for _ in range(2):
        p.grad = np.array([3.0, -0.1])
        optimizer.step()
    assert p.data.tolist() == [0.25, -0.25]


def test_a_few_steps_find_the_minimum():
    for make in (
        lambda p: optim.SGD(p, lr=0.1, momentum=0.5),
        lambda p: optim.Adam(p, lr=0.3),
        lambda p: optim.AdamW(p, lr=0.3, weight_decay=0.0),
    ):
        p = Parameter([5.0, -3.0])
        optimizer = make([p])
        for _ in range(200):
            optimizer.zero_grad()
            ((p - [1.0, 2.0]) ** 2).sum().backward()
            optimizer.step()
        np.testing.assert_allclose(p.data, [1, 2], atol=0.02)


REFUSED = {
    "no parameters": (lambda: optim.SGD([], lr=0.1), ValueError, "requires grad"),
    "an array": (lambda: optim.SGD([np.ones(2)], lr=0.1), TypeError, "must be a tensor"),
    "no leaf": (lambda: optim.SGD([Parameter([1.0]) * 2], lr=0.1), ValueError, "made by an op"),
    "a constant": (lambda: optim.SGD([tr.Tensor([1.0])], lr=0.1), ValueError, "requires grad"),
    "a tensor alone": (
        lambda: optim.SGD(Parameter([1.0, 2.0]), lr=0.1), ValueError, "made by an op",
    ),
    "betas": (lambda: optim.Adam([Parameter([1.0])], betas=(0.9, 1.0)), ValueError, "betas"),
    "rate": (lambda: optim.Adam([Parameter([1.0])], lr=-1), ValueError, "lr must be .*got -1"),
    "norm": (lambda: optim.clip_grad_norm([], -1.0), ValueError, "max_norm .*got -1"),
    "no norm": (lambda: optim.clip_grad_norm([], np.nan), ValueError, "max_norm .*got nan"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what):
    make, error, message = REFUSED[what]
    with pytest.raises(error, match=message):
        make()


def test_another_dtype_needs_another_optimizer():
    layer = tr.nn.Linear(2, 1, rng=0)
    optimizer = optim.Adam(layer.parameters())
    layer.astype("f8")(np.ones((1, 2))).sum().backward()
    with pytest.raises(TypeError, match="make a new one after astype"):
        optimizer.step()


def test_frozen_parameters_are_left_alone():
    frozen, learned = Parameter([1.0]), Parameter([1.0])
    frozen.requires_grad = False
    optimizer = optim.SGD([frozen, learned], lr=0.5)
    (frozen * learned).sum().backward()
    optimizer.step()
    assert frozen.item() == 1.0 and learned.item() == 0.5
