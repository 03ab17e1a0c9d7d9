"""tinyres: autograd, Transformer blocks and the drawing of their graphs, from scratch in NumPy."""

from typing import TYPE_CHECKING

from tinyres import expect
from tinyres.context import no_grad, scope, spelled_out
from tinyres.tensor import Tensor, op
from tinyres.ops import (
    add, concatenate, div, exp, getitem, log, matmul, max, maximum, mean, mul, norm, power,
    raise_to, relu, reshape, scale, shift, sigmoid, sqrt, stack, sub, sum, tanh,
    transpose, var, where,
)  # fmt: skip
from tinyres.fused import (
    attention, cross_entropy, dropout, embedding, gelu, layer_norm, linear, log_softmax, mse,
    residual, rms_norm, self_attention, softmax,
)  # fmt: skip
from tinyres.normal import gelu_exact, normal_cdf
from tinyres import composed
from tinyres import nn, optim
from tinyres.checks import detect_anomaly, gradcheck
from tinyres.recompute import checkpoint
from tinyres.parallel import data_parallel
from tinyres.processes import Processes
from tinyres.replay import Replay
from tinyres.state import load, save
from tinyres import probe
from tinyres.graph import draw, draw_pair, trace, trace_backward
from tinyres.memory import collect_rarely, keep_pages

__all__ = [
    "no_grad", "scope", "spelled_out", "Tensor", "op", "add", "concatenate", "div", "exp",
    "getitem", "log", "matmul", "max", "maximum", "mean", "mul", "norm", "power", "raise_to",
    "relu", "reshape", "scale", "shift", "sigmoid", "sqrt", "stack", "sub", "sum", "tanh",
    "transpose", "var", "where", "attention", "cross_entropy", "dropout", "embedding", "gelu",
    "layer_norm", "linear", "log_softmax", "mse", "residual", "rms_norm", "self_attention",
    "softmax", "gelu_exact", "normal_cdf", "composed", "nn", "optim", "detect_anomaly",
    "gradcheck", "checkpoint", "data_parallel", "Processes", "Replay", "load", "save", "probe",
    "draw", "draw_pair", "trace", "trace_backward",
]  # fmt: skip

if not TYPE_CHECKING:  # a type checker would take every name for one that is here

    def __getattr__(name):
        raise expect.no_attribute("tinyres", name, expect.FUNCTIONS)


keep_pages()
collect_rarely()
