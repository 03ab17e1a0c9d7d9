"""Every lesson runs, its findings are computed from what it measured, and a run can be resumed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
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
    gradient_flow,
    one_step,
    own_op,
    own_placement,
    plots,
    report,
    reverse,
    scalings,
    text,
    token_collapse,
    tour,
    training,
    vanishing_signal,
    worked_example,
)
from tests.small_runs import SMALL
from tinyres.graph import view
from tinyres.graph.layout import Layout, gradient_at

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
    names = {path.stem for path in Path(tour.__file__).parent.glob("*.py")}
    if importlib.util.find_spec("torch") is None:
        names -= {"in_pytorch"}
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


def test_what_does_not_hold_says_what_was_asked_and_that_the_run_was_smaller(
    words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--text", str(words), "--out", str(tmp_path), "--blocks"]
    assert vanishing_signal.main([*small, "2"]) == 0
    shown = capsys.readouterr().out
    assert "[DOES NOT HOLD] In 2 real blocks" in shown
    assert "asked: plain below 1e-3, the others above 0.1" in shown
    assert "smaller than the lesson, for which the claim is made: --blocks 2 instead of 24" in shown
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Asked: plain below 1e-3" in page and "--blocks 2 instead of 24" in page
    assert vanishing_signal.main([*small, "24"]) == 0
    shown = capsys.readouterr().out
    assert "asked:" not in shown and "smaller" not in shown


def test_what_a_lesson_can_not_do_is_a_line_and_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short.txt").write_text("too short")
    for options, message in {
        ("--text", "nowhere"): "there is no file nowhere",
        ("--text", str(tmp_path / "short.txt")): "a context of 32 needs 33",
        ("--blocks", "0"): "must be a whole number of at least 1, got 0",
    }.items():
        with pytest.raises(SystemExit) as left:
            vanishing_signal.main([*options, "--out", str(tmp_path)])
        assert left.value.code == 2 and message in capsys.readouterr().err


# ---------------------------------------------------------------- signals and gradients


def test_scalings_multiply_and_additions_keep_the_gradient() -> None:
    plain = scalings.measure("F(x)", 0.9, seed=1)
    np.testing.assert_allclose(plain["signal"], 0.9 ** np.arange(41.0))
    np.testing.assert_allclose(plain["gradient"], 0.9 ** np.arange(40.0, -1, -1))
    assert not plain["unchanged"]
    assert scalings.measure("x + F(x)", 0.0, seed=1)["unchanged"]


def test_vanishing_signal(source: text.Text, tmp_path: Path) -> None:
    section = vanishing_signal.lesson(source, tmp_path)
    assert [f.holds for f in section.findings] == [True, True, True]


def test_a_plain_stack_that_passes_its_gradient_would_be_reported(source: text.Text) -> None:
    stacks = vanishing_signal.untrained(source, 12, 0)
    stacks[0]["gradient"] = np.ones(13)
    assert not vanishing_signal.finding(stacks).holds


def test_one_step_is_a_list_of_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(one_step, "DEPTHS", (1, 2))
    assert one_step.main(["--blocks", "9", "--steps", "4", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out.splitlines()  # the second line is about time
    assert shown[0].startswith("[holds] Played back") and shown[2].startswith("[holds] With check")
    drawn = ElementTree.parse(tmp_path / "memory.svg")
    assert len(drawn.getroot()) > 3
    plain, saved = one_step.recorded(9, 0), one_step.recorded(9, 0, 3)
    for program in (plain, saved):
        for place in program.places:  # no two arrays in one place at the same time
            assert not any(
                other is not place
                and place.first <= other.last and other.first <= place.last
                and place.offset < other.offset + other.size
                and other.offset < place.offset + place.size
                for other in program.places
            )  # fmt: skip
        weights = sum(one_step.kind_of(p, program).startswith("grad") for p in program.places)
        assert len(program.gradients) <= weights <= len(program.gradients) + 1  # and the loss
    runs = [{"blocks": 1, "computed": 1.0, "replayed": 2.0,
             "losses": {"computed": [1.0], "replayed": [1.5]}}]  # fmt: skip
    held = [f.holds for f in one_step.findings(runs, {"a": saved, "b": plain})]
    assert held == [False, False, False]


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
    shown = next(part.text for part in section.parts if isinstance(part, report.Sample))
    assert "tr.draw(" in shown and "tr.probe.report(" in shown
    assert sum(bool(line.strip()) for line in shown.splitlines()) <= 20
    probes = next(part for part in section.parts if isinstance(part, report.Table))
    assert [row[0] for row in probes.rows] == [
        "`stream_rms`", "`token_cosine`", "`stream_gradient`", "`conserved_product`"
    ]  # fmt: skip


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
    shown = sections[0]._repr_html_()  # in a notebook
    assert "<h2>A &lt; B</h2>" in shown and "Up" in shown and "Down" not in shown
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
    findings = [line for line in printed if line.startswith(("[holds]", "[DOES NOT HOLD]"))]
    assert len(findings) == 10 and "report.html" in printed[-1]
    assert all(line.startswith("    asked: ") for line in printed[:-1] if line not in findings)
    page = (tmp_path / "tour" / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") >= 15 and not re.findall(r'(?:src|href)="https?:', page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert (tmp_path / "tour" / "block-pre.svg").exists()


def test_norms_on_the_stream_are_counted() -> None:
    assert tour.on_the_stream("pre", 3) == (6, 1)
    assert tour.on_the_stream("post", 3) == (6, 6)
