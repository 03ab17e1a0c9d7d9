"""`tr.Replay`: a step that is played back gives the bits that it gives when it is computed."""

import contextlib
import copy
import threading

import numpy as np
import pytest

import tinyres as tr
from tests.placed import disturb
from tinyres import nn, replay

RNG = np.random.default_rng


def batch_of(seed, rows=3, tokens=6):
    text = RNG(seed).integers(0, 9, (rows, tokens + 1))
    return text[:, :-1], text[:, 1:]


def model_of(**options):
    size = {"vocab": 9, "d_model": 8, "heads": 2, "blocks": 2, "context": 6, "rng": 0}
    model = nn.TransformerLM(**{**size, **options})
    disturb(model, RNG(1))
    return model


def assert_same_training(make, loss_of, batches, steps=5, how=contextlib.nullcontext):
    """Train one model as ever and one by Replay: same losses and parameters, bit by bit."""
    plain, played = make(), make()
    optimizers = [tr.optim.Adam(m.parameters(), lr=0.01) for m in (plain, played)]
    step = tr.Replay(loss_of(played), played.parameters())
    for i in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        with how():
            loss = loss_of(plain)(*batches(i))
            loss.backward()
            assert step.backward(*batches(i)) == loss.item()
        for p, q in zip(plain.parameters(), played.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None)
            assert p.grad is None or np.array_equal(p.grad, q.grad, equal_nan=True)
        for optimizer in optimizers:
            optimizer.step()
    return step


@pytest.mark.parametrize("placement", nn.PLACEMENTS)
def test_every_placement(placement):
    step = assert_same_training(
        lambda: model_of(placement=placement), lambda m: m.loss, lambda i: batch_of(i)
    )
    assert step.recordings == 1


@pytest.mark.parametrize(
    "options",
    [
        {"dropout": 0.2},
        {"activation": "gelu"},
        {"activation": "gelu_exact", "tied": True},
        {"activation": "tanh", "norm": "rms"},
        {"causal": False, "placement": "dyt"},
    ],
    ids=str,
)
def test_every_part_of_a_model(options):
    assert_same_training(lambda: model_of(**options), lambda m: m.loss, lambda i: batch_of(i))


def test_ops_spelled_out_and_float64():
    def make():
        return model_of().astype("float64")

    assert_same_training(make, lambda m: m.loss, lambda i: batch_of(i), how=tr.spelled_out)


def test_checkpoints():
    def loss_of(model):
        def loss(tokens, targets):
            x = model.embed(tokens)
            for block in model.stack.blocks:
                x = tr.checkpoint(block, x)
            return tr.cross_entropy(model.head(model.stack.final_norm(x)), targets)

        return loss

    assert_same_training(model_of, loss_of, lambda i: batch_of(i))
    model = model_of(dropout=0.3)
    with pytest.raises(RuntimeError, match="Replay can't make it draw the same"):
        tr.Replay(loss_of(model), model.parameters()).backward(*batch_of(0))


def test_an_encoder_and_a_decoder():
    def make():
        model = nn.TransformerEncoderDecoder(9, 8, heads=2, blocks=1, context=6, rng=0)
        disturb(model, RNG(1))
        return model

    assert_same_training(make, lambda m: m.loss, lambda i: (batch_of(i + 9)[0], *batch_of(i)))


def test_float_batches_indices_and_masks():
    class Net(nn.Module):
        def __init__(self):
            self.table = nn.Parameter(RNG(0).standard_normal((5, 4)).astype("f4"))
            self.layer = nn.Linear(4, 3, rng=0)

        def loss(self, x, y, index, allowed):
            h = tr.concatenate([self.table[index], self.table[index[::-1], ::-1]], axis=1)
            h = tr.attention(h, h, tr.stack([h, h])[1], mask=allowed)
            h = tr.where(x > 0, h[:, :, :4].relu(), x * h)
            out = self.layer(h).max(1) + self.layer(x[:, :2]).var(1)
            return tr.mse(out, y) + (tr.norm(h) / (1 + x.std())).log()

    def batches(i):
        rng = RNG(i)
        x, y = rng.standard_normal((2, 8, 4)), rng.standard_normal((2, 3))
        allowed = rng.random((2, 8, 8)) < 0.7
        return x.astype("f4"), y.astype("f4"), rng.integers(0, 5, (2, 4)), allowed

    assert_same_training(Net, lambda m: m.loss, batches)


def test_a_batch_of_another_shape_is_recorded_too_up_to_so_many():
    def batches(i):
        return batch_of(i, rows=(3, 3, 2, 3, 2, 3)[i])

    step = assert_same_training(model_of, lambda m: m.loss, batches, steps=6)
    assert step.recordings == 2
    for _ in range(3):  # more shapes than are kept: the others are computed
        for rows in range(2, 3 + replay.PROGRAMS):
            step.backward(*batch_of(0, rows))
        assert step.recordings == replay.PROGRAMS
    assert f"recordings={replay.PROGRAMS}, programs={replay.PROGRAMS}" in repr(step)
    for _ in range(replay.IDLE + 1):  # until the one that was used least lately has been idle
        step.backward(*batch_of(0, 3))
    step.backward(*batch_of(0, 1))
    assert step.recordings == 1 + replay.PROGRAMS


def test_a_model_that_was_changed_is_recorded_anew():
    model = model_of(dropout=0.5)
    step = tr.Replay(model.loss, model.parameters())

    def played():
        for _ in range(40):  # so many that a change is none of many
            model.zero_grad()
            loss = step.backward(*batch_of(0))
        return loss, step.recordings

    assert played()[1] == 1
    model.eval()
    assert played() == (model.loss(*batch_of(0)).item(), 2)
    assert (model.train() and played()[1]) == (model.eval() and played()[1]) == 2  # both are kept
    model.token.weight.requires_grad = False
    assert played()[1] == 3
    assert model.token.weight.grad is None
    tr.optim.SGD(model.parameters(), lr=0.1)  # moves them into an array of its own
    assert played()[1] == 4
    with tr.spelled_out():
        assert played()[1] == 5
    model.stack.blocks[0].attention.norm.eps = 0.1
    assert played() == (model.loss(*batch_of(0)).item(), 6)
    model.note = "a new attribute can't change what was there"
    assert played()[1] == 6
    del model.note
    assert played()[1] == 7
    copied = copy.deepcopy(model)
    of_copy = tr.Replay(copied.loss, copied.parameters())
    losses = {of_copy.backward(*batch_of(0)) for _ in range(3)}
    copied.train()  # which nobody has noted as evaluated
    assert not losses & {of_copy.backward(*batch_of(0)) for _ in range(3)}


def test_gradients_add_up_and_belong_to_the_caller():
    model = model_of()
    step = tr.Replay(model.loss, model.parameters())
    for _ in range(3):
        model.zero_grad()
        step.backward(*batch_of(0))
    once = model.head.weight.grad
    values = once.copy()
    model.zero_grad()
    step.backward(*batch_of(1))
    assert np.array_equal(once, values)
    step.backward(*batch_of(0))
    model.loss(*batch_of(1)).backward()
    model.loss(*batch_of(0)).backward()
    twice = model.head.weight.grad
    model.zero_grad()
    for seed in (1, 0, 1, 0):
        step.backward(*batch_of(seed))
    np.testing.assert_allclose(model.head.weight.grad, twice, rtol=1e-5, atol=1e-7)


def test_a_leaf_whose_gradient_comes_in_parts():
    w = tr.Tensor([1.0, 2.0], requires_grad=True)

    def loss(x):
        for _ in range(2):
            x = tr.checkpoint(lambda y: y * w, x if isinstance(x, tr.Tensor) else tr.Tensor(x))
        return x.sum()

    step = tr.Replay(loss, [w])
    for x in (1, 2, 3, 4):
        w.grad = None
        assert step.backward(np.full(2, x, "f4")) == 5 * x
        assert w.grad.tolist() == [2 * x, 4 * x]


def test_what_the_caller_does_with_a_gradient_stays_with_him():
    """Also in the first steps, and of a gradient that is the same array in each."""
    w = tr.Tensor([1.0, 2.0], requires_grad=True)
    unused = tr.Tensor([1.0, 1.0], requires_grad=True)

    @tr.op
    def first(a, b):
        return a * 1, lambda g: (g, None)

    def loss(x):
        hidden = w * x
        return (first(hidden, unused) + 0 * first(hidden, hidden) + first(unused, hidden) * 0).sum()

    step = tr.Replay(loss, [w, unused])
    for i in range(14):
        unused.grad = w.grad = None
        step.backward(np.full(2, i, "f4"))
        assert unused.grad.tolist() == [0, 0] and w.grad.tolist() == [i, i]
        unused.grad += 5
        w.grad += 5


def test_detect_anomaly_sees_the_ops_of_a_step_that_was_recorded():
    w = tr.Tensor([1.0, 2.0], requires_grad=True)
    step = tr.Replay(lambda x: (w * x).log().sum(), [w])
    for _ in range(3):
        step.backward(np.ones(2, "f4"))
    with tr.detect_anomaly(), np.errstate(all="ignore"):
        for x in (1, 2, 3, 4):
            step.backward(np.full(2, x, "f4"))
        with pytest.raises(FloatingPointError):
            step.backward(np.zeros(2, "f4"))


def test_a_wrong_batch_is_refused_in_the_words_of_the_loss():
    model = model_of()
    step = tr.Replay(model.loss, model.parameters())
    for i in range(3):
        step.backward(*batch_of(i))
    tokens, targets = batch_of(0)
    with pytest.raises(IndexError, match="it must be from 0 to 8"):
        step.backward(tokens + 5, targets)
    with pytest.raises(IndexError, match="it must be from 0 to 8"):
        step.backward(tokens, targets + 5)
    with pytest.raises(TypeError, match="Replay: batch must hold arrays of numbers"):
        step.backward(tokens, "targets")
    assert step.backward(tokens, targets) == model.loss(tokens, targets).item()


def test_an_interrupted_step_leaves_nothing_behind(monkeypatch):
    model = model_of()
    step = tr.Replay(model.loss, model.parameters())
    for i in range(3):
        step.backward(*batch_of(i))
    model.zero_grad()
    program = step.program

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "calls", [*program.calls[:50], (interrupt, ())])
    with pytest.raises(KeyboardInterrupt):
        step.backward(*batch_of(0))
    assert all(p.grad is None for p in model.parameters())
    assert step.backward(*batch_of(0)) == model.loss(*batch_of(0)).item()


def test_warnings_are_those_of_the_step_that_is_computed():
    w = tr.Tensor([1.0, 2.0], requires_grad=True)

    @tr.op
    def log(x):
        with np.errstate(divide="ignore"):
            return np.log(x), lambda g: (g / np.maximum(x, 1),)

    step = tr.Replay(lambda x: log(w * x).exp().sum(), [w])
    for x in (1, 0, 2, 0):  # a warning would be an error here
        assert step.backward(np.full(2, x, "f4")) == pytest.approx(3 * x)
    assert step.recordings == 1 and step.program.played == 3


def test_numbers_in_lists_and_the_order_of_arrays():
    w = tr.Tensor([1.0, 2.0], requires_grad=True)
    step = tr.Replay(lambda x, y: ((x - x.mean()) @ y).sum() * w.sum(), [w])
    for seed in range(4):
        x, y = RNG(seed).random((70, 33), "f4"), RNG(seed).random((33, 9), "f4")
        expected = (((x - x.mean()) @ y).sum() * w.sum()).item()
        assert step.backward(x.tolist(), y.tolist()) == expected
    for seed in range(4):
        x = np.asfortranarray(RNG(seed).random((70, 33), "f4"))
        assert step.backward(x, y) == (((x - x.mean()) @ y).sum() * w.sum()).item()


def test_replays_of_one_model_in_several_threads():
    model = model_of(blocks=1)
    expected = model.loss(*batch_of(0)).item()
    found = []

    def run():
        found.append(tr.Replay(model.loss, model.parameters()).backward(*batch_of(0)))

    for _ in range(5):
        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == 20 * [expected]
    assert all(type(p.data) is np.ndarray for p in model.parameters())


def test_threads_that_share_one_replay():
    model = model_of()
    step = tr.Replay(model.loss, model.parameters())
    expected = [model.loss(*batch_of(i)).item() for i in range(8)]
    found = [None] * 8

    def run(i):
        for _ in range(5):
            found[i] = step.backward(*batch_of(i))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected and step.recordings == 1
