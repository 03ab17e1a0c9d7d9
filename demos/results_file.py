"""The results of runs in a file: a line each, at once, so that no finished run is lost."""

from __future__ import annotations

import contextlib
import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from demos.training import Setting

Row = dict[str, Any]  # of a run: its setting, its status, its loss, and the reason of a failure


def key(setting: dict[str, Any]) -> str:
    """The same for equal settings; what a file does not say yet is as it was by default."""
    return json.dumps(asdict(Setting(**setting)), sort_keys=True)


def read_results(path: Path) -> dict[str, Row]:
    """All rows, the last of each setting; half a line at the end, of a write that was cut off, is
    removed."""
    if not path.exists():
        return {}
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
    try:
        rows = [json.loads(line) for line in content[:whole].splitlines()]
        return {key(row["setting"]): row for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} has a line that is no result: remove it, or give another --out"
        ) from error


@contextlib.contextmanager
def recorder(path: Path, results: dict[str, Row]) -> Iterator[Callable[[Row], None]]:
    """A function that appends a row to the file, and returns when it is on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:

        def record(row: Row) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
            results[key(row["setting"])] = row

        yield record


def write_csv(path: Path, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """A table, whole or not at all."""
    aside = path.with_suffix(".part")
    with open(aside, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([list(header), *map(list, rows)])
    os.replace(aside, path)
