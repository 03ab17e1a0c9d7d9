"""Train a stack of your own: any placement, depth, width, schedule, text and seed.

The defaults are the tour's. Worth trying, each against the default:

    --placement post                       sticks near the unigram entropy
    --placement post --warmup 100          a slow start rescues it
    --placement post --lr 1e-3             so does a smaller learning rate, here
    --placement plain                      no residual: it learns how frequent characters are
    --placement residual                   no norm: far worse than that, and nan with --blocks 24
    --task reverse --blocks 12 --d-ff 128  all or nothing: also with --placement post

Each step goes to metrics.jsonl as one line of JSON, and checkpoint.npz holds all that the next step
depends on: weights, Adam's running means, the state of the random generator. So a run that was
stopped (Ctrl-C finishes the step and saves) goes on with `--resume`, and ends with the same bits as
one that was not.
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

import tinyres as tr
from demos import command
from demos.folder import alone_in
from demos.interrupts import asked_to_stop
from demos.saved_run import SavedRun, begin, take_up
from demos.training import SCHEDULES, TASKS, Characters, Setting, progress

CHOICES = {"task": TASKS, "schedule": tuple(SCHEDULES), "placement": tuple(tr.nn.PLACEMENTS)}
TYPES = {"int": int, "float": float, "str": str, "str | None": str}
WORDS = {
    "text": "default: Python's own source",
    "placement": "default: pre; python -m demos.placements lists them",
}


def train(run: SavedRun) -> bool:
    """Take the steps that are left, saving now and then; False if it was stopped before the end."""
    trainer = run.trainer
    label = f"{trainer.setting.placement}, {trainer.setting.task}"
    with run.metrics() as note, asked_to_stop() as asked:
        for record in progress(trainer, label):
            last = trainer.done == trainer.setting.steps
            due = trainer.done % run.every == 0 or last
            measured = [record, trainer.evaluate()] if due else [record]
            note(*measured, save=due or bool(asked))
            if asked:
                return last
    return True


def report(run: SavedRun) -> None:
    """What the model reached, beside what the text allows."""
    trainer, task = run.trainer, run.trainer.task
    result = trainer.evaluate()
    print(f"step {trainer.done}: validation loss {result['val_loss']:.4f} nats, "
          f"{result['val_accuracy']:.1%} of the symbols right")  # fmt: skip
    if isinstance(task, Characters):
        print(f"the same text's entropies: unigram {task.text.unigram_entropy(task.context):.3f}, "
              f"bigram {task.text.bigram_entropy(task.context):.3f}")  # fmt: skip
        print(f"to see what it writes: python -m demos.generate {run.checkpoint}")


# ---------------------------------------------------------------- the command line


def options() -> argparse.ArgumentParser:
    """One option for each field of Setting; one that is not given stays out of the result."""
    known = command.parser("train_stacks", __doc__)
    for field in fields(Setting):
        choices = CHOICES.get(field.name)
        known.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=TYPES[str(field.type)],
            choices=choices,
            metavar="NAME" if choices and len(choices) > 5 else None,
            default=argparse.SUPPRESS,
            help=WORDS.get(field.name, f"default: {field.default}"),
        )
    known.add_argument(
        "--out", type=Path, default=Path("out/train_stacks"), help="the folder of the run"
    )
    known.add_argument(
        "--every", type=command.whole_number(1), help="steps from one save to the next (100)"
    )
    known.add_argument("--resume", action="store_true", help="go on where the run in --out is")
    known.add_argument("--fresh", action="store_true", help="replace the run that is in --out")
    return known


def chosen(args: argparse.Namespace) -> SavedRun:
    """The run that the options ask for: a new one, or the one in --out where it was."""
    given = {k: v for k, v in vars(args).items() if k in {field.name for field in fields(Setting)}}
    if (args.out / "checkpoint.npz").exists() and not (args.resume or args.fresh):
        raise ValueError(
            f"{args.out} holds a run: --resume goes on with it, --fresh replaces it, "
            "--out goes elsewhere"
        )
    run = take_up(args.out, given) if args.resume else begin(Setting(**given), args.out)
    run.every = args.every or run.every
    return run


def main(argv: list[str] | None = None) -> int:
    known = options()
    args = known.parse_args(argv)
    again = f"python -m demos.train_stacks --resume --out {args.out}"
    try:
        with alone_in(args.out):
            run = chosen(args)
            finished = train(run)
    except (ValueError, TypeError) as error:
        known.error(str(error))
    except FloatingPointError as error:
        print(f"stopped. {error}")
        return 1
    except OSError as error:
        print(f"stopped. {error}\nThe last checkpoint in {args.out} is whole. "
              f"To go on from it: {again}")  # fmt: skip
        return 1
    except KeyboardInterrupt:
        print(f"stopped at once. To go on from the last checkpoint: {again}")
        return 130
    if not finished:
        print(f"stopped after step {run.trainer.done} and saved. To go on: {again}")
        return 130
    report(run)
    more = f"{again} --steps {2 * run.trainer.done}"
    print(f"metrics and checkpoint are in {args.out}; to go on with more steps: {more}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
