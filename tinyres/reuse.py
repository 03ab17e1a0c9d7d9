"""Where the arrays of a recording lie: memory is used again once nobody needs what is in it.

A recording knows every call that will read an array. So after the last one its memory can be given
to the next array of that size, as a compiler gives a register to the next variable. What is left
is little more than the activations that the way back needs; the rest stays in the cache.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from tinyres.arrays import Array
from tinyres.recorded import Call, Recording, arrays_in, mapped, owner

ALIGNED = 64  # bytes: a line of the cache
Move: TypeAlias = Callable[[Array], Array]


class Place(NamedTuple):
    """Where an array lies, in bytes, and from which call to which its numbers are needed."""

    offset: int
    size: int
    first: int
    last: int


def share_memory(
    recording: Recording, kept: Sequence[Array]
) -> tuple[list[Call], Move, list[Place]]:
    """The calls on arrays that share memory, what moves an array there, and the place of each.

    `kept` are the arrays that somebody reads when the last call is done.
    """
    made = {id(array): array for array in recording.made}
    used = [
        [a for a in dict.fromkeys(map(id, map(owner, arrays_in(call[1:])))) if a in made]
        for call in recording.calls
    ]
    sizes = {array: _rounded(made[array].nbytes) for arrays in used for array in arrays}
    places = _places(sizes, used, {id(owner(array)) for array in kept})
    end = max((place.offset + place.size for place in places.values()), default=0)
    memory = np.empty(end + ALIGNED, np.uint8)
    start = -_address(memory) % ALIGNED

    def moved(array: Array) -> Array:
        """The same array where it lies now."""
        whose = owner(array)
        if id(whose) not in places:
            return array  # a parameter, an array of the batch, a constant
        offset = start + places[id(whose)].offset + _address(array) - _address(whose)
        return np.ndarray(array.shape, array.dtype, memory, offset, array.strides)

    calls = [
        Call(function, mapped(moved, args), mapped(moved, options))
        for function, args, options in recording.calls
    ]
    return calls, moved, list(places.values())


def _places(sizes: dict[int, int], used: list[list[int]], kept: set[int]) -> dict[int, Place]:
    """The place of each array, by its id: where one was that nobody needs any more, or at the end.

    `used` are the arrays of each call.
    """
    first = {array: i for i, arrays in reversed(list(enumerate(used))) for array in arrays}
    last = {array: i for i, arrays in enumerate(used) for array in arrays}
    last |= dict.fromkeys(kept & last.keys(), len(used))
    # Offsets, by size. The one that was freed last is taken first: it is still in the cache.
    free: dict[int, list[int]] = defaultdict(list)
    places: dict[int, Place] = {}
    end = 0
    for i, arrays in enumerate(used):
        for array in arrays:
            if first[array] == i:
                size = sizes[array]
                offset = free[size].pop() if free[size] else end
                end = max(end, offset + size)
                places[array] = Place(offset, size, i, last[array])
        # Only now, so that no call writes its result over what it reads.
        for array in arrays:
            if last[array] == i:
                free[sizes[array]].append(places[array].offset)
    return places


def _rounded(size: int) -> int:
    return -(-max(size, 1) // ALIGNED) * ALIGNED


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
