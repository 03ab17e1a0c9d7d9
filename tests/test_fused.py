"""Fused ops against the same mathematics spelled out in primitive ops, and on hard input."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import gradients
from op_cases import OPS, all_cases, case_id

import tinyres as tr

TWINS = [(name, case) for name, case in all_cases() if OPS[name].spelled_out is not None]


def both_ways(fn, *arrays):
    """(value, gradients) of the fused op and of its twin."""
    with tr.spelled_out():
        spelled = gradients(fn, *arrays)
    return gradients(fn, *arrays), spelled


def assert_same(one, other, rtol, atol):
    for a, b in zip([one[0], *one[1]], [other[0], *other[1]], strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 2e-5)])
@pytest.mark.parametrize("name, case", TWINS, ids=case_id)
def test_fused_equals_composed(name, case, dtype, tolerance):
    fused, spelled = both_ways(lambda *xs: case.call(OPS[name], *xs), *case.arrays(dtype))
    assert_same(fused, spelled, tolerance, tolerance)


def test_every_fused_op_with_a_twin_of_its_name_runs_as_it():
    twins = {n for n, f in vars(tr.composed).items() if callable(f) and n in OPS}
    assert {n for n in OPS if OPS[n].spelled_out is not None} == twins
    x = tr.Tensor(np.ones((2, 3)), requires_grad=True)
    with tr.spelled_out():
        assert x.softmax()._node.op == "div"
    assert x.softmax()._node.op == "softmax"


HARD = {
    "softmax of +-1000": (tr.softmax, [[1000.0, -1000.0, 0.0], [-1000.0, -1000.0, -1000.0]]),
    "log_softmax of +-1000": (tr.log_softmax, [[1000.0, -1000.0, 0.0], [1e4, 1e4, 1e4]]),
    "cross_entropy of +-1000": (
        lambda x: tr.cross_entropy(x, targets=[1, 0]), [[1000.0, -1000.0, 0.0], [1000.0, 0, 0]],
    ),
    "layer_norm of flat rows": (tr.layer_norm, [[3.0, 3.0, 3.0], [0.0, 0.0, 0.0]]),
    "layer_norm of width 1": (tr.layer_norm, [[3.0], [-1e6]]),
    "layer_norm far from 0": (tr.layer_norm, 1e6 + np.array([[0.0, 1.0, 2.0, 5.0], [0, 0, 0, 1]])),
    "rms_norm of zeros": (tr.rms_norm, [[0.0, 0.0, 0.0], [3.0, 4.0, 0.0]]),
    "gelu far from 0": (tr.gelu, [-1000.0, -20.0, 0.0, 20.0, 1000.0]),
}  # fmt: skip


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-9), ("float32", 1e-5)])
@pytest.mark.parametrize("name", HARD)
def test_hard_input(name, dtype, tolerance):
    fn, array = HARD[name]
    fused, spelled = both_ways(fn, np.array(array, dtype))
    exact = gradients(fn, np.array(array, "float64"))
    for got in (fused, spelled):
        assert np.isfinite(got[0]).all() and np.isfinite(got[1][0]).all()
        scale = 1 + np.abs(exact[1][0]).max()
        np.testing.assert_allclose(got[0], exact[0], rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(got[1][0] / scale, exact[1][0] / scale, atol=tolerance)


def test_known_values():
    far = tr.layer_norm(tr.Tensor(1e6 + np.array([2.0, 4.0, 6.0]), dtype="float32"))
    np.testing.assert_allclose(far.data, [-1.2247, 0, 1.2247], atol=1e-4)
    assert tr.cross_entropy(tr.Tensor([[1000.0, -1000.0]]), targets=[1]).item() == 2000
    assert tr.gelu(tr.Tensor([-1000.0, 1000.0])).data.tolist() == [0, 1000]
    assert tr.softmax(tr.Tensor([1000.0, -1000.0])).data.tolist() == [1, 0]


@pytest.mark.parametrize("mask_shape", [(), (5,), (3, 1), (3, 5), (2, 3, 5), (2, 1, 5)])
def test_a_row_that_may_attend_to_nothing_gives_zeros(mask_shape, rng):
    q, k, v = (rng.normal(size=s) for s in ((2, 3, 4), (2, 5, 4), (2, 5, 4)))
    for got in both_ways(lambda *a: tr.attention(*a, mask=np.zeros(mask_shape, bool)), q, k, v):
        assert not any(np.any(a) for a in (got[0], *got[1]))


def test_no_key_at_all_gives_zeros():
    q, k, v = (tr.Tensor(np.ones(s), requires_grad=True) for s in ((3, 4), (0, 4), (0, 2)))
    y = tr.attention(q, k, v)
    y.sum().backward()
    assert y.shape == (3, 2) and not y.data.any() and not q.grad.any()


WRONG = {
    "linear": (lambda x: tr.linear(x, np.ones((4, 2))), ValueError, "linear: weight must be"),
    "layer_norm": (lambda x: tr.layer_norm(x, np.ones(2)), ValueError, r"must have shape \(3,\)"),
    "rms_norm": (lambda x: tr.rms_norm(x, np.ones((3, 1))), ValueError, r"must have shape \(3,\)"),
    "residual": (
        lambda x: tr.residual(x, x[:1]), ValueError,
        r"F\(x\) has shape \(1, 3\) but x has \(2, 3\): the branch must return what it was given",
    ),
    "mse": (lambda x: tr.mse(x[:, :1], np.ones(2)), ValueError, r"\(2, 1\) but target has \(2,\)"),
    "attention mask": (
        lambda x: tr.attention(x, x, x, mask=np.ones((2, 2))), TypeError, "mask must be bool",
    ),
    "attention shapes": (lambda x: tr.attention(x, x[:, :2], x), ValueError, "expected q"),
    "heads": (
        lambda x: tr.self_attention(x, np.ones((3, 9)), heads=2), ValueError, "split among 2 heads",
    ),
    "qkv": (lambda x: tr.self_attention(x, np.ones((3, 3)), heads=1), ValueError, r"\(3, 9\)"),
    "target too high": (
        lambda x: tr.cross_entropy(x, targets=[0, 3]), IndexError, "has 3, .* from 0 to 2",
    ),
    "target below 0": (lambda x: tr.cross_entropy(x, targets=[0, -1]), IndexError, "has -1"),
    "float targets": (lambda x: tr.cross_entropy(x, targets=[0.0, 1.0]), TypeError, "integers"),
    "targets of another shape": (
        lambda x: tr.cross_entropy(x, targets=[[0], [1]]), ValueError, "one a row",
    ),
    "index": (lambda x: tr.embedding(x, index=[2]), IndexError, "has 2, .* from 0 to 1"),
    "negative index": (lambda x: tr.embedding(x, index=[-1]), IndexError, "has -1"),
    "float index": (lambda x: tr.embedding(x, index=[0.5]), TypeError, "integers"),
    "dropout": (
        lambda x: tr.dropout(x, 1.5, np.random.default_rng(0)), ValueError, "from 0 to 1, got 1.5",
    ),
    "matmul": (lambda x: x @ x, ValueError, r"matmul: .*\(2, 3\) float64"),
    "add": (lambda x: x + np.ones(2), ValueError, r"add: .*\(2, 3\) float64, \(2,\) float64"),
    "axis": (lambda x: x.sum(2), ValueError, "sum: axis 2 is out of bounds"),
    "reshape": (lambda x: x.reshape(4), ValueError, "reshape: .*size 6"),
    "getitem": (lambda x: x[2], IndexError, "getitem: index 2 is out of bounds"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_gets_an_explanation(name):
    fn, kind, message = WRONG[name]
    with pytest.raises(kind, match=message):
        fn(tr.Tensor(np.ones((2, 3)), requires_grad=True))
