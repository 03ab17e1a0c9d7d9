"""The kernel of attention takes causal queries in chunks: any chunking gives the same."""

import numpy as np
import pytest

import tinyres as tr
from tinyres import attend


def values_and_gradients(arrays, mask):
    tensors = [tr.Tensor(a, requires_grad=True) for a in arrays]
    y = tr.attention(*tensors, mask=mask, causal=True)
    y.backward(np.cos(np.arange(y.size)).reshape(y.shape))
    return [y.data, *[t.grad for t in tensors]]


@pytest.mark.parametrize("chunk", [1, 3, 5])
@pytest.mark.parametrize("queries, keys", [(7, 7), (7, 4), (4, 7), (6, 6), (1, 5), (8, 1), (5, 0)])
@pytest.mark.parametrize("masked", [False, True])
def test_chunks_change_nothing(monkeypatch, rng, chunk, queries, keys, masked):
    arrays = [rng.normal(size=(2, n, d)) for n, d in ((queries, 4), (keys, 4), (keys, 5))]
    mask = rng.random((queries, keys)) > 0.4 if masked else None
    whole = values_and_gradients(arrays, mask)
    monkeypatch.setattr(attend, "CHUNK", chunk)
    for found, expected in zip(values_and_gradients(arrays, mask), whole, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-14)


@pytest.mark.parametrize("scale", [1.0, 40.0, 1000.0])
def test_the_largest_score_comes_off_where_exp_needs_it(rng, scale):
    q, k, v = (scale**0.5 * rng.normal(size=(1, 6, 4)) for _ in range(3))
    found = tr.attention(q, k, v).data
    scores = q @ k.swapaxes(-1, -2) / 2
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_query_without_keys_gives_zeros_in_both_forms(dtype):
    x = tr.Tensor(np.eye(2), dtype=dtype, requires_grad=True)
    for form in (tr.attention, tr.attention.spelled_out):
        y = form(x, x, x, mask=[[False, False], [True, False]])
        y.backward(np.ones((2, 2)))
        assert y.data.tolist() == [[0, 0], [1, 0]]
    assert x.grad.tolist() == [[2, 2], [0, 0]]


def test_a_nan_in_one_sample_leaves_the_others_as_they_are():
    q = np.full((2, 2, 1), 20.0, "f4")
    q[0, 0] = np.nan
    y = tr.attention(q, q, np.ones((2, 2, 1), "f4"))
    assert np.isnan(y.data[0]).all() and y.data[1].tolist() == [[1], [1]]
