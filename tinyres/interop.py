"""Weights from PyTorch and back: which name stands for which matrix, in three common layouts.

No PyTorch is needed: a state is a mapping of names to arrays, or the path of a `.safetensors` file.
A load checks every name and shape first and writes then, so a refused one changes nothing.

>>> stack = TransformerStack(8, heads=2, blocks=1, placement="post", rng=0)
>>> state = to_torch_encoder(stack)  # for nn.TransformerEncoder(...).load_state_dict
>>> load_torch_encoder(stack, state)
>>> state["layers.0.self_attn.in_proj_weight"].shape
(24, 8)
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tinyres import checked, expect
from tinyres.arrays import Array
from tinyres.context import scope
from tinyres.nn.layers import Embedding, FeedForward, LayerNorm, Linear, MultiHeadAttention, Seed
from tinyres.nn.module import Module, Parameter
from tinyres.nn.residual import PostLN, PreLN, Residual
from tinyres.nn.transformer import TransformerBlock, TransformerLM, TransformerStack
from tinyres.signatures import ArrayLike
from tinyres.tensor import Tensor

State: TypeAlias = "Mapping[str, Any] | str | os.PathLike[str]"
Prefixes: TypeAlias = "dict[str, str | tuple[str, str, str]]"

# What a block consists of, in three layouts: each of these is followed by "weight" and "bias".
TORCH_BLOCK: Prefixes = {
    "norm 1": "norm1.", "qkv": "self_attn.in_proj_", "out": "self_attn.out_proj.",
    "norm 2": "norm2.", "up": "linear1.", "down": "linear2.",
}  # fmt: skip
GPT2_BLOCK: Prefixes = {
    "norm 1": "ln_1.", "qkv": "attn.c_attn.", "out": "attn.c_proj.",
    "norm 2": "ln_2.", "up": "mlp.c_fc.", "down": "mlp.c_proj.",
}  # fmt: skip
BERT_BLOCK: Prefixes = {
    "norm 1": "attention.output.LayerNorm.",
    "qkv": ("attention.self.query.", "attention.self.key.", "attention.self.value."),
    "out": "attention.output.dense.",
    "norm 2": "output.LayerNorm.", "up": "intermediate.dense.", "down": "output.dense.",
}  # fmt: skip


class Entry(NamedTuple):
    """One parameter and the names that it has elsewhere."""

    parameter: Parameter
    names: tuple[str, ...]  # more than one: theirs stand side by side in ours, as q, k and v do
    transposed: bool  # theirs is (out, in)

    def split(self, array: Array) -> dict[str, Array]:
        """Theirs of ours: views, nothing is copied."""
        parts = np.split(array, len(self.names), axis=-1)
        return {n: a.T if self.transposed else a for n, a in zip(self.names, parts)}

    def joined(self, state: Mapping[str, Array]) -> Array:
        """Ours of theirs."""
        parts = [state[n].T if self.transposed else state[n] for n in self.names]
        return np.concatenate(parts, axis=-1)


def load_torch_encoder(model: TransformerStack | TransformerBlock, state: State) -> None:
    """Write the weights of an `nn.TransformerEncoder`, or of one `...Layer`, into a stack or block.

    `norm_first=True` is placement "pre", False is "post". A state says nothing about that, nor
    about the activation (PyTorch's "relu" is "relu", its "gelu" is "gelu_exact") or the heads: make
    the model alike. A Pre-LN stack ends in a norm, as `nn.TransformerEncoder(layer, n,
    norm=nn.LayerNorm(d_model))` does; if theirs does not, set `stack.final_norm = None` first.
    Raises KeyError for missing and surplus names, ValueError for wrong shapes, both with the names.
    """
    _load("load_torch_encoder", _torch_entries(model), _arrays(state))


def to_torch_encoder(
    model: TransformerStack | TransformerBlock,
    of: Callable[[Parameter], Any] = lambda parameter: parameter.data,
) -> dict[str, Array]:
    """What `load_torch_encoder` reads; `of=lambda p: p.grad` gives the gradients by those names."""
    return _export("to_torch_encoder", _torch_entries(model), of)


def load_gpt2(state: State, heads: int) -> TransformerLM:
    """A language model with weights in GPT-2's layout: Pre-LN, GELU in its tanh form, tied head.

    The sizes are those of the arrays; only `heads` is not written in them (GPT-2: d_model / 64).
    Names may begin with "transformer.". The stored causal masks (`h.N.attn.bias`) are not needed.
    """
    arrays = _without("transformer.", _arrays(state))
    vocab, d_model = _shape(arrays, "wte.weight")
    model = TransformerLM(
        vocab, d_model, heads, _count(arrays, r"h\.(\d+)\."), _shape(arrays, "wpe.weight")[0],
        _shape(arrays, "h.0.mlp.c_fc.weight")[1], placement="pre", activation="gelu", tied=True,
    )  # fmt: skip
    head = arrays.pop("lm_head.weight", arrays["wte.weight"])
    if not np.array_equal(head, arrays["wte.weight"]):
        raise ValueError("load_gpt2: lm_head.weight is not wte.weight: only tied heads are loaded")
    model.astype(_dtype(arrays["wte.weight"]))
    ignored = ("h.*.attn.bias", "h.*.attn.masked_bias")
    _load("load_gpt2", _gpt2_entries(model), arrays, ignored)
    return model


def to_gpt2(
    model: TransformerLM, of: Callable[[Parameter], Any] = lambda parameter: parameter.data
) -> dict[str, Array]:
    """What `load_gpt2` reads."""
    expect.instance("to_gpt2: model", model, TransformerLM, "a TransformerLM")
    return _export("to_gpt2", _gpt2_entries(model), of)


def load_bert(state: State, heads: int) -> BertEncoder:
    """An encoder with weights in BERT's layout.

    The sizes are those of the arrays; only `heads` is not written in them. Names may begin with
    "bert."; what stands on top of the encoder (`pooler.*`, `cls.*`) is left away.
    """
    arrays = _without("bert.", _arrays(state))
    vocab, d_model = _shape(arrays, "embeddings.word_embeddings.weight")
    model = BertEncoder(
        vocab, d_model, heads, _count(arrays, r"encoder\.layer\.(\d+)\."),
        _shape(arrays, "embeddings.position_embeddings.weight")[0],
        _shape(arrays, "encoder.layer.0.intermediate.dense.weight")[0],
        types=_shape(arrays, "embeddings.token_type_embeddings.weight")[0],
    )  # fmt: skip
    model.astype(_dtype(arrays["embeddings.word_embeddings.weight"]))
    ignored = ("embeddings.position_ids", "pooler.*", "cls.*")
    _load("load_bert", _bert_entries(model), arrays, ignored)
    return model


def to_bert(
    model: BertEncoder, of: Callable[[Parameter], Any] = lambda parameter: parameter.data
) -> dict[str, Array]:
    """What `load_bert` reads."""
    expect.instance("to_bert: model", model, BertEncoder, "a BertEncoder")
    return _export("to_bert", _bert_entries(model), of)


class BertEncoder(Module):
    """A Post-LN encoder: every token sees all others (Devlin et al. 2019, BERT, sec. 3).

    tokens (B, T) -> hidden states (B, T, d_model). `types` (B, T) tells the two parts of a pair
    of sentences apart; without it all are 0. `mask` (B, T) is True where a token is one and not
    padding: nobody looks at padding.

    >>> BertEncoder(10, 8, heads=2, blocks=1, context=5, rng=0)([[1, 2, 3]]).shape
    (1, 3, 8)
    """

    level = -1

    def __init__(
        self,
        vocab: int,
        d_model: int,
        heads: int,
        blocks: int,
        context: int,
        d_ff: int | None = None,
        *,
        types: int = 2,
        eps: float = 1e-12,
        rng: Seed = None,
    ):
        for name, size in (("vocab", vocab), ("context", context), ("types", types)):
            expect.size(f"BertEncoder: {name}", size)
        rng = expect.generator("BertEncoder", rng)
        self.word = Embedding(vocab, d_model, rng=rng)
        self.position = Embedding(context, d_model, rng=rng)
        self.type = Embedding(types, d_model, rng=rng)
        self.norm = LayerNorm(d_model, eps=eps)
        self.stack = TransformerStack(
            d_model, heads, blocks, d_ff,
            placement="post", activation="gelu_exact", eps=eps, rng=rng,
        )  # fmt: skip

    def forward(
        self,
        tokens: Tensor | ArrayLike,
        types: Tensor | ArrayLike | None = None,
        mask: Tensor | ArrayLike | None = None,
    ) -> Tensor:
        x = self.norm(self.embed(tokens, types))
        if mask is None:
            return self.stack(x)
        mask = np.asarray(mask)
        if mask.shape != x.shape[:2]:
            raise ValueError(f"BertEncoder: mask must be {x.shape[:2]}, got {mask.shape}")
        return self.stack(x, None, mask[:, None, None, :])  # the same for all heads and queries

    @scope("embed", level=2)
    def embed(self, tokens: Tensor | ArrayLike, types: Tensor | ArrayLike | None = None) -> Tensor:
        """The sum of what the token is, where it stands and which part it belongs to."""
        tokens = checked.integers("BertEncoder: tokens", tokens)
        longest = len(self.position.weight)
        if tokens.ndim != 2 or tokens.shape[1] > longest:
            raise ValueError(
                f"BertEncoder: tokens must be (batch, at most {longest}), got {tokens.shape}"
            )
        types = np.zeros_like(tokens) if types is None else types
        return self.word(tokens) + self.position(np.arange(tokens.shape[1])) + self.type(types)


# ---------------------------------------------------------------- which name is which parameter


def _torch_entries(model: Any) -> list[Entry]:
    if isinstance(model, TransformerBlock):
        entries = [*_of_block(model, TORCH_BLOCK, "", transposed=True)]
    else:
        words = "a TransformerStack or a TransformerBlock"
        expect.instance("model", model, TransformerStack, words)
        entries = [*_of_blocks(model, TORCH_BLOCK, "layers.{}.", transposed=True)]
        if model.final_norm is not None:
            entries += _of_module(model.final_norm, "norm.")
    return _all_of(model, entries, PreLN, PostLN)


def _gpt2_entries(model: TransformerLM) -> list[Entry]:
    entries = [
        *_of_module(model.token, "wte."),
        *_of_module(model.position, "wpe."),
        *_of_blocks(model.stack, GPT2_BLOCK, "h.{}.", transposed=False),
        *_of_module(model.stack.final_norm, "ln_f."),
    ]
    return _all_of(model, entries, PreLN)


def _bert_entries(model: BertEncoder) -> list[Entry]:
    entries = [
        *_of_module(model.word, "embeddings.word_embeddings."),
        *_of_module(model.position, "embeddings.position_embeddings."),
        *_of_module(model.type, "embeddings.token_type_embeddings."),
        *_of_module(model.norm, "embeddings.LayerNorm."),
        *_of_blocks(model.stack, BERT_BLOCK, "encoder.layer.{}.", transposed=True),
    ]
    return _all_of(model, entries, PostLN)


def _of_blocks(
    stack: TransformerStack, prefixes: Prefixes, start: str, *, transposed: bool
) -> Iterator[Entry]:
    for i, block in enumerate(stack.blocks):
        yield from _of_block(block, prefixes, start.format(i), transposed=transposed)


def _of_block(
    block: TransformerBlock, prefixes: Prefixes, start: str, *, transposed: bool
) -> Iterator[Entry]:
    # The sublayer may stand in a Sequential with a Dropout.
    attention = _inside(block.attention, MultiHeadAttention)
    feed_forward = _inside(block.feed_forward, FeedForward)
    parts = {
        "norm 1": getattr(block.attention, "norm", None), "qkv": attention.qkv,
        "out": attention.out, "norm 2": getattr(block.feed_forward, "norm", None),
        "up": feed_forward.up, "down": feed_forward.down,
    }  # fmt: skip
    for part, module in parts.items():
        given = prefixes[part]
        names = (given,) if isinstance(given, str) else given
        yield from _of_module(module, *[start + name for name in names], transposed=transposed)


def _inside(part: Module, kind: type[Any]) -> Any:
    return next(module for module in part.modules() if isinstance(module, kind))


def _of_module(module: Any, *starts: str, transposed: bool = False) -> Iterator[Entry]:
    """The weight and bias of a linear map, gamma and beta of a norm, the table of an embedding."""
    parameters = {
        Linear: ("weight", "bias"), Embedding: ("weight",), LayerNorm: ("gamma", "beta")
    }.get(type(module))  # fmt: skip
    if parameters is None:
        raise ValueError(
            f"{starts[0]}*: there are no such names for {type(module).__name__}, only for Linear, "
            "Embedding and LayerNorm"
        )
    for ours, theirs in zip(parameters, ("weight", "bias")):
        parameter = getattr(module, ours)
        if parameter is not None:
            names = tuple(start + theirs for start in starts)
            yield Entry(parameter, names, transposed and parameter.ndim == 2)


# ---------------------------------------------------------------- reading, checking, writing


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, Array]:
    """The arrays of a `.safetensors` file by their names."""
    try:
        from safetensors.numpy import load_file
    except ImportError as error:
        raise ImportError(
            "reading .safetensors needs the package safetensors: pip install 'tinyres[interop]'"
        ) from error
    arrays: dict[str, Array] = load_file(path)  # said here, where safetensors may be missing
    return arrays


def _arrays(state: State) -> dict[str, Array]:
    if isinstance(state, str | os.PathLike):
        return read_safetensors(state)
    expect.instance("state", state, Mapping, "a mapping of names to arrays, or a path")
    return {name: np.asarray(value) for name, value in state.items()}


def _all_of(model: Module, entries: Iterable[Entry], *rules: type[Residual]) -> list[Entry]:
    """The entries, if they cover the model and its placements compute what the layout's do."""
    entries = list(entries)
    for module in model.modules():
        if isinstance(module, Residual) and type(module).forward not in [r.forward for r in rules]:
            names = " or ".join(rule.__name__ for rule in rules)
            raise ValueError(f"{type(module).__name__} computes something else than {names}")
    covered = {id(entry.parameter) for entry in entries}
    nameless = [name for name, p in model.named_parameters() if id(p) not in covered]
    if nameless:
        raise ValueError(f"this layout has no names for the parameters {nameless}")
    return entries


def _load(
    what: str, entries: list[Entry], state: Mapping[str, Array], ignored: tuple[str, ...] = ()
) -> None:
    """Check all of `state` against the entries, then write it into the model."""
    wanted = {name: a.shape for e in entries for name, a in e.split(e.parameter.data).items()}
    missing = sorted(wanted.keys() - state.keys())
    surplus = sorted(
        name for name in state.keys() - wanted.keys()
        if not any(fnmatchcase(name, pattern) for pattern in ignored)
    )  # fmt: skip
    if missing or surplus:
        raise KeyError(f"{what}: missing {missing}, surplus {surplus}")
    misshapen = [
        f"{name} must have shape {shape}, got {state[name].shape}"
        for name, shape in wanted.items() if state[name].shape != shape
    ]  # fmt: skip
    if misshapen:
        raise ValueError(f"{what}: " + "; ".join(misshapen))
    for name in wanted:
        if state[name].dtype.kind != "f":
            raise TypeError(f"{what}: {name} must hold floats, got {state[name].dtype}")
    for entry in entries:
        entry.parameter.data = entry.joined(state)


def _export(what: str, entries: list[Entry], of: Callable[[Parameter], Any]) -> dict[str, Array]:
    expect.function(f"{what}: of", of)
    out: dict[str, Array] = {}
    for entry in entries:
        value = expect.instance(
            f"of({entry.names[0]})", of(entry.parameter), np.ndarray, "an array"
        )
        out |= {name: np.array(a, order="C") for name, a in entry.split(value).items()}
    return out


def _without(prefix: str, state: dict[str, Array]) -> dict[str, Array]:
    short = {name.removeprefix(prefix): array for name, array in state.items()}
    if len(short) < len(state):
        raise KeyError(f"some names are there twice, with {prefix!r} before them and without")
    return short


def _shape(state: Mapping[str, Array], name: str) -> tuple[int, int]:
    if name not in state or state[name].ndim != 2:
        found = state[name].shape if name in state else f"the names {expect.shown(list(state))}"
        raise KeyError(f"state: {name}: expected a matrix of this name, got {found}")
    rows, columns = state[name].shape
    return rows, columns


def _count(state: Mapping[str, Array], block: str) -> int:
    """How many blocks there are: one more than the highest number."""
    numbers = [int(found[1]) for name in state if (found := re.match(block, name))]
    return max(numbers, default=-1) + 1


def _dtype(array: Array) -> str:
    """float64 stays; everything else, float16 too, is computed with in float32."""
    return "float64" if array.dtype == np.float64 else "float32"
