"""Each placement at initialisation, against recorded values."""

from __future__ import annotations

import functools
import itertools
from decimal import Decimal

import numpy as np
import pytest

import tinyres as tr
from tinyres import nn
from tinyres.nn import layers

# Values of an independent implementation in PyTorch (float32, mean of 5 seeds, for 48 blocks of 3):
# a causal decoder, d = 128, 4 heads, d_ff = 4d, Xavier-normal matrices, 32 tokens, batch 4, 256
# random tokens and labels, input of variance 1, eps 1e-6. Behind the sign stands how much one seed
# differs from another (standard deviation over 24 seeds of this library, for 48 blocks over 12).
# The quantities:
#   s         mean square of the stream at the top
#   w2        norm of the gradient of the last W_2;  ratio: of the first one, divided by it
#   gradient  norm of the gradient of the stream above the first block, divided by that at the top
#   tokens    cosine between two tokens of a sequence at the top
#   blocks    cosine between what goes into a block and what comes out, upper half of the stack
#   shift     relative square of the change of the output per square of that of the matrices
SIX_BLOCKS = """
placement    w2             ratio         shift
pre          0.417±0.017    2.13±0.16     4.07±0.48
post         0.907±0.071    1.11±0.17     8.62±1.5
residual     42.3±14        8.23±2.3      213±61
gpt2         0.813±0.028    1.17±0.033    0.619±0.026
deepnorm     0.182±0.0058   1.00±0.013    0.0448±0.0012
post_init    0.795±0.029    0.222±0.0097  1.13±0.045
admin        0.402±0.018    2.20±0.18     3.95±0.45
admin_torch  0.439±0.018    1.17±0.07     2.27±0.12
rezero       0.000±0        0.000±0       0.000±0
tfixup       0.409±0.015    1.04±0.021    0.279±0.011
layerscale   0.0896±0.0028  1.02±0.015    0.0763±0.0025
sandwich     0.484±0.025    2.31±0.24     5.43±0.9
peri         0.483±0.025    2.31±0.24     5.40±0.9
output       0.466±0.021    4.68±0.44     23.6±3.6
olmo2        -              2.30±0.23     -
normformer   0.507±0.011    2.81±0.14     9.67±1.2
b2t          0.462±0.022    1.22±0.095    2.43±0.15
dual         2.08±0.57      1.28±0.22     7.08±1.2
mix          0.429±0.021    2.29±0.22     4.70±0.79
lns          0.245±0.0095   3.26±0.16     2.01±0.15
dyt          0.173±0.007    1.18±0.05     1.26±0.087
hybrid       0.878±0.066    1.15±0.18     7.79±1.5
ngpt         0.0829±0.0029  1.02±0.027    0.0893±0.0028
completep    0.146±0.0047   1.06±0.019    0.211±0.0075
depth_mup    0.301±0.01     1.33±0.045    1.19±0.059
keel         0.0750±0.0028  10.0±0.21     0.964±0.035
span         0.846±0.049    1.07±0.075    4.03±0.43
siamese      0.944±0.11     2.24±0.19     3.73±0.38
hyper        0.417±0.017    2.13±0.16     4.07±0.48
"""
TWELVE_BLOCKS = """
placement    s             tokens         blocks         shift
pre          11.0±1.1      0.680±0.038    0.937±0.0036   6.39±0.97
post         1.00±0        0.986±0.0059   0.637±0.013    17.0±6.7
residual     7.91e4±6.3e4  0.929±0.022    0.607±0.014    387±1.2e2
gpt2         1.28±0.022    0.082±0.011    0.990±0.00031  0.629±0.033
deepnorm     1.00±0        0.004±0.0033   0.999±1.1e-5   0.0317±0.0011
post_init    1.00±0        0.141±0.017    0.962±0.0015   1.10±0.041
admin        1.00±0        0.674±0.044    0.940±0.0026   6.38±0.96
admin_torch  1.00±0        0.394±0.048    0.948±0.0029   3.03±0.31
rezero       1.00±0.014    -0.001±0.0031  1.000±0        0.000±0
tfixup       1.12±0.02     0.036±0.0057   0.995±0.00011  0.283±0.012
layerscale   1.07±0.016    0.020±0.0043   0.997±7.1e-5   0.152±0.0061
sandwich     24.5±1.8      0.716±0.029    0.945±0.0039   6.95±1.4
peri         24.5±1.8      0.715±0.029    0.945±0.0039   6.94±1.4
output       24.8±1.5      0.553±0.05     0.946±0.0031   81.0±22
normformer   32.2±1.3      0.469±0.038    0.944±0.0019   13.6±1.8
b2t          1.00±0        0.637±0.054    0.911±0.0045   5.31±1.1
dual         1.00±0        0.986±0.0059   0.637±0.013    14.3±5.3
mix          10.6±1.2      0.864±0.023    0.913±0.0064   9.80±2
lns          2.92±0.16     0.362±0.037    0.984±0.0008   2.63±0.24
dyt          3.01±0.22     0.417±0.045    0.952±0.0025   3.26±0.32
hybrid       1.39±0.11     0.976±0.0087   0.673±0.012    16.2±8.2
ngpt         1.00±0        0.023±0.0042   0.997±2.6e-5   0.179±0.0064
completep    1.05±0.015    0.013±0.0038   0.998±4.9e-5   0.106±0.0041
depth_mup    1.59±0.038    0.160±0.021    0.982±0.00064  1.22±0.08
keel         1.00±0        0.119±0.014    0.999±1.6e-5   0.938±0.041
span         1.00±0        0.707±0.05     0.876±0.0061   7.46±1.3
siamese      1.00±0        0.606±0.051    0.950±0.0029   5.86±0.84
hyper        176±17        0.680±0.038    0.937±0.0036   6.39±0.97
"""
TWELVE_BLOCKS_GRADIENTS = """
placement    w2             ratio         gradient
pre          0.308±0.022    3.20±0.28     2.48±0.13
post         0.886±0.08     1.02±0.24     0.992±0.22
residual     964±6.2e2      612±1.4e3     3.40e5±1.6e6
gpt2         0.811±0.027    1.23±0.033    1.15±0.0063
deepnorm     0.129±0.0041   1.01±0.014    0.991±0.002
post_init    0.783±0.031    0.114±0.0055  1.07±0.013
admin        0.294±0.021    3.51±0.34     0.991±0.083
admin_torch  0.357±0.019    1.27±0.096    1.05±0.045
rezero       0.000±0        0.000±0       1.00±0
tfixup       0.352±0.012    1.06±0.022    1.07±0.0044
layerscale   0.0879±0.0028  1.06±0.017    1.04±0.0032
sandwich     0.362±0.036    3.23±0.47     2.56±0.16
peri         0.363±0.036    3.24±0.48     2.55±0.16
output       0.345±0.028    15.3±3.7      18.7±3.9
olmo2        -              3.10±0.46     -
normformer   0.362±0.013    4.23±0.26     3.82±0.2
b2t          0.516±0.045    1.27±0.15     0.999±0.079
dual         1.80±0.96      1.36±0.27     2.24±0.45
mix          0.330±0.028    3.38±0.47     3.20±0.32
lns          0.164±0.0072   5.22±0.29     1.28±0.017
dyt          0.191±0.0096   1.55±0.1      1.65±0.041
hybrid       0.902±0.079    1.02±0.24     1.03±0.21
ngpt         0.0825±0.0034  1.06±0.039    1.01±0.0038
completep    0.0738±0.0024  1.05±0.015    1.03±0.0026
depth_mup    0.213±0.0077   1.43±0.054    1.29±0.01
keel         0.0380±0.0013  19.8±0.5      0.988±0.0025
span         0.938±0.086    0.904±0.11    0.861±0.085
siamese      0.861±0.15     3.23±0.3      1.09±0.1
hyper        0.308±0.022    3.20±0.28     -
"""
# Rules whose constants depend on depth.
FORTY_EIGHT_BLOCKS = """
placement    s           w2               ratio          gradient      tokens       shift
gpt2         1.28±0.025  0.784±0.026      1.25±0.056     1.17±0.0091   0.085±0.012  0.614±0.024
deepnorm     1.00±0      0.0634±0.002     1.00±0.01      0.991±0.0013  0.002±0.0037 0.0158±0.00036
post_init    1.00±0      0.769±0.032      0.0297±0.0011  1.07±0.0092   0.136±0.012  1.10±0.034
admin_torch  1.00±0      0.195±0.01       1.34±0.16      1.05±0.096    0.570±0.056  4.95±0.67
tfixup       1.12±0.02   0.242±0.0073     1.06±0.032     1.08±0.0053   0.036±0.0079 0.280±0.01
lns          3.99±0.26   0.0660±0.0045    12.1±1         1.44±0.043    0.462±0.035  3.52±0.52
completep    1.01±0.015  0.0184±0.00058   1.02±0.012     1.01±0.0013   0.003±0.004  0.0264±0.001
depth_mup    1.59±0.042  0.101±0.0039     1.46±0.094     1.32±0.02     0.165±0.021  1.21±0.045
keel         1.00±0      0.00917±0.00031  78.7±1.7       0.990±0.0017  0.108±0.016  0.923±0.029
mix          50.7±5      0.144±0.015      6.52±1.8       7.63±2.3      0.997±0.0016 31.5±12
"""
SEEDS, RECORDED_SEEDS = {6: 2, 12: 2, 48: 1}, {6: 5, 12: 5, 48: 3}
D, HEADS, T, B, V = 128, 4, 32, 4, 256


def table(text):
    """{placement: {quantity: (value, spread)}}"""
    head, *rows = [line.split() for line in text.strip().splitlines()]
    return {
        row[0]: {name: entry.split("±") for name, entry in zip(head[1:], row[1:]) if entry != "-"}
        for row in rows
    }


GRADIENTS = table(TWELVE_BLOCKS_GRADIENTS)
RECORDED = {
    6: table(SIX_BLOCKS),
    12: {name: GRADIENTS[name] | table(TWELVE_BLOCKS).get(name, {}) for name in GRADIENTS},
    48: table(FORTY_EIGHT_BLOCKS),
}


@pytest.fixture(autouse=True, scope="module")
def normal_matrices():
    """Xavier's variance with the normal distribution, as in the recorded runs."""

    def normal(rng, n_in, n_out):
        return rng.normal(0, np.sqrt(2 / (n_in + n_out)), (n_in, n_out)).astype("f4")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "xavier", normal)
        yield


@functools.cache
def measured(placement, blocks):
    """All quantities, as a mean over seeds."""
    runs = [one_run(placement, blocks, seed) for seed in range(SEEDS[blocks])]
    return {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}


def one_run(placement, blocks, seed):
    rng = np.random.default_rng([seed, blocks])
    stack = nn.TransformerStack(
        D, HEADS, blocks, placement=placement, causal=True, eps=1e-6, rng=rng
    )
    tokens, labels = rng.integers(V, size=(2, B, T))
    embedded = rng.standard_normal((V, D))[tokens] + rng.standard_normal((T, D))
    x = tr.Tensor(embedded / np.sqrt(2), dtype="f4", requires_grad=True)
    head = rng.normal(0, D**-0.5, (D, V)).astype("f4")
    stack.profile(x)

    stream, top = forward(stack, x)
    for value in stream:
        value.retain_grad()
    tr.cross_entropy(top @ head, labels).backward()
    w2 = [np.linalg.norm(b.feed_forward.branch.down.weight.grad) for b in stack.blocks]
    found = {
        "s": np.mean(stream[-1].data ** 2),
        "w2": w2[-1],
        "ratio": w2[0] / w2[-1] if w2[-1] else 0,
        "tokens": token_cosine(stream[-1].data),
        "blocks": np.mean([
            cosine(a.data, b.data) for a, b in itertools.pairwise(stream[blocks // 2 :])
        ]),
        "shift": shift(stack, x, rng),
    }  # fmt: skip
    if stream[1].grad is not None:  # the sum of several streams is no part of the way to the top
        found["gradient"] = np.linalg.norm(stream[1].grad) / np.linalg.norm(stream[-1].grad)
    return found


def forward(stack, x):
    streams = [stack.begin(x)]
    for block in stack.blocks:
        streams.append(block(streams[-1]))
    return [stack.placement.seen(s) for s in streams], stack.end(streams[-1])


@tr.no_grad()
def shift(stack, x, rng, eps=0.02):
    before = stack(x).data
    for module in stack.modules():
        for matrix in getattr(module, "matrices", dict)().values():
            matrix += eps * matrix.std() * rng.standard_normal(matrix.shape, "f4")
    return ((stack(x).data - before) ** 2).sum() / (before**2).sum() / eps**2


def cosine(a, b):
    a, b = a.astype("f8"), b.astype("f8")
    return np.mean(np.vecdot(a, b) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1))


def token_cosine(x):
    unit = x.astype("f8") / np.linalg.norm(x, axis=-1, keepdims=True)
    # The square of the sum is that of all pairs: T times a vector with itself, and what is asked.
    return np.mean(((unit.sum(1) ** 2).sum(-1) - T) / (T * (T - 1)))


# Twelve blocks without a norm: the softmax is saturated, rounding decides where it jumps, and the
# seeds spread over three powers of ten (17 to 47,000 for the ratio). So the powers are compared;
# the numbers are their standard deviation over 24 seeds.
HEAVY_TAILED = {("residual", 12, "ratio"): 0.86, ("residual", 12, "gradient"): 0.82}
CASES = [(placement, blocks) for blocks, rows in RECORDED.items() for placement in rows]


@pytest.mark.parametrize(("placement", "blocks"), CASES)
def test_a_placement_does_what_was_recorded(placement, blocks):
    """Within four standard deviations of the difference of two means, and the last digit.

    Four, as there are some 350 comparisons, and few of the quantities are normally distributed.
    """
    found = measured(placement, blocks)
    several = np.sqrt(1 / SEEDS[blocks] + 1 / RECORDED_SEEDS[blocks])
    off = {}
    for name, (value, spread) in RECORDED[blocks][placement].items():
        seen, expected, deviation = found[name], float(value), float(spread) * several
        digit = 0.5 * 10.0 ** Decimal(value).as_tuple().exponent
        if power := HEAVY_TAILED.get((placement, blocks, name)):
            seen, expected = np.log10(seen), np.log10(expected)
            deviation, digit = power * several, 0.0
        if abs(seen - expected) > 4 * deviation + 1.01 * digit:
            off[name] = f"{found[name]:.4g}, recorded {value} ± {deviation:.2g}"
    assert not off


def test_admin_is_pre_ln_at_initialisation():
    admin, pre = measured("admin", 12), measured("pre", 12)
    for name in ("w2", "tokens", "shift"):
        assert admin[name] == pytest.approx(pre[name], rel=0.08), name


def test_output_norm_needs_normalised_queries_and_keys():
    """Its branches see the growing stream, and the products of queries and keys grow with it."""
    assert measured("output", 12)["ratio"] > 3 * measured("olmo2", 12)["ratio"]
    assert measured("olmo2", 12)["ratio"] == pytest.approx(measured("peri", 12)["ratio"], rel=0.1)
