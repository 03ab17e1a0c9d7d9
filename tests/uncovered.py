"""What of the package no test reaches, line by line, with the reason: nothing else may be missed.

    python -m pytest --cov=tinyres --cov-branch --cov-report=json:coverage.json
    python -m tests.uncovered coverage.json

A row that the tests reach now, or whose line is gone, must be deleted.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

# (file, a piece of the line that is not run, or from which not every way is taken, reason)
UNCOVERED: list[tuple[str, str, str]] = [
    (
        "tinyres/operators.py",
        "if not TYPE_CHECKING:",
        "only a type checker takes the other way, and it runs nothing",
    ),
    ("tinyres/__init__.py", "if not TYPE_CHECKING:", "the same"),
    ("tinyres/nn/__init__.py", "if not TYPE_CHECKING:", "the same"),
]


def missed(found: dict[str, Any]) -> set[int]:
    """Lines that were not run, and those from which some way on was not taken.

    >>> sorted(missed({"missing_lines": [3, 4], "missing_branches": [[2, 3], [7, -5]]}))
    [3, 4, 7]
    """
    lines = set(found["missing_lines"])
    return lines | {start for start, end in found["missing_branches"] if end not in lines}


def problems(
    report: dict[str, Any], rows: list[tuple[str, str, str]], root: Path = ROOT
) -> list[str]:
    """Where a coverage report and the rows differ."""
    package = {path.relative_to(root).as_posix() for path in (root / "tinyres").rglob("*.py")}
    said = [f"{file}: is not in the report" for file in sorted(package - report["files"].keys())]
    used = set()
    for file, found in report["files"].items():
        source = (root / file).read_text(encoding="utf-8").splitlines()
        for number in sorted(missed(found)):
            line = source[number - 1].strip()
            known = {row for row in rows if row[0] == file and row[1] in line}
            used |= known
            if not known:
                said.append(f"{file}:{number}: no test takes every way through: {line}")
    said += [f"tests/uncovered.py: {row[0]}: {row[1]!r} is covered now, or gone: delete the row"
             for row in rows if row not in used]  # fmt: skip
    return said


def main(path: str) -> int:
    report = json.loads(Path(path).read_text(encoding="utf-8"))
    said = problems(report, UNCOVERED)
    print("\n".join(said) or f"all is covered, or listed with its reason: {len(UNCOVERED)}")
    return bool(said)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
