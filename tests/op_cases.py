"""Every public op with the inputs it is tried with: one table for all tests that go over the ops.

A case gives the shapes of the differentiable inputs and the attributes. What holds for every op
(layouts, repeated operands, dtypes, freed memory) is derived from the same row by the tests.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import tinyres as tr


class Case(NamedTuple):
    """One way to call an op."""

    shapes: tuple[tuple[int, ...], ...]
    attrs: dict[str, Any] = {}  # noqa: RUF012 (never written)
    low: float = -2.0
    high: float = 2.0
    before: tuple[Any, ...] = ()  # arguments without a gradient that come first

    def arrays(self, dtype: str = "float64", seed: int = 0) -> list[np.ndarray]:
        """Inputs of this case."""
        rng = np.random.default_rng(seed)
        return [rng.uniform(self.low, self.high, s).astype(dtype) for s in self.shapes]

    def call(self, op: Callable[..., Any], *inputs: Any) -> Any:
        """The op on these inputs."""
        return op(*self.before, *inputs, **self.attrs)


SOME = np.array([[True, False, True, True], [False, True, True, False], [False] * 4])
KEEP = np.array([[0, 2, 2, 0]] * 3, "float32")
UNARY = ((3, 4),), ((),), ((0, 4),), ((2, 3, 2),)
BINARY = (
    ((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 1), (1, 4)), ((2, 3, 4), ()), ((), ()), ((0, 4), (4,)),
    ((1,), (3, 4)), ((2, 1, 4), (3, 1)),
)  # fmt: skip
AXES = (
    (((3, 4),), {}), (((3, 4),), {"axis": 0}), (((3, 4),), {"axis": -1, "keepdims": True}),
    (((2, 3, 4),), {"axis": (0, -1)}), (((2, 3, 4),), {"axis": (2, 0), "keepdims": True}),
    (((),), {}), (((0, 4),), {"axis": 1}), (((3, 4),), {"axis": ()}), (((2, 1, 3),), {"axis": 1}),
)  # fmt: skip


def _rows(shapes: Any, low: float = -2.0, high: float = 2.0) -> list[Case]:
    return [Case(s, low=low, high=high) for s in shapes]


def _attention_rows() -> list[Case]:
    q, k, v = (2, 3, 4), (2, 5, 4), (2, 5, 3)
    empty_row = np.array([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], bool)
    per_batch = np.stack([empty_row, ~empty_row])
    return [
        Case((q, k, v)),
        Case((q, q, q), {"causal": True}),
        Case((q, k, v), {"causal": True}),
        Case(((2, 5, 4), (2, 3, 4), (2, 3, 2)), {"causal": True}),
        Case((q, k, v), {"mask": empty_row}),
        Case((q, k, v), {"mask": per_batch, "causal": True}),
        Case((q, k, v), {"mask": np.array([True, False, True, True, False])}),
        Case((q, k, v), {"mask": np.array([[True], [False], [True]])}),
        Case(((3, 4), (5, 4), (5, 3)), {"mask": np.array(True)}),
        Case(((3, 4), k, (2, 2, 5, 3))),
        Case(((0, 3, 4), (0, 5, 4), (0, 5, 2)), {"causal": True}),
        Case(((2, 0, 4), (2, 5, 4), (2, 5, 3))),
    ]


def _self_attention_rows() -> list[Case]:
    w, b = (4, 12), (12,)
    mask = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1]], bool)
    return [
        Case(((2, 3, 4), w, b), {"heads": 2}),
        Case(((2, 3, 4), w, b), {"heads": 2, "causal": True}),
        Case(((2, 3, 4), w, b), {"heads": 4, "mask": mask}),
        Case(((2, 3, 4), w, b), {"heads": 2, "mask": mask, "causal": True}),
        Case(((2, 3, 4), w, b), {"heads": 2, "mask": np.stack([mask, ~mask])[:, None]}),
        Case(((3, 4), w), {"heads": 1}),
        Case(((0, 3, 4), w, b), {"heads": 2, "causal": True}),
    ]


CASES: dict[str, list[Case]] = {
    **{name: _rows(BINARY) for name in ("add", "sub", "mul", "maximum")},
    "div": _rows(BINARY, 0.5),
    "power": _rows(BINARY, 0.5),
    "where": [
        Case(((3, 4), (3, 4)), before=(SOME,)),
        Case(((3, 4), ()), before=(SOME,)),
        Case(((2, 3, 1), (4,)), before=(SOME,)),
        Case(((0, 4), (4,)), before=(np.zeros((0, 1), bool),)),
        Case(((), ()), before=(True,)),
    ],
    **{name: _rows(UNARY) for name in ("exp", "tanh", "sigmoid", "relu", "gelu", "normal_cdf")},
    **{name: _rows(UNARY, 0.3) for name in ("log", "sqrt")},
    "shift": [Case(s, {"by": 1.5}) for s in UNARY],
    "scale": [Case(s, {"by": -0.5}) for s in UNARY],
    "raise_to": [Case(s, {"exponent": e}, low=0.3) for s in UNARY for e in (3, -1.5, 0, 1)],
    **{
        name: [Case(*row) for row in AXES]
        for name in ("sum", "mean", "var", "norm")
    },
    "max": [Case(*row) for row in AXES],
    **{
        name: [
            Case(((3, 4),)), Case(((2, 3, 4),), {"axis": 1}), Case(((0, 4),)), Case(((5,),)),
            Case(((2, 1),)), Case(((3, 4),), {"axis": 0}),
        ]
        for name in ("softmax", "log_softmax")
    },
    "matmul": _rows((
        ((3, 4), (4, 2)), ((4,), (4,)), ((4,), (4, 2)), ((3, 4), (4,)), ((2, 3, 4), (4, 2)),
        ((3, 4), (2, 4, 2)), ((2, 1, 3, 4), (3, 4, 2)), ((4,), (2, 4, 3)), ((2, 3, 4), (4,)),
        ((0, 3, 4), (4, 2)), ((3, 0), (0, 2)), ((3, 3), (3, 3)),
    )),
    "reshape": [
        Case(((3, 4),), {"shape": (2, 6)}), Case(((3, 4),), {"shape": (-1,)}),
        Case(((1,),), {"shape": ()}), Case(((),), {"shape": (1, 1)}),
        Case(((0, 4),), {"shape": (2, 0)}),
    ],
    "transpose": [
        Case(((3, 4),)), Case(((2, 3, 4),), {"axes": (2, 0, 1)}), Case(((),)),
        Case(((2, 3, 4),), {"axes": (-1, 0, -2)}), Case(((0, 4),)), Case(((5,),)),
    ],
    "getitem": [
        Case(((3, 4),), {"index": index})
        for index in (
            1, -1, slice(None, None, 2), slice(2, None, -1), (slice(None), 1), Ellipsis, None,
            (Ellipsis, None, 0), (None, slice(1), Ellipsis), np.array([0, 0, 2, -1]), [1, 1, 0],
            SOME, ([0, 0, 1], [1, 1, 2]), (slice(None), [3, 3]), np.zeros(0, int), (), np.int64(2),
            (np.array([[0], [2]]), np.array([0, 0, 3])), np.array([True, False, True]),
            (0, slice(None), None), slice(3, 3), (1, 2),
        )
    ] + [Case(((0, 4),), {"index": slice(None)}), Case(((),), {"index": ()})],
    "concatenate": [
        Case(((3, 4), (2, 4)), {"axis": 0}), Case(((3, 1), (3, 4), (3, 2)), {"axis": -1}),
        Case(((0, 4), (2, 4)), {"axis": 0}), Case(((3, 4), (3, 4)), {"axis": 1}),
        Case(((3, 4),), {"axis": 0}),
    ],
    "stack": [
        Case(((3, 4), (3, 4)), {"axis": 0}), Case(((3,),) * 3, {"axis": -1}),
        Case(((), ()), {"axis": 0}), Case(((0, 4), (0, 4)), {"axis": 1}),
    ],
    "linear": _rows((
        ((3, 4), (4, 2), (2,)), ((2, 3, 4), (4, 5), (5,)), ((4,), (4, 2), (2,)), ((3, 4), (4, 2)),
        ((0, 4), (4, 2), (2,)), ((2, 0, 4), (4, 2)), ((3, 1), (1, 1), (1,)),
    )),
    "layer_norm": [
        *_rows((((3, 4), (4,), (4,)), ((2, 3, 4), (4,), (4,)), ((3, 4),), ((3, 4), (4,)),
                ((4,), (4,), (4,)), ((0, 4), (4,), (4,)), ((3, 1), (1,), (1,)))),
        Case(((3, 4), (4,), (4,)), {"eps": 0.5}),
    ],
    "rms_norm": [
        *_rows((((3, 4), (4,)), ((2, 3, 4), (4,)), ((3, 4),), ((4,), (4,)), ((0, 4), (4,)),
                ((3, 1), (1,)))),
        Case(((3, 4), (4,)), {"eps": 0.5}),
    ],
    "attention": _attention_rows(),
    "self_attention": _self_attention_rows(),
    "embedding": [
        Case(((5, 3),), {"index": index})
        for index in ([[0, 4, 4], [1, 0, 4]], 2, np.zeros((0, 3), int), [[3]])
    ],
    "cross_entropy": [
        Case(((4, 5),), {"targets": [0, 4, 2, 2]}),
        Case(((2, 2, 5),), {"targets": [[0, 4], [2, 2]]}),
        Case(((4, 5),), {"targets": [0, -100, 2, -100], "ignore_index": -100}),
        Case(((4, 5),), {"targets": [0, 1, 2, 1], "ignore_index": 1}),
        Case(((2, 5),), {"targets": [7, 7], "ignore_index": 7}),
        Case(((5,),), {"targets": 3}),
        Case(((0, 5),), {"targets": np.zeros(0, int)}),
    ],
    "residual": _rows((((3, 4), (3, 4)), ((), ()), ((0, 4), (0, 4)))),
    "mse": _rows((((3, 4), (3, 4)), ((5,), (5,)), ((), ()))),
    "dropout": [Case(((3, 4),), {"keep": KEEP})],
}  # fmt: skip


def public_ops() -> dict[str, Callable[..., Any]]:
    """Every op of the package, found by the attribute that `@op` leaves on it."""
    modules = [
        importlib.import_module(m.name) for m in pkgutil.walk_packages(tr.__path__, "tinyres.")
    ]
    return {
        name.rstrip("_"): value
        for module in modules
        for name, value in vars(module).items()
        if inspect.isfunction(value) and hasattr(value, "spelled_out")
    }


OPS = public_ops()


def all_cases() -> Iterator[tuple[str, Case]]:
    """Every row with the name of its op, in one order on every machine."""
    return ((name, case) for name in sorted(CASES.keys() & OPS.keys()) for case in CASES[name])


def case_id(value: Any) -> str:
    """What pytest prints for a parameter."""
    if isinstance(value, Case):
        shapes = "-".join(str(s).replace(" ", "") for s in value.shapes)
        shown = {k: v for k, v in value.attrs.items() if not isinstance(v, np.ndarray)}
        return shapes + ("-" + ",".join(f"{k}={v}" for k, v in shown.items()) if shown else "")
    return str(value)
