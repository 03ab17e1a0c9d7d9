"""detect_anomaly: the first op that is not finite, by its name, module, shape and step."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import leaf

import tinyres as tr
from tinyres import nn, optim

SMALL = {"vocab": 7, "d_model": 8, "heads": 2, "blocks": 3, "context": 4}
TOKENS, TARGETS = [[1, 2, 3]], [[2, 3, 4]]


def poisoned(path, value, **options):
    """A model with one parameter whose first element is `value`."""
    model = nn.TransformerLM(**SMALL, rng=0, **options)
    parameter = dict(model.named_parameters())[path]
    parameter.data.reshape(-1)[0] = value
    return model


# Where a bad number is planted, and what has to be said: the first op that it reaches.
PLANTED = {
    "stack.blocks.0.attention.branch.qkv.weight": (
        np.nan, r"^self_attention: its value .*\(shape \(1, 3, 8\), in TransformerLM > stack > "
        r"blocks\.0 > attention > branch\)",
    ),
    "stack.blocks.2.feed_forward.branch.up.bias": (
        np.inf, r"^linear: its value has 3 of 96 .*shape \(1, 3, 32\), in TransformerLM > stack > "
        r"blocks\.2 > feed_forward > branch > up\)",
    ),
    "stack.blocks.1.attention.norm.gamma": (np.inf, r"^layer_norm: .*blocks\.1 > attention > norm"),
    "token.weight": (np.nan, None),  # token 0 is not in the batch
    "position.weight": (np.nan, r"^embedding: its value has 1 of 24 .*> embed > position\)"),
    "head.bias": (-np.inf, r"^linear: its value has 3 of 21 .*\(shape \(1, 3, 7\), in TransformerLM"
                  r" > head\)"),
    "stack.final_norm.beta": (np.nan, r"^layer_norm: .*TransformerLM > stack > final_norm\)"),
}  # fmt: skip


@pytest.mark.parametrize("path", PLANTED)
def test_the_first_op_that_a_bad_number_reaches_is_named(path):
    value, message = PLANTED[path]
    model = poisoned(path, value)
    with tr.detect_anomaly(), np.errstate(all="ignore"):
        if message is None:
            assert np.isfinite(model(TOKENS).data).all()
        else:
            with pytest.raises(FloatingPointError, match=message):
                model(TOKENS)


def test_spelled_out_it_names_the_line_of_the_formula():
    model = poisoned("stack.blocks.0.attention.norm.gamma", np.inf)
    message = r"^mul: its value .*blocks\.0 > attention > norm > layer_norm\)"
    with (
        tr.detect_anomaly(),
        tr.spelled_out(),
        np.errstate(all="ignore"),
        pytest.raises(FloatingPointError, match=message),
    ):
        model(TOKENS)


def test_the_way_back_is_watched_too():
    class Root(nn.Module):
        def forward(self, x):
            return x.sqrt()

    model = nn.Sequential(tr.relu, Root())
    with tr.detect_anomaly(), np.errstate(all="ignore"):
        loss = model(leaf(-1.0, 0.0, 4.0)).sum()  # fine so far: the root of 0 is 0
        with pytest.raises(FloatingPointError) as error:
            loss.backward()
    assert str(error.value) == (
        "sqrt: its cotangent of input 0 has 2 of 3 elements that are not finite "
        "(shape (3,), in Sequential > layers.1)"
    )


def test_the_step_is_named_where_it_is_told():
    with (
        tr.detect_anomaly(step=17),
        np.errstate(all="ignore"),
        pytest.raises(FloatingPointError, match=r"^step 17: log: its value has 1 of 1 "),
    ):
        tr.log(leaf(0.0))
    with (
        pytest.raises(TypeError, match="detect_anomaly: step must be"),
        tr.detect_anomaly(step="a"),
    ):
        pass


@pytest.mark.parametrize("mode", [None, tr.spelled_out])
@pytest.mark.parametrize("placement", nn.PLACEMENTS)
def test_a_healthy_step_is_no_anomaly(placement, mode):
    model = nn.TransformerLM(**SMALL, placement=placement, dropout=0.1, rng=0)
    optimizer = optim.Adam(model.parameters())
    with tr.detect_anomaly():
        if mode is None:
            loss = model.loss(TOKENS, TARGETS)
        else:
            with mode():
                loss = model.loss(TOKENS, TARGETS)
        loss.backward()
        optimizer.step()


def test_it_costs_nothing_when_off(monkeypatch):
    """Not one look at a number, in a whole training step."""
    model = nn.TransformerLM(**SMALL, rng=0)
    optimizer = optim.Adam(model.parameters())
    looks = []
    monkeypatch.setattr(np, "isfinite", lambda a: looks.append(a) or np.equal(a, a))
    model.loss(TOKENS, TARGETS).backward()
    optimizer.step()
    assert not looks
    with tr.detect_anomaly():
        model.loss(TOKENS, TARGETS).backward()
    assert len(looks) > 50


def test_no_text_is_made_of_logits_that_are_no_numbers():
    for value in (np.nan, np.inf):
        model = poisoned("head.bias", value)
        for temperature in (0, 1.0):
            with pytest.raises(FloatingPointError, match=r"generate: .*logits that are not finite"):
                model.generate([1], 3, temperature=temperature)
        assert model.training
