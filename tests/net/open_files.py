"""The open files of the test process."""

from __future__ import annotations

import gc
import os
from contextlib import suppress


def open_files() -> set[tuple[str, str]]:
    """The descriptors of this process with what they stand for. Objects of earlier tests that
    still had one are collected."""
    gc.collect()
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # It was the one that lists them.
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
    return found
