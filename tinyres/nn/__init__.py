"""Modules: layers, the placements of the norm, Transformer blocks and stacks."""

from typing import TYPE_CHECKING

from tinyres import expect
from tinyres.nn.module import Module, ModuleList, Parameter, Sequential
from tinyres.nn.layers import (
    Dropout, DynamicTanh, Embedding, FeedForward, LayerNorm, Linear, MultiHeadAttention, RMSNorm,
    xavier,
)  # fmt: skip
from tinyres.nn.residual import (
    BlockRule, OnlyResidual, Placement, Plain, PostLN, PreLN, Residual,
)  # fmt: skip
from tinyres.nn.sublayer_rules import (
    Admin, AdminTorch, AdminTorchConstant, CompleteP, DeepNorm, DepthMuP, DyT, Keel,
    LayerNormScaling, LayerScale, MixLN, NGPT, OLMo2, OutputNorm, PeriLN, PostLNInit, Sandwich,
    ScaledInit, TFixup,
)  # fmt: skip
from tinyres.nn.block_rules import (
    B2T, DLCL, HybridNorm, HyperConnections, NormFormer, ReZero, ResiDual, SiameseNorm, SpanNorm,
)  # fmt: skip
from tinyres.nn.placements import PLACEMENTS, placement_class
from tinyres.nn.transformer import TiedHead, TransformerBlock, TransformerLM, TransformerStack
from tinyres.nn.encoder_decoder import TransformerEncoderDecoder

__all__ = [
    "Module", "ModuleList", "Parameter", "Sequential", "Dropout", "DynamicTanh", "Embedding",
    "FeedForward", "LayerNorm", "Linear", "MultiHeadAttention", "RMSNorm", "xavier", "BlockRule",
    "OnlyResidual", "Placement", "Plain", "PostLN", "PreLN", "Residual", "Admin", "AdminTorch",
    "AdminTorchConstant", "CompleteP", "DeepNorm", "DepthMuP", "DyT", "Keel", "LayerNormScaling",
    "LayerScale", "MixLN", "NGPT", "OLMo2", "OutputNorm", "PeriLN", "PostLNInit", "Sandwich",
    "ScaledInit", "TFixup", "B2T", "DLCL", "HybridNorm", "HyperConnections", "NormFormer",
    "ReZero", "ResiDual", "SiameseNorm", "SpanNorm", "PLACEMENTS", "placement_class", "TiedHead",
    "TransformerBlock", "TransformerLM", "TransformerStack", "TransformerEncoderDecoder",
]  # fmt: skip

if not TYPE_CHECKING:  # a type checker would take every name for one that is here

    def __getattr__(name):
        raise expect.no_attribute("tinyres.nn", name, expect.MODULES)
