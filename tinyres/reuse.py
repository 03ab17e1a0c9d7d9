"""Where the arrays of a recording lie: memory is used again once nobody needs what is in it.

A recording knows every call that will read an array. So after the last one its memory can be given
to the next array of that size, as a compiler gives a register to the next variable. What is left
is little more than the activations that the way back needs; the rest stays in the cache.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tinyres.arrays import Array
from tinyres.recorded import Call, Recording, arrays_in, owner

ALIGNED = 64  # bytes: a line of the cache
Move: TypeAlias = Callable[[Any], Any]


def share_memory(recording: Recording, kept: Sequence[Array]) -> tuple[list[Call], Move, int]:
    """The calls on arrays that share memory, what moves an array there, and its bytes in all.

    `kept` are the arrays that somebody reads when the last call is done.
    """
    made = {id(array): array for array in recording.made}
    used = [
        {id(o) for o in map(owner, arrays_in((call.args, call.options)))} & made.keys()
        for call in recording.calls
    ]
    places, size = _places(made, used, {id(owner(array)) for array in kept})
    memory = np.empty(size + ALIGNED, np.uint8)
    start = -_address(memory) % ALIGNED

    def moved(value: Any) -> Any:
        """A value with its arrays where they lie now."""
        if isinstance(value, np.ndarray):
            whose = owner(value)
            if id(whose) not in places:
                return value  # a parameter, an array of the batch, a constant
            offset = start + places[id(whose)] + _address(value) - _address(whose)
            return np.ndarray(value.shape, value.dtype, memory, offset, value.strides)
        if isinstance(value, tuple | list):
            return type(value)(map(moved, value))
        if isinstance(value, dict):
            return {key: moved(item) for key, item in value.items()}
        return value

    calls = [Call(f, moved(args), moved(options)) for f, args, options in recording.calls]
    return calls, moved, size


def _places(
    made: dict[int, Array], used: list[set[int]], kept: set[int]
) -> tuple[dict[int, int], int]:
    """Offset of each array, by its id, and the size of it all."""
    last = {array: i for i, arrays in enumerate(used) for array in arrays}
    places: dict[int, int] = {}
    free: dict[int, list[int]] = defaultdict(
        list
    )  # offsets, by size; the one that was freed last is taken first
    end = 0
    for i, arrays in enumerate(used):
        for array in sorted(arrays - places.keys()):
            size = _rounded(made[array].nbytes)
            if free[size]:
                places[array] = free[size].pop()
            else:
                places[array], end = end, end + size
        # Only now, so that no call writes its result over what it reads.
        for array in sorted(arrays - kept):
            if last[array] == i:
                free[_rounded(made[array].nbytes)].append(places[array])
    return places, end


def _rounded(size: int) -> int:
    return -(-max(size, 1) // ALIGNED) * ALIGNED


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
