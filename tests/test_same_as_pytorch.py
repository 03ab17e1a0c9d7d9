"""The lesson that compares with PyTorch: its recorded values, and its table without PyTorch."""

from __future__ import annotations

import sys

import pytest

from demos import same_as_pytorch as demo


def test_as_recorded(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    monkeypatch.setattr(demo, "PLACEMENTS", {"post": "Post-LN"})
    monkeypatch.setattr(demo, "DTYPES", ("float64",))
    assert demo.main([]) == 0
    out = capsys.readouterr().out
    assert "PyTorch 2.13" in out and "Post-LN float64" in out
    found = {row: float(line.split()[-1]) for row in demo.ROWS for line in out.splitlines()
             if line.startswith(f"{row}  ")}  # fmt: skip
    assert found.keys() == set(demo.ROWS)
    apart = [row for row, size in found.items() if size > 1e-9]
    assert not apart, out


def test_a_difference_is_seen():
    rows = demo.results(
        demo.np.ones(3), {"in_proj_bias": demo.np.arange(6.0)}, [1.0], {"w": demo.np.ones(2)}
    )
    rows[f"weights, {demo.KEYS}"] = {"w": demo.np.ones(1)}
    other = {row: {n: a.copy() for n, a in arrays.items()} for row, arrays in rows.items()}
    other["gradients"]["in_proj_bias"][0] += 0.5
    found = demo.differences(rows, other)
    assert found["gradients"] == pytest.approx(0.1) and found["logits"] == 0


def test_recording_needs_pytorch(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit):
        demo.main(["--record"])
    assert "--record needs PyTorch" in capsys.readouterr().err
