"""Worker processes that exit when their parent process exits, even if that one is killed."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor


def worker_pool(jobs: int) -> ProcessPoolExecutor:
    """Returns a pool of processes. Workers exit at once when their parent is killed, even
    while working."""
    return ProcessPoolExecutor(jobs, initializer=_prepare)


def _prepare() -> None:
    # Imported objects stay: the garbage collector need not scan them after every seed.
    gc.freeze()
    # The parent's end of a pipe closes when it dies, also by SIGKILL.
    threading.Thread(target=_exit_after_parent, name="parent-watch", daemon=True).start()


def _exit_after_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
