"""A training run in a folder: how it is saved, and taken up where it was.

checkpoint.npz holds all that the next step depends on. metrics.jsonl gets a line a step, and always
goes as far as the checkpoint at least: lines are on the disk before the checkpoint is written, and
those after it are cut off when the run is taken up, for these steps will be taken again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tinyres as tr
from demos import text
from demos.training import Characters, Setting, Trainer, make_task


@dataclass
class SavedRun:
    """A trainer, the folder of its run, and after how many steps it is saved."""

    trainer: Trainer
    out: Path
    every: int = 100

    @property
    def checkpoint(self) -> Path:
        """The file that a run is taken up from."""
        return self.out / "checkpoint.npz"

    @property
    def symbols(self) -> str | None:
        """The vocabulary, for demos.generate; None where the task has no text."""
        task = self.trainer.task
        return task.text.symbols if isinstance(task, Characters) else None

    @contextlib.contextmanager
    def metrics(self) -> Iterator[Callable[..., None]]:
        """A function that notes what was measured, and saves the run when it is told to."""
        for left_over in self.out.glob(f"{self.checkpoint.name}.*.part"):
            left_over.unlink()  # of a run that was killed while it saved
        if self.trainer.done == 0:
            self._save()  # before the metrics of another run that may be here are cut off
        path = self.out / "metrics.jsonl"
        forget_after(path, self.trainer.done)
        with open(path, "a", encoding="utf-8") as file:

            def note(*records: dict[str, float], save: bool) -> None:
                file.writelines(json.dumps(record) + "\n" for record in records)
                if save:
                    file.flush()
                    os.fsync(file.fileno())
                    self._save()

            yield note

    def _save(self) -> None:
        tr.save(self.checkpoint, symbols=self.symbols, every=self.every, **self.trainer.state())


def begin(setting: Setting, out: Path) -> SavedRun:
    """A run before its first step."""
    source = text.load(setting.text) if setting.task == "chars" else None
    return SavedRun(Trainer(setting, make_task(setting, source)), out)


def take_up(out: Path, given: dict[str, Any]) -> SavedRun:
    """The run in a folder, where it was saved; `given` are the options that were given again."""
    checkpoint = out / "checkpoint.npz"
    if not checkpoint.exists():
        raise ValueError(f"--resume: there is no run in {out}")
    state = tr.load(checkpoint)
    try:
        setting = Setting(**state["setting"])
        refuse_changes(setting, given)
        run = begin(setting.but(**given), out)
        if state["symbols"] != run.symbols:
            raise ValueError(
                "--resume: this text has other characters than the run's: give its --text"
            )
        run.trainer.restore(state)
        run.every = state["every"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"--resume: {checkpoint} is no run of train_stacks: {error}") from error
    return run


def refuse_changes(setting: Setting, given: dict[str, Any]) -> None:
    """More steps may be asked for, and the text may have moved. All else would be another run."""
    changed = [
        f"{key} = {getattr(setting, key)}"
        for key, value in given.items()
        if key not in ("steps", "text") and getattr(setting, key) != value
    ]
    if changed:
        raise ValueError(
            f"--resume goes on with {', '.join(changed)}: leave the option away, or start another "
            "run with another --out"
        )


def forget_after(path: Path, done: int) -> None:
    """Cut off the metrics of the steps after `done`.

    The last line may be half a line, if the run was killed while it was written.
    """
    kept = 0
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        if not line.endswith(b"\n") or json.loads(line)["step"] > done:
            break
        kept += len(line)
    with open(path, "ab") as file:
        file.truncate(kept)
