"""Sweeps: every run comes to a row once, whatever happens to the workers; and what is drawn."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from matplotlib.text import Text

from demos import many_runs, results_file, sweep, sweep_limits, sweep_map
from demos.training import Setting

ROOT = Path(__file__).parent.parent
TINY = shlex.split("--task reverse --d-model 8 --heads 2 --d-ff 16 --context 4 --batch 4 --seeds 1")
# With the rate 1e30 the weights overflow in the first step: such a run diverges.
AXES = shlex.split("--depths 1 2 --rates 0.01 1e30 --warmups 0 9 --steps 200")
SMALL = Setting(task="reverse", d_model=8, heads=2, d_ff=16, context=4, batch=4, steps=3)
RUNS = [SMALL.but(blocks=b, lr=lr) for b in (1, 2, 3) for lr in (1e-3, 1e-2)]


@contextlib.contextmanager
def thread(_: int) -> Iterator[ThreadPoolExecutor]:
    """The smallest pool there is."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def rows_of(out: Path) -> list[dict]:
    path = out / "results.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


# ---------------------------------------------------------------- workers


@contextlib.contextmanager
def started(*command: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process that is ended with the test; its output is shown if the test fails."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        print(f"--- {command}\n{(folder / 'log').read_text(errors='replace')}")


def wait_for(condition, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)


def test_a_cluster_that_loses_a_worker_gives_the_same_table(tmp_path):
    pytest.importorskip("distributed")
    folders = {name: tmp_path / name for name in ("scheduler", "one", "two", "dask", "local")}
    for folder in folders.values():
        folder.mkdir()
    found = tmp_path / "scheduler.json"
    here = ("--host", "127.0.0.1", "--no-dashboard")
    with contextlib.ExitStack() as stack:

        def start(name: str, *command: str) -> subprocess.Popen[bytes]:
            return stack.enter_context(started(*command, folder=folders[name]))

        start("scheduler", "distributed.cli.dask_scheduler", *here, "--port", "0",
              "--scheduler-file", str(found))  # fmt: skip
        wait_for(lambda: found.exists() and found.read_text(encoding="utf-8").endswith("}"))
        address = json.loads(found.read_text(encoding="utf-8"))["address"]
        workers = [
            start(name, "distributed.cli.dask_worker", address, *here, "--no-nanny",
                  "--nthreads", "1", "--local-directory", str(folders[name]))
            for name in ("one", "two")
        ]  # fmt: skip
        for name in ("one", "two"):
            wait_for(lambda log=folders[name] / "log": "Registered to" in log.read_text())
        out = folders["dask"] / "out"
        running = start("dask", "demos.sweep", *TINY, *AXES, "--dask", address, "--out", str(out))

        def pids() -> set[str]:
            return {row["worker"].split()[-1] for row in rows_of(out)}

        # Once both have finished something, one is killed in the middle of its next run.
        wait_for(lambda: len(pids()) == 2)
        workers[0].kill()
        before = len(rows_of(out))
        assert running.wait(timeout=120) == 0
    local = folders["local"] / "out"
    assert sweep.main([*TINY, *AXES, "--workers", "2", "--out", str(local)]) == 0
    for table in ("runs.csv", "limits.csv"):
        assert (out / table).read_bytes() == (local / table).read_bytes()
    rows = rows_of(out)
    assert before < len(rows) == 16
    assert rows[-1]["worker"].split()[-1] == str(workers[1].pid)
    states = [row["status"] for row in rows]
    assert states.count("finished") == states.count("diverged") == 8


def dies(setting: Setting) -> many_runs.Row:
    """One of the runs ends its worker, as a lack of memory would."""
    if setting == RUNS[2]:
        os._exit(1)
    return sweep.train_one(setting)


def test_a_run_that_kills_its_worker_is_found_and_the_others_are_trained():
    rows: list[many_runs.Row] = []
    many_runs.run_all(RUNS, many_runs.local, 2, rows.append, [], dies)
    assert len(rows) == len(RUNS)
    (failed,) = [row for row in rows if row["status"] == "failed"]
    assert failed["setting"]["blocks"] == 2 and "BrokenProcessPool" in failed["reason"]


# ---------------------------------------------------------------- stopping and going on


def test_it_goes_on_where_it_was(tmp_path, monkeypatch):
    rows, whole = sweep.sweep(RUNS, tmp_path, thread, 1)
    assert whole and len(rows) == len(RUNS)
    table = (tmp_path / "runs.csv").read_bytes()
    results = tmp_path / "results.jsonl"
    lines = results.read_bytes().splitlines(keepends=True)
    results.write_bytes(b"".join(lines[:2]) + lines[2][:50])  # killed while it wrote the third
    sweep.sweep(RUNS, tmp_path, thread, 1)
    assert (tmp_path / "runs.csv").read_bytes() == table
    assert results.read_bytes().splitlines(keepends=True)[:2] == lines[:2]
    assert len(rows_of(tmp_path)) == len(RUNS)

    more = [*RUNS, SMALL.but(blocks=4)]
    monkeypatch.setattr(many_runs, "run_all", lambda settings, *_: missing.extend(settings))
    missing: list[Setting] = []
    _, whole = sweep.sweep(more, tmp_path, thread, 1)
    assert missing == more[-1:] and not whole
    # A file from before a setting had its last field: what it does not say was the default.
    older = [json.loads(line) for line in results.read_text().splitlines()]
    for row in older:
        del row["setting"]["beta1"]
    results.write_text("".join(json.dumps(row) + "\n" for row in older))
    missing.clear()
    sweep.sweep(more, tmp_path, thread, 1)
    assert missing == more[-1:]


def test_when_asked_to_stop_it_finishes_what_has_begun():
    asked: list[bool] = []
    rows: list[many_runs.Row] = []
    begun: list[Setting] = []
    stop = threading.Event()

    def train(setting: Setting) -> many_runs.Row:
        begun.append(setting)
        if len(begun) > 1:  # it ends well after the request to stop, however busy the machine is
            assert stop.wait(timeout=60)
            time.sleep(0.5)
        return sweep.train_one(setting)

    def record(row: many_runs.Row) -> None:
        rows.append(row)
        asked.append(True)
        stop.set()

    many_runs.run_all(RUNS, thread, 1, record, asked, train)
    assert 1 <= len(rows) <= 3  # what had begun when the first was finished, and no more
    assert all(row["status"] == "finished" for row in rows)


def test_what_fails_is_a_row_and_is_tried_again(tmp_path):
    wrong = SMALL.but(heads=3)
    for count in (1, 2):
        rows, whole = sweep.sweep([wrong, SMALL], tmp_path, thread, 1)
        assert whole and [row["status"] for row in rows] == ["failed", "finished"]
        assert "ValueError" in rows[0]["reason"] and "heads=3" in rows[0]["reason"]
        trained = [row["setting"]["heads"] for row in rows_of(tmp_path)]
        assert trained.count(3) == count and trained.count(2) == 1
    with open(tmp_path / "results.jsonl", "a", encoding="utf-8") as file:
        file.write("something else\n")
    with pytest.raises(ValueError, match="has a line that is no result"):
        sweep.sweep([SMALL], tmp_path, thread, 1)


@pytest.mark.parametrize(
    "options, message",
    [
        (["--depths", "0"], "--depths: must be a whole number of at least 1, got 0"),
        (["--context", "5"], "the context must be even"),
        (["--placements", "between"], "invalid choice"),
    ],
)
def test_wrong_options_are_explained(options, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        sweep.main([*TINY, *options, "--out", str(tmp_path)])
    assert message in capsys.readouterr().err


def test_without_dask_it_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(SystemExit):
        sweep.main([*TINY, "--dask", "tcp://127.0.0.1:1", "--out", str(tmp_path)])
    assert "--dask needs dask: pip install -e '.[sweep]'" in capsys.readouterr().err


# ---------------------------------------------------------------- the map


def test_where_training_stops_and_the_map(tmp_path):
    # placement, depth, rate -> the losses of three seeds; None has diverged. A guess has 3.
    losses = {
        ("pre", 4, 0.1): (2.9, 2.9, 2.9), ("pre", 8, 0.1): (2.0, 2.0, None),
        ("pre", 4, 1.0): (2.0, 2.0, 2.0), ("pre", 8, 1.0): (None, None, None),
        ("post", 4, 0.1): (2.5, 2.9, 2.6), ("post", 8, 0.1): (2.5, 2.95, 2.9),
        ("post", 4, 1.0): (3.0, 3.0, 3.0), ("post", 8, 1.0): (2.9, 3.0, 2.1),
    }  # fmt: skip
    rows = [
        {"setting": {"placement": p, "blocks": b, "lr": lr, "warmup": 0, "seed": seed, "steps": 9},
         "status": "diverged" if loss is None else "finished", "loss": loss}
        for (p, b, lr), each in losses.items() for seed, loss in enumerate(each)
    ]  # fmt: skip
    found = sweep_limits.limits(rows, trains_below=2.8)
    assert found == [
        ("pre", 0, 0.1, ""), ("pre", 0, 1.0, "8"), ("post", 0, 0.1, "8"), ("post", 0, 1.0, "4"),
    ]  # fmt: skip
    table = sweep_limits.limits_table(found, 3.0, 0.2).splitlines()
    assert [line.split()[-2:] for line in table[1:]] == [["0.1", "1"], ["-", "8"], ["8", "4"]]
    picture = sweep_map.draw(rows, found, tmp_path, chance=3.0, margin=0.2)
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    assert picture.svg == (tmp_path / "map.svg").read_text(encoding="utf-8")
    for text in ("Pre-LN", "Post-LN", "no warm-up", "after 9 steps", ">2.00<", ">2.60<", ">div.<"):
        assert text in picture.svg, text
    assert "Post-LN, no warm-up, rate 0.1: no training from 8 blocks on." in picture.words


@pytest.mark.parametrize("depths", [(4,), (4, 8, 64)])
@pytest.mark.parametrize("rates", [(1e-3,), (1e-4, 3e-4, 1e-3, 1e-2)])
@pytest.mark.parametrize("placements", [("post",), ("pre", "admin_torch_constant")])
def test_no_words_of_the_map_touch(placements, rates, depths):
    rows = [
        {"setting": {"placement": p, "blocks": b, "lr": lr, "warmup": w, "seed": seed, "steps": 9},
         "status": "finished", "loss": loss}
        for p in placements for b in depths for lr in rates for w in (0, 100)
        for seed, loss in enumerate((2.0, 3.0, 2.5))
    ]  # fmt: skip
    with sweep_map.matplotlib.rc_context(sweep_map.plots.STYLE):
        figure = sweep_map.make_figure(rows, sweep_limits.limits(rows, 2.8), 3.0, 0.2)
        figure.canvas.draw()
        words = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
        boxes = [text.get_window_extent() for text in words]
    assert len(words) > 10
    for i, box in enumerate(boxes):
        assert figure.bbox.containsx(box.x0) and figure.bbox.containsx(box.x1), words[i]
        assert figure.bbox.containsy(box.y0) and figure.bbox.containsy(box.y1), words[i]
        for j in range(i):
            assert not box.overlaps(boxes[j]), (words[i], words[j])


def test_the_gallery_has_a_large_enough_map(tmp_path):
    settings = sweep.settings_of(sweep.arguments().parse_args([]))
    for axis, least in (("placement", 2), ("blocks", 5), ("lr", 5), ("warmup", 2), ("seed", 3)):
        assert len({getattr(setting, axis) for setting in settings}) >= least
    assert {4, 64} <= {setting.blocks for setting in settings} and len(settings) == 300
    results_file.write_csv(tmp_path / "x.csv", ("a", "b"), [(1, "c, d")])
    with open(tmp_path / "x.csv", newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [["a", "b"], ["1", "c, d"]]
