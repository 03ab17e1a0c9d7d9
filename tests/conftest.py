"""What several test files use."""

from __future__ import annotations

import os

# Before NumPy is imported: the models of the tests are small, and threads of BLAS that wait for
# each other beside other work on the machine take many times as long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import contextlib
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

import tinyres as tr
from demos import text
from tests.small_runs import WORDS

# How many examples a property is tried on: `pytest --hypothesis-profile=ci` or `=long`.
for _name, _examples in {"default": 150, "ci": 2_000, "long": 100_000}.items():
    settings.register_profile(
        _name, max_examples=_examples, deadline=None, database=None, derandomize=_name != "long"
    )
settings.load_profile("default")


def leaf(*data: Any, dtype: str = "float64") -> tr.Tensor:
    """A tensor of these numbers that asks for its gradient."""
    return tr.Tensor(np.array(data, dtype), requires_grad=True)


def gradients(fn: Callable[..., tr.Tensor], *arrays: np.ndarray) -> tuple[np.ndarray, list[Any]]:
    """The value of fn, and the gradients of its inputs for one fixed cotangent of the value."""
    inputs = [tr.Tensor(a, requires_grad=True) for a in arrays]
    out = fn(*inputs)
    cotangent = np.random.default_rng(7).uniform(-1, 1, out.shape)
    out.backward(cotangent)
    return out.detach().numpy(), [t.grad for t in inputs]


def both_ways(fn: Callable[..., tr.Tensor], *arrays: np.ndarray) -> tuple[Any, Any]:
    """What `gradients` gives for the fused ops, and for their twins in primitive ops."""
    with tr.spelled_out():
        spelled = gradients(fn, *arrays)
    return gradients(fn, *arrays), spelled


@contextlib.contextmanager
def no_garbage_collector() -> Iterator[None]:
    """Memory that comes back inside was freed by its reference count: it was in no cycle."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers, the same in every run."""
    return np.random.default_rng(0)


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A text of 65 * 12 characters in a file."""
    file = tmp_path / "words.txt"
    file.write_text(WORDS * 12, encoding="utf-8")
    return file


@pytest.fixture
def source(words: Path) -> text.Text:
    """The same, loaded."""
    return text.load(words)
