"""The lesson that compares with PyTorch: its recorded values, and its table without PyTorch."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from demos import recorded
from demos import same_as_pytorch as demo


def test_as_recorded(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    monkeypatch.setattr(demo, "BOTH", {"post": "Post-LN"})
    monkeypatch.setattr(demo, "DTYPES", ("float64",))
    assert demo.main([]) == 0
    out = capsys.readouterr().out
    assert "PyTorch 2.13" in out and "Post-LN float64" in out
    found = {row: float(line.split()[-1]) for row in recorded.ROWS for line in out.splitlines()
             if line.startswith(f"{row}  ")}  # fmt: skip
    assert found.keys() == set(recorded.ROWS)
    apart = [row for row, size in found.items() if size > 1e-9]
    assert not apart, out


def test_a_difference_is_seen():
    rows = recorded.results(np.ones(3), {"in_proj_bias": np.arange(6.0)}, [1.0], {"w": np.ones(2)})
    rows[f"weights, {recorded.KEYS}"] = {"w": np.ones(1)}
    other = {row: {n: a.copy() for n, a in arrays.items()} for row, arrays in rows.items()}
    other["gradients"]["in_proj_bias"][0] += 0.5
    found = recorded.differences(rows, other)
    assert found["gradients"] == pytest.approx(0.1) and found["logits"] == 0


def test_recording_needs_pytorch(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit):
        demo.main(["--record"])
    assert "--record needs PyTorch" in capsys.readouterr().err
