"""Refusals that name the cure: of an op that is not one, and of names that PyTorch has."""

from __future__ import annotations

import copy
import operator
import pickle

import numpy as np
import pytest

import tinyres as tr
from tinyres import expect


def run(function, *inputs):
    """Forward and backward of an op made of `function`."""
    tensors = [tr.Tensor(x, requires_grad=True) for x in inputs or [np.ones(2)]]
    tr.op(function)(*tensors).sum().backward()


def doubled(x):
    """A value alone, of two elements: not (value, pullback), though it could be unpacked."""
    return 2 * x


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: run(doubled), r"doubled: its function must return \(value, pullback\), got \(2"),
        (lambda: run(lambda x: None), r"must return \(value, pullback\), got None"),
        (lambda: run(lambda x: (x, x)), r"must return \(value, pullback\), got \(array"),
        (lambda: run(lambda x: (x, lambda g: None)), "a tuple of one cotangent, .*, got None"),
        (lambda: run(lambda x: (x, lambda g: 2.0)), "a tuple of one cotangent, .*, got 2.0"),
        (lambda: run(lambda a, b: (a + b, lambda g: (g,)), [1.0], [2.0]),
         "a tuple of 2 cotangents, .* got 1 of them"),
        (lambda: tr.gradcheck(doubled, [np.arange(3)]),
         r"gradcheck: one of the inputs must be of a float dtype, got \(3,\) int64"),
        (lambda: tr.Tensor([1.0]).mean(dim=0), "mean: there is no argument dim: it is called axis"),
        (lambda: tr.mean(np.ones(2), dim=0), "mean: there is no argument dim: it is called axis"),
        (lambda: tr.Tensor([1.0]).max(0, keepdim=True), "keepdim: it is called keepdims here"),
        (lambda: tr.Tensor([1.0]).softmax(dim=-1), "softmax: .* dim: it is called axis here"),
        (lambda: tr.add(a=[1.0]), "add: .*missing 1 required positional argument: 'b'"),
        (lambda: tr.Tensor([1.0]).sum(0, False, 3), r"sum: .* \(given \(1,\) float32, 0, False, 3"),
    ],
)  # fmt: skip
def test_a_type_error_says_what_to_write(wrong, message):
    with pytest.raises(TypeError, match=message):
        wrong()


def test_an_array_that_is_not_given_is_what_the_op_takes_by_default():
    twice = tr.op(scaled)
    assert twice(a=[3.0]).data.tolist() == twice([3.0]).data.tolist() == [6.0]


def scaled(a, b=2.0):
    return a * b, lambda g: (g * b, g * a)


@pytest.mark.parametrize(
    ("name", "cure"), [("view", "reshape"), ("unsqueeze", "reshape"), ("requires_grad_", "= True")]
)
def test_a_method_of_pytorch_names_the_one_here(name, cure):
    for tensor in (tr.Tensor([1.0]), tr.nn.Parameter([1.0])):
        with pytest.raises(
            AttributeError, match=f"{type(tensor).__name__} has no {name}: .*{cure}"
        ):
            getattr(tensor, name)


def test_a_function_or_module_of_pytorch_names_the_one_here():
    for place, cures in ((tr, expect.FUNCTIONS), (tr.nn, expect.MODULES)):
        for name, cure in cures.items():
            with pytest.raises(AttributeError) as error:
                getattr(place, name)
            assert str(error.value) == f"{place.__name__} has no {name}: use {cure}"
            if cure.startswith("tr."):  # which must be there
                operator.attrgetter(cure.removeprefix("tr.").split("(")[0])(tr)
        with pytest.raises(AttributeError, match=f"{place.__name__} has no nonsense$"):
            getattr(place, "nonsense")  # noqa: B009


def test_a_name_that_nobody_knows_is_as_unknown_as_ever():
    x = tr.Tensor([1.0], requires_grad=True)
    assert not hasattr(x, "nonsense") and getattr(x, "nonsense", 3) == 3
    for copied in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert copied.requires_grad and copied.data.tolist() == [1.0]
