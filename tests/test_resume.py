"""A training run survives: killed, interrupted, beside another run, on a full disk."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tinyres as tr
from demos import generate, train_stacks

ROOT = Path(__file__).parents[1]
TINY = ["--blocks", "1", "--d-model", "8", "--heads", "2", "--d-ff", "8", "--context", "8",
        "--batch", "2", "--every", "3"]  # fmt: skip
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "words.txt"
    file.write_text("the quick brown fox jumps over the lazy dog, and then it sleeps. " * 5)
    return [*TINY, "--text", str(file)]


def command(*options, **how):
    return subprocess.Popen(
        [sys.executable, "-m", "demos.train_stacks", *map(str, options)],
        cwd=ROOT, env=ENVIRONMENT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how,
    )  # fmt: skip


def trained(*options):
    """The exit code of a run in this process."""
    try:
        return train_stacks.main([*map(str, options)])
    except SystemExit as left:
        return left.code


def finished(process):
    out, err = process.communicate(timeout=60)
    return process.returncode, out + err


def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)


def metrics(out):
    return (out / "metrics.jsonl").read_text()


def assert_same_run(one, other):
    """The same bits in all that the next step depends on, in the metrics, and in what it writes."""
    states = [tr.load(out / "checkpoint.npz") for out in (one, other)]
    assert states[0]["done"] == states[1]["done"]
    for part in ("model", "optimizer"):
        flat = [np.concatenate([a.ravel() for a in arrays(s[part])]) for s in states]
        assert flat[0].tobytes() == flat[1].tobytes()
    assert states[0]["rng"].random() == states[1]["rng"].random()
    assert metrics(one) == metrics(other)
    texts = [
        generate.sample(*generate.load_model(out / "checkpoint.npz"), "the ", 30, rng=0)
        for out in (one, other)
    ]
    assert texts[0] == texts[1]


def arrays(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [a for v in value for a in arrays(v)]
    return [np.asarray(value, float)]


def test_30_kills_leave_no_trace(options, tmp_path):
    kills = [sys.executable, str(ROOT / "tests" / "kill_runs.py"), str(tmp_path), "30"]
    done = subprocess.run(
        [*kills, *options, "--steps", "25"], cwd=ROOT, env=ENVIRONMENT, text=True,
        capture_output=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    died = json.loads(done.stdout)
    assert sum(died.values()) == 30 and len(died) >= 5, died
    steps = [json.loads(line)["step"] for line in metrics(tmp_path / "whole").splitlines()]
    assert [s for s in steps if steps.count(s) == 1 or s % 3 == 0 or s == 25] == steps
    runs = sorted(tmp_path.glob("run*"))
    assert len(runs) >= 2
    for run in runs:
        assert_same_run(tmp_path / "whole", run)
        assert sorted(p.name for p in run.iterdir()) == ["checkpoint.npz", "lock", "metrics.jsonl"]


def test_ctrl_c_finishes_the_step_and_exits_130(options, tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert trained(*options, "--steps", 60, "--out", whole) == 0
    process = command(*options, "--steps", 60, "--out", stopped)
    until(lambda: (stopped / "metrics.jsonl").exists() and metrics(stopped).count("\n") > 5)
    process.send_signal(signal.SIGINT)
    code, said = finished(process)
    assert code == 130 and "stopped after step" in said and "--resume" in said, said
    done = tr.load(stopped / "checkpoint.npz")["done"]
    assert f"stopped after step {done} " in said and 0 < done < 60
    assert json.loads(metrics(stopped).splitlines()[-1])["step"] == done
    assert trained("--resume", "--out", stopped) == 0
    assert_same_run(whole, stopped)


def test_two_runs_in_one_folder(options, tmp_path, capsys):
    out = tmp_path / "run"
    first = command(*options, "--steps", 100_000, "--out", out)
    try:
        until((out / "checkpoint.npz").exists)
        for how in ([], ["--fresh"], ["--resume"]):
            assert trained(*([] if how == ["--resume"] else options), *how, "--out", out) == 2
            assert "another run is writing there" in capsys.readouterr().err
            assert first.poll() is None
        lines = metrics(out).count("\n")
        until(lambda: metrics(out).count("\n") > lines)
    finally:
        first.kill()
        first.communicate()
    steps = [json.loads(line)["step"] for line in metrics(out).splitlines()[:-1]]
    assert steps == sorted(steps)
    # The lock of a killed run does not outlive it.
    done = tr.load(out / "checkpoint.npz")["done"]
    assert trained("--resume", "--steps", done, "--out", out) == 0


FULL_DISK = """
import resource, sys
from demos import train_stacks
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
raise SystemExit(train_stacks.main(sys.argv[1:]))
"""


def test_a_full_disk_leaves_the_last_checkpoint(options, tmp_path):
    out, whole = tmp_path / "run", tmp_path / "whole"
    assert trained(*options, "--steps", 6, "--out", out) == 0
    before = (out / "checkpoint.npz").read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, "--resume", "--steps", "12", "--out", str(out)],
        cwd=ROOT, env=ENVIRONMENT, text=True, capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1 and "File too large" in done.stdout, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and "--resume" in done.stdout
    assert (out / "checkpoint.npz").read_bytes() == before
    assert trained("--resume", "--steps", 12, "--out", out) == 0
    assert trained(*options, "--steps", 12, "--out", whole) == 0
    assert_same_run(whole, out)


def test_a_folder_that_can_not_be_written(options, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert trained(*options, "--steps", 3, "--out", tmp_path / "file" / "run") == 1
    assert "Not a directory" in capsys.readouterr().out


def test_a_read_only_disk_leaves_the_run_as_it_was(options, tmp_path, monkeypatch, capsys):
    out, real = tmp_path / "run", open
    assert trained(*options, "--steps", 3, "--out", out) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def read_only(file, mode="r", *args, **kwargs):
        if set(mode) & set("wax+") and str(out) in str(file):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(file))
        return real(file, mode, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", read_only)
        assert trained("--resume", "--steps", 6, "--out", out) == 1
    said = capsys.readouterr().out
    assert "Read-only file system" in said and "--resume" in said
    assert before == {path.name: path.read_bytes() for path in out.iterdir()}
    assert trained("--resume", "--steps", 6, "--out", out) == 0


def spoil(state, how):
    if how == "no setting":
        del state["setting"]
    elif how == "another setting":
        state["setting"]["colour"] = "red"
    elif how == "a weight less":
        state["model"].popitem()
    elif how == "another shape":
        state["model"]["head.bias"] = np.zeros(1)
    elif how == "no optimizer":
        state["optimizer"] = {}
    return state


@pytest.mark.parametrize(
    "how", ["no setting", "another setting", "a weight less", "another shape", "no optimizer"]
)
def test_a_checkpoint_of_something_else_is_refused(how, options, tmp_path, capsys):
    assert trained(*options, "--steps", 3, "--out", tmp_path) == 0
    tr.save(tmp_path / "checkpoint.npz", **spoil(tr.load(tmp_path / "checkpoint.npz"), how))
    before = (tmp_path / "checkpoint.npz").read_bytes(), metrics(tmp_path)
    assert trained("--resume", "--steps", 6, "--out", tmp_path) == 2
    assert "error: " in capsys.readouterr().err
    assert before == ((tmp_path / "checkpoint.npz").read_bytes(), metrics(tmp_path))
