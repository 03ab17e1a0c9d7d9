"""The benchmark compares like with like: same loss, same gradients, and whoever fails is named."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest

import tinyres as tr
from tests.bench import __main__ as bench
from tests.bench import depth, engine, growth, models, plain, processes
from tests.bench.peers import IN_HALVES, MODULES, ONE_BATCH, PEERS, PRODUCTS

MINI = models.Workload(8, 2, 2, 5, 4, "gelu", vocab=7)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_tinyres_begins_with_the_loss_of_plain_numpy(activation):
    w = MINI._replace(activation=activation)
    blocks, around = models.weights_of(w)
    expected = plain.eager_loss(np, w, blocks, around, *models.batch_of(w))
    assert expected.dtype == np.float32
    for peer in (ONE_BATCH, *IN_HALVES):
        step = PEERS[peer](w)
        losses = [step() for _ in range(3)]
        assert losses[0] == pytest.approx(float(expected), rel=1e-6)
        assert losses[2] < losses[1] < losses[0]


def test_all_peers_that_are_here_compute_the_same(monkeypatch, capsys):
    monkeypatch.setitem(models.WORKLOADS, "mini", MINI)
    failed = bench.main(["--check", "--workload", "mini", "--threads", "2"])
    out = capsys.readouterr().out
    assert not failed, out
    here = [p for p in PEERS if importlib.util.find_spec(MODULES.get(p, "numpy"))]
    assert all(f"  {peer}" in out for peer in here) and len(here) >= 3


def test_a_peer_that_fails_or_is_missing_is_named_and_ends_nothing(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(models.WORKLOADS, "mini", MINI)
    monkeypatch.setitem(PEERS, "nobody", None)  # the worker's process does not know it
    monkeypatch.setitem(MODULES, "JAX", "a_module_that_is_nowhere")
    monkeypatch.setattr(bench.engine, "report", lambda: {})
    file = tmp_path / "new" / "found.json"
    peers = [PRODUCTS, "nobody", "JAX", ONE_BATCH]
    args = ["--workload", "mini", "--threads", "1", "--rounds", "2", "--steps", "2"]
    assert bench.main([*args, "--peers", *peers, "--json", str(file)]) == 1
    out = capsys.readouterr().out
    assert "left out, not installed: JAX" in out
    assert "left out: KeyError: 'nobody'" in out
    found = json.loads(file.read_text())["steps"][0]["peers"]
    assert set(found) == {PRODUCTS, "nobody", ONE_BATCH}
    assert all((found[p]["ms"] > 0) == (p != "nobody") for p in found)
    assert "| mini | 1 | " in out and out.count("| - |") == 1


def test_a_process_that_dies_is_a_failure():
    worker = processes.Worker(ONE_BATCH, MINI, 1, 1)
    worker.process.kill()
    worker.warm_up()
    worker.run(1)
    worker.close()
    assert worker.failure == "its process ended with code -9" and not worker.times


@pytest.mark.parametrize("losses", [[4.6, 4.0], [4.61, 4.5], [4.6, float("nan")]])
def test_other_losses_are_seen(losses):
    assert not bench.other_losses([4.60001, 4.50001], [4.6, 4.5])
    assert "computes other losses" in bench.other_losses(losses, [4.6, 4.5])


@pytest.mark.parametrize("name", engine.CHAIN)
def test_the_calls_by_hand_compute_what_the_engine_does(name):
    op = engine.CHAIN[name]
    x, w, g = np.random.default_rng(0).uniform(0.5, 2, (3, 4))
    tensors = [tr.Tensor(a, requires_grad=True) for a in (x, w)]
    y = op.recorded(*tensors)
    y.backward(g)
    gw = np.zeros_like(w)
    np.testing.assert_array_equal(y.data, op.forward(x, w))
    np.testing.assert_allclose(tensors[0].grad, op.backward(g, x, y.data, w, gw), rtol=1e-12)
    of_w = tensors[1].grad
    np.testing.assert_array_equal(np.zeros_like(w) if of_w is None else of_w, gw)


def test_checkpointed_groups_give_the_same_bits():
    def gradients(group):
        model = depth.model_of(5, dropout=0.2)
        depth.loss_of(model, group).backward()
        return [p.grad for p in model.parameters()]

    plain_way = gradients(None)
    for group in (1, 2, 5):
        assert all(np.array_equal(a, b) for a, b in zip(plain_way, gradients(group), strict=True))


def test_growth_is_measured_and_drawn(tmp_path):
    rows = []
    for blocks in (1, 4):
        plain_way = processes.alone("depth", f"measure({blocks}, None)")
        rows.append({"blocks": blocks, "group": 2, "plain": plain_way, "checkpointed": plain_way})
    # A block keeps more than the 4 x 32 x 32 float32 that it passes on, a dozen times that.
    assert 0.2 < (rows[1]["plain"]["mib"] - rows[0]["plain"]["mib"]) / 3 < 1
    assert rows[1]["plain"]["seconds"] > 0
    picture = growth.draw(rows, tmp_path / "growth.svg")
    assert (tmp_path / "growth.png").stat().st_size > 1000
    assert "square root" in picture.svg and "100% of the memory" in picture.words
