"""What is compared with PyTorch: one table for the recorded values and for the live comparison.

Every case is written twice, once for each library, and returns what the other must return too.
The inputs come from the raw bits of PCG64, which no version of NumPy changes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tinyres as tr

RECORDED = Path(__file__).parent / "data" / "reference.npz"
Results = dict[str, np.ndarray]


def numbers(seed: int, *shape: int) -> np.ndarray:
    """Uniform between -1 and 1, float64, the same everywhere and for ever."""
    bits = np.random.PCG64(seed).random_raw(int(np.prod(shape)))
    return (bits / 2.0**63 - 1).reshape(shape)


# ---------------------------------------------------------------- functions: value and gradients

MASK = np.array([[1, 0, 1, 1, 0], [0, 1, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 1, 1]], bool)
TARGETS = np.array([0, 6, 2, -100, 3])
QKV = {"q": (2, 3, 4, 6), "k": (2, 3, 5, 6), "v": (2, 3, 5, 6)}
SQUARE = {name: (2, 3, 5, 6) for name in "qkv"}
D_MODEL, HEADS, D_FF = 8, 2, 16
BLOCK = {
    "attention.norm.gamma": (D_MODEL,), "attention.norm.beta": (D_MODEL,),
    "attention.branch.qkv.weight": (D_MODEL, 3 * D_MODEL),
    "attention.branch.qkv.bias": (3 * D_MODEL,),
    "attention.branch.out.weight": (D_MODEL, D_MODEL), "attention.branch.out.bias": (D_MODEL,),
    "feed_forward.norm.gamma": (D_MODEL,), "feed_forward.norm.beta": (D_MODEL,),
    "feed_forward.branch.up.weight": (D_MODEL, D_FF), "feed_forward.branch.up.bias": (D_FF,),
    "feed_forward.branch.down.weight": (D_FF, D_MODEL), "feed_forward.branch.down.bias": (D_MODEL,),
}  # fmt: skip


def our_block(
    x: Any, weights: dict[str, Any], placement: str, causal: bool, activation: str
) -> Any:
    """A block of tinyres that computes with these tensors."""
    block = tr.nn.TransformerBlock(
        D_MODEL, HEADS, D_FF, placement=placement, causal=causal, activation=activation
    )
    for path, tensor in weights.items():
        *parents, name = path.split(".")
        module = block
        for parent in parents:
            module = getattr(module, parent)
        setattr(module, name, tensor)
    return block(x)


def their_block(
    torch: Any, x: Any, weights: dict[str, Any], placement: str, causal: bool, activation: str
) -> Any:
    """PyTorch's own block, with the same tensors."""
    layer = torch.nn.TransformerEncoderLayer(
        D_MODEL, HEADS, D_FF, 0.0, torch.nn.GELU("tanh") if activation == "gelu" else activation,
        batch_first=True, norm_first=placement == "pre", dtype=x.dtype,
    )  # fmt: skip
    names = {
        "self_attn.in_proj_": "attention.branch.qkv.",
        "self_attn.out_proj.": "attention.branch.out.",
        "linear1.": "feed_forward.branch.up.",
        "linear2.": "feed_forward.branch.down.",
    }
    state = {}
    for theirs, ours in names.items():
        state[theirs + "weight"] = weights[ours + "weight"].T
        state[theirs + "bias"] = weights[ours + "bias"]
    for theirs, ours in (("norm1.", "attention.norm."), ("norm2.", "feed_forward.norm.")):
        state[theirs + "weight"] = weights[ours + "gamma"]
        state[theirs + "bias"] = weights[ours + "beta"]
    length = x.shape[1]
    mask = (
        torch.triu(torch.full((length, length), -torch.inf, dtype=x.dtype), 1) if causal else None
    )
    return torch.func.functional_call(layer, state, (x, mask))


def block_case(placement: str, causal: bool, activation: str) -> tuple[Any, Any, Any]:
    """One placement in both libraries."""
    how = placement, causal, activation
    return (
        {"x": (2, 5, D_MODEL), **BLOCK},
        lambda x, *weights: our_block(x, dict(zip(BLOCK, weights, strict=True)), *how),
        lambda torch, x, *weights: their_block(
            torch, x, dict(zip(BLOCK, weights, strict=True)), *how
        ),
    )


# name -> (shapes of the inputs, in tinyres, in PyTorch)
FUNCTIONS: dict[str, tuple[dict[str, tuple[int, ...]], Callable[..., Any], Callable[..., Any]]] = {
    "layer_norm": (
        {"x": (2, 3, 8), "gamma": (8,), "beta": (8,)},
        tr.layer_norm,
        lambda torch, x, g, b: torch.nn.functional.layer_norm(x, (8,), g, b),
    ),
    "rms_norm": (
        {"x": (2, 3, 8), "gamma": (8,)},
        tr.rms_norm,
        lambda torch, x, g: torch.nn.functional.rms_norm(x, (8,), g, eps=1e-5),
    ),
    "gelu": (
        {"x": (50,)},
        lambda x: (4 * x).gelu(),
        lambda torch, x: torch.nn.functional.gelu(4 * x, approximate="tanh"),
    ),
    "softmax": (
        {"x": (3, 7)},
        lambda x: (9 * x).softmax(),
        lambda torch, x: torch.softmax(9 * x, -1),
    ),
    "linear": (
        {"x": (2, 3, 8), "weight": (8, 5), "bias": (5,)},
        tr.linear,
        lambda torch, x, w, b: torch.nn.functional.linear(x, w.T, b),
    ),
    "cross_entropy": (
        {"logits": (5, 7)},
        lambda x: tr.cross_entropy(5 * x, TARGETS, ignore_index=-100),
        lambda torch, x: torch.nn.functional.cross_entropy(5 * x, torch.tensor(TARGETS)),
    ),
    "attention": (
        QKV,
        tr.attention,
        lambda torch, *qkv: torch.nn.functional.scaled_dot_product_attention(*qkv),
    ),
    "attention, causal": (
        SQUARE,
        lambda *qkv: tr.attention(*qkv, causal=True),
        lambda torch, *qkv: torch.nn.functional.scaled_dot_product_attention(*qkv, is_causal=True),
    ),
    "attention, masked": (
        QKV,
        lambda *qkv: tr.attention(*qkv, mask=MASK),
        lambda torch, *qkv: torch.nn.functional.scaled_dot_product_attention(
            *qkv, attn_mask=torch.tensor(MASK)
        ),
    ),
    "Pre-LN block": block_case("pre", causal=True, activation="gelu"),
    "Post-LN block": block_case("post", causal=False, activation="relu"),
}  # fmt: skip


def our_function(name: str, dtype: str) -> Results:
    """Value and gradients in tinyres."""
    shapes, fn, _ = FUNCTIONS[name]
    leaves = {
        key: tr.Tensor(numbers(i, *shape), dtype=dtype, requires_grad=True)
        for i, (key, shape) in enumerate(shapes.items())
    }
    y = fn(*leaves.values())
    y.backward(numbers(99, *y.shape))
    return {"value": y.data, **{key: t.grad for key, t in leaves.items()}}


def their_function(torch: Any, name: str, dtype: str) -> Results:
    """Value and gradients in PyTorch."""
    shapes, _, fn = FUNCTIONS[name]
    kind = getattr(torch, dtype)
    leaves = {
        key: torch.tensor(numbers(i, *shape), dtype=kind, requires_grad=True)
        for i, (key, shape) in enumerate(shapes.items())
    }
    y = fn(torch, *leaves.values())
    y.backward(torch.tensor(numbers(99, *y.shape), dtype=kind))
    return {"value": y.detach().numpy(), **{key: t.grad.numpy() for key, t in leaves.items()}}


# ---------------------------------------------------------------- optimizers: 20 steps

# name -> (class, of the same name in both libraries; its options; norm that gradients are cut to)
OPTIMIZERS: dict[str, tuple[str, dict[str, Any], float | None]] = {
    "SGD": ("SGD", {"lr": 0.1}, None),
    "SGD, momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}, None),
    "Adam": ("Adam", {"lr": 0.01}, None),
    "Adam, weight decay": ("Adam", {"lr": 0.01, "betas": (0.8, 0.98), "weight_decay": 0.1}, None),
    "AdamW": ("AdamW", {"lr": 0.01, "eps": 1e-6, "weight_decay": 0.1}, None),
    "AdamW by default": ("AdamW", {}, None),
    "clip_grad_norm": ("SGD", {"lr": 1.0}, 0.7),
}
SHAPES = (3, 4), (5,), ()


def _gradient(step: int, i: int, shape: tuple[int, ...]) -> np.ndarray | None:
    """The second parameter has no gradient in every third step; the others' differ in size."""
    return None if i == 1 and step % 3 == 2 else numbers(100 * step + i, *shape) * 10.0 ** (i - 1)


def our_optimizer(name: str, dtype: str) -> Results:
    """Parameters after 20 steps of tinyres, and the norms that clipping saw."""
    kind, options, clip = OPTIMIZERS[name]
    params = [tr.nn.Parameter(numbers(i, *s), dtype=dtype) for i, s in enumerate(SHAPES)]
    optimizer = getattr(tr.optim, kind)(params, **options)
    norms = []
    for step in range(20):
        for i, p in enumerate(params):
            p.grad = _gradient(step, i, p.shape)
        if clip is not None:
            norms.append(tr.optim.clip_grad_norm(params, clip))
        optimizer.step()
    return {"norms": np.array(norms), **{f"p{i}": p.data for i, p in enumerate(params)}}


def their_optimizer(torch: Any, name: str, dtype: str) -> Results:
    """The same of PyTorch."""
    kind, options, clip = OPTIMIZERS[name]

    def tensor(a: np.ndarray | None) -> Any:
        return None if a is None else torch.tensor(a, dtype=getattr(torch, dtype))

    params = [torch.nn.Parameter(tensor(numbers(i, *s))) for i, s in enumerate(SHAPES)]
    optimizer = getattr(torch.optim, kind)(params, **options)
    norms = []
    for step in range(20):
        for i, p in enumerate(params):
            p.grad = tensor(_gradient(step, i, tuple(p.shape)))
        if clip is not None:
            norms.append(float(torch.nn.utils.clip_grad_norm_(params, clip)))
        optimizer.step()
    return {"norms": np.array(norms), **{f"p{i}": p.detach().numpy() for i, p in enumerate(params)}}


# ---------------------------------------------------------------- training: 50 losses

VOCAB, CONTEXT, STEPS = 11, 6, 50
TRAININGS = {"training, Pre-LN": "pre", "training, Post-LN": "post"}


def model_weights(placement: str) -> dict[str, np.ndarray]:
    """Weights of a language model of two blocks, by the names of tinyres."""
    shapes: dict[str, tuple[int, ...]] = {
        "token.weight": (VOCAB, D_MODEL),
        "position.weight": (CONTEXT, D_MODEL),
        **{f"stack.blocks.{i}.{name}": shape for i in range(2) for name, shape in BLOCK.items()},
    }
    if placement == "pre":
        shapes |= {"stack.final_norm.gamma": (D_MODEL,), "stack.final_norm.beta": (D_MODEL,)}
    shapes |= {"head.weight": (D_MODEL, VOCAB), "head.bias": (VOCAB,)}
    return {
        name: numbers(i, *shape) * (0.5 if len(shape) > 1 else 0.1) + name.endswith("gamma")
        for i, (name, shape) in enumerate(shapes.items())
    }


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    """Sequences in which each token is the one before plus a number that the sequence keeps."""
    start, stride = np.abs(numbers(1000 + step, 2, 4) * 100).astype(int)[:, :, None]
    tokens = (start + (1 + stride % 3) * np.arange(CONTEXT + 1)) % VOCAB
    return tokens[:, :-1], tokens[:, 1:]


def our_training(name: str, dtype: str) -> Results:
    """Losses of 50 steps of Adam in tinyres, and the weights after them."""
    placement = TRAININGS[name]
    model = tr.nn.TransformerLM(
        VOCAB, D_MODEL, HEADS, 2, CONTEXT, D_FF, placement=placement, activation="gelu"
    ).astype(dtype)
    model.load_state_dict(model_weights(placement))
    optimizer = tr.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model.loss(*batch(step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": np.array(losses), "head": model.head.weight.data}


def their_training(torch: Any, name: str, dtype: str) -> Results:
    """The same in PyTorch."""
    placement, functional = TRAININGS[name], torch.nn.functional
    w = {
        key: torch.tensor(a, dtype=getattr(torch, dtype), requires_grad=True)
        for key, a in model_weights(placement).items()
    }
    optimizer = torch.optim.Adam(w.values(), lr=3e-3)
    losses = []
    for step in range(STEPS):
        tokens, targets = map(torch.tensor, batch(step))
        x = w["token.weight"][tokens] + w["position.weight"]
        for i in range(2):
            weights = {key: w[f"stack.blocks.{i}.{key}"] for key in BLOCK}
            x = their_block(torch, x, weights, placement, True, "gelu")
        if placement == "pre":
            gamma, beta = w["stack.final_norm.gamma"], w["stack.final_norm.beta"]
            x = functional.layer_norm(x, (D_MODEL,), gamma, beta)
        logits = x @ w["head.weight"] + w["head.bias"]
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": np.array(losses), "head": w["head.weight"].detach().numpy()}


# name -> (in tinyres, in PyTorch)
CASES: dict[str, tuple[Callable[..., Results], Callable[..., Results]]] = {
    **dict.fromkeys(FUNCTIONS, (our_function, their_function)),
    **dict.fromkeys(OPTIMIZERS, (our_optimizer, their_optimizer)),
    **dict.fromkeys(TRAININGS, (our_training, their_training)),
}
TOLERANCE = {"float64": 1e-10, "float32": 1e-5}


def assert_close(got: Results, want: Results, dtype: str) -> None:
    """Equal within the dtype's tolerance, relative to the largest number of each array."""
    assert got.keys() == want.keys()
    for key, a in want.items():
        assert got[key].shape == a.shape, key
        atol = TOLERANCE[dtype] * np.abs(a).max(initial=0)
        np.testing.assert_allclose(got[key], a, rtol=0, atol=atol, err_msg=key)
