"""The laws: what a stack of random branches must do at initialisation, derived, not fitted.

Each block adds a branch f to the stream, and f is random, so E<x, f(x)> = 0 and powers add. By
power we mean the mean square of a feature: s_l = E|x_l|^2 / d for the stream x_l after l blocks,
and q_l = E|dLoss/dx_l|^2 for its gradient. A branch of gain p turns a vector of power 1 into one
of power p. For ReLU networks the same p holds on the way back, since half of the units pass in
both directions. That is all that the laws L1 to L5 need; they hold for stacks of feed-forward
branches, in the limit of great width.

Attention adds one more fact to keep track of: how alike the tokens are. `theory` does that for the
model of Xiong et al. 2020, where attention is a plain mean over the tokens.

Places: "residual" x + f(x); "pre" x + f(norm(x)); "post" norm(x + f(x)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# ---------------------------------------------------------------- one branch


def branch_gain(ratio: float = 1.0) -> float:
    """Gain p of a ReLU feed-forward branch whose hidden layer is `ratio` times as wide.

    Xavier's weights have variance 2 / (d + r d), so W1 turns power 1 into d * that = 2 / (1 + r).
    ReLU keeps half of it (Lemma 1 of Xiong et al. 2020), W2 multiplies by r d * variance =
    2 r / (1 + r). Together p = (r / 2) (2 / (1 + r))^2; on the way back the same factors come in
    the other order.

    >>> branch_gain(1), round(branch_gain(4), 2)
    (0.5, 0.32)
    """
    return ratio / 2 * (2 / (1 + ratio)) ** 2


def relu_cosine(rho: float) -> float:
    """Cosine of ReLU(u) and ReLU(v) for Gaussian u, v with cosine rho, not centred.

    The arc-cosine kernel of degree 1 (Cho and Saul 2009, eq. 6). It is above rho: ReLU makes
    vectors more alike.

    >>> relu_cosine(1.0), round(relu_cosine(0.0) * math.pi, 6)
    (1.0, 1.0)
    """
    rho = min(max(rho, -1.0), 1.0)
    return (math.sqrt(1 - rho**2) + rho * (math.pi - math.acos(rho))) / math.pi


def gate_cosine(rho: float) -> float:
    """Share of the units open for u that are open for v, too (the kernel of degree 0, same source).

    Two gradients that go back through the same ReLU layer have their cosine multiplied by it.

    >>> gate_cosine(1.0), gate_cosine(0.0)
    (1.0, 0.5)
    """
    return 1 - math.acos(min(max(rho, -1.0), 1.0)) / math.pi


# ---------------------------------------------------------------- L1: power is conserved


def stream_power(place: str, blocks: int, gain: float = 0.5) -> Floats:
    """s_0 ... s_L for s_0 = 1, shape (blocks + 1,)  (L1).

    Without a norm the branch sees power s and adds p s: s_l = (1 + p)^l. Pre-LN's branch always
    sees power 1 and adds p: s_l = 1 + p l. Post-LN is normalised back to 1.

    >>> stream_power("pre", 3).tolist(), stream_power("residual", 2).tolist()
    ([1.0, 1.5, 2.0, 2.5], [1.0, 1.5, 2.25])
    """
    depth = np.arange(blocks + 1.0)
    if place == "post":
        return np.ones(blocks + 1)
    return 1 + gain * depth if place == "pre" else (1 + gain) ** depth


def gradient_power(place: str, blocks: int, gain: float = 0.5) -> Floats:
    """q_l / q_L, shape (blocks + 1,): the product q_l s_l is the same at every depth  (L1).

    What comes back through a block is the skip's part, q, plus the branch's. Without a norm that
    is p q. In Pre-LN the norm divides by s: p q / s_l. In both cases q grows downwards by the
    factor by which s grew upwards, s_(l+1) / s_l. In Post-LN the two parts make (1 + p) q, and the
    norm, whose input has power 1 + p, divides by just that: nothing vanishes.

    >>> gradient_power("pre", 2).tolist(), gradient_power("post", 2).tolist()
    ([2.0, 1.3333333333333333, 1.0], [1.0, 1.0, 1.0])
    """
    s = stream_power(place, blocks, gain)
    return s[-1] / s


# ---------------------------------------------------------------- L2: which way it came


def crossing_chance(place: str, blocks: int, gain: float = 0.5) -> Floats:
    """Of each block: the share of the gradient's power that comes back through the branch  (L2).

    Skip and branch bring powers 1 and p / s_l (Pre-LN), or 1 and p (the others; Post-LN's norm
    scales both alike). The share is p / (s_l + p), or p / (1 + p).

    >>> crossing_chance("post", 2).round(3).tolist(), crossing_chance("pre", 2).round(3).tolist()
    ([0.333, 0.333], [0.333, 0.25])
    """
    s = stream_power("pre", blocks, gain)[:-1] if place == "pre" else np.ones(blocks)
    return gain / (s + gain)


def path_lengths(place: str, blocks: int, gain: float = 0.5) -> Floats:
    """Share of the gradient's power that crossed k = 0 ... L branches, shape (blocks + 1,)  (L2).

    A gradient is the sum over 2^L paths, one for each choice of skip or branch in every block
    (Veit et al. 2016, sec. 3). Different paths cross different random matrices, so their powers
    add, and each block is crossed with its own chance: the number of crossings is a sum of
    independent yes/no events, whose distribution is a product of two-term polynomials.

    >>> path_lengths("post", 2).round(3).tolist()
    [0.444, 0.444, 0.111]
    """
    shares = np.ones(1)
    for chance in crossing_chance(place, blocks, gain):
        shares = np.convolve(shares, [1 - chance, chance])
    return shares


def skip_share(place: str, blocks: int, gain: float = 0.5) -> float:
    """Share that crossed no branch at all: 1 / s_L in Pre-LN, (1 + p)^(-L) in the others  (L2).

    >>> skip_share("pre", 24) == 1 / 13
    True
    """
    s = stream_power("pre" if place == "pre" else "residual", blocks, gain)
    return float(1 / s[-1])


# ---------------------------------------------------------------- L3: the last matrix


def last_matrix_gradient(place: str, d: int, top_power: float = 1.0, gain: float = 0.5) -> float:
    """Norm of one token's gradient of the last W2, for |dLoss/d output| = 1 and r = 1  (L3).

    The gradient is the outer product of the hidden vector, |h|^2 = d / 2, and what arrives at the
    branch. In Post-LN that has passed a norm whose input has power 1 + p; in Pre-LN the final norm,
    whose input has power s_L: |g|^2 = (d/2) / (1 + p) or (d/2) / s_L. Both grow as sqrt(d), where
    Theorem 1 of Xiong et al. 2020 allows d sqrt(ln d): that is an upper bound, not a rate.

    >>> last_matrix_gradient("pre", 8, top_power=4.0), last_matrix_gradient("post", 3)
    (1.0, 1.0)
    """
    return math.sqrt(d / 2 / (1 + gain if place == "post" else top_power))


# ---------------------------------------------------------------- L4: how far the output moves


def output_shift(rule: str, blocks: int, gain: float = 0.5) -> float:
    """E|F(x, W) - F(x, W + eps noise)|^2 / (d eps^2), noise as large as each weight  (L4).

    Noise on W1 and on W2 each changes a branch's output by p eps^2: together 2 p. Call D the
    power of the change relative to the stream's. A block x <- norm(a x + f) has skip power a^2 and
    branch power p, and the change takes both ways as the stream does, so D only gains what is new:
    D <- D + 2 p / (a^2 + p). In Pre-LN the place of a^2 has the stream's own power s_l.

    "post"      a = 1: N 2p/(1+p), linear in depth (Liu et al. 2020, sec. 4.2)
    "pre"       sum over k of 2p/(1+pk): logarithmic. "admin" the same: a^2 is set to s_l
    "peri"      as Pre-LN with p = 1, whatever the branch: its output is normalised
    "deepnorm"  a = N^(1/4), and W1, W2 scaled by (4N)^(-1/4): falls as N^(-1/2)
    "keel"      the first two have a = 1, and the first no outer norm, so that the second sees a
                skip of power 1 + p; the others have a = N: stays near 2p/(1+p) + 2p/(1+2p)

    N counts sublayers: a Transformer block has two.

    >>> round(output_shift("post", 4), 3), round(output_shift("pre", 4), 3)
    (2.667, 1.9)
    """
    n = blocks
    if rule in ("pre", "admin", "peri"):
        p = 1.0 if rule == "peri" else gain
        return sum(2 * p / (1 + p * k) for k in range(1, n + 1))
    keel = [1.0, 1 + gain, *[n**2.0] * (n - 2)][:n]
    skips = {"post": [1.0] * n, "keel": keel, "deepnorm": [n**0.5] * n}[rule]
    p = gain / (4 * n) if rule == "deepnorm" else gain
    return sum(2 * p / (a_squared + p) for a_squared in skips)


# ---------------------------------------------------------------- L5: a branch that returns nothing


def frozen_branch(variance: float) -> float:
    """Factor of the gradient's norm at one Post-LN sublayer with an independent branch  (L5).

    norm(x + c), where c has this variance but does not depend on x, as in cross-attention, whose
    values come from the encoder. The norm divides by sqrt(1 + v), and no gradient returns
    through c to make up for it: this, and not self-attention, is what vanishes in Post-LN decoders.

    >>> frozen_branch(0.0), round(frozen_branch(1.0), 4)
    (1.0, 0.7071)
    """
    return 1 / math.sqrt(1 + variance)


# ---------------------------------------------------------------- Xiong's model, with attention


class Course(NamedTuple):
    """What `theory` foretells, by depth."""

    stream: Floats  # s_l = E|x_l|^2 / d, (blocks + 1,)
    stream_gradient: Floats  # norm of dLoss/dx_l, one token, (blocks + 1,)
    w2_gradient: Floats  # norm of dLoss/dW2, for d = B = 1: times sqrt(d / B), (blocks,)


def theory(place: str, blocks: int, tokens: int) -> Course:
    """The model of Xiong et al. 2020, sec. 3.3: attention is a mean over tokens, times W_V.

    Two numbers on the way up: s, the power of a token, and c, the product of two tokens. The mean
    of n tokens has power r = s/n + (1 - 1/n) c, the same for all of them, so attention adds r (of
    the normalised tokens) to both s and c. The feed-forward branch adds 1/2 to s, and to c 1/2
    times the cosine that ReLU leaves.

    Two numbers on the way down: Q, the power of a token's gradient, and C, the product of two.
    Labels are random, so C = 0 at the top. W2's gradient sums outer products over the tokens:
    its power is (Q + (n - 1) C * ReLU cosine) / 2, over the n that the loss averages. A norm
    divides by the power of its input.

    >>> theory("pre", 6, 16).stream[-1].round(3), theory("pre", 4, 1).stream[-1]
    (np.float64(6.175), np.float64(7.0))
    """
    s, c, n = 1.0, 0.0, tokens
    stream, middle = [s], []
    for _ in range(blocks):
        r = (s + (n - 1) * c) / (n * s)
        s2, c2 = s + r, c + r
        middle.append((s, s2, c2 / s2))
        s, c = s2 / s2, c2 / s2  # as the feed-forward branch sees it
        if place == "pre":
            s, c = s2 + 0.5, c2 + 0.5 * relu_cosine(c)
        else:
            s, c = 1.0, (c + 0.5 * relu_cosine(c)) / 1.5
        stream.append(s)
    post = place == "post"
    power, product = (1.0 if post else 1 / s), 0.0
    stream_gradient, w2_gradient = [power**0.5], []
    for s, s2, rho in reversed(middle):
        if post:
            power, product = power / 1.5, product / 1.5
        w2_gradient.append((0.5 * (power + (n - 1) * relu_cosine(rho) * product) / n) ** 0.5)
        back = 0.5 if post else 0.5 / s2
        power, product = power * (1 + back), product * (1 + back * gate_cosine(rho))
        if post:
            power, product = power / s2, product / s2
        mean = (power + (n - 1) * product) / n / (1 if post else s)
        power, product = power + mean, product + mean
        stream_gradient.append(power**0.5)
    return Course(np.array(stream), np.array(stream_gradient[::-1]), np.array(w2_gradient[::-1]))


# ---------------------------------------------------------------- two inputs, two gradients


def gradient_cosine(place: str, blocks: int) -> float:
    """Cosine of dy/dx at two unrelated inputs, ReLU branches of gain 1 (Balduzzi et al. 2017).

    "plain" (no skip): the two gradients share a fraction of the open units, k0(rho), at each
    layer, while the inputs become more alike, rho <- k1(rho). With a skip the branch is one part
    of two, (1 + k0) / 2; in Pre-LN one of s_l + 1, (s_l + k0) / (s_l + 1). Balduzzi's rates
    2^-L, (3/4)^L and about 1/sqrt(L) follow for k0 = 1/2, that is for inputs that stay unrelated.

    >>> round(gradient_cosine("plain", 4), 2), round(gradient_cosine("residual", 4), 3)
    (0.14, 0.375)
    """
    rho, cosine = 0.0, 1.0
    for block in range(blocks):
        s = {"plain": 0.0, "pre": 1.0 + block}.get(place, 1.0)
        cosine *= (s + gate_cosine(rho)) / (s + 1)
        rho = (s * rho + relu_cosine(rho)) / (s + 1)
    return cosine


def slope(x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> float:
    """Exponent b of y = a x^b, fitted to the logarithms.

    >>> round(slope([1, 2, 4], [3, 6, 12]), 6)
    1.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
