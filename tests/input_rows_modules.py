"""The rows of `input_rows.py` for modules, and all rows together."""

from __future__ import annotations

from typing import Any

import numpy as np
from input_rows import (
    FLAG,
    FLAG_ON,
    MODEL,
    ROWS_OF_FUNCTIONS,
    SEED,
    STATE,
    TOKENS,
    Row,
    X,
    floats,
    row,
)

import tinyres as tr
from tinyres import interop, nn

BLOCK = {
    "d_model": ("size", 4), "heads": ("size", 2), "d_ff": ("size?", 8),
    "placement": ("name", "pre"), "activation": ("name", "relu"), "norm": ("name", "layer"),
    "eps": ("from 0", 1e-5), "dropout": ("share", 0.5), "causal": FLAG, "rng": SEED,
}  # fmt: skip
PLACE = {
    "index": ("size", 1), "total": ("size", 2), "block": ("size", 1), "blocks": ("size", 1),
    "cross": FLAG, "decoder_blocks": ("count", 0),
}  # fmt: skip
LM = {"vocab": ("size", 5), **BLOCK, "blocks": ("size", 1), "context": ("size", 4), "tied": FLAG}


def of_layer(name: str, **args: tuple[str, Any]) -> Row:
    return row(lambda **given: getattr(nn.Linear(2, 2, rng=0), name)(**given), **args)


def make_norm() -> nn.LayerNorm:
    return nn.LayerNorm(3)


def placed(rule: Any) -> Row:
    """A rule round a sublayer. Of its constants, `index` and `total` come from a stack."""
    norm = "function" if hasattr(rule(tr.relu, make_norm), "norm") else "any"
    return row(
        lambda branch, norm: rule(branch, norm)(rule.begin(floats(2, 3), None)),
        branch=("function", tr.relu), norm=(norm, make_norm),
    )  # fmt: skip


def layer(kind: Any, *inputs: int, **args: tuple[str, Any]) -> Row:
    """A module, built and called."""
    return row(lambda **given: kind(**given)(floats(*inputs)), **args)


def block(cross: Any, **given: Any) -> Any:
    x = floats(1, 2, 4)
    return nn.TransformerBlock(cross=cross, **given)(x, *([x] if cross else []))


def stack(**given: Any) -> Any:
    return nn.TransformerStack(**given)(floats(1, 2, 4))


def language_model(**given: Any) -> Any:
    return nn.TransformerLM(**given)([[0]])


def encoder_decoder(causal: Any, **given: Any) -> Any:
    return nn.TransformerEncoderDecoder(**given)([[0]], [[1]])


def encoder(**given: Any) -> Any:
    return interop.BertEncoder(**given)([[0, 1]])


STACK, BERT = nn.TransformerStack(4, 2, 1, 8, rng=0), interop.BertEncoder(5, 4, 2, 1, 3, 8, rng=0)
TIED = nn.TransformerLM(5, 4, 2, 1, 3, 8, activation="gelu", tied=True, rng=0)
OF = ("function", lambda parameter: parameter.data)
ATTENTION = nn.MultiHeadAttention(4, 2, rng=0)

ROWS: dict[str, Row] = {
    **ROWS_OF_FUNCTIONS,
    # ---- modules
    "nn.xavier": row(nn.xavier, rng=SEED, n_in=("size", 2), n_out=("size", 2)),
    "nn.Module": row(nn.Module),
    "nn.ModuleList": row(nn.ModuleList),
    "nn.Sequential": row(
        lambda layers: nn.Sequential(layers)(floats(2)), layers=("function", tr.exp)
    ),
    "nn.Linear": layer(
        nn.Linear, 3, 2, n_in=("size", 2), n_out=("size", 4), bias=FLAG, rng=SEED, parts=("size", 2)
    ),
    "nn.Embedding": row(nn.Embedding, count=("size", 5), d_model=("size", 4), rng=SEED),
    "nn.LayerNorm": layer(
        nn.LayerNorm, 2, 3, d_model=("size", 3), eps=("from 0", 0.1), affine=FLAG
    ),
    "nn.RMSNorm": layer(nn.RMSNorm, 2, 3, d_model=("size", 3), eps=("from 0", 0.1), affine=FLAG),
    "nn.Dropout": layer(nn.Dropout, 2, 3, p=("share", 0.5), rng=SEED),
    "nn.MultiHeadAttention": layer(
        nn.MultiHeadAttention, 2, 4,
        d_model=("size", 4), heads=("size", 2), causal=FLAG, bias=FLAG, rng=SEED,
        normed=("letters", "qk"), per_head=FLAG, head_scale=FLAG, norm=("function", nn.RMSNorm),
    ),
    "nn.FeedForward": layer(
        nn.FeedForward, 2, 4,
        d_model=("size", 4), d_ff=("size", 8), activation=("name", "relu"), rng=SEED,
        inner_norm=FLAG_ON, norm=("function", nn.RMSNorm),
    ),
    "nn.TransformerBlock": row(
        block, **BLOCK, cross=FLAG, block=("size", 1), blocks=("size", 2),
        decoder_blocks=("count", 1),
    ),
    "nn.TransformerStack": row(stack, blocks=("size", 1), **BLOCK),
    "nn.TransformerLM": row(language_model, **LM),
    "nn.TiedHead": row(nn.TiedHead, table=("parameter", nn.Parameter(np.ones((5, 3))))),
    **{
        f"nn.{name}": placed(rule)
        for name, rule in vars(nn).items()
        if isinstance(rule, type) and issubclass(rule, nn.Residual) and rule is not nn.Residual
    },
    **{
        f"nn.{name}": row(rule, norm=("function" if hasattr(rule(make_norm), "norm") else "any",
                                      make_norm))
        for name, rule in vars(nn).items()
        if isinstance(rule, type) and issubclass(rule, nn.BlockRule)
    },
    "nn.Placement": row(nn.Placement),
    "nn.Residual": row(
        nn.Residual, branch=("function", tr.relu), norm=("function", make_norm), **PLACE
    ),
    "nn.placement_class": row(nn.placement_class, placement=("name", "post")),
    "nn.DynamicTanh": layer(
        nn.DynamicTanh, 2, 3, d_model=("size", 3), alpha=("real", 0.5)
    ),
    "nn.TransformerEncoderDecoder": row(
        encoder_decoder, **LM, decoder_blocks=("size?", 2)
    ),
    **{
        name: row(lambda x, module=module: module(x), x=given)
        for name, module, given in (
            ("Linear()", nn.Linear(3, 2, rng=0), X), ("LayerNorm()", nn.LayerNorm(3), X),
            ("RMSNorm()", nn.RMSNorm(3), X), ("FeedForward()", nn.FeedForward(3, 2, rng=0), X),
            ("Dropout()", nn.Dropout(0.5, rng=0), X), ("Embedding()", MODEL.token, TOKENS),
            ("TransformerStack()", MODEL.stack, ("array", floats(1, 2, 4))),
            ("TransformerLM()", MODEL, TOKENS),
        )
    },
    "MultiHeadAttention()": row(
        lambda x, mask: nn.MultiHeadAttention(4, 2, rng=0)(x, mask=mask),
        x=("array", floats(3, 4)), mask=("mask", np.ones((3, 3), bool)),
    ),
    "MultiHeadAttention() with memory": row(
        lambda x, memory, mask: nn.MultiHeadAttention(4, 2, rng=0)(x, memory, mask=mask),
        x=("array", floats(3, 4)), memory=("array!", floats(5, 4)),
        mask=("mask", np.ones((3, 5), bool)),
    ),
    "TransformerBlock()": row(
        lambda x, memory: nn.TransformerBlock(4, 2, cross=True, rng=0)(x, memory),
        x=("array", floats(1, 2, 4)), memory=("array!", floats(1, 3, 4)),
    ),
    "TransformerEncoderDecoder()": row(
        nn.TransformerEncoderDecoder(5, 4, 2, 1, context=4, rng=0),
        source=TOKENS, target=TOKENS,
    ),
    "Module.load_state_dict": of_layer("load_state_dict", state=("state", STATE)),
    "Module.astype": of_layer("astype", dtype=("float dtype", "f8")),
    "Module.train": of_layer("train", mode=FLAG),
    **{f"Module.{n}": of_layer(n) for n in (
        "eval", "evaluating", "zero_grad",
        "state_dict", "parameters", "num_parameters", "named_parameters",
        "modules", "members", "extra")},
    "Module.named_modules": of_layer("named_modules", prefix=("any", "")),
    # ---- weights from elsewhere
    "interop.load_torch_encoder": row(
        interop.load_torch_encoder,
        model=("stack", STACK), state=("weights", interop.to_torch_encoder(STACK)),
    ),
    "interop.to_torch_encoder": row(interop.to_torch_encoder, model=("stack", STACK), of=OF),
    "interop.load_gpt2": row(
        interop.load_gpt2, state=("weights", interop.to_gpt2(TIED)), heads=("size", 2)
    ),
    "interop.to_gpt2": row(interop.to_gpt2, model=("stack", TIED), of=OF),
    "interop.load_bert": row(
        interop.load_bert, state=("weights", interop.to_bert(BERT)), heads=("size", 2)
    ),
    "interop.to_bert": row(interop.to_bert, model=("stack", BERT), of=OF),
    "interop.BertEncoder": row(
        encoder, vocab=("size", 5), d_model=("size", 4), heads=("size", 2), blocks=("size", 1),
        context=("size", 3), d_ff=("size?", 8), types=("size", 2), eps=("from 0", 1e-12), rng=SEED,
    ),
    "interop.BertEncoder()": row(
        lambda **given: BERT(**given), tokens=("integers", [[0, 1]]), types=("integers?", [[0, 1]]),
        mask=("mask", np.ones((1, 2), bool)),
    ),
    # ---- methods of modules
    "MultiHeadAttention.by_head": row(
        ATTENTION.by_head, x=("array", floats(1, 3, 4)), memory=("array?", None)
    ),
    "MultiHeadAttention.weights": row(
        ATTENTION.weights, x=("array", floats(1, 3, 4)), memory=("array?", None)
    ),
    "MultiHeadAttention.matrices": row(ATTENTION.matrices),
    "MultiHeadAttention.extra": row(ATTENTION.extra),
    "TransformerStack.begin": row(STACK.begin, x=("tensor", floats(1, 2, 4))),
    "TransformerStack.end": row(STACK.end, stream=("tensor", floats(1, 2, 4))),
    "TransformerStack.profile": row(
        nn.TransformerStack(4, 2, 1, placement="admin", rng=0).profile,
        x=("tensor", floats(1, 2, 4)), memory=("any", None),
    ),
    "TransformerStack.extra": row(STACK.extra),
    "TransformerLM.embed": row(MODEL.embed, tokens=TOKENS),
    "TransformerLM.loss": row(
        MODEL.loss, tokens=("integers", [[0, 1]]), targets=("integers", [[1, 2]])
    ),
    "TransformerLM.generate": row(
        MODEL.generate, prompt=("integers", [0, 1]), count=("count", 2),
        temperature=("from 0", 1.0), top_k=("size?", 2), rng=SEED,
    ),
}  # fmt: skip
