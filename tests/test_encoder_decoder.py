"""Cross-attention, and the encoder and decoder that are built with it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from placed import disturb, sublayer_matrices

import tinyres as tr
from tinyres import nn

D, HEADS = 8, 2
X = np.random.default_rng(5).normal(size=(2, 4, D)).astype("f4")


def by_hand(mha, x, memory):
    """Attention with one product a head, in NumPy."""
    weight, size = mha.qkv.weight.data, D // mha.heads
    q, k, v = (a @ weight[:, i * D : (i + 1) * D] for i, a in enumerate((x, memory, memory)))
    heads = []
    for i in range(mha.heads):
        part = slice(i * size, (i + 1) * size)
        scores = q[..., part] @ k[..., part].swapaxes(-1, -2) / np.sqrt(size)
        e = np.exp(scores)
        heads.append(e / e.sum(-1, keepdims=True) @ v[..., part])
    return np.concatenate(heads, -1) @ mha.out.weight.data


def test_cross_attention(rng):
    mha = nn.MultiHeadAttention(D, HEADS, rng=0)
    memory = rng.normal(size=(2, 6, D)).astype("f4")
    expected = by_hand(mha, X, memory)
    np.testing.assert_allclose(mha(X, memory).data, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mha(X, X).data, mha(X).data, rtol=1e-5, atol=1e-6)
    assert mha.weights(tr.Tensor(X), memory).shape == (2, HEADS, 4, 6)
    first = np.arange(6) < 3
    masked = mha(X, memory, mask=first).data
    np.testing.assert_allclose(masked, by_hand(mha, X, memory[:, :3]), rtol=1e-4, atol=1e-5)
    mha.astype("float64")
    assert tr.gradcheck(mha, [X, memory])


def test_a_memory_that_is_missing_or_not_asked_for():
    with pytest.raises(ValueError, match="got no memory, but was made with cross=True"):
        nn.TransformerBlock(D, HEADS, cross=True)(tr.Tensor(X))
    with pytest.raises(ValueError, match="got a memory, but was made with cross=False"):
        nn.TransformerStack(D, HEADS, 1)(X, X)
    with pytest.raises(ValueError, match="normed must be some of the letters of 'qkv', got 'qx'"):
        nn.MultiHeadAttention(D, HEADS, normed="qx")
    decoder = nn.TransformerStack(D, HEADS, 1, cross=True, rng=0)
    for alone in (decoder.blocks[0].cross_attention, encoder_decoder("admin").decoder.profile):
        with pytest.raises(ValueError, match="got no memory, but its sublayer attends to one"):
            alone(tr.Tensor(X))


# ---------------------------------------------------------------- encoder and decoder


def encoder_decoder(placement="pre", **options):
    sizes = {"vocab": 7, "d_model": D, "heads": HEADS, "blocks": 2, "context": 6, "rng": 0}
    return nn.TransformerEncoderDecoder(**{**sizes, "placement": placement, **options})


@pytest.mark.parametrize("options", [{}, {"dropout": 0.1}, {"tied": True}], ids=str)
def test_the_decoder_sees_all_of_the_source_and_no_later_target(options):
    built = encoder_decoder(**options)
    built.eval()
    source, target = np.array([[1, 2, 3, 4, 5, 6]]), np.array([[1, 2, 3, 4]])
    before = built(source, target).data
    for place in range(6):
        other = source.copy()
        other[0, place] = 0
        assert np.abs(built(other, target).data - before).max(-1).all()
    target[0, 3] = 0
    after = built(source, target).data
    np.testing.assert_allclose(after[:, :3], before[:, :3], rtol=1e-5, atol=1e-6)
    built.loss(source, target, target).backward()
    assert all(p.grad is not None for p in built.parameters())


def test_constants_of_encoder_and_decoder():
    n, m = 2, 5
    deep = encoder_decoder("deepnorm", decoder_blocks=m)
    pre = encoder_decoder("pre", decoder_blocks=m)
    expected = {
        "encoder": (0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16), 2 * n),
        "decoder": ((3 * m) ** 0.25, (12 * m) ** -0.25, 3 * m),
    }
    for part, (alpha, beta, count) in expected.items():
        layers = [s for b in getattr(deep, part).blocks for s in b.sublayers()]
        assert [layer.alpha for layer in layers] == pytest.approx([alpha] * count)
        pairs = zip(*(sublayer_matrices(getattr(built, part)) for built in (deep, pre)))
        for (_, name, matrix), (_, _, unscaled) in pairs:
            factor = 1 if name in ("query", "key") else beta
            np.testing.assert_allclose(matrix, factor * unscaled, rtol=1e-6)
    fixed = encoder_decoder("tfixup", decoder_blocks=m)
    for part, factor in (("encoder", 0.67 * n**-0.25), ("decoder", (9 * m) ** -0.25)):
        pairs = zip(*(sublayer_matrices(getattr(built, part)) for built in (fixed, pre)))
        for (_, name, matrix), (_, _, unscaled) in pairs:
            if name not in ("query", "key"):
                np.testing.assert_allclose(matrix, factor * unscaled, rtol=1e-6)


PER_BLOCK = {  # of a decoder of two blocks, one value for all three sublayers of a block
    "lns": ("scale", [1, 2**-0.5]),
    "siamese": ("scale", [1, 2**-0.5]),
    "completep": ("scale", [1 / 2] * 2),
    "depth_mup": ("scale", [2**-0.5] * 2),
    "mix": ("post", [True, False]),
}


@pytest.mark.parametrize("placement", PER_BLOCK)
def test_constants_of_blocks_with_cross_attention(placement):
    name, expected = PER_BLOCK[placement]

    class Rule(nn.placement_class(placement)):
        post_share = 0.5

    blocks = nn.TransformerStack(D, HEADS, 2, placement=Rule, cross=True, rng=0).blocks
    found = [[getattr(s, name) for s in block.sublayers()] for block in blocks]
    places = [s.place for block in blocks for s in block.sublayers()]
    assert [(place.index, place.total) for place in places] == [(i, 6) for i in range(1, 7)]
    np.testing.assert_allclose(found, [[value] * 3 for value in expected], rtol=1e-6)


def test_what_depends_on_the_number_of_blocks_with_cross_attention():
    def decoder(placement, blocks):
        return nn.TransformerStack(D, HEADS, blocks, placement=placement, cross=True, rng=0)

    for blocks, gain in ((18, 0.1), (19, 1e-5), (25, 1e-6)):
        layers = [s for b in decoder("layerscale", blocks).blocks for s in b.sublayers()]
        np.testing.assert_allclose([s.gain.data[0] for s in layers], gain, rtol=1e-6)
    pairs = zip(*(sublayer_matrices(decoder(p, 2)) for p in ("post_init", "post")))
    for (block, _, matrix), (_, _, unscaled) in pairs:
        np.testing.assert_allclose(matrix, unscaled / (2 - block + 1), rtol=1e-6)


def test_admin_measures_cross_attention_on_the_memory():
    decoder = nn.TransformerStack(D, HEADS, 2, placement="admin", cross=True, rng=0)
    memory = 5 * np.random.default_rng(1).normal(size=(2, 6, D)).astype("f4")
    decoder.profile(tr.Tensor(X), memory)
    stream, square = tr.Tensor(X), 1.0
    for block in decoder.blocks:
        for layer in block.sublayers():
            beside = [memory] if layer is block.cross_attention else []
            np.testing.assert_allclose(layer.omega.data**2, square, rtol=1e-4)
            branch = layer.branch(stream, *beside).data
            square = square * stream.data.var() + branch.var()
            stream = layer(stream, *beside)


@pytest.mark.parametrize("placement", ["deepnorm", "tfixup"])
def test_a_model_can_be_pickled(placement):
    built = encoder_decoder(placement)
    source, target = [[1, 2, 3]], [[4, 5]]
    again = pickle.loads(pickle.dumps(built))
    np.testing.assert_array_equal(again(source, target).data, built(source, target).data)


def test_memory_and_mask_by_name(rng):
    first = np.arange(4) < 2
    encoder = nn.TransformerStack(D, HEADS, 2, rng=0)
    np.testing.assert_allclose(
        encoder(X, mask=first).data[:, :2], encoder(X[:, :2]).data, rtol=1e-5, atol=1e-6
    )
    decoder = nn.TransformerStack(D, HEADS, 2, cross=True, rng=0)
    memory = rng.normal(size=(2, 6, D)).astype("f4")
    np.testing.assert_array_equal(decoder(X, memory=memory).data, decoder(X, memory).data)
    with pytest.raises(TypeError):
        decoder(X, memory, first, first)


def test_gradients_of_the_encoder_decoder(rng):
    built = encoder_decoder("post", blocks=1, activation="gelu").astype("float64")
    disturb(built, rng)
    source, target = rng.normal(size=(1, 3, D)), rng.normal(size=(1, 2, D))
    assert tr.gradcheck(lambda s, t: built.decoder(t, built.encoder(s)), [source, target])
