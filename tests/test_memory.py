"""Memory comes back with the last name for it, without waiting for the garbage collector."""

from __future__ import annotations

import gc
import sys
import tracemalloc
import weakref

import numpy as np
import pytest
from conftest import leaf, no_garbage_collector

import tinyres as tr
from tinyres import nn, optim
from tinyres.tensor import Node, add_to_leaves


def count_nodes():
    return sum(type(o) is Node for o in gc.get_objects())


def test_10000_steps_with_all_losses_kept_grow_by_no_graph():
    w = tr.Tensor(np.ones((8, 8)), requires_grad=True)
    optimizer = optim.SGD([w], lr=1e-3)
    x = np.ones((4, 8))
    losses, inside = [], []

    def step():
        optimizer.zero_grad()
        h = x @ w
        loss = tr.residual(h, tr.gelu(h)).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss)
        inside.append(weakref.ref(h))

    with no_garbage_collector():
        for _ in range(100):
            step()
        blocks, nodes = sys.getallocatedblocks(), count_nodes()
        for _ in range(9_900):
            step()
        blocks, nodes = sys.getallocatedblocks() - blocks, count_nodes() - nodes
        assert not any(ref() for ref in inside)
    # A kept loss is a tensor, a number and the one node that tells that its graph is gone.
    assert nodes == 9_900 and blocks < 12 * 9_900


def broken_op(where):
    @tr.op
    def broken(x):
        if where == "forward":
            raise ArithmeticError(where)

        def pullback(g):
            raise ArithmeticError(where)

        return x + 0, pullback

    return broken


def not_finite(where):
    """Stopped by detect_anomaly, on the way there or back."""

    def fn(x):
        with np.errstate(all="ignore"):
            return tr.log(x * 0) if where == "forward" else tr.sqrt(x * 0)

    return fn


def changed(x):
    y = x * x
    x.data *= 2
    return y


FAILURES = {
    "op": (broken_op("forward"), ArithmeticError),
    "pullback": (broken_op("backward"), ArithmeticError),
    "wrong shape": (lambda x: x @ np.ones((3, 3)), ValueError),
    "no grad": (lambda x: x.detach(), RuntimeError),
    "no scalar": (lambda x: x.reshape(2, 1), ValueError),
    "changed in place": (changed, RuntimeError),
    "anomaly forward": (not_finite("forward"), FloatingPointError),
    "anomaly backward": (not_finite("backward"), FloatingPointError),
    "inside a checkpoint": (lambda x: tr.checkpoint(broken_op("backward"), x), ArithmeticError),
    "in a checkpoint's forward": (
        lambda x: tr.checkpoint(broken_op("forward"), x), ArithmeticError,
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", FAILURES)
def test_a_failed_forward_or_backward_frees_its_graph(how):
    fn, kind = FAILURES[how]
    with no_garbage_collector():
        block = nn.TransformerBlock(2, heads=1, rng=0).astype("float64")
        x = leaf([[1.0, 2.0], [3.0, 5.0]])
        held = []

        def attempt():
            h = tr.exp(block(x)[0])
            held.append(weakref.ref(h.data))
            out = h * h
            held.append(weakref.ref(out))
            if how == "changed in place":
                return fn(x).sum() + out.sum()
            y = fn(out)
            return y if how == "no scalar" else y.sum()

        try:
            with tr.detect_anomaly(), np.errstate(all="ignore"):
                attempt().backward()
        except kind:
            pass
        else:
            pytest.fail("it did not fail")
        assert [ref() for ref in held] == [None, None]
        assert x.grad is None and all(p.grad is None for p in block.parameters())
        # What was switched on for the attempt is off again, and the tape works as before.
        (x * 2).sum().backward()
        assert x.grad.tolist() == [[[2, 2], [2, 2]]]


def test_gradients_are_held_once():
    """What backward collects is let go while `.grad` gets its copy, and not after all of them."""
    weights = [tr.Tensor(np.ones((256, 256)), requires_grad=True) for _ in range(20)]
    size = weights[0].data.nbytes
    tracemalloc.start()
    try:
        loss = sum((np.ones((1, 256)) @ w for w in weights), start=tr.Tensor(0.0)).sum()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        loss.backward()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < (len(weights) + 3) * size


def test_the_parts_of_a_gradient_are_added_in_the_order_in_which_they_arrive():
    w = tr.Tensor(np.array([0.0]), requires_grad=True)
    node = w._differentiable()
    parts = [np.array([x]) for x in (1e16, -1e16, 1.0)]
    add_to_leaves([(node, part, False) for part in parts])
    assert w.grad == 1  # from the other end it is 0
    assert [part.item() for part in parts] == [1e16, -1e16, 1.0]  # others hold these arrays


def test_a_model_is_freed_with_its_last_name():
    model = nn.TransformerLM(vocab=5, d_model=8, heads=2, blocks=2, context=4, dropout=0.1, rng=0)
    optimizer = optim.Adam(model.parameters())
    with no_garbage_collector():
        model.loss([[0, 1]], [[1, 2]]).backward()
        optimizer.step()
        held = [weakref.ref(p.data) for p in model.parameters()] + [weakref.ref(model)]
        del model, optimizer
        assert not any(ref() for ref in held)


@pytest.mark.parametrize("before, after", [(700, 10_000), (0, 0), (50_000, 50_000)])
def test_the_collector_is_only_made_rarer_and_never_switched_on(before, after):
    kept = gc.get_threshold()
    try:
        gc.set_threshold(before, *kept[1:])
        tr.collect_rarely()
        assert gc.get_threshold() == (after, *kept[1:])
    finally:
        gc.set_threshold(*kept)
