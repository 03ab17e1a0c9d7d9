"""A thousand blocks, in small: two runs in two processes, stopped, killed and taken up again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinyres as tr
from demos import side_by_side, thousand
from demos.folder import alone_in
from demos.report import BOTH
from demos.saved_run import SavedRun, begin
from demos.training import Setting

ROOT = Path(__file__).parents[1]
TINY = thousand.SETTING.but(blocks=2, d_model=8, heads=2, d_ff=8, context=8, batch=2, steps=6)


def assert_same_run(one: Path, other: Path) -> None:
    """The same bits in the weights, the optimizer and the generator, and the same metrics."""
    states = [tr.load(out / "checkpoint.npz") for out in (one, other)]
    assert states[0]["done"] == states[1]["done"] and states[0]["setting"] == states[1]["setting"]
    for name, value in states[0]["model"].items():
        np.testing.assert_array_equal(value, states[1]["model"][name], err_msg=name)
    for a, b in zip(*(state["optimizer"]["slots"][0] for state in states), strict=True):
        np.testing.assert_array_equal(a, b)
    assert states[0]["rng"].random() == states[1]["rng"].random()
    assert (one / "metrics.jsonl").read_text() == (other / "metrics.jsonl").read_text()


# ---------------------------------------------------------------- what is trained


def test_the_embedding_is_loud_and_that_is_a_scaling_of_all_branches(words: Path) -> None:
    setting = TINY.but(text=str(words), blocks=9)
    loud = thousand.new(setting, words.parent).trainer
    plain = begin(setting.but(placement="depth_mup"), words.parent).trainer
    table = plain.model.token.weight.data
    np.testing.assert_array_equal(loud.model.token.weight.data, table * np.float32(3))
    plain.model.position.weight.data[...] /= 3
    tokens, _ = loud.task.held_out()
    for model in (loud.model.astype("float64"), plain.model.astype("float64")):
        for module in model.modules():
            if hasattr(module, "eps"):
                module.eps = 0.0  # it would count for more where the stream is smaller
    np.testing.assert_allclose(loud.model(tokens).data, plain.model(tokens).data, atol=1e-6)


def fresh(tmp_path: Path, text: Path, name: str, **changes: Any) -> side_by_side.Job:
    setting = TINY.but(text=str(text), **changes)
    return side_by_side.Job(name, setting, tmp_path / name, thousand.new, thousand.at_the_end)


def finish(job: side_by_side.Job, heard: Callable[[Any], bool] = lambda _: True) -> None:
    side_by_side.train(side_by_side.saved_or_new(job), heard, job.at_the_end)


@pytest.mark.parametrize("stops", [(3,), (0, 1, 5), (6,)])
def test_a_run_that_nobody_hears_is_saved_and_goes_on(
    stops: tuple[int, ...], words: Path, tmp_path: Path
) -> None:
    whole, parts = (fresh(tmp_path, words, name) for name in ("whole", "parts"))
    finish(whole)
    for stop in stops:
        finish(parts, lambda message, stop=stop: message["step"] < stop)  # type: ignore[misc]
        if (parts.out / "checkpoint.npz").exists():
            assert tr.load(parts.out / "checkpoint.npz")["done"] == stop
    finish(parts)
    assert_same_run(whole.out, parts.out)
    finish(parts)  # there is nothing left to do
    assert_same_run(whole.out, parts.out)
    *steps, last = map(json.loads, (whole.out / "metrics.jsonl").read_text().splitlines())
    assert [record["step"] for record in steps] == [1, 2, 3, 4, 5, 6]
    assert {"val_loss", "start", "end"} < last.keys()
    assert [len(values) for values in last["end"].values()] == [3, 3, 3]
    assert last["start"]["gradient"] != last["end"]["gradient"]


def test_a_run_with_other_options_is_refused(words: Path, tmp_path: Path) -> None:
    finish(fresh(tmp_path, words, "run"))
    before = (tmp_path / "run" / "checkpoint.npz").read_bytes()
    for changes in ({"steps": 7}, {"blocks": 3}, {"seed": 1}):
        with pytest.raises(ValueError, match=rf"other options .*'{next(iter(changes))}'.*another"):
            side_by_side.saved_or_new(fresh(tmp_path, words, "run", **changes))
    assert (tmp_path / "run" / "checkpoint.npz").read_bytes() == before


# ---------------------------------------------------------------- in processes


def die(setting: Setting, out: Path) -> SavedRun:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def diverge(setting: Setting, out: Path) -> SavedRun:
    run = begin(setting, out)
    run.trainer.model.head.bias.data[...] = np.nan
    return run


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [(die, OSError, "bad: its process ended with status -9: the same command goes on"),
     (diverge, ValueError, r"step 1: the loss is nan. head\.bias is not finite")],
)  # fmt: skip
def test_what_happens_to_a_process_is_said_and_the_other_is_saved(
    bad: Any, error: type[Exception], message: str, words: Path, tmp_path: Path
) -> None:
    job = fresh(tmp_path, words, "good", steps=30)
    failing = side_by_side.Job("bad", job.setting, tmp_path / "bad", bad, job.at_the_end)
    with pytest.raises(error, match=message):
        side_by_side.train_side_by_side([job, failing])
    finish(job)
    assert tr.load(job.out / "checkpoint.npz")["done"] == 30


def command(words: Path, out: Path, steps: int) -> subprocess.Popen[str]:
    options = ["--blocks", "1", "--steps", str(steps), "--text", str(words), "--out", str(out)]
    return subprocess.Popen(
        [sys.executable, "-m", "demos.thousand", *options], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def saved(out: Path) -> set[tuple[str, int]]:
    """The checkpoints, each with its time."""
    return {(p, f.stat().st_mtime_ns) for p in BOTH if (f := out / p / "checkpoint.npz").exists()}


def is_free(folder: Path) -> bool:
    try:
        with alone_in(folder):
            return True
    except ValueError:
        return False


def test_stopped_and_killed_the_command_ends_with_the_same_bits(
    words: Path, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    steps = 1000  # far more than one of the two can do while the other one begins
    undisturbed = command(words, whole, steps)
    for by in (signal.SIGINT, signal.SIGKILL):
        before = saved(parts)
        process = command(words, parts, steps)
        until(lambda before=before: not saved(parts) & before and len(saved(parts)) == 2)  # type: ignore[misc]
        if by is signal.SIGINT:
            os.killpg(process.pid, by)  # as a terminal does it
        else:
            process.kill()  # its processes notice that nobody listens any more
        said, _ = process.communicate(timeout=180)
        until(lambda: all(is_free(parts / p) for p in BOTH))
        done = [tr.load(parts / p / "checkpoint.npz")["done"] for p in BOTH]
        assert all(0 < d < steps for d in done), done
        if by is signal.SIGINT:
            assert process.returncode == 130 and "the same command goes on" in said
    said, errors = command(words, parts, steps).communicate(timeout=180)
    assert "page, pictures and numbers" in said, errors
    assert said.count("HOLD]") + said.count("[holds]") == 4
    assert undisturbed.communicate(timeout=180)[0] == said.replace(str(parts), str(whole))
    for placement in BOTH:
        assert_same_run(whole / placement, parts / placement)
    for name in ("thousand.svg", "report.html", "measurements.jsonl"):
        assert (whole / name).read_bytes() == (parts / name).read_bytes()
    assert "dashed: before training" in (parts / "thousand.svg").read_text()


# ---------------------------------------------------------------- what came of it


@pytest.mark.parametrize(
    ("changes", "fails"),
    [({}, []), ({"pre": 2.48}, []), ({"pre": 2.5}, [0]), ({"post": 3.0}, [1]), ({"post": 4.0}, [1]),
     ({"pre start": [0.1, 0.5, 1]}, [2]), ({"post start": [1e-3, 0.5, 1]}, [2]),
     ({"pre end": [0.0, 0.5, 1]}, [3]), ({"post end": [1e-30, 0.5, 1]}, [3])],
)  # fmt: skip
def test_the_claims_are_decided_by_the_numbers(
    changes: dict[str, Any], fails: list[int], tmp_path: Path
) -> None:
    seen: dict[str, Any] = {
        "pre": 2.3, "post": 3.07, "pre start": [1.0, 1, 1], "post start": [1e-9, 1, 1],
        "pre end": [1.0, 1, 1], "post end": [0, 1e-40, 1], **changes,
    }  # fmt: skip
    runs = {
        p: {"val_loss": seen[p], **{m: {"gradient": seen[f"{p} {m}"]} for m in thousand.MOMENTS}}
        for p in BOTH
    }
    found = thousand.findings(runs, unigram=3.07, bigram=2.39)
    assert [i for i, finding in enumerate(found) if not finding.holds] == fails
    levels = [("unigram", 3.07), ("bigram", 2.39)]
    drawn = thousand.picture({p: [4.0, 3.0] for p in BOTH}, runs, levels, tmp_path)
    assert ("0 below block 1" in drawn.svg) == (seen["post end"][0] == 0)
