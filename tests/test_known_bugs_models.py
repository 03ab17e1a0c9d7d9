"""Mistakes that frameworks of this kind have made, each by its kind: using it."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import numpy as np
import pytest
from conftest import leaf, no_garbage_collector

import tinyres as tr
from demos.text import Text, decode, encode
from tinyres import nn, optim

# ---------------------------------------------------------------- Python's protocols


def test_iteration_and_in():
    x = leaf([1.0, 2.0], [3.0, 4.0])
    first, second = x
    (first * 2 + second).sum().backward()
    assert x.grad.tolist() == [[2, 2], [1, 1]]
    assert 4.0 in x and 5.0 not in x and np.float32(1) in x and len(list(x)) == 2
    assert sum(x).data.tolist() == [4, 6]
    with pytest.raises(TypeError):
        iter(x.sum())


def test_no_grad_nested_and_after_exceptions():
    x = leaf(1.0)

    @tr.no_grad()
    def silently():
        return x * 2

    with tr.no_grad():
        with tr.no_grad():
            pass
        assert not (x * 2).requires_grad and not silently().requires_grad
        assert nn.Linear(1, 1, rng=0).weight.requires_grad
    with pytest.raises(ZeroDivisionError), tr.no_grad():
        raise ZeroDivisionError
    assert not silently().requires_grad and (x * 2).requires_grad


def test_no_grad_in_threads_and_tasks():
    x = leaf(1.0)
    inside, done = threading.Event(), threading.Event()

    def silent_thread():
        with tr.no_grad():
            inside.set()
            done.wait(10)

    thread = threading.Thread(target=silent_thread)
    thread.start()
    assert inside.wait(10) and (x * 2).requires_grad
    done.set()
    thread.join()

    async def silent(begun, go_on):
        with tr.no_grad():
            begun.set()
            await go_on.wait()
            return (x * 2).requires_grad

    async def main():
        begun, go_on = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(silent(begun, go_on))
        await begun.wait()
        meanwhile = (x * 2).requires_grad
        go_on.set()
        return meanwhile, await task

    assert asyncio.run(main()) == (True, False)


def test_threads_train_side_by_side():
    def train(out):
        model = nn.TransformerLM(vocab=5, d_model=8, heads=2, blocks=1, context=4, rng=0)
        optimizer = optim.Adam(model.parameters(), lr=0.01)
        for _ in range(10):
            optimizer.zero_grad()
            model.loss([[0, 1, 2, 3]], [[1, 2, 3, 4]]).backward()
            optimizer.step()
        out.append(model.state_dict())

    alone, together = [], []
    train(alone)
    threads = [threading.Thread(target=train, args=(together,)) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(together) == 3
    for state in together:
        assert all(np.array_equal(state[name], alone[0][name]) for name in state)


def test_graphs_kept_alive_by_a_list_of_losses():
    model = nn.TransformerBlock(8, heads=2, rng=0)
    losses, held = [], []
    with no_garbage_collector():
        for _ in range(3):
            x = tr.Tensor(np.ones((1, 3, 8), "f4"), requires_grad=True)
            y = model(x)
            held += [weakref.ref(x.data), weakref.ref(y), weakref.ref(y.data)]
            losses.append(y.sum())
            losses[-1].backward()
            del x, y
        assert [r() for r in held] == [None] * 9


def test_reference_cycles_of_a_whole_training_step():
    model = nn.TransformerLM(vocab=5, d_model=8, heads=2, blocks=2, context=4, dropout=0.1, rng=0)
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    gc.collect()
    with no_garbage_collector():
        for _ in range(2):
            optimizer.zero_grad()
            model.loss([[0, 1, 2]], [[1, 2, 3]]).backward()
            optimizer.step()
        found = gc.collect()
    assert found == 0


# ---------------------------------------------------------------- models and optimizers


def test_tied_weights(rng):
    sizes = {"vocab": 7, "d_model": 8, "heads": 2, "blocks": 1, "context": 5}
    tied, free = nn.TransformerLM(**sizes, tied=True, rng=0), nn.TransformerLM(**sizes, rng=0)
    assert tied.num_parameters() == free.num_parameters() - 7 * 8 - 7  # a tied head has no bias
    head = {"head.weight": tied.token.weight.data.T, "head.bias": np.zeros(7)}
    free.load_state_dict({**tied.state_dict(), **head})
    for model in (tied, free):
        model.astype("float64").loss([[1, 2, 3]], [[2, 3, 1]]).backward()
    both = free.token.weight.grad + free.head.weight.grad.T
    np.testing.assert_allclose(tied.token.weight.grad, both, rtol=1e-12)

    holder = nn.Module()
    holder.first = nn.Linear(3, 3, rng=0)
    holder.second, holder.same = nn.Linear(3, 3, rng=1), holder.first
    holder.second.weight = holder.first.weight
    assert len(holder.parameters()) == 3 and len(list(holder.modules())) == 3
    optimizer = optim.SGD([*holder.parameters(), holder.first.weight], lr=1.0)
    assert len(optimizer.params) == 3
    holder.first.weight.grad = np.ones((3, 3), "f4")
    before = holder.second.weight.data.copy()
    optimizer.step()
    np.testing.assert_allclose(holder.second.weight.data, before - 1)


def test_layers_in_plain_lists_and_dicts():
    class Nested(nn.Module):
        def __init__(self):
            self.listed = [nn.Linear(2, 2, rng=0), [nn.Dropout(0.5)]]
            self.named = {"a": nn.Linear(2, 2, rng=1), "b": (nn.Parameter([1.0]),)}
            self.modules_ = nn.ModuleList([nn.LayerNorm(2)])

    model = Nested()
    assert list(model.state_dict()) == [
        "named.b.0", "listed.0.weight", "listed.0.bias", "named.a.weight", "named.a.bias",
        "modules_.0.gamma", "modules_.0.beta",
    ]  # fmt: skip
    assert not any(m.training for m in model.eval().modules()) and len(list(model.modules())) == 5
    model.listed[0].weight.grad = np.ones((2, 2))
    model.zero_grad()
    assert model.listed[0].weight.grad is None


def with_grads(*grads):
    params = [nn.Parameter(np.zeros(np.shape(g), "f4")) for g in grads]
    for p, g in zip(params, grads, strict=True):
        p.grad = g
    return params


def test_clipping_of_zero_missing_infinite_and_huge_gradients():
    params = [*with_grads([3.0, 0.0], [4.0]), nn.Parameter([1.0])]
    assert optim.clip_grad_norm((p for p in params), 1.0) == pytest.approx(5)
    np.testing.assert_allclose([*params[0].grad, *params[1].grad], [0.6, 0, 0.8], rtol=1e-5)
    assert params[2].grad is None
    optim.clip_grad_norm(params, 10.0)
    np.testing.assert_allclose(params[1].grad, 0.8, rtol=1e-5)

    zero = with_grads([0.0, 0.0])
    assert optim.clip_grad_norm(zero, 1.0) == 0 and zero[0].grad.tolist() == [0, 0]
    assert optim.clip_grad_norm([nn.Parameter([1.0])], 1.0) == 0

    for bad in (np.inf, np.nan):
        params = with_grads([bad, 1.0], [2.0])
        with pytest.raises(FloatingPointError, match="gradients"):
            optim.clip_grad_norm(params, 1.0)
        assert params[1].grad.tolist() == [2]

    huge = with_grads([3e30, 4e30])  # their squares are no float32 any more
    assert optim.clip_grad_norm(huge, 1.0) == pytest.approx(5e30)
    np.testing.assert_allclose(huge[0].grad, [0.6, 0.8], rtol=1e-5)
    tiny = with_grads([3e-30, 4e-30])
    assert optim.clip_grad_norm(tiny, 1.0) == pytest.approx(5e-30)


def test_one_tensor_where_a_list_of_them_is_expected():
    (p,) = with_grads([3.0, 4.0])
    try:
        optim.clip_grad_norm(p, 1.0)
    except TypeError:
        pass
    else:
        np.testing.assert_allclose(p.grad, [0.6, 0.8], rtol=1e-5)


def test_an_optimizer_fed_by_a_generator():
    model = nn.Linear(2, 2, rng=0)
    optimizer = optim.SGD((p for p in model.parameters()), lr=1.0)
    for _ in range(2):
        before = model.weight.data.copy()
        model(np.ones((1, 2), "f4")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        np.testing.assert_allclose(model.weight.data, before - 1)


@pytest.mark.parametrize("lr", [np.float64(0.5), np.float32(0.5), np.array(0.5), 0.5, 1])
def test_learning_rates_that_are_numpy_scalars(lr):
    for kind in (optim.SGD, optim.Adam, optim.AdamW):
        (p,) = with_grads([1.0, 2.0])
        optimizer = kind([p], lr=lr)
        optimizer.lr = lr * np.float64(1)
        optimizer.step()
        assert p.dtype == np.float32 and p.data.any() and type(optimizer.lr) is float
    for bad in (-1.0, np.nan, np.inf, "fast", None):
        with pytest.raises((ValueError, TypeError)):
            optimizer.lr = bad


def test_schedules_at_step_0_at_the_end_of_warm_up_and_without():
    for make in (
        optim.warmup_constant,
        optim.inverse_sqrt,
        lambda lr, warmup: optim.warmup_cosine(lr, warmup, 100),
    ):
        schedule = make(2.0, 10)
        rates = [schedule(step) for step in range(100)]
        np.testing.assert_allclose(rates[:10], 2.0 * np.arange(1, 11) / 10)
        assert max(rates) == rates[9] == 2.0 and min(rates) > 0
        assert np.all(np.diff(rates[9:]) <= 0)
        assert make(2.0, 0)(0) == make(2.0, 1)(0) == 2.0
    assert optim.warmup_cosine(2.0, 10, 100)(100) == pytest.approx(0)
    assert optim.warmup_cosine(2.0, 10, 100, floor=0.5)(10_000) == pytest.approx(0.5)


def language_model(**options):
    return nn.TransformerLM(vocab=7, d_model=8, heads=2, blocks=1, context=4, rng=0, **options)


def test_text_shorter_and_longer_than_the_context():
    model = language_model()
    assert model([[1]]).shape == (1, 1, 7) and model([[1, 2, 3, 4]]).shape == (1, 4, 7)
    with pytest.raises(ValueError, match="at most 4"):
        model([[1, 2, 3, 4, 5]])
    with pytest.raises(IndexError, match=r"has 7, .*from 0 to 6"):
        model([[7]])
    for prompt in ([1], [1, 2, 3, 4, 5, 6]):
        out = model.generate(prompt, 6, rng=0)
        assert out[: len(prompt)].tolist() == prompt and len(out) == len(prompt) + 6
    with pytest.raises(ValueError, match="at least one token, got"):
        model.generate([], 3)


def test_text_that_is_too_short_and_a_character_never_seen():
    text = Text.of("greeting", "hello world, hello again")
    for context in (1, 2):
        text.check_context(context)
        drawn = text.batch(np.random.default_rng(0), 50, context)
        for tokens, targets in (drawn, text.windows(context)):
            assert tokens.shape[1] == context and (tokens[:, 1:] == targets[:, :-1]).all()
    with pytest.raises(ValueError, match=r"greeting is too short: .*a context of 3 needs 4"):
        text.check_context(3)
    assert decode(text.symbols, encode(text.symbols, "wood")) == "wood"
    with pytest.raises(ValueError, match=r"never seen 'X', 'z'.*use only"):
        encode(text.symbols, "hXello z")


def test_temperature_0_and_top_k_above_the_vocabulary():
    model = language_model()
    likeliest = model.generate([1, 2], 8, temperature=0)
    assert np.array_equal(likeliest, model.generate([1, 2], 8, top_k=1, rng=3))
    assert np.array_equal(likeliest, model.generate([1, 2], 8, temperature=1e-9, rng=4))
    for k in (7, 8, 10**6):
        assert np.array_equal(
            model.generate([1, 2], 8, rng=5), model.generate([1, 2], 8, top_k=k, rng=5)
        )
    for wrong in ({"temperature": -1}, {"top_k": 0}, {"temperature": np.nan}):
        with pytest.raises(ValueError, match=f"generate: {next(iter(wrong))} must be"):
            model.generate([1], 1, **wrong)


def test_generate_leaves_the_model_as_it_was():
    model = language_model(dropout=0.5)
    model.generate([1], 2)
    assert model.training
    with pytest.raises(IndexError):
        model.generate([99], 2)
    assert all(m.training for m in model.modules())
    assert (model([[1]]) * 1).requires_grad


def test_same_seed_same_bits():
    def run():
        model = language_model(dropout=0.2)
        optimizer = optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(5):
            optimizer.zero_grad()
            model.loss([[0, 1, 2, 3]], [[1, 2, 3, 4]]).backward()
            optimizer.step()
        return *model.state_dict().values(), model.generate([1], 20, rng=1)

    assert all(np.array_equal(a, b) for a, b in zip(run(), run(), strict=True))
