"""`tr.Processes`: the gradients of a batch whose rows several processes share."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import pytest

import tinyres as tr
from tinyres import context, nn, processes


def batch_of(rows):
    tokens = np.random.default_rng(0).integers(0, 9, (rows, 7))
    return tokens[:, :-1], tokens[:, 1:]


def model_of(**options):
    return nn.TransformerLM(vocab=9, d_model=8, heads=2, blocks=2, context=6, rng=0, **options)


@pytest.mark.parametrize("replay", [False, True])
def test_a_shared_batch_gives_the_gradients_of_the_whole_one_step_after_step(replay):
    model = model_of().astype("float64")
    model.token.weight.requires_grad = False  # frozen
    optimizer = tr.optim.Adam(model.parameters(), lr=0.01)
    tokens, targets = batch_of(5)
    with tr.Processes(model.loss, model.parameters(), count=3, replay=replay) as shared:
        for _ in range(2):  # the second time with the parameters that the first step left
            model.zero_grad()
            loss = model.loss(tokens, targets)
            loss.backward()
            whole = [p.grad for p in optimizer.params]
            results = []
            for _ in range(2):
                model.zero_grad()
                results.append(shared.backward(tokens, targets))
                results.append([p.grad for p in optimizer.params])
            assert results[0] == results[2] == pytest.approx(loss.item(), rel=1e-12)
            for expected, found, again in zip(whole, results[1], results[3], strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
                assert np.array_equal(found, again)
            assert model.token.weight.grad is None
            optimizer.step()
        model.zero_grad()
        model.loss(tokens, targets).backward()
        once = model.head.bias.grad.copy()
        for _ in range(2):
            shared.backward(tokens, targets)
        np.testing.assert_allclose(model.head.bias.grad, 3 * once, rtol=1e-9)


class Odd(nn.Module):
    """A loss that fails, or leaves a parameter out, where a row holds a certain number."""

    def __init__(self):
        self.w = nn.Parameter([1.0, 2.0])
        self.sometimes = nn.Parameter([1.0])

    def forward(self, x):
        if x[0, 0] == 1:
            raise ZeroDivisionError("in the second part")
        mean = (self.w * x).mean()
        return mean * self.sometimes if x[0, 0] == 2 else mean

    def die(self, x):
        if x[0, 0] == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return self.forward(x)


def test_a_failure_in_one_process_leaves_all_gradients_as_they_were():
    model = Odd()
    with tr.Processes(model, model.parameters()) as shared:
        with pytest.raises(ZeroDivisionError, match="in the second part"):
            shared.backward(np.array([[0.0, 0.0], [1.0, 1.0]]))
        assert model.w.grad is None
        for process in multiprocessing.active_children():
            os.kill(process.pid, signal.SIGINT)  # as Ctrl-C does beside the first process
        shared.backward(np.array([[0.0, 0.0], [2.0, 2.0]]))
        np.testing.assert_allclose(model.w.grad, [0.5, 0.5])
        np.testing.assert_allclose(model.sometimes.grad, [1.5])  # of the second part only
        with pytest.raises(ValueError, match="2 processes can't share 1 rows"):
            shared.backward(np.ones((1, 2)))
    with pytest.raises(RuntimeError, match="shutdown"):
        shared.backward(np.ones((2, 2)))
    with (
        tr.Processes(model.die, model.parameters()) as shared,
        pytest.raises(BrokenProcessPool),
    ):
        shared.backward(np.array([[0.0, 0.0], [1.0, 1.0]]))


class Waits(nn.Module):
    """A loss that takes its time where a row begins with a number of seconds."""

    def __init__(self):
        self.w = nn.Parameter([1.0, 2.0])
        self.by = nn.Parameter(np.array([3.0]))  # float64

    def forward(self, x):
        time.sleep(max(x[0, 0], 0))
        return (self.w * x).mean() * self.by.sum()

    def whole(self, x):
        self.zero_grad()
        self(x).backward()
        gradients = self.w.grad, self.by.grad
        self.zero_grad()
        return gradients


def test_what_changes_between_steps_gets_to_the_other_processes(monkeypatch):
    model, x = Waits(), -np.arange(8.0).reshape(4, 2)
    model.by.requires_grad = False
    with tr.Processes(model, [model.w, *model.parameters()], count=3) as shared:

        def check(expected=None):
            expected = expected or model.whole(x)
            shared.backward(x)
            for p, g in zip(model.parameters(), expected):
                assert (p.grad is None) == (g is None)
                if g is not None:
                    np.testing.assert_allclose(p.grad, g, rtol=1e-6)

        check()
        model.by.data = [30.0]  # a frozen one
        check()
        model.by.requires_grad = True
        check()
        model.w.requires_grad = False
        model.load_state_dict({"w": [5.0, 6.0], "by": [7.0]})
        check()
        model.w.requires_grad = True
        with tr.spelled_out():
            check()
        x[3, 1] = np.nan  # in the part of the last process
        with tr.detect_anomaly(), pytest.raises(FloatingPointError, match=r"mul.*Waits"):
            shared.backward(x)
        x[3, 1] = 1

        def interrupted(_):
            monkeypatch.undo()
            raise KeyboardInterrupt

        model.zero_grad()
        slow = np.zeros((3, 2))
        slow[1:] = 0.6
        shared.backward(slow)  # by now each has begun
        slow[1:] = [0.3], [0]
        x[0, 0] = 0.6
        expected = model.whole(x)
        model.zero_grad()
        with pytest.raises(KeyboardInterrupt):
            monkeypatch.setattr(processes, "wait", lambda running: running and interrupted(running))
            shared.backward(slow)
        check(expected)  # another process ends its last step in the midst of this one
        model.astype("float32")
        with pytest.raises(RuntimeError, match=r"float64 .*float32 now: start new ones"):
            shared.backward(x)


ORPHANS = """
import os, signal, tests.test_processes as t
if __name__ == "__main__":
    model = t.Odd()
    shared = t.tr.Processes(model, model.parameters())
    shared.backward(t.np.zeros((2, 2)))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_no_process_outlives_the_first_one(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(ORPHANS)
    # It returns when the last process that could still write something has ended.
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


ELSEWHERE = [tr.Tensor([1.0, 2.0], requires_grad=True)]


def elsewhere(x):
    """It finds its parameters in this file, which the other process reads anew."""
    return (ELSEWHERE[0] * x).mean()


def test_what_can_not_be_shared():
    model = model_of(dropout=0.5)
    for replay in (False, True):
        with (
            tr.Processes(model.loss, model.parameters(), replay=replay) as shared,
            pytest.raises(RuntimeError, match=r"draws the same.*eval\(\)"),
        ):
            shared.backward(*batch_of(4))
        assert all(p.grad is None for p in model.parameters())
    with pytest.raises(TypeError, match=r"pickle can copy, such as model\.loss.*lambda"):
        tr.Processes(lambda tokens, targets: model.loss(tokens, targets), model.parameters())
    with (
        tr.Processes(elsewhere, ELSEWHERE) as shared,
        pytest.raises(RuntimeError, match=r"not among params.*let loss hold them"),
    ):
        shared.backward(np.ones((2, 2)))
    odd = Odd()
    with tr.Processes(odd, odd.parameters()[:1]) as shared:
        for replaced in (False, True):
            with pytest.raises(RuntimeError, match="not among params"):
                shared.backward(np.array([[0.0, 0.0], [0.0 if replaced else 2.0, 0.0]]))
            assert odd.w.grad is None
            odd.w = nn.Parameter([1.0, 2.0])
    for params, message in (([tr.Tensor(1.0)], "no tensor"), ([], "no tensor")):
        with pytest.raises(ValueError, match=message):
            tr.Processes(model.loss, params)
    with pytest.raises(ValueError, match="count must be an integer, at least 2"):
        tr.Processes(model.loss, model.parameters(), count=1)


@pytest.mark.parametrize("replay", [False, True])
def test_what_happens_in_another_process(monkeypatch, replay):
    called = []
    monkeypatch.setattr(signal, "signal", lambda *args: called.append(args))
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: multiprocessing.Process())
    monkeypatch.setattr(multiprocessing.Process, "join", lambda _: None)
    monkeypatch.setattr(os, "_exit", called.append)
    model, theirs = Odd(), Odd()
    values, gradients = (processes._shared(model.parameters()) for _ in range(2))
    processes._begin(theirs, theirs.parameters(), values, [gradients], replay)
    for value, p in zip(processes._views(model.parameters(), values), model.parameters()):
        value[...] = 2 * p.data
    assert np.array_equal(theirs.w.data, [2, 4])  # nothing was copied to it
    part = (np.array([[0.0, 0.0], [1.0, 2.0]], "f4"),)
    for _ in range(3):  # recorded, played and compared, played
        found = processes._one_part(0, context.Mode(), [True, True], part, 0.5)
        assert found == (0.5 * 10 / 4, [0], False)
    left = processes._views(model.parameters(), gradients)
    np.testing.assert_allclose(left[0], [0.125, 0.25])
    assert np.array_equal(left[1], [0])
    assert called == [(signal.SIGINT, signal.SIG_IGN), 1]
