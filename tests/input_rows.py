"""Every public function and class with good arguments.

There is one row for each, with the kind of every argument; `input_kinds.py` says which values of a
kind must be refused, and which may work. The rows of modules are in `input_rows_modules.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import tinyres as tr
from tinyres import nn, optim


class Row(NamedTuple):
    """A function with good arguments, each `(kind, value)` by its name."""

    call: Callable[..., Any]
    args: dict[str, tuple[str, Any]] = {}  # noqa: RUF012 (never written)


def row(call: Callable[..., Any], **args: tuple[str, Any]) -> Row:
    return Row(call, args)


def floats(*shape: int) -> tr.Tensor:
    values = np.random.default_rng(0).uniform(0.5, 1.5, shape).astype("f4")
    return tr.Tensor(values, requires_grad=True)


X, AXIS, FLAG, SEED = ("array", floats(2, 3)), ("axis", 0), ("flag", False), ("seed", 0)
FLAG_ON = ("flag", True)
PARAMS = ("params", [nn.Parameter([1.0, 2.0])])
MODEL = nn.TransformerLM(vocab=5, d_model=4, heads=2, blocks=1, context=4, rng=0)
TOKENS = ("integers", [[0, 1, 2]])
BATCH = ("batch", ([[0, 1, 2]], [[1, 2, 3]]))
PROBED = ["model", "batch"]
LR, WARMUP = ("from 0", 0.1), ("count", 3)


def unary(fn: Callable[..., Any]) -> Row:
    return row(fn, x=X)


def binary(fn: Callable[..., Any]) -> Row:
    return row(fn, a=X, b=("array", floats(2, 3)))


def reduction(fn: Callable[..., Any]) -> Row:
    return row(fn, x=X, axis=AXIS, keepdims=FLAG)


def fused(where: Any) -> dict[str, Row]:
    """The rows that a fused op and its twin in primitive ops have in common."""
    width = ("array?", floats(3))
    return {
        "linear": row(
            lambda x, weight, bias: where.linear(x, weight, bias),
            x=X, weight=("array", floats(3, 4)), bias=("array?", floats(4)),
        ),
        "softmax": row(lambda x, axis: where.softmax(x, axis=axis), x=X, axis=("axis", 0)),
        "log_softmax": row(lambda x, axis: where.log_softmax(x, axis=axis), x=X, axis=("axis", 0)),
        "layer_norm": row(
            lambda x, gamma, beta, eps: where.layer_norm(x, gamma, beta, eps=eps),
            x=X, gamma=width, beta=width, eps=("number", 1e-5),
        ),
        "rms_norm": row(
            lambda x, gamma, eps: where.rms_norm(x, gamma, eps=eps),
            x=X, gamma=width, eps=("number", 1e-5),
        ),
        "gelu": row(lambda x: where.gelu(x), x=X),
        "attention": row(
            lambda q, k, v, **options: where.attention(q, k, v, **options), 
            q=X, k=("array", floats(4, 3)), v=("array", floats(4, 2)),
            mask=("mask", np.ones((2, 4), bool)), causal=FLAG,
        ),
        "self_attention": row(
            lambda x, weight, bias, **options: where.self_attention(x, weight, bias, **options),
            x=("array", floats(2, 4)), weight=("array", floats(4, 12)),
            bias=("array?", floats(12)), heads=("size", 2), mask=("mask", np.eye(2, dtype=bool)),
            causal=FLAG,
        ),
        "embedding": row(
            lambda weight, index: where.embedding(weight, index),
            weight=("array", floats(5, 3)), index=TOKENS,
        ),
        "cross_entropy": row(
            lambda logits, targets, ignore_index: where.cross_entropy(
                logits, targets, ignore_index=ignore_index
            ),
            logits=("array", floats(3, 5)), targets=("integers", [0, 4, 1]),
            ignore_index=("integer?", -1),
        ),
    }  # fmt: skip


def method(name: str, **args: tuple[str, Any]) -> Row:
    return row(lambda **given: getattr(floats(2, 3), name)(**given), **args)


def optimizer(kind: Any, **args: tuple[str, Any]) -> Row:
    return row(lambda params, **given: kind(params, **given), params=PARAMS, lr=LR, **args)


@tr.op
def double(x):
    """2 x."""
    return 2 * x, lambda g: (2 * g,)


STATE = nn.Linear(2, 2, rng=0).state_dict()
ADAM = {"betas": ("params", (0.9, 0.99)), "eps": ("from 0", 1e-8), "weight_decay": ("from 0", 0.1)}


def crossings(output: Any, source: Any, branches: Any, grad: Any) -> Any:
    x = floats(2, 3)
    y = x * 2
    given = [y if output is ... else output, x if source is ... else source]
    return tr.probe.by_crossings(*given, branches, grad)


def trained() -> optim.Optimizer:
    p = nn.Parameter([1.0, 2.0])
    p.grad = np.ones(2)
    adam = optim.Adam([p])
    adam.step()
    return adam


def load(state: Any) -> None:
    trained().load_state_dict(state)


def with_data(data: Any) -> None:
    floats(2, 3).data = data


def with_grad(grad: Any) -> None:
    floats(2, 3).grad = grad


def operator(name: str, word: str) -> Row:
    kind = "any" if word in ("less", "greater", "equal") else "array"
    return row(lambda **given: getattr(floats(2, 3), name)(given[word]), **{word: (kind, 2.0)})


# The operators and what messages call them.
OPERATORS = {
    "__add__": "add", "__radd__": "add", "__sub__": "sub", "__rsub__": "sub",
    "__mul__": "mul", "__rmul__": "mul", "__truediv__": "div", "__rtruediv__": "div",
    "__pow__": "power", "__rpow__": "power", "__lt__": "less", "__le__": "less",
    "__gt__": "greater", "__ge__": "greater", "__contains__": "equal",
}  # fmt: skip


ROWS_OF_FUNCTIONS: dict[str, Row] = {
    # ---- tensors and how ops run
    "Tensor": row(tr.Tensor, data=X, requires_grad=FLAG, dtype=("dtype", "f4")),
    "nn.Parameter": row(nn.Parameter, data=X, requires_grad=FLAG, dtype=("dtype", "f4")),
    "op": row(
        lambda function, spelled_out: tr.op(function, spelled_out=spelled_out)(1.0),
        function=("own op", double.__wrapped__), spelled_out=("function?", double),
    ),
    "no_grad": row(tr.no_grad),
    "spelled_out": row(tr.spelled_out),
    "detect_anomaly": row(
        lambda **given: tr.detect_anomaly(**given).__enter__(), step=("count?", 3)
    ),
    "keep_pages": row(tr.keep_pages),
    "collect_rarely": row(tr.collect_rarely, new_objects=("size", 10_000)),
    "scope": row(
        lambda **given: tr.scope(**given).__enter__(), name=("text", "part"), level=("level", 1)
    ),
    # ---- primitive ops
    **{n: binary(getattr(tr, n)) for n in ("add", "sub", "mul", "div", "maximum", "power")},
    **{n: unary(getattr(tr, n)) for n in (
        "exp", "log", "sqrt", "tanh", "sigmoid", "relu", "gelu_exact", "normal_cdf")},
    **{n: reduction(getattr(tr, n)) for n in ("sum", "mean", "var", "max", "norm")},
    "where": row(tr.where, condition=("array", np.ones((2, 3), bool)), a=X, b=X),
    "shift": row(tr.shift, x=X, by=("by", 1.0)),
    "scale": row(tr.scale, x=X, by=("by", 1.0)),
    "raise_to": row(tr.raise_to, x=X, exponent=("by", 2.0)),
    "matmul": row(tr.matmul, a=X, b=("array", floats(3, 2))),
    "reshape": row(tr.reshape, x=X, shape=("shape", (3, 2))),
    "transpose": row(tr.transpose, x=X, axes=("axes", (1, 0))),
    "getitem": row(tr.getitem, x=X, index=("index", 1)),
    "concatenate": row(tr.concatenate, tensors=("arrays", [floats(2, 3)]), axis=("axis", 0)),
    "stack": row(tr.stack, tensors=("arrays", [floats(2, 3)]), axis=("axis", 0)),
    # ---- fused ops
    **fused(tr),
    **{f"composed.{name}": r for name, r in fused(tr.composed).items()},
    "residual": row(tr.residual, x=X, fx=X),
    "mse": row(tr.mse, prediction=X, target=X),
    "dropout": row(
        tr.dropout, x=X, p=("share", 0.5), rng=("rng", np.random.default_rng(0)), training=FLAG_ON
    ),
    # ---- methods
    **{f"Tensor.{n}": method(n) for n in (
        "detach", "zero_grad", "exp", "log", "sqrt", "tanh", "sigmoid", "relu", "gelu")},
    "Tensor.item": row(lambda: floats(1, 1).item()),
    "Tensor.numpy": row(lambda: floats(2).detach().numpy()),
    "Tensor.retain_grad": row(lambda: (floats(2) * 2).retain_grad()),
    **{f"Tensor.{n}": method(n, axis=AXIS, keepdims=FLAG) for n in (
        "sum", "mean", "var", "max", "min")},
    **{f"Tensor.{n}": method(n, axis=AXIS) for n in ("softmax", "log_softmax")},
    "Tensor.reshape": row(lambda shape: floats(2, 3).reshape(shape), shape=("shape", (3, 2))),
    "Tensor.transpose": row(lambda axes: floats(2, 3).transpose(axes), axes=("axes", (1, 0))),
    "Tensor.swapaxes": method("swapaxes", a=("axis_number", 0), b=("axis_number", 1)),
    "Tensor.backward": row(
        lambda **given: (floats(2, 3) * 2).backward(**given),
        grad=("array", np.ones((2, 3))), retain_graph=FLAG,
    ),
    "Tensor.data": row(with_data, data=X),
    "Tensor.grad": row(with_grad, grad=("array?", np.ones((2, 3)))),
    **{f"Tensor.{name}": operator(name, word) for name, word in OPERATORS.items()},
    "Tensor.__matmul__": row(lambda matmul: floats(2, 3) @ matmul, matmul=("array", floats(3))),
    "Tensor.__rmatmul__": row(lambda matmul: matmul @ floats(3), matmul=("array", floats(2, 3))),
    "Tensor.__getitem__": row(lambda getitem: floats(2, 3)[getitem], getitem=("index", 1)),
    # ---- checks, training state, probes
    "gradcheck": row(
        tr.gradcheck, fn=("function", double), inputs=("arrays", [floats(2, 3)]),
        eps=("above 0", 1e-6), atol=("from 0", 1e-6), rtol=("from 0", 1e-5), seed=SEED,
    ),
    "checkpoint": row(
        lambda fn, inputs: tr.checkpoint(fn, inputs), fn=("function", double), inputs=X
    ),
    "data_parallel": row(
        lambda loss, batch, threads: tr.data_parallel(loss, batch, threads=threads),
        loss=("function", lambda x: (floats(3) * x).mean()), batch=("array", np.ones((4, 3), "f4")),
        threads=("size", 2),
    ),
    "Processes": row(
        lambda loss, params, count, replay: tr.Processes(
            loss, params, count, replay=replay
        ).close(),
        loss=("function", double), params=("params", [floats(3)]), count=("size", 2), replay=FLAG,
    ),
    "Replay": row(tr.Replay, loss=("function", double), params=("params", [floats(3)])),
    "save": row(lambda path: tr.save(path, x=1), path=("path", None)),
    "load": row(tr.load, path=("path", None)),
    "probe.stream": row(tr.probe.stream, model=("model", MODEL), tokens=TOKENS),
    "probe.states": row(tr.probe.states, model=("model", MODEL), tokens=TOKENS),
    **{
        f"probe.{name}": row(probe, model=("model", MODEL), batch=BATCH)
        for name, probe in vars(tr.probe).items()
        if inspect.isfunction(probe) and list(inspect.signature(probe).parameters) == PROBED
    },
    "probe.mean_gradients": row(
        tr.probe.mean_gradients, model=("model", MODEL), batches=("batches", [BATCH[1]])
    ),
    "probe.model_update": row(
        tr.probe.model_update, model=("model", MODEL), batch=BATCH,
        before=("state", MODEL.state_dict()),
    ),
    "probe.output_shift": row(
        tr.probe.output_shift, model=("model", MODEL), batch=BATCH, eps=("above 0", 0.1), rng=SEED
    ),
    "probe.by_crossings": row(
        crossings, output=("traced", ...), source=("traced", ...), branches=("modules", [MODEL]),
        grad=("array", np.ones((2, 3))),
    ),
    "probe.update_ratio": row(
        tr.probe.update_ratio, before=("state", STATE), after=("state", STATE)
    ),
    # ---- optimizers
    "optim.Optimizer": optimizer(optim.Optimizer),
    "optim.SGD": optimizer(optim.SGD, momentum=("from 0", 0.9), weight_decay=("from 0", 0.1)),
    "optim.Adam": optimizer(optim.Adam, **ADAM),
    "optim.AdamW": optimizer(optim.AdamW, **ADAM),
    **{f"Optimizer.{n}": row(lambda n=n: getattr(trained(), n)()) for n in (
        "zero_grad", "step", "state_dict")},
    "Optimizer.load_state_dict": row(load, state=("state", trained().state_dict())),
    "optim.clip_grad_norm": row(
        optim.clip_grad_norm, params=PARAMS, max_norm=("from 0 to infinity", 1.0)
    ),
    "optim.warmup_constant": row(optim.warmup_constant, lr=LR, warmup=WARMUP),
    "optim.warmup_cosine": row(
        optim.warmup_cosine, lr=LR, warmup=WARMUP, total=("count", 9), floor=("from 0", 0.0)
    ),
    "optim.inverse_sqrt": row(optim.inverse_sqrt, lr=LR, warmup=WARMUP),
    # ---- graphs
    "trace": row(tr.trace, output=("traced", floats(2, 3) * 2), names=("names", None)),
    "trace_backward": row(
        lambda loss, **given: tr.trace_backward(
            (floats(2, 3) * 2).sum() if loss is ... else loss, **given
        ),
        loss=("traced", ...), grad=("array?", None), retain_graph=FLAG_ON,
        names=("names", None),
    ),
    "draw": row(
        tr.draw, output_or_graph=("traced", floats(2, 3) * 2), depth=("depth", 1),
        rankdir=("name", "BT"), theme=("word", "auto"), fold=FLAG, parameters=FLAG, gradient=FLAG,
        legend=FLAG, title=("text?", "two"), decades=("above 0?", 3.0), names=("names", None),
    ),
    "Drawing.render": row(tr.draw(floats(2) * 2.0).render, path=("path", None)),
    "Drawing.svg": row(tr.draw(floats(2) * 2.0).svg, prefix=("text?", "p")),
    "Pair.render": row(
        tr.draw_pair(floats(2) * 2.0, floats(2) * 3.0).render, path=("path", None)
    ),
    "Pair.svg": row(
        tr.draw_pair(floats(2) * 2.0, floats(2) * 3.0).svg, prefix=("text?", "p")
    ),
    "draw_pair": row(
        tr.draw_pair, left=("traced", floats(2, 3) * 2), right=("traced", floats(2, 3) * 2),
        titles=("texts", ("one", "two")), decades=("above 0?", 3.0),
    ),
}  # fmt: skip
