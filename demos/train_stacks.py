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
import signal
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import tinyres as tr
from demos import text
from demos.training import SCHEDULES, Characters, Setting, Trainer, make_task, progress

CHOICES = {
    "task": ("chars", "reverse"),
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
    parser.add_argument("--every", type=int, default=100, help="steps from one save to the next")
    parser.add_argument("--resume", action="store_true", help="go on where the run in --out is")
    parser.add_argument("--fresh", action="store_true", help="replace the run that is in --out")
    return parser


def start(
    given: dict[str, Any], out: Path, resume: bool, fresh: bool
) -> tuple[Trainer, str | None]:
    """A new trainer, or the one that the checkpoint in `out` describes; and its vocabulary."""
    checkpoint = out / "checkpoint.npz"
    if checkpoint.exists() and not (resume or fresh):
        raise ValueError(
            f"{out} holds a run: --resume goes on with it, --fresh replaces it, "
            "--out goes elsewhere"
        )
    if resume and not checkpoint.exists():
        raise ValueError(f"--resume: there is no run in {out}")
    state = tr.load(checkpoint) if resume else None
    setting = Setting(**({} if state is None else state["setting"]))
    # More steps may be asked for, and the text may have moved. Anything else would be another run.
    changed = [key for key in given if getattr(setting, key) != given[key]]
    fixed = [key for key in changed if key not in ("steps", "text")]
    if state is not None and fixed:
        raise ValueError(
            "--resume goes on with "
            + ", ".join(f"{key} = {getattr(setting, key)}" for key in fixed)
            + ": leave the option away, or start another run with another --out"
        )
    setting = setting.but(**given)
    task = make_task(setting, text.load(setting.text) if setting.task == "chars" else None)
    symbols = task.text.symbols if isinstance(task, Characters) else None
    trainer = Trainer(setting, task)
    if state is not None:
        if state["symbols"] != symbols:
            raise ValueError(
                "--resume: this text has other characters than the run's: give its --text"
            )
        trainer.restore(state)
    return trainer, symbols


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


def kept_lines(path: Path, done: int) -> list[str]:
    """The metrics of the steps up to the checkpoint: later ones will be measured again."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [line for line in lines if json.loads(line)["step"] <= done]


def run(trainer: Trainer, symbols: str | None, out: Path, every: int) -> bool:
    """Train, save every so often and at the end; False if it was stopped before the end."""
    out.mkdir(parents=True, exist_ok=True)
    kept = kept_lines(out / "metrics.jsonl", trainer.done) if trainer.done else []

    with open(out / "metrics.jsonl", "w", encoding="utf-8") as metrics, stop_after_step() as asked:

        def save() -> None:
            metrics.flush()
            tr.save(out / "checkpoint.npz", symbols=symbols, **trainer.state())

        metrics.writelines(kept)
        for record in progress(trainer, f"{trainer.setting.placement}, {trainer.setting.task}"):
            metrics.write(json.dumps(record) + "\n")
            if asked or record["step"] % every == 0 or record["step"] == trainer.setting.steps:
                metrics.write(json.dumps(trainer.evaluate()) + "\n")
                save()
            if asked:
                return trainer.done >= trainer.setting.steps
    return True


def main(argv: list[str] | None = None) -> int:
    parser = arguments()
    args = vars(parser.parse_args(argv))
    out, every, resume, fresh = (args.pop(key) for key in ("out", "every", "resume", "fresh"))
    try:
        trainer, symbols = start(args, out, resume, fresh)
    except ValueError as error:
        parser.error(str(error))
    again = f"python -m demos.train_stacks --resume --out {out}"
    try:
        finished = run(trainer, symbols, out, every)
    except FloatingPointError as error:
        print(f"stopped. {error}")
        return 1
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
