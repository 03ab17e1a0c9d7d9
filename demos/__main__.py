"""`python -m demos`: the lessons in reading order."""

from __future__ import annotations

import ast
from pathlib import Path

LESSONS = (
    "tour", "worked_example", "vanishing_signal", "draw_blocks", "token_collapse", "gradient_flow",
    "compare", "reverse", "train_stacks", "generate", "own_op",
    "own_placement", "placements", "papers", "sweep", "thousand", "one_step", "same_as_pytorch",
)  # fmt: skip


def first_line(lesson: str) -> str:
    """What a lesson is about, in its own words, without importing it."""
    source = Path(__file__).with_name(f"{lesson}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").splitlines()[0]


def main() -> int:
    print(
        "The lessons, in reading order. Each is run by its name and explains itself with --help.\n"
    )
    for lesson in LESSONS:
        print(f"  python -m demos.{lesson:<17} {first_line(lesson)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
