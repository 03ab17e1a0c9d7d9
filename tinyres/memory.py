"""Two settings for the whole process, made when tinyres is imported.

A training step frees all its activations and the next one asks for as much again. glibc returns
large blocks to the kernel in between, which then has to map and clear every page once more: a
quarter of the time of a step. Two options of its allocator change that.

And a step makes a hundred small objects a block, all of which Python's cycle collector looks at
again and again, though there is no cycle among them.
"""

from __future__ import annotations

import ctypes
import gc

from tinyres import expect

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h


def keep_pages() -> bool:
    """Let glibc keep what is freed; False where the C library is another one.

    Blocks of up to 32 MiB, the most that glibc allows, then come from memory that is kept.

    >>> keep_pages() in (True, False)
    True
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, 1 << 25) and mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1))


def collect_rarely(new_objects: int = 10_000) -> None:
    """Let Python search for cycles only after so many new objects, where that is switched on.

    With its own choice, 700 or 2,000 by the version, a step takes 3 % longer, and one of 1,000
    blocks 15 % (`python -m tests.bench --depth`, with and without this).

    >>> collect_rarely()
    >>> gc.get_threshold()[0] >= 10_000 or not gc.get_threshold()[0]
    True
    """
    new_objects = expect.size("collect_rarely: new_objects", new_objects)
    first, *others = gc.get_threshold()
    if 0 < first < new_objects:
        gc.set_threshold(new_objects, *others)
