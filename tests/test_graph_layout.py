"""What is where in the picture: depth, folding, and the geometry that the layout engine makes."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import tinyres as tr
from tinyres import nn
from tinyres.graph import view
from tinyres.graph.layout import Layout
from tinyres.graph.render import _from_wheel, laid_out

# graphviz-pure comes with the test extra; Debian's dot is a second opinion where there is one
ENGINES = [engine for engine in (_from_wheel(), shutil.which("dot")) if engine]


def stack(placement, blocks, spelled_out=False):
    model = nn.TransformerLM(11, 8, 2, blocks, 5, placement=placement, activation="gelu", rng=0)
    with tr.spelled_out() if spelled_out else contextlib.nullcontext():
        return model, model(np.zeros((2, 5), int))


# ---------------------------------------------------------------- depth


def test_each_depth_shows_what_it_says():
    _, y = stack("pre", 1, spelled_out=True)
    sources = [tr.draw(y, depth=depth).source for depth in range(4)]
    wanted = [
        {"TransformerBlock"},
        {"MultiHeadAttention", "FeedForward", "LayerNorm"},
        {'"Linear q"', "softmax", "GELU", '"Linear 8 > 32"', '"Linear out"'},
        {"exp", "tanh", '"* gamma"', '"beta (8)"'},
    ]
    for depth, source in enumerate(sources):
        for other, names in enumerate(wanted):
            found = [name for name in names if f"label={name} " in source]
            assert len(found) == (len(names) if other == depth else 0) or other < depth


def test_residual_additions_stay_visible_from_depth_1_on():
    _, y = stack("post", 3)
    graph = tr.trace(y)
    assert [len(view(graph, depth).additions) for depth in range(4)] == [0, 6, 6, 6]


def test_the_default_is_the_finest_depth_that_can_be_read():
    model, y = stack("pre", 4, spelled_out=True)
    graph = tr.trace(y)
    counts = [len(view(graph, depth).boxes) for depth in range(4)]
    assert counts == sorted(counts)
    best = max(depth for depth, count in enumerate(counts) if count < 150)
    assert view(graph).depth == best < 3
    del model


@pytest.mark.parametrize("blocks, folded", [(3, 0), (4, 2), (24, 22)])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_equal_blocks_fold_to_first_and_last(blocks, folded, depth):
    _, y = stack("pre", blocks)
    graph = tr.trace(y)
    shown = view(graph, depth)
    assert [box.count for box in shown.boxes if box.kind == "fold"] == ([folded] if folded else [])
    source = tr.draw(graph, depth=depth).source
    assert ("+ 22 more blocks" in source) == (blocks == 24)
    assert not [box for box in view(graph, depth, fold=False).boxes if box.kind == "fold"]


def test_what_differs_does_not_fold():
    blocks = [nn.TransformerBlock(8, heads, rng=0) for heads in (1, 2, 1, 2, 1, 2)]
    x = tr.Tensor(np.ones((1, 2, 8)), requires_grad=True, dtype="float32")
    for block in blocks:
        x = block(x)
    assert not [box for box in view(tr.trace(x), 1).boxes if box.kind == "fold"]


def test_a_cell_that_is_called_again_and_again_folds():
    cell = nn.Linear(3, 3, rng=0)
    h = tr.Tensor(np.zeros((1, 3), np.float32))
    for _ in range(9):
        h = cell(h)
    (fold,) = [box for box in view(tr.trace(h), 2).boxes if box.kind == "fold"]
    assert fold.count == 7


def test_a_fold_keeps_the_gradient_of_what_enters_and_leaves_it():
    model, _ = stack("pre", 6)
    tokens = np.zeros((2, 5), int)
    graph = tr.trace_backward(model.loss(tokens, tokens))
    whole, folded = view(graph, 1, fold=False), view(graph, 1)
    fold = next(i for i, box in enumerate(folded.boxes) if box.kind == "fold")
    (into,) = [a for a in folded.arrows if a.target == fold]
    second = next(s.id for s in graph.scopes if s.name == "blocks.1")
    assert into.gradient == graph.entering[into.value, second]
    out = [a.gradient for a in folded.arrows if a.source == fold]
    same = [a.gradient for a in whole.arrows if a.value == folded.boxes[fold].node]
    assert out == same


# ---------------------------------------------------------------- the spine


def test_the_spine_runs_through_every_addition_and_norms_only_where_they_stand_on_it():
    for placement, norms in (("pre", 1), ("post", 4)):
        _, y = stack(placement, 2)
        shown = view(tr.trace(y), 1)
        (spine,) = Layout(shown).spines
        kinds = [shown.graph.nodes[shown.boxes[b].node].op for b in spine]
        assert kinds.count("layer_norm") == norms
        assert len(set(spine) & set(shown.additions)) == 4
        assert shown.boxes[spine[-1]].kind == "output"


def test_a_block_of_a_u_net_is_a_spine_within_a_branch():
    rng = np.random.default_rng(0)
    w = [tr.Tensor(rng.standard_normal((4, 4)), requires_grad=True) for _ in range(4)]
    x = tr.Tensor(np.ones((2, 4)), requires_grad=True)
    down = (x @ w[0]).tanh()
    y = x + (down + (down @ w[1]).tanh() @ w[2]) @ w[3]
    layout = Layout(view(tr.trace(y)))
    assert [layout.is_nested(i) for i in range(len(layout.spines))] == [False, True]


# Of three blocks at depth 0: the colour of the edges between blocks, and of the last one's.
ROLES = {"pre": "skip", "post": "norm", "residual": "skip", "deepnorm": "norm", "rezero": "skip",
         "plain": None}  # fmt: skip


@pytest.mark.parametrize("spelled_out", [False, True], ids=["fused", "primitives"])
@pytest.mark.parametrize("placement, role", ROLES.items())
def test_the_stream_runs_through_blocks_that_are_one_box_each(placement, role, spelled_out):
    model, y = stack(placement, 3, spelled_out)
    shown = view(tr.trace(y), 0)
    boxes = [i for i, box in enumerate(shown.boxes) if box.kind == "module"]
    streams = [i for i in boxes if shown.boxes[i].stream is not None]
    source = tr.draw(y, depth=0).source
    drawn = re.findall(r"n(\d+) -> n(\d+) \[.*class=(?:skip|norm) .*penwidth=6", source)
    if role is None:
        assert streams == drawn == []
        return
    (spine,) = Layout(shown).spines
    assert len(streams) == 3 and set(streams) < set(spine)
    assert [int(a) for a, _ in drawn] == [streams[0] - 1, *streams]
    found = re.findall(r"n\d+ -> n\d+ \[.*class=(skip|norm) ", source)
    assert found == ["skip", role, role, role]
    heads = re.findall(r"arrowhead=(\w+)", source)
    assert heads == ["none"] * 3 + ["normal"]
    del model


def test_a_stream_of_ones_own_runs_through_its_modules():
    class Step(nn.Module):
        def __init__(self, project):
            self.inner, self.project = nn.Linear(4, 4, rng=0), project

        def forward(self, x, beside):
            y = 0.5 * x + self.inner(x).tanh() * beside
            return self.inner(y) if self.project else y

    for project in (False, True):
        a, b = Step(project), Step(project)
        x, beside = (tr.Tensor(np.ones((2, 4)), requires_grad=True) for _ in range(2))
        shown = view(tr.trace(b(a(x * 1.0, beside), beside)), 0)
        start, *boxes = [box for box in shown.boxes if box.kind in ("op", "module")]
        enters = [box.stream and box.stream.enters for box in boxes]
        assert enters == ([None, None] if project else [start.node, boxes[0].node])


def test_no_stream_runs_through_a_norm_of_two_values():
    class Gate(nn.Module):
        role = "norm"

        def forward(self, a, b):
            return a * b

    class Block(nn.Module):
        level = 0

        def __init__(self):
            self.inner, self.gate = nn.Linear(4, 4, rng=0), Gate()

        def forward(self, x, z):
            return self.gate(x + self.inner(x), z)

    block, data = Block(), tr.Tensor(np.ones((2, 4)))
    w = tr.Tensor(np.eye(4), requires_grad=True)
    for beside, enters in ((data @ w, False), (data, True)):
        shown = view(tr.trace(block(data @ w, beside)), 0)
        (box,) = [box for box in shown.boxes if box.kind == "module"]
        assert (box.stream is not None) is enters


def positions(source, engine):
    lines = laid_out(Path(engine), source, "plain").decode().splitlines()
    nodes = [line.split() for line in lines if line.startswith("node ")]
    return {n[1]: (float(n[2]), float(n[3])) for n in nodes}


def geometry(source, engine, rankdir):
    """How far apart spine nodes are across the stream, and on how many sides of it others lie."""
    across = 1 if rankdir == "LR" else 0
    on_spine = set(re.findall(r"^\t*(\w+) \[.*group=spine ", source, re.M))
    places = positions(source, engine)
    spine = [places[name][across] for name in on_spine]
    others = [places[name][across] for name in places if name not in on_spine]
    sides = {place > spine[0] for place in others}
    return max(spine) - min(spine), len(sides), len(on_spine)


CASES = [(1, 2, False), (1, 3, True), (2, 1, False), (3, 2, True), (5, 3, False), (8, 1, False),
         (12, 1, False), (12, 2, True)]  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES, ids=[Path(e).name for e in ENGINES])
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("blocks, depth, spelled_out", CASES)
def test_the_spine_is_straight_and_all_branches_are_on_one_side(
    blocks, depth, spelled_out, placement, engine
):
    model, y = stack(placement, blocks, spelled_out)
    for rankdir in ("BT", "LR"):
        for fold in {True, blocks < 4}:
            source = tr.draw(y, depth=depth, rankdir=rankdir, fold=fold).source
            bend, sides, count = geometry(source, engine, rankdir)
            assert (round(bend, 2), sides) == (0, 1), (rankdir, fold)
            assert count >= 4 * min(blocks, 2 if fold and blocks > 3 else blocks)
    del model


@pytest.mark.parametrize("engine", ENGINES, ids=[Path(e).name for e in ENGINES])
def test_a_branch_leaves_and_comes_back_at_right_angles(engine):
    for placement in ("pre", "post"):
        model, y = stack(placement, 2)
        source = tr.draw(y, depth=1).source
        places = positions(source, engine)
        ranks = re.findall(r"\{\n\t\trank=same\n((?:\t\t\w+\n)+)", source)
        ties = [re.findall(r"\w+", rank) for rank in ranks]
        assert len(ties) == 8  # a tap and a plus for each sublayer
        for names in ties:
            assert len({places[name][1] for name in names}) == 1
        del model


@pytest.mark.parametrize("engine", ENGINES, ids=[Path(e).name for e in ENGINES])
def test_a_way_back_that_another_branch_would_cross_is_not_level(engine):
    """Two experts under one gate: the second one's path begins in the branch of the first."""
    x = tr.Tensor(np.ones((3, 4), np.float32), requires_grad=True)
    gate, first, second = (nn.Linear(4, 4, rng=i) for i in range(3))
    weights = tr.softmax(gate(x))
    y = x + weights[:, 0:1] * first(x) + weights[:, 1:2] * second(x)
    source = tr.draw(y, depth=2).source
    places = positions(source, engine)
    levels = {name: round(y, 2) for name, (_, y) in places.items()}
    adds = re.findall(r"(n\d+) \[.*class=add ", source)
    products = re.findall(r'(n\d+) \[label="\*" ', source)
    assert len(adds) == len(products) == 2
    assert max(levels[n] for n in products) < min(levels[n] for n in adds)


def test_with_one_engine_only_that_is_said(record_property):
    record_property("layout engines", ", ".join(Path(e).name for e in ENGINES))
    assert any(Path(e).name.startswith("graphviz-pure") for e in ENGINES)
