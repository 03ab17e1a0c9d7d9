"""The check of the coverage report: it misses no line, and no row outlives its line."""

from __future__ import annotations

import json

import pytest

from tests import uncovered

FILE = "tinyres/part.py"
SOURCE = "def f(x):\n    if x:\n        return 1\n    return 2\n"
ROW = (FILE, "return 1", "nobody asks for it")


@pytest.mark.parametrize(
    "missing, rows, words",
    [
        (([], []), [], []),
        (([3], [[2, 3]]), [], ["part.py:3: no test takes every way through: return 1"]),
        (([3], [[2, 3]]), [ROW], []),
        (([], [[2, 4]]), [], ["part.py:2: no test takes every way through: if x:"]),
        (([], [[2, 4]]), [(FILE, "if x", "never false")], []),
        (([], []), [ROW], ["'return 1' is covered now, or gone"]),
        (([3], []), [("other.py", *ROW[1:])], ["part.py:3", "'return 1' is covered now"]),
    ],
)
def test_report_and_rows_must_agree(missing, rows, words, tmp_path, monkeypatch, capsys):
    (tmp_path / "tinyres").mkdir()
    (tmp_path / FILE).write_text(SOURCE)
    lines, branches = missing
    report = {"files": {FILE: {"missing_lines": lines, "missing_branches": branches}}}
    said = uncovered.problems(report, rows, tmp_path)
    assert len(said) == len(words) and all(w in s for w, s in zip(words, said))
    assert uncovered.problems({"files": {}}, [], tmp_path) == [f"{FILE}: is not in the report"]
    (tmp_path / "coverage.json").write_text(json.dumps(report))
    monkeypatch.setattr(uncovered, "UNCOVERED", rows)
    monkeypatch.setattr(uncovered.problems, "__defaults__", (tmp_path,))
    assert uncovered.main(str(tmp_path / "coverage.json")) == bool(words)
    assert all(word in capsys.readouterr().out for word in words[:1])
