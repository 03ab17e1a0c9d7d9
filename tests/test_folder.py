"""Two runs in one output folder: the second is refused, and the first one's files stay whole."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from demos import command
from demos.folder import alone_in

DEMOS = Path(command.__file__).parent
# The lessons that write a page, which all take a folder; the others have tests of their own.
WRITERS = sorted(
    path.stem
    for path in DEMOS.glob("*.py")
    if re.search(r"return command\.run\(|enter_context\(alone_in", path.read_text("utf-8"))
)


def test_all_lessons_that_write_for_long_are_known():
    assert {"tour", "gradient_flow", "vanishing_signal", "token_collapse", "compare", "reverse",
            "own_op", "own_placement", "worked_example"} <= set(WRITERS)  # fmt: skip


@pytest.mark.parametrize("lesson", WRITERS)
def test_a_lesson_is_refused_where_another_run_writes(lesson, tmp_path, capsys):
    main = importlib.import_module(f"demos.{lesson}").main
    with alone_in(tmp_path), pytest.raises(SystemExit) as left:
        main(["--out", str(tmp_path)])
    assert left.value.code == 2
    assert f"{tmp_path}: another run is writing there" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


HOLD = """
import os, pathlib, sys
from demos.folder import alone_in
with alone_in(pathlib.Path(sys.argv[1])):
    os._exit(9)
"""


def test_the_folder_is_free_again_when_a_run_has_died(tmp_path):
    died = subprocess.run([sys.executable, "-c", HOLD, str(tmp_path)], cwd=DEMOS.parent)
    assert died.returncode == 9
    with alone_in(tmp_path), pytest.raises(ValueError, match="--out"), alone_in(tmp_path):
        pass
    with alone_in(tmp_path):
        pass
