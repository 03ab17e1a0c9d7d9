"""Modules, layers, placements and models."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from conftest import leaf

import tinyres as tr
from tinyres import nn

PLACED = pytest.mark.parametrize("placement", nn.PLACEMENTS)
SMALL = {"vocab": 7, "d_model": 8, "heads": 2, "blocks": 2, "context": 5}


def language_model(**options):
    return nn.TransformerLM(**{**SMALL, "rng": 0, **options})


# ---------------------------------------------------------------- modules


class Nested(nn.Module):
    def __init__(self):
        self.layers = [nn.Linear(2, 2, rng=0), {"last": nn.Linear(2, 1, rng=1)}]
        self.gain = nn.Parameter([1.0])
        self.frozen = tr.Tensor([1.0])

    def forward(self, x):
        return self.layers[1]["last"](self.layers[0](x)) * self.gain


def test_names_of_what_is_inside():
    assert [name for name, _ in Nested().named_parameters()] == [
        "gain", "layers.0.weight", "layers.0.bias", "layers.1.last.weight", "layers.1.last.bias",
    ]  # fmt: skip
    assert [name for name, _ in Nested().named_modules()] == ["", "layers.0", "layers.1.last"]
    assert Nested().num_parameters() == 1 + 6 + 3


def test_a_module_without_forward():
    with pytest.raises(TypeError, match="Module has no forward"):
        nn.Module()(1.0)


def test_state_goes_round():
    one, other = language_model(rng=1), language_model(rng=2)
    tokens = [[1, 2, 3]]
    assert not np.array_equal(one(tokens).data, other(tokens).data)
    other.load_state_dict(one.state_dict())
    assert np.array_equal(one(tokens).data, other(tokens).data)
    one.head.weight.data *= 2
    assert not np.array_equal(one.head.weight.data, other.head.weight.data)


REFUSED_STATES = {
    "missing": (lambda s: s.pop("layers.0.bias"), KeyError, r"missing \['layers.0.bias'\]"),
    "surplus": (lambda s: s.update(extra=np.ones(1)), KeyError, r"surplus \['extra'\]"),
    "shape": (
        lambda s: s.update({"layers.1.last.bias": np.ones(2)}),
        ValueError, r"layers.1.last.bias must have shape \(1,\), got \(2,\)",
    ),
    "broadcastable shape": (
        lambda s: s.update({"layers.0.bias": np.ones(1)}), ValueError, r"shape \(2,\), got \(1,\)",
    ),
    "kind": (lambda s: s.update({"layers.1.last.bias": ["a"]}), TypeError, "layers.1.last.bias"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED_STATES)
def test_a_refused_state_leaves_the_model_as_it_was(kind):
    spoil, error, message = REFUSED_STATES[kind]
    model = Nested()
    before = model.state_dict()
    state = {name: a + 1 for name, a in before.items()}
    spoil(state)
    with pytest.raises(error, match=message):
        model.load_state_dict(state)
    assert all(np.array_equal(before[name], a) for name, a in model.state_dict().items())


def test_astype_changes_parameters_and_what_they_compute():
    model = language_model().astype("float64")
    assert {p.dtype for p in model.parameters()} == {np.dtype("float64")}
    loss = model.loss([[1, 2]], [[2, 3]])
    loss.backward()
    assert loss.dtype == np.float64 and all(p.grad is not None for p in model.parameters())
    with pytest.raises(TypeError, match="float dtype, got int64"):
        model.astype(int)


def test_a_deep_copy_is_a_model_of_its_own():
    model = language_model(tied=True)
    other = copy.deepcopy(model)
    assert other.token.weight is other.head.weight is not model.token.weight
    other.token.weight.data *= 2
    assert not np.array_equal(model.token.weight.data, other.token.weight.data)
    assert len(other.parameters()) == len(model.parameters())


def test_repr_is_the_tree_with_its_sizes_and_equal_neighbours_once():
    stack = nn.TransformerStack(8, 2, 24, placement="layerscale", rng=0)
    lines = repr(stack).splitlines()
    total = stack.num_parameters()
    assert lines[0] == f"TransformerStack(24 blocks)  [{total:,} parameters]"
    assert lines[1] == "  blocks.0 to blocks.23: 24 x TransformerBlock  [888 parameters each]"
    assert "        qkv: Linear(8 > 24)  [216 parameters]" in lines
    assert sum(line.endswith(": Parameter (8,)  [8 parameters]") for line in lines) == 2
    assert lines[-1] == "  final_norm: LayerNorm  [16 parameters]" and len(lines) == 15
    stack.blocks[20].feed_forward.branch.up = nn.Linear(8, 32, bias=False)
    names = [line.split(":")[0] for line in repr(stack).splitlines() if "Block" in line]
    assert names[0] == "  blocks.0 to blocks.19" and names[1:] == [
        "  blocks.20", "  blocks.21 to blocks.23"
    ]  # fmt: skip


def test_repr_of_other_modules():
    module = nn.Sequential(nn.Linear(1, 1), tr.relu, nn.Linear(1, 1))
    module.scale = nn.Parameter(2.0)
    assert repr(module).splitlines() == [
        "Sequential  [5 parameters]", "  layers.0: Linear(1 > 1)  [2 parameters]",
        "  layers.2: Linear(1 > 1)  [2 parameters]", "  scale: Parameter ()  [1 parameter]",
    ]  # fmt: skip


def test_sequential_takes_functions_and_modules():
    model = nn.Sequential(nn.Linear(2, 3, rng=0), tr.relu, lambda x: x.sum())
    assert model(np.ones((4, 2), "f4")).shape == () and len(model.parameters()) == 2


# ---------------------------------------------------------------- layers


def test_how_parameters_start():
    m = nn.TransformerLM(50, 64, 4, 1, 32, rng=0)
    attention, feed_forward = m.stack.blocks[0].attention, m.stack.blocks[0].feed_forward
    limits = {
        "qkv": (attention.branch.qkv.weight, 64 + 64),  # q, k and v each on its own
        "out": (attention.branch.out.weight, 64 + 64),
        "up": (feed_forward.branch.up.weight, 64 + 256),
        "head": (m.head.weight, 64 + 50),
    }
    for name, (weight, fans) in limits.items():
        largest = np.abs(weight.data).max()
        assert 0.98 * np.sqrt(6 / fans) < largest <= np.float32(np.sqrt(6 / fans)), name
        assert abs(weight.data.mean()) < 0.01
    q, k, v = np.split(attention.branch.qkv.weight.data, 3, axis=1)
    assert not np.array_equal(q, k) and not np.array_equal(k, v)
    for table in (m.token.weight, m.position.weight):
        assert table.data.std() == pytest.approx(1, abs=0.05)
    for name, p in m.named_parameters():
        if name.endswith(("bias", "beta", "gamma")):
            assert (p.data == name.endswith("gamma")).all()
    assert {p.dtype for p in m.parameters()} == {np.dtype("float32")}


def test_number_of_parameters():
    d, ff, vocab, context, blocks = 8, 32, 7, 5, 2
    block = (4 * d * d + 4 * d) + (2 * d * ff + ff + d) + 2 * (2 * d)
    tables_and_head = vocab * d + context * d + d * vocab + vocab
    assert language_model().num_parameters() == tables_and_head + blocks * block + 2 * d
    post = language_model(placement="post")
    assert post.num_parameters() == tables_and_head + blocks * block
    plain = language_model(placement="plain")
    assert plain.num_parameters() == tables_and_head + blocks * (block - 4 * d)


def test_layers_compute_what_they_say(rng):
    x = rng.normal(size=(2, 3, 8)).astype("f4")
    ff = nn.FeedForward(8, 32, activation="gelu", rng=0)
    up, down = ff.up, ff.down
    hidden = tr.gelu(tr.Tensor(x @ up.weight.data + up.bias.data)).data
    np.testing.assert_allclose(
        ff(x).data, hidden @ down.weight.data + down.bias.data, rtol=1e-5, atol=1e-6
    )
    mha = nn.MultiHeadAttention(8, 2, causal=True, rng=0)
    mixed = tr.self_attention(x, mha.qkv.weight, mha.qkv.bias, heads=2, causal=True)
    np.testing.assert_allclose(mha(x).data, mha.out(mixed).data, rtol=1e-6)
    assert nn.Linear(8, 2, bias=False, rng=0).bias is None
    assert nn.LayerNorm(8, affine=False).parameters() == []
    np.testing.assert_allclose(nn.LayerNorm(8, affine=False)(x).data.std(-1), 1, atol=1e-3)
    np.testing.assert_allclose((nn.RMSNorm(8)(x).data ** 2).mean(-1), 1, atol=1e-3)


def test_unknown_names_are_refused_with_the_known_ones():
    for options, message in (
        ({"placement": "middle"}, "placement must be one of .*'post'.* got 'middle'"),
        ({"activation": "swish"}, "activation must be one of .*'gelu'.* got 'swish'"),
        ({"norm": "batch"}, "norm must be one of .*'layer'.* got 'batch'"),
        ({"heads": 3}, "d_model=8 can't be split among heads=3"),
        ({"blocks": 0}, "blocks must be an integer, at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            language_model(**options)
    with pytest.raises(ValueError, match="parts=3 maps can't share n_out=8 features"):
        nn.Linear(2, 8, parts=3)


# ---------------------------------------------------------------- placements and stacks


def rule(placement, x, branch, norm):
    """What the placements are, written down once more."""
    return {
        "pre": lambda: x + branch(norm(x)),
        "post": lambda: norm(x + branch(x)),
        "residual": lambda: x + branch(x),
        "plain": lambda: branch(x),
    }[placement]()


@pytest.mark.parametrize("placement", ["pre", "post", "residual", "plain"])
def test_a_placement_is_its_rule(placement, rng):
    branch, x = nn.Linear(8, 8, rng=0), tr.Tensor(rng.normal(size=(3, 8)), dtype="f4")
    layer = nn.PLACEMENTS[placement](branch, lambda: nn.LayerNorm(8), index=1, total=2)
    norm = getattr(layer, "norm", None)
    assert np.array_equal(layer(x).data, rule(placement, x, branch, norm).data)


@PLACED
def test_every_placement_trains_and_its_gradients_are_right(placement):
    model = language_model(blocks=1, placement=placement, activation="gelu").astype("float64")
    tokens, targets = [[1, 2, 3]], [[2, 3, 1]]
    x = model.embed(tokens).detach().data

    def loss(stream):
        return tr.cross_entropy(model.head(model.stack(stream)), targets)

    assert tr.gradcheck(loss, [x])
    model.zero_grad()
    model.loss(tokens, targets).backward()
    p = model.stack.blocks[0].feed_forward.branch.up.weight
    step = 1e-6
    for where in ((0, 0), (5, 17)):
        losses = []
        for sign in (1, -2):
            p.data[where] += sign * step
            losses.append(model.loss(tokens, targets).item())
        p.data[where] += step
        measured = (losses[0] - losses[1]) / (2 * step)
        assert p.grad[where] == pytest.approx(measured, rel=1e-5, abs=1e-9)


def test_a_placement_of_ones_own_is_told_where_it_stands():
    seen = []

    class Counted(nn.Residual):
        final_norm = True

        def __init__(self, branch, norm, **place):
            super().__init__(branch, norm, **place)
            seen.append((self.place.index, self.place.total, self.place.block))
            self.scale = 1 / self.place.total

        def forward(self, x):
            return x + self.scale * self.sublayer(self.norm(x))

    stack = nn.TransformerStack(8, 2, 3, placement=Counted, rng=0)
    assert seen == [(i, 6, (i + 1) // 2) for i in range(1, 7)]
    assert stack.final_norm is not None
    stack(leaf(*np.ones((1, 2, 8)), dtype="f4")).sum().backward()
    assert all(p.grad is not None for p in stack.parameters())


# ---------------------------------------------------------------- the language model


def test_loss_is_that_of_the_next_tokens():
    model = language_model()
    loss = model.loss([[1, 2, 3]], [[2, 3, 4]])
    expected = -tr.log_softmax(model([[1, 2, 3]])).data[0, np.arange(3), [2, 3, 4]].mean()
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_positions_are_learned_and_seen():
    model = language_model()
    one, other = model([[1, 1, 1]]).data[0], model([[1, 1, 1, 1]]).data[0]
    assert not np.allclose(one[0], one[1])
    np.testing.assert_allclose(one, other[:3], rtol=1e-5, atol=1e-6)


def test_generated_tokens_follow_the_models_probabilities():
    model = language_model(blocks=1)
    logits = model([[3]]).data[0, -1].astype("float64") / 0.7
    p = np.exp(logits - logits.max())
    p /= p.sum()
    rng = np.random.default_rng(0)
    drawn = [model.generate([3], 1, temperature=0.7, rng=rng)[-1] for _ in range(1000)]
    np.testing.assert_allclose(np.bincount(drawn, minlength=7) / 1000, p, atol=0.06)
    top = {model.generate([3], 1, top_k=2, rng=rng)[-1] for _ in range(200)}
    assert top == set(np.argsort(logits)[-2:])
    tokens = [3]
    for _ in range(6):
        tokens.append(int(model([tokens[-5:]]).data[0, -1].argmax()))
    assert model.generate([3], 6, temperature=0).tolist() == tokens


def test_a_seed_may_be_a_number_or_a_generator():
    one = language_model(rng=5).state_dict()
    other = language_model(rng=np.random.default_rng(5)).state_dict()
    assert all(np.array_equal(one[name], other[name]) for name in one)
    rng = np.random.default_rng(5)
    first, second = nn.Linear(3, 3, rng=rng), nn.Linear(3, 3, rng=rng)
    assert not np.array_equal(first.weight.data, second.weight.data)


def test_modes_and_freezing_survive():
    model = tr.nn.TransformerLM(
        vocab=5, d_model=8, heads=2, blocks=2, context=4, dropout=0.5, rng=0
    )
    model.stack.blocks[0].eval()
    model.generate([1], 2)
    assert model.training and not model.stack.blocks[0].training
    model.head.weight.requires_grad = False
    model.astype("f8")
    assert not model.head.weight.requires_grad and model.token.weight.requires_grad


def test_a_child_that_knows_its_parent_can_be_printed():
    parent, child = tr.nn.Module(), tr.nn.Module()
    parent.child, child.parent = child, parent
    assert repr(parent).count("Module") == 2


def test_generate_at_a_tiny_temperature_takes_the_likeliest():
    model = tr.nn.TransformerLM(vocab=5, d_model=8, heads=2, blocks=1, context=4, rng=0)
    likeliest = model.generate([1], 6, temperature=0)
    assert model.generate([1], 6, temperature=1e-309, rng=0).tolist() == likeliest.tolist()
    with pytest.raises(ValueError, match="one sequence"):
        model.generate([[1, 2], [3, 4]], 1)


def test_a_placement_that_returns_another_shape_is_refused():
    class Forgetful(tr.nn.Residual):
        def forward(self, x):
            x + self.sublayer(x)

    model = tr.nn.TransformerLM(5, 8, heads=2, blocks=1, context=4, placement=Forgetful, rng=0)
    with pytest.raises(ValueError, match=r"Forgetful: forward returned None, .*shape \(1, 2, 8\)"):
        model([[1, 2]])


def test_sequential_has_a_length_and_an_order():
    layers = tr.nn.Linear(2, 3, rng=0), tr.nn.Linear(3, 2, rng=0)
    both = tr.nn.Sequential(*layers)
    assert len(both) == 2 and both[1] is layers[1]


def test_a_parameter_is_not_replaced_by_accident():
    layer = nn.Linear(2, 2, rng=0)
    for value in (np.ones((2, 2)), [[1.0, 2.0]], 3.0):
        with pytest.raises(TypeError, match=r"Linear\.weight is a Parameter.*\.weight\.data ="):
            layer.weight = value
    layer.weight.data = np.ones((2, 2))
    layer.weight, layer.bias = nn.Parameter(np.zeros((2, 2), "f4")), None
    assert list(layer.state_dict()) == ["weight"] and not layer.weight.data.any()
