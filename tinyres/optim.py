"""Optimizers, gradient clipping and learning-rate schedules.

An optimizer lays its parameters side by side in one flat array, of which they become views. A step
then is a few long operations instead of a dozen short ones a parameter.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from tinyres import checked, expect
from tinyres.arrays import Array, as_array, note_write
from tinyres.tensor import Tensor

CHUNK = 1 << 14  # elements at a time, so that all the arrays of an update stay in the cache


class _Flat:
    """Parameters of one dtype side by side in one array, with their gradients and `slots` more."""

    def __init__(self, params: list[Tensor], slots: int):
        self.params = params
        ends = list(itertools.accumulate(p.size for p in params))
        self.bounds = [0, *ends]
        dtype = params[0].dtype
        self.grad = np.zeros(ends[-1], dtype)
        self.slots = [np.zeros(ends[-1], dtype) for _ in range(slots)]
        self.steps = [0] * len(params)
        self.gather()

    def gather(self) -> None:
        """Copy the parameters into a new flat array and make them views of it."""
        if any(p.dtype != self.grad.dtype for p in self.params):
            raise TypeError(
                f"optimizer: its parameters were {self.grad.dtype} when it was made and are "
                f"{self.params[0].dtype} now: make a new one after astype()"
            )
        self.data = np.concatenate([p.data.reshape(-1) for p in self.params])
        self.views = []
        self.written: dict[tuple[int, int], Array] = {}
        for p, start, end in zip(self.params, self.bounds, self.bounds[1:]):
            p._data = self.data[start:end].reshape(p.shape)
            self.views.append(p._data)

    def runs(self) -> Iterator[tuple[slice, int]]:
        """Stretches of parameters that have a gradient and took equally many steps, this included.

        Usually that is all of them in one. A parameter without a gradient is left alone.
        """
        if any(p.data is not view for p, view in zip(self.params, self.views)):
            self.gather()  # somebody gave a parameter an array of its own since
        grads: list[Any] = [p.grad for p in self.params]
        key = [(g is not None, steps) for g, steps in zip(grads, self.steps)]
        for (has_grad, steps), group in itertools.groupby(range(len(key)), key.__getitem__):
            if has_grad:
                members = list(group)
                first, last = members[0], members[-1] + 1
                run = slice(self.bounds[first], self.bounds[last])
                np.concatenate(grads[first:last], axis=None, out=self.grad[run])
                self.steps[first:last] = [steps + 1] * (last - first)
                yield run, steps + 1
                # Kept, because the note refers to it weakly.
                note_write(self.written.setdefault((first, last), self.data[run]))


class Optimizer:
    """What the optimizers share. `lr` may be assigned between steps, for instance by a schedule."""

    slots = 0  # arrays of state beside each parameter

    def __init__(self, params: Iterable[Tensor], lr: float):
        unique = {id(p): p for p in checked.tensors(type(self).__name__, params)}
        for p in unique.values():
            if not p.is_leaf:
                raise ValueError(
                    f"{type(self).__name__}: a tensor of shape {p.shape} was made by an op: pass "
                    "leaves, such as model.parameters()"
                )
        self.lr = lr
        self.params = [p for p in unique.values() if p.requires_grad]  # the others are frozen
        if not self.params:
            raise ValueError(f"{type(self).__name__}: no tensor among params requires grad")
        by_dtype: dict[Any, list[Tensor]] = {}
        for p in self.params:
            by_dtype.setdefault(p.dtype, []).append(p)
        self._flats = [_Flat(params, self.slots) for params in by_dtype.values()]

    @property
    def lr(self) -> float:
        """The learning rate."""
        return self._lr

    @lr.setter
    def lr(self, value: Any) -> None:
        self._lr = expect.number("lr", value, 0)  # a NumPy scalar would widen float32 parameters

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for p in self.params:
            p.grad = None

    def step(self) -> None:
        """Change the parameters in place by one step along their gradients."""
        for flat in self._flats:
            for run, step in flat.runs():
                for start in range(run.start, run.stop, CHUNK):
                    part = slice(start, min(start + CHUNK, run.stop))
                    state = [slot[part] for slot in flat.slots]
                    self.update(flat.data[part], flat.grad[part], step, *state)

    def update(self, p: Array, g: Array, step: int, *state: Array) -> None:
        """Write new values into `p` and `state`; `g` may be overwritten, `step` is from 1."""
        raise TypeError(f"{type(self).__name__} has no update method: write one")

    def state_dict(self) -> dict[str, Any]:
        """Learning rate, steps taken and state arrays, to go on later."""
        return {
            "lr": self.lr,
            "steps": [list(flat.steps) for flat in self._flats],
            "slots": [[slot.copy() for slot in flat.slots] for flat in self._flats],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave; checked first, so that a refusal changes nothing."""
        if not isinstance(state, dict) or state.keys() != self.state_dict().keys():
            raise ValueError(
                "load_state_dict: state must be a dict with lr, steps and slots, as state_dict() "
                f"gives it, got {expect.shown(state)}"
            )
        slots = [[as_array(a, what="load_state_dict") for a in group] for group in state["slots"]]
        steps = [
            [expect.size("load_state_dict: steps", s, least=0) for s in group]
            for group in state["steps"]
        ]
        shapes = [[slot.shape for slot in flat.slots] for flat in self._flats]
        given = [[slot.shape for slot in group] for group in slots]
        if shapes != given or list(map(len, steps)) != [len(f.steps) for f in self._flats]:
            raise ValueError(
                f"load_state_dict: expected state of shapes {shapes}, the given one has {given}"
            )
        self.lr = state["lr"]
        for flat, taken, group in zip(self._flats, steps, slots):
            flat.steps = taken
            for own, other in zip(flat.slots, group):
                own[...] = other


class SGD(Optimizer):
    """p <- p - lr * b, with b <- momentum * b + g (+ weight_decay * p in g).

    >>> p = Tensor([1.0], requires_grad=True)
    >>> (p * p).backward(); SGD([p], lr=0.25).step(); p.detach()
    Tensor([0.5])
    """

    slots = 1

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ):
        super().__init__(params, lr)
        self.momentum = expect.number("SGD: momentum", momentum, 0)
        self.weight_decay = expect.number("SGD: weight_decay", weight_decay, 0)

    def update(self, p: Array, g: Array, step: int, *state: Array) -> None:
        (buffer,) = state
        if self.weight_decay:
            g += self.weight_decay * p
        buffer *= self.momentum
        buffer += g
        p -= self.lr * buffer


class Adam(Optimizer):
    """p <- p - lr * m_hat / (sqrt(v_hat) + eps) (Kingma and Ba 2015, algorithm 1).

    m and v are running means of g and g ** 2; m_hat = m / (1 - beta1 ** step), v_hat likewise.
    `weight_decay` is added to the gradient.

    >>> p = Tensor([1.0], requires_grad=True)
    >>> (p * p).backward(); Adam([p], lr=0.25).step(); p.detach()
    Tensor([0.75])
    """

    slots = 2
    decoupled = False

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ):
        super().__init__(params, lr)
        name = type(self).__name__
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise TypeError(f"{name}: betas must be two numbers, got {expect.shown(betas)}")
        self.betas = expect.number("beta1", betas[0], 0, 1), expect.number("beta2", betas[1], 0, 1)
        if 1 in self.betas:
            raise ValueError(f"{name}: betas must be from 0 to below 1, got {betas}")
        self.eps = expect.number(f"{name}: eps", eps, 0)
        self.weight_decay = expect.number(f"{name}: weight_decay", weight_decay, 0)

    def update(self, p: Array, g: Array, step: int, *state: Array) -> None:
        m, v = state
        beta1, beta2 = self.betas
        if self.weight_decay and self.decoupled:
            p *= 1 - self.lr * self.weight_decay
        elif self.weight_decay:
            g += self.weight_decay * p
        # m <- beta1 m + (1 - beta1) g, written as a step towards g
        scratch = g - m
        scratch *= 1 - beta1
        m += scratch
        g *= g
        g -= v
        g *= 1 - beta2
        v += g
        np.sqrt(v, out=scratch)
        scratch *= 1 / math.sqrt(1 - beta2**step)
        scratch += self.eps
        np.divide(m, scratch, out=scratch)
        scratch *= self.lr / (1 - beta1**step)
        p -= scratch


class AdamW(Adam):
    """Adam whose weight decay shrinks p by lr * weight_decay beside the step.

    Loshchilov and Hutter 2019; as in PyTorch, the decay is multiplied by lr, too.

    >>> p = Tensor([1.0], requires_grad=True)
    >>> (0.0 * p).backward(); AdamW([p], lr=0.5, weight_decay=0.5).step(); p.detach()
    Tensor([0.75])
    """

    decoupled = True

    def __init__(self, params: Iterable[Tensor], lr: float = 1e-3, **options: Any):
        super().__init__(params, lr, **{"weight_decay": 0.01, **options})


def clip_grad_norm(params: Iterable[Tensor], max_norm: float) -> float:
    """Scale all gradients by one factor so that their joint norm is at most `max_norm`.

    Returns the norm before (Pascanu et al. 2013, algorithm 1). A norm that is not finite is a
    FloatingPointError, and the gradients stay as they are.

    >>> p = Tensor([3.0, 4.0], requires_grad=True)
    >>> (p * p).sum().backward(); clip_grad_norm([p], 1.0), p.grad.round(4)
    (10.0, array([0.6, 0.8], dtype=float32))
    """
    max_norm = expect.number("clip_grad_norm: max_norm", max_norm, 0, finite=False)
    params = [params] if isinstance(params, Tensor) else checked.tensors("clip_grad_norm", params)
    grads = [p.grad for p in params if p.grad is not None]
    # In float64, since the square of a float32 above 2e19 is infinite.
    total = math.sqrt(math.fsum(float(np.square(g, dtype=np.float64).sum()) for g in grads))
    if not math.isfinite(total):
        raise FloatingPointError(
            f"clip_grad_norm: the gradients have norm {total}: no factor makes them finite; "
            "tr.detect_anomaly() finds the op they come from"
        )
    factor = max_norm / (total + 1e-6)
    if factor < 1:
        for g in grads:
            g *= factor
    return total


Schedule = Callable[[int], float]


def _checked(what: str, lr: Any, warmup: Any) -> tuple[float, int]:
    return expect.number(f"{what}: lr", lr, 0), expect.size(f"{what}: warmup", warmup, least=0)


def warmup_constant(lr: float, warmup: int) -> Schedule:
    """Steps 0, 1, ... -> a line up to `lr`, reached at step `warmup` - 1; then `lr`.

    >>> [warmup_constant(1.0, 4)(step) for step in (0, 3, 9)]
    [0.25, 1.0, 1.0]
    """
    lr, warmup = _checked("warmup_constant", lr, warmup)
    return lambda step: lr * min(1.0, (step + 1) / max(warmup, 1))


def warmup_cosine(lr: float, warmup: int, total: int, *, floor: float = 0.0) -> Schedule:
    """Steps 0, 1, ... -> a line up to `lr`, then half a cosine down to `floor` at step `total`.

    >>> [round(warmup_cosine(1.0, 2, 10)(step), 3) for step in (0, 1, 6, 10)]
    [0.5, 1.0, 0.5, 0.0]
    """
    lr, warmup = _checked("warmup_cosine", lr, warmup)
    total = expect.size("warmup_cosine: total", total, least=0)
    floor = expect.number("warmup_cosine: floor", floor, 0)

    def schedule(step: int) -> float:
        if step < warmup:
            return lr * (step + 1) / warmup
        done = min(1.0, (step - warmup) / max(total - warmup, 1))
        return floor + (lr - floor) * (1 + math.cos(math.pi * done)) / 2

    return schedule


def inverse_sqrt(lr: float, warmup: int) -> Schedule:
    """Steps 0, 1, ... -> a line up to `lr`, then lr sqrt(warmup / (step + 1)).

    Vaswani et al. 2017, eq. 3.

    >>> [inverse_sqrt(1.0, 4)(step) for step in (0, 3, 15)]
    [0.25, 1.0, 0.5]
    """
    lr, warmup = _checked("inverse_sqrt", lr, warmup)
    start = max(warmup, 1)
    return lambda step: lr * min((step + 1) / start, math.sqrt(start / (step + 1)))
