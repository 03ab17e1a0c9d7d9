"""Mistakes that frameworks of this kind have made, each by its kind: the mathematics."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import both_ways, gradients, leaf

import tinyres as tr
from tinyres import nn


def grad_of(fn, *data, dtype="float64"):
    x = leaf(*data, dtype=dtype)
    with np.errstate(all="ignore"):
        fn(x).sum().backward()
    return x.grad.tolist()


# ---------------------------------------------------------------- axes, ties, edges of a domain


@pytest.mark.parametrize("name", ["sum", "mean", "var", "max", "min"])
def test_reductions_over_tuples_negative_and_repeated_axes(name):
    a = np.random.default_rng(0).normal(size=(2, 3, 4))
    t = tr.Tensor(a)
    for axis in (None, 1, -1, (0, 2), (-1, 0), (0, 1, 2), ()):
        for keepdims in (False, True):
            want = getattr(a, name)(axis=axis, keepdims=keepdims)
            got = getattr(t, name)(axis, keepdims).data
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-14)
    for axis in ((1, 1), (0, -3)):
        with pytest.raises(ValueError, match="duplicate"):
            getattr(t, name)(axis)
    for axis in (3, -4, (0, 3)):
        with pytest.raises(ValueError, match="out of bounds"):
            getattr(t, name)(axis)


KINKS = {  # equal ones share, as in torch.amax; else what PyTorch gives
    "max shares among equals": (lambda x: x.max(), [2.0, 1.0, 2.0], [0.5, 0, 0.5]),
    "max of a row": (lambda x: x.reshape(1, 3).max(1), [5.0, 5.0, 5.0], [1 / 3] * 3),
    "min shares among equals": (lambda x: x.min(), [1.0, 1.0, 2.0], [0.5, 0.5, 0]),
    "maximum halves": (lambda x: tr.maximum(x, 1.0), [0.0, 1.0, 2.0], [0, 0.5, 1]),
    "maximum beside integers": (
        lambda x: tr.maximum(tr.Tensor(np.arange(3)), x),
        [1.0, 1.0, 1.0],
        [1, 0.5, 0],
    ),
    "relu at 0": (lambda x: x.relu(), [-1.0, 0.0, -0.0, 1.0], [0, 0, 0, 1]),
    "sqrt at 0": (lambda x: x.sqrt(), [0.0, 4.0], [np.inf, 0.25]),
    "root as a power at 0": (lambda x: x**0.5, [0.0, 4.0], [np.inf, 0.25]),
    "log at 0": (lambda x: x.log(), [0.0, 2.0], [np.inf, 0.5]),
    "norm at 0": (tr.norm, [0.0, 0.0], [0, 0]),
    "norm of rows": (lambda x: tr.norm(x.reshape(2, 2), 1), [0.0, 0, 3, 4], [0, 0, 0.6, 0.8]),
    "square at 0": (lambda x: x**2, [0.0, -1.0], [0, -2]),
    "power 1 at 0": (lambda x: x**1, [0.0, -1.0], [1, 1]),
    "power 0 at 0": (lambda x: x**0, [0.0, -1.0], [0, 0]),
    "cube of a negative": (lambda x: x**3, [-2.0, 0.0], [12, 0]),
    "base of a power tensor at 0": (lambda x: x ** leaf(1.0, 2.0, 0.0), [0.0] * 3, [1, 0, 0]),
    "exponent over base 0": (lambda x: leaf(0.0, 0.0) ** x, [2.0, 1.0], [0, 0]),
    "where avoids the other side": (
        lambda x: tr.where(x.data > 0, tr.where(x.data > 0, x, 1.0).log(), 0.0),
        [0.0, 2.0],
        [0, 0.5],
    ),
    "tanh and sigmoid far out": (
        lambda x: x.tanh() + x.sigmoid(),
        [-1000.0, 1000.0],
        [0, 0],
    ),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("what", KINKS)
def test_ties_and_edges(what, dtype):
    fn, data, expected = KINKS[what]
    np.testing.assert_allclose(grad_of(fn, *data, dtype=dtype), expected, rtol=1e-6)


INDICES = {  # which elements of arange(6).reshape(2, 3) are taken how often
    "duplicate": ([0, 0, 1], [[2, 2, 2], [1, 1, 1]]),
    "duplicate array pairs": (([0, 0, 0], [1, 1, -1]), [[0, 2, 1], [0, 0, 0]]),
    "negative": (-1, [[0, 0, 0], [1, 1, 1]]),
    "negative in an array": (np.array([-1, 1]), [[0, 0, 0], [2, 2, 2]]),
    "slice with a step": ((0, slice(None, None, -2)), [[1, 0, 1], [0, 0, 0]]),
    "mask": (np.array([[True, False, True], [False] * 3]), [[1, 0, 1], [0, 0, 0]]),
    "mask from a comparison": (tr.Tensor(np.arange(6.0).reshape(2, 3)) > 4, [[0, 0, 0], [0, 0, 1]]),
    "tensor": (tr.Tensor(np.array([1, 1])), [[0, 0, 0], [2, 2, 2]]),
    "None and Ellipsis": ((None, Ellipsis, 1), [[0, 1, 0], [0, 1, 0]]),
    "empty list": ([], [[0, 0, 0], [0, 0, 0]]),
    "empty slice": (slice(2, 2), [[0, 0, 0], [0, 0, 0]]),
    "empty tuple": ((), [[1, 1, 1], [1, 1, 1]]),
    "NumPy integer": ((np.int64(1), np.int32(2)), [[0, 0, 0], [0, 0, 1]]),
    "number and array": ((1, [0, 0]), [[0, 0, 0], [2, 0, 0]]),
    "True adds an axis": (True, [[1, 1, 1], [1, 1, 1]]),
}


@pytest.mark.parametrize("what", INDICES)
def test_indices(what):
    index, counts = INDICES[what]
    a = np.arange(6.0).reshape(2, 3)
    x = tr.Tensor(a, requires_grad=True)
    y = x[index]
    assert np.array_equal(y.data, a[np.asarray(index) if isinstance(index, tr.Tensor) else index])
    y.sum().backward()
    assert x.grad.tolist() == counts


def test_an_index_out_of_range():
    for index in (2, -3, (0, 3), [0, 2], (slice(None), [5])):
        with pytest.raises(IndexError, match=r"getitem: .*out of bounds"):
            tr.Tensor(np.zeros((2, 3)))[index]


def test_matmul_of_vectors_and_batches():
    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    (a @ b).backward()
    assert a.grad.tolist() == [3, 4] and b.grad.tolist() == [1, 2]
    w, x = leaf([1.0], [2.0]), tr.Tensor(np.ones((5, 3, 2)))
    (x @ w).sum().backward()
    assert w.grad.tolist() == [[15], [15]]  # summed over the batch that it was repeated for


def test_n_by_1_against_n():
    column, row = leaf([1.0], [2.0]), leaf(1.0, 2.0, 3.0)
    (column * row).sum().backward()
    assert column.grad.tolist() == [[6], [6]] and row.grad.tolist() == [3, 3, 3]
    with pytest.raises(ValueError, match=r"\(2, 1\) but target has \(2,\)"):
        tr.mse(column, np.zeros(2))


# ---------------------------------------------------------------- losses, norms, attention


HARD = {
    "softmax of +-1000": (tr.softmax, [[1000.0, -1000.0, 0.0], [-1000.0, -1000.0, -1000.0]]),
    "log_softmax of +-1000": (tr.log_softmax, [[1000.0, -1000.0, 0.0], [1e4, 1e4, 1e4]]),
    "cross_entropy of +-1000": (
        lambda x: tr.cross_entropy(x, [1, 0]), [[1000.0, -1000.0, 0.0], [1000.0, 0, 0]],
    ),
    "layer_norm of flat rows": (tr.layer_norm, [[3.0, 3.0, 3.0], [0.0, 0.0, 0.0]]),
    "layer_norm of width 1": (tr.layer_norm, [[3.0], [-1e6]]),
    "layer_norm of flat rows far from 0": (tr.layer_norm, np.full((2, 64), 1e6 + 0.25)),
    "layer_norm far from 0": (tr.layer_norm, 1e6 + np.arange(64.0).reshape(2, 32) % 7),
    "layer_norm of an empty batch": (tr.layer_norm, np.zeros((0, 4))),
    "rms_norm of zeros": (tr.rms_norm, [[0.0, 0.0, 0.0], [3.0, 4.0, 0.0]]),
    "gelu far from 0": (tr.gelu, [-1000.0, -20.0, 0.0, 20.0, 1000.0]),
}  # fmt: skip


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-9), ("float32", 1e-5)])
@pytest.mark.parametrize("name", HARD)
def test_logits_of_1000_flat_rows_huge_offsets(name, dtype, tolerance):
    fn, array = HARD[name]
    exact = gradients(fn, np.array(array, "float64"))
    runs = both_ways(fn, np.array(array, dtype))
    for value, (grad,) in runs:
        assert np.isfinite(value).all() and np.isfinite(grad).all()
        np.testing.assert_allclose(value, exact[0], rtol=tolerance, atol=tolerance)
        scale = 1 + np.abs(exact[1][0]).max(initial=0)
        np.testing.assert_allclose(grad / scale, exact[1][0] / scale, atol=tolerance)


def test_hard_input_has_the_known_values():
    far = tr.layer_norm(tr.Tensor(1e6 + np.array([2.0, 4.0, 6.0]), dtype="float32"))
    np.testing.assert_allclose(far.data, [-1.2247, 0, 1.2247], atol=1e-4)
    assert tr.cross_entropy(tr.Tensor([[1000.0, -1000.0]]), [1]).item() == 2000
    assert tr.gelu(tr.Tensor([-1000.0, 1000.0])).data.tolist() == [0, 1000]
    assert tr.softmax(tr.Tensor([1000.0, -1000.0])).data.tolist() == [1, 0]


@pytest.mark.parametrize("twin", [False, True], ids=["fused", "spelled out"])
def test_ignored_and_invalid_targets(twin):
    def loss(x, *targets, **options):
        with tr.spelled_out() if twin else tr.scope("fused"):
            return tr.cross_entropy(x, *targets, **options)

    x = leaf([1.0, 2.0, 0.0], [0.5, 0.0, 3.0])
    some = loss(x, [1, -100], ignore_index=-100)
    some.backward()
    assert some.item() == pytest.approx(loss(x.detach()[:1], [1]).item(), rel=1e-15)
    assert not x.grad[1].any() and x.grad[0].any()
    none = loss(x, [-100, -100], ignore_index=-100)
    none.backward()
    assert none.item() == 0
    for targets, named in (([0, 3], "3"), ([-1, 0], "-1"), ([0, -100], "-100")):
        with pytest.raises(IndexError, match=f"has {named}, .*from 0 to 2"):
            loss(x, targets)
    for targets in ([0.0, 1.0], [True, False]):
        with pytest.raises(TypeError, match="integers"):
            loss(x, targets)


@pytest.mark.parametrize("mask_shape", [(), (5,), (3, 1), (3, 5), (2, 3, 5), (2, 1, 5)])
def test_fully_masked_rows(mask_shape, rng):
    q, k, v = (rng.normal(size=s) for s in ((2, 3, 4), (2, 5, 4), (2, 5, 4)))
    for value, grads in both_ways(
        lambda *a: tr.attention(*a, mask=np.zeros(mask_shape, bool)), q, k, v
    ):
        assert not any(np.any(a) for a in (value, *grads))


def test_attention_over_no_key_at_all():
    q, k, v = (tr.Tensor(np.ones(s), requires_grad=True) for s in ((3, 4), (0, 4), (0, 2)))
    y = tr.attention(q, k, v)
    y.sum().backward()
    assert y.shape == (3, 2) and not y.data.any() and not q.grad.any()


def test_head_split(rng):
    x, w = rng.normal(size=(2, 3, 6)), rng.normal(size=(6, 18))
    y = tr.self_attention(tr.Tensor(x), w, heads=3).data
    q, k, v = np.split(x @ w, 3, -1)
    for part in (slice(0, 2), slice(2, 4), slice(4, 6)):
        scores = np.einsum("bid,bjd->bij", q[..., part], k[..., part]) / np.sqrt(2)
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        np.testing.assert_allclose(y[..., part], weights @ v[..., part], rtol=1e-12)


def test_width_not_divisible_by_heads():
    for heads in (3, 0, -1, 16):
        with pytest.raises(ValueError, match=f"heads={heads}: choose|heads must be .*got {heads}$"):
            nn.MultiHeadAttention(8, heads)


def causal_paths():
    """Everything that maps (B, T, 8) to (B, T, ...) and must not look ahead."""
    options = {"heads": 2, "causal": True, "rng": 0}
    yield "attention", lambda x: tr.attention(x, x, x, causal=True)
    mask = np.tri(6, dtype=bool)
    yield "mask", lambda x: tr.attention(x, x, x, mask=mask)
    yield "module", nn.MultiHeadAttention(8, **options).astype("f8")
    uncausal = nn.MultiHeadAttention(8, heads=2, rng=0).astype("f8")
    yield "module with a mask", lambda x: uncausal(x, mask=mask)
    for placement in nn.PLACEMENTS:
        stack = nn.TransformerStack(8, blocks=2, placement=placement, **options).astype("f8")
        for p in stack.parameters():  # a gain of 0 (ReZero) would hide a path
            p.data += 0 if p.data.any() else 0.5
        yield placement, stack
    stack = nn.TransformerStack(8, blocks=2, **options).astype("f8")
    yield "checkpoint", lambda x: tr.checkpoint(stack, x)
    head = nn.TransformerLM(vocab=5, d_model=8, heads=2, blocks=2, context=6, rng=0).astype("f8")
    yield "language model", lambda x: head.head(head.stack(x))


@pytest.mark.parametrize("twin", [False, True], ids=["fused", "spelled out"])
@pytest.mark.parametrize("name, path", list(causal_paths()))
def test_causality_on_every_path(name, path, twin, rng):
    with tr.spelled_out() if twin else tr.scope("fused"):
        data = rng.normal(size=(2, 6, 8))
        x = tr.Tensor(data, requires_grad=True)
        y = path(x)
        (y[:, 3] * rng.normal(size=y.shape[-1])).sum().backward()
        assert not x.grad[:, 4:].any() and x.grad[:, :4].any(axis=-1).all()
        data[:, 4:] += 100
        earlier = path(tr.Tensor(data)).data[:, :4]
        np.testing.assert_allclose(earlier, y.data[:, :4], rtol=1e-10, atol=1e-12)


def test_dropout_0_1_and_eval(rng):
    x = leaf(*np.ones(1000))
    assert np.array_equal(tr.dropout(x, 0.0, rng).data, x.data)
    y = tr.dropout(x, 1.0, rng)
    y.sum().backward()
    assert not y.data.any() and not x.grad.any()
    x.zero_grad()
    y = tr.dropout(x, 0.25, rng)
    y.sum().backward()
    assert set(y.data.round(6)) == {0, round(4 / 3, 6)} and np.array_equal(x.grad, y.data)
    assert 0.7 < (y.data > 0).mean() < 0.8
    layer = nn.Sequential(nn.Dropout(0.5, rng=0))
    assert np.array_equal(layer.eval()(x).data, x.data)
    assert not np.array_equal(layer.train()(x).data, x.data)
    for p in (-0.1, 1.1, np.nan):
        with pytest.raises(ValueError, match="from 0 to 1"):
            nn.Dropout(p)
