"""tinyres against the PyTorch that is installed here; without one there is nothing to compare."""

from __future__ import annotations

import pytest
from reference_cases import CASES, TOLERANCE, assert_close

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CASES)
def test_same_as_pytorch(name, dtype):
    ours, theirs = CASES[name]
    assert_close(ours(name, dtype), theirs(torch, name, dtype), dtype)
