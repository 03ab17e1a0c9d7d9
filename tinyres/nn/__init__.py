"""Modules: layers, the placements of the norm, Transformer blocks and stacks."""

from tinyres.nn.module import Module, ModuleList, Parameter, Sequential
from tinyres.nn.layers import (
    Dropout, Embedding, FeedForward, LayerNorm, Linear, MultiHeadAttention, RMSNorm, xavier,
)  # fmt: skip
from tinyres.nn.residual import PLACEMENTS, OnlyResidual, Plain, PostLN, PreLN, Residual
from tinyres.nn.transformer import TiedHead, TransformerBlock, TransformerLM, TransformerStack
