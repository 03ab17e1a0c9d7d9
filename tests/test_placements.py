"""The published placements: their constants, what they are at initialisation, their gradients."""

from __future__ import annotations

import numpy as np
import pytest
from placed import disturb, sublayer_matrices

import tinyres as tr
from demos import placements as lesson
from tinyres import nn
from tinyres.graph.skip import find_skips

NAMES = list(nn.PLACEMENTS)
EACH = pytest.mark.parametrize("placement", NAMES)
D, HEADS, BLOCKS = 8, 2, 3
X = np.random.default_rng(5).normal(size=(2, 4, D)).astype("f4")
TOKENS, TARGETS = [[1, 2, 3, 4], [5, 6, 0, 1]], [[2, 3, 4, 5], [6, 0, 1, 2]]


def stack(placement, blocks=BLOCKS, **options):
    return nn.TransformerStack(D, HEADS, blocks, placement=placement, rng=0, **options)


def model(placement, blocks=2, **options):
    return nn.TransformerLM(7, D, HEADS, blocks, 5, placement=placement, rng=0, **options)


# ---------------------------------------------------------------- constants

N = BLOCKS
ALL = {"query": 1.0, "key": 1.0, "value": 1.0, "out": 1.0, "up": 1.0, "down": 1.0}


def factors(factor, *names):
    return {**ALL, **dict.fromkeys(names or ALL, factor)}


VALUE_OUT_UP_DOWN = ("value", "out", "up", "down")
INITIAL_FACTORS = {  # of the matrices of block b, in units of Pre-LN's
    "gpt2": lambda b: factors((2 * N) ** -0.5, "out", "down"),
    "deepnorm": lambda b: factors((8 * N) ** -0.25, *VALUE_OUT_UP_DOWN),
    "tfixup": lambda b: factors(0.67 * N**-0.25, *VALUE_OUT_UP_DOWN),
    "post_init": lambda b: factors(1 / (N - b + 1)),
}


@EACH
def test_initial_matrices_are_those_of_pre_ln_times_the_papers_factor(placement):
    expected = INITIAL_FACTORS.get(placement, lambda b: ALL)
    pairs = list(zip(sublayer_matrices(stack(placement)), sublayer_matrices(stack("pre"))))
    assert len(pairs) == 6 * N
    for (block, name, matrix), (_, _, pre) in pairs:
        np.testing.assert_allclose(matrix, expected(block)[name] * pre, rtol=1e-6, err_msg=name)


CONSTANTS = {  # of the six sublayers (or the three blocks) of a stack
    "deepnorm": ("alpha", [6**0.25] * 6),
    "admin_torch": ("omega", [(7 / np.log(7) - 1) ** 0.5] * 6),
    "admin_torch_constant": ("omega", [6**0.5] * 6),
    "admin": ("omega", [np.ones(D)] * 6),
    "keel": ("alpha", [None, None, 6, 6, 6, 6]),
    "lns": ("scale", [1, 1, 2**-0.5, 2**-0.5, 3**-0.5, 3**-0.5]),
    "completep": ("scale", [1 / 3] * 6),
    "depth_mup": ("scale", [3**-0.5] * 6),
    "siamese": ("scale", [1, 1, 2**-0.5, 2**-0.5, 3**-0.5, 3**-0.5]),
    "layerscale": ("gain", [np.full(D, 0.1)] * 6),
    "ngpt": ("step", [np.full(D, 0.05)] * 6),
    "hyper": ("read", [np.eye(4)[i % 4] for i in range(1, 7)]),
    "rezero": ("gain", [np.zeros(1)] * 3),
    "normformer": ("gain", [np.ones(D)] * 3),
}


@pytest.mark.parametrize("placement", CONSTANTS)
def test_constants_and_initial_gains(placement):
    name, expected = CONSTANTS[placement]
    blocks = stack(placement).blocks
    rules = (
        [b.rule for b in blocks] if blocks[0].rule else [s for b in blocks for s in b.sublayers()]
    )
    found = [getattr(rule, name) for rule in rules]
    assert len(found) == len(expected)
    for value, wanted in zip(found, expected):
        value = value.data if isinstance(value, tr.Tensor) else value
        assert value is wanted is None or value == pytest.approx(wanted, rel=1e-6)


def test_constants_that_change_with_depth():
    def gains(blocks):
        return stack("layerscale", blocks).blocks[0].attention.gain.data[0]

    np.testing.assert_allclose([gains(18), gains(19), gains(25)], [0.1, 1e-5, 1e-6], rtol=1e-6)
    post = [[s.post for s in b.sublayers()] for b in stack("mix", 12).blocks]
    assert post == [[True, True]] * 3 + [[False, False]] * 9
    weights = [[w.item() for w in b.rule.weights] for b in stack("dlcl").blocks]
    np.testing.assert_allclose(np.concatenate(weights), [1 / 2] * 2 + [1 / 3] * 3 + [1 / 4] * 4)
    embeddings = [model(p).token.weight.data for p in ("tfixup", "pre")]
    np.testing.assert_allclose(embeddings[0], 18**-0.25 * embeddings[1], rtol=1e-6)


# name: (norms in a block, norms round the stack, streams); 2, 0 and 1 where not listed
SHAPES = {
    "pre": (2, 1, 1), "gpt2": (2, 1, 1), "lns": (2, 1, 1), "layerscale": (2, 1, 1),
    "dyt": (2, 1, 1), "completep": (2, 1, 1), "depth_mup": (2, 1, 1), "mix": (2, 1, 1),
    "output": (2, 1, 1), "olmo2": (4, 1, 1), "sandwich": (4, 1, 1), "peri": (4, 2, 1),
    "residual": (0, 0, 1), "plain": (0, 0, 1), "tfixup": (0, 0, 1), "rezero": (0, 0, 1),
    "keel": (4, 0, 1), "ngpt": (2, 1, 1), "normformer": (4, 1, 1), "hybrid": (4, 1, 1),
    "dual": (2, 1, 2), "siamese": (6, 1, 2), "hyper": (2, 1, 4), "dlcl": (3, 2, 1),
}  # fmt: skip


@EACH
def test_norms_and_streams(placement):
    def norms(module):
        return sum(m.role == "norm" for m in module.modules())

    built = stack(placement)
    in_block = norms(built.blocks[1])
    around = sum(norm is not None for norm in (built.first_norm, built.final_norm))
    assert (in_block, around, built.placement.streams) == SHAPES.get(placement, (2, 0, 1))
    assert built.placement.remembers == (placement == "dlcl")


@EACH
@pytest.mark.parametrize("how", [{"norm": "rms"}, {"dropout": 0.2}], ids=["RMSNorm", "dropout"])
def test_every_placement_with_other_parts(placement, how):
    built = stack(placement, **how)
    kinds = {type(m) for m in built.modules()}
    assert "norm" not in how or nn.LayerNorm not in kinds
    out = built(X)
    assert out.shape == X.shape and np.isfinite(out.data).all()


# ---------------------------------------------------------------- identities


@pytest.mark.parametrize(
    "placement",
    ["pre", "residual", "gpt2", "tfixup", "layerscale", "sandwich", "output", "olmo2", "lns",
     "dyt", "completep", "depth_mup", "normformer", "hyper", "rezero"],
)  # fmt: skip
def test_a_stream_without_branches_is_the_identity(placement):
    built = stack(placement)
    if placement != "rezero":  # there the branches are shut from the start
        for _, name, matrix in sublayer_matrices(built):
            matrix *= name not in ("out", "down")
    stream = built.begin(tr.Tensor(X))
    for block in built.blocks:
        stream = block(stream)
    np.testing.assert_array_equal(stream.data, built.begin(tr.Tensor(X)).data)


def test_rezero_learns_its_gains_first():
    built = model("rezero")
    built.loss(TOKENS, TARGETS).backward()
    for block in built.stack.blocks:
        assert block.rule.gain.grad.all()
        assert not any(p.grad.any() for s in block.sublayers() for p in s.parameters())


def test_hyper_connections_start_as_pre_ln():
    # eps as good as 0: beside the sum of four streams it counts 16 times less than beside one.
    pre, hyper = model("pre", eps=1e-9), model("hyper", eps=1e-9)
    losses = [m.loss(TOKENS, TARGETS) for m in (pre, hyper)]
    np.testing.assert_allclose(hyper(TOKENS).data, pre(TOKENS).data, rtol=1e-6, atol=1e-6)
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-6)
    for loss in losses:
        loss.backward()
    gradients = dict(hyper.named_parameters())
    for name, p in pre.named_parameters():
        np.testing.assert_allclose(gradients[name].grad, p.grad, rtol=1e-4, atol=1e-6)


def test_gpt2_is_pre_ln_with_scaled_matrices():
    pre, gpt2 = stack("pre"), stack("gpt2")
    for _, name, matrix in sublayer_matrices(pre):
        matrix *= (2 * N) ** -0.5 if name in ("out", "down") else 1
    np.testing.assert_allclose(gpt2(X).data, pre(X).data, rtol=1e-6, atol=1e-6)


def test_admin_gives_each_branch_the_share_that_it_has_in_pre_ln():
    built, variances = stack("admin"), []
    built.profile(tr.Tensor(X))
    stream = tr.Tensor(X)
    for block in built.blocks:
        for layer in block.sublayers():
            assert np.ptp(layer.omega.data) == 0
            variances.append(layer.sublayer(stream).data.var())
            stream = layer(stream)
    omegas = [s.omega.data[0] for b in built.blocks for s in b.sublayers()]
    assert omegas[0] == 1 and omegas[1] ** 2 == pytest.approx(X.var() + variances[0], rel=1e-5)
    # Every stream after a norm has variance 1, so that the variances just add up.
    np.testing.assert_allclose(np.diff(np.square(omegas[1:])), variances[1:-1], rtol=1e-4)


# ---------------------------------------------------------------- rules, written down once more


def rezero(built, x):
    for b in built.blocks:
        x = x + b.rule.gain.data * b.attention.branch(x)
        x = x + b.rule.gain.data * b.feed_forward.branch(x)
    return x


def normformer(built, x):
    for b in built.blocks:
        x = x + b.rule.output_norm(b.attention.branch(b.rule.norm(x)))
        x = b.rule.gain.data * x + b.feed_forward.branch(b.rule.feed_forward_norm(x))
    return built.final_norm(x)


def dual(built, x):
    p, q = x, x
    for layer in [s for b in built.blocks for s in b.sublayers()]:
        f = layer.branch(p)
        p, q = layer.norm(p + f), q + f
    return p + built.final_norm(q)


def siamese(built, x):
    p, q = x, x
    for i, layer in enumerate(s for b in built.blocks for s in b.sublayers()):
        o = layer.branch(layer.input_norm(p + layer.sum_norm(q)))
        p, q = layer.norm(p + o * (i // 2 + 1) ** -0.5), q + o
    return p + built.final_norm(q)


def hyper(built, x):
    streams = [x] * 4
    for layer in [s for b in built.blocks for s in b.sublayers()]:
        a, mix, b = layer.read.data, layer.mix.data, layer.write.data[:, 0]
        o = layer.branch(layer.norm(sum(a[s] * streams[s] for s in range(4))))
        streams = [sum(mix[r, s] * streams[s] for s in range(4)) + b[r] * o for r in range(4)]
    return built.final_norm(sum(streams))


def dlcl(built, x):
    x = built.first_norm(x)
    outputs = [x]
    for b in built.blocks:
        y = x + b.attention.branch(b.rule.norm(x))
        y = y + b.feed_forward.branch(b.rule.feed_forward_norm(y))
        outputs.append(b.rule.output_norm(y))
        x = sum(float(w.data[0]) * y for w, y in zip(b.rule.weights, outputs))
    return built.final_norm(x)


@pytest.mark.parametrize("again", [rezero, normformer, dual, siamese, hyper, dlcl])
def test_a_rule_with_gains_away_from_their_initial_values(again, rng):
    built = stack(again.__name__)
    disturb(built, rng)
    np.testing.assert_allclose(built(X).data, again(built, tr.Tensor(X)).data, rtol=1e-4, atol=1e-5)


def test_which_norms_stand_inside_attention():
    for placement, width, names in (("hybrid", D // HEADS, "qkv"), ("olmo2", D, "qk")):
        norms = stack(placement).blocks[0].attention.branch.norms
        assert {name: norm.d_model for name, norm in norms.items()} == dict.fromkeys(names, width)


# ---------------------------------------------------------------- gradients


@EACH
def test_gradients_of_all_parameters(placement, rng):
    built = model(placement, activation="gelu").astype("float64")
    disturb(built, rng)
    built.loss(TOKENS, TARGETS).backward()
    step = 1e-5
    for name, p in built.named_parameters():
        direction = rng.standard_normal(p.shape)
        losses = []
        for sign in (1, -2):
            p.data += sign * step * direction
            losses.append(built.loss(TOKENS, TARGETS).item())
        p.data += step * direction
        measured = (losses[0] - losses[1]) / (2 * step)
        assert p.grad is not None, f"{name} has no part in the loss"
        assert (p.grad * direction).sum() == pytest.approx(measured, rel=1e-5, abs=1e-8), name


@EACH
def test_gradient_of_the_input(placement, rng):
    built = stack(placement, blocks=1, activation="gelu", causal=True).astype("float64")
    disturb(built, rng)
    assert tr.gradcheck(built, [rng.normal(size=(1, 3, D))])


# ---------------------------------------------------------------- a rule of one's own


def test_a_rule_of_a_block_of_ones_own():
    class Parallel(nn.BlockRule):
        """y = x + A(norm(x)) + F(norm(x))."""

        final_norm = True

        def forward(self, x, attention, feed_forward):
            y = self.norm(x)
            return x + attention(y) + feed_forward(y)

    block = nn.TransformerBlock(D, HEADS, placement=Parallel, rng=0)
    x = tr.Tensor(X)
    y = block.rule.norm(x)
    expected = X + block.attention.branch(y).data + block.feed_forward.branch(y).data
    np.testing.assert_allclose(block(x).data, expected, rtol=1e-6)
    assert stack(Parallel).final_norm is not None
    with pytest.raises(ValueError, match="Parallel is the rule of a block of two sublayers"):
        nn.TransformerBlock(D, HEADS, placement=Parallel, cross=True)


# ---------------------------------------------------------------- inside the sublayers


def test_a_branch_must_keep_the_shape_wherever_it_is_added():
    for add in (nn.PreLN(lambda x: x[..., :1], lambda: nn.LayerNorm(D)),
                lambda x: tr.residual(x, x[..., :1])):  # fmt: skip
        with pytest.raises(ValueError, match=r"residual: F\(x\) has shape \(2, 4, 1\)"):
            add(tr.Tensor(X))


def test_a_squashing_function_has_no_eps():
    with pytest.raises(TypeError):
        nn.DynamicTanh(D, eps=1e-5)
    np.testing.assert_array_equal(stack("dyt", eps=1.0)(X).data, stack("dyt")(X).data)


def test_admin_measures_a_stream_far_from_0():
    far = tr.Tensor(1e7 / 3 + np.random.default_rng(3).normal(size=(4, 64, D)), dtype="f4")
    built = stack("admin")
    first, second = built.blocks[0].sublayers()
    first.branch = lambda x: x * 0.0
    built.profile(far)
    assert second.omega.data[0] ** 2 == pytest.approx(far.data.astype("f8").var(), rel=1e-3)


def test_norms_and_gains_inside_attention_and_feed_forward():
    plain = nn.MultiHeadAttention(D, HEADS, rng=0)
    x = tr.Tensor(X)
    q, k, v = (a.data for a in plain.by_head(x))
    together = nn.MultiHeadAttention(D, HEADS, normed="qk", rng=0).by_head(x)
    each = nn.MultiHeadAttention(D, HEADS, normed="qkv", per_head=True, rng=0).by_head(x)
    for got, a in zip(each, (q, k, v)):
        np.testing.assert_allclose(got.data, tr.layer_norm(a).data, rtol=1e-5, atol=1e-6)
    rows = q.swapaxes(1, 2).reshape(2, 4, D)
    np.testing.assert_allclose(
        together[0].data.swapaxes(1, 2).reshape(2, 4, D), tr.layer_norm(rows).data,
        rtol=1e-5, atol=1e-6,
    )  # fmt: skip
    np.testing.assert_array_equal(together[2].data, v)
    scaled = nn.MultiHeadAttention(D, HEADS, head_scale=True, rng=0)
    scaled.head_scale.data[1] = 0
    scaled.out.weight.data[...] = plain.out.weight.data[...] = np.eye(D)
    np.testing.assert_allclose(scaled(X).data[..., :4], plain(X).data[..., :4], rtol=1e-5)
    assert not scaled(X).data[..., 4:].any()
    inner = nn.FeedForward(D, 16, inner_norm=True, rng=0)
    hidden = tr.layer_norm(tr.relu(inner.up(x)))
    np.testing.assert_array_equal(inner(x).data, inner.down(hidden).data)


# ---------------------------------------------------------------- skips

SKIPS = {"plain": 0, "b2t": 6, "dual": 8, "siamese": 9, "dlcl": 7}  # 4 where not listed


@EACH
def test_the_skips_of_every_placement_are_found(placement):
    """Of two blocks: one a sublayer, in B2T one more a block, with two streams one a stream.

    SiameseNorm adds the norm of one stream to the other: at the bottom, where both are still the
    embedding, that is a skip. So are DLCL's sums over what came before.
    """
    built = model(placement)  # names and placements are known as long as the model lives
    graph = tr.trace(built(TOKENS))
    assert len(find_skips(graph)) == SKIPS.get(placement, 4)
    assert placement == "plain" or "class=skip" in tr.draw(graph, depth=1).source


# ---------------------------------------------------------------- the table


def test_the_table_and_a_picture(tmp_path, capsys):
    lesson.main([])
    shown = capsys.readouterr().out
    for name in NAMES:
        found = lesson.entry(name)
        assert f"{name:<22}{found.rule}" in shown and found.paper.split(",")[0] in shown
    assert lesson.entry("deepnorm").constants.startswith("alpha = (2N)^(1/4)")
    lesson.main(["--draw", "b2t", "--out", str(tmp_path)])
    assert "class=" in (tmp_path / "b2t.svg").read_text()
