"""Every lesson runs, its findings are computed from what it measured, and a run can be resumed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import tinyres as tr
from demos import (
    __main__ as listing,
)  # fmt: skip
from demos import (
    compare,
    generate,
    gradient_flow,
    own_op,
    own_placement,
    plots,
    report,
    reverse,
    text,
    token_collapse,
    tour,
    train_stacks,
    training,
    vanishing_signal,
    worked_example,
)
from tinyres.graph import view
from tinyres.graph.layout import Layout, gradient_at

WORDS = "the quick brown fox jumps over the lazy dog, and then it sleeps. "
TINY = ["--blocks", "1", "--d-model", "8", "--heads", "2", "--d-ff", "16", "--context", "8",
        "--batch", "4"]  # fmt: skip
SMALL = training.Setting(
    blocks=2, d_model=8, heads=2, d_ff=16, context=8, batch=4, steps=4, lr=1e-3
)


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A text of 65 * 12 characters in a file."""
    file = tmp_path / "words.txt"
    file.write_text(WORDS * 12, encoding="utf-8")
    return file


@pytest.fixture
def source(words: Path) -> text.Text:
    """The same, loaded."""
    return text.load(words)


# ---------------------------------------------------------------- the lessons as commands


@pytest.mark.parametrize("lesson", listing.LESSONS)
def test_help_is_the_lesson(lesson: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = __import__(f"demos.{lesson}", fromlist=["main"])
    with pytest.raises(SystemExit) as left:
        module.main(["--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert listing.first_line(lesson) in shown


def test_the_list_names_every_lesson(capsys: pytest.CaptureFixture[str]) -> None:
    listing.main()
    shown = capsys.readouterr().out
    assert all(f"python -m demos.{lesson} " in shown for lesson in listing.LESSONS)


def test_importing_the_lessons_does_nothing(tmp_path: Path) -> None:
    names = [path.stem for path in Path(tour.__file__).parent.glob("*.py")]
    code = "; ".join(f"import demos.{name}" for name in names)
    root = str(Path(tour.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": root},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "" and not list(tmp_path.iterdir())


# ---------------------------------------------------------------- by hand


def test_worked_example_gives_the_numbers_of_the_lesson() -> None:
    m = worked_example.measure()
    assert m["x + F(x)"] == [2.5, 3.0, 6.5]
    assert m["mean"] == 4
    np.testing.assert_allclose(m["variance"], 8 / 3, rtol=1e-6)
    np.testing.assert_allclose(m["standard deviation"], 1.633, atol=5e-4)
    np.testing.assert_allclose(m["x_hat"], [-1.225, 0, 1.225], atol=5e-4)
    np.testing.assert_allclose(m["gamma * x_hat + beta"], [-1.225, 1.0, -0.388], atol=5e-4)
    np.testing.assert_allclose(m["LayerNorm(3)"], m["gamma * x_hat + beta"], rtol=1e-6)
    assert m["learned numbers"] == 6
    assert np.isnan(m["flat, eps = 0"]).all()
    assert m["flat, eps = 1e-5"] == [0.0, 0.0, 0.0]


def test_a_claim_is_decided_by_the_numbers() -> None:
    m = worked_example.measure()
    (finding,) = worked_example.findings(m)
    assert finding.holds and finding.line().startswith("[holds]")
    (finding,) = worked_example.findings({**m, "x + F(x)": [2.5, 3.0, 6.4]})
    assert not finding.holds and finding.line().startswith("[DOES NOT HOLD]")


# ---------------------------------------------------------------- signals and gradients


def test_scalings_multiply_and_additions_keep_the_gradient() -> None:
    plain = vanishing_signal.scalings("F(x)", 0.9, seed=1)
    np.testing.assert_allclose(plain["signal"], 0.9 ** np.arange(41.0))
    np.testing.assert_allclose(plain["gradient"], 0.9 ** np.arange(40.0, -1, -1))
    assert not plain["unchanged"]
    assert vanishing_signal.scalings("x + F(x)", 0.0, seed=1)["unchanged"]


def test_vanishing_signal(source: text.Text, tmp_path: Path) -> None:
    section = vanishing_signal.lesson(source, tmp_path)
    assert [f.holds for f in section.findings] == [True, True, True]


def test_a_plain_stack_that_passes_its_gradient_would_be_reported(source: text.Text) -> None:
    gains = vanishing_signal.GAINS
    toys = [vanishing_signal.scalings(r, g, 0) for r in vanishing_signal.RULES for g in gains]
    zero = vanishing_signal.scalings("x + F(x)", 0.0, 0)
    real = vanishing_signal.real_stacks(source, 12, 0)
    real[0]["gradient"] = np.ones(13)
    assert not vanishing_signal.findings(toys, zero, real)[2].holds


def test_tokens_of_a_deep_post_ln_stack_are_alike(
    source: text.Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = token_collapse.lesson(source, tmp_path)
    assert section.findings[0].holds
    tops = {(r["placement"], r["blocks"]): r["collapse"][-1] for r in section.records}
    assert tops["post", 48] < 1e-3 * tops["post", 12] < 1e-3 < tops["pre", 48]
    monkeypatch.setattr(token_collapse, "DEPTHS", (2, 4))
    assert not token_collapse.lesson(source, tmp_path).findings[0].holds  # too few blocks


def test_gradient_flow_looks_at_its_moments(
    source: text.Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradient_flow, "MOMENTS", (0, 1, 4))
    section = gradient_flow.lesson(source, tmp_path, setting=SMALL)
    assert [(r["placement"], r["step"]) for r in section.records] == [
        (p, s) for p in ("pre", "post") for s in (0, 1, 4)
    ]
    assert all(0 < r["collapse"][-1] < 2 and r["top gradient"] > 0 for r in section.records)
    assert not section.findings[0].holds  # four steps are too few
    graphs = [part for part in section.parts if isinstance(part, report.Figure)][-1]
    assert [p.name for p in graphs.pictures] == ["gradient-graph-step0", "gradient-graph-step4"]
    for picture, step in zip(graphs.pictures, (0, 4)):
        assert f"Pre-LN, step {step}" in picture.svg and f"Post-LN, step {step}" in picture.svg
        assert set(re.findall(r"1e-?\d+<", picture.svg)) == {"1e-2<", "1e2<"}  # one scale
        assert "|gradient| = " in picture.svg


def test_the_graphs_show_what_the_probe_measures(source: text.Text, tmp_path: Path) -> None:
    _, graphs = gradient_flow.in_training(source, SMALL.but(steps=0))
    trainer = training.Trainer(SMALL, training.make_task(SMALL, source))
    tokens, targets = trainer.task.held_out()
    probed = tr.probe.stream_gradient(trainer.model, (tokens[:64], targets[:64]))
    layout = Layout(view(graphs["pre", 0], 0, fold=False))
    drawn = [gradient_at(layout, box) for box in sorted(layout.carrying)]
    assert drawn == pytest.approx(probed[1:], rel=1e-4)


# ---------------------------------------------------------------- training


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


def test_reverse_batches_hold_what_the_task_says() -> None:
    task = training.Reverse(context=8, size=5)
    tokens, targets = task.batch(np.random.default_rng(0))
    assert tokens.shape == targets.shape == (5, 8)
    assert (tokens[:, 4] == 0).all() and tokens[:, :4].min() >= 1 and tokens.max() <= 16
    np.testing.assert_array_equal(targets[:, 4:], tokens[:, :4][:, ::-1])
    assert (targets[:, :4] == training.IGNORED).all()
    with pytest.raises(ValueError, match="even"):
        training.Reverse(context=7, size=5)


def test_accuracy_counts_what_counts() -> None:
    logits = np.eye(3)[[[0, 1, 2, 2]]]
    assert training.accuracy(logits, np.array([[training.IGNORED, 1, 2, 0]])) == pytest.approx(
        2 / 3
    )


def run(out: Path, *options: str) -> int:
    return train_stacks.main(["--out", str(out), *options])


def read(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("task", ["chars", "reverse"])
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


# ---------------------------------------------------------------- your own


def test_own_op_is_right_and_the_wrong_one_is_found(tmp_path: Path) -> None:
    section = own_op.lesson(tmp_path)
    assert [f.holds for f in section.findings] == [True, True, True]
    assert (tmp_path / "own-op.svg").exists()


def test_own_placement_trains_and_is_drawn(source: text.Text, tmp_path: Path) -> None:
    section = own_placement.lesson(source, tmp_path, SMALL)
    assert [r["placement"] for r in section.records] == ["NormLast", "Pre-LN", "Post-LN"]
    assert len({r["val_loss"] for r in section.records}) == 3
    assert (tmp_path / "own-placement.svg").exists()


# ---------------------------------------------------------------- text


def test_the_standard_library_is_a_text() -> None:
    library = text.load()
    assert len(library.train) + len(library.val) > 1_000_000
    assert {ord(symbol) for symbol in library.symbols} <= {10, *range(32, 127)}
    # knowing more predicts better
    uniform = np.log(len(library.symbols))
    assert library.bigram_entropy(32) < library.unigram_entropy(32) - 0.5 < uniform - 0.5


def test_text_goes_both_ways_and_windows_are_shifted(source: text.Text) -> None:
    assert text.decode(source.symbols, text.encode(source.symbols, "lazy dog")) == "lazy dog"
    for tokens, targets in (
        source.batch(np.random.default_rng(0), 6, 10),
        source.windows(10, count=6),
    ):
        assert tokens.shape == targets.shape == (6, 10)
        np.testing.assert_array_equal(tokens[:, 1:], targets[:, :-1])
    last = source.windows(10, count=6)[1][-1, -1]
    assert last == source.val[-1]


def test_entropies_of_a_text_that_alternates() -> None:
    alternating = text.Text.of("ab", "ab" * 500)
    assert alternating.unigram_entropy(8) == pytest.approx(np.log(2), abs=1e-3)
    assert alternating.bigram_entropy(8) == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda t: text.encode(t.symbols, "caf\u00e9!"), "never seen '!', '\u00e9'"),
        (lambda t: t.check_context(78), r"too short: its parts have 702 and 78 .* needs 79"),
        (lambda t: text.load("no such file"), "no file no such file"),
    ],
)
def test_text_errors_say_what_is_wrong(source: text.Text, wrong: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong(source)  # type: ignore[operator]


def test_a_text_without_ascii_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "greek.txt"
    file.write_text("\u03b1\u03b2\u03b3", encoding="utf-8")
    with pytest.raises(ValueError, match="no ASCII"):
        text.load(file)


# ---------------------------------------------------------------- the page


def test_pictures_are_whole_svgs_that_can_share_a_page(tmp_path: Path) -> None:
    curves = [plots.Line("a < b", [1.0, 2.0], "pre"), plots.Line("c", [1e-3, 1.0], "post")]
    made = [
        plots.lines(tmp_path, name, curves, title="x & y", words="w", log=True)
        for name in ("one", "two")
    ]
    ids = [re.findall(r'\bid="([^"]+)"', picture.svg) for picture in made]
    assert not set(ids[0]) & set(ids[1])
    for picture, found in zip(made, ids):
        ElementTree.fromstring(picture.svg)
        used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', picture.svg))
        assert used and used <= set(found)
        assert "prefers-color-scheme: dark" in picture.svg
        assert (tmp_path / f"{picture.name}.png").exists()


def test_a_page_is_self_contained_and_says_what_does_not_hold(tmp_path: Path) -> None:
    sections = [
        report.Section("a", "A < B", ["Text with `code <x>`\n\n    formula"],
                       [report.Finding("Up", "1 < 2", True)], [{"value": float("nan")}]),
        report.Section("b", "B", [report.Table(["h"], [["c"]], "t"), report.Sample("<s>", "s")],
                       [report.Finding("Down", "2", np.bool_(False))]),  # type: ignore[arg-type]
    ]  # fmt: skip
    page = report.write_page(tmp_path / "report.html", "T", sections, "lead", "end").read_text()
    assert "1 of the 2 claims hold" in page
    assert page.count("Does not hold in this run") == 1
    assert "<code>code &lt;x&gt;</code>" in page and "<pre>formula</pre>" in page
    assert not re.findall(r'(?:src|href)="(?!#)', page) and "@import" not in page
    report.write_records(tmp_path / "m.jsonl", sections)
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert lines[0] == {"lesson": "a", "value": "nan"}
    assert [line["holds"] for line in lines if "finding" in line] == [True, False]


def test_the_tour_puts_all_lessons_on_one_page(
    words: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = {"blocks": 2, "d_model": 8, "heads": 2, "d_ff": 16, "steps": 2}
    for lesson in (compare, reverse):
        rows = {k: (label, s.but(**small)) for k, (label, s) in lesson.SETTINGS.items()}
        monkeypatch.setattr(lesson, "SETTINGS", rows)
    monkeypatch.setattr(gradient_flow, "MOMENTS", (0, 1, 2))
    monkeypatch.setattr(gradient_flow.lesson, "__defaults__", (0, SMALL.but(steps=2)))
    monkeypatch.setattr(token_collapse, "DEPTHS", (2, 3))
    monkeypatch.setattr(tour, "DEEP", 4)
    assert tour.main(["--out", str(tmp_path / "tour"), "--text", str(words)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 11  # ten findings, and where the page is
    assert all(line.startswith(("[holds]", "[DOES NOT HOLD]")) for line in printed[:10])
    page = (tmp_path / "tour" / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") >= 15 and not re.findall(r'(?:src|href)="https?:', page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert (tmp_path / "tour" / "block-pre.svg").exists()


def test_norms_on_the_stream_are_counted() -> None:
    assert tour.on_the_stream("pre", 3) == (6, 1)
    assert tour.on_the_stream("post", 3) == (6, 6)
