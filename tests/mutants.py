"""Break the package in many ways, one at a time, and see that the tests notice.

    python -m tests.mutants             all of them
    python -m tests.mutants ops fused   those of two files

Each mutant is one change in one place (a sign, a term left out, a wrong axis, a missing sum over
what was broadcast) in a scratch copy, on which the tests of that file are run. A mutant that passes
them all has survived: the tests have a hole.
"""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutant_rows import MUTANTS

ROOT = Path(__file__).parent.parent


def environment(copy: Path) -> dict[str, str]:
    """The tests' environment, in which `import tinyres` finds the copy."""
    return {**os.environ, "PYTHONPATH": str(copy), "OPENBLAS_NUM_THREADS": "1"}


def survives(copy: Path, part: str) -> bool:
    """Whether all the tests of a file pass."""
    tests, _ = MUTANTS[part]
    files = [f"tests/{name}" for name in tests.split()]
    files.append(f"tinyres/{part}.py")  # its examples
    options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:randomly"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *files],
            cwd=copy, env=environment(copy), capture_output=True, timeout=600,
        )  # fmt: skip
    except subprocess.TimeoutExpired:  # one that never ends is noticed, too
        return False
    return done.returncode == 0


def scratch_copy(folder: Path) -> Path:
    """The package and its tests, to be broken."""
    folder.mkdir()
    for name in ("tinyres", "tests", "demos"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def check_that_all_apply(parts: list[str]) -> None:
    """The code moves on: a mutant of a line that is gone would be noticed by nobody."""
    stale = [
        f"{part}: no such code any more, mend the mutant: {old!r}"
        for part in parts
        for old, _ in MUTANTS[part][1]
        if old not in (ROOT / "tinyres" / f"{part}.py").read_text(encoding="utf-8")
    ]
    if stale:
        raise SystemExit("\n".join(stale))


def main(parts: list[str]) -> int:
    start = time.monotonic()
    check_that_all_apply(parts)
    workers = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as pool:
        idle: queue.Queue[Path] = queue.Queue()
        for i in range(workers):
            idle.put(scratch_copy(Path(folder) / str(i)))

        def attempt(part: str, change: tuple[str, str] | None) -> bool:
            """Whether the tests pass with this change in a copy that no other worker uses."""
            copy = idle.get()
            file = copy / "tinyres" / f"{part}.py"
            whole = file.read_text(encoding="utf-8")
            try:
                if change is not None:
                    file.write_text(whole.replace(*change, 1), encoding="utf-8")
                return survives(copy, part)
            finally:
                file.write_text(whole, encoding="utf-8")
                idle.put(copy)

        sound = list(pool.map(lambda part: attempt(part, None), parts))
        failing = [MUTANTS[part][0] for part, passed in zip(parts, sound) if not passed]
        if failing:
            raise SystemExit(f"these fail without any mutant, mend that first: {failing}")
        mutants = [(part, change) for part in parts for change in MUTANTS[part][1]]
        survived = list(pool.map(lambda mutant: attempt(*mutant), mutants))
    for (part, (old, new)), alive in zip(mutants, survived):
        if alive:
            print(f"survived: {part}: {old!r} -> {new!r}")
    noticed = len(mutants) - sum(survived)
    print(f"{noticed} of {len(mutants)} mutants noticed in {time.monotonic() - start:.0f} s")
    return noticed != len(mutants)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:] or list(MUTANTS)))
