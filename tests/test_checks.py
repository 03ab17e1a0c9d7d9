"""gradcheck finds wrong pullbacks; detect_anomaly finds the op where a number stops being one."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import leaf

import tinyres as tr
from tinyres import nn


def own(value, pullback):
    """An op of one or two inputs from two functions."""

    @tr.op
    def planted(a, b):
        return value(a, b), lambda g: pullback(g, a, b)

    return planted


LAST_IS_OFF = 1 + 1e-3 * (np.arange(9) == 8).reshape(3, 3)
MISTAKES = {
    "sign": own(lambda a, b: a * b, lambda g, a, b: (g * b, -g * a)),
    "missing term": own(lambda a, b: a * b + a, lambda g, a, b: (g * b, g * a)),
    "factor": own(lambda a, b: a**2 * b, lambda g, a, b: (g * a * b, g * a**2)),
    "operands exchanged": own(lambda a, b: a / b, lambda g, a, b: (-g * a / b**2, g / b)),
    "transposed": own(lambda a, b: a @ b, lambda g, a, b: (g @ b, a.T @ g)),
    "no gradient": own(lambda a, b: a * b, lambda g, a, b: (g * b, None)),
    "cotangent ignored": own(lambda a, b: a * b, lambda g, a, b: (b, a)),
    "one element": own(lambda a, b: a * b, lambda g, a, b: (g * b, g * a * LAST_IS_OFF)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_gradcheck_finds(mistake):
    rng = np.random.default_rng(0)
    inputs = [rng.uniform(0.5, 2, (3, 3)) for _ in range(2)]
    with pytest.raises(AssertionError, match=r"input [01], element \(\d, \d\): .*gives"):
        tr.gradcheck(MISTAKES[mistake], inputs)


def test_gradcheck_names_input_and_element():
    with pytest.raises(AssertionError, match=r"input 1, element \(2, 2\): .*1 of 9 elements"):
        tr.gradcheck(MISTAKES["one element"], [np.ones((3, 3)), np.ones((3, 3))])


def test_gradcheck_works_in_float64_and_leaves_its_inputs_alone():
    x = leaf(1.0, 2.0, dtype="float32")
    seen = []

    def fn(t, index):
        seen.append((t.dtype, index.dtype))
        return t[index.data] * t[index.data]

    assert tr.gradcheck(fn, [x, np.array([0, 0, 1])])
    assert set(seen) == {(np.dtype("float64"), np.dtype("int64"))}
    assert x.grad is None and x.data.tolist() == [1, 2] and x.dtype == np.float32


def test_gradcheck_of_an_input_that_does_not_matter():
    assert tr.gradcheck(lambda a, b: a * 2, [np.ones(2), np.ones(3)])


# ---------------------------------------------------------------- detect_anomaly


def test_an_anomaly_forward_names_the_op_and_the_modules():
    class Risky(nn.Module):
        def forward(self, x):
            return x.log()

    model = nn.Sequential(nn.Linear(2, 2, rng=0), nn.Sequential(Risky()))
    with (
        np.errstate(invalid="ignore", divide="ignore"),
        tr.detect_anomaly(),
        pytest.raises(FloatingPointError, match=r"log: its value .*layers\.1 > layers\.0"),
    ):
        model(np.array([[1.0, -1.0], [-5.0, 5.0]], "f4"))


def test_an_anomaly_backward_names_the_op():
    x = leaf(0.0, 1.0)
    with np.errstate(divide="ignore"), tr.detect_anomaly():
        y = x.sqrt().sum()
        with pytest.raises(FloatingPointError, match=r"sqrt: its cotangent of input 0 has 1 of 2"):
            y.backward()
    assert x.grad is None


def test_an_infinite_parameter_is_found_where_it_is_used():
    layer = nn.Linear(2, 2, rng=0)
    layer.weight.data[0, 0] = np.inf
    with tr.detect_anomaly(), pytest.raises(FloatingPointError, match="linear: its value has 1 of"):
        layer(np.ones((1, 2), "f4"))


def test_detection_ends_with_its_block():
    with pytest.raises(FloatingPointError), tr.detect_anomaly(), np.errstate(divide="ignore"):
        leaf(0.0).log()
    with np.errstate(divide="ignore"):
        assert leaf(0.0).log().data.tolist() == [-np.inf]
    with tr.detect_anomaly():
        assert (leaf(1.0) > 0).all() and tr.Tensor(np.arange(3)).sum().item() == 3


def test_gradcheck_leaves_the_gradients_of_parameters_alone():
    layer = tr.nn.Linear(2, 1, rng=0).astype(np.float64)
    assert tr.gradcheck(lambda x: layer(x), [np.ones((1, 2))])
    assert layer.weight.grad is None
