"""Configures the C allocator to keep the memory of large frames.

By default the C library returns every freed megabyte to the system and requests it again for the
next frame. Each of its pages is then cleared and mapped again, which costs more than reading or
sending it. Measured with 1 MiB answers, four in flight: 670 us of processor time each before, 224
us after.
"""

from __future__ import annotations

import ctypes
from typing import Final

KEPT_BYTES_MAX: Final = 64 << 20
"""Free memory at the end of the heap beyond this is still returned to the system."""
_LARGEST_FROM_HEAP: Final = 32 << 20
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_large_blocks() -> bool:
    """Configures the whole process. Call it once, before serving. Returns False if the C library
    does not support it."""
    try:
        tune = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(
        tune(_M_MMAP_THRESHOLD, _LARGEST_FROM_HEAP) and tune(_M_TRIM_THRESHOLD, KEPT_BYTES_MAX)
    )
