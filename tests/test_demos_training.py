"""Trainings of the lessons: what they learn, how they are resumed, and what is refused."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest

import tinyres as tr
from demos import (
    compare,
    generate,
    reverse,
    text,
    train_stacks,
    training,
)
from tests.small_runs import SMALL, TINY, WORDS


def test_compare_measures_three_runs(source: text.Text, tmp_path: Path) -> None:
    changes = {"blocks": 1, "d_model": 8, "heads": 2, "d_ff": 16, "context": 8, "steps": 3}
    section = compare.lesson(source, tmp_path, **changes)
    steps = [r for r in section.records if "lr" in r]
    assert len(steps) == 9
    # the same seed and the same batches: the first losses differ by the placement alone
    assert steps[3]["loss"] == steps[6]["loss"] != steps[0]["loss"]
    assert steps[6]["lr"] == pytest.approx(3e-5) and steps[3]["lr"] == 3e-3
    assert not section.findings[0].holds  # three steps are too few


def test_reverse_measures_two_runs(tmp_path: Path) -> None:
    section = reverse.lesson(tmp_path, blocks=1, d_model=8, heads=2, d_ff=16, steps=2)
    assert [r["run"] for r in section.records if "val_loss" in r] == ["Pre-LN", "Post-LN"]
    assert not section.findings[0].holds and "Pre-LN" in section.findings[0].measured


@pytest.mark.parametrize(
    ("pre", "post", "warm", "holds"),
    [(2.2, 3.05, 2.4, [True, True]), (2.5, 3.05, 2.4, [False, True]),
     (2.2, 2.6, 2.4, [True, False]), (2.2, 3.05, 3.0, [True, False])],
)  # fmt: skip
def test_the_claims_on_training(pre: float, post: float, warm: float, holds: list[bool]) -> None:
    loss = {"pre": pre, "post": post, "warm": warm}
    assert [f.holds for f in compare.findings(loss, 3.07, 2.39)] == holds


@pytest.mark.parametrize(("name", "order"), [("copy", [0, 1, 2, 3]), ("reverse", [3, 2, 1, 0])])
def test_batches_of_the_recall_tasks_hold_what_they_say(name: str, order: list[int]) -> None:
    task = training.make_task(training.Setting(task=name, context=8, batch=5))
    tokens, targets = task.batch(np.random.default_rng(0))
    assert tokens.shape == targets.shape == (5, 8)
    assert (tokens[:, 4] == 0).all() and tokens[:, :4].min() >= 1 and tokens.max() <= 16
    np.testing.assert_array_equal(targets[:, 4:], tokens[:, order])
    np.testing.assert_array_equal(tokens[:, 5:], targets[:, 4:-1])
    assert (targets[:, :4] == training.IGNORED).all()
    with pytest.raises(ValueError, match=f"{name}: .* even"):
        training.make_task(training.Setting(task=name, context=7))


def test_accuracy_counts_what_counts() -> None:
    logits = np.eye(3)[[[0, 1, 2, 2]]]
    assert training.accuracy(logits, np.array([[training.IGNORED, 1, 2, 0]])) == pytest.approx(
        2 / 3
    )


def run(out: Path, *options: str) -> int:
    return train_stacks.main(["--out", str(out), *options])


def read(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("task", training.TASKS)
def test_a_resumed_run_has_the_same_bits(task: str, words: Path, tmp_path: Path) -> None:
    options = [*TINY, "--task", task, "--text", str(words), "--warmup", "3", "--every", "4"]
    assert run(tmp_path / "whole", *options, "--steps", "12") == 0
    assert run(tmp_path / "parts", *options, "--steps", "8") == 0
    # A run that was killed between two saves leaves metrics of steps that will be repeated.
    with open(tmp_path / "parts" / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 9, "loss": 0.0}\n')
    assert run(tmp_path / "parts", "--resume", "--steps", "12") == 0
    assert read(tmp_path / "whole") == read(tmp_path / "parts")
    whole, parts = (tr.load(tmp_path / p / "checkpoint.npz") for p in ("whole", "parts"))
    for name, value in whole["model"].items():
        np.testing.assert_array_equal(value, parts["model"][name])
    assert whole["rng"].random() == parts["rng"].random()


def test_train_stacks_says_what_it_cannot_do(
    words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*TINY, "--text", str(words), "--steps", "2"]
    out = tmp_path / "run"
    other = tmp_path / "other.txt"
    other.write_text("0123456789" * 40)
    assert run(out, *options) == 0
    for wrong, message in {
        ("--steps", "3"): "--resume goes on",
        ("--resume", "--blocks", "3"): "goes on with blocks = 1",
        ("--resume", "--text", str(other)): "other characters",
        ("--fresh", "--text", str(tmp_path / "none")): "there is no file",
        ("--fresh", "--text", str(words), "--context", "900"): "too short",
        ("--fresh", "--placement", "sideways"): "invalid choice",
    }.items():
        with pytest.raises(SystemExit) as left:
            run(out, *wrong)
        assert left.value.code == 2
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run(tmp_path / "nothing", "--resume")
    assert "there is no run" in capsys.readouterr().err


def test_interrupt_finishes_the_step_and_saves(
    words: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    step = training.Trainer.step

    def interrupted(trainer: training.Trainer) -> dict[str, float]:
        if trainer.done == 2:
            signal.raise_signal(signal.SIGINT)
        return step(trainer)

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(training.Trainer, "step", interrupted)
    assert run(tmp_path / "run", *TINY, "--text", str(words), "--steps", "9") == 130
    assert signal.getsignal(signal.SIGINT) is before
    assert "--resume" in capsys.readouterr().out
    assert tr.load(tmp_path / "run" / "checkpoint.npz")["done"] == 3
    monkeypatch.undo()
    assert run(tmp_path / "run", "--resume") == 0
    assert [r["step"] for r in read(tmp_path / "run") if "lr" in r] == list(range(1, 10))


def test_a_loss_that_is_not_finite_is_explained(
    words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = training.Trainer(SMALL, training.make_task(SMALL, text.load(words)))
    trainer.model.stack.blocks[1].feed_forward.norm.gamma.data = np.full(8, 3e38)
    with pytest.raises(
        FloatingPointError, match=r"step 1: the loss is .*detect_anomaly.*blocks\.1"
    ):
        trainer.step()
    trainer.model.head.bias.data = np.full(len(set(WORDS)), np.nan)
    with pytest.raises(FloatingPointError, match=r"head\.bias is not finite since the step before"):
        trainer.step()
    options = [*TINY, "--text", str(words), "--lr", "1e30", "--steps", "5"]
    assert run(tmp_path / "run", *options) == 1
    assert "the loss is" in capsys.readouterr().out


def test_generate_writes_text_of_the_checkpoint(
    words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "run", *TINY, "--text", str(words), "--steps", "2")
    capsys.readouterr()
    checkpoint = str(tmp_path / "run" / "checkpoint.npz")
    options = [checkpoint, "--prompt", "the ", "--count", "20", "--out", str(tmp_path)]
    generate.main(options)
    first = capsys.readouterr().out
    assert first.startswith("the ") and len(first) == 25 and set(first) <= set(WORDS + "\n")
    assert (tmp_path / "text.txt").read_text() == first
    generate.main(options)
    assert capsys.readouterr().out == first
    for wrong, message in {
        (checkpoint, "--prompt", "?"): "never seen '?'",
        (checkpoint, "--prompt", ""): "at least one token",
        (str(tmp_path / "none.npz"),): "train_stacks first",
        (str(words),): "not a whole tinyres state",
    }.items():
        with pytest.raises(SystemExit):
            generate.main([*wrong, "--out", str(tmp_path)])
        assert message in capsys.readouterr().err
