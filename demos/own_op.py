"""An op of your own: a NumPy function that returns its value and the way back.

tinyres knows no list of ops. `@tr.op` makes one of any function on arrays that returns two things:
the value, and the pullback, a function from the gradient of the value to the gradient of each
input. Broadcasting, dtypes, the tape and the drawing are done around it.

The example is swish(x) = x * sigmoid(x). By the product rule its derivative is s + x s (1 - s),
where s = sigmoid(x). `tr.gradcheck` compares a pullback with what one measures by moving each
input a little, and names the element that is wrong: see what it says to `forgetful`, which has lost
the second term.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np

import tinyres as tr
from demos import command
from demos.plots import Picture
from demos.report import Figure, Finding, Part, Sample, Section, told


@tr.op
def swish(x):
    """x * sigmoid(x), elementwise."""
    s = 1 / (1 + np.exp(-x))
    return x * s, lambda g: (g * (s + x * s * (1 - s)),)


@tr.op
def forgetful(x):
    """swish with a pullback that is wrong: it takes s for a constant."""
    s = 1 / (1 + np.exp(-x))
    return x * s, lambda g: (g * s,)


def verdict(op: object) -> str:
    """What gradcheck says about an op on a few numbers: nothing, if it is right."""
    try:
        tr.gradcheck(op, [np.linspace(-2, 2, 6).reshape(2, 3)])  # type: ignore[arg-type]
    except AssertionError as error:
        return str(error)
    return ""


def descend(steps: int = 200) -> float:
    """The new op in use: x goes down swish until its lowest point."""
    x = tr.Tensor([0.0], requires_grad=True)
    optimizer = tr.optim.SGD([x], lr=0.5)
    for _ in range(steps):
        x.zero_grad()
        swish(x).backward()
        optimizer.step()
    return float(x.data[0])


def picture(out: Path) -> Picture:
    """A graph with the new op in it: no drawing code was written for it."""
    x = tr.Tensor(np.ones((1, 4)), requires_grad=True)
    w = tr.Tensor(np.ones((4, 4)), requires_grad=True)
    drawing = tr.draw(x + swish(x @ w), title="x + swish(x @ w)", names={"x": x, "w": w})
    drawing.render(out / "own-op.svg")
    return Picture("own-op", drawing.svg(prefix="own-op"), "The graph of x + swish(x @ w)")


def lesson(out: Path) -> Section:
    """The op, its verdict, its use and its picture."""
    right, wrong, lowest = verdict(swish), verdict(forgetful), descend()
    slope = 1 + lowest * (1 - 1 / (1 + np.exp(-lowest)))  # the derivative over s
    findings = [
        Finding("gradcheck accepts the right pullback", right or "no difference", not right,
                "no difference"),
        Finding("gradcheck finds the wrong one", wrong or "no difference", bool(wrong),
                "a difference, by name"),
        Finding("Gradient descent with the new op finds its lowest point",
                f"x = {lowest:.4f}, where the derivative is {slope:.1e}", abs(slope) < 1e-4,
                "a derivative below 1e-4"),
    ]  # fmt: skip
    parts: list[Part] = [
        told(__doc__, 0),
        Sample(inspect.getsource(swish), "All that an op is."),
        Sample(f"{inspect.getsource(forgetful)}\n{wrong}",
               "The same with a term forgotten, and what gradcheck says to it."),
        Figure([picture(out)], "The new op in a graph."),
    ]  # fmt: skip
    records = [{"verdict": right, "verdict on the wrong one": wrong, "lowest": lowest}]
    return Section("own_op", "An op of your own", parts, findings, records)


def main(argv: list[str] | None = None) -> int:
    return command.run(command.options("own_op", __doc__), argv, lambda a: lesson(a.out))


if __name__ == "__main__":
    raise SystemExit(main())
