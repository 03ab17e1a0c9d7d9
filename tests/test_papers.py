"""The laws against their tabulated values, and the machinery that decides whether a claim holds."""

from __future__ import annotations

import json

import numpy as np
import pytest

from demos import laws, papers, pictures, plots
from demos.claims import CLAIMS, NOT_HERE, decoders, feed_forward, inside, training, xiong, zoo
from demos.claims import lab as lab_module
from demos.claims.claim import Between, Claim, Near, judge
from demos.claims.lab import Job, Lab, guesses, task_of, train_all, work
from demos.training import Setting, Trainer


def failed(claim, numbers):
    """What does not hold."""
    return [verdict.what for verdict in judge(claim, numbers) if not verdict.holds]


# ---------------------------------------------------------------- laws


def test_theory_has_the_tabulated_values():
    """Values of an independent implementation; 16 tokens."""
    powers = {1: 1.562, 2: 2.267, 6: 6.175, 12: 13.462, 24: 29.487, 48: 63.179, 96: 132.4}
    for blocks, power in powers.items():
        assert laws.theory("pre", blocks, 16).stream[-1] == pytest.approx(power, rel=5e-4)
    scale = (256 / 8) ** 0.5
    pre, post = laws.theory("pre", 12, 16), laws.theory("post", 12, 16)
    tables = {
        "pre stream": (pre.stream, "1 1.562 2.267 3.106 4.053 5.083 6.175 7.316 8.495 9.703 "
                       "10.937 12.191 13.462"),
        "pre w2": (pre.w2_gradient * scale, ".870 .696 .584 .506 .449 .406 .372 .345 .322 .303 "
                   ".287 .273"),
        "pre gradient": (pre.stream_gradient, ".763 .555 .458 .404 .369 .345 .327 .314 .302 .293 "
                         ".285 .278 .273"),
        "post w2": (post.w2_gradient * scale, ".791 .754 .751 .763 .778 .791 .801 .808 .812 .815 "
                    ".817 .816"),
        "post gradient": (post.stream_gradient, ".527 .411 .338 .296 .277 .273 .282 .305 .349 "
                          ".425 .546 .729 1"),
    }  # fmt: skip
    for name, (values, table) in tables.items():
        np.testing.assert_allclose(values, np.array(table.split(), float), atol=6e-4, err_msg=name)
    one_token = laws.theory("pre", 5, 1).stream
    np.testing.assert_allclose(one_token, 1 + 1.5 * np.arange(6))


def test_laws_agree_with_each_other():
    for place in ("pre", "post", "residual"):
        for gain in (0.5, laws.branch_gain(4)):
            lengths = laws.path_lengths(place, 9, gain)
            assert lengths.sum() == pytest.approx(1)
            assert lengths[0] == pytest.approx(laws.skip_share(place, 9, gain))
            assert lengths @ np.arange(10) == pytest.approx(
                laws.crossing_chance(place, 9, gain).sum()
            )
            product = laws.stream_power(place, 9, gain) * laws.gradient_power(place, 9, gain)
            assert np.ptp(product) == pytest.approx(0, abs=1e-12)
    assert laws.path_lengths("post", 24) @ np.arange(25) == pytest.approx(8)
    assert laws.path_lengths("pre", 24) @ np.arange(25) == pytest.approx(2.354, abs=1e-3)
    ratio = laws.last_matrix_gradient("post", 64) / laws.last_matrix_gradient("pre", 64, 13.0)
    assert ratio == pytest.approx(np.sqrt(2 * 13 / 3))
    shifts = {"post": 133.3, "pre": 8.776, "admin": 8.776, "deepnorm": 0.0177, "peri": 9.766}
    for rule, value in shifts.items():
        assert laws.output_shift(rule, 200) == pytest.approx(value, rel=2e-3)


def test_gradient_cosine_has_balduzzis_rates_where_inputs_stay_unrelated(monkeypatch):
    monkeypatch.setattr(laws, "relu_cosine", lambda rho: 0.0)
    assert laws.gradient_cosine("plain", 6) == pytest.approx(0.5**6)
    assert laws.gradient_cosine("residual", 6) == pytest.approx(0.75**6)
    ratio = laws.gradient_cosine("pre", 400) / laws.gradient_cosine("pre", 100)
    assert ratio == pytest.approx(0.5, rel=0.01)


# ---------------------------------------------------------------- does a claim hold?


@pytest.mark.parametrize(
    ("check", "holds"),
    [
        (Near("", 1.05, 1.0, rel=0.1), True),
        (Near("", 1.15, 1.0, rel=0.1), False),
        (Near("", [1.0, 1.2], [1.0, 1.0], within=0.1), False),
        (Near("", 0.0, 0.0), True),
        (Near("", 1e-9, 0.0), False),
        (Near("", 1.9, 1.0, factor=2), True),
        (Near("", 0.4, 1.0, factor=2), False),
        (Near("", float("nan"), 1.0, rel=0.5), False),
        (Near("", float("nan"), 1.0, factor=9), False),
        (Between("", [1.0, 2.0], 0.5, 2.5), True),
        (Between("", [1.0, 3.0], 0.5, 2.5), False),
        (Between("", float("inf"), high=9), False),
        (Between("", float("nan"), low=0), False),
        (Near("", lambda n: n["x"], lambda n: n["y"], rel=0.01), False),
    ],
)
def test_checks(check, holds):
    verdict = check.judge({"x": 1.0, "y": 2.0})
    assert verdict.holds is holds
    assert "expected" in verdict.line()


def fake(value):
    return Claim("C22", "Well", "All is well", "nobody", "none", lambda lab: {"x": value},
                 [Near("x", lambda n: n["x"], 1.0, rel=0.1)], lambda n, out: [])  # fmt: skip


def test_a_claim_that_fails_is_reported_as_not_holding(tmp_path, monkeypatch, capsys):
    for value, holds in ((1.0, True), (3.0, False)):
        monkeypatch.setitem(papers.EVERY, "C22", fake(value))
        assert papers.main(["C22", "--out", str(tmp_path), "--processes", "1"]) == 0
        record = json.loads((tmp_path / "measurements.jsonl").read_text().splitlines()[0])
        assert record["holds"] is holds and record["checks"][0]["measured"] == value
        assert ("DOES NOT HOLD" in capsys.readouterr().out) is not holds
        page = (tmp_path / "report.html").read_text()
        assert ("Does not hold in this run" in page) is not holds


SMALL = {
    "C1": (xiong.lemmas, {"d": 96, "blocks": 4, "seeds": 12}),
    "C2": (xiong.by_depth, {"d": 48, "depths": (3, 6)}),
    "C4": (xiong.by_block, {"d": 48, "blocks": 4, "seeds": 2, "deep": 6}),
    "C5": (feed_forward.journey, {"d": 64, "blocks": 6, "seeds": 2}),
    "C8": (feed_forward.shifts, {"d": 48, "depths": (1, 2, 32), "seeds": 2}),
    "C9": (zoo.admin, {"blocks": 2, "seeds": 1}),
    "C10": (zoo.hyper, {"blocks": 2}),
    "C11": (inside.updates, {"depths": (1, 2, 3, 4), "most": 1}),
    "C22": (feed_forward.shortcuts, {}),
}


@pytest.mark.parametrize("claim_id", SMALL)
def test_claims_measure_and_draw_at_a_small_size(claim_id, tmp_path):
    measure, sizes = SMALL[claim_id]
    claim = CLAIMS[claim_id]
    numbers = measure(Lab(), **sizes)
    verdicts = judge(claim, numbers)
    assert len(verdicts) == len(claim.checks)
    assert all(np.isfinite(np.asarray(v.measured, float)).all() for v in verdicts)
    if claim_id in ("C1", "C10", "C22"):  # these are exact, or their tolerances wide enough
        assert failed(claim, numbers) == []
    if claim_id != "C9":
        assert all(picture.svg for picture in claim.draw(numbers, tmp_path))


def test_a_wrong_law_is_found_out(monkeypatch):
    numbers = feed_forward.journey(Lab(), d=192, blocks=8, seeds=8)
    about_skips = {what for what in failed(CLAIMS["C5"], numbers) if "pure-skip" in what}
    assert about_skips == set()
    monkeypatch.setattr(laws, "skip_share", lambda *_: 0.5)
    about_skips = {what for what in failed(CLAIMS["C5"], numbers) if "pure-skip" in what}
    assert about_skips == {"pure-skip share, Pre-LN", "pure-skip share, Post-LN"}


def made_up(finals):
    """Results of trainings that did not take place: each stands at its final loss throughout."""
    return Lab({job: {"final": v, "losses": [v] * 250} for jobs, v in finals for job in jobs})


def test_verdicts_on_trainings_follow_their_losses(tmp_path):
    tables = {**training.WARM, **training.WARM_REVERSE}
    unigram, bigram = guesses(training.WARM["post"][0].setting)
    assert bigram < unigram - 0.5
    good = {"post": unigram, "post warm": 2.45, "pre": 2.2, "reverse post": training.CHANCE,
            "reverse post warm": 0.01, "reverse pre": 1e-4}  # fmt: skip
    bad = {**dict.fromkeys(good, unigram), "post": bigram, "reverse post": 0.1}
    as_claimed = CLAIMS["C13"].measure(made_up([(tables[name], v) for name, v in good.items()]))
    assert failed(CLAIMS["C13"], as_claimed) == []
    assert len(CLAIMS["C13"].draw(as_claimed, tmp_path)) == 2
    for name in good:
        other = {**good, name: bad[name]}
        numbers = CLAIMS["C13"].measure(made_up([(tables[n], v) for n, v in other.items()]))
        assert len(failed(CLAIMS["C13"], numbers)) == (2 if name in ("post", "post warm") else 1)


def test_guesses_are_those_on_the_batches_of_the_last_steps():
    setting = Setting(blocks=1, d_model=8, heads=2, d_ff=8, context=8, batch=4, steps=25)
    trainer, losses = Trainer(setting, task_of(setting)), []
    text = trainer.task.text
    seen = trainer.task.batch
    trainer.task.batch = lambda rng: losses.append(seen(rng)) or losses[-1]
    for _ in range(setting.steps):
        trainer.step()
    unigram = np.mean([text.unigram_loss(targets) for _, targets in losses[5:]])
    bigram = np.mean([text.bigram_loss(*batch) for batch in losses[5:]])
    assert guesses(setting) == pytest.approx((unigram, bigram))


def test_no_training_is_run_twice_or_begun_twice(monkeypatch):
    setting = Setting(blocks=1, d_model=8, heads=2, d_ff=8, context=4, batch=2, steps=30)
    short, longer, watched = Job(setting), Job(setting.but(steps=40)), Job(setting, "collapse")
    others = [Job(setting.but(seed=1)), Job(setting.but(schedule="cosine")),
              Job(setting.but(schedule="cosine", steps=40))]  # fmt: skip
    run = []
    monkeypatch.setattr(lab_module, "work", lambda job: run.append(job) or work(job))
    results = train_all([short, longer, watched, *others], processes=1)
    assert set(run) == {longer, watched, *others} and len(run) == 5
    alone = work(short)
    assert results[short]["losses"] == alone["losses"] and results[short]["final"] == alone["final"]
    assert "early" in results[watched] and results[short]["cpu"] > 0


def test_every_claim_has_what_it_needs():
    assert [*CLAIMS] == [f"C{i}" for i in range(1, 25)]
    assert [*NOT_HERE] == ["X1", "X2", "X3"]
    for claim in papers.EVERY.values():
        assert claim.title and claim.text and claim.source and claim.setup and claim.checks
    quick, with_pictures = papers.chosen(["all"], quick=True)
    assert "C5" in quick and "C13" not in quick and not with_pictures
    assert papers.chosen(["c5", "X1"], quick=False) == (["C5", "X1"], False)
    with pytest.raises(ValueError, match="no claim C99"):
        papers.chosen(["C99"], quick=False)


def test_a_job_trains_and_looks_inside():
    setting = Setting(blocks=2, d_model=8, heads=2, d_ff=8, context=4, batch=2, steps=6)
    result = work(Job(setting.but(placement="admin"), "collapse"))
    assert [look["step"] for look in result["early"]] == [0, 1, 2, 3, 4, 5, 6]
    assert len(result["losses"]) == 6 and np.isfinite(result["final"])
    assert result["early"][0]["update"] == 0 < result["early"][-1]["update"]
    ablation = work(Job(setting, "ablation"))
    assert ablation["ablation"].shape == (2,)
    exploding = Job(setting.but(placement="residual", lr=1e30))
    diverged = train_all([exploding], processes=1)[exploding]
    assert len(diverged["losses"]) < 6 and diverged["final"] == float("inf")


def test_pictures_are_drawn_from_what_is_measured(tmp_path):
    tables = [*pictures.CONTRAST.values(), *training.COPYING.values()]
    lab = made_up([(jobs, 1.0 + 0.1 * i) for i, jobs in enumerate(tables)])
    for job in inside.MECHANISM.values():
        lab.results[job] = {
            "early": [
                {
                    "step": step,
                    "token cosine": [cosine],
                    "w2 gradient": [1.0],
                    "update": 0.1,
                    "norm input": 1.0,
                }
                for step, cosine in ((0, 0.1), (250, 0.9))
            ]
        }
    known = {
        "C5": feed_forward.journey(lab, d=16, blocks=18, seeds=1),
        "C17": {(rule, 24): np.linspace(0, 0.9, 25) for rule in zoo.COLLAPSE},
    }
    drawn = pictures.all_three(lab, known, tmp_path)
    names = ["gradient-travel", "token-collapse", "training-contrast", "copying"]
    assert [picture.name for picture in drawn] == names
    assert "Identical rate for all" in drawn[2].svg and "not tuned" in drawn[2].svg
    assert "unigram" in drawn[2].svg and "bigram" in drawn[2].svg
    for picture in drawn:
        assert isinstance(picture, plots.Picture)
        assert (tmp_path / f"{picture.name}.png").exists()


def test_frozen_branch_is_uncompensated():
    for variance in (0.5, 1.0):
        seen = decoders.frozen_factor(variance, blocks=4, d=256)
        assert seen == pytest.approx(laws.frozen_branch(variance), rel=0.03)
