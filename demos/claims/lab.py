"""Where the claims' trainings run: in two processes, each training once, whoever asks for it."""

from __future__ import annotations

import concurrent.futures
import functools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

import tinyres as tr
from demos import text
from demos.training import Recall, Setting, Trainer, drawing_batches, make_task

LAST = 20  # a run's final loss is the mean over so many last steps
EARLY = (0, 1, 2, 3, 4, 5, 10, 20, 40, 60)  # steps at which a watched run is looked at


@dataclass(frozen=True)
class Job:
    """A training, and what is looked at besides its loss.

    `watch` is "" or "collapse" (during the first steps) or "ablation" (of the trained model).
    """

    setting: Setting
    watch: str = ""

    def gives(self, other: Job) -> bool:
        """Whether the other's losses are the first of this one's."""
        begun = self.setting.but(steps=other.setting.steps)
        longer = self.setting.steps >= other.setting.steps and begun.schedule == "constant"
        return self == other or (begun == other.setting and longer and not other.watch)


@functools.cache
def source(file: str | None) -> text.Text:
    """The text, read once in each process."""
    return text.load(file)


def task_of(setting: Setting) -> Any:
    """The task that a setting names, on its text if it is one of characters."""
    return make_task(setting, source(setting.text) if setting.task == "chars" else None)


def work(job: Job) -> dict[str, Any]:
    """Train, and return losses and what was looked at, as plain data."""
    start = time.process_time()
    trainer = Trainer(job.setting, task_of(job.setting))
    result: dict[str, Any] = {"losses": [], "early": []}
    batch = probe_batch(trainer)
    trainer.model.stack.profile(trainer.model.embed(batch[0]))
    before = trainer.model.state_dict()
    for step in range(job.setting.steps):
        if job.watch == "collapse" and step in EARLY:
            result["early"].append({"step": step, **inside(trainer, batch, before)})
        try:
            result["losses"].append(trainer.step()["loss"])
        except FloatingPointError:
            break
    if job.watch == "collapse":
        result["early"].append({"step": trainer.done, **inside(trainer, batch, before)})
    if job.watch == "ablation":
        result["ablation"] = tr.probe.ablation(trainer.model, probe_batch(trainer, 256))
    result["final"] = final(result["losses"], job.setting.steps)
    result["cpu"] = time.process_time() - start
    return result


def final(losses: Sequence[float], steps: int) -> float:
    """The mean of the last losses; infinite for a run that did not get that far."""
    return float(np.mean(losses[steps - LAST : steps])) if len(losses) >= steps else float("inf")


def beginning(result: dict[str, Any], steps: int) -> dict[str, Any]:
    """What a training would have given that had ended after so many steps."""
    losses = result["losses"][:steps]
    share = steps / max(len(result["losses"]), steps)
    return {"losses": losses, "final": final(losses, steps), "cpu": share * result["cpu"]}


def probe_batch(trainer: Trainer, rows: int = 64) -> tuple[Any, Any]:
    """A batch that is not trained on, the same at every look."""
    tokens, targets = trainer.task.held_out()
    return tokens[:rows], targets[:rows]


def inside(trainer: Trainer, batch: Any, start: dict[str, Any]) -> dict[str, Any]:
    """Collapse, gradients, norm inputs and how far the output has moved since the start."""
    model = trainer.model
    weights = tr.probe.weight_gradients(model, batch)
    down = [g for name, g in weights.items() if name.endswith("down.weight")]
    return {
        "token cosine": tr.probe.token_cosine(model, batch),
        "w2 gradient": np.array(down),
        "norm input": float(np.mean(tr.probe.norm_input_rms(model, batch))),
        "update": tr.probe.model_update(model, batch, start),
    }


class Lab:
    """What the trainings gave; one that is missing is run when somebody asks for it."""

    def __init__(self, results: dict[Job, dict[str, Any]] | None = None):
        self.results = {} if results is None else results

    def result(self, job: Job) -> dict[str, Any]:
        """What a job gave."""
        if job not in self.results:
            self.results[job] = work(job)
        return self.results[job]

    def finals(self, jobs: Sequence[Job]) -> list[float]:
        """The final losses of some jobs."""
        return [self.result(job)["final"] for job in jobs]


def train_all(jobs: Iterable[Job], processes: int = 2) -> dict[Job, dict[str, Any]]:
    """What each job gives, under a progress bar; no training is run twice, or begun twice."""
    wanted = set(jobs)
    needed = [job for job in wanted if not any(o.gives(job) for o in wanted if o != job)]
    needed.sort(key=cost, reverse=True)  # the long ones first
    results = {}
    # disable=None: no bar where the output is not a terminal
    with tqdm(total=sum(map(cost, needed)), desc="trainings", unit=" block steps",
              unit_scale=True, leave=False, disable=None) as bar:  # fmt: skip
        for (job,), result in in_processes(work, [(job,) for job in needed], processes):
            results[job] = result
            bar.update(cost(job))
    for job in wanted - results.keys():
        longer = next(results[other] for other in needed if other.gives(job))
        results[job] = beginning(longer, job.setting.steps)
    return results


def cost(job: Job) -> int:
    """What a job costs, in steps of one block."""
    return job.setting.blocks * job.setting.steps


def in_processes(
    function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], processes: int
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Arguments and result of each call, as they are done."""
    if processes == 1 or len(arguments) < 2:
        yield from ((given, function(*given)) for given in arguments)
        return
    # Fresh interpreters: that BLAS is to use one thread has to be said before NumPy loads.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=context) as pool:
        running = {pool.submit(function, *given): given for given in arguments}
        for future in concurrent.futures.as_completed(running):
            yield running[future], future.result()


def entropies(setting: Setting) -> tuple[float, float]:
    """Unigram and bigram entropy of the text in nats: what a training is measured against."""
    of = source(setting.text)
    return of.unigram_entropy(setting.context), of.bigram_entropy(setting.context)


@functools.cache
def guesses(setting: Setting) -> tuple[float, float]:
    """What unigram and bigram guess lose on the batches that a final loss is the mean of.

    Some batches are easier than others; against these a final loss is free of that noise.
    """
    task, rng = task_of(setting), drawing_batches(setting)
    last = [task.batch(rng) for _ in range(setting.steps)][-LAST:]
    tokens, targets = (np.concatenate(arrays) for arrays in zip(*last))
    return task.text.unigram_loss(targets), task.text.bigram_loss(tokens, targets)


CHANCE = float(np.log(Recall.symbols))
