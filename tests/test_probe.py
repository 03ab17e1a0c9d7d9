"""The probes: exact where they are exact, against the laws where those speak of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tinyres as tr
from demos import laws, toys
from tinyres.probe import inside
from tinyres.probe.gradient import by_crossings
from tinyres.probe.stream import loss_from, states_from

PLACEMENTS = list(tr.nn.PLACEMENTS)
T, VOCAB, BLOCKS = 9, 20, 3


def small(placement="pre", **options):
    """A model of three blocks and a batch, one target of which does not count."""
    rng = np.random.default_rng(0)
    sizes = {"d_model": 32, "heads": 2, "blocks": BLOCKS, "context": T, "d_ff": 64, **options}
    model = tr.nn.TransformerLM(VOCAB, placement=placement, rng=1, **sizes)
    tokens, targets = rng.integers(0, VOCAB, (2, 3, T))
    targets[0, 0] = -1
    model.stack.profile(model.embed(tokens))
    return model, (tokens, targets)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_probes_of_every_placement_and_the_model_stays_as_it_was(placement):
    model, batch = small(placement)
    model.head.weight.grad = np.full(model.head.weight.shape, 3.0)
    before = model.state_dict()
    found = tr.probe.report(model, batch)
    shift = tr.probe.output_shift(model, batch, rng=0)
    assert tr.probe.model_update(model, batch, before) == 0
    shapes = {
        "attention_entropy": (BLOCKS, 2),
        "neighbour_cosine": (BLOCKS,),
        "neighbour_angle": (BLOCKS,),
        "norm_input_rms": found["norm_input_rms"].shape,
    }
    for name, values in found.items():
        assert values.shape == shapes.get(name, (BLOCKS + 1,)), name
        not_one_tensor = placement == "hyper" and name in ("stream_gradient", "conserved_product")
        assert np.isnan(values).all() if not_one_tensor else np.isfinite(values).all(), name
    assert shift == 0 if placement == "rezero" else shift > 0.01
    assert all(np.array_equal(value, before[name]) for name, value in model.state_dict().items())
    assert (model.head.weight.grad == 3).all()
    assert all(p.grad is None for p in model.parameters() if p is not model.head.weight)


class Keeps(tr.nn.Linear):
    """A layer that remembers what it returned last, and counts its calls."""

    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.last, self.calls = None, 0

    def forward(self, x):
        self.last, self.calls = super().forward(x), self.calls + 1
        return self.last


MEASURING = {
    **{probe.__name__: probe for probe in tr.probe.CHEAP},
    **{name: getattr(tr.probe, name) for name in (
        "ablation", "dependency", "gradient_by_path_length", "token_gradient")},
    "weight_gradients": lambda *given: list(tr.probe.weight_gradients(*given).values()),
    "stream": lambda model, batch: [x.data for x in tr.probe.stream(model, batch[0])],
    "output_shift": lambda *given: tr.probe.output_shift(*given, rng=0),
    "model_update": lambda model, batch: tr.probe.model_update(
        model, batch, {name: 0.9 * value for name, value in model.state_dict().items()}
    ),
}  # fmt: skip


@pytest.mark.parametrize("probe", MEASURING)
def test_a_probe_leaves_dropout_and_a_loss_computed_before_alone(probe):
    """It measures what the model does in eval mode, draws nothing, and backward still works."""
    (model, batch), (without, _) = (small(dropout=p) for p in (0.5, 0.0))
    without.load_state_dict(dict(zip(without.state_dict(), model.state_dict().values())))
    model.head, without.head = (Keeps(32, VOCAB, rng=3) for _ in range(2))
    model.stack.blocks[1].eval()
    model.head.weight.grad = np.ones((32, VOCAB))
    loss = loss_from(model, states_from(model, model.embed(batch[0]))[-1], batch[1])
    generators = [m.rng.bit_generator for m in model.modules() if isinstance(m, tr.nn.Dropout)]

    def state():
        return [m.training for m in model.modules()], model.head.calls, str(generators[0].state)

    before = state()
    found, expected = MEASURING[probe](model, batch), MEASURING[probe](without, batch)
    assert state() == before
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_stand_in_answers_for_its_module():
    class Gained(tr.nn.Residual):
        def forward(self, x):
            return x + self.norm.gamma * self.sublayer(self.norm(x))

    model, batch = small(Gained)
    assert tr.probe.norm_input_rms(model, batch).shape == (2 * BLOCKS,)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_parts_of_the_gradient_add_up_to_it(placement):
    model, (tokens, targets) = small(placement)
    x_0 = model.embed(tokens)
    loss = loss_from(model, states_from(model, x_0)[-1], targets)
    branches = [s.branch for block in model.stack.blocks for s in block.sublayers()]
    parts = by_crossings(loss, x_0, branches)
    x_0.retain_grad()
    loss.backward()
    assert len(parts) == 2 * BLOCKS + 1
    np.testing.assert_allclose(sum(parts), x_0.grad, atol=1e-5 * abs(x_0.grad).max())
    only = {"plain": 2 * BLOCKS, "rezero": 0}.get(placement)
    if only is not None:  # without a skip all of it crosses every branch, behind a closed gate none
        assert all(bool(part.any()) == (k == only) for k, part in enumerate(parts))


def test_path_lengths_follow_their_law():
    blocks, seeds = 12, 6
    for place in ("pre", "post", "residual"):
        power = np.mean([
            toys.by_path_length(
                toys.feed_forward_stack(place, blocks, 128, seed=seed),
                toys.gaussian((8, 1, 128), seed), seed,
            )
            for seed in range(seeds)
        ], axis=0)  # fmt: skip
        shares, law = power / power.sum(), laws.path_lengths(place, blocks)
        assert abs(shares - law).max() < 0.03, place
        depths = np.arange(blocks + 1)
        assert shares @ depths == pytest.approx(law @ depths, rel=0.06), place


def test_skip_share_of_a_model_is_what_is_left_without_its_branches():
    model, batch = small("pre")
    power = tr.probe.gradient_by_path_length(model, batch)
    assert tr.probe.skip_share(model, batch) == pytest.approx(power[0] / power.sum())
    for block in model.stack.blocks:
        for sublayer in block.sublayers():
            sublayer.branch = toys.Nothing()
    assert tr.probe.skip_share(model, batch) == 1


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_dependency_of_hand_made_streams(norm):
    """Orthogonal, equally strong sources: Pre-LN's have equal shares, Post-LN's halve each time."""

    class Adds(tr.nn.Module):
        def __init__(self, direction):
            self.direction = direction

        def forward(self, x):
            return x * 0.0 + self.direction

    hadamard = np.array([[1]])
    for _ in range(4):
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    # Each has power 1, and mean 0 but for the first: RMSNorm leaves that mean where it is.
    rows = iter(hadamard[norm == "layer" :].astype(np.float32))
    start = next(rows)
    directions = list(itertools.islice(rows, 4))
    expected = {"pre": [1 / 5] * 5, "post": [1 / 16, 1 / 16, 1 / 8, 1 / 4, 1 / 2]}
    for placement, squares in expected.items():
        model = tr.nn.TransformerLM(
            2, 16, 1, blocks=2, context=3, placement=placement, norm=norm, eps=0.0
        )
        model.token.weight.data[...] = start
        model.position.weight.data[...] = 0
        sublayers = [s for block in model.stack.blocks for s in block.sublayers()]
        for sublayer, direction in zip(sublayers, directions):
            sublayer.branch = Adds(direction)
        tokens = np.zeros((1, 3), int)
        beta = tr.probe.dependency(model, (tokens, tokens))
        np.testing.assert_allclose(beta[0], [1, 0, 0, 0, 0], atol=1e-6)
        np.testing.assert_allclose(beta[-1] ** 2, squares, rtol=1e-5)


def test_stream_probes_on_streams_that_are_known():
    model, (tokens, targets) = small("pre")
    for block in model.stack.blocks:
        for sublayer in block.sublayers():
            sublayer.branch = toys.Nothing()
    model.position.weight.data[...] = 0
    model.token.weight.data[...] = 2  # the same vector for every token
    assert tr.probe.stream_rms(model, (tokens, targets)).tolist() == [2] * 4
    assert tr.probe.token_cosine(model, (tokens, targets)) == pytest.approx(1)
    assert tr.probe.neighbour_cosine(model, (tokens, targets)) == pytest.approx(1)
    assert tr.probe.neighbour_angle(model, (tokens, targets)) == pytest.approx(0, abs=1e-6)
    assert tr.probe.norm_input_rms(model, (tokens, targets)) == pytest.approx(2)
    assert tr.probe.ablation(model, (tokens, targets)).tolist() == [0, 0, 0]
    assert np.isnan(tr.probe.token_cosine(model, (tokens[:, :1], targets[:, :1]))).all()


def test_uniform_attention_has_entropy_1():
    model, batch = small("pre")
    for block in model.stack.blocks:
        block.attention.branch.qkv.weight.data[:, :64] = 0
    assert tr.probe.attention_entropy(model, batch) == pytest.approx(1)


def test_a_key_that_is_not_attended_to_counts():
    """Also where its weight has underflowed: a token that looks at one other has entropy 0."""
    rows = np.array([[1, 0, 0], [0.5, 0.5, 0], [1, 0, 0]], np.float32)[None, None]
    assert inside._entropies(rows, causal=True) == pytest.approx(1 / 2)
    assert inside._entropies(rows, causal=False) == pytest.approx(np.log(2) / np.log(3) / 3)
    model, batch = small("pre")
    for block in model.stack.blocks:
        block.attention.branch.qkv.weight.data[...] *= 1e4
    assert tr.probe.attention_entropy(model, batch) == pytest.approx(0, abs=1e-3)


def test_the_scale_of_a_norm_far_from_0():
    x = (1e7 / 3 + np.random.default_rng(0).normal(size=(64, 100))).astype("f4")
    found = inside._slope(tr.nn.LayerNorm(100), x)[:, 0]
    np.testing.assert_allclose(found, 1 / np.sqrt(x.astype("f8").var(-1) + 1e-5), rtol=1e-5)
    y = inside._scaled(tr.nn.LayerNorm(100), tr.Tensor(x), found[:, None]).data
    np.testing.assert_allclose(y, tr.layer_norm(x).data, rtol=1e-5, atol=1e-5)


def test_crossings_meet_other_leaves_and_refuse_what_backward_refuses():
    x = tr.Tensor([1.0, 2.0], requires_grad=True)
    younger = tr.Tensor([3.0, 4.0], requires_grad=True)
    product = (x * younger).sum()
    (part,) = by_crossings(product, x, [])
    assert part.tolist() == [3, 4]
    with pytest.raises(ValueError, match="values that were recorded"):
        by_crossings(product, tr.Tensor([1.0]), [])
    younger.data = [5, 6]
    with pytest.raises(RuntimeError, match="changed since"):
        by_crossings(product, x, [])

    @tr.op
    def forgetful(a, b):
        return a * b, lambda g: (g * b,)

    with pytest.raises((TypeError, ValueError), match="forgetful"):
        by_crossings(forgetful(x, younger).sum(), x, [])


def test_gradient_probes_agree_with_backward():
    model, (tokens, targets) = small("post")
    loss = tr.cross_entropy(model(tokens), targets, ignore_index=-1)
    loss.backward()
    norms = {name: np.linalg.norm(p.grad) for name, p in model.named_parameters()}
    model.zero_grad()
    assert tr.probe.weight_gradients(model, (tokens, targets)) == pytest.approx(norms, rel=1e-5)
    of_tokens = tr.probe.token_gradient(model, (tokens, targets))
    assert of_tokens.shape == (BLOCKS + 1, 3, T)
    whole = np.sqrt((of_tokens**2).sum((1, 2)))
    assert whole == pytest.approx(tr.probe.stream_gradient(model, (tokens, targets)), rel=1e-5)


@pytest.mark.parametrize("factor", [1e-30, 1e-15])
def test_a_gradient_whose_square_float32_can_not_hold_is_measured(factor):
    seen = []
    for scale in (1e-3, factor):  # so small that it scales the gradient and changes nothing else
        model, batch = small("post")
        model.head.weight.data *= scale
        stream, tokens = (
            tr.probe.stream_gradient(model, batch),
            tr.probe.token_gradient(model, batch),
        )
        weights = tr.probe.weight_gradients(model, batch)["token.weight"]
        seen.append(np.array([*stream, tokens.max(), weights]) / scale)
    assert (seen[0] > 0).all()
    np.testing.assert_allclose(seen[1], seen[0], rtol=0.02)


def test_mean_gradient_of_opposite_batches_is_smaller_than_each():
    model, (tokens, targets) = small("pre")
    batches = [(tokens, targets), (tokens, (targets + 7) % VOCAB)]
    mean = tr.probe.mean_gradients(model, batches)["head.weight"]
    each = [tr.probe.weight_gradients(model, batch)["head.weight"] for batch in batches]
    assert mean < 0.95 * np.mean(each)
    same = tr.probe.mean_gradients(model, batches[:1] * 2)["head.weight"]
    assert same == pytest.approx(each[0], rel=1e-5)


def test_output_shift_follows_law_l4():
    for rule in ("post", "pre", "admin", "deepnorm", "keel"):
        seen = np.mean([toys.shift(rule, 6, 192, seed) for seed in range(6)])
        assert seen == pytest.approx(laws.output_shift(rule, 6), rel=0.12), rule


def without_attention(seed, blocks=6):
    """A Pre-LN model that is a stack of feed-forward branches on an input of power 1."""
    model = tr.nn.TransformerLM(VOCAB, 128, 2, blocks, T, 128, placement="pre", rng=seed)
    for table in (model.token, model.position):
        table.weight.data *= 0.5**0.5
    for block in model.stack.blocks:
        block.attention.branch = toys.Nothing()
    return model, tuple(np.random.default_rng(seed).integers(0, VOCAB, (2, 8, T)))


def test_laws_l1_and_l4_in_a_model_without_attention():
    looks = [without_attention(seed) for seed in range(8)]
    product = np.array([tr.probe.conserved_product(*look) for look in looks])
    power = np.array([tr.probe.stream_rms(*look) ** 2 for look in looks])
    shift = [tr.probe.output_shift(*look, rng=seed) for seed, look in enumerate(looks)]
    assert (product[:, -1] == 1).all()
    assert product.mean(0) == pytest.approx(1, rel=0.1)
    assert power.mean(0) == pytest.approx(laws.stream_power("pre", 6), rel=0.1)
    assert np.mean(shift) == pytest.approx(laws.output_shift("pre", 6), rel=0.12)


def test_only_a_block_that_does_something_is_missed():
    model, batch = small("pre")
    for i in (0, 2):
        for sublayer in model.stack.blocks[i].sublayers():
            sublayer.branch = toys.Nothing()
    missed = tr.probe.ablation(model, batch)
    assert missed[0] == missed[2] == 0 != missed[1]


def test_dependency_counts_only_norms_that_the_stream_passes():
    """OLMo 2's output norms make every source equally strong; its QK-norms play no part."""
    model, batch = small("olmo2")
    embedding = tr.probe.stream_rms(model, batch)[0] ** 2
    squares = np.array([embedding, *[1] * (2 * BLOCKS)])
    beta = tr.probe.dependency(model, batch)
    np.testing.assert_allclose(beta[-1] ** 2, squares / squares.sum(), rtol=1e-3)


def test_model_update_is_the_change_of_the_output():
    model, batch = small("post")
    before = model.state_dict()
    model.stack.blocks[-1].feed_forward.norm.beta.data += 0.5
    assert tr.probe.model_update(model, batch, before) == pytest.approx(0.5, rel=1e-5)
    ratio = tr.probe.update_ratio(before, model.state_dict())
    assert sum(value > 0 for value in ratio.values()) == 1


@pytest.mark.parametrize(
    ("placement", "probe", "words"),
    [("dlcl", tr.probe.ablation, "DLCL"), ("dyt", tr.probe.dependency, "DynamicTanh")],
)
def test_a_probe_that_makes_no_sense_says_why(placement, probe, words):
    model, batch = small(placement)
    with pytest.raises(ValueError, match=words):
        probe(model, batch)


def test_probes_refuse_what_is_no_model_or_batch():
    model, batch = small()
    one_argument = [*tr.probe.CHEAP, tr.probe.ablation, tr.probe.dependency, tr.probe.skip_share,
                    tr.probe.output_shift, tr.probe.weight_gradients]  # fmt: skip
    for probe in one_argument:
        with pytest.raises(TypeError, match="model"):
            probe("model", batch)
        with pytest.raises(TypeError, match="tokens, targets"):
            probe(model, batch[0][:, 0])
    with pytest.raises(ValueError, match="at least one batch"):
        tr.probe.mean_gradients(model, [])
    with pytest.raises(KeyError, match="same names"):
        tr.probe.update_ratio({"a": np.ones(1)}, {})
    with pytest.raises(ValueError, match="does not depend"):
        by_crossings(model(batch[0]).sum(), toys.gaussian((1, 1), 0).exp(), [])
