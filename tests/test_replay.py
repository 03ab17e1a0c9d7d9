"""`tr.Replay`: a step that is played back gives the bits that it gives when it is computed."""

import contextlib
import copy
import threading

import numpy as np
import pytest

import tinyres as tr
from tests.placed import disturb
from tinyres import nn, recorded, replay
from tinyres.recorded import Recorded
from tinyres.reuse import share_memory

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


@tr.op
def double_or_triple(x):
    """A decision that hangs on a value."""
    factor = 2 if x.sum() > 0 else 3
    return factor * x, lambda g: (factor * g,)


@tr.op
def distinct(x):
    """How many distinct numbers there are: an array whose shape hangs on values."""
    return np.ones_like(np.unique(x)).sum() + 0 * x.sum(), lambda g: (0 * x + g,)


@tr.op
def positive_or_not(x):
    """A decision of a function that returns True or False."""
    factor = 2 if np.array_equal(x, abs(x)) else 3
    return factor * x, lambda g: (factor * g,)


@tr.op
def by_count(x):
    """A number that a function returns instead of an array."""
    factor = 1 + np.count_nonzero(x > 0)
    return factor * x, lambda g: (factor * g,)


@tr.op
def split(x):
    """Views whose size hangs on a value."""
    small, _ = np.split(x, [(x > 0).sum()])
    return x + small.sum(), lambda g: (g + 0 * x,)


@pytest.mark.parametrize("of", [double_or_triple, distinct, positive_or_not, by_count, split])
def test_where_a_decision_falls_otherwise_the_step_is_computed(of):
    rng = RNG(0)
    w = tr.Tensor([1.0, 2.0], requires_grad=True)

    def loss(x):
        return (tr.dropout(w, 0.5, rng) * of(w * x)).sum()

    step = tr.Replay(loss, [w])
    batches = [RNG(i).integers(-2, 3, 2).astype("f4") for i in range(400)]
    for x in batches:
        w.grad, before = None, rng.bit_generator.state
        found, g = step.backward(x), w.grad
        after, rng.bit_generator.state = rng.bit_generator.state, before
        w.grad = None
        expected = loss(x)
        expected.backward()
        assert (found, g.tolist()) == (expected.item(), w.grad.tolist())
        assert after == rng.bit_generator.state
    assert step.recordings < 40  # and not once in two or three steps
    # NumPy before 2.3 returns a Python number there, and later an array, which is played.
    assert step.recordings > 3 or of is by_count


@tr.op
def blind(x):
    return np.asarray(x) * 2, lambda g: (2 * g,)


@tr.op
def filled_in(x):
    out = np.zeros(x.shape, x.dtype)
    out[:] = x
    return out, lambda g: (g,)


@tr.op
def changed_alone(x):
    """NumPy's own sum is a number that can't be changed; the recorded one is an array."""
    total = x.sum()
    before = total
    total += 1
    return x * before, lambda g: (g,)


W = tr.Tensor([1.0, 2.0], requires_grad=True)
OUTSIDE = [1.0]


@pytest.fixture(autouse=True)
def fresh_gradient():
    W.grad = None


@tr.op
def blind_on_the_way_back(x):
    return x * 1, lambda g: (g * np.array(x),)


def test_a_gradient_that_is_another_one_is_refused():
    step = tr.Replay(lambda x: blind_on_the_way_back(W * x * 0 + x.mean() + W).sum() - x.sum(), [W])
    with pytest.raises(RuntimeError, match=r"gradient of shape \(2,\) is another one"):
        for x in (1, 3):
            step.backward(np.full(2, x, "f4"))


def of_outside(x):
    OUTSIDE[0] += 1
    return (W * x).sum() * OUTSIDE[0]


UNSEEN = {
    "asarray": lambda x: blind(W * x).sum(),
    "zeros": lambda x: filled_in(W * x).sum(),
    "a scalar": lambda x: changed_alone(W * x).sum(),
    "a list": of_outside,
}


@pytest.mark.parametrize("name", UNSEEN)
def test_what_a_recording_can_not_see_is_refused(name):
    step = tr.Replay(UNSEEN[name], [W])
    W.grad = None
    with pytest.raises(RuntimeError, match=r"Replay: played back, the loss is .* like=x"):
        for x in (1, 3):
            W.grad = None
            step.backward(np.full(2, x, "f4"))
    assert W.grad is None


def test_the_second_step_is_compared_even_on_the_same_batch():
    w = tr.Tensor([1.0, 2.0], requires_grad=True)
    step = tr.Replay(lambda x: (w * np.array(w.data) * x).sum(), [w])
    step.backward(np.ones(2, "f4"))
    w.data[...] = [2, 4]
    with pytest.raises(RuntimeError, match=r"the loss is 10\.0 instead of 20\.0"):
        step.backward(np.ones(2, "f4"))


def test_every_array_of_a_batch_is_waited_for():
    mask, twos = np.ones(2, "f4"), np.full(2, 2, "f4")
    step = tr.Replay(lambda x, m: (W * np.asarray(x) * m).sum(), [W])
    assert [step.backward(mask, mask) for _ in range(3)] == [3, 3, 3]
    with pytest.raises(RuntimeError, match=r"the loss is 3\.0 instead of 6\.0"):
        step.backward(twos, mask)  # seen as soon as x is another one, though m is not
    step = tr.Replay(lambda x, m: (W * x * np.asarray(m)).sum(), [W])
    assert [step.backward(x * mask, mask) for x in (1, 2, 3)] == [3, 6, 9]
    with pytest.raises(RuntimeError, match=r"the loss is 9\.0 instead of 18\.0"):
        step.backward(3 * mask, twos)


def test_a_gradient_that_one_of_both_does_not_have_is_refused():
    other = tr.Tensor([1.0], requires_grad=True)
    for calls in ([], [1]):

        def loss(x, calls=calls):
            calls.append(1)
            y = (W * x).sum()
            return y + 0 * other.sum() if len(calls) % 2 else y

        with pytest.raises(RuntimeError, match=r"gradient of shape \(1,\) is there in one"):
            tr.Replay(loss, [W, other]).backward(np.ones(2, "f4"))


def test_a_leaf_whose_gradient_comes_in_parts():
    def loss(x):
        for _ in range(2):
            x = tr.checkpoint(lambda y: y * W, x if isinstance(x, tr.Tensor) else tr.Tensor(x))
        return x.sum()

    step = tr.Replay(loss, [W])
    for x in (1, 2, 3, 4):
        W.grad = None
        assert step.backward(np.full(2, x, "f4")) == 5 * x
        assert W.grad.tolist() == [2 * x, 4 * x]
    W.grad = None


def test_what_the_caller_does_with_a_gradient_stays_with_him():
    """Also in the first steps, and of a gradient that is the same array in each."""
    unused = tr.Tensor([1.0, 1.0], requires_grad=True)

    @tr.op
    def first(a, b):
        return a * 1, lambda g: (g, None)

    def loss(x):
        hidden = W * x
        return (first(hidden, unused) + 0 * first(hidden, hidden) + first(unused, hidden) * 0).sum()

    step = tr.Replay(loss, [W, unused])
    for i in range(14):
        unused.grad = W.grad = None
        step.backward(np.full(2, i, "f4"))
        assert unused.grad.tolist() == [0, 0] and W.grad.tolist() == [i, i]
        unused.grad += 5
        W.grad += 5
    W.grad = None


def test_python_numbers_and_unknown_tensors_are_refused():
    w, other = (tr.Tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    for number in (lambda x: float(x.sum()), lambda x: x.tolist()[0], lambda x: next(x.flat)):

        @tr.op
        def scaled(x, number=number):
            return number(x) * x, lambda g: (g,)

        with pytest.raises(TypeError, match=r"Replay: \w+ takes numbers out of an array"):
            tr.Replay(lambda x, scaled=scaled: scaled(w * x).sum(), [w]).backward(np.ones(2, "f4"))

    def halves(x):
        whole, rest = np.frexp(x)[0], divmod(3, 2)
        return (w * whole).sum() * rest[0]

    tr.Replay(halves, [w]).backward(np.ones(2, "f4"))
    with pytest.raises(TypeError, match="NumPy would lose the gradient"):
        tr.Replay(lambda x: np.concatenate([x, w]), [w]).backward(np.ones(2, "f4"))
    with pytest.raises(RuntimeError, match="not among params"):
        tr.Replay(lambda x: (w * x * other).sum(), [w]).backward(np.ones(2, "f4"))
    with pytest.raises(ValueError, match="no tensor among params requires grad"):
        tr.Replay(lambda x: x, [tr.Tensor([1.0])])
    with pytest.raises(TypeError, match="what loss returns must be a tensor"):
        tr.Replay(lambda x: x, [w]).backward(np.ones(2, "f4"))
    with pytest.raises(ValueError, match="starts at one number"):
        tr.Replay(lambda x: w * x, [w]).backward(np.ones(2, "f4"))
    with tr.no_grad(), pytest.raises(RuntimeError, match="no_grad"):
        tr.Replay(lambda x: (w * x).sum(), [w]).backward(np.ones(2, "f4"))
    with pytest.raises(RuntimeError, match="nothing was recorded yet"):
        _ = tr.Replay(lambda x: (w * x).sum(), [w]).program
    assert w._data.__class__ is np.ndarray and other.grad is None


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


def test_a_module_that_keeps_what_it_saw():
    class Keeps(nn.Module):
        def __init__(self):
            self.w = nn.Parameter([1.0, 2.0])

        def forward(self, x):
            self.last = x
            return (self.w * x).sum()

    model = Keeps()
    with pytest.raises(RuntimeError, match="loss assigns an attribute of a module"):
        tr.Replay(model, model.parameters()).backward(np.ones(2, "f4"))
    assert model.w.grad is None and type(model.w.data) is np.ndarray

    norm = nn.LayerNorm(2, affine=False)  # a module that is made in the step is another thing
    step = tr.Replay(lambda x: (nn.Sequential(norm)(W * x) * W).sum(), [W])
    assert len({step.backward(np.ones(2, "f4")) for _ in range(3)}) == step.recordings == 1
    W.grad = None


def by_itself(x):
    y = W * x
    y.sum().backward()
    return y.sum()


def kept(x):
    y = W * x
    y.retain_grad()
    return y.sum()


@tr.op
def written_into(x):
    out = np.empty(2, "f4")
    np.multiply(x, 2, out=out)
    return out, lambda g: (2 * g,)


@tr.op
def of_objects(x):
    return np.vectorize(lambda v: v + 1)(x.astype(object)).astype("f4"), lambda g: (g,)


def of_parts(x):
    return x * 2, 3


@tr.op
def in_parts(x):
    return recorded.noted(of_parts, (x,), {})[0], lambda g: (2 * g,)


REFUSED = {
    "backward": (by_itself, RuntimeError, "Replay: loss calls backward"),
    "retain_grad": (kept, RuntimeError, "retain_grad"),
    "foreign out": (lambda x: written_into(W * x).sum(), TypeError, "np.zeros.*like=x"),
    "objects": (lambda x: of_objects(W * x).sum(), TypeError, "array of Python objects"),
    "parts": (lambda x: in_parts(W * x).sum(), TypeError, "of_parts, of which a part is no array"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_not_be_recorded_says_so_at_once(name):
    loss, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        tr.Replay(loss, [W]).backward(np.ones(2, "f4"))
    assert W.grad is None and type(W.data) is np.ndarray
    with pytest.raises(ValueError, match="pass leaves"):
        tr.Replay(loss, [W * 2])


def test_what_shows_only_later_is_found_later():
    seen = np.zeros(1)
    w = tr.Tensor([1.0, 2.0], requires_grad=True)

    def loss(x):
        return (w * x).sum() * (2 if np.asarray(x)[0] > 5 else 1)

    step = tr.Replay(loss, [w])
    with pytest.raises(RuntimeError, match="Replay: played back"):
        for i in range(20):
            seen[0] = i
            step.backward(np.full(2, min(i, 9), "f4"))
    assert seen[0] == 11  # recorded, and played ten times
    # A gradient that gathers over several batches: the parameters change only in the fourth step.
    optimizer = tr.optim.SGD([w], lr=0.1)
    step = tr.Replay(lambda x: (w * x * np.array(w.data)).sum(), [w])
    for i in range(3):
        step.backward(np.full(2, i, "f4"))
    optimizer.step()
    with pytest.raises(RuntimeError, match="Replay: played back"):
        step.backward(np.full(2, 5, "f4"))


@tr.op
def factored(x):
    """It goes another way where a function fails."""
    try:
        y = np.linalg.cholesky(x)
    except np.linalg.LinAlgError:
        y = x * 0
    return y + x, lambda g: (g,)


def test_a_decision_by_an_error():
    w = tr.Tensor(np.eye(2, dtype="f4"), requires_grad=True)
    for signs in ([1, 1, 1, -1, 1, 1], [-1, -1, -1, 1, -1, -1]):
        step = tr.Replay(lambda s: factored(w * s).sum(), [w])
        for sign in signs:
            assert step.backward(np.full(1, sign, "f4")) == (4 if sign > 0 else -2)


def test_where_modules_change_all_the_time_steps_are_computed():
    model = nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 1, rng=0))
    step = tr.Replay(lambda x: model(x).sum(), model.parameters())
    for i in range(200):
        model.layers[0].eps = 1e-3 * (i + 1)
        x = RNG(i).random((2, 2), "f4")
        assert step.backward(x) == model(x).sum().item()
    assert step.recordings < 20


def test_warnings_are_those_of_the_step_that_is_computed():
    @tr.op
    def log(x):
        with np.errstate(divide="ignore"):
            return np.log(x), lambda g: (g / np.maximum(x, 1),)

    step = tr.Replay(lambda x: log(W * x).exp().sum(), [W])
    for x in (1, 0, 2, 0):  # a warning would be an error here
        assert step.backward(np.full(2, x, "f4")) == pytest.approx(3 * x)
    assert step.recordings == 1 and step.program.played == 3
    W.grad = None


def test_numbers_in_lists_and_the_order_of_arrays():
    step = tr.Replay(lambda x, y: ((x - x.mean()) @ y).sum() * W.sum(), [W])
    for seed in range(4):
        x, y = RNG(seed).random((70, 33), "f4"), RNG(seed).random((33, 9), "f4")
        expected = (((x - x.mean()) @ y).sum() * W.sum()).item()
        assert step.backward(x.tolist(), y.tolist()) == expected
    for seed in range(4):
        x = np.asfortranarray(RNG(seed).random((70, 33), "f4"))
        assert step.backward(x, y) == (((x - x.mean()) @ y).sum() * W.sum()).item()
    W.grad = None


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
        np.concatenate([x, W])  # which a tensor refuses
    np.add.at(x, [0, 0], 1.0)
    assert x.tolist() == [2.0, 1.0, 2.0]
