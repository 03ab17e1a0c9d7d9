"""Arrays that write down what NumPy does with them, and the memory that they share."""

import copy

import numpy as np
import pytest

import tinyres as tr
from tinyres import recorded
from tinyres.recorded import Recorded
from tinyres.reuse import share_memory

RNG = np.random.default_rng


def into(x, function, *args):
    """A function that writes into what it is given, on a copy."""
    y = x.copy()
    function(y, *args)
    return y


FUNCTIONS = {
    "ufuncs": lambda x, i: np.exp(-abs(x)) / 3 + x**2 - 2 * np.maximum(x, 0),
    "two results": lambda x, i: np.add(*np.modf(x)),
    "out": lambda x, i: into(x, lambda y: np.multiply(y, 2, out=y)),
    "in place": lambda x, i: into(x, lambda y: y.__imul__(x)),
    "where=": lambda x, i: np.sqrt(x, out=np.zeros_like(x), where=x > 0),
    "reductions": lambda x, i: x.sum() + x.max(0) - x.mean(1, keepdims=True) + x.std() + x.prod(0),
    "ufunc methods": lambda x, i: np.add.reduceat(np.multiply.outer(x[0], x[1]), [0, 2], 0),
    "accumulate": lambda x, i: np.add.accumulate(x, 1) + x.cumsum(0),
    "at": lambda x, i: into(x, np.add.at, i, 1),
    "matmul": lambda x, i: x @ x.T + x.dot(x.T) + np.vecdot(x, x),
    # Some versions of NumPy copy such views for BLAS, others sum by themselves.
    "matmul of strided views": lambda x, i: x.repeat(40, 1)[:, ::2] @ x.repeat(40, 1)[:, ::2].T,
    "views": lambda x, i: x.T[1:, ::-1].reshape(-1) + np.moveaxis(x, 0, 1)[1:].ravel(),
    "indexing": lambda x, i: x[i] + x[:, i[:2] // 2].sum(),
    "set items": lambda x, i: into(x, lambda y: y.__setitem__(i, x[0])),
    "set where": lambda x, i: into(x, lambda y: y.__setitem__(y > 0, 7)),
    "methods": lambda x, i: x.take(i, 0) + x.repeat(2, 0)[:4] + x.astype("f8").round(1)[i],
    "other dtypes": lambda x, i: x.astype("i2") + x.astype(bool) * i.astype("f4")[:, None],
    "sorting": lambda x, i: into(x, lambda y: y.sort(0)) + np.sort(x, 1) + x.argsort(0),
    "filling": lambda x, i: into(np.empty_like(x), lambda y: y.fill(3)) + np.full_like(x, 2),
    "joining": lambda x, i: np.concatenate([x, np.stack([x, x])[1]]) + np.vstack([x, x]),
    "splitting": lambda x, i: np.split(x, 2)[0] + np.array_split(x, 2, axis=0)[1],
    "matmul of two dtypes": lambda x, i: x @ x.T.astype("f8"),
    "einsum": lambda x, i: np.einsum("ij,kj->ik", x, x),
    "where": lambda x, i: np.where(x > 0, x, 0.5) + np.clip(x, -1, 1),
    "like": lambda x, i: np.array(x, like=x) + np.zeros(x.shape, like=x) + np.ones_like(x),
    "out of functions": lambda x, i: np.sum(x, 0, out=np.zeros_like(x[0])) + x[0].cumsum(
        out=np.zeros_like(x[0])
    ),
    "outs of ufuncs": lambda x, i: np.add(*np.modf(x, out=(np.zeros_like(x), None))),
    "in place by name": lambda x, i: np.nan_to_num(into(x, lambda y: None), copy=False) * 2,
    "concatenate as": lambda x, i: np.concatenate([x, x], dtype="f8"),
    "named tuples": lambda x, i: np.linalg.svd(x)[1] + np.linalg.qr(x).R[0],
    "nothing": lambda x, i: np.concatenate([x[:0], x * 2, x[1:1].copy()]),
    "windows": lambda x, i: np.lib.stride_tricks.sliding_window_view(x * 2, 2, axis=0).sum(-1),
    "axes": lambda x, i: np.matmul(x, x, axes=[(0, 1), (1, 0), (0, 1)]),
    "integers": lambda x, i: np.ldexp(x, 2) + np.power(abs(x), 2) * 3,
    "copies": lambda x, i: copy.copy(x) + copy.deepcopy([x])[0],
    "halves": lambda x, i: x.astype("f2") - x.astype("f2").mean() + x.mean(0),
    "powers of scalars": lambda x, i: x * (x * x).sum() ** -0.5 + (x * x).sum() ** 3,
    "copyto": lambda x, i: into(np.zeros_like(x), np.copyto, x),
    "norm": lambda x, i: np.linalg.norm(x, axis=0),
    "shapes": lambda x, i: x * np.size(x) * x.ndim * np.shape(x)[0] * len(x),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numpy_functions_are_written_down(name):
    function, index = FUNCTIONS[name], np.array([2, 0, 1, 2])
    x, new = RNG(0).standard_normal((2, 4, 3)).astype("f4")
    recording = recorded.Recording()
    token = recorded.RECORDING.set(recording)
    try:
        y = function(x.view(Recorded), index.view(Recorded))
        assert isinstance(y, Recorded)
    finally:
        recorded.RECORDING.reset(token)
    calls, moved, _ = share_memory(recording, [recorded.bare(y)])
    y = moved(recorded.bare(y))
    x[...], index[...] = new, [0, 3, 3, 1]
    for f, args, options in calls:
        f(*args, **options)
    expected = function(new, index)
    assert y.dtype == expected.dtype
    assert np.array_equal(y, expected)


def test_memory_is_used_again():
    x = np.ones(1000)
    recording = recorded.Recording()
    token = recorded.RECORDING.set(recording)
    try:
        y = x.view(Recorded)
        for _ in range(50):
            y = np.tanh(y).copy()
    finally:
        recorded.RECORDING.reset(token)
    assert sum(a.nbytes for a in recording.made) == 100 * 8000
    _, _, places = share_memory(recording, [recorded.bare(y)])
    assert {p.offset for p in places} == {0, 8000}  # what a call reads, and what it writes
    assert [(p.first, p.last) for p in places[:2]] == [(0, 1), (1, 2)]
    assert places[-1][2:] == (99, 100)  # until after the last call


def test_without_a_recording_such_an_array_is_like_any_other():
    x = np.arange(3.0).view(Recorded)
    assert type(x + 1) is type(x[:2].copy()) is type(np.concatenate([x, x])) is np.ndarray
    assert (float(x[1:2].sum()), x.tolist()) == (1.0, [0.0, 1.0, 2.0])
    assert bool(np.ones(1).view(Recorded)) and int(np.ones(()).view(Recorded)) == 1
    assert next(x.flat) == 0
    with pytest.raises(TypeError, match="NumPy would lose the gradient"):
        np.concatenate([x, tr.Tensor([1.0], requires_grad=True)])  # which a tensor refuses
    np.add.at(x, [0, 0], 1.0)
    assert x.tolist() == [2.0, 1.0, 2.0]
