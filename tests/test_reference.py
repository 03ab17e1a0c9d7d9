"""tinyres against values that PyTorch computed (see record_reference.py)."""

from __future__ import annotations

import numpy as np
import pytest
from reference_cases import CASES, RECORDED, TOLERANCE, assert_close

with np.load(RECORDED) as file:
    EXPECTED = dict(file)


def test_every_case_is_recorded():
    assert {key.rsplit(": ")[0] for key in EXPECTED} == {*CASES, "version"}
    assert str(EXPECTED["version"]).startswith("2.13.")


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CASES)
def test_same_as_recorded(name, dtype):
    ours, _ = CASES[name]
    start = f"{name}: "
    want = {k.removeprefix(start): a for k, a in EXPECTED.items() if k.startswith(start)}
    assert_close(ours(name, dtype), want, dtype)
