"""Weights from PyTorch and back: the same numbers come out, and no name is lost or made up."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from interop_cases import CASES, HEADS, LAYOUTS, RECORDED, D, X, weights
from reference_cases import TOLERANCE, assert_close

import tinyres as tr
from tinyres import interop

with np.load(RECORDED) as file:
    EXPECTED = dict(file)


def test_every_layout_is_recorded():
    assert {key.rsplit(": ")[0] for key in EXPECTED} == {*CASES, "version"}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CASES)
def test_same_as_recorded(name, dtype):
    start = f"{name}: "
    want = {k.removeprefix(start): a for k, a in EXPECTED.items() if k.startswith(start)}
    assert_close(CASES[name][0](name, dtype), want, dtype)


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_went_in_comes_out(name):
    case = LAYOUTS[name]
    state = weights(case.shapes)
    out = case.export(case.ours(state))
    assert out.keys() == state.keys()
    for key, array in state.items():
        assert np.array_equal(out[key], array) and not np.shares_memory(out[key], array)


# How a state can be wrong: what is done to it and the array of a name, and what is raised.
WRONG = {
    "missing": (lambda state, name: state.pop(name), KeyError, "{name}"),
    "surplus": (lambda state, name: state.update({name + "x": X}), KeyError, "{name}x"),
    "misshapen": (
        lambda state, name: state.update({name: state[name][:, :-1]}), ValueError,
        r"{name} must have shape \(.*\), got \(.*\)",
    ),
    "transposed": (
        lambda state, name: state.update({name: state[name].T}), ValueError,
        r"{name} must have shape \(.*\), got \(.*\)",
    ),
    "integers": (
        lambda state, name: state.update({name: state[name].astype(int)}), TypeError,
        "{name} must hold floats, got int64",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", WRONG)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_wrong_state_is_named(name, how):
    change, kind, message = WRONG[how]
    case = LAYOUTS[name]
    state = weights(case.shapes)
    ending = ("linear2.weight", "mlp.c_proj.weight", "1.output.dense.weight")
    wrong = next(n for n in reversed(state) if n.endswith(ending))
    change(state, wrong)
    with pytest.raises(kind, match=message.format(name=wrong)):
        case.ours(state)


def test_a_refused_load_changes_nothing():
    stack = tr.nn.TransformerStack(D, HEADS, 2, 16, placement="post", rng=0)
    before = stack.state_dict()
    state = weights(LAYOUTS["nn.TransformerEncoder, norm last"].shapes)
    with pytest.raises(ValueError, match=r"layers.1.linear2.bias must have shape \(8,\)"):
        interop.load_torch_encoder(stack, state | {"layers.1.linear2.bias": np.ones(7)})
    for name, array in stack.state_dict().items():
        assert np.array_equal(array, before[name])


class Doubled(tr.nn.PostLN):
    """Has the parameters of Post-LN, but computes something else."""

    def forward(self, x):
        return self.norm(2 * x + self.sublayer(x))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"placement": Doubled}, "Doubled computes something else than PreLN or PostLN"),
        ({"placement": "residual"}, "no such names for NoneType"),
        ({"norm": "rms"}, "no such names for RMSNorm"),
    ],
)
def test_a_stack_of_another_kind_is_refused(options, message):
    stack = tr.nn.TransformerStack(D, HEADS, 2, 16, **options)
    state = weights(LAYOUTS["nn.TransformerEncoder, norm_first"].shapes)
    with pytest.raises(ValueError, match=message):
        interop.to_torch_encoder(stack)
    with pytest.raises(ValueError, match=message):
        interop.load_torch_encoder(stack, state)


def test_only_a_whole_gpt2_has_its_layout():
    for options, message in (
        ({}, r"no names for the parameters \['head.weight', 'head.bias'\]"),
        ({"tied": True, "placement": "post"}, "no such names for NoneType"),
    ):
        with pytest.raises(ValueError, match=message):
            interop.to_gpt2(tr.nn.TransformerLM(11, D, HEADS, 2, 7, 16, **options))
    state = weights(LAYOUTS["GPT-2"].shapes)
    interop.load_gpt2(state | {"lm_head.weight": state["wte.weight"].copy()}, HEADS)
    with pytest.raises(ValueError, match=r"lm_head.weight is not wte.weight"):
        interop.load_gpt2(state | {"lm_head.weight": state["wte.weight"] + 1}, HEADS)
    with pytest.raises(KeyError, match=r"wte.weight: expected a matrix .*, got the names \[\]"):
        interop.load_gpt2({}, HEADS)
    with pytest.raises(KeyError, match=r"wte.weight: expected a matrix .*, got \(3,\)"):
        interop.load_gpt2({"wte.weight": np.ones(3)}, HEADS)
    with pytest.raises(KeyError, match="there twice"):
        interop.load_gpt2(state | {"transformer.wte.weight": state["wte.weight"]}, HEADS)
    with pytest.raises(TypeError, match=r"of\(wte.weight\) must be an array, got None"):
        interop.to_gpt2(interop.load_gpt2(state, HEADS), lambda p: p.grad)


# What real files have besides: a prefix, and arrays that are no weights of the encoder.
FILES = {
    "GPT-2": ("transformer.", {"h.0.attn.bias": np.ones((1, 1, 7, 7), bool)}),
    "BERT": (
        "bert.",
        {"embeddings.position_ids": np.arange(7)[None], "pooler.dense.weight": np.ones((D, D))},
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files_load(name, tmp_path):
    save_file = pytest.importorskip("safetensors.numpy").save_file
    prefix, besides = FILES[name]
    case = LAYOUTS[name]
    load = {"GPT-2": interop.load_gpt2, "BERT": interop.load_bert}[name]
    state = weights(case.shapes, "float32")
    path = tmp_path / "model.safetensors"
    save_file({prefix + key: a for key, a in (state | besides).items()}, path)
    out = load(path, HEADS)(*case.inputs)
    assert out.dtype == np.float32
    assert np.array_equal(out.data, case.ours(state)(*case.inputs).data)
    half = {key: a.astype("float16") for key, a in state.items()}
    assert load(half, HEADS)(*case.inputs).dtype == np.float32


def test_without_safetensors_the_cure_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(ImportError, match=r"pip install 'tinyres\[interop\]'"):
        interop.load_bert("model.safetensors", HEADS)


def test_maps_without_bias_have_no_names_for_one():
    block = tr.nn.TransformerBlock(D, HEADS, 16, rng=0)
    with_bias = interop.to_torch_encoder(block)
    attention = block.attention.branch
    attention.qkv.bias = attention.out.bias = None
    state = interop.to_torch_encoder(block)
    assert with_bias.keys() - state.keys() == {
        "self_attn.in_proj_bias", "self_attn.out_proj.bias"
    }  # fmt: skip
    interop.load_torch_encoder(block, state)


def test_padding_changes_nothing():
    model = interop.load_bert(weights(LAYOUTS["BERT"].shapes), HEADS)
    mask = np.array([[True, True, True, False, False]])
    padded = model(np.array([[3, 1, 4, 0, 0]]), mask=mask)
    assert np.abs(padded.data[:, :3] - model(np.array([[3, 1, 4]])).data).max() < 1e-14


def test_encoder_refuses_what_does_not_fit():
    model = interop.load_bert(weights(LAYOUTS["BERT"].shapes), HEADS)
    with pytest.raises(ValueError, match=r"\(batch, at most 7\), got \(1, 8\)"):
        model(np.zeros((1, 8), int))
    with pytest.raises(ValueError, match=r"mask must be \(1, 3\), got \(3,\)"):
        model(np.zeros((1, 3), int), mask=np.ones(3, bool))
    with pytest.raises(TypeError, match="mask must be bool"):
        model(np.zeros((1, 3), int), mask=np.ones((1, 3)))
    block = tr.nn.TransformerBlock(D, HEADS, placement="rezero")
    with pytest.raises(ValueError, match="ReZero hands no mask on"):
        block(X, None, np.ones((3, 1, 1, 5), bool))


# ---------------------------------------------------------------- the exact GELU


def test_normal_cdf_is_right_to_the_last_digit():
    x = np.concatenate([np.linspace(-40, 40, 4001), np.linspace(-1e-3, 1e-3, 101)])
    exact = np.array([math.erfc(-a / math.sqrt(2)) / 2 for a in x])
    assert np.abs(tr.normal_cdf(x).data - exact).max() < 2.3e-16  # one unit in the last place of 1
    single = tr.normal_cdf(x.astype("float32")).data
    assert single.dtype == np.float32 and np.abs(single - exact).max() < 3e-7


def test_normal_cdf_at_the_ends():
    for dtype in ("float32", "float64"):
        largest = float(np.finfo(dtype).max)
        x = tr.Tensor([-np.inf, -largest, largest, np.inf], dtype=dtype, requires_grad=True)
        y = tr.normal_cdf(x)
        y.backward(np.ones(4))
        assert y.data.tolist() == [0, 0, 1, 1] and x.grad.tolist() == [0, 0, 0, 0]
    assert np.isnan(tr.normal_cdf(np.array([np.nan])).data).all()


def test_both_gelus_are_close():
    x = np.linspace(-8, 8, 10001)
    apart = np.abs(tr.gelu_exact(x).data - tr.gelu(x).data).max()
    assert 4e-4 < apart < 5e-4
