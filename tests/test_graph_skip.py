"""Which additions have a skip, and which of their operands came by it."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import tinyres as tr
from tinyres import nn
from tinyres.graph import find_skips

RNG = np.random.default_rng(0)


def tensor(*shape):
    return tr.Tensor(RNG.standard_normal(shape), requires_grad=True, dtype="float32")


x, y = tensor(3, 4), tensor(3, 4)
W, V, B = tensor(4, 4), tensor(4, 4), tensor(4)
GAMMA, BETA = tensor(4), tensor(4)
CONSTANT = tr.Tensor(np.ones((3, 4), np.float32))


def f(value):
    return (value @ W).tanh() @ V


def norm(value):
    return tr.layer_norm(value, GAMMA, BETA)


def pre_ln(value):
    return value + f(norm(value))


def post_ln(value):
    return norm(value + f(value))


def dense(value):
    second = value + f(value)
    return value + second + f(second)


def u_net(value):
    inner = (value @ W).relu()
    return value + f(inner + f((inner @ V).relu()))


def two_streams(p):
    q = p * 1.0
    for _ in range(2):
        branch = f(p)
        p, q = norm(p + branch), q + branch
    return p + norm(q)


# what it is, its value, how many additions have a skip
FOUND = [
    ("Pre-LN", lambda: pre_ln(pre_ln(x)), 2),
    ("Post-LN", lambda: post_ln(post_ln(x)), 2),
    ("F(x) + x, the other way round", lambda: f(x) + x, 1),
    ("scaled: 2 x + F(x)", lambda: 2 * x + f(x), 1),
    ("scaled by a tensor of one element", lambda: x * np.float32(2) / np.ones(1, "f4") + f(x), 1),
    ("scaled branch", lambda: x + 0.1 * f(x), 1),
    ("negated: -x + F(x)", lambda: -x + f(x), 1),
    ("nested", lambda: x + f(pre_ln(pre_ln(x))), 3),
    ("parallel: x + F(x) + G(x)", lambda: x + f(x) + f(norm(x)), 2),
    ("dense", lambda: dense(x), 3),
    ("U-net", lambda: u_net(x), 2),
    ("marked", lambda: tr.residual(x, y), 1),
    ("gain: x + x * gamma", lambda: x + x * GAMMA, 1),
    ("low-rank weight", lambda: x + x @ (W @ V), 1),
    ("masked weight", lambda: x + x @ (W * np.ones((4, 4), "f4")), 1),
    ("residual inside a scope", lambda: _in_scope(), 1),
]
NONE = [
    ("x + x", lambda: x + x),
    ("x + tanh(x)", lambda: x + x.tanh()),
    ("x + x ** 3", lambda: x + 0.044715 * x**3),
    ("F(x) + G(x)", lambda: f(x) + norm(x)),
    ("x W + y V", lambda: x @ W + y @ V),
    ("a bias", lambda: x @ W + B),
    ("a bias of a single vector", lambda: x.sum(axis=0) @ W + B),
    ("a broadcast operand", lambda: x + f(x).sum(axis=0, keepdims=True)),
    ("x + constant", lambda: f(x) + CONSTANT),
    ("the affine part of a norm of one vector", lambda: tr.composed.layer_norm(x[0], GAMMA, BETA)),
    ("GELU in primitives", lambda: tr.composed.gelu(x @ W)),
    ("LayerNorm in primitives", lambda: tr.composed.layer_norm(x, GAMMA, BETA)),
    ("softmax in primitives", lambda: tr.composed.softmax(x @ W)),
    ("x - F(x)", lambda: x - f(x)),
]  # fmt: skip


def _in_scope():
    with tr.scope("by hand"):
        return x + f(x)


@pytest.mark.parametrize("make, count", [c[1:] for c in FOUND], ids=[c[0] for c in FOUND])
def test_found(make, count):
    graph = tr.trace(make())
    skips = find_skips(graph)
    assert len(skips) == count
    for add, skip in skips.items():
        sources = {e.slot: e.source for e in graph.edges if e.target == add}
        assert sources[skip.slot] == skip.source
        assert sources[1 - skip.slot] == skip.branch
        assert skip.path[0] == skip.fork and skip.path[-1] == add


@pytest.mark.parametrize("make", [c[1] for c in NONE], ids=[c[0] for c in NONE])
def test_not_found(make):
    assert find_skips(tr.trace(make())) == {}


def test_the_skip_is_the_operand_that_is_behind_the_other():
    graph = tr.trace(f(x) + x)
    (skip,) = find_skips(graph).values()
    assert (skip.slot, graph.nodes[skip.source].kind, skip.fork) == (1, "input", skip.source)
    graph = tr.trace(2 * x + f(x))
    (skip,) = find_skips(graph).values()
    assert (skip.slot, graph.nodes[skip.source].op, graph.nodes[skip.fork].kind) == (
        0,
        "scale",
        "input",
    )
    streams = find_skips(tr.trace(two_streams(x * 1.0)))
    assert len(streams) >= 4


# of three blocks with two sublayers each
MORE_THAN_ONE_A_SUBLAYER = {"plain": 0, "b2t": 9, "dual": 12, "siamese": 13, "dlcl": 12}


@pytest.mark.parametrize("spelled_out", [False, True], ids=["fused", "primitives"])
@pytest.mark.parametrize("placement", sorted(nn.PLACEMENTS))
def test_every_residual_addition_of_every_placement_is_found(placement, spelled_out):
    stack = nn.TransformerStack(8, 2, 3, placement=placement, activation="gelu", rng=0)
    with tr.spelled_out() if spelled_out else contextlib.nullcontext():
        graph = tr.trace(stack(tr.Tensor(np.ones((1, 2, 8)), requires_grad=True, dtype="float32")))
    placed = {
        n.id for n in graph.nodes
        if n.op in ("add", "residual") and n.scope is not None and graph.scopes[n.scope].residual
    }  # fmt: skip
    skips = find_skips(graph)
    assert set(skips) <= placed
    assert len(skips) == MORE_THAN_ONE_A_SUBLAYER.get(placement, 6)


def test_a_placement_may_learn_the_scale_of_its_skip():
    class Learned(nn.Residual):
        def __init__(self, branch, norm, **_):
            super().__init__(branch, norm)
            self.omega = nn.Parameter(np.ones(8, np.float32))

        def forward(self, x):
            return self.norm(self.omega * x + self.sublayer(x))

    stack = nn.TransformerStack(8, 2, 2, placement=Learned, rng=0)
    graph = tr.trace(stack(tr.Tensor(np.ones((1, 2, 8)), requires_grad=True, dtype="float32")))
    assert len(find_skips(graph)) == 4
