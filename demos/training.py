"""The training loop that all lessons share, and the tasks that they train on.

A run is described by a `Setting`, made reproducible by its seed, and can be stopped and taken up
again with the same bits, because `Trainer.state` is all that the next step depends on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
from tqdm import tqdm

import tinyres as tr
from demos.text import Ints, Text

IGNORED = -1  # a target that doesn't count


@dataclass(frozen=True)
class Setting:
    """What is trained, and how. The defaults are those of the tour."""

    task: str = "chars"
    text: str | None = None
    placement: str = "pre"
    blocks: int = 6
    d_model: int = 64
    heads: int = 4
    d_ff: int = 256
    context: int = 32
    batch: int = 16
    lr: float = 3e-3
    schedule: str = "constant"
    warmup: int = 0
    beta1: float = 0.9
    beta2: float = 0.98
    steps: int = 300
    seed: int = 0

    def but(self, **changes: Any) -> Setting:
        """The same setting with a few changes."""
        return replace(self, **changes)


SCHEDULES = {
    "constant": lambda s: tr.optim.warmup_constant(s.lr, s.warmup),
    "cosine": lambda s: tr.optim.warmup_cosine(s.lr, s.warmup, s.steps),
    "inverse_sqrt": lambda s: tr.optim.inverse_sqrt(s.lr, s.warmup),
}


class Task(Protocol):
    """Something to learn: batches of (tokens, targets), and some held back to test with."""

    vocab: int
    context: int

    @property
    def chance(self) -> float:
        """The loss of one who knows only how frequent each symbol is."""
        ...

    def batch(self, rng: np.random.Generator) -> tuple[Ints, Ints]: ...
    def held_out(self) -> tuple[Ints, Ints]: ...


class Characters:
    """Predict the next character of a text."""

    def __init__(self, text: Text, context: int, size: int):
        text.check_context(context)
        self.text, self.context, self.size = text, context, size
        self.vocab = len(text.symbols)

    def batch(self, rng: np.random.Generator) -> tuple[Ints, Ints]:
        return self.text.batch(rng, self.size, self.context)

    def held_out(self) -> tuple[Ints, Ints]:
        return self.text.windows(self.context)

    @property
    def chance(self) -> float:
        """The unigram entropy of the text."""
        return self.text.unigram_entropy(self.context)


class Recall:
    """Random symbols 1..16, a separator 0, then the same symbols, in the `order` of a subclass.

    Only the second half counts: the first can't be predicted. Every symbol of it stands somewhere
    in the first half, so that the best loss is 0, and each token has to look at exactly one other.
    """

    symbols = 16
    order: ClassVar[slice]

    def __init__(self, context: int, size: int):
        if context < 2 or context % 2:
            name = type(self).__name__.lower()
            raise ValueError(f"{name}: the context must be even, twice the length, got {context}")
        self.context, self.size = context, size
        self.vocab = self.symbols + 1

    def batch(self, rng: np.random.Generator, size: int | None = None) -> tuple[Ints, Ints]:
        half = self.context // 2
        given = rng.integers(1, self.symbols + 1, (size or self.size, half))
        separator = np.zeros((len(given), 1), np.int64)
        whole = np.hstack([given, separator, given[:, self.order]])
        targets = whole[:, 1:].copy()
        targets[:, :half] = IGNORED
        return whole[:, :-1], targets

    def held_out(self) -> tuple[Ints, Ints]:
        return self.batch(np.random.default_rng(12345), 256)

    @property
    def chance(self) -> float:
        """The loss of guessing."""
        return math.log(self.symbols)


class Copy(Recall):
    """The same symbols once more: each token looks equally far back."""

    order = slice(None)


class Reverse(Recall):
    """The symbols backwards: each token looks back to a different distance."""

    order = slice(None, None, -1)


RECALLS: dict[str, type[Recall]] = {"copy": Copy, "reverse": Reverse}
TASKS = ("chars", *RECALLS)


def make_task(setting: Setting, text: Text | None = None) -> Task:
    """The task that a setting names."""
    if setting.task in RECALLS:
        return RECALLS[setting.task](setting.context, setting.batch)
    if text is None:
        raise ValueError("make_task: the task 'chars' needs a text")
    return Characters(text, setting.context, setting.batch)


def drawing_batches(setting: Setting) -> np.random.Generator:
    """What draws a run's batches: every placement gets the same ones."""
    return np.random.default_rng([setting.seed, 1])


class Trainer:
    """A model on its way: `step()` takes one step, `state()` is all that the next one needs."""

    def __init__(self, setting: Setting, task: Task, placement: type[tr.nn.Residual] | None = None):
        self.setting, self.task = setting, task
        self.model = tr.nn.TransformerLM(
            task.vocab, setting.d_model, setting.heads, setting.blocks, task.context, setting.d_ff,
            placement=placement or setting.placement, rng=setting.seed,
        )  # fmt: skip
        betas = setting.beta1, setting.beta2
        self.optimizer = tr.optim.Adam(self.model.parameters(), setting.lr, betas=betas)
        self.rng = drawing_batches(setting)
        self.done = 0

    def step(self) -> dict[str, float]:
        """One step of Adam on one batch; what it measured."""
        self.optimizer.lr = SCHEDULES[self.setting.schedule](self.setting)(self.done)
        tokens, targets = self.task.batch(self.rng)
        # A loss that overflows is reported below, by name, and not by NumPy's warning.
        with np.errstate(over="ignore", invalid="ignore"):
            logits = self.model(tokens)
            loss = tr.cross_entropy(logits, targets=targets, ignore_index=IGNORED)
            if not math.isfinite(loss.item()):
                raise FloatingPointError(self._explain(loss.item(), tokens, targets))
            self.model.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.done += 1
        return {
            "step": self.done,
            "loss": loss.item(),
            "accuracy": accuracy(logits.data, targets),
            "lr": self.optimizer.lr,
        }

    def _explain(self, loss: float, tokens: Ints, targets: Ints) -> str:
        """Repeat the step under detect_anomaly, which stops at the first op that is not finite."""
        start = f"step {self.done + 1}: the loss is {loss}."
        for name, p in self.model.named_parameters():
            if not np.isfinite(p.data).all():
                return f"{start} {name} is not finite since the step before: take a smaller lr"
        try:
            with tr.detect_anomaly():
                logits = self.model(tokens)
                tr.cross_entropy(logits, targets=targets, ignore_index=IGNORED)
        except FloatingPointError as error:
            return f"{start} The step repeated under tr.detect_anomaly(): {error}"
        return f"{start} The step repeated under tr.detect_anomaly() found all ops finite"

    def evaluate(self) -> dict[str, float]:
        """Loss and accuracy on what was held back."""
        tokens, targets = self.task.held_out()
        with tr.no_grad():
            logits = self.model(tokens)
            loss = tr.cross_entropy(logits, targets=targets, ignore_index=IGNORED)
        right = accuracy(logits.data, targets)
        return {"step": self.done, "val_loss": loss.item(), "val_accuracy": right}

    def state(self) -> dict[str, Any]:
        """Everything that the next step depends on, as `tr.save` takes it."""
        return {
            "setting": asdict(self.setting),
            "done": self.done,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": self.rng,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Stand where `state` was taken."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.rng, self.done = state["rng"], state["done"]


def accuracy(logits: np.ndarray, targets: Ints) -> float:
    """Share of the targets that count whose symbol has the highest logit."""
    counts = targets != IGNORED
    return float((logits.argmax(axis=-1) == targets)[counts].mean())


def progress(trainer: Trainer, label: str) -> Iterator[dict[str, float]]:
    """The steps that are left, under a progress bar that shows the loss."""
    left = trainer.setting.steps - trainer.done
    # disable=None: no bar where the output is not a terminal
    with tqdm(total=left, desc=label, unit="step", leave=False, disable=None) as bar:
        for _ in range(left):
            record = trainer.step()
            bar.set_postfix_str(f"loss {record['loss']:.3f}", refresh=False)
            bar.update()
            yield record


@dataclass
class Run:
    """A finished training run and what it measured."""

    label: str
    trainer: Trainer
    history: list[dict[str, float]]
    result: dict[str, float]

    @property
    def losses(self) -> list[float]:
        """Of each step's batch."""
        return [record["loss"] for record in self.history]

    def records(self) -> list[dict[str, Any]]:
        """Every step and the result as plain data."""
        return [{"run": self.label, **record} for record in [*self.history, self.result]]


def train(
    setting: Setting, task: Task, label: str, placement: type[tr.nn.Residual] | None = None
) -> Run:
    """Train to the end and evaluate."""
    start = time.perf_counter()
    trainer = Trainer(setting, task, placement)
    history = list(progress(trainer, f"{label}, {setting.task}"))
    result = trainer.evaluate() | {"seconds": time.perf_counter() - start}
    return Run(label, trainer, history, result)


def train_all(
    settings: dict[str, tuple[str, Setting]], text: Text | None = None, **changes: Any
) -> dict[str, Run]:
    """Train each of the settings (name -> label, setting), with the same changes to all."""
    runs = {}
    for name, (label, setting) in settings.items():
        setting = setting.but(**changes)
        runs[name] = train(setting, make_task(setting, text), label)
    return runs
