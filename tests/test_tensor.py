"""The engine: what a tensor is, what backward does and what it refuses."""

from __future__ import annotations

import contextlib
import copy
import pickle
import weakref
from pathlib import Path

import numpy as np
import pytest
from conftest import leaf, no_garbage_collector

import tinyres as tr

# ---------------------------------------------------------------- data


DTYPES = [
    (3, "float32"), (2.5, "float32"), ([1, 2], "float32"), ([[1.5], [2]], "float32"),
    ([], "float32"), (True, "bool"), ([True, False], "bool"), (np.float64(1), "float64"),
    (np.ones(2), "float64"), (np.ones(2, "f4"), "float32"), (np.ones(2, "f2"), "float16"),
    (np.arange(3), "int64"), (tr.Tensor(np.ones(2)), "float64"), ((1, 2), "float32"),
]  # fmt: skip


@pytest.mark.parametrize("data, dtype", DTYPES, ids=str)
def test_dtype_of_what_is_given(data, dtype):
    assert tr.Tensor(data).dtype == dtype
    assert tr.Tensor(data, dtype="float64").dtype == "float64"


NO_TENSOR = {
    "text": ("abc", TypeError),
    "None": (None, TypeError),
    "complex": (1j, TypeError),
    "objects": ([{}], TypeError),
    "rows of two lengths": ([[1.0], [1.0, 2.0]], ValueError),
}


@pytest.mark.parametrize("what", NO_TENSOR)
def test_what_is_no_tensor(what):
    data, kind = NO_TENSOR[what]
    with pytest.raises(kind, match="Tensor: expected"):
        tr.Tensor(data)


def test_attributes():
    x = tr.Tensor(np.arange(6.0).reshape(2, 3), requires_grad=True)
    assert (x.shape, x.ndim, x.size, len(x), x.dtype) == ((2, 3), 2, 6, 2, np.float64)
    assert x.is_leaf and x.requires_grad and x.grad is None
    y = x.T
    assert y.shape == (3, 2) and not y.is_leaf and y.requires_grad
    assert float(x[1, 2]) == 5.0 and int(x[1, 2]) == 5 and f"{x[1, 2]:.1f}" == "5.0"
    assert bool(x[0, 1]) and not bool(x[0, 0])
    for refused in (x.item, lambda: float(x), lambda: bool(x)):
        with pytest.raises(ValueError, match=r"one element, got shape \(2, 3\)"):
            refused()
    with pytest.raises(TypeError, match="no length"):
        len(x.sum())


def test_repr_says_what_it_is():
    assert repr(leaf(1.0)) == "Tensor([1.], dtype=float64, requires_grad=True)"
    assert repr(leaf(1.0, dtype="f4") * 2) == "Tensor([2.], op='scale')"
    assert repr(tr.Tensor(np.zeros((0, 3), "f4"))) == "Tensor([], shape=(0, 3))"
    assert repr(tr.Tensor(np.ones((9, 9), "f4"))).endswith(
        "[1. 1. 1. ... 1. 1. 1.]], shape=(9, 9))"
    )
    rows = repr(tr.nn.Parameter(np.eye(2, dtype="f4"))).splitlines()
    assert rows == ["Parameter([[1. 0.]", "           [0. 1.]], requires_grad=True)"]


def test_comparisons_are_arrays_and_equality_is_identity():
    x = leaf(1.0, 2.0, 3.0)
    for got, want in ((x > 2, x.data > 2), (x >= 2, x.data >= 2), (x < x * 2, [True] * 3),
                      (x.data <= x, [True] * 3), (np.float32(2) < x, x.data > 2)):  # fmt: skip
        assert isinstance(got, np.ndarray) and got.dtype == bool and got.tolist() == list(want)
    twin = leaf(1.0, 2.0, 3.0)
    assert x == x and x != twin and {x: 1}[x] == 1 and x in [twin, x] and twin not in [x]


def test_numpy_sees_values_but_may_not_lose_gradients():
    x = leaf(1.0, 4.0)
    assert np.asarray(x.detach()).tolist() == [1, 4]
    assert np.asarray(tr.Tensor([1.0]), dtype=int).dtype == int
    with pytest.raises(RuntimeError, match=r"detach\(\)"):
        np.asarray(x)
    for call, cure in (
        (lambda: np.exp(x), "tr.exp"), (lambda: np.maximum(x, 0), "tr.maximum"),
        (lambda: np.sin(x), r"detach\(\).numpy\(\)"), (lambda: np.add.reduce(x), "detach"),
        (lambda: np.add(1, x, out=np.zeros(2)), "detach"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=cure):
            call()
    array = np.zeros(2)
    with pytest.raises(TypeError):
        array += x


def test_operators_of_numpy_called_by_name_are_those_of_tensors():
    x, y = leaf(1.0, 4.0), np.array([2.0, 3.0])
    for ufunc, both in ((np.subtract, (-1, 1)), (np.divide, (0.5, 4 / 3)), (np.power, (1, 64))):
        for given, want in (((x, y), both), ((x, tr.Tensor(y)), both)):
            out = ufunc(*given)
            assert isinstance(out, tr.Tensor) and np.allclose(out.data, want)
        assert np.allclose(ufunc(y, x).data, ufunc(y, x.detach().numpy()))


def test_copies_and_pickles_of_leaves():
    x = tr.nn.Parameter([1.0, 2.0])
    (x * x).sum().backward()
    pair = copy.deepcopy({"a": x, "b": x})
    for other in (copy.copy(x), pair["a"], pickle.loads(pickle.dumps(x))):
        assert type(other) is tr.nn.Parameter and other.requires_grad and other.is_leaf
        assert other.grad.tolist() == [2, 4] and not np.shares_memory(other.data, x.data)
    assert pair["a"] is pair["b"]
    with pytest.raises(RuntimeError, match="detach"):
        copy.deepcopy(x * 2)


def test_attributes_of_an_op_may_be_given_by_position():
    x = leaf(1.0, 2.0)
    assert tr.sum(x[None], 1).shape == (1,) and tr.softmax(x, 0).shape == (2,)
    assert tr.cross_entropy(x[None], [1]).item() == tr.cross_entropy(x[None], targets=[1]).item()
    assert tr.linear(x=x, weight=np.ones((2, 1)), bias=np.ones(1)).data.tolist() == [4]
    with pytest.raises(TypeError, match="sum"):
        tr.sum(x, 0, False, None)
    with pytest.raises(TypeError, match="sum"):
        tr.sum(x, wrong=1)


# ---------------------------------------------------------------- backward


def test_gradients_add_up_and_can_be_forgotten():
    x = leaf(3.0)
    for expected in (6.0, 12.0):
        (x * x).sum().backward()
        assert x.grad.tolist() == [expected]
    x.zero_grad()
    assert x.grad is None
    constant = tr.Tensor([1.0])
    constant.zero_grad()
    assert constant.grad is None and not constant.requires_grad


def test_retain_grad_keeps_an_intermediate_gradient():
    x = leaf(1.0, 2.0)
    y = x * 3
    y.retain_grad()
    z = y * y
    z.sum().backward()
    assert y.grad.tolist() == [6, 12] and z.grad is None and x.grad.tolist() == [18, 36]
    with pytest.raises(RuntimeError, match="requires a gradient"):
        x.detach().retain_grad()


def test_a_leaf_is_its_own_end():
    x = leaf(5.0)
    x.backward()
    x.backward()
    assert x.grad.tolist() == [2]


def test_what_backward_refuses():
    x = leaf(1.0, 2.0)
    with pytest.raises(RuntimeError, match="first derivatives"):
        x.sum().backward(create_graph=True)
    with tr.no_grad():
        made_without = x.sum()
    for constant in (tr.Tensor([1.0]), x.detach().sum(), made_without):
        with pytest.raises(RuntimeError, match="requires_grad=True"):
            constant.backward()


def test_only_leaves_change_requires_grad():
    x = leaf(1.0)
    y = x * 2
    with pytest.raises(RuntimeError, match="leaf"):
        y.requires_grad = False
    x.requires_grad = False
    assert not (x * 2).requires_grad and y.requires_grad


def test_assigning_a_gradient_checks_it():
    x = leaf(1.0, 2.0)
    x.grad = np.array([1, 2])
    assert x.grad.dtype == x.dtype
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        x.grad = np.ones(3)
    with pytest.raises(ValueError, match="requires_grad"):
        tr.Tensor([1.0]).grad = np.ones(1)


def test_assigning_data_checks_it():
    x = leaf(1.0, 2.0, dtype="f4")
    before = x.data
    x.data = [3.0, 4.0]
    assert x.data is before and before.tolist() == [3, 4] and before.dtype == np.float32
    with pytest.raises(ValueError, match=r"shape \(2,\), got \(1,\)"):
        x.data = [1.0]


def test_a_failing_pullback_leaves_all_gradients_as_they_were():
    @tr.op
    def broken(x):
        def pullback(g):
            raise ArithmeticError("no way back")

        return x + 0, pullback

    x, y = leaf(1.0), leaf(2.0)
    with pytest.raises(ArithmeticError):
        (y * 2 + broken(x)).sum().backward()
    assert x.grad is None and y.grad is None


WRONG_PULLBACKS = {
    "shape": (lambda g: (np.ones(5),), ValueError, r"wrong: .* shape \(5,\) for input 0"),
    "shorter": (lambda g: (g[:1],), ValueError, r"wrong: .*shape \(1,\)"),
    "dtype": (lambda g: (g.astype("f8"),), TypeError, "wrong: .*float64 .*float32"),
    "integers": (lambda g: (np.ones(3, int),), TypeError, "wrong: .*int64"),
    "no tuple": (lambda g: g, TypeError, "wrong: .*tuple of one"),
    "nothing in it": (lambda g: (), TypeError, "wrong: .*tuple of one"),
}


@pytest.mark.parametrize("kind", WRONG_PULLBACKS)
def test_a_wrong_cotangent_is_refused_with_the_name_of_the_op(kind):
    pullback, error, message = WRONG_PULLBACKS[kind]

    @tr.op
    def wrong(x):
        return x * 2, pullback

    with pytest.raises(error, match=message):
        wrong(leaf(1.0, 2.0, 3.0, dtype="f4")).sum().backward()


def test_an_own_op_broadcasts_and_may_stop_a_gradient():
    @tr.op
    def first_only(a, b, *, times=1):
        """times * a, broadcast against b."""
        return times * a + 0 * b, lambda g: (times * g, None)

    a, b = leaf(1.0), leaf(1.0, 2.0, 3.0)
    first_only(a, b, times=2).sum().backward()
    assert a.grad.tolist() == [6] and b.grad.tolist() == [0, 0, 0]
    assert first_only.__doc__.startswith("times * a")


def test_gradient_of_a_mixed_expression_is_in_the_dtype_of_each_leaf():
    x, y = leaf(1.0, 2.0, dtype="f4"), leaf(3.0)
    z = x * y
    assert z.dtype == np.float64
    z.sum().backward()
    assert x.grad.dtype == np.float32 and x.grad.tolist() == [3, 3]
    assert y.grad.dtype == np.float64 and y.grad.tolist() == [3]


# ---------------------------------------------------------------- memory


def test_backward_frees_the_graph_though_the_loss_is_kept():
    x = leaf(*np.ones(10))
    y = tr.exp(x)
    held = weakref.ref(y.data)
    loss = y.sum()
    del y
    with no_garbage_collector():
        assert held() is not None
        loss.backward()
        assert held() is None


def test_a_graph_never_walked_is_freed_with_its_loss():
    with no_garbage_collector():
        x = leaf(*np.ones(10))
        loss = (
            tr.nn.TransformerBlock(10, heads=2, rng=0)
            .astype("float64")(tr.exp(x * 2).reshape(1, 1, 10))
            .sum()
        )
        held = weakref.ref(loss), weakref.ref(x.data)
        del loss, x
        assert [r() for r in held] == [None, None]


def test_a_failed_op_leaves_nothing_behind():
    with no_garbage_collector():
        x = leaf(1.0, 2.0)
        held = weakref.ref(x.data)
        with contextlib.suppress(ValueError):
            (x * 2) @ np.ones((3, 3))
        del x
        assert held() is None


@pytest.mark.parametrize(
    "call, cure",
    [
        (np.sum, "tr.sum"),
        (lambda t: np.concatenate([t, t]), "tr.concatenate"),
        (np.linalg.det, "tensor.detach"),
    ],
)
def test_functions_of_numpy_are_refused_where_a_gradient_would_be_lost(call, cure):
    with pytest.raises(TypeError, match=cure):
        call(tr.Tensor([1.0], requires_grad=True))
    if call is not np.linalg.det:
        assert call(tr.Tensor([1.0])).sum() in (1.0, 2.0)


def test_the_engine_and_its_ops_are_read_in_one_sitting():
    package = Path(tr.__file__).parent
    lines = [(package / name).read_text().count("\n") for name in ("tensor.py", "ops.py")]
    assert sum(lines) < 600


def test_an_op_knows_what_it_is_spelled_out_as():
    assert tr.softmax.spelled_out is tr.composed.softmax
    assert tr.exp.spelled_out is None


@pytest.mark.parametrize(
    "change, after",
    [("+=", [3.0, 4.0]), ("-=", [-1.0, 0.0]), ("*=", [2.0, 4.0]), ("/=", [0.5, 1.0])],
)
def test_a_parameter_is_changed_in_place_under_no_grad_only(change, after):
    p = tr.Tensor([1.0, 2.0], requires_grad=True)
    names = {"p": p}
    with pytest.raises(RuntimeError, match=r"no_grad\(\) only: write x = x \+ y"):
        exec(f"p {change} 2", names)
    with tr.no_grad():
        exec(f"p {change} 2", names)
    assert names["p"] is p and p.requires_grad and p.is_leaf
    np.testing.assert_array_equal(p.data, after)
    y = p * 1
    names = {"p": y}
    exec(f"p {change} 2", names)  # of an intermediate value: a new tensor
    assert names["p"] is not y and names["p"].requires_grad
    np.testing.assert_array_equal(y.data, after)


def test_backward_knows_of_a_parameter_that_was_changed_in_place():
    p = tr.Tensor([1.0, 2.0], requires_grad=True)
    y = (p * p).sum()
    with tr.no_grad():
        p -= 1
    with pytest.raises(RuntimeError, match="changed since the forward pass"):
        y.backward()
