"""Each claim of the lesson that can be computed: residuals, and where LayerNorm stands."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import leaf

import tinyres as tr
from tinyres import nn

X = [2.0, 4.0, 6.0]
F_OF_X = [0.5, -1.0, 0.5]
BOTH = pytest.mark.parametrize(
    "how", [tr.layer_norm, tr.composed.layer_norm], ids=["fused", "spelled out"]
)


# ---------------------------------------------------------------- the lesson by hand


def test_the_residual_sum():
    assert tr.residual(leaf(*X), leaf(*F_OF_X)).data.tolist() == [2.5, 3.0, 6.5]
    assert (leaf(*X) + leaf(*F_OF_X)).data.tolist() == [2.5, 3.0, 6.5]


def test_mean_variance_and_standard_deviation():
    x = leaf(*X)
    assert x.mean().item() == 4
    assert x.var().item() == pytest.approx(2.667, abs=5e-4)
    assert x.var().sqrt().item() == pytest.approx(1.633, abs=5e-4)


@BOTH
def test_normalised_scaled_and_shifted(how):
    np.testing.assert_allclose(how(leaf(*X)).data, [-1.225, 0, 1.225], atol=5e-4)
    y = how(leaf(*X), leaf(1.0, 2.0, 0.5), leaf(0.0, 1.0, -1.0))
    np.testing.assert_allclose(y.data, [-1.225, 1.000, -0.388], atol=5e-4)


@pytest.mark.parametrize("d_model", [3, 64])
def test_a_layer_norm_learns_two_numbers_a_feature(d_model):
    assert nn.LayerNorm(d_model).num_parameters() == 2 * d_model


@BOTH
def test_a_flat_vector_needs_eps(how):
    flat = leaf(5.0, 5.0, 5.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        assert np.isnan(how(flat, eps=0.0).data).all()
    with np.errstate(all="raise"), pytest.raises(FloatingPointError, match="divide"):
        how(flat, eps=0.0)
    assert how(flat, eps=1e-5).data.tolist() == [0, 0, 0]
    assert how(flat, leaf(*X), leaf(7.0, 8.0, 9.0)).data.tolist() == [7, 8, 9]


# ---------------------------------------------------------------- the residual connection


def test_a_residual_needs_equal_lengths():
    said = (
        r"F\(x\) has shape \(8, 32\) but x has \(8, 64\): the branch must return what it was given"
    )
    with pytest.raises(ValueError, match=said):
        tr.residual(leaf(*np.zeros((8, 64))), leaf(*np.zeros((8, 32))))
    x = tr.Tensor(np.zeros((8, 64), "f4"))
    for placement in nn.PLACEMENTS.values():
        if issubclass(placement, nn.Residual):
            layer = placement(nn.Linear(64, 32), lambda: nn.LayerNorm(64))
            with pytest.raises(ValueError, match=said):
                layer(placement.begin(x, norm=None))
    narrower = nn.OnlyResidual(nn.Linear(64, 1), lambda: None)
    with pytest.raises(ValueError, match="must return what it was given"):  # no silent broadcasting
        narrower(tr.Tensor(np.zeros((8, 64), "f4")))


def jacobian(fn, x):
    """Row i is the gradient of output i."""
    rows = []
    for i in range(len(x)):
        t = leaf(*x)
        fn(t)[i].backward()
        rows.append(np.zeros_like(x) if t.grad is None else t.grad)
    return np.array(rows)


def test_jacobian_of_a_residual_is_one_plus_that_of_the_branch(rng):
    w = rng.normal(size=(4, 4))
    x = rng.normal(size=4)

    def branch(t):
        return (t @ w).tanh()

    np.testing.assert_allclose(
        jacobian(lambda t: tr.residual(t, branch(t)), x),
        np.eye(4) + jacobian(branch, x),
        rtol=1e-14,
    )


class Zero(nn.Module):
    """F(x) = 0 x."""

    def forward(self, x):
        return x * 0.0


def deep(placement, branch, depth=40):
    return nn.Sequential(*[placement(branch, lambda: nn.LayerNorm(8)) for _ in range(depth)])


@pytest.mark.parametrize("placement", [nn.PreLN, nn.OnlyResidual])
def test_40_residuals_hand_the_gradient_on_unchanged(placement, rng):
    x = tr.Tensor(rng.normal(size=(2, 8)).astype("f4"), requires_grad=True)
    y = deep(placement, Zero())(x)
    seed = rng.normal(size=(2, 8)).astype("f4")
    y.backward(seed)
    assert np.array_equal(x.grad, seed) and np.array_equal(y.data, x.data)


@pytest.mark.parametrize("factor", [0.8, 0.95, 1.05, 1.2])
def test_40_plain_blocks_shrink_or_blow_up_signal_and_gradient(factor):
    x = leaf(1.0, 2.0)
    y = deep(nn.Plain, lambda t: t * factor)(x)
    y.sum().backward()
    np.testing.assert_allclose(y.data, factor**40 * x.data, rtol=1e-12)
    np.testing.assert_allclose(x.grad, factor**40, rtol=1e-12)


def test_a_dead_branch_kills_a_plain_stack_and_not_a_residual_one():
    for placement, alive in ((nn.Plain, False), (nn.OnlyResidual, True), (nn.PreLN, True)):
        x = leaf(*np.arange(8.0))
        (deep(placement, Zero(), 3)(x) * np.arange(8.0)).sum().backward()
        assert x.grad.any() == alive


# ---------------------------------------------------------------- where the norm stands


def test_pre_ln_leaves_the_stream_untouched_and_post_ln_does_not(rng):
    x = tr.Tensor(3 + 5 * rng.normal(size=(2, 3, 8)))
    silent = {"branch": Zero(), "norm": lambda: nn.LayerNorm(8, eps=0.0).astype("float64")}
    assert np.array_equal(nn.PreLN(**silent)(x).data, x.data)
    once = nn.PostLN(**silent)(x)
    assert np.abs(once.data - x.data).max() > 1
    np.testing.assert_allclose(once.data, tr.layer_norm(x, eps=0.0).data, rtol=1e-12)
    np.testing.assert_allclose(nn.PostLN(**silent)(once).data, once.data, rtol=1e-9, atol=1e-12)


def test_post_ln_shrinks_the_gradient_where_the_stream_is_large(rng):
    """The Jacobian of LayerNorm is sqrt(d) / |y| (I - y y^T / |y|^2) (I - 1 1^T / d)."""
    for size in (0.1, 1.0, 10.0):
        x = size * rng.normal(size=6)
        y = x - x.mean()
        length = np.linalg.norm(y)
        expected = np.eye(6) - np.outer(y, y) / length**2
        expected = np.sqrt(6) / length * expected @ (np.eye(6) - 1 / 6)
        got = jacobian(lambda t: tr.layer_norm(t, eps=0.0), x)
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9 / size)


def test_the_stream_grows_in_pre_ln_and_keeps_its_size_in_post_ln():
    def rms(placement):
        stack = nn.TransformerStack(16, 2, 12, placement=placement, rng=0)
        x = tr.Tensor(np.random.default_rng(1).normal(size=(2, 8, 16)), dtype="float32")
        sizes = []
        for block in stack.blocks:
            x = block(x)
            sizes.append(float(np.sqrt(np.mean(x.data**2))))
        return sizes

    pre, post = rms("pre"), rms("post")
    assert pre[-1] > 1.5 * pre[3] and pre[3] > 1.2 * pre[0]
    np.testing.assert_allclose(post, 1, atol=1e-3)


def test_only_pre_ln_ends_in_one_more_norm():
    stacks = {p: nn.TransformerStack(8, 2, 2, placement=p) for p in nn.PLACEMENTS}
    assert stacks["pre"].final_norm is not None
    assert all(stacks[p].final_norm is None for p in ("post", "residual", "plain"))


# ---------------------------------------------------------------- what LayerNorm is


@BOTH
def test_layer_norm_acts_on_each_vector_of_features_alone(how, rng):
    x = rng.normal(size=(3, 4, 8))
    y = how(tr.Tensor(x)).data
    for b, t in np.ndindex(3, 4):
        np.testing.assert_allclose(y[b, t], how(tr.Tensor(x[b, t])).data, rtol=1e-12)
    changed = x.copy()
    changed[1, 2] += rng.normal(size=8)
    same = np.ones((3, 4), bool)
    same[1, 2] = False
    z = how(tr.Tensor(changed)).data
    assert np.array_equal(z[same], y[same]) and not np.allclose(z[1, 2], y[1, 2])
    t = tr.Tensor(x, requires_grad=True)
    (how(t)[1, 2] * rng.normal(size=8)).sum().backward()
    assert t.grad[1, 2].any() and not t.grad[same].any()


@BOTH
def test_mean_0_and_variance_1_before_gamma_and_beta(how, rng):
    for offset, scale in ((0, 1), (100, 0.1), (-3, 1000)):
        y = how(tr.Tensor(offset + scale * rng.normal(size=(5, 32))), eps=0.0).data
        np.testing.assert_allclose(y.mean(-1), 0, atol=1e-10)
        np.testing.assert_allclose(y.var(-1), 1, rtol=1e-9)


@BOTH
def test_gamma_and_beta_can_undo_the_normalisation(how, rng):
    x = rng.normal(size=16)
    eps = 1e-5
    gamma, beta = np.full(16, np.sqrt(x.var() + eps)), np.full(16, x.mean())
    np.testing.assert_allclose(how(tr.Tensor(x), gamma, beta, eps=eps).data, x, rtol=1e-12)


@BOTH
def test_layer_norm_does_not_see_scale_or_offset(how, rng):
    x = rng.normal(size=(2, 8))
    y = how(tr.Tensor(x), eps=0.0).data
    np.testing.assert_allclose(how(tr.Tensor(7 * x + 3), eps=0.0).data, y, rtol=1e-10, atol=1e-12)
