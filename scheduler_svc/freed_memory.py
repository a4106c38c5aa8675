"""Keeps memory that was freed with the process.

The C library gives the end of its heap back whenever 128 KiB of it are free, so that every plan of half a MiB, which is
made, copied and freed, costs some hundred page faults: several times the copying. glibc alone has this setting; where
it has not, nothing is done.
"""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
KEPT_BYTES, MOST_BYTES = 32 * 1024 * 1024, 4 * 1024 * 1024
"""So much free memory is kept; larger pieces of memory than the second come from the system and go back to it."""


def keep_freed_memory() -> None:
    """From now on, in the whole process."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, MOST_BYTES)
