"""Is a gradient right, and where does a number stop being one?"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tinyres import expect
from tinyres.arrays import Array, as_array
from tinyres.context import Scope, no_grad, switched
from tinyres.signatures import ArrayLike, Arrived
from tinyres.tensor import DELIVER, Tensor


def gradcheck(
    fn: Callable[..., Tensor],
    inputs: Sequence[Tensor | ArrayLike],
    *,
    eps: float = 1e-6,
    atol: float = 1e-6,
    rtol: float = 1e-5,
    seed: int = 0,
) -> bool:
    """Compare the gradients of `fn` with central differences, in float64.

    df/dx is (f(x + eps) - f(x - eps)) / (2 eps), each element of each float input on its own,
    with f the sum of fn's elements under fixed random weights. True, or an AssertionError that
    says which input and element differ, and by how much.

    >>> gradcheck(lambda a, b: a @ b, [np.ones((2, 3)), np.ones((3, 2))])
    True
    """
    expect.function("gradcheck: fn", fn)
    if expect.number("gradcheck: eps", eps, 0) == 0:
        raise ValueError("gradcheck: eps must be above 0, got 0")
    atol, rtol = (
        expect.number("gradcheck: atol", atol, 0),
        expect.number("gradcheck: rtol", rtol, 0),
    )
    tensors = _in_float64(inputs)
    y = expect.instance("gradcheck: what fn returns", fn(*tensors), Tensor, "a tensor")
    weights = expect.generator("gradcheck", seed).standard_normal(y.shape)
    # Caught on their way: the gradients of parameters that fn uses are nobody's business here.
    arrived: Arrived = []
    token = DELIVER.set(arrived.extend)
    try:
        y.backward(weights)
    finally:
        DELIVER.reset(token)
    gradients = {node: g for node, g, _ in arrived}

    @no_grad()
    def f() -> float:
        return float((fn(*tensors).data * weights).sum())

    for i, t in enumerate(tensors):
        if t.requires_grad:
            measured = _central_differences(f, t, eps)
            found = gradients.get(t._differentiable(), np.zeros(t.shape))
            wrong = ~np.isclose(found, measured, rtol=rtol, atol=atol)
            if wrong.any():
                where = tuple(int(n) for n in np.argwhere(wrong)[0])
                raise AssertionError(
                    f"gradcheck: input {i}, element {where}: pullback gives {found[where]:.8g}, "
                    f"central differences give {measured[where]:.8g} "
                    f"({int(wrong.sum())} of {wrong.size} elements differ)"
                )
    return True


def _in_float64(inputs: Sequence[Tensor | ArrayLike]) -> list[Tensor]:
    """Copies of the inputs; the float ones, of which there must be one, require grad."""
    expect.instance("gradcheck: inputs", inputs, (list, tuple), "a list of arrays")
    if not inputs:
        raise ValueError("gradcheck: inputs must be at least one array, got none")
    arrays = [as_array(x, what="gradcheck: inputs") for x in inputs]
    if not any(a.dtype.kind == "f" for a in arrays):
        given = ", ".join(expect.shown(a) for a in arrays)
        raise TypeError(
            f"gradcheck: one of the inputs must be of a float dtype, got {given}: integers have "
            "no gradient; give x.astype(float)"
        )
    return [
        Tensor(a, dtype=np.float64, requires_grad=True) if a.dtype.kind == "f" else Tensor(a)
        for a in arrays
    ]


def _central_differences(f: Callable[[], float], t: Tensor, eps: float) -> Array:
    measured = np.zeros(t.shape)
    for where in np.ndindex(t.shape):
        before = t.data[where]
        t.data[where] = before + eps
        above = f()
        t.data[where] = before - eps
        below = f()
        t.data[where] = before
        measured[where] = (above - below) / (2 * eps)
    return measured


@contextlib.contextmanager
def detect_anomaly(*, step: int | None = None) -> Iterator[None]:
    """Raise FloatingPointError at the first op whose value or cotangent is not finite.

    The error names the op, the modules it is in, the shape, and the `step` of the training if it
    is told. Costs nothing when off.

    >>> with detect_anomaly(), np.errstate(divide="ignore"):
    ...     Tensor([0.0]).log()
    Traceback (most recent call last):
    ...
    FloatingPointError: log: its value has 1 of 1 elements that are not finite (shape (1,))
    """
    if step is not None:
        step = expect.size("detect_anomaly: step", step, least=0)
    when = "" if step is None else f"step {step}: "
    with switched(check=functools.partial(_check_finite, when)):
        yield


def _check_finite(when: str, op: str, array: Array, what: str, scope: Scope | None) -> None:
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return
    bad = array.size - int(np.isfinite(array).sum())
    path = scope_path(scope)
    place = f", in {path}" if path else ""
    raise FloatingPointError(
        f"{when}{op}: its {what} has {bad} of {array.size} elements that are not finite "
        f"(shape {array.shape}{place})"
    )


def scope_path(scope: Scope | None) -> str:
    """The modules and named parts round an op, outermost first, as "blocks.3 > attention".

    >>> scope_path(None)
    ''
    """
    names: list[str] = []
    while scope is not None:
        owner = scope.owner() if scope.owner is not None else None
        caller = scope.parent
        while caller is not None and caller.owner is None:
            caller = caller.parent
        around = caller.owner() if caller is not None and caller.owner is not None else None
        name = scope.name
        if owner is not None and around is not None:
            name = next((n for n, m in around.members() if m is owner), name)
        names.append(name)
        scope = scope.parent
    return " > ".join(reversed(names))
