"""`tr.Replay`: what a recording can't see is an error, and never a wrong number for long."""

import numpy as np
import pytest

import tinyres as tr
from tinyres import nn, recorded


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


def test_what_shows_only_later_is_found_later():
    w = tr.Tensor([1.0, 2.0], requires_grad=True)

    def loss(x):
        return (w * x).sum() * (2 if np.asarray(x)[0] > 5 else 1)

    step = tr.Replay(loss, [w])
    with pytest.raises(RuntimeError, match="Replay: played back"):
        for i in range(20):
            step.backward(np.full(2, min(i, 9), "f4"))
    assert i == 11  # it was recorded, and played ten times
    # A gradient that gathers over several batches: the parameters change only in the fourth step.
    optimizer = tr.optim.SGD([w], lr=0.1)
    step = tr.Replay(lambda x: (w * x * np.array(w.data)).sum(), [w])
    for i in range(3):
        step.backward(np.full(2, i, "f4"))
    optimizer.step()
    with pytest.raises(RuntimeError, match="Replay: played back"):
        step.backward(np.full(2, 5, "f4"))


def test_a_gradient_that_one_of_both_does_not_have_is_refused():
    other = tr.Tensor([1.0], requires_grad=True)
    for calls in ([], [1]):

        def loss(x, calls=calls):
            calls.append(1)
            y = (W * x).sum()
            return y + 0 * other.sum() if len(calls) % 2 else y

        with pytest.raises(RuntimeError, match=r"gradient of shape \(1,\) is there in one"):
            tr.Replay(loss, [W, other]).backward(np.ones(2, "f4"))


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


def test_python_numbers_and_unknown_tensors_are_refused():
    w, other = (tr.Tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    for number in (lambda x: float(x.sum()), lambda x: x.tolist()[0], lambda x: next(x.flat)):

        @tr.op
        def scaled(x, number=number):
            return number(x) * x, lambda g: (g,)

        with pytest.raises(TypeError, match=r"Replay: \w+ takes numbers out of an array"):
            tr.Replay(lambda x, scaled=scaled: scaled(w * x).sum(), [w]).backward(np.ones(2, "f4"))

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
