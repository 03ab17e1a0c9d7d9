"""What one thread or task does reaches no other: not its bits, not its modes."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tinyres as tr
from tinyres import nn, optim

# Eight trainings that have nothing in common but the process.
RUNS = [
    {"placement": "pre", "rng": 0},
    {"placement": "post", "rng": 1, "dropout": 0.2},
    {"placement": "plain", "rng": 2, "norm": "rms"},
    {"placement": "residual", "rng": 3, "activation": "gelu"},
    {"placement": "pre", "rng": 4, "tied": True, "dropout": 0.5},
    {"placement": "pre", "rng": 5, "how": tr.spelled_out},
    {"placement": "post", "rng": 6, "how": tr.detect_anomaly},
    {"placement": "pre", "rng": 7, "dtype": "float64"},
]


def bits(run, barrier=None):
    """All parameters after a few steps, and what the model writes."""
    options = dict(run)
    how, dtype = options.pop("how", None), options.pop("dtype", "float32")
    model = nn.TransformerLM(vocab=9, d_model=8, heads=2, blocks=2, context=6, **options)
    model.astype(dtype)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    rng = np.random.default_rng(run["rng"])
    if barrier is not None:
        barrier.wait(30)
    for _ in range(12):
        tokens = rng.integers(0, 9, (2, 7))
        optimizer.zero_grad()
        if how is None:
            model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
        else:
            with how():
                model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
        optim.clip_grad_norm(model.parameters(), 1.0)
        optimizer.step()
    text = model.generate([1, 2], 8, rng=0)
    return b"".join(p.data.tobytes() for p in model.parameters()) + text.tobytes()


def test_8_threads_give_the_bits_that_each_gives_alone():
    alone = [bits(run) for run in RUNS]
    assert len(set(alone)) == 8
    for _ in range(2):
        barrier = threading.Barrier(8)
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda run: bits(run, barrier), RUNS))  # noqa: B023
        assert together == alone


def seen(x):
    """What the modes are here, seen from outside."""
    y = tr.softmax(x)
    grad = y.requires_grad
    spelled = grad and y._node.op == "div"
    with np.errstate(divide="ignore"):
        try:
            tr.log(tr.Tensor([0.0]))
        except FloatingPointError:
            return grad, spelled, True
    return grad, spelled, False


MODES = {
    "no_grad": (tr.no_grad, (False, False, False)),
    "spelled_out": (tr.spelled_out, (True, True, False)),
    "detect_anomaly": (tr.detect_anomaly, (True, False, True)),
}
USUAL = (True, False, False)


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_reaches_no_other_thread(mode):
    switch, there = MODES[mode]
    x = tr.Tensor([1.0, 2.0], requires_grad=True)
    inside, looked = threading.Barrier(9), threading.Barrier(9)

    def other(i):
        inside.wait(10)
        found = [seen(x) for _ in range(20)]
        looked.wait(10)
        return set(found)

    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(other, i) for i in range(8)]
        with switch():
            inside.wait(10)
            assert {seen(x) for _ in range(20)} == {there}
            looked.wait(10)
        assert seen(x) == USUAL
        assert all(future.result() == {USUAL} for future in others)


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_reaches_no_other_task_but_those_begun_inside(mode):
    switch, there = MODES[mode]
    x = tr.Tensor([1.0, 2.0], requires_grad=True)

    async def inside(begun, go_on):
        with switch():
            begun.set()
            await go_on.wait()
            child = asyncio.create_task(look())
            return seen(x), await child

    async def look():
        return seen(x)

    async def main():
        begun, go_on = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(inside(begun, go_on))
        await begun.wait()
        meanwhile = await asyncio.gather(*[asyncio.create_task(look()) for _ in range(8)])
        go_on.set()
        return meanwhile, await task, seen(x)

    assert asyncio.run(main()) == ([USUAL] * 8, (there, there), USUAL)


def test_scopes_of_threads_do_not_nest_into_each_other():
    inside, done = threading.Event(), threading.Event()

    def named():
        with tr.scope("theirs"):
            inside.set()
            done.wait(10)

    thread = threading.Thread(target=named)
    thread.start()
    inside.wait(10)
    with (
        np.errstate(divide="ignore"),
        tr.scope("mine"),
        tr.detect_anomaly(),
        pytest.raises(FloatingPointError) as error,
    ):
        tr.log(tr.Tensor([0.0]))
    done.set()
    thread.join()
    assert "in mine)" in str(error.value)


# ---------------------------------------------------------------- one batch, several threads


def batch_of(rows):
    tokens = np.random.default_rng(0).integers(0, 9, (rows, 7))
    return tokens[:, :-1], tokens[:, 1:]


def model_of(**options):
    return nn.TransformerLM(vocab=9, d_model=8, heads=2, blocks=2, context=6, rng=0, **options)


def shared_gradients(model, *batch, threads):
    model.zero_grad()
    loss = tr.data_parallel(model.loss, *batch, threads=threads)
    return [loss, *[p.grad.copy() for p in model.parameters()]]


@pytest.mark.parametrize("threads, rows", [(1, 4), (2, 4), (2, 5), (3, 7), (4, 4)])
def test_a_shared_batch_gives_the_gradients_of_the_whole_one(threads, rows):
    model, batch = model_of().astype("float64"), batch_of(rows)
    loss = model.loss(*batch)
    loss.backward()
    whole = [loss.item(), *[p.grad.copy() for p in model.parameters()]]
    first, again = (shared_gradients(model, *batch, threads=threads) for _ in range(2))
    for expected, found, same in zip(whole, first, again, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
        assert np.array_equal(found, same)
    tr.data_parallel(model.loss, *batch, threads=threads)
    np.testing.assert_allclose(model.head.bias.grad, 2 * whole[-1], rtol=1e-9)


def test_a_failure_in_one_thread_leaves_all_gradients_as_they_were():
    w = tr.Tensor([1.0, 2.0], requires_grad=True)

    def loss(x):
        if x[0, 0] == 1:
            raise ZeroDivisionError("in the second part")
        return (w * x).mean()

    with pytest.raises(ZeroDivisionError):
        tr.data_parallel(loss, np.array([[0.0, 0.0], [1.0, 1.0]]))
    assert w.grad is None


def test_what_can_not_be_shared():
    model = model_of(dropout=0.5)
    with pytest.raises(RuntimeError, match=r"one random generator.*eval\(\)"):
        tr.data_parallel(model.loss, *batch_of(4))
    assert all(p.grad is None for p in model.parameters())
    tr.data_parallel(model.eval().loss, *batch_of(4))
    for batch, message in (((np.ones(3), np.ones(4)), "equally many rows"), ((3.0,), "rows, got")):
        with pytest.raises(ValueError, match=message):
            tr.data_parallel(lambda *a: a[0], *batch)
    with pytest.raises(ValueError, match="5 threads can't share 4 rows"):
        tr.data_parallel(model.loss, *batch_of(4), threads=5)


def test_modes_reach_the_threads_of_a_shared_batch():
    with (
        np.errstate(divide="ignore"),
        tr.detect_anomaly(),
        pytest.raises(FloatingPointError, match="log"),
    ):
        tr.data_parallel(
            lambda x: tr.log(tr.Tensor(x, requires_grad=True)).mean(), np.zeros((2, 3))
        )
