"""Tracing: plain data that is right, holds nothing alive and disturbs nothing."""

from __future__ import annotations

import dataclasses
import gc
import json
import weakref

import numpy as np
import pytest
from conftest import leaf, no_garbage_collector

import tinyres as tr
from tinyres import nn
from tinyres.graph import find_skips, view
from tinyres.graph.size import length, rms


def model(placement="pre", blocks=2, **options):
    return nn.TransformerLM(11, 8, 2, blocks, 5, placement=placement, rng=0, **options)


TOKENS = np.arange(10).reshape(2, 5)


def test_nodes_edges_and_attributes_of_a_small_graph():
    x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    graph = tr.trace(((x * w) + 1.5).sum(axis=0), names={"x": x})
    assert [(n.op, n.kind, n.shape, n.dtype) for n in graph.nodes] == [
        ("leaf", "input", (1, 2), "float64"),
        ("leaf", "input", (1, 2), "float64"),
        ("mul", "op", (1, 2), "float64"),
        ("shift", "op", (1, 2), "float64"),
        ("sum", "op", (2,), "float64"),
    ]
    assert [n.name for n in graph.nodes[:2]] == ["x", ""]
    assert graph.nodes[3].attrs == {"by": 1.5}
    assert graph.nodes[4].attrs["axis"] == 0
    edges = [(e.source, e.target, e.slot) for e in graph.edges]
    assert edges == [(0, 2, 0), (1, 2, 1), (2, 3, 0), (3, 4, 0)]


def test_each_argument_has_its_own_edge_and_constants_come_before_their_use():
    x = leaf(3.0)
    graph = tr.trace(x * x + np.ones(1))
    assert [(e.source, e.target, e.slot) for e in graph.edges if e.target == 2] == [
        (0, 2, 0),
        (0, 2, 1),
    ]
    assert all(e.source < e.target for e in graph.edges)
    assert [n.kind for n in graph.nodes] == ["input", "input", "op", "op"]


def test_the_graph_is_plain_data_without_arrays():
    with tr.spelled_out():
        graph = tr.trace_backward(model().loss(TOKENS, TOKENS))
    plain = [dataclasses.asdict(part) for part in (*graph.nodes, *graph.edges, *graph.scopes)]
    assert json.dumps(plain, default=lambda value: pytest.fail(f"no plain data: {value!r}")
                      if not isinstance(value, slice | type(...)) else str(value))  # fmt: skip


def test_the_rms_is_told_where_a_tensor_is_at_hand():
    lm = model()
    x, h = leaf([3.0, -3.0]), leaf([1.0, 2.0]) * 2.0
    graph = tr.trace(x * h, names={"x": x, "h": h})
    sizes = {n.op: n.rms for n in graph.nodes if n.rms is not None}
    assert sizes == {"leaf": pytest.approx(3), "scale": rms(h.data), "mul": rms((x * h).data)}
    assert [n.rms for n in graph.nodes].count(None) == 1  # what h was made from
    source = tr.draw(graph).source
    assert 'tooltip="input x: (1,2) float64, RMS 3"' in source
    assert 'tooltip="(1,2) float64, RMS 3.16"' in source  # the arrow from h
    graph = tr.trace_backward(lm.loss(TOKENS, TOKENS))
    sizes = {n.name: n.rms for n in graph.nodes if n.kind == "parameter"}
    assert sizes == {name: rms(p.data) for name, p in lm.named_parameters()}
    assert rms(np.zeros(3)) == 0 and rms(np.ones((0, 3))) == 0


def test_it_holds_nothing_alive():
    with no_garbage_collector():
        x = leaf(1.0, 2.0)
        held = weakref.ref(x.data)
        graph = tr.trace((x * x).sum())
        measured = tr.trace_backward((x * x).sum())
        del x
        assert held() is None
    assert len(graph.nodes) == len(measured.nodes) == 3


def test_a_later_backward_does_not_notice():
    one, other = model(), model()
    a, b = one.loss(TOKENS, TOKENS), other.loss(TOKENS, TOKENS)
    tr.trace(a)
    tr.draw(a)
    a.backward()
    b.backward()
    for p, q in zip(one.parameters(), other.parameters()):
        assert np.array_equal(p.grad, q.grad)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: tr.Tensor([1.0]), "requires_grad=True"),
        (lambda: leaf(1.0), "leaf"),
        (lambda: leaf(1.0).exp().detach(), "requires_grad=True"),
        (lambda: _freed(), r"retain_graph=True"),
    ],
    ids=["constant", "leaf", "detached", "freed"],
)
def test_what_has_no_graph_says_so(make, words):
    for function in (tr.trace, tr.draw, tr.trace_backward):
        with pytest.raises(RuntimeError, match=words):
            function(make())
    with pytest.raises(TypeError, match="Tensor"):
        tr.trace(np.ones(3))


def _freed():
    y = leaf(1.0).exp()
    y.backward()
    return y


def test_a_deep_graph_needs_no_recursion():
    y = x = leaf(1.0)
    for _ in range(20_000):
        y = y + x
    graph = tr.trace(y)
    assert (len(graph.nodes), len(graph.edges)) == (20_001, 40_000)
    with pytest.raises(ValueError, match="20000 ops are in no module"):
        tr.draw(graph)


# ---------------------------------------------------------------- names


def test_modules_are_called_by_their_path_and_parameters_by_theirs():
    lm = model()
    graph = tr.trace(lm(TOKENS))
    paths = {graph.path(s.id): s for s in graph.scopes}
    block = paths["stack.blocks.1"]
    assert (block.kind, block.level) == ("TransformerBlock", 0)
    assert paths["stack.blocks.1.attention"].residual
    assert paths["stack.blocks.1.attention.branch"].role == "attention"
    assert paths["stack.blocks.1.feed_forward.branch.up"].extra == "8 > 32"
    names = {n.name for n in graph.nodes if n.kind == "parameter"}
    assert names == {name for name, _ in lm.named_parameters()}


def test_parameters_keep_their_names_inside_a_scope():
    layer = tr.nn.Linear(2, 2, rng=0)
    x = tr.Tensor([[1.0, 2.0]], requires_grad=True)
    with tr.scope("step"):
        y = layer(x)
    kinds = {node.name: node.kind for node in tr.trace(y).nodes if node.name}
    assert kinds == {"weight": "parameter", "bias": "parameter"}
    pair = tr.draw_pair(y, y, names={"x": x})
    assert all(
        "label=x" in side.source or 'label="x' in side.source for side in (pair.left, pair.right)
    )


def test_levels_that_nobody_gave_follow_from_the_nesting():
    class Inner(nn.Module):
        def forward(self, x):
            with tr.scope("square"):
                return x * x

    class Outer(nn.Module):
        def __init__(self):
            self.inner = Inner()

        def forward(self, x):
            return self.inner(x)

    outer = Outer()
    levels = [(s.kind, s.level) for s in tr.trace(outer(leaf(1.0)).sum()).scopes]
    assert levels == [("Outer", -1), ("Inner", 0), ("square", 1)]
    with tr.scope("my part"):
        y = leaf(2.0).exp()
    assert tr.trace(y).scopes[0].level == -1  # all that there is
    assert tr.trace(y * 2).scopes[0].level == 0
    assert "my part" in tr.draw(y * 2, depth=0).source


def test_a_module_that_is_called_twice_is_one_module():
    layer = nn.Linear(2, 2, rng=0)
    graph = tr.trace(layer(layer(np.ones((1, 2), np.float32))))
    assert [s.module for s in graph.scopes] == [0, 0]
    assert "Linear 2 > 2 (call 2)" in tr.draw(layer(layer(np.ones((1, 2), "f4"))), depth=0).source


def test_an_operator_says_on_which_side_a_constant_stands():
    x = leaf([1.0, 2.0])
    values = {"constant -": 1 - x, "constant /": 1 / x, "- constant": x - np.ones(2),
              "+ 1": 1 + x, "* 2": 2 * x, "- sqrt": x - x.sqrt()}  # fmt: skip
    for label, value in values.items():
        assert f'label="{label}"' in tr.draw(value).source


# ---------------------------------------------------------------- the measured gradient


def test_the_norm_on_each_edge_is_that_of_the_cotangent_that_crossed_it():
    x = leaf([3.0, 4.0])
    graph = tr.trace_backward((x * 2).sum() * 5)
    assert graph.seed == 1
    assert [e.gradient for e in graph.edges] == pytest.approx([10 * 2**0.5, 5 * 2**0.5, 5])
    assert x.grad.tolist() == [[10, 10]]


def test_gradients_are_those_of_an_ordinary_backward():
    one, other = model("post"), model("post")
    loss = one.loss(TOKENS, TOKENS)
    graph = tr.trace_backward(loss, retain_graph=True)
    other.loss(TOKENS, TOKENS).backward()
    for (name, p), q in zip(one.named_parameters(), other.parameters()):
        assert np.array_equal(p.grad, q.grad)
        node = next(n.id for n in graph.nodes if n.name == name)
        (edge,) = [e for e in graph.edges if e.source == node]
        assert edge.gradient == pytest.approx(np.linalg.norm(p.grad), rel=1e-5)
    loss.backward()  # the graph was retained
    assert np.array_equal(one.parameters()[0].grad, 2 * other.parameters()[0].grad)


def test_what_a_module_sends_back_to_a_value_that_it_used_twice_is_summed():
    x = leaf([1.0, 2.0, 4.0])
    y = x * 1.0
    with tr.scope("twice"):
        z = y * 3.0 + y * -2.0
    graph = tr.trace_backward((z + y * 0.0).sum())
    scope = next(s.id for s in graph.scopes if s.kind == "twice")
    assert list(graph.entering.values()) == pytest.approx([3**0.5])
    (box,) = [i for i, b in enumerate(view(graph, 0).boxes) if b.kind == "module"]
    arrow = next(a for a in view(graph, 0).arrows if a.target == box)
    assert (view(graph, 0).boxes[box].scope, arrow.gradient) == (scope, pytest.approx(3**0.5))


def test_shares_say_what_came_by_the_skip_and_what_through_the_branch():
    x, w = leaf([1.0, 2.0]), leaf([0.0, 2.0], [1.0, 0.0])
    u = x * 1.0
    y = 0.5 * u + u @ w
    graph = tr.trace_backward(y, np.array([[1.0, 0.0]]))
    (share,) = graph.shares.values()
    # by the skip 0.5 * [1, 0], through the branch [1, 0] @ w.T = [0, 1]
    assert (share.skip, share.branch, share.cosine) == pytest.approx((0.5, 1.0, 0.0))
    graph = tr.trace_backward(model(blocks=3).loss(TOKENS, TOKENS))
    assert set(graph.shares) == set(find_skips(graph))
    assert len(graph.shares) == 6


def test_a_gradient_that_was_not_computed_is_none_and_a_small_one_is_not_zero():
    x = leaf(1.0)
    graph = tr.trace_backward((x * np.ones(1) * 1e-30).sum())
    assert [e.gradient for e in graph.edges if graph.nodes[e.source].kind == "input"] == [
        pytest.approx(1e-30),
        None,
    ]
    for size in (1e-30, 1e30, 1.0, 0.0):
        value = length(np.full(4, size, np.float32))
        assert value == pytest.approx(2 * np.float32(size))


def test_an_ordinary_backward_pays_nothing_for_it():
    gc.collect()
    y = leaf(1.0).exp()
    assert not hasattr(y._node, "watch") and y._node.grad is None
