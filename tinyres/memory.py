"""Keep freed memory for the next step instead of giving it back to the system.

A training step frees all its activations and the next one asks for as much again. glibc returns
large blocks to the kernel in between, which then has to map and clear every page once more: a
quarter of the time of a step. Two settings of its allocator change that, for the whole process.
"""

from __future__ import annotations

import ctypes

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
