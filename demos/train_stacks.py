"""Train a stack of your own: any placement, depth, width, schedule, text and seed.

The defaults are the tour's. Worth trying, each against the default:

    --placement post                     sticks near the unigram entropy
    --placement post --warmup 100        a slow start rescues it
    --placement post --lr 1e-3           so does a smaller learning rate, here
    --placement plain                    no residual: dead
    --placement residual                 no norm: it trains badly, and deeper it explodes
    --task reverse --blocks 12 --d-ff 128

Each step goes to metrics.jsonl as one line of JSON, and checkpoint.npz holds all that the next step
depends on: weights, Adam's running means, the state of the random generator. So a run that was
stopped (Ctrl-C finishes the step and saves) goes on with `--resume`, and ends with the same bits as
one that was not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import tinyres as tr
from demos import text
from demos.folder import alone_in
from demos.training import SCHEDULES, TASKS, Characters, Setting, Trainer, make_task, progress

CHOICES = {
    "task": TASKS,
    "schedule": tuple(SCHEDULES),
    "placement": tuple(tr.nn.PLACEMENTS),
}
TYPES = {"int": int, "float": float, "str": str, "str | None": str}


def arguments() -> argparse.ArgumentParser:
    """One option for each field of Setting; one that is not given stays out of the result."""
    parser = argparse.ArgumentParser(
        prog="python -m demos.train_stacks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for field in fields(Setting):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=TYPES[str(field.type)],
            choices=CHOICES.get(field.name),
            default=argparse.SUPPRESS,
            help=f"default: {field.default}",
        )
    parser.add_argument("--out", type=Path, default=Path("out/train_stacks"))
    parser.add_argument(
        "--every", type=int, help="steps from one save to the next; default: 100, or the run's"
    )
    parser.add_argument("--resume", action="store_true", help="go on where the run in --out is")
    parser.add_argument("--fresh", action="store_true", help="replace the run that is in --out")
    return parser


def start(
    given: dict[str, Any], out: Path, resume: bool, fresh: bool
) -> tuple[Trainer, dict[str, Any]]:
    """A new trainer, or the one that the checkpoint in `out` describes; and what is saved with it.

    That is the vocabulary and how often to save.
    """
    checkpoint = out / "checkpoint.npz"
    if checkpoint.exists() and not (resume or fresh):
        raise ValueError(
            f"{out} holds a run: --resume goes on with it, --fresh replaces it, "
            "--out goes elsewhere"
        )
    if resume and not checkpoint.exists():
        raise ValueError(f"--resume: there is no run in {out}")
    if not resume:
        return fresh_trainer(Setting(**given))
    state = tr.load(checkpoint)
    try:
        return resumed_trainer(state, given)
    except (KeyError, TypeError) as error:
        raise ValueError(f"--resume: {checkpoint} is no run of train_stacks: {error}") from error


def fresh_trainer(setting: Setting) -> tuple[Trainer, dict[str, Any]]:
    """A trainer before its first step."""
    task = make_task(setting, text.load(setting.text) if setting.task == "chars" else None)
    symbols = task.text.symbols if isinstance(task, Characters) else None
    return Trainer(setting, task), {"symbols": symbols, "every": 100}


def resumed_trainer(state: dict[str, Any], given: dict[str, Any]) -> tuple[Trainer, dict[str, Any]]:
    """The trainer that stood where the state was saved."""
    setting = Setting(**state["setting"])
    # More steps may be asked for, and the text may have moved. Anything else would be another run.
    changed = [key for key in given if getattr(setting, key) != given[key]]
    fixed = [key for key in changed if key not in ("steps", "text")]
    if fixed:
        raise ValueError(
            "--resume goes on with "
            + ", ".join(f"{key} = {getattr(setting, key)}" for key in fixed)
            + ": leave the option away, or start another run with another --out"
        )
    trainer, beside = fresh_trainer(setting.but(**given))
    if state["symbols"] != beside["symbols"]:
        raise ValueError("--resume: this text has other characters than the run's: give its --text")
    trainer.restore(state)
    return trainer, {**beside, "every": state["every"]}


@contextlib.contextmanager
def stop_after_step() -> Iterator[list[bool]]:
    """Ctrl-C makes the list non-empty; a second one stops at once."""
    asked: list[bool] = []
    before = signal.getsignal(signal.SIGINT)

    def ask(*_: Any) -> None:
        asked.append(True)
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def forget_after(path: Path, done: int) -> None:
    """Cut the metrics of the steps after the checkpoint off: they will be measured again.

    The last line may be half a line, if the run was killed while it was written.
    """
    kept = 0
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        if not line.endswith(b"\n") or json.loads(line)["step"] > done:
            break
        kept += len(line)
    with open(path, "ab") as file:
        file.truncate(kept)


def run(trainer: Trainer, beside: dict[str, Any], out: Path) -> bool:
    """Train, save every so often and at the end; False if it was stopped before the end."""
    every = beside["every"]
    checkpoint = out / "checkpoint.npz"
    for left_over in out.glob(f"{checkpoint.name}.*.part"):  # of a run killed while it saved
        left_over.unlink()

    def save() -> None:
        tr.save(checkpoint, **beside, **trainer.state())

    if trainer.done == 0:
        save()  # before the metrics of another run that may be here are cut off
    forget_after(out / "metrics.jsonl", trainer.done)
    with open(out / "metrics.jsonl", "a", encoding="utf-8") as metrics, stop_after_step() as asked:
        for record in progress(trainer, f"{trainer.setting.placement}, {trainer.setting.task}"):
            metrics.write(json.dumps(record) + "\n")
            last = trainer.done == trainer.setting.steps
            if trainer.done % every == 0 or last:
                metrics.write(json.dumps(trainer.evaluate()) + "\n")
            if trainer.done % every == 0 or last or asked:
                # First the metrics: those that no checkpoint follows are cut off, see above.
                metrics.flush()
                os.fsync(metrics.fileno())
                save()
            if asked:
                return last
    return True


def main(argv: list[str] | None = None) -> int:
    parser = arguments()
    args = vars(parser.parse_args(argv))
    out, every, resume, fresh = (args.pop(key) for key in ("out", "every", "resume", "fresh"))
    again = f"python -m demos.train_stacks --resume --out {out}"
    if every is not None and every < 1:
        parser.error(f"--every must be at least 1, got {every}")
    try:
        with alone_in(out):
            trainer, beside = start(args, out, resume, fresh)
            finished = run(trainer, beside | ({} if every is None else {"every": every}), out)
    except (ValueError, TypeError) as error:
        parser.error(str(error))
    except FloatingPointError as error:
        print(f"stopped. {error}")
        return 1
    except OSError as error:
        print(f"stopped. {error}\nThe last checkpoint in {out} is whole. To go on from it: {again}")
        return 1
    except KeyboardInterrupt:
        print(f"stopped at once. To go on from the last checkpoint: {again}")
        return 130
    if not finished:
        print(f"stopped after step {trainer.done} and saved. To go on: {again}")
        return 130
    result = trainer.evaluate()
    print(f"step {trainer.done}: validation loss {result['val_loss']:.4f} nats, "
          f"{result['val_accuracy']:.1%} of the symbols right")  # fmt: skip
    if isinstance(trainer.task, Characters):
        task = trainer.task
        print(f"the same text's entropies: unigram {task.text.unigram_entropy(task.context):.3f}, "
              f"bigram {task.text.bigram_entropy(task.context):.3f}")  # fmt: skip
        print(f"to see what it writes: python -m demos.generate {out / 'checkpoint.npz'}")
    print(f"metrics and checkpoint are in {out}; with more --steps it goes on: {again}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
