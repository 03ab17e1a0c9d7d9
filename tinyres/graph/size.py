"""How large an array is: its Euclidean norm, and the root of the mean of its squares."""

from __future__ import annotations

import math

import numpy as np

from tinyres.arrays import Array


def length(array: Array) -> float:
    """Euclidean norm; small and large values do not vanish or overflow when squared."""
    flat = array.reshape(-1)
    with np.errstate(over="ignore", under="ignore"):
        squared = float(flat @ flat)
    safe = 1e-30 < squared < 1e30 or math.isnan(squared)
    return math.sqrt(squared) if safe else _scaled_length(flat)


def _scaled_length(flat: Array) -> float:
    largest = float(abs(flat).max(initial=0))
    if largest == 0 or not math.isfinite(largest):
        return largest
    unit = flat.astype(float) / largest
    return largest * math.sqrt(float(unit @ unit))


def rms(array: Array) -> float:
    """Root mean square: what an element's size is, whatever the shape.

    >>> rms(np.array([3.0, -3.0, 3.0, -3.0]))
    3.0
    """
    return length(array) / math.sqrt(max(array.size, 1))
