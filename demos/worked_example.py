"""The two steps of a block by hand: the residual addition and LayerNorm, on three numbers.

A Transformer carries a vector for each token from block to block, and a block does two things to
it. It adds what a sublayer F (attention or feed-forward) computes from the vector to the vector
itself, the residual addition:

    y = x + F(x)

So F(x) must be as long as x, and F has only the change to learn. And it normalises. LayerNorm
subtracts the mean of the vector's own numbers and divides by their standard deviation:

    x_hat = (x - mean) / sqrt(variance + eps)         y = gamma * x_hat + beta

x_hat has mean 0 and variance 1, whatever went in. gamma and beta are learned, one of each per
feature, so that LayerNorm can be undone where that is better. eps is there for a vector of equal
numbers, the exception: its variance is 0, and 0 / 0 is not a number.

Here is all of it with three numbers. The other lessons are about what happens when these two steps
are stacked many times, and about their order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import tinyres as tr
from demos import command
from demos.report import Finding, Part, Section, Table, told

X = [2.0, 4.0, 6.0]
FX = [0.5, -1.0, 0.5]
GAMMA, BETA = [1.0, 2.0, 0.5], [0.0, 1.0, -1.0]
FLAT = [5.0, 5.0, 5.0]


def measure() -> dict[str, Any]:
    """Every line of the calculation, each by its own op, and at the end all of it by one."""
    x, fx = tr.Tensor(X), tr.Tensor(FX)
    mean, variance = x.mean(), x.var()
    x_hat = (x - mean) / variance.sqrt()
    norm = tr.nn.LayerNorm(len(X), eps=0.0)
    norm.gamma.data, norm.beta.data = GAMMA, BETA
    with np.errstate(divide="ignore", invalid="ignore"):
        without_eps = tr.layer_norm(FLAT, eps=0.0)
    return {
        "x": X,
        "F(x)": FX,
        "x + F(x)": (x + fx).numpy().tolist(),
        "mean": mean.item(),
        "variance": variance.item(),
        "standard deviation": variance.sqrt().item(),
        "x_hat": x_hat.numpy().tolist(),
        "gamma * x_hat + beta": (tr.Tensor(GAMMA) * x_hat + tr.Tensor(BETA)).numpy().tolist(),
        "LayerNorm(3)": norm(x).detach().numpy().tolist(),
        "learned numbers": norm.num_parameters(),
        "flat, eps = 0": without_eps.numpy().tolist(),
        "flat, eps = 1e-5": tr.layer_norm(FLAT, eps=1e-5).numpy().tolist(),
    }


def show(value: Any) -> str:
    """A number or a vector with at most three decimals.

    >>> show([2.0, -1.2247, float("nan")])
    '[2, -1.225, nan]'
    """
    if isinstance(value, list):
        return "[" + ", ".join(map(show, value)) + "]"
    # + 0.0 turns -0.0 into 0.0
    return f"{round(value, 3) + 0.0:.3f}".rstrip("0").rstrip(".")


def findings(m: dict[str, Any]) -> list[Finding]:
    """Do the numbers come out as they do by hand?"""
    by_hand = {
        "x + F(x)": [2.5, 3.0, 6.5],
        "x_hat": [-1.225, 0.0, 1.225],
        "LayerNorm(3)": [-1.225, 1.0, -0.388],
        "learned numbers": 6,
        "flat, eps = 0": [np.nan] * 3,
        "flat, eps = 1e-5": [0.0] * 3,
    }
    measured = (
        f"x + F(x) = {show(m['x + F(x)'])}, LayerNorm(x) = {show(m['LayerNorm(3)'])}, a flat "
        f"vector {show(m['flat, eps = 1e-5'])}, without eps {show(m['flat, eps = 0'])}"
    )
    right = all(
        np.allclose(m[key], value, atol=5e-4, equal_nan=True) for key, value in by_hand.items()
    )
    asked = "the numbers of the calculation by hand, to 0.0005"
    return [Finding("The engine computes what one computes by hand", measured, right, asked)]


def lesson() -> Section:
    """The calculation as a table, line by line."""
    m = measure()
    rows = [
        ("the input", "x", show(m["x"])),
        ("what the sublayer returns for it", "F(x)", show(m["F(x)"])),
        ("the residual addition", "x + F(x)", show(m["x + F(x)"])),
        ("mean of x", "(2 + 4 + 6) / 3", show(m["mean"])),
        ("variance of x", "mean of (x - mean)^2", show(m["variance"])),
        ("standard deviation", "sqrt(variance)", show(m["standard deviation"])),
        ("normalised", "x_hat = (x - mean) / sqrt(variance)", show(m["x_hat"])),
        (f"scaled by gamma = {show(GAMMA)}, moved by beta = {show(BETA)}", "gamma * x_hat + beta",
         show(m["gamma * x_hat + beta"])),
        ("numbers that LayerNorm learns", "2 * d_model", show(m["learned numbers"])),
        (f"normalise {show(FLAT)} with eps = 0", "0 / sqrt(0 + 0)", show(m["flat, eps = 0"])),
        ("the same with eps = 1e-5", "0 / sqrt(0 + 1e-5)", show(m["flat, eps = 1e-5"])),
    ]  # fmt: skip
    caption = "Each line computed by one operation of the engine."
    head = ("step", "formula", "value")
    table = Table(head, [(what, f"`{how}`", value) for what, how, value in rows], caption)
    parts: list[Part] = [told(__doc__, 0), table]
    return Section("worked_example", "By hand: the two steps of a block", parts, findings(m), [m])


def main(argv: list[str] | None = None) -> int:
    def printed(_: Any) -> Section:
        section = lesson()
        for what, _, value in section.parts[1].rows:  # type: ignore[union-attr]
            print(f"{what:<72} {value}")
        return section

    return command.run(command.options("worked_example", __doc__), argv, printed)


if __name__ == "__main__":
    raise SystemExit(main())
