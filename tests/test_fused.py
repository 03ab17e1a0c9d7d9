"""Fused ops against the same mathematics spelled out in primitive ops, and on hard input."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import both_ways
from op_cases import OPS, all_cases, case_id

import tinyres as tr

TWINS = [(name, case) for name, case in all_cases() if OPS[name].spelled_out is not None]


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


def test_a_layer_norm_with_beta_alone(rng):
    def fn(x, beta):
        return tr.layer_norm(x, beta=beta)

    x, beta = rng.normal(size=(3, 4)), rng.normal(size=4)
    assert_same(*both_ways(fn, x, beta), 1e-12, 1e-12)
    assert tr.gradcheck(fn, [x, beta])


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
