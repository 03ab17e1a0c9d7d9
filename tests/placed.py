"""What the tests of placements share."""

from __future__ import annotations


def sublayer_matrices(module):
    """All matrices of the sublayers, as (block number, name, array)."""
    for i, block in enumerate(module.blocks, 1):
        for part in block.modules():
            for name, matrix in getattr(part, "matrices", dict)().items():
                yield i, name, matrix


def disturb(module, rng, scale=0.2):
    """Away from the initial values, at which a gain of 0 or 1 could hide a mistake."""
    for p in module.parameters():
        p.data += scale * rng.standard_normal(p.shape)
