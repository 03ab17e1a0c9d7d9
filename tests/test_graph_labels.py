"""What is written on boxes, frames and edges, and what is joined in a fold."""

from __future__ import annotations

import numpy as np
import pytest

import tinyres as tr
from tinyres import nn
from tinyres.graph import view
from tinyres.graph.labels import Labels, arrow_tooltip


def data(*shape):
    return tr.Tensor(np.ones(shape or (2, 3)), requires_grad=True)


class Cell(nn.Module):
    def __init__(self):
        self.w = nn.Parameter(np.ones((3, 3)))

    def forward(self, x):
        return (x @ self.w).tanh()


class Chain(nn.Module):
    """Equal cells; `joined` returns what every one of them gave."""

    def __init__(self, joined=False):
        self.cells, self.joined = [Cell() for _ in range(6)], joined

    def forward(self, x):
        given = [x]
        for cell in self.cells:
            given.append(cell(given[-1]))
        return tr.concatenate(given[1:]) if self.joined else given[-1]


class Part(nn.Module):
    def forward(self, x):
        return (x * 2.0).tanh()


class Whole(nn.Module):
    def __init__(self):
        self.front = Part()

    def forward(self, x):
        return self.front(x).exp()


@tr.op
def mul(a, b, c):
    """An op of one's own that is called like one of ours."""
    return a * b * c, lambda g: (g * b * c, g * a * c, g * a * b)


def labels(output, depth):
    shown = view(tr.trace(output), depth)
    return [" ".join(Labels(shown).box(box)) for box in shown.boxes]


@pytest.mark.parametrize(
    "make, depth, written",
    [
        (lambda: Chain()(data()), 0, ["Cell", "+ 4 more Cell", "Cell"]),
        (lambda: mul(data(), data(), data()), 3, ["*"]),
        (lambda: data()[[0, 1]], 3, ["[0, 1]"]),
        (lambda: data()[np.array([1, 0, 1])], 3, ["[index (3)]"]),
    ],
    ids=["a fold of what is no block", "an own mul", "a list", "an index array"],
)
def test_boxes(make, depth, written):
    found = [text for text in labels(make(), depth) if not text.startswith(("input", "output"))]
    assert found == written


def test_a_part_of_a_module_has_the_name_that_the_module_gives_it():
    whole = Whole()
    shown = view(tr.trace(whole(data())), 3)
    frames = [Labels(shown).frame(scope, "") for scope in shown.graph.scopes]
    assert frames == ["Whole", "front"]


def test_a_sublayer_without_a_placement_keeps_its_own_frame():
    ff = nn.FeedForward(3, 5, rng=0)
    source = tr.draw(nn.Sequential(ff, tr.tanh)(data()), depth=2).source
    assert "subgraph cluster" in source and "feed-forward" in source


def test_what_leaves_a_fold_for_one_box_is_one_arrow():
    joined = view(tr.trace(Chain(joined=True)(data())), 0)
    kinds = [box.kind for box in joined.boxes]
    assert kinds == ["input", "module", "fold", "module", "op", "output"]
    assert [(a.source, a.target) for a in joined.arrows] == [
        (0, 1), (1, 2), (2, 3), (1, 4), (2, 4), (3, 4), (4, 5)
    ]  # fmt: skip


def test_what_no_depth_makes_readable_is_shown_as_it_is():
    y = data()
    for _ in range(200):
        y = y.tanh()
    shown = view(tr.trace(y))
    assert (shown.depth, len(shown.boxes)) == (0, 202)


def test_an_edge_says_that_no_gradient_was_computed():
    x = data()
    graph = tr.trace_backward((x * np.full((2, 3), 2.0)).sum(), names={"x": x})
    shown = view(graph, 3)
    told = [arrow_tooltip(graph, arrow) for arrow in shown.arrows]
    assert [text.split(", ")[-1] for text in told] == [
        "|gradient| = 4.9", "no gradient computed", "|gradient| = 2.45", "|gradient| = 1"
    ]  # fmt: skip


def test_without_a_residual_the_gradient_is_compared_with_that_near_the_output():
    source = tr.draw(tr.trace_backward((data() * 2.0).tanh().sum())).source
    assert "|gradient| =" in source and "1e-3" in source


@pytest.mark.parametrize(
    "x, w, share",
    [
        (data(), tr.Tensor(-np.ones((3, 3)), requires_grad=True), (6**0.5, 0.0, 0.0)),
        (tr.Tensor(np.ones((2, 3))), data(3, 3), None),
    ],
    ids=["a branch that lets nothing back", "a constant"],
)
def test_a_share_is_told_only_where_there_is_a_gradient(x, w, share):
    graph = tr.trace_backward((x + tr.relu(x @ w)).sum())
    found = [(s.skip, s.branch, s.cosine) for s in graph.shares.values()]
    assert found == ([] if share is None else [pytest.approx(share)])


def test_a_frozen_parameter_that_nothing_used_is_on_no_graph():
    model = Chain()
    model.spare = nn.Parameter([1.0], requires_grad=False)
    graph = tr.trace(model(data()))
    assert {n.name for n in graph.nodes if n.kind == "parameter"} == {
        f"cells.{i}.w" for i in range(6)
    }
