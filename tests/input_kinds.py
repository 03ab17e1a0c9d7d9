"""The strange values to try for each kind of argument (`input_rows.py`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tinyres import Tensor, nn

NAN, INF, HUGE, OBJECT = float("nan"), float("inf"), 10**400, object()
RAGGED = [[1.0], [1.0, 2.0]]


class Kind(NamedTuple):
    """Values for an argument: such as must be refused, and such as may be."""

    refused: tuple[Any, ...]
    either: tuple[Any, ...] = ()


NO_ARRAYS = ("text", ["a"], OBJECT, 1j, np.complex64(1), RAGGED, {"a": 1}, np.array(["x"]),
             [None, 1.0], np.array([OBJECT]), np.array("2020", "M8[D]"), b"1")  # fmt: skip
ODD_ARRAYS = (
    np.full((2, 3), NAN), np.full((2, 3), INF), np.full((2, 3), 1e300), np.float64(2.0), 3, True,
    np.zeros(0), np.zeros((0, 3)), np.zeros((2, 0)), np.ones((7, 5)), np.ones((1,) * 5), [1, 2, 3],
    np.arange(6).reshape(2, 3), np.ones((2, 3), bool), np.ones((2, 3), "f2"), -1, HUGE, [],
    np.ones((2, 3))[:, ::-1].T, np.uint8(200), np.longdouble(1.5),
)  # fmt: skip
NO_NUMBERS = (None, True, np.True_, "a", [1.0], 1j, OBJECT, np.ones(3), {})
KINDS = {
    "array": Kind((None, *NO_ARRAYS), ODD_ARRAYS),
    "array?": Kind(NO_ARRAYS, (None, *ODD_ARRAYS)),
    "array!": Kind(NO_ARRAYS, ODD_ARRAYS),  # without it something else is meant
    "arrays": Kind((None, 3, "text", [], [None], ["a"], [[1.0], OBJECT], OBJECT),
                   (np.ones((2, 3)), [np.ones((7, 5)), np.ones(2)], [1.0, np.ones(2)], {})),
    "any": Kind((), (*NO_ARRAYS, *ODD_ARRAYS)),
    "size": Kind((*NO_NUMBERS, 0, -1, 2.5, "3", NAN, INF, 10**30, HUGE), (np.int64(2),)),
    "size?": Kind((*NO_NUMBERS[1:], 0, -1, 2.5, "3", NAN, 10**30), (None, np.int64(2))),
    "count": Kind((*NO_NUMBERS, -1, 2.5, NAN, INF, HUGE), (0, np.int64(2))),
    "count?": Kind((*NO_NUMBERS[1:], -1, 2.5, NAN, INF, HUGE), (None, 0, np.int64(2))),
    "from 0": Kind((*NO_NUMBERS, -1, NAN, HUGE, "0.5"), (0, 1, np.float32(0.5), np.array(0.5))),
    "real": Kind((*NO_NUMBERS, NAN, INF, HUGE), (-1, 0, np.float32(0.5))),
    "share": Kind((*NO_NUMBERS, -0.1, 1.1, NAN, INF), (0, 1, np.float32(0.5))),
    "number": Kind(("a", OBJECT, {}, [None]), (NAN, INF, -1, HUGE, 0, np.float64(2), True)),
    "axis": Kind(("a", 1.5, 99, -99, [None], {}, OBJECT, HUGE), (None, 0, (0, 0), np.int64(0))),
    "shape": Kind(("ab", (2.5,), (-2, -3), (7, 7), ("a",), 10**30, OBJECT, (-1, -1)), (None, -1)),
    "axes": Kind(("ab", (0, 0), (0, 5), (0.5, 1), (0,), OBJECT), (None, (-1, 0), [1, 0])),
    "index": Kind(("a", 1.5, OBJECT, [0.5], 99, (0, 0, 0), {}, np.ones((7, 7), bool)),
                  (None, ..., -1, [], True, slice(None), slice(9, 2, -1), np.int64(1))),
    "mask": Kind(("a", 1.0, OBJECT, np.ones((2, 2)), np.ones((7, 7), bool)), (None, True)),
    "integers": Kind((None, "a", [0.5], [[99]], [[-1]], [[0], [0, 1]], [NAN], OBJECT, HUGE),
                     ([], [[0]], np.zeros((0, 2), int), np.array([[1]], np.uint8))),
    "flag": Kind((), (None, "yes", 3, [])),
    "dtype": Kind(("nonsense", complex, "U3", 3, object, "M8[s]"), ("f8", np.float16)),
    "seed": Kind(("a", -1, 1.5, True, OBJECT, [-1]), (None, 3, [1, 2])),
    "rng": Kind((None, "a", 3, OBJECT)),
    "own op": Kind((3, "f", [], OBJECT)),
    "function?": Kind((3, "f", [], OBJECT), (None,)),
    "integer?": Kind(("a", OBJECT, {}, [None], True, np.True_, 1.5, NAN), (None, HUGE, 7)),
    "function": Kind((None, 3, "f", [], OBJECT)),
    "name": Kind((None, 3, "nonsense", [], NAN)),
    "word": Kind((None, 3, "nonsense", NAN)),
    "text": Kind((None, 3, b"x", OBJECT)),
    "text?": Kind((3, b"x", OBJECT), (None, "")),
    "texts": Kind((None, 3, "ab", ("a",), (1, 2), OBJECT), (["", "b"],)),
    "letters": Kind((None, 3, "x", OBJECT), ("", "q")),
    "names": Kind((3, "a", ["a"], {"x": 3}, {3: nn.Parameter([1.0])}, OBJECT), (None, {})),
    "params": Kind((None, 3, [1.0], ["a"], [None], [np.ones(2)], OBJECT)),
    "state": Kind((None, 3, "a", [1], {"zz": 1}, {}, OBJECT)),
    "weights": Kind((None, 3, [1], {"zz": 1}, {}, OBJECT)),  # a text is the path of a file
    "by": Kind(("a", OBJECT, {}, None, RAGGED), (NAN, INF, -1, HUGE, 0, np.float64(2), True)),
    "level": Kind((1.5, "a", True, OBJECT, NAN), (None, 0, -1)),
    "depth": Kind((1.5, "a", True, np.True_, OBJECT, NAN, -1), (None, 0, 99)),
    "axis_number": Kind(("a", 1.5, True, 99, -99, None, [0], (0, 0), OBJECT, HUGE),
                        (0, -1, np.int64(1))),
    "above 0": Kind((*NO_NUMBERS, 0, -1, NAN, INF, HUGE), (np.float32(1e-3),)),
    "above 0?": Kind((*NO_NUMBERS[1:], 0, -1, NAN, INF, HUGE), (None, 1)),
    "from 0 to infinity": Kind((*NO_NUMBERS, -1, NAN, HUGE, "0.5"), (0, INF, np.float32(0.5))),
    "float dtype": Kind(("nonsense", complex, "U3", 3, object, int, None), ("f4", np.float16)),
    "batches": Kind((None, 3, [], [None], [(1,)], ["ab"], OBJECT)),
    "modules": Kind((None, 3, OBJECT), ([], [1], "ab")),
    "path": Kind((None, 3, b"x", OBJECT, ["x"])),
    "parameter": Kind((None, 3, "a", OBJECT, np.ones((5, 3)))),
    "tensor": Kind((None, "a", OBJECT, RAGGED), (3, Tensor(np.ones((7, 5))))),
    "stack": Kind((None, 3, "a", OBJECT, nn.LayerNorm(2))),
    "integers?": Kind(("a", [0.5], [[99, 0]], [[-1, 0]], [[0], [0, 1]], OBJECT), (None, [[1, 1]])),
    "traced": Kind((None, 3, "a", OBJECT, np.ones(3))),
    "model": Kind((None, 3, "a", OBJECT, nn.LayerNorm(2))),
    "batch": Kind((None, 3, (1,), [], OBJECT, ("a", "b"), ([[0.5]], [[1]]), (RAGGED, RAGGED))),
}  # fmt: skip
