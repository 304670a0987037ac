"""Worker processes that end with the process that started them, however that one ends."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor


def worker_pool(jobs: int) -> ProcessPoolExecutor:
    """A pool of processes. Workers of a killed parent exit at once, in the middle of their work."""
    return ProcessPoolExecutor(jobs, initializer=_prepare)


def _prepare() -> None:
    # What was imported stays: the collector need not look at it after every seed.
    gc.freeze()
    # A parent's end of a pipe closes when it dies, also by SIGKILL.
    threading.Thread(target=_exit_after_parent, name="parent-watch", daemon=True).start()


def _exit_after_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
