"""The placements by name: what `placement="deepnorm"` means."""

from __future__ import annotations

from typing import Any

from tinyres import expect
from tinyres.nn import block_rules as blocks
from tinyres.nn import sublayer_rules as rules
from tinyres.nn.residual import OnlyResidual, Placement, Plain, PostLN, PreLN

PLACEMENTS: dict[str, type[Placement]] = {
    "pre": PreLN,
    "post": PostLN,
    "residual": OnlyResidual,
    "plain": Plain,
    "gpt2": rules.ScaledInit,
    "deepnorm": rules.DeepNorm,
    "post_init": rules.PostLNInit,
    "admin": rules.Admin,
    "admin_torch": rules.AdminTorch,
    "admin_torch_constant": rules.AdminTorchConstant,
    "rezero": blocks.ReZero,
    "tfixup": rules.TFixup,
    "layerscale": rules.LayerScale,
    "sandwich": rules.Sandwich,
    "peri": rules.PeriLN,
    "output": rules.OutputNorm,
    "olmo2": rules.OLMo2,
    "normformer": blocks.NormFormer,
    "b2t": blocks.B2T,
    "dual": blocks.ResiDual,
    "mix": rules.MixLN,
    "lns": rules.LayerNormScaling,
    "dyt": rules.DyT,
    "hybrid": blocks.HybridNorm,
    "ngpt": rules.NGPT,
    "completep": rules.CompleteP,
    "depth_mup": rules.DepthMuP,
    "keel": rules.Keel,
    "span": blocks.SpanNorm,
    "siamese": blocks.SiameseNorm,
    "hyper": blocks.HyperConnections,
    "dlcl": blocks.DLCL,
}


def placement_class(placement: Any) -> type[Placement]:
    """The class that a placement's name stands for; a class stands for itself.

    >>> placement_class("post").__name__
    'PostLN'
    """
    if isinstance(placement, type) and issubclass(placement, Placement):
        return placement
    if not isinstance(placement, str):
        raise TypeError(
            "placement must be a name in tr.nn.PLACEMENTS, or a class derived from tr.nn.Residual "
            f"or tr.nn.BlockRule, got {expect.shown(placement)}"
        )
    rule: type[Placement] = expect.one_of("placement", placement, PLACEMENTS)
    return rule
