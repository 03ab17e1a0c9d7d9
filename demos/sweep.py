"""Where does Post-LN stop training? One run answers one question; this draws the map.

Depth stands on one axis, the learning rate on the other, one panel a placement, without warm-up and
with it. Each cell is the loss after a short training, the median of the seeds, and a table says for
each learning rate from which depth on a placement no longer trains. The defaults are 300 small
runs, of 4 to 64 blocks: about 40 minutes of one core, less in proportion to the cores there are.
What comes of it is map.svg, map.png, runs.csv and limits.csv (the table).

A sweep is a list of independent runs that is given to an executor of Python's concurrent.futures:
processes on this machine, or, with --dask ADDRESS, a cluster of several. For these, in a copy of
this repository on each machine (pip install -e '.[demos,sweep]'):

    PYTHONPATH=. dask scheduler                                    on one: it prints its ADDRESS
    PYTHONPATH=. dask worker ADDRESS --nworkers=-1 --nthreads 1    on each: a worker a core
    python -m demos.sweep --dask ADDRESS                           where the results shall be

Each finished run is a line in results.jsonl at once. A sweep that was stopped (Ctrl-C finishes the
runs that are on their way) goes on where it was when the same command is given again, and one with
more depths or rates trains what is missing. A run that diverges is a result; one that failed or
lost its worker is noted with the reason, and tried again the next time.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import os
import platform
import time
from dataclasses import asdict
from pathlib import Path

import tinyres as tr
from demos import command, text
from demos.folder import alone_in
from demos.many_runs import Pool, Row, failure, local, on_dask, train_missing
from demos.report import BOTH
from demos.results_file import write_csv
from demos.training import TASKS, Setting, Task, Trainer, make_task

DEPTHS, RATES = (4, 8, 16, 32, 64), (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
SMALL = Setting(d_model=32, d_ff=128, batch=8)
OPTIONS = ("task", "text", "d_model", "heads", "d_ff", "context", "batch", "steps")
AXES = ("placement", "blocks", "lr", "warmup", "seed")  # what differs between the runs


def train_one(setting: Setting) -> Row:
    """Train and evaluate; whatever happens is a row."""
    start = time.perf_counter()
    row: Row = {"setting": asdict(setting), "status": "finished", "loss": None, "reason": ""}
    try:
        trainer = Trainer(setting, task_of(setting))
        for _ in range(setting.steps):
            trainer.step()
        row["loss"] = trainer.evaluate()["val_loss"]
        if not math.isfinite(row["loss"]):
            raise FloatingPointError(f"the loss after the last step is {row['loss']}")
    except FloatingPointError as error:
        row |= {"status": "diverged", "loss": None, "reason": str(error)}
    except Exception as error:
        row |= failure(error)
    row["seconds"] = round(time.perf_counter() - start, 3)
    row["worker"] = f"{platform.node()} {os.getpid()}"
    return row


def task_of(setting: Setting) -> Task:
    """The task; a worker reads the text once."""
    return make_task(setting, _text(setting.text) if setting.task == "chars" else None)


_text = functools.lru_cache(maxsize=1)(text.load)


def sweep(settings: list[Setting], out: Path, pool: Pool, workers: int) -> tuple[list[Row], bool]:
    """The rows of all settings, trained or found in out/results.jsonl; and whether all are there.

    Writes out/runs.csv, sorted, without what differs from one execution to the next.
    """
    rows = train_missing(settings, out / "results.jsonl", pool, workers, train_one)
    rows.sort(key=lambda row: [row["setting"][axis] for axis in AXES])
    table = ([*(r["setting"][a] for a in AXES), r["status"], r["loss"], r["reason"]] for r in rows)
    write_csv(out / "runs.csv", (*AXES, "status", "loss", "reason"), table)
    return rows, len(rows) == len(settings)


def arguments() -> argparse.ArgumentParser:
    """The axes of the map, what all runs share, and where they are run."""
    known = command.parser("sweep", __doc__)
    least, add = command.whole_number, functools.partial(known.add_argument, nargs="+", metavar="X")
    add("--placements", choices=tuple(tr.nn.PLACEMENTS), default=tuple(BOTH),
        help="default: %(default)s; python -m demos.placements lists them")  # fmt: skip
    add("--depths", type=least(1), default=DEPTHS, help="blocks; default: %(default)s")
    add("--rates", type=float, default=RATES, help="default: %(default)s")
    add("--warmups", type=least(0), default=(0, 100), help="steps; default: %(default)s")
    add = known.add_argument
    add("--seeds", type=least(1), default=3, help="runs that a cell is the median of; default: 3")
    for option in OPTIONS:
        value = getattr(SMALL, option)
        kind = str if option in ("task", "text") else least(1)
        words = "default: Python's own source" if option == "text" else f"default: {value}"
        choices = TASKS if option == "task" else None
        name = f"--{option.replace('_', '-')}"
        add(name, type=kind, default=value, choices=choices, help=words)
    add("--margin", type=float, default=0.2,
        help="a run trains if it beats a guess by so many nats; default: 0.2")  # fmt: skip
    add("--workers", type=least(1), default=os.cpu_count() or 1,
        help="local processes; default: one a core")  # fmt: skip
    add("--dask", metavar="ADDRESS", help="run on this Dask cluster instead")
    add("--out", type=Path, default=Path("out/sweep"), help="default: %(default)s")
    return known


def settings_of(args: argparse.Namespace) -> list[Setting]:
    """The runs, the longest first: a worker that begins a long one last would be waited for."""
    shared = SMALL.but(**{option: getattr(args, option) for option in OPTIONS})
    axes = (args.placements, args.depths, args.rates, args.warmups, range(args.seeds))
    runs = [shared.but(**dict(zip(AXES, values))) for values in itertools.product(*axes)]
    return sorted(dict.fromkeys(runs), key=lambda setting: -setting.blocks)


def main(argv: list[str] | None = None) -> int:
    from demos import sweep_limits, sweep_map  # draws; a worker has no use for it

    known = arguments()
    args = known.parse_args(argv)
    pool = on_dask(args.dask) if args.dask else local
    settings = settings_of(args)
    try:
        chance = task_of(settings[0]).chance
        with alone_in(args.out):
            rows, whole = sweep(settings, args.out, pool, args.workers)
    except (ValueError, OSError) as error:
        known.error(str(error))
    except KeyboardInterrupt:
        print(f"stopped at once; what was finished is in {args.out}: the same command goes on")
        return 130
    limits = sweep_limits.limits(rows, chance - args.margin)
    write_csv(args.out / "limits.csv", sweep_limits.LIMIT_COLUMNS, limits)
    sweep_map.draw(rows, limits, args.out, chance, args.margin)
    print(sweep_limits.limits_table(limits, chance, args.margin))
    failed = [row for row in rows if row["status"] == "failed"]
    for row in failed:
        print("failed:", *(f"{a} {row['setting'][a]}" for a in AXES), row["reason"])
    print(f"runs.csv, limits.csv, map.svg and map.png are in {args.out}")
    if not whole or failed:
        print("not all runs are there: the same command goes on with the rest")
    return 0 if whole and not failed else 1


if __name__ == "__main__":
    from demos import sweep as importable  # workers look functions up by the module's name

    raise SystemExit(importable.main())
